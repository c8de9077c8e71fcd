//! The direction of each component of a compound key.

use pinion_bson::{Number, RawDocument, elements};

use crate::limits::MAX_COMPONENTS;

/// One bit for each component; a set bit means descending. Components beyond those given are
/// ascending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ordering(u32);

const _: () = assert!(MAX_COMPONENTS == u32::BITS);

impl Ordering {
    /// All components ascending.
    pub const fn ascending() -> Ordering {
        Ordering(0)
    }

    /// The directions of a key pattern such as `{ a: 1, b: -1 }`: a field with a negative number is
    /// descending, every other one ascending. `None` when the pattern has more than
    /// `MAX_COMPONENTS` fields.
    pub fn from_pattern(pattern: &RawDocument) -> Option<Ordering> {
        let mut ordering = Ordering(0);
        for (i, (_, value)) in (0u32..).zip(elements(pattern)) {
            if i >= MAX_COMPONENTS {
                return None;
            }
            if Number::from_value(value).is_some_and(Number::is_negative) {
                ordering.0 |= 1 << i;
            }
        }
        Some(ordering)
    }

    /// The directions given as bits, the first component's lowest.
    pub const fn from_bits(bits: u32) -> Ordering {
        Ordering(bits)
    }

    /// The bits, the first component's lowest.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether this component is descending.
    #[inline]
    pub const fn is_descending(self, component: u32) -> bool {
        component < MAX_COMPONENTS && self.0 >> component & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    #[test]
    fn patterns() {
        let check = |pattern: RawDocumentBuf, expected: Option<u32>| {
            assert_eq!(
                Ordering::from_pattern(&pattern).map(Ordering::bits),
                expected
            );
        };
        check(rawdoc! {}, Some(0));
        check(
            rawdoc! { "a": 1, "b": -1, "c": -1.0, "d": "text", "e": -2i64 },
            Some(0b10110),
        );
        let mut many = pinion_bson::DocBuilder::new();
        for i in 0..MAX_COMPONENTS {
            many.append(&format!("f{i}"), -1);
        }
        check(many.clone().finish(), Some(u32::MAX));
        many.append("g", 1);
        check(many.finish(), None);
        assert!(!Ordering::from_bits(u32::MAX).is_descending(MAX_COMPONENTS));
    }
}
