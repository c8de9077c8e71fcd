//! Which clients may name the session of an internal transaction.

use pinion_service::members::requires_members;
use pinion_service::session_ids::is_in;
use pinion_wire::{Error, ErrorCode, Invocation, Result};

/// Refuses the session of an internal transaction if the client is no server, and outside of a
/// transaction. Where members do not authenticate any client may be one.
///
/// # Errors
/// `InvalidOptions`.
pub(crate) fn check_child(cmd: &Invocation) -> Result<()> {
    let args = &cmd.ctx.args;
    if args.lsid.is_none_or(|lsid| lsid.child.is_none()) {
        return Ok(());
    }
    let refuse = |what: &str| Err(Error::new(ErrorCode::INVALID_OPTIONS, what));
    if requires_members() && !cmd.ctx.client.is_trusted() {
        return refuse("Internal sessions are only allowed for internal clients");
    }
    pinion_catalog::check_v44_can_follow(true, "the session of an internal transaction")?;
    if args.txn_number.is_none() || !is_in(&cmd.ctx) {
        return refuse("Internal sessions are not supported outside of transactions");
    }
    Ok(())
}
