//! Simulated directories and names.

use std::io;
use std::path::Path;
use std::rc::Rc;

use super::core::SimCore;
use super::disk::{Disk, InodeId};
use super::file::disk_operation;
use super::life::CoreState;
use super::trace::{Step, content_hash};
use crate::fs::Space;
use crate::limits::MAX_SMALL_FILE_BYTES;

/// Runs an operation on names; `kind` distinguishes them in the trace.
async fn name_operation<T: 'static>(
    core: &SimCore,
    kind: u64,
    path: &Path,
    operation: impl FnOnce(&mut Disk, &Path) -> io::Result<T> + 'static,
) -> io::Result<T> {
    let path = path.to_owned();
    disk_operation(
        core.state(),
        |world| {
            if kind == SYNC {
                &world.options.disk_sync_ns
            } else {
                &world.options.disk_read_ns
            }
        },
        move |world, disk, _| {
            let result = operation(disk, &path);
            let hash = content_hash(path.as_os_str().as_encoded_bytes());
            world.trace(Step::DiskName, kind, hash ^ u64::from(result.is_ok()));
            result
        },
    )
    .await
}

const SYNC: u64 = 15;

pub(crate) async fn create_dir_all(core: &SimCore, path: &Path) -> io::Result<()> {
    name_operation(core, 10, path, |disk, path| disk.create_dir_all(path)).await
}

pub(crate) async fn read_dir(core: &SimCore, path: &Path) -> io::Result<Vec<String>> {
    name_operation(core, 11, path, |disk, path| disk.read_dir(path)).await
}

pub(crate) async fn remove_file(core: &SimCore, path: &Path) -> io::Result<()> {
    name_operation(core, 12, path, |disk, path| disk.remove_file(path)).await
}

pub(crate) async fn rename(core: &SimCore, from: &Path, to: &Path) -> io::Result<()> {
    let to = to.to_owned();
    name_operation(core, 13, from, move |disk, from| disk.rename(from, &to)).await
}

pub(crate) async fn sync_dir(core: &SimCore, path: &Path) -> io::Result<()> {
    let result = name_operation(core, SYNC, path, |disk, path| disk.sync_dir(path)).await;
    if result.is_ok() {
        core.state().stats.borrow_mut().device_flushes += 1;
    }
    result
}

pub(crate) async fn exists(core: &SimCore, path: &Path) -> io::Result<bool> {
    name_operation(core, 16, path, |disk, path| match disk.lookup(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    })
    .await
}

pub(crate) async fn file_len(core: &SimCore, path: &Path) -> io::Result<u64> {
    name_operation(core, 17, path, |disk, path| {
        let inode = disk.lookup_file(path)?;
        Ok(disk.file(inode).len)
    })
    .await
}

pub(crate) async fn read_small(core: &SimCore, path: &Path) -> io::Result<Vec<u8>> {
    name_operation(core, 18, path, |disk, path| {
        let inode = disk.lookup_file(path)?;
        let len = disk.file(inode).len;
        if len > MAX_SMALL_FILE_BYTES {
            let message = format!(
                "{}: {len} bytes exceed the limit of {MAX_SMALL_FILE_BYTES}",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(disk
            .read(
                inode,
                0,
                (len as usize).next_multiple_of(crate::limits::ALIGN),
            )
            .to_vec())
    })
    .await
}

pub(crate) async fn space(core: &SimCore, path: &Path) -> io::Result<Space> {
    name_operation(core, 19, path, |disk, path| {
        disk.lookup(path)?;
        Ok(Space {
            total_bytes: disk.capacity(),
            free_bytes: disk.free_bytes(),
        })
    })
    .await
}

/// A locked directory of a simulated node.
pub(crate) struct SimDirLock {
    core: Rc<CoreState>,
    inode: InodeId,
}

impl Drop for SimDirLock {
    fn drop(&mut self) {
        if self.core.life().is_alive() {
            self.core.node().disk.borrow_mut().unlock(self.inode);
        }
    }
}

pub(crate) async fn lock(core: &SimCore, path: &Path) -> io::Result<SimDirLock> {
    let inode = name_operation(core, 20, path, |disk, path| disk.lock(path)).await?;
    Ok(SimDirLock {
        core: Rc::clone(core.state()),
        inode,
    })
}
