//! Synchronisation between the tasks of one core. Nothing here crosses cores: for that there is the
//! mesh.

mod channel;
mod gate;
mod notify;
mod oneshot;
mod semaphore;
mod wait_group;
mod waiters;

pub use channel::{Receiver, SendError, Sender, TrySendError, channel};
pub use gate::{Gate, GateClosed, GateGuard};
pub use notify::{Notified, Notify};
pub use oneshot::{OneshotReceiver, OneshotSender, SenderDropped, oneshot};
pub use semaphore::{Acquire, Permit, Semaphore};
pub use wait_group::{WaitGroup, WaitGroupGuard};
