//! What clients do to lists: transactions over several collections and partitions, single appends,
//! and reads of every concern.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use pinion_runtime::{Duration, Rng, sleep};

use super::super::session::{Attempt, Session, Unread, Written, majority};
use super::super::workload::{INCOMPLETE_HISTORY, Shared};
use super::check::check;
use super::txn::{Finals, Key, Op, Outcome, Txn};
use crate::client::error_code;

pub const COLLECTIONS: [&str; 2] = ["lists", "others"];
/// Lists of each collection that are in use at a time.
const IN_USE: u64 = 3;
/// Appends to all lists, after which others are in use.
const APPENDS_OF_A_ROUND: i32 = 100;
/// Most statements of a transaction.
const MOST_STATEMENTS: u64 = 5;
/// How much longer their clients pause than others do: there are as many, and what they have done
/// takes time to check.
const PAUSES: u64 = 2;
/// How often a transaction is aborted by its client, a commit sent again, and a single append sent
/// again.
const ABORTED: f64 = 0.08;
const AGAIN: f64 = 0.15;

/// What all clients of lists have done.
#[derive(Default)]
pub struct Lists {
    txns: Vec<Txn>,
    appended: i32,
}

impl Lists {
    /// The place of the first list in use.
    fn first(&self) -> i32 {
        self.appended / APPENDS_OF_A_ROUND * IN_USE as i32
    }

    fn next_number(&mut self) -> i64 {
        self.appended += 1;
        i64::from(self.appended)
    }

    /// Checks everything against what is there at the end: what is wrong, and what it went by.
    pub fn judge(&self, finals: &Finals) -> (Vec<String>, Vec<(&'static str, u64)>) {
        let verdict = check(&self.txns, finals);
        let of = |outcome: Outcome| {
            let txns = self.txns.iter().filter(|txn| txn.outcome == outcome);
            txns.count() as u64
        };
        let counts = vec![
            ("list transactions committed", of(Outcome::Committed)),
            ("list transactions aborted", of(Outcome::Aborted)),
            (
                "list transactions uncertain",
                of(Outcome::Unknown) + of(Outcome::AcknowledgedByOne),
            ),
            ("dependencies of lists", verdict.dependencies),
            ("write skews", verdict.write_skews),
        ];
        let wrong = verdict.anomalies.iter().map(ToString::to_string);
        (wrong.collect(), counts)
    }
}

/// What a statement does.
enum Statement {
    Append(Key, i64),
    /// These lists, which are of one collection.
    Read(Vec<Key>),
}

impl Statement {
    fn collection(&self) -> &'static str {
        let key = match self {
            Statement::Append(key, _) => key,
            Statement::Read(keys) => &keys[0],
        };
        COLLECTIONS[usize::from(key.collection)]
    }

    fn command(&self) -> RawDocumentBuf {
        match self {
            Statement::Append(key, number) => {
                let change = rawdoc! { "$push": { "l": *number } };
                rawdoc! { "update": self.collection(), "updates": [{ "q": { "_id": key.id }, "u": change, "upsert": true }], "$db": "sim" }
            }
            Statement::Read(keys) => {
                let filter = match keys.as_slice() {
                    [key] => rawdoc! { "_id": key.id },
                    keys => {
                        let mut ids = RawArrayBuf::new();
                        keys.iter().for_each(|key| ids.push(key.id));
                        rawdoc! { "_id": { "$in": ids } }
                    }
                };
                rawdoc! { "find": self.collection(), "filter": filter, "batchSize": 1_000_i32, "$db": "sim" }
            }
        }
    }

    /// What is known once it was answered with these documents.
    fn answered(&self, documents: &[RawDocumentBuf]) -> Result<Vec<Op>, String> {
        match self {
            Statement::Append(key, number) => Ok(vec![Op::Append(*key, *number)]),
            Statement::Read(keys) => reads(keys, documents),
        }
    }
}

/// A document as a list.
fn list(document: &RawDocument) -> Option<(i32, Vec<i64>)> {
    let id = document.get_i32("_id").ok()?;
    let array = document.get_array("l").ok()?;
    let numbers: Option<Vec<i64>> = array
        .into_iter()
        .map(|value| match value {
            Ok(RawBsonRef::Int64(number)) => Some(number),
            _ => None,
        })
        .collect();
    Some((id, numbers?))
}

fn reads(keys: &[Key], documents: &[RawDocumentBuf]) -> Result<Vec<Op>, String> {
    let mut lists = Vec::new();
    for document in documents {
        let found = list(document).ok_or_else(|| format!("no list: {document:?}"))?;
        if lists.iter().any(|(id, _)| *id == found.0) {
            return Err(format!("a list was read twice at once: {documents:?}"));
        }
        lists.push(found);
    }
    let of = |key: &Key| {
        let found = lists.iter().find(|(id, _)| *id == key.id);
        found.map_or(Vec::new(), |(_, numbers)| numbers.clone())
    };
    Ok(keys.iter().map(|key| Op::Read(*key, of(key))).collect())
}

struct Changer {
    shared: Rc<Shared>,
    number: usize,
    session: Session,
    rng: Rng,
}

/// Works on lists until everybody ends.
pub async fn change(shared: Rc<Shared>, number: usize, mut rng: Rng) {
    let session = Session::new(&shared.members, Rng::from_seed(rng.next_u64()));
    let mut changer = Changer {
        shared: shared.clone(),
        number,
        session,
        rng,
    };
    let mut operations = 0;
    while let Some(_active) = shared.begin().await {
        match changer.rng.below(10) {
            0..2 => changer.append().await,
            2..4 => changer.read().await,
            _ => changer.transact().await,
        }
        operations += 1;
        let pause_ms = PAUSES * shared.pause_of(operations);
        sleep(Duration::from_millis(changer.rng.below(pause_ms + 1))).await;
    }
}

impl Changer {
    fn lists(&self) -> &RefCell<Lists> {
        &self.shared.lists
    }

    fn record(&self, txn: Txn) {
        self.lists().borrow_mut().txns.push(txn);
    }

    fn draw_key(&mut self) -> Key {
        let collection = self.rng.below(COLLECTIONS.len() as u64) as u8;
        let first = self.lists().borrow().first();
        let id = first + self.rng.below(IN_USE) as i32;
        Key { collection, id }
    }

    /// All lists in use of one collection, and those before them.
    fn all_keys(&mut self) -> Vec<Key> {
        let collection = self.rng.below(COLLECTIONS.len() as u64) as u8;
        let first = self.lists().borrow().first();
        let ids = (first - IN_USE as i32).max(0)..first + IN_USE as i32;
        ids.map(|id| Key { collection, id }).collect()
    }

    fn draw_statement(&mut self) -> Statement {
        match self.rng.below(8) {
            0..4 => {
                let number = self.lists().borrow_mut().next_number();
                Statement::Append(self.draw_key(), number)
            }
            4..7 => Statement::Read(vec![self.draw_key()]),
            _ => Statement::Read(self.all_keys()),
        }
    }

    /// A read concern, with what was reported to the client before where it is to be causal, and
    /// whether it is.
    fn read_concern(&mut self, level: &'static str) -> (RawDocumentBuf, bool) {
        let mut concern = rawdoc! { "level": level };
        match self.session.operation_time.filter(|_| self.rng.chance(0.7)) {
            Some(time) => {
                concern.append(cstr!("afterClusterTime"), time);
                (concern, true)
            }
            None => (concern, false),
        }
    }

    /// A write concern, and whether a majority acknowledges it.
    fn write_concern(&mut self) -> (RawDocumentBuf, bool) {
        match self.rng.chance(self.shared.alone.get()) {
            true => (rawdoc! { "w": 1_i32 }, false),
            false => (majority(), true),
        }
    }

    async fn transact(&mut self) {
        let count = 1 + self.rng.below(MOST_STATEMENTS);
        let statements: Vec<Statement> = (0..count).map(|_| self.draw_statement()).collect();
        let commands: Vec<RawDocumentBuf> = statements.iter().map(Statement::command).collect();
        let level = ["snapshot", "snapshot", "majority", "local"][self.rng.below(4) as usize];
        let (concern, is_causal) = self.read_concern(level);
        let (of_commit, of_majority) = self.write_concern();
        let of_commit = (!self.rng.chance(ABORTED)).then_some(&*of_commit);
        // Of a statement without an answer a read is not known, and an append may have been done.
        let mut ops: Vec<Vec<Op>> = statements
            .iter()
            .map(|statement| match statement {
                Statement::Append(key, number) => vec![Op::Append(*key, *number)],
                Statement::Read(_) => Vec::new(),
            })
            .collect();
        let shared = self.shared.clone();
        let mut seen = |place: usize, documents: Vec<RawDocumentBuf>| match statements[place]
            .answered(&documents)
        {
            Ok(known) => ops[place] = known,
            Err(problem) => shared.fail(problem),
        };
        let is_prepared = self.rng.chance(self.shared.prepared);
        let session = &mut self.session;
        let attempt = match is_prepared {
            true => {
                let commits = of_commit.is_some();
                session
                    .attempt_prepared(&commands, &concern, commits, &mut seen)
                    .await
            }
            false => {
                session
                    .attempt(&commands, &concern, of_commit, &mut seen)
                    .await
            }
        };
        if is_prepared {
            self.shared.count(match attempt {
                Attempt::Committed => "prepared transactions committed",
                Attempt::Aborted => "prepared transactions aborted",
                _ => "prepared transactions refused",
            });
        }
        let outcome = match attempt {
            Attempt::Committed if of_majority || is_prepared => Outcome::Committed,
            Attempt::Committed => Outcome::AcknowledgedByOne,
            Attempt::Aborted => Outcome::Aborted,
            Attempt::RolledBack => Outcome::RolledBack,
            Attempt::Unknown => Outcome::Unknown,
            Attempt::Refused(reply) => {
                let problem = format!("a transaction of lists was refused: {reply:?}");
                return self.shared.fail(problem);
            }
        };
        let txn = Txn {
            client: self.number,
            outcome,
            ops: ops.into_iter().flatten().collect(),
            // A local read alone may be of what is rolled back.
            is_lasting: outcome == Outcome::Committed && level != "local",
            is_causal,
        };
        // Of one that has written nothing another primary knows nothing.
        let is_kept = outcome == Outcome::Committed && txn.appends().count() > 0;
        self.record(txn);
        if is_kept && !is_prepared && self.rng.chance(AGAIN) {
            self.commit_again().await;
        }
    }

    async fn commit_again(&mut self) {
        match self.session.commit_again().await {
            Attempt::Committed => self.shared.count("commits sent again"),
            Attempt::Unknown => {}
            outcome @ (Attempt::Aborted | Attempt::RolledBack | Attempt::Refused(_)) => {
                let problem = format!("a commit that a majority had was answered: {outcome:?}");
                self.shared.fail(problem);
            }
        }
    }

    async fn append(&mut self) {
        let number = self.lists().borrow_mut().next_number();
        let key = self.draw_key();
        let mut command = Statement::Append(key, number).command();
        let (concern, of_majority) = self.write_concern();
        command.append(cstr!("writeConcern"), concern);
        let written = self.session.write(&command).await;
        if matches!(written, Written::Acknowledged) && self.rng.chance(AGAIN) {
            // Whatever comes of that, it was acknowledged.
            self.session.again().await;
        }
        let outcome = match written {
            Written::Acknowledged if of_majority => Outcome::Committed,
            Written::Acknowledged => Outcome::AcknowledgedByOne,
            Written::Unknown => Outcome::Unknown,
            Written::Refused(reply) if error_code(&reply) == INCOMPLETE_HISTORY => Outcome::Unknown,
            Written::Refused(reply) => {
                let problem = format!("an append was refused: {reply:?}");
                return self.shared.fail(problem);
            }
        };
        self.record(Txn {
            client: self.number,
            outcome,
            ops: vec![Op::Append(key, number)],
            is_lasting: false,
            is_causal: false,
        });
    }

    /// Reads without a transaction, on whatever member.
    async fn read(&mut self) {
        // Reads that do not wait for what is prepared may see a part of it, where it is committed
        // in their past.
        let level = match self.shared.prepared > 0.0 {
            true => "snapshot",
            false => ["snapshot", "majority", "local"][self.rng.below(3) as usize],
        };
        let member = self.rng.below(self.session.member_count() as u64) as usize;
        let (concern, is_causal) = self.read_concern(level);
        let statement = Statement::Read(self.all_keys());
        let read = self.session.read_all(
            Some(member),
            (self.shared.db, statement.collection()),
            &concern,
            None,
        );
        let documents = match read.await {
            Ok(documents) => documents,
            Err(Unread::OfTheMoment) => return,
            Err(Unread::Refused(reply)) => {
                let problem = format!("a {level} read of lists was refused: {reply:?}");
                return self.shared.fail(problem);
            }
        };
        let ops = match statement.answered(&documents) {
            Ok(ops) => ops,
            Err(problem) => return self.shared.fail(problem),
        };
        self.shared.count("reads of lists");
        let is_lasting = level != "local";
        self.record(Txn {
            client: self.number,
            outcome: Outcome::Committed,
            ops,
            is_lasting,
            is_causal: is_causal && is_lasting,
        });
    }
}
