//! `$group` at work. The groups leave in the order of their keys, so that the result shows neither
//! in which order they came up nor whether they were on disk meanwhile.

use std::iter::Peekable;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_keystring::encode_id_in;
use pinion_wire::Result;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Document;
use super::codes::{Engine, coded, no_disk_use};
use super::group::{Group, GroupInput, GroupReader};
use super::partial::depends_on_order;
use super::step::{Accepted, OnDisk, Produced, Step};
use crate::accumulator::{Accumulation, Accumulator};
use crate::collation::spend_sort_keys;
use crate::error::{bad_value, error};
use crate::expression::Subject;
use crate::limits::{MAX_ACCUMULATOR_BYTES, MAX_ORDERED_DOCUMENTS, SORT_RUN};
use crate::number::exact_i64;
use crate::sorter::{Sorted, Sorter};
use crate::spill::{DiskReply, DiskRuns, Head, Memory, Room, Spiller};
use crate::value::{field, is_identical, items};
use crate::work::{self, spend, spend_bytes};

/// What a stage at work is given, and what it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Documents, and groups.
    Whole,
    /// Some of the documents, and what is known of their groups.
    Part,
    /// What parts know, and groups.
    Merge,
}

/// The stage at work.
#[derive(Debug)]
pub(super) struct Grouping {
    group: Group,
    reader: GroupReader,
    role: Role,
    /// What has come since groups were spilled last.
    groups: Groups,
    room: Room,
    runs: DiskRuns,
    leaving: Leaving,
    ended: bool,
    /// The group that is put together of what was spilled of it.
    merging: Option<(Bytes, OneGroup)>,
    /// How many documents are in the groups.
    documents: u64,
}

/// The groups that have come up.
#[derive(Debug, Default)]
struct Groups {
    places: FxHashMap<Box<[u8]>, usize>,
    /// Groups by type and bytes of a short `_id`: saves making its key for each document.
    known: FxHashMap<ShortValue, usize>,
    list: Vec<OneGroup>,
    bytes: usize,
    /// Whether there may be more of these groups on disk.
    continued: bool,
}

/// The groups on their way out of memory: to the disk, or after the end to the next stage.
enum Leaving {
    Not,
    Sorting {
        keys: std::collections::hash_map::IntoIter<Box<[u8]>, usize>,
        sorter: Sorter<usize>,
    },
    Sorted(Peekable<Sorted<usize>>),
}

impl std::fmt::Debug for Leaving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Leaving::Not => "Not",
            Leaving::Sorting { .. } => "Sorting",
            Leaving::Sorted(_) => "Sorted",
        })
    }
}

#[derive(Debug)]
struct OneGroup {
    id: RawBson,
    documents: u64,
    /// How many parts knew something of it, where they are put together.
    parts: usize,
    accumulators: Vec<Accumulator>,
}

impl Grouping {
    pub(super) fn new(group: Group, role: Role, memory: &Memory) -> Grouping {
        let room = memory.room(match group.engine {
            Engine::Classic => memory.limits.group,
            Engine::SlotBased => memory.limits.hash_agg,
        });
        Grouping {
            reader: GroupReader::new(&group),
            group,
            role,
            groups: Groups::default(),
            runs: DiskRuns::new(Spiller::Group, room.limit()),
            room,
            leaving: Leaving::Not,
            ended: false,
            merging: None,
            documents: 0,
        }
    }

    /// Takes one document; what may be refused for its work comes before anything changes. True
    /// when memory is full.
    fn push(&mut self, document: &Document) -> Result<bool> {
        let subject = Subject::from(document);
        spend_bytes(subject.document.as_bytes().len())?;
        let GroupInput { id, inputs } = self.reader.read(&self.group, subject)?;
        spend_sort_keys(self.group.collation.as_deref(), id.bytes())?;
        work::check()?;
        // A stage has lost the order of its input: the pipeline runs as a whole.
        if self.role == Role::Part && document.order().is_empty() && self.group.needs_order() {
            return Err(depends_on_order());
        }
        let groups = &mut self.groups;
        let place = groups.place(id.or_null(), &self.group, self.role)?;
        for (accumulator, input) in groups.list[place].accumulators.iter_mut().zip(inputs) {
            let before = accumulator.bytes();
            accumulator.add_ordered(document.order(), input.value.as_ref(), &input.key)?;
            if self.role == Role::Part && !accumulator.is_orderless() {
                return Err(depends_on_order());
            }
            groups.bytes = groups.bytes + accumulator.bytes() - before;
        }
        groups.list[place].documents += 1;
        self.documents += 1;
        self.make_room()
    }

    /// Takes what a part knows of a group, as [`Grouping::push`] takes a document.
    fn push_partial(&mut self, document: &RawDocument) -> Result<bool> {
        spend(work::STEP)?;
        spend_bytes(document.as_bytes().len())?;
        spend_sort_keys(self.group.collation.as_deref(), document.as_bytes().len())?;
        let (id, partials) = read_partials(document)?;
        let documents = exact_i64(field(document, "documents").unwrap_or(RawBsonRef::Null));
        self.documents += documents.map_or(0, |documents| documents as u64);
        let groups = &mut self.groups;
        let place = groups.place(id, &self.group, self.role)?;
        let group = &mut groups.list[place];
        group.parts += 1;
        // Which of two equal keys came first is not known.
        if !is_identical(group.id.as_raw_bson_ref(), id) {
            return Err(depends_on_order());
        }
        for (accumulator, partial) in group.accumulators.iter_mut().zip(items(partials)) {
            let before = accumulator.bytes();
            if !accumulator.merge_unordered(partial)? {
                return Err(depends_on_order());
            }
            groups.bytes = groups.bytes + accumulator.bytes() - before;
        }
        self.make_room()
    }

    /// True when memory is full.
    fn make_room(&mut self) -> Result<bool> {
        self.room.set(self.groups.bytes);
        if !self.room.is_full()? {
            return Ok(false);
        }
        if self.role == Role::Merge {
            // Runs would be merged in another order than that of the documents.
            return Err(depends_on_order());
        }
        if !self.room.disk() {
            return Err(no_disk_use(self.group.engine));
        }
        self.runs.begin();
        self.leave();
        Ok(true)
    }

    /// Begins to empty memory.
    fn leave(&mut self) {
        self.groups.known = FxHashMap::default();
        self.leaving = Leaving::Sorting {
            keys: std::mem::take(&mut self.groups.places).into_iter(),
            sorter: Sorter::new(None),
        };
    }

    /// Sorts some of the keys of the groups that leave; true once all are sorted.
    fn sort(&mut self) -> bool {
        let Leaving::Sorting { keys, sorter } = &mut self.leaving else {
            return true;
        };
        for (key, place) in keys.by_ref().take(SORT_RUN) {
            sorter.push(key.into_vec(), place, 0);
        }
        if keys.len() == 0 {
            let sorter = std::mem::replace(sorter, Sorter::new(None));
            self.leaving = Leaving::Sorted(sorter.finish().peekable());
        }
        false
    }

    /// Puts groups that leave into the run on disk, until that is full or has them all.
    fn spill(&mut self) -> Result<()> {
        let Leaving::Sorted(sorted) = &mut self.leaving else {
            return Ok(());
        };
        while !self.runs.is_full() {
            let Some((key, place)) = sorted.peek() else {
                self.groups = Groups {
                    continued: true,
                    ..Groups::default()
                };
                self.leaving = Leaving::Not;
                self.room.set(0);
                self.runs.end();
                if self.ended {
                    self.runs.read();
                }
                break;
            };
            let group = &mut self.groups.list[*place];
            group.account()?;
            self.runs.add(key, |out| {
                out.extend_from_slice(group.partials().as_bytes())
            });
            group.accumulators = Vec::new();
            sorted.next();
        }
        Ok(())
    }

    /// Whether sums of doubles are those of all orders. Where parts cannot make the groups anyway,
    /// they stay those of the documents' order.
    fn is_orderless(&self) -> bool {
        self.documents > MAX_ORDERED_DOCUMENTS && self.group.is_divisible()
    }

    /// The next group of those in memory.
    fn give_held(&mut self) -> Result<Produced> {
        let orderless = self.is_orderless();
        if !self.sort() {
            return Ok(Produced::Working);
        }
        let Leaving::Sorted(sorted) = &mut self.leaving else {
            return Ok(Produced::Nothing);
        };
        let Some((_, place)) = sorted.peek() else {
            self.room.set(0);
            return Ok(Produced::Nothing);
        };
        let group = &mut self.groups.list[*place];
        group.account()?;
        let made = match self.role {
            Role::Part => group.partials(),
            // Few documents are added up in their order, which a lone part knows.
            Role::Merge if !orderless && group.parts > 1 && group.sums_doubles() => {
                return Err(depends_on_order());
            }
            Role::Whole | Role::Merge => group.finish(&self.group, orderless)?,
        };
        group.accumulators = Vec::new();
        sorted.next();
        Ok(Produced::Document(made.into()))
    }

    /// Puts a group together of what is on disk of it, or gives one that is whole.
    fn give_spilled(&mut self) -> Result<Produced> {
        match (self.runs.head(), &self.merging) {
            (Head::Disk, _) => return Ok(Produced::Disk),
            (Head::Entry(key, value), merging)
                if merging.as_ref().is_none_or(|(of, _)| of == key) =>
            {
                spend(work::STEP)?;
                spend_bytes(key.len() + value.len())?;
                spend_sort_keys(self.group.collation.as_deref(), value.len())?;
                let (key, value) = self.runs.pop();
                self.merge(key, &value)?;
                return Ok(Produced::Working);
            }
            (Head::End, None) => return Ok(Produced::Nothing),
            (_, None) => unreachable!("an entry begins a group where there is none"),
            (_, Some((_, group))) => group.account()?,
        }
        let (_, group) = self.merging.take().expect("looked at before");
        let orderless = self.is_orderless();
        let made = group.finish(&self.group, orderless)?;
        Ok(Produced::Document(made.into()))
    }

    /// Adds what was spilled of a group.
    fn merge(&mut self, key: Bytes, spilled: &[u8]) -> Result<()> {
        let spilled = RawDocument::from_bytes(spilled).map_err(|_| unreadable())?;
        let (id, partials) = read_partials(spilled)?;
        let (_, group) = match &mut self.merging {
            Some(merging) => merging,
            merging => merging.insert((key, OneGroup::new(id, &self.group, self.role)?)),
        };
        let fields = self.group.fields.iter().map(|(_, field)| field);
        for ((accumulator, partial), field) in group
            .accumulators
            .iter_mut()
            .zip(items(partials))
            .zip(fields)
        {
            accumulator.merge(partial)?;
            if accumulator.bytes() > MAX_ACCUMULATOR_BYTES {
                return Err(error(
                    146,
                    format!(
                        "{} used too much memory and spilling cannot reduce memory consumption any further. \
                         Memory limit: {MAX_ACCUMULATOR_BYTES} bytes",
                        field.kind().name()
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl Groups {
    /// The place of the group with this `_id`, which may be new.
    fn place(&mut self, id: RawBsonRef<'_>, group: &Group, role: Role) -> Result<usize> {
        let short = short_value(id);
        let known = short.as_ref().and_then(|short| self.known.get(short));
        if let Some(place) = known {
            return Ok(*place);
        }
        let groups = self.list.len();
        let place = self.place_by_key(id, group, role)?;
        // Of equal values with different bytes (1 and 1.0) only the first is in `known`.
        if let Some(short) = short
            && self.list.len() > groups
        {
            self.bytes += KNOWN_BYTES;
            self.known.insert(short, place);
        }
        Ok(place)
    }

    fn place_by_key(&mut self, id: RawBsonRef<'_>, group: &Group, role: Role) -> Result<usize> {
        let key = encode_id_in(group.collation.as_deref(), id);
        if let Some(place) = self.places.get(&key[..]) {
            return Ok(*place);
        }
        let mut new = OneGroup::new(id, group, role)?;
        if self.continued {
            let states = new.accumulators.into_iter();
            new.accumulators = states.map(Accumulator::or_recorded).collect();
        }
        self.bytes += 2 * key.len() + 64 + new.bytes();
        self.places.insert(key[..].into(), self.list.len());
        self.list.push(new);
        Ok(self.list.len() - 1)
    }
}

/// What an entry of [`Groups::known`] takes, with its share of the table's free places.
const KNOWN_BYTES: usize = size_of::<(ShortValue, usize)>() * 3 / 2;

/// The bytes of a value behind its type.
type ShortValue = SmallVec<[u8; 24]>;

/// Type and bytes of a short value of a common type; `None` for others.
fn short_value(value: RawBsonRef<'_>) -> Option<ShortValue> {
    let mut short = ShortValue::new();
    short.push(value.element_type() as u8);
    match value {
        RawBsonRef::Null => {}
        RawBsonRef::Boolean(value) => short.push(u8::from(value)),
        RawBsonRef::Int32(value) => short.extend_from_slice(&value.to_le_bytes()),
        RawBsonRef::Int64(value) => short.extend_from_slice(&value.to_le_bytes()),
        RawBsonRef::Double(value) => short.extend_from_slice(&value.to_bits().to_le_bytes()),
        RawBsonRef::DateTime(value) => {
            short.extend_from_slice(&value.timestamp_millis().to_le_bytes());
        }
        RawBsonRef::ObjectId(value) => short.extend_from_slice(&value.bytes()),
        RawBsonRef::String(text) if text.len() < short.inline_size() => {
            short.extend_from_slice(text.as_bytes());
        }
        RawBsonRef::Document(document) if document.as_bytes().len() < short.inline_size() => {
            short.extend_from_slice(document.as_bytes());
        }
        _ => return None,
    }
    Some(short)
}

impl OneGroup {
    fn new(id: RawBsonRef<'_>, group: &Group, role: Role) -> Result<OneGroup> {
        let start = |(_, field): &(_, Accumulation)| {
            let started = match role {
                Role::Whole => field.start(id),
                Role::Part | Role::Merge => field.start_partial(id),
            };
            started.map(Accumulator::orderless)
        };
        let states = group.fields.iter().map(start);
        Ok(OneGroup {
            accumulators: states.collect::<Result<_>>()?,
            id: id.into(),
            documents: 0,
            parts: 0,
        })
    }

    fn bytes(&self) -> usize {
        self.accumulators.iter().map(Accumulator::bytes).sum()
    }

    /// Whether there are sums of doubles, which depend on the order of the documents.
    fn sums_doubles(&self) -> bool {
        self.accumulators.iter().any(Accumulator::sums_doubles)
    }

    /// Accounts for all that is held: a group may hold millions of values, each of which is copied
    /// when it leaves.
    fn account(&self) -> Result<()> {
        spend(work::STEP * self.accumulators.len() as work::Units)?;
        spend_bytes(self.bytes())
    }

    /// The group's document; `orderless` says whether sums of doubles are those of all orders.
    fn finish(&self, group: &Group, orderless: bool) -> Result<RawDocumentBuf> {
        let mut out = DocBuilder::new();
        let id = self.id.as_raw_bson_ref();
        out.append("_id", id);
        for (accumulator, (name, field)) in self.accumulators.iter().zip(&group.fields) {
            let result = match accumulator {
                Accumulator::Ordered(ordered) => field.replay(id, ordered)?.finish(),
                _ if group.gives_mergeable => accumulator.mergeable_by_v44(orderless),
                _ if orderless => accumulator.finish_orderless(),
                _ => accumulator.finish(),
            };
            out.append(name, result.as_raw_bson_ref());
        }
        Ok(out.finish())
    }

    /// What [`read_partials`] reads.
    fn partials(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.id.as_raw_bson_ref());
        out.append("documents", self.documents as i64);
        out.start_array("partials");
        for accumulator in &self.accumulators {
            out.push(accumulator.partial().as_raw_bson_ref());
        }
        out.end();
        out.finish()
    }
}

/// A group's key and what is known of it.
fn read_partials(document: &RawDocument) -> Result<(RawBsonRef<'_>, &RawArray)> {
    match (field(document, "_id"), field(document, "partials")) {
        (Some(id), Some(RawBsonRef::Array(partials))) => Ok((id, partials)),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> pinion_wire::Error {
    bad_value("what is known of a group has a form that is not known")
}

impl Step for Grouping {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        let pushed = match self.role {
            Role::Whole | Role::Part => self.push(document),
            Role::Merge => self.push_partial(document),
        };
        match pushed {
            Ok(true) => Ok(Accepted::Spills),
            Ok(false) => Ok(Accepted::Kept),
            Err(error) => Err(coded(error, self.group.engine)),
        }
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        if !self.runs.is_empty() {
            // Memory is free for the runs then.
            self.runs.begin();
        }
        self.leave();
        Ok(())
    }

    fn give(&mut self) -> Result<Produced> {
        if !self.ended {
            return Ok(Produced::Nothing);
        }
        if self.runs.is_empty() {
            return self.give_held();
        }
        self.give_spilled()
    }

    fn disk(&mut self) -> Result<OnDisk> {
        loop {
            if let Some(request) = self.runs.request()? {
                return Ok(OnDisk::Request(request));
            }
            if !self.sort() {
                return Ok(OnDisk::Working);
            }
            if let Leaving::Not = self.leaving {
                return Ok(OnDisk::Nothing);
            }
            self.spill()?;
        }
    }

    fn reply(&mut self, reply: DiskReply) -> Result<()> {
        self.runs.reply(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Variables;
    use crate::field_walk::tests::{document, times};
    use pinion_bson::testing::Rng;
    use pinion_bson::{rawbson, rawdoc};

    fn groups(spec: RawBson) -> Grouping {
        let parsed = Group::parse(spec.as_raw_bson_ref(), &Variables::default());
        Grouping::new(parsed.expect("parses"), Role::Whole, &Memory::default())
    }

    /// The next group's document.
    fn given(groups: &mut Grouping) -> Result<Option<Document>> {
        loop {
            match groups.give()? {
                Produced::Document(document) => return Ok(Some(document)),
                Produced::Working => {}
                Produced::Disk => unreachable!("all is in memory"),
                Produced::Nothing => return Ok(None),
            }
        }
    }

    #[track_caller]
    fn check(spec: RawBson, documents: &[RawDocumentBuf], expected: &[RawDocumentBuf]) {
        let mut groups = groups(spec);
        for document in documents {
            groups.push(&document.clone().into()).expect("it is taken");
        }
        groups.end().expect("it ends");
        let mut found = Vec::new();
        while let Some(document) = given(&mut groups).expect("it is given") {
            found.push(RawDocument::to_owned(&document));
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_key_of_one_field_is_null_where_it_is_missing() {
        let documents = [rawdoc! { "s": "open" }, rawdoc! { "s": null }, rawdoc! {}];
        let null = || RawBson::Null;
        check(
            rawbson!({ "_id": { "s": "$s" }, "n": { "$sum": 1 } }),
            &documents,
            &[
                rawdoc! { "_id": { "s": (null()) }, "n": 2 },
                rawdoc! { "_id": { "s": "open" }, "n": 1 },
            ],
        );
        check(
            rawbson!({ "_id": { "s": "$s", "t": "$t" }, "n": { "$sum": 1 } }),
            &documents,
            &[
                rawdoc! { "_id": {}, "n": 1 },
                rawdoc! { "_id": { "s": (null()) }, "n": 1 },
                rawdoc! { "_id": { "s": "open" }, "n": 1 },
            ],
        );
    }

    /// Fields are found in one walk, and what computes is evaluated: both give the same.
    #[test]
    fn fields_are_read_as_they_are_evaluated() {
        let field = |name: &str| rawbson!(format!("${name}"));
        let computed = |name: &str| rawbson!({ "$getField": { "field": name, "input": "$$ROOT" } });
        let mut rng = Rng::new(5);
        for _ in 0..2000 * times() {
            let names = ["a", "b", "c", "d", "long name", "none"];
            let chosen = [(); 4].map(|()| names[rng.below(6) as usize]);
            let documents: Vec<RawDocumentBuf> =
                (0..rng.below(20)).map(|_| document(&mut rng)).collect();
            let of = |read: &dyn Fn(&str) -> RawBson| {
                let [id, sum, max, push] = chosen.map(read);
                let mut groups = groups(rawbson!({
                    "_id": id, "n": { "$sum": 1 }, "sum": { "$sum": sum }, "max": { "$max": max }, "all": { "$push": push },
                }));
                for document in &documents {
                    groups.push(&document.clone().into()).expect("it is taken");
                }
                groups.end().expect("it ends");
                let mut found = Vec::new();
                while let Some(document) = given(&mut groups).expect("it is given") {
                    found.push(RawDocument::to_owned(&document));
                }
                found
            };
            assert_eq!(of(&field), of(&computed), "{chosen:?} of {documents:?}");
        }
    }

    #[test]
    fn the_number_kept_may_depend_on_the_key() {
        let n = rawbson!({ "$cond": [{ "$eq": ["$k", 1] }, 1, 2] });
        check(
            rawbson!({ "_id": { "k": "$k" }, "v": { "$topN": { "n": n, "sortBy": { "v": -1 }, "output": "$v" } } }),
            &[
                rawdoc! { "k": 1, "v": 3 },
                rawdoc! { "k": 2, "v": 4 },
                rawdoc! { "k": 1, "v": 5 },
                rawdoc! { "k": 2, "v": 6 },
            ],
            &[
                rawdoc! { "_id": { "k": 1 }, "v": [5] },
                rawdoc! { "_id": { "k": 2 }, "v": [6, 4] },
            ],
        );
    }

    #[test]
    fn a_large_group_is_accounted_for_before_it_is_given() {
        let mut groups = groups(rawbson!({ "_id": null, "all": { "$push": "$$ROOT" } }));
        for _ in 0..100 {
            let document = rawdoc! { "x": "x".repeat(1000) };
            groups.push(&document.into()).expect("it is taken");
        }
        groups.end().expect("it ends");
        assert!(work::within(100_000, || given(&mut groups)).is_none());
        let one = work::within(1_000_000, || given(&mut groups)).expect("the budget suffices");
        let one = one.expect("it is given").expect("there is a group");
        assert!(one.as_bytes().len() > 100_000);
        assert!(given(&mut groups).expect("it is given").is_none());
    }

    #[track_caller]
    fn check_error(engine: Engine, accumulator: RawBson, code: i32) {
        let mut groups = groups(rawbson!({ "_id": null, "r": accumulator.clone() }));
        groups.group.engine = engine;
        let document = Document::from(rawdoc! { "v": 0 });
        let failed = groups.take(&document).expect_err("it fails");
        assert_eq!(failed.code.0, code, "{accumulator:?}");
    }

    #[test]
    fn codes_of_the_engines() {
        for (accumulator, classic, slot_based) in [
            (rawbson!({ "$sum": { "$divide": [1, "$v"] } }), 2, 4_848_401),
            (
                rawbson!({ "$sum": { "$mod": [1, "$v"] } }),
                16610,
                4_848_403,
            ),
            (rawbson!({ "$mergeObjects": "$v" }), 40400, 5_911_200),
            (
                rawbson!({ "$firstN": { "n": "x", "input": "$v" } }),
                5_787_902,
                7_548_606,
            ),
            (rawbson!({ "$setUnion": "$v" }), 14, 14),
        ] {
            check_error(Engine::Classic, accumulator.clone(), classic);
            check_error(Engine::SlotBased, accumulator, slot_based);
        }
    }
}
