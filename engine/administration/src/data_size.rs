//! `dataSize`: how many documents a collection, or a range of one of its indexes, has, and their
//! bytes.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::Collection;
use pinion_exec::acquire::{AcquiredCollection, ReadTarget, acquire_read};
use pinion_exec::read::{ReadRequest, open};
use pinion_exec::stats::sizes_of;
use pinion_query::{Hint, IndexSpec, KeyBounds, Matcher};
use pinion_service::compute::compute;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

/// A range of an index's keys, the upper end not included.
struct Range {
    pattern: Option<RawDocumentBuf>,
    min: RawDocumentBuf,
    max: RawDocumentBuf,
}

/// What is counted, and when to stop.
struct Wanted {
    range: Option<Range>,
    estimate: bool,
    /// At most this many bytes and documents are counted, 0 for no limit.
    max_bytes: u64,
    max_documents: u64,
}

#[derive(Default)]
struct Counted {
    bytes: u64,
    documents: u64,
    stopped: bool,
}

/// `dataSize`.
pub(crate) async fn data_size(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse_sought(reader.str(cmd.message.command_name())?)?;
    let pattern = reader.opt_doc("keyPattern")?;
    let range = range(pattern, reader.opt_doc("min")?, reader.opt_doc("max")?)?;
    let wanted = Wanted {
        range,
        estimate: reader.opt_safe_bool("estimate")?.unwrap_or(false),
        max_bytes: reader.opt_i64("maxSize")?.unwrap_or(0).max(0) as u64,
        max_documents: reader.opt_i64("maxObjects")?.unwrap_or(0).max(0) as u64,
    };
    reader.finish()?;
    let started = pinion_runtime::now();
    let acquired = acquire_read(&cmd.ctx, ns, None).await?;
    let counted = match acquired.collection() {
        Some(collection) => count(&cmd.ctx, &acquired, collection, &wanted).await?,
        None => Counted::default(),
    };
    let mut out = Reply::new();
    out.append("estimate", wanted.estimate)
        .append("size", counted.bytes as i64)
        .append("numObjects", counted.documents as i64);
    if counted.stopped {
        out.append("maxReached", true);
    }
    out.append("millis", started.elapsed().as_millis() as i32);
    Ok(out)
}

fn range(
    pattern: Option<&RawDocument>,
    min: Option<&RawDocument>,
    max: Option<&RawDocument>,
) -> Result<Option<Range>> {
    let given = |document: Option<&RawDocument>| {
        document
            .filter(|document| !document.is_empty())
            .map(RawDocument::to_owned)
    };
    match (given(min), given(max)) {
        (None, None) => Ok(None),
        (Some(min), Some(max)) => Ok(Some(Range {
            pattern: given(pattern),
            min,
            max,
        })),
        _ => Err(Error::bad_value("only one of min or max specified")),
    }
}

async fn count(
    ctx: &OpContext,
    acquired: &AcquiredCollection,
    collection: &Arc<Collection>,
    wanted: &Wanted,
) -> Result<Counted> {
    let size = sizes_of(std::slice::from_ref(collection))
        .await
        .pop()
        .expect("one collection has one size");
    let bounded = wanted.max_bytes > 0 || wanted.max_documents > 0;
    if wanted.range.is_none() && !bounded {
        return Ok(Counted {
            bytes: size.data_bytes,
            documents: size.records,
            stopped: false,
        });
    }
    let everything = RawDocumentBuf::new();
    let matcher = compute(ctx, || Matcher::parse(&everything)).await?;
    // The sizes are of what is stored, with what the shard does not own.
    let target = ReadTarget::unfiltered(collection.clone());
    let mut request = ReadRequest::new(target, matcher);
    if let Some(range) = &wanted.range {
        let index = index_of(collection, range)?;
        let min = extended(&range.min, index);
        let max = extended(&range.max, index);
        if !is_below(index, &min, &max) {
            return Ok(Counted::default());
        }
        request.hint = Some(Hint::Name(index.name.to_string()));
        request.key_bounds = KeyBounds::parse(Some(&min), Some(&max))?;
    }
    let average = size.data_bytes.checked_div(size.records).unwrap_or(0);
    let mut counted = Counted::default();
    let mut stream = open(ctx, acquired.source(), request, usize::MAX)
        .await?
        .stream;
    while let Some(document) = stream.next_wanted(ctx, usize::MAX).await? {
        counted.documents += 1;
        counted.bytes += match wanted.estimate {
            true => average,
            false => document.len() as u64,
        };
        let above = |count: u64, most: u64| most > 0 && count > most;
        if above(counted.bytes, wanted.max_bytes) || above(counted.documents, wanted.max_documents)
        {
            counted.stopped = true;
            break;
        }
        pinion_runtime::yield_if_due().await;
    }
    Ok(counted)
}

/// The index whose keys begin with the pattern, or, without one, with the fields of the range. It
/// has each document once.
fn index_of<'c>(collection: &'c Collection, range: &Range) -> Result<&'c IndexSpec> {
    let begins = |spec: &&IndexSpec| {
        let mut key = pinion_bson::elements(&spec.key);
        match &range.pattern {
            Some(pattern) => pinion_bson::elements(pattern).all(|(name, direction)| {
                key.next().is_some_and(|(own, of_own)| {
                    own == name && pinion_bson::values_equal(of_own, direction)
                })
            }),
            None => pinion_bson::elements(&range.min)
                .all(|(name, _)| key.next().is_some_and(|(own, _)| own == name)),
        }
    };
    let whole = |spec: &&IndexSpec| {
        spec.is_usable() && !spec.is_multikey() && !spec.sparse && spec.filter.is_none()
    };
    let mut specs = collection.index_specs().iter();
    specs
        .find(|spec| begins(spec) && whole(spec))
        .ok_or_else(|| {
            Error::new(
                ErrorCode::OPERATION_FAILED,
                "couldn't find valid index containing key pattern",
            )
        })
}

/// The bound with the lowest values for the fields of the index that it does not name.
fn extended(bound: &RawDocument, index: &IndexSpec) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    let mut given = pinion_bson::elements(bound);
    for (name, direction) in pinion_bson::elements(&index.key) {
        let lowest = match pinion_wire::idl::f64_lossy(direction) {
            Some(direction) if direction < 0.0 => RawBsonRef::MaxKey,
            _ => RawBsonRef::MinKey,
        };
        let value = given.next().map_or(lowest, |(_, value)| value);
        out.append(name, value);
    }
    out.finish()
}

/// Whether one key of the index lies before the other.
fn is_below(index: &IndexSpec, min: &RawDocument, max: &RawDocument) -> bool {
    let key = |bound: &RawDocument| {
        let mut builder = pinion_keystring::Builder::new(index.ordering);
        for (_, value) in pinion_bson::elements(bound) {
            builder.append(value);
        }
        builder.finish().bytes
    };
    key(min) < key(max)
}
