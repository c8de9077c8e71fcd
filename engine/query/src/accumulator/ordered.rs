//! What parts know of an accumulator whose result depends on the order of the documents: the inputs
//! that may count, each with what orders its document among those of all parts.

use std::collections::VecDeque;
use std::sync::Arc;

use pinion_bson::{BinarySubtype, RawArray, RawBinaryRef, RawBson, RawBsonRef};
use pinion_collation::Collation;
use pinion_keystring::encode_id_in;
use rustc_hash::FxHashSet;

use super::kind::Kind;
use super::list::List;
use super::state::size;
use crate::value::{items, owned};

/// The inputs of one accumulator.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    keeps: Keeps,
    /// In the order in which they came: of one part in that of its documents.
    inputs: VecDeque<Input>,
    bytes: usize,
}

/// Which inputs of a part may count.
#[derive(Clone, Debug)]
enum Keeps {
    First(usize),
    Last(usize),
    All,
    /// The first of equal ones.
    Distinct(FxHashSet<Vec<u8>>, Option<Arc<Collation>>),
}

#[derive(Clone, Debug)]
struct Input {
    order: Box<[u8]>,
    value: RawBson,
}

impl Ordered {
    /// An empty state for an accumulator that keeps `wanted` values; `None` for a kind whose
    /// partial result is not a list of inputs.
    pub(crate) fn new(
        kind: &Kind,
        wanted: usize,
        collation: Option<&Arc<Collation>>,
    ) -> Option<Ordered> {
        let keeps = match kind {
            Kind::First | Kind::FirstN => Keeps::First(wanted),
            Kind::Last | Kind::LastN => Keeps::Last(wanted),
            Kind::Push => Keeps::All,
            Kind::AddToSet => Keeps::Distinct(FxHashSet::default(), collation.cloned()),
            _ => return None,
        };
        Some(Ordered {
            keeps,
            inputs: VecDeque::new(),
            bytes: 0,
        })
    }

    /// Takes a value, `None` where it is missing, of a document that follows those before it.
    pub(crate) fn add(&mut self, order: &[u8], value: Option<RawBsonRef<'_>>) {
        match (&mut self.keeps, value) {
            (Keeps::First(wanted), value) => {
                if self.inputs.len() < *wanted {
                    self.push(order, value.unwrap_or(RawBsonRef::Null));
                }
            }
            (Keeps::Last(wanted), value) => {
                if self.inputs.len() >= *wanted
                    && let Some(gone) = self.inputs.pop_front()
                {
                    self.bytes -= gone.bytes();
                }
                self.push(order, value.unwrap_or(RawBsonRef::Null));
            }
            (Keeps::All, Some(value)) => self.push(order, value),
            (Keeps::Distinct(seen, collation), Some(value)) => {
                let key = encode_id_in(collation.as_deref(), value);
                if !seen.contains(&key[..]) {
                    self.bytes += size_of::<Vec<u8>>() + key.len();
                    seen.insert(key.to_vec());
                    self.push(order, value);
                }
            }
            (Keeps::All | Keeps::Distinct(..), None) => {}
        }
    }

    fn push(&mut self, order: &[u8], value: RawBsonRef<'_>) {
        let input = Input {
            order: order.into(),
            value: owned(value),
        };
        self.bytes += input.bytes();
        self.inputs.push_back(input);
    }

    /// For [`Ordered::merge`].
    pub(crate) fn partial(&self) -> RawBson {
        List::of(self.inputs.iter().flat_map(|input| {
            let order = RawBsonRef::Binary(RawBinaryRef {
                subtype: BinarySubtype::Generic,
                bytes: &input.order,
            });
            [order, input.value.as_raw_bson_ref()]
        }))
    }

    /// Takes what a part knows; `None` where that has another form.
    pub(crate) fn merge(&mut self, partial: &RawArray) -> Option<()> {
        let mut partial = items(partial);
        while let Some(order) = partial.next() {
            let (RawBsonRef::Binary(order), Some(value)) = (order, partial.next()) else {
                return None;
            };
            self.push(order.bytes, value);
        }
        Some(())
    }

    /// The inputs of all parts, in the order of their documents.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = RawBsonRef<'_>> {
        let mut inputs: Vec<&Input> = self.inputs.iter().collect();
        inputs.sort_by(|a, b| a.order.cmp(&b.order));
        inputs
            .into_iter()
            .map(|input| input.value.as_raw_bson_ref())
    }

    /// The bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Input {
    fn bytes(&self) -> usize {
        size_of::<Input>() + self.order.len() + size(&self.value)
    }
}
