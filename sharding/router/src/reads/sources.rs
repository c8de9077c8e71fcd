//! How the stages of a pipeline that runs here come to collections: by the shards that have them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::{
    DocBuilder, RawArray, RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, rawdoc,
};
use pinion_merge::{MergeSpec, Node, Passes, Sources};
use pinion_query::{DividedPipeline, ExternalStage, Memory, Pipeline, Variables};
use pinion_service::interrupt::interruptible;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::RoutingTable;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Result};

use super::options::shards_of;
use super::output::Model;
use super::part::{DOCUMENT_FIELD, KEY_FIELD, PartForm, ShardsRead, by_distance};
use super::stream::{merged, step_size};
use super::variables::definitions;
use super::views::ResolvedView;
use crate::concerns::append_defaults;
use crate::dispatch::Answer;
use crate::gather::ask_wherever;
use crate::request::{Request, Versions};

/// What the stages of one pipeline share.
pub(super) struct Routed {
    /// The client's, by whose options all requests go.
    pub cmd: Invocation,
    /// What is read; stages in it may read the same again.
    pub ns: Namespace,
    pub vars: Variables,
    /// That of the variables, as a command says it.
    pub collation: RawDocumentBuf,
    pub memory: Memory,
    /// Documents that are wanted first.
    pub wanted: usize,
    /// Whether this is the collection that the command names, which some options are about.
    pub is_named: bool,
    /// How much is to be explained, where the pipeline is not to be run.
    pub verbosity: Option<String>,
    /// Whether the pipeline writes into something that it reads.
    pub writes_into_source: bool,
    /// The first write concern of its writes that was not fulfilled.
    pub concern_error: Rc<RefCell<Option<RawDocumentBuf>>>,
    /// What its `$out` is to replace, once that was looked at.
    pub replaced: Rc<RefCell<Option<Model>>>,
    /// The views that it has met.
    pub views: Rc<RefCell<BTreeMap<Namespace, Rc<ResolvedView>>>>,
}

/// A collation as a command says it; the simple one by its name.
pub(super) fn spec_of(collation: Option<&RawDocument>) -> RawDocumentBuf {
    match collation {
        Some(spec) => spec.to_owned(),
        None => rawdoc! { "locale": "simple" },
    }
}

/// Options of a client's command that all requests for it have.
const PASSED_ON: [&str; 9] = [
    "readConcern",
    "$readPreference",
    "lsid",
    "txnNumber",
    "autocommit",
    "maxTimeMS",
    "comment",
    "apiVersion",
    "apiDeprecationErrors",
];
const PASSED_ON_WITH_EXPLAIN: [&str; 4] = ["readConcern", "$readPreference", "lsid", "comment"];

impl Routed {
    /// The same for another collection.
    fn inner(&self, ns: Namespace, vars: &Variables) -> Rc<Routed> {
        Rc::new(Routed {
            cmd: self.cmd.clone(),
            ns,
            vars: vars.clone(),
            collation: self.collation.clone(),
            memory: self.memory.clone(),
            wanted: usize::MAX,
            is_named: false,
            verbosity: None,
            writes_into_source: false,
            concern_error: Rc::default(),
            replaced: Rc::default(),
            views: self.views.clone(),
        })
    }

    /// The same for what a view stands for.
    fn behind(&self, on: Namespace) -> Rc<Routed> {
        Rc::new(Routed {
            cmd: self.cmd.clone(),
            ns: on,
            vars: self.vars.clone(),
            collation: self.collation.clone(),
            memory: self.memory.clone(),
            wanted: self.wanted,
            is_named: self.is_named,
            verbosity: self.verbosity.clone(),
            writes_into_source: self.writes_into_source,
            concern_error: self.concern_error.clone(),
            replaced: self.replaced.clone(),
            views: self.views.clone(),
        })
    }

    /// The pipeline that a shard runs, and the form of what comes out of it.
    fn part(&self, divided: &DividedPipeline) -> (RawArrayBuf, PartForm) {
        let mut stages = RawArrayBuf::new();
        for stage in &divided.stages {
            stages.push(RawBson::Document(stage.clone()));
        }
        let given = divided.given();
        let mut wrap = DocBuilder::new();
        wrap.start_document("$project").append("_id", 0i32);
        let form = match (&divided.sort, divided.is_near) {
            (Some(sort), _) => {
                let key = rawdoc! { "$meta": "sortKey" };
                wrap.append(KEY_FIELD, &*key);
                PartForm::Wrapped(sort.clone())
            }
            (None, true) => {
                let distance = rawdoc! { "$meta": "geoNearDistance" };
                wrap.start_array(KEY_FIELD).push(&*distance).end();
                PartForm::Wrapped(by_distance())
            }
            (None, false) => match &given {
                // The whole of it is what is given.
                RawBson::Document(keyed) => {
                    wrap.append_all(keyed).end();
                    stages.push(RawBson::Document(wrap.finish()));
                    return (stages, PartForm::Plain);
                }
                _ => return (stages, PartForm::Plain),
            },
        };
        wrap.append_raw(DOCUMENT_FIELD, given.as_raw_bson_ref())
            .end();
        stages.push(RawBson::Document(wrap.finish()));
        (stages, form)
    }

    /// A request for a pipeline over the collection.
    fn request(&self, stages: &RawArray, versions: Versions) -> Request {
        Request::own(self.ns.db(), versions, |out| match &self.verbosity {
            None => {
                self.append_command(out, stages);
                self.append_options(out, &PASSED_ON);
            }
            Some(verbosity) => {
                out.start_document("explain");
                self.append_command(out, stages);
                out.end().append("verbosity", verbosity.as_str());
                self.append_options(out, &PASSED_ON_WITH_EXPLAIN);
            }
        })
    }

    fn append_command(&self, out: &mut DocBuilder, stages: &RawArray) {
        out.append("aggregate", self.ns.collection());
        out.append("pipeline", stages);
        out.start_document("cursor");
        out.append("batchSize", step_size(self.wanted)).end();
        out.append("collation", &*self.collation);
        out.append("let", &*definitions(&self.vars));
        if self.is_named {
            self.append_options(out, &["hint", "collectionUUID"]);
        }
        self.append_options(out, &["allowDiskUse"]);
    }

    fn append_options(&self, out: &mut DocBuilder, names: &[&str]) {
        let body = self.cmd.body();
        let explained = pinion_bson::get(body, "explain").and_then(|inner| inner.as_document());
        let mut defaults = DocBuilder::new();
        append_defaults(&mut defaults, &self.cmd);
        for name in names {
            if *name == "readConcern"
                && let Some(concern) = defaults.get(name)
            {
                out.append_raw(name, concern);
                continue;
            }
            let value = explained.and_then(|inner| pinion_bson::get(inner, name));
            if let Some(value) = value.or_else(|| pinion_bson::get(body, name)) {
                out.append_raw(name, value);
            }
        }
    }

    /// Sends a pipeline to all shards that have something of what it matches.
    async fn ask(
        &self,
        cmd: &Invocation,
        stages: &RawArray,
        divided: &DividedPipeline,
    ) -> Result<Vec<Answer>> {
        let target = |table: &RoutingTable| shards_of(cmd, table, &divided.matcher);
        let make = |versions| self.request(stages, versions);
        ask_wherever(cmd, &self.ns, target, make).await
    }

    /// The pipeline divided between shards and this process.
    ///
    /// # Errors
    /// As [`Pipeline::divided`].
    pub(super) fn divided(&self, pipeline: Pipeline) -> Result<DividedPipeline> {
        pipeline.divided(&self.vars)?.reduced(&self.vars)
    }

    /// What the shards answer to their part of a pipeline, and the form of their documents.
    ///
    /// # Errors
    /// Those of the shards, and of the way there; the operation is stopped.
    pub(super) async fn answers(
        &self,
        ctx: &OpContext,
        divided: &DividedPipeline,
    ) -> Result<(Vec<Answer>, PartForm)> {
        let (stages, form) = self.part(divided);
        // It runs as long as what asked for it now, which may be a `getMore`.
        let mut cmd = self.cmd.clone();
        if is_in(ctx) && ctx.op_id != cmd.ctx.op_id {
            // The transaction is with the statement that runs now.
            cmd.ctx.renew(ctx.op_id, pinion_runtime::now().as_nanos());
        }
        cmd.ctx = cmd.ctx.clone().with_deadline(ctx.deadline_ns);
        let answers = interruptible(ctx, self.ask(&cmd, &stages, divided)).await??;
        Ok((answers, form))
    }

    /// A pipeline over the collection, or over what the view of that name stands for.
    ///
    /// # Errors
    /// Those of the shards, and of the way there; `OptionNotSupportedOnView`.
    pub(super) async fn over(
        self: &Rc<Self>,
        ctx: &OpContext,
        pipeline: Pipeline,
    ) -> Result<Node<Routed>> {
        let known = self.views.borrow().get(&self.ns).cloned();
        let view = match known {
            Some(view) => view,
            None => match self.over_collection(ctx, pipeline.clone()).await {
                Ok(node) => return Ok(node),
                Err(error) => match ResolvedView::from_error(&error)? {
                    Some(view) => Rc::new(view),
                    None => return Err(error),
                },
            },
        };
        view.check_collation(&self.ns, &self.collation)?;
        self.views
            .borrow_mut()
            .insert(self.ns.clone(), view.clone());
        let stages = view.stages(pipeline.sources());
        let pipeline = Pipeline::parse_sub(&stages, &self.vars)?;
        let behind = self.behind(view.on.clone());
        Box::pin(behind.over_collection(ctx, pipeline)).await
    }

    /// A pipeline over the collection: what its shards can do of it is done there.
    ///
    /// # Errors
    /// Those of the shards, and of the way there.
    async fn over_collection(
        self: &Rc<Self>,
        ctx: &OpContext,
        pipeline: Pipeline,
    ) -> Result<Node<Routed>> {
        let divided = self.divided(pipeline)?;
        let (answers, form) = self.answers(ctx, &divided).await?;
        let spec = MergeSpec {
            limit: divided.limit.map(|limit| limit as usize),
            ends_are_known: true,
            ..MergeSpec::default()
        };
        let read = merged(ctx, &answers, &form, spec).await?;
        Ok(Node::chain(Node::Read(Box::new(read)), divided.rest, self))
    }
}

impl Routed {
    /// Takes note of a write concern that was not fulfilled.
    pub(super) fn note_concern_error(&self, error: &RawDocument) {
        let mut first = self.concern_error.borrow_mut();
        first.get_or_insert_with(|| error.to_owned());
    }

    /// Appends the write concern of the client, or that of the cluster, to a command that writes.
    pub(super) fn append_write_concern(&self, out: &mut DocBuilder) {
        let named = self.cmd.ctx.args.write_concern.as_ref();
        if named.is_some_and(pinion_wire::idl::WriteConcern::is_unacknowledged) {
            return;
        }
        let mut defaults = DocBuilder::new();
        append_defaults(&mut defaults, &self.cmd);
        let named = pinion_bson::get(self.cmd.body(), "writeConcern");
        if let Some(concern) = named.or_else(|| defaults.get("writeConcern")) {
            out.append_raw("writeConcern", concern);
        }
    }

    /// Appends the options of the client's command that those by which it writes have, too.
    pub(super) fn append_write_options(&self, out: &mut DocBuilder) {
        self.append_write_concern(out);
        let names = [
            "bypassDocumentValidation",
            "comment",
            "apiVersion",
            "apiDeprecationErrors",
        ];
        self.append_options(out, &names);
    }
}

impl Sources for Routed {
    type Read = ShardsRead;
    /// What is read by shards is not held from here.
    type Held = ();

    fn vars(&self) -> &Variables {
        &self.vars
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    async fn open(
        self: &Rc<Self>,
        ctx: &OpContext,
        from: Option<&str>,
        stages: &RawArray,
        vars: &Variables,
        _: Passes,
    ) -> Result<(Node<Routed>, Option<()>)> {
        let made = Pipeline::documents(stages, vars)?;
        let pipeline = Pipeline::parse_sub(stages, vars)?;
        let Some(from) = from else {
            let list = made.into_iter().flatten().collect();
            let inner = self.inner(self.ns.clone(), vars);
            return Ok((Node::chain(Node::List(list), pipeline, &inner), None));
        };
        if made.is_some() {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                "$documents is only valid for a pipeline without a collection",
            ));
        }
        let Ok(ns) = Namespace::new(self.ns.db(), from) else {
            // No collection can be called that.
            let inner = self.inner(self.ns.clone(), vars);
            return Ok((Node::chain(Node::nothing(), pipeline, &inner), None));
        };
        let inner = self.inner(ns, vars);
        Ok((inner.over(ctx, pipeline).await?, Some(())))
    }

    async fn open_own(self: &Rc<Self>, ctx: &OpContext, pipeline: &Pipeline) -> Result<Node<Self>> {
        self.over(ctx, pipeline.clone()).await
    }

    async fn write(
        self: &Rc<Self>,
        ctx: &OpContext,
        stage: &ExternalStage,
        source: Node<Self>,
    ) -> Result<()> {
        Box::pin(super::output::write(ctx, self, stage, source)).await
    }
}
