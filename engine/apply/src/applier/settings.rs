//! Settings that the cores of this node keep a copy of: what another member has changed of them
//! takes effect when it is applied.

use pinion_auth::ADMIN_DATABASE;
use pinion_bson::{RawDocument, get};
use pinion_catalog::ApplyMode;
use pinion_exec::cluster_parameter_store::reload;
use pinion_exec::concern::{self, forget_everywhere};
use pinion_exec::placement::{WrittenDocuments, documents_applied};
use pinion_exec::{user_write_block, user_write_block_store};
use pinion_service::cluster_parameters;
use pinion_service::login::{forget_users, holds_users};
use pinion_wire::idl::Namespace;

/// Which of them applied entries have written.
#[derive(Clone, Default)]
pub(super) struct Changed {
    /// The default read and write concern.
    concerns: bool,
    /// Cluster parameters and query settings.
    parameters: bool,
    /// What is blocked of the work of users.
    user_writes: bool,
    /// Users and roles.
    users: bool,
    /// What a shard or config server keeps of its cluster.
    cluster: WrittenDocuments,
}

impl Changed {
    /// A document of this collection was written by this operation.
    pub(super) fn note(&mut self, ns: &Namespace, operation: &RawDocument) {
        let named = (ns.db(), ns.collection());
        self.concerns |= named == concern::SETTINGS;
        self.parameters |= named == cluster_parameters::COLLECTION;
        self.user_writes |= ns.as_str() == user_write_block::NAMESPACE;
        self.users |= holds_users(ns);
        self.cluster.note(ns, || id_of(operation));
    }

    /// A command of this database was applied, whose first field may name a collection.
    pub(super) fn note_command(&mut self, db: &str, command: &RawDocument) {
        self.concerns |= db == concern::SETTINGS.0;
        self.parameters |= db == cluster_parameters::COLLECTION.0;
        self.user_writes |= db == "config";
        self.users |= db == ADMIN_DATABASE;
        let first = pinion_bson::elements(command).next();
        let collection = first.and_then(|(_, value)| value.as_str());
        self.cluster.note_command(db, collection);
    }

    /// Has every core use them. What opens or copies data does so at its end.
    pub(super) async fn take_effect(self, mode: ApplyMode) {
        if mode == ApplyMode::Recovery {
            return;
        }
        if self.concerns {
            forget_everywhere().await;
        }
        if self.users {
            forget_users().await;
        }
        if mode == ApplyMode::Secondary {
            documents_applied(self.cluster).await;
        }
        if self.parameters
            && mode == ApplyMode::Secondary
            && let Err(error) = reload().await
        {
            tracing::warn!(target: "CONTROL", id = 7_300_012u64, error = %error, "Cluster parameters that were changed could not be read");
        }
        if self.user_writes
            && mode == ApplyMode::Secondary
            && let Err(error) = user_write_block_store::load().await
        {
            tracing::warn!(target: "CONTROL", id = 7_300_013u64, error = %error, "It could not be read whether writes of users are blocked");
        }
    }
}

/// The `_id` of the document that an operation writes, where it is a text.
fn id_of(operation: &RawDocument) -> Option<String> {
    let document = ["o2", "o"]
        .into_iter()
        .find_map(|name| get(operation, name));
    let id = get(document?.as_document()?, "_id")?;
    id.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn which_document_is_written() {
        let check = |operation: pinion_bson::RawDocumentBuf, expected: Option<&str>| {
            assert_eq!(id_of(&operation).as_deref(), expected, "{operation:?}");
        };
        check(
            rawdoc! { "op": "i", "o": { "_id": "d", "x": 1 } },
            Some("d"),
        );
        check(rawdoc! { "op": "d", "o": { "_id": "d" } }, Some("d"));
        let diff = rawdoc! { "op": "u", "o": { "$v": 2, "diff": {} }, "o2": { "_id": "d" } };
        check(diff, Some("d"));
        check(rawdoc! { "op": "i", "o": { "_id": 1 } }, None);
        check(rawdoc! { "op": "n" }, None);
    }
}
