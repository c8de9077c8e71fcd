//! `$out`: what comes takes the place of a collection of one shard. It is written into another one
//! there, which gets the name in the end.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_command::syntax::out_series;
use pinion_merge::Node;
use pinion_query::{OutputTo, TimeSeries, document_text};
use pinion_runtime::{Queue, spawn};
use pinion_service::generate::random_bytes;
use pinion_sharding_protocol::Targets;
use pinion_wire::idl::{Namespace, truthy};
use pinion_wire::limits::MAX_NAMESPACE_BYTES;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Result};

use super::target::{indexes_of, listed, no_sharded_output};
use super::writer::{Filling, Writer};
use crate::dispatch::{Answer, WhenAbsent, at_primary};
use crate::limits::DROP_OUTPUT_TIME;
use crate::placement::table_of;
use crate::reads::sources::Routed;
use crate::request::{Request, Versions};
use crate::writes::BatchKind;

/// Looks at the target of a stage that is about to run.
///
/// # Errors
/// The target cannot be replaced; those of the way there.
pub(super) async fn prepare(around: &Routed, stage: &OutputTo) -> Result<()> {
    let target = target_of(stage, around)?;
    let model = Model::of(around, stage, &target).await?;
    *around.replaced.borrow_mut() = Some(model);
    Ok(())
}

/// Runs the stage.
///
/// # Errors
/// Those of the source, of the writes, and of the way there. The target is what it was then.
pub(super) async fn run(
    ctx: &OpContext,
    around: &Routed,
    stage: &OutputTo,
    source: Node<Routed>,
) -> Result<()> {
    let target = target_of(stage, around)?;
    let prepared = around.replaced.take();
    let model = match prepared {
        Some(model) => model,
        None => Model::of(around, stage, &target).await?,
    };
    let name = format!("tmp.agg_out.{}", Uuid::from_bytes(random_bytes()));
    let temporary = Namespace::new(target.db(), &name)?;
    let replacement = Replacement {
        ctx,
        around,
        target,
        temporary,
    };
    let done = replacement.perform(&model, source).await;
    if done.is_err() {
        drop_in_background(&around.cmd, replacement.temporary);
    }
    done
}

fn target_of(stage: &OutputTo, around: &Routed) -> Result<Namespace> {
    let db = stage.db.as_deref().unwrap_or(around.ns.db());
    if db.len() + 1 + stage.collection.len() > MAX_NAMESPACE_BYTES {
        let why = format!("invalid $out target: {db}.{} is too long", stage.collection);
        return Err(Error::new(ErrorCode::ILLEGAL_OPERATION, why));
    }
    Namespace::new(db, &stage.collection)
}

/// What a stage replaces, and what takes its place.
#[derive(Default)]
pub(in crate::reads) struct Model {
    /// The options of the target as they are listed; none where it is not there.
    listed_options: RawDocumentBuf,
    /// Its indexes, likewise.
    listed_indexes: Vec<RawDocumentBuf>,
    /// Those of what takes its place.
    options: RawDocumentBuf,
}

impl Model {
    /// That of a stage whose target is at its shard.
    ///
    /// # Errors
    /// The target cannot be replaced, or not by this; those of the shard, and of the way there.
    async fn of(around: &Routed, stage: &OutputTo, target: &Namespace) -> Result<Model> {
        let asked = out_series(stage, around.ns.db())?;
        let Some(found) = listed(&around.cmd, target).await? else {
            let options = asked.map(|asked| rawdoc! { "timeseries": asked.to_document() });
            return Ok(Model {
                options: options.unwrap_or_default(),
                ..Model::default()
            });
        };
        let options = replaceable(&found, target, asked.as_ref())?;
        let indexes = indexes_of(&around.cmd, target).await?;
        Ok(Model {
            listed_options: options.clone(),
            listed_indexes: indexes.unwrap_or_default(),
            options,
        })
    }

    fn is_series(&self) -> bool {
        pinion_bson::get(&self.options, "timeseries").is_some()
    }

    /// The indexes that another collection with the same options is asked for: it has one on `_id`
    /// anyway, and gives its collation to those that name none.
    fn index_requests(&self) -> Vec<RawDocumentBuf> {
        let has_collation = pinion_bson::get(&self.options, "collation").is_some();
        let others = self.listed_indexes.iter().filter(|index| {
            let name = pinion_bson::get(index, "name").and_then(|name| name.as_str());
            name != Some("_id_") && pinion_bson::get(index, "clustered").is_none()
        });
        let request = |index: &RawDocumentBuf| {
            let mut out = DocBuilder::new();
            out.append_all(index);
            if has_collation && pinion_bson::get(index, "collation").is_none() {
                out.start_document("collation").append("locale", "simple");
                out.end();
            }
            out.finish()
        };
        others.map(request).collect()
    }
}

/// The options of a collection or a series that can be replaced, by the series that is asked for if
/// one is.
///
/// # Errors
/// 7268700, 7406103; `CommandNotSupportedOnView`; 17152 of a capped collection.
fn replaceable(
    found: &RawDocument,
    target: &Namespace,
    asked: Option<&TimeSeries>,
) -> Result<RawDocumentBuf> {
    let kind = pinion_bson::get(found, "type").and_then(|kind| kind.as_str());
    if asked.is_some() && kind != Some("timeseries") {
        return Err(Error::new(
            ErrorCode(7_268_700),
            "Cannot create a time-series collection from a non time-series collection.",
        ));
    }
    if kind == Some("view") {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
            format!("Namespace {target} is a view, not a collection"),
        ));
    }
    let options = pinion_bson::get(found, "options").and_then(|found| found.as_document());
    let options = options.map(RawDocument::to_owned).unwrap_or_default();
    if pinion_bson::get(&options, "capped").is_some_and(truthy) {
        let why = format!("namespace '{target}' is capped so it can't be used for $out");
        return Err(Error::new(ErrorCode(17152), why));
    }
    let series = pinion_bson::get(&options, "timeseries").and_then(|series| series.as_document());
    if let (Some(asked), Some(series)) = (asked, series)
        && TimeSeries::from_document(series).ok().as_ref() != Some(asked)
    {
        return Err(Error::new(
            ErrorCode(7_406_103),
            format!(
                "Time-series options inputted must match the existing time-series collection. Received: {} Found: {}",
                document_text(&asked.to_document()),
                document_text(series)
            ),
        ));
    }
    Ok(options)
}

struct Replacement<'r> {
    ctx: &'r OpContext,
    around: &'r Routed,
    target: Namespace,
    temporary: Namespace,
}

impl Replacement<'_> {
    async fn perform(&self, model: &Model, source: Node<Routed>) -> Result<()> {
        self.define(|out| {
            out.append("create", self.temporary.collection());
            for elem in pinion_bson::raw_elements(&model.options) {
                if elem.name != b"temp" {
                    out.append_elem(&elem);
                }
            }
            // One that is never renamed is gone with the next start of the node. A series cannot be
            // temporary: it stays if this process ends before it has renamed or dropped it.
            if !model.is_series() {
                out.append("temp", true);
            }
        })
        .await?;
        let indexes = model.index_requests();
        if !indexes.is_empty() {
            self.define(|out| {
                out.append("createIndexes", self.temporary.collection());
                out.start_array("indexes");
                for index in &indexes {
                    out.push(&**index);
                }
                out.end();
            })
            .await?;
        }
        self.fill(source).await?;
        // It may have become sharded meanwhile.
        if table_of(&self.target, Targets::Unknown).await?.is_some() {
            return Err(no_sharded_output());
        }
        self.rename(model).await
    }

    async fn fill(&self, mut source: Node<Routed>) -> Result<()> {
        let writer = Writer {
            ctx: self.ctx,
            around: self.around,
            ns: &self.temporary,
        };
        let mut batch = Filling::new();
        loop {
            let next = source.next(self.ctx).await?;
            let ended = next.is_none();
            let mut is_full = false;
            if let Some(document) = next {
                let bytes = document.as_bytes().len();
                is_full = batch.add(RawDocument::to_owned(&document), bytes);
            }
            if !batch.is_empty() && (ended || is_full) {
                let written = writer.write(BatchKind::Insert, true, &batch.take()).await?;
                if let Some(error) = written.failed {
                    return Err(error);
                }
            }
            if ended {
                return Ok(());
            }
        }
    }

    /// Gives it the name of the target, unless that has other options or indexes by now.
    async fn rename(&self, model: &Model) -> Result<()> {
        let make = |versions: Versions| match versions.database {
            Some(_) => Request::own("admin", versions.database, |out| {
                out.append("internalRenameIfOptionsAndIndexesMatch", 1i32)
                    .append("from", self.temporary.as_str())
                    .append("to", self.target.as_str())
                    .append("collectionOptions", &*model.listed_options);
                out.start_array("indexes");
                for index in &model.listed_indexes {
                    out.push(&**index);
                }
                out.end();
                self.around.append_write_concern(out);
            }),
            // The database is gone, as its node says.
            None => Request::own("admin", versions, |out| {
                out.append("renameCollection", self.temporary.as_str())
                    .append("to", self.target.as_str());
            }),
        };
        let db = self.target.db();
        let answer = at_primary(&self.around.cmd, db, WhenAbsent::Answer, make).await?;
        self.note(&answer);
        Ok(())
    }

    /// Sends a definition of the temporary collection to its shard.
    async fn define(&self, fields: impl Fn(&mut DocBuilder)) -> Result<()> {
        let make = |versions| {
            Request::own(self.temporary.db(), versions, |out| {
                fields(out);
                self.around.append_write_concern(out);
            })
        };
        let db = self.temporary.db();
        let answer = at_primary(&self.around.cmd, db, WhenAbsent::Make, make).await?;
        self.note(&answer);
        Ok(())
    }

    fn note(&self, answer: &Answer) {
        let error = pinion_bson::get(answer.body(), "writeConcernError");
        if let Some(error) = error.and_then(|error| error.as_document()) {
            self.around.note_concern_error(error);
        }
    }
}

/// Drops what has not got its name, while the client has its answer already.
fn drop_in_background(cmd: &Invocation, temporary: Namespace) {
    let mut cmd = cmd.clone();
    // What interrupted the operation does not interrupt this.
    let now = pinion_runtime::now();
    cmd.ctx.renew(cmd.ctx.op_id, now.as_nanos());
    let until = now + DROP_OUTPUT_TIME;
    cmd.ctx = cmd.ctx.with_deadline(Some(until.as_nanos()));
    spawn(Queue::Background, async move {
        let make = |versions| {
            Request::own(temporary.db(), versions, |out| {
                out.append("drop", temporary.collection());
            })
        };
        if let Err(error) = at_primary(&cmd, temporary.db(), WhenAbsent::Answer, make).await {
            tracing::debug!(target: "SHARDING", id = 7_300_071u64, ns = temporary.as_str(), error = error.message, "What a $out left behind was not dropped");
        }
    });
}

#[cfg(test)]
mod tests {
    use pinion_bson::RawBson;
    use pinion_query::TimeSeriesChange;

    use super::*;

    #[test]
    fn what_can_be_replaced() {
        let target = Namespace::parse("e.x").expect("a namespace");
        let (granularity, rounding_secs, max_span_secs) =
            TimeSeriesChange::default().resolve().expect("by default");
        let series = |time: &str| TimeSeries {
            time_field: time.to_owned(),
            meta_field: None,
            granularity,
            rounding_secs,
            max_span_secs,
        };
        let stored = rawdoc! { "timeseries": series("t").to_document() };
        let check = |kind: &str, options: &RawDocument, asked: Option<&str>, code: i32| {
            let found = rawdoc! { "name": "x", "type": kind, "options": options.to_owned() };
            let asked = asked.map(series);
            match replaceable(&found, &target, asked.as_ref()) {
                Ok(found) => assert_eq!((&*found, 0), (options, code)),
                Err(error) => assert_eq!(error.code.0, code, "{error}"),
            }
        };
        let (plain, capped) = (rawdoc! {}, rawdoc! { "capped": true, "size": 4096 });
        check("collection", &plain, None, 0);
        check("collection", &plain, Some("t"), 7_268_700);
        check("collection", &capped, None, 17152);
        check("collection", &capped, Some("t"), 7_268_700);
        check("view", &plain, None, 166);
        check("view", &plain, Some("t"), 7_268_700);
        check("timeseries", &stored, None, 0);
        check("timeseries", &stored, Some("t"), 0);
        check("timeseries", &stored, Some("u"), 7_406_103);
    }

    #[test]
    fn indexes_of_what_takes_its_place() {
        let index = |name: &str| rawdoc! { "v": 2, "key": { "a": 1 }, "name": name };
        let mut german = index("g");
        let locale = |name: &str| RawBson::Document(rawdoc! { "locale": name });
        german.append(pinion_bson::cstr!("collation"), locale("de"));
        let mut clustered = index("c");
        clustered.append(pinion_bson::cstr!("clustered"), true);
        let check = |options: RawDocumentBuf, expected: &[RawDocumentBuf]| {
            let model = Model {
                listed_indexes: vec![index("_id_"), clustered.clone(), index("a"), german.clone()],
                options,
                ..Model::default()
            };
            assert_eq!(model.index_requests(), expected);
        };
        check(rawdoc! {}, &[index("a"), german.clone()]);
        let mut simple = index("a");
        simple.append(pinion_bson::cstr!("collation"), locale("simple"));
        let collated = rawdoc! { "collation": { "locale": "fr" } };
        check(collated, &[simple, german.clone()]);
    }
}
