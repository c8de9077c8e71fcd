//! An accumulator over a window that only grows.

use pinion_bson::{RawBson, RawBsonRef};
use pinion_wire::Result;

use super::{Element, Held, Window};
use crate::accumulator::{Accumulation, Accumulator};

#[derive(Debug)]
pub(super) struct Growing {
    empty: Accumulator,
    state: Accumulator,
}

impl Growing {
    pub(super) fn new(accumulation: &Accumulation) -> Result<Growing> {
        let empty = accumulation.start(RawBsonRef::Null)?;
        Ok(Growing {
            state: empty.clone(),
            empty,
        })
    }
}

impl Held for Growing {
    fn add(&mut self, element: &Element) -> Result<()> {
        let value = element.value.as_ref().map(RawBson::as_raw_bson_ref);
        self.state.add_ranked(value, &element.key)
    }

    fn remove(&mut self, _: &Element) {
        unreachable!("a window that only grows lets go of nothing")
    }

    fn clear(&mut self) {
        self.state = self.empty.clone();
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        Ok(self.state.finish())
    }

    fn cost(&self, _: Window<'_>) -> usize {
        self.state.bytes()
    }

    fn bytes(&self) -> usize {
        self.state.bytes()
    }
}
