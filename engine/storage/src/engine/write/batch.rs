//! Cutting statements into what each partition and each core has to do.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::execute::Statement;
use crate::engine::options::PlantedFault;
use crate::engine::storage::Storage;
use crate::limits::{MAX_ENTRY_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::partition::{Partition, Prepared, UnitId};
use crate::types::{Expect, PartitionId, ReadError, Write, WriteError};

/// The writes of one statement to one partition. They stay where the statement has them if they are
/// all it has.
pub(in crate::engine) struct Part<'a> {
    pub(in crate::engine) partition: PartitionId,
    pub(in crate::engine) writes: Cow<'a, [Write]>,
    /// The position of each write in its statement; the writes are the whole statement when absent.
    positions: Option<Vec<usize>>,
}

impl Part<'_> {
    /// The part with writes of its own, to be sent to another core.
    pub(in crate::engine) fn into_owned(self) -> Part<'static> {
        Part {
            partition: self.partition,
            writes: Cow::Owned(self.writes.into_owned()),
            positions: self.positions,
        }
    }

    /// The error as the statement's caller counts its writes.
    pub(in crate::engine) fn translate(&self, error: WriteError) -> WriteError {
        let Some(positions) = &self.positions else {
            return error;
        };
        match error {
            WriteError::Exists { write } => WriteError::Exists {
                write: positions[write],
            },
            WriteError::Missing { write } => WriteError::Missing {
                write: positions[write],
            },
            WriteError::Duplicate {
                write,
                existing_key,
            } => WriteError::Duplicate {
                write: positions[write],
                existing_key,
            },
            other => other,
        }
    }
}

/// Divides the writes of a statement by partition, behind the parts that are there.
pub(in crate::engine) fn divide<'a>(
    writes: &'a [Write],
    fault: PlantedFault,
    parts: &mut Vec<Part<'a>>,
) {
    let plant = |write: &Write| {
        let mut write = write.clone();
        if fault == PlantedFault::UniqueIntentSkipped
            && matches!(write.expect, Expect::UniquePrefix { .. })
        {
            write.expect = Expect::Any;
        }
        write
    };
    let Some(first) = writes.first() else {
        return;
    };
    if writes
        .iter()
        .all(|write| write.partition == first.partition)
    {
        let writes = match fault {
            PlantedFault::UniqueIntentSkipped => writes.iter().map(plant).collect(),
            _ => Cow::Borrowed(writes),
        };
        parts.push(Part {
            partition: first.partition,
            writes,
            positions: None,
        });
        return;
    }
    let mut divided: BTreeMap<PartitionId, (Vec<Write>, Vec<usize>)> = BTreeMap::new();
    for (position, write) in writes.iter().enumerate() {
        let (writes, positions) = divided.entry(write.partition).or_default();
        writes.push(plant(write));
        positions.push(position);
    }
    let part = |(partition, (writes, positions))| Part {
        partition,
        writes: Cow::Owned(writes),
        positions: Some(positions),
    };
    parts.extend(divided.into_iter().map(part));
}

/// Refuses what no part of storage could hold.
pub(super) fn check_sizes(statement: &Statement) -> Result<(), WriteError> {
    let entry_fits = statement
        .entry
        .as_ref()
        .is_none_or(|entry| entry.lens().all(|len| len <= MAX_ENTRY_BYTES));
    if entry_fits && statement.writes.iter().all(write_fits) {
        Ok(())
    } else {
        Err(WriteError::TooLarge)
    }
}

/// How far the leaves of a batch are being read ahead.
#[derive(Default)]
pub(super) struct Ahead {
    /// Parts that were looked at and are not prepared yet.
    parts: usize,
}

/// Whether storage can hold the key and the value.
pub(in crate::engine) fn write_fits(write: &Write) -> bool {
    let value_len = write.op.value_len();
    write.key.len() <= MAX_KEY_BYTES && value_len.is_none_or(|len| len <= MAX_VALUE_BYTES)
}

/// What one core has to place for one statement.
pub(in crate::engine) struct Placement {
    pub(in crate::engine) index: usize,
    pub(in crate::engine) unit: UnitId,
    pub(in crate::engine) parts: Vec<Part<'static>>,
}

impl Storage {
    pub(in crate::engine) fn owned_partition(&self, partition: PartitionId) -> Rc<Partition> {
        self.partition(partition)
            .unwrap_or_else(|| panic!("{partition} is not owned by core {}", self.core))
    }

    /// A read that a write needed has failed: the page is damaged or the device is.
    pub(in crate::engine) fn read_failed(&self, error: &ReadError) -> WriteError {
        let fatal =
            crate::types::Fatal::new(format!("reading what a write depends on failed: {error}"));
        self.poison(fatal.clone());
        WriteError::Fatal(fatal)
    }

    /// Loads what the checks of a part need from the base. `later` are parts that will be prepared
    /// next: when this one had to wait for a page, the leaves of those are asked for too, so that a
    /// batch waits for the device less often than it writes.
    pub(super) async fn prepare<'a, 'b: 'a>(
        &self,
        part: &Part<'_>,
        ahead: &mut Ahead,
        later: impl Iterator<Item = &'a Part<'b>>,
    ) -> Result<(Rc<Partition>, Prepared), WriteError> {
        let partition = self.owned_partition(part.partition);
        let misses = partition.page_misses();
        let prepared = partition
            .prepare(&part.writes)
            .await
            .map_err(|error| self.read_failed(&error))?;
        ahead.parts = ahead.parts.saturating_sub(1);
        if ahead.parts == 0 && partition.page_misses() > misses {
            let writes = later
                .filter(|later| later.partition == part.partition)
                .flat_map(|later| later.writes.iter());
            ahead.parts = partition.read_ahead(writes);
        }
        Ok((partition, prepared))
    }

    /// Places the intents of the statements on this core. With `ordered` it stops at the first that
    /// fails: the statements after that are not in the answer.
    pub(in crate::engine) async fn place_all(
        &self,
        placements: Vec<Placement>,
        ordered: bool,
    ) -> Vec<(usize, Result<(), WriteError>)> {
        let mut results = Vec::with_capacity(placements.len());
        let mut ahead = Ahead::default();
        for (at, placement) in placements.iter().enumerate() {
            let later = placements[at + 1..].iter().flat_map(|later| &later.parts);
            let result = self.place(placement, &mut ahead, later).await;
            let failed = result.is_err();
            results.push((placement.index, result));
            if failed && ordered {
                break;
            }
        }
        results
    }

    /// Places the intents of one statement on all its partitions here, or on none.
    async fn place<'a>(
        &self,
        placement: &Placement,
        ahead: &mut Ahead,
        later: impl Iterator<Item = &'a Part<'static>> + Clone,
    ) -> Result<(), WriteError> {
        self.check_fatal().map_err(WriteError::Fatal)?;
        self.check_memory()?;
        for (at, part) in placement.parts.iter().enumerate() {
            let placed = loop {
                match self.prepare(part, ahead, later.clone()).await {
                    // A checkpoint was installed meanwhile: what was prepared describes the base
                    // before it.
                    Ok((partition, prepared)) if !partition.is_current(&prepared) => {}
                    Ok((partition, prepared)) => {
                        break partition.place_intents(placement.unit, &part.writes, prepared);
                    }
                    Err(error) => break Err(error),
                }
            };
            if let Err(error) = placed {
                for placed in &placement.parts[..at] {
                    self.owned_partition(placed.partition)
                        .withdraw(placement.unit);
                }
                return Err(part.translate(error));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Key, Op, TreeId};

    fn write(partition: u16, key: &[u8]) -> Write {
        Write {
            partition: PartitionId(partition),
            tree: TreeId(5),
            key: Key::from_slice(key),
            op: Op::Delete,
            expect: Expect::UniquePrefix { len: 1 },
        }
    }

    fn parts_of(writes: &[Write], fault: PlantedFault) -> Vec<Part<'_>> {
        let mut parts = Vec::new();
        divide(writes, fault, &mut parts);
        parts
    }

    #[test]
    fn parts_keep_the_positions_of_their_writes() {
        let writes = [write(3, b"a"), write(1, b"b"), write(3, b"c")];
        let parts = parts_of(&writes, PlantedFault::None);
        assert_eq!(
            parts
                .iter()
                .map(|part| part.partition.0)
                .collect::<Vec<_>>(),
            [1, 3]
        );
        assert_eq!(
            parts[1].translate(WriteError::Exists { write: 1 }),
            WriteError::Exists { write: 2 }
        );
        assert_eq!(
            parts[0].translate(WriteError::Conflict),
            WriteError::Conflict
        );
        let whole = parts_of(&writes[..1], PlantedFault::UniqueIntentSkipped);
        assert_eq!(
            whole[0].translate(WriteError::Missing { write: 0 }),
            WriteError::Missing { write: 0 }
        );
        assert_eq!(whole[0].writes[0].expect, Expect::Any);
    }
}
