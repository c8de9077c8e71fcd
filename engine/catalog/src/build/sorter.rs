//! Sorts the entries of one index in one partition, in a bounded part of memory and beyond that in
//! files.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use pinion_runtime::sync::Semaphore;
use pinion_wire::Result;

use super::chunk::{Chunk, Merge};
use super::run_file::RunFile;
use super::state::RunState;
use crate::limits::{MAX_SORTED_RUNS, RUN_BLOCK_BYTES};

pub(super) struct Sorter {
    /// Where files are made, and what their names begin with.
    path: PathBuf,
    most_bytes: usize,
    chunks: RefCell<Vec<Rc<Chunk>>>,
    bytes: Cell<usize>,
    runs: RefCell<Vec<RunFile>>,
    /// The number of the next file.
    next_run: Cell<u64>,
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
            next_run: Cell::new(0),
            turn: Semaphore::new(1),
        }
    }

    /// A sorter with the runs that a process before this one has kept.
    ///
    /// # Errors
    /// A file is missing, or too short.
    pub(super) async fn open(
        path: PathBuf,
        most_bytes: usize,
        kept: &[RunState],
    ) -> Result<Sorter> {
        let sorter = Sorter::new(path, most_bytes);
        let mut runs = Vec::with_capacity(kept.len());
        for run in kept {
            runs.push(RunFile::open(sorter.path_of(run.number), run.clone()).await?);
            sorter
                .next_run
                .set(sorter.next_run.get().max(run.number + 1));
        }
        sorter.runs.replace(runs);
        Ok(sorter)
    }

    /// Adds a sorted chunk. The caller waits while memory is full.
    pub(super) async fn add(&self, chunk: Chunk) -> Result<()> {
        let _turn = self.turn.acquire().await;
        self.bytes.set(self.bytes.get() + chunk.memory());
        self.chunks.borrow_mut().push(Rc::new(chunk));
        if self.bytes.get() > self.most_bytes {
            self.spill().await?;
            if self.runs.borrow().len() >= MAX_SORTED_RUNS {
                self.merge_runs().await?;
            }
        }
        Ok(())
    }

    /// Writes what is in memory as a run.
    async fn spill(&self) -> Result<()> {
        let chunks = self.chunks.take();
        self.bytes.set(0);
        let run = self.write(Merge::new(chunks, Vec::new()).await?).await?;
        self.runs.borrow_mut().push(run);
        Ok(())
    }

    async fn merge_runs(&self) -> Result<()> {
        let runs = self.runs.take();
        let readers = runs.iter().map(RunFile::read).collect();
        let merged = match Merge::new(Vec::new(), readers).await {
            Ok(merge) => self.write(merge).await,
            Err(error) => Err(error),
        };
        for run in runs {
            run.remove().await;
        }
        self.runs.borrow_mut().push(merged?);
        Ok(())
    }

    async fn write(&self, mut merge: Merge) -> Result<RunFile> {
        let number = self.next_run.replace(self.next_run.get() + 1);
        let mut run = RunFile::create(self.path_of(number), number).await?;
        let filled = async {
            while let Some(chunk) = merge.next(RUN_BLOCK_BYTES).await? {
                run.append(&chunk).await?;
            }
            Ok(())
        };
        if let Err(error) = filled.await {
            run.remove().await;
            return Err(error);
        }
        pinion_runtime::sim::event("index build spills");
        Ok(run)
    }

    fn path_of(&self, run: u64) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("-{run}"));
        path.into()
    }

    /// All entries in their order. They stay here: a build that is stopped while they are read
    /// begins to read them again.
    pub(super) async fn sorted(&self) -> Result<Merge> {
        let _turn = self.turn.acquire().await;
        let readers = self.runs.borrow().iter().map(RunFile::read).collect();
        let chunks = self.chunks.borrow().clone();
        Merge::new(chunks, readers).await
    }

    /// Brings everything into files, and makes them durable but for their names.
    pub(super) async fn keep(&self) -> Result<Vec<RunState>> {
        let _turn = self.turn.acquire().await;
        if !self.chunks.borrow().is_empty() {
            self.spill().await?;
        }
        let runs = self.runs.take();
        let mut kept = Vec::with_capacity(runs.len());
        for run in &runs {
            match run.keep().await {
                Ok(run) => kept.push(run),
                Err(error) => {
                    self.runs.replace(runs);
                    return Err(error);
                }
            }
        }
        self.runs.replace(runs);
        Ok(kept)
    }

    /// Removes the files, and forgets all entries.
    pub(super) async fn forget(&self) {
        let _turn = self.turn.acquire().await;
        self.chunks.take();
        for run in self.runs.take() {
            run.remove().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use pinion_runtime::{Rng, fs, sim};
    use pinion_wire::ErrorCode;

    const DIR: &str = "/tmp/sorter";

    async fn sorter(most_bytes: usize) -> Sorter {
        fs::create_dir_all(DIR).await.expect("a directory");
        Sorter::new(PathBuf::from(DIR).join("s"), most_bytes)
    }

    /// Adds as many entries, of which each key is there twice; gives the keys.
    async fn add(sorter: &Sorter, entries: u64) -> BTreeSet<String> {
        let mut rng = Rng::from_seed(entries);
        let mut chunk = Chunk::default();
        let mut expected = BTreeSet::new();
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
        expected
    }

    async fn read(sorter: &Sorter) -> Result<Vec<String>> {
        let mut merge = sorter.sorted().await?;
        let mut found = Vec::new();
        while let Some(part) = merge.next(5000).await? {
            for (key, value) in part.into_records() {
                assert_eq!(value[..], [7; 3]);
                found.push(String::from_utf8(key.to_vec()).expect("text"));
            }
        }
        Ok(found)
    }

    async fn files() -> Vec<String> {
        fs::read_dir(DIR).await.expect("there")
    }

    /// Sorts as many entries with as much memory.
    #[track_caller]
    fn check(entries: u64, most_bytes: usize, spills: bool) {
        sim::block_on(1, async move {
            let sorter = sorter(most_bytes).await;
            let expected = add(&sorter, entries).await;
            assert_eq!(sorter.next_run.get() > 0, spills);
            assert_eq!(!files().await.is_empty(), spills);
            // Once more: reading takes nothing away.
            for _ in 0..2 {
                let found = read(&sorter).await.expect("read");
                assert!(
                    found.iter().eq(&expected),
                    "{entries} entries in {most_bytes} bytes"
                );
            }
            sorter.forget().await;
            assert_eq!(files().await, [""; 0]);
        });
    }

    #[test]
    fn memory_or_files() {
        check(2_000, 1 << 20, false);
        check(2_000, 10_000, true);
        // Enough runs that they are merged.
        check(20_000, 3_000, true);
    }

    /// What was kept is read by another sorter, which may be given more.
    #[track_caller]
    fn check_kept(entries: u64, most_bytes: usize) {
        sim::block_on(1, async move {
            let first = sorter(most_bytes).await;
            let mut expected = add(&first, entries).await;
            let kept = first.keep().await.expect("kept");
            let numbers: BTreeSet<u64> = kept.iter().map(|run| run.number).collect();
            assert_eq!(numbers.len(), kept.len());
            assert_eq!(files().await.len(), kept.len());
            drop(first);
            let path = PathBuf::from(DIR).join("s");
            let second = Sorter::open(path.clone(), most_bytes, &kept).await;
            let second = second.expect("the files are there");
            expected.extend(add(&second, entries / 2).await);
            let found = read(&second).await.expect("read");
            assert!(found.iter().eq(&expected), "{entries} in {most_bytes}");
            second.forget().await;
            assert_eq!(files().await, [""; 0]);
            let gone = Sorter::open(path, most_bytes, &kept).await;
            assert!(gone.is_err(), "a missing file is noticed");
        });
    }

    #[test]
    fn kept_runs_are_continued() {
        check_kept(2_000, 1 << 20);
        check_kept(2_000, 10_000);
    }

    #[test]
    fn damage_of_kept_runs_is_noticed() {
        sim::block_on(1, async {
            let first = sorter(10_000).await;
            add(&first, 2_000).await;
            let kept = first.keep().await.expect("kept");
            let path = first.path_of(kept[0].number);
            drop(first);
            let file = pinion_runtime::File::open(&path, pinion_runtime::OpenOptions::write());
            let file = file.await.expect("it is there");
            let mut block = file.read_at(0, pinion_runtime::ALIGN).await.expect("read");
            block[100] ^= 4;
            file.write_at(0, block).await.expect("written");
            let path = PathBuf::from(DIR).join("s");
            let second = Sorter::open(path.clone(), 10_000, &kept)
                .await
                .expect("long enough");
            let error = read(&second).await.expect_err("its checksum is wrong");
            assert_eq!(error.code, ErrorCode::DATA_CORRUPTION_DETECTED);
            file.set_len(0).await.expect("cut");
            assert!(Sorter::open(path, 10_000, &kept).await.is_err());
        });
    }
}
