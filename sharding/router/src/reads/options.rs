//! What a router looks at in the commands that read: all else is the shards' to judge.

use std::sync::Arc;

use pinion_bson::RawDocument;
use pinion_clock::Timestamp;
use pinion_query::{Matcher, Variables, parse_collation};
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{RoutingTable, TargetedShards};
use pinion_wire::idl::{CommandReader, FieldReader, Namespace, ReadConcernLevel};
use pinion_wire::{Category, Error, ErrorCode, Invocation, Result};

use crate::cluster::Cluster;
use crate::dispatch::pause_before_retry;
use crate::limits::MAX_STALE_RETRIES;
use crate::transactions;

/// The collation of a command: its own, or that of the collection.
#[derive(Clone, Copy)]
pub(crate) struct CollationOption<'d>(Option<&'d RawDocument>);

impl<'d> CollationOption<'d> {
    /// Reads the option. An empty document asks for nothing.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub(crate) fn read(reader: &FieldReader<'d, '_>) -> Result<CollationOption<'d>> {
        let own = reader.opt_doc("collation")?;
        Ok(CollationOption(own.filter(|spec| !spec.is_empty())))
    }

    /// The same, with that of a collection which has no table.
    pub(super) fn or(self, default: Option<&'d RawDocument>) -> CollationOption<'d> {
        CollationOption(self.0.or(default))
    }

    /// The document that the command itself has.
    pub(crate) fn named(self) -> Option<&'d RawDocument> {
        self.0
    }

    /// The document that counts; without one strings compare by their bytes.
    pub(crate) fn spec<'t>(self, table: Option<&'t RoutingTable>) -> Option<&'t RawDocument>
    where
        'd: 't,
    {
        match self.0 {
            Some(own) => Some(own),
            None => table.and_then(|table| table.default_collation.as_deref()),
        }
    }

    /// The variables with this collation.
    ///
    /// # Errors
    /// The document is no collation.
    pub(crate) fn variables(
        self,
        variables: &Variables,
        table: Option<&RoutingTable>,
    ) -> Result<Variables> {
        let collation = match self.spec(table) {
            Some(spec) => parse_collation(spec)?,
            None => None,
        };
        Ok(Variables {
            collation,
            ..variables.clone()
        })
    }
}

/// The namespace that a command names in its first field.
///
/// # Errors
/// `InvalidNamespace`; it is no string.
pub(super) fn namespace(cmd: &Invocation, name: &str) -> Result<Namespace> {
    CommandReader::new(name, cmd.body())?.sought(name, cmd.db())
}

/// The time of the snapshot that a read asks for.
pub(crate) fn snapshot_time(cmd: &Invocation) -> Option<Timestamp> {
    if is_in(&cmd.ctx) {
        return transactions::snapshot_of(cmd);
    }
    cmd.ctx.read_concern.at_cluster_time
}

/// Runs a read which asks for a snapshot and names no time at one that this process chooses: all
/// shards read the same. Where that is too early for what is read, the process has heard of a later
/// one by then.
///
/// # Errors
/// Those of the read.
pub(super) async fn at_snapshot<T>(
    cmd: &Invocation,
    read: impl AsyncFn(&Invocation) -> Result<T>,
) -> Result<T> {
    for attempt in 0.. {
        let chosen = with_snapshot(cmd);
        let concern = |cmd: &Invocation| cmd.ctx.read_concern.at_cluster_time;
        let is_chosen = concern(&chosen) != concern(cmd);
        match read(&chosen).await {
            Err(error)
                if is_chosen && error.is(Category::SNAPSHOT) && attempt < MAX_STALE_RETRIES =>
            {
                pause_before_retry(cmd, attempt).await?;
            }
            outcome => return outcome,
        }
    }
    unreachable!("it returns at the last attempt")
}

/// A read that asks for a snapshot, with a time of this process's choice where it names none.
pub(super) fn with_snapshot(cmd: &Invocation) -> Invocation {
    let mut cmd = cmd.clone();
    let concern = cmd.ctx.args.read_concern.unwrap_or_default();
    let is_snapshot = concern.level == Some(ReadConcernLevel::Snapshot);
    if is_snapshot && concern.at_cluster_time.is_none() && !is_in(&cmd.ctx) {
        let known = Cluster::here().clock.time().cluster();
        let at = concern
            .after_cluster_time
            .map_or(known, |after| known.max(after));
        cmd.ctx.read_concern.at_cluster_time = Some(at).filter(|at| !at.is_null());
    }
    cmd
}

/// The shards of a filter.
///
/// # Errors
/// Those of [`RoutingTable::target`].
pub(super) fn shards_of(
    cmd: &Invocation,
    table: &RoutingTable,
    matcher: &Matcher,
) -> Result<TargetedShards> {
    let targeted = table.target(matcher, snapshot_time(cmd))?;
    if targeted.shards.len() > 1 {
        check_several(cmd, table)?;
    }
    Ok(targeted)
}

/// Refuses what cannot be merged from several shards.
fn check_several(cmd: &Invocation, table: &RoutingTable) -> Result<()> {
    let ns = &table.ns;
    let level = cmd.ctx.args.read_concern.and_then(|concern| concern.level);
    let is_snapshot = level == Some(ReadConcernLevel::Snapshot);
    if is_snapshot && snapshot_time(cmd).is_none() {
        return Err(unsupported(
            cmd,
            ns,
            "read concern snapshot without atClusterTime",
        ));
    }
    Ok(())
}

/// The error for what is not done over several shards.
pub(super) fn unsupported(cmd: &Invocation, ns: &Namespace, what: &str) -> Error {
    Error::new(
        ErrorCode::COMMAND_NOT_SUPPORTED,
        format!(
            "{what} in {} on several shards of the sharded collection {ns} is not supported",
            cmd.name()
        ),
    )
}

/// A filter of a command.
///
/// # Errors
/// Those of the parser.
pub(crate) fn parse_filter(filter: Option<&RawDocument>, vars: &Variables) -> Result<Arc<Matcher>> {
    let empty = pinion_bson::RawDocumentBuf::new();
    Matcher::parse_query(filter.unwrap_or(&empty), vars).map(Arc::new)
}
