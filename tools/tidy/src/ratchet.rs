//! Limits that not every crate keeps yet. Each has a table of what a crate may still have: the
//! number may only improve, and an improvement is stored with the change that made it.

use std::collections::BTreeMap;

use crate::functions::{assertions, code_without_tests, functions};
use crate::tree::File;
use crate::words;

/// What the crates that are not in the table of a check have: 0.
type Table = &'static [(&'static str, usize)];

/// Uses of the words in `words.rs`.
const WORDS: Table = &[];

/// Lines of comments and documents above `MAX_COLUMNS`.
const WIDE_COMMENTS: Table = &[];

/// Functions above `MAX_FUNCTION_LINES`, without tests.
const LONG_FUNCTIONS: Table = &[
    ("bench/inproc", 1),
    ("bench/load", 14),
    ("core/bson", 3),
    ("core/keystring", 4),
    ("core/runtime", 2),
    ("core/wire", 3),
    ("engine/administration", 1),
    ("engine/apply", 2),
    ("engine/catalog", 4),
    ("engine/exec", 10),
    ("engine/instance", 1),
    ("engine/query", 27),
    ("engine/storage", 14),
    ("replication/node", 2),
    ("tools/pinion", 1),
    ("tools/sim", 2),
];

/// Assertions in a thousand functions, without tests: a floor.
const ASSERTIONS: Table = &[
    ("engine/storage", 197),
    ("replication/node", 34),
    ("replication/protocol", 166),
];

/// The widest line of a comment or document.
const MAX_COLUMNS: usize = 100;

/// The longest function in lines, from `fn` to the closing brace.
const MAX_FUNCTION_LINES: usize = 70;

/// By how many thousandths a crate may be above its floor before the floor is raised.
const ASSERTION_SLACK: usize = 10;

/// Words of the dialect.
pub fn words(files: &[File]) -> Vec<String> {
    counted(files, WORDS, "WORDS", dialect)
}

/// Comments and documents are read in columns; rustfmt wraps code only.
pub fn comment_width(files: &[File]) -> Vec<String> {
    counted(files, WIDE_COMMENTS, "WIDE_COMMENTS", wide_comments)
}

/// Functions that do more than one thing.
pub fn function_length(files: &[File]) -> Vec<String> {
    counted(files, LONG_FUNCTIONS, "LONG_FUNCTIONS", long_functions)
}

fn dialect(file: &File) -> Vec<String> {
    words::uses(file)
        .iter()
        .map(|used| {
            let (found, instead) = (used.found, used.instead);
            format!("{}:{}: \"{found}\": write {instead}", file.path, used.line)
        })
        .collect()
}

/// A table and a link cannot be wrapped.
fn wide_comments(file: &File) -> Vec<String> {
    let is_wide = |line: &str| line.len() > MAX_COLUMNS && line.chars().count() > MAX_COLUMNS;
    let comments = file.source.as_ref().map(|source| &source.comments);
    let mut comments = comments.map(|comments| comments.lines());
    let mut fenced = false;
    let mut out = Vec::new();
    for (number, line) in file.lines() {
        let comment = comments.as_mut().and_then(Iterator::next);
        fenced ^= line.starts_with("```");
        let text = match comment {
            Some(comment) => comment.trim_start_matches(['/', '!', '#', ' ']),
            None if file.is_document() && !fenced => line.trim_start(),
            None => "",
        };
        let counts = !text.is_empty() && !text.starts_with('|');
        if counts && is_wide(line) && !line.contains("](") && !line.contains("://") {
            let width = line.chars().count();
            out.push(format!("{}:{number}: {width} columns", file.path));
        }
    }
    out
}

fn long_functions(file: &File) -> Vec<String> {
    functions(&code_without_tests(file))
        .iter()
        .filter(|function| function.lines > MAX_FUNCTION_LINES)
        .map(|function| {
            let (line, lines) = (function.line, function.lines);
            format!("{}:{line}: a function of {lines} lines", file.path)
        })
        .collect()
}

/// The number of assertions over that of functions, of the crates in the table.
pub fn assertion_density(files: &[File]) -> Vec<String> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for file in files {
        if ASSERTIONS
            .iter()
            .any(|(folder, _)| *folder == file.folder())
        {
            let code = code_without_tests(file);
            let (asserted, all) = counts.entry(file.folder()).or_default();
            *asserted += assertions(&code);
            *all += functions(&code).len();
        }
    }
    counts
        .into_iter()
        .filter_map(|(folder, (asserted, all))| {
            let found = asserted * 1_000 / all.max(1);
            let floor = stored(ASSERTIONS, folder);
            floor_problem(folder, found, floor)
        })
        .collect()
}

fn floor_problem(folder: &str, found: usize, floor: usize) -> Option<String> {
    if found < floor {
        Some(format!(
            "{folder}: {found} assertions in a thousand functions, {floor} are required"
        ))
    } else if found > floor + ASSERTION_SLACK {
        Some(format!(
            "{folder}: {found} assertions in a thousand functions: raise its number in ASSERTIONS from {floor}"
        ))
    } else {
        None
    }
}

/// Compares what `offences` finds in each crate with the crate's number in `table`.
fn counted(
    files: &[File],
    table: Table,
    name: &str,
    offences: impl Fn(&File) -> Vec<String>,
) -> Vec<String> {
    let mut found: BTreeMap<&str, Vec<String>> = table
        .iter()
        .map(|(folder, _)| (*folder, Vec::new()))
        .collect();
    for file in files {
        let offences = offences(file);
        if !offences.is_empty() {
            found.entry(file.folder()).or_default().extend(offences);
        }
    }
    let mut out = Vec::new();
    for (folder, offences) in found {
        out.extend(count_problem(folder, offences, stored(table, folder), name));
    }
    out
}

fn count_problem(folder: &str, offences: Vec<String>, stored: usize, name: &str) -> Vec<String> {
    let count = offences.len();
    if count > stored {
        let mut out = vec![format!("{folder}: {count}, but {name} allows {stored}")];
        out.extend(offences);
        out
    } else if count < stored {
        vec![format!(
            "{folder}: {count}: lower its number in {name} from {stored}"
        )]
    } else {
        Vec::new()
    }
}

fn stored(table: Table, folder: &str) -> usize {
    table
        .iter()
        .find(|(name, _)| *name == folder)
        .map_or(0, |(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_IN_A: Table = &[("core/a", 1)];

    fn lines_with_x(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files
            .iter()
            .map(|(path, text)| File::new(*path, *text))
            .collect();
        counted(&files, ONE_IN_A, "TABLE", |file| {
            file.lines()
                .filter(|(_, line)| line.contains('x'))
                .map(|(number, _)| format!("{}:{number}", file.path))
                .collect()
        })
    }

    #[test]
    fn a_count_must_be_the_stored_one() {
        let one = ("core/a/src/b.rs", "x\ny\n");
        assert!(lines_with_x(&[one]).is_empty());
        assert_eq!(
            lines_with_x(&[one, ("core/a/README.md", "y\nx\n")]),
            [
                "core/a: 2, but TABLE allows 1",
                "core/a/src/b.rs:1",
                "core/a/README.md:2"
            ]
        );
        // A mend, also of the last one, lowers the number.
        let lower = "core/a: 0: lower its number in TABLE from 1";
        assert_eq!(lines_with_x(&[("core/a/src/b.rs", "y\n")]), [lower]);
        assert_eq!(lines_with_x(&[]), [lower]);
        // Crates without an entry have none.
        assert_eq!(
            lines_with_x(&[one, ("docs/c.md", "x\n")]),
            ["docs: 1, but TABLE allows 0", "docs/c.md:1"]
        );
    }

    #[test]
    fn assertions_may_only_rise() {
        assert!(floor_problem("a", 200, 200).is_none());
        assert!(floor_problem("a", 210, 200).is_none());
        let low = floor_problem("a", 199, 200).expect("below the floor");
        assert!(low.contains("200 are required"), "{low}");
        let high = floor_problem("a", 211, 200).expect("above the floor");
        assert!(high.contains("raise its number"), "{high}");
    }

    #[test]
    fn comments_and_prose_are_measured_and_code_is_not() {
        let wide = "w".repeat(MAX_COLUMNS);
        let check = |path: &str, text: String, expected: usize| {
            let found = wide_comments(&File::new(path, text));
            assert_eq!(found.len(), expected, "{found:?}");
        };
        check("b.rs", format!("// {wide}\n"), 1);
        check("b.rs", format!("f(); // {wide}\n"), 1);
        check("b.rs", format!("f({wide});\n"), 0);
        check("b.rs", format!("// https://{wide}\n"), 0);
        check("b.py", format!("    \"\"\"{wide}\"\"\"\n"), 1);
        check("b.rs", format!("//! | {wide} |\n"), 0);
        check("b.md", format!("{wide}\n{wide}x\n"), 1);
        check("b.md", format!("| {wide} |\n[{wide}](b)\n"), 0);
        check("b.md", format!("```\n{wide}x\n```\n"), 0);
        // Columns are characters.
        check("b.md", "ä".repeat(MAX_COLUMNS), 0);
    }

    #[test]
    fn long_functions_are_found() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "\n".repeat(lines - 2));
        let found = |lines| long_functions(&File::new("b.rs", function(lines)));
        assert!(found(MAX_FUNCTION_LINES).is_empty());
        let long = found(MAX_FUNCTION_LINES + 1);
        assert!(
            long[0].contains("b.rs:1: a function of 71 lines"),
            "{long:?}"
        );
    }
}
