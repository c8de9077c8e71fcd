//! The keys that cluster times are signed with, where the nodes of the cluster have a key file:
//! those of the config servers. A router signs what it sends to clients, and verifies what they
//! send.
//!
//! Source: sharding document, "Key management".

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::rawdoc;
use pinion_clock::{
    AdvanceError, DEFAULT_MAX_DRIFT_SECS, Gossip, KeyRing, SignedTime, Timestamp, VerifyError,
    check_advance,
};
use pinion_runtime::sync::Notify;
use pinion_runtime::{
    Queue, is_shutdown_requested, now, on_all_cores, sleep, spawn, submit_to, timeout, wall_ms,
};
use pinion_service::interrupt::interruptible;
use pinion_service::key_document::KeyDocument;
use pinion_service::members::{member_access, requires_members};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::cluster::{ASKING_CORE, Cluster};
use crate::config_reads::find_all;
use crate::limits::{KEY_PATIENCE, KEY_PAUSE, KEYS_RELOAD_PAUSE};

const KEYS: &str = "admin.system.keys";

/// The keys that a core knows.
#[derive(Default)]
pub(crate) struct Keys {
    ring: RefCell<KeyRing>,
    looked: RefCell<LastLook>,
    /// The config servers were asked for them.
    replaced: Notify,
    /// On the core that asks: some core misses one.
    wanted: Notify,
}

/// What the last look at the keys of the config servers has brought.
#[derive(Clone, Default)]
enum LastLook {
    /// None has ended since the process began.
    #[default]
    UnderWay,
    /// Those that are known.
    Keys,
    /// The config servers could not be asked.
    Failed(Error),
}

impl LastLook {
    /// What a client is answered whose time has waited long enough for its key; `None` if it waits
    /// until a look ends.
    fn refusal(&self, claimed: &SignedTime) -> Option<Error> {
        match self {
            LastLook::UnderWay => None,
            LastLook::Failed(error) => Some(error.clone()),
            LastLook::Keys => {
                let (secs, inc) = (claimed.time.secs(), claimed.time.inc());
                Some(Error::new(
                    ErrorCode::KEY_NOT_FOUND,
                    format!(
                        "No keys found for HMAC that is valid for time: {{ ts: Timestamp({secs}, {inc}) }} with id: {}",
                        claimed.key_id.0
                    ),
                ))
            }
        }
    }
}

fn keys() -> Rc<Keys> {
    pinion_runtime::core_local()
}

/// The cluster time as it is sent to a client; `None` where it has to be signed and there is no
/// key.
pub(crate) fn signed(ctx: Option<&OpContext>, time: Timestamp) -> Option<SignedTime> {
    let is_trusted = ctx.is_some_and(|ctx| ctx.client.is_trusted());
    if is_trusted || member_access().is_none() {
        return Some(SignedTime::unsigned(time));
    }
    keys().ring.borrow().sign(time)
}

/// Takes in the cluster time that a client sent.
///
/// # Errors
/// `TimeProofMismatch` for one that no node has signed, `KeyNotFound` where its key does not come,
/// `ClusterTimeFailsRateLimiter` for one that is too far ahead of this machine's clock; the config
/// servers cannot be asked for the key.
pub(crate) async fn learn(ctx: &OpContext) -> Result<()> {
    let Some(claimed) = ctx.args.cluster_time else {
        return Ok(());
    };
    let clock = Cluster::here().clock.clone();
    if claimed.time <= clock.time().cluster() {
        return Ok(());
    }
    if !ctx.client.is_trusted() && requires_members() {
        if ctx.command.before_login {
            return Ok(());
        }
        verify(ctx, &claimed).await?;
    }
    let now_secs = (wall_ms() / 1000) as u32;
    check_advance(claimed.time, now_secs, DEFAULT_MAX_DRIFT_SECS).map_err(|error| {
        let code = match error {
            AdvanceError::TooFarAhead { .. } => ErrorCode::CLUSTER_TIME_FAILS_RATE_LIMITER,
            _ => ErrorCode(40_482),
        };
        Error::new(code, error.to_string())
    })?;
    clock.learn(Gossip {
        cluster: Some(claimed.time),
        ..Gossip::default()
    });
    Ok(())
}

async fn verify(ctx: &OpContext, claimed: &SignedTime) -> Result<()> {
    let patience = now() + KEY_PATIENCE;
    loop {
        let replaced = keys();
        let replaced = replaced.replaced.notified();
        let verified = keys().ring.borrow().verify(claimed);
        match verified {
            Ok(()) => return Ok(()),
            Err(error @ VerifyError::Mismatch) => {
                return Err(Error::new(
                    ErrorCode::TIME_PROOF_MISMATCH,
                    error.to_string(),
                ));
            }
            Err(VerifyError::UnknownKey(_)) => {}
        }
        let is_over = now() >= patience;
        if let Some(refusal) = keys().looked.borrow().refusal(claimed).filter(|_| is_over) {
            return Err(refusal);
        }
        submit_to(ASKING_CORE, Queue::Foreground, || async {
            keys().wanted.notify_all();
        })
        .await;
        // Whether it came or not, it is looked for again.
        let _ = interruptible(ctx, timeout(KEY_PAUSE, replaced)).await?;
    }
}

/// Keeps the keys new while the process runs, where it has a key file. Called once, on core 0.
pub fn keep_keys() {
    if member_access().is_none() {
        return;
    }
    spawn(Queue::Background, async {
        while !is_shutdown_requested() {
            let wanted = keys();
            let wanted = wanted.wanted.notified();
            let pause = match reload().await {
                Ok(0) => KEY_PAUSE,
                Ok(_) => KEYS_RELOAD_PAUSE,
                Err(error) => {
                    tracing::warn!(target: "SHARDING", id = 7_300_040u64, error = error.message, "The keys of cluster times could not be read");
                    looked(LastLook::Failed(error), None).await;
                    KEY_PAUSE
                }
            };
            let _ = timeout(pause, wanted).await;
            // Any number of cores that miss a key at once are one question.
            sleep(KEY_PAUSE).await;
        }
    });
}

/// Reads the keys that a majority of the config servers has. Gives how many there are.
async fn reload() -> Result<usize> {
    let documents = find_all(KEYS, rawdoc! {}, None).await?;
    let mut ring = KeyRing::new();
    for key in documents
        .iter()
        .filter_map(|document| KeyDocument::parse(document))
    {
        ring.insert(key.id, key.key, key.expires_at);
    }
    let found = ring.len();
    looked(LastLook::Keys, Some(ring)).await;
    Ok(found)
}

/// Gives every core what a look has brought, and has those that wait for a key look again.
async fn looked(look: LastLook, ring: Option<KeyRing>) {
    on_all_cores(move |_| {
        let (look, ring) = (look.clone(), ring.clone());
        async move {
            let keys = keys();
            keys.looked.replace(look);
            if let Some(ring) = ring {
                keys.ring.replace(ring);
            }
            keys.replaced.notify_all();
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_time_without_its_key_is_answered() {
        let claimed = SignedTime::unsigned(Timestamp::new(7, 3));
        let code = |look: LastLook| look.refusal(&claimed).map(|refusal| refusal.code);
        assert_eq!(code(LastLook::UnderWay), None);
        assert_eq!(code(LastLook::Keys), Some(ErrorCode::KEY_NOT_FOUND));
        let away = Error::new(ErrorCode::HOST_UNREACHABLE, "the config servers are away");
        let failed = LastLook::Failed(away);
        assert_eq!(code(failed), Some(ErrorCode::HOST_UNREACHABLE));
    }
}
