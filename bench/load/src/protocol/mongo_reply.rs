//! What MongoDB's replies must be.

use super::{Outcome, bson};
use crate::workload::{Kind, Request, Spec, check_value};

/// Header, flag bits and the kind of the section.
pub const MESSAGE_HEADER: usize = 21;
const MORE_TO_COME: u32 = 1 << 1;
const WRITE_CONFLICT: f64 = 112.0;

/// How documents lie in BSON.
pub struct Shape {
    pub strings: bool,
    pub names: Vec<String>,
    /// A whole document's length without the characters of its `_id`.
    whole_bytes: usize,
    /// The same with one field only.
    one_bytes: Vec<usize>,
}

impl Shape {
    pub fn new(spec: &Spec, strings: bool) -> Self {
        let names: Vec<String> = (0..spec.document.fields)
            .map(|field| format!("{}{field}", spec.field_prefix))
            .collect();
        // Type, name and its end; then length and subtype, or length and the string's end.
        let field_bytes = |name: &String| 2 + name.len() + 5 + spec.document.field_bytes;
        let frame_and_id = 5 + "_id".len() + 2 + 5;
        let indexed = if spec.document.indexed {
            2 + "k".len() + 8
        } else {
            0
        };
        let timed = if spec.document.timed {
            2 + "at".len() + 8
        } else {
            0
        };
        Self {
            strings,
            whole_bytes: frame_and_id
                + indexed
                + timed
                + names.iter().map(field_bytes).sum::<usize>(),
            one_bytes: names
                .iter()
                .map(|name| frame_and_id + field_bytes(name))
                .collect(),
            names,
        }
    }
}

/// The reply's document, after its header was held against the request's number.
pub fn body(reply: &[u8], request_id: u32) -> Result<&[u8], String> {
    let word = |at: usize| {
        reply
            .get(at..at + 4)
            .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    };
    if word(8) != request_id {
        return Err(format!(
            "a reply answers request {}, not {request_id}",
            word(8)
        ));
    }
    if word(12) != 2013 || word(16) & MORE_TO_COME != 0 || reply.get(20) != Some(&0) {
        return Err("a reply is not one OP_MSG with one body".into());
    }
    Ok(&reply[MESSAGE_HEADER..])
}

/// What an error reply says.
pub fn error_text(body: &[u8]) -> String {
    let code = bson::get(body, "code")
        .and_then(|code| code.number())
        .unwrap_or(0.0);
    let message = bson::get(body, "errmsg")
        .map(|text| text.text())
        .unwrap_or_default();
    format!("{message} (code {code})")
}

/// A reply to an insert, update or commit. `n`: what it must count.
pub fn write(request: &Request, body: &[u8], n: Option<u64>) -> Outcome {
    let Some(mut elements) = bson::Elements::new(body) else {
        return Outcome::Wrong("a reply's document has a wrong length".into());
    };
    let (mut ok, mut counted, mut failed) = (false, None, None);
    for element in elements.by_ref() {
        match element.name {
            b"ok" => ok = element.number() == Some(1.0),
            b"n" => counted = element.number(),
            b"writeErrors" => {
                let first = bson::Elements::new(element.value).and_then(|mut list| list.next());
                failed = Some(
                    first.map_or_else(|| "writeErrors".into(), |first| error_text(first.value)),
                );
            }
            b"writeConcernError" => {
                failed = Some(format!("writeConcernError: {}", error_text(element.value)))
            }
            _ => {}
        }
    }
    if !elements.whole() {
        return Outcome::Wrong("a reply is not BSON".into());
    }
    if !ok {
        return failed_write(request, body);
    }
    match (failed, n) {
        (Some(why), _) => Outcome::Error(why),
        (None, Some(n)) if counted != Some(n as f64) => {
            if counted == Some(0.0) && request.kind != Kind::Insert {
                Outcome::Miss
            } else {
                Outcome::Wrong(format!("n is {counted:?} where {n} was asked for"))
            }
        }
        _ => Outcome::Right,
    }
}

/// An error, or a conflict of a transaction, which must say by its label that it can be retried.
fn failed_write(request: &Request, body: &[u8]) -> Outcome {
    let code = bson::get(body, "code").and_then(|code| code.number());
    if request.kind != Kind::Transaction || code != Some(WRITE_CONFLICT) {
        return Outcome::Error(error_text(body));
    }
    let labelled = bson::get(body, "errorLabels")
        .and_then(|labels| bson::Elements::new(labels.value))
        .is_some_and(|mut labels| {
            labels.any(|label| label.bytes() == Some(b"TransientTransactionError"))
        });
    if labelled {
        Outcome::Conflict
    } else {
        Outcome::Wrong(format!(
            "a conflict has no label TransientTransactionError: {}",
            error_text(body)
        ))
    }
}

/// A reply to a find.
pub fn read(
    spec: &Spec,
    shape: &Shape,
    request: &Request,
    body: &[u8],
    key: &[u8],
    compare: bool,
    scratch: &mut Vec<u8>,
) -> Outcome {
    let (mut ok, mut batch, mut cursor_id) = (false, None, None);
    let Some(mut elements) = bson::Elements::new(body) else {
        return Outcome::Wrong("a reply's document has a wrong length".into());
    };
    for element in elements.by_ref() {
        match element.name {
            b"ok" => ok = element.number() == Some(1.0),
            b"cursor" => {
                batch = bson::get(element.value, "firstBatch");
                cursor_id = bson::get(element.value, "id").and_then(|id| id.number());
            }
            _ => {}
        }
    }
    if !elements.whole() {
        return Outcome::Wrong("a reply is not BSON".into());
    }
    if !ok {
        return Outcome::Error(error_text(body));
    }
    let Some(mut documents) = batch.and_then(|batch| bson::Elements::new(batch.value)) else {
        return Outcome::Wrong("a reply has no firstBatch".into());
    };
    if cursor_id != Some(0.0) {
        return Outcome::Wrong("a single batch left a cursor open".into());
    }
    let (mut count, mut previous): (u64, &[u8]) = (0, &[]);
    for document in documents.by_ref() {
        let Some(id) = bson::get(document.value, "_id").and_then(|id| id.bytes()) else {
            return Outcome::Wrong("a document has no _id that is a string".into());
        };
        if if count == 0 {
            id != key
        } else {
            id <= previous
        } {
            return wrong_id(id, key, count);
        }
        let expected = id.len()
            + if spec.read_all {
                shape.whole_bytes
            } else {
                shape.one_bytes[request.field]
            };
        if document.value.len() != expected {
            return Outcome::Wrong(format!(
                "a document has {} bytes, not {expected}",
                document.value.len()
            ));
        }
        if compare
            && count == 0
            && let Some(field) = first_wrong_field(spec, shape, request, document.value, scratch)
        {
            return Outcome::Wrong(format!("the value of {field} is not what was written"));
        }
        previous = id;
        count += 1;
    }
    if !documents.whole() {
        return Outcome::Wrong("a reply is not BSON".into());
    }
    match count {
        0 => Outcome::Miss,
        // A scan near the end of the collection finds fewer.
        _ if count <= request.count => Outcome::Right,
        _ => Outcome::Wrong(format!(
            "{count} documents where {} were asked for",
            request.count
        )),
    }
}

fn wrong_id(id: &[u8], key: &[u8], place: u64) -> Outcome {
    let (id, key) = (String::from_utf8_lossy(id), String::from_utf8_lossy(key));
    Outcome::Wrong(format!(
        "document {place} of a reply to {key} has the _id {id}"
    ))
}

fn first_wrong_field(
    spec: &Spec,
    shape: &Shape,
    request: &Request,
    document: &[u8],
    scratch: &mut Vec<u8>,
) -> Option<String> {
    let fields = if spec.read_all {
        0..spec.document.fields
    } else {
        request.field..request.field + 1
    };
    for field in fields {
        let found = bson::get(document, &shape.names[field]);
        let right = found.is_some_and(|found| {
            let tag = if shape.strings {
                bson::STRING
            } else {
                bson::BINARY
            };
            found.tag == tag
                && found.bytes().is_some_and(|bytes| {
                    bytes.len() == spec.document.field_bytes
                        && check_value(request.key, field, bytes, scratch)
                })
        });
        if !right {
            return Some(shape.names[field].clone());
        }
    }
    None
}
