//! PostgreSQL: prepared statements over a table of `id` and `jsonb`.

use std::sync::Arc;

use super::postgres_session::{
    answer_end, begin, columns, error_text, first, message, query, text,
};
use super::{Counter, Outcome, Protocol, Session, Stream, Transport, exchange};
use crate::workload::{Kind, Request, Spec, check_value, value};

/// How the text of an error ends by which one of two transactions gives way: to be serialized, or
/// out of a deadlock.
const CONFLICTS: [&str; 2] = ["(SQLSTATE 40001)", "(SQLSTATE 40P01)"];

/// One connection.
pub struct Postgres {
    spec: Arc<Spec>,
    names: Vec<String>,
    /// A transaction is open; the next one must not begin inside of it.
    open: bool,
    key: Vec<u8>,
    scratch: Vec<u8>,
}

/// Appends `"name": "value"` pairs as jsonb prints them.
fn json_fields(
    out: &mut Vec<u8>,
    names: &[String],
    fields: std::ops::Range<usize>,
    key: u64,
    version: u64,
    bytes: usize,
) {
    for field in fields.clone() {
        if field > fields.start {
            out.extend_from_slice(b", ");
        }
        out.push(b'"');
        out.extend_from_slice(names[field].as_bytes());
        out.extend_from_slice(b"\": \"");
        value(key, field, version, bytes, out);
        out.push(b'"');
    }
}

impl Postgres {
    fn statements(spec: &Spec) -> [(&'static str, String); 7] {
        let table = &spec.table;
        let read = if spec.read_all { "doc" } else { "doc->>$2" };
        [
            (
                "read",
                format!("SELECT id, {read} FROM {table} WHERE id = $1"),
            ),
            (
                "scan",
                format!("SELECT id, doc FROM {table} WHERE id >= $1 ORDER BY id LIMIT $2::int4"),
            ),
            (
                "index",
                format!("SELECT id, doc FROM {table} WHERE (doc->>'k')::bigint = $1::bigint"),
            ),
            (
                "insert",
                format!("INSERT INTO {table} (id, doc) VALUES ($1, $2::jsonb)"),
            ),
            (
                "update",
                format!("UPDATE {table} SET doc = doc || $2::jsonb WHERE id = $1"),
            ),
            ("begin", "BEGIN".into()),
            ("commit", "COMMIT".into()),
        ]
    }

    fn bind(out: &mut Vec<u8>, statement: &str, parameters: &[&[u8]]) {
        message(out, b'B', |out| {
            text(out, "");
            text(out, statement);
            // All parameters and columns as text.
            out.extend_from_slice(&0_u16.to_be_bytes());
            out.extend_from_slice(&(parameters.len() as u16).to_be_bytes());
            for parameter in parameters {
                out.extend_from_slice(&(parameter.len() as u32).to_be_bytes());
                out.extend_from_slice(parameter);
            }
            out.extend_from_slice(&0_u16.to_be_bytes());
        });
        message(out, b'E', |out| {
            text(out, "");
            out.extend_from_slice(&0_u32.to_be_bytes());
        });
    }

    fn sync(out: &mut Vec<u8>) {
        message(out, b'S', |_| {});
    }

    fn name(&mut self, key: u64) {
        self.key.clear();
        self.spec.document.key_name(key, &mut self.key);
    }

    fn insert(&mut self, request: &Request, out: &mut Vec<u8>) {
        let spec = Arc::clone(&self.spec);
        let document = &spec.document;
        for key in request.key..request.key + request.count {
            self.name(key);
            self.scratch.clear();
            self.scratch.push(b'{');
            if document.indexed {
                self.scratch
                    .extend_from_slice(format!("\"k\": {key}, ").as_bytes());
            }
            json_fields(
                &mut self.scratch,
                &self.names,
                0..document.fields,
                key,
                request.version,
                document.field_bytes,
            );
            self.scratch.push(b'}');
            Self::bind(out, "insert", &[&self.key, &self.scratch]);
        }
        Self::sync(out);
    }

    fn update(&mut self, key: u64, request: &Request, out: &mut Vec<u8>) {
        let spec = Arc::clone(&self.spec);
        let fields = if spec.write_all {
            0..spec.document.fields
        } else {
            request.field..request.field + 1
        };
        self.name(key);
        self.scratch.clear();
        self.scratch.push(b'{');
        json_fields(
            &mut self.scratch,
            &self.names,
            fields,
            key,
            request.version,
            spec.document.field_bytes,
        );
        self.scratch.push(b'}');
        Self::bind(out, "update", &[&self.key, &self.scratch]);
        Self::sync(out);
    }

    fn transaction(&mut self, request: &Request, out: &mut Vec<u8>) {
        match request.stage {
            _ if request.commits() => {
                Self::bind(out, "commit", &[]);
                Self::sync(out);
            }
            0 => {
                if std::mem::take(&mut self.open) {
                    message(out, b'P', |out| {
                        text(out, "");
                        text(out, "ROLLBACK");
                        out.extend_from_slice(&0_u16.to_be_bytes());
                    });
                    Self::bind(out, "", &[]);
                }
                Self::bind(out, "begin", &[]);
                self.update(request.key, request, out);
            }
            _ => self.update(request.other, request, out),
        }
    }

    /// The length of a whole document as jsonb prints it.
    fn document_bytes(&self, key: u64) -> usize {
        let document = &self.spec.document;
        let fields: usize = self
            .names
            .iter()
            .map(|name| name.len() + 6 + document.field_bytes + 2)
            .sum();
        // Braces, and one separator less than there are fields.
        let indexed = if document.indexed {
            7 + key.to_string().len()
        } else {
            0
        };
        fields + indexed
    }

    fn row(
        &mut self,
        request: &Request,
        place: u64,
        body: &[u8],
        previous: &mut Vec<u8>,
        compare: bool,
    ) -> Result<(), String> {
        let mut columns = columns(body);
        let (Some(id), Some(doc)) = (columns.next(), columns.next()) else {
            return Err("a row has not two columns".into());
        };
        if if place == 0 {
            id != self.key
        } else {
            id <= &previous[..]
        } {
            return Err(format!(
                "row {place} of an answer has the id {}",
                String::from_utf8_lossy(id)
            ));
        }
        previous.clear();
        previous.extend_from_slice(id);
        let field_bytes = self.spec.document.field_bytes;
        if !self.spec.read_all && request.kind != Kind::Scan && request.kind != Kind::IndexRead {
            if doc.len() != field_bytes
                || compare && !check_value(request.key, request.field, doc, &mut self.scratch)
            {
                return Err(format!(
                    "the value of {} is not what was written",
                    self.names[request.field]
                ));
            }
            return Ok(());
        }
        // A scan's later rows have numbers that are not known; only with an index does the length
        // depend on them.
        if place == 0 || !self.spec.document.indexed {
            let expected = self.document_bytes(request.key);
            if doc.len() != expected {
                return Err(format!(
                    "a document has {} bytes, not {expected}",
                    doc.len()
                ));
            }
        }
        if compare && place == 0 {
            return self.compare(request, doc);
        }
        Ok(())
    }

    /// Every byte of a document as jsonb prints it; jsonb orders names by length, then by bytes.
    fn compare(&mut self, request: &Request, doc: &[u8]) -> Result<(), String> {
        let mut rest = doc;
        let mut eat = |bytes: &[u8]| {
            let after = rest.strip_prefix(bytes)?;
            rest = after;
            Some(())
        };
        let bytes = self.spec.document.field_bytes;
        let mut found = (|| {
            eat(b"{")?;
            if self.spec.document.indexed {
                eat(format!("\"k\": {}, ", request.key).as_bytes())?;
            }
            Some(())
        })();
        for (field, name) in self.names.iter().enumerate() {
            found = found.and_then(|()| {
                let head = format!("{}\"{name}\": \"", if field > 0 { ", " } else { "" });
                let after = rest.strip_prefix(head.as_bytes())?;
                let (value, after) = after.split_at_checked(bytes)?;
                rest = after.strip_prefix(b"\"")?;
                check_value(request.key, field, value, &mut self.scratch).then_some(())
            });
        }
        match found {
            Some(()) if rest == b"}" => Ok(()),
            _ => Err("a document is not what was written".into()),
        }
    }
}

impl Protocol for Postgres {
    fn refuses(session: &Session) -> Option<String> {
        let spec = &session.spec;
        let plain = |name: &str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if spec.collections > 1 {
            return Some("PostgreSQL is driven over one table".into());
        }
        if spec.ttl_secs > 0 {
            return Some("PostgreSQL has no TTL".into());
        }
        if !plain(&spec.table) || !plain(&spec.field_prefix) {
            return Some(
                "table and fieldnameprefix are letters, digits and _ with PostgreSQL".into(),
            );
        }
        let concerns = &session.concerns;
        if concerns.w.is_some()
            || concerns.read_concern.is_some()
            || concerns.read_preference.is_some()
        {
            return Some(
                "PostgreSQL has no read concern and no w; --journal sets synchronous_commit".into(),
            );
        }
        None
    }

    fn open(session: &Session) -> Result<(Self, Transport), String> {
        let mut transport = begin(session)?;
        let spec = Arc::clone(&session.spec);
        if let Some(journal) = session.concerns.journal {
            let value = if journal { "on" } else { "off" };
            query(&mut transport, &format!("SET synchronous_commit = {value}"))?;
        }
        let names = (0..spec.document.fields)
            .map(|field| format!("{}{field}", spec.field_prefix))
            .collect();
        Ok((
            Self {
                spec,
                names,
                open: false,
                key: Vec::new(),
                scratch: Vec::new(),
            },
            transport,
        ))
    }

    fn prepare(&mut self, stream: &mut dyn Stream) -> Result<(), String> {
        let mut out = Vec::new();
        for (name, sql) in Self::statements(&self.spec) {
            message(&mut out, b'P', |out| {
                text(out, name);
                text(out, &sql);
                out.extend_from_slice(&0_u16.to_be_bytes());
            });
        }
        Self::sync(&mut out);
        let answer = exchange(stream, &out, answer_end)?;
        let mut at = 0;
        while let Some((tag, body, length)) = first(&answer[at..])? {
            at += length;
            if tag == b'E' {
                return Err(error_text(body));
            }
        }
        Ok(())
    }

    fn server(&mut self, stream: &mut dyn Stream) -> Result<String, String> {
        Ok(query(stream, "SELECT version()")?.pop().unwrap_or_default())
    }

    fn set_up(
        &mut self,
        stream: &mut dyn Stream,
        session: &Session,
        fresh: bool,
    ) -> Result<(), String> {
        let table = &session.spec.table;
        query(
            stream,
            &format!(
                "SET client_min_messages = error; CREATE TABLE IF NOT EXISTS {table} (id text COLLATE \"C\" PRIMARY KEY, doc jsonb NOT NULL)"
            ),
        )?;
        if fresh {
            query(stream, &format!("TRUNCATE {table}"))?;
        }
        if session.spec.document.indexed {
            query(
                stream,
                &format!("CREATE INDEX IF NOT EXISTS {table}_k ON {table} (((doc->>'k')::bigint))"),
            )?;
        }
        Ok(())
    }

    fn ping(&mut self, stream: &mut dyn Stream) -> Result<(), String> {
        query(stream, "SELECT 1").map(drop)
    }

    fn counters(&mut self, stream: &mut dyn Stream) -> Result<Vec<Counter>, String> {
        let rows = query(
            stream,
            "SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter",
        )?;
        let count = rows.first().and_then(|count| count.parse().ok());
        Ok(count
            .map(|count| Counter::new("checkpoint", count))
            .into_iter()
            .collect())
    }

    fn encode(&mut self, request: &Request, out: &mut Vec<u8>) {
        match (request.kind, request.stage) {
            (Kind::Insert, _) => return self.insert(request, out),
            (Kind::Update, _) | (Kind::ReadModifyWrite, 1) => {
                return self.update(request.key, request, out);
            }
            (Kind::Transaction, _) => return self.transaction(request, out),
            _ => {}
        }
        self.name(request.key);
        match request.kind {
            Kind::Scan => Self::bind(
                out,
                "scan",
                &[&self.key, request.count.to_string().as_bytes()],
            ),
            Kind::IndexRead => Self::bind(out, "index", &[request.key.to_string().as_bytes()]),
            _ if self.spec.read_all => Self::bind(out, "read", &[&self.key]),
            _ => Self::bind(
                out,
                "read",
                &[&self.key, self.names[request.field].as_bytes()],
            ),
        }
        Self::sync(out);
    }

    fn reply_end(&self, input: &[u8]) -> Result<Option<usize>, String> {
        answer_end(input)
    }

    fn check(&mut self, request: &Request, reply: &[u8], compare: bool) -> Outcome {
        let (mut rows, mut written, mut at) = (0, 0, 0);
        let (mut error, mut wrong, mut previous) = (None, None, Vec::new());
        let mut committed = false;
        self.name(request.key);
        loop {
            let (tag, body, length) = match first(&reply[at..]) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(why) => return Outcome::Wrong(why),
            };
            at += length;
            match tag {
                b'D' => {
                    if wrong.is_none() {
                        wrong = self.row(request, rows, body, &mut previous, compare).err();
                    }
                    rows += 1;
                }
                b'C' if body == b"INSERT 0 1\0" || body == b"UPDATE 1\0" => written += 1,
                b'C' if body == b"COMMIT\0" => committed = true,
                b'E' => error = Some(error_text(body)),
                b'Z' => self.open = body != b"I",
                _ => {}
            }
        }
        if let Some(why) = error {
            let conflict = CONFLICTS.iter().any(|state| why.ends_with(state));
            return if conflict && request.kind == Kind::Transaction {
                Outcome::Conflict
            } else {
                Outcome::Error(why)
            };
        }
        if let Some(why) = wrong {
            return Outcome::Wrong(why);
        }
        match (request.kind, request.stage) {
            // A transaction that had failed is rolled back by its COMMIT, which says so.
            (Kind::Transaction, _) if request.commits() => {
                if committed {
                    Outcome::Right
                } else {
                    Outcome::Wrong("a COMMIT did not commit".into())
                }
            }
            (Kind::Insert, _) if written == request.count => Outcome::Right,
            (Kind::Insert, _) => {
                Outcome::Wrong(format!("{written} rows inserted, not {}", request.count))
            }
            (Kind::Update | Kind::Transaction, _) | (Kind::ReadModifyWrite, 1) => {
                if written == 1 {
                    Outcome::Right
                } else {
                    Outcome::Miss
                }
            }
            _ if rows == 0 => Outcome::Miss,
            _ if rows <= request.count => Outcome::Right,
            _ => Outcome::Wrong(format!(
                "{rows} rows where {} were asked for",
                request.count
            )),
        }
    }
}
