//! `getParameter` and `setParameter`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, elements};
use pinion_exec::fail_points::{self, FailPoint};
use pinion_exec::parameters::{
    FAIL_POINT_PREFIX, Parameters, Setting, is_known, names, parameter_changes, parameters,
    test_commands_enabled, unreadable,
};
use pinion_wire::idl::{FieldReader, Path, is_generic_argument};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

/// `getParameter`.
pub(crate) async fn get_parameter(cmd: Invocation) -> Result<Reply> {
    let body = cmd.body();
    let mut out = Reply::new();
    let asked = match pinion_bson::get(body, "getParameter") {
        Some(RawBsonRef::String("*")) => Asked {
            all: true,
            ..Asked::default()
        },
        Some(RawBsonRef::Document(options)) => Asked::read(options)?,
        _ => Asked::default(),
    };
    let found = append_parameters(body, asked, &mut out);
    if found + append_fail_points(body, asked.all, &mut out).await == 0 {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "no option found to get",
        ));
    }
    Ok(out)
}

/// When a parameter can be set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetAt {
    Startup,
    Runtime,
}

/// What `getParameter` is asked for, beside names.
#[derive(Clone, Copy, Default)]
struct Asked {
    all: bool,
    details: bool,
    set_at: Option<SetAt>,
}

impl Asked {
    fn read(options: &RawDocument) -> Result<Asked> {
        let reader = FieldReader::object(Path::root("getParameter"), options)?;
        let asked = Asked {
            all: reader.opt_safe_bool("allParameters")?.unwrap_or(false),
            details: reader.opt_safe_bool("showDetails")?.unwrap_or(false),
            set_at: reader.opt_one_of(
                "setAt",
                &[("startup", SetAt::Startup), ("runtime", SetAt::Runtime)],
            )?,
        };
        reader.finish()?;
        Ok(asked)
    }

    /// Whether a parameter can be set when it is asked for.
    fn takes(self, name: &str) -> bool {
        let (runtime, startup) = Parameters::settable(name);
        match self.set_at {
            None => true,
            Some(SetAt::Startup) => startup,
            Some(SetAt::Runtime) => runtime,
        }
    }
}

/// Appends the parameters that are asked for, and returns how many.
fn append_parameters(body: &RawDocument, asked: Asked, out: &mut DocBuilder) -> usize {
    let parameters = parameters();
    let parameters = parameters.borrow();
    let mut found = 0;
    let mut append = |name: &str| {
        if !asked.takes(name) {
            return;
        }
        if asked.details && is_known(name) {
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
    if asked.all {
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

/// Appends the fail points that the client asks for, where there are any; returns their number.
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

/// Sets the parameters given at the start (`--setParameter name=value`) on this core.
///
/// # Errors
/// One line that names a parameter that does not exist, cannot be set at start, or has a wrong
/// value.
pub fn set_start_parameters(given: &[(String, String)]) -> std::result::Result<(), String> {
    for (name, text) in given {
        if let Some(point) = name.strip_prefix(FAIL_POINT_PREFIX) {
            let enables = |(name, text): &(String, String)| {
                name == "enableTestCommands" && matches!(text.as_str(), "1" | "true")
            };
            if !given.iter().any(enables) {
                return Err(format!(
                    "--setParameter {name} is refused: fail points need enableTestCommands"
                ));
            }
            fail_points::set_at_start(point, text)
                .map_err(|error| format!("--setParameter {name}={text}: {}", error.message))?;
            continue;
        }
        if !Parameters::settable(name).1 {
            return Err(format!(
                "--setParameter {name}={text} is not supported: unknown parameter, or it cannot be set"
            ));
        }
        let takes_fraction = Parameters::takes_fraction(name);
        let fraction = || match takes_fraction {
            true => text.parse::<f64>().ok(),
            false => None,
        };
        let is_flag = parameters().borrow().is_flag(name);
        let value = match (text.as_str(), text.parse::<i64>()) {
            ("true", _) if is_flag => RawBsonRef::Boolean(true),
            ("false", _) if is_flag => RawBsonRef::Boolean(false),
            (_, Ok(number)) => RawBsonRef::Int64(number),
            (text, Err(_)) => fraction().map_or(RawBsonRef::String(text), RawBsonRef::Double),
        };
        // A command may set a flag to any value; a text is none.
        let setting = match (is_flag, value) {
            (true, RawBsonRef::String(_)) => Err(unreadable(name, value)),
            _ => Parameters::parse(name, value),
        };
        let setting =
            setting.map_err(|error| format!("--setParameter {name}={text}: {}", error.message))?;
        apply(&setting);
    }
    Ok(())
}

/// Sets a parameter on this core, and wakes the tasks that wait for the time that it names.
fn apply(setting: &Setting) {
    parameters().borrow_mut().set(setting);
    parameter_changes().0.notify_all();
    if let Setting::Replication(_) = setting {
        pinion_exec::session_refresh::parameters_changed();
    }
}

/// `setParameter`: several parameters are checked first and set together, on every core.
pub(crate) async fn set_parameter(cmd: Invocation) -> Result<Reply> {
    let body = cmd.body();
    let mut out = Reply::new();
    let (mut settings, mut changed) = (Vec::new(), Vec::new());
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
            parameters().borrow().append_as(name, "was", &mut out);
        }
        changed.push((name.to_owned(), pinion_query::value_text(value)));
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
        async move { settings.iter().for_each(apply) }
    })
    .await;
    for (name, value) in changed {
        tracing::info!(target: "COMMAND", id = 23_435u64, parameterName = name, newValue = value, "Successfully set parameter to new value");
    }
    Ok(out)
}
