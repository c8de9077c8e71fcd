//! Settings that the cores of this node keep a copy of: what another member has changed of them
//! takes effect when it is applied.

use pinion_catalog::ApplyMode;
use pinion_exec::cluster_parameter_store::reload;
use pinion_exec::concern::{self, forget_everywhere};
use pinion_service::cluster_parameters;
use pinion_wire::idl::Namespace;

/// Which of them applied entries have written.
#[derive(Clone, Copy, Default)]
pub(super) struct Changed {
    /// The default read and write concern.
    concerns: bool,
    /// Cluster parameters and query settings.
    parameters: bool,
}

impl Changed {
    /// A document of this collection was written, or the collection itself has changed.
    pub(super) fn note(&mut self, ns: &Namespace) {
        let named = (ns.db(), ns.collection());
        self.concerns |= named == concern::SETTINGS;
        self.parameters |= named == cluster_parameters::COLLECTION;
    }

    /// A command of this database was applied: which collections it concerns is not examined.
    pub(super) fn note_command(&mut self, db: &str) {
        self.concerns |= db == concern::SETTINGS.0;
        self.parameters |= db == cluster_parameters::COLLECTION.0;
    }

    /// Has every core use them. What opens or copies data does so at its end.
    pub(super) async fn take_effect(self, mode: ApplyMode) {
        if mode == ApplyMode::Recovery {
            return;
        }
        if self.concerns {
            forget_everywhere().await;
        }
        if self.parameters
            && mode == ApplyMode::Secondary
            && let Err(error) = reload().await
        {
            tracing::warn!(target: "CONTROL", id = 7_300_012u64, error = %error, "Cluster parameters that were changed could not be read");
        }
    }
}
