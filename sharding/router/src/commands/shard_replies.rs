//! The replies of several shards to one command, put together: each under `raw`, the first error as
//! the command's own.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_sharding_protocol::ShardId;
use pinion_wire::{Error, Reply, Result};

use crate::cluster::Cluster;
use crate::dispatch::Answer;
use crate::reply::append_passed_on;

/// What a shard has answered, to this router or to the shard that coordinates.
pub(super) trait ShardAnswer {
    fn document(&self) -> &RawDocument;
}

impl ShardAnswer for Answer {
    fn document(&self) -> &RawDocument {
        self.body()
    }
}

impl ShardAnswer for RawDocumentBuf {
    fn document(&self) -> &RawDocument {
        self
    }
}

/// A shard as replies name it: by its connection string where that is known.
pub(super) fn shown_shard(shard: &ShardId) -> String {
    let shards = Cluster::here().shards();
    match shards.get(shard) {
        Some(found) => found.string.to_string(),
        None => shard.to_string(),
    }
}

/// Appends `raw`: what each shard has answered.
pub(super) fn append_raw<A: ShardAnswer>(out: &mut DocBuilder, outcomes: &[(ShardId, Result<A>)]) {
    out.start_document("raw");
    for (shard, outcome) in outcomes {
        out.start_document(&shown_shard(shard));
        match outcome {
            Ok(answer) => {
                append_passed_on(out, answer.document(), |_| true);
                out.append("ok", 1.0);
            }
            Err(error) => append_error(out, error),
        }
        out.end();
    }
    out.end();
}

fn append_error(out: &mut DocBuilder, error: &Error) {
    out.append("ok", 0.0)
        .append("errmsg", &*error.message)
        .append("code", error.code.0)
        .append("codeName", &*error.code_name());
    if let Some(extra) = &error.extra {
        let is_further = |name: &[u8]| !matches!(name, b"errmsg" | b"code" | b"codeName");
        append_passed_on(out, extra, is_further);
    }
}

/// The answers of all shards.
///
/// # Errors
/// That of the first shard that has failed, by its name, with `raw` beside it.
pub(super) fn all_or_first_error<A: ShardAnswer>(
    outcomes: &[(ShardId, Result<A>)],
) -> Result<Vec<&A>> {
    let (mut answers, mut failed) = (Vec::new(), None);
    for (shard, outcome) in outcomes {
        match outcome {
            Ok(answer) => answers.push(answer),
            Err(error) => failed = failed.or(Some((shard, error))),
        }
    }
    let Some((shard, error)) = failed else {
        return Ok(answers);
    };
    let mut error = error.clone();
    let mut extra = DocBuilder::new();
    if let Some(own) = error.extra.take() {
        extra.append_all(&own);
    }
    append_raw(&mut extra, outcomes);
    let error = error.context(format!("failed on shard {shard}"));
    Err(error.with_extra(extra.finish()))
}

/// The reply of one shard that stands for all, with `raw` in front.
///
/// # Errors
/// As [`all_or_first_error`].
pub(super) fn raw_and_one<A: ShardAnswer>(
    outcomes: &[(ShardId, Result<A>)],
    choose: impl Fn(&A) -> bool,
) -> Result<Reply> {
    let answers = all_or_first_error(outcomes)?;
    let mut out = Reply::new();
    append_raw(&mut out, outcomes);
    let chosen = answers.iter().find(|answer| choose(answer));
    if let Some(chosen) = chosen.or_else(|| answers.first()) {
        append_passed_on(&mut out, chosen.document(), |name| {
            name != b"writeConcernError"
        });
    }
    // One that was not replicated somewhere is not for certain anywhere.
    let concern = answers.iter().find_map(|answer| {
        let error = pinion_bson::get(answer.document(), "writeConcernError")?;
        error.as_document()
    });
    if let Some(concern) = concern {
        crate::reply::append_concern_error(&mut out, concern);
    }
    Ok(out)
}
