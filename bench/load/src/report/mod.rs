//! `pinion-bench report`: results of runs as one page that needs nothing else.

mod chart;
mod page;
mod peers;

use clap::ArgMatches;
use serde_json::Value;

use crate::run::FORMAT;

/// Reads the results and writes the page.
pub fn command(matches: &ArgMatches) -> Result<(), String> {
    let mut results = Vec::new();
    let mut comparisons = 0;
    for file in matches.get_many::<String>("result").into_iter().flatten() {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
        let comparison = value["format"] == crate::peers::FORMAT;
        if !comparison && value["format"] != FORMAT {
            return Err(format!(
                "{file} is no result of pinion-bench run ({FORMAT}) or peers ({})",
                crate::peers::FORMAT
            ));
        }
        comparisons += usize::from(comparison);
        let stem = std::path::Path::new(file)
            .file_stem()
            .map_or(String::new(), |s| s.to_string_lossy().into_owned());
        results.push((stem, value));
    }
    let out = matches
        .get_one::<String>("output")
        .map_or("report.html", String::as_str);
    let page = match (comparisons, results.as_slice()) {
        (0, results) => page::html(results),
        (1, [(_, comparison)]) => peers::html(comparison),
        _ => return Err("the result of peers makes a page of its own".into()),
    };
    std::fs::write(out, page).map_err(|error| format!("{out}: {error}"))
}

#[cfg(test)]
mod tests;
