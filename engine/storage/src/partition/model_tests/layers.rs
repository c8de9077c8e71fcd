//! Old versions and layers on disk, in the model.

use super::*;

impl Run {
    pub(super) fn newest_layer(&self) -> u64 {
        self.layers.back().copied().unwrap_or(0)
    }

    /// Seals a layer, or waits for the one that is being written.
    pub(super) async fn advance_layers(&mut self) {
        if let Some(writing) = self.writing.take() {
            match writing.is_finished() || self.rng.chance(0.3) {
                true => writing.await.unwrap().unwrap(),
                false => self.writing = Some(writing),
            }
            return;
        }
        let least = self.base.max(self.horizon).max(self.newest_layer() + 1);
        if self.checkpoint.is_some()
            || self.dissolving.is_some()
            || self.partition.has_spilled()
            || least > self.now
        {
            return;
        }
        let at = match self.rng.chance(0.7) {
            true => self.now,
            false => self.rng.between(least, self.now),
        };
        if self.partition.seal_layer(Timestamp::from_u64(at)) {
            self.layers.push_back(at);
            self.layered += 1;
            let partition = self.partition.clone();
            self.writing = Some(spawn(Queue::Background, async move {
                partition.write_layer(&|| {}).await
            }));
        }
    }

    /// Brings the oldest layer back for the checkpoint at `c`; whether that is done.
    pub(super) async fn dissolve(&mut self, c: u64) -> bool {
        let partition = self.partition.clone();
        let ts = Timestamp::from_u64(c);
        let dissolving = self.dissolving.take().unwrap_or_else(|| {
            spawn(Queue::Background, async move {
                partition.dissolve_layers(ts, &|| {}).await
            })
        });
        if !dissolving.is_finished() && self.rng.chance(0.7) {
            self.dissolving = Some(dissolving);
            return false;
        }
        dissolving.await.unwrap().unwrap();
        self.layers.pop_front();
        self.dissolved += 1;
        true
    }
}

#[test]
fn random_operations_over_history() {
    for seed in seeds(400..440) {
        let kind = Kind {
            has_units: seed.is_multiple_of(2),
            keeps_history: true,
            has_layers: false,
        };
        check(seed, hostile_runs(seed), kind, &mut Met::default());
    }
}

#[test]
fn random_operations_over_layers() {
    let mut met = Met::default();
    for seed in seeds(500..560) {
        let kind = Kind {
            has_units: seed.is_multiple_of(2),
            keeps_history: seed.is_multiple_of(3),
            has_layers: true,
        };
        check(seed, hostile_runs(seed), kind, &mut met);
    }
    let Met {
        layered, dissolved, ..
    } = met;
    assert!(
        layered > 500 && dissolved > 100,
        "{layered} layers, {dissolved} of them have come back"
    );
}

/// Whatever old snapshots need is on disk.
fn hostile_runs(seed: u64) -> PartitionOptions {
    PartitionOptions {
        retired_bytes: 0,
        cache_bytes: if seed.is_multiple_of(4) { 0 } else { 6 * 4096 },
        ..PartitionOptions::hostile()
    }
}

/// The tests above would notice each of these faults.
#[test]
fn planted_faults_of_runs_are_found() {
    let plant = |lost: bool, skipped: bool| PartitionOptions {
        loses_run_versions: lost,
        skips_runs: skipped,
        ..hostile_runs(1)
    };
    for options in [plant(true, false), plant(false, true)] {
        let kind = Kind {
            keeps_history: true,
            has_layers: true,
            ..Kind::default()
        };
        let found = (0..20).find(|&seed| {
            let options = options.clone();
            let run = std::panic::AssertUnwindSafe(|| {
                check(seed, options, kind, &mut Met::default());
            });
            std::panic::catch_unwind(run).is_err()
        });
        assert!(found.is_some(), "not found: {options:?}");
    }
}
