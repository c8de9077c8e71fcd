//! The change streams of several shards as one, in the order of their tokens.
//!
//! Nothing here asks a shard: the caller hands in batches, asks the parts that have nothing left,
//! and takes the events that may go out. One may go out once no shard can still give an earlier
//! one: each has events behind it, or says by its mark (`postBatchResumeToken`) that nothing
//! before it follows.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::token::ResumeToken;

/// The stream of one shard: they are numbered as they are added.
pub type PartNumber = u32;

/// An event that may go out.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleasedEvent {
    pub part: PartNumber,
    pub token: ResumeToken,
    pub event: Bytes,
}

#[derive(Debug)]
struct MergedPart {
    events: VecDeque<(ResumeToken, Bytes)>,
    /// What it gives behind its events comes behind this.
    mark: ResumeToken,
    /// It has ended, as streams do where what they watch is gone: with it ends the whole, once
    /// everything before its end has gone out.
    has_ended: bool,
    /// Its shard is gone: it gives nothing any more, and the others are not held up by it.
    is_retired: bool,
}

impl MergedPart {
    /// The token that nothing comes before; `None` where nothing comes at all.
    fn bound(&self) -> Option<&ResumeToken> {
        match self.events.front() {
            Some((token, _)) => Some(token),
            None => (!self.is_retired).then_some(&self.mark),
        }
    }
}

/// The merged streams.
#[derive(Debug)]
pub struct ChangeMerge {
    parts: BTreeMap<PartNumber, MergedPart>,
    next: PartNumber,
    /// The highest mark that the whole has had.
    mark: ResumeToken,
    has_ended: bool,
}

impl ChangeMerge {
    /// Streams that begin behind this token.
    pub fn new(start: ResumeToken) -> ChangeMerge {
        ChangeMerge {
            parts: BTreeMap::new(),
            next: 0,
            mark: start,
            has_ended: false,
        }
    }

    /// Adds the stream of a shard, which begins behind this token.
    pub fn add(&mut self, start: ResumeToken) -> PartNumber {
        let number = self.next;
        self.next += 1;
        let part = MergedPart {
            events: VecDeque::new(),
            mark: start,
            has_ended: false,
            is_retired: false,
        };
        self.parts.insert(number, part);
        number
    }

    /// Takes a batch of a part, whose events are in order, with its mark. `is_last` where the
    /// stream has ended with it.
    ///
    /// # Panics
    /// There is no such part, or it has ended.
    pub fn batch(
        &mut self,
        part: PartNumber,
        events: impl IntoIterator<Item = (ResumeToken, Bytes)>,
        mark: ResumeToken,
        is_last: bool,
    ) {
        let part = self.parts.get_mut(&part).expect("it was added");
        assert!(!part.has_ended, "nothing comes behind the end");
        for (token, event) in events {
            part.mark = part.mark.clone().max(token.clone());
            part.events.push_back((token, event));
        }
        part.mark = part.mark.clone().max(mark);
        part.has_ended = is_last;
    }

    /// The shard of a part is gone. What it has given still goes out.
    pub fn retire(&mut self, part: PartNumber) {
        if let Some(part) = self.parts.get_mut(&part) {
            part.is_retired = true;
        }
        self.parts
            .retain(|_, part| !part.is_retired || !part.events.is_empty());
    }

    /// The first event of all that are here.
    fn first(&self) -> Option<(PartNumber, &ResumeToken)> {
        let heads = self.parts.iter();
        let heads = heads.filter_map(|(number, part)| Some((*number, &part.events.front()?.0)));
        heads.min_by(|(_, one), (_, other)| one.cmp(other))
    }

    /// The next event that may go out.
    pub fn next_ready(&mut self) -> Option<ReleasedEvent> {
        if self.has_ended {
            return None;
        }
        let first = self.first().map(|(number, token)| (number, token.clone()));
        let held_up = |part: &MergedPart| match &first {
            Some((_, token)) => part.bound().is_some_and(|bound| bound < token),
            None => true,
        };
        if let Some(ended) = self
            .parts
            .values()
            .find(|part| part.has_ended && part.events.is_empty() && held_up(part))
        {
            // The others may still have something in front of the end.
            let end = &ended.mark;
            let is_over =
                (self.parts.values()).all(|part| part.bound().is_none_or(|bound| bound >= end));
            self.has_ended = is_over;
            if is_over {
                self.mark = self.mark.clone().max(end.clone());
                return None;
            }
        }
        let (number, token) = first?;
        if self
            .parts
            .values()
            .any(|part| part.bound().is_some_and(|bound| *bound < token))
        {
            return None;
        }
        let part = self.parts.get_mut(&number).expect("it has an event");
        let (token, event) = part.events.pop_front().expect("it is the first");
        self.has_ended = part.has_ended && part.events.is_empty() && part.mark == token;
        self.mark = self.mark.clone().max(token.clone());
        if part.is_retired && part.events.is_empty() {
            self.parts.remove(&number);
        }
        Some(ReleasedEvent {
            part: number,
            token,
            event,
        })
    }

    /// Whether the whole has ended: nothing goes out any more.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The mark of the whole, once all has gone out that may: nothing up to it follows. It never
    /// goes back.
    pub fn mark(&mut self) -> &ResumeToken {
        let least = self.parts.values().filter_map(MergedPart::bound).min();
        let is_held_up = self.first().is_some_and(|(_, first)| least == Some(first));
        // Behind an event that is still here nothing is promised.
        if let Some(least) = least.filter(|_| !is_held_up && !self.has_ended)
            && *least > self.mark
        {
            self.mark = least.clone();
        }
        &self.mark
    }

    /// The parts that have nothing left and may have more.
    pub fn hungry(&self) -> impl Iterator<Item = PartNumber> + '_ {
        let is_hungry =
            |part: &MergedPart| part.events.is_empty() && !part.has_ended && !part.is_retired;
        let parts = self.parts.iter();
        parts.filter_map(move |(number, part)| is_hungry(part).then_some(*number))
    }

    /// What has to wait, an event or the end, and the parts that it waits for.
    pub fn waiting(&self) -> Option<(&ResumeToken, Vec<PartNumber>)> {
        let is_at_end = |part: &&MergedPart| part.has_ended && part.events.is_empty();
        let ends = self.parts.values().filter(is_at_end);
        let ends = ends.map(|part| &part.mark);
        let first = self.first().map(|(_, token)| token);
        let token = ends.chain(first).min().filter(|_| !self.has_ended)?;
        let late = self.parts.iter().filter(|(_, part)| {
            part.events.is_empty() && part.bound().is_some_and(|bound| bound < token)
        });
        let late: Vec<PartNumber> = late.map(|(number, _)| *number).collect();
        (!late.is_empty()).then_some((token, late))
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Timestamp, rawdoc};

    use super::*;
    use crate::change_stream::TokenData;

    /// A source of numbers that are the same each time.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }
    }

    fn high_water(time: u32) -> ResumeToken {
        let time = Timestamp { time, increment: 1 };
        TokenData::high_water_mark(time).token()
    }

    fn event(time: u32, shard: u32, operation: u64) -> ResumeToken {
        let data = TokenData {
            is_event: true,
            operation,
            uuid: Some([1; 16]),
            identifier: Some(rawdoc! { "documentKey": { "_id": shard as i32 } }),
            ..TokenData::high_water_mark(Timestamp { time, increment: 1 })
        };
        data.token()
    }

    fn bytes_of(token: &ResumeToken) -> Bytes {
        Bytes::from(token.to_document().into_bytes())
    }

    /// What a shard has: its events, and how much of them it has given.
    struct Shard {
        part: PartNumber,
        events: VecDeque<ResumeToken>,
        clock: u32,
    }

    impl Shard {
        /// Gives some events, and a mark behind them.
        fn give(&mut self, merge: &mut ChangeMerge, numbers: &mut Numbers) {
            let count = numbers.below(4).min(self.events.len() as u64) as usize;
            let given: Vec<ResumeToken> = self.events.drain(..count).collect();
            let last = given.last().cloned();
            let next = self.events.front();
            // As a shard that has seen nothing up to its next event.
            self.clock += numbers.below(4) as u32;
            let mut mark = high_water(self.clock);
            if let Some(next) = next
                && mark >= *next
            {
                mark = last.clone().unwrap_or_else(|| high_water(0));
            }
            if let Some(last) = last {
                mark = mark.max(last);
            }
            let given = given.into_iter().map(|token| {
                let bytes = bytes_of(&token);
                (token, bytes)
            });
            let part = self.part;
            merge.batch(part, given.collect::<Vec<_>>(), mark, false);
        }
    }

    #[test]
    fn every_event_goes_out_once_and_in_order() {
        for seed in 1..400 {
            let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
            let mut merge = ChangeMerge::new(high_water(0));
            let count = 1 + numbers.below(4) as u32;
            let mut expected = Vec::new();
            let mut shards: Vec<Shard> = (0..count)
                .map(|shard| {
                    let mut events = VecDeque::new();
                    for time in 1..20 {
                        for operation in 0..numbers.below(3) {
                            events.push_back(event(time, shard, operation));
                        }
                    }
                    expected.extend(events.iter().cloned());
                    Shard {
                        part: merge.add(high_water(0)),
                        events,
                        clock: 0,
                    }
                })
                .collect();
            expected.sort();
            let (mut found, mut marks) = (Vec::new(), vec![high_water(0)]);
            for _ in 0..4000 {
                let at = numbers.below(u64::from(count)) as usize;
                if merge.hungry().any(|part| part == shards[at].part) {
                    shards[at].give(&mut merge, &mut numbers);
                }
                let before = found.len();
                while let Some(released) = merge.next_ready() {
                    assert_eq!(released.event, bytes_of(&released.token));
                    found.push(released.token);
                }
                let mark = merge.mark().clone();
                assert!(mark >= *marks.last().expect("a first"), "it went back");
                // What the mark covers has gone out, and nothing else is missing.
                let covered = expected.iter().filter(|token| **token <= mark).count();
                assert!(covered <= found.len(), "seed {seed}: {before}");
                if let Some((token, late)) = merge.waiting() {
                    assert!(*token > mark && !late.is_empty());
                }
                marks.push(mark);
                if found.len() == expected.len() {
                    break;
                }
            }
            assert_eq!(found, expected, "seed {seed}");
        }
    }

    #[test]
    fn an_event_waits_for_quiet_shards() {
        let mut merge = ChangeMerge::new(high_water(1));
        let (busy, quiet) = (merge.add(high_water(1)), merge.add(high_water(1)));
        let token = event(5, 0, 0);
        merge.batch(
            busy,
            [(token.clone(), bytes_of(&token))],
            token.clone(),
            false,
        );
        assert_eq!(merge.next_ready(), None);
        assert_eq!(merge.waiting(), Some((&token, vec![quiet])));
        assert_eq!(*merge.mark(), high_water(1));
        // Of the same moment it may still have something in front of the event.
        merge.batch(quiet, [], high_water(5), false);
        assert_eq!(merge.next_ready(), None);
        assert_eq!(*merge.mark(), high_water(5));
        merge.batch(quiet, [], high_water(6), false);
        assert_eq!(
            merge.next_ready().map(|released| released.token),
            Some(token.clone())
        );
        assert_eq!(*merge.mark(), token);
        merge.batch(busy, [], high_water(9), false);
        assert_eq!(*merge.mark(), high_water(6));
    }

    #[test]
    fn a_mark_moves_without_events() {
        let mut merge = ChangeMerge::new(high_water(1));
        let parts = [merge.add(high_water(1)), merge.add(high_water(1))];
        merge.batch(parts[0], [], high_water(4), false);
        assert_eq!(*merge.mark(), high_water(1));
        merge.batch(parts[1], [], high_water(3), false);
        assert_eq!(*merge.mark(), high_water(3));
        // A shard that comes later begins earlier: what is promised stays.
        merge.add(high_water(2));
        assert_eq!(*merge.mark(), high_water(3));
    }

    #[test]
    fn the_whole_ends_with_one_of_its_parts() {
        let mut merge = ChangeMerge::new(high_water(1));
        let (one, other) = (merge.add(high_water(1)), merge.add(high_water(1)));
        let (last, early, late) = (event(5, 0, 0), event(4, 1, 0), event(6, 1, 0));
        merge.batch(one, [(last.clone(), Bytes::new())], last.clone(), true);
        assert_eq!(merge.next_ready(), None);
        let events = [(early.clone(), Bytes::new()), (late, Bytes::new())];
        merge.batch(other, events, high_water(7), false);
        assert_eq!(
            merge.next_ready().map(|released| released.token),
            Some(early)
        );
        assert_eq!(
            merge.next_ready().map(|released| released.token),
            Some(last.clone())
        );
        assert!(merge.has_ended() && merge.next_ready().is_none());
        assert_eq!(*merge.mark(), last);
    }

    #[test]
    fn an_end_that_is_not_shown_ends_the_whole_too() {
        let mut merge = ChangeMerge::new(high_water(1));
        let (one, other) = (merge.add(high_water(1)), merge.add(high_water(1)));
        let end = event(5, 0, 0);
        merge.batch(one, [], end.clone(), true);
        assert!(merge.next_ready().is_none() && !merge.has_ended());
        assert_eq!(merge.waiting(), Some((&end, vec![other])));
        let early = event(4, 1, 0);
        merge.batch(other, [(early.clone(), Bytes::new())], early.clone(), false);
        assert_eq!(
            merge.next_ready().map(|released| released.token),
            Some(early)
        );
        assert!(merge.next_ready().is_none() && !merge.has_ended());
        merge.batch(other, [], high_water(6), false);
        assert!(merge.next_ready().is_none() && merge.has_ended());
        assert_eq!(*merge.mark(), end);
    }

    #[test]
    fn a_shard_that_is_gone_holds_nothing_up() {
        let mut merge = ChangeMerge::new(high_water(1));
        let (one, other) = (merge.add(high_water(1)), merge.add(high_water(1)));
        let (first, second) = (event(5, 0, 0), event(6, 1, 0));
        merge.batch(one, [(first.clone(), Bytes::new())], first.clone(), false);
        merge.retire(other);
        assert_eq!(
            merge.next_ready().map(|released| released.token),
            Some(first)
        );
        let third = merge.add(high_water(5));
        merge.batch(
            third,
            [(second.clone(), Bytes::new())],
            second.clone(),
            false,
        );
        merge.retire(one);
        merge.retire(third);
        assert_eq!(
            merge.next_ready().map(|released| released.token),
            Some(second)
        );
        assert_eq!(merge.hungry().count(), 0);
    }
}
