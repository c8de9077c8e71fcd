//! How a read reaches its documents.

use std::rc::Rc;
use std::sync::Arc;

use pinion_catalog::{Collection, Index, IndexPlacement, Placement, partition_of};
use pinion_query::{SortedField, document_text};
use pinion_storage::{
    Cursor, Direction, Key, KeyRange, Partition, PartitionId, ReadAt, TreeId, storage,
};

/// Ranges of an index, or of the collection's own tree.
#[derive(Clone, Debug)]
pub struct RangeAccess {
    /// None for the `_id` index, which is the collection's own tree.
    pub index: Option<Arc<Index>>,
    /// Disjoint and ascending; walked from the last when descending.
    pub ranges: Vec<KeyRange>,
    pub descending: bool,
    /// A document may have several entries within the ranges.
    pub repeats: bool,
    /// The fields' parts of the keys, when the ranges are exactly the entries with these.
    pub points: Option<Vec<Key>>,
}

impl RangeAccess {
    /// Every document of the collection.
    pub fn everything(descending: bool) -> RangeAccess {
        RangeAccess {
            index: None,
            ranges: vec![KeyRange::all()],
            descending,
            repeats: false,
            points: None,
        }
    }

    /// Whether the entries lie where their own hash says and not beside their documents.
    pub(super) fn is_apart(&self) -> bool {
        self.index
            .as_ref()
            .is_some_and(|index| index.placement == IndexPlacement::ByKey)
    }

    /// A cursor over the range that comes `turn`-th.
    pub(super) fn cursor(
        &self,
        collection: &Collection,
        partition: &Rc<Partition>,
        turn: usize,
        at: ReadAt,
    ) -> Cursor {
        let direction = match self.descending {
            true => Direction::Reverse,
            false => Direction::Forward,
        };
        let tree = self
            .index
            .as_ref()
            .map_or(collection.tree(), |index| index.tree);
        partition.cursor(tree, self.range(turn).clone(), direction, at)
    }

    /// The range that comes `turn`-th.
    pub(super) fn range(&self, turn: usize) -> &KeyRange {
        match self.descending {
            true => &self.ranges[self.ranges.len() - 1 - turn],
            false => &self.ranges[turn],
        }
    }

    fn partitions(&self, collection: &Collection) -> Vec<PartitionId> {
        if collection.placement == Placement::One {
            return vec![PartitionId(0)];
        }
        match &self.points {
            // One core decides on these keys, so only it is asked.
            Some(points) if self.is_apart() || self.index.is_none() => {
                let mut partitions: Vec<PartitionId> = points
                    .iter()
                    .map(|point| storage().partition_of_hash(point))
                    .collect();
                partitions.sort();
                partitions.dedup();
                partitions
            }
            _ => (0..storage().partition_count()).map(PartitionId).collect(),
        }
    }
}

/// A scan of a geospatial index outward from a point.
#[derive(Clone, Debug)]
pub struct NearAccess {
    /// The index, whose ranges the search gives ring after ring.
    pub branch: RangeAccess,
    pub planned: Arc<pinion_query::NearAccess>,
}

/// Scans of indexes each of which has the order of a sort.
#[derive(Clone, Debug)]
pub struct MergeAccess {
    pub branches: Vec<RangeAccess>,
    /// For each branch where its keys have the fields of the sort.
    pub orders: Vec<Vec<SortedField>>,
    /// No entry is in two of the branches: they are values of one index.
    pub is_disjoint: bool,
}

/// The way to the documents.
#[derive(Clone, Debug)]
pub enum Access {
    /// Nothing can match.
    Nothing,
    /// One document by the key of its `_id`.
    Id(Key),
    /// A scan of the whole collection.
    Collection(RangeAccess),
    /// A scan of an index.
    Index(RangeAccess),
    /// The documents of any of these, each once.
    Union(Vec<RangeAccess>),
    /// As `Union`, in the order of a sort.
    Merge(MergeAccess),
    /// Documents by their distance.
    Near(NearAccess),
}

impl Access {
    pub(super) fn branches(&self) -> &[RangeAccess] {
        match self {
            Access::Nothing | Access::Id(_) => &[],
            Access::Collection(access) | Access::Index(access) => std::slice::from_ref(access),
            Access::Union(branches) => branches,
            Access::Merge(merge) => &merge.branches,
            Access::Near(near) => std::slice::from_ref(&near.branch),
        }
    }

    /// Has a scan of the whole collection go over this range alone.
    pub(super) fn narrow(&mut self, range: KeyRange) {
        if let Access::Collection(access) = self {
            access.ranges = vec![range];
        }
    }

    /// The plan in a few words, as slow operations are logged with it.
    pub(crate) fn summary(&self) -> String {
        match self {
            Access::Nothing => "EOF".into(),
            Access::Id(_) => "IDHACK".into(),
            Access::Collection(_) => "COLLSCAN".into(),
            Access::Index(_) | Access::Union(_) | Access::Merge(_) => self.summary_of("IXSCAN"),
            Access::Near(_) => self.summary_of("GEO_NEAR"),
        }
    }

    /// As [`Access::summary`], where each index is scanned by this stage.
    pub(super) fn summary_of(&self, stage: &str) -> String {
        let keys = |branch: &RangeAccess| match &branch.index {
            Some(index) => document_text(index.key()),
            None => "{ _id: 1 }".into(),
        };
        let scan = |branch: &RangeAccess| format!("{stage} {}", keys(branch));
        let all: Vec<String> = self.branches().iter().map(scan).collect();
        all.join(", ")
    }

    pub(crate) fn is_descending(&self) -> bool {
        match self {
            Access::Collection(access) | Access::Index(access) => access.descending,
            _ => false,
        }
    }

    /// Whether one part may meet the same document more than once.
    pub(super) fn repeats(&self) -> bool {
        self.branches().len() > 1 || self.branches().iter().any(|branch| branch.repeats)
    }

    /// Whether the same document may come from several partitions.
    pub(crate) fn repeats_over_parts(&self) -> bool {
        self.repeats() && self.reads_elsewhere()
    }

    /// Whether a part reads documents of other partitions, whose state at the read's timestamp must
    /// then be kept too.
    pub(crate) fn reads_elsewhere(&self) -> bool {
        self.branches().iter().any(RangeAccess::is_apart)
    }

    /// The partitions that hold something of this access.
    pub(crate) fn partitions(&self, collection: &Collection) -> Vec<PartitionId> {
        match self {
            Access::Nothing => Vec::new(),
            Access::Id(key) => vec![partition_of(collection, key)],
            _ => {
                let mut partitions: Vec<PartitionId> = self
                    .branches()
                    .iter()
                    .flat_map(|branch| branch.partitions(collection))
                    .collect();
                partitions.sort();
                partitions.dedup();
                partitions
            }
        }
    }

    /// The trees of the indexes it uses; the collection's own is that on `_id`.
    pub(crate) fn used_trees(&self, collection: &Collection) -> Vec<TreeId> {
        let tree_of = |branch: &RangeAccess| match &branch.index {
            Some(index) => index.tree,
            None => collection.tree(),
        };
        match self {
            Access::Nothing | Access::Collection(_) => Vec::new(),
            Access::Id(_) => vec![collection.tree()],
            Access::Index(_) | Access::Union(_) | Access::Merge(_) | Access::Near(_) => {
                let mut trees: Vec<TreeId> = self.branches().iter().map(tree_of).collect();
                trees.sort();
                trees.dedup();
                trees
            }
        }
    }

    /// The indexes it uses, but for that on `_id`.
    pub(crate) fn indexes(&self) -> Vec<String> {
        self.branches()
            .iter()
            .filter_map(|branch| branch.index.as_ref())
            .map(|index| index.name().to_owned())
            .collect()
    }
}
