//! The simulated disk of a node: what its operating system sees, what is durable, and what lies
//! between.
//!
//! A file is a map of blocks of [`ALIGN`] bytes. For each block written since the last flush the
//! disk keeps every content it had, so that a power cut can leave any of them, sector by sector
//! (see `crash`). A directory keeps its durable names and a log of the changes since it was synced,
//! of which a power cut leaves a prefix.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};

use bytes::Bytes;

use super::options::DiskFaults;
use crate::dma::DmaBuf;
use crate::limits::ALIGN;
use crate::random::Rng;

const BLOCK: u64 = ALIGN as u64;

/// A kind of disk operation, for faults that are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOp {
    Read,
    Write,
    Sync,
}

pub(super) type InodeId = u64;

/// The content of one block; `None` is zeros.
pub(super) type Block = Option<Bytes>;

#[derive(Default)]
pub(super) struct FileData {
    /// The path by which it was last opened or renamed, for faults and messages.
    pub(super) path: String,
    pub(super) current: BTreeMap<u64, Bytes>,
    pub(super) durable: BTreeMap<u64, Bytes>,
    /// For each block changed since the last flush, the contents it was given, each with the number
    /// of its change.
    pub(super) unsynced: BTreeMap<u64, Vec<(u64, Block)>>,
    pub(super) len: u64,
    pub(super) durable_len: u64,
    pub(super) unsynced_lens: Vec<(u64, u64)>,
    /// Blocks that count against the disk's capacity.
    pub(super) reserved_blocks: u64,
    handles: usize,
}

#[derive(Default)]
pub(super) struct Directory {
    pub(super) names: BTreeMap<String, InodeId>,
    pub(super) durable: BTreeMap<String, InodeId>,
    pub(super) unsynced: Vec<NameChange>,
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Link(String, InodeId),
    Unlink(String),
    Rename(String, String),
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, InodeId>) {
        match self {
            NameChange::Link(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Unlink(name) => {
                names.remove(name);
            }
            NameChange::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
        }
    }
}

pub(super) enum Inode {
    File(FileData),
    Directory(Directory),
}

/// A write between submission and completion.
pub(super) struct PendingWrite {
    pub(super) inode: InodeId,
    pub(super) offset: u64,
    pub(super) data: Bytes,
}

struct PlannedFailure {
    op: DiskOp,
    path_contains: String,
    remaining: u64,
}

pub(super) struct Disk {
    pub(super) inodes: BTreeMap<InodeId, Inode>,
    next_inode: InodeId,
    /// Numbers changes and submissions in the order in which they happen.
    change: u64,
    pub(super) pending: BTreeMap<u64, PendingWrite>,
    pub(super) capacity: u64,
    pub(super) faults: DiskFaults,
    planned: Vec<PlannedFailure>,
    locks: Vec<InodeId>,
}

pub(super) const ROOT: InodeId = 0;

fn not_found(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("{}: no such file or directory", path.display()),
    )
}

pub(super) fn io_error(what: &str) -> io::Error {
    io::Error::other(format!("simulated I/O error: {what}"))
}

fn components(path: &Path) -> io::Result<Vec<&str>> {
    let invalid = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{}: not a plain path", path.display()),
        )
    };
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_str().ok_or_else(invalid)?),
            Component::ParentDir | Component::Prefix(_) => return Err(invalid()),
        }
    }
    Ok(names)
}

impl Disk {
    pub(super) fn new(capacity: u64) -> Disk {
        Disk {
            inodes: BTreeMap::from([(ROOT, Inode::Directory(Directory::default()))]),
            next_inode: ROOT + 1,
            change: 0,
            pending: BTreeMap::new(),
            capacity,
            faults: DiskFaults::default(),
            planned: Vec::new(),
            locks: Vec::new(),
        }
    }

    /// Leaves nothing on it.
    pub(super) fn wipe(&mut self) {
        self.release_process();
        self.inodes = BTreeMap::from([(ROOT, Inode::Directory(Directory::default()))]);
    }

    fn next_change(&mut self) -> u64 {
        self.change += 1;
        self.change
    }

    // Names.

    fn directory(&self, inode: InodeId) -> Option<&Directory> {
        match self.inodes.get(&inode) {
            Some(Inode::Directory(directory)) => Some(directory),
            _ => None,
        }
    }

    fn directory_mut(&mut self, inode: InodeId) -> &mut Directory {
        match self.inodes.get_mut(&inode) {
            Some(Inode::Directory(directory)) => directory,
            _ => panic!("inode {inode} is not a directory"),
        }
    }

    pub(super) fn file(&self, inode: InodeId) -> &FileData {
        match self.inodes.get(&inode) {
            Some(Inode::File(file)) => file,
            _ => panic!("inode {inode} is not a file"),
        }
    }

    pub(super) fn file_mut(&mut self, inode: InodeId) -> &mut FileData {
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(file)) => file,
            _ => panic!("inode {inode} is not a file"),
        }
    }

    pub(super) fn lookup(&self, path: &Path) -> io::Result<InodeId> {
        let mut inode = ROOT;
        for name in components(path)? {
            let directory = self.directory(inode).ok_or_else(|| not_found(path))?;
            inode = *directory.names.get(name).ok_or_else(|| not_found(path))?;
        }
        Ok(inode)
    }

    pub(super) fn lookup_file(&self, path: &Path) -> io::Result<InodeId> {
        let inode = self.lookup(path)?;
        match self.inodes[&inode] {
            Inode::File(_) => Ok(inode),
            Inode::Directory(_) => Err(io::Error::new(
                io::ErrorKind::IsADirectory,
                format!("{}: is a directory", path.display()),
            )),
        }
    }

    fn lookup_directory(&self, path: &Path) -> io::Result<InodeId> {
        let inode = self.lookup(path)?;
        match self.inodes[&inode] {
            Inode::Directory(_) => Ok(inode),
            Inode::File(_) => {
                let message = format!("{}: not a directory", path.display());
                Err(io::Error::new(io::ErrorKind::NotADirectory, message))
            }
        }
    }

    /// The directory that holds `path`, and the name in it.
    fn parent(&self, path: &Path) -> io::Result<(InodeId, String)> {
        let name = components(path)?
            .pop()
            .ok_or_else(|| not_found(path))?
            .to_owned();
        let parent = self.lookup_directory(path.parent().unwrap_or(Path::new("/")))?;
        Ok((parent, name))
    }

    fn link(&mut self, directory: InodeId, name: String, inode: Inode) -> InodeId {
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, inode);
        self.change_name(directory, NameChange::Link(name, id));
        id
    }

    fn change_name(&mut self, directory: InodeId, change: NameChange) {
        let directory = self.directory_mut(directory);
        change.apply(&mut directory.names);
        directory.unsynced.push(change);
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut inode = ROOT;
        for name in components(path)? {
            let directory = self.directory(inode).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::NotADirectory,
                    format!("{}: not a directory", path.display()),
                )
            })?;
            inode = match directory.names.get(name) {
                Some(existing) => *existing,
                None => self.link(
                    inode,
                    name.to_owned(),
                    Inode::Directory(Directory::default()),
                ),
            };
        }
        self.lookup_directory(path).map(|_| ())
    }

    pub(super) fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let inode = self.lookup_directory(path)?;
        Ok(self
            .directory(inode)
            .expect("just looked up")
            .names
            .keys()
            .cloned()
            .collect())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.lookup_file(path)?;
        let (parent, name) = self.parent(path)?;
        self.change_name(parent, NameChange::Unlink(name));
        if self.file(inode).handles == 0 {
            self.file_mut(inode).reserved_blocks = 0;
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let inode = self.lookup_file(from)?;
        let (parent, from_name) = self.parent(from)?;
        let (_, to_name) = self.parent(to)?;
        if let Ok(replaced) = self.lookup_file(to)
            && replaced != inode
            && self.file(replaced).handles == 0
        {
            self.file_mut(replaced).reserved_blocks = 0;
        }
        self.file_mut(inode).path = to.display().to_string();
        self.change_name(parent, NameChange::Rename(from_name, to_name));
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.lookup_directory(path)?;
        let directory = self.directory_mut(inode);
        directory.unsynced.clear();
        directory.durable.clone_from(&directory.names);
        self.forget_unreachable();
        Ok(())
    }

    pub(super) fn lock(&mut self, path: &Path) -> io::Result<InodeId> {
        let inode = self.lookup_directory(path)?;
        if self.locks.contains(&inode) {
            let message = format!("{}: locked by another process", path.display());
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        self.locks.push(inode);
        Ok(inode)
    }

    pub(super) fn unlock(&mut self, inode: InodeId) {
        self.locks.retain(|locked| *locked != inode);
    }

    /// Closes what the life that ended had open.
    pub(super) fn release_process(&mut self) {
        self.locks.clear();
        self.pending.clear();
        for inode in self.inodes.values_mut() {
            if let Inode::File(file) = inode {
                file.handles = 0;
            }
        }
        self.forget_unreachable();
    }

    /// Drops the files that neither a name, durable or not, nor a handle leads to.
    fn forget_unreachable(&mut self) {
        let mut reachable = std::collections::BTreeSet::from([ROOT]);
        let mut visit = vec![ROOT];
        while let Some(inode) = visit.pop() {
            let Some(directory) = self.directory(inode) else {
                continue;
            };
            let logged = directory.unsynced.iter().filter_map(|change| match change {
                NameChange::Link(_, inode) => Some(inode),
                NameChange::Unlink(_) | NameChange::Rename(..) => None,
            });
            for child in directory
                .names
                .values()
                .chain(directory.durable.values())
                .chain(logged)
            {
                if reachable.insert(*child) {
                    visit.push(*child);
                }
            }
        }
        let pending: Vec<InodeId> = self.pending.values().map(|write| write.inode).collect();
        self.inodes.retain(|id, inode| {
            let open = matches!(inode, Inode::File(file) if file.handles > 0);
            reachable.contains(id) || open || pending.contains(id)
        });
    }

    // Files.

    pub(super) fn open(
        &mut self,
        path: &Path,
        options: &crate::file::OpenOptions,
    ) -> io::Result<InodeId> {
        let inode = match self.lookup_file(path) {
            Ok(_) if options.create_new => {
                let message = format!("{}: exists already", path.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            Ok(inode) => inode,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && (options.create || options.create_new) =>
            {
                let (parent, name) = self.parent(path)?;
                self.link(parent, name, Inode::File(FileData::default()))
            }
            Err(error) => return Err(error),
        };
        let file = self.file_mut(inode);
        file.path = path.display().to_string();
        file.handles += 1;
        if options.truncate {
            self.set_len(inode, 0)
                .expect("cutting a file needs no space");
        }
        Ok(inode)
    }

    pub(super) fn close(&mut self, inode: InodeId) {
        if let Some(Inode::File(file)) = self.inodes.get_mut(&inode) {
            assert!(file.handles > 0, "a file was closed more often than opened");
            file.handles -= 1;
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let blocks: u64 = self
            .inodes
            .values()
            .map(|inode| match inode {
                Inode::File(file) => file.reserved_blocks,
                Inode::Directory(_) => 0,
            })
            .sum();
        blocks * BLOCK
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.capacity.saturating_sub(self.used_bytes())
    }

    /// Makes room for the first `len` bytes of a file.
    pub(super) fn reserve(&mut self, inode: InodeId, len: u64) -> io::Result<()> {
        let wanted = len.div_ceil(BLOCK);
        let reserved = self.file(inode).reserved_blocks;
        if wanted > reserved {
            if (wanted - reserved) * BLOCK > self.free_bytes() {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "simulated disk is full",
                ));
            }
            self.file_mut(inode).reserved_blocks = wanted;
        }
        Ok(())
    }

    fn change_len(&mut self, inode: InodeId, len: u64) {
        let change = self.next_change();
        let file = self.file_mut(inode);
        file.len = len;
        file.unsynced_lens.push((change, len));
    }

    pub(super) fn extend(&mut self, inode: InodeId, len: u64) -> io::Result<()> {
        self.reserve(inode, len)?;
        if len > self.file(inode).len {
            self.change_len(inode, len);
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, inode: InodeId, len: u64) -> io::Result<()> {
        if len >= self.file(inode).len {
            // A file that is extended so is sparse: the space is taken when it is written.
            self.change_len(inode, len);
            return Ok(());
        }
        let change = self.next_change();
        let file = self.file_mut(inode);
        let cut = file.current.split_off(&len.div_ceil(BLOCK));
        for block in cut.into_keys() {
            file.unsynced.entry(block).or_default().push((change, None));
        }
        let tail = len % BLOCK;
        if tail != 0
            && let Some(last) = file.current.get_mut(&(len / BLOCK))
        {
            let mut shortened = last.to_vec();
            shortened[tail as usize..].fill(0);
            *last = Bytes::from(shortened);
            file.unsynced
                .entry(len / BLOCK)
                .or_default()
                .push((change, Some(last.clone())));
        }
        file.reserved_blocks = file.reserved_blocks.min(len.div_ceil(BLOCK));
        self.change_len(inode, len);
        Ok(())
    }

    pub(super) fn read(&self, inode: InodeId, offset: u64, len: usize) -> DmaBuf {
        let file = self.file(inode);
        let exists = file.len.saturating_sub(offset).min(len as u64) as usize;
        let mut buffer = DmaBuf::zeroed(len);
        for (index, chunk) in buffer[..exists.next_multiple_of(ALIGN).min(len)]
            .chunks_mut(ALIGN)
            .enumerate()
        {
            if let Some(block) = file.current.get(&(offset / BLOCK + index as u64)) {
                chunk.copy_from_slice(&block[..chunk.len()]);
            }
        }
        buffer.truncate(exists);
        buffer
    }

    /// Notes a write that was handed over; it takes effect at its completion.
    pub(super) fn submit_write(
        &mut self,
        inode: InodeId,
        offset: u64,
        data: Bytes,
    ) -> io::Result<u64> {
        self.reserve(inode, offset + data.len() as u64)?;
        let submission = self.next_change();
        self.pending.insert(
            submission,
            PendingWrite {
                inode,
                offset,
                data,
            },
        );
        Ok(submission)
    }

    /// Completes a write; `keep` says for each sector whether it reaches the disk, all of them when
    /// it succeeds.
    pub(super) fn complete_write(
        &mut self,
        submission: u64,
        keep: Option<&mut dyn FnMut() -> bool>,
    ) -> PendingWrite {
        let write = self
            .pending
            .remove(&submission)
            .expect("a write completes once");
        match keep {
            None => self.apply_write(&write),
            Some(keep) => self.apply_sectors(&write, keep),
        }
        write
    }

    fn apply_write(&mut self, write: &PendingWrite) {
        let change = self.next_change();
        let file = self.file_mut(write.inode);
        for (index, start) in (0..write.data.len()).step_by(ALIGN).enumerate() {
            let block = write.offset / BLOCK + index as u64;
            let content = write.data.slice(start..start + ALIGN);
            file.current.insert(block, content.clone());
            file.unsynced
                .entry(block)
                .or_default()
                .push((change, Some(content)));
        }
        let end = write.offset + write.data.len() as u64;
        if end > file.len {
            self.change_len(write.inode, end);
        }
    }

    /// Applies a part of a write: the sectors that `keep` chooses.
    pub(super) fn apply_sectors(&mut self, write: &PendingWrite, keep: &mut dyn FnMut() -> bool) {
        let old = self.read_blocks(write.inode, write.offset, write.data.len());
        let mut mixed = old;
        for (sector, new) in mixed
            .chunks_mut(super::crash::SECTOR)
            .zip(write.data.chunks(super::crash::SECTOR))
        {
            if keep() {
                sector.copy_from_slice(new);
            }
        }
        let torn = PendingWrite {
            inode: write.inode,
            offset: write.offset,
            data: Bytes::from(mixed),
        };
        self.apply_write(&torn);
    }

    fn read_blocks(&self, inode: InodeId, offset: u64, len: usize) -> Vec<u8> {
        let file = self.file(inode);
        let mut bytes = vec![0; len];
        for (index, chunk) in bytes.chunks_mut(ALIGN).enumerate() {
            if let Some(block) = file.current.get(&(offset / BLOCK + index as u64)) {
                chunk.copy_from_slice(block);
            }
        }
        bytes
    }

    /// The number of the latest change: a flush that starts now covers everything up to it.
    pub(super) fn flush_mark(&self) -> u64 {
        self.change
    }

    /// Makes durable what was changed in a file up to `mark`.
    pub(super) fn complete_sync(&mut self, inode: InodeId, mark: u64) {
        let file = self.file_mut(inode);
        let durable = &mut file.durable;
        file.unsynced.retain(|block, changes| {
            let covered = changes.partition_point(|(change, _)| *change <= mark);
            if covered > 0 {
                match changes
                    .drain(..covered)
                    .next_back()
                    .expect("some are covered")
                    .1
                {
                    Some(content) => durable.insert(*block, content),
                    None => durable.remove(block),
                };
            }
            !changes.is_empty()
        });
        let covered = file
            .unsynced_lens
            .partition_point(|(change, _)| *change <= mark);
        if let Some((_, len)) = file.unsynced_lens.drain(..covered).next_back() {
            file.durable_len = len;
        }
    }

    // Faults.

    pub(super) fn plan_failure(&mut self, op: DiskOp, path_contains: &str, nth: u64) {
        assert!(nth > 0, "operations are counted from one");
        self.planned.push(PlannedFailure {
            op,
            path_contains: path_contains.to_owned(),
            remaining: nth,
        });
    }

    /// True when this operation is to fail.
    pub(super) fn fails(&mut self, op: DiskOp, inode: InodeId, rng: &mut Rng) -> bool {
        let faults = &self.faults;
        let probability = match op {
            DiskOp::Read => faults.read_error,
            DiskOp::Write => faults.write_error,
            DiskOp::Sync => faults.sync_error,
        };
        if self.planned.is_empty() && probability == 0.0 {
            return false;
        }
        let path = self.file(inode).path.clone();
        let mut planned = false;
        self.planned.retain_mut(|failure| {
            if failure.op != op || !path.contains(&failure.path_contains) {
                return true;
            }
            failure.remaining -= 1;
            planned |= failure.remaining == 0;
            failure.remaining > 0
        });
        let applies = self.faults_apply(inode);
        planned || (applies && rng.chance(probability))
    }

    pub(super) fn faults_apply(&self, inode: InodeId) -> bool {
        self.faults
            .path_contains
            .as_ref()
            .is_none_or(|part| self.file(inode).path.contains(part))
    }

    /// Changes one bit of a file for good. False when nothing was ever written there.
    pub(super) fn flip_bit(&mut self, inode: InodeId, offset: u64, bit: u8) -> bool {
        let file = self.file_mut(inode);
        let (block, byte) = (offset / BLOCK, (offset % BLOCK) as usize);
        let flip = |content: &mut Bytes| {
            let mut bytes = content.to_vec();
            bytes[byte] ^= 1 << (bit & 7);
            *content = Bytes::from(bytes);
        };
        let Some(content) = file.current.get_mut(&block) else {
            return false;
        };
        flip(content);
        let changed = content.clone();
        match file
            .unsynced
            .get_mut(&block)
            .and_then(|changes| changes.last_mut())
        {
            Some((_, content)) => *content = Some(changed),
            None => {
                file.durable.insert(block, changed);
            }
        }
        true
    }

    /// All files that have a name, with their paths.
    pub(super) fn files(&self) -> Vec<(String, InodeId)> {
        let mut files = Vec::new();
        let mut visit = vec![(String::new(), ROOT)];
        while let Some((path, inode)) = visit.pop() {
            match &self.inodes[&inode] {
                Inode::File(_) => files.push((path, inode)),
                Inode::Directory(directory) => {
                    let children = directory
                        .names
                        .iter()
                        .map(|(name, inode)| (format!("{path}/{name}"), *inode));
                    visit.extend(children);
                }
            }
        }
        files.sort();
        files
    }
}
