//! Whether indexes and collection agree: each index read forwards and backwards, and its entries
//! counted.
//!
//! Both directions must give every document once, in the order of the document's own values, and
//! the index must hold exactly as many entries as the documents make. So neither a missing nor a
//! stale entry goes unnoticed, nor one in place of the other, unless its value happens to fit in
//! between its neighbours.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::client::{Client, Refusal, read_through};
use crate::oracle::id;

/// Where a document's entries lie: its lowest and its highest.
type Ends = ((i64, String), (i64, String));

struct IndexCase {
    name: &'static str,
    /// Entries of one document.
    entries: i64,
    ends: fn(&RawDocument) -> Option<Ends>,
}

const INDEX_CASES: [IndexCase; 3] = [
    IndexCase {
        name: "n_1",
        entries: 2,
        ends: |document| {
            let (low, high) = numbers(document)?;
            Some(((low, String::new()), (high, String::new())))
        },
    },
    IndexCase {
        name: "u_1",
        entries: 1,
        ends: |document| {
            let value = (0, document.get_str("u").ok()?.to_owned());
            Some((value.clone(), value))
        },
    },
    // The second field descends, so it is left out of the order.
    IndexCase {
        name: "extra",
        entries: 2,
        ends: |document| {
            let value = (i64::from(document.get_i32("v").ok()?), String::new());
            Some((value.clone(), value))
        },
    },
];
/// The index that comes and goes.
const OPTIONAL: &str = "extra";
/// What a hint answers that names no index.
const BAD_VALUE: i32 = 2;

/// A document's two numbers.
pub fn numbers(document: &RawDocument) -> Option<(i64, i64)> {
    let array = document.get_array("n").ok()?;
    let mut values = array.into_iter().map(|value| match value {
        Ok(RawBsonRef::Int32(value)) => Some(i64::from(value)),
        _ => None,
    });
    Some((values.next()??, values.next()??))
}

/// One index, read.
struct Read {
    known: &'static IndexCase,
    forwards: Vec<RawDocumentBuf>,
    backwards: Vec<RawDocumentBuf>,
    keys_examined: i64,
}

/// The indexes of the documents, read while there are no writes.
pub struct Indexes(Vec<Read>);

impl Indexes {
    /// Reads every index there is.
    pub async fn read(client: &mut Client) -> Result<Indexes, Refusal> {
        let mut reads = Vec::new();
        for known in &INDEX_CASES {
            match Read::of(client, known).await {
                Ok(read) => reads.push(read),
                Err(Refusal::Answer(BAD_VALUE, _)) if known.name == OPTIONAL => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(Indexes(reads))
    }

    /// Compares them with all documents.
    pub fn check(&self, docs: &[RawDocumentBuf]) -> Result<(), String> {
        let mut unique = BTreeSet::new();
        for document in docs {
            if let Ok(value) = document.get_str("u")
                && !unique.insert(value)
            {
                return Err(format!("the unique value {value} is there twice"));
            }
        }
        let by_id = |documents: &[RawDocumentBuf]| -> BTreeMap<String, Vec<u8>> {
            documents
                .iter()
                .map(|document| (id(document), document.as_bytes().to_vec()))
                .collect()
        };
        let scan = by_id(docs);
        for read in &self.0 {
            let name = read.known.name;
            for documents in [&read.forwards, &read.backwards] {
                let through = by_id(documents);
                if through != scan || documents.len() != through.len() {
                    let missing = scan.keys().filter(|key| !through.contains_key(*key));
                    let more = through.keys().filter(|key| !scan.contains_key(*key));
                    let odd: Vec<&String> = missing.chain(more).take(5).collect();
                    return Err(format!(
                        "index {name} gives {} documents and the scan {}; not in both: {odd:?}",
                        documents.len(),
                        scan.len()
                    ));
                }
            }
            let expected = read.known.entries * docs.len() as i64;
            if read.keys_examined != expected {
                return Err(format!(
                    "index {name} holds {} entries for {} documents, which make {expected}",
                    read.keys_examined,
                    docs.len()
                ));
            }
            read.check_order()?;
        }
        Ok(())
    }
}

impl Read {
    async fn of(client: &mut Client, known: &'static IndexCase) -> Result<Read, Refusal> {
        let sort = |direction: i32| match known.name {
            "n_1" => rawdoc! { "n": direction },
            "u_1" => rawdoc! { "u": direction },
            _ => rawdoc! { "v": direction, "n": -direction },
        };
        let explain = rawdoc! {
            "explain": { "find": "docs", "hint": known.name, "sort": sort(1) },
            "verbosity": "executionStats",
            "$db": "sim",
        };
        let forwards = read_through(client, "docs", known.name, sort(1)).await?;
        let backwards = read_through(client, "docs", known.name, sort(-1)).await?;
        let reply = client.ask(&explain).await?;
        let keys_examined = reply
            .get_document("executionStats")
            .ok()
            .and_then(|stats| stats.get_i32("totalKeysExamined").ok());
        assert!(
            !pinion_bson::to_extended_json(&reply, pinion_bson::JsonMode::Relaxed)
                .contains("\"SORT\""),
            "the order must come from the index: {reply:?}"
        );
        Ok(Read {
            known,
            forwards,
            backwards,
            keys_examined: keys_examined.map_or(-1, i64::from),
        })
    }

    fn check_order(&self) -> Result<(), String> {
        let ends = |documents: &[RawDocumentBuf]| -> Vec<Option<Ends>> {
            documents
                .iter()
                .map(|document| (self.known.ends)(document))
                .collect()
        };
        let (forwards, backwards) = (ends(&self.forwards), ends(&self.backwards));
        let low = |ends: &Option<Ends>| ends.as_ref().map(|ends| ends.0.clone());
        let high = |ends: &Option<Ends>| ends.as_ref().map(|ends| ends.1.clone());
        if forwards.is_sorted_by_key(low) && backwards.iter().rev().map(high).is_sorted() {
            return Ok(());
        }
        Err(format!(
            "index {} does not give the documents in the order of their values",
            self.known.name
        ))
    }
}
