//! `find`.

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_catalog::{Collection, OplogFormat, RETRY_IMAGES, SESSION_RECORDS, oplog_format};
use pinion_command::syntax::{CollationOption, RuntimeConstants, hint};
use pinion_query::{Direction, Hint, KeyBounds, Matcher, Projection, SortPattern, Variables};
use pinion_service::metrics::metrics;
use pinion_service::node_info::is_behind_v44;
use pinion_service::operator_counts::compute_counted;
use pinion_service::ops::is_of_client;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{CommandReader, Namespace, Types};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::aggregate;
use super::cursors::{CursorRequest, Left, append_cursor, first_batch};
use super::express::{self, Ran};
use super::namespace_args::named_or_uuid;
use super::query_settings::admitted;
use super::variables::{sent_constants, variables};
use super::views::{Rewritten, check_sort, not_in_pipelines};
use crate::acquire::{AcquiredCollection, ReadTarget, acquire_viewed};
use crate::cursor_reads::Reads;
use crate::limits::DEFAULT_FIRST_BATCH;
use crate::read::{Output, ReadRequest, Stream, TailStream, open, parse_sort};
use crate::topology::is_member;

/// A `find` as it is written: nothing in here depends on what its namespace stands for.
pub(super) struct FindCommand<'d> {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    filter: Option<&'d RawDocument>,
    sort: Option<&'d RawDocument>,
    projection: Option<&'d RawDocument>,
    hint: Option<Hint>,
    skip: usize,
    limit: Option<usize>,
    lets: Option<&'d RawDocument>,
    collation: CollationOption,
    key_bounds: Option<KeyBounds>,
    return_key: bool,
    show_record_id: bool,
    allow_disk_use: Option<bool>,
    batch_size: Option<usize>,
    single_batch: bool,
    no_timeout: bool,
    allows_partial: bool,
    tailing: Option<Tailing>,
    /// A mongos of MongoDB 4.4 may have sent it, with these times.
    may_be_of_mongos: bool,
    /// A router may merge what it gives.
    may_be_part: bool,
    constants: Option<RuntimeConstants>,
}

/// What a cursor does when it has come to the newest document of a capped collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tailing {
    /// It reports so, and can be asked again.
    Tailable,
    /// It waits for a while, and then reports so.
    AwaitData,
}

/// A parsed `find`.
pub(super) struct Find {
    pub matcher: Matcher,
    sort: Option<SortPattern>,
    hint: Option<Hint>,
    pub skip: usize,
    pub limit: Option<usize>,
    projection: Option<Projection>,
    pub projection_spec: Option<RawDocumentBuf>,
    key_bounds: Option<KeyBounds>,
    return_key: bool,
    show_record_id: bool,
    allow_disk_use: Option<bool>,
}

/// Reads the command. `explain` reads it too, so nothing in here depends on how the body came.
pub(super) fn read<'d>(body: &'d RawDocument, db: &str) -> Result<FindCommand<'d>> {
    read_of(body, db, false)
}

/// Reads the command of a client, which may be a member of the set that has older names for some
/// fields.
fn read_of<'d>(body: &'d RawDocument, db: &str, is_of_node: bool) -> Result<FindCommand<'d>> {
    let reader = CommandReader::new("find", body)?;
    let ns = named_or_uuid(&reader, "find", db)?;
    let filter = reader.opt_owned_doc("filter")?;
    let sort = reader.opt_owned_doc("sort")?;
    let projection = reader.opt_owned_doc("projection")?;
    let may_be_of_mongos = is_behind_v44();
    let hint = hint(&reader, may_be_of_mongos)?;
    let skip = reader.opt_non_negative("skip")?.unwrap_or(0);
    let limit = reader.opt_non_negative("limit")?.filter(|limit| *limit > 0);
    let is_of_member = is_of_node || oplog_format() == OplogFormat::V44;
    let batch_size = batch_size_of(&reader, is_of_member || may_be_of_mongos)?;
    let single_batch = reader.opt_flag("singleBatch")?.unwrap_or(false);
    let no_timeout = reader.opt_flag("noCursorTimeout")?.unwrap_or(false);
    let lets = reader.opt_doc("let")?;
    let allows_partial = reader.opt_flag("allowPartialResults")?.unwrap_or(false);
    reader.opt_flag("mirrored")?;
    let allow_disk_use = reader.opt_flag("allowDiskUse")?;
    reader.opt_flag("oplogReplay")?;
    let tailable = reader.opt_flag("tailable")?.unwrap_or(false);
    let await_data = reader.opt_flag("awaitData")?.unwrap_or(false);
    let tailing = tailing(tailable, await_data, sort, single_batch)?;
    let collation = CollationOption::read(&reader)?;
    let key_bounds = KeyBounds::parse(reader.opt_owned_doc("min")?, reader.opt_owned_doc("max")?)?;
    let return_key = reader.opt_flag("returnKey")?.unwrap_or(false);
    let show_record_id = reader.opt_flag("showRecordId")?.unwrap_or(false);
    for (option, expected) in [
        ("includeQueryStatsMetrics", Types::BOOL),
        ("encryptionInformation", Types::OBJECT),
        ("querySettings", Types::OBJECT),
    ] {
        reader.unsupported_unless_empty(option, expected)?;
    }
    reader.ignore(&["$_requestResumeToken", "$_resumeAfter", "$_startAt"]);
    reader.opt_long("term")?;
    reader.opt_flag("readOnce")?;
    reader.unsupported("legacyRuntimeConstants", Types::OBJECT)?;
    let constants = sent_constants(&reader)?;
    if may_be_of_mongos {
        read_flags_of_mongos(&reader)?;
    }
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    check_resumption(&reader, sort, hint.as_ref(), is_of_member)?;
    Ok(FindCommand {
        ns,
        uuid,
        filter,
        sort,
        projection,
        hint,
        skip: skip as usize,
        limit: limit.map(|limit| limit as usize),
        lets,
        collation,
        key_bounds,
        return_key,
        show_record_id,
        allow_disk_use,
        batch_size: batch_size.map(|size| size as usize),
        single_batch,
        no_timeout,
        allows_partial,
        tailing,
        may_be_of_mongos,
        may_be_part: is_of_node || may_be_of_mongos,
        constants,
    })
}

/// There is one form of sort keys here, which is the one that a mongos speaks of, and what a
/// majority has is read at once too.
fn read_flags_of_mongos(reader: &CommandReader<'_>) -> Result<()> {
    for name in ["_use44SortKeys", "allowSpeculativeMajorityRead"] {
        reader.opt_flag(name)?;
    }
    Ok(())
}

/// How many documents are wanted first. Members and routers of MongoDB 4.4 have another name for
/// it, whatever this node logs; without them no command has that.
fn batch_size_of(reader: &CommandReader<'_>, has_old_name: bool) -> Result<Option<i64>> {
    let old = match has_old_name {
        true => reader.opt_non_negative("ntoreturn")?,
        false => None,
    };
    Ok(reader.opt_non_negative("batchSize")?.or(old))
}

/// Refuses scans that are resumed by the ids of records: there are no tokens of them. Members of
/// MongoDB ask for one when they copy a collection, and copy from the start again where they got
/// none.
fn check_resumption(
    reader: &CommandReader<'_>,
    sort: Option<&RawDocument>,
    hint: Option<&Hint>,
    is_of_member: bool,
) -> Result<()> {
    let requests = reader.opt_flag("$_requestResumeToken")?.unwrap_or(false);
    for (option, name) in [("$_resumeAfter", "resumeAfter"), ("$_startAt", "startAt")] {
        let given = reader.opt_doc(option)?;
        if given.is_some_and(|token| !token.is_empty()) && !requests {
            return Err(Error::bad_value(format!(
                "'requestResumeToken' must be true if '{name}' is specified"
            )));
        }
        reader.unsupported_unless_empty(option, Types::OBJECT)?;
    }
    if !requests {
        return Ok(());
    }
    if !matches!(hint, Some(Hint::Natural(Direction::Forward))) {
        return Err(Error::bad_value(
            "hint must be {$natural:1} if 'requestResumeToken' is enabled",
        ));
    }
    if sort.is_some_and(|sort| !is_in_natural_order(sort)) {
        return Err(Error::bad_value(
            "sort must be unset or {$natural:1} if 'requestResumeToken' is enabled",
        ));
    }
    match is_of_member {
        true => Ok(()),
        false => reader.unsupported_unless_empty("$_requestResumeToken", Types::BOOL),
    }
}

/// Whether a sort is none, or the order in which a scan finds documents.
fn is_in_natural_order(sort: &RawDocument) -> bool {
    let natural = pinion_bson::rawdoc! { "$natural": 1 };
    sort.is_empty() || pinion_bson::compare_documents(sort, &natural).is_eq()
}

/// What the options say of tailing, and whether the others go with it.
fn tailing(
    tailable: bool,
    await_data: bool,
    sort: Option<&RawDocument>,
    single_batch: bool,
) -> Result<Option<Tailing>> {
    if !tailable {
        return match await_data {
            true => Err(Error::failed_to_parse(
                "Cannot set 'awaitData' without also setting 'tailable'",
            )),
            false => Ok(None),
        };
    }
    if sort.is_some_and(|sort| !is_in_natural_order(sort)) {
        return Err(Error::bad_value(
            "cannot use tailable option with a sort other than {$natural: 1}",
        ));
    }
    if single_batch {
        return Err(Error::bad_value(
            "cannot use tailable option with the 'singleBatch' option",
        ));
    }
    Ok(Some(match await_data {
        true => Tailing::AwaitData,
        false => Tailing::Tailable,
    }))
}

/// Only the documents of a capped collection stay in the order in which they came.
fn check_tailed(collection: &Collection, tailing: Option<Tailing>) -> Result<()> {
    if tailing.is_none() || collection.options.capped.is_some() {
        return Ok(());
    }
    Err(Error::bad_value(format!(
        "error processing query: ns={} tailable cursor requested on non capped collection",
        collection.ns
    )))
}

/// What indexes alone find does not come in the order in which it came into the collection.
fn check_tailed_filter(matcher: &Matcher) -> Result<()> {
    let refused = match (matcher.has_text(), matcher.is_near()) {
        (true, _) => "text and tailable cursor not allowed in same query",
        (_, true) => "Tailable cursors and geo $near cannot be used together",
        (false, false) => return Ok(()),
    };
    Err(Error::bad_value(refused))
}

/// What documents are made into; `None` where they leave as they are.
fn parse_projection(
    spec: Option<&RawDocument>,
    may_be_of_mongos: bool,
    vars: &Variables,
) -> Result<Option<Projection>> {
    let parsed = spec.map(|spec| match may_be_of_mongos {
        true => Projection::parse_find_of_mongos(spec, vars),
        false => Projection::parse_find(spec, vars),
    });
    Ok(parsed.transpose()?.filter(|parsed| !parsed.is_identity()))
}

impl FindCommand<'_> {
    /// The pipeline that the command is on a view.
    pub(super) fn rewritten(&self, body: &RawDocument) -> Result<RawDocumentBuf> {
        let bounds = self.key_bounds.as_ref();
        // For members that copy them these are collections like any other, which they are in
        // MongoDB.
        let is_collection = matches!(self.ns.as_str(), SESSION_RECORDS | RETRY_IMAGES);
        let options = [
            ("min", bounds.is_some_and(KeyBounds::has_min)),
            ("max", bounds.is_some_and(KeyBounds::has_max)),
            ("returnKey", self.return_key),
            ("showRecordId", self.show_record_id),
            ("tailable", self.tailing.is_some()),
            ("noCursorTimeout", self.no_timeout && !is_collection),
            ("allowPartialResults", self.allows_partial),
        ];
        if let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) {
            return Err(not_in_pipelines(option));
        }
        check_sort(self.sort)?;
        let pipeline = Rewritten::new(&self.ns)
            .stage("$match", self.filter)
            .stage("$sort", self.sort)
            .bound("$skip", self.skip)
            .bound("$limit", self.limit.unwrap_or(0))
            .stage("$project", self.projection);
        let options = [
            "allowDiskUse",
            "collation",
            "hint",
            "let",
            // Without mongos of MongoDB 4.4 the command was refused that has it.
            "runtimeConstants",
        ];
        Ok(pipeline.options(body, &options, self.batch_size))
    }

    /// What is left of the projection where the keys of an index take the place of documents: what
    /// a router merges by.
    fn merge_key(&self, vars: &Variables) -> Result<Option<Projection>> {
        match self.projection.filter(|_| self.may_be_part) {
            Some(spec) => Projection::of_merge_key(spec, vars),
            None => Ok(None),
        }
    }

    /// Parses filter, projection and sort, for the collection that was acquired.
    pub(super) async fn parse(
        self,
        ctx: &OpContext,
        acquired: &AcquiredCollection,
    ) -> Result<Find> {
        if let Some(collection) = acquired.collection() {
            check_tailed(collection, self.tailing)?;
        }
        let collation = self.collation.or(acquired.collation());
        let vars = variables(ctx, self.lets, self.constants, collation).await?;
        let empty = RawDocumentBuf::new();
        let filter = self.filter.unwrap_or(&empty);
        let (spec, may_be_of_mongos) = (self.projection, self.may_be_of_mongos);
        let parse_both = || {
            let matcher = Matcher::parse_query(filter, &vars)?;
            let projection = parse_projection(spec, may_be_of_mongos, &vars)?;
            if let Some(projection) = &projection {
                projection.check_filter(&matcher)?;
            }
            Ok((matcher, projection))
        };
        let (matcher, mut projection) = compute_counted(ctx, parse_both).await?;
        if self.tailing.is_some() {
            check_tailed_filter(&matcher)?;
        }
        let mut sort = parse_sort(self.sort, vars.collation.as_ref())?;
        matcher.check_metadata(sort.as_ref(), projection.as_ref())?;
        if self.may_be_of_mongos {
            sort = sort.map(SortPattern::with_comparison_keys);
        }
        if self.return_key {
            projection = self.merge_key(&vars)?;
        }
        let projection_spec = self
            .projection
            .filter(|spec| !spec.is_empty())
            .map(RawDocument::to_owned);
        Ok(Find {
            matcher,
            sort,
            hint: self.hint,
            skip: self.skip,
            limit: self.limit,
            projection,
            projection_spec,
            key_bounds: self.key_bounds,
            return_key: self.return_key,
            show_record_id: self.show_record_id,
            allow_disk_use: self.allow_disk_use,
        })
    }
}

impl Find {
    /// The read of this command.
    pub(super) fn into_request(self, target: ReadTarget) -> ReadRequest {
        ReadRequest {
            sort: self.sort,
            hint: self.hint,
            skip: self.skip,
            limit: self.limit,
            projection: self.projection,
            output: if self.return_key {
                Output::Keys
            } else {
                Output::Documents
            },
            key_bounds: self.key_bounds,
            show_record_id: self.show_record_id,
            allow_disk_use: self.allow_disk_use,
            projection_spec: self.projection_spec,
            ..ReadRequest::new(target, self.matcher)
        }
    }
}

/// Reads a command that was sent.
fn read_sent(cmd: &Invocation) -> Result<FindCommand<'_>> {
    let is_of_node = is_member() && !is_of_client(&cmd.ctx.client);
    read_of(cmd.body(), cmd.db(), is_of_node)
}

/// `find`.
pub(crate) async fn find(cmd: Invocation) -> Result<Reply> {
    if let Some(express) = express::parse(cmd.body(), cmd.db()) {
        return match express::run(&cmd, express).await? {
            Ran::Replied(reply) => Ok(reply),
            Ran::NotPlain(acquired) => find_behind(&cmd, acquired).await,
        };
    }
    let command = read_sent(&cmd)?;
    metrics().counters.query.inc();
    let acquired = acquire_viewed(&cmd.ctx, command.ns.clone(), command.uuid).await?;
    answer(&cmd, command, acquired).await
}

/// A `find` whose collection is acquired already.
pub(super) async fn find_behind(cmd: &Invocation, acquired: AcquiredCollection) -> Result<Reply> {
    let command = read_sent(cmd)?;
    answer(cmd, command, acquired).await
}

async fn answer(
    cmd: &Invocation,
    command: FindCommand<'_>,
    acquired: AcquiredCollection,
) -> Result<Reply> {
    if acquired.view().is_some() {
        let body = command.rewritten(cmd.body())?;
        let single_batch = command.single_batch;
        return aggregate::answer_for(cmd, &body, acquired, single_batch).await;
    }
    let settings = admitted(cmd).await?;
    let mut out = Reply::new();
    let mut request = CursorRequest {
        ns: command.ns.clone(),
        reads: None,
        batch_size: command.batch_size,
        single_batch: command.single_batch,
        no_timeout: command.no_timeout,
    };
    let first = command.batch_size.unwrap_or(DEFAULT_FIRST_BATCH);
    let tailing = command.tailing;
    let find = command.parse(&cmd.ctx, &acquired).await?;
    let Some(collection) = acquired.collection() else {
        acquired.check_text(&find.matcher)?;
        let left = Left {
            at: cmd.ctx.read_concern.at_cluster_time,
            ..Left::nothing(request.ns.as_str())
        };
        append_cursor(&mut out, "firstBatch", &[], left);
        return Ok(out);
    };
    let (ns, uuid) = (collection.ns.clone(), collection.uuid);
    let mut read = find.into_request(acquired.target(collection));
    read.settings = settings;
    if let Some(tailing) = tailing {
        if is_in(&cmd.ctx) {
            return Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                "It is illegal to open a tailable cursor in a transaction",
            ));
        }
        let indexes = Vec::new();
        request.reads = Some(Reads { ns, uuid, indexes });
        let (ctx, awaits_data) = (&cmd.ctx, tailing == Tailing::AwaitData);
        let stream = TailStream::open(ctx, acquired.source(), read, awaits_data, first).await?;
        first_batch(
            cmd,
            Box::new(Stream::Tail(Box::new(stream))),
            request,
            &mut out,
        )
        .await?;
        return Ok(out);
    }
    let opened = open(&cmd.ctx, acquired.source(), read, first).await?;
    let indexes = opened.indexes;
    request.reads = Some(Reads { ns, uuid, indexes });
    let stream = Box::new(Stream::Merged(Box::new(opened.stream)));
    first_batch(cmd, stream, request, &mut out).await?;
    Ok(out)
}
