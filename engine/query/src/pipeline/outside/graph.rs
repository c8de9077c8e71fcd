//! `$graphLookup`: what the next round of the search asks for, and what has been found.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_keystring::encode_id_in;
use pinion_wire::Result;
use rustc_hash::FxHashSet;

use super::lookup::path_of;
use super::nested::append_with;
use super::{append_equality, check_foreign, object, text};
use crate::error::{error, failed_to_parse};
use crate::expression::{Expression, MetaSet, Variables, check_field_path};
use crate::limits::{MAX_GRAPH_BYTES, MAX_GRAPH_FRONTIER};
use crate::matcher::Matcher;
use crate::number::exact_i64;
use crate::pipeline::Document;
use crate::value::{elements, field, is_number, items, type_name};
use crate::work::spend_bytes;

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub struct GraphLookup {
    from: String,
    output: Box<[Box<str>]>,
    start: Expression,
    connect_from: Box<[Box<str>]>,
    connect_to: String,
    depth_field: Option<Box<[Box<str>]>>,
    max_depth: Option<i64>,
    restrict: Option<RawDocumentBuf>,
}

impl GraphLookup {
    pub(in crate::pipeline) fn parse(
        spec: RawBsonRef<'_>,
        variables: &Variables,
    ) -> Result<GraphLookup> {
        let spec = object(spec, || {
            error(
                40327,
                "the $graphLookup stage specification must be an object",
            )
        })?;
        let (mut from, mut output, mut start) = (None, None, None);
        let (mut connect_from, mut connect_to) = (None, None);
        let (mut depth_field, mut max_depth, mut restrict) = (None, None, None);
        for (name, value) in elements(spec) {
            match name {
                "startWith" => start = Some(Expression::parse(value, variables)?),
                "maxDepth" => max_depth = Some(parse_depth(value)?),
                "restrictSearchWithMatch" => {
                    let RawBsonRef::Document(filter) = value else {
                        return Err(error(
                            40185,
                            format!(
                                "restrictSearchWithMatch must be an object, found {}",
                                type_name(value)
                            ),
                        ));
                    };
                    Matcher::parse_validator(filter, variables).map_err(|error| {
                        error.context(
                            "Failed to parse 'restrictSearchWithMatch' option to $graphLookup",
                        )
                    })?;
                    restrict = Some(filter.to_owned());
                }
                "from" => from = Some(text("$graphLookup", name, value)?),
                "as" | "connectFromField" | "connectToField" | "depthField" => {
                    let RawBsonRef::String(path) = value else {
                        return Err(error(
                            40103,
                            format!(
                                "expected string as argument for {name}, found: {}",
                                type_name(value)
                            ),
                        ));
                    };
                    check_field_path(path)?;
                    match name {
                        "as" => output = Some(path_of(path)),
                        "connectFromField" => connect_from = Some(path_of(path)),
                        "connectToField" => connect_to = Some(path.to_owned()),
                        _ => depth_field = Some(path_of(path)),
                    }
                }
                other => {
                    return Err(error(
                        40104,
                        format!("Unknown argument to $graphLookup: {other}"),
                    ));
                }
            }
        }
        let from = from.ok_or_else(|| {
            failed_to_parse("missing 'from' option to $graphLookup stage specification")
        })?;
        check_foreign(from)?;
        let (Some(output), Some(start), Some(connect_from), Some(connect_to)) =
            (output, start, connect_from, connect_to)
        else {
            return Err(error(
                40105,
                "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField' to be specified.",
            ));
        };
        Ok(GraphLookup {
            from: from.to_owned(),
            output,
            start,
            connect_from,
            connect_to,
            depth_field,
            max_depth,
            restrict,
        })
    }

    /// What is read beside the documents.
    pub(in crate::pipeline) fn reads(&self) -> MetaSet {
        self.start.reads()
    }

    /// The collection that is searched.
    pub fn from(&self) -> &str {
        &self.from
    }

    /// The search that begins at a document.
    pub fn begin(&self, document: &Document, variables: &Variables) -> Result<Traversal> {
        let start = self.start.evaluate(document)?;
        let mut search = Traversal {
            collation: variables.collation.clone(),
            ..Traversal::default()
        };
        match start.as_ref() {
            None => search.want(RawBsonRef::Null)?,
            Some(RawBsonRef::Array(values)) => {
                for value in items(values) {
                    search.want(value)?;
                }
            }
            Some(value) => search.want(value)?,
        }
        Ok(search)
    }

    /// The filter for the next round; none when the search has ended.
    pub fn round(&self, search: &mut Traversal) -> Option<RawDocumentBuf> {
        let frontier = std::mem::take(&mut search.frontier);
        if frontier.is_empty() || self.max_depth.is_some_and(|most| search.depth > most) {
            return None;
        }
        let mut out = DocBuilder::new();
        out.start_array("$and");
        if let Some(restrict) = &self.restrict {
            out.push(RawBsonRef::Document(restrict));
        }
        out.push_document().start_array("$or");
        let is_plain = |value: &RawBson| {
            !matches!(
                value,
                RawBson::RegularExpression(_) | RawBson::Document(_) | RawBson::Undefined
            )
        };
        out.push_document()
            .start_document(&self.connect_to)
            .start_array("$in");
        for value in frontier.iter().filter(|value| is_plain(value)) {
            out.push(value.as_raw_bson_ref());
        }
        out.end().end().end();
        for value in frontier.iter().filter(|value| !is_plain(value)) {
            out.push_document();
            append_equality(&mut out, &self.connect_to, value.as_raw_bson_ref());
            out.end();
        }
        out.end().end().end();
        Some(out.finish())
    }

    /// Takes a document that a round has found.
    pub fn found(&self, search: &mut Traversal, document: &RawDocument) -> Result<()> {
        spend_bytes(document.as_bytes().len())?;
        let id = field(document, "_id").unwrap_or(RawBsonRef::Null);
        if !search
            .visited
            .insert(encode_id_in(search.collation.as_deref(), id).to_vec())
        {
            return Ok(());
        }
        let kept: Document = match &self.depth_field {
            None => document.to_owned().into(),
            Some(path) => {
                let mut out = DocBuilder::new();
                append_with(&mut out, Some(document), path, &mut |out, name| {
                    out.append(name, search.depth);
                });
                out.finish().into()
            }
        };
        search.bytes += 2 * kept.as_bytes().len();
        if search.bytes > MAX_GRAPH_BYTES {
            return Err(error(
                40099,
                "$graphLookup reached maximum memory consumption",
            ));
        }
        search.results.push(kept);
        connect(RawBsonRef::Document(document), &self.connect_from, search)
    }

    /// The document with what the search has found.
    pub fn joined(&self, document: &Document, search: &Traversal) -> Result<Document> {
        spend_bytes(document.as_bytes().len() + search.bytes)?;
        let mut out = DocBuilder::new();
        append_with(&mut out, Some(document), &self.output, &mut |out, name| {
            out.start_array(name);
            for one in &search.results {
                out.push(RawBsonRef::Document(one));
            }
            out.end();
        });
        Ok(Document::from(out.finish()).made_of(document))
    }
}

/// A search under way: what has been found, and what is to be looked for next.
#[derive(Debug, Default)]
pub struct Traversal {
    depth: i64,
    frontier: Vec<RawBson>,
    asked: FxHashSet<Vec<u8>>,
    visited: FxHashSet<Vec<u8>>,
    results: Vec<Document>,
    bytes: usize,
    collation: Option<std::sync::Arc<pinion_collation::Collation>>,
}

impl Traversal {
    /// All documents of a round have been taken.
    pub fn end_round(&mut self) {
        self.depth += 1;
    }

    fn want(&mut self, value: RawBsonRef<'_>) -> Result<()> {
        if self
            .asked
            .insert(encode_id_in(self.collation.as_deref(), value).to_vec())
        {
            self.bytes += 64 + crate::value::bytes(value);
            if self.frontier.len() >= MAX_GRAPH_FRONTIER {
                return Err(error(
                    40099,
                    "$graphLookup reached maximum memory consumption",
                ));
            }
            self.frontier.push(crate::value::owned(value));
        }
        Ok(())
    }
}

/// The values from which a found document leads on.
fn connect(value: RawBsonRef<'_>, path: &[Box<str>], search: &mut Traversal) -> Result<()> {
    match (value, path) {
        (RawBsonRef::Array(array), []) => items(array).try_for_each(|item| search.want(item)),
        (value, []) => search.want(value),
        (RawBsonRef::Document(document), [name, rest @ ..]) => match field(document, name) {
            Some(value) => connect(value, rest, search),
            None => Ok(()),
        },
        (RawBsonRef::Array(array), _) => items(array)
            .filter(|item| matches!(item, RawBsonRef::Document(_)))
            .try_for_each(|item| connect(item, path, search)),
        _ => Ok(()),
    }
}

fn parse_depth(value: RawBsonRef<'_>) -> Result<i64> {
    if !is_number(value) {
        return Err(error(
            40100,
            format!(
                "maxDepth requires numeric argument, found {}",
                type_name(value)
            ),
        ));
    }
    match exact_i64(value) {
        Some(depth) if depth >= 0 => Ok(depth),
        Some(depth) => Err(error(
            40101,
            format!("maxDepth requires a nonnegative argument, found: {depth}"),
        )),
        None => Err(error(
            40102,
            format!(
                "maxDepth could not be represented as a long long: {}",
                crate::text::value_text(value)
            ),
        )),
    }
}
