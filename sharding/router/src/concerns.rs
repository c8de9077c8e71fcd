//! The default read and write concern of the cluster, which the config servers keep and routers put
//! into commands that name none: shards have none of their own.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_runtime::{Queue, core_local, is_shutdown_requested, on_all_cores, sleep, spawn};
use pinion_service::session_ids::is_in;
use pinion_wire::idl::ReadConcernLevel;
use pinion_wire::{CommandClass, CommandRole, Invocation, ReadConcernSupport, Result};

use crate::clock::bson_time;
use crate::config_reads::find_all;
use crate::limits::{DEFAULTS_RELOAD_PAUSE, SHARDS_RETRY_PAUSE};

const SETTINGS: &str = "config.settings";
const STORED_AS: &str = "ReadWriteConcernDefaults";

/// What a core knows of them; both are absent while none was set.
#[derive(Clone, Debug, Default)]
pub(crate) struct DefaultConcerns {
    read: Option<RawDocumentBuf>,
    write: Option<RawDocumentBuf>,
}

/// One core's.
#[derive(Default)]
pub(crate) struct Defaults(RefCell<Rc<DefaultConcerns>>);

fn known() -> Rc<DefaultConcerns> {
    core_local::<Defaults>().0.borrow().clone()
}

/// Appends the concerns that a client's command lacks, where the cluster has any by default.
/// Statements of a transaction have those of the transaction.
pub(crate) fn append_defaults(out: &mut DocBuilder, cmd: &Invocation) {
    let known = known();
    let spec = cmd.command.spec;
    let is_in = is_in(&cmd.ctx);
    let chosen = chosen_snapshot(cmd);
    if let Some(at) = chosen {
        out.start_document("readConcern")
            .append("level", "snapshot")
            .append("atClusterTime", bson_time(at))
            .end();
    }
    // A transaction has its write concern where it ends, and its read concern where it starts.
    if cmd.ctx.client.is_trusted() || is_in && !spec.in_transaction.ends() {
        return;
    }
    if let Some(write) = &known.write
        && spec.supports_write_concern
        && cmd.ctx.args.write_concern.is_none()
    {
        out.append("writeConcern", &**write);
    }
    let reads = !is_in
        && spec.class == CommandClass::Read
        && spec.read_concern != ReadConcernSupport::Local
        && spec.role != CommandRole::GetMore
        && chosen.is_none();
    if let Some(read) = &known.read
        && reads
    {
        append_read(out, cmd, read);
    }
}

/// The time of a snapshot that this process has chosen, as the client names none.
fn chosen_snapshot(cmd: &Invocation) -> Option<Timestamp> {
    let named = cmd.ctx.args.read_concern.unwrap_or_default();
    let is_chosen = named.level == Some(ReadConcernLevel::Snapshot)
        && named.at_cluster_time.is_none()
        && !is_in(&cmd.ctx);
    cmd.ctx.read_concern.at_cluster_time.filter(|_| is_chosen)
}

fn append_read(out: &mut DocBuilder, cmd: &Invocation, default: &RawDocument) {
    let named = pinion_bson::get(cmd.body(), "readConcern").and_then(|named| named.as_document());
    if named.is_none_or(|named| pinion_bson::get(named, "level").is_none()) {
        out.append("readConcern", &*leveled(named, default));
    }
}

/// A read concern, of the default level where it names none, but a time.
fn leveled(named: Option<&RawDocument>, default: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    if let Some(named) = named {
        if pinion_bson::get(named, "level").is_some() {
            return named.to_owned();
        }
        out.append_all(named);
    }
    out.append_all(default);
    out.finish()
}

/// The read concern that a transaction starts with.
pub(crate) fn with_default_level(named: Option<&RawDocument>) -> Option<RawDocumentBuf> {
    match &known().read {
        Some(default) => Some(leveled(named, default)),
        None => named.map(RawDocument::to_owned),
    }
}

/// Reads them again, for all cores.
///
/// # Errors
/// The config servers do not answer.
pub(crate) async fn reload() -> Result<()> {
    let found = find_all(SETTINGS, rawdoc! { "_id": STORED_AS }, None).await?;
    let field = |name| match pinion_bson::get(found.first()?, name) {
        Some(RawBsonRef::Document(concern)) if pinion_bson::field_count(concern) > 0 => {
            Some(concern.to_owned())
        }
        _ => None,
    };
    let defaults = DefaultConcerns {
        read: field("defaultReadConcern"),
        write: field("defaultWriteConcern"),
    };
    on_all_cores(move |_| {
        let defaults = defaults.clone();
        async move {
            core_local::<Defaults>().0.replace(Rc::new(defaults));
        }
    })
    .await;
    Ok(())
}

/// Keeps them new while the process runs. Called once, on core 0.
pub fn keep_defaults() {
    spawn(Queue::Background, async {
        while !is_shutdown_requested() {
            let pause = match reload().await {
                Ok(()) => DEFAULTS_RELOAD_PAUSE,
                Err(error) => {
                    tracing::debug!(target: "SHARDING", id = 7_300_060u64, error = error.message, "The default concerns could not be read");
                    SHARDS_RETRY_PAUSE
                }
            };
            sleep(pause).await;
        }
    });
}
