//! `profile`: a router writes no profile, and can be asked for the threshold of slow operations.

use pinion_service::parameters::server_counters;
use pinion_wire::idl::{Types, missing_field};
use pinion_wire::{Error, Invocation, Reply, Result};

/// `profile`.
pub(super) async fn profile(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let level = match reader.opt_i64("profile")? {
        Some(level) => level,
        None => return Err(missing_field(reader.path().field("profile"))),
    };
    let slow_ms = reader.opt_i64("slowms")?;
    reader.opt_f64("sampleRate")?;
    reader.unsupported_unless_empty("filter", Types::OBJECT)?;
    reader.finish()?;
    if level > 0 {
        return Err(Error::bad_value(
            "Profiling is not permitted on mongoS: the 'level' field passed to setProfiling must be 0",
        ));
    }
    let before = server_counters().slow_ms.get();
    if let (Some(slow_ms), 0) = (slow_ms, level) {
        let slow_ms = u64::try_from(slow_ms).unwrap_or(0);
        pinion_runtime::on_all_cores(move |_| async move {
            server_counters().slow_ms.set(slow_ms);
        })
        .await;
    }
    let mut out = Reply::new();
    out.append("was", 0i32)
        .append("slowms", before as i32)
        .append("sampleRate", 1.0);
    Ok(out)
}
