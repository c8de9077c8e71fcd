//! A collection whose place another one takes over and over, and its readers meanwhile: each
//! reader sees all documents of one of them, or none.
//!
//! The documents of each come by one transaction, so no member has a part of them, whatever branch
//! of history it is on.

use std::rc::Rc;

use pinion_bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use pinion_runtime::{Duration, Rng, sleep};

use super::session::{Attempt, Session, is_of_the_moment, majority};
use super::workload::{Active, Shared};
use crate::client::{Client, batch, error_code};

pub const DB: &str = "moving";
pub const SHOWN: &str = "shown";
/// Documents of one collection.
const DOCUMENTS: i32 = 40;
/// Longest time between two changes, and between two reads.
const CHANGE_MS: u64 = 1_500;
const READ_MS: u64 = 200;
/// How long members take to apply a change at most, mostly.
const APPLIED_MS: u64 = 50;
/// Changes and reads after which both come less often.
const BUSY_CHANGES: u64 = 10;
const BUSY_READS: u64 = 200;
const WTIMEOUT_MS: i32 = 5_000;
/// How long a reader waits for an answer.
const ANSWER: Duration = Duration::from_secs(4);
/// QueryPlanKilled: the collection went away under the reader. NamespaceNotFound is no answer to a
/// `find`.
const GONE: i32 = 175;

/// Whether a reader of the place may be refused so.
pub fn is_given_up(code: i32) -> bool {
    code == GONE || is_of_the_moment(code)
}

/// Puts new collections into the place, or takes them away.
pub async fn move_collections(shared: Rc<Shared>, mut rng: Rng) {
    let mut session = Session::new(&shared.members, Rng::from_seed(rng.next_u64()));
    let mut round = 0;
    while let Some(active) = shared.begin().await {
        round += 1;
        change(&shared, &mut session, round, &mut rng).await;
        drop::<Active>(active);
        let pause_ms = CHANGE_MS * (1 + round as u64 / BUSY_CHANGES);
        sleep(Duration::from_millis(rng.below(pause_ms))).await;
    }
}

async fn change(shared: &Rc<Shared>, session: &mut Session, round: i32, rng: &mut Rng) {
    let concern = rawdoc! { "w": "majority", "wtimeout": WTIMEOUT_MS };
    let next = format!("next-{round}");
    let mut documents = RawArrayBuf::new();
    for id in 0..DOCUMENTS {
        let pad = "p".repeat(rng.below(60) as usize);
        documents.push(rawdoc! { "_id": id, "round": round, "pad": pad });
    }
    let insert = rawdoc! { "insert": next.as_str(), "documents": documents, "$db": DB };
    let snapshot = rawdoc! { "level": "snapshot" };
    let inserted = session
        .attempt(&[insert], &snapshot, Some(&majority()), &mut |_, _| {})
        .await;
    // A client that does not know whether it is there leaves it.
    match inserted {
        Attempt::Committed => {}
        Attempt::Aborted | Attempt::RolledBack | Attempt::Unknown => return,
        Attempt::Refused(reply) => {
            return shared.fail(format!("an insert in a transaction was refused: {reply:?}"));
        }
    }
    let command = match rng.below(4) {
        0 => rawdoc! { "drop": SHOWN, "writeConcern": concern, "$db": DB },
        _ => {
            let (from, to) = (format!("{DB}.{next}"), format!("{DB}.{SHOWN}"));
            rawdoc! { "renameCollection": from, "to": to, "dropTarget": true, "writeConcern": concern, "$db": "admin" }
        }
    };
    // Whatever comes of it, somebody may see it.
    shared.moves.set(true);
    session.retry(&command).await;
    // Members apply it a little later than they have it.
    sleep(Duration::from_millis(rng.below(APPLIED_MS))).await;
    shared.moves.set(false);
    shared.count("collections moved");
}

/// Reads what is in the place on one member: without a pause while that changes.
pub async fn read(shared: Rc<Shared>, member: usize, mut rng: Rng) {
    let mut client = Client::new(shared.members[member]).within(ANSWER);
    let mut reads = 0;
    while let Some(active) = shared.begin().await {
        let level = ["local", "available", "majority"][rng.below(3) as usize];
        let find = rawdoc! {
            "find": SHOWN,
            "batchSize": 1_000_i32,
            "readConcern": { "level": level },
            "maxTimeMS": 3_000_i32,
            "$readPreference": { "mode": "secondaryPreferred" },
            "$db": DB,
        };
        if let Ok(reply) = client.command(&find).await {
            let who = format!("a {level} read on member {member}");
            match error_code(&reply) {
                0 => look(&shared, &who, &batch(&reply, "firstBatch")),
                GONE => shared.count("reads of what has moved given up"),
                code if is_of_the_moment(code) => {}
                _ => shared.fail(format!("{who} was refused: {reply:?}")),
            }
        }
        drop::<Active>(active);
        reads += 1;
        let pause_ms = match shared.moves.get() {
            true => 1,
            false => READ_MS * (1 + reads / BUSY_READS),
        };
        sleep(Duration::from_millis(rng.below(pause_ms))).await;
    }
}

fn look(shared: &Shared, who: &str, documents: &[RawDocumentBuf]) {
    let Some(first) = documents.first() else {
        return shared.count("reads of nothing in a place");
    };
    let round = |document: &RawDocumentBuf| document.get_i32("round").ok();
    let is_one = documents
        .iter()
        .all(|document| round(document) == round(first));
    if documents.len() as i32 != DOCUMENTS || !is_one {
        let rounds: Vec<Option<i32>> = documents.iter().map(round).collect();
        let count = documents.len();
        shared.fail(format!(
            "{who} has seen {count} documents of what moves, of the rounds {rounds:?}"
        ));
    }
    shared.count("reads of what moves");
}
