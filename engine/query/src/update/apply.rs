//! Operator updates as one tree of paths, applied to a document in one walk.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};

use pinion_bson::{RawBson, RawBsonRef, RawDocument, Timestamp};
use pinion_collation::Collation;
use pinion_wire::Result;
use rustc_hash::FxHashMap;

use super::filters::ArrayFilters;
use super::operator::{Operator, Outcome, unresolved};
use super::parse::Entry;
use super::path::{Part, UpdatePath};
use super::tree::{Slot, element_braces};
use crate::error::{bad_value, error};
use crate::limits::{MAX_ARRAY_PADDING, PLACES_FROM};
use crate::text::element_text;
use crate::value::field;
use crate::work::{STEP, spend};

/// What the operators need to know of the document under update.
pub(super) struct Applying<'c> {
    pub now_ms: i64,
    pub timestamps: Timestamps,
    pub insert: bool,
    pub collation: Option<&'c Collation>,
    pub filters: &'c ArrayFilters,
    pub root: &'c RawDocument,
    /// Set by an operator that counts as a change even where the value comes out as it was.
    pub rewrote: Cell<bool>,
}

/// Timestamps that were set aside, given out one after the other; the last one again and again.
pub(super) struct Timestamps {
    next: Cell<Timestamp>,
    left: Cell<usize>,
}

impl Timestamps {
    pub(super) fn new(first: Timestamp, count: usize) -> Timestamps {
        Timestamps {
            next: Cell::new(first),
            left: Cell::new(count),
        }
    }

    pub(super) fn next(&self) -> Timestamp {
        let given = self.next.get();
        if self.left.get() > 1 {
            self.left.set(self.left.get() - 1);
            let (increment, carried) = given.increment.overflowing_add(1);
            let time = given.time + u32::from(carried);
            self.next.set(Timestamp { time, increment });
        }
        given
    }
}

impl Applying<'_> {
    /// `_id: 1` as messages name the document.
    pub(super) fn id_text(&self) -> String {
        match field(self.root, "_id") {
            Some(id) => element_text("_id", id),
            None => "no id".into(),
        }
    }
}

/// The tree of paths; the operators stand at its leaves.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Fields(Fields),
    /// `$[]` and `$[identifier]`, each with what is under it; the identifier of `$[]` is empty.
    Items(Vec<(Box<str>, Node)>),
    Leaf(Operator, Box<str>),
}

/// What is under the fields of a document, in the order in which new fields are made.
type Fields = BTreeMap<FieldName, Node>;

/// In which order the names under one document are: all of an update have the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum NameOrder {
    /// That of MongoDB's `cmpPathsAndArrayIndexes`: numbers by value, names by bytes, and names
    /// that begin as numbers do by their length first, for a total order.
    Numbers,
    /// All by their bytes, as before MongoDB 5.0.
    Bytes,
}

/// A field's name.
#[derive(Clone, Debug)]
pub(super) struct FieldName(Box<str>, NameOrder);

impl Ord for FieldName {
    fn cmp(&self, other: &FieldName) -> Ordering {
        let begins_as_number = |name: &FieldName| match name.0.as_bytes() {
            [b'0', rest @ ..] => rest.is_empty(),
            [first, ..] => first.is_ascii_digit(),
            [] => false,
        };
        let by_length =
            if self.1 == NameOrder::Numbers && begins_as_number(self) && begins_as_number(other) {
                self.0.len().cmp(&other.0.len())
            } else {
                Ordering::Equal
            };
        by_length.then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for FieldName {
    fn partial_cmp(&self, other: &FieldName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for FieldName {
    fn eq(&self, other: &FieldName) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for FieldName {}

/// Builds the tree; two operators on one path, or on a path and one inside it, conflict.
pub(super) fn build(entries: &[Entry], position: Option<u32>, order: NameOrder) -> Result<Node> {
    let mut root = Node::Fields(Fields::new());
    for entry in entries {
        let mut names = Vec::new();
        let mut operator = &entry.operator;
        for part in entry.path.parts() {
            match (part, position) {
                (Part::Matched, Some(position)) => {
                    names.push(Part::Name(position.to_string().into()))
                }
                (Part::Matched, None) => {
                    names.push(Part::Name("$".into()));
                    operator = &Operator::Unresolved;
                    break;
                }
                (other, _) => names.push(other.clone()),
            }
        }
        let unresolved = matches!(operator, Operator::Unresolved);
        match insert(&mut root, &names, order, entry, operator) {
            // Paths that differ behind an unresolved `$` fail there all the same.
            Err(_) if unresolved => {}
            result => result?,
        }
    }
    Ok(root)
}

/// Finds conflicts as the operators of an update are read, one after the other.
pub(super) struct Conflicts(Node);

impl Conflicts {
    pub(super) fn new() -> Conflicts {
        Conflicts(Node::Fields(Fields::new()))
    }

    /// Adds one operator. A `$` that is not resolved yet differs from every other name.
    pub(super) fn add(&mut self, entry: &Entry) -> Result<()> {
        let name = |part: &Part| {
            if *part == Part::Matched {
                Part::Name("$".into())
            } else {
                part.clone()
            }
        };
        let names: Vec<Part> = entry.path.parts().iter().map(name).collect();
        let order = NameOrder::Numbers;
        insert(&mut self.0, &names, order, entry, &Operator::RenameSource)
    }
}

fn conflict(path: &UpdatePath, names: &[Part], depth: usize) -> pinion_wire::Error {
    let at = names[..depth]
        .iter()
        .map(Part::text)
        .collect::<Vec<_>>()
        .join(".");
    error(
        40,
        format!(
            "Updating the path '{}' would create a conflict at '{at}'",
            path.text()
        ),
    )
}

fn insert(
    node: &mut Node,
    names: &[Part],
    order: NameOrder,
    entry: &Entry,
    operator: &Operator,
) -> Result<()> {
    insert_under(node, (names, 0), order, entry, operator)
}

/// Inserts what is under the first `depth` names.
fn insert_under(
    node: &mut Node,
    (names, depth): (&[Part], usize),
    order: NameOrder,
    entry: &Entry,
    operator: &Operator,
) -> Result<()> {
    let last = depth + 1 == names.len();
    let make = || {
        if last {
            Node::Leaf(operator.clone(), entry.path.text().into())
        } else if names[depth + 1].item_filter().is_some() {
            Node::Items(Vec::new())
        } else {
            Node::Fields(Fields::new())
        }
    };
    let part = &names[depth];
    let (child, is_new) = match (&mut *node, part) {
        (Node::Fields(fields), Part::Name(name)) => {
            match fields.entry(FieldName(name.clone(), order)) {
                btree_map::Entry::Occupied(present) => (present.into_mut(), false),
                btree_map::Entry::Vacant(free) => (free.insert(make()), true),
            }
        }
        (Node::Items(items), Part::All | Part::Filtered(_)) => {
            let id = part.item_filter().unwrap_or_default();
            let present = items.iter().position(|(other, _)| &**other == id);
            if present.is_none() {
                items.push((id.into(), make()));
            }
            let at = present.unwrap_or(items.len() - 1);
            (&mut items[at].1, present.is_none())
        }
        // A field of an array beside all of its items.
        _ => return Err(conflict(&entry.path, names, depth)),
    };
    match (last, is_new, &*child) {
        (true, true, _) => Ok(()),
        (true, false, _) | (false, _, Node::Leaf(..)) => {
            Err(conflict(&entry.path, names, depth + 1))
        }
        (false, _, _) => insert_under(child, (names, depth + 1), order, entry, operator),
    }
}

/// What is under two identifiers that stand for the same item, as one.
fn merged(a: &Node, b: &Node, path: &str) -> Result<Node> {
    match (a, b) {
        (Node::Fields(a), Node::Fields(b)) => {
            let mut union = a.clone();
            for (name, node) in b {
                match union.get_mut(name) {
                    Some(present) => *present = merged(present, node, &join(path, &name.0))?,
                    None => drop(union.insert(name.clone(), node.clone())),
                }
            }
            Ok(Node::Fields(union))
        }
        (Node::Items(a), Node::Items(b)) => {
            let mut union = a.clone();
            for (name, node) in b {
                match union.iter_mut().find(|(other, _)| other == name) {
                    Some((_, present)) => *present = merged(present, node, &join(path, name))?,
                    None => union.push((name.clone(), node.clone())),
                }
            }
            Ok(Node::Items(union))
        }
        _ => Err(error(40, format!("Update created a conflict at '{path}'"))),
    }
}

/// Applies the tree to the document's root.
pub(super) fn apply(node: &Node, root: &mut Slot<'_>, context: &Applying<'_>) -> Result<()> {
    apply_node(node, "", "", root, root_copy(context), context).map(|_| ())
}

/// A rename reads its source from the document as it was.
fn root_copy<'c>(context: &Applying<'c>) -> &'c RawDocument {
    context.root
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_string()
    } else {
        format!("{path}.{name}")
    }
}

fn apply_node(
    node: &Node,
    name: &str,
    path: &str,
    slot: &mut Slot<'_>,
    root: &RawDocument,
    context: &Applying<'_>,
) -> Result<Outcome> {
    match node {
        Node::Leaf(Operator::RenameSource, _) => Ok(Outcome::Removed),
        Node::Leaf(Operator::RenameFrom(from), to) => {
            if let Some(value) = renamed(from, to, root, context)? {
                *slot = Slot::Owned(value);
            }
            Ok(Outcome::Kept)
        }
        Node::Leaf(operator, _) => operator.apply(name, path, slot, context),
        Node::Items(children) => {
            if !slot.is_array() {
                return Err(bad_value(format!(
                    "Cannot apply array updates to non-array element {}",
                    element_text(name, slot.to_value().as_raw_bson_ref())
                )));
            }
            slot.expand();
            let Slot::Array(values) = slot else {
                return Ok(Outcome::Kept);
            };
            for (index, value) in values.iter_mut().enumerate() {
                let name = index.to_string();
                let path = join(path, &name);
                let Some(node) = node_for_item(children, value, &path, context)? else {
                    continue;
                };
                if apply_node(&node, &name, &path, value, root, context)? == Outcome::Removed {
                    *value = Slot::Raw(RawBsonRef::Null);
                }
            }
            Ok(Outcome::Kept)
        }
        Node::Fields(children) => {
            if slot.is_document() {
                slot.expand();
                let Slot::Document(fields) = slot else {
                    return Ok(Outcome::Kept);
                };
                let places = Places::of(children, fields);
                // Taken out together at the end, so that the others stay in their places.
                let mut removed = Vec::new();
                for (FieldName(child_name, _), child) in children {
                    spend(STEP)?;
                    let child_path = join(path, child_name);
                    match places.find(fields, child_name) {
                        Some(at) => {
                            let outcome = apply_node(
                                child,
                                child_name,
                                &child_path,
                                &mut fields[at].1,
                                root,
                                context,
                            )?;
                            if path.is_empty() && &**child_name == "_id" {
                                let made = (outcome == Outcome::Kept).then_some(&fields[at].1);
                                check_id_kept(child, made, context)?;
                            }
                            if outcome == Outcome::Removed {
                                removed.push(at);
                            }
                        }
                        None => {
                            if let Some(made) = create(child, &child_path, root, context)? {
                                fields.push((Cow::Owned(child_name.to_string()), made));
                            }
                        }
                    }
                }
                remove_all(fields, removed);
            } else if slot.is_array() {
                apply_to_array(children, name, path, slot, root, context)?;
            } else {
                for (FieldName(child_name, _), child) in children {
                    unviable(child, child_name, name, path, slot, root, context)?;
                }
            }
            Ok(Outcome::Kept)
        }
    }
}

/// Where the fields of a document are that an update names.
struct Places<'n>(Option<FxHashMap<&'n str, Option<usize>>>);

impl<'n> Places<'n> {
    /// Looks for all of them at once where looking for each would take long.
    fn of(children: &'n Fields, fields: &[(Cow<'_, str>, Slot<'_>)]) -> Places<'n> {
        if children.len() * fields.len() < PLACES_FROM {
            return Places(None);
        }
        let mut places: FxHashMap<&str, Option<usize>> =
            children.keys().map(|name| (&*name.0, None)).collect();
        for (at, (name, _)) in fields.iter().enumerate() {
            if let Some(place @ None) = places.get_mut(&**name) {
                *place = Some(at);
            }
        }
        Places(Some(places))
    }

    fn find(&self, fields: &[(Cow<'_, str>, Slot<'_>)], name: &str) -> Option<usize> {
        match &self.0 {
            Some(places) => places.get(name).copied().flatten(),
            None => fields.iter().position(|(other, _)| other == name),
        }
    }
}

/// Takes out the fields at these places.
fn remove_all(fields: &mut Vec<(Cow<'_, str>, Slot<'_>)>, mut places: Vec<usize>) {
    places.sort_unstable();
    let (mut at, mut next) = (0, places.iter().peekable());
    fields.retain(|_| {
        let removed = next.next_if(|&&place| place == at).is_some();
        at += 1;
        !removed
    });
}

/// `_id` never changes, not even to an equal number of another type; an upsert may give one to a
/// document that has none. It is examined when its turn comes among the fields, so that of several
/// mistakes the first is reported.
fn check_id_kept(node: &Node, made: Option<&Slot<'_>>, context: &Applying<'_>) -> Result<()> {
    let Some(old) = field(context.root, "_id") else {
        return Ok(());
    };
    // A rename to `_id` counts as a change even where the value is the same.
    let is_renamed = match node {
        Node::Leaf(Operator::RenameFrom(from), to) => {
            renamed(from, to, context.root, context)?.is_some()
        }
        _ => false,
    };
    if !is_renamed && made.is_some_and(|made| identical(made.to_value().as_raw_bson_ref(), old)) {
        return Ok(());
    }
    let mut first = node;
    let path = loop {
        match first {
            Node::Leaf(_, path) => break &**path,
            Node::Fields(children) => first = children.values().next().expect("one at least"),
            Node::Items(children) => first = &children[0].1,
        }
    };
    Err(error(
        66,
        format!("Performing an update on the path '{path}' would modify the immutable field '_id'"),
    ))
}

/// Whether two values have the same type and bytes.
fn identical(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    let alone = |value| {
        let mut out = pinion_bson::DocBuilder::new();
        out.append("", value);
        out.finish()
    };
    alone(a).as_bytes() == alone(b).as_bytes()
}

/// What is under the identifiers that stand for this item.
fn node_for_item<'n>(
    children: &'n [(Box<str>, Node)],
    item: &Slot<'_>,
    path: &str,
    context: &Applying<'_>,
) -> Result<Option<Cow<'n, Node>>> {
    let mut found: Option<Cow<'n, Node>> = None;
    // All filters see the item as it was.
    let value = item.to_value();
    for (identifier, child) in children {
        if context
            .filters
            .selects(identifier, value.as_raw_bson_ref())?
        {
            found = Some(match found {
                None => Cow::Borrowed(child),
                Some(other) => Cow::Owned(merged(&other, child, path)?),
            });
        }
    }
    Ok(found)
}

fn apply_to_array(
    children: &Fields,
    name: &str,
    path: &str,
    slot: &mut Slot<'_>,
    root: &RawDocument,
    context: &Applying<'_>,
) -> Result<()> {
    for (FieldName(child_name, _), child) in children {
        // Leading zeros are accepted here, unlike in a filter.
        let index = if child_name.bytes().all(|b| b.is_ascii_digit()) {
            child_name.parse::<usize>().ok()
        } else {
            None
        };
        let Some(index) = index else {
            unviable(child, child_name, name, path, slot, root, context)?;
            continue;
        };
        slot.expand();
        let Slot::Array(values) = slot else {
            return Ok(());
        };
        let child_path = join(path, child_name);
        if let Some(value) = values.get_mut(index) {
            if apply_node(child, child_name, &child_path, value, root, context)? == Outcome::Removed
            {
                // Taking an item out would move the others.
                *value = Slot::Raw(RawBsonRef::Null);
            }
            continue;
        }
        if let Some(made) = create(child, &child_path, root, context)? {
            if index - values.len() > MAX_ARRAY_PADDING {
                return Err(error(
                    34,
                    format!("can't backfill more than {MAX_ARRAY_PADDING} elements"),
                ));
            }
            crate::work::spend((index - values.len()) as crate::work::Units * crate::work::STEP)?;
            values.resize(index, Slot::Raw(RawBsonRef::Null));
            values.push(made);
        }
    }
    Ok(())
}

/// What stands at a path that does not exist yet; `None` when no operator under it makes anything.
fn create(
    node: &Node,
    path: &str,
    root: &RawDocument,
    context: &Applying<'_>,
) -> Result<Option<Slot<'static>>> {
    match node {
        Node::Leaf(Operator::RenameFrom(from), to) => {
            Ok(renamed(from, to, root, context)?.map(Slot::Owned))
        }
        Node::Leaf(operator, _) => Ok(operator.create(context)?.map(Slot::Owned)),
        Node::Items(_) => Err(bad_value(format!(
            "The path '{path}' must exist in the document in order to apply array updates."
        ))),
        Node::Fields(children) => {
            let mut fields = Vec::new();
            for (FieldName(name, _), child) in children {
                if let Some(made) = create(child, &join(path, name), root, context)? {
                    fields.push((Cow::Owned(name.to_string()), made));
                }
            }
            Ok(if fields.is_empty() {
                None
            } else {
                Some(Slot::Document(fields))
            })
        }
    }
}

/// A path that would lead into a value that holds no fields.
fn unviable(
    node: &Node,
    part: &str,
    name: &str,
    path: &str,
    slot: &Slot<'_>,
    root: &RawDocument,
    context: &Applying<'_>,
) -> Result<()> {
    match node {
        Node::Leaf(Operator::Unresolved, _) => Err(unresolved()),
        // What would do nothing anyway does not mind.
        Node::Leaf(Operator::SetOnInsert(_), _) if !context.insert => Ok(()),
        Node::Leaf(Operator::RenameFrom(from), to)
            if renamed(from, to, root, context)?.is_none() =>
        {
            Ok(())
        }
        Node::Leaf(operator, _) if operator.creates() => Err(error(
            28,
            format!(
                "Cannot create field '{part}' in element {}",
                element_braces(name, slot)
            ),
        )),
        Node::Leaf(operator, full) if !operator.ignores_unviable_paths() => Err(error(
            28,
            format!(
                "Cannot use the part ({part}) of ({full}) to traverse the element ({})",
                element_braces(name, slot)
            ),
        )),
        Node::Leaf(..) => Ok(()),
        Node::Items(_) => Err(bad_value(format!(
            "The path '{}' must exist in the document in order to apply array updates.",
            join(path, part)
        ))),
        Node::Fields(children) => children
            .values()
            .try_for_each(|child| unviable(child, part, name, path, slot, root, context)),
    }
}

/// The value a rename moves, `None` where there is none; an array on the way to it is refused, and
/// so is a path into a value without fields.
fn rename_source(
    from: &str,
    root: &RawDocument,
    context: &Applying<'_>,
) -> Result<Option<RawBson>> {
    let mut current = RawBsonRef::Document(root);
    let mut reached = "";
    let mut array: Option<&str> = None;
    for part in from.split('.') {
        let next = match current {
            RawBsonRef::Document(document) => field(document, part),
            RawBsonRef::Array(items)
                if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) =>
            {
                array.get_or_insert(reached);
                part.parse()
                    .ok()
                    .and_then(|at| crate::value::items(items).nth(at))
            }
            other => {
                return Err(error(
                    28,
                    format!(
                        "cannot use the part ({reached} of {from}) to traverse the element ({{{}}})",
                        element_text(reached, other)
                    ),
                ));
            }
        };
        let Some(next) = next else { return Ok(None) };
        current = next;
        reached = part;
    }
    match array {
        Some(array) => Err(bad_value(format!(
            "The source field cannot be an array element, '{from}' in doc with {} has an array field called '{array}'",
            context.id_text()
        ))),
        None => Ok(Some(current.into())),
    }
}

/// The value a rename puts at its target, `None` where there is none; a target in an array's item
/// is refused.
fn renamed(
    from: &str,
    to: &str,
    root: &RawDocument,
    context: &Applying<'_>,
) -> Result<Option<RawBson>> {
    let Some(value) = rename_source(from, root, context)? else {
        return Ok(None);
    };
    let mut current = root;
    let mut parts = to.split('.').peekable();
    while let (Some(name), Some(_)) = (parts.next(), parts.peek()) {
        match field(current, name) {
            Some(RawBsonRef::Document(inner)) => current = inner,
            Some(RawBsonRef::Array(_)) => {
                return Err(bad_value(format!(
                    "The destination field cannot be an array element, '{to}' in doc with {} has an array field called \
                     '{name}'",
                    context.id_text()
                )));
            }
            _ => break,
        }
    }
    Ok(Some(value))
}
