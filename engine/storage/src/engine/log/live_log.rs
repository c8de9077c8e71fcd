//! The log of the running node as one sequence: all rings, merged by timestamp.
//!
//! Each core answers for its own ring, by message: with entries that it has in memory, or with the
//! names of segments, which the reader reads by himself. What the rings give is merged by
//! timestamp, and every entry must name the one before it as its predecessor, so nothing that is
//! missing goes unnoticed. Forwards the log ends where nothing is missing for being appended at
//! that very moment on another core; backwards it begins with what is there.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, join_all, submit_to, yield_if_due};

use super::log_source::Source;
use crate::engine::storage::{Storage, storage};
use crate::ring::{EntryKind, LogEntry, Ring, RingFiles};
use crate::types::{Direction, Fatal};

/// Why the log cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogReadError {
    /// Entries behind the reader's position were given up before he came to them.
    PositionLost,
    /// An entry is missing that should be there.
    Damaged(Arc<str>),
    /// The device reported an error.
    Io(Arc<str>),
    /// Storage has failed, or is not open yet.
    Fatal(Fatal),
}

impl fmt::Display for LogReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogReadError::PositionLost => f.write_str("the position in the log no longer exists"),
            LogReadError::Damaged(what) => write!(f, "the log is damaged: {what}"),
            LogReadError::Io(what) => write!(f, "reading the log failed: {what}"),
            LogReadError::Fatal(fatal) => write!(f, "storage has stopped: {fatal}"),
        }
    }
}

impl std::error::Error for LogReadError {}

/// A place in the log. It belongs to one core.
pub struct LogCursor {
    storage: Rc<Storage>,
    direction: Direction,
    /// Forwards the timestamp behind which it begins, backwards the highest that it may find.
    from: Timestamp,
    /// There once the first batch was asked for.
    sources: Vec<Source>,
    /// The last entry that was passed; before that where the first one is looked for.
    at: Timestamp,
    /// That entry's predecessor, when there is such an entry and its predecessor must be there too.
    passed: Option<Timestamp>,
    /// The last entry that the caller has.
    position: Timestamp,
    /// Backwards, entries above it may lack their predecessors: those are being appended.
    no_holes_through: Timestamp,
    /// A batch was complete, so that what is behind it must not go unnoticed.
    gave_batch: bool,
    /// Forwards, everything up to here was looked at.
    seen_through: Timestamp,
    /// What the batch in the making holds.
    batch: Vec<(Timestamp, Bytes)>,
    batch_bytes: usize,
}

/// What became of one turn of reading.
enum Turn {
    /// Some ring must be looked into.
    Fill,
    /// The batch is full, or nothing more is there.
    Complete { end: bool },
}

impl Storage {
    /// Reads the log forwards from the first entry above `ts` that is still there. Entries are seen
    /// up to [`Storage::oplog_read_timestamp`] as of each batch.
    pub fn log_after(&self, ts: Timestamp) -> LogCursor {
        LogCursor::new(self.rc(), Direction::Forward, ts)
    }

    /// Reads the log forwards from the first entry at or above `ts` that is still there.
    pub fn log_from(&self, ts: Timestamp) -> LogCursor {
        self.log_after(Timestamp::from_u64(ts.as_u64().saturating_sub(1)))
    }

    /// Reads the log backwards from the last entry at or below `ts`, which may be one before which
    /// others are still being appended. `Timestamp::MAX` begins at the end.
    pub fn log_backward(&self, ts: Timestamp) -> LogCursor {
        LogCursor::new(self.rc(), Direction::Reverse, ts)
    }

    /// This core's ring, once recovery is complete.
    pub(super) fn readable_ring(&self) -> Result<Rc<Ring>, LogReadError> {
        let ring = self.flusher.ring();
        self.check_fatal().map_err(LogReadError::Fatal)?;
        match self.roles.is_recovering() {
            true => None,
            false => ring,
        }
        .ok_or_else(|| LogReadError::Fatal(Fatal::new("storage is still recovering")))
    }

    /// The rings that no core writes any more, as far as they hold entries above `after`.
    fn foreign_rings(&self, after: Timestamp) -> Vec<RingFiles> {
        let foreign = self.node_state().foreign.borrow();
        let holding = foreign.iter().map(|files| RingFiles {
            segments: files.segments_above(after),
            ..files.clone()
        });
        holding.filter(|files| !files.segments.is_empty()).collect()
    }
}

impl LogCursor {
    fn new(storage: Rc<Storage>, direction: Direction, from: Timestamp) -> LogCursor {
        LogCursor {
            storage,
            direction,
            from,
            sources: Vec::new(),
            at: from,
            position: from,
            passed: None,
            no_holes_through: Timestamp::MIN,
            gave_batch: false,
            seen_through: Timestamp::MIN,
            batch: Vec::new(),
            batch_bytes: 0,
        }
    }

    /// The timestamp of the last entry that was given out, or where reading begins.
    pub fn position(&self) -> Timestamp {
        self.position
    }

    /// The next entries, each an oplog document: no more than `limit_entries`, nor more than
    /// `limit_bytes` of documents unless the first alone is larger. None at the end, which forwards
    /// is where later entries will come. Entries of one batch may share their memory. Dropping the
    /// future loses nothing.
    ///
    /// # Errors
    /// See [`LogReadError`]. What was read before the error is given first.
    pub async fn next_batch(
        &mut self,
        limit_entries: usize,
        limit_bytes: usize,
    ) -> Result<Vec<(Timestamp, Bytes)>, LogReadError> {
        assert!(limit_entries > 0, "a batch has room for an entry");
        match self.direction {
            Direction::Forward => self.read_forward(limit_entries, limit_bytes).await,
            Direction::Reverse => self.read_backward(limit_entries, limit_bytes).await,
        }
        .or_else(|error| match self.batch.is_empty() {
            true => Err(error),
            false => Ok(()),
        })?;
        self.gave_batch = true;
        Ok(self.take_batch(limit_entries, limit_bytes))
    }

    /// Forwards: waits until there is something behind what the last batch has seen.
    ///
    /// # Errors
    /// Storage has failed.
    pub async fn wait(&self) -> Result<(), Fatal> {
        self.storage.wait_log_beyond(self.seen_through).await
    }

    /// Takes what was read. That can be more than fits when a call before this one had more room
    /// and was dropped.
    fn take_batch(&mut self, entries: usize, bytes: usize) -> Vec<(Timestamp, Bytes)> {
        let (mut fitting, mut taken) = (0, 0);
        for (_, entry) in &self.batch {
            if fitting > 0 && (fitting >= entries || taken + entry.len() > bytes) {
                break;
            }
            fitting += 1;
            taken += entry.len();
        }
        let rest = self.batch.split_off(fitting);
        self.batch_bytes -= taken;
        let batch = std::mem::replace(&mut self.batch, rest);
        self.position = match (self.batch.is_empty(), batch.last()) {
            (false, Some(&(last, _))) => last,
            _ => self.at,
        };
        batch
    }

    async fn read_forward(&mut self, entries: usize, bytes: usize) -> Result<(), LogReadError> {
        let through = self.storage.oplog_read_timestamp();
        self.seen_through = Timestamp::MIN;
        loop {
            if self.sources.is_empty() {
                let retained = self.storage.retained_above();
                self.at = self.from.max(retained);
                self.sources = self.find_sources(self.at, self.at).await?;
            }
            let storage = &self.storage;
            let lacking = self.sources.iter_mut();
            let lacking = lacking.filter(|source| !source.is_filled_to(through));
            let filled = join_all(lacking.map(|source| source.fill_to(storage, through))).await;
            match filled.into_iter().collect::<Result<(), LogReadError>>() {
                // The log's beginning has moved on before anything was read of it.
                Err(LogReadError::PositionLost) if self.passed.is_none() && !self.gave_batch => {
                    let moved = self.storage.retained_above() > self.at;
                    assert!(moved, "a position is lost when it is not retained");
                    self.sources.clear();
                    continue;
                }
                filled => filled?,
            }
            match self.merge_forward(through, entries, bytes)? {
                Turn::Fill => yield_if_due().await,
                Turn::Complete { end } => {
                    if end {
                        self.seen_through = through;
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Takes what the sources have, lowest first, up to where one of them must be looked into
    /// again.
    fn merge_forward(
        &mut self,
        through: Timestamp,
        entries: usize,
        bytes: usize,
    ) -> Result<Turn, LogReadError> {
        loop {
            if self.sources.iter().any(|s| !s.is_filled_to(through)) {
                return Ok(Turn::Fill);
            }
            let heads = self.sources.iter_mut().filter(|s| !s.buffer.is_empty());
            let lowest = heads.min_by_key(|source| source.buffer[0].ts);
            let Some(source) = lowest.filter(|source| source.buffer[0].ts <= through) else {
                return Ok(Turn::Complete { end: true });
            };
            let head = &source.buffer[0];
            let follows = match self.passed {
                Some(_) => head.predecessor == self.at,
                None => head.predecessor <= self.at && self.at < head.ts,
            };
            if !follows {
                self.storage.check_retained(self.at)?;
                return Err(missing(head.ts, head.predecessor, self.at));
            }
            if is_full(&self.batch, self.batch_bytes, head, entries, bytes) {
                return Ok(Turn::Complete { end: false });
            }
            let entry = source.buffer.pop_front().expect("just seen");
            self.pass(entry);
        }
    }

    async fn read_backward(&mut self, entries: usize, bytes: usize) -> Result<(), LogReadError> {
        if self.sources.is_empty() {
            self.no_holes_through = self.storage.oplog_read_timestamp();
            let last = self.from.min(self.storage.last_allotted());
            let end = Timestamp::from_u64(last.as_u64().saturating_add(1));
            self.at = end;
            self.sources = self
                .find_sources(end, self.storage.retained_above())
                .await?;
        }
        loop {
            let retained = self.storage.retained_above();
            let storage = &self.storage;
            let lacking = self.sources.iter_mut();
            let lacking = lacking.filter(|source| !source.is_filled_down());
            let filled = join_all(lacking.map(|source| source.fill_down(storage, retained))).await;
            filled.into_iter().collect::<Result<(), LogReadError>>()?;
            match self.merge_backward(entries, bytes)? {
                Turn::Fill => yield_if_due().await,
                Turn::Complete { .. } => return Ok(()),
            }
        }
    }

    /// Takes what the sources have, highest first, up to where one of them must be looked into
    /// again.
    fn merge_backward(&mut self, entries: usize, bytes: usize) -> Result<Turn, LogReadError> {
        let retained = self.storage.retained_above();
        if self.passed.is_some() && retained >= self.at {
            return Err(LogReadError::PositionLost);
        }
        loop {
            if self.sources.iter().any(|source| !source.is_filled_down()) {
                return Ok(Turn::Fill);
            }
            let expected = self.passed.filter(|_| self.at <= self.no_holes_through);
            let heads = self.sources.iter_mut().filter(|s| !s.buffer.is_empty());
            let highest = heads.max_by_key(|source| source.buffer[0].ts);
            let Some(source) = highest.filter(|source| source.buffer[0].ts > retained) else {
                return match expected.filter(|&before| before > retained) {
                    Some(before) => Err(missing(self.at, before, Timestamp::MIN)),
                    None => Ok(Turn::Complete { end: true }),
                };
            };
            let head = &source.buffer[0];
            if let Some(before) = expected.filter(|&before| before != head.ts) {
                return Err(missing(self.at, before, head.ts));
            }
            if is_full(&self.batch, self.batch_bytes, head, entries, bytes) {
                return Ok(Turn::Complete { end: false });
            }
            let entry = source.buffer.pop_front().expect("just seen");
            self.pass(entry);
        }
    }

    fn pass(&mut self, entry: LogEntry) {
        self.at = entry.ts;
        self.passed = Some(entry.predecessor);
        match entry.kind {
            EntryKind::Logged => {
                self.batch_bytes += entry.bytes.len();
                self.batch.push((entry.ts, entry.bytes));
            }
            EntryKind::Link | EntryKind::Unreplicated => {}
        }
    }

    /// All rings, to be read from this timestamp on; those without a core only as far as they hold
    /// entries above `after`.
    async fn find_sources(
        &self,
        from: Timestamp,
        after: Timestamp,
    ) -> Result<Vec<Source>, LogReadError> {
        self.storage.readable_ring()?;
        let foreign = submit_to(CoreId(0), Queue::Foreground, move || async move {
            storage().foreign_rings(after)
        })
        .await;
        let cores = (0..self.storage.cores as u16).map(CoreId);
        let written = cores.map(|core| Source::of_core(core, from));
        let foreign = foreign
            .into_iter()
            .map(|files| Source::of_files(files, from));
        Ok(written.chain(foreign).collect())
    }
}

/// Whether the batch must go without this entry.
fn is_full(
    batch: &[(Timestamp, Bytes)],
    batch_bytes: usize,
    next: &LogEntry,
    entries: usize,
    bytes: usize,
) -> bool {
    let too_many = batch.len() >= entries || batch_bytes + next.bytes.len() > bytes;
    next.kind == EntryKind::Logged && !batch.is_empty() && too_many
}

fn missing(ts: Timestamp, predecessor: Timestamp, found: Timestamp) -> LogReadError {
    let found = match found {
        Timestamp::MIN => "nothing".to_string(),
        found => found.to_string(),
    };
    let what = format!("the entry at {ts} follows {predecessor}, and {found} was found there");
    LogReadError::Damaged(what.into())
}
