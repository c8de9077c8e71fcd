//! `$redact`: documents and their parts kept, cut out or looked into.

use pinion_bson::{DocBuilder, RawArray, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::Document;
use crate::error::error;
use crate::expression::Expression;
use crate::text::value_text;
use crate::value::{elements, items};

/// What is left of a document; `None` where it is cut out.
pub(super) fn redact(
    expression: &Expression,
    root: &Document,
    part: &RawDocument,
) -> Result<Option<RawDocumentBuf>> {
    let value = expression.evaluate_at(root.into(), part)?;
    match value.as_ref() {
        Some(RawBsonRef::String("keep")) => Ok(Some(part.to_owned())),
        Some(RawBsonRef::String("prune")) => Ok(None),
        Some(RawBsonRef::String("descend")) => {
            let mut out = DocBuilder::with_capacity(part.as_bytes().len());
            for (name, value) in elements(part) {
                match value {
                    RawBsonRef::Document(inner) => {
                        if let Some(kept) = redact(expression, root, inner)? {
                            out.append(name, RawBsonRef::Document(&kept));
                        }
                    }
                    RawBsonRef::Array(array) => {
                        out.start_array(name);
                        redact_items(expression, root, array, &mut out)?;
                        out.end();
                    }
                    other => {
                        out.append(name, other);
                    }
                }
            }
            Ok(Some(out.finish()))
        }
        other => Err(error(
            17053,
            format!(
                "$redact's expression should not return anything aside from the variables $$KEEP, $$DESCEND, and $$PRUNE, \
                 but returned {}",
                other.map_or_else(|| "MISSING".into(), value_text)
            ),
        )),
    }
}

fn redact_items(
    expression: &Expression,
    root: &Document,
    array: &RawArray,
    out: &mut DocBuilder,
) -> Result<()> {
    for item in items(array) {
        match item {
            RawBsonRef::Document(inner) => {
                if let Some(kept) = redact(expression, root, inner)? {
                    out.push(RawBsonRef::Document(&kept));
                }
            }
            RawBsonRef::Array(inner) => {
                out.push_array();
                redact_items(expression, root, inner, out)?;
                out.end();
            }
            other => {
                out.push(other);
            }
        }
    }
    Ok(())
}
