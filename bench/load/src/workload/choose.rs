//! Chooses the next operation of one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::distribution::{Distribution, Zipfian};
use super::random::{Random, mix};
use super::sequence::Sequence;
use super::spec::{Kind, Request, Spec};

/// How often the second document of a transaction is drawn until it is another than the first.
const SECOND_KEY_DRAWS: usize = 64;

/// What the threads of a run share: which keys are taken and how many operations are left.
pub struct Shared {
    inserts: Sequence,
    next_load: AtomicU64,
    operations_left: AtomicU64,
}

impl Shared {
    /// `first_insert`: the first key that inserts get.
    pub fn new(spec: &Spec, first_insert: u64) -> Self {
        Self {
            inserts: Sequence::new(first_insert),
            next_load: AtomicU64::new(spec.insert_start),
            operations_left: AtomicU64::new(spec.operations.unwrap_or(u64::MAX)),
        }
    }

    /// An operation has done what it should.
    pub fn done(&self, spec: &Spec, request: &Request) {
        // Nothing is read where there are only inserts, and a load's keys are not those of the
        // sequence.
        if request.kind == Kind::Insert && !spec.load && !spec.only_inserts() {
            for key in request.key..request.key + request.count {
                self.inserts.acknowledge(key);
            }
        }
    }

    fn claim(&self) -> bool {
        self.operations_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            })
            .is_ok()
    }
}

/// One thread's stream of operations; the seed and the thread's number determine its choices.
pub struct Chooser {
    spec: Arc<Spec>,
    shared: Arc<Shared>,
    random: Random,
    keys: Distribution,
    lengths: Distribution,
    /// Upper bounds of the kinds in [0, 1).
    bounds: Vec<(Kind, f64)>,
}

impl Chooser {
    pub fn new(spec: Arc<Spec>, shared: Arc<Shared>, seed: u64) -> Result<Self, String> {
        let p = &spec.properties;
        let (from, items) = (spec.insert_start, spec.insert_count);
        let keys = match spec.distribution.as_str() {
            "zipfian" => {
                let inserts: f64 = p.get("insertproportion", 0.0)?;
                // YCSB's guess of the keys that the run will add, with its factor.
                let new = (spec.operations.unwrap_or(0) as f64 * inserts * 2.0) as u64;
                Distribution::scrambled(from, items + new + 1)
            }
            "latest" => {
                Distribution::Latest(Zipfian::new(shared.inserts.newest().clamp(1, 1 << 40)))
            }
            "hotspot" => Distribution::hotspot(
                from,
                items,
                p.get("hotspotdatafraction", 0.2)?,
                p.get("hotspotopnfraction", 0.8)?,
            ),
            "exponential" => Distribution::exponential(
                p.get("exponential.percentile", 95.0)?,
                spec.records as f64 * p.get("exponential.frac", 0.857_142_857_1)?,
            ),
            "sequential" => Distribution::Sequential {
                from,
                items,
                next: 0,
            },
            _ => Distribution::Uniform { from, items },
        };
        let span = spec.scan_max - spec.scan_min + 1;
        let lengths = if spec.scan_zipfian {
            Distribution::Zipfian {
                ranks: Zipfian::new(span),
                from: spec.scan_min,
            }
        } else {
            Distribution::Uniform {
                from: spec.scan_min,
                items: span,
            }
        };
        let total: f64 = spec.mix.iter().map(|(_, share)| share).sum();
        let mut bound = 0.0;
        let bounds = spec
            .mix
            .iter()
            .map(|(kind, share)| {
                bound += share / total;
                (*kind, bound)
            })
            .collect();
        Ok(Self {
            spec,
            shared,
            random: Random::new(mix(seed)),
            keys,
            lengths,
            bounds,
        })
    }

    /// The next operation; none when all that were asked for are given out.
    pub fn next(&mut self) -> Option<Request> {
        if self.spec.load {
            return self.next_load();
        }
        if !self.shared.claim() {
            return None;
        }
        let kind = self.kind();
        let mut request = Request {
            kind,
            key: 0,
            other: 0,
            version: 0,
            field: 0,
            count: 1,
            stage: 0,
        };
        match kind {
            Kind::Connect => {}
            Kind::Insert => {
                request.count = self.spec.batch;
                request.key = self.shared.inserts.take(request.count);
            }
            _ => {
                request.key = self.key();
                request.field = self.random.below(self.spec.document.fields as u64) as usize;
                request.version = self.random.next();
            }
        }
        if kind == Kind::Transaction {
            request.count = self.spec.transaction_updates;
            if request.count == 2 {
                (request.key, request.other) = self.second_key(request.key);
            }
        }
        if kind == Kind::Scan {
            request.count = self.lengths.next(&mut self.random, u64::MAX);
        }
        Some(request)
    }

    fn next_load(&self) -> Option<Request> {
        let end = self.spec.insert_start + self.spec.insert_count;
        let key = self
            .shared
            .next_load
            .fetch_add(self.spec.batch, Ordering::Relaxed);
        (key < end).then(|| Request {
            kind: Kind::Insert,
            key,
            other: 0,
            version: 0,
            field: 0,
            count: self.spec.batch.min(end - key),
            stage: 0,
        })
    }

    fn kind(&mut self) -> Kind {
        let point = self.random.unit();
        let found = self.bounds.iter().find(|(_, bound)| point < *bound);
        found
            .or(self.bounds.last())
            .map_or(Kind::Read, |(kind, _)| *kind)
    }

    /// The two documents of a transaction, which are never the same, in the order in which it
    /// updates them.
    fn second_key(&mut self, first: u64) -> (u64, u64) {
        let drawn = (0..SECOND_KEY_DRAWS)
            .map(|_| self.key())
            .find(|key| *key != first);
        // A distribution that gives hardly anything but one key: its neighbour.
        let (from, count) = (self.spec.insert_start, self.spec.insert_count);
        let second = drawn.unwrap_or_else(|| from + (first - from + 1) % count);
        if self.spec.transaction_ordered && second < first {
            (second, first)
        } else {
            (first, second)
        }
    }

    fn key(&mut self) -> u64 {
        let newest = self.shared.inserts.newest();
        loop {
            let key = self.keys.next(&mut self.random, newest);
            if key <= newest {
                return key;
            }
        }
    }
}
