//! The document an upsert starts from: what the filter demands by equality.

use std::collections::BTreeMap;
use std::ops::Bound;

use pinion_bson::{DocBuilder, ObjectId, RawBson, RawBsonRef, RawDocumentBuf};
use pinion_wire::Result;

use crate::error::error;
use crate::matcher::{CompareOp, Leaf, Matcher, Node, Predicate};
use crate::value::field;
use crate::work::{PATH, spend};

/// The fields that the filter's equalities give; only `_id` for a replacement.
pub(super) fn base_document(matcher: &Matcher, only_id: bool) -> Result<RawDocumentBuf> {
    let mut equalities = Equalities::new();
    collect(matcher.root(), only_id, &mut equalities)?;
    let mut root: Vec<(String, Tree)> = Vec::new();
    for (path, value) in equalities {
        place(&mut root, path, value)?;
    }
    let mut out = DocBuilder::new();
    for (name, tree) in root.iter().filter(|(name, _)| name == "_id") {
        write(tree, name, &mut out);
    }
    for (name, tree) in root.iter().filter(|(name, _)| name != "_id") {
        write(tree, name, &mut out);
    }
    Ok(out.finish())
}

enum Tree {
    Value(RawBson),
    Fields(Vec<(String, Tree)>),
}

fn write(tree: &Tree, name: &str, out: &mut DocBuilder) {
    match tree {
        Tree::Value(value) => {
            out.append(name, value.as_raw_bson_ref());
        }
        Tree::Fields(fields) => {
            out.start_document(name);
            fields
                .iter()
                .for_each(|(name, tree)| write(tree, name, out));
            out.end();
        }
    }
}

fn place(fields: &mut Vec<(String, Tree)>, path: &str, value: &RawBson) -> Result<()> {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    if name.is_empty() {
        return Err(error(
            56,
            format!("The update path '{path}' contains an empty field name, which is not allowed."),
        ));
    }
    if name.starts_with('$') && !matches!(name, "$id" | "$ref" | "$db") {
        return Err(error(
            52,
            format!("The dollar ($) prefixed field '{name}' in '{path}' is not valid for storage."),
        ));
    }
    // In the order of paths, all that begin with one name stand together.
    if fields.last().is_none_or(|(other, _)| other != name) {
        fields.push((name.to_string(), Tree::Fields(Vec::new())));
    }
    let (_, tree) = fields.last_mut().expect("there is one now");
    match (rest, tree) {
        (None, tree) => *tree = Tree::Value(value.clone()),
        (Some(rest), Tree::Fields(inner)) => place(inner, rest, value)?,
        // `collect` has refused a path under another one.
        (Some(_), Tree::Value(_)) => {}
    }
    Ok(())
}

/// The values that a filter demands, by path.
type Equalities<'m> = BTreeMap<&'m str, &'m RawBson>;

/// The first path inside of this one.
fn first_inside<'m>(found: &Equalities<'m>, path: &str) -> Option<&'m str> {
    let inside = format!("{path}.");
    let from = (Bound::Included(&*inside), Bound::Unbounded);
    let (first, _) = found.range::<str, _>(from).next()?;
    first.starts_with(&inside).then_some(*first)
}

fn collect<'m>(node: &'m Node, only_id: bool, found: &mut Equalities<'m>) -> Result<()> {
    match node {
        Node::And(children) => children
            .iter()
            .try_for_each(|child| collect(child, only_id, found)),
        Node::Or(children) if children.len() == 1 => collect(&children[0], only_id, found),
        Node::Leaf(Leaf {
            path,
            predicate:
                Predicate::Compare {
                    op: CompareOp::Eq,
                    value,
                },
            ..
        }) => {
            spend(PATH)?;
            let path = path.text();
            if only_id && path != "_id" {
                if path.starts_with("_id.") {
                    return Err(error(
                        54,
                        format!(
                            "field at '_id' must be exactly specified, field at sub-path '{path}'found"
                        ),
                    ));
                }
                return Ok(());
            }
            if found.contains_key(path) {
                return Err(error(
                    54,
                    format!("cannot infer query fields to set, path '{path}' is matched twice"),
                ));
            }
            let mut outer = path
                .match_indices('.')
                .map(|(dot, _)| &path[..dot])
                .filter(|outer| found.contains_key(outer));
            let nested = match outer.next() {
                Some(outer) => Some((path, outer)),
                None => first_inside(found, path).map(|inner| (inner, path)),
            };
            if let Some((inner, outer)) = nested {
                return Err(error(
                    54,
                    format!(
                        "cannot infer query fields to set, both paths '{inner}' and '{outer}' are matched"
                    ),
                ));
            }
            found.insert(path, value);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The document with an `_id` in front, the given one where it has none.
pub(super) fn with_id(document: RawDocumentBuf, new_id: ObjectId) -> RawDocumentBuf {
    if field(&document, "_id").is_some() {
        return super::storage::id_first(document);
    }
    let mut out = DocBuilder::with_capacity(document.as_bytes().len() + 24);
    out.append("_id", RawBsonRef::ObjectId(new_id));
    out.append_all(&document);
    out.finish()
}
