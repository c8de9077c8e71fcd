//! What an increment costs at 1,000,000 chunks: printed, not asserted. Run it in release with
//! `--nocapture`.

use std::time::Instant;

use super::RoutingTable;
use crate::testing::{HIGHEST, LOWEST, Model, ModelChunk};

const CHUNKS: i64 = 1_000_000;

#[test]
#[allow(clippy::disallowed_methods)] // Time is printed, nothing depends on it.
fn an_increment_at_a_million_chunks() {
    let mut model = Model::new(1, 10, "s0");
    let of = model.of;
    let documents = (0..CHUNKS).map(|at| {
        let chunk = ModelChunk {
            min: if at == 0 { LOWEST } else { at * 10 },
            max: if at + 1 == CHUNKS {
                HIGHEST
            } else {
                (at + 1) * 10
            },
            version: crate::version::ChunkVersion {
                of,
                major: 1,
                minor: at as u32,
            },
            history: vec![(of.timestamp, format!("s{}", at % 100))],
            is_jumbo: false,
        };
        chunk.document()
    });
    let start = Instant::now();
    let table = RoutingTable::new(&model.collection(), documents).expect("a table");
    println!("{CHUNKS} chunks, documents included: {:?}", start.elapsed());
    assert_eq!(table.len() as i64, CHUNKS);

    // One move: the chunk, and one that stays on the donor.
    let mut of_donor = table
        .chunks()
        .filter(|chunk| chunk.shard == super::ShardIdx(7));
    let bounds = |chunk: &crate::chunk::ChunkInfo| {
        let key = |key| pinion_bson::get(&table.key.document(key), "a").and_then(|v| v.as_i64());
        let bounds = (key(&chunk.range.min), key(&chunk.range.max));
        (bounds.0.expect("a number"), bounds.1.expect("a number"))
    };
    let moved = table.version().moved();
    model.chunks = [(moved.migrated, "s8"), (moved.control, "s7")]
        .into_iter()
        .map(|(version, shard)| {
            let (min, max) = bounds(of_donor.next().expect("many"));
            ModelChunk {
                min,
                max,
                version,
                history: vec![(of.timestamp, shard.to_owned())],
                is_jumbo: false,
            }
        })
        .collect();
    drop(of_donor);
    let changes = model.changes(table.version());
    let start = Instant::now();
    let next = table.apply(&model.collection(), changes).expect("a table");
    println!("one move: {:?}", start.elapsed());
    assert_eq!((next.len(), next.version()), (table.len(), moved.control));
}
