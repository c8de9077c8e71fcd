//! Times and identifiers between their BSON form and the types of this crate.

use pinion_bson::{Binary, BinarySubtype, DocBuilder, RawBson, RawBsonRef, Uuid};
use pinion_clock::Timestamp;

/// A time as BSON has it.
pub(crate) fn bson_time(time: Timestamp) -> pinion_bson::Timestamp {
    pinion_bson::Timestamp {
        time: time.secs(),
        increment: time.inc(),
    }
}

/// A time of BSON as one that is ordered.
pub(crate) fn clock_time(time: pinion_bson::Timestamp) -> Timestamp {
    Timestamp::new(time.time, time.increment)
}

pub(crate) fn append_time(out: &mut DocBuilder, name: &str, time: Timestamp) {
    out.append(name, bson_time(time));
}

pub(crate) fn append_uuid(out: &mut DocBuilder, name: &str, uuid: Uuid) {
    let value = RawBson::Binary(Binary {
        subtype: BinarySubtype::Uuid,
        bytes: uuid.bytes().to_vec(),
    });
    out.append_raw(name, value.as_raw_bson_ref());
}

/// A date of BSON, in milliseconds since the Unix epoch.
pub(crate) fn date(ms: i64) -> RawBsonRef<'static> {
    RawBsonRef::DateTime(pinion_bson::DateTime::from_millis(ms))
}
