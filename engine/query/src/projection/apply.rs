//! Projections applied to raw documents.

use pinion_bson::{
    DocBuilder, RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, RawElem, RawElems,
};
use pinion_wire::Result;
use smallvec::{SmallVec, smallvec};

use super::{Action, Mode, Projection, Tree};
use crate::error::error;
use crate::expression::{Expression, Subject};
use crate::limits::check_value_bytes;
use crate::value::{array_document, bytes, elements, field, items};
use crate::work::spend_bytes;

pub(super) fn apply(
    projection: &Projection,
    subject: Subject<'_>,
    position: Option<u32>,
    values: &[RawBson],
) -> Result<RawDocumentBuf> {
    let document = subject.document;
    let mut out = DocBuilder::with_capacity(projection.expected_bytes(document));
    let run = Run {
        mode: projection.mode,
        root: subject,
        values,
    };
    run.fields(&projection.root, document, &mut out)?;
    let projected = out.finish();
    match &projection.positional {
        Some(path) => at_position(&projected, path, position),
        None => Ok(projected),
    }
}

struct Run<'d> {
    mode: Mode,
    root: Subject<'d>,
    /// The values that are given with the document.
    values: &'d [RawBson],
}

impl Run<'_> {
    /// The fields of a document under a tree.
    fn fields(&self, tree: &Tree, document: &RawDocument, out: &mut DocBuilder) -> Result<()> {
        // Which actions met their field.
        let mut met: SmallVec<[bool; 32]> = smallvec![false; tree.len()];
        // Fields that are still wanted: an inclusion stops behind the last.
        let mut left = tree
            .iter()
            .filter(|(_, action)| action.wants_field())
            .count();
        for elem in RawElems::new(document.as_bytes()) {
            let Some(at) = tree.position(elem.name) else {
                if self.mode != Mode::Inclusion {
                    out.append_elem(&elem);
                }
                continue;
            };
            let action = tree.action(at);
            if !std::mem::replace(&mut met[at], true) && action.wants_field() {
                left -= 1;
            }
            self.existing(action, &elem, document, out)?;
            if left == 0 && self.mode == Mode::Inclusion {
                break;
            }
        }
        for (at, (name, action)) in tree.iter().enumerate() {
            let exists = met[at];
            match action {
                // In an inclusion computed fields stand behind those that were there.
                Action::Compute(expression) if self.mode == Mode::Inclusion || !exists => {
                    self.compute(expression, name, out)?;
                }
                Action::Value(place) if !exists => self.set(*place, name, out)?,
                Action::ElemMatch(matcher) if self.mode == Mode::Inclusion => {
                    elem_match(matcher, name, document, out)?;
                }
                Action::Nested(inner) if !exists && inner.computes() => {
                    let nested = self.computed_only(inner)?;
                    out.append(name, RawBsonRef::Document(&nested));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn existing(
        &self,
        action: &Action,
        elem: &RawElem<'_>,
        document: &RawDocument,
        out: &mut DocBuilder,
    ) -> Result<()> {
        let name = || elem.name_str().unwrap_or_default();
        match action {
            Action::Include => {
                out.append_elem(elem);
            }
            Action::Exclude => {}
            Action::Compute(expression) => {
                if self.mode != Mode::Inclusion {
                    self.compute(expression, name(), out)?;
                }
            }
            Action::Value(place) => self.set(*place, name(), out)?,
            Action::Slice { skip, limit } => match elem.to_value() {
                Some(RawBsonRef::Array(array)) => slice(name(), array, *skip, *limit, out),
                _ => {
                    out.append_elem(elem);
                }
            },
            Action::ElemMatch(matcher) => {
                if self.mode != Mode::Inclusion {
                    elem_match(matcher, name(), document, out)?;
                }
            }
            Action::Nested(tree) => match elem.to_value() {
                Some(RawBsonRef::Document(inner)) => {
                    out.start_document(name());
                    self.fields(tree, inner, out)?;
                    out.end();
                }
                Some(RawBsonRef::Array(array)) => {
                    out.start_array(name());
                    self.array(tree, array, out)?;
                    out.end();
                }
                _ if tree.computes() => {
                    let nested = self.computed_only(tree)?;
                    out.append(name(), RawBsonRef::Document(&nested));
                }
                _ if self.mode == Mode::Inclusion => {}
                _ => {
                    out.append_elem(elem);
                }
            },
        }
        Ok(())
    }

    fn array(&self, tree: &Tree, array: &RawArray, out: &mut DocBuilder) -> Result<()> {
        for item in items(array) {
            match item {
                RawBsonRef::Document(inner) => {
                    out.push_document();
                    self.fields(tree, inner, out)?;
                    out.end();
                }
                RawBsonRef::Array(inner) => {
                    out.push_array();
                    self.array(tree, inner, out)?;
                    out.end();
                }
                _ if tree.computes() => {
                    let nested = self.computed_only(tree)?;
                    check_value_bytes(out.len() + nested.as_bytes().len())?;
                    out.push(RawBsonRef::Document(&nested));
                }
                item if self.mode != Mode::Inclusion => {
                    out.push(item);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Appends what an expression gives, if it gives anything. A constant costs nothing before it
    /// is copied.
    fn compute(&self, expression: &Expression, name: &str, out: &mut DocBuilder) -> Result<()> {
        let computed = expression.evaluate(self.root)?;
        if let Some(value) = computed.as_ref() {
            spend_bytes(bytes(value))?;
            check_value_bytes(out.len() + bytes(value))?;
            out.append(name, value);
        }
        Ok(())
    }

    /// Appends a value that was given.
    fn set(&self, place: usize, name: &str, out: &mut DocBuilder) -> Result<()> {
        let value = self.values[place].as_raw_bson_ref();
        spend_bytes(bytes(value))?;
        out.append(name, value);
        Ok(())
    }

    /// The document that computed fields make where there was none.
    fn computed_only(&self, tree: &Tree) -> Result<RawDocumentBuf> {
        let mut out = DocBuilder::new();
        self.fields(tree, &RawDocumentBuf::new(), &mut out)?;
        Ok(out.finish())
    }
}

fn slice(name: &str, array: &RawArray, skip: Option<i64>, limit: i64, out: &mut DocBuilder) {
    let len = crate::value::count(array_document(array)) as i64;
    let (start, take) = match skip {
        None if limit < 0 => ((len + limit).max(0), -limit),
        None => (0, limit),
        Some(skip) if skip < 0 => ((len + skip).max(0), limit),
        Some(skip) => (skip.min(len), limit),
    };
    out.start_array(name);
    for item in items(array).skip(start as usize).take(take as usize) {
        out.push(item);
    }
    out.end();
}

/// The first item of an array that matches, as an array of its own.
fn elem_match(
    matcher: &crate::matcher::Matcher,
    name: &str,
    document: &RawDocument,
    out: &mut DocBuilder,
) -> Result<()> {
    let Some(RawBsonRef::Array(array)) = field(document, name) else {
        return Ok(());
    };
    let found = matcher
        .matches_with_position(document)?
        .and_then(|m| m.array_index);
    if let Some(item) = found.and_then(|at| items(array).nth(at as usize)) {
        out.start_array(name);
        out.push(item);
        out.end();
    }
    Ok(())
}

/// Keeps of the first array on the path only the item that the filter matched at.
fn at_position(
    document: &RawDocument,
    path: &[Box<str>],
    position: Option<u32>,
) -> Result<RawDocumentBuf> {
    let mut out = DocBuilder::with_capacity(document.as_bytes().len());
    write_at_position(document, path, position, &mut out)?;
    Ok(out.finish())
}

fn write_at_position(
    document: &RawDocument,
    path: &[Box<str>],
    position: Option<u32>,
    out: &mut DocBuilder,
) -> Result<()> {
    for (name, value) in elements(document) {
        if path.first().is_none_or(|first| &**first != name) {
            out.append(name, value);
            continue;
        }
        match value {
            RawBsonRef::Array(array) => {
                let position = position.ok_or_else(|| {
                    error(
                        51246,
                        "positional operator '.$' couldn't find a matching element in the array",
                    )
                })?;
                let item = items(array)
                    .nth(position as usize)
                    .ok_or_else(|| error(51247, "positional operator '.$' element mismatch"))?;
                out.start_array(name);
                out.push(item);
                out.end();
            }
            RawBsonRef::Document(inner) => {
                out.start_document(name);
                write_at_position(inner, &path[1..], position, out)?;
                out.end();
            }
            value => {
                out.append(name, value);
            }
        }
    }
    Ok(())
}
