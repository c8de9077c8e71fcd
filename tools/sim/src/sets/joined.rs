//! Reads that last: each meets a collection twice in one command, and waits in between for the
//! outcome of a prepared transaction.
//!
//! While a read waits another collection takes the place of what it reads (`moving`). It sees the
//! same one all the same, or is refused.

use std::rc::Rc;

use pinion_bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};
use pinion_runtime::{Duration, Rng, now, sleep};

use super::moving::{DB, SHOWN, is_given_up};
use super::session::{Attempt, Session, Written};
use super::workload::{Active, Shared};
use crate::client::{batch, error_code};

/// What is written in prepared transactions, and how many documents of it there are.
const STEPS: &str = "steps";
const STEP_DOCUMENTS: i32 = 6;
/// Longest time between two transactions, and between two reads.
const HOLD_MS: u64 = 1_000;
const READ_MS: u64 = 300;
/// Transactions and reads after which both come less often.
const BUSY_HOLDS: u64 = 20;
const BUSY_READS: u64 = 60;
const WTIMEOUT_MS: i32 = 5_000;
/// How long a read may take: longer than a transaction is prepared.
const MAX_TIME_MS: i32 = 6_000;
/// A read that took longer has waited in the middle.
const LONG: Duration = Duration::from_millis(400);

/// Changes one document after the other in transactions that are prepared for a while.
pub async fn hold(shared: Rc<Shared>, mut rng: Rng) {
    let mut session = Session::new(&shared.members, Rng::from_seed(rng.next_u64()));
    let (mut is_made, mut rounds) = (false, 0);
    while let Some(active) = shared.begin().await {
        match is_made {
            false => is_made = make(&shared, &mut session).await,
            true => hold_one(&shared, &mut session, &mut rng).await,
        }
        drop::<Active>(active);
        rounds += 1;
        let pause_ms = HOLD_MS * (1 + rounds / BUSY_HOLDS);
        sleep(Duration::from_millis(rng.below(pause_ms))).await;
    }
}

/// Makes the documents; whether a majority has them.
async fn make(shared: &Rc<Shared>, session: &mut Session) -> bool {
    let mut updates = RawArrayBuf::new();
    for id in 0..STEP_DOCUMENTS {
        let change = rawdoc! { "$set": { "n": 0_i32 } };
        updates.push(rawdoc! { "q": { "_id": id }, "u": change, "upsert": true });
    }
    let concern = rawdoc! { "w": "majority", "wtimeout": WTIMEOUT_MS };
    let update =
        rawdoc! { "update": STEPS, "updates": updates, "writeConcern": concern, "$db": DB };
    match session.write(&update).await {
        Written::Acknowledged => true,
        Written::Unknown => false,
        Written::Refused(reply) => {
            shared.fail(format!("what is to be held was refused: {reply:?}"));
            false
        }
    }
}

async fn hold_one(shared: &Rc<Shared>, session: &mut Session, rng: &mut Rng) {
    let id = rng.below(STEP_DOCUMENTS as u64) as i32;
    let change = rawdoc! { "$inc": { "n": 1_i32 } };
    let update =
        rawdoc! { "update": STEPS, "updates": [{ "q": { "_id": id }, "u": change }], "$db": DB };
    let concern = rawdoc! { "level": "snapshot" };
    let commits = rng.chance(0.7);
    let attempt = session
        .attempt_prepared(&[update], &concern, commits, &mut |_, _| {})
        .await;
    match attempt {
        Attempt::Refused(reply) => {
            shared.fail(format!("a transaction that holds was refused: {reply:?}"));
        }
        Attempt::Committed | Attempt::Aborted | Attempt::RolledBack | Attempt::Unknown => {
            shared.count("transactions held");
        }
    }
}

/// Reads what is in the place twice, on one member.
pub async fn read(shared: Rc<Shared>, member: usize, mut rng: Rng) {
    let mut session = Session::new(&shared.members, Rng::from_seed(rng.next_u64()));
    let mut reads = 0;
    while let Some(active) = shared.begin().await {
        let level = ["local", "majority"][rng.below(2) as usize];
        let mut concern = rawdoc! { "level": level };
        // A reader behind what it has seen waits for outcomes.
        if let Some(time) = session.operation_time {
            concern.append(cstr!("afterClusterTime"), time);
        }
        let began = now();
        if let Ok(reply) = session.on(member, &twice(concern)).await {
            let who = format!("a {level} read on member {member}");
            match error_code(&reply) {
                0 => look(&shared, &who, &batch(&reply, "firstBatch")),
                code if is_given_up(code) => shared.count("reads of a place twice given up"),
                _ => shared.fail(format!("{who} was refused: {reply:?}")),
            }
            if began.elapsed() > LONG {
                shared.count("reads that waited in the middle");
            }
        }
        drop::<Active>(active);
        reads += 1;
        let pause_ms = READ_MS * (1 + reads / BUSY_READS);
        sleep(Duration::from_millis(rng.below(pause_ms))).await;
    }
}

/// Each document of the place, the step of its number, and then the document again.
fn twice(concern: RawDocumentBuf) -> RawDocumentBuf {
    let beside = |from: &str, name: &str| rawdoc! { "$lookup": { "from": from, "localField": "_id", "foreignField": "_id", "as": name } };
    rawdoc! {
        "aggregate": SHOWN,
        "pipeline": [
            { "$match": { "_id": { "$lt": STEP_DOCUMENTS } } },
            beside(STEPS, "step"),
            beside(SHOWN, "again"),
        ],
        "cursor": { "batchSize": 1_000_i32 },
        "readConcern": concern,
        "maxTimeMS": MAX_TIME_MS,
        "$readPreference": { "mode": "secondaryPreferred" },
        "$db": DB,
    }
}

fn look(shared: &Shared, who: &str, documents: &[RawDocumentBuf]) {
    for document in documents {
        let round = |document: &RawDocument| document.get_i32("round").ok();
        let again = document.get_array("again").into_iter().flatten();
        let again: Vec<Option<i32>> = again
            .map(|found| round(found.ok()?.as_document()?))
            .collect();
        let first = round(document);
        if first.is_none() || again != [first] {
            return shared.fail(format!(
                "{who} has seen a document of round {first:?}, and again {again:?}"
            ));
        }
    }
    shared.count("reads of a place twice");
}
