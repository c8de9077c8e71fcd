//! What happens to the fields of one document, found by their names.

use rustc_hash::FxHashMap;

use super::Action;
use crate::expression::MetaSet;

/// From this many fields on they are found by a table.
const TABLE_FROM: usize = 16;

/// Actions in the order in which they were given, each for another field.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    fields: Vec<(Box<str>, Action)>,
    /// Where each field is, if there are many.
    places: FxHashMap<Box<[u8]>, usize>,
}

impl Tree {
    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Box<str>, Action)> {
        self.fields.iter()
    }

    /// Whether fields are found by a table.
    pub(super) fn has_table(&self) -> bool {
        !self.places.is_empty()
    }

    /// Where the action of a field is.
    pub(super) fn position(&self, name: &[u8]) -> Option<usize> {
        if self.has_table() {
            self.places.get(name).copied()
        } else {
            self.fields
                .iter()
                .position(|(other, _)| other.as_bytes() == name)
        }
    }

    pub(super) fn action(&self, at: usize) -> &Action {
        &self.fields[at].1
    }

    pub(super) fn action_mut(&mut self, at: usize) -> &mut Action {
        &mut self.fields[at].1
    }

    /// Appends the action of a field that has none yet, and returns where it is.
    pub(super) fn push(&mut self, name: &str, action: Action) -> usize {
        let at = self.fields.len();
        self.fields.push((name.into(), action));
        if self.has_table() {
            self.places.insert(name.as_bytes().into(), at);
        } else if self.fields.len() >= TABLE_FROM {
            self.number();
        }
        at
    }

    /// Puts the action of a field that has none yet before all others.
    pub(super) fn push_front(&mut self, name: &str, action: Action) {
        self.fields.insert(0, (name.into(), action));
        if self.has_table() {
            self.number();
        }
    }

    fn number(&mut self) {
        let places = self.fields.iter().enumerate();
        self.places = places
            .map(|(at, (name, _))| (name.as_bytes().into(), at))
            .collect();
    }

    /// What is read beside the documents, here or deeper.
    pub(super) fn reads(&self) -> MetaSet {
        let actions = self.fields.iter().map(|(_, action)| match action {
            Action::Compute(expression) => expression.reads(),
            Action::Nested(inner) => inner.reads(),
            _ => MetaSet::default(),
        });
        actions.fold(MetaSet::default(), MetaSet::union)
    }

    /// Whether something is computed here or deeper.
    pub(super) fn computes(&self) -> bool {
        self.fields.iter().any(|(_, action)| match action {
            Action::Compute(_) | Action::Value(_) => true,
            Action::Nested(inner) => inner.computes(),
            _ => false,
        })
    }
}
