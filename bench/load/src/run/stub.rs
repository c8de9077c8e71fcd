//! A server for tests that speaks as much OP_MSG as the generator asks, right or wrong.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::protocol::bson;
use crate::workload::{Document, value};

/// What the stub does with finds and updates.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    Right,
    /// Closes the connection at the 20th request.
    Closes,
    /// Says nothing from the 20th request on.
    Silent,
    /// Refuses with an error.
    Refuses,
    /// Answers ok with a write error, or without a document.
    Fails,
    /// Another document's `_id`.
    OtherId,
    /// One byte of a value is not what was written.
    OneByte,
    /// A document that lacks a field.
    Short,
    /// Says that it answers another request.
    OtherRequest,
    /// Each fourth update is a conflict of its transaction, with the label that says that it can be
    /// tried again.
    Conflicts,
    /// The same without the label.
    UnlabelledConflicts,
}

/// No table was dropped.
pub const NEVER: u64 = u64::MAX;

pub struct Stub {
    pub port: u16,
    /// Finds and updates that were answered.
    pub answered: Arc<AtomicU64>,
    /// Of those, how many were answered when a table was last dropped.
    pub dropped_at: Arc<AtomicU64>,
    /// What updates were asked for: the bytes behind their commands' bodies.
    pub updates: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Stub {
    /// Listens until the test's process ends.
    pub fn start(manner: Reply, document: Document) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answered = Arc::new(AtomicU64::new(0));
        let dropped_at = Arc::new(AtomicU64::new(NEVER));
        let updates = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&updates);
        let (counted, dropped) = (Arc::clone(&answered), Arc::clone(&dropped_at));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stub = Connection {
                    stream: stream.unwrap(),
                    manner,
                    document: document.clone(),
                    answered: Arc::clone(&counted),
                    dropped_at: Arc::clone(&dropped),
                    updates: Arc::clone(&asked),
                };
                // The generator closes when it likes: an error is the end.
                std::thread::spawn(move || stub.serve());
            }
        });
        Self {
            port,
            answered,
            dropped_at,
            updates,
        }
    }
}

struct Connection {
    stream: TcpStream,
    manner: Reply,
    document: Document,
    answered: Arc<AtomicU64>,
    dropped_at: Arc<AtomicU64>,
    updates: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Connection {
    fn serve(mut self) -> std::io::Result<()> {
        self.stream.set_nodelay(true)?;
        loop {
            let mut length = [0; 4];
            self.stream.read_exact(&mut length)?;
            let mut message = vec![0; u32::from_le_bytes(length) as usize - 4];
            self.stream.read_exact(&mut message)?;
            let request = u32::from_le_bytes(*message.first_chunk().unwrap());
            let body = &message[17..];
            let length = u32::from_le_bytes(*body.first_chunk().unwrap()) as usize;
            let (body, sections) = body.split_at(length);
            let command = bson::Elements::new(body).unwrap().next().unwrap();
            let reply = match command.name {
                // Whether there are transactions is asked by a read of anything.
                b"find" if bson::get(body, "filter").is_none() => {
                    Some(document(|out| bson::int32(out, "ok", 1)))
                }
                b"find" => self.find(body),
                b"update" | b"insert" => self.write(),
                b"drop" => {
                    let answered = self.answered.load(Ordering::Relaxed);
                    self.dropped_at.store(answered, Ordering::Relaxed);
                    Some(document(|out| bson::int32(out, "ok", 1)))
                }
                _ => Some(document(|out| {
                    bson::string(out, "version", "stub");
                    bson::int32(out, "ok", 1);
                })),
            };
            if command.name == b"update" {
                assert!(!sections.is_empty());
                self.updates.lock().unwrap().push(sections.to_vec());
            }
            let Some(reply) = reply else {
                return Ok(());
            };
            let request = match self.manner {
                Reply::OtherRequest if command.name == b"find" => request + 1,
                _ => request,
            };
            let mut out = Vec::new();
            for word in [21 + reply.len() as u32, 0, request, 2013, 0] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.push(0);
            out.extend_from_slice(&reply);
            self.stream.write_all(&out)?;
        }
    }

    /// False: no answer at all.
    fn begins(&self) -> bool {
        let number = self.answered.fetch_add(1, Ordering::Relaxed) + 1;
        match self.manner {
            Reply::Closes => number < 20,
            Reply::Silent if number >= 20 => {
                std::thread::sleep(Duration::from_secs(60));
                false
            }
            _ => true,
        }
    }

    fn find(&self, body: &[u8]) -> Option<Vec<u8>> {
        if !self.begins() {
            return None;
        }
        if matches!(self.manner, Reply::Refuses) {
            return Some(refusal());
        }
        let filter = bson::get(body, "filter").unwrap();
        let id = bson::get(filter.value, "_id").unwrap().text();
        // Keys are named in order here, so a name gives the number.
        let key: u64 = id.strip_prefix("user").unwrap().parse().unwrap();
        let fields = self.document.fields - usize::from(matches!(self.manner, Reply::Short));
        Some(document(|out| {
            bson::nested(out, "cursor", |out| {
                bson::array(out, "firstBatch", |out| {
                    if matches!(self.manner, Reply::Fails) {
                        return;
                    }
                    bson::nested(out, "0", |out| {
                        let other = if matches!(self.manner, Reply::OtherId) {
                            "user0000"
                        } else {
                            &id
                        };
                        bson::string(out, "_id", other);
                        for field in 0..fields {
                            bson::binary_with(out, &format!("field{field}"), 0, |out| {
                                value(key, field, 0, self.document.field_bytes, out);
                            });
                        }
                        if matches!(self.manner, Reply::OneByte) {
                            let last = out.len() - 1;
                            out[last] = if out[last] == b'A' { b'B' } else { b'A' };
                        }
                    });
                });
                bson::int64(out, "id", 0);
                bson::string(out, "ns", "ycsb.usertable");
            });
            bson::int32(out, "ok", 1);
        }))
    }

    fn conflict(&self) -> Vec<u8> {
        document(|out| {
            bson::int32(out, "ok", 0);
            bson::string(out, "errmsg", "WriteConflict error");
            bson::int32(out, "code", 112);
            if matches!(self.manner, Reply::Conflicts) {
                bson::array(out, "errorLabels", |out| {
                    bson::string(out, "0", "TransientTransactionError");
                });
            }
        })
    }

    fn write(&self) -> Option<Vec<u8>> {
        if !self.begins() {
            return None;
        }
        if matches!(self.manner, Reply::Refuses) {
            return Some(refusal());
        }
        let conflicts = matches!(self.manner, Reply::Conflicts | Reply::UnlabelledConflicts);
        if conflicts && self.answered.load(Ordering::Relaxed).is_multiple_of(4) {
            return Some(self.conflict());
        }
        Some(document(|out| {
            bson::int32(out, "n", 1);
            if matches!(self.manner, Reply::Fails) {
                bson::array(out, "writeErrors", |out| {
                    bson::nested(out, "0", |out| {
                        bson::int32(out, "code", 11000);
                        bson::string(out, "errmsg", "duplicate key");
                    });
                });
            }
            bson::int32(out, "ok", 1);
        }))
    }
}

fn document(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    bson::document(&mut out, fill);
    out
}

fn refusal() -> Vec<u8> {
    document(|out| {
        bson::int32(out, "ok", 0);
        bson::string(out, "errmsg", "not today");
        bson::int32(out, "code", 8000);
    })
}
