//! What a child has to do and what it answers; both travel as one line of JSON.

use serde_json::{Value, json};

use crate::session::Outcome;

/// The operations of one measured interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// New records, many with each commit.
    Load,
    /// Random reads of single records.
    Read,
    /// Reads of `scan_len` records from a random key on.
    Scan,
    /// One pass over all records.
    ScanAll,
    /// New records, one with each commit.
    Insert,
    /// New versions of random records, one with each commit.
    Update,
    /// New versions of every tenth record, one with each commit.
    UpdateTenth,
    /// Random reads, and beside them a writer that updates at a constant rate.
    ReadWhileWriting,
}

const KINDS: [(Kind, &str); 8] = [
    (Kind::Load, "load"),
    (Kind::Read, "read"),
    (Kind::Scan, "scan"),
    (Kind::ScanAll, "scan-all"),
    (Kind::Insert, "insert"),
    (Kind::Update, "update"),
    (Kind::UpdateTenth, "update-tenth"),
    (Kind::ReadWhileWriting, "read-while-write"),
];

impl Kind {
    pub fn name(self) -> &'static str {
        let named = KINDS.iter().find(|(kind, _)| *kind == self);
        named.expect("every kind has a name").1
    }
}

/// One interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pub kind: Kind,
    /// Records there are.
    pub records: u64,
    /// Operations; none: as many as fit into `seconds`.
    pub count: Option<u64>,
    pub seconds: f64,
    /// Whether the time until no background work is left belongs to it.
    pub settle: bool,
    pub clients: usize,
    pub value_bytes: usize,
    pub batch: usize,
    pub scan_len: usize,
    /// Updates a second of the writer beside readers.
    pub write_rate: f64,
    /// Reads at one snapshot.
    pub snapshot_ops: u64,
    pub seed: u64,
}

impl Plan {
    pub fn to_json(self) -> Value {
        json!({
            "kind": self.kind.name(), "records": self.records, "count": self.count, "seconds": self.seconds,
            "settle": self.settle, "clients": self.clients, "value_bytes": self.value_bytes, "batch": self.batch,
            "scan_len": self.scan_len, "write_rate": self.write_rate, "snapshot_ops": self.snapshot_ops,
            "seed": self.seed,
        })
    }

    pub fn from_json(json: &Value) -> Outcome<Plan> {
        let number = |name: &str| {
            json[name]
                .as_u64()
                .ok_or_else(|| format!("{name} is missing in {json}"))
        };
        let real = |name: &str| {
            json[name]
                .as_f64()
                .ok_or_else(|| format!("{name} is missing in {json}"))
        };
        let kind = KINDS
            .iter()
            .find(|(_, name)| json["kind"].as_str() == Some(name))
            .ok_or_else(|| format!("no such kind in {json}"))?
            .0;
        Ok(Plan {
            kind,
            records: number("records")?,
            count: json["count"].as_u64(),
            seconds: real("seconds")?,
            settle: json["settle"] == true,
            clients: number("clients")? as usize,
            value_bytes: number("value_bytes")? as usize,
            batch: number("batch")? as usize,
            scan_len: number("scan_len")? as usize,
            write_rate: real("write_rate")?,
            snapshot_ops: number("snapshot_ops")?,
            seed: number("seed")?,
        })
    }
}

/// What one client did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Operations; with scans, records.
    pub operations: u64,
    /// Bytes of keys and values that were written.
    pub bytes_written: u64,
    /// Bytes of values that were read and summed.
    pub bytes_read: u64,
    pub sum: u64,
    /// Updates of the writer beside readers.
    pub beside: u64,
}

impl Counted {
    pub fn add(&mut self, other: Counted) {
        self.operations += other.operations;
        self.bytes_written += other.bytes_written;
        self.bytes_read += other.bytes_read;
        self.sum = self.sum.wrapping_add(other.sum);
        self.beside += other.beside;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_the_way() {
        for (kind, _) in KINDS {
            let plan = Plan {
                kind,
                records: 1 << 60,
                count: (kind == Kind::Load).then_some(5),
                seconds: 2.5,
                settle: kind == Kind::Insert,
                clients: 3,
                value_bytes: 1000,
                batch: 100,
                scan_len: 50,
                write_rate: 1e4,
                snapshot_ops: 1000,
                seed: u64::MAX,
            };
            let line = plan.to_json().to_string();
            let read = serde_json::from_str(&line).unwrap();
            assert_eq!(Plan::from_json(&read), Ok(plan));
        }
        assert!(Plan::from_json(&json!({"kind": "nap"})).is_err());
    }
}
