//! Words of the project's old dialect, with what to write instead.

use crate::source::Source;
use crate::tree::File;

/// A phrase in lower case, and its replacement. A `..` stands for up to three words.
const WORDS: &[(&str, &str)] = &[
    ("tell", "report, say, give"),
    ("tells", "reports, says, gives, shows"),
    ("telling", "reporting, saying"),
    ("told", "reported, said, known"),
    ("untold", "unreported, unknown"),
    ("whoever", "the caller, the reader, the writer, any client"),
    ("nobody", "no caller, no reader, no client"),
    ("anew", "again"),
    ("begun", "started"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("going on", "continuing, in progress"),
    ("went on", "continued"),
    ("so many", "n, as many, that number of"),
    ("is let", "may, is allowed"),
    ("are let", "may, are allowed"),
    ("be let", "may, be allowed"),
    ("lets .. go", "allows, releases"),
    ("lets .. through", "allows"),
    ("beside the core", "offloaded, on a compute thread"),
    ("beside the cores", "offloaded, on compute threads"),
    ("beside the executor", "offloaded, on a compute thread"),
    ("beside the executors", "offloaded, on compute threads"),
];

/// How many words a `..` may stand for.
const GAP: usize = 3;

/// One use of a word: its line, the words and the replacement.
pub struct Use {
    pub line: usize,
    pub found: &'static str,
    pub instead: &'static str,
}

/// Every use in a file's comments and identifiers, or in the prose of a document.
pub fn uses(file: &File) -> Vec<Use> {
    let mut out = Vec::new();
    match &file.source {
        Some(Source { code, comments }) => {
            find_in_prose(comments, &mut out);
            find_in_names(code, &mut out);
        }
        None if file.is_document() => find_in_prose(&prose(&file.text), &mut out),
        None => {}
    }
    out.sort_by_key(|used| used.line);
    out
}

/// A word and its line.
type Word<'a> = (&'a str, usize);

/// Names in prose are searched too: `next_page` and `NextPage` are two words.
fn find_in_prose(text: &str, out: &mut Vec<Use>) {
    let mut words = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for name in line.split(|c: char| !c.is_alphanumeric()) {
            split_name(name, index + 1, &mut words);
        }
    }
    find(&words, out);
}

/// A phrase must lie within one name.
fn find_in_names(code: &str, out: &mut Vec<Use>) {
    let mut words = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for name in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
            words.clear();
            for part in name.split('_') {
                split_name(part, index + 1, &mut words);
            }
            find(&words, out);
        }
    }
}

fn split_name<'a>(name: &'a str, line: usize, out: &mut Vec<Word<'a>>) {
    let mut start = 0;
    let mut was_lower = false;
    for (at, c) in name.char_indices() {
        if was_lower && c.is_uppercase() {
            out.push((&name[start..at], line));
            start = at;
        }
        was_lower = c.is_lowercase();
    }
    if start < name.len() {
        out.push((&name[start..], line));
    }
}

fn find(words: &[Word<'_>], out: &mut Vec<Use>) {
    for start in 0..words.len() {
        for &(found, instead) in WORDS {
            let (word, line) = words[start];
            // Most phrases are out at the first letter.
            let may_start = word.as_bytes()[0].eq_ignore_ascii_case(&found.as_bytes()[0]);
            if may_start && starts_with(&words[start..], found) {
                out.push(Use {
                    line,
                    found,
                    instead,
                });
            }
        }
    }
}

fn starts_with(words: &[Word<'_>], phrase: &str) -> bool {
    // A phrase may run into the next line, but not into the next comment.
    let matches = |words: &[Word<'_>], phrase: &str| {
        phrase.split(' ').enumerate().all(|(at, part)| {
            words.get(at).is_some_and(|(word, line)| {
                word.eq_ignore_ascii_case(part) && *line <= words[at.saturating_sub(1)].1 + 1
            })
        })
    };
    match phrase.split_once(" .. ") {
        None => matches(words, phrase),
        Some((head, tail)) => {
            matches(words, head)
                && (1..=GAP + 1)
                    .filter_map(|gap| words.get(gap..))
                    .any(|words| matches(words, tail))
        }
    }
}

/// A document without its code: what a program prints is not prose.
fn prose(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut fenced = false;
    let mut quoted = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            for c in line.chars() {
                quoted ^= c == '`';
                out.push(if quoted { '|' } else { c });
            }
        }
        // A quotation does not reach beyond its paragraph.
        quoted &= !line.is_empty();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expected: &[(usize, &str)]) {
        let found: Vec<(usize, &str)> = uses(&File::new(path, text))
            .iter()
            .map(|used| (used.line, used.found))
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn comments_and_names_are_searched_and_strings_are_not() {
        check("a.rs", "// It tells.\nf(\"told\");\n", &[(1, "tells")]);
        check(
            "a.rs",
            "fn goes_on() {}\nstruct ToldAnew;\nlet intelligent = foretold;\n",
            &[(1, "goes on"), (2, "told"), (2, "anew")],
        );
        check(
            "a.py",
            "def f():\n    \"\"\"Told.\"\"\"\n    g('told')\n",
            &[(2, "told")],
        );
        // Two names beside each other are no phrase.
        check("a.rs", "go(on)\n", &[]);
        check("a.sh", "# told\n", &[]);
    }

    #[test]
    fn a_phrase_may_run_over_lines_and_have_a_gap() {
        check("a.rs", "/// The stream goes\n/// on.\n", &[(1, "goes on")]);
        check(
            "a.rs",
            "// It lets the next one go.\n",
            &[(1, "lets .. go")],
        );
        check("a.rs", "// It lets all of them that wait go.\n", &[]);
    }

    #[test]
    fn code_in_documents_is_not_prose() {
        check(
            "a.md",
            "It is told.\n```\ntold\n```\n`told by\ntold` anew\n",
            &[(1, "told"), (6, "anew")],
        );
    }
}
