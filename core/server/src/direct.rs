//! Messages run as a connection would run them, without a socket: for measurements of what lies behind the network.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_runtime::core_local;
use pinion_wire::{ClientInfo, ReplyFrame, parse_message};

use crate::core::ServerCore;
use crate::dispatch::{Dispatch, RunningOp};

/// Stands for one connection of the core it is made on. Its messages are run one after another, and none of them is
/// compressed or streams.
pub struct Direct {
    core: Rc<ServerCore>,
    client: Arc<ClientInfo>,
    running: RunningOp,
}

impl Direct {
    /// A connection that is none. `install` has been called before.
    #[allow(clippy::new_without_default, reason = "it depends on the core")]
    pub fn new() -> Direct {
        Direct {
            core: core_local::<ServerCore>(),
            client: Arc::new(ClientInfo::internal()),
            running: RefCell::new(None),
        }
    }

    /// The bytes of the reply to a message; `None` where the message is malformed or wants none.
    pub async fn answer(&self, message: Bytes) -> Option<Bytes> {
        let message = parse_message(message).ok()?;
        let dispatch = Dispatch {
            registry: &self.core.registry,
            counters: &self.core.counters,
            client: &self.client,
            running: &self.running,
            op_id: self.core.next_op_id(),
        };
        let command = self.core.registry.find(message.command_name());
        let reply = dispatch.run(command, &message).await;
        let frame = ReplyFrame::answering(&message, self.core.next_request_id());
        message.wants_reply().then(|| reply.encode(frame))
    }
}
