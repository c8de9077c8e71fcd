//! Values kept one behind the other, as the array that they make.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef};

use crate::value::{first, owned};

#[derive(Clone, Debug)]
pub(crate) struct List(DocBuilder);

impl Default for List {
    fn default() -> List {
        let mut items = DocBuilder::new();
        items.start_array("");
        List(items)
    }
}

impl List {
    pub(crate) fn push(&mut self, value: RawBsonRef<'_>) {
        self.0.push(value);
    }

    /// The bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The array of all values so far.
    pub(crate) fn array(&self) -> RawBson {
        let mut items = self.0.clone();
        items.end();
        first(&items.finish()).map_or(RawBson::Null, |(_, array)| owned(array))
    }

    /// The array of these values.
    pub(crate) fn of<'v>(values: impl IntoIterator<Item = RawBsonRef<'v>>) -> RawBson {
        let mut list = List::default();
        for value in values {
            list.push(value);
        }
        list.array()
    }
}
