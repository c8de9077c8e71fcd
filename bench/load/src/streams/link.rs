//! One change stream: a connection on which a `getMore` is always under way.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use crate::protocol::{Mongo, Protocol, Session, Transport, bson, error_text, reply_body};

/// How long the server may wait for an event; the stream asks again then.
const AWAIT_MS: i32 = 1000;
const HEADER_BYTES: usize = 21;

/// A change stream.
pub struct Link {
    mongo: Mongo,
    transport: Transport,
    database: String,
    collection: String,
    cursor: i64,
    /// The request that is under way.
    asked: u32,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Events that it has delivered.
    pub position: usize,
}

impl Link {
    /// Opens a stream that sees what is written from now on, and asks it for its first events.
    pub fn open(session: &Session, collection: &str) -> Result<Self, String> {
        let (mut mongo, mut transport) = Mongo::open(session)?;
        let database = mongo.database().to_owned();
        let reply = mongo
            .command(&mut transport, &database, |out| {
                bson::string(out, "aggregate", collection);
                bson::array(out, "pipeline", |out| {
                    bson::nested(out, "0", |out| bson::nested(out, "$changeStream", |_| {}));
                });
                bson::nested(out, "cursor", |_| {});
            })
            .map_err(|why| format!("a change stream could not be opened: {why}"))?;
        let cursor = bson::get(&reply, "cursor").ok_or("an aggregation gave no cursor")?;
        let first = bson::get(cursor.value, "firstBatch")
            .and_then(|first| bson::Elements::new(first.value));
        if first.is_none_or(|mut first| first.next().is_some()) {
            return Err("a change stream begins with events of the past".into());
        }
        // As bytes: a number that is a double has not all of them.
        let cursor = bson::get(cursor.value, "id")
            .and_then(|id| id.value.first_chunk().copied())
            .map(i64::from_le_bytes)
            .filter(|&id| id != 0)
            .ok_or("a change stream has no cursor that goes on")?;
        transport
            .set_nonblocking()
            .map_err(|error| error.to_string())?;
        let mut link = Self {
            mongo,
            transport,
            database,
            collection: collection.into(),
            cursor,
            asked: 0,
            input: Vec::new(),
            output: Vec::new(),
            position: 0,
        };
        link.ask();
        link.flush()?;
        Ok(link)
    }

    fn ask(&mut self) {
        let (cursor, collection) = (self.cursor, &self.collection);
        self.asked = self.mongo.request(&self.database, &mut self.output, |out| {
            bson::int64(out, "getMore", cursor);
            bson::string(out, "collection", collection);
            bson::int32(out, "maxTimeMS", AWAIT_MS);
        });
    }

    /// Sends what the socket takes.
    pub fn flush(&mut self) -> Result<(), String> {
        while !self.output.is_empty() {
            match self.transport.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("a stream's request could not be sent: {error}")),
            }
        }
        Ok(())
    }

    /// Reads all there is. Each whole reply is asked for its successor, and then its events go to
    /// `event`, with their place in the stream.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        mut event: impl FnMut(usize, &[u8]) -> Result<(), String>,
    ) -> Result<u64, String> {
        let mut replies = 0;
        loop {
            let count = match self.transport.read(buffer) {
                Ok(0) => return Err("the server closed the connection of a stream".into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(replies),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("the connection of a stream broke: {error}")),
            };
            self.input.extend_from_slice(&buffer[..count]);
            while let Some(end) = self.mongo.reply_end(&self.input)? {
                let rest = self.input.split_off(end);
                let reply = std::mem::replace(&mut self.input, rest);
                let asked = self.asked;
                self.ask();
                self.flush()?;
                self.events(&reply, asked, &mut event)?;
                replies += 1;
            }
        }
    }

    fn events(
        &mut self,
        reply: &[u8],
        asked: u32,
        event: &mut impl FnMut(usize, &[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        assert!(reply.len() >= HEADER_BYTES, "a reply is whole");
        let body = reply_body(reply, asked)?;
        if bson::get(body, "ok").and_then(|ok| ok.number()) != Some(1.0) {
            return Err(format!("a stream ended: {}", error_text(body)));
        }
        let cursor = bson::get(body, "cursor").ok_or("a getMore's reply has no cursor")?;
        let id = bson::get(cursor.value, "id").and_then(|id| id.value.first_chunk().copied());
        if id.map(i64::from_le_bytes) != Some(self.cursor) {
            return Err("a stream's cursor came to an end".into());
        }
        let mut batch = bson::get(cursor.value, "nextBatch")
            .and_then(|batch| bson::Elements::new(batch.value))
            .ok_or("a getMore's reply has no nextBatch")?;
        for document in batch.by_ref() {
            event(self.position, document.value)?;
            self.position += 1;
        }
        if batch.whole() {
            Ok(())
        } else {
            Err("a batch of events is not BSON".into())
        }
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.transport.as_raw_fd()
    }
}
