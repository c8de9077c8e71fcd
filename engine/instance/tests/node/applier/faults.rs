//! Faults that the comparison of two nodes must find.

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_catalog::ApplyMode;
use pinion_clock::Timestamp;
use pinion_runtime::{Rng, random_stream};

use super::source::recorded;
use super::target::{Replayed, follow, state_of};
use crate::harness::with_node;

type Entries = Vec<(Timestamp, Bytes)>;

/// The collection and document that an entry of one document is about.
fn about(entry: &Bytes) -> Option<(String, String)> {
    let entry = RawDocument::from_bytes(entry).expect("a document");
    let op = entry.get_str("op").expect("an op");
    let key = match op {
        "u" => entry.get_document("o2").expect("an o2"),
        "i" | "d" => entry.get_document("o").expect("an o"),
        _ => return None,
    };
    let id = format!("{:?}", key.get("_id").expect("valid"));
    let ns = entry.get_str("ns").expect("an ns");
    // Of other collections the last word is not always that of an entry of one document.
    (ns == "test.docs").then(|| (ns.to_owned(), id))
}

/// Whether an entry is an insert or a delete. Updates may come to the same in another order.
fn is_whole(entry: &Bytes) -> bool {
    let entry = RawDocument::from_bytes(entry).expect("a document");
    entry.get_str("op").expect("an op") != "u"
}

/// The last two entries of some document.
pub fn last_two(entries: &Entries, rng: &mut Rng) -> (usize, usize) {
    let mut found = Vec::new();
    for second in 0..entries.len() {
        let Some(named) = about(&entries[second].1) else {
            continue;
        };
        let is_same = |other: &usize| about(&entries[*other].1).as_ref() == Some(&named);
        let first = (0..second).rev().find(is_same);
        let is_last = !(second + 1..entries.len()).any(|other| is_same(&other));
        if let Some(first) = first
            && is_last
            && is_whole(&entries[second].1)
        {
            found.push((first, second));
        }
    }
    found[rng.below(found.len() as u64) as usize]
}

/// A fault in the entries is an error, or leaves other documents.
fn check(seed: u64, plant: impl Fn(&mut Entries, &mut Rng) + Copy + 'static) {
    let source = recorded(seed, (2, 2));
    with_node(seed, 2, 3, move |client| {
        let source = source.clone();
        async move {
            let mut entries = source.entries.to_vec();
            plant(&mut entries, &mut random_stream("fault"));
            let replayed = Replayed::new(&entries, ApplyMode::Secondary);
            if follow(&client, seed, vec![replayed], false).await.is_ok() {
                let found = state_of(&client).await;
                assert_ne!(found, source.state, "seed {seed}: not found");
            }
        }
    });
}

#[test]
fn two_entries_of_a_document_in_the_wrong_order_are_found() {
    for seed in 860..864 {
        check(seed, |entries, rng| {
            let (first, second) = last_two(entries, rng);
            entries.swap(first, second);
        });
    }
}

#[test]
fn an_entry_that_is_left_out_is_found() {
    for seed in 870..874 {
        check(seed, |entries, rng| {
            let (_, last) = last_two(entries, rng);
            entries.remove(last);
        });
    }
}
