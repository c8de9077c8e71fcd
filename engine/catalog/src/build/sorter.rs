//! Sorts the entries of one index in one partition, in a bounded part of memory and beyond that in
//! files.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;

use pinion_runtime::sync::Semaphore;
use pinion_wire::Result;

use super::chunk::{Chunk, Merge};
use super::run_file::RunFile;
use crate::limits::{MAX_SORTED_RUNS, RUN_BLOCK_BYTES};

pub(super) struct Sorter {
    /// Where files are made, and what their names begin with.
    path: PathBuf,
    most_bytes: usize,
    chunks: RefCell<Vec<Chunk>>,
    bytes: Cell<usize>,
    runs: RefCell<Vec<RunFile>>,
    made: Cell<u64>,
    /// Several scans add to it; one of them at a time writes.
    turn: Semaphore,
}

impl Sorter {
    pub(super) fn new(path: PathBuf, most_bytes: usize) -> Sorter {
        Sorter {
            path,
            most_bytes,
            chunks: RefCell::default(),
            bytes: Cell::new(0),
            runs: RefCell::default(),
            made: Cell::new(0),
            turn: Semaphore::new(1),
        }
    }

    /// Adds a sorted chunk. Whoever adds waits while memory is full.
    pub(super) async fn add(&self, chunk: Chunk) -> Result<()> {
        let _turn = self.turn.acquire().await;
        self.bytes.set(self.bytes.get() + chunk.memory());
        self.chunks.borrow_mut().push(chunk);
        if self.bytes.get() > self.most_bytes {
            self.bytes.set(0);
            let chunks = self.chunks.take();
            self.write(Merge::new(chunks, Vec::new()).await?).await?;
            if self.runs.borrow().len() >= MAX_SORTED_RUNS {
                let runs = self.runs.take();
                let readers = runs.iter().map(RunFile::read).collect();
                self.write(Merge::new(Vec::new(), readers).await?).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, mut merge: Merge) -> Result<()> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("-{}", self.made.replace(self.made.get() + 1)));
        let mut run = RunFile::create(path.as_ref()).await?;
        while let Some(chunk) = merge.next(RUN_BLOCK_BYTES).await? {
            run.append(&chunk).await?;
        }
        pinion_runtime::sim::event("index build spills");
        self.runs.borrow_mut().push(run);
        Ok(())
    }

    /// All entries in their order.
    pub(super) async fn sorted(&self) -> Result<Merge> {
        let _turn = self.turn.acquire().await;
        let runs = self.runs.take();
        let readers = runs.iter().map(RunFile::read).collect();
        Merge::new(self.chunks.take(), readers).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_runtime::{Rng, fs, sim};

    /// Sorts so many entries, of which each key is there twice, with so much memory.
    #[track_caller]
    fn check(entries: u64, most_bytes: usize, spills: bool) {
        sim::block_on(1, async move {
            fs::create_dir_all("/tmp/sorter")
                .await
                .expect("a directory");
            let sorter = Sorter::new(PathBuf::from("/tmp/sorter/s"), most_bytes);
            let mut rng = Rng::from_seed(entries);
            let mut chunk = Chunk::default();
            let mut expected = std::collections::BTreeSet::new();
            for n in 0..entries {
                let key = format!(
                    "{:05}{}",
                    rng.below(entries / 2),
                    "k".repeat(n as usize % 40)
                );
                chunk.push(key.as_bytes(), &[7; 3]);
                expected.insert(key);
                if n % 50 == 49 || n + 1 == entries {
                    chunk.sort();
                    sorter.add(std::mem::take(&mut chunk)).await.expect("added");
                }
            }
            assert_eq!(sorter.made.get() > 0, spills);
            assert_eq!(fs::read_dir("/tmp/sorter").await.expect("there"), [""; 0]);
            let mut merge = sorter.sorted().await.expect("sorted");
            let mut found = Vec::new();
            while let Some(part) = merge.next(5000).await.expect("read") {
                for (key, value) in part.into_records() {
                    assert_eq!(value[..], [7; 3]);
                    found.push(String::from_utf8(key.to_vec()).expect("text"));
                }
            }
            assert!(
                found.iter().eq(&expected),
                "{entries} entries in {most_bytes} bytes"
            );
        });
    }

    #[test]
    fn memory_or_files() {
        check(2_000, 1 << 20, false);
        check(2_000, 10_000, true);
        // So many runs that they are merged.
        check(20_000, 3_000, true);
    }
}
