//! `$group`

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_keystring::encode_id_in;
use pinion_wire::Result;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Document;
use super::codes::{Engine, coded};
use super::step::{Given, Step, Taken};
use crate::accumulator::{Accumulation, Accumulator, Input};
use crate::collation::spend_sort_keys;
use crate::error::{error, no_javascript};
use crate::expression::{Expression, MetaSet, Value, Variables};
use crate::limits::{MAX_GROUP_BYTES, SORT_RUN};
use crate::sorter::Sorter;
use crate::value::{count, elements, first};
use crate::work::{self, spend, spend_bytes};

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub(super) struct Group {
    id: Id,
    fields: Vec<(String, Accumulation)>,
    collation: Option<Arc<Collation>>,
    /// Which of MongoDB's engines would run the stage, which shows in the codes of errors.
    pub(super) engine: Engine,
}

/// What a group's documents have in common.
#[derive(Clone, Debug)]
enum Id {
    Value(Expression),
    /// A document of one field, which is null where its value is missing. (A document of more fields lacks
    /// those that are missing.)
    Field(String, Expression),
}

impl Id {
    fn parse(id: RawBsonRef<'_>, variables: &Variables) -> Result<Id> {
        if let RawBsonRef::Document(fields) = id
            && count(fields) == 1
            && let Some((name, value)) = first(fields)
            && !name.starts_with('$')
        {
            // The document as a whole is parsed for its errors.
            let whole = Expression::parse(id, variables)?;
            if whole.constant().is_none() {
                return Ok(Id::Field(
                    name.to_string(),
                    Expression::parse(value, variables)?,
                ));
            }
            return Ok(Id::Value(whole));
        }
        Ok(Id::Value(Expression::parse(id, variables)?))
    }

    fn evaluate<'a>(&'a self, document: &'a Document) -> Result<Value<'a>> {
        match self {
            Id::Value(expression) => expression.evaluate(document),
            Id::Field(name, expression) => {
                let value = expression.evaluate(document)?;
                spend_bytes(value.bytes())?;
                let mut out = DocBuilder::new();
                out.append(name, value.or_null());
                Ok(Value::document(out.finish()))
            }
        }
    }
}

impl Group {
    /// What is read beside the documents.
    pub(super) fn reads(&self) -> MetaSet {
        let (Id::Value(id) | Id::Field(_, id)) = &self.id;
        let fields = self.fields.iter().map(|(_, field)| field.reads());
        fields.fold(id.reads(), MetaSet::union)
    }

    pub(super) fn parse(spec: RawBsonRef<'_>, variables: &Variables) -> Result<Group> {
        let RawBsonRef::Document(spec) = spec else {
            return Err(error(
                15947,
                "a group's fields must be specified in an object",
            ));
        };
        let mut id = None;
        let mut fields: Vec<(String, Accumulation)> = Vec::new();
        for (name, value) in elements(spec) {
            if name == "_id" {
                if id.is_some() {
                    return Err(error(15948, "a group's _id may only be specified once"));
                }
                check_id(value)?;
                id = Some(Id::parse(value, variables)?);
                continue;
            }
            fields.push((name.to_string(), parse_field(name, value, variables)?));
        }
        let id = id.ok_or_else(|| error(15955, "a group specification must include an _id"))?;
        Ok(Group {
            id,
            fields,
            engine: Engine::Classic,
            collation: variables.collation.clone(),
        })
    }
}

/// Refuses an `_id` that reads as a projection, `{a: 1}`: a constant there is written with `$literal`.
fn check_id(id: RawBsonRef<'_>) -> Result<()> {
    let RawBsonRef::Document(id) = id else {
        return Ok(());
    };
    let is_operator = elements(id)
        .next()
        .is_some_and(|(name, _)| name.starts_with('$'));
    let includes =
        |value| crate::value::is_number(value) || matches!(value, RawBsonRef::Boolean(_));
    if !is_operator && elements(id).any(|(_, value)| includes(value)) {
        return Err(error(
            17390,
            "$group does not support inclusion-style expressions",
        ));
    }
    Ok(())
}

/// A field of the output with its accumulator, in `$group`, `$bucket` and `$bucketAuto`.
pub(super) fn parse_field(
    name: &str,
    value: RawBsonRef<'_>,
    variables: &Variables,
) -> Result<Accumulation> {
    if name.contains('.') {
        return Err(error(
            40235,
            format!("The field name '{name}' cannot contain '.'"),
        ));
    }
    if name == "$doingMerge" {
        return Err(error(17030, "$doingMerge should be true if present"));
    }
    if name.starts_with('$') {
        return Err(error(
            40236,
            format!("The field name '{name}' cannot be an operator name"),
        ));
    }
    let not_an_accumulator = || {
        error(
            40234,
            format!("The field '{name}' must be an accumulator object"),
        )
    };
    let RawBsonRef::Document(spec) = value else {
        return Err(not_an_accumulator());
    };
    let Some((operator, operand)) = first(spec).filter(|(operator, _)| operator.starts_with('$'))
    else {
        return Err(not_an_accumulator());
    };
    if count(spec) > 1 {
        return Err(error(
            40238,
            format!("The field '{name}' must specify one accumulator"),
        ));
    }
    if operator == "$accumulator" {
        return Err(no_javascript("$accumulator"));
    }
    let is_unary = crate::accumulator::Kind::of_one_expression(operator).is_some();
    if is_unary && matches!(operand, RawBsonRef::Array(_)) {
        return Err(error(
            40237,
            format!("The {operator} accumulator is a unary operator"),
        ));
    }
    Accumulation::parse(operator, operand, variables)?
        .ok_or_else(|| error(15952, format!("unknown group operator '{operator}'")))
}

/// `$group` at work. The groups leave in the order of their keys, so that nobody sees in which order they came up.
#[derive(Debug)]
pub(super) struct Grouping {
    group: Group,
    groups: Groups,
    giving: Giving,
}

/// The groups that have come up.
#[derive(Debug, Default)]
struct Groups {
    places: FxHashMap<Box<[u8]>, usize>,
    list: Vec<OneGroup>,
    bytes: usize,
}

/// The groups on their way out.
enum Giving {
    Not,
    Sorting {
        keys: std::collections::hash_map::IntoIter<Box<[u8]>, usize>,
        sorter: Sorter<usize>,
    },
    Sorted(std::iter::Peekable<Box<dyn Iterator<Item = usize> + Send>>),
}

impl std::fmt::Debug for Giving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Giving::Not => "Not",
            Giving::Sorting { .. } => "Sorting",
            Giving::Sorted(_) => "Sorted",
        })
    }
}

#[derive(Debug)]
struct OneGroup {
    id: RawBson,
    accumulators: Vec<Accumulator>,
}

impl Grouping {
    pub(super) fn new(group: Group) -> Grouping {
        Grouping {
            group,
            groups: Groups::default(),
            giving: Giving::Not,
        }
    }

    /// Takes one document; what may be refused for its work comes before anything changes.
    fn push(&mut self, document: &Document) -> Result<()> {
        spend_bytes(document.as_bytes().len())?;
        let id = self.group.id.evaluate(document)?;
        spend_bytes(id.bytes())?;
        spend_sort_keys(self.group.collation.as_deref(), id.bytes())?;
        let mut inputs: SmallVec<[Input<'_>; 4]> = SmallVec::new();
        for (_, accumulation) in &self.group.fields {
            let input = accumulation.input(document)?;
            spend_bytes(input.value.bytes())?;
            inputs.push(input);
        }
        work::check()?;
        let groups = &mut self.groups;
        let place = groups.place(id.or_null(), &self.group)?;
        for (accumulator, input) in groups.list[place].accumulators.iter_mut().zip(inputs) {
            let before = accumulator.bytes();
            accumulator.add_ranked(input.value.as_ref(), &input.key)?;
            groups.bytes = groups.bytes + accumulator.bytes() - before;
        }
        if groups.bytes > MAX_GROUP_BYTES {
            return Err(error(
                292,
                format!(
                    "Exceeded memory limit for $group, but didn't allow external sort. Pass allowDiskUse:true to opt in. \
                     The limit is {MAX_GROUP_BYTES} bytes"
                ),
            ));
        }
        Ok(())
    }

    /// The document of a group, which is not held any more then.
    fn finish(&mut self, place: usize) -> Result<RawDocumentBuf> {
        let group = &mut self.groups.list[place];
        // A group may hold millions of values, each of which is copied now.
        spend(work::STEP * group.accumulators.len() as work::Units)?;
        spend_bytes(group.accumulators.iter().map(Accumulator::bytes).sum())?;
        let accumulators = std::mem::take(&mut group.accumulators);
        let mut out = DocBuilder::new();
        out.append("_id", group.id.as_raw_bson_ref());
        for (accumulator, (name, _)) in accumulators.iter().zip(&self.group.fields) {
            out.append(name, accumulator.finish().as_raw_bson_ref());
        }
        Ok(out.finish())
    }
}

impl Groups {
    /// The place of the group with this `_id`, which may be new.
    fn place(&mut self, id: RawBsonRef<'_>, group: &Group) -> Result<usize> {
        let key = encode_id_in(group.collation.as_deref(), id);
        if let Some(place) = self.places.get(&key[..]) {
            return Ok(*place);
        }
        let accumulators = group
            .fields
            .iter()
            .map(|(_, accumulation)| accumulation.start(id))
            .collect::<Result<Vec<Accumulator>>>()?;
        self.bytes +=
            2 * key.len() + 64 + accumulators.iter().map(Accumulator::bytes).sum::<usize>();
        self.places.insert(key[..].into(), self.list.len());
        self.list.push(OneGroup {
            id: id.into(),
            accumulators,
        });
        Ok(self.list.len() - 1)
    }
}

impl Step for Grouping {
    fn take(&mut self, document: &Document) -> Result<Taken> {
        match self.push(document) {
            Ok(()) => Ok(Taken::Kept),
            Err(error) => Err(coded(error, self.group.engine)),
        }
    }

    fn end(&mut self) -> Result<()> {
        self.giving = Giving::Sorting {
            keys: std::mem::take(&mut self.groups.places).into_iter(),
            sorter: Sorter::new(None, usize::MAX),
        };
        Ok(())
    }

    fn give(&mut self) -> Result<Given> {
        match &mut self.giving {
            Giving::Not => Ok(Given::Nothing),
            Giving::Sorting { keys, sorter } => {
                for (key, place) in keys.by_ref().take(SORT_RUN) {
                    sorter.push(key.into_vec(), place, 0)?;
                }
                if keys.len() == 0 {
                    let sorter = std::mem::replace(sorter, Sorter::new(None, 0));
                    let sorted: Box<dyn Iterator<Item = usize> + Send> =
                        Box::new(sorter.finish().map(|(_, place)| place));
                    self.giving = Giving::Sorted(sorted.peekable());
                }
                Ok(Given::Working)
            }
            Giving::Sorted(sorted) => {
                let Some(&place) = sorted.peek() else {
                    return Ok(Given::Nothing);
                };
                let made = self.finish(place)?;
                if let Giving::Sorted(sorted) = &mut self.giving {
                    sorted.next();
                }
                Ok(Given::Document(made.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{rawbson, rawdoc};

    fn groups(spec: RawBson) -> Grouping {
        let parsed = Group::parse(spec.as_raw_bson_ref(), &Variables::default());
        Grouping::new(parsed.expect("parses"))
    }

    /// The next group's document.
    fn given(groups: &mut Grouping) -> Result<Option<Document>> {
        loop {
            match groups.give()? {
                Given::Document(document) => return Ok(Some(document)),
                Given::Working => {}
                Given::Nothing => return Ok(None),
            }
        }
    }

    #[track_caller]
    fn check(spec: RawBson, documents: &[RawDocumentBuf], expected: &[RawDocumentBuf]) {
        let mut groups = groups(spec);
        for document in documents {
            groups.push(&document.clone().into()).expect("it is taken");
        }
        groups.end().expect("it ends");
        let mut found = Vec::new();
        while let Some(document) = given(&mut groups).expect("it is given") {
            found.push(pinion_bson::RawDocument::to_owned(&document));
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_key_of_one_field_is_null_where_it_is_missing() {
        let documents = [rawdoc! { "s": "open" }, rawdoc! { "s": null }, rawdoc! {}];
        let null = || RawBson::Null;
        check(
            rawbson!({ "_id": { "s": "$s" }, "n": { "$sum": 1 } }),
            &documents,
            &[
                rawdoc! { "_id": { "s": (null()) }, "n": 2 },
                rawdoc! { "_id": { "s": "open" }, "n": 1 },
            ],
        );
        check(
            rawbson!({ "_id": { "s": "$s", "t": "$t" }, "n": { "$sum": 1 } }),
            &documents,
            &[
                rawdoc! { "_id": {}, "n": 1 },
                rawdoc! { "_id": { "s": (null()) }, "n": 1 },
                rawdoc! { "_id": { "s": "open" }, "n": 1 },
            ],
        );
    }

    #[test]
    fn the_number_kept_may_depend_on_the_key() {
        let n = rawbson!({ "$cond": [{ "$eq": ["$k", 1] }, 1, 2] });
        check(
            rawbson!({ "_id": { "k": "$k" }, "v": { "$topN": { "n": n, "sortBy": { "v": -1 }, "output": "$v" } } }),
            &[
                rawdoc! { "k": 1, "v": 3 },
                rawdoc! { "k": 2, "v": 4 },
                rawdoc! { "k": 1, "v": 5 },
                rawdoc! { "k": 2, "v": 6 },
            ],
            &[
                rawdoc! { "_id": { "k": 1 }, "v": [5] },
                rawdoc! { "_id": { "k": 2 }, "v": [6, 4] },
            ],
        );
    }

    #[test]
    fn a_large_group_is_accounted_for_before_it_is_given() {
        let mut groups = groups(rawbson!({ "_id": null, "all": { "$push": "$$ROOT" } }));
        for _ in 0..100 {
            let document = rawdoc! { "x": "x".repeat(1000) };
            groups.push(&document.into()).expect("it is taken");
        }
        groups.end().expect("it ends");
        assert!(work::within(100_000, || given(&mut groups)).is_none());
        let one = work::within(1_000_000, || given(&mut groups)).expect("the budget suffices");
        let one = one.expect("it is given").expect("there is a group");
        assert!(one.as_bytes().len() > 100_000);
        assert!(given(&mut groups).expect("it is given").is_none());
    }

    #[track_caller]
    fn check_error(engine: Engine, accumulator: RawBson, code: i32) {
        let mut groups = groups(rawbson!({ "_id": null, "r": accumulator.clone() }));
        groups.group.engine = engine;
        let document = Document::from(rawdoc! { "v": 0 });
        let failed = groups.take(&document).expect_err("it fails");
        assert_eq!(failed.code.0, code, "{accumulator:?}");
    }

    #[test]
    fn codes_of_the_engines() {
        for (accumulator, classic, slot_based) in [
            (rawbson!({ "$sum": { "$divide": [1, "$v"] } }), 2, 4_848_401),
            (
                rawbson!({ "$sum": { "$mod": [1, "$v"] } }),
                16610,
                4_848_403,
            ),
            (rawbson!({ "$mergeObjects": "$v" }), 40400, 5_911_200),
            (
                rawbson!({ "$firstN": { "n": "x", "input": "$v" } }),
                5_787_902,
                7_548_606,
            ),
            (rawbson!({ "$setUnion": "$v" }), 14, 14),
        ] {
            check_error(Engine::Classic, accumulator.clone(), classic);
            check_error(Engine::SlotBased, accumulator, slot_based);
        }
    }
}
