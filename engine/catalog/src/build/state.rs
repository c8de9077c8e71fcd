//! How far a build has come, as it is kept over a restart.
//!
//! A shutdown in order writes it to a file, beside those of the sorted entries, and the start
//! behind it takes it from there: a file is good for one start. The storage engine notes an orderly
//! end, and only behind one is a file believed (`keep.rs`): then everything is there that the build
//! has read, and what was written meanwhile is in the side writes, as in a build that was not
//! stopped.
//!
//! The file, in little-endian byte order:
//!
//!   0 magic u64     8 version u32     12 crc32c u32 of all bytes behind it     16 length of the
//!   document u32 20 the document `{_id, collectionUUID, phase, collectionScanPosition, indexes}`
//!
//! Source: execution document, "Resumable Index Builds".

use pinion_bson::{
    BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef, RawDocument, elements, get, values,
};
use pinion_query::MultikeyPaths;
use pinion_runtime::ALIGN;
use pinion_runtime::limits::MAX_SMALL_FILE_BYTES;
use pinion_storage::{Key, TreeId};

use super::work::BuildPhase;
use crate::index::Index;
use crate::uuid::Uuid;

const MAGIC: u64 = u64::from_le_bytes(*b"pinbuild");
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 20;

/// How far a build has come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BuildState {
    pub build: Uuid,
    pub collection: Uuid,
    pub phase: BuildPhase,
    /// Of each partition of the collection.
    pub scans: Vec<ScanState>,
    /// Of each index of the build.
    pub indexes: Vec<IndexState>,
}

/// How far the scan of a partition has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanState {
    /// The last document that was read: the scan continues behind it.
    pub position: Option<Key>,
    pub is_complete: bool,
    pub documents: u64,
    /// Entries that were made of them.
    pub entries: u64,
}

/// What a build knows of one of its indexes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IndexState {
    pub tree: TreeId,
    /// The tree of its side writes.
    pub side: TreeId,
    pub multikey: Option<MultikeyPaths>,
    /// The sorted entries, by the partition that they belong to.
    pub runs: Vec<Vec<RunState>>,
}

/// A file of sorted entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunState {
    /// The end of the file's name.
    pub number: u64,
    pub entries: u64,
    /// The lengths of its blocks.
    pub blocks: Vec<u32>,
}

impl RunState {
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|len| u64::from(*len)).sum()
    }
}

impl BuildState {
    /// The bytes of the file.
    ///
    /// # Errors
    /// They are more than a start reads.
    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let document = self.to_document();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + document.as_bytes().len());
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(document.as_bytes().len() as u32).to_le_bytes());
        bytes.extend_from_slice(document.as_bytes());
        // The file is padded.
        if bytes.len().next_multiple_of(ALIGN) as u64 > MAX_SMALL_FILE_BYTES {
            return Err(format!(
                "its state has {} bytes, more than the {MAX_SMALL_FILE_BYTES} of the largest",
                bytes.len()
            ));
        }
        let crc = crc32c::crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        Ok(bytes)
    }

    /// Reads the bytes of a file, which may have zeros behind them.
    ///
    /// # Errors
    /// They are not as they were written.
    pub(super) fn decode(bytes: &[u8]) -> Result<BuildState, String> {
        let number = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        if bytes.get(..8) != Some(&MAGIC.to_le_bytes()) {
            return Err("it is no state of an index build".into());
        }
        match number(8) {
            Some(VERSION) => {}
            version => return Err(format!("its version is {version:?}, not {VERSION}")),
        }
        let checked = number(16)
            .and_then(|len| bytes.get(16..(len as usize).checked_add(HEADER_BYTES)?))
            .filter(|checked| number(12) == Some(crc32c::crc32c(checked)));
        let checked = checked.ok_or("its checksum is wrong")?;
        let document = pinion_bson::validate(&checked[HEADER_BYTES - 16..]);
        let document = document.map_err(|_| "it has no document")?;
        read_state(document).ok_or_else(|| "a field is missing, or none of its kind".into())
    }

    fn to_document(&self) -> pinion_bson::RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.build.to_bson())
            .append("collectionUUID", self.collection.to_bson())
            .append("phase", self.phase.name().0)
            .start_array("collectionScanPosition");
        for scan in &self.scans {
            out.push_document();
            if let Some(position) = &scan.position {
                out.append("position", binary(position));
            }
            out.append("isComplete", scan.is_complete)
                .append("documents", scan.documents as i64)
                .append("numKeys", scan.entries as i64)
                .end();
        }
        out.end().start_array("indexes");
        for index in &self.indexes {
            out.push_document();
            index.append(&mut out);
            out.end();
        }
        out.end();
        out.finish()
    }

    /// Whether a build of these indexes can continue from here.
    ///
    /// # Errors
    /// It is the state of another build.
    pub(super) fn check_fits(
        &self,
        collection: Uuid,
        indexes: &[Index],
        partitions: u16,
    ) -> Result<(), String> {
        if self.collection != collection {
            return Err(format!("its collection is {}", self.collection));
        }
        if self.scans.len() != usize::from(partitions) {
            return Err(format!("it has {} partitions", self.scans.len()));
        }
        let fits = |(kept, index): (&IndexState, &Index)| {
            let side = index.building.map(|building| building.side);
            kept.tree == index.tree
                && side == Some(kept.side)
                && kept.runs.len() == usize::from(partitions)
                && multikey_fits(kept.multikey.as_ref(), index)
        };
        if self.indexes.len() != indexes.len() || !self.indexes.iter().zip(indexes).all(fits) {
            return Err("its indexes are others".into());
        }
        let is_scanned = self.scans.iter().all(|scan| scan.is_complete);
        if self.phase != BuildPhase::Scanning && !is_scanned {
            return Err("its scan is not complete".into());
        }
        Ok(())
    }
}

/// What is known of arrays has a place for each field of the index.
fn multikey_fits(multikey: Option<&MultikeyPaths>, index: &Index) -> bool {
    match multikey {
        Some(MultikeyPaths::Fields(fields)) => fields.len() == elements(index.key()).count(),
        _ => true,
    }
}

impl IndexState {
    fn append(&self, out: &mut DocBuilder) {
        out.append("ident", self.tree.0 as i64)
            .append("sideWritesTable", self.side.0 as i64)
            .append("isMultikey", self.multikey.is_some());
        match &self.multikey {
            Some(MultikeyPaths::Fields(fields)) => {
                out.start_array("multikeyPaths");
                for components in fields {
                    out.push_array();
                    for component in components {
                        out.push(i32::from(*component));
                    }
                    out.end();
                }
                out.end();
            }
            Some(MultikeyPaths::Arrays(arrays)) => {
                out.start_array("multikeyArrays");
                for path in arrays {
                    out.push(&**path);
                }
                out.end();
            }
            Some(MultikeyPaths::Anywhere) | None => {}
        }
        out.start_array("files");
        for runs in &self.runs {
            out.push_array();
            for run in runs {
                let blocks: Vec<u8> = run
                    .blocks
                    .iter()
                    .flat_map(|len| len.to_le_bytes())
                    .collect();
                out.push_document()
                    .append("number", run.number as i64)
                    .append("numKeys", run.entries as i64)
                    .append("ranges", binary(&blocks))
                    .end();
            }
            out.end();
        }
        out.end();
    }
}

fn binary(bytes: &[u8]) -> RawBsonRef<'_> {
    RawBsonRef::Binary(RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    })
}

fn read_state(document: &RawDocument) -> Option<BuildState> {
    let uuid = |name| Uuid::from_bson(get(document, name)?);
    Some(BuildState {
        build: uuid("_id")?,
        collection: uuid("collectionUUID")?,
        phase: BuildPhase::named(document.get_str("phase").ok()?)?,
        scans: read_list(document, "collectionScanPosition", read_scan)?,
        indexes: read_list(document, "indexes", read_index)?,
    })
}

fn read_list<T>(
    document: &RawDocument,
    name: &str,
    read: impl Fn(RawBsonRef<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    values(document.get_array(name).ok()?).map(read).collect()
}

fn read_scan(value: RawBsonRef<'_>) -> Option<ScanState> {
    let scan = value.as_document()?;
    let position = match get(scan, "position") {
        None => None,
        Some(RawBsonRef::Binary(position)) => Some(Key::from_slice(position.bytes)),
        Some(_) => return None,
    };
    Some(ScanState {
        position,
        is_complete: scan.get_bool("isComplete").ok()?,
        documents: read_number(scan, "documents")?,
        entries: read_number(scan, "numKeys")?,
    })
}

fn read_number(document: &RawDocument, name: &str) -> Option<u64> {
    document.get_i64(name).ok()?.try_into().ok()
}

fn read_index(value: RawBsonRef<'_>) -> Option<IndexState> {
    let index = value.as_document()?;
    Some(IndexState {
        tree: TreeId(read_number(index, "ident")?),
        side: TreeId(read_number(index, "sideWritesTable")?),
        multikey: match index.get_bool("isMultikey").ok()? {
            false => None,
            true => Some(read_multikey(index)?),
        },
        runs: read_list(index, "files", |runs| {
            values(runs.as_array()?).map(read_run).collect()
        })?,
    })
}

fn read_multikey(index: &RawDocument) -> Option<MultikeyPaths> {
    if get(index, "multikeyPaths").is_some() {
        let component = |value: RawBsonRef<'_>| u16::try_from(value.as_i32()?).ok();
        let fields = read_list(index, "multikeyPaths", |field| {
            values(field.as_array()?).map(component).collect()
        });
        return Some(MultikeyPaths::Fields(fields?));
    }
    if get(index, "multikeyArrays").is_some() {
        let arrays = read_list(index, "multikeyArrays", |path| Some(path.as_str()?.into()))?;
        return Some(MultikeyPaths::Arrays(arrays.into_iter().collect()));
    }
    Some(MultikeyPaths::Anywhere)
}

fn read_run(value: RawBsonRef<'_>) -> Option<RunState> {
    let run = value.as_document()?;
    let Some(RawBsonRef::Binary(blocks)) = get(run, "ranges") else {
        return None;
    };
    let len = |bytes: &[u8]| {
        let len = u32::from_le_bytes(bytes.try_into().ok()?);
        (len > 0 && (len as usize).is_multiple_of(ALIGN)).then_some(len)
    };
    Some(RunState {
        number: read_number(run, "number").filter(|number| *number < u64::MAX)?,
        entries: read_number(run, "numKeys")?,
        blocks: blocks.bytes.chunks(4).map(len).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(multikey: Option<MultikeyPaths>, runs: Vec<Vec<RunState>>) -> IndexState {
        IndexState {
            tree: TreeId(17),
            side: TreeId(18),
            multikey,
            runs,
        }
    }

    fn run(number: u64, blocks: &[u32]) -> RunState {
        RunState {
            number,
            entries: 7,
            blocks: blocks.to_vec(),
        }
    }

    fn state(phase: BuildPhase, indexes: Vec<IndexState>) -> BuildState {
        let scan = |position: Option<&[u8]>, is_complete| ScanState {
            position: position.map(Key::from_slice),
            is_complete,
            documents: 3,
            entries: 9,
        };
        BuildState {
            build: Uuid([1; 16]),
            collection: Uuid([2; 16]),
            phase,
            scans: vec![scan(None, false), scan(Some(&[0, 255]), true)],
            indexes,
        }
    }

    #[track_caller]
    fn check(state: &BuildState) {
        let mut bytes = state.encode().expect("small");
        assert_eq!(BuildState::decode(&bytes).as_ref(), Ok(state));
        for at in 0..bytes.len() {
            bytes[at] ^= 16;
            assert!(BuildState::decode(&bytes).is_err(), "byte {at} is checked");
            bytes[at] ^= 16;
            assert!(BuildState::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
        // As it is read from a file.
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        assert_eq!(BuildState::decode(&bytes).as_ref(), Ok(state));
    }

    #[test]
    fn what_is_kept_is_read() {
        check(&state(BuildPhase::Scanning, Vec::new()));
        let runs = vec![vec![], vec![run(0, &[4096]), run(5, &[8192, 4096])]];
        let fields = MultikeyPaths::Fields(vec![vec![], vec![0, 2]]);
        let arrays = MultikeyPaths::Arrays(["a.b".into(), "c".into()].into());
        for multikey in [
            None,
            Some(fields),
            Some(arrays),
            Some(MultikeyPaths::Anywhere),
        ] {
            let indexes = vec![
                index(multikey, runs.clone()),
                index(None, vec![vec![], vec![]]),
            ];
            check(&state(BuildPhase::Loading, indexes));
        }
        check(&state(BuildPhase::Draining, vec![index(None, vec![])]));
    }

    #[test]
    fn a_block_has_a_possible_length() {
        for blocks in [&[0][..], &[4096, 4095]] {
            let runs = vec![vec![run(1, blocks)]];
            let bytes = state(BuildPhase::Loading, vec![index(None, runs)]).encode();
            assert!(BuildState::decode(&bytes.expect("small")).is_err());
        }
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let blocks = vec![4096; MAX_SMALL_FILE_BYTES as usize / 4];
        let runs = vec![vec![run(1, &blocks)]];
        let large = state(BuildPhase::Loading, vec![index(None, runs)]);
        assert!(large.encode().is_err());
    }
}
