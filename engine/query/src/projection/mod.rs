//! Projections: of `find`, of `$project`, and the additions of `$addFields`.

mod apply;
mod parse;
mod tree;

#[cfg(test)]
mod tests;

use pinion_bson::{DocBuilder, RawBson, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use self::tree::Tree;
use crate::expression::{Expression, MetaKind, MetaSet, Subject, Variables};
use crate::matcher::Matcher;
use crate::value::field;

/// Bytes assumed for a field of the output; they only size its buffer.
const EXPECTED_FIELD_BYTES: usize = 32;

/// A parsed projection.
#[derive(Clone, Debug)]
pub struct Projection {
    mode: Mode,
    root: Tree,
    /// The path of the positional operator.
    positional: Option<Box<[Box<str>]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Inclusion,
    Exclusion,
    /// `$addFields`: everything stays.
    Addition,
}

#[derive(Clone, Debug)]
enum Action {
    Include,
    Exclude,
    Nested(Tree),
    Compute(Expression),
    /// One of the values that are given with the document, by its place.
    Value(usize),
    Slice {
        skip: Option<i64>,
        limit: i64,
    },
    ElemMatch(Box<Matcher>),
}

impl Action {
    /// Whether it looks at the field of its name.
    fn wants_field(&self) -> bool {
        !matches!(self, Action::Compute(_))
    }
}

impl Projection {
    /// Parses the projection of a `find` or of a write; the errors are MongoDB's.
    pub fn parse_find(spec: &RawDocument, variables: &Variables) -> Result<Projection> {
        crate::work::spend_bytes(spec.as_bytes().len())?;
        parse::Parser::find(variables).parse(spec)
    }

    /// Parses the projection of a `find` that a mongos of MongoDB 4.4 may have sent: beside what
    /// clients write it asks for what it merges by, which may be distances.
    ///
    /// # Errors
    /// As those of [`Projection::parse_find`].
    pub fn parse_find_of_mongos(spec: &RawDocument, variables: &Variables) -> Result<Projection> {
        crate::work::spend_bytes(spec.as_bytes().len())?;
        parse::Parser::find_of_mongos(variables).parse(spec)
    }

    /// What of a projection a router merges by, alone: documents come out with all of their fields
    /// and this one. `None` where it asks for nothing of the kind.
    ///
    /// # Errors
    /// As those of [`Projection::parse_find`].
    pub fn of_merge_key(spec: &RawDocument, variables: &Variables) -> Result<Option<Projection>> {
        let Some(value) = field(spec, parse::SORT_KEY) else {
            return Ok(None);
        };
        let mut alone = DocBuilder::new();
        alone.append_raw(parse::SORT_KEY, value);
        Projection::parse_find_of_mongos(&alone.finish(), variables).map(Some)
    }

    /// Parses the specification of a `$project` stage.
    pub fn parse_aggregation(spec: &RawDocument, variables: &Variables) -> Result<Projection> {
        parse::Parser::aggregation(variables).parse(spec)
    }

    /// Parses the specification of an `$addFields` stage.
    pub fn parse_addition(spec: &RawDocument, variables: &Variables) -> Result<Projection> {
        parse::parse_addition(spec, variables)
    }

    /// A projection that sets fields, by their paths, to values that are given with each document.
    pub(crate) fn of_values<'n>(paths: impl Iterator<Item = &'n str>) -> Result<Projection> {
        parse::parse_values(paths)
    }

    /// Whether the document comes out as it is.
    pub fn is_identity(&self) -> bool {
        self.mode != Mode::Inclusion && self.root.is_empty() && self.positional.is_none()
    }

    /// Whether nothing comes out but the fields that are named.
    pub(crate) fn is_inclusion(&self) -> bool {
        self.mode == Mode::Inclusion
    }

    /// The fields of documents that are named, without what is in them.
    pub(crate) fn top_names(&self) -> impl Iterator<Item = &str> {
        self.root.iter().map(|(name, _)| &**name)
    }

    /// Whether `apply` needs the array position that the filter matched at.
    pub fn needs_position(&self) -> bool {
        self.positional.is_some()
    }

    /// Refuses a positional projection beside a filter whose match gives no position. To be asked
    /// once per query.
    pub fn check_filter(&self, matcher: &Matcher) -> Result<()> {
        if self.positional.is_some() && matcher.root().has_expression() {
            return Err(crate::error::error(
                224,
                "Cannot use positional projection and $expr in the same query",
            ));
        }
        Ok(())
    }

    /// Whether any field is computed, and not only kept or left out.
    pub fn computes(&self) -> bool {
        fn any(tree: &Tree) -> bool {
            tree.iter().any(|(_, action)| match action {
                Action::Include | Action::Exclude => false,
                Action::Nested(tree) => any(tree),
                Action::Compute(_)
                | Action::Value(_)
                | Action::Slice { .. }
                | Action::ElemMatch(_) => true,
            })
        }
        self.positional.is_some() || any(&self.root)
    }

    /// The paths that come out, where they are all that the projection looks at.
    pub fn kept_paths(&self) -> Option<Vec<String>> {
        fn kept(tree: &Tree, prefix: &str, out: &mut Vec<String>) -> bool {
            tree.iter().all(|(name, action)| {
                let path = || format!("{prefix}{name}");
                match action {
                    Action::Include => {
                        out.push(path());
                        true
                    }
                    Action::Nested(tree) => kept(tree, &format!("{}.", path()), out),
                    // An inclusion leaves out nothing but the `_id`.
                    Action::Exclude => true,
                    Action::Compute(_)
                    | Action::Value(_)
                    | Action::Slice { .. }
                    | Action::ElemMatch(_) => false,
                }
            })
        }
        let mut paths = Vec::new();
        let is_exact = self.mode == Mode::Inclusion
            && self.positional.is_none()
            && kept(&self.root, "", &mut paths);
        is_exact.then_some(paths)
    }

    /// Whether only plain top-level fields are kept or dropped.
    pub fn is_simple(&self) -> bool {
        self.positional.is_none()
            && self
                .root
                .iter()
                .all(|(_, action)| matches!(action, Action::Include | Action::Exclude))
    }

    /// About how many bytes come out of a document.
    fn expected_bytes(&self, document: &RawDocument) -> usize {
        let bytes = document.as_bytes().len();
        match self.mode {
            Mode::Inclusion => bytes.min(EXPECTED_FIELD_BYTES * (self.root.len() + 1)),
            Mode::Exclusion => bytes,
            Mode::Addition => bytes + EXPECTED_FIELD_BYTES * self.root.len(),
        }
    }

    /// The projected document; `position` is that of the filter's match.
    pub fn apply<'d>(
        &self,
        subject: impl Into<Subject<'d>>,
        position: Option<u32>,
    ) -> Result<RawDocumentBuf> {
        let subject = subject.into();
        crate::work::spend_bytes(subject.document.as_bytes().len())?;
        apply::apply(self, subject, position, &[])
    }

    /// The document with the values that the projection sets.
    pub(crate) fn apply_values(
        &self,
        document: &RawDocument,
        values: &[RawBson],
    ) -> Result<RawDocumentBuf> {
        crate::work::spend_bytes(document.as_bytes().len())?;
        apply::apply(self, document.into(), None, values)
    }

    /// What is read beside the documents.
    pub(crate) fn reads(&self) -> MetaSet {
        self.root.reads()
    }

    /// Refuses metadata that only a `find` has of its documents.
    pub fn refuse_before_read(&self) -> Result<()> {
        self.reads()
            .iter()
            .try_for_each(MetaKind::refuse_before_read)
    }

    /// Whether something of this kind is read beside the documents.
    pub fn reads_meta(&self, kind: MetaKind) -> bool {
        self.reads().contains(kind)
    }
}
