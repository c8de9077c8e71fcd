//! The config and the topology time that a shard keeps for its next start: it then reads no catalog
//! of an earlier time than it had seen.

use pinion_bson::{RawDocument, rawdoc};
use pinion_clock::Timestamp;
use pinion_exec::{put_local, read_local};
use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_storage::storage;
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path};

use crate::config_servers::bson_timestamp;
use crate::data::enter_data;
use crate::part::part;

/// In `local`, where each member has its own, and clients do not write.
const COLLECTION: &str = "replset.vectorClock";
const ID: &str = "vectorClockState";

/// Config and topology time of a stored document.
fn parse(document: &RawDocument) -> Result<(Timestamp, Timestamp)> {
    let reader = FieldReader::object(Path::root(COLLECTION), document)?;
    let config = reader.opt_timestamp("configTime")?;
    let topology = reader.opt_timestamp("topologyTime")?;
    let known = |time: Option<Timestamp>| time.unwrap_or(Timestamp::MIN);
    Ok((known(config), known(topology)))
}

/// Takes up what was kept.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn restore() -> Result<()> {
    if let Some(document) = read_local(COLLECTION, ID).await? {
        let (config, topology) = parse(&document)?;
        // They were in order when they were kept, and each raises those above it.
        storage().tick_topology_to(topology);
        storage().tick_config_to(config);
    }
    Ok(())
}

/// Keeps what is known now, before anything is done that rests on it.
///
/// # Errors
/// Those of a write.
pub(crate) async fn keep() -> Result<()> {
    submit_to(CoreId(0), Queue::Foreground, keep_in_turn).await
}

/// What is kept never becomes earlier: it is read, and written, by one at a time.
async fn keep_in_turn() -> Result<()> {
    let part = part();
    let _turn = part.core_0.times_turn.acquire().await;
    let _open = enter_data()?;
    let kept = match read_local(COLLECTION, ID).await? {
        Some(document) => parse(&document)?,
        None => (Timestamp::MIN, Timestamp::MIN),
    };
    let time = storage().vector_time();
    let Some((config, topology)) = later(kept, (time.config(), time.topology())) else {
        return Ok(());
    };
    let document = rawdoc! {
        "_id": ID, "configTime": bson_timestamp(config),
        "topologyTime": bson_timestamp(topology),
    };
    put_local(COLLECTION, &document).await
}

/// The later ones of both times, where they are not what is kept.
fn later(
    kept: (Timestamp, Timestamp),
    known: (Timestamp, Timestamp),
) -> Option<(Timestamp, Timestamp)> {
    let later = (kept.0.max(known.0), kept.1.max(known.1));
    (later != kept).then_some(later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_never_becomes_earlier() {
        let at = |(config, topology)| (Timestamp::new(config, 1), Timestamp::new(topology, 1));
        let check = |kept, known, expected: Option<(u32, u32)>| {
            assert_eq!(later(at(kept), at(known)), expected.map(at));
        };
        check((5, 5), (5, 5), None);
        check((5, 5), (4, 3), None);
        check((5, 5), (9, 3), Some((9, 5)));
        check((5, 5), (5, 6), Some((5, 6)));
    }

    #[test]
    fn stored_times() {
        let time = |secs| bson_timestamp(Timestamp::new(secs, 1));
        let check = |document, config, topology| {
            let at =
                |secs: Option<u32>| secs.map_or(Timestamp::MIN, |secs| Timestamp::new(secs, 1));
            let found: pinion_bson::RawDocumentBuf = document;
            assert_eq!(parse(&found).ok(), Some((at(config), at(topology))));
        };
        check(
            rawdoc! { "_id": ID, "configTime": time(8), "topologyTime": time(7) },
            Some(8),
            Some(7),
        );
        check(rawdoc! { "_id": ID, "configTime": time(8) }, Some(8), None);
        assert!(parse(&rawdoc! { "configTime": 1 }).is_err());
    }
}
