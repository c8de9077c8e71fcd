//! `mapReduce`, which is refused by name.

use pinion_bson::RawBsonRef;
use pinion_wire::idl::{CommandReader, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

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
