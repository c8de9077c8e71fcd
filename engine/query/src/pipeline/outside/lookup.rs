//! `$lookup`

use pinion_bson::{
    DocBuilder, RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf,
};
use pinion_wire::Result;

use super::nested::append_with;
use super::{
    append_equality, begins_with_documents, check_foreign, check_inner, object, sub_pipeline,
};
use crate::error::{error, failed_to_parse};
use crate::expression::{Expression, MetaSet, Variables, check_field_path};
use crate::limits::MAX_JOINED_BYTES;
use crate::pipeline::spec::{
    check_duplicates, missing_field, optional_text, unknown_field, wrong_type,
};
use crate::pipeline::{Document, Pipeline};
use crate::value::{elements, field, items, type_name};
use crate::work::spend_bytes;

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub struct Lookup {
    from: Option<String>,
    output: Box<[Box<str>]>,
    join: Option<Join>,
    lets: Vec<(String, Expression)>,
    stages: RawArrayBuf,
}

/// The fields that must be equal.
#[derive(Clone, Debug)]
struct Join {
    local: Box<[Box<str>]>,
    foreign: String,
}

impl Lookup {
    pub(in crate::pipeline) fn parse(
        spec: RawBsonRef<'_>,
        variables: &Variables,
    ) -> Result<Lookup> {
        let spec = object(spec, || {
            failed_to_parse("the $lookup stage specification must be an object")
        })?;
        let from = match field(spec, "from") {
            Some(from) => Some(parse_from(from)?),
            None => {
                check_made(field(spec, "pipeline"))?;
                None
            }
        };
        let (mut output, mut local, mut foreign) = (None, None, None);
        let (mut lets, mut stages) = (Vec::new(), None);
        check_duplicates("$lookup", spec)?;
        for (name, value) in elements(spec) {
            match name {
                "from" => {}
                "as" => output = optional_text("$lookup.as", value)?,
                "localField" => local = optional_text("$lookup.localField", value)?,
                "foreignField" => foreign = optional_text("$lookup.foreignField", value)?,
                "let" if matches!(value, RawBsonRef::Null) => {}
                "let" => lets = parse_lets("$lookup", value, variables)?,
                "pipeline" => stages = sub_pipeline("$lookup", Some(value))?,
                "_internalUnwind" | "_internalCollation" => {
                    return Err(failed_to_parse(format!("{name} is for internal use alone")));
                }
                other => return Err(unknown_field(&format!("$lookup.{other}"))),
            }
        }
        let output = output.ok_or_else(|| missing_field("$lookup.as"))?;
        check_field_path(output)?;
        let join = match (local, foreign) {
            (Some(local), Some(foreign)) => {
                check_field_path(local)?;
                check_field_path(foreign)?;
                Some(Join {
                    local: path_of(local),
                    foreign: foreign.to_owned(),
                })
            }
            (None, None) => None,
            _ => {
                return Err(failed_to_parse(
                    "$lookup requires both or neither of 'localField' and 'foreignField' to be specified",
                ));
            }
        };
        if join.is_none() && stages.is_none() {
            return Err(failed_to_parse(
                "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified",
            ));
        }
        if stages.is_none() && !lets.is_empty() {
            return Err(failed_to_parse(
                "$lookup with a 'let' argument must also specify 'pipeline'",
            ));
        }
        let stages = stages.unwrap_or_default();
        check_inner("$lookup", &stages, &[51_047], |row| row.in_lookup)?;
        let lookup = Lookup {
            from,
            output: path_of(output),
            join,
            lets,
            stages,
        };
        lookup.check_stages(variables)?;
        Ok(lookup)
    }

    /// Parses the sub-pipeline for its errors, with variables whose values are not known yet.
    fn check_stages(&self, variables: &Variables) -> Result<()> {
        let mut inner = variables.clone();
        for (name, _) in &self.lets {
            inner.leave_unbound(name);
        }
        Pipeline::parse_sub(&self.stages, &inner).map(|_| ())
    }

    /// What is read beside the documents.
    pub(in crate::pipeline) fn reads(&self) -> MetaSet {
        let lets = self.lets.iter().map(|(_, value)| value.reads());
        lets.fold(MetaSet::default(), MetaSet::union)
    }

    /// The collection that is read; none where the pipeline makes its documents.
    pub fn from(&self) -> Option<&str> {
        self.from.as_deref()
    }

    /// The stages that find what is joined to a document, and what their variables are.
    pub fn stages_for(
        &self,
        document: &Document,
        variables: &Variables,
    ) -> Result<(RawArrayBuf, Variables)> {
        let mut inner = variables.clone();
        for (name, expression) in &self.lets {
            inner.bind(name, expression.evaluate(document)?.into_owned());
        }
        let Some(join) = &self.join else {
            return Ok((self.stages.clone(), inner));
        };
        let mut stage = DocBuilder::new();
        stage.append("$match", RawBsonRef::Document(&join.filter(document)?));
        let stage = stage.finish();
        let mut stages = RawArrayBuf::new();
        // What makes documents comes first.
        let made = usize::from(self.from.is_none());
        for inner in items(&self.stages).take(made) {
            stages.push(RawBson::from(inner));
        }
        stages.push(RawBson::Document(stage));
        for inner in items(&self.stages).skip(made) {
            stages.push(RawBson::from(inner));
        }
        Ok((stages, inner))
    }

    /// The document with what was found for it.
    pub fn joined(&self, document: &Document, found: &[Document]) -> Result<Document> {
        let bytes: usize = found.iter().map(|one| one.as_bytes().len()).sum();
        spend_bytes(document.as_bytes().len() + bytes)?;
        let mut out = DocBuilder::new();
        append_with(&mut out, Some(document), &self.output, &mut |out, name| {
            out.start_array(name);
            for one in found {
                out.push(RawBsonRef::Document(one));
            }
            out.end();
        });
        Ok(Document::from(out.finish()).made_of(document))
    }

    /// Counts what is found for one document.
    ///
    /// # Errors
    /// When it is too much.
    pub fn account(&self, bytes: &mut usize, found: &RawDocument) -> Result<()> {
        *bytes += found.as_bytes().len();
        if *bytes > MAX_JOINED_BYTES {
            return Err(error(
                4568,
                format!(
                    "Total size of documents in {} matching pipeline's $lookup stage exceeds {MAX_JOINED_BYTES} bytes",
                    self.from.as_deref().unwrap_or("$documents")
                ),
            ));
        }
        Ok(())
    }
}

impl Join {
    /// The filter for what equals one of the document's local values; a document without any has
    /// null.
    fn filter(&self, document: &RawDocument) -> Result<RawDocumentBuf> {
        spend_bytes(document.as_bytes().len())?;
        let mut values = Vec::new();
        collect(RawBsonRef::Document(document), &self.local, &mut values);
        if values.is_empty() {
            values.push(RawBsonRef::Null);
        }
        let is_plain = |value: &RawBsonRef<'_>| {
            !matches!(
                value,
                RawBsonRef::RegularExpression(_) | RawBsonRef::Undefined | RawBsonRef::Document(_)
            )
        };
        let mut out = DocBuilder::new();
        if values.iter().all(is_plain) {
            out.start_document(&self.foreign).start_array("$in");
            for value in values {
                out.push(value);
            }
            out.end().end();
            return Ok(out.finish());
        }
        out.start_array("$or");
        for value in values {
            out.push_document();
            append_equality(&mut out, &self.foreign, value);
            out.end();
        }
        out.end();
        Ok(out.finish())
    }
}

/// The values at a path, those of arrays one by one.
fn collect<'d>(value: RawBsonRef<'d>, path: &[Box<str>], out: &mut Vec<RawBsonRef<'d>>) {
    match (value, path) {
        (RawBsonRef::Array(array), []) => out.extend(items(array)),
        (value, []) => out.push(value),
        (RawBsonRef::Document(document), [name, rest @ ..]) => {
            if let Some(value) = field(document, name) {
                collect(value, rest, out);
            }
        }
        (RawBsonRef::Array(array), [name, rest @ ..]) => {
            for item in items(array) {
                if matches!(item, RawBsonRef::Document(_)) {
                    collect(item, path, out);
                }
            }
            if let Some(item) = name.parse().ok().and_then(|at: usize| items(array).nth(at)) {
                collect(item, rest, out);
            }
        }
        _ => {}
    }
}

/// A pipeline that reads no collection must make its documents.
fn check_made(stages: Option<RawBsonRef<'_>>) -> Result<()> {
    match sub_pipeline("$lookup", stages)? {
        None => Err(failed_to_parse(
            "must specify 'pipeline' when 'from' is empty",
        )),
        Some(stages) if !begins_with_documents(&stages) => Err(failed_to_parse(
            "$lookup stage without explicit collection must have a pipeline with $documents as first stage",
        )),
        Some(_) => Ok(()),
    }
}

fn parse_from(value: RawBsonRef<'_>) -> Result<String> {
    match value {
        RawBsonRef::String(name) => {
            check_foreign(name)?;
            Ok(name.to_owned())
        }
        RawBsonRef::Document(from) => {
            let (mut db, mut collection) = (None, None);
            check_duplicates("$lookup.from", from)?;
            for (name, value) in elements(from) {
                match name {
                    "db" => db = optional_text("$lookup.from.db", value)?,
                    "coll" => collection = optional_text("$lookup.from.coll", value)?,
                    _ => return Err(unknown_field(&format!("$lookup.from.{name}"))),
                }
            }
            Err(failed_to_parse(format!(
                "$lookup with syntax {{from: {{db:<>, coll:<>}},..}} is not supported for db: {} and coll: {}",
                db.unwrap_or(""),
                collection.unwrap_or("")
            )))
        }
        other => Err(failed_to_parse(format!(
            "$lookup argument 'from: {}' must be a string, is type {}",
            crate::text::value_text(other),
            type_name(other)
        ))),
    }
}

/// The variables that a stage defines for its sub-pipeline.
pub(super) fn parse_lets(
    stage: &str,
    value: RawBsonRef<'_>,
    variables: &Variables,
) -> Result<Vec<(String, Expression)>> {
    let RawBsonRef::Document(lets) = value else {
        return Err(wrong_type(&format!("{stage}.let"), value, "object"));
    };
    let mut out = Vec::new();
    for (name, value) in elements(lets) {
        crate::expression::check_variable_name(name, false)?;
        out.push((name.to_owned(), Expression::parse(value, variables)?));
    }
    Ok(out)
}

pub(super) fn path_of(text: &str) -> Box<[Box<str>]> {
    text.split('.').map(Box::from).collect()
}

/// The stages as they were given.
impl AsRef<RawArray> for Lookup {
    fn as_ref(&self) -> &RawArray {
        &self.stages
    }
}
