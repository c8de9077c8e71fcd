//! Simulated files: operations that take virtual time and may fail.

use std::future::pending;
use std::io;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;

use super::core::SimCore;
use super::disk::{Disk, DiskOp, InodeId, io_error};
use super::life::CoreState;
use super::trace::{Step, content_hash};
use super::world::World;
use crate::dma::DmaBuf;
use crate::file::OpenOptions;
use crate::random::Rng;
use crate::sync::oneshot;

/// An open file of a simulated core.
#[derive(Clone)]
pub(crate) struct SimFile(Rc<Handle>);

struct Handle {
    core: Rc<CoreState>,
    inode: InodeId,
    writable: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // After a death the disk has closed everything itself.
        if self.core.life().is_alive() {
            self.core.node().disk.borrow_mut().close(self.inode);
        }
    }
}

fn draw_latency(
    world: &World,
    disk: &Disk,
    rng: &mut Rng,
    range: &std::ops::RangeInclusive<u64>,
) -> u64 {
    let mut latency = rng.between(*range.start(), *range.end());
    if rng.below(1024) < world.options.slow_disk_operations_of_1024 {
        latency *= 20;
    }
    latency * disk.faults.slowness.max(1)
}

/// Runs `complete` on the node's disk after the time that the operation takes, and gives its
/// result. What a dying node asks for never completes.
pub(super) async fn disk_operation<T: 'static>(
    core: &Rc<CoreState>,
    latency: impl Fn(&World) -> &std::ops::RangeInclusive<u64>,
    complete: impl FnOnce(&Rc<World>, &mut Disk, &mut Rng) -> T + 'static,
) -> T {
    if !core.life().has_effect() {
        return pending().await;
    }
    let world = core.world();
    let node = core.node();
    let latency = draw_latency(
        &world,
        &node.disk.borrow(),
        &mut node.disk_rng.borrow_mut(),
        latency(&world),
    );
    let (sender, receiver) = oneshot();
    let owner = Rc::clone(core);
    world.schedule_call(world.now() + latency, move |world| {
        if owner.life().is_alive() {
            let node = owner.node();
            let result = complete(
                world,
                &mut node.disk.borrow_mut(),
                &mut node.disk_rng.borrow_mut(),
            );
            // The operation was done whether or not somebody still waits for it.
            let _ = sender.send(result);
        }
    });
    drop(world);
    match receiver.await {
        Ok(result) => result,
        // The node died meanwhile.
        Err(_) => pending().await,
    }
}

impl SimFile {
    pub(crate) async fn open(
        core: &SimCore,
        path: &Path,
        options: &OpenOptions,
    ) -> io::Result<SimFile> {
        let (core, options) = (core.state(), *options);
        let path = path.to_owned();
        let inode = disk_operation(
            core,
            |world| &world.options.disk_read_ns,
            move |world, disk, _| {
                world.trace(
                    Step::DiskName,
                    1,
                    content_hash(path.as_os_str().as_encoded_bytes()),
                );
                disk.open(&path, &options)
            },
        )
        .await?;
        Ok(SimFile(Rc::new(Handle {
            core: Rc::clone(core),
            inode,
            writable: options.write,
        })))
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.0.writable {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the file was opened for reading only",
        ))
    }

    pub(crate) async fn read_at(&self, offset: u64, len: usize) -> io::Result<DmaBuf> {
        let (core, inode) = (&self.0.core, self.0.inode);
        let result = disk_operation(
            core,
            |world| &world.options.disk_read_ns,
            move |world, disk, rng| {
                if disk.fails(DiskOp::Read, inode, rng) {
                    world.count_disk_fault(inode);
                    return Err(io_error("read"));
                }
                if disk.faults.bit_flip > 0.0
                    && disk.faults_apply(inode)
                    && rng.chance(disk.faults.bit_flip)
                {
                    let at = offset + rng.below(len as u64);
                    if disk.flip_bit(inode, at, rng.below(8) as u8) {
                        world.stats.borrow_mut().bit_flips += 1;
                        world.trace(Step::DiskFault, inode, at);
                    }
                }
                let data = disk.read(inode, offset, len);
                world.trace(Step::DiskRead, inode, content_hash(&data) ^ offset);
                Ok(data)
            },
        )
        .await;
        if let Ok(data) = &result {
            let mut stats = core.stats.borrow_mut();
            stats.file_reads += 1;
            stats.file_read_bytes += data.len() as u64;
        }
        result
    }

    pub(crate) async fn write_at(&self, offset: u64, data: Bytes) -> io::Result<()> {
        self.check_writable()?;
        let (core, inode, len) = (&self.0.core, self.0.inode, data.len());
        if !core.life().has_effect() {
            return pending().await;
        }
        // The write can reach the disk from here on, whatever becomes of this future.
        let submission = core
            .node()
            .disk
            .borrow_mut()
            .submit_write(inode, offset, data)?;
        let result = disk_operation(
            core,
            |world| &world.options.disk_write_ns,
            move |world, disk, rng| {
                let failed = disk.fails(DiskOp::Write, inode, rng);
                let write = if failed {
                    world.count_disk_fault(inode);
                    disk.complete_write(submission, Some(&mut || rng.below(2) == 0))
                } else {
                    disk.complete_write(submission, None)
                };
                world.trace(Step::DiskWrite, inode, content_hash(&write.data) ^ offset);
                if failed {
                    Err(io_error("write"))
                } else {
                    Ok(())
                }
            },
        )
        .await;
        if result.is_ok() {
            let mut stats = core.stats.borrow_mut();
            stats.file_writes += 1;
            stats.file_write_bytes += len as u64;
        }
        result
    }

    pub(crate) async fn datasync(&self) -> io::Result<()> {
        let (core, inode) = (&self.0.core, self.0.inode);
        let mark = core.node().disk.borrow().flush_mark();
        let result = disk_operation(
            core,
            |world| &world.options.disk_sync_ns,
            move |world, disk, rng| {
                let failed = disk.fails(DiskOp::Sync, inode, rng);
                world.trace(Step::DiskSync, inode, mark << 1 | u64::from(failed));
                if failed {
                    world.count_disk_fault(inode);
                    return Err(io_error("flush"));
                }
                disk.complete_sync(inode, mark);
                Ok(())
            },
        )
        .await;
        if result.is_ok() {
            core.stats.borrow_mut().device_flushes += 1;
        }
        result
    }

    async fn change(
        &self,
        change: impl FnOnce(&mut Disk, InodeId) -> io::Result<()> + 'static,
    ) -> io::Result<()> {
        self.check_writable()?;
        let inode = self.0.inode;
        disk_operation(
            &self.0.core,
            |world| &world.options.disk_write_ns,
            move |world, disk, _| {
                let result = change(disk, inode);
                world.trace(Step::DiskName, 2, inode << 1 | u64::from(result.is_ok()));
                result
            },
        )
        .await
    }

    pub(crate) async fn allocate(&self, len: u64) -> io::Result<()> {
        self.change(move |disk, inode| disk.extend(inode, len))
            .await
    }

    pub(crate) async fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(move |disk, inode| disk.set_len(inode, len))
            .await
    }

    pub(crate) async fn len(&self) -> io::Result<u64> {
        if !self.0.core.life().has_effect() {
            return pending().await;
        }
        Ok(self.0.core.node().disk.borrow().file(self.0.inode).len)
    }

    pub(crate) async fn close(self) -> io::Result<()> {
        Ok(())
    }
}

impl World {
    pub(super) fn count_disk_fault(&self, inode: InodeId) {
        self.stats.borrow_mut().disk_errors += 1;
        self.trace(Step::DiskFault, inode, 0);
    }
}
