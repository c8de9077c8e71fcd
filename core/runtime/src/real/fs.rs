//! Directories and small files, on the blocking thread.
// The blocking thread is where the standard library's files may be used.
#![allow(clippy::disallowed_methods)]

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::blocking::run;
use super::sys;
use crate::fs::Space;
use crate::limits::MAX_SMALL_FILE_BYTES;

pub(crate) async fn create_dir_all(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    run(move || DirBuilder::new().recursive(true).mode(0o700).create(path)).await
}

pub(crate) async fn read_dir(path: &Path) -> io::Result<Vec<String>> {
    let path = path.to_owned();
    run(move || {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name().into_string();
            names.push(name.map_err(|name| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the file name {name:?} is not UTF-8"),
                )
            })?);
        }
        names.sort_unstable();
        Ok(names)
    })
    .await
}

pub(crate) async fn remove_file(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    run(move || fs::remove_file(path)).await
}

pub(crate) async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (from.to_owned(), to.to_owned());
    run(move || fs::rename(from, to)).await
}

pub(crate) async fn sync_dir(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    run(move || File::open(path)?.sync_all()).await
}

pub(crate) async fn exists(path: &Path) -> io::Result<bool> {
    let path = path.to_owned();
    run(move || path.try_exists()).await
}

pub(crate) async fn file_len(path: &Path) -> io::Result<u64> {
    let path = path.to_owned();
    run(move || Ok(fs::metadata(path)?.len())).await
}

pub(crate) async fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    run(move || {
        let mut bytes = Vec::new();
        File::open(path)?
            .take(MAX_SMALL_FILE_BYTES + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_SMALL_FILE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the file is too large to be read at once",
            ));
        }
        Ok(bytes)
    })
    .await
}

pub(crate) async fn space(path: &Path) -> io::Result<Space> {
    let path = path.to_owned();
    run(move || sys::space(&path)).await
}

/// Holds the exclusive lock of a directory while alive.
pub(crate) struct RealDirLock {
    _file: File,
}

/// Takes the exclusive lock of a directory; `WouldBlock` when somebody holds it.
pub(crate) async fn lock(path: &Path) -> io::Result<RealDirLock> {
    let path = path.to_owned();
    run(move || {
        let file = File::open(path)?;
        sys::flock_exclusive(&file)?;
        Ok(RealDirLock { _file: file })
    })
    .await
}
