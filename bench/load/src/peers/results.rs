//! What the runs gave, round by round, and the ratios of it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::server::Kind;
use super::targets::Measure;

/// More than this share of its core, and the client is what was measured.
const FULL_CORE: f64 = 0.95;

/// The figures of one run.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub per_sec: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub server_cpu_us: Option<f64>,
    pub client_cpu_us: f64,
    /// The client never slept: its CPU time says nothing.
    pub busy_poll: bool,
    pub resident_bytes: Option<f64>,
    pub checkpoints: Option<f64>,
    /// Cores that other programs kept busy meanwhile: with more than a little, a figure is worth
    /// less.
    pub others_cores: Option<f64>,
    pub valid: bool,
}

impl Figures {
    /// What a result of `run` says.
    pub fn of(result: &Value) -> Option<Self> {
        let latency = &result["latency"];
        Some(Self {
            per_sec: result["per_sec"].as_f64()?,
            p50_us: latency["p50_us"].as_f64()?,
            p99_us: latency["p99_us"].as_f64()?,
            p999_us: latency["p99.9_us"].as_f64()?,
            server_cpu_us: result["server_cpu_us_per_operation"].as_f64(),
            client_cpu_us: result["client_cpu_us_per_operation"].as_f64()?,
            busy_poll: result["busy_poll"] == true,
            resident_bytes: result["server_resident_bytes"].as_f64(),
            checkpoints: result["checkpoints"].as_f64(),
            others_cores: result["others_cores"].as_f64(),
            valid: result["valid"] == true,
        })
    }

    /// The client had no more time to give.
    pub fn client_is_full(&self) -> bool {
        !self.busy_poll && self.client_cpu_us * self.per_sec / 1e6 >= FULL_CORE
    }

    /// Share of the server's core.
    pub fn server_share(&self) -> Option<f64> {
        self.server_cpu_us.map(|us| us * self.per_sec / 1e6)
    }
}

/// Median and extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Some(Self { median, min, max })
    }
}

/// Everything that was measured.
#[derive(Default)]
pub struct Results {
    /// By case and server, in the order of the rounds.
    pub runs: BTreeMap<(String, Kind), Vec<Figures>>,
    /// Medians of one write of 4 KiB that is durable, in microseconds, one for each round.
    pub disk_us: Vec<f64>,
    /// Growth of resident memory in bytes for each idle connection.
    pub idle_bytes: BTreeMap<Kind, Vec<f64>>,
}

impl Results {
    pub fn add(&mut self, case: &str, server: Kind, figures: Figures) {
        self.runs
            .entry((case.to_owned(), server))
            .or_default()
            .push(figures);
    }

    pub fn of(&self, case: &str, server: Kind) -> &[Figures] {
        self.runs
            .get(&(case.to_owned(), server))
            .map_or(&[], Vec::as_slice)
    }

    pub fn spread(
        &self,
        case: &str,
        server: Kind,
        pick: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(self.of(case, server).iter().filter_map(pick).collect())
    }

    /// Pinion beside a peer (or itself), and whether CPU for each operation stands for the rate.
    pub fn ratio(&self, case: &str, peer: Kind, measure: Measure) -> (Option<Spread>, bool) {
        let ours = self.of(case, Kind::Pinion);
        let theirs = self.of(case, peer);
        let pairs = |other: &[Figures], pick: &dyn Fn(&Figures, &Figures) -> Option<f64>| {
            Spread::of(
                ours.iter()
                    .zip(other)
                    .filter_map(|(a, b)| pick(a, b))
                    .collect(),
            )
        };
        let cpu = |a: &Figures, b: &Figures| Some(b.server_cpu_us? / a.server_cpu_us?);
        match measure {
            Measure::Rate => {
                let full = ours.iter().chain(theirs).any(Figures::client_is_full);
                if full && let Some(ratio) = pairs(theirs, &cpu) {
                    return (Some(ratio), true);
                }
                (pairs(theirs, &|a, b| Some(a.per_sec / b.per_sec)), false)
            }
            Measure::ServerCpu => (pairs(theirs, &cpu), false),
            Measure::P999 => (pairs(theirs, &|a, b| Some(b.p999_us / a.p999_us)), false),
            Measure::TailOfMedian => (pairs(ours, &|a, _| Some(a.p999_us / a.p50_us)), false),
            Measure::P50OfCase(other) => {
                let other = self.of(other, Kind::Pinion);
                (pairs(other, &|a, b| Some(a.p50_us / b.p50_us)), false)
            }
            Measure::P99OfCase(other) => {
                let other = self.of(other, Kind::Pinion);
                (pairs(other, &|a, b| Some(a.p99_us / b.p99_us)), false)
            }
            Measure::P50OfDisk => {
                let ratios = ours.iter().zip(&self.disk_us).map(|(a, us)| a.p50_us / us);
                (Spread::of(ratios.collect()), false)
            }
            Measure::IdleMemory => {
                let growth = |kind: Kind| self.idle_bytes.get(&kind).map_or(&[][..], Vec::as_slice);
                let ratios = growth(Kind::Pinion)
                    .iter()
                    .zip(growth(peer))
                    .map(|(a, b)| b / a.max(1.0));
                (Spread::of(ratios.collect()), false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(per_sec: f64, server_cpu_us: f64, client_cpu_us: f64) -> Figures {
        Figures {
            per_sec,
            p50_us: 100.0,
            p99_us: 200.0,
            p999_us: 300.0,
            server_cpu_us: Some(server_cpu_us),
            client_cpu_us,
            busy_poll: false,
            resident_bytes: None,
            checkpoints: None,
            others_cores: None,
            valid: true,
        }
    }

    #[test]
    fn ratios_are_those_of_the_rounds() {
        let mut results = Results::default();
        for (ours, theirs) in [(100.0, 50.0), (90.0, 30.0), (100.0, 100.0)] {
            results.add("read", Kind::Pinion, figures(ours, 10.0, 5.0));
            results.add("read", Kind::Redis, figures(theirs, 30.0, 5.0));
        }
        let (ratio, by_cpu) = results.ratio("read", Kind::Redis, Measure::Rate);
        let expected = Spread {
            median: 2.0,
            min: 1.0,
            max: 3.0,
        };
        assert_eq!((ratio, by_cpu), (Some(expected), false));
        assert_eq!(results.ratio("read", Kind::Postgres, Measure::Rate).0, None);
        let tail = results.ratio("read", Kind::Pinion, Measure::TailOfMedian).0;
        assert_eq!(tail.map(|tail| tail.median), Some(3.0));
    }

    #[test]
    fn a_full_client_compares_cpu() {
        let mut results = Results::default();
        results.add("read", Kind::Pinion, figures(100_000.0, 8.0, 9.8));
        results.add("read", Kind::Redis, figures(90_000.0, 6.0, 7.0));
        let (ratio, by_cpu) = results.ratio("read", Kind::Redis, Measure::Rate);
        assert_eq!(
            (ratio.map(|ratio| ratio.median), by_cpu),
            (Some(0.75), true)
        );
        let polling = Figures {
            busy_poll: true,
            ..figures(100_000.0, 8.0, 10.0)
        };
        assert!(!polling.client_is_full());
    }
}
