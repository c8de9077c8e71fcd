//! Why a document breaks a validator: the clauses of the filter as they were given, each with its
//! reason.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};

use super::predicate::{is_inversion, write_predicate};
use crate::expression::{Expression, Variables};
use crate::matcher::{Details, Matcher, Node, schema_details};
use crate::value::{elements, field, first, items};
use crate::work;

/// One part of a filter.
enum Clause<'a> {
    /// `$and`, `$or` or `$nor` with its alternatives.
    List(&'a str, Vec<&'a RawDocument>),
    /// What concerns the whole document: `$jsonSchema`, `$expr` and constants.
    Whole(&'a str, RawBsonRef<'a>),
    /// An operator on a path; `implicit` where the filter gives a value or a regular expression
    /// alone.
    Predicate {
        path: &'a str,
        operator: &'a str,
        operand: RawBsonRef<'a>,
        /// The flags of `$regex` that stand beside it.
        options: Option<RawBsonRef<'a>>,
        implicit: bool,
    },
}

/// The details of a document that breaks the filter.
pub(super) fn details(
    filter: &RawDocument,
    document: &RawDocument,
    variables: &Variables,
) -> RawDocumentBuf {
    let mut writer = Writer {
        document,
        variables,
        to: Details::default(),
    };
    writer.write_all(&clauses(filter), false);
    writer.to.finish()
}

fn clauses(filter: &RawDocument) -> Vec<Clause<'_>> {
    let mut found = Vec::new();
    for (name, value) in elements(filter) {
        match (name, value) {
            ("$and" | "$or" | "$nor", RawBsonRef::Array(array)) => {
                let documents = items(array).filter_map(|item| match item {
                    RawBsonRef::Document(document) => Some(document),
                    _ => None,
                });
                found.push(Clause::List(name, documents.collect()));
            }
            ("$comment", _) => {}
            _ if name.starts_with('$') => found.push(Clause::Whole(name, value)),
            _ => push_predicates(name, value, &mut found),
        }
    }
    found
}

fn push_predicates<'a>(path: &'a str, value: RawBsonRef<'a>, found: &mut Vec<Clause<'a>>) {
    let implicit = |operator| Clause::Predicate {
        path,
        operator,
        operand: value,
        options: None,
        implicit: true,
    };
    match value {
        RawBsonRef::Document(operators)
            if first(operators).is_some_and(|(name, _)| {
                name.starts_with('$') && !matches!(name, "$ref" | "$id" | "$db")
            }) =>
        {
            for (operator, operand) in elements(operators).filter(|(name, _)| *name != "$options") {
                found.push(Clause::Predicate {
                    path,
                    operator,
                    operand,
                    options: field(operators, "$options").filter(|_| operator == "$regex"),
                    implicit: false,
                });
            }
        }
        RawBsonRef::RegularExpression(_) => found.push(implicit("$regex")),
        _ => found.push(implicit("$eq")),
    }
}

impl Clause<'_> {
    /// The clause as a filter of its own.
    fn filter(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        match self {
            Clause::List(name, documents) => {
                out.start_array(name);
                for document in documents {
                    out.push(RawBsonRef::Document(document));
                }
                out.end();
            }
            Clause::Whole(name, value) => {
                out.append(name, *value);
            }
            Clause::Predicate {
                path,
                operator,
                operand,
                options,
                implicit,
            } => {
                if *implicit {
                    out.append(path, *operand);
                } else {
                    out.start_document(path);
                    out.append(operator, *operand);
                    if let Some(options) = options {
                        out.append("$options", *options);
                    }
                    out.end();
                }
            }
        }
        out.finish()
    }
}

struct Writer<'a> {
    document: &'a RawDocument,
    variables: &'a Variables,
    to: Details,
}

impl Writer<'_> {
    /// Whether the document satisfies a clause.
    fn satisfies(&self, clauses: &[Clause<'_>]) -> bool {
        clauses.iter().all(|clause| {
            Matcher::parse_validator(&clause.filter(), self.variables)
                .and_then(|matcher| matcher.matches(self.document))
                .unwrap_or(false)
        })
    }

    /// Writes the details of clauses all of which must hold, or, inverted, must not.
    fn write_all(&mut self, clauses: &[Clause<'_>], inverted: bool) {
        if work::is_exhausted() {
            return;
        }
        match clauses {
            [one] => self.write_clause(one, inverted),
            many => {
                let each: Vec<&[Clause<'_>]> = many.iter().map(std::slice::from_ref).collect();
                self.write_list("$and", &each, inverted);
            }
        }
    }

    fn write_clause(&mut self, clause: &Clause<'_>, inverted: bool) {
        match clause {
            Clause::List(name, documents) => {
                let parts: Vec<Vec<Clause<'_>>> = documents.iter().map(|d| clauses(d)).collect();
                let parts: Vec<&[Clause<'_>]> = parts.iter().map(Vec::as_slice).collect();
                self.write_list(name, &parts, inverted);
            }
            Clause::Whole(name, value) => self.write_whole(name, *value, clause, inverted),
            Clause::Predicate {
                path,
                operator: "$not",
                operand,
                ..
            } => self.write_not(path, *operand, inverted),
            Clause::Predicate {
                path,
                operator,
                operand,
                ..
            } => {
                self.to.operator(operator);
                self.to.document("specifiedAs", &clause.filter());
                let inverted = inverted != is_inversion(operator);
                write_predicate(
                    self.document,
                    path,
                    operator,
                    *operand,
                    inverted,
                    &mut self.to,
                );
            }
        }
    }

    /// A list of alternatives: those that decide against the document.
    fn write_list(&mut self, name: &str, parts: &[&[Clause<'_>]], inverted: bool) {
        self.to.operator(name);
        let negated = name == "$nor";
        // The parts of `$nor` fail the document by being satisfied.
        let satisfied = inverted != negated;
        self.to.out.start_array(if satisfied {
            "clausesSatisfied"
        } else {
            "clausesNotSatisfied"
        });
        for (position, part) in parts.iter().enumerate() {
            if self.satisfies(part) != satisfied {
                continue;
            }
            self.to.out.push_document();
            self.to.position("index", position);
            self.to.out.start_document("details");
            self.write_all(part, satisfied);
            self.to.out.end();
            self.to.out.end();
        }
        self.to.out.end();
    }

    fn write_not(&mut self, path: &str, operand: RawBsonRef<'_>, inverted: bool) {
        let mut inner = DocBuilder::new();
        inner.append(path, operand);
        let inner = inner.finish();
        self.to.operator("$not");
        self.to.out.start_document("details");
        self.write_all(&clauses(&inner), !inverted);
        self.to.out.end();
    }

    fn write_whole(
        &mut self,
        name: &str,
        value: RawBsonRef<'_>,
        clause: &Clause<'_>,
        inverted: bool,
    ) {
        let matcher = Matcher::parse_validator(&clause.filter(), self.variables);
        if let (Ok(matcher), false) = (&matcher, inverted)
            && let Node::Schema(schema, _) = matcher.root()
        {
            return schema_details(schema, self.document, &mut self.to);
        }
        self.to.operator(name);
        self.to.document("specifiedAs", &clause.filter());
        match name {
            "$jsonSchema" => self.to.reason("schema matched"),
            "$expr" => self.write_expression(value, inverted),
            "$alwaysTrue" => self.to.reason("expression always evaluates to true"),
            _ => self.to.reason("expression always evaluates to false"),
        }
    }

    fn write_expression(&mut self, value: RawBsonRef<'_>, inverted: bool) {
        let expression = Expression::parse(value, self.variables);
        let result = expression
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|e| e.evaluate(self.document));
        match result {
            Ok(result) => {
                self.to.reason(if inverted {
                    "expression did match"
                } else {
                    "expression did not match"
                });
                if let Some(result) = result.as_ref() {
                    self.to.value("expressionResult", result);
                }
            }
            Err(error) => {
                self.to.reason("failed to evaluate aggregation expression");
                self.to.out.start_document("details");
                self.to.value("code", RawBsonRef::Int32(error.code.0));
                self.to.text("codeName", &error.code_name());
                self.to.text("errmsg", &error.message);
                self.to.out.end();
            }
        }
    }
}
