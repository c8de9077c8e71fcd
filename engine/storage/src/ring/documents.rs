//! How many documents of the log a segment holds, and their bytes.

use std::ops::AddAssign;

/// Documents of the log. They are counted while a segment is written; of a large one that was
/// written before the node started they are estimated by samples of its frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Documents {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Documents {
    /// Counts the entry of this length, without its header. A link of the chain holds no document.
    pub(super) fn add(&mut self, entry_bytes: usize) {
        self.count += u64::from(entry_bytes > 0);
        self.bytes += entry_bytes as u64;
    }

    /// How many there are in `whole`, if these are in `part` of it.
    pub(crate) fn scaled(self, whole: u64, part: u64) -> Documents {
        assert!(part > 0, "documents lie in something");
        let scale = |n: u64| (u128::from(n) * u128::from(whole) / u128::from(part)) as u64;
        Documents {
            count: scale(self.count),
            bytes: scale(self.bytes),
        }
    }
}

impl AddAssign for Documents {
    fn add_assign(&mut self, other: Documents) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}
