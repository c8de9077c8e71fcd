//! The page format: how leaves, inner pages, overflow extents and free-space lists lie on disk and
//! are searched in place.
//!
//! Everything is little-endian. A page is a whole number of 4 KiB blocks and begins with a header
//! of 64 bytes:
//!
//! ```text
//!  0 magic u32   4 version u16   6 kind u8   7 level u8
//!  8 crc32c u32 (of the whole page, this field as zero)
//! 12 blocks u32  16 block u64 (where it lies)  24 tree u64  32 checkpoint u64
//! 40 entries u32 44 prefix_len u32  48 end u32 (of the used bytes)  52 zero to 64
//! ```
//!
//! Leaves and inner pages continue with `entries` slots of 8 bytes, the prefix that all keys of the
//! page share, and the records in key order; a record ends where the next begins:
//!
//! ```text
//! slot:   head u32 (first four bytes of the key's suffix, as a number that orders like them)
//!         offset u32
//! record: suffix length (LEB128)  suffix  value
//! ```
//!
//! In a leaf the top bit of the offset marks a value that is an [`OverflowRef`]; in an inner page
//! every value is a [`PagePtr`], and the key is exactly the first key of the child (in a leaf's
//! parent: a separator at or below it). The other kinds carry a payload from byte 64 to `end`.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use pinion_runtime::DmaBuf;

use super::hint;
use crate::layout::{checksum_around, u32_at, u64_at};
use crate::limits::{BLOCK_BYTES, MAX_PAGE_BLOCKS, MAX_PAGE_BYTES, MAX_TREE_HEIGHT};
use crate::types::{Key, TreeId, VersionToken};

pub(crate) const HEADER_BYTES: usize = 64;
const SLOT_BYTES: usize = 8;
const MAGIC: u32 = u32::from_le_bytes(*b"PNPG");
const VERSION: u16 = 1;
const CRC_AT: usize = 8;
const BLOCK_AT: usize = 16;
const OVERFLOW_BIT: u32 = 1 << 31;
/// The part of a page that a search looks at first: in a leaf of some tens of records all slots and
/// the prefix.
pub(super) const FIRST_READ_BYTES: usize = 192;
/// The part of a record that is asked for before it is read; the processor guesses the rest of a
/// longer one. Asked for whole, a record of 1 KB costs a scan a third less than where its first
/// lines alone are.
const EXPECTED_RECORD_BYTES: usize = 1024;

const _: () = assert!(MAX_PAGE_BYTES < OVERFLOW_BIT as usize);

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// Keys and values.
    Leaf = 1,
    /// Separators and children.
    Inner = 2,
    /// One large value.
    Overflow = 3,
    /// The free extents of the file.
    FreeList = 4,
    /// Block 0: which partition the file belongs to.
    FileHeader = 5,
}

/// Where a page lies, and the checksum it must have: a page that was lost in writing, or written
/// elsewhere, does not match its parent even if it is sound in itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagePtr {
    /// First block.
    pub block: u64,
    /// Length in blocks.
    pub blocks: u32,
    /// Whether a leaf below (or this leaf) refers to overflow extents.
    pub overflow: bool,
    /// The page's checksum.
    pub crc: u32,
}

impl PagePtr {
    pub(crate) const BYTES: usize = 12;
    const BLOCK_BITS: u32 = 40;

    /// Block, length and flags in one word.
    pub(crate) fn pack(&self) -> u64 {
        assert!(
            self.block < 1 << Self::BLOCK_BITS
                && self.blocks > 0
                && u64::from(self.blocks) <= MAX_PAGE_BLOCKS
        );
        self.block | u64::from(self.blocks) << Self::BLOCK_BITS | u64::from(self.overflow) << 56
    }

    pub(crate) fn unpack(word: u64, crc: u32) -> PagePtr {
        PagePtr {
            block: word & ((1 << Self::BLOCK_BITS) - 1),
            blocks: (word >> Self::BLOCK_BITS) as u32 & 0xffff,
            overflow: word >> 56 & 1 == 1,
            crc,
        }
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.pack().to_le_bytes());
        bytes[8..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> PagePtr {
        assert_eq!(
            bytes.len(),
            Self::BYTES,
            "pages are checked when they are loaded"
        );
        PagePtr::unpack(u64_at(bytes, 0), u32_at(bytes, 8))
    }

    pub(crate) fn offset(&self) -> u64 {
        self.block * BLOCK_BYTES as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks as usize * BLOCK_BYTES
    }
}

/// A leaf's reference to a value that lies in an extent of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverflowRef {
    /// The extent.
    pub ptr: PagePtr,
    /// Length of the value.
    pub len: u32,
}

impl OverflowRef {
    pub(crate) const BYTES: usize = PagePtr::BYTES + 4;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..PagePtr::BYTES].copy_from_slice(&self.ptr.encode());
        bytes[PagePtr::BYTES..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> OverflowRef {
        assert_eq!(
            bytes.len(),
            Self::BYTES,
            "pages are checked when they are loaded"
        );
        OverflowRef {
            ptr: PagePtr::decode(&bytes[..PagePtr::BYTES]),
            len: u32_at(bytes, PagePtr::BYTES),
        }
    }
}

/// A loaded, checked page.
#[derive(Debug)]
pub(crate) struct Page {
    bytes: Bytes,
    kind: PageKind,
    level: u8,
    entries: u32,
    /// The checkpoint that wrote it.
    checkpoint: u64,
    prefix: Range<usize>,
    end: usize,
    /// Where the count of the buffer's shares lies.
    shares_at: usize,
    pub(super) cached: Cached,
}

/// What the cache remembers of a page it holds. It stands in the page because a look-up reads
/// that next.
#[derive(Debug, Default)]
pub(super) struct Cached {
    pub(super) place: Cell<u32>,
    pub(super) referenced: Cell<bool>,
}

impl Page {
    /// Checks a page that was read from `ptr` and takes it over. The answer names what is wrong.
    pub(crate) fn load(bytes: Bytes, ptr: &PagePtr, tree: TreeId) -> Result<Page, &'static str> {
        if bytes.len() != ptr.len() {
            return Err("the file ends within the page");
        }
        let page = Page::parse(bytes)?;
        if u64_at(&page.bytes, BLOCK_AT) != ptr.block || u32_at(&page.bytes, 12) != ptr.blocks {
            return Err("the page belongs elsewhere in the file");
        }
        if u32_at(&page.bytes, CRC_AT) != ptr.crc {
            return Err("the page is not the one its parent refers to");
        }
        if u64_at(&page.bytes, 24) != tree.0 {
            return Err("the page belongs to another tree");
        }
        Ok(page)
    }

    /// A page that was just built and sealed, checked once more before it is written.
    ///
    /// # Panics
    /// If it is not sound: nothing of the kind may reach the disk.
    pub(crate) fn built(bytes: Bytes) -> Page {
        match Page::parse_layout(bytes) {
            Ok(page) => page,
            Err(what) => panic!("a page was built wrongly: {what}"),
        }
    }

    /// Checks the page in itself: magic, version, checksum, layout.
    pub(crate) fn parse(bytes: Bytes) -> Result<Page, &'static str> {
        if bytes.len() < BLOCK_BYTES || !bytes.len().is_multiple_of(BLOCK_BYTES) {
            return Err("the page has no whole number of blocks");
        }
        if checksum_around(&bytes, CRC_AT) != u32_at(&bytes, CRC_AT) {
            return Err("the checksum does not match");
        }
        Page::parse_layout(bytes)
    }

    fn parse_layout(bytes: Bytes) -> Result<Page, &'static str> {
        if u32_at(&bytes, 0) != MAGIC {
            return Err("the page has no magic number");
        }
        if u16::from_le_bytes([bytes[4], bytes[5]]) != VERSION {
            return Err("the page has an unknown version");
        }
        let kind = match bytes[6] {
            1 => PageKind::Leaf,
            2 => PageKind::Inner,
            3 => PageKind::Overflow,
            4 => PageKind::FreeList,
            5 => PageKind::FileHeader,
            _ => return Err("the page is of an unknown kind"),
        };
        let level = bytes[7];
        let level_fits = if kind == PageKind::Inner {
            level > 0 && level < MAX_TREE_HEIGHT
        } else {
            level == 0
        };
        if !level_fits {
            return Err("the page has an impossible level");
        }
        let entries = u32_at(&bytes, 40);
        let end = u32_at(&bytes, 48) as usize;
        let prefix_at = HEADER_BYTES as u64 + u64::from(entries) * SLOT_BYTES as u64;
        let prefix_len = u32_at(&bytes, 44);
        let records_at = prefix_at + u64::from(prefix_len);
        if end > bytes.len() || records_at > end as u64 {
            return Err("the page's parts overlap");
        }
        let prefix = prefix_at as usize..records_at as usize;
        let checkpoint = u64_at(&bytes, 32);
        let (bytes, shares_at) = shared(bytes);
        let page = Page {
            bytes,
            shares_at,
            kind,
            level,
            entries,
            checkpoint,
            prefix,
            end,
            cached: Cached::default(),
        };
        match kind {
            PageKind::Leaf | PageKind::Inner => page.check_records()?,
            _ if entries != 0 || prefix_len != 0 => return Err("a payload page has entries"),
            _ => {}
        }
        Ok(page)
    }

    /// Checks every record once, so that reading cannot fail afterwards.
    fn check_records(&self) -> Result<(), &'static str> {
        if self.entries == 0 {
            return Err("the page is empty");
        }
        let mut at = self.prefix.end;
        for index in 0..self.len() {
            let (head, offset) = self.slot(index);
            if (offset & !OVERFLOW_BIT) as usize != at {
                return Err("a record begins in the wrong place");
            }
            let end = self.record_end(index);
            if end < at || end > self.end {
                return Err("a record ends outside the page");
            }
            let Some((suffix_len, skip)) = read_varint(&self.bytes[at..end]) else {
                return Err("a record has no key");
            };
            let Some(suffix_end) = (at + skip)
                .checked_add(suffix_len)
                .filter(|&suffix_end| suffix_end <= end)
            else {
                return Err("a key ends outside its record");
            };
            if head_of(&self.bytes[at + skip..suffix_end]) != head {
                return Err("a key does not match its head");
            }
            let value_len = end - suffix_end;
            let expected = match self.kind {
                PageKind::Inner => Some(PagePtr::BYTES),
                _ if offset & OVERFLOW_BIT != 0 => Some(OverflowRef::BYTES),
                _ => None,
            };
            if expected.is_some_and(|expected| expected != value_len) {
                return Err("a reference has the wrong length");
            }
            at = end;
        }
        Ok(())
    }

    pub(crate) fn kind(&self) -> PageKind {
        self.kind
    }

    /// 0 for a leaf, its children's level plus one for an inner page.
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.entries as usize
    }

    /// In a leaf: what identifies the versions of its records. Of each key a checkpoint writes one
    /// version that readers find there, and an older one at most where the sealed delta hides it,
    /// so the same key has another version only in the leaf of another checkpoint.
    #[inline]
    pub(crate) fn token(&self) -> VersionToken {
        VersionToken::of_leaf(self.checkpoint)
    }

    /// Length of the whole page.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the page that hold something.
    pub(crate) fn used_bytes(&self) -> usize {
        self.end
    }

    fn slot(&self, index: usize) -> (u32, u32) {
        let at = HEADER_BYTES + index * SLOT_BYTES;
        (u32_at(&self.bytes, at), u32_at(&self.bytes, at + 4))
    }

    fn offset(&self, index: usize) -> usize {
        (self.slot(index).1 & !OVERFLOW_BIT) as usize
    }

    fn record_end(&self, index: usize) -> usize {
        if index + 1 < self.len() {
            self.offset(index + 1)
        } else {
            self.end
        }
    }

    /// Where the suffix and the value of a record lie.
    fn record(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let (at, end) = (self.offset(index), self.record_end(index));
        let first = self.bytes[at];
        let (suffix_len, skip) = if first < 0x80 {
            (first as usize, 1)
        } else {
            read_varint(&self.bytes[at..end]).expect("pages are checked when they are loaded")
        };
        let suffix = at + skip..at + skip + suffix_len;
        (suffix.clone(), suffix.end..end)
    }

    fn prefix(&self) -> &[u8] {
        &self.bytes[self.prefix.clone()]
    }

    /// A record's key.
    pub(crate) fn key(&self, index: usize) -> Key {
        join_key(self.prefix(), &self.bytes[self.record(index).0])
    }

    /// A record's key, and what is stored of its value: one look at the record for both.
    pub(crate) fn key_and_value(&self, index: usize) -> (Key, Bytes) {
        let (suffix, value) = self.record(index);
        let key = join_key(self.prefix(), &self.bytes[suffix]);
        (key, self.bytes.slice(value))
    }

    /// Whether the value lies elsewhere.
    pub(crate) fn is_overflow(&self, index: usize) -> bool {
        self.slot(index).1 & OVERFLOW_BIT != 0
    }

    /// How a record's key compares with another key.
    pub(crate) fn compare(&self, index: usize, key: &[u8]) -> Ordering {
        let prefix = self.prefix();
        if key.len() < prefix.len() {
            return match prefix[..key.len()].cmp(key) {
                Ordering::Equal => Ordering::Greater,
                unequal => unequal,
            };
        }
        match prefix.cmp(&key[..prefix.len()]) {
            Ordering::Equal => self.bytes[self.record(index).0].cmp(&key[prefix.len()..]),
            unequal => unequal,
        }
    }

    /// Finds a key: its position, or the position at which it would stand.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.search_among(key, |_| {})
    }

    /// Finds a key whose value is wanted at once: the whole record is asked for while the key is
    /// compared.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        self.search_among(key, |index| self.expect_record(index))
            .ok()
    }

    /// Finds a key. `likely` is called with the first record that has the key's head.
    #[inline(always)]
    fn search_among(&self, key: &[u8], likely: impl FnOnce(usize)) -> Result<usize, usize> {
        let prefix = self.prefix();
        let common = prefix.len().min(key.len());
        if common > 0 {
            match key[..common].cmp(&prefix[..common]) {
                Ordering::Less => return Err(0),
                Ordering::Greater => return Err(self.len()),
                Ordering::Equal if key.len() < prefix.len() => return Err(0),
                Ordering::Equal => {}
            }
        } else if !prefix.is_empty() {
            return Err(0);
        }
        let suffix = &key[common..];
        let head = head_of(suffix);
        let slots = self.slots();
        let mut low = first_at_or_above(slots, head);
        if low == slots.len() || slot_head(&slots[low]) != head {
            return Err(low);
        }
        likely(low);
        let mut high = match slots.get(low + 1) {
            Some(next) if slot_head(next) == head => {
                let above = head.checked_add(1);
                above.map_or(slots.len(), |above| first_at_or_above(slots, above))
            }
            _ => low + 1,
        };
        while low < high {
            let middle = (low + high) / 2;
            match self.bytes[self.record(middle).0].cmp(suffix) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    fn slots(&self) -> &[[u8; SLOT_BYTES]] {
        let end = HEADER_BYTES + self.len() * SLOT_BYTES;
        self.bytes[HEADER_BYTES..end].as_chunks().0
    }

    /// Where the bytes lie that a search reads first.
    pub(super) fn first_read(&self) -> usize {
        self.bytes.as_ptr().addr() + HEADER_BYTES
    }

    /// Has the processor fetch a record, as far as a page of usual size has one, and what a share
    /// of it touches.
    pub(crate) fn expect_record(&self, index: usize) {
        let (at, end) = (self.offset(index), self.record_end(index));
        let len = (end - at).min(EXPECTED_RECORD_BYTES);
        hint::lines(self.bytes.as_ptr().addr() + at, len);
        hint::line(self.shares_at);
    }

    /// In an inner page: the child in whose range `key` lies.
    pub(crate) fn child_index(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    /// In an inner page: a child.
    pub(crate) fn child(&self, index: usize) -> PagePtr {
        assert_eq!(self.kind, PageKind::Inner);
        PagePtr::decode(&self.bytes[self.record(index).1])
    }

    /// A record's value as it lies in the page: a slice that shares the page's buffer.
    pub(crate) fn value(&self, index: usize) -> Bytes {
        self.bytes.slice(self.record(index).1)
    }

    /// The same without a share of the buffer.
    pub(crate) fn value_bytes(&self, index: usize) -> &[u8] {
        &self.bytes[self.record(index).1]
    }

    /// Length of a record's value as it lies in the page.
    pub(crate) fn value_len(&self, index: usize) -> usize {
        self.record(index).1.len()
    }

    /// In a leaf: length of a record's value, wherever it lies.
    pub(crate) fn stored_len(&self, index: usize) -> u64 {
        match self.overflow(index) {
            Some(overflow) => u64::from(overflow.len),
            None => self.value_len(index) as u64,
        }
    }

    /// In a leaf: where the value lies if it is not in the page.
    pub(crate) fn overflow(&self, index: usize) -> Option<OverflowRef> {
        self.is_overflow(index)
            .then(|| OverflowRef::decode(&self.bytes[self.record(index).1]))
    }

    /// The whole page as it lies on disk.
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Payload of a page without records.
    pub(crate) fn payload(&self) -> Bytes {
        assert!(!matches!(self.kind, PageKind::Leaf | PageKind::Inner));
        self.bytes.slice(HEADER_BYTES..self.end)
    }
}

/// The buffer of a page behind the count of its shares.
struct Shared {
    bytes: Bytes,
    /// Where the count lies.
    count_at: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        // The count stands before its owner, with a pointer between them.
        let count_at = std::ptr::from_ref(self).addr() - 2 * size_of::<usize>();
        self.count_at.store(count_at, Relaxed);
        &self.bytes
    }
}

/// Makes the buffer one of which it is known where the count of its shares lies: taking a
/// share waits for that line, unless it was asked for before. The address is never read, so a wrong
/// one would cost nothing but that wait.
fn shared(bytes: Bytes) -> (Bytes, usize) {
    let count_at = Arc::new(AtomicUsize::new(0));
    let bytes = Bytes::from_owner(Shared {
        bytes,
        count_at: count_at.clone(),
    });
    (bytes, count_at.load(Relaxed))
}

fn slot_head(slot: &[u8; SLOT_BYTES]) -> u32 {
    u32_at(slot, 0)
}

/// The first slot whose head is not below `head`. There is no branch to be guessed in it.
#[inline]
fn first_at_or_above(slots: &[[u8; SLOT_BYTES]], head: u32) -> usize {
    let (mut base, mut size) = (0, slots.len());
    while size > 1 {
        let half = size / 2;
        base = std::hint::select_unpredictable(
            slot_head(&slots[base + half - 1]) < head,
            base + half,
            base,
        );
        size -= half;
    }
    base + usize::from(size == 1 && slot_head(&slots[base]) < head)
}

/// A key of two parts. One that fits is put together in place.
fn join_key(prefix: &[u8], suffix: &[u8]) -> Key {
    let len = prefix.len() + suffix.len();
    let mut buffer = [0; 32];
    if prefix.is_empty() {
        Key::from_slice(suffix)
    } else if len <= buffer.len() {
        buffer[..prefix.len()].copy_from_slice(prefix);
        buffer[prefix.len()..len].copy_from_slice(suffix);
        Key::from_buf_and_len(buffer, len)
    } else {
        let mut key = Key::with_capacity(len);
        key.extend_from_slice(prefix);
        key.extend_from_slice(suffix);
        key
    }
}

/// One record on its way into a page.
pub(crate) trait Record {
    fn key(&self) -> &[u8];
    fn value(&self) -> &[u8];
    /// Whether the value is an [`OverflowRef`].
    fn is_overflow(&self) -> bool;
}

/// Bytes that a record takes in a page whose keys share `prefix_len` bytes.
pub(crate) fn record_bytes(key_len: usize, value_len: usize, prefix_len: usize) -> usize {
    let suffix_len = key_len - prefix_len;
    SLOT_BYTES + varint_len(suffix_len) + suffix_len + value_len
}

/// Length of what two keys begin with in common.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// What is said of a page beside its records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageHeader {
    pub kind: PageKind,
    pub level: u8,
    pub tree: TreeId,
    pub checkpoint: u64,
}

/// Lays out a leaf or an inner page. `records` are in strictly ascending order and at least one.
/// [`seal`] completes it.
pub(crate) fn build_page<R: Record>(header: PageHeader, records: &[R]) -> DmaBuf {
    assert!(matches!(header.kind, PageKind::Leaf | PageKind::Inner));
    let (first, last) = (
        records.first().expect("a page has records"),
        records.last().expect("a page has records"),
    );
    let prefix = &first.key()[..common_prefix(first.key(), last.key())];
    let used = HEADER_BYTES
        + prefix.len()
        + records
            .iter()
            .map(|r| record_bytes(r.key().len(), r.value().len(), prefix.len()))
            .sum::<usize>();
    assert!(used <= MAX_PAGE_BYTES, "a page of {used} bytes");
    let len = used.next_multiple_of(BLOCK_BYTES);
    // From front to back, so that nothing need be cleared first, and where it is written from and
    // cached.
    let mut page = DmaBuf::with_capacity(len);
    page.extend_from_slice(&encode_header(
        header,
        len,
        records.len(),
        prefix.len(),
        used,
    ));
    let mut at = HEADER_BYTES + records.len() * SLOT_BYTES + prefix.len();
    let mut previous: Option<&R> = None;
    for record in records {
        assert!(
            previous.is_none_or(|previous| previous.key() < record.key()),
            "records out of order"
        );
        previous = Some(record);
        let overflow = if record.is_overflow() {
            OVERFLOW_BIT
        } else {
            0
        };
        let head = head_of(&record.key()[prefix.len()..]);
        page.extend_from_slice(&head.to_le_bytes());
        page.extend_from_slice(&(at as u32 | overflow).to_le_bytes());
        at += record_bytes(record.key().len(), record.value().len(), prefix.len()) - SLOT_BYTES;
    }
    page.extend_from_slice(prefix);
    for record in records {
        let suffix = &record.key()[prefix.len()..];
        let mut suffix_len = [0; 10];
        let digits = write_varint(&mut suffix_len, suffix.len());
        page.extend_from_slice(&suffix_len[..digits]);
        page.extend_from_slice(suffix);
        page.extend_from_slice(record.value());
    }
    assert!(
        page.len() == used && at == used,
        "the page's size was computed wrongly"
    );
    page.pad_to(len);
    page
}

/// Blocks of a page with a payload of `len` bytes.
pub(crate) fn payload_blocks(len: usize) -> u64 {
    (HEADER_BYTES + len).div_ceil(BLOCK_BYTES) as u64
}

/// Lays out a page without records in `blocks` blocks. [`seal`] completes it.
pub(crate) fn build_payload(header: PageHeader, payload: &[u8], blocks: u64) -> DmaBuf {
    assert!(!matches!(header.kind, PageKind::Leaf | PageKind::Inner) && header.level == 0);
    assert!(
        blocks >= payload_blocks(payload.len()) && blocks <= MAX_PAGE_BLOCKS,
        "a payload of {} bytes",
        payload.len()
    );
    let used = HEADER_BYTES + payload.len();
    let len = blocks as usize * BLOCK_BYTES;
    let mut page = DmaBuf::with_capacity(len);
    page.extend_from_slice(&encode_header(header, len, 0, 0, used));
    page.extend_from_slice(payload);
    page.pad_to(len);
    page
}

/// Gives a laid-out page its place and its checksum.
pub(crate) fn seal(page: &mut [u8], block: u64, overflow: bool) -> PagePtr {
    page[BLOCK_AT..BLOCK_AT + 8].copy_from_slice(&block.to_le_bytes());
    let crc = checksum_around(page, CRC_AT);
    page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    PagePtr {
        block,
        blocks: (page.len() / BLOCK_BYTES) as u32,
        overflow,
        crc,
    }
}

fn encode_header(
    header: PageHeader,
    page_len: usize,
    entries: usize,
    prefix_len: usize,
    used: usize,
) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6] = header.kind as u8;
    bytes[7] = header.level;
    let blocks = (page_len / BLOCK_BYTES) as u32;
    bytes[12..16].copy_from_slice(&blocks.to_le_bytes());
    bytes[24..32].copy_from_slice(&header.tree.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&header.checkpoint.to_le_bytes());
    bytes[40..44].copy_from_slice(&(entries as u32).to_le_bytes());
    bytes[44..48].copy_from_slice(&(prefix_len as u32).to_le_bytes());
    bytes[48..52].copy_from_slice(&(used as u32).to_le_bytes());
    bytes
}

/// The first four bytes of a suffix as a number that orders like them; shorter suffixes are filled
/// with zeros, so equal heads decide nothing.
pub(crate) fn head_of(suffix: &[u8]) -> u32 {
    match suffix.first_chunk::<4>() {
        Some(head) => u32::from_be_bytes(*head),
        None => {
            let mut head = [0; 4];
            head[..suffix.len()].copy_from_slice(suffix);
            u32::from_be_bytes(head)
        }
    }
}

fn varint_len(value: usize) -> usize {
    let mut len = 1;
    let mut rest = value >> 7;
    while rest > 0 {
        len += 1;
        rest >>= 7;
    }
    len
}

/// Writes a LEB128 number and returns its length.
pub(crate) fn write_varint(out: &mut [u8], value: usize) -> usize {
    let mut rest = value;
    let mut at = 0;
    while rest >= 0x80 {
        out[at] = rest as u8 | 0x80;
        rest >>= 7;
        at += 1;
    }
    out[at] = rest as u8;
    at + 1
}

/// Reads a LEB128 number of at most nine bytes: the number and its length.
pub(crate) fn read_varint(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0usize;
    for (index, &byte) in bytes.iter().take(9).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some((value, index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pair(Vec<u8>, Vec<u8>, bool);

    impl Record for Pair {
        fn key(&self) -> &[u8] {
            &self.0
        }
        fn value(&self) -> &[u8] {
            &self.1
        }
        fn is_overflow(&self) -> bool {
            self.2
        }
    }

    const LEAF: PageHeader = PageHeader {
        kind: PageKind::Leaf,
        level: 0,
        tree: TreeId(9),
        checkpoint: 3,
    };

    fn leaf(keys: &[&[u8]]) -> Page {
        let records: Vec<Pair> = keys
            .iter()
            .map(|key| Pair(key.to_vec(), key.iter().rev().copied().collect(), false))
            .collect();
        let mut bytes = build_page(LEAF, &records);
        let ptr = seal(&mut bytes, 17, false);
        Page::load(bytes.into_bytes(), &ptr, TreeId(9)).unwrap()
    }

    fn check_search(keys: &[&[u8]], probes: &[&[u8]]) {
        let page = leaf(keys);
        assert_eq!(page.len(), keys.len());
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(page.key(index).as_slice(), *key);
            let reversed: Vec<u8> = key.iter().rev().copied().collect();
            assert_eq!(page.value(index), reversed);
        }
        for probe in keys.iter().chain(probes) {
            let expected = keys.binary_search(probe);
            assert_eq!(page.search(probe), expected, "{probe:?} in {keys:?}");
            for (index, key) in keys.iter().enumerate() {
                assert_eq!(page.compare(index, probe), (*key).cmp(*probe));
            }
        }
    }

    #[test]
    fn search_agrees_with_a_sorted_slice() {
        check_search(&[b""], &[b"a", b"\0"]);
        check_search(
            &[b"", b"\0", b"\0\0", b"\0\0\0\0", b"\0\0\0\0\0", b"\x01"],
            &[b"\0\0\0", b"\xff"],
        );
        check_search(
            &[b"abc", b"abcd", b"abcde", b"abcdef", b"abd"],
            &[b"ab", b"abb", b"abcdee", b"b", b"", b"abe"],
        );
        check_search(
            &[b"prefix-0001", b"prefix-0002", b"prefix-0010"],
            &[b"prefix", b"prefix-", b"prefiy", b"prefix-0003"],
        );
    }

    #[test]
    fn search_agrees_for_random_keys() {
        let mut state = 7u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200 {
            let mut keys = std::collections::BTreeSet::new();
            for _ in 0..random() % 60 + 1 {
                let len = random() % 9;
                keys.insert((0..len).map(|_| (random() % 3) as u8).collect::<Vec<u8>>());
            }
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let probes: Vec<Vec<u8>> = (0..20)
                .map(|_| (0..random() % 9).map(|_| (random() % 4) as u8).collect())
                .collect();
            check_search(&keys, &probes.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let records = [
            Pair(b"a".to_vec(), b"1".to_vec(), false),
            Pair(b"b".to_vec(), b"2".to_vec(), false),
        ];
        let mut bytes = build_page(LEAF, &records);
        let ptr = seal(&mut bytes, 17, false);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Page::load(Bytes::from(damaged), &ptr, TreeId(9)).is_err(),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_page_in_the_wrong_place_is_found() {
        let records = [Pair(b"a".to_vec(), b"1".to_vec(), false)];
        let mut bytes = build_page(LEAF, &records);
        let ptr = seal(&mut bytes, 17, false);
        let bytes = bytes.into_bytes();
        assert!(Page::load(bytes.clone(), &ptr, TreeId(9)).is_ok());
        assert!(Page::load(bytes.clone(), &ptr, TreeId(8)).is_err());
        assert!(Page::load(bytes.clone(), &PagePtr { block: 18, ..ptr }, TreeId(9)).is_err());
        assert!(
            Page::load(
                bytes.clone(),
                &PagePtr {
                    crc: !ptr.crc,
                    ..ptr
                },
                TreeId(9)
            )
            .is_err()
        );
        assert!(Page::load(bytes, &PagePtr { blocks: 2, ..ptr }, TreeId(9)).is_err());
    }

    /// Damage below an intact checksum must be an error, never a panic.
    #[test]
    fn nonsense_with_a_sound_checksum_never_panics() {
        let records: Vec<Pair> = (0..40u8)
            .map(|n| Pair(vec![b'k', n], vec![n; 16], n % 2 == 0))
            .collect();
        let sound = build_page(LEAF, &records);
        let mut state = 99u64;
        for round in 0..3000u64 {
            let mut bytes = sound.to_vec();
            for _ in 0..1 + round % 3 {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % 1500;
                bytes[at] = (state >> 20) as u8;
            }
            let crc = checksum_around(&bytes, CRC_AT);
            bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            if let Ok(page) = Page::parse(Bytes::from(bytes))
                && matches!(page.kind(), PageKind::Leaf)
            {
                for index in 0..page.len() {
                    let _ = (page.key(index), page.value(index), page.overflow(index));
                }
                let _ = page.search(b"kx");
            }
        }
    }

    #[test]
    fn pointers_survive_packing() {
        for ptr in [
            PagePtr {
                block: 0,
                blocks: 1,
                overflow: false,
                crc: 0,
            },
            PagePtr {
                block: (1 << 40) - 1,
                blocks: 0xffff,
                overflow: true,
                crc: u32::MAX,
            },
        ] {
            assert_eq!(PagePtr::decode(&ptr.encode()), ptr);
        }
    }
}
