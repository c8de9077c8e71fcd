//! `getParameter` and `setParameter`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, elements};
use pinion_wire::idl::{FieldReader, Path, is_generic_argument};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::fail_points::{self, FailPoint};
use crate::parameters::{
    ParameterRegistry, Row, SetAt, Setting, parameter_registry, test_commands_enabled, unreadable,
};

/// What stands before the name of a fail point where it is a parameter.
const FAIL_POINT_PREFIX: &str = "failpoint.";

/// `getParameter`.
pub async fn get_parameter(cmd: Invocation) -> Result<Reply> {
    let body = cmd.body();
    let mut out = Reply::new();
    let asked = match pinion_bson::get(body, "getParameter") {
        Some(RawBsonRef::String("*")) => ParameterRequest {
            all: true,
            ..ParameterRequest::default()
        },
        Some(RawBsonRef::Document(options)) => ParameterRequest::read(options)?,
        _ => ParameterRequest::default(),
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

/// When a parameter is to be settable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Startup,
    Runtime,
}

/// What `getParameter` is asked for, beside names.
#[derive(Clone, Copy, Default)]
struct ParameterRequest {
    all: bool,
    details: bool,
    set_at: Option<When>,
}

impl ParameterRequest {
    fn read(options: &RawDocument) -> Result<ParameterRequest> {
        let reader = FieldReader::object(Path::root("getParameter"), options)?;
        let asked = ParameterRequest {
            all: reader.opt_safe_bool("allParameters")?.unwrap_or(false),
            details: reader.opt_safe_bool("showDetails")?.unwrap_or(false),
            set_at: reader.opt_one_of(
                "setAt",
                &[("startup", When::Startup), ("runtime", When::Runtime)],
            )?,
        };
        reader.finish()?;
        Ok(asked)
    }

    /// Whether a parameter can be set when it is asked for.
    fn takes(self, set_at: SetAt) -> bool {
        match self.set_at {
            None => true,
            Some(When::Startup) => set_at.startup(),
            Some(When::Runtime) => set_at.runtime(),
        }
    }
}

/// Appends the parameters that are asked for, and returns how many.
fn append_parameters(body: &RawDocument, asked: ParameterRequest, out: &mut DocBuilder) -> usize {
    let registry = parameter_registry();
    let mut found = 0;
    let mut append = |row: &Row| {
        if !asked.takes(row.set_at) {
            return;
        }
        if asked.details {
            out.start_document(row.name);
            row.append_as("value", out);
            out.append("settableAtRuntime", row.set_at.runtime())
                .append("settableAtStartup", row.set_at.startup())
                .end();
        } else {
            row.append_as(row.name, out);
        }
        found += 1;
    };
    if asked.all {
        registry.rows().for_each(append);
    } else {
        let named = elements(body).skip(1).map(|(name, _)| name);
        named
            .filter(|name| !is_generic_argument(name))
            .filter_map(|name| registry.find(name))
            .for_each(&mut append);
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
    let registry = parameter_registry();
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
        set_start_parameter(&registry, name, text)
            .map_err(|why| format!("--setParameter {name}={text}{why}"))?;
    }
    Ok(())
}

/// Sets a parameter of the command line on this core.
fn set_start_parameter(
    registry: &ParameterRegistry,
    name: &str,
    text: &str,
) -> std::result::Result<(), String> {
    let row = registry.find(name).filter(|row| row.set_at.startup());
    let row = row.ok_or(" is not supported: unknown parameter, or it cannot be set")?;
    let fraction = || match row.takes_fraction {
        true => text.parse::<f64>().ok(),
        false => None,
    };
    let is_flag = row.is_flag();
    let value = match (text, text.parse::<i64>()) {
        ("true", _) if is_flag => RawBsonRef::Boolean(true),
        ("false", _) if is_flag => RawBsonRef::Boolean(false),
        (_, Ok(number)) => RawBsonRef::Int64(number),
        (text, Err(_)) => fraction().map_or(RawBsonRef::String(text), RawBsonRef::Double),
    };
    // A command may set a flag to any value; a text is none.
    let setting = match (is_flag, value) {
        (true, RawBsonRef::String(_)) => Err(unreadable(name, value)),
        _ => (row.parse)(name, value),
    };
    let setting = setting.map_err(|error| format!(": {}", error.message))?;
    setting.apply();
    Ok(())
}

/// `setParameter`: several parameters are checked first and set together, on every core.
pub async fn set_parameter(cmd: Invocation) -> Result<Reply> {
    let body = cmd.body();
    let registry = parameter_registry();
    let mut out = Reply::new();
    let (mut settings, mut changed) = (Vec::new(), Vec::new());
    for (name, value) in elements(body).skip(1) {
        if is_generic_argument(name) {
            continue;
        }
        let row = registry.find(name);
        let is_known = row.is_some() || is_fail_point(name);
        if is_known && !row.is_some_and(|row| row.set_at.runtime()) {
            return Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                format!("not allowed to change [{name}] at runtime"),
            ));
        }
        let setting = registry.parse(name, value)?;
        if settings.is_empty()
            && let Some(row) = row
        {
            row.append_as("was", &mut out);
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
        async move { settings.iter().for_each(Setting::apply) }
    })
    .await;
    for (name, value) in changed {
        tracing::info!(target: "COMMAND", id = 23_435u64, parameterName = name, newValue = value, "Successfully set parameter to new value");
    }
    Ok(out)
}
