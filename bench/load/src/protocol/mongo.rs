//! MongoDB: OP_MSG requests, document sequences for what is written, as drivers send them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use md5::{Digest, Md5};

use super::mongo_reply::{self, MESSAGE_HEADER, Shape};
use super::scram::{Hash, Scram, nonce};
use super::{Concerns, Counter, Outcome, Protocol, Session, Stream, Transport, bson, exchange};
use crate::workload::{Kind, Request, Spec, value};

const OP_MSG: u32 = 2013;
/// The largest reply that is believed: MongoDB's maxMessageSizeBytes.
const MAX_MESSAGE_BYTES: usize = 48_000_000;
const DATABASE: &str = "ycsb";

/// One connection.
pub struct Mongo {
    spec: Arc<Spec>,
    shape: Shape,
    database: String,
    concerns: Concerns,
    request_id: u32,
    /// Replies come in the order of the requests; this is the one that comes next.
    answered: u32,
    session_id: Vec<u8>,
    transaction: i64,
    key: Vec<u8>,
    scratch: Vec<u8>,
}

impl Mongo {
    fn message(&mut self, out: &mut Vec<u8>, fill: impl FnOnce(&mut Self, &mut Vec<u8>)) {
        self.request_id = self.request_id.wrapping_add(1);
        let start = out.len();
        for word in [0, self.request_id, 0, OP_MSG, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        fill(self, out);
        let length = (out.len() - start) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn body(&self, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
        out.push(0);
        bson::document(out, |out| {
            fill(out);
            bson::string(out, "$db", &self.database);
        });
    }

    fn read_options(&self, out: &mut Vec<u8>) {
        if let Some(level) = &self.concerns.read_concern {
            bson::nested(out, "readConcern", |out| bson::string(out, "level", level));
        }
        if let Some(mode) = &self.concerns.read_preference {
            bson::nested(out, "$readPreference", |out| {
                bson::string(out, "mode", mode)
            });
        }
    }

    fn write_options(&self, out: &mut Vec<u8>) {
        let Concerns {
            w,
            journal,
            wtimeout_ms,
            ..
        } = &self.concerns;
        if w.is_none() && journal.is_none() && wtimeout_ms.is_none() {
            return;
        }
        bson::nested(out, "writeConcern", |out| {
            match w.as_deref().map(|w| (w, w.parse())) {
                Some((_, Ok(number))) => bson::int32(out, "w", number),
                Some((name, Err(_))) => bson::string(out, "w", name),
                None => {}
            }
            if let Some(journal) = journal {
                bson::boolean(out, "j", *journal);
            }
            if let Some(ms) = wtimeout_ms {
                bson::int32(out, "wtimeout", *ms);
            }
        });
    }

    /// A document sequence: what a command writes, outside its body.
    fn sequence(out: &mut Vec<u8>, name: &str, fill: impl FnOnce(&mut Vec<u8>)) {
        out.push(1);
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(name.as_bytes());
        out.push(0);
        fill(out);
        let length = (out.len() - start) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn find(&mut self, request: &Request, out: &mut Vec<u8>) {
        let spec = Arc::clone(&self.spec);
        self.message(out, |this, out| {
            this.key.clear();
            spec.document.key_name(request.key, &mut this.key);
            this.body(out, |out| {
                bson::string(out, "find", &spec.table_of(request.key));
                bson::nested(out, "filter", |out| match request.kind {
                    Kind::IndexRead => bson::int64(out, "k", request.key as i64),
                    Kind::Scan => bson::nested(out, "_id", |out| {
                        bson::string_with(out, "$gte", |out| out.extend_from_slice(&this.key));
                    }),
                    _ => bson::string_with(out, "_id", |out| out.extend_from_slice(&this.key)),
                });
                if request.kind == Kind::Scan {
                    bson::nested(out, "sort", |out| bson::int32(out, "_id", 1));
                    bson::int32(out, "batchSize", request.count as i32);
                }
                if !spec.read_all {
                    bson::nested(out, "projection", |out| {
                        bson::int32(out, &this.shape.names[request.field], 1);
                    });
                }
                bson::int32(out, "limit", request.count as i32);
                bson::boolean(out, "singleBatch", true);
                this.read_options(out);
            });
        });
    }

    fn insert(&mut self, request: &Request, out: &mut Vec<u8>) {
        let spec = Arc::clone(&self.spec);
        let now_ms = if spec.document.timed { unix_ms() } else { 0 };
        self.transaction += i64::from(self.concerns.retryable);
        self.message(out, |this, out| {
            this.body(out, |out| {
                bson::string(out, "insert", &spec.table_of(request.key));
                bson::boolean(out, "ordered", true);
                this.retry_fields(out);
                this.write_options(out);
            });
            Self::sequence(out, "documents", |out| {
                for key in request.key..request.key + request.count {
                    bson::document(out, |out| {
                        bson::string_with(out, "_id", |out| spec.document.key_name(key, out));
                        if spec.document.indexed {
                            bson::int64(out, "k", key as i64);
                        }
                        if spec.document.timed {
                            bson::date(out, "at", now_ms);
                        }
                        for field in 0..spec.document.fields {
                            this.shape
                                .write_field(&spec, key, field, request.version, out);
                        }
                    });
                }
            });
        });
    }

    fn update(&mut self, request: &Request, out: &mut Vec<u8>) {
        let spec = Arc::clone(&self.spec);
        let in_transaction = request.kind == Kind::Transaction;
        self.transaction += i64::from(!in_transaction && self.concerns.retryable);
        let key = if in_transaction && request.stage == 1 {
            request.other
        } else {
            request.key
        };
        self.message(out, |this, out| {
            this.body(out, |out| {
                bson::string(out, "update", &spec.table_of(key));
                bson::boolean(out, "ordered", true);
                if in_transaction {
                    this.transaction_fields(request.stage, out);
                } else {
                    this.retry_fields(out);
                    this.write_options(out);
                }
            });
            Self::sequence(out, "updates", |out| {
                bson::document(out, |out| {
                    bson::nested(out, "q", |out| {
                        bson::string_with(out, "_id", |out| spec.document.key_name(key, out));
                    });
                    bson::nested(out, "u", |out| {
                        bson::nested(out, "$set", |out| {
                            let fields = if spec.write_all {
                                0..spec.document.fields
                            } else {
                                request.field..request.field + 1
                            };
                            for field in fields {
                                this.shape
                                    .write_field(&spec, key, field, request.version, out);
                            }
                        });
                    });
                });
            });
        });
    }

    /// The session, which is the connection, and the number of its transaction or write.
    fn session_fields(&self, out: &mut Vec<u8>) {
        bson::nested(out, "lsid", |out| {
            bson::binary_with(out, "id", 4, |out| out.extend_from_slice(&self.session_id));
        });
        bson::int64(out, "txnNumber", self.transaction);
    }

    fn retry_fields(&self, out: &mut Vec<u8>) {
        if self.concerns.retryable {
            self.session_fields(out);
        }
    }

    /// What every statement of a transaction carries.
    fn transaction_fields(&self, stage: u8, out: &mut Vec<u8>) {
        self.session_fields(out);
        bson::boolean(out, "autocommit", false);
        if stage == 0 {
            bson::boolean(out, "startTransaction", true);
        }
    }

    fn commit(&mut self, stage: u8, out: &mut Vec<u8>) {
        self.message(out, |this, out| {
            out.push(0);
            bson::document(out, |out| {
                bson::int32(out, "commitTransaction", 1);
                this.transaction_fields(stage, out);
                this.write_options(out);
                bson::string(out, "$db", "admin");
            });
        });
    }

    /// The database of documents.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Appends a command of any kind; gives the number that its reply names. Its user checks the
    /// replies by `reply_body`.
    pub fn request(
        &mut self,
        database: &str,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> u32 {
        self.message(out, |_, out| {
            out.push(0);
            bson::document(out, |out| {
                fill(out);
                bson::string(out, "$db", database);
            });
        });
        self.request_id
    }

    /// Has the server take a checkpoint, and waits for it.
    pub fn fsync(&mut self, stream: &mut dyn Stream) -> Result<(), String> {
        self.command(stream, "admin", |out| bson::int32(out, "fsync", 1))
            .map(drop)
    }

    /// Runs a command and gives the reply's document; an error reply is an error.
    pub fn command(
        &mut self,
        stream: &mut dyn Stream,
        database: &str,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        self.request(database, &mut out, fill);
        let reply = exchange(stream, &out, |input| self.reply_end(input))?;
        self.answered = self.request_id;
        let body = mongo_reply::body(&reply, self.request_id)?;
        match bson::get(body, "ok").and_then(|ok| ok.number()) {
            Some(1.0) => Ok(body.to_vec()),
            _ => Err(mongo_reply::error_text(body)),
        }
    }

    fn authenticate(&mut self, stream: &mut dyn Stream, session: &Session) -> Result<(), String> {
        let endpoint = &session.endpoint;
        let source = endpoint
            .auth_source
            .as_deref()
            .or(endpoint.database.as_deref())
            .unwrap_or("admin");
        let user = endpoint.user.as_deref().unwrap_or_default();
        let hello = self.command(stream, "admin", |out| {
            bson::int32(out, "isMaster", 1);
            if endpoint.user.is_some() {
                bson::string(out, "saslSupportedMechs", &format!("{source}.{user}"));
            }
        })?;
        if endpoint.user.is_none() {
            return Ok(());
        }
        let offers = |mechanism: &str| {
            bson::get(&hello, "saslSupportedMechs")
                .and_then(|list| bson::Elements::new(list.value))
                .is_some_and(|mut list| list.any(|one| one.bytes() == Some(mechanism.as_bytes())))
        };
        let hash = match endpoint.auth_mechanism.as_deref() {
            Some("SCRAM-SHA-1") => Hash::Sha1,
            Some("SCRAM-SHA-256") => Hash::Sha256,
            Some(other) => {
                return Err(format!(
                    "authMechanism is SCRAM-SHA-1 or SCRAM-SHA-256, not '{other}'"
                ));
            }
            None if offers("SCRAM-SHA-256") => Hash::Sha256,
            None => Hash::Sha1,
        };
        let password = match hash {
            Hash::Sha256 => endpoint.password.clone(),
            // MongoDB's SCRAM-SHA-1 takes the digest that its older mechanism stored.
            Hash::Sha1 => Md5::digest(format!("{user}:mongo:{}", endpoint.password))
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        };
        let mut scram = Scram::new(hash, user, &password, nonce()?)?;
        let mut reply = self.command(stream, source, |out| {
            bson::int32(out, "saslStart", 1);
            bson::string(out, "mechanism", hash.mechanism());
            bson::binary_with(out, "payload", 0, |out| {
                out.extend_from_slice(scram.first().as_bytes())
            });
        })?;
        let mut payload = scram.second(&sasl_payload(&reply))?;
        let mut verified = false;
        // A server without skipEmptyExchange wants one more, empty, message.
        while bson::get(&reply, "done").and_then(|done| done.number()) != Some(1.0) {
            let conversation = bson::get(&reply, "conversationId")
                .and_then(|id| id.number())
                .unwrap_or(1.0);
            reply = self.command(stream, source, |out| {
                bson::int32(out, "saslContinue", 1);
                bson::int32(out, "conversationId", conversation as i32);
                bson::binary_with(out, "payload", 0, |out| {
                    out.extend_from_slice(payload.as_bytes())
                });
            })?;
            if !verified {
                scram.verify(&sasl_payload(&reply))?;
                verified = true;
            }
            payload.clear();
        }
        if verified {
            Ok(())
        } else {
            Err("SCRAM: the server ended the conversation early".into())
        }
    }

    fn create_index(
        &mut self,
        stream: &mut dyn Stream,
        table: &str,
        field: &str,
        expire_secs: Option<u64>,
    ) -> Result<(), String> {
        let database = self.database.clone();
        self.command(stream, &database, |out| {
            bson::string(out, "createIndexes", table);
            bson::array(out, "indexes", |out| {
                bson::nested(out, "0", |out| {
                    bson::nested(out, "key", |out| bson::int32(out, field, 1));
                    bson::string(out, "name", &format!("{field}_1"));
                    if let Some(secs) = expire_secs {
                        bson::int32(out, "expireAfterSeconds", secs as i32);
                    }
                });
            });
        })
        .map(|_| ())
    }
}

fn sasl_payload(reply: &[u8]) -> String {
    bson::get(reply, "payload")
        .map(|payload| payload.text())
        .unwrap_or_default()
}

fn unix_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_millis() as i64)
}

impl Protocol for Mongo {
    fn refuses(_: &Session) -> Option<String> {
        None
    }

    fn open(session: &Session) -> Result<(Self, Transport), String> {
        let mut transport = Transport::connect(&session.endpoint)?;
        if let Some(config) = &session.tls {
            transport = transport.secure(config, &session.endpoint.host)?;
        }
        let mut session_id = nonce()?.into_bytes();
        session_id.truncate(16);
        let mut mongo = Self {
            shape: Shape::new(&session.spec, session.string_fields),
            spec: Arc::clone(&session.spec),
            database: session
                .endpoint
                .database
                .clone()
                .unwrap_or_else(|| DATABASE.into()),
            concerns: session.concerns.clone(),
            request_id: 0,
            answered: 0,
            session_id,
            transaction: 0,
            key: Vec::new(),
            scratch: Vec::new(),
        };
        mongo.authenticate(&mut transport, session)?;
        Ok((mongo, transport))
    }

    fn server(&mut self, stream: &mut dyn Stream) -> Result<String, String> {
        let info = self.command(stream, "admin", |out| bson::int32(out, "buildInfo", 1))?;
        let text = |name: &str| {
            bson::get(&info, name)
                .map(|found| found.text())
                .unwrap_or_default()
        };
        Ok(format!(
            "MongoDB protocol, version {} ({})",
            text("version"),
            text("gitVersion")
        ))
    }

    fn set_up(
        &mut self,
        stream: &mut dyn Stream,
        session: &Session,
        fresh: bool,
    ) -> Result<(), String> {
        let spec = Arc::clone(&session.spec);
        for number in 0..spec.collections {
            let table = spec.table_of(number).into_owned();
            if fresh {
                let database = self.database.clone();
                match self.command(stream, &database, |out| bson::string(out, "drop", &table)) {
                    Err(why) if !why.contains("ns not found") => return Err(why),
                    _ => {}
                }
            }
            if spec.document.indexed {
                self.create_index(stream, &table, "k", None)?;
            }
            if spec.document.timed {
                self.create_index(stream, &table, "at", Some(spec.ttl_secs))?;
            }
        }
        if spec.has(Kind::Transaction) && !spec.load {
            // Nothing is written: the transaction reads, and what counts is whether the server
            // begins it at all.
            let mut fields = Vec::new();
            self.transaction_fields(0, &mut fields);
            let (database, table) = (self.database.clone(), spec.table.clone());
            self.command(stream, &database, |out| {
                bson::string(out, "find", &table);
                bson::int32(out, "limit", 1);
                out.extend_from_slice(&fields);
            })
            .map_err(|why| format!("the server has no transactions: {why}"))?;
            let mut fields = Vec::new();
            self.transaction_fields(2, &mut fields);
            self.command(stream, "admin", |out| {
                bson::int32(out, "abortTransaction", 1);
                out.extend_from_slice(&fields);
            })?;
        }
        Ok(())
    }

    fn ping(&mut self, stream: &mut dyn Stream) -> Result<(), String> {
        self.command(stream, "admin", |out| bson::int32(out, "ping", 1))
            .map(|_| ())
    }

    fn counters(&mut self, stream: &mut dyn Stream) -> Result<Vec<Counter>, String> {
        let status = self.command(stream, "admin", |out| bson::int32(out, "serverStatus", 1))?;
        let number = |path: &[&str]| {
            let (last, sections) = path.split_last()?;
            let section = sections.iter().try_fold(&status[..], |document, name| {
                bson::get(document, name).map(|found| found.value)
            })?;
            bson::get(section, last)?.number()
        };
        let transaction = |name: &str| number(&["wiredTiger", "transaction", name]);
        let mut counters = Vec::new();
        if let Some(count) = transaction("transaction checkpoints") {
            counters.push(Counter {
                took_ms: transaction("transaction checkpoint most recent time (msecs)"),
                written_bytes: number(&["wiredTiger", "block-manager", "bytes written"]),
                ..Counter::new("checkpoint", count)
            });
        }
        // A node of Pinion reports when it held writers up and when one of its cores was busy for
        // too long.
        for (what, path) in [
            ("writers held up", ["pinion", "storage", "delayedWrites"]),
            ("a core stalled", ["pinion", "runtime", "stalls"]),
        ] {
            counters.extend(number(&path).map(|count| Counter::new(what, count)));
        }
        Ok(counters)
    }

    fn encode(&mut self, request: &Request, out: &mut Vec<u8>) {
        match (request.kind, request.stage) {
            (Kind::Insert, _) => self.insert(request, out),
            (Kind::Update, _) | (Kind::ReadModifyWrite, 1) => self.update(request, out),
            (Kind::Transaction, stage) if request.commits() => self.commit(stage, out),
            (Kind::Transaction, stage) => {
                self.transaction += i64::from(stage == 0);
                self.update(request, out);
            }
            _ => self.find(request, out),
        }
    }

    fn reply_end(&self, input: &[u8]) -> Result<Option<usize>, String> {
        let Some(length) = input.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if !(MESSAGE_HEADER..=MAX_MESSAGE_BYTES).contains(&length) {
            return Err(format!("a reply says that it has {length} bytes"));
        }
        Ok((input.len() >= length).then_some(length))
    }

    fn check(&mut self, request: &Request, reply: &[u8], compare: bool) -> Outcome {
        self.answered = self.answered.wrapping_add(1);
        let body = match mongo_reply::body(reply, self.answered) {
            Ok(body) => body,
            Err(why) => return Outcome::Wrong(why),
        };
        let reads = matches!(
            (request.kind, request.stage),
            (Kind::Read | Kind::Scan | Kind::IndexRead, _) | (Kind::ReadModifyWrite, 0)
        );
        if reads {
            self.key.clear();
            self.spec.document.key_name(request.key, &mut self.key);
            let (key, scratch) = (&self.key, &mut self.scratch);
            return mongo_reply::read(
                &self.spec,
                &self.shape,
                request,
                body,
                key,
                compare,
                scratch,
            );
        }
        let n = match (request.kind, request.stage) {
            (Kind::Transaction, _) if request.commits() => None,
            (Kind::Insert, _) => Some(request.count),
            _ => Some(1),
        };
        mongo_reply::write(request, body, n)
    }
}

impl Shape {
    /// Appends one field at a version.
    fn write_field(&self, spec: &Spec, key: u64, field: usize, version: u64, out: &mut Vec<u8>) {
        let bytes = spec.document.field_bytes;
        let fill = |out: &mut Vec<u8>| value(key, field, version, bytes, out);
        if self.strings {
            bson::string_with(out, &self.names[field], fill);
        } else {
            bson::binary_with(out, &self.names[field], 0, fill);
        }
    }
}
