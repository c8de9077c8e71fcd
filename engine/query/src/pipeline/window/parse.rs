//! The stage's specification: `{partitionBy, sortBy, output}`.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::function::{Context, Function};
use super::held::Element;
use super::partition::partition_key;
use crate::error::failed_to_parse;
use crate::expression::{Expression, MetaSet, Variables};
use crate::pipeline::Document;
use crate::pipeline::parse::{push_addition, push_sort};
use crate::pipeline::spec::{check_duplicates, missing_field, optional_document, unknown_field};
use crate::pipeline::stage::{Stage, StageKind};
use crate::projection::Projection;
use crate::sort::SortPattern;
use crate::value::{elements, type_name};
use crate::work::spend_bytes;

/// Where a partition's key stands that is no field of the documents.
const PARTITION_FIELD: &str = "__internal_setWindowFields_partition_key";

/// The functions with what they need, behind the sort.
#[derive(Debug)]
pub(in crate::pipeline) struct WindowFields {
    partition: Option<Expression>,
    sort: Option<SortPattern>,
    /// The value that the partitions are sorted by, where it is one.
    time: Option<Expression>,
    functions: Vec<Function>,
    output: Projection,
    pub(super) collation: Option<Arc<Collation>>,
}

impl WindowFields {
    pub(super) fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter()
    }

    /// What is read beside the documents, but for what the stages before and behind read.
    pub(in crate::pipeline) fn reads(&self) -> MetaSet {
        let functions = self.functions.iter().map(Function::reads);
        functions.fold(MetaSet::default(), MetaSet::union)
    }

    pub(super) fn partition_of(&self, document: &Document) -> Result<RawBson> {
        match &self.partition {
            None => Ok(RawBson::Null),
            Some(partition) => {
                let key = partition.evaluate(document)?;
                spend_bytes(key.bytes())?;
                partition_key(key.as_ref())
            }
        }
    }

    /// What a document gives each function.
    pub(super) fn elements_of(&self, document: &Document) -> Result<Vec<Element>> {
        let time = match &self.time {
            Some(time) => {
                let time = time.evaluate(document)?;
                spend_bytes(time.bytes())?;
                time.into_owned()
            }
            None => None,
        };
        let element =
            |function: &Function| function.element(document, time.as_ref(), self.sort.as_ref());
        self.functions.iter().map(element).collect()
    }

    /// The document with the functions' results.
    pub(super) fn output(
        &self,
        document: &RawDocument,
        results: &[RawBson],
    ) -> Result<RawDocumentBuf> {
        self.output.apply_values(document, results)
    }
}

/// Appends the stages that do the work.
pub(in crate::pipeline) fn parse(
    spec: RawBsonRef<'_>,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(failed_to_parse(format!(
            "the $setWindowFields stage specification must be an object, found {}",
            type_name(spec)
        )));
    };
    check_duplicates("$setWindowFields", spec)?;
    let (mut partition_by, mut sort_by, mut output) = (None, None, None);
    for (name, value) in elements(spec) {
        match name {
            "partitionBy" => partition_by = Some(value),
            "sortBy" => sort_by = optional_document("$setWindowFields.sortBy", value)?,
            "output" => output = optional_document("$setWindowFields.output", value)?,
            _ => return Err(unknown_field(&format!("$setWindowFields.{name}"))),
        }
    }
    let output = output.ok_or_else(|| missing_field("$setWindowFields.output"))?;
    let partition = match partition_by {
        Some(partition_by) => PartitionBy::parse(partition_by, variables)?,
        None => PartitionBy::Nothing,
    };
    let sort = sort_by.map(SortPattern::parse).transpose()?;
    let sort = sort.map(|sort| sort.with_collation(variables.collation.clone()));
    let context = Context {
        sort: sort.as_ref(),
        variables,
    };
    let mut functions = Vec::new();
    for (name, value) in elements(output) {
        let RawBsonRef::Document(function) = value else {
            return Err(failed_to_parse(format!(
                "The field '{name}' must be an object"
            )));
        };
        functions.push(Function::parse(function, context)?);
    }
    let projection = Projection::of_values(elements(output).map(|(name, _)| name))?;
    push_stages(spec, partition, sort, functions, projection, variables, out)
}

/// What the documents of a partition have in common.
enum PartitionBy {
    Nothing,
    /// A field, by its path.
    Field(String),
    /// Anything else, which is computed before the sort.
    Computed(RawDocumentBuf),
}

impl PartitionBy {
    fn parse(value: RawBsonRef<'_>, variables: &Variables) -> Result<PartitionBy> {
        let expression = Expression::parse(value, variables)?;
        if let Some(constant) = expression.constant() {
            partition_key(Some(constant.as_raw_bson_ref()))?;
            return Ok(PartitionBy::Nothing);
        }
        if let RawBsonRef::String(path) = value
            && let Some(path) = path.strip_prefix('$')
            && !path.starts_with('$')
        {
            return Ok(PartitionBy::Field(path.to_string()));
        }
        let mut addition = DocBuilder::new();
        addition.append(PARTITION_FIELD, value);
        Ok(PartitionBy::Computed(addition.finish()))
    }
}

fn push_stages(
    spec: &RawDocument,
    partition: PartitionBy,
    sort: Option<SortPattern>,
    functions: Vec<Function>,
    output: Projection,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let path = match &partition {
        PartitionBy::Nothing => None,
        PartitionBy::Field(path) => Some(&path[..]),
        PartitionBy::Computed(addition) => {
            push_addition(addition, variables, out)?;
            Some(PARTITION_FIELD)
        }
    };
    let mut order = DocBuilder::new();
    if let Some(path) = path {
        order.append(path, 1);
    }
    for (name, value) in sort.iter().flat_map(|sort| elements(sort.source())) {
        if Some(name) != path {
            order.append(name, value);
        }
    }
    let order = order.finish();
    if !crate::value::is_empty(&order) {
        push_sort(&order, variables, out)?;
    }
    let field = |path: &str| {
        let path = format!("${path}");
        Expression::parse(RawBsonRef::String(&path), variables)
    };
    let needs_time = functions.iter().any(Function::needs_time);
    let time = sort.as_ref().filter(|_| needs_time);
    let time = time.and_then(|sort| sort.fields().next());
    let fields = WindowFields {
        partition: path.map(field).transpose()?,
        time: time.map(|(path, _)| field(path.text())).transpose()?,
        sort,
        functions,
        output,
        collation: variables.collation.clone(),
    };
    out.push(Stage::made(
        "$_internalSetWindowFields",
        spec,
        StageKind::Window(Arc::new(fields)),
    ));
    if let PartitionBy::Computed(_) = partition {
        let mut exclusion = DocBuilder::new();
        exclusion.append(PARTITION_FIELD, 0);
        let exclusion = exclusion.finish();
        let projection = Projection::parse_aggregation(&exclusion, variables)?;
        let kind = StageKind::Project(projection);
        out.push(Stage::made("$project", &*exclusion, kind));
    }
    Ok(())
}
