//! Frozen checkpoints: the source's side of a copy of page files.
//!
//! The newest checkpoint is frozen as it is: each partition keeps the extents of its state, and the
//! log is kept from the first entry that opening the copy needs. The node continues to write and to
//! take checkpoints meanwhile. One that was not requested for a while is given up, so that a copier
//! that died keeps no disk for ever.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{
    CoreId, Instant, LocalBoxFuture, Queue, join_all, now, sim, sleep_until, spawn, submit_to,
};

use crate::base::PartitionRoots;
use crate::engine::checkpoint::on_node;
use crate::engine::log::LogPin;
use crate::engine::storage::{Storage, storage};
use crate::limits::{FROZEN_PATIENCE, MAX_FROZEN};
use crate::types::{Fatal, PartitionId, ReadError};

/// A checkpoint that can be copied, until it is released.
#[derive(Clone, Debug)]
pub struct FrozenCheckpoint {
    /// What it is asked for by.
    pub number: u64,
    /// The last entry that the pages hold.
    pub base: Timestamp,
    /// The log is kept from here on: the base, or the first entry of a transaction that started
    /// before it and needs its log.
    pub log_from: Timestamp,
    /// What the pages are, for [`crate::CheckpointCopy::begin`].
    pub manifest: Bytes,
    /// Bytes to copy, over all partitions.
    pub bytes: u64,
}

/// A piece of a page file of a frozen checkpoint.
#[derive(Clone, Debug)]
pub struct FrozenPages {
    /// Where it lies in the file.
    pub offset: u64,
    /// Whole blocks; none at the end.
    pub bytes: Bytes,
}

/// Why a checkpoint is not frozen, or not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FreezeError {
    /// This number of checkpoints is frozen already.
    TooMany(usize),
    /// The log does not reach back to it.
    LogTooShort,
    /// There is no frozen checkpoint of this number, or no longer.
    Gone(u64),
    /// A page file cannot be read.
    Read(ReadError),
    /// Storage has failed, or is closing.
    Fatal(Fatal),
}

impl fmt::Display for FreezeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreezeError::TooMany(count) => {
                write!(f, "{count} checkpoints are being copied already")
            }
            FreezeError::LogTooShort => {
                f.write_str("the oplog does not reach back to the last checkpoint")
            }
            FreezeError::Gone(number) => {
                write!(f, "there is no frozen checkpoint {number}, or no longer")
            }
            FreezeError::Read(error) => error.fmt(f),
            FreezeError::Fatal(fatal) => fatal.fmt(f),
        }
    }
}

impl std::error::Error for FreezeError {}

impl From<Fatal> for FreezeError {
    fn from(fatal: Fatal) -> FreezeError {
        FreezeError::Fatal(fatal)
    }
}

/// What core 0 knows of those there are.
#[derive(Default)]
pub(in crate::engine) struct FrozenCheckpoints {
    last: Cell<u64>,
    frozen: RefCell<BTreeMap<u64, Copier>>,
}

impl FrozenCheckpoints {
    /// A number that no other has, nor any of another opening of the directory.
    fn number(&self, incarnation: u64) -> u64 {
        self.last.set(self.last.get() + 1);
        incarnation << 24 | self.last.get()
    }
}

struct Copier {
    /// The name that the copier gave.
    name: String,
    /// It is given up then, unless it is requested before.
    until: Instant,
    _log: LogPin,
}

impl Storage {
    /// Takes a checkpoint and freezes it for a copier of this name. One that is frozen for the same
    /// name is released.
    ///
    /// # Errors
    /// See [`FreezeError`].
    pub fn freeze_checkpoint<'a>(
        &'a self,
        copier: &'a str,
    ) -> LocalBoxFuture<'a, Result<FrozenCheckpoint, FreezeError>> {
        Box::pin(async move {
            let copier = copier.to_owned();
            // The newer it is, the shorter the log that the copy has to fetch.
            self.checkpoint().await?;
            on_node(async move |storage| storage.freeze_node(copier).await).await
        })
    }

    async fn freeze_node(&self, copier: String) -> Result<FrozenCheckpoint, FreezeError> {
        let node = self.node_state();
        let same = |(number, of): (&u64, &Copier)| (of.name == copier).then_some(*number);
        let before: Vec<u64> = node
            .frozen
            .frozen
            .borrow()
            .iter()
            .filter_map(same)
            .collect();
        for number in before {
            self.thaw_node(number).await;
        }
        // No other checkpoint is installed meanwhile: what the manifest names is what the
        // partitions have.
        let turn = node.turns.take().await;
        self.check_fatal()?;
        let count = node.frozen.frozen.borrow().len();
        if count >= MAX_FROZEN {
            return Err(FreezeError::TooMany(count));
        }
        let manifest = turn.manifest().clone();
        let base = manifest.base();
        let log_from = manifest.transaction().unwrap_or(base);
        let log = self
            .pin_log(log_from)
            .map_err(|_| FreezeError::LogTooShort)?;
        let number = node.frozen.number(self.shared.incarnation);
        let frozen = join_all((0..self.cores as u16).map(|core| {
            let roots = manifest.roots.clone();
            submit_to(CoreId(core), Queue::Background, move || async move {
                storage().freeze_owned(number, &roots).await
            })
        }))
        .await;
        let bytes = frozen.into_iter().sum::<Result<u64, ReadError>>();
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                self.thaw_everywhere(number).await;
                return Err(FreezeError::Read(error));
            }
        };
        sim::event("checkpoint frozen");
        let copier = Copier {
            name: copier,
            until: now() + FROZEN_PATIENCE,
            _log: log,
        };
        node.frozen.frozen.borrow_mut().insert(number, copier);
        spawn(Queue::Background, self.rc().give_up_frozen(number));
        Ok(FrozenCheckpoint {
            number,
            base,
            log_from,
            manifest: manifest.encode().into(),
            bytes,
        })
    }

    async fn freeze_owned(&self, number: u64, roots: &[PartitionRoots]) -> Result<u64, ReadError> {
        let mut bytes = 0;
        for partition in self.owned() {
            partition
                .freeze(number, &roots[usize::from(partition.id().0)])
                .await?;
            bytes += partition.frozen_bytes(number);
        }
        Ok(bytes)
    }

    /// Releases a frozen checkpoint when it was not requested for long.
    async fn give_up_frozen(self: std::rc::Rc<Self>, number: u64) {
        loop {
            let until = {
                let frozen = self.node_state().frozen.frozen.borrow();
                match frozen.get(&number) {
                    Some(copier) => copier.until,
                    None => return,
                }
            };
            if now() >= until {
                break;
            }
            sleep_until(until).await;
        }
        sim::event("frozen checkpoint given up");
        tracing::warn!(target: "STORAGE", id = 7_300_040u64, number, "A frozen checkpoint is given up: nobody has copied it for long");
        self.thaw_node(number).await;
    }

    /// Keeps a frozen checkpoint for longer. False if there is none of this number.
    pub async fn keep_frozen(&self, number: u64) -> bool {
        submit_to(CoreId(0), Queue::Foreground, move || async move {
            let storage = storage();
            let mut frozen = storage.node_state().frozen.frozen.borrow_mut();
            let copier = frozen.get_mut(&number);
            copier
                .map(|copier| copier.until = now() + FROZEN_PATIENCE)
                .is_some()
        })
        .await
    }

    /// The next pages of a partition in a frozen checkpoint, from an offset of its file on. Between
    /// them lie free blocks, which need not be copied.
    ///
    /// # Errors
    /// See [`FreezeError`].
    ///
    /// # Panics
    /// If there is no such partition.
    pub fn read_frozen(
        &self,
        number: u64,
        partition: PartitionId,
        offset: u64,
    ) -> LocalBoxFuture<'_, Result<FrozenPages, FreezeError>> {
        Box::pin(async move {
            if !self.keep_frozen(number).await {
                return Err(FreezeError::Gone(number));
            }
            let owner = self.owner(partition);
            let read = submit_to(owner, Queue::Background, move || async move {
                let owned = storage().partition(partition).expect("asked its owner");
                owned.read_frozen(number, offset).await
            });
            let read = read.await.map_err(FreezeError::Read)?;
            let part = read.ok_or(FreezeError::Gone(number))?;
            Ok(FrozenPages {
                offset: part.offset,
                bytes: part.bytes,
            })
        })
    }

    /// Keeps a frozen checkpoint no longer, if there is one of this number.
    pub async fn release_frozen(&self, number: u64) {
        submit_to(CoreId(0), Queue::Background, move || async move {
            storage().thaw_node(number).await;
        })
        .await;
    }

    async fn thaw_node(&self, number: u64) {
        let copier = self.node_state().frozen.frozen.borrow_mut().remove(&number);
        if copier.is_some() {
            self.thaw_everywhere(number).await;
        }
    }

    async fn thaw_everywhere(&self, number: u64) {
        join_all((0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Background, move || async move {
                for partition in storage().owned() {
                    partition.thaw(number);
                }
            })
        }))
        .await;
    }

    /// How many checkpoints are frozen. Call it on core 0.
    pub fn frozen_checkpoints(&self) -> usize {
        self.node_state().frozen.frozen.borrow().len()
    }
}
