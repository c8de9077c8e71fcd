//! Cuts: above which timestamp the entries of an epoch do not exist.

use pinion_clock::Timestamp;

/// From `epoch` on, entries of earlier epochs above `at` do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The epoch that began with it.
    pub epoch: u64,
    /// The last timestamp of earlier epochs that exists.
    pub at: u64,
    /// The highest timestamp in any ring when the cut was made, or that an earlier cut discarded.
    /// No discarded entry lies above it.
    pub discarded_through: u64,
}

/// The cuts that may still matter, by ascending epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cuts(pub Vec<Cut>);

impl Cuts {
    /// The highest timestamp at which an entry of `epoch` exists.
    pub(crate) fn limit(&self, epoch: u64) -> Timestamp {
        let later = self
            .0
            .iter()
            .filter(|cut| cut.epoch > epoch)
            .map(|cut| cut.at);
        later.min().map_or(Timestamp::MAX, Timestamp::from_u64)
    }

    /// Adds the cut of a new epoch, if it discards anything, and forgets those it makes redundant.
    /// It still discards what they discarded, though it may not have been seen now: the removal
    /// of a segment may be undone by a loss of power.
    pub(crate) fn add(&mut self, mut cut: Cut) {
        assert!(
            self.0.last().is_none_or(|last| last.epoch < cut.epoch),
            "epochs ascend"
        );
        let redundant = self.0.extract_if(.., |earlier| earlier.at >= cut.at);
        let through = redundant.map(|earlier| earlier.discarded_through).max();
        cut.discarded_through = cut.discarded_through.max(through.unwrap_or(0));
        if cut.discarded_through > cut.at {
            self.0.push(cut);
        }
    }

    /// Forgets the cuts that discarded nothing above `base`: entries at or below the base are never
    /// looked at.
    pub(crate) fn prune(&mut self, base: Timestamp) {
        self.0.retain(|cut| cut.discarded_through > base.as_u64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_later_cut_decides() {
        let mut cuts = Cuts::default();
        let cut = |epoch, at, discarded_through| Cut {
            epoch,
            at,
            discarded_through,
        };
        cuts.add(cut(2, 100, 110));
        cuts.add(cut(3, 120, 130));
        let check =
            |cuts: &Cuts, epoch, expected: u64| assert_eq!(cuts.limit(epoch).as_u64(), expected);
        check(&cuts, 1, 100);
        check(&cuts, 2, 120);
        check(&cuts, 3, u64::MAX);
        cuts.add(cut(4, 125, 125));
        check(&cuts, 3, u64::MAX);
        cuts.prune(Timestamp::from_u64(115));
        check(&cuts, 1, 120);
        cuts.add(cut(5, 90, 130));
        assert_eq!(cuts.0.len(), 1);
        check(&cuts, 3, 90);
    }

    #[test]
    fn a_cut_that_sees_nothing_to_discard_keeps_the_one_before_it() {
        let mut cuts = Cuts::default();
        let cut = |epoch, at, discarded_through| Cut {
            epoch,
            at,
            discarded_through,
        };
        cuts.add(cut(5, 208, 211));
        cuts.add(cut(6, 208, 208));
        assert_eq!(cuts.limit(4).as_u64(), 208);
        cuts.prune(Timestamp::from_u64(210));
        assert_eq!(cuts.limit(4).as_u64(), 208);
        cuts.prune(Timestamp::from_u64(211));
        assert_eq!(cuts.limit(4), Timestamp::MAX);
    }
}
