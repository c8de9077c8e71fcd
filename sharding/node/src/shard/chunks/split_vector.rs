//! The search for keys at which a chunk could be split: a walk of the shard key's index.

use pinion_bson::{RawDocument, RawDocumentBuf, get, rawdoc};
use pinion_query::document_text;
use pinion_sharding_protocol::ShardKeyPattern;
use pinion_sharding_protocol::balancer::{ChunkSize, SplitLimits, SplitSearch};
use pinion_wire::idl::{FieldReader, Namespace, i64_clamped};
use pinion_wire::{Error, ErrorCode, Result};

use super::index::{KeyIndex, find_index, shard_key_of};
use crate::limits::{SPLIT_KEYS_BATCH, SPLIT_KEYS_BYTES};
use crate::local::LocalClient;
use crate::replies;

/// `splitVector: <ns>, keyPattern, min?, max?, maxSplitPoints?, maxChunkObjects?, maxChunkSize?,
/// maxChunkSizeBytes?, force?`.
pub(super) struct SplitVectorRequest {
    ns: Namespace,
    key: ShardKeyPattern,
    min: RawDocumentBuf,
    max: RawDocumentBuf,
    max_points: Option<usize>,
    max_documents: Option<u64>,
    max_chunk_size_bytes: Option<u64>,
    is_forced: bool,
}

const MEGABYTE: i64 = 1 << 20;

/// The key and the bounds that a command names: `min` and `max`, or all keys.
///
/// # Errors
/// `BadValue` for a pattern that is missing or none, and for one bound alone.
pub(super) fn key_and_bounds(
    reader: &FieldReader<'_, '_>,
    command: &str,
) -> Result<(ShardKeyPattern, RawDocumentBuf, RawDocumentBuf)> {
    let pattern = reader.opt_doc("keyPattern")?;
    let Some(pattern) = pattern.filter(|pattern| !pattern.is_empty()) else {
        return Err(Error::bad_value(format!(
            "no key pattern found in {command}"
        )));
    };
    let key = ShardKeyPattern::parse(pattern)?;
    let bound = |name| {
        let bound = reader.opt_doc(name)?;
        Ok::<_, Error>(bound.filter(|bound| !bound.is_empty()))
    };
    match (bound("min")?, bound("max")?) {
        (Some(min), Some(max)) => {
            key.bound(min)?;
            key.bound(max)?;
            Ok((key, min.to_owned(), max.to_owned()))
        }
        (None, None) => {
            let (min, max) = (key.document(&key.min()), key.document(&key.max()));
            Ok((key, min, max))
        }
        _ => Err(Error::bad_value(
            "either provide both min and max or leave both empty",
        )),
    }
}

impl SplitVectorRequest {
    /// # Errors
    /// As of [`key_and_bounds`]; a field of a wrong type.
    pub(super) fn read(reader: &FieldReader<'_, '_>) -> Result<SplitVectorRequest> {
        let ns = Namespace::parse(reader.str("splitVector")?)?;
        let (key, min, max) = key_and_bounds(reader, "splitVector")?;
        // Zero and below mean that there is no limit.
        let limit = |name| Ok::<_, Error>(reader.opt_i64(name)?.filter(|limit| *limit > 0));
        let megabytes = limit("maxChunkSize")?.map(|size| size.saturating_mul(MEGABYTE));
        let bytes = limit("maxChunkSizeBytes")?;
        Ok(SplitVectorRequest {
            ns,
            key,
            min,
            max,
            max_points: limit("maxSplitPoints")?.map(|limit| limit as usize),
            max_documents: limit("maxChunkObjects")?.map(|limit| limit as u64),
            max_chunk_size_bytes: megabytes.or(bytes).map(|size| size as u64),
            is_forced: reader.opt_flag("force")?.unwrap_or(false),
        })
    }

    /// The points, in their order.
    ///
    /// # Errors
    /// `NamespaceNotFound`; `IndexNotFound`; `InvalidOptions` where the size is not limited; those
    /// of a read.
    pub(super) async fn search(&self) -> Result<Vec<RawDocumentBuf>> {
        let index = find_index(&self.ns, &self.key, true)?.ok_or_else(|| {
            Error::new(
                ErrorCode::INDEX_NOT_FOUND,
                format!(
                    "couldn't find index over splitting key {}",
                    document_text(&self.key.to_bson())
                ),
            )
        })?;
        let client = LocalClient::new()?;
        let size = size(&client, &self.ns).await?;
        if size.documents == 0 {
            return Ok(Vec::new());
        }
        let max_chunk_size_bytes = match (self.is_forced, self.max_chunk_size_bytes) {
            (true, _) => size.size_bytes,
            (false, Some(bytes)) => bytes,
            (false, None) => {
                return Err(Error::new(
                    ErrorCode::INVALID_OPTIONS,
                    "need to specify the desired max chunk size",
                ));
            }
        };
        let limits = SplitLimits {
            max_chunk_size_bytes,
            max_points: self.max_points,
            max_documents: self.max_documents,
            is_forced: self.is_forced,
        };
        let Some(mut search) = SplitSearch::new(size, limits) else {
            return Ok(Vec::new());
        };
        self.walk(&client, &index, &mut search).await?;
        let mut bytes = 0;
        let points = search.finish().into_iter();
        let points = points.map(|point| self.key.document(&point));
        let fitting = points.take_while(|point| {
            bytes += point.as_bytes().len();
            bytes <= SPLIT_KEYS_BYTES
        });
        Ok(fitting.collect())
    }

    /// Gives the search the keys of the range, until it has enough.
    async fn walk(
        &self,
        client: &LocalClient,
        index: &KeyIndex,
        search: &mut SplitSearch,
    ) -> Result<()> {
        let place = (self.ns.db(), self.ns.collection());
        let command = rawdoc! {
            "find": place.1, "filter": {}, "hint": index.name.as_str(), "returnKey": true,
            "collation": { "locale": "simple" },
            "min": index.bound(&self.min), "max": index.bound(&self.max),
            "batchSize": SPLIT_KEYS_BATCH, "readConcern": { "level": "local" },
            "$readPreference": { "mode": "primaryPreferred" }, "$db": place.0,
        };
        let mut batch = replies::batch(client.run(&command).await?.body(), "firstBatch")?;
        loop {
            for found in &batch.documents {
                let key = self.key.bound(&shard_key_of(&self.key, found))?;
                if !search.next_key(&key) {
                    return close(client, place, batch.cursor).await;
                }
            }
            if batch.cursor == 0 {
                return Ok(());
            }
            batch = client
                .more(place, batch.cursor, Some(SPLIT_KEYS_BATCH))
                .await?;
        }
    }
}

async fn close(client: &LocalClient, (db, collection): (&str, &str), cursor: i64) -> Result<()> {
    if cursor != 0 {
        let kill = rawdoc! { "killCursors": collection, "cursors": [cursor], "$db": db };
        client.run(&kill).await?;
    }
    Ok(())
}

/// What a collection has here, orphans with it.
async fn size(client: &LocalClient, ns: &Namespace) -> Result<ChunkSize> {
    let command = rawdoc! {
        "collStats": ns.collection(), "$readPreference": { "mode": "primaryPreferred" },
        "$db": ns.db(),
    };
    let reply = client.run(&command).await?;
    let number = |reply: &RawDocument, name| {
        let number = get(reply, name).and_then(i64_clamped).unwrap_or(0);
        number.max(0) as u64
    };
    Ok(ChunkSize {
        size_bytes: number(reply.body(), "size"),
        documents: number(reply.body(), "count"),
    })
}
