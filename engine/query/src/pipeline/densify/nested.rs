//! Documents made and read path by path.

use indexmap::IndexMap;
use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use rustc_hash::FxBuildHasher;

use crate::value::field;

/// The value at a path that leads through documents alone.
pub(super) fn at_path<'a>(document: &'a RawDocument, path: &str) -> Option<RawBsonRef<'a>> {
    let mut names = path.split('.');
    let mut value = field(document, names.next()?)?;
    for name in names {
        let RawBsonRef::Document(inner) = value else {
            return None;
        };
        value = field(inner, name)?;
    }
    Some(value)
}

/// A document that is made path by path.
#[derive(Default)]
pub(super) struct Nested(IndexMap<String, Leaf, FxBuildHasher>);

enum Leaf {
    Value(RawBson),
    Inner(Nested),
}

impl Nested {
    pub(super) fn set(&mut self, path: &str, value: RawBson) {
        match path.split_once('.') {
            None => {
                self.0.insert(path.to_string(), Leaf::Value(value));
            }
            Some((name, rest)) => {
                let inner = self
                    .0
                    .entry(name.to_string())
                    .or_insert_with(|| Leaf::Inner(Nested::default()));
                if let Leaf::Inner(inner) = inner {
                    inner.set(rest, value);
                }
            }
        }
    }

    pub(super) fn document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        self.write(&mut out);
        out.finish()
    }

    fn write(&self, out: &mut DocBuilder) {
        for (name, leaf) in &self.0 {
            match leaf {
                Leaf::Value(value) => {
                    out.append(name, value.as_raw_bson_ref());
                }
                Leaf::Inner(inner) => {
                    out.start_document(name);
                    inner.write(out);
                    out.end();
                }
            }
        }
    }
}
