//! The parser of expressions and the tree it makes.

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef, RawDocument};
use pinion_collation::Collation;
use pinion_wire::Result;
use rustc_hash::FxHashSet;

use super::operators::{self, Comparing, NamedZone, Operator};
use super::{Expression, MetaKind, MetaSet, Random, Variables};
use crate::error::{error, failed_to_parse};
use crate::limits::{MAX_PATH_COMPONENTS, check_string_bytes};
use crate::operator_uses::{OperatorKind, note};
use crate::value::{bytes, count, elements, first, items, owned};
use crate::work::{STEP, spend, spend_bytes};

impl Expr {
    /// A constant.
    pub(crate) fn literal(value: RawBson) -> Expr {
        Expr::Literal(Arc::new(value))
    }
}

/// Names of a path, in order.
pub(crate) type FieldPath = Box<[Box<str>]>;

/// An expression's tree.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    /// A constant. Shared: it may be as large as a document, and a pipeline is copied for each run.
    Literal(Arc<RawBson>),
    /// A value that is the same for the whole command, but is none of the expression's own
    /// constants.
    Given(Arc<RawBson>),
    /// A path in the document, or in the part of it that is examined.
    Field(FieldPath),
    /// A path in the whole document.
    Root(FieldPath),
    /// A bound variable, and a path in it.
    Slot(usize, FieldPath),
    /// `$$REMOVE`.
    Remove,
    /// `$rand`
    Random(Random),
    /// `$createObjectId`, with the seconds of the operation.
    NewId(u32, Random),
    /// `$meta`.
    Meta(MetaKind),
    /// The constant name of a time zone.
    Zone(Box<NamedZone>),
    Object(Vec<(Box<str>, Expr)>),
    Array(Vec<Expr>),
    /// An operator whose arguments are evaluated before it.
    Call(&'static Operator, Vec<Expr>),
    /// As `Call`, of an operator that compares values.
    Compare(&'static Comparing, Vec<Expr>, Option<Arc<Collation>>),
    Guarded(Box<Guarded>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// Whether the part is true.
    Truth(Box<Expr>),
    Cond(Box<[Expr; 3]>),
    IfNull(Vec<Expr>),
    Switch(Vec<(Expr, Expr)>, Option<Box<Expr>>),
    Let(Vec<(usize, Expr)>, Box<Expr>),
    Map {
        input: Box<Expr>,
        slot: usize,
        /// Where the item's index is bound, where it has a name.
        index: Option<usize>,
        body: Box<Expr>,
    },
    Filter {
        input: Box<Expr>,
        slot: usize,
        index: Option<usize>,
        condition: Box<Expr>,
        limit: Option<Box<Expr>>,
    },
    GetField {
        field: Box<Expr>,
        input: Box<Expr>,
    },
    Reduce {
        input: Box<Expr>,
        initial: Box<Expr>,
        value: usize,
        this: usize,
        index: Option<usize>,
        body: Box<Expr>,
    },
}

/// An operator with what stands for its result where that is an error, or where its input is null.
#[derive(Clone, Debug)]
pub(crate) struct Guarded {
    /// Gives nothing where its input is null.
    pub operator: &'static Operator,
    pub arguments: Vec<Expr>,
    pub on_error: Option<Expr>,
    pub on_null: Option<Expr>,
}

/// Parses one expression; knows the variables in scope.
pub(crate) struct Parser<'v> {
    variables: &'v Variables,
    scope: Vec<(String, usize)>,
    slots: usize,
    reads: MetaSet,
    reads_document: bool,
    depth: usize,
    /// Whether comparisons are made by bytes, whatever the collation.
    by_bytes: bool,
}

impl<'v> Parser<'v> {
    pub(crate) fn new(variables: &'v Variables) -> Parser<'v> {
        Parser {
            variables,
            scope: Vec::new(),
            slots: 0,
            reads: MetaSet::default(),
            reads_document: false,
            depth: 0,
            by_bytes: false,
        }
    }

    /// What is known beside the document.
    pub(crate) fn variables(&self) -> &'v Variables {
        self.variables
    }

    /// How strings compare.
    pub(crate) fn collation(&self) -> Option<Arc<Collation>> {
        self.variables.collation.clone().filter(|_| !self.by_bytes)
    }

    /// See `Expression::parse_filter`.
    pub(super) fn parse_filter(&mut self, value: RawBsonRef<'_>) -> Result<Expr> {
        if let RawBsonRef::Document(document) = value
            && let (Some((name, operand)), 1) = (first(document), count(document))
        {
            match (name, operand) {
                ("$and", RawBsonRef::Array(parts)) => {
                    note(OperatorKind::Expression, name);
                    let parts = items(parts).map(|part| self.parse_filter(part));
                    return Ok(Expr::And(parts.collect::<Result<Vec<_>>>()?));
                }
                ("$in", RawBsonRef::Array(operands)) => {
                    let mut operands = items(operands);
                    self.by_bytes = matches!(
                        (operands.next(), operands.next()),
                        (Some(RawBsonRef::String(path)), Some(RawBsonRef::Array(_)))
                            if path.starts_with('$') && !path.starts_with("$$")
                    );
                }
                _ => {}
            }
        }
        let parsed = self.parse(value);
        self.by_bytes = false;
        parsed
    }

    /// What has been parsed as an expression of its own.
    pub(super) fn expression(&self, root: Expr) -> Expression {
        Expression {
            root,
            slots: self.slots,
            reads: self.reads,
            reads_document: self.reads_document,
        }
    }

    /// A path of the document.
    pub(super) fn field(&mut self, path: FieldPath) -> Expr {
        self.reads_document = true;
        Expr::Field(path)
    }

    /// Notes that the expression reads something beside the document.
    pub(super) fn reads(&mut self, kind: MetaKind) {
        self.reads.insert(kind);
    }

    pub(crate) fn parse(&mut self, value: RawBsonRef<'_>) -> Result<Expr> {
        if self.depth > crate::limits::MAX_EXPRESSION_DEPTH {
            return Err(error(15, "expression nested too deeply"));
        }
        self.depth += 1;
        spend(STEP)?;
        let expr = match value {
            RawBsonRef::String(text) if text.starts_with('$') => self.parse_path(text),
            RawBsonRef::Document(document) => self.parse_document(document),
            RawBsonRef::Array(array) => {
                let parts = items(array)
                    .map(|item| self.parse(item))
                    .collect::<Result<Vec<_>>>()?;
                Ok(Expr::Array(parts))
            }
            RawBsonRef::String(text) => {
                check_string_bytes(text.len())?;
                spend_bytes(text.len())?;
                Ok(Expr::literal(owned(value)))
            }
            other => {
                spend_bytes(bytes(other))?;
                Ok(Expr::literal(owned(other)))
            }
        };
        self.depth -= 1;
        expr
    }

    fn parse_document(&mut self, document: &RawDocument) -> Result<Expr> {
        let Some((name, value)) = first(document) else {
            return Ok(Expr::Object(Vec::new()));
        };
        if name.starts_with('$') {
            let fields = count(document);
            if fields != 1 {
                return Err(error(
                    15983,
                    format!(
                        "an object representing an expression must have exactly one field: {}",
                        crate::text::document_text(document)
                    ),
                ));
            }
            return self.parse_operator(name, value);
        }
        let mut fields: Vec<(Box<str>, Expr)> = Vec::new();
        let mut names = FxHashSet::default();
        for (name, value) in elements(document) {
            if name.starts_with('$') {
                return Err(error(16410, dollar_message(name)));
            }
            check_object_field(name)?;
            if !names.insert(name) {
                return Err(error(
                    16406,
                    format!(
                        "duplicate field name specified in object literal: {}",
                        crate::text::document_text(document)
                    ),
                ));
            }
            fields.push((name.into(), self.parse(value)?));
        }
        Ok(Expr::Object(fields))
    }

    /// An operator by name with its operand.
    fn parse_operator(&mut self, name: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
        note(OperatorKind::Expression, name);
        let unknown = || error(168, format!("Unrecognized expression '{name}'"));
        if !operators::is_in(name, self.variables.version) {
            return Err(unknown());
        }
        if let Some(special) = super::operators::special(name) {
            return special(self, name, operand);
        }
        if let Some(comparing) = operators::find_comparing(name) {
            let arguments = self.parse_arguments(operand)?;
            operators::check_arity(name, comparing.arity, arguments.len())?;
            return Ok(Expr::Compare(comparing, arguments, self.collation()));
        }
        let Some(operator) = operators::find(name) else {
            return Err(unknown());
        };
        let arguments = self.parse_arguments(operand)?;
        operators::check_arity(name, operator.arity, arguments.len())?;
        Ok(Expr::Call(operator, arguments))
    }

    /// The operand of an operator as a list of arguments: an array's items, or anything else alone.
    pub(crate) fn parse_arguments(&mut self, operand: RawBsonRef<'_>) -> Result<Vec<Expr>> {
        match operand {
            RawBsonRef::Array(array) => items(array).map(|item| self.parse(item)).collect(),
            other => Ok(vec![self.parse(other)?]),
        }
    }

    /// `$a.b` or `$$variable.a.b`.
    fn parse_path(&mut self, text: &str) -> Result<Expr> {
        let Some(rest) = text.strip_prefix("$$") else {
            let path = &text[1..];
            if path.is_empty() {
                return Err(error(16872, "'$' by itself is not a valid FieldPath"));
            }
            let path = parse_field_path(path)?;
            return Ok(match self.current() {
                Some(current) => super::eval::path_in_constant(current, &path),
                None => self.field(path),
            });
        };
        if rest.is_empty() {
            return Err(failed_to_parse("empty variable names are not allowed"));
        }
        let (name, path) = match rest.split_once('.') {
            Some((name, path)) => (name, Some(path)),
            None => (rest, None),
        };
        check_variable_name(name, true)?;
        let path = path.map(parse_field_path).transpose()?.unwrap_or_default();
        if let Some((_, slot)) = self.scope.iter().rev().find(|(other, _)| other == name) {
            return Ok(Expr::Slot(*slot, path));
        }
        let constant = |value: RawBson, path: FieldPath| {
            if path.is_empty() {
                Expr::literal(value)
            } else {
                super::eval::path_in_constant(value, &path)
            }
        };
        match name {
            "ROOT" => {
                self.reads_document = true;
                Ok(Expr::Root(path))
            }
            "CURRENT" => Ok(match self.current() {
                Some(current) => constant(current, path),
                None => self.field(path),
            }),
            "REMOVE" => Ok(Expr::Remove),
            "NOW" => match self.variables.now_ms {
                Some(now) => Ok(given(
                    RawBson::DateTime(pinion_bson::DateTime::from_millis(now)),
                    &path,
                )),
                None => Err(unavailable(51144, name)),
            },
            "CLUSTER_TIME" => match self.variables.cluster_time {
                Some(time) => Ok(given(RawBson::Timestamp(time), &path)),
                None if self.variables.in_cluster => Err(unavailable(51144, name)),
                None => Err(unavailable(10_071_200, name)),
            },
            "USER_ROLES" => Ok(constant(
                RawBson::Array(pinion_bson::RawArrayBuf::new()),
                path,
            )),
            "SEARCH_META" | "JS_SCOPE" | "IS_MR" => Err(unavailable(51144, name)),
            _ if self.variables.missing.iter().any(|other| other == name) => Ok(Expr::Remove),
            // Stands for any value: it is never evaluated, and nothing is folded around it.
            _ if self.variables.unbound.iter().any(|other| other == name) => {
                Ok(Expr::Field(Box::from([Box::from(rest)])))
            }
            _ => match self
                .variables
                .values
                .iter()
                .find(|(other, _)| other == name)
            {
                Some((_, value)) => Ok(constant(value.clone(), path)),
                None => Err(error(17276, format!("Use of undefined variable: {name}"))),
            },
        }
    }

    /// What a command's `let` puts in the place of the document that paths lead into.
    fn current(&self) -> Option<RawBson> {
        let mut values = self.variables.values.iter();
        let (_, value) = values.find(|(name, _)| name == "CURRENT")?;
        Some(value.clone())
    }

    /// Binds a variable while `f` parses what it is visible in.
    pub(crate) fn bind<R>(
        &mut self,
        names: &[(String, usize)],
        f: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let before = self.scope.len();
        self.scope.extend_from_slice(names);
        let result = f(self);
        self.scope.truncate(before);
        result
    }

    pub(crate) fn new_slot(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }
}

/// A value that has no fields, and so no path in it.
fn given(value: RawBson, path: &FieldPath) -> Expr {
    if path.is_empty() {
        Expr::Given(Arc::new(value))
    } else {
        Expr::Remove
    }
}

fn unavailable(code: i32, variable: &str) -> pinion_wire::Error {
    error(
        code,
        format!("Builtin variable '$${variable}' is not available"),
    )
}

fn dollar_message(name: &str) -> String {
    format!(
        "FieldPath field names may not start with '$'. Consider using $getField or $setField. Found '{name}'"
    )
}

fn check_object_field(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(error(
            15998,
            "FieldPath field names may not be empty strings.",
        ));
    }
    if name.contains('.') {
        return Err(error(
            16412,
            "FieldPath field names may not contain '.'. Consider using $getField or $setField.",
        ));
    }
    Ok(())
}

fn parse_field_path(text: &str) -> Result<FieldPath> {
    check_field_path(text)?;
    Ok(text.split('.').map(Box::from).collect())
}

/// The rules for a dotted path in expressions, projections and sorts.
pub fn check_field_path(text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(error(
            40352,
            "FieldPath cannot be constructed with empty string",
        ));
    }
    if text.ends_with('.') {
        return Err(error(40353, "FieldPath must not end with a '.'."));
    }
    let mut components = 0;
    for name in text.split('.') {
        components += 1;
        if name.is_empty() {
            return Err(error(
                15998,
                "FieldPath field names may not be empty strings.",
            ));
        }
        if name.starts_with('$') && !matches!(name, "$id" | "$ref" | "$db") {
            return Err(error(
                16410,
                "FieldPath field names may not start with '$'. Consider using $getField or $setField.",
            ));
        }
        if name.contains('\0') {
            return Err(error(16411, "FieldPath field names may not contain '\\0'."));
        }
    }
    if components > MAX_PATH_COMPONENTS {
        return Err(error(15, "FieldPath is too long"));
    }
    Ok(())
}

/// The rules for a variable's name, when it is used and when it is bound.
pub fn check_variable_name(name: &str, reading: bool) -> Result<()> {
    let Some(first) = name.chars().next() else {
        return Err(failed_to_parse("empty variable names are not allowed"));
    };
    let first_allowed = first.is_ascii_lowercase()
        || !first.is_ascii()
        || (reading && first.is_ascii_uppercase())
        || (!reading && name == "CURRENT");
    if !first_allowed {
        return Err(failed_to_parse(format!(
            "'{name}' starts with an invalid character for a user variable name"
        )));
    }
    if let Some(bad) = name
        .chars()
        .find(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && *c != '_')
    {
        return Err(failed_to_parse(format!(
            "'{name}' contains an invalid character for a variable name: '{bad}'"
        )));
    }
    Ok(())
}
