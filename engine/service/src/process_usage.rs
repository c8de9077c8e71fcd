//! Sections of `serverStatus` about the process: the same of a node and of a router.

use pinion_bson::DocBuilder;

use crate::options::ProcessUsage;

/// Gives the process's use of the machine; set by the binary, because a simulated process has none
/// of its own.
pub struct ProcessSource(pub Box<dyn Fn() -> ProcessUsage>);

fn process_usage() -> Option<ProcessUsage> {
    let source = pinion_runtime::try_core_local::<ProcessSource>()?;
    Some((source.0)())
}

/// `mem`, where it is a process of its own.
pub fn append_memory(out: &mut DocBuilder) {
    let Some(usage) = process_usage() else {
        return;
    };
    out.start_document("mem")
        .append("bits", 64i32)
        .append("resident", (usage.resident_bytes >> 20) as i32)
        .append("virtual", (usage.virtual_bytes >> 20) as i32)
        .append("supported", true)
        .end();
}

/// `extra_info`, where it is a process of its own.
pub fn append_extra_info(out: &mut DocBuilder) {
    const BLOCK_BYTES: u64 = 512;
    let Some(usage) = process_usage() else {
        return;
    };
    out.start_document("extra_info")
        .append("note", "fields vary by platform");
    for (name, value) in [
        ("user_time_us", usage.user_us),
        ("system_time_us", usage.system_us),
        ("maximum_resident_set_kb", usage.max_resident_bytes >> 10),
        ("input_blocks", usage.read_bytes / BLOCK_BYTES),
        ("output_blocks", usage.written_bytes / BLOCK_BYTES),
        ("page_reclaims", usage.minor_faults),
        ("page_faults", usage.major_faults),
    ] {
        out.append(name, value as i64);
    }
    out.end();
}
