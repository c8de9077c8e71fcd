//! Scripts of events with their full expected trace, and simulated sets.

mod config;
mod documents;
mod events;
mod script;
mod simulation;
mod trace;

/// Plays each script of `tests/node` and compares what the member does with what stands there.
#[test]
fn scripts() {
    script::play_all();
}
