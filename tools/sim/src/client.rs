//! A client of the simulated node: OP_MSG over a simulated connection.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use pinion_bson::{RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::{Connection, Duration, connect, sleep, timeout};

const OP_MSG: i32 = 2013;
const BODY_OFFSET: usize = 21;
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

/// Why a command gave nothing.
#[derive(Debug)]
pub enum Refusal {
    /// The connection broke.
    Broken,
    /// The node answered with this error code and reply.
    Answer(i32, RawDocumentBuf),
}

impl Refusal {
    /// What the node said, if it said something.
    pub fn message(&self) -> &str {
        match self {
            Refusal::Broken => "",
            Refusal::Answer(_, reply) => reply.get_str("errmsg").unwrap_or_default(),
        }
    }

    /// The node is stopping, the connection broke, or memory does not suffice for the snapshot: it
    /// says nothing about the data.
    pub fn is_of_the_moment(&self) -> bool {
        match self {
            Refusal::Broken | Refusal::Answer(SNAPSHOT_TOO_OLD, _) => true,
            Refusal::Answer(code, _) => SHUTTING_DOWN.contains(code),
        }
    }
}

const SNAPSHOT_TOO_OLD: i32 = 239;
/// ShutdownInProgress and InterruptedAtShutdown.
pub const SHUTTING_DOWN: [i32; 2] = [91, 11_600];

/// One connection that is made again after it broke.
pub struct Client {
    address: SocketAddr,
    connection: Option<Connection>,
    request_id: i32,
    /// A request without an answer for so long has an unknown outcome.
    patience: Duration,
}

impl Client {
    /// A client of the node at this address; nothing is connected yet.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connection: None,
            request_id: 0,
            patience: REQUEST_TIMEOUT,
        }
    }

    /// Waits no longer than this for a connection or an answer.
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sends a command and gives the reply's body.
    pub async fn command(&mut self, body: &RawDocument) -> Result<RawDocumentBuf, Failure> {
        let connection = match &self.connection {
            Some(connection) => connection.clone(),
            None => {
                let Ok(Ok(connection)) = timeout(self.patience, connect(self.address)).await else {
                    sleep(RECONNECT_EVERY).await;
                    return Err(Failure::NotSent);
                };
                self.connection = Some(connection.clone());
                connection
            }
        };
        self.request_id += 1;
        let answer = timeout(self.patience, exchange(&connection, self.request_id, body)).await;
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

impl Client {
    /// Sends a command that has no effect and gives the reply's body when that is a success.
    pub async fn ask(&mut self, body: &RawDocument) -> Result<RawDocumentBuf, Refusal> {
        let reply = self.command(body).await.map_err(|_| Refusal::Broken)?;
        match error_code(&reply) {
            0 => Ok(reply),
            code => Err(Refusal::Answer(code, reply)),
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

/// Whether a reply says `ok: 1`. The count of a view says it with an integer, as MongoDB's does.
fn is_ok(reply: &RawDocument) -> bool {
    let Ok(Some(value)) = reply.get("ok") else {
        return false;
    };
    value.as_f64() == Some(1.0) || value.as_i32() == Some(1)
}

/// The first write error's message, or the command's.
pub fn error_message(reply: &RawDocument) -> &str {
    if let Ok(errors) = reply.get_array("writeErrors")
        && let Some(Ok(error)) = errors.into_iter().next()
        && let Some(error) = error.as_document()
    {
        return error.get_str("errmsg").unwrap_or_default();
    }
    reply.get_str("errmsg").unwrap_or_default()
}

/// The first write error's code, or that of the wait for the journal, or the command's, or zero.
pub fn error_code(reply: &RawDocument) -> i32 {
    if let Ok(errors) = reply.get_array("writeErrors")
        && let Some(Ok(error)) = errors.into_iter().next()
    {
        return error
            .as_document()
            .and_then(|error| error.get_i32("code").ok())
            .unwrap_or(-1);
    }
    match reply.get_document("writeConcernError") {
        Ok(error) => error.get_i32("code").unwrap_or(-1),
        Err(_) if is_ok(reply) => 0,
        Err(_) => reply.get_i32("code").unwrap_or(-1),
    }
}

/// Documents of a reply's batch.
pub fn batch(reply: &RawDocument, name: &str) -> Vec<RawDocumentBuf> {
    let Ok(cursor) = reply.get_document("cursor") else {
        return Vec::new();
    };
    let Ok(batch) = cursor.get_array(name) else {
        return Vec::new();
    };
    batch
        .into_iter()
        .filter_map(|value| {
            value
                .ok()?
                .as_document()
                .map(|document| document.to_owned())
        })
        .collect()
}

/// Every document of a collection through a cursor.
pub async fn read_all(
    client: &mut Client,
    collection: &str,
    batch_size: i32,
) -> Result<Vec<RawDocumentBuf>, Refusal> {
    let command = rawdoc! { "find": collection, "batchSize": batch_size, "$db": "sim" };
    drain(client, collection, batch_size, command).await
}

/// Every document of a collection in the order of an index.
pub async fn read_through(
    client: &mut Client,
    collection: &str,
    index: &str,
    sort: RawDocumentBuf,
) -> Result<Vec<RawDocumentBuf>, Refusal> {
    let batch_size = 1_000;
    let command = rawdoc! { "find": collection, "hint": index, "sort": sort, "batchSize": batch_size, "$db": "sim" };
    drain(client, collection, batch_size, command).await
}

async fn drain(
    client: &mut Client,
    collection: &str,
    batch_size: i32,
    command: RawDocumentBuf,
) -> Result<Vec<RawDocumentBuf>, Refusal> {
    let mut reply = client.ask(&command).await?;
    let mut documents = batch(&reply, "firstBatch");
    loop {
        let cursor = reply.get_document("cursor");
        let id = cursor.and_then(|cursor| cursor.get_i64("id"));
        let id = id.unwrap_or_else(|error| panic!("a reply without a cursor: {reply:?}: {error}"));
        if id == 0 {
            return Ok(documents);
        }
        let more = rawdoc! { "getMore": id, "collection": collection, "batchSize": batch_size, "$db": "sim" };
        reply = client.ask(&more).await?;
        documents.extend(batch(&reply, "nextBatch"));
    }
}
