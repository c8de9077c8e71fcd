//! The page file: checked reads, and writes whose failure poisons the file for good.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pinion_runtime::sync::Notify;
use pinion_runtime::{File, MappedFile, OpenOptions, fs, offload_bounded};

use super::page::{Page, PageHeader, PageKind, PagePtr, build_payload, seal};
use crate::limits::{BLOCK_BYTES, IO_BYTES};
use crate::room::is_full;
use crate::types::{Fatal, PartitionId, ReadError, TreeId};

/// Name of a partition's first page file in its directory. One that was copied from another node
/// has a number behind it.
const FILE_NAME: &str = "pages";

/// The name of the page file with this number, which roots record.
pub(crate) fn page_file_name(number: u32) -> String {
    match number {
        0 => FILE_NAME.to_owned(),
        copied => format!("{FILE_NAME}-{copied:06}"),
    }
}

/// Whether a file of a partition's directory is a page file.
pub(crate) fn is_page_file(name: &str) -> bool {
    name.strip_prefix(FILE_NAME)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// What a page file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
    /// Reading where the file is closed and stays so: pages are parts of a map of it.
    Mapped,
}

/// The open page file of one partition.
pub(crate) struct PageFile {
    file: File,
    /// The same file, where that is closed.
    mapped: Option<MappedFile>,
    path: Arc<str>,
    poisoned: RefCell<Option<Fatal>>,
    /// Writes under way, and what waits for the last of them.
    writing: Cell<usize>,
    written: Notify,
    /// Set only by a planted fault: flushing is put off.
    pub(crate) holds_syncs: Cell<bool>,
    pub(crate) bytes_read: Cell<u64>,
    pub(crate) bytes_written: Cell<u64>,
}

/// A write under way, until this is dropped.
struct Writing<'f>(&'f PageFile);

impl Writing<'_> {
    fn begin(file: &PageFile) -> Writing<'_> {
        file.writing.set(file.writing.get() + 1);
        Writing(file)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.writing.set(self.0.writing.get() - 1);
        self.0.written.notify_all();
    }
}

impl PageFile {
    /// Makes the directory and a page file of one block, its header, and makes both durable.
    pub(crate) async fn create(dir: &Path, partition: PartitionId) -> Result<PageFile, ReadError> {
        let path: Arc<str> = dir.join(page_file_name(0)).to_string_lossy().into();
        let failed =
            |error: io::Error| ReadError::Io(format!("cannot create {path}: {error}").into());
        fs::create_dir_all(dir).await.map_err(failed)?;
        let file = File::open(Path::new(&*path), OpenOptions::create().truncate())
            .await
            .map_err(failed)?;
        let header = PageHeader {
            kind: PageKind::FileHeader,
            level: 0,
            tree: TreeId::MASTER,
            checkpoint: 0,
        };
        let mut page = build_payload(header, &partition.0.to_le_bytes(), 1);
        seal(&mut page, 0, false);
        file.write_at(0, page).await.map_err(failed)?;
        file.datasync().await.map_err(failed)?;
        fs::sync_dir(dir).await.map_err(failed)?;
        // The partition's directory is an entry of the one above it, which the caller has made
        // durable.
        if let Some(above) = dir.parent() {
            fs::sync_dir(above).await.map_err(failed)?;
        }
        Ok(PageFile::new(file, None, path))
    }

    /// Opens the existing page file of this number and checks that it belongs to the partition.
    pub(crate) async fn open(
        dir: &Path,
        partition: PartitionId,
        number: u32,
        access: Access,
    ) -> Result<PageFile, ReadError> {
        let path: Arc<str> = dir.join(page_file_name(number)).to_string_lossy().into();
        let failed =
            |error: io::Error| ReadError::Io(format!("cannot open {path}: {error}").into());
        let options = match access {
            Access::Write => OpenOptions::write(),
            Access::Read | Access::Mapped => OpenOptions::read(),
        };
        let file = File::open(Path::new(&*path), options)
            .await
            .map_err(failed)?;
        let mapped = match access {
            Access::Write | Access::Read => None,
            Access::Mapped => Some(MappedFile::open(Path::new(&*path)).await.map_err(failed)?),
        };
        let this = PageFile::new(file, mapped, path);
        let bytes = this.read_bytes(0, BLOCK_BYTES).await?;
        let header = Page::parse(bytes).map_err(|what| this.corrupt(0, what))?;
        if header.kind() != PageKind::FileHeader
            || header.payload() != partition.0.to_le_bytes()[..]
        {
            return Err(this.corrupt(0, "the file belongs to another partition"));
        }
        Ok(this)
    }

    fn new(file: File, mapped: Option<MappedFile>, path: Arc<str>) -> PageFile {
        PageFile {
            file,
            mapped,
            path,
            poisoned: RefCell::new(None),
            writing: Cell::new(0),
            written: Notify::new(),
            holds_syncs: Cell::new(false),
            bytes_read: Cell::new(0),
            bytes_written: Cell::new(0),
        }
    }

    /// The error that names a place in this file.
    pub(crate) fn corrupt(&self, offset: u64, what: &str) -> ReadError {
        ReadError::Corrupt {
            file: self.path.clone(),
            offset,
            what: what.into(),
        }
    }

    /// Reads and checks one page.
    pub(crate) async fn read(&self, ptr: &PagePtr, tree: TreeId) -> Result<Page, ReadError> {
        let bytes = self.read_bytes(ptr.offset(), ptr.len()).await?;
        let loaded = if ptr.len() > IO_BYTES {
            offload_bounded(|| Page::load(bytes, ptr, tree)).await
        } else {
            Page::load(bytes, ptr, tree)
        };
        loaded.map_err(|what| self.corrupt(ptr.offset(), what))
    }

    /// Reads bytes as they are, whatever they are.
    pub(crate) async fn read_bytes(&self, offset: u64, len: usize) -> Result<Bytes, ReadError> {
        let failed = |error: io::Error| {
            ReadError::Io(format!("reading {} at {offset}: {error}", self.path).into())
        };
        self.bytes_read.set(self.bytes_read.get() + len as u64);
        if let Some(mapped) = &self.mapped {
            return mapped.read_at(offset, len).await.map_err(failed);
        }
        if len <= IO_BYTES {
            return Ok(self
                .file
                .read_at(offset, len)
                .await
                .map_err(failed)?
                .into_bytes());
        }
        let mut whole = Vec::with_capacity(len);
        while whole.len() < len {
            let part = (len - whole.len()).min(IO_BYTES);
            let bytes = self
                .file
                .read_at(offset + whole.len() as u64, part)
                .await
                .map_err(failed)?;
            whole.extend_from_slice(&bytes);
            if bytes.len() < part {
                break;
            }
        }
        Ok(Bytes::from(whole))
    }

    /// Writes parts of whole blocks one behind the other. After a failure, or when the file is
    /// closed, nothing more is written.
    pub(crate) async fn write(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), Fatal> {
        self.check()?;
        let written = self.write_parts(offset, parts).await;
        written.map_err(|error| self.poison("writing", offset, error))
    }

    /// The same of blocks that nothing on disk refers to, now or after a crash: a failure concerns
    /// these blocks alone.
    pub(crate) async fn write_volatile(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), Fatal> {
        self.check()?;
        let written = self.write_parts(offset, parts).await;
        written.map_err(|error| self.failure("writing", offset, &error))
    }

    async fn write_parts(&self, offset: u64, parts: Vec<Bytes>) -> io::Result<()> {
        let len: usize = parts.iter().map(Bytes::len).sum();
        let _writing = Writing::begin(self);
        self.file.write_parts_at(offset, parts).await?;
        self.bytes_written
            .set(self.bytes_written.get() + len as u64);
        Ok(())
    }

    /// Makes every completed write durable.
    pub(crate) async fn sync(&self) -> Result<(), Fatal> {
        self.check()?;
        if self.holds_syncs.get() {
            return Ok(());
        }
        self.file
            .datasync()
            .await
            .map_err(|error| self.poison("flushing", 0, error))
    }

    /// Makes the file at least `blocks` long.
    pub(crate) async fn allocate(&self, blocks: u64) -> io::Result<()> {
        self.file.allocate(blocks * BLOCK_BYTES as u64).await
    }

    /// The file could not be made longer. Unless that was for want of room nothing more is written.
    pub(crate) fn growth_failed(&self, blocks: u64, error: io::Error) -> Fatal {
        let len = blocks * BLOCK_BYTES as u64;
        match is_full(&error) {
            true => self.failure("growing", len, &error),
            false => self.poison("growing", len, error),
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Fails once a write has failed, or the file is closed.
    pub(crate) fn check(&self) -> Result<(), Fatal> {
        match &*self.poisoned.borrow() {
            None => Ok(()),
            Some(fatal) => Err(fatal.clone()),
        }
    }

    fn poison(&self, what: &str, offset: u64, error: io::Error) -> Fatal {
        let fatal = self.failure(what, offset, &error);
        self.poisoned.borrow_mut().get_or_insert(fatal).clone()
    }

    fn failure(&self, what: &str, offset: u64, error: &io::Error) -> Fatal {
        Fatal::new(format!("{what} {} at {offset} failed: {error}", self.path))
    }

    /// Closes the file, when the writes under way have ended. Tasks that still have something to
    /// write, such as history for snapshots, fail: the directory may be opened again in this
    /// process, and the blocks that they write to are free then.
    pub(crate) async fn close(&self) {
        let closed = || Fatal::new(format!("{} is closed", self.path));
        self.poisoned.borrow_mut().get_or_insert_with(closed);
        while self.writing.get() > 0 {
            self.written.notified().await;
        }
        // Nothing is lost by a failing close: whatever counts was flushed before.
        let _ = self.file.clone().close().await;
    }
}
