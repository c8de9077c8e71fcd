//! Documents that are all taken before the first of them is given, in memory or on disk: what
//! writes into a collection that is still being read would otherwise come to what it has written.

use pinion_query::{DiskSorter, Document, Memory, Next, Spilled, Spiller};
use pinion_service::compute::compute;
use pinion_service::interrupt::pause;
use pinion_service::spill::SpillFile;
use pinion_wire::{OpContext, Result};

use super::{Node, Sources};

/// Documents that have all been taken, in their order.
pub struct Spool {
    sorter: DiskSorter<Kept>,
    file: SpillFile,
}

struct Kept(Document);

impl Spilled for Kept {
    fn spilled_bytes(&self) -> usize {
        self.0.as_bytes().len()
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.as_bytes());
    }

    fn read(bytes: &[u8]) -> Result<Kept> {
        Ok(Kept(bytes::Bytes::copy_from_slice(bytes).into()))
    }
}

impl Spool {
    /// Takes all documents of a source.
    ///
    /// # Errors
    /// Those of the source and of the disk; more is needed than may be held, and no disk may be
    /// used; the operation is stopped.
    pub async fn of<S: Sources>(
        ctx: &OpContext,
        source: &mut Node<S>,
        memory: &Memory,
    ) -> Result<Spool> {
        let room = memory.room(memory.limits.sort);
        let mut spool = Spool {
            sorter: DiskSorter::new(Spiller::Sort, None, room),
            file: SpillFile::default(),
        };
        while let Some(document) = source.next(ctx).await? {
            pause(ctx).await?;
            let size = document.as_bytes().len();
            // Those of equal keys stay in their order.
            if spool.sorter.push(Vec::new(), Kept(document), size)? {
                spool.file.serve(ctx, &mut spool.sorter).await?;
            }
        }
        spool.sorter.end();
        Ok(spool)
    }

    /// The next document.
    ///
    /// # Errors
    /// Those of the disk; the operation is stopped.
    pub async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        loop {
            pause(ctx).await?;
            let sorter = &mut self.sorter;
            match compute(ctx, || sorter.next_entry()).await? {
                Next::Entry(_, Kept(document)) => return Ok(Some(document)),
                Next::End => return Ok(None),
                Next::Disk => self.file.serve(ctx, &mut self.sorter).await?,
            }
        }
    }
}
