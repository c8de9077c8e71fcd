//! Wire messages, the command registry, OpContext, error codes.

mod command;
mod error;
mod host_port;
pub mod idl;
pub mod limits;
mod member_state;
mod message;
mod version;

pub use command::{
    AllowedOnSecondary, Attempt, ClientInfo, ClientMetadata, Command, CommandClass,
    CommandNamespace, CommandPrivileges, CommandRole, CommandRouting, CommandSpec,
    CompressorCounters, ExplainedCommand, GateKind, Handler, HandlerFuture, InTransaction,
    Invocation, LogicalOp, OpContext, OpShared, OpWork, PlanReport, Prepared, Ran,
    ReadConcernSupport, Registry, Repeat, Repeatable, ReplyEpilogue, RoutedNamespace,
    ServerCounters, SlowLine, Written, check_permitted, collection_named, interruption,
    namespace_named, shown_body,
};
pub use error::{Category, Error, ErrorCode, LabelContext, Result, labels, labels_for};
pub use host_port::HostPort;
pub use member_state::MemberState;
pub use message::{
    Answer, BadLength, CompressionError, CompressionState, Compressor, Documents, Flags, Header,
    Message, MessageKind, OpCode, ParseError, Pattern, Reply, ReplyFrame, append_labels,
    document_section, encode_request, encode_with_sections, error_reply, message_length,
    parse_message, parse_reply,
};
pub use version::{COMPATIBLE_VERSION, LanguageVersion};
