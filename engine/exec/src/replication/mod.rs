//! What the executor keeps for the driver of a member: the parameters that it goes by, and the tickets that writes take
//! while the set lags.

use crate::parameters::parameters;
mod figures;
mod flow_control;
mod parameters;

pub use figures::{Buffered, Elections, MemberFigures, Rounds, Transition};
pub(crate) use figures::{METRICS, ReplicationFigures};
pub(crate) use flow_control::{FlowControl, NodeTickets, append_status, take_ticket};
pub use flow_control::{FlowControlStatus, FlowSample, flow_sample, set_tickets, tickets_ran_out};
pub use parameters::{InitialSyncMethod, ReplicationParameters};
pub(crate) use parameters::{NAMES, ReplicationSetting};

/// The parameters of replication as they are set now.
pub fn replication_parameters() -> ReplicationParameters {
    let parameters = parameters();
    let parameters = parameters.borrow();
    parameters.replication
}
