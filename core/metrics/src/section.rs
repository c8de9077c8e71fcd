//! Prints rows.

use std::fmt::Write as _;

use pinion_bson::{DocBuilder, RawBsonRef};

use crate::row::{Kind, Row, Value};

/// Appends the document at `prefix` with the metrics that lie in it: for `metrics.repl` a document
/// `repl`.
///
/// # Panics
/// If the rows of the section do not follow one another as their documents do.
pub fn append_section<S>(rows: &[Row<S>], prefix: &str, source: &S, out: &mut DocBuilder) {
    let name = prefix.rsplit('.').next().expect("a prefix has a name");
    out.start_document(name);
    append_fields(rows, prefix, source, out);
    out.end();
}

/// Appends the metrics that lie in the document at `prefix`, without that itself.
///
/// # Panics
/// As of [`append_section`].
pub fn append_fields<S>(rows: &[Row<S>], prefix: &str, source: &S, out: &mut DocBuilder) {
    // The documents that are open, and all that ever were: one cannot be opened twice.
    let mut open: Vec<&str> = Vec::new();
    let mut opened: Vec<String> = Vec::new();
    for row in rows {
        let Some(rest) = row.path.strip_prefix(prefix) else {
            continue;
        };
        let Some(rest) = rest.strip_prefix('.') else {
            continue;
        };
        let Some(value) = (row.read)(source) else {
            continue;
        };
        let mut names: Vec<&str> = rest.split('.').collect();
        let field = names.pop().expect("a path has a field");
        let shared = open.iter().zip(&names).take_while(|(a, b)| a == b).count();
        for _ in shared..open.len() {
            open.pop();
            out.end();
        }
        for name in &names[shared..] {
            open.push(name);
            let document = open.join(".");
            assert!(
                !opened.contains(&document),
                "the rows of {prefix}.{document} are not together"
            );
            opened.push(document);
            out.start_document(name);
        }
        append_value(out, field, value);
    }
    for _ in open {
        out.end();
    }
}

fn append_value(out: &mut DocBuilder, name: &str, value: Value) {
    match value {
        Value::Int(value) => out.append(name, value),
        Value::Long(value) => out.append(name, value),
        Value::Double(value) => out.append(name, value),
        Value::Bool(value) => out.append(name, value),
        Value::Text(value) => out.append(name, value),
        Value::Time(value) => out.append(name, RawBsonRef::Timestamp(value)),
    };
}

/// The rows as a table for people, in Markdown.
pub fn describe<S>(rows: &[Row<S>]) -> String {
    let mut text = String::from("| metric | kind | unit | what it says |\n|---|---|---|---|\n");
    for row in rows {
        let kind = match row.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let (path, unit, help) = (row.path, row.unit.name(), row.help);
        let line = writeln!(text, "| `{path}` | {kind} | {unit} | {help} |");
        line.expect("text takes what is written to it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Unit;
    use pinion_bson::rawdoc;

    fn row(path: &'static str, read: fn(&i64) -> Option<Value>) -> Row<i64> {
        Row {
            path,
            kind: Kind::Counter,
            unit: Unit::Count,
            help: "Something.",
            read,
        }
    }

    fn long(n: &i64) -> Option<Value> {
        Some(Value::Long(*n))
    }

    #[test]
    fn paths_become_documents() {
        let rows = [
            row("a.b.c", long),
            row("a.b.d.e", long),
            row("a.b.d.f", |_| None),
            row("a.g.h", |n| Some(Value::Double(*n as f64))),
            row("ab.c", long),
        ];
        let mut out = DocBuilder::new();
        append_section(&rows, "a", &7, &mut out);
        append_section(&rows, "a.b.d", &8, &mut out);
        append_section(&rows, "none", &8, &mut out);
        let expected = rawdoc! {
            "a": { "b": { "c": 7i64, "d": { "e": 7i64 } }, "g": { "h": 7.0 } },
            "d": { "e": 8i64 },
            "none": {},
        };
        assert_eq!(out.finish(), expected);
    }

    #[test]
    #[should_panic(expected = "not together")]
    fn a_document_is_opened_once() {
        let rows = [row("a.b.c", long), row("a.d.c", long), row("a.b.d", long)];
        append_section(&rows, "a", &7, &mut DocBuilder::new());
    }
}
