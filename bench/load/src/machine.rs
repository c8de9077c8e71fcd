//! Facts about the machine that a figure means nothing without.

use serde_json::{Value, json};

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Processor, memory, kernel and how busy the machine was when the run began.
pub fn facts() -> Value {
    let processor = read("/proc/cpuinfo").unwrap_or_default();
    let memory = read("/proc/meminfo").unwrap_or_default();
    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    json!({
        "processor": field(&processor, "model name"),
        "processors": std::thread::available_parallelism().map_or(0, |count| count.get()),
        "memory": field(&memory, "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clocksource": read(clock),
        "load_average": read("/proc/loadavg"),
    })
}
