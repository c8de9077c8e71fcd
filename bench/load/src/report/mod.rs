//! `pinion-bench report`: results of runs as one page that needs nothing else.

mod chart;
mod engines;
mod page;
mod peers;

use clap::ArgMatches;
use serde_json::Value;

use crate::run::FORMAT;

/// Reads the results and writes the page.
pub fn command(matches: &ArgMatches) -> Result<(), String> {
    let mut results = Vec::new();
    for file in matches.get_many::<String>("result").into_iter().flatten() {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
        let stem = std::path::Path::new(file)
            .file_stem()
            .map_or(String::new(), |s| s.to_string_lossy().into_owned());
        results.push((stem, value));
    }
    let out = matches
        .get_one::<String>("output")
        .map_or("report.html", String::as_str);
    let page = page_of(&results)?;
    std::fs::write(out, page).map_err(|error| format!("{out}: {error}"))
}

/// Runs share a page; a comparison of servers or of engines has one of its own.
fn page_of(results: &[(String, Value)]) -> Result<String, String> {
    if let [(_, result)] = results {
        if result["format"] == crate::peers::FORMAT {
            return Ok(peers::html(result));
        }
        if result["format"] == engines::FORMAT {
            return Ok(engines::html(result));
        }
    }
    match results.iter().find(|(_, one)| one["format"] != FORMAT) {
        None => Ok(page::html(results)),
        Some((name, one))
            if one["format"] == crate::peers::FORMAT || one["format"] == engines::FORMAT =>
        {
            Err(format!("{name} compares: it makes a page of its own"))
        }
        Some((name, _)) => Err(format!(
            "{name} is no result of pinion-bench run ({FORMAT}), peers ({}) or engine ({})",
            crate::peers::FORMAT,
            engines::FORMAT
        )),
    }
}

#[cfg(test)]
mod tests;
