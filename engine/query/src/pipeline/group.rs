//! `$group` as it is written.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_wire::{ErrorCode, Result};
use smallvec::SmallVec;

use super::Document;
use super::codes::Engine;
use crate::accumulator::{Accumulation, Input, Kind};
use crate::error::{error, no_javascript};
use crate::expression::{Expression, MetaSet, Subject, Value, Variables};
use crate::field_walk::{FieldWalk, WantedFields};
use crate::operator_uses::{OperatorKind, note};
use crate::value::{count, elements, first};
use crate::work::spend_bytes;

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) id: Id,
    pub(super) fields: Vec<(String, Accumulation)>,
    pub(super) collation: Option<Arc<Collation>>,
    /// Which of MongoDB's engines would run the stage, which shows in the codes of errors.
    pub(super) engine: Engine,
    /// The groups leave in the form that a merging `$group` of MongoDB 4.4 takes.
    pub(super) gives_mergeable: bool,
}

/// What a group's documents have in common.
#[derive(Clone, Debug)]
pub(super) enum Id {
    Value(Expression),
    /// A document of one field, which is null where its value is missing. (A document of more
    /// fields lacks those that are missing.)
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

    fn expression(&self) -> &Expression {
        let (Id::Value(expression) | Id::Field(_, expression)) = self;
        expression
    }

    fn evaluate<'a>(
        &'a self,
        subject: Subject<'a>,
        walked: (&mut FieldWalk<'a>, Option<u8>),
    ) -> Result<Value<'a>> {
        match self {
            Id::Value(expression) => expression.evaluate_walked(subject, walked),
            Id::Field(name, expression) => {
                let value = expression.evaluate_walked(subject, walked)?;
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
        let fields = self.fields.iter().map(|(_, field)| field.reads());
        fields.fold(self.id.expression().reads(), MetaSet::union)
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
            gives_mergeable: false,
        })
    }
}

/// What a group reads of each document: the fields that its expressions are, in one walk, and what
/// others come to.
#[derive(Debug)]
pub(super) struct GroupReader {
    wanted: WantedFields,
    id: Option<u8>,
    inputs: Vec<Option<u8>>,
}

/// What one document gives a group.
pub(super) struct GroupInput<'a> {
    pub id: Value<'a>,
    pub inputs: SmallVec<[Input<'a>; 4]>,
}

impl GroupReader {
    pub(super) fn new(group: &Group) -> GroupReader {
        let mut wanted = WantedFields::default();
        let mut place = |path: Option<&[Box<str>]>| wanted.want(&path?[0]);
        GroupReader {
            id: place(group.id.expression().field_path()),
            inputs: (group.fields.iter())
                .map(|(_, field)| place(field.field_path()))
                .collect(),
            wanted,
        }
    }

    /// Reads a document.
    ///
    /// # Errors
    /// Those of expressions; the work is refused.
    pub(super) fn read<'a>(
        &'a self,
        group: &'a Group,
        subject: Subject<'a>,
    ) -> Result<GroupInput<'a>> {
        let mut walk = self.wanted.walk(subject.document);
        let id = group.id.evaluate(subject, (&mut walk, self.id))?;
        spend_bytes(id.bytes())?;
        let mut inputs = SmallVec::new();
        for ((_, field), place) in group.fields.iter().zip(&self.inputs) {
            let input = field.input_walked(subject, (&mut walk, *place))?;
            spend_bytes(input.value.bytes())?;
            inputs.push(input);
        }
        Ok(GroupInput { id, inputs })
    }
}

impl Group {
    /// Whether groups of parts of the documents can be put together.
    pub(super) fn is_divisible(&self) -> bool {
        self.fields
            .iter()
            .all(|(_, field)| field.kind().is_divisible())
    }

    /// Has the groups leave in the form that a merging `$group` of MongoDB 4.4 takes.
    ///
    /// # Errors
    /// `CommandNotSupported` for an accumulator that it does not have.
    pub(super) fn give_mergeable(&mut self) -> Result<()> {
        let mut kinds = self.fields.iter().map(|(_, field)| field.kind());
        if let Some(kind) = kinds.find(|kind| !kind.is_mergeable_by_v44()) {
            return Err(error(
                ErrorCode::COMMAND_NOT_SUPPORTED.0,
                format!(
                    "the accumulator {} cannot be merged by MongoDB 4.4",
                    kind.name()
                ),
            ));
        }
        self.gives_mergeable = true;
        Ok(())
    }

    /// Whether what parts know of groups carries the order of their documents.
    pub(super) fn needs_order(&self) -> bool {
        self.fields
            .iter()
            .any(|(_, field)| field.kind().needs_order())
    }

    /// The stage that puts together what parts know of its groups, as MongoDB shows it.
    pub(super) fn merge_source(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.start_document("$group").append("_id", "$$ROOT._id");
        for (name, field) in &self.fields {
            let kind = match field.kind() {
                // Counts are added up.
                Kind::Count => Kind::Sum.name(),
                kind => kind.name(),
            };
            out.start_document(name)
                .append(kind, format!("$$ROOT.{name}").as_str())
                .end();
        }
        out.append("$doingMerge", true).end();
        out.finish()
    }

    /// Whether there is one group of all documents, which are only counted.
    pub(super) fn only_counts(&self) -> bool {
        let counts = |field: &Accumulation| *field.kind() == Kind::Count;
        matches!(&self.id, Id::Value(id) if id.constant().is_some())
            && self.fields.iter().all(|(_, field)| counts(field))
    }

    /// What a part gives for a number of documents, where they are only counted.
    pub(super) fn counted(&self, count: RawBsonRef<'_>) -> Option<Document> {
        let Id::Value(id) = &self.id else {
            return None;
        };
        let mut out = DocBuilder::new();
        out.append("_id", id.constant()?.as_raw_bson_ref());
        out.start_array("partials");
        for _ in &self.fields {
            out.push(count);
        }
        out.end();
        Some(out.finish().into())
    }
}

/// Refuses an `_id` that reads as a projection, `{a: 1}`: a constant there is written with
/// `$literal`.
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
    note(OperatorKind::GroupAccumulator, operator);
    Accumulation::parse(operator, operand, variables)?
        .ok_or_else(|| error(15952, format!("unknown group operator '{operator}'")))
}
