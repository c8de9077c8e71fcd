//! Which concerns operations have: `readConcernCounters` and `opWriteConcernCounters` of
//! `serverStatus`.
//!
//! What counts as which, and the names, are MongoDB's. A concern that a command does not name is
//! counted as none, and beside that by where the one comes from that holds for it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::DocBuilder;
use pinion_wire::idl::{ReadConcern, ReadConcernLevel, WriteConcern, WriteConcernW};

use crate::limits::{MAX_COUNTED_MODE_BYTES, MAX_COUNTED_MODES};

/// The levels of reads, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Levels {
    local: u64,
    available: u64,
    majority: u64,
    linearizable: u64,
    snapshot_at: u64,
    snapshot: u64,
}

impl Levels {
    fn count(&mut self, concern: &ReadConcern) {
        let at = concern.at_cluster_time.is_some();
        *match concern.level {
            None | Some(ReadConcernLevel::Local) => &mut self.local,
            Some(ReadConcernLevel::Available) => &mut self.available,
            Some(ReadConcernLevel::Majority) => &mut self.majority,
            Some(ReadConcernLevel::Linearizable) => &mut self.linearizable,
            Some(ReadConcernLevel::Snapshot) if at => &mut self.snapshot_at,
            Some(ReadConcernLevel::Snapshot) => &mut self.snapshot,
        } += 1;
    }

    fn add(&mut self, other: &Levels) {
        self.local += other.local;
        self.available += other.available;
        self.majority += other.majority;
        self.linearizable += other.linearizable;
        self.snapshot_at += other.snapshot_at;
        self.snapshot += other.snapshot;
    }
}

/// Reads of one kind: in transactions, or outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reads {
    named: Levels,
    none: u64,
    /// The level of those that name none: that which an operator has set, or that of the node.
    by_default: Levels,
    by_implicit_default: Levels,
}

impl Reads {
    fn add(&mut self, other: &Reads) {
        self.named.add(&other.named);
        self.none += other.none;
        self.by_default.add(&other.by_default);
        self.by_implicit_default.add(&other.by_implicit_default);
    }

    fn append(&self, name: &str, in_transactions: bool, out: &mut DocBuilder) {
        out.start_document(name)
            .append("none", self.none as i64)
            .start_document("noneInfo")
            .start_document("CWRC")
            .append("local", self.by_default.local as i64)
            .append("available", self.by_default.available as i64)
            .append("majority", self.by_default.majority as i64)
            .end();
        out.start_document("implicitDefault")
            .append("local", self.by_implicit_default.local as i64)
            .append("available", self.by_implicit_default.available as i64)
            .end()
            .end();
        let named = &self.named;
        out.append("local", named.local as i64);
        if !in_transactions {
            out.append("available", named.available as i64);
        }
        out.append("majority", named.majority as i64)
            .start_document("snapshot")
            .append("withClusterTime", named.snapshot_at as i64)
            .append("withoutClusterTime", named.snapshot as i64)
            .end();
        if !in_transactions {
            out.append("linearizable", named.linearizable as i64);
        }
        out.end();
    }
}

/// Where the concern of a command comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Client,
    CustomDefault,
    ImplicitDefault,
}

/// What writes wait for, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Waits {
    majority: u64,
    by_number: BTreeMap<u8, u64>,
    /// By a mode of the configuration. Those behind the first are counted together.
    by_mode: BTreeMap<String, u64>,
}

/// What stands for further modes where there are many.
const OTHER_MODES: &str = "<others>";

impl Waits {
    fn count(&mut self, w: Option<&WriteConcernW>, writes: u64) {
        let mode = match w {
            Some(WriteConcernW::Majority) => return self.majority += writes,
            None => return *self.by_number.entry(1).or_default() += writes,
            Some(WriteConcernW::Members(members)) => {
                return *self.by_number.entry(*members).or_default() += writes;
            }
            // It becomes the name of a field, so it is one that a field can have.
            Some(WriteConcernW::Mode(mode))
                if mode.len() <= MAX_COUNTED_MODE_BYTES && !mode.contains('\0') =>
            {
                mode.as_str()
            }
            Some(WriteConcernW::Mode(_)) => OTHER_MODES,
            Some(WriteConcernW::Tags(_)) => "<tags>",
        };
        let is_full = self.by_mode.len() >= MAX_COUNTED_MODES && !self.by_mode.contains_key(mode);
        let mode = if is_full { OTHER_MODES } else { mode };
        *self.by_mode.entry(mode.to_owned()).or_default() += writes;
    }

    fn add(&mut self, other: &Waits) {
        self.majority += other.majority;
        for (number, writes) in &other.by_number {
            *self.by_number.entry(*number).or_default() += writes;
        }
        for (mode, writes) in &other.by_mode {
            *self.by_mode.entry(mode.clone()).or_default() += writes;
        }
    }

    fn append(&self, out: &mut DocBuilder) {
        out.append("wmajority", self.majority as i64)
            .start_document("wnum");
        for (number, writes) in &self.by_number {
            out.append(&number.to_string(), *writes as i64);
        }
        out.end().start_document("wtag");
        for (mode, writes) in &self.by_mode {
            out.append(mode, *writes as i64);
        }
        out.end();
    }
}

/// Writes of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Writes {
    named: Waits,
    none: u64,
    by_default: Waits,
    by_implicit_default: Waits,
}

/// The kinds of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Insert,
    Update,
    Delete,
}

/// The counts of one core, and their sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConcernValues {
    outside: Reads,
    in_transactions: Reads,
    writes: [Writes; 3],
}

impl ConcernValues {
    /// Adds another core's.
    pub fn add(&mut self, other: &ConcernValues) {
        self.outside.add(&other.outside);
        self.in_transactions.add(&other.in_transactions);
        for (mine, theirs) in self.writes.iter_mut().zip(&other.writes) {
            mine.named.add(&theirs.named);
            mine.none += theirs.none;
            mine.by_default.add(&theirs.by_default);
            mine.by_implicit_default.add(&theirs.by_implicit_default);
        }
    }

    /// Appends `readConcernCounters`.
    pub fn append_reads(&self, out: &mut DocBuilder) {
        out.start_document("readConcernCounters");
        self.outside.append("nonTransactionOps", false, out);
        self.in_transactions.append("transactionOps", true, out);
        out.end();
    }

    /// Appends `opWriteConcernCounters`.
    pub fn append_writes(&self, out: &mut DocBuilder) {
        out.start_document("opWriteConcernCounters");
        for (name, writes) in ["insert", "update", "delete"].into_iter().zip(&self.writes) {
            out.start_document(name);
            writes.named.append(out);
            out.append("none", writes.none as i64)
                .start_document("noneInfo")
                .start_document("CWWC");
            writes.by_default.append(out);
            out.end().start_document("implicitDefault");
            writes.by_implicit_default.append(out);
            out.end().end().end();
        }
        out.end();
    }
}

/// The counts of one core.
#[derive(Debug, Default)]
pub struct ConcernCounts(RefCell<ConcernValues>);

/// What this core has counted of concerns.
pub fn concern_counts() -> Rc<ConcernCounts> {
    pinion_runtime::core_local()
}

impl ConcernCounts {
    pub fn values(&self) -> ConcernValues {
        self.0.borrow().clone()
    }

    /// Counts a read, by the concern that holds for it.
    pub(crate) fn read(&self, concern: &ReadConcern, source: Source, in_transaction: bool) {
        let mut values = self.0.borrow_mut();
        let reads = match in_transaction {
            true => &mut values.in_transactions,
            false => &mut values.outside,
        };
        let levels = match source {
            Source::Client => &mut reads.named,
            Source::CustomDefault => &mut reads.by_default,
            Source::ImplicitDefault => &mut reads.by_implicit_default,
        };
        levels.count(concern);
        reads.none += u64::from(source != Source::Client);
    }

    /// Counts writes, by the concern that holds for their command.
    pub(crate) fn wrote(
        &self,
        kind: WriteKind,
        writes: u64,
        concern: &WriteConcern,
        source: Source,
    ) {
        let mut values = self.0.borrow_mut();
        let of_kind = &mut values.writes[kind as usize];
        let waits = match source {
            Source::Client => &mut of_kind.named,
            Source::CustomDefault => &mut of_kind.by_default,
            Source::ImplicitDefault => &mut of_kind.by_implicit_default,
        };
        waits.count(concern.w.as_ref(), writes);
        of_kind.none += if source == Source::Client { 0 } else { writes };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_clients_make_up_are_bounded() {
        let counts = ConcernCounts::default();
        for number in 0..3 * MAX_COUNTED_MODES {
            let concern = WriteConcern {
                w: Some(WriteConcernW::Mode(format!("mode{number}"))),
                ..WriteConcern::default()
            };
            counts.wrote(WriteKind::Update, 1, &concern, Source::Client);
        }
        let modes = &counts.values().writes[1].named.by_mode;
        assert_eq!(modes.len(), MAX_COUNTED_MODES + 1);
        assert_eq!(modes[OTHER_MODES], 2 * MAX_COUNTED_MODES as u64);
    }

    #[test]
    fn a_mode_that_names_no_field_is_counted_with_others() {
        let counts = ConcernCounts::default();
        for mode in ["a\0b".to_owned(), "m".repeat(MAX_COUNTED_MODE_BYTES + 1)] {
            let concern = WriteConcern {
                w: Some(WriteConcernW::Mode(mode)),
                ..WriteConcern::default()
            };
            counts.wrote(WriteKind::Insert, 1, &concern, Source::Client);
        }
        let values = counts.values();
        let modes = &values.writes[0].named.by_mode;
        assert_eq!(modes.len(), 1);
        assert_eq!(modes[OTHER_MODES], 2);
    }

    #[test]
    fn what_names_no_concern_is_counted_by_its_default() {
        let counts = ConcernCounts::default();
        let majority = ReadConcern {
            level: Some(ReadConcernLevel::Majority),
            ..ReadConcern::default()
        };
        counts.read(&majority, Source::Client, false);
        counts.read(&majority, Source::CustomDefault, false);
        counts.read(&ReadConcern::default(), Source::ImplicitDefault, true);
        let mut values = counts.values();
        values.add(&counts.values());
        assert_eq!(values.outside.named.majority, 2);
        assert_eq!(values.outside.by_default.majority, 2);
        assert_eq!((values.outside.none, values.in_transactions.none), (2, 2));
        assert_eq!(values.in_transactions.by_implicit_default.local, 2);
    }
}
