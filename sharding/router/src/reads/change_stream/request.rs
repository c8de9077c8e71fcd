//! What a client asks a change stream for, and what each shard is asked for it.

use pinion_bson::{DocBuilder, RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_query::{
    ChangeStreamOptions, FullDocument, Pipeline, PipelineRun, Resume, ResumeToken, Start,
    TokenData, Variables, check_stages, parse_collation,
};
use pinion_service::operator_counts::compute_counted;
use pinion_service::spill::memory;
use pinion_wire::idl::{CommandReader, FieldReader, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, Result};

use super::super::variables::variables;
use super::stages::RouterStages;
use crate::request::Request;

/// A stream as a client asks for it.
pub(super) struct ChangesRequest {
    pub cmd: Invocation,
    pub ns: Namespace,
    pub batch_size: Option<usize>,
    options: ChangeStreamOptions,
    stages: RawArrayBuf,
    splits: bool,
    vars: Variables,
}

/// Where the stream of a shard begins.
#[derive(Clone, Debug)]
pub(super) enum ShardStart {
    At(pinion_bson::Timestamp),
    Behind(ResumeToken),
}

impl ShardStart {
    /// What the stream begins behind.
    pub(super) fn token(&self) -> ResumeToken {
        match self {
            ShardStart::At(time) => TokenData::high_water_mark(*time).token(),
            ShardStart::Behind(token) => token.clone(),
        }
    }
}

/// Fields of the specification that say where a stream begins.
const STARTS: [&[u8]; 3] = [b"resumeAfter", b"startAfter", b"startAtOperationTime"];

impl ChangesRequest {
    /// Reads a client's command.
    ///
    /// # Errors
    /// Those of the specification and of the stages behind it; all else the shards refuse.
    pub(super) async fn read(cmd: &Invocation) -> Result<ChangesRequest> {
        let reader = CommandReader::new("aggregate", cmd.body())?;
        let ns = match reader.value("aggregate") {
            Some(value) if pinion_wire::idl::is_number(value) => {
                Namespace::new(cmd.db(), "$cmd.aggregate")?
            }
            _ => reader.sought("aggregate", cmd.db())?,
        };
        let Some(RawBsonRef::Array(stages)) = reader.value("pipeline") else {
            return Err(Error::type_mismatch(
                "'pipeline' option must be specified as an array",
            ));
        };
        let batch_size = match reader.opt_doc("cursor")? {
            None => None,
            Some(cursor) => {
                let path = reader.path().field("cursor");
                FieldReader::object(path, cursor)?.opt_non_negative("batchSize")?
            }
        };
        Pipeline::check_form(stages)?;
        let options = ChangeStreamOptions::parse(specification(stages)?)?;
        let splits = check_stages(stages)?;
        if inside_of(&options).is_some() && !splits {
            return Err(Error::new(
                ErrorCode::CHANGE_STREAM_FATAL_ERROR,
                "To resume from a split event, the pipeline must include a $changeStreamSplitLargeEvent stage",
            ));
        }
        let collation = match reader.opt_doc("collation")?.filter(|spec| !spec.is_empty()) {
            Some(spec) => parse_collation(spec)?,
            None => None,
        };
        let vars = Variables {
            collation,
            ..variables(reader.opt_doc("let")?)?
        };
        Ok(ChangesRequest {
            cmd: cmd.clone(),
            ns,
            batch_size: batch_size.map(|size| size as usize),
            options,
            stages: stages.to_owned(),
            splits,
            vars,
        })
    }

    /// Whether the client names no place to begin at.
    pub(super) fn begins_now(&self) -> bool {
        self.options.start == Start::Now
    }

    /// Has it begin behind this time, at every shard.
    ///
    /// # Errors
    /// No time is known.
    pub(super) fn begin_behind(&mut self, time: Timestamp) -> Result<()> {
        if time.is_null() {
            return Err(Error::internal("no time of the cluster is known"));
        }
        let first = time.next();
        self.options.start = Start::At(pinion_bson::Timestamp {
            time: first.secs(),
            increment: first.inc(),
        });
        Ok(())
    }

    /// Where each shard begins.
    pub(super) fn start(&self) -> ShardStart {
        match &self.options.start {
            Start::Now => unreachable!("it was given a time"),
            Start::At(time) => ShardStart::At(*time),
            // The event is needed whole for the parts of it that are left.
            Start::Behind(_) if let Some(resume) = inside_of(&self.options) => {
                ShardStart::At(resume.data.cluster_time)
            }
            Start::Behind(resume) => ShardStart::Behind(resume.token.clone()),
        }
    }

    /// What the client can resume from as long as it has nothing else.
    pub(super) fn first_token(&self) -> ResumeToken {
        match &self.options.start {
            Start::Behind(resume) => resume.token.clone(),
            _ => self.start().token(),
        }
    }

    /// The event that the client has seen last, if it names one.
    pub(super) fn resume(&self) -> Option<Resume> {
        match &self.options.start {
            Start::Behind(resume) => Some(Resume::clone(resume)),
            _ => None,
        }
    }

    fn looks_up(&self) -> bool {
        self.options.full_document == FullDocument::UpdateLookup
    }

    /// Whether the stages run here: each shard has but some of the documents that are looked up,
    /// and parts of an event are counted where it is taken apart.
    fn runs_stages(&self) -> bool {
        self.looks_up() || inside_of(&self.options).is_some()
    }

    /// The stages that run here; `None` where the shards run them.
    ///
    /// # Errors
    /// Those of the stages.
    pub(super) async fn router_stages(&self) -> Result<Option<RouterStages>> {
        let mut stages = RawArrayBuf::new();
        let count = pinion_bson::values(&self.stages).count() - usize::from(self.splits);
        for stage in pinion_bson::values(&self.stages).take(count) {
            stages.push(RawBson::from(stage));
        }
        let vars = &self.vars;
        let parse = || Pipeline::parse_from(&stages, 1, vars);
        let pipeline = compute_counted(&self.cmd.ctx, parse).await?;
        if !self.runs_stages() {
            return Ok(None);
        }
        let run = PipelineRun::new(pipeline, &memory(Some(false)));
        let cmd = self.looks_up().then(|| self.cmd.clone());
        RouterStages::new(run, self.splits, cmd).map(Some)
    }

    /// The request for a shard.
    pub(super) fn of_shard(&self, start: &ShardStart) -> Request {
        let mut stages = RawArrayBuf::new();
        stages.push(RawBson::Document(self.first_stage(start)));
        if !self.runs_stages() {
            for stage in pinion_bson::values(&self.stages).skip(1) {
                stages.push(RawBson::from(stage));
            }
        }
        Request::with(&self.cmd, self.ns.db(), None, |out| {
            out.append("pipeline", &*stages);
            out.start_document("cursor")
                .append("batchSize", 0i32)
                .end()
                .append("fromRouter", true);
        })
    }

    fn first_stage(&self, start: &ShardStart) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.start_document("$changeStream");
        if let Ok(RawBsonRef::Document(spec)) = specification(&self.stages) {
            for elem in pinion_bson::raw_elements(spec) {
                let is_left_out = STARTS.contains(&elem.name)
                    || (elem.name == b"fullDocument" && self.looks_up());
                if !is_left_out {
                    out.append_elem(&elem);
                }
            }
        }
        match start {
            ShardStart::At(time) => {
                out.append_raw("startAtOperationTime", RawBsonRef::Timestamp(*time));
            }
            ShardStart::Behind(token) => {
                out.append("startAfter", &*token.to_document());
            }
        }
        out.end();
        out.finish()
    }
}

/// The place inside an event at which a stream is resumed.
fn inside_of(options: &ChangeStreamOptions) -> Option<&Resume> {
    match &options.start {
        Start::Behind(resume) if resume.data.fragment.is_some() => Some(resume),
        _ => None,
    }
}

fn specification(stages: &RawArray) -> Result<RawBsonRef<'_>> {
    let first = pinion_bson::values(stages).next();
    let first = first.and_then(|stage| pinion_bson::elements(stage.as_document()?).next());
    match first {
        Some(("$changeStream", spec)) => Ok(spec),
        _ => Err(Error::internal("the pipeline is no change stream")),
    }
}
