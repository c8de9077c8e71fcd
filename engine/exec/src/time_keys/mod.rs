//! The keys that cluster times are signed with, where members have a key file: clients pass on
//! times that members have signed, and cannot advance the set's time themselves.
//!
//! Source: sharding document, "SignedComponentFormat" and "Key management". The keys are documents
//! of `admin.system.keys`, which the primary makes and replication brings to all. A task of core 0
//! ([`keeper`]) reads them and gives them to every core. What is signed is checked with every key
//! that is there; a time is signed with those alone that a majority has, since a rollback would
//! take any other away.

mod keeper;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_clock::{KeyRing, SignedTime, Timestamp, VerifyError};
use pinion_runtime::sync::Notify;
use pinion_runtime::{Queue, now, sleep, spawn, timeout};
use pinion_service::interrupt::{check, interruptible};
use pinion_service::members::member_access;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::limits::{KEY_PATIENCE, KEY_PAUSE};

pub use keeper::{Keeper, start, stop, wake};

/// The keys that a core knows.
#[derive(Default)]
pub struct TimeKeys {
    /// All of them.
    known: RefCell<KeyRing>,
    /// Those that a majority has.
    lasting: RefCell<KeyRing>,
    /// Core 0 was asked for a missing key a moment ago.
    has_asked: Cell<bool>,
    /// There are others than before.
    replaced: Notify,
    pub(crate) keeper: Keeper,
}

/// What cluster times are signed with.
pub(crate) fn time_keys() -> Rc<TimeKeys> {
    pinion_runtime::core_local()
}

impl TimeKeys {
    fn replace_known(&self, ring: KeyRing) {
        self.known.replace(ring);
        self.replaced.notify_all();
    }

    fn replace_lasting(&self, ring: KeyRing) {
        self.lasting.replace(ring);
    }

    /// Has core 0 look for a key that is missing. Any number of such calls within a moment is one.
    fn ask(&self) {
        if self.has_asked.replace(true) {
            return;
        }
        drop(spawn(Queue::Background, async {
            wake().await;
            sleep(KEY_PAUSE).await;
            time_keys().has_asked.set(false);
        }));
    }
}

/// The cluster time as it is sent to a client: signed where the set has a key file, but for trusted
/// clients. `None` while there is no key.
pub(crate) fn signed(ctx: Option<&OpContext>, time: Timestamp) -> Option<SignedTime> {
    let is_trusted = ctx.is_some_and(|ctx| ctx.client.is_trusted());
    if is_trusted || member_access().is_none() {
        return Some(SignedTime::unsigned(time));
    }
    let signed = time_keys().lasting.borrow().sign(time);
    if signed.is_none() {
        time_keys().ask();
    }
    signed
}

/// Whether a time is one that a member has signed; `false` where its key is not known yet.
///
/// # Errors
/// `TimeProofMismatch`.
pub(crate) fn is_genuine(signed: &SignedTime) -> Result<bool> {
    match time_keys().known.borrow().verify(signed) {
        Ok(()) => Ok(true),
        Err(VerifyError::UnknownKey(_)) => Ok(false),
        Err(error @ VerifyError::Mismatch) => Err(Error::new(
            ErrorCode::TIME_PROOF_MISMATCH,
            error.to_string(),
        )),
    }
}

/// The same, of a time whose key this node does not know: another member may have made it a moment
/// ago.
///
/// # Errors
/// `KeyNotFound` when the key does not come, and `TimeProofMismatch`.
pub(crate) async fn wait_genuine(ctx: &OpContext, signed: &SignedTime) -> Result<()> {
    let patience = now() + KEY_PATIENCE;
    loop {
        let replaced = time_keys().replaced.notified();
        time_keys().ask();
        // The key may be on its way to this member, which is not reported.
        let _ = interruptible(ctx, timeout(KEY_PAUSE, replaced)).await?;
        check(ctx)?;
        if is_genuine(signed)? {
            return Ok(());
        }
        if now() >= patience {
            let (secs, inc) = (signed.time.secs(), signed.time.inc());
            return Err(Error::new(
                ErrorCode::KEY_NOT_FOUND,
                format!(
                    "No keys found for HMAC that is valid for time: {{ ts: Timestamp({secs}, {inc}) }} with id: {}",
                    signed.key_id.0
                ),
            ));
        }
    }
}
