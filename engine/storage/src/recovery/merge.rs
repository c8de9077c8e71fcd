//! The oplog as all rings together hold it: entries merged by timestamp, without holding them in
//! memory.

use std::io;

use crate::ring::{LoggedEntry, RingReader};

/// Merges the entries of several rings in timestamp order.
pub(crate) struct MergedLog {
    readers: Vec<RingReader>,
    heads: Vec<Option<LoggedEntry>>,
    started: bool,
}

impl MergedLog {
    pub(crate) fn new(readers: Vec<RingReader>) -> MergedLog {
        let heads = readers.iter().map(|_| None).collect();
        MergedLog {
            readers,
            heads,
            started: false,
        }
    }

    /// The next entry and the index of its ring's reader. Equal timestamps come in the order of the
    /// readers.
    pub(crate) async fn next(&mut self) -> io::Result<Option<(usize, LoggedEntry)>> {
        if !self.started {
            self.started = true;
            for (reader, head) in self.readers.iter_mut().zip(&mut self.heads) {
                *head = reader.next().await?;
            }
        }
        let lowest = self
            .heads
            .iter()
            .enumerate()
            .filter_map(|(at, head)| Some((head.as_ref()?.ts, at)))
            .min();
        let Some((_, at)) = lowest else {
            return Ok(None);
        };
        let next = self.readers[at].next().await?;
        let entry = std::mem::replace(&mut self.heads[at], next).expect("it was the lowest");
        Ok(Some((at, entry)))
    }

    pub(crate) fn readers(&self) -> &[RingReader] {
        &self.readers
    }
}
