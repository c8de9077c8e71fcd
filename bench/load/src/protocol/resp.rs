//! Redis: a document is one value, all its fields' values one after the other; GET, SET and MSET.

use std::sync::Arc;

use super::{Counter, Outcome, Protocol, Session, Stream, Transport, exchange};
use crate::workload::{Kind, Request, Spec, check_value, value};

/// The largest value that Redis has.
const MAX_BULK_BYTES: usize = 512 << 20;

/// One connection.
pub struct Resp {
    spec: Arc<Spec>,
    /// Each write is followed by a WAIT for this number of replicas.
    wait: Option<u32>,
    key: Vec<u8>,
    scratch: Vec<u8>,
}

impl Resp {
    fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }

    fn key(&mut self, key: u64, out: &mut Vec<u8>) {
        self.key.clear();
        self.spec.document.key_name(key, &mut self.key);
        Self::bulk(out, &self.key);
    }

    fn value(&self, key: u64, version: u64, out: &mut Vec<u8>) {
        let document = &self.spec.document;
        out.extend_from_slice(format!("${}\r\n", document.value_bytes()).as_bytes());
        for field in 0..document.fields {
            value(key, field, version, document.field_bytes, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        let keys = request.key..request.key + request.count;
        let ttl_secs = self.spec.ttl_secs;
        if request.count > 1 {
            out.extend_from_slice(
                format!("*{}\r\n$4\r\nMSET\r\n", 1 + 2 * request.count).as_bytes(),
            );
        } else if ttl_secs > 0 {
            out.extend_from_slice(b"*5\r\n$3\r\nSET\r\n");
        } else {
            out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
        }
        for key in keys {
            self.key(key, out);
            self.value(key, request.version, out);
        }
        if ttl_secs > 0 {
            out.extend_from_slice(b"$2\r\nEX\r\n");
            Self::bulk(out, ttl_secs.to_string().as_bytes());
        }
        if let Some(replicas) = self.wait {
            // For as long as it takes: the waiter for the reply has a limit of its own.
            out.extend_from_slice(b"*3\r\n$4\r\nWAIT\r\n");
            Self::bulk(out, replicas.to_string().as_bytes());
            out.extend_from_slice(b"$1\r\n0\r\n");
        }
    }

    /// What a write is answered with.
    fn check_write(&self, reply: &[u8]) -> Outcome {
        let Some(rest) = reply.strip_prefix(b"+OK\r\n") else {
            return Outcome::Wrong("the reply to a SET is not OK".into());
        };
        let Some(replicas) = self.wait else {
            return if rest.is_empty() {
                Outcome::Right
            } else {
                Outcome::Wrong("the reply to a SET goes on behind OK".into())
            };
        };
        if rest.first() == Some(&b'-') {
            return Outcome::Error(String::from_utf8_lossy(&rest[1..]).trim_end().into());
        }
        match line(rest)
            .and_then(|line| line.strip_prefix(b":"))
            .and_then(number)
        {
            Some(count) if count >= i64::from(replicas) => Outcome::Right,
            Some(count) => Outcome::Wrong(format!(
                "{count} replicas had a write where {replicas} were waited for"
            )),
            None => Outcome::Wrong("the reply to a WAIT is no number".into()),
        }
    }

    /// Runs a command; gives the reply with its type and without its end.
    pub fn command(&mut self, stream: &mut dyn Stream, words: &[&str]) -> Result<String, String> {
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            Self::bulk(&mut out, word.as_bytes());
        }
        let reply = exchange(stream, &out, one_end)?;
        let text = String::from_utf8_lossy(&reply).trim_end().to_owned();
        match text.strip_prefix('-') {
            Some(error) => Err(error.into()),
            None => Ok(text),
        }
    }
}

fn line(input: &[u8]) -> Option<&[u8]> {
    let end = input.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&input[..end])
}

/// Where one reply of the protocol ends, once all of it is there.
fn one_end(input: &[u8]) -> Result<Option<usize>, String> {
    let Some(line) = line(input) else {
        return Ok(None);
    };
    let after = line.len() + 2;
    match line.first() {
        Some(b'+' | b'-' | b':') => Ok(Some(after)),
        Some(b'$') => match number(&line[1..]) {
            Some(-1) => Ok(Some(after)),
            Some(length) if (0..=MAX_BULK_BYTES as i64).contains(&length) => {
                let end = after + length as usize + 2;
                Ok((input.len() >= end).then_some(end))
            }
            _ => Err("a reply has a wrong length".into()),
        },
        _ => Err("a reply has a type that nobody asked for".into()),
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

impl Protocol for Resp {
    fn refuses(session: &Session) -> Option<String> {
        let spec = &session.spec;
        let other = [Kind::Scan, Kind::IndexRead, Kind::Transaction]
            .into_iter()
            .find(|kind| spec.has(*kind));
        if let Some(kind) = other {
            return Some(format!("Redis has no {}: GET and SET only", kind.name()));
        }
        if spec.collections > 1 {
            return Some("Redis has no collections".into());
        }
        if spec.ttl_secs > 0 && spec.batch > 1 {
            return Some("Redis sets no TTL in a batch (MSET)".into());
        }
        let concerns = &session.concerns;
        let writes = |kind: Kind| matches!(kind, Kind::Insert | Kind::Update);
        if concerns.redis_wait.is_some()
            && !(spec.load || spec.mix.iter().all(|(kind, _)| writes(*kind)))
        {
            return Some("--redis-wait is for workloads that write only".into());
        }
        if concerns.w.is_some() || concerns.journal.is_some() || concerns.read_concern.is_some() {
            return Some(
                "Redis's durability is the server's setting (appendfsync), not the client's".into(),
            );
        }
        None
    }

    fn open(session: &Session) -> Result<(Self, Transport), String> {
        let endpoint = &session.endpoint;
        let mut transport = Transport::connect(endpoint)?;
        if let Some(config) = &session.tls {
            transport = transport.secure(config, &endpoint.host)?;
        }
        let mut resp = Self {
            spec: Arc::clone(&session.spec),
            wait: session.concerns.redis_wait,
            key: Vec::new(),
            scratch: Vec::new(),
        };
        match endpoint.user.as_deref() {
            None => {}
            Some("") => drop(resp.command(&mut transport, &["AUTH", &endpoint.password])?),
            Some(user) => drop(resp.command(&mut transport, &["AUTH", user, &endpoint.password])?),
        }
        if let Some(database) = &endpoint.database {
            resp.command(&mut transport, &["SELECT", database])?;
        }
        Ok((resp, transport))
    }

    fn server(&mut self, stream: &mut dyn Stream) -> Result<String, String> {
        let info = self.command(stream, &["INFO", "server"])?;
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"));
        Ok(format!(
            "Redis protocol, version {}",
            version.unwrap_or("unknown")
        ))
    }

    fn set_up(&mut self, stream: &mut dyn Stream, _: &Session, fresh: bool) -> Result<(), String> {
        if fresh {
            self.command(stream, &["FLUSHDB"])?;
        }
        Ok(())
    }

    fn ping(&mut self, stream: &mut dyn Stream) -> Result<(), String> {
        self.command(stream, &["PING"]).map(drop)
    }

    fn counters(&mut self, stream: &mut dyn Stream) -> Result<Vec<Counter>, String> {
        let info = self.command(stream, &["INFO", "persistence"])?;
        let number = |name: &str| {
            info.lines().find_map(|line| {
                line.strip_prefix(name)?
                    .strip_prefix(':')?
                    .trim()
                    .parse()
                    .ok()
            })
        };
        let counters = [
            ("rewrite of the AOF", "aof_rewrite_in_progress"),
            ("snapshot", "rdb_bgsave_in_progress"),
            ("delayed fsync", "aof_delayed_fsync"),
        ];
        Ok(counters
            .into_iter()
            .filter_map(|(what, name)| Some(Counter::new(what, number(name)?)))
            .collect())
    }

    fn encode(&mut self, request: &Request, out: &mut Vec<u8>) {
        match (request.kind, request.stage) {
            (Kind::Insert | Kind::Update, _) | (Kind::ReadModifyWrite, 1) => {
                self.write(request, out)
            }
            _ => {
                out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
                self.key(request.key, out);
            }
        }
    }

    fn reply_end(&self, input: &[u8]) -> Result<Option<usize>, String> {
        let first = one_end(input)?;
        let (Some(end), Some(_)) = (first, self.wait) else {
            return Ok(first);
        };
        Ok(one_end(&input[end..])?.map(|second| end + second))
    }

    fn check(&mut self, request: &Request, reply: &[u8], compare: bool) -> Outcome {
        if reply.first() == Some(&b'-') {
            return Outcome::Error(String::from_utf8_lossy(&reply[1..]).trim_end().into());
        }
        let writes = matches!(
            (request.kind, request.stage),
            (Kind::Insert | Kind::Update, _) | (Kind::ReadModifyWrite, 1)
        );
        if writes {
            return self.check_write(reply);
        }
        if reply == b"$-1\r\n" {
            return Outcome::Miss;
        }
        let document = &self.spec.document;
        let Some(head) = line(reply).filter(|_| reply[0] == b'$') else {
            return Outcome::Wrong("the reply to a GET is no string".into());
        };
        let value = &reply[head.len() + 2..reply.len() - 2];
        if value.len() != document.value_bytes() || !reply.ends_with(b"\r\n") {
            return Outcome::Wrong(format!(
                "a value has {} bytes, not {}",
                value.len(),
                document.value_bytes()
            ));
        }
        if compare {
            let mut fields = value.chunks(document.field_bytes).enumerate();
            if let Some((field, _)) = fields
                .find(|(field, bytes)| !check_value(request.key, *field, bytes, &mut self.scratch))
            {
                return Outcome::Wrong(format!("part {field} of a value is not what was written"));
            }
        }
        Outcome::Right
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Resp;
    use crate::protocol::{Outcome, Protocol};
    use crate::workload::{Kind, Properties, Request, Spec};

    fn resp(wait: Option<u32>) -> Resp {
        Resp {
            spec: Arc::new(Spec::new(Some("insert"), &Properties::default()).unwrap()),
            wait,
            key: Vec::new(),
            scratch: Vec::new(),
        }
    }

    const INSERT: Request = Request {
        kind: Kind::Insert,
        key: 1,
        other: 0,
        version: 0,
        field: 0,
        count: 1,
        stage: 0,
    };

    #[test]
    fn a_write_that_waits_has_two_replies() {
        let mut resp = resp(Some(1));
        let mut out = Vec::new();
        resp.encode(&INSERT, &mut out);
        assert!(out.starts_with(b"*3\r\n$3\r\nSET\r\n"));
        assert!(out.ends_with(b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n"));
        for part in ["", "+OK", "+OK\r\n", "+OK\r\n:1\r"] {
            assert_eq!(resp.reply_end(part.as_bytes()), Ok(None), "{part}");
        }
        assert_eq!(resp.reply_end(b"+OK\r\n:1\r\n+OK"), Ok(Some(9)));
        assert_eq!(resp.check(&INSERT, b"+OK\r\n:1\r\n", false), Outcome::Right);
        for wrong in ["+OK\r\n:0\r\n", "+OK\r\n+OK\r\n", ":1\r\n:1\r\n"] {
            let outcome = resp.check(&INSERT, wrong.as_bytes(), false);
            assert!(matches!(outcome, Outcome::Wrong(_)), "{wrong}: {outcome:?}");
        }
        for error in ["-ERR no\r\n:1\r\n", "+OK\r\n-ERR no\r\n"] {
            let outcome = resp.check(&INSERT, error.as_bytes(), false);
            assert!(matches!(outcome, Outcome::Error(_)), "{error}: {outcome:?}");
        }
    }

    #[test]
    fn a_write_that_does_not_wait_has_one() {
        let mut resp = resp(None);
        assert_eq!(resp.reply_end(b"+OK\r\n:1\r\n"), Ok(Some(5)));
        assert_eq!(resp.check(&INSERT, b"+OK\r\n", false), Outcome::Right);
    }
}
