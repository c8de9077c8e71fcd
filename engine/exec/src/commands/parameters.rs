//! `getParameter` and `setParameter`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, elements};
use pinion_wire::idl::{is_generic_argument, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::fail_points::{self, FailPoint};
use crate::parameters::{FAIL_POINT_PREFIX, Parameters, is_known, names, test_commands_enabled};
use crate::state::state;

/// `getParameter`.
pub(crate) async fn get_parameter(cmd: Invocation) -> Result<Reply> {
    let body = cmd.body();
    let mut out = Reply::new();
    let (mut all, mut details) = (false, false);
    match pinion_bson::get(body, "getParameter") {
        Some(RawBsonRef::String("*")) => all = true,
        Some(RawBsonRef::Document(options)) => {
            for (name, value) in elements(options) {
                match name {
                    "showDetails" => details = truthy(value),
                    "allParameters" => all = truthy(value),
                    "setAt" => {}
                    _ => {
                        return Err(Error::new(
                            ErrorCode::IDL_UNKNOWN_FIELD,
                            format!("BSON field 'getParameter.{name}' is an unknown field."),
                        ));
                    }
                }
            }
        }
        _ => {}
    }
    let found = append_parameters(body, all, details, &mut out);
    if found + append_fail_points(body, all, &mut out).await == 0 {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "no option found to get",
        ));
    }
    Ok(out)
}

/// Appends the parameters that are asked for; tells how many.
fn append_parameters(body: &RawDocument, all: bool, details: bool, out: &mut DocBuilder) -> usize {
    let state = state();
    let parameters = state.parameters.borrow();
    let mut found = 0;
    let mut append = |name: &str| {
        if details && is_known(name) {
            out.start_document(name);
            parameters.append_as(name, "value", out);
            let (runtime, startup) = Parameters::settable(name);
            out.append("settableAtRuntime", runtime)
                .append("settableAtStartup", startup)
                .end();
            found += 1;
        } else if parameters.append(name, out) {
            found += 1;
        }
    };
    if all {
        names().into_iter().for_each(append);
    } else {
        for (name, _) in elements(body).skip(1) {
            if !is_generic_argument(name) {
                append(name);
            }
        }
    }
    found
}

/// Whether a parameter is a fail point, which the command for them sets while the node runs.
fn is_fail_point(name: &str) -> bool {
    let point = name.strip_prefix(FAIL_POINT_PREFIX);
    test_commands_enabled() && point.is_some_and(|point| FailPoint::named(point).is_ok())
}

/// Appends the fail points that are asked for, where there are any; tells how many.
async fn append_fail_points(body: &RawDocument, all: bool, out: &mut DocBuilder) -> usize {
    if !test_commands_enabled() {
        return 0;
    }
    let mut found = 0;
    for point in FailPoint::ALL {
        let name = [FAIL_POINT_PREFIX, point.name()].concat();
        if all || pinion_bson::get(body, &name).is_some() {
            fail_points::append(point, &name, out).await;
            found += 1;
        }
    }
    found
}

/// `setParameter`: several parameters are checked first and set together, on every core.
pub(crate) async fn set_parameter(cmd: Invocation) -> Result<Reply> {
    let body = cmd.body();
    let mut out = Reply::new();
    let (mut settings, mut told) = (Vec::new(), Vec::new());
    for (name, value) in elements(body).skip(1) {
        if is_generic_argument(name) {
            continue;
        }
        let (runtime, _) = Parameters::settable(name);
        let is_start_only = is_known(name) || is_fail_point(name);
        if is_start_only && !runtime {
            return Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                format!("not allowed to change [{name}] at runtime"),
            ));
        }
        let setting = Parameters::parse(name, value)?;
        if settings.is_empty() {
            state().parameters.borrow().append_as(name, "was", &mut out);
        }
        told.push((name.to_owned(), pinion_query::value_text(value)));
        settings.push(setting);
    }
    if settings.is_empty() {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "no option found to set, use help:true to see options ",
        ));
    }
    pinion_runtime::on_all_cores(move |_| {
        let settings = settings.clone();
        async move {
            let state = state();
            let mut parameters = state.parameters.borrow_mut();
            for setting in &settings {
                parameters.set(setting);
            }
        }
    })
    .await;
    for (name, value) in told {
        tracing::info!(target: "COMMAND", id = 23_435u64, parameterName = name, newValue = value, "Successfully set parameter to new value");
    }
    Ok(out)
}
