//! The reply to a batch that was sent in parts.

use std::collections::BTreeMap;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_sharding_protocol::ShardId;
use pinion_wire::idl::{Namespace, i32_clamped, i64_exact};
use pinion_wire::{Error, ErrorCode, Reply};

use crate::reply::append_concern_error;

/// The numbers that a client has given its statements.
pub(crate) fn statement_numbers(command: &RawDocument) -> Option<Vec<i32>> {
    match pinion_bson::get(command, "stmtIds") {
        Some(RawBsonRef::Array(ids)) => pinion_bson::values(ids).map(|id| id.as_i32()).collect(),
        _ => None,
    }
}

/// Appends the numbers of some statements: the client's, or their places in its command.
pub(crate) fn append_numbers(out: &mut DocBuilder, numbers: Option<&[i32]>, which: &[usize]) {
    out.start_array("stmtIds");
    for at in which {
        let number = numbers.and_then(|numbers| numbers.get(*at).copied());
        out.push(number.unwrap_or(*at as i32));
    }
    out.end();
}

/// Whether a shard has refused a statement since its namespace has another place than the sender
/// thought.
pub(crate) fn is_stale(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::STALE_DB_VERSION | ErrorCode::STALE_CONFIG | ErrorCode::STALE_EPOCH
    )
}

/// The errors of a batch: place, code, and the whole entry.
pub(crate) fn errors_of(
    reply: &RawDocument,
) -> impl Iterator<Item = (usize, ErrorCode, &RawDocument)> {
    let errors = pinion_bson::get(reply, "writeErrors").and_then(|errors| errors.as_array());
    let errors = errors.into_iter().flat_map(pinion_bson::values);
    errors.filter_map(|error| {
        let error = error.as_document()?;
        let at = pinion_bson::get(error, "index").and_then(i64_exact)?;
        let code = pinion_bson::get(error, "code").and_then(i64_exact)?;
        Some((usize::try_from(at).ok()?, ErrorCode(code as i32), error))
    })
}

/// The code of the first error of a statement in the reply to a command of several.
pub(crate) fn first_error_of(reply: &RawDocument) -> Option<ErrorCode> {
    if let Some(errors) = pinion_bson::get(reply, "writeErrors") {
        let first = errors
            .as_array()
            .and_then(|all| pinion_bson::values(all).next());
        let code = first.and_then(|error| pinion_bson::get(error.as_document()?, "code"));
        return Some(
            code.and_then(i32_clamped)
                .map_or(ErrorCode::UNKNOWN_ERROR, ErrorCode),
        );
    }
    // That of a `bulkWrite`.
    if number_of(reply, "nErrors") == 0 {
        return None;
    }
    let results = pinion_bson::get_path(reply, "cursor.firstBatch");
    let results = results.and_then(|results| results.as_array());
    let mut codes = results
        .into_iter()
        .flat_map(pinion_bson::values)
        .filter_map(|result| {
            let code = pinion_bson::get(result.as_document()?, "code")?;
            i32_clamped(code).map(ErrorCode)
        });
    Some(codes.next().unwrap_or(ErrorCode::UNKNOWN_ERROR))
}

/// A number of a reply; 0 where it has none, as that of a write that is not acknowledged.
pub(crate) fn number_of(reply: &RawDocument, name: &str) -> i64 {
    let number = pinion_bson::get(reply, name).and_then(i64_exact);
    number.unwrap_or(0)
}

/// The error in place of the one by which a shard says that a document would belong to another one.
pub(crate) fn owner_would_change(ns: &Namespace) -> Error {
    Error::new(
        ErrorCode::COMMAND_NOT_SUPPORTED,
        format!(
            "an update of the sharded collection {ns} by which a document's owner changes to another shard is not supported"
        ),
    )
}

/// The reply to a batch of which parts were sent one after another, and to several shards.
#[derive(Default)]
pub(crate) struct MergedReply {
    n: i64,
    n_modified: Option<i64>,
    upserted: BTreeMap<usize, RawDocumentBuf>,
    /// Of each statement those of all its shards.
    errors: BTreeMap<usize, Vec<RawDocumentBuf>>,
    retried: Vec<i32>,
    /// With the shards whose they are.
    concern_errors: Vec<(Option<ShardId>, RawDocumentBuf)>,
    parts: usize,
}

impl MergedReply {
    /// The reply to updates, which also says how many documents they have changed.
    pub(crate) fn of_updates() -> MergedReply {
        MergedReply {
            n_modified: Some(0),
            ..MergedReply::default()
        }
    }

    /// Nothing was executed, for all that is known, and no statement has failed.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts == 0 && self.errors.is_empty()
    }

    /// How much it says: it grows with each statement that was executed, or has failed.
    pub(crate) fn progress(&self) -> usize {
        self.parts + self.errors.len()
    }

    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    pub(crate) fn has_failed(&self, place: usize) -> bool {
        self.errors.contains_key(&place)
    }

    /// Adds the reply to some statements. What was refused and is sent again is no error of it.
    pub(crate) fn add(
        &mut self,
        (ns, shard): (&Namespace, Option<&ShardId>),
        reply: &RawDocument,
        sent: &[usize],
        again: &[usize],
    ) {
        self.parts += usize::from(again.len() < sent.len());
        self.n += number_of(reply, "n");
        if let Some(n) = pinion_bson::get(reply, "nModified").and_then(i64_exact) {
            *self.n_modified.get_or_insert(0) += n;
        }
        for (at, code, error) in errors_of(reply) {
            let Some(place) = sent.get(at).filter(|place| !again.contains(place)) else {
                continue;
            };
            match code {
                ErrorCode::WOULD_CHANGE_OWNING_SHARD => {
                    self.fail(&[*place], &owner_would_change(ns))
                }
                _ => self
                    .errors
                    .entry(*place)
                    .or_default()
                    .push(error.to_owned()),
            }
        }
        let list = |name| match pinion_bson::get(reply, name) {
            Some(RawBsonRef::Array(list)) => Some(list),
            _ => None,
        };
        for upserted in list("upserted").into_iter().flat_map(pinion_bson::values) {
            let Some(upserted) = upserted.as_document() else {
                continue;
            };
            let at = pinion_bson::get(upserted, "index").and_then(i64_exact);
            let place = at.and_then(|at| sent.get(usize::try_from(at).ok()?));
            if let Some(place) = place {
                self.upserted.insert(*place, with_index(upserted, *place));
            }
        }
        let retried = list("retriedStmtIds");
        let retried = retried.into_iter().flat_map(pinion_bson::values);
        self.retried.extend(retried.filter_map(|id| id.as_i32()));
        if let Some(RawBsonRef::Document(error)) = pinion_bson::get(reply, "writeConcernError") {
            let error = error.to_owned();
            self.concern_errors.push((shard.cloned(), error));
        }
    }

    /// Statements that were not executed since their shard did not take them.
    pub(crate) fn fail(&mut self, failed: &[usize], error: &Error) {
        for place in failed {
            let mut out = DocBuilder::new();
            out.append("code", error.code.0)
                .append("errmsg", error.message.as_str());
            self.errors.entry(*place).or_default().push(out.finish());
        }
    }

    pub(crate) fn finish(self) -> Reply {
        let mut out = Reply::new();
        out.append("n", self.n as i32);
        if let Some(n) = self.n_modified {
            out.append("nModified", n as i32);
        }
        if !self.upserted.is_empty() {
            out.start_array("upserted");
            for entry in self.upserted.values() {
                out.push(&**entry);
            }
            out.end();
        }
        if !self.errors.is_empty() {
            out.start_array("writeErrors");
            for (place, errors) in &self.errors {
                append_error(&mut out, *place, errors);
            }
            out.end();
        }
        if let Some(error) = merged_concern_error(&self.concern_errors) {
            append_concern_error(&mut out, &error);
        }
        if !self.retried.is_empty() {
            out.start_array("retriedStmtIds");
            for id in self.retried {
                out.push(id);
            }
            out.end();
        }
        out
    }
}

/// Appends the one error of a statement: that of the first shard, where all have failed alike.
fn append_error(out: &mut DocBuilder, place: usize, errors: &[RawDocumentBuf]) {
    let code = |error: &RawDocumentBuf| pinion_bson::get(error, "code").and_then(i64_exact);
    if let [first, others @ ..] = errors
        && others.iter().all(|other| code(other) == code(first))
    {
        out.push(&*with_index(first, place));
        return;
    }
    let text = |error: &RawDocumentBuf| {
        let text = pinion_bson::get(error, "errmsg").and_then(|text| text.as_str());
        text.unwrap_or_default().to_owned()
    };
    let texts: Vec<String> = errors.iter().map(text).collect();
    let message = format!("multiple errors for op : {}", texts.join(" :: and :: "));
    out.push_document()
        .append("index", place as i32)
        .append("code", ErrorCode::MULTIPLE_ERRORS_OCCURRED.0)
        .append("errmsg", message.as_str());
    out.start_document("errInfo").start_array("causedBy");
    for error in errors {
        out.push(&*with_index(error, place));
    }
    out.end().end().end();
}

/// The one error of several write concerns that were not fulfilled: the first one's code, and the
/// texts of all.
pub(crate) fn merged_concern_error(
    errors: &[(Option<ShardId>, RawDocumentBuf)],
) -> Option<RawDocumentBuf> {
    let (_, first) = errors.first()?;
    if errors.len() == 1 {
        return Some(first.clone());
    }
    let texts = errors.iter().map(|(shard, error)| {
        let text = pinion_bson::get(error, "errmsg").and_then(|text| text.as_str());
        let text = text.unwrap_or_default();
        match shard {
            Some(shard) => format!("{text} at {shard}"),
            None => text.to_owned(),
        }
    });
    let texts: Vec<String> = texts.collect();
    let message = format!("multiple errors reported : {}", texts.join(" :: and :: "));
    let mut out = DocBuilder::new();
    for elem in pinion_bson::raw_elements(first) {
        match elem.name {
            b"errmsg" => out.append("errmsg", message.as_str()),
            _ => out.append_elem(&elem),
        };
    }
    Some(out.finish())
}

/// An entry with another place, which stands first.
fn with_index(entry: &RawDocument, place: usize) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("index", place as i32);
    for elem in pinion_bson::raw_elements(entry) {
        if elem.name != b"index" {
            out.append_elem(&elem);
        }
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn the_first_error_of_a_statement() {
        let check = |reply: RawDocumentBuf, expected: Option<i32>| {
            let found = first_error_of(&reply).map(|code| code.0);
            assert_eq!(found, expected, "{reply:?}");
        };
        check(rawdoc! { "n": 1, "ok": 1.0 }, None);
        check(
            rawdoc! { "cursor": { "firstBatch": [] }, "nErrors": 0 },
            None,
        );
        let errors = [
            rawdoc! { "index": 1, "code": 11_000 },
            rawdoc! { "index": 2, "code": 2 },
        ];
        let [first, second] = errors.clone();
        check(
            rawdoc! { "n": 1, "writeErrors": [first, second] },
            Some(11_000),
        );
        let [first, _] = errors;
        let batch = [rawdoc! { "ok": 1.0, "idx": 0 }, first];
        let [done, failed] = batch;
        let bulk = rawdoc! { "cursor": { "firstBatch": [done, failed] }, "nErrors": 1 };
        check(bulk, Some(11_000));
        // It did not fit into the first batch.
        check(
            rawdoc! { "cursor": { "firstBatch": [] }, "nErrors": 1 },
            Some(8),
        );
    }

    #[test]
    fn parts_of_a_batch() {
        let ns = Namespace::new("d", "c").expect("a name");
        let place = (&ns, None);
        let stale = ErrorCode::STALE_DB_VERSION.0;
        let first = rawdoc! {
            "n": 1,
            "nModified": 1,
            "upserted": [{ "index": 0, "_id": "x" }],
            "writeErrors": [
                { "index": 1, "code": 11000, "errmsg": "duplicate" },
                { "index": 2, "code": stale, "errmsg": "old" },
            ],
            "ok": 1.0,
        };
        let second = rawdoc! { "n": 1, "nModified": 0, "retriedStmtIds": [2], "ok": 1.0 };
        let mut merged = MergedReply::default();
        merged.add(place, &first, &[0, 1, 2], &[2]);
        merged.add(place, &second, &[2], &[]);
        let reply = merged.finish();
        let expected = rawdoc! {
            "n": 2,
            "nModified": 1,
            "upserted": [{ "index": 0, "_id": "x" }],
            "writeErrors": [{ "index": 1, "code": 11000, "errmsg": "duplicate" }],
            "retriedStmtIds": [2],
        };
        assert_eq!(crate::reply::document_of(reply), expected);
    }

    #[test]
    fn errors_of_several_shards() {
        let ns = Namespace::new("d", "c").expect("a name");
        let failed = |text: &str, code: i32| {
            rawdoc! {
                "n": 1, "nModified": 1,
                "writeErrors": [{ "index": 0, "code": code, "errmsg": text, "errInfo": { "a": 1 } }],
                "writeConcernError": { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "late" },
            }
        };
        let mut merged = MergedReply::of_updates();
        for (shard, text, code) in [("s0", "one", 2), ("s1", "two", 9)] {
            let reply = failed(text, code);
            merged.add((&ns, Some(&ShardId::new(shard))), &reply, &[7], &[]);
            let alike = rawdoc! { "writeErrors": [{ "index": 0, "code": 14, "errmsg": text }] };
            merged.add((&ns, None), &alike, &[6], &[]);
        }
        let moves = rawdoc! { "writeErrors": [{ "index": 0, "code": 283, "errmsg": "moves" }] };
        merged.add((&ns, None), &moves, &[8], &[]);
        let reply = crate::reply::document_of(merged.finish());
        let owner = owner_would_change(&ns);
        let expected = rawdoc! {
            "n": 2,
            "nModified": 2,
            "writeErrors": [
                { "index": 6, "code": 14, "errmsg": "one" },
                {
                    "index": 7, "code": 65, "errmsg": "multiple errors for op : one :: and :: two",
                    "errInfo": { "causedBy": [
                        { "index": 7, "code": 2, "errmsg": "one", "errInfo": { "a": 1 } },
                        { "index": 7, "code": 9, "errmsg": "two", "errInfo": { "a": 1 } },
                    ] },
                },
                { "index": 8, "code": 115, "errmsg": owner.message },
            ],
            "writeConcernError": {
                "code": 64, "codeName": "WriteConcernFailed",
                "errmsg": "multiple errors reported : late at s0 :: and :: late at s1",
            },
        };
        assert_eq!(reply, expected);
    }
}
