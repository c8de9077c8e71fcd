//! What a window function holds of the documents in its window.
//!
//! A window that moves takes documents in at its end and drops them at its beginning, each once, so
//! that a partition costs as many steps as it has documents, however wide the windows are.

mod collected;
mod covariance;
mod curve;
mod extremes;
mod growing;
mod numbers;
mod quantiles;
mod ranked;

use std::collections::VecDeque;

use pinion_bson::RawBson;
use pinion_wire::Result;

use super::function::What;
use crate::accumulator::Kind;

/// What one document gives one function.
#[derive(Clone, Debug, Default)]
pub(super) struct Element {
    /// The function's argument, unless it is missing.
    pub value: Option<RawBson>,
    /// The document's key in an order of the function's own.
    pub key: Vec<u8>,
    /// The value that the partition is sorted by, where the function or its window asks for it.
    pub time: Option<RawBson>,
}

impl Element {
    /// The bytes held, roughly.
    pub(super) fn bytes(&self) -> usize {
        let of = |value: &Option<RawBson>| {
            let value = value.as_ref().map(RawBson::as_raw_bson_ref);
            value.map_or(0, crate::value::bytes)
        };
        size_of::<Element>() + self.key.len() + of(&self.value) + of(&self.time)
    }
}

/// The elements of a window. A window that only grows has none any more of those that were added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window<'a> {
    pub elements: &'a VecDeque<Element>,
    pub from: usize,
    pub to: usize,
}

impl<'a> Window<'a> {
    pub(super) fn first(self) -> Option<&'a Element> {
        self.iter().next()
    }

    pub(super) fn last(self) -> Option<&'a Element> {
        self.iter().next_back()
    }

    pub(super) fn iter(self) -> impl DoubleEndedIterator<Item = &'a Element> + ExactSizeIterator {
        self.elements.range(self.from..self.to)
    }
}

/// The state of a window function.
pub(super) trait Held: std::fmt::Debug + Send {
    /// Takes the next element.
    fn add(&mut self, element: &Element) -> Result<()>;

    /// Removes the element that was added first of those held. A window that only grows does not
    /// ask for it.
    fn remove(&mut self, element: &Element);

    /// Removes all elements.
    fn clear(&mut self);

    /// The result for the window, seen from the current document.
    fn value(&self, window: Window<'_>, current: &Element) -> Result<RawBson>;

    /// The bytes that a result copies or looks through.
    fn cost(&self, _: Window<'_>) -> usize {
        0
    }

    /// Whether documents of the same window may have different results.
    fn depends_on_current(&self) -> bool {
        false
    }

    /// The bytes held beside the elements, roughly.
    fn bytes(&self) -> usize {
        64
    }
}

/// The state of a function over windows that only grow, or that move.
pub(super) fn held(what: &What, only_grows: bool) -> Result<Box<dyn Held>> {
    Ok(match what {
        What::Accumulation(accumulation) => {
            let kind = accumulation.kind();
            let collation = || accumulation.collation().cloned();
            let wanted = accumulation.wanted(pinion_bson::RawBsonRef::Null)?;
            match kind {
                Kind::Quantiles(quantiles) => {
                    Box::new(quantiles::SortedNumbers::new(quantiles.clone()))
                }
                _ if only_grows => Box::new(growing::Growing::new(accumulation)?),
                Kind::Count => Box::new(collected::Count::default()),
                Kind::Sum => Box::new(numbers::MovingSum::default()),
                Kind::Avg => Box::new(numbers::MovingAverage::default()),
                Kind::StdDevPop => Box::new(numbers::MovingDeviation::new(false)),
                Kind::StdDevSamp => Box::new(numbers::MovingDeviation::new(true)),
                Kind::Min => Box::new(extremes::MovingExtreme::new(false, collation())),
                Kind::Max => Box::new(extremes::MovingExtreme::new(true, collation())),
                Kind::MinN | Kind::MaxN | Kind::Top | Kind::Bottom | Kind::TopN | Kind::BottomN => {
                    Box::new(ranked::MovingRanks::new(kind, wanted, collation()))
                }
                Kind::AddToSet => Box::new(collected::MovingSet::new(false, collation())),
                Kind::SetUnion => Box::new(collected::MovingSet::new(true, collation())),
                Kind::First
                | Kind::Last
                | Kind::FirstN
                | Kind::LastN
                | Kind::Push
                | Kind::ConcatArrays
                | Kind::MergeObjects => Box::new(collected::Listed::new(kind, wanted)),
            }
        }
        What::Covariance { sample, .. } => Box::new(covariance::Covariance::new(*sample)),
        What::Integral { unit, .. } => Box::new(curve::Integral::new(*unit, only_grows)),
        What::Derivative { unit, .. } => Box::new(curve::Derivative::new(*unit, only_grows)),
        What::Scaler {
            least, greatest, ..
        } => Box::new(extremes::Scaler::new(*least, *greatest)),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn element(value: RawBson) -> Element {
        Element {
            key: pinion_keystring::encode_id(value.as_raw_bson_ref()).to_vec(),
            value: Some(value),
            time: None,
        }
    }

    /// The results of windows of this width over the values, each ending with the current one.
    pub(in super::super) fn slide(
        mut state: Box<dyn Held>,
        width: usize,
        elements: impl IntoIterator<Item = Element>,
    ) -> Vec<RawBson> {
        let elements: VecDeque<Element> = elements.into_iter().collect();
        let mut results = Vec::new();
        for (at, element) in elements.iter().enumerate() {
            if at >= width {
                state.remove(&elements[at - width]);
            }
            state.add(element).expect("it is taken");
            let window = Window {
                elements: &elements,
                from: (at + 1).saturating_sub(width),
                to: at + 1,
            };
            results.push(state.value(window, element).expect("a result"));
        }
        results
    }
}
