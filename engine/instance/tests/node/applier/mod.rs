//! Entries of one node applied to another, which has other partitions: both have the same documents
//! and indexes then.

mod cloned;
mod defaults;
mod faults;
mod foreign;
mod prepared;
mod rules;
pub mod source;
pub mod target;
mod transactions;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::{Document, RawDocument, doc};
use pinion_catalog::ApplyMode;
use pinion_clock::Timestamp;

use self::source::{Source, recorded};
use self::target::{Replayed, follow, state_of};
use crate::harness::with_node;

/// Cores and partitions of the source and of the target.
const SHAPES: [[(usize, u16); 2]; 4] = [
    [(1, 1), (2, 3)],
    [(2, 3), (1, 1)],
    [(2, 2), (2, 3)],
    [(3, 3), (2, 2)],
];

#[test]
fn a_member_that_applies_the_log_of_another_has_the_same_documents() {
    for (seed, [source, target]) in (800..).zip(SHAPES) {
        let source = recorded(seed, source);
        let expected = source.state.clone();
        let (cores, partitions) = target;
        with_node(seed, cores, partitions, move |client| {
            let source = source.clone();
            let expected = expected.clone();
            async move {
                let replayed = Replayed::new(&source.entries, ApplyMode::Secondary);
                follow(&client, seed, vec![replayed], true)
                    .await
                    .expect("applies");
                assert_eq!(state_of(&client).await, expected, "seed {seed}");
                let status = client.ok(doc! { "serverStatus": 1 }).await;
                let counted = status.get_document("opcountersRepl").expect("a section");
                let logged = operations_in(&source.entries);
                for (name, letter) in [("insert", "i"), ("update", "u"), ("delete", "d")] {
                    assert_eq!(counted.get_i64(name).ok(), Some(logged[letter]), "{name}");
                }
                assert!(counted.get_i64("command").unwrap() > 0, "{counted}");
                assert_eq!(counted.get_i64("query").ok(), Some(0));
            }
        });
    }
}

/// How many operations of documents the entries have of each kind, those that take place together
/// too.
fn operations_in(entries: &[(Timestamp, Bytes)]) -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    let mut count = |operation: &Document| {
        let op = operation.get_str("op").expect("an op").to_owned();
        *found.entry(op).or_default() += 1;
    };
    for (_, bytes) in entries {
        let whole = RawDocument::from_bytes(bytes).expect("an entry is a document");
        let whole = Document::try_from(whole).expect("an entry is a document");
        let together = whole
            .get_document("o")
            .and_then(|o| o.get_array("applyOps"));
        match together {
            Ok(list) => list
                .iter()
                .for_each(|each| count(each.as_document().unwrap())),
            Err(_) => count(&whole),
        }
    }
    found
}

/// The first pass makes what a clone would have, which is newer than where the entries begin.
#[test]
fn entries_that_are_older_than_the_documents_converge() {
    for (seed, [source, target]) in (820..).zip(SHAPES.into_iter().cycle().take(8)) {
        let source = recorded(seed, source);
        let (cores, partitions) = target;
        with_node(seed, cores, partitions, move |client| {
            let Source { entries, state } = source.clone();
            async move {
                let mut rng = pinion_runtime::random_stream("points");
                let all = entries.len() as u64;
                let cloned = rng.between(1, all) as usize;
                let (first, second) = (rng.below(cloned as u64), rng.below(all));
                let passes = vec![
                    Replayed::new(&entries[..cloned], ApplyMode::Secondary),
                    Replayed::new(&entries[first as usize..], ApplyMode::InitialSync),
                    Replayed::new(&entries[second as usize..], ApplyMode::InitialSync),
                ];
                follow(&client, seed, passes, false).await.expect("applies");
                let mut found = state_of(&client).await;
                let mut expected = state;
                found.sort_indexes();
                expected.sort_indexes();
                assert_eq!(
                    found, expected,
                    "seed {seed}: {cloned} of {all}, again from {first} and {second}"
                );
            }
        });
    }
}

/// What a process that has ended had loaded is not in the trees: the entries of indexes are made
/// again.
#[test]
fn recovery_makes_the_entries_of_indexes_that_are_not_loaded() {
    for (seed, [source, target]) in (840..).zip(SHAPES) {
        let source = recorded(seed, source);
        let (cores, partitions) = target;
        with_node(seed, cores, partitions, move |client| {
            let Source { entries, state } = source.clone();
            async move {
                let replayed = Replayed::new(&entries, ApplyMode::Recovery);
                follow(&client, seed, vec![replayed], false)
                    .await
                    .expect("applies");
                assert_eq!(state_of(&client).await, state, "seed {seed}");
            }
        });
    }
}

/// What a script has found out, for the test behind it.
fn shared<T: Default>() -> Rc<RefCell<T>> {
    Rc::default()
}
