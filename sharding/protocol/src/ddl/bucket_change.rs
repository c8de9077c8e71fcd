//! The part of `_shardsvrCollMod` that changes the buckets of a sharded time series.
//!
//! By what a series says of its buckets routers find the shards of measurements and of times, and
//! shards start buckets: both have to go by the same. So the gates of all shards that own chunks
//! are closed from before the commit at the config servers until each of them has the new table and
//! the new options. The commit raises the version of every shard, so that routers which know the
//! former options are refused. Buckets only become longer: by the new length, earlier ones are
//! found too.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_query::TimeSeries;
use pinion_wire::idl::{FieldReader, Namespace, truthy};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{Action, AskedShards, flush};
use super::block::{BlockType, ParticipantBlock};
use super::change_request::ParticipantChange;
use super::documents::{CriticalSectionDocument, DdlId};
use super::operation::{ABORT, Phase, PhaseEnd};
use crate::config::SeriesChange;
use crate::documents::{CollectionDocument, ShardDocument};
use crate::series::{bucket_change, series_in};
use crate::shard_id::ShardId;

pub(super) const BLOCK: &str = "blockShards";
const COMMIT: &str = "updateConfig";
const UPDATE: &str = "updateShards";
pub(super) const UNBLOCK: &str = "unblockShards";

/// What it does after the checks.
pub(super) const PHASES: [Phase; 4] = [
    Phase {
        name: BLOCK,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: COMMIT,
        end: PhaseEnd::AbortsIfRefused,
    },
    Phase {
        name: UPDATE,
        end: PhaseEnd::Never,
    },
    Phase {
        name: UNBLOCK,
        end: PhaseEnd::Never,
    },
];

#[derive(Clone, Debug, PartialEq)]
pub(super) struct BucketChange {
    was: TimeSeries,
    to: TimeSeries,
    /// Shards without chunks, which may have the series all the same.
    rest: Vec<ShardId>,
}

/// The definition that it is a part of.
pub(super) struct OfDefinition<'a> {
    pub(super) id: &'a DdlId,
    pub(super) ns: &'a Namespace,
    pub(super) uuid: Uuid,
    pub(super) run: Uuid,
    pub(super) me: &'a ShardId,
    /// The other shards that own chunks.
    pub(super) others: &'a [ShardId],
}

impl OfDefinition<'_> {
    fn owners(&self) -> Vec<ShardId> {
        let mut all = self.others.to_vec();
        all.push(self.me.clone());
        all
    }

    fn close(&self) -> Action {
        Action::EnterSection(CriticalSectionDocument {
            namespace: self.ns.to_string(),
            reason: self.id.clone(),
            blocks_reads: true,
            coordinator: None,
            to: None,
            open: Vec::new(),
        })
    }

    fn open(&self) -> Action {
        Action::LeaveSection {
            namespace: self.ns.to_string(),
        }
    }

    fn block(&self, block: BlockType, phase: &str) -> Action {
        Action::BlockShards {
            shards: AskedShards::These(self.others.to_vec()),
            block: ParticipantBlock {
                ns: self.ns.clone(),
                to: None,
                block,
                reason: self.id.clone(),
                phase: phase.to_owned(),
            },
        }
    }
}

impl BucketChange {
    /// What a command changes of a collection's buckets; `None` where they are so already, or the
    /// collection has none.
    ///
    /// # Errors
    /// Those of a series that is not sharded.
    pub(super) fn decide(
        known: &CollectionDocument,
        shards: &[ShardDocument],
        command: &RawDocument,
    ) -> Result<Option<BucketChange>> {
        let is_dry = pinion_bson::get(command, "dryRun").is_some_and(truthy);
        let Some(was) = known.time_series.as_ref().filter(|_| !is_dry) else {
            return Ok(None);
        };
        let Some(change) = bucket_change(command)? else {
            return Ok(None);
        };
        let changed = was.changed(change);
        let changed = changed.map_err(|why| Error::new(ErrorCode::INVALID_OPTIONS, why))?;
        Ok(changed.map(|to| BucketChange {
            was: was.clone(),
            to,
            rest: shards.iter().map(|shard| shard.id.clone()).collect(),
        }))
    }

    /// Takes from the shards without chunks those that own some.
    pub(super) fn take_owners(&mut self, owners: &[ShardId], me: &ShardId) {
        self.rest
            .retain(|shard| shard != me && !owners.contains(shard));
    }

    pub(super) fn to(&self) -> &TimeSeries {
        &self.to
    }

    fn part(&self, of: &OfDefinition<'_>, phase: &str) -> RawDocumentBuf {
        let part = ParticipantChange {
            uuid: of.uuid,
            command: rawdoc! { "collMod": of.ns.collection() },
            series: Some(self.to.clone()),
            is_check: phase == BLOCK,
            reason: of.id.clone(),
            phase: phase.to_owned(),
            run: of.run,
            from: of.me.clone(),
        };
        part.to_command(of.ns)
    }

    fn commit(&self, of: &OfDefinition<'_>) -> Action {
        let change = SeriesChange {
            ns: of.ns.clone(),
            uuid: of.uuid,
            was: self.was.clone(),
            to: self.to.clone(),
            shards: of.owners(),
            reason: of.id.to_bson(),
            phase: COMMIT.to_owned(),
            run: of.run,
            from: of.me.clone(),
        };
        Action::Configure(change.to_command())
    }

    pub(super) fn action(&self, of: &OfDefinition<'_>, phase: &str, at: usize) -> Option<Action> {
        let these = AskedShards::These;
        Some(match (phase, at) {
            (BLOCK, 0) => of.close(),
            (BLOCK, 1) => of.block(BlockType::ReadsAndWrites, BLOCK),
            // Builds of indexes may have started meanwhile, which options do not change beside.
            (BLOCK, 2) => Action::GatherShards {
                shards: of.owners(),
                command: self.part(of, BLOCK),
            },
            (COMMIT, 0) => self.commit(of),
            (UPDATE, 0) => Action::InstallTable(of.ns.clone()),
            (UPDATE, 1) => Action::AskShards {
                shards: these(of.others.to_vec()),
                command: flush(of.ns),
            },
            (UPDATE, 2) => Action::AskShards {
                shards: these(of.owners()),
                command: self.part(of, UPDATE),
            },
            (UNBLOCK, 0) => of.block(BlockType::Unblock, UNBLOCK),
            (UNBLOCK, 1) => of.open(),
            (UNBLOCK, 2) if !self.rest.is_empty() => Action::GatherShards {
                shards: self.rest.clone(),
                command: self.part(of, UNBLOCK),
            },
            _ => return None,
        })
    }

    pub(super) fn undo(of: &OfDefinition<'_>, at: usize) -> Option<Action> {
        match at {
            0 => Some(of.block(BlockType::Unblock, ABORT)),
            1 => Some(of.open()),
            _ => None,
        }
    }

    pub(super) fn parse(reader: &FieldReader<'_, '_>) -> Result<Option<BucketChange>> {
        let (Some(was), Some(to)) = (series_in(reader, "was")?, series_in(reader, "to")?) else {
            return Ok(None);
        };
        let rest = pinion_bson::values(reader.array("rest")?);
        let rest = rest.filter_map(|shard| shard.as_str()).map(ShardId::new);
        Ok(Some(BucketChange {
            was,
            to,
            rest: rest.collect(),
        }))
    }

    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        out.append("was", &*self.was.to_document())
            .append("to", &*self.to.to_document())
            .start_array("rest");
        for shard in &self.rest {
            out.push(shard.as_str());
        }
        out.end();
    }
}

/// The command without what it says of buckets; `None` where it says nothing else.
pub(super) fn other_changes(command: &RawDocument) -> Option<RawDocumentBuf> {
    let mut out = DocBuilder::new();
    let mut count = 0;
    for (name, value) in pinion_bson::elements(command) {
        if name != "timeseries" {
            count += 1;
            out.append_raw(name, value);
        }
    }
    // The first field names the collection.
    (count > 1).then(|| out.finish())
}
