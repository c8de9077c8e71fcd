//! The task of one connection: messages in, commands run one after another, replies out in order.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use pinion_runtime::{Connection, offload_bounded, timeout, yield_if_due};
use pinion_wire::{
    ClientInfo, CommandClass, CommandRole, CompressionError, CompressionState, Compressor,
    ErrorCode, Header, Message, MessageKind, OpCode, ParseError, Reply, ReplyFrame, ServerCounters,
    error_reply, parse_message,
};

use crate::core::ServerCore;
use crate::dispatch::{Caller, Dispatch, connection_name};
use crate::frame::{Fill, Foreign, FrameError, FrameReader};
use crate::limits::{LARGE_MESSAGE_BYTES, LAST_FLUSH_TIMEOUT, LINGER_TIMEOUT};

/// What others may see and stop of a connection.
pub(crate) struct Live {
    pub caller: Caller,
    pub connection: Connection,
    /// Waiting for a message, with none started.
    pub idle: Cell<bool>,
}

impl Live {
    pub(crate) fn new(client: Arc<ClientInfo>, connection: Connection) -> Live {
        Live {
            caller: Caller::new(client),
            connection,
            idle: Cell::new(true),
        }
    }

    /// Interrupts the command that is running.
    pub(crate) fn interrupt(&self, code: ErrorCode) {
        if let Some(ctx) = &*self.caller.running.borrow() {
            ctx.kill(code);
        }
    }
}

/// What a peer is answered that sends a request of HTTP.
fn http_answer() -> Bytes {
    const TEXT: &str =
        "It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n";
    let length = TEXT.len();
    Bytes::from(format!(
        "HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{TEXT}"
    ))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Continue,
    Close,
}

/// Serves a connection until either side ends it.
pub(crate) async fn serve(core: Rc<ServerCore>, live: Rc<Live>) {
    let mut session = Session {
        core: &core,
        live: &live,
        frames: FrameReader::default(),
        logged_metadata: false,
    };
    let ended = session.run().await;
    // Replies already queued are delivered; a peer that does not read them is not waited for long.
    let _ = timeout(LAST_FLUSH_TIMEOUT, live.connection.flush()).await;
    live.connection.shutdown_write();
    if ended == Ended::ByThisSide && !core.is_draining() {
        let discard = async {
            let mut scratch = BytesMut::new();
            while live
                .connection
                .recv(&mut scratch)
                .await
                .is_ok_and(|n| n > 0)
            {
                scratch.clear();
            }
        };
        let _ = timeout(LINGER_TIMEOUT, discard).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    ByPeer,
    ByThisSide,
}

struct Session<'a> {
    core: &'a ServerCore,
    live: &'a Live,
    frames: FrameReader,
    logged_metadata: bool,
}

impl Session<'_> {
    async fn run(&mut self) -> Ended {
        loop {
            self.live.idle.set(true);
            let next = self.frames.next(&self.live.connection).await;
            self.live.idle.set(false);
            let message = match next {
                Ok(Some(message)) => message,
                Ok(None) => return Ended::ByPeer,
                Err(error) => {
                    if !matches!(error, FrameError::Io(_)) {
                        ServerCounters::add(&self.core.counters.malformed, 1);
                    }
                    if !self.core.is_draining() {
                        tracing::info!(target: "NETWORK", id = 22_988u64, ctx = connection_name(&self.live.caller.client), error = %error, remote = %self.live.connection.peer_addr(), "Error receiving request from client. Ending connection from remote");
                    }
                    if let FrameError::Foreign(Foreign::Http) = error {
                        // Whether it arrives or not, nothing else is said here.
                        let _ = self.live.connection.send(http_answer()).await;
                    }
                    return match error {
                        FrameError::BadLength(_) | FrameError::Foreign(_) => Ended::ByThisSide,
                        FrameError::Io(_) | FrameError::Truncated => Ended::ByPeer,
                    };
                }
            };
            if self.core.is_draining() || self.handle(message).await == Flow::Close {
                return Ended::ByThisSide;
            }
            yield_if_due().await;
        }
    }

    async fn handle(&mut self, bytes: Bytes) -> Flow {
        let counters = &self.core.counters;
        ServerCounters::add(&counters.requests, 1);
        let mut compressor = None;
        let bytes = match Header::read(&bytes) {
            Some(header) if header.opcode == OpCode::COMPRESSED => {
                match self.unwrap(&bytes).await {
                    Ok((plain, used)) => {
                        counters.decompressed(used, bytes.len(), plain.len());
                        compressor = Some(used);
                        plain
                    }
                    Err(error) => {
                        ServerCounters::add(&counters.malformed, 1);
                        tracing::info!(target: "NETWORK", id = 22_987u64, ctx = connection_name(&self.live.caller.client), error = %error, "Ending connection after an invalid compressed message");
                        return Flow::Close;
                    }
                }
            }
            _ => bytes,
        };
        ServerCounters::add(&counters.bytes_in, bytes.len() as u64);
        let dispatch = Dispatch::new(self.core, &self.live.caller);
        if let Some(reply) = dispatch.repeat_now(&bytes).await {
            let asked = Header::read(&bytes).expect("it was run");
            let frame = ReplyFrame::plain(self.core.next_request_id(), asked.request_id);
            return self.send(frame, compressor, reply).await;
        }
        let parsed = match dispatch.known(&bytes) {
            Some(message) => Ok(message),
            // Checking takes some nanoseconds for each value, and a message may hold millions.
            None if bytes.len() > LARGE_MESSAGE_BYTES => {
                offload_bounded(|| parse_message(bytes)).await
            }
            None => parse_message(bytes),
        };
        match parsed {
            Ok(message) => {
                let message = match compressor {
                    Some(used) => message.compressed_by(used),
                    None => message,
                };
                ServerCounters::add(&counters.active, 1);
                let flow = self.run_message(message).await;
                ServerCounters::less(&counters.active);
                flow
            }
            Err(refused) => self.refuse(refused).await,
        }
    }

    /// The message inside a compressed one. A large one is unwrapped on a compute thread.
    async fn unwrap(&self, bytes: &Bytes) -> Result<(Bytes, Compressor), CompressionError> {
        let claimed = CompressionState::claimed_bytes(bytes).unwrap_or_default();
        if bytes.len().max(claimed) <= LARGE_MESSAGE_BYTES {
            return self.core.compression.borrow_mut().unwrap(bytes);
        }
        offload_bounded(|| CompressionState::default().unwrap(bytes)).await
    }

    async fn refuse(&mut self, refused: ParseError) -> Flow {
        ServerCounters::add(&self.core.counters.malformed, 1);
        tracing::info!(target: "NETWORK", id = 22_989u64, ctx = connection_name(&self.live.caller.client), error = %refused.error, closing = refused.close, "Invalid message from client");
        if let Some(answer) = refused.answer {
            let frame = ReplyFrame {
                kind: answer.kind,
                ..ReplyFrame::plain(self.core.next_request_id(), answer.request_id)
            };
            let bytes = error_reply(&refused.error, &[]).encode(frame);
            ServerCounters::add(&self.core.counters.bytes_out, bytes.len() as u64);
            if self.live.connection.send(bytes).await.is_err() {
                return Flow::Close;
            }
        }
        if refused.close {
            Flow::Close
        } else {
            Flow::Continue
        }
    }

    /// Runs the command of a message and sends its reply; in an exhaust stream, again and again.
    async fn run_message(&mut self, mut message: Message) -> Flow {
        let mut streaming = false;
        // Each reply of a stream answers the one before it, and drivers check that it does.
        let mut answers = message.request_id();
        loop {
            let mut reply = self.run_command(&message).await;
            self.log_metadata();
            if reply.is_withheld() {
                return Flow::Close;
            }
            let next = reply.take_next().filter(|_| !self.core.is_draining());
            let close = reply.closes_connection();
            let sent = match message.wants_reply() {
                true => {
                    let frame = ReplyFrame {
                        response_to: answers,
                        more_to_come: next.is_some(),
                        ..ReplyFrame::answering(&message, self.core.next_request_id())
                    };
                    answers = frame.request_id;
                    self.send(frame, message.compressor(), reply).await
                }
                false => Flow::Continue,
            };
            let stream_continues = next.is_some() && sent == Flow::Continue && !close;
            if stream_continues != streaming {
                streaming = stream_continues;
                let counters = &self.core.counters;
                let command = self.core.registry.lookup(message.command_name());
                let streams = match command.map(|command| command.spec.role) {
                    Some(CommandRole::Hello) => Some(&counters.exhaust_hello),
                    Some(CommandRole::IsMaster) => Some(&counters.exhaust_is_master),
                    _ => None,
                };
                match streams {
                    Some(streams) if streaming => ServerCounters::add(streams, 1),
                    Some(streams) => ServerCounters::less(streams),
                    None => {}
                }
            }
            if close || sent == Flow::Close {
                return Flow::Close;
            }
            match next {
                Some(body) => message = message.with_body(body),
                None => return Flow::Continue,
            }
        }
    }

    /// Runs a command. While a read is under way the connection is watched, and the read
    /// interrupted when its client goes away. A write is never interrupted so: a client may send it
    /// and leave.
    async fn run_command(&mut self, message: &Message) -> Reply {
        let dispatch = Dispatch::new(self.core, &self.live.caller);
        let command = self.core.registry.find(message.command_name());
        let watched = message.kind() == MessageKind::OpMsg
            && command
                .as_ref()
                .is_ok_and(|command| command.spec.class != CommandClass::Write);
        let mut command = pin!(dispatch.run(command, message));
        if !watched {
            return command.await;
        }
        loop {
            // The first poll comes before the connection is looked at: most reads end in it.
            if let Poll::Ready(reply) =
                poll_fn(|context| Poll::Ready(command.as_mut().poll(context))).await
            {
                return reply;
            }
            if !self.frames.has_room() {
                return command.await;
            }
            let mut fill = pin!(self.frames.fill(&self.live.connection));
            let event = poll_fn(|context| {
                if let Poll::Ready(reply) = command.as_mut().poll(context) {
                    return Poll::Ready(Err(reply));
                }
                fill.as_mut().poll(context).map(Ok)
            })
            .await;
            match event {
                Err(reply) => return reply,
                Ok(Ok(Fill::Bytes)) => {}
                Ok(Ok(Fill::End) | Err(_)) => {
                    self.live.interrupt(ErrorCode::CLIENT_DISCONNECT);
                    return command.await;
                }
            }
        }
    }

    async fn send(&self, frame: ReplyFrame, compressor: Option<Compressor>, reply: Reply) -> Flow {
        let mut bytes = reply.encode(frame);
        ServerCounters::add(&self.core.counters.bytes_out, bytes.len() as u64);
        if let Some(compressor) = compressor {
            let plain_bytes = bytes.len();
            bytes = if plain_bytes > LARGE_MESSAGE_BYTES {
                offload_bounded(|| CompressionState::default().wrap(bytes, compressor)).await
            } else {
                self.core.compression.borrow_mut().wrap(bytes, compressor)
            };
            let counters = &self.core.counters;
            counters.compressed(compressor, plain_bytes, bytes.len());
        }
        match self.live.connection.send(bytes).await {
            Ok(()) => Flow::Continue,
            Err(_) => Flow::Close,
        }
    }

    /// Logs the client's metadata, once.
    fn log_metadata(&mut self) {
        if self.logged_metadata {
            return;
        }
        if let Some(metadata) = self.live.caller.client.metadata() {
            self.logged_metadata = true;
            if !self.core.counters.quiet.get() {
                let doc = pinion_bson::to_extended_json(
                    &metadata.document,
                    pinion_bson::JsonMode::Relaxed,
                );
                tracing::info!(target: "NETWORK", id = 51_800u64, ctx = connection_name(&self.live.caller.client), remote = %self.live.connection.peer_addr(), client = connection_name(&self.live.caller.client), doc, "client metadata");
            }
        }
    }
}
