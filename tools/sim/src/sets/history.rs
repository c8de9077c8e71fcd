//! What clients wrote to the set and saw of it, and what may therefore be there.
//!
//! Every document has one writer, whose operations append their numbers to it. So a document shows
//! which operations it has seen, whether one was executed twice, and whether one came behind a
//! later one.
//!
//! Operations of one transaction are there together or not at all, in whatever snapshot. Other
//! reads take newer states while they run.
//!
//! Not checked: the order of operations on different documents; reads of an earlier time that go by
//! an index; that a transaction is not seen by others before it is committed.

use std::collections::BTreeMap;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};

/// One operation on a document.
#[derive(Clone, Debug)]
struct Operation {
    number: i64,
    /// A majority has acknowledged it, or a read of what a majority has has seen it: it stays for
    /// ever.
    is_certain: bool,
}

/// What was found in a document.
pub struct DocumentHistory {
    pub key: String,
    pub operations: Vec<i64>,
}

impl DocumentHistory {
    /// Reads a document of the clients.
    pub fn read(document: &RawDocument) -> Option<DocumentHistory> {
        let key = document.get_str("_id").ok()?.to_owned();
        let array = document.get_array("ops").ok()?;
        let operations: Option<Vec<i64>> = array
            .into_iter()
            .map(|value| match value {
                Ok(RawBsonRef::Int64(number)) => Some(number),
                _ => None,
            })
            .collect();
        let operations = operations?;
        let count = document.get_i32("n").ok()?;
        (count as usize == operations.len()).then_some(DocumentHistory { key, operations })
    }
}

/// Operations that a read must show, by document.
pub type Floor = BTreeMap<String, Vec<i64>>;

#[derive(Default)]
pub struct History {
    documents: BTreeMap<String, Vec<Operation>>,
    /// Operations that take place together, by document and number.
    transactions: Vec<Vec<(String, i64)>>,
    problem: Option<String>,
    pub counts: BTreeMap<&'static str, u64>,
}

impl History {
    /// The first thing that was wrong.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    pub fn fail(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    pub fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn operation(&mut self, key: &str, number: i64) -> &mut Operation {
        let operations = self.documents.get_mut(key);
        let mut operations = operations.into_iter().flatten();
        let found = operations.find(|operation| operation.number == number);
        found.expect("an operation that was sent")
    }

    /// An operation is about to be sent.
    pub fn sent(&mut self, key: &str, number: i64) {
        let operations = self.documents.entry(key.to_owned()).or_default();
        operations.push(Operation {
            number,
            is_certain: false,
        });
    }

    /// Operations that were sent take place together.
    pub fn together(&mut self, operations: &[(String, i64)]) {
        self.transactions.push(operations.to_vec());
    }

    /// A majority has it.
    pub fn acknowledged(&mut self, key: &str, number: i64) {
        self.operation(key, number).is_certain = true;
    }

    /// What every read that begins now and sees all that a majority has acknowledged must show.
    pub fn floor(&self) -> Floor {
        let certain = |operations: &Vec<Operation>| {
            let certain = operations.iter().filter(|operation| operation.is_certain);
            certain.map(|operation| operation.number).collect()
        };
        let documents = self.documents.iter();
        documents
            .map(|(key, operations)| (key.clone(), certain(operations)))
            .collect()
    }

    /// As [`History::check`], of a read that promises one snapshot.
    pub fn check_snapshot(
        &mut self,
        who: &str,
        documents: &[RawDocumentBuf],
        floor: &Floor,
    ) -> Vec<DocumentHistory> {
        let all = self.check(who, documents, floor);
        if let Some(problem) = self.half_a_transaction(&all) {
            self.fail(format!("{who}: {problem}"));
        }
        all
    }

    /// Checks documents that `who` has read: that each holds what was sent, once and in order, and
    /// what `floor` says.
    pub fn check(
        &mut self,
        who: &str,
        documents: &[RawDocumentBuf],
        floor: &Floor,
    ) -> Vec<DocumentHistory> {
        let mut all = Vec::new();
        for document in documents {
            let Some(found) = DocumentHistory::read(document) else {
                self.fail(format!("{who} has read what nobody wrote: {document:?}"));
                continue;
            };
            if let Err(problem) = self.check_document(&found) {
                self.fail(format!("{who}: {}: {problem}", found.key));
            }
            all.push(found);
        }
        for (key, needed) in floor {
            let found = all.iter().find(|found| found.key == *key);
            let has = |number: &i64| found.is_some_and(|found| found.operations.contains(number));
            if let Some(missing) = needed.iter().find(|number| !has(number)) {
                let there = found.map(|found| &found.operations);
                self.fail(format!(
                    "{who}: {key}: operation {missing} is certain and not there: {there:?}"
                ));
            }
        }
        all
    }

    /// What was found of a transaction that is there in part.
    fn half_a_transaction(&self, found: &[DocumentHistory]) -> Option<String> {
        let by_key: BTreeMap<&str, &[i64]> = found
            .iter()
            .map(|found| (found.key.as_str(), found.operations.as_slice()))
            .collect();
        let is_there = |(key, number): &(String, i64)| {
            let operations = by_key.get(key.as_str());
            operations.is_some_and(|operations| operations.contains(number))
        };
        self.transactions.iter().find_map(|operations| {
            let there = operations.iter().filter(|one| is_there(one)).count();
            let is_whole = there == 0 || there == operations.len();
            (!is_whole).then(|| format!("{there} operations of a transaction of {operations:?}"))
        })
    }

    fn check_document(&self, found: &DocumentHistory) -> Result<(), String> {
        let operations = &found.operations;
        if !operations.is_sorted_by(|a, b| a < b) {
            return Err(format!("executed twice or out of order: {operations:?}"));
        }
        let sent = self.documents.get(&found.key);
        let sent = sent.ok_or("nobody wrote this document")?;
        for number in operations {
            if !sent.iter().any(|operation| operation.number == *number) {
                return Err(format!("operation {number} was never sent"));
            }
        }
        Ok(())
    }

    /// A majority has what this read has seen: it must never go away.
    pub fn seen_by_majority(&mut self, found: &[DocumentHistory]) {
        for document in found {
            let Some(sent) = self.documents.get_mut(&document.key) else {
                continue;
            };
            for operation in sent {
                operation.is_certain |= document.operations.contains(&operation.number);
            }
        }
    }
}
