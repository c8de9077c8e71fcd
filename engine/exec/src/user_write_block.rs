//! Whether writes of users are blocked: what a core knows of that, and whom it concerns.
//!
//! A user write is one to a database that is none of the node's. Work of the node itself is none,
//! and neither is what a member asks for with `mayBypassWriteBlocking`: the word of a connection
//! alone, that it is a member's, permits nothing.
//!
//! Source: sharding document, "User Write Blocking".

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::{RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::Definition;
use pinion_runtime::sync::Semaphore;
use pinion_service::members::requires_members;
use pinion_wire::idl::{FieldReader, Path};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::own_collections::is_node_database;
use crate::topology::is_member;

/// The collection that it is stored in.
pub const NAMESPACE: &str = "config.user_writes_critical_sections";

/// What is blocked. What is stored is this, or nothing where nothing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockedUserWork {
    /// Shards start no definition of the cluster.
    pub definitions: bool,
    /// Users write nothing, and define nothing.
    pub writes: bool,
}

/// A change of what is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// Of a replica set that is no part of a cluster.
    BlockWrites,
    /// The first phase in a cluster.
    BlockDefinitions,
    /// The second phase in a cluster.
    AlsoBlockWrites,
    /// The first phase of the end in a cluster.
    UnblockWrites,
    Release,
}

/// The collection has one document.
pub(crate) const ID: &str = "";

impl BlockedUserWork {
    /// # Errors
    /// A field of another type.
    pub(crate) fn parse(document: &RawDocument) -> Result<BlockedUserWork> {
        let reader = FieldReader::object(Path::root(NAMESPACE), document)?;
        let flag = |name| Ok::<_, Error>(reader.opt_bool(name)?.unwrap_or(false));
        Ok(BlockedUserWork {
            definitions: flag("blockNewUserShardedDDL")?,
            writes: flag("blockUserWrites")?,
        })
    }

    /// The document to store; none where nothing is blocked.
    pub(crate) fn to_bson(self) -> Option<RawDocumentBuf> {
        let blocks = self.definitions || self.writes;
        blocks.then(|| {
            rawdoc! {
                "_id": ID, "blockNewUserShardedDDL": self.definitions,
                "blockUserWrites": self.writes,
            }
        })
    }

    /// What is blocked after a change. One that was made already changes nothing.
    ///
    /// # Errors
    /// `IllegalOperation` where another phase has to come first.
    pub(crate) fn changed(self, change: BlockChange) -> Result<BlockedUserWork> {
        let blocked = |definitions, writes| BlockedUserWork {
            definitions,
            writes,
        };
        match change {
            BlockChange::BlockWrites if self.definitions => Err(illegal(
                "Cannot block user writes of a replica set that has blocked definitions of a sharded cluster",
            )),
            BlockChange::BlockWrites => Ok(blocked(false, true)),
            BlockChange::BlockDefinitions if self.writes && !self.definitions => Err(illegal(
                "Cannot block sharded DDL operations where user writes alone are blocked",
            )),
            BlockChange::BlockDefinitions => Ok(blocked(true, self.writes)),
            BlockChange::AlsoBlockWrites if !self.definitions => Err(illegal(
                "Cannot block user writes if sharded DDL operations have not been blocked first",
            )),
            BlockChange::AlsoBlockWrites => Ok(blocked(true, true)),
            BlockChange::UnblockWrites => Ok(blocked(self.definitions, false)),
            BlockChange::Release => Ok(blocked(false, false)),
        }
    }
}

fn illegal(message: &str) -> Error {
    Error::new(ErrorCode::ILLEGAL_OPERATION, message)
}

/// What a core knows of it; every core knows the same.
pub struct UserWriteBlock {
    blocked: Cell<BlockedUserWork>,
    /// One changes it at a time; core 0 has the turn.
    pub(crate) turn: Semaphore,
}

impl Default for UserWriteBlock {
    fn default() -> UserWriteBlock {
        UserWriteBlock {
            blocked: Cell::default(),
            turn: Semaphore::new(1),
        }
    }
}

/// This core's knowledge.
pub(crate) fn user_write_block() -> Rc<UserWriteBlock> {
    pinion_runtime::core_local()
}

impl UserWriteBlock {
    pub(crate) fn set(&self, blocked: BlockedUserWork) {
        self.blocked.set(blocked);
    }
}

/// What is blocked on this node.
pub fn blocked_user_work() -> BlockedUserWork {
    let block = pinion_runtime::try_core_local::<UserWriteBlock>();
    block.map_or_else(BlockedUserWork::default, |block| block.blocked.get())
}

/// Whether what users have in this database is not to be written. A node that runs without its set
/// writes for itself.
pub fn is_blocked(db: &str) -> bool {
    blocked_user_work().writes && !is_node_database(db) && is_member()
}

/// Whether the sender is a node, and says that this is none of a user's writes.
fn may_bypass(ctx: &OpContext) -> bool {
    let says = ctx.args.routing.as_ref();
    let says = says.is_some_and(|routing| routing.may_bypass_write_block == Some(true));
    let client = &ctx.client;
    let is_node = client.says_internal() && (client.is_trusted() || !requires_members());
    client.is_internal() || says && is_node
}

fn refused() -> Error {
    Error::new(ErrorCode::USER_WRITES_BLOCKED, "User writes blocked")
}

/// Refuses a user's write.
///
/// # Errors
/// `UserWritesBlocked`.
pub(crate) fn check(ctx: &OpContext, db: &str) -> Result<()> {
    match is_blocked(db) && !may_bypass(ctx) {
        true => Err(refused()),
        false => Ok(()),
    }
}

/// Refuses a user's definition.
///
/// # Errors
/// `UserWritesBlocked`.
pub(crate) fn check_definition(ctx: &OpContext, definition: &Definition) -> Result<()> {
    if !blocked_user_work().writes {
        return Ok(());
    }
    match definition {
        Definition::OfWrite => Ok(()),
        Definition::DropDatabase(db) => check(ctx, db),
        Definition::Rename { from, to } => {
            check(ctx, from.db())?;
            check(ctx, to.db())
        }
        Definition::Create { ns, .. }
        | Definition::Drop(ns)
        | Definition::Modify(ns)
        | Definition::CreateIndexes(ns)
        | Definition::DropIndexes(ns)
        | Definition::Reindex(ns)
        | Definition::CloneAsCapped { to: ns, .. }
        | Definition::ConvertToCapped(ns) => check(ctx, ns.db()),
    }
}

/// Refuses to start a definition of the cluster.
///
/// # Errors
/// `UserWritesBlocked`.
pub fn check_cluster_definition(db: &str) -> Result<()> {
    match blocked_user_work().definitions && !is_node_database(db) {
        true => Err(refused()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: BlockedUserWork = BlockedUserWork {
        definitions: false,
        writes: false,
    };
    const WRITES: BlockedUserWork = BlockedUserWork {
        definitions: false,
        writes: true,
    };
    const DEFINITIONS: BlockedUserWork = BlockedUserWork {
        definitions: true,
        writes: false,
    };
    const ALL: BlockedUserWork = BlockedUserWork {
        definitions: true,
        writes: true,
    };

    #[test]
    fn changes() {
        use BlockChange::*;
        let refused = None;
        let check = |change, expected: [Option<BlockedUserWork>; 4]| {
            let after = [NOTHING, WRITES, DEFINITIONS, ALL].map(|now| now.changed(change).ok());
            assert_eq!(after, expected, "{change:?}");
        };
        check(BlockWrites, [Some(WRITES), Some(WRITES), refused, refused]);
        check(
            BlockDefinitions,
            [Some(DEFINITIONS), refused, Some(DEFINITIONS), Some(ALL)],
        );
        check(AlsoBlockWrites, [refused, refused, Some(ALL), Some(ALL)]);
        check(
            UnblockWrites,
            [
                Some(NOTHING),
                Some(NOTHING),
                Some(DEFINITIONS),
                Some(DEFINITIONS),
            ],
        );
        check(Release, [Some(NOTHING); 4]);
    }

    #[test]
    fn documents() {
        assert_eq!(NOTHING.to_bson(), None);
        for blocked in [WRITES, DEFINITIONS, ALL] {
            let stored = blocked.to_bson().expect("a document");
            assert_eq!(BlockedUserWork::parse(&stored).ok(), Some(blocked));
        }
        let stored = rawdoc! {
            "_id": "", "blockNewUserShardedDDL": false, "blockUserWrites": true,
        };
        assert_eq!(WRITES.to_bson(), Some(stored));
        assert_eq!(BlockedUserWork::parse(&rawdoc! {}).ok(), Some(NOTHING));
        assert!(BlockedUserWork::parse(&rawdoc! { "blockUserWrites": 1 }).is_err());
    }
}
