//! One ring as a reader of the log sees it: entries fetched from the core that writes it, or read
//! from files.

use std::collections::VecDeque;
use std::io;

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, submit_to};

use super::live_log::LogReadError;
use crate::engine::storage::{Storage, storage};
use crate::limits::LOG_FETCH_BYTES;
use crate::ring::{FilesAfter, FilesBefore, LogEntry, RingFiles, RingPart};

/// Where the entries come from.
enum Origin {
    /// The core that writes the ring.
    Core(CoreId),
    /// Nothing but files: no core writes the ring any more. They are taken once.
    Foreign(Option<RingFiles>),
}

enum Files {
    After(Box<FilesAfter>),
    Before(FilesBefore),
}

/// One ring, read in one direction.
pub(super) struct Source {
    origin: Origin,
    /// Read and not handed out, in the order of reading.
    pub(super) buffer: VecDeque<LogEntry>,
    /// Forwards, everything at or below it was read; backwards, everything at or above it.
    reached: Timestamp,
    files: Option<Files>,
    /// Backwards: there are no more.
    ended: bool,
}

impl Source {
    pub(super) fn of_core(core: CoreId, from: Timestamp) -> Source {
        Source::new(Origin::Core(core), from)
    }

    pub(super) fn of_files(files: RingFiles, from: Timestamp) -> Source {
        Source::new(Origin::Foreign(Some(files)), from)
    }

    fn new(origin: Origin, from: Timestamp) -> Source {
        Source {
            origin,
            buffer: VecDeque::new(),
            reached: from,
            files: None,
            ended: false,
        }
    }

    /// Whether the next entry at or below `through`, if there is any, is in the buffer.
    pub(super) fn is_filled_to(&self, through: Timestamp) -> bool {
        !self.buffer.is_empty() || self.reached >= through
    }

    /// Whether the next entry downwards, if there is any, is in the buffer.
    pub(super) fn is_filled_down(&self) -> bool {
        !self.buffer.is_empty() || self.ended
    }

    /// Brings the next entries into the empty buffer, if there are any at or below `through`.
    pub(super) async fn fill_to(
        &mut self,
        storage: &Storage,
        through: Timestamp,
    ) -> Result<(), LogReadError> {
        while !self.is_filled_to(through) {
            if self.files.is_some() {
                self.read_files_after(storage).await?;
                continue;
            }
            let after = self.reached;
            let part = self
                .ask(move |storage| storage.log_part_after(after, through))
                .await?;
            if let Some(files) = part.files {
                let opened = FilesAfter::open(&files, after).await;
                storage.check_retained(after)?;
                self.read_from(Files::After(Box::new(opened?)));
                continue;
            }
            self.reached = match part.entries.last() {
                Some(last) if !part.complete => last.ts,
                _ => through,
            };
            self.buffer.extend(part.entries);
        }
        Ok(())
    }

    async fn read_files_after(&mut self, storage: &Storage) -> Result<(), LogReadError> {
        let Some(Files::After(files)) = &mut self.files else {
            unreachable!("a source is read in one direction");
        };
        let more = files.read(LOG_FETCH_BYTES, &mut self.buffer).await;
        // What was reused while it was read was given up before that: what is missing now shows
        // here.
        if let Err(lost) = storage.check_retained(self.reached) {
            self.buffer.clear();
            return Err(lost);
        }
        let (more, through) = (more?, files.through);
        if let Some(last) = self.buffer.back() {
            self.reached = last.ts;
        }
        if !more {
            self.reached = self.reached.max(through);
            self.files = None;
        }
        Ok(())
    }

    /// Brings the next entries downwards into the empty buffer, if there are any above `retained`,
    /// the first timestamp of the log as the caller knows it.
    pub(super) async fn fill_down(
        &mut self,
        storage: &Storage,
        retained: Timestamp,
    ) -> Result<(), LogReadError> {
        while !self.is_filled_down() {
            if let Some(Files::Before(files)) = &mut self.files {
                match files.read(&mut self.buffer).await {
                    Ok(more) => self.ended = !more,
                    // The segment was given up: what it and those before it held is no longer part
                    // of the log.
                    Err(_) if files.next_last() <= storage.retained_above() => self.ended = true,
                    Err(error) => return Err(error.into()),
                }
                continue;
            }
            let before = self.reached;
            let part = self
                .ask(move |storage| storage.log_part_before(before, retained))
                .await?;
            if let Some(last) = part.entries.last() {
                self.reached = last.ts;
            }
            self.buffer.extend(part.entries);
            match part.files {
                Some(files) => {
                    let files = FilesBefore::new(files, self.reached);
                    self.read_from(Files::Before(files));
                }
                None => self.ended = part.complete,
            }
        }
        Ok(())
    }

    /// The files of a ring that no core writes are given up only now: the reader may be interrupted
    /// while they are opened.
    fn read_from(&mut self, opened: Files) {
        self.files = Some(opened);
        if let Origin::Foreign(files) = &mut self.origin {
            *files = None;
        }
    }

    async fn ask(
        &self,
        part: impl FnOnce(&Storage) -> Result<RingPart, LogReadError> + Send + 'static,
    ) -> Result<RingPart, LogReadError> {
        match &self.origin {
            &Origin::Core(core) => {
                submit_to(
                    core,
                    Queue::Foreground,
                    move || async move { part(&storage()) },
                )
                .await
            }
            Origin::Foreign(files) => Ok(RingPart {
                entries: Vec::new(),
                complete: true,
                files: files.clone(),
            }),
        }
    }
}

impl Storage {
    /// What this core's ring holds above `after`, up to `through`.
    fn log_part_after(
        &self,
        after: Timestamp,
        through: Timestamp,
    ) -> Result<RingPart, LogReadError> {
        let ring = self.readable_ring()?;
        Ok(ring.read_after(after, through, LOG_FETCH_BYTES))
    }

    /// What this core's ring holds below `before`, down to `after`.
    fn log_part_before(
        &self,
        before: Timestamp,
        after: Timestamp,
    ) -> Result<RingPart, LogReadError> {
        let ring = self.readable_ring()?;
        Ok(ring.read_before(before, after, LOG_FETCH_BYTES))
    }
}

impl From<io::Error> for LogReadError {
    fn from(error: io::Error) -> LogReadError {
        LogReadError::Io(error.to_string().into())
    }
}
