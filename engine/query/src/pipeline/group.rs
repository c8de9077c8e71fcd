//! `$group`

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_keystring::encode_id;
use pinion_wire::Result;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::accumulator::{Accumulator, Kind};
use crate::error::error;
use crate::expression::{Expression, Value, Variables};
use crate::limits::MAX_GROUP_BYTES;
use crate::value::{count, elements, first, is_empty, items};
use crate::work::{self, spend_bytes};

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub(super) struct Group {
    id: Expression,
    fields: Vec<(String, Kind, Expression)>,
}

impl Group {
    pub(super) fn parse(spec: RawBsonRef<'_>, variables: &Variables) -> Result<Group> {
        let RawBsonRef::Document(spec) = spec else {
            return Err(error(
                15947,
                "a group's fields must be specified in an object",
            ));
        };
        let mut id = None;
        let mut fields: Vec<(String, Kind, Expression)> = Vec::new();
        for (name, value) in elements(spec) {
            if name == "_id" {
                if id.is_some() {
                    return Err(error(15948, "a group's _id may only be specified once"));
                }
                check_id(value)?;
                id = Some(Expression::parse(value, variables)?);
                continue;
            }
            let (kind, expression) = parse_field(name, value, variables)?;
            fields.push((name.to_string(), kind, expression));
        }
        let id = id.ok_or_else(|| error(15955, "a group specification must include an _id"))?;
        Ok(Group { id, fields })
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

fn parse_field(
    name: &str,
    value: RawBsonRef<'_>,
    variables: &Variables,
) -> Result<(Kind, Expression)> {
    if name.contains('.') {
        return Err(error(
            40235,
            format!("The field name '{name}' cannot contain '.'"),
        ));
    }
    if name.starts_with('$') {
        return Err(error(
            40236,
            format!("The field name '{name}' cannot be an operator name"),
        ));
    }
    if name == "$doingMerge" {
        return Err(error(17030, "$doingMerge should be true if present"));
    }
    let RawBsonRef::Document(spec) = value else {
        return Err(error(
            40234,
            format!("The field '{name}' must be an accumulator object"),
        ));
    };
    let Some((operator, operand)) = first(spec).filter(|(operator, _)| operator.starts_with('$'))
    else {
        return Err(error(
            40234,
            format!("The field '{name}' must be an accumulator object"),
        ));
    };
    if count(spec) > 1 {
        return Err(error(
            40238,
            format!("The field '{name}' must specify one accumulator"),
        ));
    }
    if operator == "$count" {
        match operand {
            RawBsonRef::Document(empty) if is_empty(empty) => {}
            _ => return Err(error(9, "$count takes no arguments, i.e. $count:{}")),
        }
        return Ok((
            Kind::Sum,
            Expression::parse(RawBsonRef::Int32(1), variables)?,
        ));
    }
    let Some(kind) = Kind::find(operator) else {
        const UNSUPPORTED: &[&str] = &[
            "$accumulator",
            "$bottom",
            "$bottomN",
            "$firstN",
            "$lastN",
            "$maxN",
            "$median",
            "$minN",
            "$percentile",
            "$top",
            "$topN",
        ];
        return Err(if UNSUPPORTED.contains(&operator) {
            error(115, format!("the accumulator {operator} is not supported"))
        } else {
            error(15952, format!("unknown group operator '{operator}'"))
        });
    };
    let operand = match operand {
        RawBsonRef::Array(array) => match &items(array).collect::<Vec<_>>()[..] {
            [one] => *one,
            _ => {
                return Err(error(
                    40237,
                    format!("The {operator} accumulator is a unary operator"),
                ));
            }
        },
        other => other,
    };
    Ok((kind, Expression::parse(operand, variables)?))
}

/// The groups so far, in the order in which they came up.
#[derive(Debug)]
pub(super) struct Groups {
    group: Group,
    places: FxHashMap<Vec<u8>, usize>,
    groups: Vec<(RawBson, Vec<Accumulator>)>,
    bytes: usize,
}

impl Groups {
    pub(super) fn new(group: Group) -> Groups {
        Groups {
            group,
            places: FxHashMap::default(),
            groups: Vec::new(),
            bytes: 0,
        }
    }

    pub(super) fn push(&mut self, document: &RawDocument) -> Result<()> {
        // All that may be refused for its work comes before anything changes.
        spend_bytes(document.as_bytes().len())?;
        let id = self.group.id.evaluate(document)?;
        spend_bytes(id.bytes())?;
        let mut values: SmallVec<[Value<'_>; 4]> = SmallVec::new();
        for (_, _, expression) in &self.group.fields {
            let value = expression.evaluate(document)?;
            spend_bytes(value.bytes())?;
            values.push(value);
        }
        work::check()?;
        let id = id.or_null();
        let key = encode_id(id);
        let at = match self.places.get(&key[..]) {
            Some(at) => *at,
            None => {
                let accumulators: Vec<Accumulator> = self
                    .group
                    .fields
                    .iter()
                    .map(|(_, kind, _)| Accumulator::new(*kind))
                    .collect();
                self.bytes +=
                    2 * key.len() + 64 + accumulators.iter().map(Accumulator::bytes).sum::<usize>();
                self.places.insert(key.to_vec(), self.groups.len());
                self.groups.push((id.into(), accumulators));
                self.groups.len() - 1
            }
        };
        for (accumulator, value) in self.groups[at].1.iter_mut().zip(values) {
            let before = accumulator.bytes();
            accumulator.add(value.as_ref())?;
            self.bytes = self.bytes + accumulator.bytes() - before;
        }
        if self.bytes > MAX_GROUP_BYTES {
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

    pub(super) fn finish(self) -> impl Iterator<Item = RawDocumentBuf> {
        let fields = self.group.fields;
        self.groups.into_iter().map(move |(id, accumulators)| {
            let mut out = DocBuilder::new();
            out.append("_id", id.as_raw_bson_ref());
            for (accumulator, (name, _, _)) in accumulators.iter().zip(&fields) {
                out.append(name, accumulator.finish().as_raw_bson_ref());
            }
            out.finish()
        })
    }
}
