//! Which session an operation is of.

use pinion_runtime::{CoreId, core_count};
use pinion_wire::OpContext;
use pinion_wire::idl::Lsid;
use pinion_wire::idl::NO_USER;

/// The session as its home knows it.
pub fn at_home(lsid: &Lsid) -> Lsid {
    Lsid {
        uid: Some(lsid.uid.unwrap_or(NO_USER)),
        ..*lsid
    }
}

/// Whether what is done in `of` is done in `session`, or in a child of it.
pub fn is_of_session(of: &Lsid, session: &Lsid) -> bool {
    let (of, session) = (at_home(of), at_home(session));
    of == session || of.parent() == session
}

/// Whether an operation is a statement of a transaction, or its end.
pub fn is_in(ctx: &OpContext) -> bool {
    ctx.args.autocommit == Some(false)
}

/// The core at which a session is known, and its children.
pub fn home_of(lsid: &Lsid) -> CoreId {
    // Drivers make random names.
    let random = u64::from_le_bytes(lsid.id[..8].try_into().expect("8 bytes"));
    CoreId((random % core_count() as u64) as u16)
}
