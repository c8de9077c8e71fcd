//! A filter's tree in the normal form that explain prints.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf, type_number};

use super::node::{Leaf, Node, Predicate};

pub(super) fn serialize(root: &Node) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    match root {
        Node::And(children) if children.is_empty() => {}
        root => write_node(&mut out, root),
    }
    out.finish()
}

/// Several predicates that all must hold.
pub(crate) fn serialize_all(nodes: &[&Node]) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    match nodes {
        [node] => write_node(&mut out, node),
        nodes => write_list(&mut out, "$and", nodes.iter().copied()),
    }
    out.finish()
}

fn write_list<'a>(out: &mut DocBuilder, name: &str, children: impl IntoIterator<Item = &'a Node>) {
    out.start_array(name);
    for (position, child) in children.into_iter().enumerate() {
        out.start_document(&position.to_string());
        write_node(out, child);
        out.end();
    }
    out.end();
}

fn write_node(out: &mut DocBuilder, node: &Node) {
    match node {
        Node::And(children) => write_list(out, "$and", children),
        Node::Or(children) => write_list(out, "$or", children),
        Node::Nor(children) => write_list(out, "$nor", children),
        Node::Not(child) => match &**child {
            Node::Leaf(leaf) => {
                out.start_document(leaf.path.text());
                out.start_document("$not");
                write_predicate(out, &leaf.predicate);
                out.end();
                out.end();
            }
            other => {
                out.start_array("$nor");
                out.start_document("0");
                write_node(out, other);
                out.end();
                out.end();
            }
        },
        Node::AlwaysTrue => {
            out.append("$alwaysTrue", RawBsonRef::Int32(1));
        }
        Node::AlwaysFalse => {
            out.append("$alwaysFalse", RawBsonRef::Int32(1));
        }
        Node::Expr(_, source) | Node::Schema(_, source) => {
            for (name, value) in crate::value::elements(source) {
                out.append(name, value);
            }
        }
        Node::Text(text) => text.write(out),
        Node::Leaf(leaf) => write_leaf(out, leaf),
    }
}

fn write_leaf(out: &mut DocBuilder, leaf: &Leaf) {
    out.start_document(leaf.path.text());
    write_predicate(out, &leaf.predicate);
    out.end();
}

fn write_predicate(out: &mut DocBuilder, predicate: &Predicate) {
    match predicate {
        Predicate::Compare { op, value } => {
            out.append(op.name(), value.as_raw_bson_ref());
        }
        Predicate::In {
            values, regexes, ..
        } => {
            out.start_array("$in");
            for (position, value) in values.iter().enumerate() {
                out.append(&position.to_string(), value.as_raw_bson_ref());
            }
            for (position, regex) in regexes.iter().enumerate() {
                if let (Ok(pattern), Ok(options)) =
                    ((&*regex.pattern).try_into(), (&*regex.options).try_into())
                {
                    let value = RawBsonRef::RegularExpression(pinion_bson::RawRegexRef {
                        pattern,
                        options,
                    });
                    out.append(&(values.len() + position).to_string(), value);
                }
            }
            out.end();
        }
        Predicate::Regex(regex) => {
            out.append("$regex", RawBsonRef::String(&regex.pattern));
            if !regex.options.is_empty() {
                out.append("$options", RawBsonRef::String(&regex.options));
            }
        }
        Predicate::Exists => {
            out.append("$exists", RawBsonRef::Boolean(true));
        }
        Predicate::Type(types) => {
            out.start_array("$type");
            let mut position = 0;
            if types.all_numbers {
                out.append("0", RawBsonRef::String("number"));
                position += 1;
            }
            for kind in &types.types {
                out.append(&position.to_string(), RawBsonRef::Int32(type_number(*kind)));
                position += 1;
            }
            out.end();
        }
        Predicate::Mod { divisor, remainder } => {
            out.start_array("$mod");
            out.append("0", RawBsonRef::Int64(*divisor));
            out.append("1", RawBsonRef::Int64(*remainder));
            out.end();
        }
        Predicate::Bits(test) => {
            out.start_array(test.op.name());
            for (position, bit) in test.positions.iter().enumerate() {
                out.append(&position.to_string(), RawBsonRef::Int32(*bit as i32));
            }
            out.end();
        }
        Predicate::Geo(geo) => write_source(out, &geo.source),
        Predicate::Near(near) => write_source(out, &near.source),
        Predicate::Size(size) => {
            out.append("$size", RawBsonRef::Int32(*size as i32));
        }
        Predicate::ElemMatchObject(node) => {
            out.start_document("$elemMatch");
            match &**node {
                Node::And(children) if children.is_empty() => {}
                node => write_node(out, node),
            }
            out.end();
        }
        Predicate::ElemMatchValue(nodes) => {
            out.start_document("$elemMatch");
            for node in nodes {
                write_value_node(out, node);
            }
            out.end();
        }
    }
}

fn write_source(out: &mut DocBuilder, source: &pinion_bson::RawDocument) {
    for (name, value) in crate::value::elements(source) {
        out.append(name, value);
    }
}

/// Predicates inside `$elemMatch` on values carry no path.
fn write_value_node(out: &mut DocBuilder, node: &Node) {
    match node {
        Node::Leaf(leaf) => write_predicate(out, &leaf.predicate),
        Node::Not(child) => {
            out.start_document("$not");
            write_value_node(out, child);
            out.end();
        }
        Node::And(children) => children
            .iter()
            .for_each(|child| write_value_node(out, child)),
        other => write_node(out, other),
    }
}
