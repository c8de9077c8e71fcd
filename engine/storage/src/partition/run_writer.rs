//! Writing a run: the versions of a delta, in the order of their keys, a part at a time.

use std::rc::Rc;

use bytes::Bytes;
use pinion_runtime::{sim, sleep};

use super::core::Partition;
use super::delta::{Chain, Delta, Version};
use super::run::{Run, encode_piece, encode_version, encoded_len};
use crate::base::{Change, Freed, OverflowRef, Pace, PageWriter, TreeRoot, merge_tree};
use crate::limits::{
    BLOCK_BYTES, RUN_PART_BYTES, RUN_PART_RECORDS, RUN_PIECE_BYTES, RUN_WRITE_ATTEMPTS,
    RUN_WRITE_PAUSE,
};
use crate::types::{Fatal, Key, TreeId};

/// What is written of a delta.
pub(super) struct RunSource<'a> {
    pub delta: &'a Delta,
    /// Whether a version belongs to the run.
    pub keeps: &'a dyn Fn(&Version) -> bool,
    /// Asked between two parts: without it the rest is not written.
    pub is_wanted: &'a dyn Fn() -> bool,
}

impl Partition {
    /// Writes a run. None if there is nothing to write, or it is no longer wanted. What fails is
    /// tried again in other blocks: the changes are in memory as before, and nothing on disk refers
    /// to a run.
    pub(super) async fn write_run(
        &self,
        source: RunSource<'_>,
        pace: &dyn Pace,
    ) -> Result<Option<Rc<Run>>, Fatal> {
        for attempt in 1.. {
            let error = match self.try_write_run(&source, pace).await {
                Err(error) if attempt < RUN_WRITE_ATTEMPTS && self.may_try_again() => error,
                written => return written,
            };
            self.failed_runs.set(self.failed_runs.get() + 1);
            sim::event("a run could not be written");
            tracing::warn!(target: "STORAGE", id = 7_300_055u64, attempt, %error, "Old versions, or changes above the stable timestamp, could not be written to disk. It is tried again");
            sleep(RUN_WRITE_PAUSE).await;
        }
        unreachable!("the last attempt returns")
    }

    async fn try_write_run(
        &self,
        source: &RunSource<'_>,
        pace: &dyn Pace,
    ) -> Result<Option<Rc<Run>>, Fatal> {
        self.store.file.check()?;
        let (number, checkpoint) = {
            let mut state = self.state.borrow_mut();
            let next = state.views.current().roots.checkpoint + 1;
            (state.sequence(), next)
        };
        let trees = source.delta.tree_ids();
        let keys = |tree: &TreeId| source.delta.tree(*tree).map_or(0, |delta| delta.len());
        // From here on its blocks are given back whatever becomes of it.
        let mut run = Run::new(self, number, trees.iter().map(keys).sum());
        let mut writing = Writing {
            partition: self,
            writer: PageWriter::volatile(&self.store, checkpoint, pace, run.taken.clone()),
            freed: Freed::default(),
            versions: 0,
        };
        let written = writing.write_trees(&trees, source, &mut run).await;
        // Even what is given up must not be written any more when its blocks are given back.
        writing.writer.drain().await;
        if !written? {
            sim::event("a run is given up");
            return Ok(None);
        }
        sim::count("versions written to runs", writing.versions);
        let blocks: u64 = run.taken.borrow().iter().map(|extent| extent.blocks).sum();
        run.disk_bytes = blocks * BLOCK_BYTES as u64;
        Ok((!run.is_empty()).then(|| Rc::new(run)))
    }
}

struct Writing<'a> {
    partition: &'a Partition,
    writer: PageWriter<'a>,
    /// Pages that later parts have replaced. They belong to the run until it ends.
    freed: Freed,
    versions: u64,
}

impl Writing<'_> {
    /// False if the run is no longer wanted.
    async fn write_trees(
        &mut self,
        trees: &[TreeId],
        source: &RunSource<'_>,
        run: &mut Run,
    ) -> Result<bool, Fatal> {
        for tree in trees {
            let is_wanted = self.write_tree(*tree, source, run).await?;
            self.writer.settle().await?;
            if !is_wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// False if the run is no longer wanted.
    async fn write_tree(
        &mut self,
        tree: TreeId,
        source: &RunSource<'_>,
        run: &mut Run,
    ) -> Result<bool, Fatal> {
        let Some(delta) = source.delta.tree(tree) else {
            return Ok(true);
        };
        let mut chains = delta.iter().peekable();
        let mut root: Option<TreeRoot> = None;
        while chains.peek().is_some() {
            let (mut part, mut bytes): (Vec<Change>, usize) = (Vec::new(), 0);
            for _ in 0..RUN_PART_RECORDS {
                let Some((key, chain)) = chains.next_if(|_| bytes < RUN_PART_BYTES) else {
                    break;
                };
                if let Some(record) = self.record(tree, chain, source, run).await? {
                    bytes += key.len() + record.len();
                    run.filter.add(tree, key);
                    part.push((key.clone(), Some(record)));
                }
            }
            root = self.append(tree, root, part).await?;
            self.writer.rest().await;
            if !(source.is_wanted)() {
                return Ok(false);
            }
        }
        if let Some(root) = root {
            run.add(tree, root);
        }
        Ok(true)
    }

    async fn append(
        &mut self,
        tree: TreeId,
        root: Option<TreeRoot>,
        part: Vec<Change>,
    ) -> Result<Option<TreeRoot>, Fatal> {
        if part.is_empty() {
            return Ok(root);
        }
        let root = merge_tree(
            &mut self.writer,
            &self.partition.store,
            &mut self.freed,
            tree,
            root,
            Box::new(std::iter::empty::<&Key>()),
            part.into_iter(),
        )
        .await?;
        // The next part reads what this one has written last.
        self.writer.settle().await?;
        Ok(root)
    }

    /// The record of a key; none without a version that belongs to the run.
    async fn record(
        &mut self,
        tree: TreeId,
        chain: &Chain,
        source: &RunSource<'_>,
        run: &mut Run,
    ) -> Result<Option<Bytes>, Fatal> {
        let (mut record, mut piece) = (Vec::new(), Vec::new());
        let mut oldest: Option<&Version> = None;
        for version in chain
            .newest_first()
            .filter(|version| (source.keeps)(version))
        {
            if self.partition.store.options.loses_run_versions && oldest.is_some() {
                continue;
            }
            let elsewhere = self.elsewhere(tree, version).await?;
            let kept = match (&elsewhere, &version.value) {
                (Some(_), _) => OverflowRef::BYTES,
                (None, value) => value.as_ref().map_or(0, Bytes::len),
            };
            if piece.len() + encoded_len(kept) > RUN_PIECE_BYTES
                && let Some(oldest) = oldest
                && !piece.is_empty()
            {
                self.end_piece(tree, &mut record, &mut piece, oldest)
                    .await?;
            }
            encode_version(&mut piece, version, elsewhere);
            self.versions += 1;
            run.oldest = run.oldest.min(version.ts);
            oldest = Some(version);
        }
        match oldest {
            None => return Ok(None),
            Some(oldest) if !record.is_empty() => {
                self.end_piece(tree, &mut record, &mut piece, oldest)
                    .await?;
            }
            Some(_) => record = piece,
        }
        Ok(Some(Bytes::from(record)))
    }

    /// The newest piece is the record's own, the others lie elsewhere.
    async fn end_piece(
        &mut self,
        tree: TreeId,
        record: &mut Vec<u8>,
        piece: &mut Vec<u8>,
        oldest: &Version,
    ) -> Result<(), Fatal> {
        if record.is_empty() {
            *record = std::mem::take(piece);
            return Ok(());
        }
        let entries = self.put(tree, piece).await?;
        encode_piece(record, oldest, entries);
        piece.clear();
        Ok(())
    }

    /// Where the value of a version lies, if that is too large for a record.
    async fn elsewhere(
        &mut self,
        tree: TreeId,
        version: &Version,
    ) -> Result<Option<OverflowRef>, Fatal> {
        match &version.value {
            Some(value) if value.len() > self.partition.store.options.overflow_threshold() => {
                Ok(Some(self.put(tree, value).await?))
            }
            _ => Ok(None),
        }
    }

    async fn put(&mut self, tree: TreeId, bytes: &[u8]) -> Result<OverflowRef, Fatal> {
        let ptr = self.writer.put_overflow(tree, bytes).await?;
        let len = u32::try_from(bytes.len()).expect("values have a limit");
        Ok(OverflowRef { ptr, len })
    }
}
