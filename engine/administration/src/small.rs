//! `listCommands`, and what tools ask for and a standalone has little to say to.

use pinion_bson::RawBsonRef;
use pinion_service::node_info::node_info;
use pinion_wire::idl::{CommandReader, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, Registry, Reply, Result};

/// `listCommands`.
pub(crate) async fn list_commands(_: Invocation) -> Result<Reply> {
    // Nothing is read of it, and MongoDB passes over fields that it does not know.
    let mut out = Reply::new();
    out.start_document("commands");
    if let Some(registry) = pinion_runtime::try_core_local::<Registry>() {
        let mut specs: Vec<_> = registry.iter().map(|command| command.spec).collect();
        specs.sort_by_key(|spec| spec.name);
        for spec in specs {
            out.start_document(spec.name)
                .append("help", spec.help)
                .append("requiresAuth", false)
                .append("secondaryOk", !spec.is_write())
                .append("adminOnly", spec.admin_only);
            out.start_array("apiVersions");
            if spec.in_api_v1 {
                out.push("1");
            }
            out.end().start_array("deprecatedApiVersions").end().end();
        }
    }
    out.end();
    Ok(out)
}

/// `features`.
pub(crate) async fn features(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["features", "oidReset"]);
    reader.finish()?;
    let mut out = Reply::new();
    out.append("oidMachine", node_info().options.pid as i32);
    Ok(out)
}

/// `mapReduce`, which needs a JavaScript engine: there is none that could be kept to its time.
pub(crate) async fn map_reduce(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.namespace(cmd.message.command_name(), cmd.db())?;
    for function in ["map", "reduce", "finalize"] {
        check_function(&reader, function)?;
    }
    if let Some(out) = reader.value("out")
        && !matches!(out, RawBsonRef::String(_) | RawBsonRef::Document(_))
    {
        return Err(Error::bad_value(
            "'out' must be either a string or an object",
        ));
    }
    for object in ["query", "sort", "scope", "collation"] {
        reader.opt_doc(object)?;
    }
    reader.opt_i64("limit")?;
    for flag in ["verbose", "bypassDocumentValidation"] {
        reader.opt_safe_bool(flag)?;
    }
    reader.ignore(&["jsMode"]);
    reader.finish()?;
    for required in ["map", "reduce", "out"] {
        if !reader.has(required) {
            return Err(missing_field(reader.path().field(required)));
        }
    }
    Err(Error::new(
        ErrorCode(31264),
        "Cannot run server-side javascript without the javascript engine enabled: mapReduce is not supported",
    ))
}

/// A function is code, or its text; that of `finalize` may be null.
fn check_function(reader: &CommandReader<'_>, name: &str) -> Result<()> {
    match reader.value(name) {
        None
        | Some(
            RawBsonRef::String(_)
            | RawBsonRef::JavaScriptCode(_)
            | RawBsonRef::JavaScriptCodeWithScope(_),
        ) => Ok(()),
        Some(RawBsonRef::Null) if name == "finalize" => Ok(()),
        Some(_) => Err(Error::bad_value(format!(
            "'{name}' must be of string or code type"
        ))),
    }
}
