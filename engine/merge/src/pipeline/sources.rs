//! What the stages of a pipeline read and write outside of it.

use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::RawArray;
use pinion_query::{ExternalStage, Memory, Pipeline, Variables};
use pinion_service::cursors::Documents;
use pinion_wire::{OpContext, Result};

use super::Node;

/// A source that holds some of its documents already.
pub trait Buffered: Documents {
    /// The next document, or its error, if it is there without waiting; `None` also at the end. It
    /// counts as unused.
    fn next_buffered(&mut self) -> Option<Result<Bytes>>;

    /// How many of the documents that were taken are not used so far: they do not count as read.
    fn set_unused(&mut self, documents: usize);
}

/// What the stages of one pipeline share, and how they come to collections: a node acquires those
/// that it has, a router asks the nodes that have them.
pub trait Sources: Sized {
    /// The documents of a collection, as a pipeline reads them.
    type Read: Buffered;
    /// Keeps a collection from being dropped while it is read.
    type Held;

    /// The variables that are set where the pipeline stands.
    fn vars(&self) -> &Variables;

    /// What the stages may hold.
    fn memory(&self) -> &Memory;

    /// A pipeline of these stages over another collection, `from`; without one the stages make
    /// their documents. What is opened with [`Passes::Held`] is read while the second value lives.
    ///
    /// # Errors
    /// Those of the stages, of the access to the collection, and of the first step of its read.
    fn open(
        self: &Rc<Self>,
        ctx: &OpContext,
        from: Option<&str>,
        stages: &RawArray,
        vars: &Variables,
        passes: Passes,
    ) -> impl Future<Output = Result<(Node<Self>, Option<Self::Held>)>>;

    /// This pipeline over the collection that the whole pipeline reads; nothing of it is held.
    ///
    /// # Errors
    /// As those of [`Sources::open`].
    fn open_own(
        self: &Rc<Self>,
        ctx: &OpContext,
        pipeline: &Pipeline,
    ) -> impl Future<Output = Result<Node<Self>>>;

    /// Writes all documents of a source, as `$out` or `$merge` say.
    ///
    /// # Errors
    /// Those of the source and of the writes; what was written before stays where it is, unless the
    /// stage writes all or nothing.
    fn write(
        self: &Rc<Self>,
        ctx: &OpContext,
        stage: &ExternalStage,
        source: Node<Self>,
    ) -> impl Future<Output = Result<()>>;
}

/// Whether a stage holds the pass of the collection's gate for as long as it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// The read is short, and the collection stays until it has ended.
    Held,
    /// The read lasts as long as a cursor, and ends with an error where the collection goes.
    LetGo,
}
