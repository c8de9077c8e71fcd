//! Named limits of the wire protocol and of what a connection may hold.

/// The longest message that clients may send, header included (`maxMessageSizeBytes` of hello).
pub const MAX_MESSAGE_BYTES: usize = 48_000_000;
/// The length of a message header.
pub const HEADER_BYTES: usize = 16;
/// The most statements in one batch of writes (`maxWriteBatchSize` of hello).
pub const MAX_WRITE_BATCH: usize = 100_000;
/// This number of fields of a command, or of a document below it, is read: no command has as many,
/// so among them is one that is never asked for.
pub const MAX_COMMAND_FIELDS: usize = 1000;
/// The most document sequences in one message.
pub const MAX_DOCUMENT_SEQUENCES: usize = 16;
/// The longest name of a database.
pub const MAX_DATABASE_NAME_BYTES: usize = 63;
/// The longest `db.collection`.
pub const MAX_NAMESPACE_BYTES: usize = 255;
/// The longest message that is kept to know others like it: a connection keeps one.
pub const MAX_PATTERN_BYTES: usize = 1024;
/// The largest client metadata document.
pub const MAX_CLIENT_METADATA_BYTES: usize = 512;
/// The longest application name in client metadata.
pub const MAX_APP_NAME_BYTES: usize = 128;
/// The most members a write concern may name, which is the most voting and non-voting members of a
/// set.
pub const MAX_WRITE_CONCERN_MEMBERS: i64 = 50;
/// The most sets of tags of a read preference.
pub const MAX_TAG_SETS: usize = 50;
/// Commands that took at least this long are logged, unless the node is configured otherwise.
pub const DEFAULT_SLOW_MS: u64 = 100;
/// What a reply may hold beyond a user document: cursor fields, operation time, cluster time.
pub const REPLY_ALLOWANCE_BYTES: usize = 64 * 1024;

/// The longest message that is read. A router adds times and versions to commands that its clients
/// may have made as long as the longest.
pub const MAX_ACCEPTED_BYTES: usize = MAX_MESSAGE_BYTES + REPLY_ALLOWANCE_BYTES;

const _: () = assert!(HEADER_BYTES < MAX_MESSAGE_BYTES && MAX_MESSAGE_BYTES < i32::MAX as usize);
const _: () = assert!(MAX_DATABASE_NAME_BYTES < MAX_NAMESPACE_BYTES);
const _: () = assert!(MAX_APP_NAME_BYTES < MAX_CLIENT_METADATA_BYTES);
