//! At which keys a chunk is split: a search over the keys in their order, the top chunk, and
//! commits in turn.

use super::limits::{MAX_CHUNK_OBJECTS, MAX_MIDDLE_SAMPLES, MAX_SPLIT_POINTS};
use crate::chunk::ChunkRange;
use crate::key::{KeyBytes, ShardKeyPattern};

/// What the storage knows of a chunk, or of the collection in place of it.
#[derive(Clone, Copy, Debug)]
pub struct ChunkSize {
    pub size_bytes: u64,
    pub documents: u64,
}

/// What is asked of `splitVector`.
#[derive(Clone, Copy, Debug)]
pub struct SplitLimits {
    pub max_chunk_size_bytes: u64,
    /// How many points are looked for at most.
    pub max_points: Option<usize>,
    /// How many documents a part is made for at most, where its size allows more.
    pub max_documents: Option<u64>,
    /// Split in two whatever the size.
    pub is_forced: bool,
}

/// A search for split points. Keys are given in their order. The first key is no point: the part
/// before it would be empty.
#[derive(Debug)]
pub struct SplitSearch {
    first: Option<KeyBytes>,
    /// The first key that differs from it.
    second: Option<KeyBytes>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Every `documents`-th key that differs from the point before it.
    Every {
        documents: u64,
        max_points: usize,
        points: Vec<KeyBytes>,
        /// Since the last point.
        counted: u64,
        has_frequent_key: bool,
    },
    /// The key in the middle, of which the place is known only at the end: every `stride`-th key is
    /// kept, and every second of those dropped when there are too many.
    Middle {
        stride: u64,
        counted: u64,
        kept: Vec<KeyBytes>,
    },
}

impl SplitSearch {
    /// `None` where there is nothing to split: no document, or less data than the greatest size.
    /// Parts have half of that size, if all documents are of the average size.
    pub fn new(size: ChunkSize, limits: SplitLimits) -> Option<SplitSearch> {
        if limits.is_forced {
            return Some(SplitSearch::of(Kind::Middle {
                stride: 1,
                counted: 0,
                kept: Vec::new(),
            }));
        }
        if size.documents == 0 || size.size_bytes < limits.max_chunk_size_bytes {
            return None;
        }
        let average_bytes = (size.size_bytes / size.documents).max(1);
        let by_size = limits.max_chunk_size_bytes / (2 * average_bytes);
        let most = limits.max_documents.unwrap_or(MAX_CHUNK_OBJECTS);
        Some(SplitSearch::of(Kind::Every {
            documents: by_size.min(most).max(1),
            max_points: limits.max_points.unwrap_or(usize::MAX),
            points: Vec::new(),
            counted: 0,
            has_frequent_key: false,
        }))
    }

    fn of(kind: Kind) -> SplitSearch {
        SplitSearch {
            first: None,
            second: None,
            kind,
        }
    }

    /// Takes the next key in the order of the shard key's index. Whether more are of use.
    pub fn next_key(&mut self, key: &KeyBytes) -> bool {
        let first = self.first.get_or_insert_with(|| key.clone());
        if self.second.is_none() && key != first {
            self.second = Some(key.clone());
        }
        match &mut self.kind {
            Kind::Every {
                documents,
                max_points,
                points,
                counted,
                has_frequent_key,
            } => {
                if *counted >= *documents && points.len() < *max_points {
                    match points.last().unwrap_or(first) == key {
                        // It cannot be cut within one key.
                        true => *has_frequent_key = true,
                        false => {
                            points.push(key.clone());
                            *counted = 0;
                        }
                    }
                }
                *counted += 1;
                points.len() < *max_points
            }
            Kind::Middle {
                stride,
                counted,
                kept,
            } => {
                if *counted % *stride == 0 {
                    kept.push(key.clone());
                }
                *counted += 1;
                if kept.len() == MAX_MIDDLE_SAMPLES {
                    let mut at = 0;
                    kept.retain(|_| {
                        at += 1;
                        at % 2 == 1
                    });
                    *stride *= 2;
                }
                true
            }
        }
    }

    /// Whether more documents have one key than a part should have.
    pub fn has_frequent_key(&self) -> bool {
        matches!(
            self.kind,
            Kind::Every {
                has_frequent_key: true,
                ..
            }
        )
    }

    /// The points in their order. None at all where one key alone was seen.
    pub fn finish(self) -> Vec<KeyBytes> {
        match self.kind {
            Kind::Every { points, .. } => points,
            Kind::Middle { kept, .. } => {
                let middle = kept.get(kept.len() / 2).cloned();
                // Where half of the documents have the first key, the part before the point has
                // that key alone.
                let is_point = |key: &KeyBytes| Some(key) != self.first.as_ref();
                middle
                    .filter(is_point)
                    .or(self.second)
                    .into_iter()
                    .collect()
            }
        }
    }
}

/// A split of the first or the last chunk of a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct TopChunkSplit {
    pub points: Vec<KeyBytes>,
    /// The part in which the next inserts are expected: to be moved to another shard.
    pub moved: Option<ChunkRange>,
}

/// Puts the lowest key of the collection's first chunk in the place of its first point, and the
/// highest key of its last chunk in the place of its last point, so that the outer part has next to
/// nothing and is moved for as much. `lowest` and `highest` are the keys in the chunk.
///
/// With one point alone it stays where it was: the chunk would not become smaller.
pub fn split_top_chunk(
    key: &ShardKeyPattern,
    chunk: &ChunkRange,
    mut points: Vec<KeyBytes>,
    lowest: &KeyBytes,
    highest: &KeyBytes,
) -> TopChunkSplit {
    let is_last = chunk.max == key.max();
    let is_first = chunk.min == key.min();
    let mut moved = None;
    if points.len() > 1 && is_last {
        let end = points.last_mut().expect("there are some");
        if *end < *highest && *highest < chunk.max {
            *end = highest.clone();
            moved = Some(ChunkRange {
                min: highest.clone(),
                max: chunk.max.clone(),
            });
        }
    } else if points.len() > 1 && is_first && points[0] > *lowest && *lowest > chunk.min {
        points[0] = lowest.clone();
        moved = Some(ChunkRange {
            min: chunk.min.clone(),
            max: lowest.clone(),
        });
    }
    TopChunkSplit { points, moved }
}

/// One commit of a split.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitCommit {
    /// The chunk as it is when its turn comes.
    pub chunk: ChunkRange,
    pub points: Vec<KeyBytes>,
}

/// The commits that split a chunk at these points, one after the other: each splits what the one
/// before it left at the end.
pub fn in_turns(chunk: &ChunkRange, points: &[KeyBytes]) -> Vec<SplitCommit> {
    let mut min = chunk.min.clone();
    points
        .chunks(MAX_SPLIT_POINTS)
        .map(|points| {
            let last = points.last().expect("a chunk of a slice has some").clone();
            SplitCommit {
                chunk: ChunkRange {
                    min: std::mem::replace(&mut min, last),
                    max: chunk.max.clone(),
                },
                points: points.to_vec(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;
    use crate::testing::{HIGHEST, LOWEST, bound};

    fn pattern() -> ShardKeyPattern {
        ShardKeyPattern::parse(&rawdoc! { "a": 1 }).expect("a pattern")
    }

    fn key(value: i64) -> KeyBytes {
        pattern().bound(&bound(value)).expect("a key")
    }

    fn range(min: i64, max: i64) -> ChunkRange {
        ChunkRange {
            min: key(min),
            max: key(max),
        }
    }

    const LIMITS: SplitLimits = SplitLimits {
        max_chunk_size_bytes: 1000,
        max_points: None,
        max_documents: None,
        is_forced: false,
    };

    /// Of documents of 100 bytes with these keys.
    fn points(keys: &[i64], limits: SplitLimits) -> Option<Vec<KeyBytes>> {
        let size = ChunkSize {
            size_bytes: keys.len() as u64 * 100,
            documents: keys.len() as u64,
        };
        let mut search = SplitSearch::new(size, limits)?;
        for value in keys {
            if !search.next_key(&key(*value)) {
                break;
            }
        }
        Some(search.finish())
    }

    fn keys(values: &[i64]) -> Vec<KeyBytes> {
        values.iter().map(|value| key(*value)).collect()
    }

    #[test]
    fn parts_have_half_of_the_size() {
        let all: Vec<i64> = (0..23).collect();
        // Smaller than the greatest size: nothing.
        assert_eq!(points(&all[..9], LIMITS), None);
        assert_eq!(points(&[], LIMITS), None);
        assert_eq!(points(&all[..10], LIMITS), Some(keys(&[5])));
        assert_eq!(points(&all, LIMITS), Some(keys(&[5, 10, 15, 20])));
        let few = SplitLimits {
            max_points: Some(2),
            ..LIMITS
        };
        assert_eq!(points(&all, few), Some(keys(&[5, 10])));
        // A limit of documents makes smaller parts, and none where the size is small.
        let small = SplitLimits {
            max_documents: Some(3),
            ..LIMITS
        };
        assert_eq!(points(&all[..10], small), Some(keys(&[3, 6, 9])));
        assert_eq!(points(&all[..9], small), None);
        // Documents larger than a chunk: each is a part.
        let tiny = SplitLimits {
            max_chunk_size_bytes: 50,
            ..LIMITS
        };
        assert_eq!(points(&all[..4], tiny), Some(keys(&[1, 2, 3])));
    }

    #[test]
    fn a_key_is_not_cut() {
        assert_eq!(points(&[7; 40], LIMITS), Some(Vec::new()));
        let mut frequent = vec![1; 12];
        frequent.extend([2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(points(&frequent, LIMITS), Some(keys(&[2, 7])));
        let size = ChunkSize {
            size_bytes: 4000,
            documents: 40,
        };
        let mut search = SplitSearch::new(size, LIMITS).expect("large");
        for _ in 0..40 {
            assert!(search.next_key(&key(7)));
        }
        assert!(search.has_frequent_key());
    }

    #[test]
    fn a_forced_split_is_in_the_middle() {
        let forced = SplitLimits {
            is_forced: true,
            ..LIMITS
        };
        let check = |values: &[i64], expected: &[i64]| {
            assert_eq!(
                points(values, forced),
                Some(keys(expected)),
                "{}",
                values.len()
            );
        };
        check(&[], &[]);
        check(&[1], &[]);
        check(&[1, 2], &[2]);
        check(&[1, 2, 3, 4], &[3]);
        check(&[1, 1, 1, 2], &[2]);
        check(&[1; 9], &[]);
        // What follows half of all documents, with one that is rare.
        let mut rare = vec![1; 100_000];
        rare.push(2);
        check(&rare, &[2]);
        let many: Vec<i64> = (0..100_000).collect();
        let found = points(&many, forced).expect("some");
        assert!(key(49_000) < found[0] && found[0] < key(51_000));
    }

    #[test]
    fn the_top_chunk() {
        let split = |min, max, at: &[i64]| {
            split_top_chunk(&pattern(), &range(min, max), keys(at), &key(1), &key(99))
        };
        let check = |min, max, at: &[i64], expected: &[i64], moved: Option<(i64, i64)>| {
            let found = split(min, max, at);
            assert_eq!(found.points, keys(expected));
            assert_eq!(found.moved, moved.map(|(min, max)| range(min, max)));
        };
        check(0, HIGHEST, &[40, 80], &[40, 99], Some((99, HIGHEST)));
        check(LOWEST, 100, &[40, 80], &[1, 80], Some((LOWEST, 1)));
        check(LOWEST, HIGHEST, &[40, 80], &[40, 99], Some((99, HIGHEST)));
        check(0, 100, &[40, 80], &[40, 80], None);
        check(0, HIGHEST, &[40], &[40], None);
        check(0, HIGHEST, &[40, 99], &[40, 99], None);
        check(0, HIGHEST, &[], &[], None);
    }

    #[test]
    fn more_points_than_a_commit_has() {
        let many: Vec<KeyBytes> = (1..=20_000).map(key).collect();
        let chunk = range(0, HIGHEST);
        let commits = in_turns(&chunk, &many);
        let counts: Vec<usize> = commits.iter().map(|commit| commit.points.len()).collect();
        assert_eq!(counts, [8192, 8192, 3616]);
        assert_eq!(commits[0].chunk, chunk);
        assert_eq!(commits[1].chunk, range(8192, HIGHEST));
        assert_eq!(commits[2].chunk, range(16384, HIGHEST));
        let all: Vec<KeyBytes> = commits
            .into_iter()
            .flat_map(|commit| commit.points)
            .collect();
        assert_eq!(all, many);
        assert_eq!(in_turns(&chunk, &many[..3]).len(), 1);
        assert!(in_turns(&chunk, &[]).is_empty());
    }
}
