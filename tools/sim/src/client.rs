//! A client of the simulated node: OP_MSG over a simulated connection.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_runtime::{Connection, Duration, connect, sleep, timeout};

const OP_MSG: i32 = 2013;
const BODY_OFFSET: usize = 21;
/// A request without an answer for so long has an unknown outcome.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const RECONNECT_EVERY: Duration = Duration::from_millis(20);

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// The request never left: it has no effect.
    NotSent,
    /// The connection broke: the request may have had its effect, or not.
    Unknown,
}

/// One connection that is made again after it broke.
pub struct Client {
    address: SocketAddr,
    connection: Option<Connection>,
    request_id: i32,
}

impl Client {
    /// A client of the node at this address; nothing is connected yet.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connection: None,
            request_id: 0,
        }
    }

    /// Sends a command and gives the reply's body.
    pub async fn command(&mut self, body: &RawDocument) -> Result<RawDocumentBuf, Failure> {
        let connection = match &self.connection {
            Some(connection) => connection.clone(),
            None => {
                let Ok(Ok(connection)) = timeout(REQUEST_TIMEOUT, connect(self.address)).await
                else {
                    sleep(RECONNECT_EVERY).await;
                    return Err(Failure::NotSent);
                };
                self.connection = Some(connection.clone());
                connection
            }
        };
        self.request_id += 1;
        let answer = timeout(
            REQUEST_TIMEOUT,
            exchange(&connection, self.request_id, body),
        )
        .await;
        match answer {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) | Err(_) => {
                connection.close();
                self.connection = None;
                Err(Failure::Unknown)
            }
        }
    }
}

async fn exchange(
    connection: &Connection,
    request_id: i32,
    body: &RawDocument,
) -> Option<RawDocumentBuf> {
    let mut message = Vec::with_capacity(BODY_OFFSET + body.as_bytes().len());
    let length = i32::try_from(BODY_OFFSET + body.as_bytes().len()).ok()?;
    for word in [length, request_id, 0, OP_MSG, 0] {
        message.extend_from_slice(&word.to_le_bytes());
    }
    message.push(0);
    message.extend_from_slice(body.as_bytes());
    connection.send(Bytes::from(message)).await.ok()?;
    let mut input = BytesMut::new();
    loop {
        if let Some(header) = input.first_chunk::<4>() {
            let length = u32::from_le_bytes(*header) as usize;
            if input.len() >= length {
                assert_eq!(input.len(), length, "one reply for one request");
                let answers = i32::from_le_bytes(input[8..12].try_into().expect("four bytes"));
                assert_eq!(answers, request_id, "the reply answers the request");
                return RawDocumentBuf::from_bytes(input[BODY_OFFSET..].to_vec()).ok();
            }
        }
        match connection.recv(&mut input).await {
            Ok(count) if count > 0 => {}
            _ => return None,
        }
    }
}

/// Whether a reply says `ok: 1`.
pub fn is_ok(reply: &RawDocument) -> bool {
    matches!(reply.get("ok"), Ok(Some(value)) if value.as_f64() == Some(1.0))
}

/// The first write error's code, or the command's, or zero.
pub fn error_code(reply: &RawDocument) -> i32 {
    if let Ok(errors) = reply.get_array("writeErrors")
        && let Some(Ok(error)) = errors.into_iter().next()
    {
        return error
            .as_document()
            .and_then(|error| error.get_i32("code").ok())
            .unwrap_or(-1);
    }
    if is_ok(reply) {
        0
    } else {
        reply.get_i32("code").unwrap_or(-1)
    }
}
