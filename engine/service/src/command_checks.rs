//! What is wrong with a command as it stands, wherever it is executed.

use pinion_bson::RawBsonRef;
use pinion_wire::idl::{Types, i64_clamped, is_number, missing_field};
use pinion_wire::limits::MAX_WRITE_BATCH;
use pinion_wire::{Documents, Error, ErrorCode, InTransaction, Invocation, Result};

use crate::session_ids::is_in;

/// `dropDatabase`, whose value is 1.
///
/// # Errors
/// `TypeMismatch`, 5255100 for another number, unknown fields.
pub fn check_drop_database(cmd: &Invocation) -> Result<()> {
    let reader = cmd.reader()?;
    match reader.value("dropDatabase") {
        Some(value) if is_number(value) && i64_clamped(value) == Some(1) => {}
        Some(value) if is_number(value) => {
            return Err(Error::new(
                ErrorCode(5255100),
                "Have to pass 1 as 'dropDatabase' parameter",
            ));
        }
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => {
            return Err(missing_field(reader.path().field("dropDatabase")));
        }
        Some(value) => return Err(reader.wrong_type("dropDatabase", value, Types::NUMBER)),
    }
    reader.finish()
}

/// Refuses a batch without statements or with too many.
pub fn check_batch_size(documents: &Documents) -> Result<()> {
    if documents.is_empty() || documents.len() > MAX_WRITE_BATCH {
        return Err(Error::new(
            ErrorCode::INVALID_LENGTH,
            format!(
                "Write batch sizes must be between 1 and {MAX_WRITE_BATCH}. Got {} operations.",
                documents.len()
            ),
        ));
    }
    Ok(())
}

/// The fields of a command that ends a transaction.
///
/// # Errors
/// Those of the fields.
pub fn check_end_fields(cmd: &Invocation) -> Result<()> {
    let reader = cmd.reader()?;
    // The command's own value has no meaning, and a router's token none on a member.
    reader.ignore(&[cmd.message.command_name()]);
    reader.opt_doc("recoveryToken")?;
    if cmd.command.spec.in_transaction == InTransaction::Commit {
        reader.opt_timestamp("commitTimestamp")?;
    }
    reader.finish()
}

/// A command that ends a transaction is sent in one.
///
/// # Errors
/// `CommandFailed`.
pub fn check_has_transaction(cmd: &Invocation) -> Result<()> {
    match is_in(&cmd.ctx) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::COMMAND_FAILED,
            format!("{} must be run within a transaction", cmd.name()),
        )),
    }
}

/// A transaction number outside of a transaction is that of a command that is retried.
///
/// # Errors
/// 50768.
pub fn check_retryable(cmd: &Invocation) -> Result<()> {
    let spec = cmd.command.spec;
    if spec.is_retryable {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode(50768),
        format!(
            "txnNumber may only be provided for multi-document transactions and retryable write commands. \
             autocommit:false was not provided, and {} is not a retryable write command.",
            spec.name
        ),
    ))
}
