//! The keys of the documents that a statement changes.

use pinion_query::Room;
use pinion_service::spill::memory;
use pinion_storage::Key;
use pinion_wire::{OpContext, Result};
use rustc_hash::FxHashSet;

use super::access::{Access, RangeAccess};
use super::core_part::ReadStream;
use super::part::Output;
use super::request::{Opened, ReadRequest, open};
use crate::acquire::{ReadSource, Renewal};
use crate::limits::TARGET_GROUP;
use crate::options::{PlantedFault, node_options};
use crate::parameters::parameters;

/// What a statement does with a document that its walk of an index comes to a second time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Again {
    /// There is nothing to fear of it: the document is gone, or there is one document only.
    Given,
    /// It was changed once, and is passed over.
    PassedOver,
}

/// The keys of documents to change.
pub(crate) struct Targets {
    stream: ReadStream,
    /// The names of the indexes that it reads.
    pub indexes: Vec<String>,
    once: Option<Once>,
}

/// Gives each document once. A walk of an index that continues in a newer state may come to one
/// again that was moved in front of it, by the statement or by another writer. The walk of the
/// collection, by `_id`, does not.
struct Once {
    given: FxHashSet<Key>,
    bytes: usize,
    room: Room,
    /// The read once more, for when there is no room for what was given: the rest is then looked
    /// for by `_id`.
    rest: Option<(ReadSource, ReadRequest)>,
}

impl Once {
    fn new(source: ReadSource, request: ReadRequest) -> Once {
        let memory = memory(Some(true));
        Once {
            given: FxHashSet::default(),
            bytes: 0,
            room: memory.room(memory.limits.sort),
            rest: Some((source, request)),
        }
    }

    fn admits(&mut self, key: &Key) -> bool {
        if node_options().planted_fault == PlantedFault::ChangedAgain {
            return true;
        }
        if self.rest.is_none() {
            return !self.given.contains(key);
        }
        if !self.given.insert(key.clone()) {
            return false;
        }
        let spilled = if key.spilled() { key.len() } else { 0 };
        self.bytes += size_of::<Key>() + spilled;
        self.room.set(self.bytes);
        true
    }
}

impl Targets {
    /// The next key.
    pub(crate) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Key>> {
        loop {
            let next = self.stream.next_wanted(ctx, target_group()).await?;
            let Some(key) = next.map(|bytes| Key::from_slice(&bytes)) else {
                return Ok(None);
            };
            let Some(once) = &mut self.once else {
                return Ok(Some(key));
            };
            if !once.admits(&key) {
                continue;
            }
            if once.room.is_full()?
                && let Some((source, request)) = once.rest.take()
            {
                self.continue_by_id(ctx, source, request).await?;
            }
            return Ok(Some(key));
        }
    }

    /// Looks for the other documents by `_id`.
    async fn continue_by_id(
        &mut self,
        ctx: &OpContext,
        source: ReadSource,
        mut request: ReadRequest,
    ) -> Result<()> {
        let everything = RangeAccess::everything(false);
        request.access = Some(Access::Collection(everything));
        let opened = Box::pin(open(ctx, source, request, target_group())).await?;
        self.stream = opened.stream;
        self.indexes = opened.indexes;
        Ok(())
    }
}

/// How many documents a statement looks up and changes at once: no more than those after which a
/// read takes a newer state.
pub(crate) fn target_group() -> usize {
    let (between, _) = parameters().borrow().read_yield();
    TARGET_GROUP.min(between as usize + 1)
}

/// Opens a read of keys.
pub(crate) async fn open_ids(
    ctx: &OpContext,
    source: ReadSource,
    mut request: ReadRequest,
    again: Again,
) -> Result<Targets> {
    request.output = Output::Ids;
    let wanted = request.limit.unwrap_or_else(target_group);
    let is_renewed = source.renewal(ctx) != Renewal::Never;
    let kept = (again == Again::PassedOver && is_renewed).then(|| request.clone());
    let Opened {
        stream, indexes, ..
    } = open(ctx, source, request, wanted).await?;
    let once = kept
        .filter(|_| !indexes.is_empty())
        .map(|request| Once::new(source, request));
    Ok(Targets {
        stream,
        indexes,
        once,
    })
}
