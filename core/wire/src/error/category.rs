//! Categories of error codes: what a caller may conclude from a code without knowing it.

/// A set of error categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Category(u32);

macro_rules! categories {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        impl Category {
            $($(#[$doc])* pub const $name: Category = Category(1 << $bit);)*
        }
    };
}

categories! {
    /// The connection failed.
    NETWORK = 0;
    /// The connection failed by a time-out.
    NETWORK_TIMEOUT = 1;
    /// The operation was interrupted from outside.
    INTERRUPTION = 2;
    /// The node was not primary at some point of the operation.
    NOT_PRIMARY = 3;
    STALE_SHARD_VERSION = 4;
    NEED_RETARGETTING = 5;
    /// The write happened; its write concern was not reached.
    WRITE_CONCERN = 6;
    SHUTDOWN = 7;
    CANCELLATION = 8;
    /// The message cannot be trusted, so the connection is closed after the answer.
    CONNECTION_FATAL_PARSE = 9;
    EXCEEDED_TIME_LIMIT = 10;
    /// The snapshot that the operation needs is not there.
    SNAPSHOT = 11;
    VOTE_ABORT = 12;
    TWO_PHASE_DECISION_ACK = 13;
    NON_RESUMABLE_CHANGE_STREAM = 14;
    /// The same operation may succeed when sent again.
    RETRIABLE = 15;
    CLOSE_CONNECTION = 16;
    VERSIONED_API = 17;
    VALIDATION = 18;
    IDL_PARSE = 19;
    /// Never sent to a client.
    INTERNAL_ONLY = 20;
    /// The cursor is gone.
    CURSOR_INVALIDATED = 21;
    TENANT_MIGRATION = 22;
    PLANNER_ESTIMATION = 23;
    SYSTEM_OVERLOADED = 24;
}

impl Category {
    pub(super) const NONE: Category = Category(0);

    /// The codes in either set.
    #[must_use]
    pub const fn and(self, other: Category) -> Category {
        Category(self.0 | other.0)
    }

    /// True if the sets have a category in common.
    pub const fn intersects(self, other: Category) -> bool {
        self.0 & other.0 != 0
    }
}
