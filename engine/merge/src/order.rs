//! The order in which the items of several parts come, whatever gives the parts: it says which part
//! it needs more of, takes a batch, and has the next item.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use crate::item::{Item, OrderKey};

/// How the items of a read's parts are merged.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeSpec {
    /// Greater order keys come first.
    pub descending: bool,
    /// The same document may come from several parts: only its first item counts.
    pub repeats: bool,
    /// Items left out at the beginning.
    pub skip: usize,
    /// Items behind these that are wanted at most.
    pub limit: Option<usize>,
    /// A part that gives its last item says so with it. A scan knows its end only when it has run
    /// into it, as in MongoDB.
    pub ends_are_known: bool,
}

/// What a merge has next.
#[derive(Debug)]
pub enum NextItem {
    /// This one comes next. Its error, if it has one, is the read's.
    Item(Item),
    /// Unknown until each part that is starved has given a batch.
    Starved,
    /// No part has another item.
    Ended,
    /// As many items were taken as are wanted.
    Satisfied,
}

/// The items of all parts in one order. Each part gives its own in that order.
#[derive(Debug)]
pub struct OrderedMerge {
    parts: Vec<Buffer>,
    descending: bool,
    skip: usize,
    limit: Option<usize>,
    ends_are_known: bool,
    /// Documents already given, where the same one may come from several parts.
    seen: Option<FxHashSet<OrderKey>>,
}

#[derive(Debug)]
struct Buffer {
    items: VecDeque<Item>,
    /// Nothing follows what is buffered.
    done: bool,
}

impl Buffer {
    fn is_starved(&self) -> bool {
        self.items.is_empty() && !self.done
    }
}

impl OrderedMerge {
    /// A merge without parts.
    pub fn new(spec: MergeSpec) -> OrderedMerge {
        OrderedMerge {
            parts: Vec::new(),
            descending: spec.descending,
            skip: spec.skip,
            limit: spec.limit,
            ends_are_known: spec.ends_are_known,
            seen: spec.repeats.then(FxHashSet::default),
        }
    }

    /// Adds a part with its first batch; parts have numbers in the order in which they are added,
    /// from 0. All are added before the first item is taken.
    ///
    /// # Panics
    /// Where the batch is empty and not the last.
    pub fn add_part(&mut self, items: Vec<Item>, done: bool) {
        self.parts.push(Buffer {
            items: VecDeque::new(),
            done: false,
        });
        self.accept(self.parts.len() - 1, items, done);
    }

    /// Takes a starved part's next batch. `done` when none follows it.
    ///
    /// # Panics
    /// Where the part was not starved, or the batch is empty and not the last.
    pub fn accept(&mut self, part: usize, items: Vec<Item>, done: bool) {
        let buffer = &mut self.parts[part];
        assert!(buffer.is_starved(), "only a starved part is stepped");
        assert!(
            done || !items.is_empty(),
            "a part that is not done makes progress"
        );
        buffer.items = items.into();
        buffer.done = done;
    }

    /// Whether this part has to give a batch before there is a next item.
    pub fn is_starved(&self, part: usize) -> bool {
        self.parts[part].is_starved()
    }

    /// The next item, behind those that are skipped and within the limit.
    pub fn next_item(&mut self) -> NextItem {
        loop {
            if self.is_satisfied() {
                return NextItem::Satisfied;
            }
            let next = self.next_unlimited();
            if !matches!(next, NextItem::Item(_)) {
                return next;
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            if let Some(limit) = &mut self.limit {
                *limit -= 1;
            }
            return next;
        }
    }

    /// The next item of any part, which neither the limit nor what is skipped concerns.
    pub fn next_unlimited(&mut self) -> NextItem {
        loop {
            if self.parts.iter().any(Buffer::is_starved) {
                return NextItem::Starved;
            }
            let Some(mut item) = self.pop() else {
                return NextItem::Ended;
            };
            if let (Some(seen), Some(id)) = (&mut self.seen, item.id.take())
                && !seen.insert(id)
            {
                continue;
            }
            return NextItem::Item(item);
        }
    }

    fn pop(&mut self) -> Option<Item> {
        let heads = self
            .parts
            .iter()
            .enumerate()
            .filter_map(|(i, part)| part.items.front().map(|item| (i, &item.order)));
        let best = if self.descending {
            heads.max_by(|a, b| a.1.cmp(b.1))
        } else {
            heads.min_by(|a, b| a.1.cmp(b.1))
        };
        let (i, _) = best?;
        self.parts[i].items.pop_front()
    }

    /// Whether as many items were taken as are wanted.
    pub fn is_satisfied(&self) -> bool {
        self.limit == Some(0)
    }

    /// Whether it is known that nothing follows.
    pub fn is_eof(&self) -> bool {
        let is_exhausted = |part: &Buffer| part.done && part.items.is_empty();
        let knows_ends = self.ends_are_known || self.parts.is_empty();
        self.is_satisfied() || (knows_ends && self.parts.iter().all(is_exhausted))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pinion_wire::{Error, ErrorCode};

    use super::*;

    /// An item written as its order and its document's key, `b/x`; with `!` for one that has an
    /// error in the place of a document.
    fn item(text: &str) -> Item {
        let (text, is_failed) = text.strip_suffix('!').map_or((text, false), |t| (t, true));
        let (order, id) = text.split_once('/').unwrap_or((text, text));
        let error = || Box::new(Error::new(ErrorCode::BAD_VALUE, "no form"));
        Item {
            order: OrderKey::from_slice(order.as_bytes()),
            id: Some(OrderKey::from_slice(id.as_bytes())),
            document: match is_failed {
                true => Err(error()),
                false => Ok(Bytes::copy_from_slice(text.as_bytes())),
            },
        }
    }

    fn items(batch: &str) -> Vec<Item> {
        batch.split_whitespace().map(item).collect()
    }

    fn text_of(item: Item) -> String {
        match item.document {
            Ok(document) => String::from_utf8(document.to_vec()).expect("made of text"),
            Err(_) => format!("{}!", String::from_utf8_lossy(&item.order)),
        }
    }

    /// Merges parts, of each of which the batches are given, until nothing follows. The trace has
    /// the items, the parts that had to be stepped (`[0,2]`), and how it ended; `~` before an item
    /// behind which it was known that nothing follows.
    #[track_caller]
    fn check(spec: MergeSpec, parts: &[&[&str]], expected: &str) {
        let found = trace(spec, parts, OrderedMerge::next_item);
        assert_eq!(found, expected);
    }

    fn trace(
        spec: MergeSpec,
        parts: &[&[&str]],
        next: fn(&mut OrderedMerge) -> NextItem,
    ) -> String {
        let mut merge = OrderedMerge::new(spec);
        let mut given = vec![1; parts.len()];
        for batches in parts {
            merge.add_part(items(batches[0]), batches.len() == 1);
        }
        let mut trace = Vec::new();
        loop {
            match next(&mut merge) {
                NextItem::Item(item) => {
                    let mark = if merge.is_eof() { "~" } else { "" };
                    trace.push(format!("{mark}{}", text_of(item)));
                }
                NextItem::Starved => {
                    let starved = (0..parts.len()).filter(|part| merge.is_starved(*part));
                    let starved: Vec<usize> = starved.collect();
                    for part in &starved {
                        let batch = parts[*part][given[*part]];
                        given[*part] += 1;
                        merge.accept(*part, items(batch), given[*part] == parts[*part].len());
                    }
                    let numbers: Vec<String> = starved.iter().map(usize::to_string).collect();
                    trace.push(format!("[{}]", numbers.join(",")));
                }
                NextItem::Ended => {
                    trace.push("ended".into());
                    return trace.join(" ");
                }
                NextItem::Satisfied => {
                    trace.push("satisfied".into());
                    return trace.join(" ");
                }
            }
        }
    }

    const ASCENDING: MergeSpec = MergeSpec {
        descending: false,
        repeats: false,
        skip: 0,
        limit: None,
        ends_are_known: false,
    };

    #[test]
    fn parts_are_merged_by_their_keys() {
        check(ASCENDING, &[], "ended");
        check(ASCENDING, &[&["a b", ""]], "a b [0] ended");
        check(
            ASCENDING,
            &[&["a c", "e"], &["b", "d"]],
            "a b [1] c [0] d e ended",
        );
        check(
            ASCENDING,
            &[&["a", "b"], &["a/x", "c"], &[""]],
            "a [0] a/x [1] b c ended",
        );
        let descending = MergeSpec {
            descending: true,
            ..ASCENDING
        };
        check(
            descending,
            &[&["e", "c b"], &["d", "a"]],
            "e [0] d [1] c b a ended",
        );
    }

    #[test]
    fn a_part_is_stepped_once_it_is_starved() {
        check(
            ASCENDING,
            &[&["a", "c"], &["b", "d"]],
            "a [0] b [1] c d ended",
        );
        let repeated = MergeSpec {
            repeats: true,
            ..ASCENDING
        };
        check(
            repeated,
            &[&["a/x", "c"], &["a/x", "d"], &["b", "e"]],
            "a/x [0] [1] b [2] c d e ended",
        );
    }

    #[test]
    fn a_document_of_several_parts_is_given_once() {
        let repeated = MergeSpec {
            repeats: true,
            skip: 1,
            limit: Some(2),
            ..ASCENDING
        };
        // What is left out as a repetition counts neither as skipped nor as wanted.
        check(
            repeated,
            &[&["a/x c/y d/z e/w"], &["b/x c/y"]],
            "c/y ~d/z satisfied",
        );
        check(ASCENDING, &[&["a/x"], &["b/x"]], "a/x b/x ended");
    }

    #[test]
    fn nothing_is_read_behind_the_limit() {
        let limited = |skip, limit| MergeSpec {
            skip,
            limit: Some(limit),
            ..ASCENDING
        };
        check(limited(0, 0), &[&["a"]], "satisfied");
        check(limited(0, 1), &[&["a", "b"]], "~a satisfied");
        check(
            limited(2, 1),
            &[&["a", "b", "c", "d"]],
            "[0] [0] ~c satisfied",
        );
        check(limited(2, 3), &[&["a b c"]], "c ended");
        check(limited(5, 3), &[&["a b c"]], "ended");
    }

    #[test]
    fn an_error_counts_at_its_turn() {
        let limited = MergeSpec {
            skip: 1,
            limit: Some(1),
            ..ASCENDING
        };
        check(limited, &[&["a! c!"], &["b"]], "~b satisfied");
        check(ASCENDING, &[&["b!"], &["a c"]], "a b! c ended");
    }

    #[test]
    fn an_end_is_known_where_parts_know_theirs() {
        let known = MergeSpec {
            ends_are_known: true,
            ..ASCENDING
        };
        check(known, &[&["a"], &["b"]], "a ~b ended");
        check(known, &[&["a"], &["b", ""]], "a b [1] ended");
        assert!(OrderedMerge::new(ASCENDING).is_eof());
    }

    #[test]
    fn what_is_unlimited_knows_neither_skip_nor_limit() {
        let limited = MergeSpec {
            skip: 1,
            limit: Some(1),
            ..ASCENDING
        };
        let found = trace(
            limited,
            &[&["a", "c"], &["b"]],
            OrderedMerge::next_unlimited,
        );
        assert_eq!(found, "a [0] b c ended");
    }

    #[test]
    #[should_panic(expected = "makes progress")]
    fn an_empty_batch_is_the_last() {
        OrderedMerge::new(ASCENDING).add_part(Vec::new(), false);
    }

    #[test]
    #[should_panic(expected = "only a starved part")]
    fn a_part_that_has_items_gives_no_others() {
        let mut merge = OrderedMerge::new(ASCENDING);
        merge.add_part(items("a"), false);
        merge.accept(0, items("b"), true);
    }
}
