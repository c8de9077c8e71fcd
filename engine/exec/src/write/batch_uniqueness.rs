//! The unique keys that the documents of an unordered insert want: of those that want one, the
//! first of the batch has it.

use pinion_storage::{Expect, Key, PartitionId, Statement, TreeId};
use rustc_hash::{FxHashMap, FxHashSet};

type UniqueKey = (PartitionId, TreeId, Key);

/// What the documents of one step want, and what those of earlier steps have settled.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Unique keys of documents that are tried in this step, with the places of document and write.
    tried: FxHashMap<UniqueKey, (usize, usize)>,
    /// Unique keys of documents that wait.
    waiting: FxHashSet<UniqueKey>,
    /// Taken since an earlier step: a document that wants it now fails without waiting. Another
    /// client may delete that document meanwhile, and then it is as if the deletion had come
    /// between others.
    settled: FxHashSet<UniqueKey>,
}

impl Claims {
    /// Notes what the statement for the document at this place wants; false where one before it
    /// wants the same, so that it must wait until that one is decided.
    pub(super) fn claim(&mut self, place: usize, statement: &Statement) -> bool {
        let wanted = || {
            statement
                .writes
                .iter()
                .enumerate()
                .filter_map(|(at, write)| {
                    let key = match write.expect {
                        Expect::Absent => write.key.clone(),
                        Expect::UniquePrefix { len } => Key::from_slice(&write.key[..len]),
                        _ => return None,
                    };
                    Some(((write.partition, write.tree, key), at))
                })
        };
        let is_free = wanted().all(|(key, _)| {
            self.settled.contains(&key)
                || !(self.tried.contains_key(&key) || self.waiting.contains(&key))
        });
        if is_free {
            self.tried
                .extend(wanted().map(|(key, at)| (key, (place, at))));
        } else {
            self.waiting.extend(wanted().map(|(key, _)| key));
        }
        is_free
    }

    /// Ends a step, of which `is_taken` says for the document at a place and for one of its writes
    /// whether that key is taken now.
    pub(super) fn end_step(&mut self, is_taken: impl Fn(usize, usize) -> bool) {
        if !self.waiting.is_empty() {
            let taken = self.tried.drain();
            let taken = taken.filter(|(_, (place, write))| is_taken(*place, *write));
            self.settled.extend(taken.map(|(key, _)| key));
        }
        self.tried.clear();
        self.waiting.clear();
    }
}
