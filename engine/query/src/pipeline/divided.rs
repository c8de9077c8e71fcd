//! A pipeline divided between parts that run stages of clients, each over a collection of its own,
//! and what runs over what they give: shards and a router.

use pinion_bson::{
    DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc,
};
use pinion_wire::Result;

use super::Pipeline;
use super::fields::read_by;
use super::keyed::keyed_value;
use super::split::stage_of;
use super::stage::{Stage, StageKind};
use crate::expression::{MetaSet, Variables, check_field_path};
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
    /// They come by their distance.
    pub is_near: bool,
    /// How many documents of all parts together are wanted at most.
    pub limit: Option<i64>,
    /// What `rest` reads of documents beside their fields: it takes them as
    /// [`DividedPipeline::given`] has them.
    pub metadata: MetaSet,
    /// What is done with what all of them give, in that order.
    pub rest: Pipeline,
}

impl Pipeline {
    /// Divides the pipeline, whose collection the parts alone know.
    ///
    /// # Errors
    /// Those of filters that are put together.
    pub fn divided(self, variables: &Variables) -> Result<DividedPipeline> {
        match self.stages.first().map(|stage| &stage.kind) {
            Some(StageKind::GeoNear(near)) => {
                let matcher = Matcher::parse_query(near.query(), variables)?;
                Ok(self.divided_behind_near(matcher))
            }
            _ => Ok(self.split(None, variables)?.divided()),
        }
    }

    fn divided_behind_near(mut self, matcher: Matcher) -> DividedPipeline {
        let mut stages = vec![self.stages.remove(0).source];
        let limit = match self.stages.first().map(|stage| &stage.kind) {
            Some(StageKind::Limit(limit)) => Some(*limit),
            _ => None,
        };
        if let Some(limit) = limit {
            self.stages.remove(0);
            stages.push(stage_of("$limit", RawBsonRef::Int64(limit)));
        }
        DividedPipeline {
            matcher,
            stages,
            sort: None,
            is_near: true,
            limit,
            metadata: MetaSet::default(),
            rest: self,
        }
        .with_metadata()
    }
}

impl DividedPipeline {
    /// The same where the parts give what the rest reads of documents beside their fields.
    pub(super) fn with_metadata(mut self) -> DividedPipeline {
        let is_of_read =
            |stage: &Stage| matches!(stage.kind, StageKind::Known(_) | StageKind::Keyed);
        self.rest.stages.retain(|stage| !is_of_read(stage));
        self.metadata = self.rest.needs();
        if !self.metadata.is_empty() {
            let keyed = Stage::unnamed(StageKind::Keyed);
            self.rest.stages.insert(0, keyed);
        }
        self
    }

    /// The expression for a document as a part has to give it.
    pub fn given(&self) -> RawBson {
        match self.metadata.is_empty() {
            true => RawBson::String("$$ROOT".to_owned()),
            false => RawBson::Document(keyed_value(self.metadata)),
        }
    }

    /// The same with less that leaves the parts: groups and counts of what they have, where those
    /// of all are made of these, or else only the fields that are read.
    ///
    /// # Errors
    /// None where the stages have been parsed with these variables.
    pub fn reduced(mut self, variables: &Variables) -> Result<DividedPipeline> {
        if self.sort.is_some() || self.is_near || !self.metadata.is_empty() {
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
        let divided = pipeline.divided(&vars).expect("it can be divided");
        let divided = divided.reduced(&vars).expect("it parses");
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

    #[test]
    fn metadata_of_documents() {
        #[track_caller]
        fn check(stages: RawBson, parts: &[&str], given: &str, is_near: bool) {
            let RawBson::Array(stages) = stages else {
                panic!("a pipeline is an array");
            };
            let vars = Variables::default();
            let pipeline = Pipeline::parse(&stages, &vars).expect("it parses");
            let divided = pipeline.divided(&vars).expect("it can be divided");
            let shown: Vec<String> = divided.stages.iter().map(|s| document_text(s)).collect();
            assert_eq!(shown, parts);
            assert_eq!(
                crate::text::value_text(divided.given().as_raw_bson_ref()),
                given
            );
            assert_eq!(divided.is_near, is_near);
        }
        let text = || rawdoc! { "$match": { "$text": { "$search": "x" } } };
        let score = || rawdoc! { "$meta": "textScore" };
        check(
            rawbson!([text(), { "$group": { "_id": score() } }]),
            &["{ $match: { $text: { $search: \"x\" } } }"],
            "{ document: \"$$ROOT\", metadata: { textScore: { $meta: \"textScore\" } } }",
            false,
        );
        check(
            rawbson!([text(), { "$sort": { "s": score() } }, { "$limit": 2 }]),
            &[
                "{ $match: { $text: { $search: \"x\" } } }",
                "{ $sort: { s: { $meta: \"textScore\" } } }",
                "{ $limit: 2 }",
            ],
            "\"$$ROOT\"",
            false,
        );
        // The values of a sort are those of the documents.
        check(
            rawbson!([{ "$sort": { "a": 1 } }, { "$project": { "k": { "$meta": "sortKey" } } }]),
            &["{ $sort: { a: 1 } }"],
            "\"$$ROOT\"",
            false,
        );
        let near = || rawdoc! { "$geoNear": { "near": [0, 0], "distanceField": "d" } };
        check(
            rawbson!([near(), { "$limit": 2 }, { "$project": { "k": { "$meta": "geoNearDistance" } } }]),
            &[
                "{ $geoNear: { near: [ 0, 0 ], distanceField: \"d\" } }",
                "{ $limit: 2 }",
            ],
            "{ document: \"$$ROOT\", metadata: { geoNearDistance: { $meta: \"geoNearDistance\" } } }",
            true,
        );
    }
}
