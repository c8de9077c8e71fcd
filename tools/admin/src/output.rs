//! What is printed: lines or JSON to standard output. A reader that goes away is an error, not a
//! panic.

use std::io::{self, BufWriter, Stdout, Write};

use pinion_clock::Timestamp;
use pinion_storage::Problem;
use serde_json::{Value, json};

/// Standard output.
pub struct Output {
    pub json: bool,
    out: BufWriter<Stdout>,
}

impl Output {
    pub fn new(json: bool) -> Output {
        Output {
            json,
            out: BufWriter::new(io::stdout()),
        }
    }

    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.write_all(b"\n")
    }

    pub fn value(&mut self, value: &Value) -> io::Result<()> {
        self.line(&format!("{value:#}"))
    }

    /// The problems, one line each.
    pub fn problems(&mut self, problems: &[Problem]) -> io::Result<()> {
        for problem in problems {
            self.line(&format!("damage: {problem}"))?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A timestamp in extended JSON.
pub fn timestamp(ts: Timestamp) -> Value {
    json!({ "$timestamp": { "t": ts.secs(), "i": ts.inc() } })
}

/// Problems as JSON.
pub fn problems(problems: &[Problem]) -> Value {
    let problem = |problem: &Problem| json!({ "file": problem.file.display().to_string(), "offset": problem.offset, "what": problem.what });
    Value::Array(problems.iter().map(problem).collect())
}

/// Bytes in the unit that suits them.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// Aligned columns; the last is not padded.
pub fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ if column + 1 == columns => cell.clone(),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
