//! Views over sharded collections: the primary shard answers a read of one with what it stands for,
//! and that is run from here.
//!
//! Source: sharding catalog, "Router role".

use std::collections::BTreeMap;

use pinion_bson::{
    DocBuilder, MAX_USER_DOCUMENT_BYTES, RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument,
    RawDocumentBuf, rawdoc,
};
use pinion_query::parse_collation;
use pinion_sharding_protocol::Targets;
use pinion_wire::idl::{CommandReader, Namespace, i64_clamped};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::find::Find;
use super::options::{CollationOption, at_snapshot, namespace};
use super::pipeline::{Aggregate, reply_of, stream_of};
use crate::placement::table_of;

/// What a view stands for.
#[derive(Debug)]
pub(crate) struct ResolvedView {
    /// The collection that is read, or a time series.
    pub on: Namespace,
    /// The stages of all views on the way to it, the innermost first.
    pub pipeline: RawArrayBuf,
    /// The collation of all that is read through the view.
    pub collation: RawDocumentBuf,
}

impl ResolvedView {
    /// What an error of a shard says of a view, if it does.
    ///
    /// # Errors
    /// It says something that cannot be read.
    pub(crate) fn from_error(error: &Error) -> Result<Option<ResolvedView>> {
        if error.code != ErrorCode::COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD {
            return Ok(None);
        }
        let field = |name| {
            let extra = error.extra.as_deref()?;
            pinion_bson::get(
                pinion_bson::get(extra, "resolvedView")?.as_document()?,
                name,
            )
        };
        let on = field("ns").and_then(|ns| ns.as_str());
        let pipeline = field("pipeline").and_then(|stages| stages.as_array());
        let collation = field("collation").and_then(|spec| spec.as_document());
        let (Some(on), Some(pipeline), Some(collation)) = (on, pipeline, collation) else {
            return Err(Error::internal("a shard's view is not resolved"));
        };
        Ok(Some(ResolvedView {
            on: Namespace::parse(on)?,
            pipeline: pipeline.to_owned(),
            collation: collation.to_owned(),
        }))
    }

    /// Refuses another collation than that of the view.
    ///
    /// # Errors
    /// `OptionNotSupportedOnView`; the document is no collation.
    pub(super) fn check_collation(&self, name: &Namespace, spec: &RawDocument) -> Result<()> {
        match parse_collation(spec)? == parse_collation(&self.collation)? {
            true => Ok(()),
            false => Err(Error::new(
                ErrorCode::OPTION_NOT_SUPPORTED_ON_VIEW,
                format!("Cannot override default collation of the view {name}"),
            )),
        }
    }

    /// The stages of the view, and others behind them.
    pub(super) fn stages<'s>(&self, behind: impl Iterator<Item = &'s RawDocument>) -> RawArrayBuf {
        let mut all = RawArrayBuf::new();
        for stage in pinion_bson::values(&self.pipeline) {
            all.push(RawBson::from(stage));
        }
        for stage in behind {
            all.push(RawBson::Document(stage.to_owned()));
        }
        all
    }
}

/// Stages that read a view in the place of a command.
#[derive(Default)]
struct Stages(Vec<RawDocumentBuf>);

impl Stages {
    fn push<'v>(&mut self, name: &str, value: impl Into<RawBsonRef<'v>>) {
        let mut stage = DocBuilder::new();
        stage.append_raw(name, value.into());
        self.0.push(stage.finish());
    }

    /// Adds a stage, unless it would leave all documents as they are.
    fn document(&mut self, name: &str, spec: Option<&RawDocument>) {
        if let Some(spec) = spec.filter(|spec| !spec.is_empty()) {
            self.push(name, RawBsonRef::Document(spec));
        }
    }

    fn bound(&mut self, name: &str, number: Option<i64>) {
        if let Some(number) = number.filter(|number| *number > 0) {
            self.push(name, RawBsonRef::Int64(number));
        }
    }

    /// The `aggregate` that runs them over what a view stands for, with the options of the command
    /// which mean the same there.
    fn command(
        &self,
        ns: &Namespace,
        view: &ResolvedView,
        body: &RawDocument,
        options: &[&str],
    ) -> Result<RawDocumentBuf> {
        let reader = CommandReader::new("aggregate", body)?;
        if let Some(spec) = CollationOption::read(&reader)?.named() {
            view.check_collation(ns, spec)?;
        }
        let stages = view.stages(self.0.iter().map(|stage| &**stage));
        let mut out = DocBuilder::new();
        out.append("aggregate", view.on.collection())
            .append_raw("pipeline", RawBsonRef::Array(&stages))
            .append("collation", &*view.collation);
        for name in options {
            if let Some(value) = pinion_bson::get(body, name) {
                out.append_raw(name, value);
            }
        }
        if let Some(size) = pinion_bson::get(body, "batchSize") {
            out.start_document("cursor").append_raw("batchSize", size);
            out.end();
        }
        Ok(out.finish())
    }
}

/// The pipeline that a `find` is on a view.
fn stages_of_find(body: &RawDocument) -> Result<Stages> {
    let reader = CommandReader::new("find", body)?;
    for option in [
        "min",
        "max",
        "returnKey",
        "showRecordId",
        "tailable",
        "noCursorTimeout",
        "allowPartialResults",
    ] {
        let is_set = match reader.value(option) {
            Some(RawBsonRef::Document(bound)) => !bound.is_empty(),
            Some(value) => pinion_wire::idl::truthy(value),
            None => false,
        };
        if is_set {
            return Err(Error::new(
                ErrorCode::INVALID_PIPELINE_OPERATOR,
                format!("Option {option} not supported in aggregation."),
            ));
        }
    }
    let sort = reader.opt_owned_doc("sort")?;
    if sort.is_some_and(|sort| pinion_bson::get(sort, "$natural").is_some()) {
        return Err(Error::new(
            ErrorCode::INVALID_PIPELINE_OPERATOR,
            "Sort option $natural cannot be set for a view",
        ));
    }
    let mut stages = Stages::default();
    stages.document("$match", reader.opt_owned_doc("filter")?);
    stages.document("$sort", sort);
    stages.bound("$skip", reader.opt_non_negative("skip")?);
    stages.bound("$limit", reader.opt_non_negative("limit")?);
    stages.document("$project", reader.opt_owned_doc("projection")?);
    Ok(stages)
}

fn stages_of_count(body: &RawDocument) -> Result<Stages> {
    let reader = CommandReader::new("count", body)?;
    let mut stages = Stages::default();
    stages.document("$match", reader.opt_doc("query")?);
    stages.bound("$skip", reader.opt_non_negative("skip")?);
    let limit = reader.opt_whole_number("limit")?;
    stages.bound("$limit", limit.map(i64::saturating_abs));
    stages.push("$count", RawBsonRef::String("count"));
    Ok(stages)
}

fn stages_of_distinct(body: &RawDocument) -> Stages {
    let query = pinion_bson::get(body, "query").and_then(|query| query.as_document());
    let mut stages = Stages::default();
    stages.document("$match", query);
    stages
}

fn stages_of_aggregate(body: &RawDocument) -> Result<Stages> {
    let stages = pinion_bson::get(body, "pipeline").and_then(|stages| stages.as_array());
    let stages = stages.into_iter().flat_map(pinion_bson::values);
    let stages: Vec<RawDocumentBuf> = stages
        .filter_map(|stage| stage.as_document().map(RawDocument::to_owned))
        .collect();
    let first = stages
        .first()
        .and_then(|stage| pinion_bson::elements(stage).next());
    if let Some((name @ ("$collStats" | "$rankFusion"), _)) = first {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
            format!("{name} is not supported on a view"),
        ));
    }
    Ok(Stages(stages))
}

/// The `aggregate` that a command is on a view; `None` for one that reads none.
fn rewritten(
    name: &str,
    ns: &Namespace,
    view: &ResolvedView,
    body: &RawDocument,
) -> Result<Option<RawDocumentBuf>> {
    let (stages, options): (Stages, &[&str]) = match name {
        "find" => (stages_of_find(body)?, &["allowDiskUse", "hint", "let"]),
        "count" => (stages_of_count(body)?, &["hint"]),
        "distinct" => (stages_of_distinct(body), &["hint"]),
        "aggregate" => {
            let options = &["allowDiskUse", "cursor", "explain", "hint", "let"];
            (stages_of_aggregate(body)?, options)
        }
        _ => return Ok(None),
    };
    stages.command(ns, view, body, options).map(Some)
}

/// A command that reads a view, over what that stands for.
///
/// # Errors
/// `OptionNotSupportedOnView`, `InvalidPipelineOperator`, `CommandNotSupportedOnView`; as of the
/// pipeline that it is.
pub(crate) async fn read_view(cmd: &Invocation, view: &ResolvedView) -> Result<Reply> {
    at_snapshot(cmd, async |cmd| read_view_at(cmd, view).await).await
}

/// A read of a view whose snapshot, if it asks for one, has a time.
async fn read_view_at(cmd: &Invocation, view: &ResolvedView) -> Result<Reply> {
    let (name, body) = (cmd.name(), cmd.body());
    let ns = namespace(cmd, name)?;
    let written = rewritten(name, &ns, view, body)?;
    let command = match &written {
        Some(written) => Aggregate::read(written, ns.db(), true)?,
        None => None,
    };
    let Some(command) = command else {
        return Err(Error::internal(format!("{name} does not read views")));
    };
    match name {
        "count" => {
            let mut stream = stream_of(cmd, command).await?.0;
            let counted = match stream.next(&cmd.ctx).await? {
                Some(counted) => count_in(&counted)?,
                None => 0,
            };
            let mut out = Reply::new();
            out.ok_as_int();
            match i32::try_from(counted) {
                Ok(n) => out.append("n", n),
                Err(_) => out.append("n", counted),
            };
            Ok(out)
        }
        "distinct" => distinct_of_view(cmd, command, view).await,
        _ => {
            let is_single = name == "find" && Find::read(body)?.is_single_batch;
            reply_of(cmd, command, &ns, is_single).await
        }
    }
}

/// A time series whose buckets are sharded as a view of itself, since a `find` in it is a pipeline
/// too; `None` of anything else. Its measurements are compared by any collation that is asked for.
async fn series(cmd: &Invocation, find: &RawDocument) -> Result<Option<ResolvedView>> {
    let reader = CommandReader::new("find", find)?;
    let ns = reader.sought("find", cmd.db())?;
    let table = table_of(&ns, Targets::Unknown).await?;
    let Some(table) = table.filter(|table| table.time_series.is_some()) else {
        return Ok(None);
    };
    let collation = CollationOption::read(&reader)?;
    let collation = collation.spec(Some(&*table)).map(RawDocument::to_owned);
    Ok(Some(ResolvedView {
        on: ns,
        pipeline: RawArrayBuf::new(),
        collation: collation.unwrap_or_else(|| rawdoc! { "locale": "simple" }),
    }))
}

/// A `find` in a time series whose buckets are sharded; `None` in anything else.
///
/// # Errors
/// As of [`read_view`].
pub(crate) async fn find_in_series(cmd: &Invocation) -> Result<Option<Reply>> {
    match series(cmd, cmd.body()).await? {
        Some(series) => read_view(cmd, &series).await.map(Some),
        None => Ok(None),
    }
}

/// An `explain` of such a `find`; `None` of anything else.
///
/// # Errors
/// As of [`explain_view`].
pub(crate) async fn explain_in_series(cmd: &Invocation) -> Result<Option<Reply>> {
    let explained = pinion_bson::elements(cmd.body()).next();
    let inner = explained.and_then(|(_, inner)| inner.as_document());
    let inner = inner.filter(|inner| {
        let first = pinion_bson::elements(inner).next();
        matches!(first, Some(("find", RawBsonRef::String(_))))
    });
    let Some(inner) = inner else {
        return Ok(None);
    };
    match series(cmd, inner).await? {
        Some(series) => explain_view(cmd, &series).await.map(Some),
        None => Ok(None),
    }
}

/// An `explain` of a command that reads a view.
///
/// # Errors
/// As [`read_view`].
pub(crate) async fn explain_view(cmd: &Invocation, view: &ResolvedView) -> Result<Reply> {
    let explained = pinion_bson::elements(cmd.body()).next();
    let inner = explained.and_then(|(_, inner)| inner.as_document());
    let first = inner.and_then(|inner| pinion_bson::elements(inner).next());
    let (Some(inner), Some((name, RawBsonRef::String(collection)))) = (inner, first) else {
        return Err(Error::internal("an explained command reads no view"));
    };
    let ns = Namespace::sought(cmd.db(), collection)?;
    let written = rewritten(name, &ns, view, inner)?;
    let command = match &written {
        Some(written) => Aggregate::read(written, ns.db(), true)?,
        None => None,
    };
    match command {
        Some(command) => {
            let verbosity = pinion_bson::get(cmd.body(), "verbosity").and_then(|v| v.as_str());
            let verbosity = verbosity.unwrap_or("allPlansExecution");
            super::explain::explain_aggregate(cmd, command, verbosity).await
        }
        None => Err(Error::internal(format!("{name} does not read views"))),
    }
}

fn count_in(counted: &[u8]) -> Result<i64> {
    let counted = RawDocument::from_bytes(counted);
    let counted = counted.map_err(|error| Error::internal(error.to_string()))?;
    let count = pinion_bson::get(counted, "count").and_then(i64_clamped);
    Ok(count.unwrap_or(0))
}

/// The values of a field in all documents of a view.
async fn distinct_of_view(
    cmd: &Invocation,
    command: Aggregate<'_>,
    view: &ResolvedView,
) -> Result<Reply> {
    let key = CommandReader::new("distinct", cmd.body())?.str("key")?;
    let collation = parse_collation(&view.collation)?;
    let mut found: BTreeMap<Vec<u8>, RawBson> = BTreeMap::new();
    let mut bytes = 0;
    let mut stream = stream_of(cmd, command).await?.0;
    while let Some(document) = stream.next(&cmd.ctx).await? {
        let document = RawDocument::from_bytes(&document);
        let document = document.map_err(|error| Error::internal(error.to_string()))?;
        for_each_value(RawBsonRef::Document(document), Some(key), &mut |value| {
            let key = pinion_keystring::encode_id_in(collation.as_deref(), value).to_vec();
            let size = key.len();
            if let std::collections::btree_map::Entry::Vacant(place) = found.entry(key) {
                place.insert(RawBson::from(value));
                bytes += size;
            }
        });
        if bytes > MAX_USER_DOCUMENT_BYTES {
            return Err(Error::new(ErrorCode(17217), "distinct too big, 16mb cap"));
        }
    }
    let mut out = Reply::new();
    out.start_array("values");
    for value in found.values() {
        out.push(value.as_raw_bson_ref());
    }
    out.end();
    match out.len() > MAX_USER_DOCUMENT_BYTES {
        true => Err(Error::new(ErrorCode(17217), "distinct too big, 16mb cap")),
        false => Ok(out),
    }
}

/// Calls `f` with every value that `distinct` finds at a path: arrays on the way and at its end are
/// unwound.
fn for_each_value(value: RawBsonRef<'_>, path: Option<&str>, f: &mut dyn FnMut(RawBsonRef<'_>)) {
    let Some(path) = path else {
        return match value {
            RawBsonRef::Array(items) => pinion_bson::values(items).for_each(f),
            other => f(other),
        };
    };
    let (head, rest) = match path.split_once('.') {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    };
    match value {
        RawBsonRef::Document(document) => {
            if let Some(inner) = pinion_bson::get(document, head) {
                for_each_value(inner, rest, f);
            }
        }
        RawBsonRef::Array(items) => for_each_item(items, path, (head, rest), f),
        _ => {}
    }
}

/// A number selects an item; a name is looked for in every item that is a document.
fn for_each_item(
    items: &RawArray,
    path: &str,
    (head, rest): (&str, Option<&str>),
    f: &mut dyn FnMut(RawBsonRef<'_>),
) {
    if let Ok(index) = head.parse::<usize>()
        && let Some(item) = pinion_bson::values(items).nth(index)
    {
        return for_each_value(item, rest, f);
    }
    for item in pinion_bson::values(items) {
        if let RawBsonRef::Document(_) = item {
            for_each_value(item, Some(path), f);
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    fn view() -> ResolvedView {
        ResolvedView {
            on: Namespace::new("d", "c").expect("a name"),
            pipeline: {
                let mut stages = RawArrayBuf::new();
                stages.push(rawdoc! { "$match": { "g": 1 } });
                stages
            },
            collation: rawdoc! { "locale": "simple" },
        }
    }

    #[test]
    fn commands_over_views() {
        let check = |name: &str, body: RawDocumentBuf, expected: Option<RawDocumentBuf>| {
            let ns = Namespace::new("d", "v").expect("a name");
            let written = rewritten(name, &ns, &view(), &body).ok().flatten();
            assert_eq!(written, expected, "{body:?}");
        };
        let collation = || rawdoc! { "locale": "simple" };
        let first = || rawdoc! { "$match": { "g": 1 } };
        check(
            "find",
            rawdoc! { "find": "v", "filter": { "a": 2 }, "skip": 3, "batchSize": 7 },
            Some(rawdoc! {
                "aggregate": "c",
                "pipeline": [first(), { "$match": { "a": 2 } }, { "$skip": 3_i64 }],
                "collation": collation(),
                "cursor": { "batchSize": 7 },
            }),
        );
        check(
            "count",
            rawdoc! { "count": "v", "limit": -4, "hint": "x" },
            Some(rawdoc! {
                "aggregate": "c",
                "pipeline": [first(), { "$limit": 4_i64 }, { "$count": "count" }],
                "collation": collation(),
                "hint": "x",
            }),
        );
        check(
            "distinct",
            rawdoc! { "distinct": "v", "key": "a", "query": {} },
            Some(rawdoc! {
                "aggregate": "c", "pipeline": [first()], "collation": collation(),
            }),
        );
        check("find", rawdoc! { "find": "v", "returnKey": true }, None);
        check(
            "find",
            rawdoc! { "find": "v", "sort": { "$natural": 1 } },
            None,
        );
        check(
            "find",
            rawdoc! { "find": "v", "collation": { "locale": "de" } },
            None,
        );
        check(
            "aggregate",
            rawdoc! { "aggregate": "v", "pipeline": [{ "$collStats": {} }] },
            None,
        );
    }

    #[test]
    fn values_of_paths() {
        let check = |path: &str, expected: &[i32]| {
            let document = rawdoc! { "a": [{ "b": 1 }, { "b": [2, 3] }], "c": { "d": 4 } };
            let mut found = Vec::new();
            for_each_value(RawBsonRef::Document(&document), Some(path), &mut |value| {
                found.extend(value.as_i32());
            });
            assert_eq!(found, expected, "{path}");
        };
        check("a.b", &[1, 2, 3]);
        check("a.1.b", &[2, 3]);
        check("c.d", &[4]);
        check("c.x", &[]);
    }
}
