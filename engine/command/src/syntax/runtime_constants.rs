//! `runtimeConstants`, which mongos of MongoDB 4.4 sends with commands: the times that all shards
//! take for the one operation.

use pinion_bson::{RawBsonRef, Timestamp};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Types, missing_field};

/// The values of `$$NOW` and `$$CLUSTER_TIME` that a command brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeConstants {
    /// Milliseconds since 1970.
    pub now_ms: i64,
    /// None where the sender knows no cluster time.
    pub cluster_time: Option<Timestamp>,
}

impl RuntimeConstants {
    /// Reads the field `runtimeConstants`, if there is one. Only a shard behind mongos of MongoDB
    /// 4.4 has it.
    ///
    /// # Errors
    /// A part of it is missing, not known or of a wrong type; it is for JavaScript, which this
    /// server does not run.
    pub fn read(reader: &FieldReader<'_, '_>) -> Result<Option<RuntimeConstants>> {
        let Some(constants) = reader.opt_object("runtimeConstants")? else {
            return Ok(None);
        };
        let missing = |name| missing_field(constants.path().field(name));
        let now_ms = constants.opt_date_ms("localNow")?;
        let cluster_time = match constants.value("clusterTime") {
            None => return Err(missing("clusterTime")),
            Some(RawBsonRef::Timestamp(time)) => time,
            Some(other) => {
                return Err(constants.wrong_type("clusterTime", other, Types::TIMESTAMP));
            }
        };
        for (name, expected) in [("jsScope", Types::OBJECT), ("isMapReduce", Types::BOOL)] {
            constants.unsupported_unless_empty(name, expected)?;
        }
        constants.finish()?;
        let is_known = cluster_time.time > 0 || cluster_time.increment > 0;
        Ok(Some(RuntimeConstants {
            now_ms: now_ms.ok_or_else(|| missing("localNow"))?,
            cluster_time: is_known.then_some(cluster_time),
        }))
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{DateTime, RawDocumentBuf, rawdoc};
    use pinion_wire::idl::CommandReader;

    use super::*;

    fn time(time: u32) -> Timestamp {
        Timestamp { time, increment: 0 }
    }

    #[track_caller]
    fn check(constants: RawDocumentBuf, expected: std::result::Result<RuntimeConstants, i32>) {
        let command = rawdoc! { "update": "c", "runtimeConstants": constants };
        let reader = CommandReader::new("update", &command).expect("a command");
        let found = RuntimeConstants::read(&reader);
        let found = found.map(|found| found.expect("it is there"));
        assert_eq!(found.map_err(|error| error.code.0), expected, "{command:?}");
    }

    #[test]
    fn times_that_a_command_brings() {
        let now = || DateTime::from_millis(7);
        let read = |cluster_time| RuntimeConstants {
            now_ms: 7,
            cluster_time,
        };
        check(
            rawdoc! { "localNow": now(), "clusterTime": time(3) },
            Ok(read(Some(time(3)))),
        );
        check(
            rawdoc! { "localNow": now(), "clusterTime": time(0) },
            Ok(read(None)),
        );
        check(
            rawdoc! { "localNow": now(), "clusterTime": time(3), "jsScope": {}, "isMapReduce": false },
            Ok(read(Some(time(3)))),
        );
        check(
            rawdoc! { "localNow": now(), "clusterTime": time(3), "isMapReduce": true },
            Err(238),
        );
        check(rawdoc! { "localNow": now() }, Err(40414));
        check(rawdoc! { "clusterTime": time(3) }, Err(40414));
        check(rawdoc! { "localNow": 7, "clusterTime": time(3) }, Err(14));
        check(
            rawdoc! { "localNow": now(), "clusterTime": time(3), "x": 1 },
            Err(40415),
        );
        let command = rawdoc! { "update": "c" };
        let reader = CommandReader::new("update", &command).expect("a command");
        assert_eq!(RuntimeConstants::read(&reader).ok(), Some(None));
    }
}
