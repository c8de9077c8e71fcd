//! A data directory under inspection: its lock, superblocks, manifests and page files.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pinion_runtime::{File, LocalBoxFuture, OpenOptions, fs};

use super::problem::{InspectError, Problem};
use crate::base::{Access, VerifyReport, page_file_name, verify_and_collect};
use crate::engine::partition_dir;
use crate::manifest::{
    COPIES, Cuts, Manifest, SUPERBLOCK_BYTES, Superblock, manifest_path, superblock_path,
};
use crate::ring::list_rings;
use crate::types::{CATALOG_TREE, Key, PartitionId};

/// A data directory, locked against nodes while this lives.
pub struct Inspector {
    pub(super) dir: PathBuf,
    superblocks: Vec<SuperblockCopy>,
    manifest: Option<Manifest>,
    manifests: Vec<(PathBuf, u64)>,
    problems: Vec<Problem>,
    _lock: fs::DirLock,
}

/// One of the four superblocks of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperblockCopy {
    /// A or B: the two take turns.
    pub slot: char,
    /// First or second copy.
    pub copy: u8,
    /// Where it lies in the file.
    pub offset: u64,
    /// What it says, or why it says nothing.
    pub content: Result<Superblock, String>,
}

/// What one partition's page file holds.
#[derive(Clone, Debug, Default)]
pub struct PartitionReport {
    /// The page file.
    pub file: PathBuf,
    /// Its trees and pages.
    pub pages: VerifyReport,
    /// The rows of `_mdb_catalog` with their keys, as far as they can be read; only partition 0 has
    /// them.
    pub catalog: Vec<(Key, Bytes)>,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
}

impl Inspector {
    /// Locks a directory and reads its superblocks and manifests. What is wrong with those is
    /// listed in [`Inspector::problems`].
    pub async fn open(dir: &Path) -> Result<Inspector, InspectError> {
        let lock = fs::lock(dir).await.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => InspectError::Locked(dir.to_owned()),
            _ => InspectError::Io {
                path: dir.to_owned(),
                error,
            },
        })?;
        let path = superblock_path(dir);
        if !fs::exists(&path).await.map_err(InspectError::io(&path))? {
            let rings = list_rings(dir).await.map_err(InspectError::io(dir))?;
            return Err(InspectError::NoSuperblock {
                dir: dir.to_owned(),
                ring: rings.into_iter().next().map(|ring| ring.path),
            });
        }
        let superblocks = read_superblocks(&path)
            .await
            .map_err(InspectError::io(&path))?;
        let mut this = Inspector {
            dir: dir.to_owned(),
            superblocks,
            manifest: None,
            manifests: Vec::new(),
            problems: Vec::new(),
            _lock: lock,
        };
        this.check_superblocks(&path);
        this.read_manifests(&path).await;
        Ok(this)
    }

    /// The four superblocks in file order.
    pub fn superblocks(&self) -> &[SuperblockCopy] {
        &self.superblocks
    }

    /// The newest superblock that can be read.
    pub fn newest(&self) -> Option<&Superblock> {
        let valid = self.superblocks.iter();
        valid
            .filter_map(|copy| copy.content.as_ref().ok())
            .max_by_key(|superblock| superblock.generation)
    }

    /// The manifest that the newest superblock names, if it is sound.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// The manifests that superblocks name and that are there, with their lengths, the newest
    /// first.
    pub fn manifests(&self) -> &[(PathBuf, u64)] {
        &self.manifests
    }

    /// What is wrong with superblocks and manifests.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    pub(super) fn cuts(&self) -> Cuts {
        self.manifest
            .as_ref()
            .map(|manifest| manifest.cuts.clone())
            .unwrap_or_default()
    }

    fn check_superblocks(&mut self, path: &Path) {
        for copy in &self.superblocks {
            if let Err(what) = &copy.content {
                let what = format!("superblock {} (copy {}): {what}", copy.slot, copy.copy + 1);
                self.problems.push(Problem::new(path, copy.offset, what));
            }
        }
        let Some(newest) = self.newest().copied() else {
            return;
        };
        for copy in &self.superblocks {
            let Ok(superblock) = &copy.content else {
                continue;
            };
            let what = if superblock.directory != newest.directory {
                "it belongs to another data directory"
            } else if superblock.partitions != newest.partitions
                || superblock.hash_version != newest.hash_version
            {
                "it has other partitions than the newest one"
            } else {
                continue;
            };
            self.problems.push(Problem::new(path, copy.offset, what));
        }
    }

    /// Checks every manifest that a superblock names and keeps the newest superblock's.
    async fn read_manifests(&mut self, superblock_file: &Path) {
        let mut named: Vec<(Superblock, u64)> = self
            .superblocks
            .iter()
            .filter_map(|copy| Some((*copy.content.as_ref().ok()?, copy.offset)))
            .collect();
        named.sort_by_key(|(superblock, offset)| {
            (std::cmp::Reverse(superblock.generation), *offset)
        });
        named.dedup_by_key(|(superblock, _)| *superblock);
        let newest = named.first().map(|(superblock, _)| *superblock);
        for (superblock, offset) in named {
            let path = manifest_path(&self.dir, superblock.manifest_generation);
            let bytes = match fs::read_small(&path).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    let what = format!("the manifest that it names cannot be read: {error}");
                    self.problems
                        .push(Problem::new(superblock_file, offset, what));
                    self.problems
                        .push(Problem::new(&path, 0, error.to_string()));
                    continue;
                }
            };
            self.manifests.push((path.clone(), bytes.len() as u64));
            let decoded = Manifest::decode(&bytes).and_then(|manifest| {
                let is_named = bytes.len() as u64 == superblock.manifest_len
                    && crc32c::crc32c(&bytes) == superblock.manifest_crc
                    && manifest.directory == superblock.directory;
                match is_named {
                    true => Ok(manifest),
                    false => Err("it is not the manifest that a superblock names".to_owned()),
                }
            });
            match decoded {
                Ok(manifest) if Some(superblock) == newest => self.manifest = Some(manifest),
                Ok(_) => {}
                Err(what) => self.problems.push(Problem::new(&path, 0, what)),
            }
        }
    }

    /// Reads every page of a partition.
    ///
    /// # Panics
    /// If the directory has no sound manifest, or fewer partitions.
    pub fn partition(&self, id: PartitionId) -> LocalBoxFuture<'_, PartitionReport> {
        Box::pin(async move {
            let manifest = self.manifest.as_ref().expect("asked for with a manifest");
            let roots = &manifest.roots[usize::from(id.0)];
            let dir = partition_dir(&self.dir, id);
            let mut report = PartitionReport {
                file: dir.join(page_file_name(roots.file)),
                ..PartitionReport::default()
            };
            if let Ok(bytes) = fs::file_len(&report.file).await
                && bytes < roots.file_bytes()
            {
                let what = format!(
                    "the file ends here, and the manifest says that it has {} bytes",
                    roots.file_bytes()
                );
                report
                    .problems
                    .push(Problem::new(&report.file, bytes, what));
            }
            let collect = (id == PartitionId(0)).then_some(CATALOG_TREE);
            match verify_and_collect(id, &dir, roots, Access::Mapped, collect).await {
                Ok((pages, catalog)) => {
                    report.pages = pages;
                    report.catalog = catalog;
                }
                Err(error) => report.problems.push(Problem::of_pages(&report.file, error)),
            }
            for error in std::mem::take(&mut report.pages.problems) {
                report.problems.push(Problem::of_pages(&report.file, error));
            }
            report
        })
    }
}

async fn read_superblocks(path: &Path) -> io::Result<Vec<SuperblockCopy>> {
    let file = File::open(path, OpenOptions::read()).await?;
    let bytes = file.read_at(0, COPIES.len() * SUPERBLOCK_BYTES).await?;
    file.close().await?;
    let copies = COPIES.iter().map(|place| {
        let at = (place.offset() as usize).min(bytes.len());
        SuperblockCopy {
            slot: ['A', 'B'][place.slot],
            copy: place.copy as u8,
            offset: place.offset(),
            content: Superblock::decode(&bytes[at..(at + SUPERBLOCK_BYTES).min(bytes.len())]),
        }
    });
    Ok(copies.collect())
}
