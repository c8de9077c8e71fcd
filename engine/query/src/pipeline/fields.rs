//! Which fields the stages at the front of a pipeline read of their documents, where that is known.

use std::collections::BTreeSet;

use pinion_bson::{RawBsonRef, RawDocument};

use super::Stage;
use super::stage::StageKind;
use crate::value::{elements, first, items};

/// The names of fields, of the documents themselves and not of what is in them.
pub(crate) type FieldNames = BTreeSet<String>;

/// What is read of the documents in front of these stages; `None` where that may be any field.
///
/// It follows from how the stages are written, and may name fields that are not read after all.
pub(super) fn read_by<'s>(stages: impl IntoIterator<Item = &'s Stage>) -> Option<FieldNames> {
    let mut names = FieldNames::new();
    for stage in stages {
        let (_, spec) = first(&stage.source)?;
        match &stage.kind {
            StageKind::Skip(_) | StageKind::Limit(_) => {}
            StageKind::Match(matcher) => add_filter(matcher.filter(), &mut names)?,
            StageKind::Sort(pattern) => {
                let fields = elements(pattern.source());
                names.extend(fields.map(|(path, _)| top(path)));
            }
            StageKind::Unwind(_) => add_expression(spec, &mut names)?,
            // What comes out of these has only what they put into it.
            StageKind::Count(_) => return Some(names),
            StageKind::Group(_) => {
                add_expression(spec, &mut names)?;
                return Some(names);
            }
            StageKind::Project(projection) => {
                let paths = projection.kept_paths()?;
                names.extend(paths.iter().map(|path| top(path)));
                return Some(names);
            }
            _ => return None,
        }
    }
    None
}

/// The name of the field that a path begins with.
fn top(path: &str) -> String {
    path.split('.').next().unwrap_or_default().to_owned()
}

fn add_filter(filter: &RawDocument, names: &mut FieldNames) -> Option<()> {
    for (name, value) in elements(filter) {
        match (name, value) {
            ("$and" | "$or" | "$nor", RawBsonRef::Array(parts)) => {
                for part in items(parts) {
                    let RawBsonRef::Document(part) = part else {
                        return None;
                    };
                    add_filter(part, names)?;
                }
            }
            ("$expr", value) => add_expression(value, names)?,
            ("$comment" | "$alwaysTrue" | "$alwaysFalse", _) => {}
            (operator, _) if operator.starts_with('$') => return None,
            (path, _) => {
                names.insert(top(path));
            }
        }
    }
    Some(())
}

/// The fields that an expression reads, and those of a document or an array of expressions.
pub(super) fn add_expression(value: RawBsonRef<'_>, names: &mut FieldNames) -> Option<()> {
    match value {
        RawBsonRef::String(text) => {
            if let Some(variable) = text.strip_prefix("$$") {
                let (variable, path) = match variable.split_once('.') {
                    Some((variable, path)) => (variable, Some(path)),
                    None => (variable, None),
                };
                if matches!(variable, "ROOT" | "CURRENT") {
                    names.insert(top(path?));
                }
            } else if let Some(path) = text.strip_prefix('$') {
                names.insert(top(path));
            }
        }
        RawBsonRef::Document(document) => {
            for (name, value) in elements(document) {
                match name {
                    // These name fields without the sign, or read the whole document unless another
                    // input is given.
                    "$getField" | "$setField" | "$unsetField" | "sortBy" => return None,
                    "$literal" => {}
                    _ => add_expression(value, names)?,
                }
            }
        }
        RawBsonRef::Array(array) => {
            for item in items(array) {
                add_expression(item, names)?;
            }
        }
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Variables;
    use crate::pipeline::Pipeline;
    use pinion_bson::{RawBson, rawbson};

    #[track_caller]
    fn check(stages: RawBson, expected: Option<&[&str]>) {
        let RawBson::Array(stages) = &stages else {
            panic!("an array of stages");
        };
        let pipeline = Pipeline::parse(stages, &Variables::default()).expect("it parses");
        let expected = expected.map(|names| names.iter().map(|name| String::from(*name)).collect());
        assert_eq!(read_by(&pipeline.stages), expected, "{stages:?}");
    }

    #[test]
    fn fields_that_stages_read() {
        check(rawbson!([{ "$count": "n" }]), Some(&[]));
        check(
            rawbson!([
                { "$match": { "a.b": 1, "$or": [{ "c": 2 }, { "$expr": { "$gt": ["$d.e", 1] } }] } },
                { "$sort": { "f.g": 1 } },
                { "$limit": 3 },
                { "$group": { "_id": { "x": "$h" }, "n": { "$sum": { "$add": ["$i", "$$ROOT.j", { "$strLenCP": { "$literal": "$k" } }] } } } },
            ]),
            Some(&["a", "c", "d", "f", "h", "i", "j"]),
        );
        check(rawbson!([{ "$sortByCount": "$a.b" }]), Some(&["a"]));
        check(
            rawbson!([{ "$unwind": "$a" }, { "$project": { "b.c": 1, "_id": 0 } }]),
            Some(&["a", "b"]),
        );
        check(rawbson!([{ "$project": { "b": 1 } }]), Some(&["_id", "b"]));
    }

    #[test]
    fn stages_that_may_read_all() {
        check(rawbson!([]), None);
        check(rawbson!([{ "$limit": 3 }]), None);
        check(rawbson!([{ "$project": { "a": 0 } }]), None);
        check(
            rawbson!([{ "$addFields": { "a": "$b" } }, { "$limit": 3 }]),
            None,
        );
        check(
            rawbson!([{ "$group": { "_id": null, "all": { "$push": "$$ROOT" } } }]),
            None,
        );
        check(
            rawbson!([{ "$group": { "_id": { "$getField": "a" } } }]),
            None,
        );
        check(
            rawbson!([{ "$group": { "_id": "$a", "n": { "$top": { "sortBy": { "t": 1 }, "output": "$x" } } } }]),
            None,
        );
        check(
            rawbson!([{ "$match": { "$jsonSchema": { "required": ["a"] } } }, { "$count": "n" }]),
            None,
        );
    }
}
