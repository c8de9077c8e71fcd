//! What a shard does with the chunks that it owns: looks for keys at which one could be split, and
//! has the config servers commit splits and merges.

mod index;

mod commit;
mod split_vector;

mod commands;

pub(crate) use commands::{
    check_sharding_index, merge_all_chunks_on_shard, merge_chunks, split_chunk, split_vector,
};
