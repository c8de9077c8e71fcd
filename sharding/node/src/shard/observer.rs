//! Writes of a shard's identity by any client: what may be written, and that it takes effect.

use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, get};
use pinion_catalog::{Observers, OpEvent, OpKind, OpObserver};
use pinion_runtime::{CoreId, Queue, now, sleep, spawn, submit_to};
use pinion_sharding_protocol::ConnectionString;
use pinion_sharding_protocol::documents::{IDENTITY, ShardIdentityDocument};
use pinion_wire::{Error, ErrorCode, Result};

use super::identity::{check_same, reload};
use crate::limits::{IDENTITY_PATIENCE, IDENTITY_PAUSE};
use crate::part::{Membership, part};

const DELETED: ErrorCode = ErrorCode(40_070);

struct IdentityObserver;

/// Has the writes of this core seen. Called once on each core of a shard.
pub(crate) fn observe() {
    let mut observers = Observers::clone(&pinion_runtime::core_local::<Observers>());
    observers.register(Rc::new(IdentityObserver));
    pinion_runtime::set_core_local(Rc::new(observers));
}

impl OpObserver for IdentityObserver {
    fn on_op(&self, event: &OpEvent<'_>) -> Result<()> {
        if event.ns != IDENTITY {
            return Ok(());
        }
        let id = get(event.o2.unwrap_or(event.o), "_id");
        if id != Some(RawBsonRef::String(ShardIdentityDocument::ID)) {
            return Ok(());
        }
        let known = part().membership();
        check_write(known.as_deref(), event.kind, event.o)?;
        drop(spawn(Queue::Background, take_effect()));
        Ok(())
    }
}

/// Refuses to remove the identity, to make it another one, and to write one that is none.
fn check_write(known: Option<&Membership>, kind: OpKind, o: &RawDocument) -> Result<()> {
    let diff = match get(o, "diff") {
        Some(RawBsonRef::Document(diff)) if kind == OpKind::Update => Some(diff),
        _ => None,
    };
    match kind {
        OpKind::Delete => Err(Error::new(
            DELETED,
            "cannot delete shardIdentity document while in --shardsvr mode",
        )),
        OpKind::Insert | OpKind::Update => match diff {
            Some(diff) => check_diff(known, diff),
            None => {
                let new = Membership::of(ShardIdentityDocument::parse(o)?)?;
                known.map_or(Ok(()), |known| check_same(known, &new))
            }
        },
        OpKind::Command | OpKind::Noop => Ok(()),
    }
}

/// What a diff makes of the fields of an identity. One that nothing is known of may be in the form
/// of another version, and is read when it is there.
fn check_diff(known: Option<&Membership>, diff: &RawDocument) -> Result<()> {
    let Some(known) = known else {
        return Ok(());
    };
    let mut new = Membership {
        document: known.document.clone(),
        config_servers: known.config_servers.clone(),
    };
    let changed = |section| match get(diff, section) {
        Some(RawBsonRef::Document(fields)) => Some(fields),
        _ => None,
    };
    if let Some(removed) = changed("d")
        && let Some((name, _)) = pinion_bson::elements(removed).find(|(name, _)| is_required(name))
    {
        return Err(Error::bad_value(format!(
            "a shardIdentity document cannot do without {name}"
        )));
    }
    for fields in ["u", "i"].into_iter().filter_map(changed) {
        for (name, value) in pinion_bson::elements(fields) {
            match (name, value) {
                ("shardName", RawBsonRef::String(name)) => new.document.shard = name.into(),
                ("clusterId", RawBsonRef::ObjectId(id)) => new.document.cluster = id,
                ("configsvrConnectionString", RawBsonRef::String(text)) => {
                    new.config_servers = ConnectionString::parse(text)?;
                }
                (name, value) if is_required(name) => {
                    return Err(Error::type_mismatch(format!(
                        "BSON field 'shardIdentity.{name}' is the wrong type '{}'",
                        pinion_bson::type_name(value.element_type())
                    )));
                }
                _ => {}
            }
        }
    }
    check_same(known, &new)
}

fn is_required(name: &str) -> bool {
    matches!(
        name,
        "shardName" | "clusterId" | "configsvrConnectionString"
    )
}

/// Has the node use an identity that is being written: it can be read once the write is applied,
/// which it may never be.
async fn take_effect() {
    submit_to(CoreId(0), Queue::Background, || async {
        let before = part().membership();
        let end = now() + IDENTITY_PATIENCE;
        while now() < end && !part().core_0.is_stopping() {
            reload().await;
            if part().membership() != before {
                return;
            }
            sleep(IDENTITY_PAUSE).await;
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use pinion_bson::{ObjectId, RawDocumentBuf, rawdoc};

    use super::*;

    #[test]
    fn writes() {
        let full = rawdoc! {
            "_id": "shardIdentity", "shardName": "s1", "clusterId": ObjectId::from_bytes([1; 12]),
            "configsvrConnectionString": "cfg/a:1",
        };
        let known = Membership::of(ShardIdentityDocument::parse(&full).expect("one"));
        let known = known.expect("one");
        let check = |known: Option<&Membership>, kind, o: &RawDocument, code: i32| {
            let found = check_write(known, kind, o).map_or_else(|error| error.code.0, |()| 0);
            assert_eq!(found, code, "{o:?}");
        };
        check(None, OpKind::Insert, &full, 0);
        check(
            None,
            OpKind::Insert,
            &rawdoc! { "_id": "shardIdentity" },
            40_414,
        );
        check(
            Some(&known),
            OpKind::Delete,
            &rawdoc! { "_id": "shardIdentity" },
            40_070,
        );
        let diff = |fields| rawdoc! { "$v": 2, "diff": { "u": fields } };
        let update = |o: RawDocumentBuf, code| check(Some(&known), OpKind::Update, &o, code);
        update(diff(rawdoc! { "shardName": "s2" }), 40_371);
        update(
            diff(rawdoc! { "clusterId": ObjectId::from_bytes([2; 12]) }),
            40_372,
        );
        update(diff(rawdoc! { "clusterId": 1 }), 14);
        update(
            diff(rawdoc! { "configsvrConnectionString": "x/a:1" }),
            40_374,
        );
        update(diff(rawdoc! { "configsvrConnectionString": "cfg/b:1" }), 0);
        update(diff(rawdoc! { "more": 1 }), 0);
        update(
            rawdoc! { "$v": 2, "diff": { "d": { "shardName": false } } },
            2,
        );
        let other = rawdoc! {
            "_id": "shardIdentity", "shardName": "s2", "clusterId": ObjectId::from_bytes([1; 12]),
            "configsvrConnectionString": "cfg/a:1",
        };
        update(other, 40_371);
    }
}
