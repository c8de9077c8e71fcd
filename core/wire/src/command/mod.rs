//! Commands: their registry, what an invocation is handed, and the context it runs in.

mod context;
mod login;
mod observer;
mod redact;
mod registry;
mod repeat;
mod spec;
mod target;
mod work;

pub use context::{ClientInfo, ClientMetadata, OpContext, OpShared, RoutedNamespace, interruption};
pub use observer::{CompressorCounters, ReplyEpilogue, ServerCounters};
pub use redact::shown_body;
pub use registry::{Command, Handler, HandlerFuture, Invocation, Registry, check_permitted};
pub use repeat::{Attempt, Prepared, Ran, Repeat, Repeatable};
pub use spec::{
    AllowedOnSecondary, CommandClass, CommandNamespace, CommandPrivileges, CommandRole,
    CommandRouting, CommandSpec, ExplainedCommand, InTransaction, LogicalOp, ReadConcernSupport,
};
pub use target::{collection_named, namespace_named};
pub use work::{GateKind, OpWork, PlanReport, SlowLine, Written};
