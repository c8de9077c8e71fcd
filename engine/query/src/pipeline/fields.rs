//! Which fields the stages at the front of a pipeline read of their documents, where that is known.

use std::collections::BTreeSet;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::Stage;
use super::stage::StageKind;
use crate::expression::{Variables, check_field_path};
use crate::projection::Projection;
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
            StageKind::Group(_) | StageKind::BucketAuto(_) | StageKind::ReplaceRoot(..) => {
                add_expression(spec, &mut names)?;
                return Some(names);
            }
            StageKind::Facet(facet) => {
                for (_, branch) in &facet.0 {
                    names.append(&mut read_by(&branch.stages)?);
                }
                return Some(names);
            }
            StageKind::Project(projection) if projection.is_inclusion() => {
                names.extend(projection.top_names().map(str::to_owned));
                add_expression(spec, &mut names)?;
                return Some(names);
            }
            // Others keep the fields that they do not name.
            StageKind::Project(_) => add_expression(spec, &mut names)?,
            _ => return None,
        }
    }
    None
}

/// Inserts a `$project` of the fields that are read, where the first stage behind filters, limits
/// and sorts copies its documents. Does the same inside of a `$facet`.
pub(super) fn restrict(stages: &mut Vec<Stage>) -> Result<()> {
    for stage in stages.iter_mut() {
        if let StageKind::Facet(facet) = &mut stage.kind {
            let mut branches = facet.0.iter_mut();
            branches.try_for_each(|(_, branch)| restrict(&mut branch.stages))?;
        }
    }
    let selects = |stage: &Stage| {
        matches!(
            stage.kind,
            StageKind::Match(_) | StageKind::Skip(_) | StageKind::Limit(_)
        )
    };
    let copies = |stage: &Stage| match &stage.kind {
        StageKind::Unwind(_) => true,
        StageKind::Project(projection) => !projection.is_inclusion(),
        _ => false,
    };
    // What selects documents looks at them as they are; what sorts them holds them.
    let at = stages.iter().take_while(|stage| selects(stage)).count();
    let is_sort = |stage: &Stage| matches!(stage.kind, StageKind::Sort(_));
    let mut behind = stages[at..].iter();
    if !behind
        .find(|stage| !selects(stage) && !is_sort(stage))
        .is_some_and(copies)
    {
        return Ok(());
    }
    let Some(names) = read_by(&stages[at..]) else {
        return Ok(());
    };
    // A filter may name what no projection can.
    if names.iter().any(|name| check_field_path(name).is_err()) {
        return Ok(());
    }
    let mut spec = DocBuilder::new();
    for name in &names {
        spec.append(name, 1);
    }
    // A projection without fields would leave the document as it is.
    if !names.contains("_id") {
        spec.append("_id", i32::from(names.is_empty()));
    }
    let spec = spec.finish();
    let projection = Projection::parse_aggregation(&spec, &Variables::default())?;
    let restriction = Stage::made("$project", &*spec, StageKind::Project(projection));
    stages.insert(at, restriction);
    Ok(())
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
                    "$getField" | "$setField" | "$unsetField" => return None,
                    "$literal" | "$const" => {}
                    // A sort pattern, or an expression under a field that is called so.
                    "sortBy" => {
                        add_pattern(value, names);
                        add_expression(value, names)?;
                    }
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

/// The fields of a sort pattern.
fn add_pattern(value: RawBsonRef<'_>, names: &mut FieldNames) {
    if let RawBsonRef::Document(pattern) = value {
        let paths = elements(pattern).map(|(path, _)| path);
        names.extend(paths.filter(|path| !path.starts_with('$')).map(top));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Variables;
    use crate::pipeline::Pipeline;
    use pinion_bson::{RawBson, RawDocumentBuf, rawbson, rawdoc};

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
        check(
            rawbson!([{ "$project": { "b.c": 1, "d": { "e": { "$add": ["$f.g", 1] } }, "_id": 0 } }]),
            Some(&["b", "d", "f"]),
        );
        check(
            rawbson!([{ "$addFields": { "a": "$b" } }, { "$unset": "c" }, { "$replaceRoot": { "newRoot": "$d.e" } }]),
            Some(&["b", "d"]),
        );
        check(
            rawbson!([{ "$group": { "_id": "$a", "n": { "$top": { "sortBy": { "t": 1 }, "output": "$x" } } } }]),
            Some(&["a", "t", "x"]),
        );
        check(
            rawbson!([{ "$addFields": { "sortBy": "$b" } }, { "$group": { "_id": "$sortBy", "sortBy": { "$first": "$c" } } }]),
            Some(&["b", "c", "sortBy"]),
        );
        check(
            rawbson!([{ "$facet": { "f": [{ "$count": "n" }], "g": [{ "$match": { "a": 1 } }, { "$sortByCount": "$b" }] } }]),
            Some(&["a", "b"]),
        );
        check(
            rawbson!([{ "$bucketAuto": { "groupBy": "$a.b", "buckets": 3, "output": { "n": { "$sum": "$c" } } } }]),
            Some(&["a", "c"]),
        );
    }

    #[test]
    fn documents_are_restricted_in_front_of_stages_that_copy_them() {
        let restricted = |stages: RawBson| {
            let RawBson::Array(stages) = &stages else {
                panic!("an array of stages");
            };
            let pipeline = Pipeline::parse(stages, &Variables::default()).expect("it parses");
            let (mut made, count) = (pipeline.stages.clone(), pipeline.stages.len());
            restrict(&mut made).expect("it can be restricted");
            let (before, behind) = (pipeline.stages, made);
            let at = (before.iter().zip(&behind)).position(|(old, new)| old.source != new.source);
            (behind.len() > count).then(|| behind[at.expect("it differs")].source.clone())
        };
        let group = || rawbson!({ "$group": { "_id": "$k", "n": { "$sum": "$n" } } });
        let check = |stages, expected: Option<RawDocumentBuf>| {
            let expected = expected.map(|spec| rawdoc! { "$project": spec });
            assert_eq!(restricted(stages), expected);
        };
        check(
            rawbson!([{ "$unwind": "$k" }, (group())]),
            Some(rawdoc! { "k": 1, "n": 1, "_id": 0 }),
        );
        check(
            rawbson!([{ "$sort": { "a": 1 } }, { "$addFields": { "k": "$_id" } }, (group())]),
            Some(rawdoc! { "_id": 1, "a": 1, "k": 1, "n": 1 }),
        );
        check(
            rawbson!([{ "$addFields": { "k": 1 } }, { "$count": "n" }]),
            Some(rawdoc! { "_id": 1 }),
        );
        check(
            rawbson!([{ "$match": { "rare": 1 } }, { "$unwind": "$k" }, (group())]),
            Some(rawdoc! { "k": 1, "n": 1, "_id": 0 }),
        );
        check(
            rawbson!([{ "$unwind": "$k" }, { "$match": { "": 1 } }, { "$count": "n" }]),
            None,
        );
        check(
            rawbson!([{ "$unwind": "$k" }, { "$group": { "_id": { "$const": "$" } } }]),
            Some(rawdoc! { "k": 1, "_id": 0 }),
        );
        check(rawbson!([(group())]), None);
        check(
            rawbson!([{ "$project": { "k": 1, "n": 1 } }, (group())]),
            None,
        );
        check(rawbson!([{ "$unwind": "$k" }]), None);
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
            rawbson!([{ "$match": { "$jsonSchema": { "required": ["a"] } } }, { "$count": "n" }]),
            None,
        );
    }
}
