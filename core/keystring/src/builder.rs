//! Building keys component by component.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, View};
use pinion_collation::Collation;

use crate::ctype;
use crate::encode::{push_component, push_descending, push_value};
use crate::limits::MAX_COMPONENTS;
use crate::ordering::Ordering;
use crate::record_id::{self, RecordId};
use crate::strings::Strings;
use crate::type_bits::TypeBits;

/// A finished key: bytes that compare by `memcmp` as the values do, and the types that the bytes do
/// not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyString {
    /// The components, the end byte, and the RecordId if there is one.
    pub bytes: Vec<u8>,
    /// What decoding needs besides the bytes.
    pub type_bits: TypeBits,
}

/// Where a bound lies relative to the keys with the same components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discriminator {
    /// With them: the form of a stored key.
    Inclusive,
    /// Before all of them, whatever follows in those keys.
    ExclusiveBefore,
    /// After all of them, whatever follows in those keys.
    ExclusiveAfter,
}

/// Builds one key after the other in the same memory.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    bytes: Vec<u8>,
    type_bits: TypeBits,
    ordering: Ordering,
    /// What strings become sort keys of.
    collation: Option<Arc<Collation>>,
    components: u32,
    ended: bool,
}

impl Builder {
    /// An empty key with these directions.
    pub fn new(ordering: Ordering) -> Builder {
        Builder {
            bytes: Vec::with_capacity(32),
            ordering,
            ..Builder::default()
        }
    }

    /// An empty key with these directions, whose strings compare as the collation says.
    pub fn with_collation(ordering: Ordering, collation: Option<Arc<Collation>>) -> Builder {
        Builder {
            collation,
            ..Builder::new(ordering)
        }
    }

    /// Starts over with the same directions.
    pub fn reset(&mut self) -> &mut Builder {
        self.bytes.clear();
        self.type_bits.clear();
        self.components = 0;
        self.ended = false;
        self
    }

    /// Starts over with other directions.
    pub fn reset_to(&mut self, ordering: Ordering) -> &mut Builder {
        self.ordering = ordering;
        self.reset()
    }

    /// Appends a component in the direction the ordering has for it. Nested documents must be
    /// validated ones.
    ///
    /// # Panics
    /// After the end of the key, and beyond `MAX_COMPONENTS`.
    #[inline]
    pub fn append(&mut self, value: RawBsonRef<'_>) -> &mut Builder {
        let descending = self.next_is_descending();
        push_component(
            &mut self.bytes,
            &mut self.type_bits,
            value,
            descending,
            Strings::of(self.collation.as_deref()),
        );
        self
    }

    /// As `append`, with the value's strings in this form whatever the collation.
    pub fn append_as(&mut self, value: RawBsonRef<'_>, strings: Strings<'_>) -> &mut Builder {
        let descending = self.next_is_descending();
        push_component(
            &mut self.bytes,
            &mut self.type_bits,
            value,
            descending,
            strings,
        );
        self
    }

    /// Appends a component given as a view.
    #[inline]
    pub fn append_view(&mut self, view: View<'_>) -> &mut Builder {
        let descending = self.next_is_descending();
        let strings = Strings::of(self.collation.as_deref());
        if descending {
            push_descending(&mut self.bytes, &mut self.type_bits, view, strings);
        } else {
            push_value(&mut self.bytes, &mut self.type_bits, view, strings);
        }
        self
    }

    /// Ends the components with a discriminator.
    pub fn append_discriminator(&mut self, discriminator: Discriminator) -> &mut Builder {
        assert!(!self.ended, "the key has ended");
        match discriminator {
            Discriminator::Inclusive => {}
            Discriminator::ExclusiveBefore => self.bytes.push(ctype::LESS),
            Discriminator::ExclusiveAfter => self.bytes.push(ctype::GREATER),
        }
        self.end()
    }

    /// Ends the components, if they have not ended, and appends where the record is.
    ///
    /// # Panics
    /// When a binary RecordId is empty or too long.
    pub fn append_record_id(&mut self, id: &RecordId) -> &mut Builder {
        self.end();
        match id {
            RecordId::Long(id) => record_id::push_long(&mut self.bytes, *id),
            RecordId::Binary(id) => record_id::push_binary(&mut self.bytes, id),
        }
        self
    }

    /// Ends the components, if they have not ended.
    pub fn end(&mut self) -> &mut Builder {
        if !self.ended {
            self.bytes.push(ctype::END);
            self.ended = true;
        }
        self
    }

    /// The bytes so far; without an end byte until the key has ended.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The type bits so far.
    pub fn type_bits(&self) -> &TypeBits {
        &self.type_bits
    }

    /// The number of components so far.
    pub fn components(&self) -> u32 {
        self.components
    }

    /// The key, ended; the builder is empty afterwards.
    pub fn finish(&mut self) -> KeyString {
        self.end();
        let key = KeyString {
            bytes: core::mem::take(&mut self.bytes),
            type_bits: core::mem::take(&mut self.type_bits),
        };
        self.reset();
        key
    }

    #[inline]
    fn next_is_descending(&mut self) -> bool {
        assert!(!self.ended, "the key has ended");
        assert!(
            self.components < MAX_COMPONENTS,
            "a key has at most {MAX_COMPONENTS} components"
        );
        let descending = self.ordering.is_descending(self.components);
        self.components += 1;
        descending
    }
}
