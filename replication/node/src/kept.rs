//! What a rollback takes away, kept in files of BSON below `rollback/`, as MongoDB keeps it: one
//! file for each collection, in a folder that its UUID names.
//!
//! A file has its name once all of it is on the device; until then it is called otherwise, and goes
//! at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pinion_bson::RawBson;
use pinion_catalog::Uuid;
use pinion_exec::document_of_uuid;
use pinion_exec::options::node_options;
use pinion_runtime::{DmaBuf, File, OpenOptions, fs, wall_ms};
use pinion_wire::{Error, Result};

use crate::limits::ROLLBACK_FILE_BYTES;

const FOLDER: &str = "rollback";
/// What a file's name ends with while it is written.
const UNFINISHED: &str = ".unfinished";

fn io(error: std::io::Error) -> Error {
    Error::internal(error.to_string())
}

fn folder() -> PathBuf {
    node_options().db_path.join(FOLDER)
}

/// Writes the documents as they are now.
///
/// # Errors
/// A file cannot be written, or a document not be read.
pub(crate) async fn keep_documents(affected: &BTreeMap<Uuid, Vec<RawBson>>) -> Result<()> {
    let name = format!("removed.{}.bson", wall_ms());
    let data = &node_options().db_path;
    for (uuid, ids) in affected {
        let folder = folder().join(uuid.to_string());
        let unfinished = folder.join(format!("{name}{UNFINISHED}"));
        let mut file: Option<Kept> = None;
        let mut seen = BTreeSet::new();
        for id in ids {
            let key = pinion_bson::rawdoc! { "_id": id.clone() };
            if !seen.insert(key.as_bytes().to_vec()) {
                continue;
            }
            let Some(document) = document_of_uuid(*uuid, id.as_raw_bson_ref()).await? else {
                continue;
            };
            let open = match &mut file {
                Some(open) => open,
                None => {
                    fs::create_dir_all(&folder).await.map_err(io)?;
                    let opened = File::open(&unfinished, OpenOptions::create().truncate()).await;
                    file.insert(Kept::new(opened.map_err(io)?))
                }
            };
            open.add(document.as_bytes()).await.map_err(io)?;
        }
        if let Some(file) = file {
            file.finish().await.map_err(io)?;
            fs::rename(&unfinished, folder.join(&name))
                .await
                .map_err(io)?;
            for folder in [&folder, &data.join(FOLDER), data] {
                fs::sync_dir(folder).await.map_err(io)?;
            }
        }
    }
    Ok(())
}

/// Removes the files of rollbacks that ended in the middle: the documents are there still, or in a
/// whole file.
///
/// # Errors
/// A folder cannot be read, or a file not be removed.
pub(crate) async fn remove_unfinished() -> Result<()> {
    let folder = folder();
    if !fs::exists(&folder).await.map_err(io)? {
        return Ok(());
    }
    for collection in fs::read_dir(&folder).await.map_err(io)? {
        let collection = folder.join(collection);
        // What else somebody has put there is none of a rollback's.
        let Ok(names) = fs::read_dir(&collection).await else {
            continue;
        };
        for name in names.iter().filter(|name| name.ends_with(UNFINISHED)) {
            fs::remove_file(collection.join(name)).await.map_err(io)?;
        }
    }
    Ok(())
}

/// A file that is written from its beginning to its end.
struct Kept {
    file: File,
    written: u64,
    waiting: Vec<u8>,
}

impl Kept {
    fn new(file: File) -> Kept {
        Kept {
            file,
            written: 0,
            waiting: Vec::new(),
        }
    }

    async fn add(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.waiting.extend_from_slice(bytes);
        while self.waiting.len() >= ROLLBACK_FILE_BYTES {
            let rest = self.waiting.split_off(ROLLBACK_FILE_BYTES);
            let part = std::mem::replace(&mut self.waiting, rest);
            self.file
                .write_at(self.written, DmaBuf::padded_copy(&part))
                .await?;
            self.written += part.len() as u64;
        }
        Ok(())
    }

    async fn finish(self) -> std::io::Result<()> {
        let len = self.written + self.waiting.len() as u64;
        if !self.waiting.is_empty() {
            let last = DmaBuf::padded_copy(&self.waiting);
            self.file.write_at(self.written, last).await?;
        }
        self.file.set_len(len).await?;
        self.file.datasync().await?;
        self.file.close().await
    }
}
