//! Changes of the catalog on a node of storage and catalog alone, in the simulator: against gates,
//! critical sections, builds of indexes, and each other.

mod act;
mod documents;
mod hold;
mod index_writes;
mod node;
mod play;

#[test]
fn scripts() {
    play::play_all();
}
