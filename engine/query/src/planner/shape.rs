//! The shape of a query: what its plan depends on but for the constants, and which plans there are.

use std::hash::Hasher;

use pinion_bson::{RawBsonRef, RawDocument};
use rustc_hash::FxHasher;

use super::{Access, IndexAccess, Plan, PlanRequest};
use crate::matcher::{CompareOp, Leaf, Node, Predicate};
use crate::regex::Regex;
use crate::sort::Direction;
use crate::value::{elements, items};

/// A query without its constants: queries of one shape may have the same plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryShape(Box<[u8]>);

/// Which way a plan goes, whatever bounds it has on the way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outline(Box<[u8]>);

impl QueryShape {
    /// The shape of what is to be planned. Hints and bounds of keys are no part of it.
    pub fn of(request: &PlanRequest<'_>) -> QueryShape {
        let mut out = Vec::new();
        node(request.matcher.root(), &mut out);
        if let Some(sort) = request.sort.filter(|sort| !sort.is_empty()) {
            out.push(b'~');
            for (path, descending) in sort.fields() {
                text(path.text(), &mut out);
                out.push(if descending { b'd' } else { b'a' });
            }
        }
        // Other projections look at the document, so that they change nothing for the plan.
        if let Some(kept) = request.projection.and_then(|p| p.kept_paths()) {
            let mut kept = kept;
            kept.sort_unstable();
            out.push(b'|');
            kept.iter().for_each(|path| text(path, &mut out));
        }
        if let Some(collation) = request.matcher.collation() {
            out.push(b'#');
            out.extend_from_slice(collation.document().as_bytes());
        }
        QueryShape(out.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Plan {
    /// The way that the plan goes.
    pub fn outline(&self) -> Outline {
        let mut out = vec![u8::from(self.sort_provided)];
        let mut scan = |access: &IndexAccess| {
            out.extend_from_slice(&(access.index as u32).to_le_bytes());
            out.push(u8::from(access.direction == Direction::Backward));
            if let Some(expanded) = &access.expanded {
                out.extend_from_slice(expanded.key.as_bytes());
            }
        };
        match &self.access {
            Access::Index(access) => scan(access),
            Access::Union(branches) => branches.iter().for_each(scan),
            // How many values there are is no part of the way.
            Access::Merge(branches) => branches
                .chunk_by(|one, next| one.scan.index == next.scan.index)
                .for_each(|alike| scan(&alike[0].scan)),
            Access::Near(access) => out.extend_from_slice(&(access.index as u32).to_le_bytes()),
            Access::Collection(direction) => {
                out.push(u8::from(*direction == Direction::Backward));
            }
            Access::Nothing => out.push(2),
            Access::Id(_) => out.push(3),
        }
        Outline(out.into())
    }
}

impl Outline {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A hash as MongoDB shows it: eight hexadecimal digits, the same after a restart.
pub fn shown_hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = FxHasher::default();
    for part in parts {
        hasher.write(part);
        hasher.write_u8(0xff);
    }
    let hash = hasher.finish();
    format!("{:08X}", (hash ^ (hash >> 32)) as u32)
}

/// Text with its length, so that no two texts run into one.
fn text(value: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value.as_bytes());
}

fn list(kind: u8, nodes: &[Node], out: &mut Vec<u8>) {
    out.push(kind);
    out.push(b'[');
    nodes.iter().for_each(|child| node(child, out));
    out.push(b']');
}

fn node(of: &Node, out: &mut Vec<u8>) {
    match of {
        Node::And(children) => list(b'&', children, out),
        Node::Or(children) => list(b'o', children, out),
        Node::Nor(children) => list(b'n', children, out),
        Node::Not(child) => list(b'!', std::slice::from_ref(child), out),
        Node::AlwaysTrue => out.push(b'T'),
        Node::AlwaysFalse => out.push(b'F'),
        Node::Expr(..) => out.push(b'X'),
        Node::Schema(_, source) => {
            out.push(b'J');
            schema(source, out);
        }
        Node::Text(..) => out.push(b'?'),
        Node::Leaf(Leaf {
            path, predicate, ..
        }) => {
            predicate_of(predicate, out);
            text(path.text(), out);
        }
    }
}

/// The keywords and names of a schema, and what lists of them say. What values must be is no part
/// of a shape.
fn schema(of: &RawDocument, out: &mut Vec<u8>) {
    out.push(b'{');
    for (name, value) in elements(of) {
        text(name, out);
        match value {
            RawBsonRef::Document(inner) => schema(inner, out),
            RawBsonRef::Array(list) => items(list).for_each(|item| match item {
                RawBsonRef::Document(inner) => schema(inner, out),
                RawBsonRef::String(name) => text(name, out),
                _ => out.push(b'.'),
            }),
            _ => out.push(b'.'),
        }
    }
    out.push(b'}');
}

fn regex(of: &Regex, out: &mut Vec<u8>) {
    text(&of.options, out);
}

fn predicate_of(of: &Predicate, out: &mut Vec<u8>) {
    match of {
        Predicate::Compare { op, .. } => out.push(match op {
            CompareOp::Eq => b'=',
            CompareOp::Lt => b'<',
            CompareOp::Lte => b'l',
            CompareOp::Gt => b'>',
            CompareOp::Gte => b'g',
        }),
        Predicate::In { regexes, .. } => {
            out.push(b'i');
            regexes.iter().for_each(|expression| regex(expression, out));
        }
        Predicate::Regex(expression) => {
            out.push(b'r');
            regex(expression, out);
        }
        Predicate::Exists => out.push(b'e'),
        Predicate::Type(_) => out.push(b't'),
        Predicate::Mod { .. } => out.push(b'm'),
        Predicate::Bits(_) => out.push(b'b'),
        Predicate::Size(_) => out.push(b's'),
        Predicate::ElemMatchObject(child) => list(b'E', std::slice::from_ref(child), out),
        Predicate::ElemMatchValue(children) => list(b'V', children, out),
        Predicate::Geo(_) => out.push(b'G'),
        Predicate::Near(_) => out.push(b'N'),
    }
}
