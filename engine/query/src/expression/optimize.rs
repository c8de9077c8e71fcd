//! What of an expression is known before any document: constants are folded, and their errors come
//! at once.
//!
//! An expression is parsed whole before any of it is folded, so errors of its syntax come before
//! those of its constants.

use pinion_bson::RawBson;
use pinion_wire::Result;

use super::operators::{Associativity, Known, Operator};
use super::parse::{Expr, Guarded};
use super::{Env, Subject, Value};
use crate::error::error;
use crate::work::{STEP, spend};

/// Folds what is constant. The error of a constant part is the error of the expression, whether or
/// not the part would be evaluated for a document; only `$switch` leaves out what it cannot reach.
pub(super) fn optimize(expr: Expr) -> Result<Expr> {
    spend(STEP)?;
    Ok(match expr {
        Expr::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, field)| Ok((name, optimize(field)?)))
                .collect::<Result<Vec<_>>>()?;
            let constant = fields.iter().all(|(_, field)| is_constant(field));
            fold_if(constant, Expr::Object(fields))?
        }
        Expr::Array(parts) => {
            let parts = optimize_all(parts)?;
            fold_if(parts.iter().all(is_constant), Expr::Array(parts))?
        }
        Expr::Call(operator, arguments) => {
            let arguments = inlined(operator, optimize_all(arguments)?)?;
            if arguments.iter().all(is_constant) {
                return fold_if(true, Expr::Call(operator, arguments));
            }
            match operator.known(&arguments)? {
                Known::Null => Expr::literal(RawBson::Null),
                Known::Nothing => Expr::Call(operator, arguments),
            }
        }
        Expr::Compare(operator, arguments, collation) => {
            let arguments = optimize_all(arguments)?;
            let constant = arguments.iter().all(is_constant);
            fold_if(constant, Expr::Compare(operator, arguments, collation))?
        }
        Expr::Guarded(guarded) => {
            let Guarded {
                operator,
                arguments,
                on_error,
                on_null,
            } = *guarded;
            let guarded = Guarded {
                operator,
                arguments: optimize_all(arguments)?,
                on_error: on_error.map(optimize).transpose()?,
                on_null: on_null.map(optimize).transpose()?,
            };
            let Guarded {
                on_error, on_null, ..
            } = &guarded;
            let constant = guarded
                .arguments
                .iter()
                .chain(on_error)
                .chain(on_null)
                .all(is_constant);
            if !constant {
                operator.known(&guarded.arguments)?;
            }
            fold_if(constant, Expr::Guarded(Box::new(guarded)))?
        }
        Expr::And(parts) => logical(optimize_all(parts)?, true),
        Expr::Or(parts) => logical(optimize_all(parts)?, false),
        Expr::Truth(part) => Expr::Truth(boxed(part)?),
        Expr::Cond(parts) => {
            let [condition, then, otherwise] = *parts;
            let [condition, then, otherwise] =
                [optimize(condition)?, optimize(then)?, optimize(otherwise)?];
            match truth(&condition) {
                Some(true) => then,
                Some(false) => otherwise,
                None => Expr::Cond(Box::new([condition, then, otherwise])),
            }
        }
        Expr::IfNull(parts) => if_null(optimize_all(parts)?),
        Expr::Switch(branches, default) => switch(branches, default)?,
        Expr::Let(bindings, body) => {
            let bindings = bindings
                .into_iter()
                .map(|(slot, value)| Ok((slot, optimize(value)?)))
                .collect::<Result<Vec<_>>>()?;
            Expr::Let(bindings, boxed(body)?)
        }
        Expr::Map {
            input,
            slot,
            index,
            body,
        } => Expr::Map {
            input: boxed(input)?,
            slot,
            index,
            body: boxed(body)?,
        },
        Expr::Filter {
            input,
            slot,
            index,
            condition,
            limit,
        } => Expr::Filter {
            input: boxed(input)?,
            slot,
            index,
            condition: boxed(condition)?,
            limit: limit.map(boxed).transpose()?,
        },
        Expr::GetField { field, input } => Expr::GetField {
            field: boxed(field)?,
            input: boxed(input)?,
        },
        Expr::Reduce {
            input,
            initial,
            value,
            this,
            index,
            body,
        } => Expr::Reduce {
            input: boxed(input)?,
            initial: boxed(initial)?,
            value,
            this,
            index,
            body: boxed(body)?,
        },
        leaf @ (Expr::Literal(_)
        | Expr::Given(_)
        | Expr::Field(_)
        | Expr::Root(_)
        | Expr::Slot(..)
        | Expr::Meta(_)
        | Expr::Remove
        | Expr::Random(_)
        | Expr::NewId(..)
        | Expr::Zone(_)) => leaf,
    })
}

#[expect(
    clippy::boxed_local,
    reason = "what comes out of a box goes back into one"
)]
fn boxed(expr: Box<Expr>) -> Result<Box<Expr>> {
    optimize(*expr).map(Box::new)
}

fn optimize_all(parts: Vec<Expr>) -> Result<Vec<Expr>> {
    parts.into_iter().map(optimize).collect()
}

/// Whether the value is known: a literal, or nothing at all.
pub(super) fn is_constant(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(_) | Expr::Remove | Expr::Zone(_))
}

/// The truth of a constant.
fn truth(expr: &Expr) -> Option<bool> {
    match expr {
        Expr::Literal(value) => Some(crate::value::is_true(value.as_raw_bson_ref())),
        Expr::Remove => Some(false),
        _ => None,
    }
}

fn fold_if(constant: bool, expr: Expr) -> Result<Expr> {
    if !constant {
        return Ok(expr);
    }
    let empty = pinion_bson::RawDocumentBuf::new();
    let value = expr
        .evaluate(&mut Env::new(Subject::from(&empty), &empty, 0))?
        .into_owned();
    Ok(value.map_or(Expr::Remove, Expr::literal))
}

/// The arguments with those of an inner call of the same operator in its place, and with constants
/// that stand together made one, as far as the operator's associativity allows.
fn inlined(operator: &'static Operator, arguments: Vec<Expr>) -> Result<Vec<Expr>> {
    let everywhere = match operator.associativity() {
        Associativity::None => return Ok(arguments),
        Associativity::Left => false,
        Associativity::Full => true,
    };
    let mut flat = Vec::with_capacity(arguments.len());
    for (at, argument) in arguments.into_iter().enumerate() {
        match argument {
            Expr::Call(inner, parts)
                if std::ptr::eq(inner, operator) && (at == 0 || everywhere) =>
            {
                flat.extend(parts);
            }
            other => flat.push(other),
        }
    }
    let mut out: Vec<Expr> = Vec::with_capacity(flat.len());
    let mut run: Vec<Expr> = Vec::new();
    let close = |run: &mut Vec<Expr>, out: &mut Vec<Expr>| -> Result<()> {
        if run.len() > 1 {
            out.push(fold_if(true, Expr::Call(operator, std::mem::take(run)))?);
        } else {
            out.append(run);
        }
        Ok(())
    };
    for argument in flat {
        if is_constant(&argument) && (everywhere || out.is_empty()) {
            run.push(argument);
        } else {
            close(&mut run, &mut out)?;
            out.push(argument);
        }
    }
    close(&mut run, &mut out)?;
    Ok(out)
}

/// `$and` and `$or`: a constant that decides does so wherever it stands; others are left out.
fn logical(parts: Vec<Expr>, all: bool) -> Expr {
    let decides = |part: &Expr| truth(part) == Some(!all);
    if parts.iter().any(decides) {
        return Expr::literal(RawBson::Boolean(!all));
    }
    let mut open: Vec<Expr> = parts
        .into_iter()
        .filter(|part| truth(part).is_none())
        .collect();
    match open.len() {
        0 => Expr::literal(RawBson::Boolean(all)),
        1 => Expr::Truth(Box::new(open.remove(0))),
        _ if all => Expr::And(open),
        _ => Expr::Or(open),
    }
}

/// `$ifNull` without the nulls that it passes over, and without what stands behind a constant that
/// is not null.
fn if_null(parts: Vec<Expr>) -> Expr {
    let is_null = |part: &Expr| match part {
        Expr::Literal(value) => crate::value::is_nullish(value.as_raw_bson_ref()),
        Expr::Remove => true,
        _ => false,
    };
    let last = parts.len().saturating_sub(1);
    let mut open: Vec<Expr> = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        if at < last && is_null(&part) {
            continue;
        }
        let ends = is_constant(&part);
        open.push(part);
        if ends {
            break;
        }
    }
    match open.len() {
        1 => open.remove(0),
        _ => Expr::IfNull(open),
    }
}

/// `$switch` without the branches that are never taken; what these hold is not examined.
fn switch(branches: Vec<(Expr, Expr)>, default: Option<Box<Expr>>) -> Result<Expr> {
    let mut default = default.map(boxed).transpose()?;
    let mut open = Vec::with_capacity(branches.len());
    for (case, then) in branches {
        let case = optimize(case)?;
        match truth(&case) {
            Some(false) => {}
            Some(true) => {
                default = Some(boxed(Box::new(then))?);
                break;
            }
            None => open.push((case, optimize(then)?)),
        }
    }
    match default {
        Some(default) if open.is_empty() => Ok(*default),
        None if open.is_empty() => Err(error(
            40069,
            "Cannot execute a switch statement where all the cases evaluate to false without a default",
        )),
        default => Ok(Expr::Switch(open, default)),
    }
}

impl Expr {
    /// The value, where it is constant.
    pub(super) fn constant(&self) -> Option<Value<'_>> {
        match self {
            Expr::Literal(value) => Some(Value::Ref(value.as_raw_bson_ref())),
            Expr::Remove => Some(Value::Missing),
            Expr::Zone(zone) => Some(Value::Zone(zone)),
            _ => None,
        }
    }
}
