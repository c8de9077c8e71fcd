//! Transactions whose entry does not fit into one: their entries stand one behind the other in the
//! log, each names the one before it, and all take place at the time of the last.

use pinion_bson::{RawBsonRef, RawDocument};

/// Which part of a transaction an `applyOps` entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// The first of several.
    First,
    /// More come, and some came before.
    Middle,
    /// The last of several.
    Last,
}

/// Which part an entry is; `None` if it is no part: it stands alone.
pub(crate) fn piece_of(entry: &RawDocument) -> Option<Piece> {
    let Some(RawBsonRef::Document(o)) = pinion_bson::get(entry, "o") else {
        return None;
    };
    pinion_bson::get(o, "applyOps")?;
    pinion_bson::get(entry, "txnNumber")?;
    let is_partial = pinion_bson::get(o, "partialTxn") == Some(RawBsonRef::Boolean(true));
    let previous = match pinion_bson::get(entry, "prevOpTime") {
        Some(RawBsonRef::Document(previous)) => pinion_bson::get(previous, "ts"),
        _ => None,
    };
    let has_previous =
        matches!(previous, Some(RawBsonRef::Timestamp(ts)) if ts.time > 0 || ts.increment > 0);
    match (has_previous, is_partial) {
        (false, true) => Some(Piece::First),
        (true, true) => Some(Piece::Middle),
        (true, false) => Some(Piece::Last),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    #[test]
    fn parts_say_which_they_are() {
        let ts = |time| pinion_bson::Timestamp { time, increment: 0 };
        let entry = |o: RawDocumentBuf, previous: u32| rawdoc! { "o": o, "txnNumber": 1i64, "prevOpTime": { "ts": ts(previous) } };
        let ops = || rawdoc! { "applyOps": [] };
        let partial = || rawdoc! { "applyOps": [], "partialTxn": true };
        let check = |entry: RawDocumentBuf, expected| assert_eq!(piece_of(&entry), expected);
        check(entry(ops(), 0), None);
        check(entry(partial(), 0), Some(Piece::First));
        check(entry(partial(), 5), Some(Piece::Middle));
        check(entry(ops(), 5), Some(Piece::Last));
        check(rawdoc! { "o": partial() }, None);
        check(rawdoc! { "o": { "_id": 1 }, "txnNumber": 1i64 }, None);
    }
}
