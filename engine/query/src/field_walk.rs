//! The fields of a document that a filter or a stage reads, found by one walk through it that goes
//! no further than the last one wanted.

use pinion_bson::{RawBsonRef, RawDocument, RawElem, RawElems};
use smallvec::{SmallVec, smallvec};

use crate::limits::WIDE_BYTES;
use crate::work;

/// How many fields one walk looks for: each field passed is compared with all of them.
const MAX_FIELDS: usize = 16;
const _: () = assert!(MAX_FIELDS <= u8::MAX as usize, "a place is a byte");

/// The names of the fields that are wanted, each with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedFields {
    names: Vec<Box<str>>,
}

impl WantedFields {
    /// The place of a field, which is wanted from now on; `None` where there are too many.
    pub(crate) fn want(&mut self, name: &str) -> Option<u8> {
        let known = self.names.iter().position(|other| **other == *name);
        if known.is_none() && self.names.len() == MAX_FIELDS {
            return None;
        }
        let place = known.unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        u8::try_from(place).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Begins to walk through a document.
    pub(crate) fn walk<'d>(&'d self, document: &'d RawDocument) -> FieldWalk<'d> {
        FieldWalk {
            names: &self.names,
            rest: RawElems::new(document.as_bytes()),
            met: smallvec![None; self.names.len()],
            is_wide: document.as_bytes().len() >= WIDE_BYTES,
        }
    }
}

/// A walk through one document.
#[derive(Debug)]
pub(crate) struct FieldWalk<'d> {
    names: &'d [Box<str>],
    /// What was not passed yet.
    rest: RawElems<'d>,
    /// What was met, by place.
    met: SmallVec<[Option<RawElem<'d>>; 4]>,
    is_wide: bool,
}

impl<'d> FieldWalk<'d> {
    /// The value of the field at a place, the first one of its name; `None` if it is missing. In a
    /// wide document what is passed is accounted for, and a call that was refused for its work
    /// finds nothing more.
    pub(crate) fn get(&mut self, place: u8) -> Option<RawBsonRef<'d>> {
        let place = usize::from(place);
        if self.met[place].is_none() {
            self.walk_to(place)?;
        }
        self.met[place]?.to_value()
    }

    /// Passes fields until the one at this place was met.
    fn walk_to(&mut self, place: usize) -> Option<()> {
        if self.is_wide && work::is_exhausted() {
            return None;
        }
        let mut passed = 0;
        for elem in self.rest.by_ref() {
            passed += 1;
            let at = (self.names.iter()).position(|name| name.as_bytes() == elem.name);
            let Some(at) = at.filter(|at| self.met[*at].is_none()) else {
                continue;
            };
            self.met[at] = Some(elem);
            if at == place {
                break;
            }
        }
        if self.is_wide {
            work::spend(passed * work::ITEM).ok()?;
        }
        Some(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::value::field;
    use pinion_bson::testing::Rng;
    use pinion_bson::{CString, RawBson, RawDocumentBuf, rawbson, rawdoc};

    /// A document of a few fields among few names, some of them twice, of values that compare with
    /// each other.
    pub(crate) fn document(rng: &mut Rng) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        for _ in 0..rng.below(7) {
            let name = ["a", "b", "c", "d", "long name"][rng.below(5) as usize];
            let name = CString::try_from(name).expect("no zero byte");
            document.append(name, value(rng, 2));
        }
        document
    }

    fn value(rng: &mut Rng, depth: u32) -> RawBson {
        let number = rng.below(4) as i32;
        match rng.below(if depth > 0 { 11 } else { 8 }) {
            0 => RawBson::Null,
            1 => rawbson!(f64::from(number) + 0.5),
            2 => rawbson!(f64::from(number)),
            3 => rawbson!(i64::from(number)),
            4 => rawbson!(["x", "y", "xy", "a text of some length"][number as usize]),
            5 => rawbson!(number % 2 == 0),
            8 => {
                let items = (0..number).map(|_| value(rng, depth - 1));
                RawBson::Array(items.collect())
            }
            9 => rawbson!({ "a": (value(rng, depth - 1)), "b": number }),
            10 => rawbson!([{ "a": number }, { "b": (value(rng, depth - 1)) }]),
            _ => rawbson!(number),
        }
    }

    /// How many times as much a random test does in a campaign: `PINION_SEEDS`.
    pub(crate) fn times() -> u64 {
        let times = std::env::var("PINION_SEEDS").ok();
        times.and_then(|times| times.parse().ok()).unwrap_or(1)
    }

    #[test]
    fn fields_come_as_if_each_were_looked_for() {
        let doubled = rawdoc! { "a": 1, "b": "x", "a": 2, "c": { "a": 3 }, "": null, "b": 7 };
        let wide = rawdoc! { "a": "x".repeat(WIDE_BYTES), "b": 1, "": 2 };
        for document in [doubled, wide, rawdoc! {}] {
            for asked in [
                ["a", "b", ""],
                ["", "b", "none"],
                ["c", "a", "b"],
                ["none", "a", "c"],
            ] {
                let mut wanted = WantedFields::default();
                let places = asked.map(|name| wanted.want(name).expect("few"));
                let mut walk = wanted.walk(&document);
                for (name, place) in asked.iter().zip(places).chain(asked.iter().zip(places)) {
                    assert_eq!(walk.get(place), field(&document, name), "{name}");
                }
            }
        }
    }

    #[test]
    fn names_have_one_place_each_and_are_few() {
        let mut wanted = WantedFields::default();
        assert_eq!(wanted.want("a"), Some(0));
        assert_eq!(wanted.want("b"), Some(1));
        assert_eq!(wanted.want("a"), Some(0));
        let others = (0..100).filter_map(|number| wanted.want(&number.to_string()));
        assert_eq!(others.count(), MAX_FIELDS - 2);
        assert_eq!(wanted.want("b"), Some(1));
    }
}
