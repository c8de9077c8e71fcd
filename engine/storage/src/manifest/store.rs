//! Manifests and superblocks on disk: reading the newest, and making a new one true.

use std::io;
use std::path::{Path, PathBuf};

use pinion_clock::Timestamp;
use pinion_runtime::{DmaBuf, File, OpenOptions, fs, sim};

use super::body::Manifest;
use super::superblock::{COPIES, SUPERBLOCK_BYTES, Superblock, choose};
use crate::opening::{open_file, sync_dir};

const SUPERBLOCK_FILE: &str = "superblock";
const SUPERBLOCK_NEW: &str = "superblock.new";
const MANIFEST_PREFIX: &str = "manifest-";

pub(crate) fn superblock_path(data_directory: &Path) -> PathBuf {
    data_directory.join(SUPERBLOCK_FILE)
}

pub(crate) fn manifest_path(data_directory: &Path, generation: u64) -> PathBuf {
    data_directory.join(format!("{MANIFEST_PREFIX}{generation:012}"))
}

/// The manifest that is true, and the file that says so.
pub(crate) struct ManifestStore {
    data_directory: PathBuf,
    superblocks: File,
    current: Manifest,
}

/// Why the truth about a data directory cannot be established.
#[derive(Debug)]
pub(crate) enum ManifestWrite {
    Io(io::Error),
    /// A file is not what was written.
    Damaged {
        file: PathBuf,
        offset: u64,
        what: String,
    },
}

impl From<io::Error> for ManifestWrite {
    fn from(error: io::Error) -> ManifestWrite {
        ManifestWrite::Io(error)
    }
}

/// Writes a manifest's file and makes it durable; nothing refers to it yet.
async fn write_manifest(data_directory: &Path, manifest: &Manifest) -> io::Result<Superblock> {
    let bytes = manifest.encode();
    let path = manifest_path(data_directory, manifest.generation);
    let file = open_file(&path, OpenOptions::create().truncate()).await?;
    file.write_at(0, DmaBuf::padded_copy(&bytes)).await?;
    file.datasync().await?;
    file.close().await?;
    sync_dir(data_directory).await?;
    Ok(Superblock {
        generation: manifest.generation,
        epoch: manifest.epoch,
        directory: manifest.directory,
        partitions: manifest.partitions,
        hash_version: manifest.hash_version,
        manifest_generation: manifest.generation,
        manifest_len: bytes.len() as u64,
        manifest_crc: crc32c::crc32c(&bytes),
        all_durable: Timestamp::from_u64(manifest.all_durable),
        base: manifest.base(),
    })
}

impl ManifestStore {
    /// Makes a data directory's first superblock file; all four copies name `manifest`. Until the
    /// file has its name the directory holds nothing.
    pub(crate) async fn create(
        data_directory: &Path,
        manifest: Manifest,
    ) -> io::Result<ManifestStore> {
        let superblock = write_manifest(data_directory, &manifest).await?;
        let new = data_directory.join(SUPERBLOCK_NEW);
        let file = File::open(&new, OpenOptions::create().truncate()).await?;
        let mut blocks = DmaBuf::zeroed(COPIES.len() * SUPERBLOCK_BYTES);
        for place in COPIES {
            let at = place.offset() as usize;
            superblock.encode(&mut blocks[at..at + SUPERBLOCK_BYTES]);
        }
        file.write_at(0, blocks).await?;
        file.datasync().await?;
        file.close().await?;
        let path = superblock_path(data_directory);
        fs::rename(&new, &path).await?;
        fs::sync_dir(data_directory).await?;
        let superblocks = File::open(&path, OpenOptions::write()).await?;
        Ok(ManifestStore {
            data_directory: data_directory.to_owned(),
            superblocks,
            current: manifest,
        })
    }

    /// Reads the newest superblock and its manifest.
    pub(crate) async fn open(data_directory: &Path) -> Result<ManifestStore, ManifestWrite> {
        let path = superblock_path(data_directory);
        let superblocks = File::open(&path, OpenOptions::write()).await?;
        let bytes = superblocks
            .read_at(0, COPIES.len() * SUPERBLOCK_BYTES)
            .await?;
        let copies = COPIES.map(|place| {
            let at = (place.offset() as usize).min(bytes.len());
            Superblock::decode(&bytes[at..(at + SUPERBLOCK_BYTES).min(bytes.len())])
        });
        let superblock = choose(&copies).map_err(|[(place, what), (twin, other)]| ManifestWrite::Damaged {
            file: path,
            offset: place.offset(),
            what: format!(
                "both copies of superblock {} are invalid ({what}; offset {}: {other}), and it may be the newest",
                ["A", "B"][place.slot],
                twin.offset(),
            ),
        })?;
        let file = manifest_path(data_directory, superblock.manifest_generation);
        let damaged = |what: String| ManifestWrite::Damaged {
            file: file.clone(),
            offset: 0,
            what,
        };
        let bytes = match fs::read_small(&file).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged(
                    "the manifest that the newest superblock names is missing".to_owned(),
                ));
            }
            Err(error) => return Err(error.into()),
        };
        if bytes.len() as u64 != superblock.manifest_len
            || crc32c::crc32c(&bytes) != superblock.manifest_crc
        {
            return Err(damaged(
                "it is not the manifest that the newest superblock names".to_owned(),
            ));
        }
        let current = Manifest::decode(&bytes).map_err(damaged)?;
        Ok(ManifestStore {
            data_directory: data_directory.to_owned(),
            superblocks,
            current,
        })
    }

    pub(crate) fn current(&self) -> &Manifest {
        &self.current
    }

    /// Makes `manifest` true. When this returns, both copies of its superblock are durable, and
    /// only then may anything rely on it. An error leaves either the old or the new one true.
    pub(crate) async fn replace(&mut self, manifest: Manifest) -> io::Result<()> {
        assert_eq!(manifest.generation, self.current.generation + 1);
        assert_eq!(manifest.directory, self.current.directory);
        assert!(manifest.epoch >= self.current.epoch, "epochs ascend");
        // What a standalone has written over a member's data becomes a part of what is below.
        let folds =
            self.current.standalone_above == manifest.base && manifest.standalone_above == 0;
        assert!(
            manifest.base >= self.current.base || folds,
            "the base goes forward"
        );
        let superblock = write_manifest(&self.data_directory, &manifest).await?;
        sim::event("superblock");
        for place in COPIES
            .iter()
            .filter(|place| place.slot == superblock.slot())
        {
            let mut block = DmaBuf::zeroed(SUPERBLOCK_BYTES);
            superblock.encode(&mut block);
            self.superblocks.write_at(place.offset(), block).await?;
            sim::event("superblock copy");
            self.superblocks.datasync().await?;
        }
        // The twin slot still names the manifest before this one; none names the one before that.
        let unnamed = self.current.generation.checked_sub(1);
        self.current = manifest;
        if let Some(generation) = unnamed {
            let path = manifest_path(&self.data_directory, generation);
            if fs::exists(&path).await? {
                fs::remove_file(&path).await?;
            }
        }
        Ok(())
    }

    /// Removes manifests that no superblock names, which a crash left behind.
    pub(crate) async fn remove_strays(&self) -> io::Result<()> {
        let named = [
            self.current.generation,
            self.current.generation.saturating_sub(1),
        ];
        for name in fs::read_dir(&self.data_directory).await? {
            let Some(generation) = name
                .strip_prefix(MANIFEST_PREFIX)
                .and_then(|rest| rest.parse::<u64>().ok())
            else {
                continue;
            };
            if !named.contains(&generation) {
                fs::remove_file(self.data_directory.join(&name)).await?;
            }
        }
        Ok(())
    }
}
