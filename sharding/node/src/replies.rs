//! Replies of commands that the node sends to itself or to others.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, get};
use pinion_wire::idl::{i32_clamped, truthy};
use pinion_wire::{Error, ErrorCode, Result};

/// Whether a command has done all that it was sent for.
///
/// # Errors
/// The reply's own, that of its first failed statement, and that of the write concern, after which
/// the write may be lost.
pub(crate) fn check(reply: &RawDocument) -> Result<()> {
    if !get(reply, "ok").is_some_and(truthy) {
        return Err(with_own_fields(
            error_of(reply).with_extra(reply.to_owned()),
        ));
    }
    if let Some(RawBsonRef::Array(errors)) = get(reply, "writeErrors")
        && let Some(RawBsonRef::Document(first)) = pinion_bson::values(errors).next()
    {
        return Err(error_of(first));
    }
    match get(reply, "writeConcernError") {
        Some(RawBsonRef::Document(failed)) => Err(error_of(failed)),
        _ => Ok(()),
    }
}

/// An error with the whole reply beside it, without what every reply has: the fields that are left
/// can stand in the reply of another command.
pub(crate) fn with_own_fields(mut error: Error) -> Error {
    let Some(reply) = error.extra.take() else {
        return error;
    };
    let mut own = DocBuilder::new();
    for elem in pinion_bson::raw_elements(&reply) {
        let is_of_all = matches!(
            elem.name,
            b"ok" | b"errmsg" | b"code" | b"codeName" | b"errorLabels" | b"operationTime"
        );
        if !is_of_all && !elem.name.starts_with(b"$") {
            own.append_elem(&elem);
        }
    }
    match own.finish() {
        own if own.is_empty() => error,
        own => error.with_extra(own),
    }
}

fn error_of(document: &RawDocument) -> Error {
    let code = get(document, "code").and_then(i32_clamped);
    let message = get(document, "errmsg").and_then(|text| text.as_str());
    Error::new(
        code.map_or(ErrorCode::UNKNOWN_ERROR, ErrorCode),
        message.unwrap_or("the reply has no errmsg"),
    )
}

/// A batch of a cursor.
pub(crate) struct Batch {
    pub(crate) documents: Vec<RawDocumentBuf>,
    /// 0 where nothing follows.
    pub(crate) cursor: i64,
}

fn malformed() -> Error {
    Error::failed_to_parse("the reply has no cursor with one batch")
}

/// The documents of a cursor's only batch.
///
/// # Errors
/// The reply is none of a cursor, or has another batch.
pub(crate) fn only_batch(reply: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
    match batch(reply, "firstBatch")? {
        Batch {
            documents,
            cursor: 0,
        } => Ok(documents),
        _ => Err(malformed()),
    }
}

/// A batch of a cursor that has this name.
///
/// # Errors
/// The reply is none of a cursor.
pub(crate) fn batch(reply: &RawDocument, name: &str) -> Result<Batch> {
    let cursor = match get(reply, "cursor") {
        Some(RawBsonRef::Document(cursor)) => cursor,
        _ => return Err(malformed()),
    };
    let (Some(RawBsonRef::Int64(id)), Some(RawBsonRef::Array(batch))) =
        (get(cursor, "id"), get(cursor, name))
    else {
        return Err(malformed());
    };
    let documents = pinion_bson::values(batch).map(|value| match value {
        RawBsonRef::Document(document) => Ok(document.to_owned()),
        _ => Err(malformed()),
    });
    Ok(Batch {
        documents: documents.collect::<Result<_>>()?,
        cursor: id,
    })
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn what_has_failed() {
        let code = |reply: RawDocumentBuf| check(&reply).map_or_else(|error| error.code.0, |()| 0);
        assert_eq!(code(rawdoc! { "ok": 1.0 }), 0);
        assert_eq!(code(rawdoc! { "ok": 0.0, "code": 20, "errmsg": "x" }), 20);
        assert_eq!(code(rawdoc! { "ok": 0.0 }), 8);
        let statement = rawdoc! { "ok": 1, "writeErrors": [{ "index": 0, "code": 11000 }] };
        assert_eq!(code(statement), 11_000);
        let concern = rawdoc! { "ok": 1, "writeConcernError": { "code": 64, "errmsg": "t" } };
        assert_eq!(code(concern), 64);
    }

    #[test]
    fn batches() {
        let reply = |id: i64| rawdoc! { "cursor": { "id": id, "firstBatch": [{ "_id": 1 }] } };
        assert_eq!(only_batch(&reply(0)).expect("one"), [rawdoc! { "_id": 1 }]);
        assert!(only_batch(&reply(5)).is_err());
        assert!(only_batch(&rawdoc! { "ok": 1 }).is_err());
    }
}
