//! What a schema is parsed into: the rules that a value must satisfy, in the order MongoDB checks
//! and reports them.

use std::collections::BTreeSet;

use pinion_bson::{Decimal, RawBson, RawDocumentBuf};

use super::super::node::TypeSet;
use crate::path::Path;
use crate::regex::Regex;

/// A schema: of a whole document, of a property, or of an item.
#[derive(Debug)]
pub(crate) struct Schema {
    pub(super) title: Option<Box<str>>,
    pub(super) description: Option<Box<str>>,
    pub(super) rules: Vec<Rule>,
}

/// One keyword with what it demands.
#[derive(Debug)]
pub(super) struct Rule {
    pub keyword: &'static str,
    /// The keyword with its operand as they were given, for the keywords whose failure quotes them.
    pub specified: RawDocumentBuf,
    pub test: Test,
}

/// What a rule demands. Each concerns values of one type only, and holds for all others, unless it
/// says otherwise.
#[derive(Debug)]
pub(super) enum Test {
    Pattern(Regex),
    MaxLength(i64),
    MinLength(i64),
    MultipleOf(Decimal),
    Maximum {
        limit: RawBson,
        exclusive: bool,
    },
    Minimum {
        limit: RawBson,
        exclusive: bool,
    },
    MinItems(i64),
    MaxItems(i64),
    UniqueItems,
    /// One schema for all items.
    Items(Schema),
    /// A schema for each of the first items.
    ItemsByPosition(Vec<Schema>),
    /// What holds for the items from this position on.
    AdditionalItems {
        from: usize,
        others: Others,
    },
    Properties(Vec<Property>),
    PatternProperties(Vec<PatternProperty>),
    AdditionalProperties(AdditionalProperties),
    Required(Vec<Path>),
    MinProperties(i64),
    MaxProperties(i64),
    Dependencies(Vec<Dependency>),
    /// The logical keywords concern values of every type, as do `enum`, the types and encryption.
    AllOf(Vec<Schema>),
    AnyOf(Vec<Schema>),
    OneOf(Vec<Schema>),
    Not(Box<Schema>),
    /// The values without their fields' order, in comparison order.
    Enum(Vec<RawBson>),
    Type(TypeSet),
    /// An encrypted value, whose type before it was encrypted must be one of these, if any are
    /// named.
    Encrypted(Option<TypeSet>),
}

/// What holds for items and properties that no other keyword speaks of.
#[derive(Debug)]
pub(super) enum Others {
    Forbidden,
    Schema(Box<Schema>),
}

/// The schema of one property, which need not be there.
#[derive(Debug)]
pub(super) struct Property {
    /// MongoDB walks a name with dots like a path.
    pub path: Path,
    pub schema: Schema,
}

/// The schema of all properties whose name matches.
#[derive(Debug)]
pub(super) struct PatternProperty {
    pub pattern: Regex,
    pub schema: Schema,
}

/// The properties that `properties` does not name, and that no pattern matches.
#[derive(Debug)]
pub(super) struct AdditionalProperties {
    pub named: BTreeSet<Box<str>>,
    pub patterns: Vec<Regex>,
    pub others: Others,
}

/// What holds where a property is there.
#[derive(Debug)]
pub(super) struct Dependency {
    pub property: Path,
    pub demands: Demands,
}

#[derive(Debug)]
pub(super) enum Demands {
    Properties(Vec<Path>),
    Schema(Schema),
}
