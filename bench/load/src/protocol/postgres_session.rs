//! PostgreSQL's messages, and how a session begins.

use md5::{Digest, Md5};

use super::scram::{Hash, Scram, nonce};
use super::{Session, Stream, Transport, exchange};

const PROTOCOL_3: u32 = 196_608;
const SSL_REQUEST: u32 = 80_877_103;
/// The largest message that is believed: PostgreSQL's own limit.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Appends a message whose body `fill` appends.
pub fn message(out: &mut Vec<u8>, tag: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    framed(out, fill);
}

fn framed(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

pub fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

/// A message's tag and body, and where it ends.
type Message<'a> = (u8, &'a [u8], usize);

/// The first message, once it is whole.
pub fn first(input: &[u8]) -> Result<Option<Message<'_>>, String> {
    let Some(&[tag, a, b, c, d]) = input.first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if !(4..=MAX_MESSAGE_BYTES).contains(&length) {
        return Err(format!("a message says that it has {length} bytes"));
    }
    Ok((input.len() > length).then(|| (tag, &input[5..=length], length + 1)))
}

/// Where the first answer ends: after ReadyForQuery.
pub fn answer_end(input: &[u8]) -> Result<Option<usize>, String> {
    let mut at = 0;
    while let Some((tag, _, length)) = first(&input[at..])? {
        at += length;
        if tag == b'Z' {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// What an ErrorResponse says: its message and code.
pub fn error_text(body: &[u8]) -> String {
    let field = |tag: u8| {
        body.split(|&byte| byte == 0)
            .find(|field| field.first() == Some(&tag))
            .map_or_else(String::new, |field| {
                String::from_utf8_lossy(&field[1..]).into_owned()
            })
    };
    format!("{} (SQLSTATE {})", field(b'M'), field(b'C'))
}

/// Sends a query and gives the first column of its rows; an error is an error.
pub fn query(stream: &mut dyn Stream, sql: &str) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    message(&mut out, b'Q', |out| text(out, sql));
    let answer = exchange(stream, &out, answer_end)?;
    let mut rows = Vec::new();
    let mut at = 0;
    while let Some((tag, body, length)) = first(&answer[at..])? {
        at += length;
        match tag {
            b'E' => return Err(error_text(body)),
            b'D' => rows.push(
                columns(body)
                    .next()
                    .map_or(String::new(), |c| String::from_utf8_lossy(c).into_owned()),
            ),
            _ => {}
        }
    }
    Ok(rows)
}

/// The columns of a DataRow; a null is empty.
pub fn columns(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = body.get(2..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = i32::from_be_bytes(*length).max(0) as usize;
        let (column, after) = after.split_at_checked(length)?;
        rest = after;
        Some(column)
    })
}

/// Connects, with TLS where it is asked for, and authenticates.
pub fn begin(session: &Session) -> Result<Transport, String> {
    let endpoint = &session.endpoint;
    let mut transport = Transport::connect(endpoint)?;
    if let Some(config) = &session.tls {
        let mut out = Vec::new();
        framed(&mut out, |out| {
            out.extend_from_slice(&SSL_REQUEST.to_be_bytes())
        });
        let answer = exchange(&mut transport, &out, |input| {
            Ok((!input.is_empty()).then_some(1))
        })?;
        if answer != b"S" {
            return Err("the server has no TLS".into());
        }
        transport = transport.secure(config, &endpoint.host)?;
    }
    let user = endpoint.user.clone().unwrap_or_else(|| "postgres".into());
    let database = endpoint.database.clone().unwrap_or_else(|| user.clone());
    let mut out = Vec::new();
    framed(&mut out, |out| {
        out.extend_from_slice(&PROTOCOL_3.to_be_bytes());
        for (name, value) in [("user", &user), ("database", &database)] {
            text(out, name);
            text(out, value);
        }
        out.push(0);
    });
    authenticate(&mut transport, out, &user, &endpoint.password)?;
    Ok(transport)
}

fn authenticate(
    stream: &mut dyn Stream,
    mut out: Vec<u8>,
    user: &str,
    password: &str,
) -> Result<(), String> {
    let mut scram: Option<Scram> = None;
    loop {
        // The answer is a request for more, an error, or everything up to ReadyForQuery.
        let answer = exchange(stream, &out, |input| {
            let mut at = 0;
            while let Some((tag, body, length)) = first(&input[at..])? {
                at += length;
                let asks = tag == b'R' && !matches!(body.first_chunk(), Some([0, 0, 0, 0 | 12]));
                if asks || matches!(tag, b'E' | b'Z') {
                    return Ok(Some(at));
                }
            }
            Ok(None)
        })?;
        out.clear();
        let mut at = 0;
        while let Some((tag, body, length)) = first(&answer[at..])? {
            at += length;
            match (tag, body) {
                (b'E', body) => return Err(error_text(body)),
                (b'Z', _) => return Ok(()),
                (b'R', [0, 0, 0, 3]) => message(&mut out, b'p', |out| text(out, password)),
                (b'R', [0, 0, 0, 5, salt @ ..]) => {
                    let hex =
                        |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
                    let inner = hex(&Md5::digest(format!("{password}{user}")));
                    let outer = hex(&Md5::digest([inner.as_bytes(), salt].concat()));
                    message(&mut out, b'p', |out| text(out, &format!("md5{outer}")));
                }
                (b'R', [0, 0, 0, 10, ..]) => {
                    // PostgreSQL takes the name from the startup message.
                    let client = Scram::new(Hash::Sha256, "", password, nonce()?)?;
                    let first = client.first();
                    scram = Some(client);
                    message(&mut out, b'p', |out| {
                        text(out, Hash::Sha256.mechanism());
                        out.extend_from_slice(&(first.len() as u32).to_be_bytes());
                        out.extend_from_slice(first.as_bytes());
                    });
                }
                (b'R', [0, 0, 0, 11, server_first @ ..]) => {
                    let scram = scram
                        .as_mut()
                        .ok_or("the server continues a SCRAM that was not begun")?;
                    let second = scram.second(&String::from_utf8_lossy(server_first))?;
                    message(&mut out, b'p', |out| {
                        out.extend_from_slice(second.as_bytes())
                    });
                }
                (b'R', [0, 0, 0, 12, server_final @ ..]) => {
                    let scram = scram
                        .as_ref()
                        .ok_or("the server ends a SCRAM that was not begun")?;
                    scram.verify(&String::from_utf8_lossy(server_final))?;
                }
                (b'R', [0, 0, 0, 0]) => {}
                (b'R', _) => {
                    return Err("the server asks for an authentication that is not spoken".into());
                }
                _ => {}
            }
        }
    }
}
