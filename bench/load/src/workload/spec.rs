//! What a run does: the mix of operations and everything that YCSB's properties say about it.

use super::document::Document;
use super::properties::Properties;

/// One kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
    IndexRead,
    Transaction,
    Connect,
}

impl Kind {
    pub const COUNT: usize = 8;

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "read-modify-write",
            Self::IndexRead => "index-read",
            Self::Transaction => "transaction",
            Self::Connect => "connect",
        }
    }
}

/// One request as chosen; with the document's description it says all the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub kind: Kind,
    /// The key's number; for inserts of several documents the first one's.
    pub key: u64,
    /// The second document of a transaction.
    pub other: u64,
    /// Of the value that is written.
    pub version: u64,
    /// The one field that is read or written where not all are.
    pub field: usize,
    /// Documents of a scan or an insert, or that a transaction updates.
    pub count: u64,
    /// Operations of several requests count them here.
    pub stage: u8,
}

impl Request {
    /// Requests of which an operation consists, each sent when the one before it is answered.
    pub fn stages(&self) -> u8 {
        match self.kind {
            Kind::ReadModifyWrite => 2,
            Kind::Transaction => self.count as u8 + 1,
            _ => 1,
        }
    }

    /// Whether this is the end of a transaction.
    pub fn commits(&self) -> bool {
        self.kind == Kind::Transaction && u64::from(self.stage) == self.count
    }
}

/// A workload, its properties read and checked.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    pub properties: Properties,
    pub document: Document,
    /// Writes the keys `insert_start..insert_start + insert_count` once each and ends.
    pub load: bool,
    pub records: u64,
    pub insert_start: u64,
    pub insert_count: u64,
    pub operations: Option<u64>,
    pub mix: Vec<(Kind, f64)>,
    pub distribution: String,
    pub scan_min: u64,
    pub scan_max: u64,
    pub scan_zipfian: bool,
    pub read_all: bool,
    pub write_all: bool,
    pub table: String,
    pub field_prefix: String,
    pub batch: u64,
    pub collections: u64,
    pub ttl_secs: u64,
    /// Documents that a transaction updates: 1 or 2.
    pub transaction_updates: u64,
    /// A transaction updates its documents in the order of their keys, so that no two wait for each
    /// other.
    pub transaction_ordered: bool,
    pub target: Option<f64>,
}

/// The workloads that have a name, each as the properties that it sets.
const NAMED: &[(&str, &str)] = &[
    ("load", ""),
    (
        "read",
        "readproportion=1 updateproportion=0 requestdistribution=uniform",
    ),
    (
        "update",
        "readproportion=0 updateproportion=1 requestdistribution=uniform",
    ),
    (
        "insert",
        "readproportion=0 updateproportion=0 insertproportion=1",
    ),
    (
        "mixed",
        "readproportion=0.5 updateproportion=0.5 requestdistribution=uniform",
    ),
    (
        "scan",
        "readproportion=0 updateproportion=0 scanproportion=1 requestdistribution=uniform maxscanlength=100",
    ),
    (
        "index",
        "readproportion=0 updateproportion=0 indexreadproportion=1 indexed=true requestdistribution=uniform",
    ),
    (
        "batch-insert",
        "readproportion=0 updateproportion=0 insertproportion=1 batchsize=100",
    ),
    (
        "transactions",
        "readproportion=0 updateproportion=0 transactionproportion=1 requestdistribution=uniform",
    ),
    (
        "storm",
        "readproportion=0 updateproportion=0 connectproportion=1",
    ),
    (
        "collections",
        "readproportion=0.5 updateproportion=0.5 requestdistribution=uniform collections=1000",
    ),
    (
        "ttl",
        "readproportion=0 updateproportion=0 insertproportion=1 insertorder=ordered ttlseconds=60",
    ),
    (
        "large",
        "readproportion=0.5 updateproportion=0.5 requestdistribution=uniform fieldcount=1 fieldlength=1048576 recordcount=1000",
    ),
    (
        "a",
        "readproportion=0.5 updateproportion=0.5 requestdistribution=zipfian",
    ),
    (
        "b",
        "readproportion=0.95 updateproportion=0.05 requestdistribution=zipfian",
    ),
    (
        "c",
        "readproportion=1 updateproportion=0 requestdistribution=zipfian",
    ),
    (
        "d",
        "readproportion=0.95 updateproportion=0 insertproportion=0.05 requestdistribution=latest",
    ),
    (
        "e",
        "readproportion=0 updateproportion=0 scanproportion=0.95 insertproportion=0.05 requestdistribution=zipfian maxscanlength=100",
    ),
    (
        "f",
        "readproportion=0.5 updateproportion=0 readmodifywriteproportion=0.5 requestdistribution=zipfian",
    ),
];

/// Properties that are read; the second group are this generator's own.
const KNOWN: &[&str] = &[
    "recordcount",
    "operationcount",
    "insertstart",
    "insertcount",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "requestdistribution",
    "fieldcount",
    "fieldlength",
    "fieldnameprefix",
    "fieldlengthdistribution",
    "readallfields",
    "writeallfields",
    "table",
    "minscanlength",
    "maxscanlength",
    "scanlengthdistribution",
    "insertorder",
    "zeropadding",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "exponential.percentile",
    "exponential.frac",
    "target",
    "workload",
    "dataintegrity",
    "indexreadproportion",
    "transactionproportion",
    "transactionupdates",
    "transactionorder",
    "connectproportion",
    "indexed",
    "batchsize",
    "collections",
    "ttlseconds",
];

impl Spec {
    pub fn workload_names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// A named workload (none: YCSB's defaults) with properties over it.
    pub fn new(name: Option<&str>, given: &Properties) -> Result<Self, String> {
        let mut p = Properties::default();
        if let Some(name) = name {
            let (_, defaults) =
                NAMED
                    .iter()
                    .find(|(known, _)| *known == name)
                    .ok_or_else(|| {
                        let names: Vec<_> = Self::workload_names().collect();
                        format!("no workload is called '{name}': {}", names.join(", "))
                    })?;
            for pair in defaults.split_whitespace() {
                p.add(pair)?;
            }
        }
        for (name, value) in given.iter() {
            p.set(name, value);
        }
        let records: u64 = p.get("recordcount", 100_000)?;
        let insert_start: u64 = p.get("insertstart", 0)?;
        let insert_count = p.get("insertcount", records.saturating_sub(insert_start))?;
        if records == 0 || insert_count == 0 {
            return Err("recordcount and insertcount must be at least 1".into());
        }
        let only = |property: &str, allowed: &[&str], default: &'static str| {
            let text = p.text(property).unwrap_or(default);
            if allowed.contains(&text) {
                Ok(text.to_owned())
            } else {
                Err(format!(
                    "the property {property} is one of {}, not '{text}'",
                    allowed.join(", ")
                ))
            }
        };
        only("fieldlengthdistribution", &["constant"], "constant")?;
        only("dataintegrity", &["false"], "false")?;
        let order = only("insertorder", &["hashed", "ordered"], "hashed")?;
        let scan_lengths = only("scanlengthdistribution", &["uniform", "zipfian"], "uniform")?;
        let distribution = only(
            "requestdistribution",
            &[
                "uniform",
                "zipfian",
                "latest",
                "hotspot",
                "exponential",
                "sequential",
            ],
            "uniform",
        )?;
        let ttl_secs = p.get("ttlseconds", 0)?;
        let transaction_order = only("transactionorder", &["random", "keys"], "random")?;
        let mix: Vec<(Kind, f64)> = [
            (Kind::Read, p.get("readproportion", 0.95)?),
            (Kind::Update, p.get("updateproportion", 0.05)?),
            (Kind::Insert, p.get("insertproportion", 0.0)?),
            (Kind::Scan, p.get("scanproportion", 0.0)?),
            (
                Kind::ReadModifyWrite,
                p.get("readmodifywriteproportion", 0.0)?,
            ),
            (Kind::IndexRead, p.get("indexreadproportion", 0.0)?),
            (Kind::Transaction, p.get("transactionproportion", 0.0)?),
            (Kind::Connect, p.get("connectproportion", 0.0)?),
        ]
        .into_iter()
        .filter(|(_, share)| *share > 0.0)
        .collect();
        let spec = Self {
            name: name.unwrap_or("ycsb").into(),
            load: name == Some("load"),
            document: Document {
                fields: p.get("fieldcount", 10)?,
                field_bytes: p.get("fieldlength", 100)?,
                ordered: order == "ordered",
                zero_padding: p.get("zeropadding", 1)?,
                indexed: p.get("indexed", false)?,
                timed: ttl_secs > 0,
            },
            records,
            insert_start,
            insert_count,
            operations: p
                .get("operationcount", 0)
                .map(|count| Some(count).filter(|&count| count > 0))?,
            distribution,
            scan_min: p.get("minscanlength", 1)?,
            scan_max: p.get("maxscanlength", 1000)?,
            scan_zipfian: scan_lengths == "zipfian",
            read_all: p.get("readallfields", true)?,
            write_all: p.get("writeallfields", false)?,
            table: p.text("table").unwrap_or("usertable").into(),
            field_prefix: p.text("fieldnameprefix").unwrap_or("field").into(),
            batch: p.get("batchsize", 1)?,
            collections: p.get("collections", 1)?,
            ttl_secs,
            transaction_updates: p.get("transactionupdates", 2)?,
            transaction_ordered: transaction_order == "keys",
            target: p
                .get("target", 0.0)
                .map(|rate| Some(rate).filter(|&rate| rate > 0.0))?,
            mix,
            properties: p,
        };
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), String> {
        if self.mix.is_empty() || self.mix.iter().any(|(_, share)| !share.is_finite()) {
            return Err("the proportions of the operations give no operation".into());
        }
        if self.document.fields == 0
            || self.document.value_bytes() == 0
            || self.document.value_bytes() > 15 << 20
        {
            return Err(
                "fieldcount times fieldlength must be at least 1 byte and at most 15 MiB".into(),
            );
        }
        if self.scan_min == 0 || self.scan_min > self.scan_max {
            return Err("minscanlength must be at least 1 and at most maxscanlength".into());
        }
        if self.batch == 0
            || self.batch > 100_000
            || self.collections == 0
            || self.collections > 1_000_000
        {
            return Err("batchsize is 1 to 100000 and collections 1 to 1000000".into());
        }
        if self.batch > 1 && self.collections > 1 {
            return Err("batchsize above 1 goes to one collection only".into());
        }
        if !(1..=2).contains(&self.transaction_updates) {
            return Err("transactionupdates is 1 or 2".into());
        }
        if self.has(Kind::Transaction) && self.transaction_updates > self.insert_count {
            return Err(
                "a transaction updates different documents: insertcount is too small".into(),
            );
        }
        if self.has(Kind::Connect) && self.mix.len() > 1 {
            return Err("connectproportion stands alone".into());
        }
        if self.has(Kind::IndexRead) && !self.document.indexed {
            return Err("indexreadproportion needs indexed=true (and a load with it)".into());
        }
        if !self.has(Kind::Insert) && self.ttl_secs > 0 && !self.load {
            return Err("ttlseconds is for inserts: what has expired cannot be read".into());
        }
        Ok(())
    }

    /// Properties that were given and mean nothing here.
    pub fn unknown_properties(&self) -> Vec<&str> {
        self.properties
            .names()
            .filter(|name| !KNOWN.contains(name))
            .collect()
    }

    pub fn has(&self, kind: Kind) -> bool {
        self.mix.iter().any(|(known, _)| *known == kind)
    }

    /// Writes new documents and does nothing else, so its keys need not follow those that were
    /// loaded.
    pub fn only_inserts(&self) -> bool {
        !self.load && self.mix.iter().all(|(kind, _)| *kind == Kind::Insert)
    }

    /// The collection of a key.
    pub fn table_of(&self, key: u64) -> std::borrow::Cow<'_, str> {
        if self.collections == 1 {
            self.table.as_str().into()
        } else {
            format!("{}{}", self.table, key % self.collections).into()
        }
    }
}
