//! The turn at the files of the node: its holder alone writes checkpoints and manifests.

use std::cell::RefCell;

use pinion_runtime::sync::{Permit, Semaphore};

use crate::manifest::{Manifest, ManifestStore};

/// Gives the turn to one after another. The manifests can be reached with it alone.
pub(in crate::engine) struct Turns {
    permits: Semaphore,
    /// Absent while the turn is taken.
    manifests: RefCell<Option<ManifestStore>>,
}

impl Turns {
    pub(in crate::engine) fn new(manifests: ManifestStore) -> Turns {
        Turns {
            permits: Semaphore::new(1),
            manifests: RefCell::new(Some(manifests)),
        }
    }

    /// Waits for the turn.
    pub(in crate::engine) async fn take(&self) -> Turn<'_> {
        let permit = self.permits.acquire().await;
        let manifests = self.manifests.borrow_mut().take();
        assert!(manifests.is_some(), "one permit, one turn");
        Turn {
            turns: self,
            manifests,
            _permit: permit,
        }
    }
}

/// The turn, until it is dropped; also by a task that is cancelled.
pub(in crate::engine) struct Turn<'a> {
    turns: &'a Turns,
    /// Absent once this is dropped.
    manifests: Option<ManifestStore>,
    /// Given back after the manifests.
    _permit: Permit,
}

impl Turn<'_> {
    /// What the newest manifest says.
    pub(in crate::engine) fn manifest(&self) -> &Manifest {
        let manifests = self.manifests.as_ref();
        manifests.expect("the turn has the manifests").current()
    }

    pub(in crate::engine) fn manifests(&mut self) -> &mut ManifestStore {
        let manifests = self.manifests.as_mut();
        manifests.expect("the turn has the manifests")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let before = self.turns.manifests.replace(self.manifests.take());
        debug_assert!(before.is_none(), "one permit, one turn");
    }
}
