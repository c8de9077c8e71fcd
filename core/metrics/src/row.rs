//! One metric.

use pinion_bson::Timestamp;

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from the start of the node on.
    Counter,
    /// It says how things are now.
    Gauge,
}

/// What a metric is a number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things; the name says which.
    Count,
    Bytes,
    Micros,
    Millis,
    Hours,
    /// A point in the oplog.
    Time,
    /// A word, or yes and no.
    State,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Count => "",
            Unit::Bytes => "bytes",
            Unit::Micros => "microseconds",
            Unit::Millis => "milliseconds",
            Unit::Hours => "hours",
            Unit::Time => "timestamp",
            Unit::State => "state",
        }
    }
}

/// The value of a metric, of the type that MongoDB gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Int(i32),
    Long(i64),
    Double(f64),
    Bool(bool),
    Text(&'static str),
    Time(Timestamp),
}

impl Value {
    /// A count of 64 bits.
    pub fn count(count: u64) -> Value {
        Value::Long(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// A count of 32 bits, which stays at its most.
    pub fn int(count: u64) -> Value {
        Value::Int(i32::try_from(count).unwrap_or(i32::MAX))
    }
}

/// A metric of a source of type `S`.
pub struct Row<S> {
    /// Where `serverStatus` shows it: the names of documents and of the field, with dots between
    /// them.
    pub path: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    /// One sentence for people.
    pub help: &'static str,
    /// `None` where the source has no such metric: it is not shown then.
    pub read: fn(&S) -> Option<Value>,
}
