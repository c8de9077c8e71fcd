//! The manifest's content and its bytes: a fixed header, then the archived body.
//!
//! ```text
//! 0 magic u64    8 version u32    12 crc32c u32 (of everything else)    16 generation u64
//! 24 directory u64    32 body length u64    40 zeros .. 64    64 body    zeros up to a multiple of 4096
//! ```
//!
//! The version is 2 while some page file has spilled changes, and 1 otherwise; the bytes are alike.

use pinion_clock::Timestamp;

use super::cuts::Cuts;
use crate::base::PartitionRoots;
use crate::limits::BLOCK_BYTES;

const MAGIC: u64 = u64::from_le_bytes(*b"PINIONMF");
const VERSION: u32 = 1;
/// The version of a manifest by which some page file has spilled changes: a program that knows only the first would lose them.
const VERSION_SPILLED: u32 = 2;
const HEADER_BYTES: usize = 64;
/// The hash that places keys in partitions; a data directory keeps the one it was made with.
pub(crate) const HASH_VERSION: u16 = 1;

/// What is true of a data directory.
#[derive(Clone, Debug, PartialEq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Manifest {
    /// The random identity of the data directory.
    pub directory: u64,
    /// Counts the manifests.
    pub generation: u64,
    /// Counts the starts of the node.
    pub epoch: u64,
    /// Number of partitions.
    pub partitions: u16,
    /// The hash that places keys.
    pub hash_version: u16,
    /// The last entry that the base contains: the first entry after it links to it.
    pub base: u64,
    /// As known when this was written.
    pub all_durable: u64,
    /// Entries at or below this may be gone from the rings.
    pub retained_above: u64,
    /// What earlier epochs lost.
    pub cuts: Cuts,
    /// One for each partition, in order.
    pub roots: Vec<PartitionRoots>,
    /// Whether changes wait in some page file to be merged. The version in the header says so, not the body.
    #[rkyv(with = rkyv::with::Skip)]
    pub spilled: bool,
}

impl Manifest {
    /// [`Manifest::base`] as a timestamp.
    pub(crate) fn base(&self) -> Timestamp {
        Timestamp::from_u64(self.base)
    }

    /// What must hold of every manifest; `Err` names what does not.
    fn check_sound(&self) -> Result<(), &'static str> {
        if self.roots.len() != usize::from(self.partitions) {
            return Err("it does not have one root for each partition");
        }
        if self.retained_above > self.base {
            return Err("entries above its base are not retained");
        }
        if self.base > self.all_durable {
            return Err("its base holds what was not durable");
        }
        if self.cuts.0.iter().any(|cut| cut.epoch > self.epoch) {
            return Err("it has a cut of a later epoch");
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.check_sound()
            .expect("only sound manifests are written");
        let body = rkyv::to_bytes::<rkyv::rancor::Error>(self)
            .expect("serializing into memory does not fail");
        let mut bytes = vec![0; (HEADER_BYTES + body.len()).next_multiple_of(BLOCK_BYTES)];
        bytes[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        let version = if self.spilled {
            VERSION_SPILLED
        } else {
            VERSION
        };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.directory.to_le_bytes());
        bytes[32..40].copy_from_slice(&(body.len() as u64).to_le_bytes());
        bytes[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(&body);
        let crc = checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a manifest; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, String> {
        if bytes.len() < BLOCK_BYTES || !bytes.len().is_multiple_of(BLOCK_BYTES) {
            return Err(format!("it has {} bytes", bytes.len()));
        }
        let u32_at =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let u64_at =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if u32_at(12) != checksum(bytes) {
            return Err("its checksum does not match".to_owned());
        }
        if u64_at(0) != MAGIC {
            return Err("it is not a manifest".to_owned());
        }
        let version = u32_at(8);
        if version != VERSION && version != VERSION_SPILLED {
            return Err(format!(
                "its version is {version}, and this program knows {VERSION} and {VERSION_SPILLED}"
            ));
        }
        let body_len = u64_at(32);
        if body_len > (bytes.len() - HEADER_BYTES) as u64 {
            return Err("its length is out of range".to_owned());
        }
        let mut body = rkyv::util::AlignedVec::<16>::with_capacity(body_len as usize);
        body.extend_from_slice(&bytes[HEADER_BYTES..HEADER_BYTES + body_len as usize]);
        let mut manifest = rkyv::from_bytes::<Manifest, rkyv::rancor::Error>(&body)
            .map_err(|error| format!("its body cannot be read: {error}"))?;
        manifest.spilled = version == VERSION_SPILLED;
        if manifest.generation != u64_at(16) || manifest.directory != u64_at(24) {
            return Err("its header and its body do not belong together".to_owned());
        }
        manifest.check_sound()?;
        Ok(manifest)
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..12]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[16..])
}
