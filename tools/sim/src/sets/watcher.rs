//! Clients that read what a majority has while leaders come and go, each from one member, without a
//! pause.
//!
//! What one of them has seen has to stay for ever, however short the life of the member that showed
//! it was.

use std::rc::Rc;

use pinion_bson::rawdoc;
use pinion_runtime::{Duration, Rng, sleep};

use super::history::Floor;
use super::session::{Session, Unread};
use super::workload::{Active, COLLECTION, Shared};

/// How often they look whether they are to read, and longest time between two reads then.
const LOOK: Duration = Duration::from_millis(50);
const READ_MS: u64 = 30;

/// Reads from one member whenever that is asked for.
pub async fn watch(shared: Rc<Shared>, member: usize, mut rng: Rng) {
    let mut session = Session::new(&shared.members, Rng::from_seed(rng.next_u64()));
    while !shared.stopped.get() {
        if !shared.watched.get() {
            sleep(LOOK).await;
            continue;
        }
        let Some(active) = shared.begin().await else {
            return;
        };
        read(&shared, &mut session, member).await;
        drop::<Active>(active);
        sleep(Duration::from_millis(rng.below(READ_MS))).await;
    }
}

async fn read(shared: &Rc<Shared>, session: &mut Session, member: usize) {
    let concern = rawdoc! { "level": "majority" };
    let read = session.read_all(Some(member), (shared.db, COLLECTION), &concern, None);
    match read.await {
        Ok(documents) => {
            let mut history = shared.history.borrow_mut();
            let who = format!("a watcher of member {member}");
            let found = history.check(&who, &documents, &Floor::new());
            history.seen_by_majority(&found);
            history.count("majority reads under new leaders");
        }
        Err(Unread::OfTheMoment) => {}
        Err(Unread::Refused(reply)) => {
            shared.fail(format!("a majority read was refused: {reply:?}"));
        }
    }
}
