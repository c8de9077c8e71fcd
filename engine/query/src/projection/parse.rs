//! The parser of projections.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_wire::{Error, Result};

use super::{Action, Mode, Projection, Tree};
use crate::error::error;
use crate::expression::{Expression, Variables, check_field_path, is_expression_name};
use crate::matcher::Matcher;
use crate::number::truncated_i64;
use crate::text::element_text;
use crate::value::{count, elements, first, is_empty, is_number, is_true, items, type_name};

/// The field in which routers have shards give the values that a document is sorted by.
pub(super) const SORT_KEY: &str = "$sortKey";

/// What `{$meta: <name>}` names.
fn meta_name(value: RawBsonRef<'_>) -> Option<&str> {
    match value.as_document().and_then(first) {
        Some(("$meta", RawBsonRef::String(name))) => Some(name),
        _ => None,
    }
}

pub(super) struct Parser<'v> {
    variables: &'v Variables,
    /// The operators that only `find` has are allowed.
    find: bool,
    /// A mongos of MongoDB 4.4 may have sent it: it merges by distances too, and asks for the ids
    /// of records by a field.
    of_mongos: bool,
    mode: Option<Mode>,
    id_included: Option<bool>,
    positional: Option<Box<[Box<str>]>>,
    has_elem_match: bool,
    /// A field whose operator leaves the mode open.
    has_slice: bool,
}

impl<'v> Parser<'v> {
    pub(super) fn find(variables: &'v Variables) -> Parser<'v> {
        Parser {
            variables,
            find: true,
            of_mongos: false,
            mode: None,
            id_included: None,
            positional: None,
            has_elem_match: false,
            has_slice: false,
        }
    }

    /// For a `find` that a mongos of MongoDB 4.4 may have sent.
    pub(super) fn find_of_mongos(variables: &'v Variables) -> Parser<'v> {
        Parser {
            of_mongos: true,
            ..Parser::find(variables)
        }
    }

    /// Whether a field is what routers ask for, to merge what several shards give.
    fn is_for_merge(&self, name: &str, value: RawBsonRef<'_>) -> bool {
        let is_known = |kind: &str| match name {
            SORT_KEY => kind == "sortKey" || (kind == "geoNearDistance" && self.of_mongos),
            // What `showRecordId` is to a mongos.
            "$recordId" => kind == "recordId" && self.of_mongos,
            _ => false,
        };
        self.find && meta_name(value).is_some_and(is_known)
    }

    pub(super) fn aggregation(variables: &'v Variables) -> Parser<'v> {
        Parser {
            find: false,
            ..Parser::find(variables)
        }
    }

    pub(super) fn parse(mut self, spec: &RawDocument) -> Result<Projection> {
        let find = self.find;
        let wrap = |e: Error| {
            if find {
                e
            } else {
                e.context("Invalid $project")
            }
        };
        if is_empty(spec) && !find {
            return Err(wrap(error(
                51272,
                "projection specification must have at least one field",
            )));
        }
        let mut root = Tree::default();
        for (name, value) in elements(spec) {
            self.parse_field(&mut root, "", name, value).map_err(wrap)?;
        }
        let mode = self.mode.unwrap_or({
            let only_elem_match = self.has_elem_match && !self.has_slice;
            if self.id_included == Some(true) || only_elem_match {
                Mode::Inclusion
            } else {
                Mode::Exclusion
            }
        });
        match (mode, self.id_included) {
            (Mode::Inclusion, Some(false)) | (Mode::Exclusion, Some(true)) => {}
            (Mode::Inclusion, _) => {
                if root.position(b"_id").is_none() {
                    root.push_front("_id", Action::Include);
                }
            }
            (_, Some(false)) => {
                root.push("_id", Action::Exclude);
            }
            (_, None) | (Mode::Addition, _) => {}
        }
        Ok(Projection {
            mode,
            root,
            positional: self.positional,
        })
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode.get_or_insert(mode);
    }

    fn parse_field(
        &mut self,
        tree: &mut Tree,
        prefix: &str,
        name: &str,
        value: RawBsonRef<'_>,
    ) -> Result<()> {
        let full = if prefix.is_empty() {
            name.to_string()
        } else {
            format!("{prefix}.{name}")
        };
        if let Some(path) = name.strip_suffix(".$") {
            return self.parse_positional(tree, prefix, path, value);
        }
        if name.contains(".$.") {
            return Err(error(
                31394,
                "As of 4.4, it's illegal to specify positional operator in the middle of a path.Positional projection may \
                 only be used at the end, for example: a.b.$. If the query previously used a form like a.b.$.d, remove the \
                 parts following the '$' and the results will be equivalent.",
            ));
        }
        if !self.is_for_merge(&full, value) {
            check_field_path(name)?;
        }
        match value {
            RawBsonRef::Document(document) => {
                self.parse_object(tree, &full, prefix, name, document)
            }
            RawBsonRef::Boolean(_) => self.parse_flag(tree, &full, prefix, name, is_true(value)),
            number if is_number(number) => {
                self.parse_flag(tree, &full, prefix, name, is_true(number))
            }
            other => {
                let expression = Expression::parse(other, self.variables)?;
                place(tree, name, &full, Action::Compute(expression))?;
                if self.mode == Some(Mode::Exclusion) {
                    return Err(error(
                        31310,
                        format!(
                            "Cannot use an expression {} in an exclusion projection",
                            element_text(&full, other)
                        ),
                    ));
                }
                self.set_mode(Mode::Inclusion);
                Ok(())
            }
        }
    }

    fn parse_flag(
        &mut self,
        tree: &mut Tree,
        full: &str,
        prefix: &str,
        name: &str,
        include: bool,
    ) -> Result<()> {
        if prefix.is_empty() && name == "_id" {
            if tree.position(b"_id").is_some() {
                return Err(error(31250, format!("Path collision at {full}")));
            }
            self.id_included = Some(include);
            return Ok(());
        }
        place(
            tree,
            name,
            full,
            if include {
                Action::Include
            } else {
                Action::Exclude
            },
        )?;
        match (self.mode, include) {
            (Some(Mode::Exclusion), true) => {
                return Err(error(
                    31253,
                    format!("Cannot do inclusion on field {full} in exclusion projection"),
                ));
            }
            (Some(Mode::Inclusion), false) => {
                return Err(error(
                    31254,
                    format!("Cannot do exclusion on field {full} in inclusion projection"),
                ));
            }
            _ => {}
        }
        self.set_mode(if include {
            Mode::Inclusion
        } else {
            Mode::Exclusion
        });
        Ok(())
    }

    fn parse_object(
        &mut self,
        tree: &mut Tree,
        full: &str,
        prefix: &str,
        name: &str,
        document: &RawDocument,
    ) -> Result<()> {
        let Some((operator, operand)) = first(document) else {
            return Err(error(
                51270,
                "An empty sub-projection is not a valid value. Found empty object at path",
            ));
        };
        if operator.starts_with('$') && count(document) == 1 {
            return self.parse_operator(tree, full, prefix, name, document, operator, operand);
        }
        // The fields of a nested specification.
        let inner = descend(tree, name, full)?;
        let mut nested = std::mem::take(inner);
        let result = elements(document).try_for_each(|(field, value)| {
            if field.starts_with('$') {
                return check_field_path(field);
            }
            self.parse_field(&mut nested, full, field, value)
        });
        *descend(tree, name, full)? = nested;
        result
    }

    #[allow(clippy::too_many_arguments)]
    fn parse_operator(
        &mut self,
        tree: &mut Tree,
        full: &str,
        prefix: &str,
        name: &str,
        document: &RawDocument,
        operator: &str,
        operand: RawBsonRef<'_>,
    ) -> Result<()> {
        if operator == "$elemMatch" {
            if !self.find {
                return Err(error(168, "Cannot use $elemMatch in this context"));
            }
            let RawBsonRef::Document(_) = operand else {
                return Err(error(
                    31274,
                    format!(
                        "elemMatch: Invalid argument, object required, but got {}",
                        type_name(operand)
                    ),
                ));
            };
            if self.positional.is_some() {
                return Err(error(
                    31255,
                    "Cannot specify positional operator and $elemMatch.",
                ));
            }
            if !prefix.is_empty() || name.contains('.') {
                return Err(error(
                    31275,
                    "Cannot use $elemMatch projection on a nested field.",
                ));
            }
            let mut filter = pinion_bson::DocBuilder::new();
            filter.start_document(name);
            filter.append("$elemMatch", operand);
            filter.end();
            let matcher =
                Matcher::parse_nested(&filter.finish(), self.variables.collation.as_ref())?;
            self.has_elem_match = true;
            return place(tree, name, full, Action::ElemMatch(Box::new(matcher)));
        }
        if operator == "$slice"
            && self.find
            && let Some((skip, limit)) = find_slice(operand)
        {
            self.has_slice = true;
            let action = Action::Slice { skip, limit };
            // A collision makes MongoDB try the expression of the same name, which has another
            // number of arguments.
            let exclusion = self.mode == Some(Mode::Exclusion);
            return place(tree, name, full, action).map_err(|e| {
                    let (code, reason) = match (exclusion, skip) {
                        (true, _) => (31252, "Cannot use expression other than $meta in exclusion projection"),
                        (false, Some(_)) => (e.code.0, e.message.as_str()),
                        (false, None) => {
                            (28667, "Expression $slice takes at least 2 arguments, and at most 3, but 1 were passed in.")
                        }
                    };
                    error(
                        code,
                        format!(
                            "Invalid $slice syntax. The given syntax {} did not match the find() syntax because :: Location{}: {} \
                             :: The given syntax did not match the expression $slice syntax. :: caused by :: {reason}",
                            crate::text::document_text(document),
                            e.code.0,
                            e.message
                        ),
                    )
                });
        }
        if operator == "$meta" {
            // It goes with inclusions and exclusions alike.
            let expression = Expression::parse(RawBsonRef::Document(document), self.variables)?;
            return place(tree, name, full, Action::Compute(expression));
        }
        if !is_expression_name(operator, self.variables.version) {
            return Err(error(31325, format!("Unknown expression {operator}")));
        }
        if self.mode == Some(Mode::Exclusion) {
            return Err(error(
                31252,
                "Cannot use expression other than $meta in exclusion projection",
            ));
        }
        self.set_mode(Mode::Inclusion);
        let expression = Expression::parse(RawBsonRef::Document(document), self.variables)?;
        place(tree, name, full, Action::Compute(expression))
    }

    fn parse_positional(
        &mut self,
        tree: &mut Tree,
        prefix: &str,
        path: &str,
        value: RawBsonRef<'_>,
    ) -> Result<()> {
        if !self.find {
            return Err(error(
                31324,
                "Cannot use positional projection in aggregation projection",
            ));
        }
        match value {
            RawBsonRef::Document(_) => {
                return Err(error(
                    31271,
                    "positional projection cannot be used with an expression or sub object",
                ));
            }
            RawBsonRef::Boolean(_) => {}
            number if is_number(number) => {}
            _ => {
                return Err(error(
                    31308,
                    "positional projection cannot be used with a literal",
                ));
            }
        }
        if !is_true(value) {
            return Err(error(
                31395,
                "positional projection cannot be used with exclusion",
            ));
        }
        check_field_path(path)?;
        if path.split('.').any(|part| part == "$") {
            return Err(error(31394, "positional operator in the middle of a path"));
        }
        if self.positional.is_some() {
            return Err(error(
                31276,
                "Cannot specify more than one positional projection per query.",
            ));
        }
        if self.has_elem_match {
            return Err(error(
                31256,
                "Cannot specify positional operator and $elemMatch.",
            ));
        }
        let full = if prefix.is_empty() {
            path.to_string()
        } else {
            format!("{prefix}.{path}")
        };
        if self.mode == Some(Mode::Exclusion) {
            return Err(error(
                31395,
                "positional projection cannot be used with exclusion",
            ));
        }
        self.set_mode(Mode::Inclusion);
        self.positional = Some(full.split('.').map(Box::from).collect());
        place(tree, path, &full, Action::Include)
    }
}

/// `$slice` as `find` has it: a limit, or a skip and a positive limit.
fn find_slice(operand: RawBsonRef<'_>) -> Option<(Option<i64>, i64)> {
    // Beyond 64 bits the sign is what counts.
    let whole = |value: RawBsonRef<'_>| {
        if !is_number(value) {
            return None;
        }
        let limit = i64::from(i32::MAX);
        truncated_i64(value)
            .or_else(|| pinion_bson::Number::from_value(value).map(|n| n.to_i64_saturating()))
            .map(|n| n.clamp(-limit, limit))
    };
    match operand {
        RawBsonRef::Array(array) => {
            let parts: Vec<RawBsonRef<'_>> = items(array).take(3).collect();
            match parts[..] {
                [skip, limit] => {
                    let (skip, limit) = (whole(skip)?, whole(limit)?);
                    (limit > 0).then_some((Some(skip), limit))
                }
                _ => None,
            }
        }
        other => whole(other).map(|limit| (None, limit)),
    }
}

/// The nested tree under a dotted name.
fn descend<'t>(tree: &'t mut Tree, name: &str, full: &str) -> Result<&'t mut Tree> {
    let mut tree = tree;
    for head in name.split('.') {
        let found = match tree.position(head.as_bytes()) {
            Some(found) => found,
            None => tree.push(head, Action::Nested(Tree::default())),
        };
        match tree.action_mut(found) {
            Action::Nested(inner) => tree = inner,
            _ => {
                // Whatever the depth, this is what lies behind the first name.
                let rest = full.split_once('.').map_or(full, |(_, rest)| rest);
                return Err(error(
                    31249,
                    format!("Path collision at {full} remaining portion {rest}"),
                ));
            }
        }
    }
    Ok(tree)
}

/// Puts an action at a dotted name.
fn place(tree: &mut Tree, name: &str, full: &str, action: Action) -> Result<()> {
    crate::work::spend(crate::work::PATH)?;
    let (tree, last) = match name.rsplit_once('.') {
        Some((outer, last)) => (descend(tree, outer, full)?, last),
        None => (tree, name),
    };
    if tree.position(last.as_bytes()).is_some() {
        return Err(error(31250, format!("Path collision at {full}")));
    }
    tree.push(last, action);
    Ok(())
}

/// `$addFields`: every value is an expression, nested documents are merged.
pub(super) fn parse_addition(spec: &RawDocument, variables: &Variables) -> Result<Projection> {
    let mut root = Tree::default();
    add_fields(&mut root, "", spec, variables).map_err(|e| e.context("Invalid $addFields"))?;
    Ok(Projection {
        mode: Mode::Addition,
        root,
        positional: None,
    })
}

/// Every path is set to a value that is given with the document.
pub(super) fn parse_values<'n>(paths: impl Iterator<Item = &'n str>) -> Result<Projection> {
    let mut root = Tree::default();
    for (at, path) in paths.enumerate() {
        check_field_path(path)?;
        place(&mut root, path, path, Action::Value(at)).map_err(|_| {
            error(
                6_307_900,
                format!("the output contains two conflicting paths, one of which is '{path}'"),
            )
        })?;
    }
    Ok(Projection {
        mode: Mode::Addition,
        root,
        positional: None,
    })
}

fn add_fields(
    tree: &mut Tree,
    prefix: &str,
    spec: &RawDocument,
    variables: &Variables,
) -> Result<()> {
    for (name, value) in elements(spec) {
        let full = if prefix.is_empty() {
            name.to_string()
        } else {
            format!("{prefix}.{name}")
        };
        check_field_path(name)?;
        let conflict = |_: Error| {
            error(
                40176,
                format!(
                    "specification contains two conflicting paths. Cannot specify both '{full}' and another path under or above it"
                ),
            )
        };
        match value {
            RawBsonRef::Document(document) => match first(document) {
                None => {
                    return Err(error(
                        40180,
                        format!(
                            "an empty object is not a valid value. Found empty object at path {full}"
                        ),
                    ));
                }
                Some((operator, _)) if operator.starts_with('$') => {
                    if count(document) > 1 {
                        return Err(error(
                            40181,
                            format!(
                                "an expression specification must contain exactly one field, the name of the expression. Found {} fields in {}",
                                count(document),
                                crate::text::document_text(document)
                            ),
                        ));
                    }
                    let expression = Expression::parse(value, variables)?;
                    place(tree, name, &full, Action::Compute(expression)).map_err(conflict)?;
                }
                Some(_) => {
                    if let Some((field, _)) =
                        elements(document).find(|(field, _)| field.contains('.'))
                    {
                        return Err(error(
                            40183,
                            format!("cannot use dotted field name '{field}' in a sub object"),
                        ));
                    }
                    let mut nested = std::mem::take(descend(tree, name, &full).map_err(conflict)?);
                    add_fields(&mut nested, &full, document, variables)?;
                    *descend(tree, name, &full)? = nested;
                }
            },
            other => {
                let expression = Expression::parse(other, variables)?;
                place(tree, name, &full, Action::Compute(expression)).map_err(conflict)?;
            }
        }
    }
    Ok(())
}
