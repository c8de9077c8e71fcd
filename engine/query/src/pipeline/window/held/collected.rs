//! Windows that move whose result is made of their elements as they stand: the first, the last, all
//! of them, or the different ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef};
use pinion_collation::Collation;
use pinion_keystring::encode_id_in;
use pinion_wire::Result;

use super::{Element, Held, Window};
use crate::accumulator::{Accumulator, Kind, List};
use crate::value::{items, owned};

/// `$count`
#[derive(Debug, Default)]
pub(super) struct Count(i64);

impl Held for Count {
    fn add(&mut self, _: &Element) -> Result<()> {
        self.0 += 1;
        Ok(())
    }

    fn remove(&mut self, _: &Element) {
        self.0 -= 1;
    }

    fn clear(&mut self) {
        self.0 = 0;
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        Ok(i32::try_from(self.0).map_or(RawBson::Int64(self.0), RawBson::Int32))
    }
}

/// What needs no state beside the elements.
#[derive(Debug)]
pub(super) struct Listed {
    kind: Kind,
    wanted: usize,
}

impl Listed {
    pub(super) fn new(kind: &Kind, wanted: usize) -> Listed {
        Listed {
            kind: kind.clone(),
            wanted,
        }
    }
}

fn value(element: &Element) -> Option<RawBsonRef<'_>> {
    element.value.as_ref().map(RawBson::as_raw_bson_ref)
}

fn or_null(element: &Element) -> RawBsonRef<'_> {
    value(element).unwrap_or(RawBsonRef::Null)
}

impl Held for Listed {
    fn add(&mut self, element: &Element) -> Result<()> {
        // What the accumulator refuses is refused here.
        if self.kind == Kind::ConcatArrays {
            Accumulator::new(&self.kind).add(value(element))?;
        }
        Ok(())
    }

    fn remove(&mut self, _: &Element) {}

    fn clear(&mut self) {}

    fn cost(&self, window: Window<'_>) -> usize {
        match self.kind {
            Kind::First | Kind::Last => 0,
            Kind::FirstN => window.iter().take(self.wanted).map(Element::bytes).sum(),
            Kind::LastN => window
                .iter()
                .rev()
                .take(self.wanted)
                .map(Element::bytes)
                .sum(),
            _ => window.iter().map(Element::bytes).sum(),
        }
    }

    fn value(&self, window: Window<'_>, _: &Element) -> Result<RawBson> {
        let one = |element: Option<&Element>| element.map_or(RawBson::Null, |e| owned(or_null(e)));
        Ok(match self.kind {
            Kind::First => one(window.first()),
            Kind::Last => one(window.last()),
            Kind::FirstN => List::of(window.iter().take(self.wanted).map(or_null)),
            Kind::LastN => {
                let skipped = window.iter().len().saturating_sub(self.wanted);
                List::of(window.iter().skip(skipped).map(or_null))
            }
            _ => {
                let mut all = Accumulator::new(&self.kind);
                for element in window.iter() {
                    all.add(value(element))?;
                }
                all.finish()
            }
        })
    }
}

/// `$addToSet` and `$setUnion`: the different values with how often each is there, in order.
#[derive(Debug)]
pub(super) struct MovingSet {
    /// The elements are arrays whose items count.
    of_items: bool,
    collation: Option<Arc<Collation>>,
    values: BTreeMap<Vec<u8>, (usize, RawBson)>,
    bytes: usize,
}

impl MovingSet {
    pub(super) fn new(of_items: bool, collation: Option<Arc<Collation>>) -> MovingSet {
        MovingSet {
            of_items,
            collation,
            values: BTreeMap::new(),
            bytes: 0,
        }
    }

    fn put(&mut self, value: RawBsonRef<'_>) {
        let key = encode_id_in(self.collation.as_deref(), value);
        match self.values.get_mut(&key[..]) {
            Some((count, _)) => *count += 1,
            None => {
                self.bytes += entry_bytes(&key, value);
                self.values.insert(key.to_vec(), (1, owned(value)));
            }
        }
    }

    fn take_out(&mut self, value: RawBsonRef<'_>) {
        let key = encode_id_in(self.collation.as_deref(), value);
        if let Some((count, _)) = self.values.get_mut(&key[..]) {
            *count -= 1;
            if *count == 0
                && let Some((_, gone)) = self.values.remove(&key[..])
            {
                self.bytes -= entry_bytes(&key, gone.as_raw_bson_ref());
            }
        }
    }
}

fn entry_bytes(key: &[u8], value: RawBsonRef<'_>) -> usize {
    64 + key.len() + crate::value::bytes(value)
}

impl Held for MovingSet {
    fn add(&mut self, element: &Element) -> Result<()> {
        match value(element) {
            None => {}
            Some(RawBsonRef::Array(array)) if self.of_items => {
                items(array).for_each(|item| self.put(item));
            }
            // What the accumulator refuses is refused here.
            other if self.of_items => Accumulator::new(&Kind::SetUnion).add(other)?,
            Some(value) => self.put(value),
        }
        Ok(())
    }

    fn remove(&mut self, element: &Element) {
        match value(element) {
            Some(RawBsonRef::Array(array)) if self.of_items => {
                items(array).for_each(|item| self.take_out(item));
            }
            Some(value) if !self.of_items => self.take_out(value),
            _ => {}
        }
    }

    fn clear(&mut self) {
        self.values.clear();
        self.bytes = 0;
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        let values = self.values.values();
        Ok(List::of(values.map(|(_, value)| value.as_raw_bson_ref())))
    }

    fn cost(&self, _: Window<'_>) -> usize {
        self.bytes
    }

    fn bytes(&self) -> usize {
        64 + self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{element, slide};
    use super::*;
    use pinion_bson::rawbson;

    #[track_caller]
    fn check(state: impl Held + 'static, values: Vec<RawBson>, expected: RawBson) {
        let found = slide(Box::new(state), 3, values.into_iter().map(element));
        assert_eq!(found.last(), Some(&expected));
    }

    #[test]
    fn elements_of_the_window() {
        let values = || vec![rawbson!(9), rawbson!(2), rawbson!(1), rawbson!(2)];
        let listed = |kind| Listed::new(&kind, 2);
        check(Count::default(), values(), rawbson!(3));
        check(listed(Kind::First), values(), rawbson!(2));
        check(listed(Kind::Last), values(), rawbson!(2));
        check(listed(Kind::FirstN), values(), rawbson!([2, 1]));
        check(listed(Kind::LastN), values(), rawbson!([1, 2]));
        check(listed(Kind::Push), values(), rawbson!([2, 1, 2]));
        check(MovingSet::new(false, None), values(), rawbson!([1, 2]));
        let arrays = || vec![rawbson!([9]), rawbson!([2, 1]), rawbson!([]), rawbson!([2])];
        check(listed(Kind::ConcatArrays), arrays(), rawbson!([2, 1, 2]));
        check(MovingSet::new(true, None), arrays(), rawbson!([1, 2]));
    }

    #[test]
    fn what_is_no_array_is_refused() {
        let refused = |mut state: Box<dyn Held>| state.add(&element(rawbson!(1))).is_err();
        assert!(refused(Box::new(MovingSet::new(true, None))));
        assert!(refused(Box::new(Listed::new(&Kind::ConcatArrays, 1))));
    }
}
