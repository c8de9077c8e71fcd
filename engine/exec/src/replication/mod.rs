//! What the executor keeps for the driver of a member: the parameters that it goes by, and the
//! tickets that writes take while the set lags.

mod figures;
mod flow_control;

pub use figures::{METRICS, ReplicationFigures};
pub use flow_control::{FlowControl, NodeTickets, append_status, take_ticket};
pub use flow_control::{FlowControlStatus, FlowSample, flow_sample, set_tickets, tickets_ran_out};
