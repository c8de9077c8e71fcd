//! A command that has several statements, as rounds of them see it.

use std::sync::Arc;

use pinion_sharding_protocol::{RoutingTable, ShardId};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, Invocation, Reply, Result};

use super::plan::{Plan, Rest};
use crate::dispatch::Answer;
use crate::request::Request;

/// The statements of a client's command, and what has become of them.
pub(crate) trait Statements {
    fn cmd(&self) -> &Invocation;

    fn len(&self) -> usize;

    fn is_ordered(&self) -> bool;

    fn ns(&self, at: usize) -> &Namespace;

    /// What a statement takes of a message, with its number.
    fn size_of(&self, at: usize) -> usize;

    /// Whether a statement changes one document at most.
    fn changes_one(&self, at: usize) -> bool;

    /// Finds out where the collections of the command are. Whether one of them is sharded: then
    /// statements go to shards one by one.
    async fn look_up(&mut self) -> Result<bool>;

    /// The table that a statement is sent by, where its collection is sharded.
    fn table(&self, at: usize) -> Option<&Arc<RoutingTable>>;

    /// Executes statements of a command without a sharded collection.
    async fn run_unsharded(&mut self, which: Vec<usize>) -> Result<Unsharded>;

    /// Where a statement goes. `rest`: a part of it was executed.
    fn plan(&self, at: usize, rest: Option<&Rest>) -> Result<Plan>;

    /// The request for some of them to a shard.
    fn request(&self, which: &[usize], shard: &ShardId) -> Request;

    /// Executes a statement whose document has to be found first; as `write_one`.
    async fn find_and_write(&self, at: usize) -> Result<Option<Answer>>;

    /// Takes what a shard has answered to some of them.
    async fn add(&mut self, answer: &Answer, sent: &[usize]) -> Result<Added>;

    /// Statements that were not executed since their shard did not take them.
    fn fail(&mut self, failed: &[usize], error: &Error);

    fn has_errors(&self) -> bool;

    fn has_failed(&self, at: usize) -> bool;

    /// How much has become of them: it grows with each that was executed, or has failed.
    fn progress(&self) -> usize;

    async fn into_reply(self) -> Result<Reply>;
}

/// What a reply says of the statements that were sent.
#[derive(Default)]
pub(crate) struct Added {
    /// Those that the shard has refused since the sender's version was old, and one of the errors.
    /// Where there is an order, what stands behind one was not executed either, and is among them.
    pub refused: Vec<usize>,
    pub stale: Option<Error>,
    /// Documents that were changed, where the reply says it.
    pub changed: Option<i64>,
}

/// What has become of statements without a sharded collection.
pub(crate) enum Unsharded {
    /// The node's reply is the client's.
    Passed(Reply),
    /// These were refused as stale, with one of the errors.
    Left(Vec<usize>, Option<Error>),
    /// None of them was executed.
    Failed(Error),
}
