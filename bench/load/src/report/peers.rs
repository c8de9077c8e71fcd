//! The page of a comparison of servers.

use std::fmt::Write;

use serde_json::Value;

use super::chart::{escape, short};
use super::page::{STYLE, machine, number, run, text};

/// Columns of the figures: title, and name in the result.
const COLUMNS: &[(&str, &str)] = &[
    ("per second", "per_sec"),
    ("p50, us", "p50_us"),
    ("p99, us", "p99_us"),
    ("p99.9, us", "p99.9_us"),
    ("server CPU, us", "server_cpu_us_per_operation"),
    ("client CPU, us", "client_cpu_us_per_operation"),
    ("checkpoints", "checkpoints"),
    ("others' cores", "others_cores"),
];

/// The whole page.
pub fn html(result: &Value) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>pinion-bench peers</title><style>{STYLE}</style>\
         <h1>Servers beside each other</h1><pre>{}</pre><p>{} documents of 1 KB; medians of {} rounds of {} s in turns; \
         in parentheses the least and the most of the rounds. A ratio is Pinion's figure over the peer's.</p>",
        text(&result["command"]),
        text(&result["records"]),
        text(&result["rounds"]),
        text(&result["duration_secs"])
    );
    for why in result["invalid"].as_array().into_iter().flatten() {
        let _ = write!(out, "<p class=\"invalid\">INVALID: {}</p>", text(why));
    }
    targets(&mut out, result);
    figures(&mut out, result);
    servers(&mut out, result);
    machine(&mut out, &result["machine"]);
    out.push_str("<h1>The last round's runs</h1>");
    for one in result["last_round"].as_array().into_iter().flatten() {
        let name = format!(
            "{} {}",
            one["case"].as_str().unwrap_or_default(),
            one["server"].as_str().unwrap_or_default()
        );
        run(&mut out, &name, &one["result"]);
    }
    out + "</html>\n"
}

fn spread(value: &Value) -> String {
    match (
        number(value, &["median"]),
        number(value, &["min"]),
        number(value, &["max"]),
    ) {
        (Some(median), Some(min), Some(max)) => {
            format!("{} ({}-{})", short(median), short(min), short(max))
        }
        _ => String::new(),
    }
}

fn targets(out: &mut String, result: &Value) {
    out.push_str("<h2>Targets</h2><table><tr><th></th><th>ratio</th><th>asked</th><th></th></tr>");
    for target in result["targets"].as_array().into_iter().flatten() {
        let sign = if target["at_most"] == true {
            "at most"
        } else {
            "at least"
        };
        let class = match target["verdict"].as_str() {
            Some("reached") => "",
            _ => " class=\"invalid\"",
        };
        let by_cpu = if target["by_cpu"] == true {
            " by CPU for each operation: the client's core was full"
        } else {
            ""
        };
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{sign} {}</td><td{class}>{}{by_cpu}</td></tr>",
            text(&target["what"]),
            spread(&target["ratio"]),
            number(target, &["bound"]).map_or(String::new(), short),
            text(&target["verdict"])
        );
    }
    out.push_str("</table>");
}

fn figures(out: &mut String, result: &Value) {
    out.push_str("<h2>Figures</h2><table><tr><th>case</th><th>server</th>");
    for (title, _) in COLUMNS {
        let _ = write!(out, "<th>{title}</th>");
    }
    out.push_str("<th>limit</th><th>ratio</th></tr>");
    for row in result["figures"].as_array().into_iter().flatten() {
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td>",
            text(&row["case"]),
            text(&row["server"])
        );
        for (_, name) in COLUMNS {
            let median = number(row, &[*name, "median"]);
            let _ = write!(out, "<td>{}</td>", median.map_or(String::new(), short));
        }
        let by_cpu = if row["ratio_by_cpu"] == true {
            " of CPU"
        } else {
            ""
        };
        let _ = write!(
            out,
            "<td>{}</td><td>{}{by_cpu}</td></tr>",
            text(&row["limit"]),
            spread(&row["ratio"])
        );
    }
    out.push_str("</table>");
    if result["raw_disk_write_us"].is_object() {
        let _ = write!(
            out,
            "<p>One durable write of 4 KiB to the raw disk: {} us</p>",
            spread(&result["raw_disk_write_us"])
        );
    }
    for (server, bytes) in result["idle_bytes_per_connection"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let _ = write!(
            out,
            "<p>{} idle connections: {} grows by {} bytes for each</p>",
            text(&result["idle_connections"]),
            escape(server),
            spread(bytes)
        );
    }
}

fn servers(out: &mut String, result: &Value) {
    out.push_str("<h2>Servers and what an acknowledgement survives</h2>");
    for server in result["servers"].as_array().into_iter().flatten() {
        let command: Vec<_> = server["command"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let _ = write!(
            out,
            "<p><b>{}</b>: {}<br>default: {}<br>journaled: {}</p><pre>{}</pre>",
            text(&server["server"]),
            text(&server["version"]),
            text(&server["survives_default"]),
            text(&server["survives_journaled"]),
            escape(&command.join(" "))
        );
    }
}
