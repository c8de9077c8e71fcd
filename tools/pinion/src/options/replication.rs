//! The options of a member of a replica set.

use pinion_process::options::{OptionError, Reader};
use pinion_replication_node::{MemberOptions, PlantedFault};
use pinion_runtime::Duration;

const MIN_OPLOG_MB: u64 = 1;
/// A petabyte, as mongod's limit of `replSetResizeOplog`.
const MAX_OPLOG_MB: u64 = 1 << 30;
/// A hundred years.
const MAX_OPLOG_HOURS: f64 = 876_000.0;

pub(super) fn replication(reader: &Reader) -> Result<Option<MemberOptions>, OptionError> {
    let oplog_mb = reader.int("oplogSize", MIN_OPLOG_MB, MAX_OPLOG_MB)?;
    let hours = reader.last("oplogMinRetentionHours");
    let oplog_min_hours = match &hours {
        None => 0.0,
        Some(value) => match value.parse::<f64>() {
            Ok(hours) if (0.0..=MAX_OPLOG_HOURS).contains(&hours) => hours,
            _ => {
                return Err(OptionError(format!(
                    "Invalid value '{value}' for --oplogMinRetentionHours: expected hours from 0 to {MAX_OPLOG_HOURS}"
                )));
            }
        },
    };
    let Some(set_name) = reader.last("replSet") else {
        let needless = [
            ("oplogSize", oplog_mb.is_some()),
            ("oplogMinRetentionHours", hours.is_some()),
        ];
        return match needless.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(OptionError(format!(
                "--{name} needs --replSet: a node on its own keeps no more log than it recovers from"
            ))),
            None => Ok(None),
        };
    };
    if set_name.is_empty() || set_name.contains('/') {
        return Err(OptionError(format!(
            "Invalid value '{set_name}' for --replSet: expected the name of a set, without its members"
        )));
    }
    Ok(Some(MemberOptions {
        set_name,
        oplog_bytes: oplog_mb.map(|mb| mb << 20),
        oplog_min_age: Duration::from_secs_f64(oplog_min_hours * 3600.0),
        planted_fault: PlantedFault::None,
    }))
}
