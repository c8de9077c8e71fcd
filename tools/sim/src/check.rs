//! The checker: a client that makes the collections, and after each opening compares everything
//! with the oracle.

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_runtime::{Duration, now, sleep};

use crate::agreement::Indexes;
use crate::client::{Client, Refusal, batch, read_all};
use crate::workload::{EXTRA_INDEX, SIDE_COLLECTION, Shared, running_builds};

const LOOK_EVERY: Duration = Duration::from_millis(5);
/// In simulated time.
const BUILDS_END_WITHIN: Duration = Duration::from_secs(600);
/// A collection that is there already, when a crash fell into an earlier set-up.
const NAMESPACE_EXISTS: i32 = 48;

/// The checker's orders and answers.
#[derive(Default)]
pub struct Checks {
    pub wanted: Cell<u64>,
    pub done: Cell<u64>,
    set_up: Cell<bool>,
}

impl Checks {
    /// Orders one more check.
    pub fn order(&self) {
        self.wanted.set(self.wanted.get() + 1);
    }

    /// Every check that was ordered is done.
    pub fn is_done(&self) -> bool {
        self.done.get() == self.wanted.get()
    }
}

/// Waits for orders and checks.
pub async fn check(shared: Rc<Shared>, checks: Rc<Checks>) {
    let mut client = Client::new(shared.address.get());
    while !shared.stopped.get() {
        sleep(LOOK_EVERY).await;
        if checks.is_done() {
            continue;
        }
        if let Err(refusal) = check_once(&shared, &checks, &mut client).await {
            shared.read_refused(&refusal);
        }
    }
}

async fn check_once(shared: &Shared, checks: &Checks, client: &mut Client) -> Result<(), Refusal> {
    if !checks.set_up.get() {
        set_up(client).await?;
        checks.set_up.set(true);
    }
    // Builds of the life before; no client begins or ends builds now.
    let began = now();
    while !running_builds(client).await?.is_empty() {
        if began.elapsed() > BUILDS_END_WITHIN {
            shared
                .oracle
                .borrow_mut()
                .fail("a build of the life before does not end".to_owned());
            break;
        }
        sleep(LOOK_EVERY).await;
    }
    let docs = read_all(client, "docs", 1_000).await?;
    let log = read_all(client, "log", 1_000).await?;
    let indexes = Indexes::read(client).await?;
    let catalog = read_catalog(client).await?;
    shared
        .oracle
        .borrow_mut()
        .check_all(&docs, &log, &indexes, &catalog);
    checks.done.set(checks.wanted.get());
    Ok(())
}

/// Which of the things that come and go in the catalog are there.
async fn read_catalog(client: &mut Client) -> Result<Vec<&'static str>, Refusal> {
    let mut there = Vec::new();
    let indexes = rawdoc! { "listIndexes": "docs", "$db": "sim" };
    let collections = rawdoc! { "listCollections": 1_i32, "nameOnly": true, "$db": "sim" };
    for (command, name, key) in [
        (indexes, "extra", EXTRA_INDEX),
        (collections, "side", SIDE_COLLECTION),
    ] {
        let reply = client.ask(&command).await?;
        let mut listed = batch(&reply, "firstBatch").into_iter();
        if listed.any(|item| item.get_str("name").is_ok_and(|found| found == name)) {
            there.push(key);
        }
    }
    Ok(there)
}

async fn set_up(client: &mut Client) -> Result<(), Refusal> {
    let commands: [RawDocumentBuf; 3] = [
        rawdoc! { "createIndexes": "docs", "indexes": [{ "key": { "n": 1_i32 }, "name": "n_1" }], "$db": "sim" },
        rawdoc! { "createIndexes": "docs", "indexes": [{ "key": { "u": 1_i32 }, "name": "u_1", "unique": true }], "$db": "sim" },
        rawdoc! { "create": "log", "$db": "sim" },
    ];
    for command in &commands {
        match client.ask(command).await {
            Ok(_) | Err(Refusal::Answer(NAMESPACE_EXISTS, _)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    // What was set up must not be lost, or the oracle would ask for indexes that are gone.
    let fsync = rawdoc! { "fsync": 1_i32, "$db": "admin" };
    client.ask(&fsync).await.map(|_| ())
}
