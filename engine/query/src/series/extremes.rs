//! The least and the greatest values of a bucket's fields: those of documents field by field, those
//! of arrays place by place.

use std::cmp::Ordering;

use pinion_bson::{DocBuilder, ElementType, RawArray, RawBson, RawBsonRef, RawDocument};
use pinion_collation::Collation;

use crate::collation::compare;
use crate::value::{class, elements, items};

/// Which end of the order is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Least,
    Greatest,
}

impl Side {
    /// Whether what compares so with what is kept takes its place.
    fn takes(self, order: Ordering) -> bool {
        match self {
            Side::Least => order == Ordering::Less,
            Side::Greatest => order == Ordering::Greater,
        }
    }
}

/// What is kept of the values at one place.
#[derive(Clone, Debug)]
pub(super) enum Extreme {
    Document(Extremes),
    Array(Vec<Extreme>),
    Value(RawBson),
}

/// What is kept of the fields of a document.
#[derive(Clone, Debug, Default)]
pub(super) struct Extremes(Vec<(String, Extreme)>);

impl Extreme {
    fn of(value: RawBsonRef<'_>) -> Extreme {
        match value {
            RawBsonRef::Document(document) => Extreme::Document(Extremes::of(document)),
            RawBsonRef::Array(array) => Extreme::Array(items(array).map(Extreme::of).collect()),
            other => Extreme::Value(other.into()),
        }
    }

    /// The place of its type in the order of values.
    fn class(&self) -> u8 {
        pinion_bson::canonical_type(match self {
            Extreme::Document(_) => ElementType::EmbeddedDocument,
            Extreme::Array(_) => ElementType::Array,
            Extreme::Value(value) => value.element_type(),
        })
    }

    fn add(&mut self, value: RawBsonRef<'_>, side: Side, collation: Option<&Collation>) {
        let order = class(Some(value)).cmp(&self.class());
        if order != Ordering::Equal {
            if side.takes(order) {
                *self = Extreme::of(value);
            }
            return;
        }
        match (self, value) {
            (Extreme::Document(kept), RawBsonRef::Document(document)) => {
                kept.add_all(document, side, collation);
            }
            (Extreme::Array(kept), RawBsonRef::Array(array)) => {
                add_items(kept, array, side, collation);
            }
            (Extreme::Value(kept), value) => {
                let order = compare(collation, value, kept.as_raw_bson_ref());
                if side.takes(order) {
                    *kept = value.into();
                }
            }
            _ => unreachable!("values of one class have one form"),
        }
    }

    fn append(&self, name: &str, out: &mut DocBuilder) {
        match self {
            Extreme::Document(kept) => {
                out.start_document(name);
                kept.append_all(out);
                out.end();
            }
            Extreme::Array(kept) => {
                out.start_array(name);
                for (at, item) in kept.iter().enumerate() {
                    item.append(&at.to_string(), out);
                }
                out.end();
            }
            Extreme::Value(value) => {
                out.append_raw(name, value.as_raw_bson_ref());
            }
        }
    }
}

fn add_items(kept: &mut Vec<Extreme>, array: &RawArray, side: Side, collation: Option<&Collation>) {
    for (at, item) in items(array).enumerate() {
        match kept.get_mut(at) {
            Some(kept) => kept.add(item, side, collation),
            None => kept.push(Extreme::of(item)),
        }
    }
}

impl Extremes {
    /// Those of one document.
    pub(super) fn of(document: &RawDocument) -> Extremes {
        Extremes(
            elements(document)
                .map(|(name, value)| (name.to_owned(), Extreme::of(value)))
                .collect(),
        )
    }

    /// Takes account of one more value of a field. `hint` is where the field was looked for last.
    pub(super) fn add(
        &mut self,
        name: &str,
        value: RawBsonRef<'_>,
        side: Side,
        collation: Option<&Collation>,
        hint: usize,
    ) {
        let is_hinted = self.0.get(hint).is_some_and(|(field, _)| field == name);
        let found = match is_hinted {
            true => Some(hint),
            false => self.0.iter().position(|(field, _)| field == name),
        };
        match found {
            Some(at) => self.0[at].1.add(value, side, collation),
            None => self.0.push((name.to_owned(), Extreme::of(value))),
        }
    }

    fn add_all(&mut self, document: &RawDocument, side: Side, collation: Option<&Collation>) {
        for (at, (name, value)) in elements(document).enumerate() {
            self.add(name, value, side, collation, at);
        }
    }

    pub(super) fn append_all(&self, out: &mut DocBuilder) {
        for (name, kept) in &self.0 {
            kept.append(name, out);
        }
    }
}
