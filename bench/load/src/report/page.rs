//! The page: a comparison, the curves, and what each run was.

use std::fmt::Write;

use serde_json::{Value, json};

use super::chart::{Axis, COLOURS, Line, Mark, chart, escape, short};

pub const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}svg text{font-size:11px;fill:#444}\
.grid{stroke:#e4e4e4;stroke-width:1}pre{background:#f6f6f6;padding:.7em;white-space:pre-wrap;word-break:break-all}\
.key{display:inline-block;width:1em;height:.7em;margin-right:.4em}.invalid{color:#b00020;font-weight:600}";

/// The rows of the comparison: name, path in the result, and what it is multiplied by.
const ROWS: &[(&str, &[&str], f64)] = &[
    ("operations a second", &["per_sec"], 1.0),
    ("operations", &["operations"], 1.0),
    ("p50, us", &["latency", "p50_us"], 1.0),
    ("p90, us", &["latency", "p90_us"], 1.0),
    ("p99, us", &["latency", "p99_us"], 1.0),
    ("p99.9, us", &["latency", "p99.9_us"], 1.0),
    ("p99.99, us", &["latency", "p99.99_us"], 1.0),
    ("max, us", &["latency", "max_us"], 1.0),
    (
        "client CPU for each operation, us",
        &["client_cpu_us_per_operation"],
        1.0,
    ),
    (
        "server CPU for each operation, us",
        &["server_cpu_us_per_operation"],
        1.0,
    ),
    (
        "server resident, MiB",
        &["server_resident_bytes"],
        1.0 / 1_048_576.0,
    ),
    ("errors", &["errors"], 1.0),
    ("misses", &["misses"], 1.0),
    ("wrong replies", &["wrong"], 1.0),
    ("generator's lag p99.9, us", &["lag", "p99.9_us"], 1.0),
    ("replies unread p99.9, us", &["unread", "p99.9_us"], 1.0),
];

pub fn number(value: &Value, path: &[&str]) -> Option<f64> {
    path.iter()
        .fold(value, |value, name| &value[*name])
        .as_f64()
}

pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => escape(text),
        Value::Null => "unknown".into(),
        other => escape(&other.to_string()),
    }
}

/// The facts of the machine.
pub fn machine(out: &mut String, facts: &Value) {
    out.push_str("<h2>Machine</h2><table>");
    rows(out, facts);
    out.push_str("</table>");
}

/// A row for each field.
fn rows(out: &mut String, fields: &Value) {
    for (title, value) in fields.as_object().into_iter().flatten() {
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td></tr>",
            escape(title),
            text(value)
        );
    }
}

/// The whole page.
pub fn html(results: &[(String, Value)]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>pinion-bench</title><style>{STYLE}</style><h1>pinion-bench</h1>"
    );
    comparison(&mut out, results);
    out.push_str("<h2>Latency by percentile</h2>");
    out.push_str(&percentiles(results));
    for (title, field, logarithmic) in [
        ("Operations a second", "per_sec", false),
        ("Latency p99, us", "p99_us", true),
        ("Longest latency, us", "max_us", true),
    ] {
        let _ = write!(out, "<h2>{title} over time</h2>");
        let lines: Vec<Line> = results
            .iter()
            .map(|(name, result)| series(name, result, field))
            .collect();
        let marks: Vec<Mark> = results
            .iter()
            .enumerate()
            .flat_map(|(number, (_, result))| events(number, result))
            .collect();
        let time = Axis {
            title: "seconds",
            logarithmic: false,
            marks: None,
        };
        out.push_str(&chart(
            &lines,
            &time,
            &Axis {
                title,
                logarithmic,
                marks: None,
            },
            &marks,
        ));
    }
    for (name, result) in results {
        run(&mut out, name, result);
    }
    out + "</html>\n"
}

fn comparison(out: &mut String, results: &[(String, Value)]) {
    out.push_str("<table><tr><th></th>");
    for (number, (name, result)) in results.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let _ = write!(
            out,
            "<th><span class=\"key\" style=\"background:{colour}\"></span>{}",
            escape(name)
        );
        if result["valid"] != true {
            out.push_str(" <span class=\"invalid\">invalid</span>");
        }
        out.push_str("</th>");
    }
    // Beside several runs stands how they compare with the first.
    out.push_str("</tr><tr><td>loop</td>");
    for (_, result) in results {
        let _ = write!(out, "<td>{}</td>", text(&result["loop"]));
    }
    out.push_str("</tr>");
    for (title, path, factor) in ROWS {
        if results
            .iter()
            .all(|(_, result)| number(result, path).is_none())
        {
            continue;
        }
        let _ = write!(out, "<tr><td>{title}</td>");
        let first = results.first().and_then(|(_, result)| number(result, path));
        for (place, (_, result)) in results.iter().enumerate() {
            match (number(result, path), first) {
                (None, _) => out.push_str("<td></td>"),
                (Some(value), Some(first)) if place > 0 && first > 0.0 => {
                    let _ = write!(
                        out,
                        "<td>{} ({:.2}x)</td>",
                        short(value * factor),
                        value / first
                    );
                }
                (Some(value), _) => {
                    let _ = write!(out, "<td>{}</td>", short(value * factor));
                }
            }
        }
        out.push_str("</tr>");
    }
    out.push_str("</table>");
}

/// The axis shows how rare a latency is: each mark is ten times rarer than the one before.
fn percentiles(results: &[(String, Value)]) -> String {
    let rarity = |quantile: f64| -(1.0 - quantile).max(1e-7).log10();
    let lines: Vec<Line> = results
        .iter()
        .map(|(name, result)| Line {
            name: name.clone(),
            points: result["latency_curve_us"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|point| Some((point[0].as_f64()?, point[1].as_f64()?)))
                .filter(|(quantile, _)| *quantile < 1.0)
                .map(|(quantile, us)| (rarity(quantile), us))
                .collect(),
        })
        .collect();
    let marks = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999].map(|quantile| {
        (
            rarity(quantile),
            format!("{}", (quantile * 1e7_f64).round() / 1e5),
        )
    });
    let x = Axis {
        title: "percentile",
        logarithmic: false,
        marks: Some(marks.to_vec()),
    };
    chart(
        &lines,
        &x,
        &Axis {
            title: "latency, us",
            logarithmic: true,
            marks: None,
        },
        &[],
    )
}

/// What the server did while it was measured, in its run's colour.
fn events(run: usize, result: &Value) -> Vec<Mark> {
    let end = number(result, &["elapsed_secs"]).unwrap_or(f64::MAX);
    let listed = result["events"].as_array().into_iter().flatten();
    listed
        .filter_map(|event| {
            let at = event["at_secs"].as_f64().filter(|at| *at <= end)?;
            let took = event["took_ms"].as_f64();
            let written = event["written_bytes"].as_f64();
            Some(Mark {
                at,
                from: at - took.unwrap_or(0.0) / 1e3,
                colour: COLOURS[run % COLOURS.len()],
                text: format!(
                    "{} at {at:.1} s{}{}",
                    event["what"].as_str().unwrap_or_default(),
                    took.map_or(String::new(), |ms| format!(", took {ms:.0} ms")),
                    written.map_or(String::new(), |bytes| format!(
                        ", {:.0} MiB written",
                        bytes / 1_048_576.0
                    ))
                ),
            })
        })
        .collect()
}

fn series(name: &str, result: &Value, field: &str) -> Line {
    let points = result["series"].as_array().into_iter().flatten();
    Line {
        name: name.into(),
        points: points
            .filter_map(|one| Some((one["at_secs"].as_f64()?, one[field].as_f64()?)))
            .collect(),
    }
}

pub fn run(out: &mut String, name: &str, result: &Value) {
    let _ = write!(out, "<h2>{}</h2>", escape(name));
    for why in result["invalid"].as_array().into_iter().flatten() {
        let _ = write!(out, "<p class=\"invalid\">INVALID: {}</p>", text(why));
    }
    let _ = write!(
        out,
        "<p>{} against {}</p><pre>{}</pre><table>",
        text(&result["workload"]),
        text(&result["server"]),
        text(&result["command"])
    );
    rows(out, &result["machine"]);
    rows(out, &result["properties"]);
    if result["seed"].is_u64() {
        rows(out, &json!({"seed": result["seed"]}));
    }
    out.push_str("</table>");
}
