//! `$text` in filters: what is searched for, and the index that it is searched in.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::Node;
use crate::error::{bad_value, error};
use crate::fulltext::{TextOperand, TextQuery};
use crate::index::IndexSpec;
use crate::text::shortened;

/// A `$text` predicate.
#[derive(Clone, Debug)]
pub(crate) struct TextPredicate {
    operand: TextOperand,
    /// What is searched for in the collection's text index, once that is known.
    query: Option<Arc<TextQuery>>,
}

impl TextPredicate {
    pub(super) fn parse(operand: RawBsonRef<'_>) -> Result<TextPredicate> {
        Ok(TextPredicate {
            operand: TextOperand::parse(operand)?,
            query: None,
        })
    }

    pub(crate) fn query(&self) -> Option<&Arc<TextQuery>> {
        self.query.as_ref()
    }

    pub(super) fn matches(&self, document: &RawDocument) -> Result<bool> {
        match &self.query {
            Some(query) => query.matches(document),
            None => Err(text_index_missing()),
        }
    }

    /// As messages about plans print it.
    pub(crate) fn summary(&self) -> String {
        let flag = |set: bool| i32::from(set);
        format!(
            "TEXT : query={}, language={}, caseSensitive={}, diacriticSensitive={}",
            shortened(&self.operand.search),
            self.language(),
            flag(self.operand.case_sensitive),
            flag(self.operand.diacritic_sensitive)
        )
    }

    /// The language of the search: the index's where it names none.
    fn language(&self) -> &str {
        match &self.query {
            Some(query) if self.operand.language.is_empty() => query.fields.default_language.name(),
            _ => &self.operand.language,
        }
    }

    /// As explain prints it.
    pub(super) fn write(&self, out: &mut DocBuilder) {
        out.start_document("$text");
        out.append("$search", RawBsonRef::String(&self.operand.search))
            .append("$language", RawBsonRef::String(self.language()))
            .append("$caseSensitive", self.operand.case_sensitive)
            .append("$diacriticSensitive", self.operand.diacritic_sensitive);
        out.end();
    }
}

/// The error of a `$text` over a collection without a text index.
pub(crate) fn text_index_missing() -> pinion_wire::Error {
    error(27, "text index required for $text query")
}

/// Refuses `$text` where it may not stand: it is one, and nothing negates it.
pub(super) fn check(root: &Node) -> Result<()> {
    if root.texts() > 1 {
        return Err(bad_value("Too many text expressions"));
    }
    if root.texts() == 1 && root.nears() > 0 {
        return Err(bad_value("text and geoNear not allowed in same query"));
    }
    match is_negated(root) {
        true => Err(bad_value("text expression not allowed in nor")),
        false => Ok(()),
    }
}

fn is_negated(node: &Node) -> bool {
    match node {
        Node::And(children) | Node::Or(children) => children.iter().any(is_negated),
        Node::Nor(children) => children.iter().any(|child| child.texts() > 0),
        Node::Not(child) => child.texts() > 0,
        _ => false,
    }
}

impl Node {
    /// How many `$text` stand in it.
    pub(crate) fn texts(&self) -> usize {
        match self {
            Node::And(children) | Node::Or(children) | Node::Nor(children) => {
                children.iter().map(Node::texts).sum()
            }
            Node::Not(child) => child.texts(),
            Node::Text(_) => 1,
            Node::AlwaysTrue
            | Node::AlwaysFalse
            | Node::Expr(..)
            | Node::Schema(..)
            | Node::Leaf(_) => 0,
        }
    }

    /// The `$text` that stands in it.
    pub(crate) fn text(&self) -> Option<&TextPredicate> {
        match self {
            Node::And(children) | Node::Or(children) => children.iter().find_map(Node::text),
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The same tree with its `$text` searching one of these indexes.
    pub(super) fn with_text_index(&self, indexes: &[IndexSpec]) -> Result<Node> {
        let all = |children: &[Node]| {
            children
                .iter()
                .map(|child| child.with_text_index(indexes))
                .collect::<Result<Vec<Node>>>()
        };
        Ok(match self {
            Node::And(children) => Node::And(all(children)?),
            Node::Or(children) => Node::Or(all(children)?),
            Node::Text(text) => {
                // A hidden one says how words are read, though no plan may use it.
                let mut ready = indexes.iter().filter(|index| index.ready);
                let fields = ready.find_map(IndexSpec::text);
                let fields = fields.ok_or_else(text_index_missing)?;
                Node::Text(Box::new(TextPredicate {
                    query: Some(Arc::new(TextQuery::new(text.operand.clone(), fields)?)),
                    operand: text.operand.clone(),
                }))
            }
            other => other.clone(),
        })
    }
}
