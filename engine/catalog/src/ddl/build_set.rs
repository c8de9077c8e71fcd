//! What the builds of indexes on a member ask of its replica set. A standalone has none, and
//! decides alone.
//!
//! All members build an index at the same time. The primary alone writes how a build has ended,
//! when the members that its commit quorum asks for are ready, and the primary of that time does
//! so: a build outlives the primary that started it. Source: execution document, "Replica Set Index
//! Builds".

use std::rc::Rc;

use pinion_bson::RawDocumentBuf;
use pinion_runtime::LocalBoxFuture;
use pinion_wire::Error;

use crate::uuid::Uuid;

/// Something that is waited for, on core 0. The caller may give up at any time.
pub type Waiting<T> = LocalBoxFuture<'static, T>;

/// Which build is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildName {
    pub uuid: Uuid,
    /// The collection's.
    pub collection: Uuid,
    /// The names of its indexes, in their order.
    pub indexes: Vec<String>,
}

/// The set, as core 0 of a member sees it.
pub trait BuildSet {
    /// Keeps the request of the client whose build this node, as primary, has started: a document
    /// with `commitQuorum`.
    fn started(&self, build: BuildName, asked: RawDocumentBuf) -> Waiting<()>;

    /// Completes when this node is the primary and the members are ready that the build waits for.
    /// Until then it reports to them that this node is.
    fn until_commit(&self, build: BuildName) -> Waiting<()>;

    /// Completes when this node is the primary. Until then it reports to the primary that this node
    /// cannot build, and why.
    fn until_abort(&self, build: BuildName, why: Error) -> Waiting<()>;

    /// Forgets what is kept of a build whose end this node has written.
    fn ended(&self, build: Uuid) -> Waiting<()>;
}

struct Registered(Rc<dyn BuildSet>);

/// Makes the builds of this node those of a set. Called on core 0, before there are any.
pub fn set_build_set(set: Rc<dyn BuildSet>) {
    pinion_runtime::set_core_local(Rc::new(Registered(set)));
}

pub(super) fn build_set() -> Option<Rc<dyn BuildSet>> {
    let registered = pinion_runtime::try_core_local::<Registered>()?;
    Some(registered.0.clone())
}
