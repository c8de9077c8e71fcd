//! The page of a comparison of storage engines.

use std::fmt::Write;

use serde_json::Value;

use super::chart::{escape, short};
use super::page::{STYLE, machine, number, text};

/// What `pinion-bench engine` writes; `bench/engine/src/compare.rs` has the same.
pub const FORMAT: &str = "pinion-bench-engine-1";

const MIB: f64 = 1_048_576.0;

/// The whole page.
pub fn html(result: &Value) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>pinion-bench engine</title><style>{STYLE}</style>\
         <h1>Storage engines beside each other</h1><pre>{}</pre><p>Medians of the rounds, in which the engines take turns; in \
         parentheses the least and the most. A ratio is the first engine's rate over this one's, round by round.</p>",
        escape(&words(&result["command"]))
    );
    for phase in result["phases"].as_array().into_iter().flatten() {
        self::phase(&mut out, phase);
    }
    out.push_str("<h2>Engines</h2>");
    for engine in result["engines"].as_array().into_iter().flatten() {
        let _ = write!(
            out,
            "<p><b>{}</b>: {}; {}</p>",
            text(&engine["engine"]),
            text(&engine["version"]),
            text(&engine["about"])
        );
    }
    for missing in result["not_measured"].as_array().into_iter().flatten() {
        let _ = write!(
            out,
            "<p class=\"invalid\">{} was not measured: {}</p>",
            text(&missing["engine"]),
            text(&missing["why"])
        );
    }
    machine(&mut out, &result["machine"]);
    out + "</html>\n"
}

fn words(list: &Value) -> String {
    let words: Vec<_> = list
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    words.join(" ")
}

fn phase(out: &mut String, phase: &Value) {
    let _ = write!(
        out,
        "<h2>{}</h2><p>{}</p><table><tr><th>engine</th><th>per second</th><th>acknowledged per second</th><th>ratio</th>\
         <th>CPU, us</th><th>bytes written by byte</th><th>space, MiB</th><th>resident, MiB</th></tr>",
        text(&phase["phase"]),
        text(&phase["what"])
    );
    for engine in phase["engines"].as_array().into_iter().flatten() {
        let last = engine["rounds"].as_array().and_then(|rounds| rounds.last());
        let mib = |name: &str| {
            let bytes = last.and_then(|round| number(round, &[name]));
            bytes.map_or(String::new(), |bytes| short(bytes / MIB))
        };
        let median = |name: &str| number(engine, &[name, "median"]).map_or(String::new(), short);
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            text(&engine["engine"]),
            spread(&engine["rate"]),
            median("acknowledged_rate"),
            spread(&engine["ratio"]["rate"]),
            median("cpu_us_per_operation"),
            median("write_amplification"),
            mib("space_bytes"),
            mib("resident_bytes")
        );
    }
    out.push_str("</table>");
}

fn spread(value: &Value) -> String {
    let of = |name: &str| number(value, &[name]).map_or(String::new(), short);
    format!("{} ({}-{})", of("median"), of("least"), of("greatest"))
}
