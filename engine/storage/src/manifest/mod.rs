//! The manifest: what is true of a data directory at a checkpoint, made true by a superblock.

mod body;
mod cuts;
mod store;
mod superblock;

pub(crate) use body::{HASH_VERSION, Manifest};
pub(crate) use cuts::{Cut, Cuts};
pub(crate) use store::{ManifestStore, ManifestWrite, superblock_path};
