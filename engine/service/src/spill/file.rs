//! The file of one machine that spills.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use pinion_query::{DiskReply, DiskRequest, DiskSorter, Place, Spilled, Spiller};
use pinion_runtime::{ALIGN, DmaBuf, File, LocalBoxFuture, OpenOptions, Queue, fs};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::memory::{NodeMemory, node_memory};
use crate::compute::compute;
use crate::interrupt::{check, pause};
use crate::limits::{SPILL_SPACE_STEP_BYTES, SPILL_TRANSFER_BYTES};
use crate::metrics::metrics;
use crate::parameters::parameters;

/// Code of an error while a spilled block is read or written, as MongoDB's sorter has them.
const READ_FAILED: ErrorCode = ErrorCode(16817);
const WRITE_FAILED: ErrorCode = ErrorCode(16821);

/// Where operations of this core spill.
pub struct SpillFiles {
    data: PathBuf,
    /// Numbers the files.
    made: Cell<u64>,
}

impl SpillFiles {
    /// Files are made below this directory; free space is left there to what else it holds.
    pub fn new(data: PathBuf) -> SpillFiles {
        SpillFiles {
            data,
            made: Cell::new(0),
        }
    }

    fn next_number(&self) -> u64 {
        self.made.set(self.made.get() + 1);
        self.made.get()
    }
}

fn spill_files() -> Rc<SpillFiles> {
    pinion_runtime::core_local()
}

/// Where spill files are made, as those of index builds are: a start removes what it finds there.
fn directory(data: &Path) -> PathBuf {
    data.join("_tmp")
}

/// What an operation has spilled in one place, which is gone when this is dropped: the file loses
/// its name at once, so that nothing is left of it when the node ends, however it ends.
#[derive(Default)]
pub struct SpillFile {
    file: Option<File>,
    end: u64,
    counts: SpillCounts,
}

/// What was spilled in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillCounts {
    /// How often memory was emptied.
    pub spills: u64,
    pub records: u64,
    /// Bytes of the records, and the room that they took.
    pub bytes: u64,
    pub storage_bytes: u64,
}

impl SpillCounts {
    /// Adds what was spilled elsewhere.
    pub fn add(&mut self, other: &SpillCounts) {
        self.spills += other.spills;
        self.records += other.records;
        self.bytes += other.bytes;
        self.storage_bytes += other.storage_bytes;
    }
}

impl SpillFile {
    /// Performs what a sorter asks for, until it asks for nothing more.
    pub fn serve<'a, T: Spilled + Send>(
        &'a mut self,
        ctx: &'a OpContext,
        sorter: &'a mut DiskSorter<T>,
    ) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            loop {
                pause(ctx).await?;
                let Some(request) = compute(ctx, || sorter.request()).await? else {
                    return Ok(());
                };
                let reply = self.perform(ctx, request).await?;
                sorter.reply(reply)?;
            }
        })
    }

    /// Does what a machine asked for.
    pub fn perform<'a>(
        &'a mut self,
        ctx: &'a OpContext,
        request: DiskRequest,
    ) -> LocalBoxFuture<'a, Result<DiskReply>> {
        Box::pin(async move {
            check(ctx)?;
            match request {
                DiskRequest::Read(place) => Ok(DiskReply::Read(self.read(place).await?)),
                DiskRequest::Write {
                    block,
                    records,
                    spills,
                    begins,
                    by,
                } => {
                    let before = self.end;
                    let place = self.append(&block).await?;
                    if spills {
                        let counts = SpillCounts {
                            spills: u64::from(begins),
                            records,
                            bytes: block.len() as u64,
                            storage_bytes: self.end - before,
                        };
                        self.counts.add(&counts);
                        count(by, &counts);
                        ctx.work().spilled();
                    }
                    Ok(DiskReply::Written(place))
                }
            }
        })
    }

    /// What was spilled since this was asked last.
    pub fn take_counts(&mut self) -> SpillCounts {
        std::mem::take(&mut self.counts)
    }

    async fn append(&mut self, block: &[u8]) -> Result<Place> {
        let bytes = block.len().next_multiple_of(ALIGN) as u64;
        let files = spill_files();
        if self.end.is_multiple_of(SPILL_SPACE_STEP_BYTES)
            || self.end / SPILL_SPACE_STEP_BYTES != (self.end + bytes) / SPILL_SPACE_STEP_BYTES
        {
            check_space(&files.data).await?;
        }
        let file = match &self.file {
            Some(file) => file.clone(),
            None => {
                let made = make(&files).await.map_err(failed)?;
                self.file.insert(made).clone()
            }
        };
        node_memory().spill(bytes)?;
        let place = Place {
            offset: self.end,
            bytes: block.len() as u32,
            checksum: checksum(block),
        };
        // Counted before it is written: what fails halfway has taken room too.
        self.end += bytes;
        let mut at = place.offset;
        for part in block.chunks(SPILL_TRANSFER_BYTES) {
            let written = file.write_at(at, DmaBuf::padded_copy(part)).await;
            written.map_err(failed)?;
            at += part.len().next_multiple_of(ALIGN) as u64;
        }
        Ok(place)
    }

    async fn read(&self, place: Place) -> Result<Bytes> {
        let file = self.file.clone().expect("something was written");
        let unreadable =
            |why: &str| Error::new(READ_FAILED, format!("error reading spilled data: {why}"));
        let length = place.bytes as usize;
        let mut parts = Vec::new();
        for at in (0..length).step_by(SPILL_TRANSFER_BYTES) {
            let part = (length - at).min(SPILL_TRANSFER_BYTES);
            let read = file.read_at(place.offset + at as u64, part.next_multiple_of(ALIGN));
            let buffer = read.await.map_err(|error| unreadable(&error.to_string()))?;
            if buffer.len() < part {
                return Err(unreadable("the file is too short"));
            }
            parts.push(buffer.into_bytes().slice(..part));
        }
        let block = match parts.pop() {
            Some(last) if parts.is_empty() => last,
            last => {
                parts.extend(last);
                Bytes::from(parts.concat())
            }
        };
        if checksum(&block) != place.checksum {
            return Err(unreadable("its checksum does not match"));
        }
        Ok(block)
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else {
            return;
        };
        // Where no node is open any more the files are released with the process.
        let Some(memory) = pinion_runtime::try_core_local::<NodeMemory>() else {
            return;
        };
        let bytes = self.end;
        pinion_runtime::spawn(Queue::Background, async move {
            // To free a large file may take long, which it does here where it holds no core.
            let _ = file.set_len(0).await;
            let _ = file.close().await;
            memory.free(bytes);
        });
    }
}

fn checksum(block: &[u8]) -> u32 {
    crc32c::crc32c(block)
}

/// Makes a file that has no name.
fn make(files: &SpillFiles) -> LocalBoxFuture<'_, io::Result<File>> {
    Box::pin(async move {
        let directory = directory(&files.data);
        fs::create_dir_all(&directory).await?;
        let path = directory.join(format!(
            "spill-{}-{}",
            pinion_runtime::core_id().0,
            files.next_number()
        ));
        let file = File::open(&path, OpenOptions::create().truncate()).await?;
        fs::remove_file(&path).await?;
        Ok(file)
    })
}

/// Refuses to spill where the disk is nearly full: what is left belongs to the data.
async fn check_space(data: &Path) -> Result<()> {
    let least = parameters().borrow().spilling_min_available_bytes;
    let Ok(space) = fs::space(data).await else {
        return Ok(());
    };
    if space.free_bytes >= least as u64 {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::OUT_OF_DISK_SPACE,
        format!(
            "Failed to spill to disk: the available disk space of {} bytes is less than the minimum of {least} bytes \
             (internalQuerySpillingMinAvailableDiskSpaceBytes)",
            space.free_bytes
        ),
    ))
}

fn failed(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::StorageFull {
        return Error::new(
            ErrorCode::OUT_OF_DISK_SPACE,
            format!("Failed to spill to disk: {error}"),
        );
    }
    Error::new(WRITE_FAILED, format!("error writing spilled data: {error}"))
}

/// Counts for `serverStatus`.
fn count(by: Spiller, counts: &SpillCounts) {
    let metrics = metrics();
    let counters = &metrics.counters;
    let [spills, records, bytes, storage_bytes] = match by {
        Spiller::Sort => [
            &counters.sort_spills,
            &counters.sort_spilled_records,
            &counters.sort_spilled_bytes,
            &counters.sort_spilled_storage_bytes,
        ],
        Spiller::Group => [
            &counters.group_spills,
            &counters.group_spilled_records,
            &counters.group_spilled_bytes,
            &counters.group_spilled_storage_bytes,
        ],
        Spiller::BucketAuto => [
            &counters.bucket_auto_spills,
            &counters.bucket_auto_spilled_records,
            &counters.bucket_auto_spilled_bytes,
            &counters.bucket_auto_spilled_storage_bytes,
        ],
        Spiller::WindowFields => [
            &counters.window_fields_spills,
            &counters.window_fields_spilled_records,
            &counters.window_fields_spilled_bytes,
            &counters.window_fields_spilled_storage_bytes,
        ],
    };
    spills.add(counts.spills);
    records.add(counts.records);
    bytes.add(counts.bytes);
    storage_bytes.add(counts.storage_bytes);
}
