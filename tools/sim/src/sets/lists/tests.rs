//! Histories made by hand: one for every anomaly, and those that are right.

use super::check::{Kind, check};
use super::txn::{Finals, Key, Op, Outcome, Txn};

const X: Key = Key {
    collection: 0,
    id: 1,
};
const Y: Key = Key {
    collection: 1,
    id: 1,
};

fn append(key: Key, number: i64) -> Op {
    Op::Append(key, number)
}

fn read(key: Key, list: &[i64]) -> Op {
    Op::Read(key, list.to_vec())
}

/// A transaction of its own client that a majority has.
fn txn(client: usize, ops: &[Op]) -> Txn {
    Txn {
        client,
        outcome: Outcome::Committed,
        ops: ops.to_vec(),
        is_lasting: true,
        is_causal: true,
    }
}

fn ended(outcome: Outcome, client: usize, ops: &[Op]) -> Txn {
    Txn {
        outcome,
        ..txn(client, ops)
    }
}

fn finals(x: &[i64], y: &[i64]) -> Finals {
    Finals::from([(X, x.to_vec()), (Y, y.to_vec())])
}

/// The kinds of anomalies that are found, each once.
#[track_caller]
fn check_kinds(txns: &[Txn], finals: &Finals, expected: &[Kind]) {
    let verdict = check(txns, finals);
    let mut kinds: Vec<Kind> = verdict.anomalies.iter().map(|found| found.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, expected, "{:#?}", verdict.anomalies);
}

#[test]
fn right_histories_have_none() {
    check_kinds(&[], &Finals::new(), &[]);
    let serial = [
        txn(0, &[append(X, 1), append(X, 2), read(X, &[1, 2])]),
        txn(1, &[read(X, &[1, 2]), append(Y, 3), read(Y, &[3])]),
        txn(0, &[read(X, &[1, 2]), read(Y, &[3]), append(X, 4)]),
        txn(2, &[read(X, &[1, 2, 4]), read(Y, &[3])]),
    ];
    check_kinds(&serial, &finals(&[1, 2, 4], &[3]), &[]);
    assert_eq!(check(&serial, &finals(&[1, 2, 4], &[3])).write_skews, 0);
    // A reader of an older snapshot, and another client.
    let older = [
        txn(0, &[append(X, 1), append(Y, 2)]),
        txn(1, &[read(X, &[]), read(Y, &[])]),
        txn(2, &[read(X, &[1]), read(Y, &[2])]),
    ];
    check_kinds(&older, &finals(&[1], &[2]), &[]);
}

#[test]
fn uncertain_outcomes_may_be_either() {
    use Outcome::{AcknowledgedByOne, Unknown};
    for outcome in [AcknowledgedByOne, Unknown] {
        let both = [append(X, 1), append(Y, 2)];
        check_kinds(&[ended(outcome, 0, &both)], &finals(&[], &[]), &[]);
        check_kinds(&[ended(outcome, 0, &both)], &finals(&[1], &[2]), &[]);
        check_kinds(
            &[ended(outcome, 0, &both)],
            &finals(&[1], &[]),
            &[Kind::Torn],
        );
    }
    // What was rolled back had read what was rolled back too.
    let gone = [
        ended(AcknowledgedByOne, 0, &[append(X, 1)]),
        ended(AcknowledgedByOne, 1, &[read(X, &[1]), append(Y, 2)]),
    ];
    check_kinds(&gone, &finals(&[], &[]), &[]);
    // A read that need not last may have seen it as well.
    let passing = Txn {
        is_lasting: false,
        ..txn(1, &[read(X, &[1])])
    };
    let gone = [ended(AcknowledgedByOne, 0, &[append(X, 1)]), passing];
    check_kinds(&gone, &finals(&[], &[]), &[]);
    // One that lasts may not.
    let lasting = [ended(Unknown, 0, &[append(X, 1)]), txn(1, &[read(X, &[1])])];
    check_kinds(&lasting, &finals(&[], &[]), &[Kind::IncompatibleOrder]);
}

#[test]
fn what_is_there_was_written_once() {
    let one = [txn(0, &[append(X, 1)])];
    check_kinds(&one, &finals(&[1, 7], &[]), &[Kind::Garbage]);
    check_kinds(&one, &finals(&[1], &[1]), &[Kind::Garbage]);
    check_kinds(&one, &finals(&[1, 1], &[]), &[Kind::Duplicate]);
    check_kinds(&one, &finals(&[], &[]), &[Kind::Lost]);
}

#[test]
fn what_was_aborted_is_never_seen() {
    let aborted = ended(Outcome::Aborted, 0, &[append(X, 1)]);
    check_kinds(std::slice::from_ref(&aborted), &finals(&[], &[]), &[]);
    check_kinds(
        std::slice::from_ref(&aborted),
        &finals(&[1], &[]),
        &[Kind::AbortedWrite],
    );
    // G1a, by a read that need not last.
    let reader = Txn {
        is_lasting: false,
        ..txn(1, &[read(X, &[1])])
    };
    let history = [aborted, reader.clone()];
    check_kinds(&history, &finals(&[], &[]), &[Kind::AbortedRead]);
    // Such a read may see what was committed and rolled back, which does not stay.
    let rolled_back = ended(Outcome::RolledBack, 0, &[append(X, 1)]);
    let history = [rolled_back, reader];
    check_kinds(&history, &finals(&[], &[]), &[]);
    check_kinds(&history, &finals(&[1], &[]), &[Kind::AbortedWrite]);
}

#[test]
fn an_intermediate_version_is_never_seen() {
    let history = [
        txn(0, &[append(X, 1), append(X, 2)]),
        txn(1, &[read(X, &[1])]),
    ];
    // The reader is behind the writer and before it.
    let kinds = [Kind::IntermediateRead, Kind::ReadSkew];
    check_kinds(&history, &finals(&[1, 2], &[]), &kinds);
}

/// Some of the kinds that are found.
#[track_caller]
fn check_some(txns: &[Txn], finals: &Finals, expected: &[Kind]) {
    let verdict = check(txns, finals);
    for kind in expected {
        let is_found = verdict.anomalies.iter().any(|found| found.kind == *kind);
        assert!(is_found, "{kind:?}: {:#?}", verdict.anomalies);
    }
}

#[test]
fn a_transaction_reads_its_own_writes_and_one_snapshot() {
    let forgets = [txn(0, &[append(X, 1), read(X, &[])])];
    check_kinds(&forgets, &finals(&[1], &[]), &[Kind::OwnWriteNotRead]);
    let later = [
        txn(0, &[append(X, 1), read(X, &[1, 2])]),
        txn(1, &[append(X, 2)]),
    ];
    check_some(&later, &finals(&[1, 2], &[]), &[Kind::OwnWriteNotRead]);
    let twice = [
        txn(0, &[append(X, 1)]),
        txn(1, &[read(X, &[]), read(X, &[1])]),
    ];
    check_some(&twice, &finals(&[1], &[]), &[Kind::NotRepeatable]);
    // Also of one that was aborted.
    let aborted = ended(Outcome::Aborted, 1, &[read(X, &[]), read(X, &[1])]);
    let history = [txn(0, &[append(X, 1)]), aborted];
    check_kinds(&history, &finals(&[1], &[]), &[Kind::NotRepeatable]);
}

#[test]
fn a_read_that_lasts_has_seen_what_is_there() {
    let history = [
        txn(0, &[append(X, 1)]),
        txn(1, &[append(X, 2)]),
        txn(2, &[read(X, &[2])]),
    ];
    check_kinds(&history, &finals(&[1, 2], &[]), &[Kind::IncompatibleOrder]);
}

#[test]
fn dirty_writes_are_found() {
    // G0: each has written behind the other.
    let history = [
        txn(0, &[append(X, 1), append(Y, 2)]),
        txn(1, &[append(X, 3), append(Y, 4)]),
    ];
    check_kinds(&history, &finals(&[1, 3], &[4, 2]), &[Kind::DirtyWrite]);
    check_kinds(&history, &finals(&[1, 3], &[2, 4]), &[]);
    // In the middle of another.
    let history = [
        txn(0, &[append(X, 1), append(X, 2)]),
        txn(1, &[append(X, 3)]),
    ];
    check_kinds(&history, &finals(&[1, 3, 2], &[]), &[Kind::DirtyWrite]);
}

#[test]
fn circular_flow_is_found() {
    // G1c: each has read what the other has written.
    let history = [
        txn(0, &[append(X, 1), read(Y, &[2])]),
        txn(1, &[append(Y, 2), read(X, &[1])]),
    ];
    check_kinds(&history, &finals(&[1], &[2]), &[Kind::CircularFlow]);
}

#[test]
fn lost_updates_are_found() {
    let history = [
        txn(0, &[read(X, &[]), append(X, 1)]),
        txn(1, &[read(X, &[]), append(X, 2)]),
    ];
    let kinds = [Kind::LostUpdate, Kind::ReadSkew];
    check_kinds(&history, &finals(&[1, 2], &[]), &kinds);
    // An append that has not looked loses nothing.
    let blind = [
        txn(0, &[read(X, &[]), append(X, 1)]),
        txn(1, &[append(X, 2)]),
    ];
    check_kinds(&blind, &finals(&[1, 2], &[]), &[]);
}

#[test]
fn read_skew_is_found() {
    // G-single: one half of what the other has written.
    let history = [
        txn(0, &[append(X, 1), append(Y, 2)]),
        txn(1, &[read(X, &[1]), read(Y, &[])]),
    ];
    check_kinds(&history, &finals(&[1], &[2]), &[Kind::ReadSkew]);
}

#[test]
fn snapshots_that_disagree_are_found() {
    // A long fork: two readers see two writes in different orders, with a write of each between the
    // `rw`.
    let history = [
        txn(0, &[append(X, 1)]),
        txn(1, &[append(Y, 2)]),
        txn(2, &[read(X, &[1]), read(Y, &[])]),
        txn(3, &[read(X, &[]), read(Y, &[2])]),
    ];
    check_kinds(&history, &finals(&[1], &[2]), &[Kind::SnapshotsDisagree]);
}

#[test]
fn write_skew_is_counted_and_allowed() {
    // G2-item.
    let history = [
        txn(0, &[read(X, &[]), read(Y, &[]), append(X, 1)]),
        txn(1, &[read(X, &[]), read(Y, &[]), append(Y, 2)]),
    ];
    let verdict = check(&history, &finals(&[1], &[2]));
    assert!(verdict.anomalies.is_empty(), "{:?}", verdict.anomalies);
    assert_eq!((verdict.write_skews, verdict.dependencies), (1, 2));
}

#[test]
fn what_a_client_was_answered_it_sees() {
    let answered = [txn(0, &[append(X, 1)]), txn(0, &[read(X, &[])])];
    check_kinds(&answered, &finals(&[1], &[]), &[Kind::SessionBroken]);
    // What it has read before, too.
    let backwards = [
        txn(0, &[append(X, 1)]),
        txn(1, &[read(X, &[1])]),
        txn(1, &[read(X, &[])]),
    ];
    check_kinds(&backwards, &finals(&[1], &[]), &[Kind::SessionBroken]);
    // A reader that does not ask for it may miss it, and so may one that was not answered.
    let mut asks_not = answered.clone();
    asks_not[1].is_causal = false;
    check_kinds(&asks_not, &finals(&[1], &[]), &[]);
    let mut not_answered = answered;
    not_answered[0].outcome = Outcome::Unknown;
    check_kinds(&not_answered, &finals(&[1], &[]), &[]);
    // What comes behind one that did not ask sees both.
    let third = [
        txn(0, &[append(X, 1)]),
        asks_not[1].clone(),
        txn(0, &[read(X, &[])]),
    ];
    check_kinds(&third, &finals(&[1], &[]), &[Kind::SessionBroken]);
}
