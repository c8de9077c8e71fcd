//! What a crash leaves on a disk.
//!
//! A power cut leaves, of every sector changed since its file was flushed, any of the contents it
//! had since then: the durable one, or that of any later write, finished or under way, whatever the
//! order of the writes. Lengths and names likewise, names in the order of their changes within a
//! directory. How much is left is itself drawn, for the whole disk or for each file, because
//! "nothing", "everything" and "everything before some moment" are the cases in which careless code
//! fails, and independent coins would hardly ever show them.

use std::rc::Rc;

use bytes::Bytes;

use super::disk::{Block, Disk, FileData, Inode, PendingWrite};
use super::life::{Death, Node};
use super::trace::{Step, content_hash};
use super::world::World;
use crate::limits::ALIGN;
use crate::random::Rng;

/// What a disk writes as one.
pub(super) const SECTOR: usize = 512;

/// Which unsynced changes survive.
#[derive(Clone, Copy, Debug)]
enum Survival {
    Nothing,
    Everything,
    /// All changes up to this number.
    Before(u64),
    /// Each sector's changes by themselves, with this probability in 1/256 that any of them
    /// survives.
    Random(u64),
}

/// What a crash did to a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CrashReport {
    /// Unsynced blocks that kept none of their changes, all of their last one, and a mixture.
    pub(super) lost_blocks: u64,
    pub(super) kept_blocks: u64,
    pub(super) torn_blocks: u64,
    pub(super) lost_names: u64,
}

fn draw_survival(rng: &mut Rng, first: u64, last: u64) -> Survival {
    match rng.below(8) {
        0 => Survival::Nothing,
        1 => Survival::Everything,
        2 | 3 => Survival::Before(rng.between(first, last)),
        4 => Survival::Random(16),
        5 => Survival::Random(240),
        _ => Survival::Random(128),
    }
}

/// Index of the change that survives, if any, of changes with these numbers.
fn draw_survivor(rng: &mut Rng, survival: Survival, changes: &[u64]) -> Option<usize> {
    if changes.is_empty() {
        return None;
    }
    match survival {
        Survival::Nothing => None,
        Survival::Everything => Some(changes.len() - 1),
        Survival::Before(limit) => changes
            .partition_point(|change| *change <= limit)
            .checked_sub(1),
        Survival::Random(probability) => {
            if rng.below(256) >= probability {
                None
            } else if rng.below(2) == 0 {
                Some(changes.len() - 1)
            } else {
                Some(rng.below(changes.len() as u64) as usize)
            }
        }
    }
}

fn cut_power(disk: &mut Disk, rng: &mut Rng) -> CrashReport {
    let mut report = CrashReport::default();
    let last = disk.flush_mark();
    let first = last.saturating_sub(64);
    let overall = if rng.below(2) == 0 {
        Some(draw_survival(rng, first, last))
    } else {
        None
    };

    // Writes under way are changes like the others: they may have reached the disk, in part or
    // whole.
    let pending = std::mem::take(&mut disk.pending);
    for (_, write) in pending {
        if rng.below(2) == 0 {
            let probability = rng.between(64, 256);
            disk.apply_sectors(&write, &mut || rng.below(256) < probability);
        }
    }

    for inode in disk.inodes.values_mut() {
        let survival = overall.unwrap_or_else(|| draw_survival(rng, first, last));
        match inode {
            Inode::File(file) => crash_file(file, rng, survival, &mut report),
            Inode::Directory(directory) => {
                let changes = std::mem::take(&mut directory.unsynced);
                let kept = match survival {
                    Survival::Nothing => 0,
                    Survival::Everything => changes.len(),
                    Survival::Before(_) | Survival::Random(_) => {
                        rng.below(changes.len() as u64 + 1) as usize
                    }
                };
                report.lost_names += (changes.len() - kept) as u64;
                for change in &changes[..kept] {
                    change.apply(&mut directory.durable);
                }
                directory.names.clone_from(&directory.durable);
            }
        }
    }
    report
}

fn crash_file(file: &mut FileData, rng: &mut Rng, survival: Survival, report: &mut CrashReport) {
    for (block, changes) in std::mem::take(&mut file.unsynced) {
        let survivor = crash_block(file.durable.get(&block), &changes, rng, survival, report);
        match survivor {
            Some(content) => file.durable.insert(block, content),
            None => file.durable.remove(&block),
        };
    }
    let lens = std::mem::take(&mut file.unsynced_lens);
    let numbers: Vec<u64> = lens.iter().map(|(change, _)| *change).collect();
    if let Some(index) = draw_survivor(rng, survival, &numbers) {
        file.durable_len = lens[index].1;
    }
    file.len = file.durable_len;
    let beyond = file.durable.split_off(&file.len.div_ceil(ALIGN as u64));
    drop(beyond);
    file.current.clone_from(&file.durable);
    file.reserved_blocks = file.len.div_ceil(ALIGN as u64);
}

fn crash_block(
    durable: Option<&Bytes>,
    changes: &[(u64, Block)],
    rng: &mut Rng,
    survival: Survival,
    report: &mut CrashReport,
) -> Block {
    let numbers: Vec<u64> = changes.iter().map(|(change, _)| *change).collect();
    let old: Block = durable.cloned();
    let content_of = |survivor: Option<usize>| match survivor {
        None => &old,
        Some(index) => &changes[index].1,
    };
    let survivors: Vec<Option<usize>> = match survival {
        Survival::Random(_) => (0..ALIGN / SECTOR)
            .map(|_| draw_survivor(rng, survival, &numbers))
            .collect(),
        _ => vec![draw_survivor(rng, survival, &numbers)],
    };
    if survivors.iter().all(|survivor| *survivor == survivors[0]) {
        match survivors[0] {
            None => report.lost_blocks += 1,
            Some(_) => report.kept_blocks += 1,
        }
        return content_of(survivors[0]).clone();
    }
    report.torn_blocks += 1;
    let mut mixed = vec![0; ALIGN];
    for (sector, survivor) in survivors.into_iter().enumerate() {
        let range = sector * SECTOR..(sector + 1) * SECTOR;
        if let Some(content) = content_of(survivor) {
            mixed[range.clone()].copy_from_slice(&content[range]);
        }
    }
    Some(Bytes::from(mixed))
}

/// The process is gone but the system lives: of the writes under way each is done, is not, or is in
/// part.
fn kill_process(disk: &mut Disk, rng: &mut Rng) {
    let pending: Vec<PendingWrite> = std::mem::take(&mut disk.pending).into_values().collect();
    for write in pending {
        match rng.below(3) {
            0 => {}
            1 => disk.apply_sectors(&write, &mut || true),
            _ => disk.apply_sectors(&write, &mut || rng.below(2) == 0),
        }
    }
}

impl World {
    /// Leaves the node's disk as this kind of death does.
    pub(super) fn crash_disk(self: &Rc<World>, node: &Node, death: Death) {
        let mut disk = node.disk.borrow_mut();
        let mut rng = node.disk_rng.borrow_mut();
        match death {
            Death::PowerCut => {
                let report = cut_power(&mut disk, &mut rng);
                let mut stats = self.stats.borrow_mut();
                stats.power_cuts += 1;
                stats.lost_blocks += report.lost_blocks;
                stats.kept_blocks += report.kept_blocks;
                stats.torn_blocks += report.torn_blocks;
                stats.lost_names += report.lost_names;
            }
            Death::Kill => {
                self.stats.borrow_mut().kills += 1;
                kill_process(&mut disk, &mut rng);
            }
            Death::Exit => {
                self.stats.borrow_mut().exits += 1;
                kill_process(&mut disk, &mut rng);
            }
        }
        disk.release_process();
        if death == Death::PowerCut {
            let state = disk.files().iter().fold(0, |hash: u64, (path, inode)| {
                let file = disk.file(*inode);
                let blocks = file
                    .current
                    .iter()
                    .fold(file.len, |hash, (block, content)| {
                        hash.rotate_left(5) ^ content_hash(content).wrapping_mul(block + 1)
                    });
                hash.rotate_left(9) ^ blocks ^ content_hash(path.as_bytes())
            });
            self.trace(Step::DiskCrash, node.index as u64, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::dma::DmaBuf;
    use crate::file::OpenOptions;

    fn write(disk: &mut Disk, inode: u64, fill: u8) {
        let mut data = DmaBuf::zeroed(ALIGN);
        data.fill(fill);
        let submission = disk.submit_write(inode, 0, data.into_bytes()).unwrap();
        disk.complete_write(submission, None);
    }

    /// Every content that a sector had since the last flush can be what is left, and nothing else
    /// can.
    #[test]
    fn any_unsynced_sector_content_may_survive() {
        let mut seen = BTreeSet::new();
        let mut torn = 0;
        for seed in 0..400 {
            let mut rng = Rng::from_seed(seed);
            let mut disk = Disk::new(1 << 20);
            let path = Path::new("/file");
            let inode = disk.open(path, &OpenOptions::create()).unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            write(&mut disk, inode, 1);
            write(&mut disk, inode, 2);
            disk.complete_sync(inode, disk.flush_mark());
            write(&mut disk, inode, 3);
            write(&mut disk, inode, 4);
            torn += cut_power(&mut disk, &mut rng).torn_blocks;
            disk.release_process();
            let inode = disk.lookup(path).unwrap();
            let content = disk.read(inode, 0, ALIGN);
            assert_eq!(content.len(), ALIGN);
            for sector in content.chunks(SECTOR) {
                assert!(
                    sector.iter().all(|byte| *byte == sector[0]),
                    "a sector is written as one"
                );
                seen.insert(sector[0]);
            }
        }
        assert_eq!(seen, BTreeSet::from([2, 3, 4]));
        assert!(torn > 0);
    }

    /// Names that were not synced may be lost, in the order of their changes, and synced ones never
    /// are.
    #[test]
    fn unsynced_names_may_be_lost() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..200 {
            let mut rng = Rng::from_seed(seed);
            let mut disk = Disk::new(1 << 20);
            disk.open(Path::new("/synced"), &OpenOptions::create())
                .unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            disk.open(Path::new("/new"), &OpenOptions::create())
                .unwrap();
            disk.rename(Path::new("/new"), Path::new("/synced"))
                .unwrap();
            cut_power(&mut disk, &mut rng);
            disk.release_process();
            outcomes.insert(disk.read_dir(Path::new("/")).unwrap());
        }
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            outcomes,
            BTreeSet::from([names(&["synced"]), names(&["new", "synced"])])
        );
    }

    /// A killed process loses nothing that was handed over and completed, but a later power cut
    /// still may.
    #[test]
    fn a_kill_keeps_completed_writes() {
        for seed in 0..50 {
            let mut rng = Rng::from_seed(seed);
            let mut disk = Disk::new(1 << 20);
            let inode = disk
                .open(Path::new("/file"), &OpenOptions::create())
                .unwrap();
            write(&mut disk, inode, 9);
            kill_process(&mut disk, &mut rng);
            disk.release_process();
            let inode = disk.lookup(Path::new("/file")).unwrap();
            assert!(disk.read(inode, 0, ALIGN).iter().all(|byte| *byte == 9));
            assert!(!disk.file(inode).unsynced.is_empty());
        }
    }
}
