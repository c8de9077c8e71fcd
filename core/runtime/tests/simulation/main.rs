//! What the simulator promises beyond the common interface: equal traces, crashes, faults of disks
//! and networks.

mod crashes;
mod disks;
mod networks;
mod recorder;
mod traces;
