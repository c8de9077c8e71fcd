//! A pipeline divided between parts that run stages of clients, each over a collection of its own,
//! and what runs over what they give: shards and a router.

use pinion_bson::{
    DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc,
};
use pinion_wire::Result;

use super::Pipeline;
use super::fields::read_by;
use crate::expression::{Variables, check_field_path};
use crate::matcher::Matcher;
use crate::sort::SortPattern;
use crate::value::{elements, first, is_empty};

/// What each part does, and what is left.
#[derive(Clone, Debug)]
pub struct DividedPipeline {
    pub matcher: Matcher,
    /// What each part runs, the filter in front and the sort included, as a client writes it.
    pub stages: Vec<RawDocumentBuf>,
    /// The order in which the documents of a part come.
    pub sort: Option<SortPattern>,
    /// How many documents of all parts together are wanted at most.
    pub limit: Option<i64>,
    /// What is done with what all of them give, in that order.
    pub rest: Pipeline,
}

impl DividedPipeline {
    /// The same with less that leaves the parts: groups and counts of what they have, where those
    /// of all are made of these, or else only the fields that are read.
    ///
    /// # Errors
    /// None where the stages have been parsed with these variables.
    pub fn reduced(mut self, variables: &Variables) -> Result<DividedPipeline> {
        if self.sort.is_some() {
            return Ok(self);
        }
        let behind = self.rest.stages.first().map(|stage| &*stage.source);
        if let Some(merge) = behind.and_then(merge_of).filter(|_| self.limit.is_none()) {
            let group = self.rest.stages.remove(0);
            self.stages.push(group.source);
            let mut merge = Pipeline::parse_inner(&merge, 0, variables)?;
            merge.stages.append(&mut self.rest.stages);
            self.rest = merge;
            return Ok(self);
        }
        // A filter may name what no projection can.
        let is_path = |name: &String| check_field_path(name).is_ok();
        let names = read_by(&self.rest.stages).filter(|names| names.iter().all(is_path));
        if let Some(names) = names {
            let mut spec = DocBuilder::new();
            spec.start_document("$project");
            for name in &names {
                spec.append(name, 1);
            }
            if !names.contains("_id") {
                spec.append("_id", i32::from(names.is_empty()));
            }
            spec.end();
            self.stages.push(spec.finish());
        }
        Ok(self)
    }
}

/// The stages that make of the groups, or of the counts, of parts those of all; `None` where these
/// need more than that.
///
/// Sums are those of integers alone: of others they depend on the order in which they are added.
fn merge_of(stage: &RawDocument) -> Option<RawArrayBuf> {
    let (name, spec) = first(stage)?;
    let mut stages = RawArrayBuf::new();
    let mut push = |stage: RawDocumentBuf| stages.push(RawBson::Document(stage));
    match (name, spec) {
        ("$count", RawBsonRef::String(field)) => {
            let mut group = DocBuilder::new();
            group
                .start_document("$group")
                .append("_id", RawBsonRef::Null);
            group.start_document(field);
            group
                .append("$sum", format!("${field}").as_str())
                .end()
                .end();
            push(group.finish());
            push(rawdoc! { "$project": { "_id": 0 } });
        }
        ("$group", RawBsonRef::Document(spec)) => {
            let mut group = DocBuilder::new();
            group.start_document("$group").append("_id", "$_id");
            for (field, accumulator) in elements(spec).filter(|(field, _)| *field != "_id") {
                let operator = merging_operator(accumulator)?;
                group.start_document(field);
                group.append(operator, format!("${field}").as_str()).end();
            }
            group.end();
            push(group.finish());
        }
        _ => return None,
    }
    Some(stages)
}

/// The accumulator that puts together what this one gives.
fn merging_operator(accumulator: RawBsonRef<'_>) -> Option<&'static str> {
    let (operator, operand) = first(accumulator.as_document()?)?;
    match (operator, operand) {
        ("$sum", RawBsonRef::Int32(_)) => Some("$sum"),
        ("$count", RawBsonRef::Document(nothing)) if is_empty(nothing) => Some("$sum"),
        ("$min", _) => Some("$min"),
        ("$max", _) => Some("$max"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawbson;

    use super::*;
    use crate::text::document_text;

    #[track_caller]
    fn check(stages: RawBson, parts: &[&str], rest: &[&str]) {
        let RawBson::Array(stages) = stages else {
            panic!("a pipeline is an array");
        };
        let vars = Variables::default();
        let pipeline = Pipeline::parse(&stages, &vars).expect("it parses");
        let divided = pipeline
            .split(None, &vars)
            .expect("it can be split")
            .divided();
        let divided = divided.expect("nothing reads metadata").reduced(&vars);
        let divided = divided.expect("it parses");
        let shown = |stages: Vec<&RawDocument>| -> Vec<String> {
            stages.into_iter().map(document_text).collect()
        };
        assert_eq!(
            shown(divided.stages.iter().map(|stage| &**stage).collect()),
            parts
        );
        assert_eq!(shown(divided.rest.sources().collect()), rest);
    }

    #[test]
    fn parts_and_rests() {
        let a = || rawdoc! { "$match": { "a": 1 } };
        check(
            rawbson!([a(), { "$sort": { "b": 1 } }, { "$limit": 3 }, { "$project": { "b": 1 } }]),
            &[
                "{ $match: { a: 1 } }",
                "{ $sort: { b: 1 } }",
                "{ $limit: 3 }",
            ],
            &["{ $project: { b: 1 } }"],
        );
        check(
            rawbson!([a(), { "$unwind": "$l" }, { "$sort": { "b": 1 } }, { "$skip": 1 }, { "$limit": 3 }]),
            &[
                "{ $match: { a: 1 } }",
                "{ $unwind: \"$l\" }",
                "{ $sort: { b: 1 } }",
                "{ $limit: 4 }",
            ],
            &["{ $skip: 1 }", "{ $limit: 3 }"],
        );
        check(
            rawbson!([a(), { "$group": { "_id": "$b", "n": { "$sum": 1 }, "m": { "$max": "$c" } } }]),
            &[
                "{ $match: { a: 1 } }",
                "{ $group: { _id: \"$b\", n: { $sum: 1 }, m: { $max: \"$c\" } } }",
            ],
            &["{ $group: { _id: \"$_id\", n: { $sum: \"$n\" }, m: { $max: \"$m\" } } }"],
        );
        check(
            rawbson!([{ "$count": "n" }]),
            &["{ $count: \"n\" }"],
            &[
                "{ $group: { _id: null, n: { $sum: \"$n\" } } }",
                "{ $project: { _id: 0 } }",
            ],
        );
        check(
            rawbson!([a(), { "$group": { "_id": "$b.x", "n": { "$avg": "$c" } } }]),
            &[
                "{ $match: { a: 1 } }",
                "{ $project: { b: 1, c: 1, _id: 0 } }",
            ],
            &["{ $group: { _id: \"$b.x\", n: { $avg: \"$c\" } } }"],
        );
        check(
            rawbson!([{ "$limit": 5 }, { "$group": { "_id": null, "n": { "$sum": 1 } } }]),
            &["{ $limit: 5 }", "{ $project: { _id: 1 } }"],
            &["{ $group: { _id: null, n: { $sum: 1 } } }"],
        );
    }
}
