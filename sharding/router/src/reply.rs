//! What a client gets of a node's reply: all of it, but for what nodes say to each other.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::idl::i32_clamped;
use pinion_wire::{Category, Error, ErrorCode, Reply, labels};

/// Fields of a node's reply that are for the router, or that it makes itself.
const NOT_PASSED_ON: [&[u8]; 12] = [
    b"ok",
    b"$clusterTime",
    b"$configTime",
    b"$topologyTime",
    b"$replData",
    b"$oplogQueryData",
    b"$gleStats",
    b"operationTime",
    b"electionId",
    b"opTime",
    b"lastCommittedOpTime",
    b"topologyVersion",
];

/// Whether a field of a node's reply reaches the client.
pub(crate) fn is_passed_on(name: &[u8]) -> bool {
    !NOT_PASSED_ON.contains(&name)
}

/// The reply for the client.
pub(crate) fn passed_on(reply: &RawDocument) -> Reply {
    let mut out = started(reply);
    append_passed_on(&mut out, reply, |_| true);
    out
}

/// The beginning of a reply in a node's place, which has `ok` in the node's type.
fn started(reply: &RawDocument) -> Reply {
    let mut out = Reply::with_capacity(reply.as_bytes().len());
    if matches!(pinion_bson::get(reply, "ok"), Some(RawBsonRef::Int32(_))) {
        out.ok_as_int();
    }
    out
}

/// Appends what a client gets of a node's reply, but for fields that are left out.
pub(crate) fn append_passed_on(
    out: &mut DocBuilder,
    reply: &RawDocument,
    is_wanted: impl Fn(&[u8]) -> bool,
) {
    for elem in pinion_bson::raw_elements(reply) {
        if !is_passed_on(elem.name) || !is_wanted(elem.name) {
            continue;
        }
        match elem.to_value() {
            Some(RawBsonRef::Document(error)) if elem.name == b"writeConcernError" => {
                append_concern_error(out, error);
            }
            _ => {
                out.append_elem(&elem);
            }
        }
    }
}

/// The same with another cursor than the node's.
pub(crate) fn passed_on_with_cursor(reply: &RawDocument, id: i64) -> Reply {
    let mut out = started(reply);
    for elem in pinion_bson::raw_elements(reply) {
        match elem.to_value() {
            Some(RawBsonRef::Document(cursor)) if elem.name == b"cursor" => {
                out.start_document("cursor");
                for part in pinion_bson::raw_elements(cursor) {
                    match part.name {
                        b"id" => out.append("id", id),
                        _ => out.append_elem(&part),
                    };
                }
                out.end();
            }
            _ if is_passed_on(elem.name) => {
                out.append_elem(&elem);
            }
            _ => {}
        }
    }
    out
}

/// A node that is not primary any more, or ends, is one of many behind this router: a client that
/// saw this code would take the router for it, and turn to another one.
fn code_for_client(code: ErrorCode) -> ErrorCode {
    let is_of_node = code.is(Category::NOT_PRIMARY) || code.is(Category::SHUTDOWN);
    if is_of_node {
        ErrorCode::HOST_UNREACHABLE
    } else {
        code
    }
}

/// Appends the error of a write concern as the client gets it.
pub(crate) fn append_concern_error(out: &mut DocBuilder, error: &RawDocument) {
    let code = pinion_bson::get(error, "code").and_then(i32_clamped);
    let code = code.map_or(ErrorCode::UNKNOWN_ERROR, ErrorCode);
    let shown = code_for_client(code);
    out.start_document("writeConcernError");
    for elem in pinion_bson::raw_elements(error) {
        match elem.name {
            b"code" if shown != code => out.append("code", shown.0),
            b"codeName" if shown != code => out.append("codeName", &*shown.name()),
            _ => out.append_elem(&elem),
        };
    }
    out.end();
}

/// The error of a node as the client gets it: its further fields are those that the node added,
/// with its labels.
pub(crate) fn refused(mut error: Error) -> Error {
    let Some(reply) = error.extra.take() else {
        return error;
    };
    error.code = code_for_client(error.code);
    let mut further = DocBuilder::new();
    for elem in pinion_bson::raw_elements(&reply) {
        let is_of_error = matches!(
            elem.name,
            b"errmsg" | b"code" | b"codeName" | b"errorLabels"
        );
        if is_passed_on(elem.name) && !is_of_error {
            further.append_elem(&elem);
        }
    }
    for label in labels_of(&reply) {
        error = error.with_label(label);
    }
    let further: RawDocumentBuf = further.finish();
    match further.is_empty() {
        true => error,
        false => error.with_extra(further),
    }
}

/// The labels that a node's reply has, of those that there are.
fn labels_of(reply: &RawDocument) -> Vec<&'static str> {
    const KNOWN: [&str; 7] = [
        labels::RETRYABLE_WRITE,
        labels::TRANSIENT_TRANSACTION,
        labels::UNKNOWN_TRANSACTION_COMMIT_RESULT,
        labels::RESUMABLE_CHANGE_STREAM,
        labels::NON_RESUMABLE_CHANGE_STREAM,
        labels::NO_WRITES_PERFORMED,
        labels::SYSTEM_OVERLOADED,
    ];
    let Some(RawBsonRef::Array(found)) = pinion_bson::get(reply, "errorLabels") else {
        return Vec::new();
    };
    pinion_bson::values(found)
        .filter_map(|label| {
            KNOWN
                .into_iter()
                .find(|known| label.as_str() == Some(known))
        })
        .collect()
}

/// The document of a reply, for tests. Room for the header stands before it.
#[cfg(test)]
pub(crate) fn document_of(mut reply: Reply) -> RawDocumentBuf {
    let bytes = std::mem::take(&mut *reply).finish_bytes();
    let empty = std::mem::take(&mut *Reply::new()).finish_bytes();
    // An empty document has five bytes.
    let prefix = empty.len() - 5;
    RawDocumentBuf::from_bytes(bytes[prefix..].to_vec()).expect("a document")
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;
    use pinion_wire::ErrorCode;

    use super::*;

    fn time() -> pinion_bson::Timestamp {
        pinion_bson::Timestamp {
            time: 1,
            increment: 1,
        }
    }

    #[test]
    fn replies() {
        let reply = rawdoc! {
            "cursor": { "firstBatch": [], "id": 7_i64, "ns": "d.c" },
            "n": 1,
            "ok": 1.0,
            "$configTime": time(),
            "operationTime": time(),
        };
        let expected = rawdoc! { "cursor": { "firstBatch": [], "id": 9_i64, "ns": "d.c" }, "n": 1 };
        assert_eq!(document_of(passed_on_with_cursor(&reply, 9)), expected);
        let expected = rawdoc! { "cursor": { "firstBatch": [], "id": 7_i64, "ns": "d.c" }, "n": 1 };
        assert_eq!(document_of(passed_on(&reply)), expected);
    }

    #[test]
    fn errors() {
        let reply = rawdoc! {
            "ok": 0.0,
            "errmsg": "no",
            "code": 112,
            "codeName": "WriteConflict",
            "errorLabels": ["TransientTransactionError", "Unheard"],
            "keyValue": { "a": 1 },
            "$clusterTime": {},
            "topologyVersion": {},
        };
        let error = Error::new(ErrorCode::WRITE_CONFLICT, "no").with_extra(reply);
        let error = refused(error);
        assert_eq!(error.labels, ["TransientTransactionError"]);
        assert_eq!(
            error.extra.map(|extra| *extra),
            Some(rawdoc! { "keyValue": { "a": 1 } })
        );
        let ends = rawdoc! { "ok": 0.0, "errmsg": "no", "code": 91, "errorLabels": ["RetryableWriteError"] };
        let error = refused(Error::new(ErrorCode::SHUTDOWN_IN_PROGRESS, "no").with_extra(ends));
        assert_eq!(error.code, ErrorCode::HOST_UNREACHABLE);
        assert_eq!(error.labels, ["RetryableWriteError"]);
        let plain = rawdoc! { "ok": 0.0, "errmsg": "no", "code": 2 };
        let error = refused(Error::bad_value("no").with_extra(plain));
        assert!(error.extra.is_none() && error.labels.is_empty());
    }
}
