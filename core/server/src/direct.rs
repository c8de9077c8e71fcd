//! Messages run as a connection would run them, without a socket: commands that a node sends to
//! itself, and measurements of what lies behind the network.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_runtime::core_local;
use pinion_wire::{ClientInfo, Header, ReplyFrame, parse_message};

use crate::core::ServerCore;
use crate::dispatch::{Caller, Dispatch};

/// Stands for one connection of the core it is made on. Its messages are run one after another, and
/// none of them is compressed or streams.
pub struct Direct {
    core: Rc<ServerCore>,
    caller: Caller,
}

impl Direct {
    /// A connection that is none. `install` has been called before.
    #[allow(clippy::new_without_default, reason = "it depends on the core")]
    pub fn new() -> Direct {
        Direct {
            core: core_local::<ServerCore>(),
            caller: Caller::new(Arc::new(ClientInfo::internal())),
        }
    }

    /// The same where clients are served; `None` before `install` has been called on this core.
    pub fn try_new() -> Option<Direct> {
        let core = pinion_runtime::try_core_local::<ServerCore>()?;
        Some(Direct {
            core,
            caller: Caller::new(Arc::new(ClientInfo::internal())),
        })
    }

    /// The bytes of the reply to a message; `None` where the message is malformed, or has or wants
    /// none.
    pub async fn answer(&self, message: Bytes) -> Option<Bytes> {
        let dispatch = Dispatch::new(&self.core, &self.caller);
        if let Some(reply) = dispatch.repeat_now(&message).await {
            let asked = Header::read(&message).expect("it was run");
            let frame = ReplyFrame::plain(self.core.next_request_id(), asked.request_id);
            return Some(reply.encode(frame));
        }
        let message = match dispatch.known(&message) {
            Some(message) => message,
            None => parse_message(message).ok()?,
        };
        let command = self.core.registry.find(message.command_name());
        let reply = dispatch.run(command, &message).await;
        let frame = ReplyFrame::answering(&message, self.core.next_request_id());
        let answers = message.wants_reply() && !reply.is_withheld();
        answers.then(|| reply.encode(frame))
    }
}
