//! The other direction: a connection that this node opens to another one, and the commands it sends
//! there.

use std::net::SocketAddr;
use std::{fmt, io};

use bytes::Bytes;
use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_runtime::{Connection, Elapsed, connect, resolve, timeout};
use pinion_wire::idl::{i32_clamped, truthy};
use pinion_wire::{
    Error, ErrorCode, Flags, Header, Message, encode_request, encode_with_sections, parse_reply,
};

use crate::frame::{FrameError, FrameReader};
use crate::limits::CONNECT_TIME;

/// Why a command has no reply.
#[derive(Debug)]
pub enum RemoteError {
    /// The connection could not be made, or broke. Whether the command had its effect is not known.
    Broken(io::Error),
    /// What came is no reply to what was sent.
    Protocol(String),
    /// The other node refused the command.
    Refused(Box<Error>),
    /// A pool had no connection for it, so it was not sent.
    NoConnection(Box<Error>),
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteError::Broken(error) => error.fmt(f),
            RemoteError::Protocol(what) => f.write_str(what),
            RemoteError::Refused(error) | RemoteError::NoConnection(error) => {
                f.write_str(&error.message)
            }
        }
    }
}

impl std::error::Error for RemoteError {}

impl From<io::Error> for RemoteError {
    fn from(error: io::Error) -> RemoteError {
        RemoteError::Broken(error)
    }
}

impl RemoteError {
    /// What the other node answered, if it answered.
    pub fn refusal(&self) -> Option<&Error> {
        match self {
            RemoteError::Refused(error) => Some(error),
            _ => None,
        }
    }

    /// Whether nothing listens at the address: the other node's process has ended. What else breaks
    /// a connection may be this node's own fault, or the network's.
    pub fn is_refused_connection(&self) -> bool {
        matches!(self, RemoteError::Broken(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Whether the connection broke, other than by taking too long: others to the same process most
    /// likely did too.
    pub(crate) fn is_broken_connection(&self) -> bool {
        matches!(self, RemoteError::Broken(error) if error.kind() != io::ErrorKind::TimedOut)
    }

    /// Whether the other side has closed the connection or refused it, so that others to the same
    /// process are of no use either. A look-up that fails here, or a lack of descriptors, says
    /// nothing of them.
    pub(crate) fn is_peer_gone(&self) -> bool {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof,
        };
        let kinds = [
            BrokenPipe,
            ConnectionAborted,
            ConnectionRefused,
            ConnectionReset,
            UnexpectedEof,
        ];
        matches!(self, RemoteError::Broken(error) if kinds.contains(&error.kind()))
    }

    /// The same for another request that waited for the same.
    pub(crate) fn for_other_waiter(&self) -> RemoteError {
        match self {
            RemoteError::Broken(error) => RemoteError::Broken(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            }),
            RemoteError::Protocol(what) => RemoteError::Protocol(what.clone()),
            RemoteError::Refused(error) => RemoteError::Refused(error.clone()),
            RemoteError::NoConnection(error) => RemoteError::NoConnection(error.clone()),
        }
    }

    /// As a command of this node reports it: `HostUnreachable` where nothing listens at the
    /// address, `PooledConnectionAcquisitionExceededTimeLimit` or `...Rejected` where there was no
    /// connection in time, or too many wait for one, `NetworkInterfaceExceededTimeLimit` where the
    /// other node did not answer in time, `SocketException` where the connection broke otherwise.
    pub fn into_error(self) -> Error {
        if self.is_refused_connection() {
            return Error::new(ErrorCode::HOST_UNREACHABLE, self.to_string());
        }
        match self {
            RemoteError::Refused(error) | RemoteError::NoConnection(error) => *error,
            RemoteError::Broken(error) if error.kind() == io::ErrorKind::TimedOut => Error::new(
                ErrorCode::NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT,
                error.to_string(),
            ),
            other => Error::new(ErrorCode::SOCKET_EXCEPTION, other.to_string()),
        }
    }
}

/// A command as it is sent: its document, which names its database, and the document sequences
/// behind that, each a whole section.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub body: &'a RawDocument,
    pub sections: &'a [Bytes],
}

impl<'a> From<&'a RawDocument> for Outgoing<'a> {
    fn from(body: &'a RawDocument) -> Outgoing<'a> {
        Outgoing {
            body,
            sections: &[],
        }
    }
}

impl<'a> From<&'a RawDocumentBuf> for Outgoing<'a> {
    fn from(body: &'a RawDocumentBuf) -> Outgoing<'a> {
        Outgoing::from(&**body)
    }
}

/// One reply.
#[derive(Clone, Debug)]
pub struct RemoteReply {
    message: Message,
}

impl RemoteReply {
    /// The reply's document.
    pub fn body(&self) -> &RawDocument {
        self.message.body()
    }

    /// The bytes that the document is a part of, to keep parts of it without a copy.
    pub fn body_bytes(&self) -> Bytes {
        self.message.body_bytes()
    }

    /// Whether another reply follows by itself.
    pub fn more_to_come(&self) -> bool {
        self.message.flags().has(Flags::MORE_TO_COME)
    }
}

/// A connection to another node. Commands are sent one after another; dropping it closes the
/// connection.
pub struct Remote {
    connection: Connection,
    frames: FrameReader,
    last_request: i32,
    /// The last reply said that another one follows by itself.
    streaming: bool,
}

impl Remote {
    /// Connects to a host: to the first of its addresses that answers. Those that are silent are
    /// tried again and again: once the network is whole, that is sooner than the kernel's own
    /// repetitions, whose pauses grow. The caller limits the time.
    ///
    /// # Errors
    /// All addresses have failed.
    pub async fn open(host: &str, port: u16) -> io::Result<Remote> {
        let addresses = resolve(host, port).await?;
        loop {
            let mut failure = Some(io::Error::from(io::ErrorKind::NotFound));
            for address in &addresses {
                match timeout(CONNECT_TIME, Remote::connect(*address)).await {
                    Ok(Ok(remote)) => return Ok(remote),
                    Ok(Err(error)) => failure = failure.and(Some(error)),
                    Err(Elapsed) => failure = None,
                }
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
        }
    }

    /// Connects to an address.
    pub async fn connect(address: SocketAddr) -> io::Result<Remote> {
        Ok(Remote {
            connection: connect(address).await?,
            frames: FrameReader::default(),
            last_request: 0,
            streaming: false,
        })
    }

    /// Sends a command, whose document names its database, and waits for the reply.
    ///
    /// # Errors
    /// After any but `Refused` the connection is of no more use.
    pub async fn run(
        &mut self,
        command: impl Into<Outgoing<'_>>,
    ) -> Result<RemoteReply, RemoteError> {
        let Outgoing { body, sections } = command.into();
        if sections.is_empty() {
            self.send(body, Flags(0)).await?;
        } else {
            let number = self.next_number();
            let request = encode_with_sections(number, body, sections);
            self.connection.send(request).await?;
        }
        self.next().await
    }

    /// Sends a command whose replies may follow one another by themselves; [`Remote::next`] gives
    /// them.
    pub async fn stream(&mut self, command: &RawDocument) -> Result<(), RemoteError> {
        self.send(command, Flags::EXHAUST_ALLOWED).await
    }

    fn next_number(&mut self) -> i32 {
        self.last_request = self.last_request.wrapping_add(1);
        self.streaming = false;
        self.last_request
    }

    async fn send(&mut self, command: &RawDocument, flags: Flags) -> Result<(), RemoteError> {
        let request = encode_request(self.next_number(), flags, command);
        self.connection.send(request).await?;
        Ok(())
    }

    /// The next reply.
    ///
    /// # Errors
    /// As of [`Remote::run`].
    pub async fn next(&mut self) -> Result<RemoteReply, RemoteError> {
        let protocol = |what: &str| RemoteError::Protocol(what.to_owned());
        let bytes = match self.frames.next(&self.connection).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Err(FrameError::Io(error)) => return Err(error.into()),
            Err(FrameError::Truncated) => {
                return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
            }
            Err(error) => return Err(RemoteError::Protocol(error.to_string())),
        };
        let answered = Header::read(&bytes).map(|header| header.response_to);
        // A reply that follows by itself answers, in MongoDB's numbering, the one before it.
        if !self.streaming && answered != Some(self.last_request) {
            return Err(protocol("a reply answers another request"));
        }
        let message = parse_reply(bytes).map_err(|refused| protocol(&refused.error.message))?;
        let reply = RemoteReply { message };
        self.streaming = reply.more_to_come();
        match error_of(reply.body()) {
            None => Ok(reply),
            Some(error) => Err(RemoteError::Refused(Box::new(error))),
        }
    }
}

/// The error that a reply reports, with the whole reply beside it.
fn error_of(reply: &RawDocument) -> Option<Error> {
    let field = |name| pinion_bson::get(reply, name);
    if field("ok").is_some_and(truthy) {
        return None;
    }
    let code = field("code").and_then(i32_clamped);
    let code = code.map_or(ErrorCode::UNKNOWN_ERROR, ErrorCode);
    let message = field("errmsg").and_then(|text| text.as_str());
    let error = Error::new(code, message.unwrap_or("the reply has no errmsg"));
    Some(error.with_extra(reply.to_owned()))
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    #[test]
    fn errors_of_replies() {
        let check = |reply: RawDocumentBuf, expected: Option<(i32, &str)>| {
            let error = error_of(&reply);
            let seen = error.as_ref().map(|error| (error.code.0, &*error.message));
            assert_eq!(seen, expected, "{reply:?}");
        };
        check(rawdoc! { "ok": 1 }, None);
        check(rawdoc! { "a": 2, "ok": 1.0 }, None);
        check(rawdoc! { "ok": 1i64 }, None);
        let refused = rawdoc! { "ok": 0.0, "errmsg": "no", "code": 10107 };
        check(refused, Some((10107, "no")));
        check(rawdoc! { "ok": 0 }, Some((8, "the reply has no errmsg")));
        check(rawdoc! {}, Some((8, "the reply has no errmsg")));
    }
}
