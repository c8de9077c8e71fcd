//! The loops: one for each kind of operation, the same for every engine.

use std::time::{Duration, Instant};

use crate::data::{KEY_BYTES, Random, Sum, Values, key, record_of};
use crate::plan::{Counted, Kind, Plan};
use crate::session::{Outcome, Session};

/// Reads between two looks at the clock.
const READS_PER_LOOK: u64 = 64;
/// One value in this number is compared byte for byte.
const COMPARE_EVERY: u64 = 1000;

/// One client of an interval.
pub struct Client<'a> {
    pub plan: Plan,
    pub number: usize,
    pub values: &'a Values,
}

/// How many tasks or threads an interval has.
pub fn clients(plan: &Plan) -> usize {
    plan.clients + usize::from(plan.kind == Kind::ReadWhileWriting)
}

impl Client<'_> {
    /// Does this client's part.
    pub async fn run(&self, mut session: impl Session) -> Outcome<Counted> {
        match self.plan.kind {
            Kind::Load => self.load(&mut session).await,
            Kind::Read => self.read(&mut session).await,
            Kind::ReadWhileWriting if self.number == self.plan.clients => {
                self.update_at_rate(&mut session).await
            }
            Kind::ReadWhileWriting => self.read(&mut session).await,
            Kind::Scan => self.scan(&mut session).await,
            Kind::ScanAll => self.scan_all(&mut session).await,
            Kind::Insert | Kind::Update | Kind::UpdateTenth => self.write(&mut session).await,
        }
    }

    fn random(&self) -> Random {
        Random::new(self.plan.seed.wrapping_add((self.number as u64) << 32))
    }

    /// The numbers below `count` that are this client's.
    fn own(&self, count: u64) -> impl Iterator<Item = u64> {
        (self.number as u64..count).step_by(self.plan.clients)
    }

    async fn load(&self, session: &mut impl Session) -> Outcome<Counted> {
        let plan = &self.plan;
        let count = plan.count.ok_or("a load needs a count")?;
        let mut counted = Counted::default();
        let mut batch = vec![([0; KEY_BYTES], Vec::new()); plan.batch];
        let mut own = self.own(count);
        loop {
            let mut filled = 0;
            while filled < batch.len()
                && let Some(number) = own.next()
            {
                let record = plan.records + number;
                batch[filled].0 = key(record);
                self.values.make(record, 0, &mut batch[filled].1);
                filled += 1;
            }
            if filled == 0 {
                return Ok(counted);
            }
            session.put_all(&batch[..filled]).await?;
            counted.operations += filled as u64;
            counted.bytes_written += filled as u64 * self.record_bytes();
            session.breathe().await;
        }
    }

    fn record_bytes(&self) -> u64 {
        (KEY_BYTES + self.plan.value_bytes) as u64
    }

    async fn write(&self, session: &mut impl Session) -> Outcome<Counted> {
        let plan = &self.plan;
        let mut random = self.random();
        let mut counted = Counted::default();
        let mut value = Vec::new();
        let count = match plan.kind {
            Kind::UpdateTenth => plan.records / 10,
            _ => plan.count.ok_or("writes need a count")?,
        };
        for number in self.own(count) {
            let (record, version) = match plan.kind {
                Kind::Insert => (plan.records + number, 0),
                Kind::UpdateTenth => (number * 10, plan.seed),
                _ => (random.below(plan.records), plan.seed),
            };
            self.values.make(record, version, &mut value);
            session.put(&key(record), &value).await?;
            counted.operations += 1;
            counted.bytes_written += self.record_bytes();
            session.breathe().await;
        }
        Ok(counted)
    }

    async fn read(&self, session: &mut impl Session) -> Outcome<Counted> {
        let plan = &self.plan;
        let mut random = self.random();
        let (mut sum, mut counted) = (Sum::default(), Counted::default());
        let end = Instant::now() + Duration::from_secs_f64(plan.seconds);
        loop {
            if counted.operations.is_multiple_of(plan.snapshot_ops) {
                session.refresh().await?;
            }
            let record = random.below(plan.records);
            let closely = counted.operations.is_multiple_of(COMPARE_EVERY);
            let mut right = false;
            let found = session
                .get(&key(record), |value| {
                    sum.add(value);
                    counted.bytes_read += value.len() as u64;
                    right = self.values.is_of(record, value, closely);
                })
                .await?;
            if !found || !right {
                let what = if found {
                    "has a wrong value"
                } else {
                    "is missing"
                };
                return Err(format!("record {record} {what}"));
            }
            counted.operations += 1;
            if counted.operations.is_multiple_of(READS_PER_LOOK) {
                if Instant::now() >= end {
                    counted.sum = sum.0;
                    return Ok(counted);
                }
                session.breathe().await;
            }
        }
    }

    async fn scan(&self, session: &mut impl Session) -> Outcome<Counted> {
        let plan = &self.plan;
        let mut random = self.random();
        let mut seen = Seen::new(self.values);
        let end = Instant::now() + Duration::from_secs_f64(plan.seconds);
        let mut scans = 0u64;
        while scans == 0 || Instant::now() < end {
            let records_per_snapshot = plan.snapshot_ops.div_ceil(plan.scan_len as u64);
            if scans.is_multiple_of(records_per_snapshot) {
                session.refresh().await?;
            }
            let from = key(random.below(plan.records));
            seen.last = None;
            session
                .scan(Some(&from), plan.scan_len, |key, value| {
                    seen.see(key, value)
                })
                .await?;
            scans += 1;
            session.breathe().await;
        }
        seen.finish()
    }

    async fn scan_all(&self, session: &mut impl Session) -> Outcome<Counted> {
        let mut seen = Seen::new(self.values);
        session.refresh().await?;
        let records = session
            .scan(None, usize::MAX, |key, value| seen.see(key, value))
            .await? as u64;
        if records != self.plan.records {
            return Err(format!(
                "a scan of {} records found {records}",
                self.plan.records
            ));
        }
        seen.finish()
    }

    /// Updates at a constant rate until the readers' time is over; what it is late with it does
    /// without a pause.
    async fn update_at_rate(&self, session: &mut impl Session) -> Outcome<Counted> {
        let plan = &self.plan;
        let mut random = self.random();
        let (mut counted, mut value) = (Counted::default(), Vec::new());
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < plan.seconds {
            let due = begin + Duration::from_secs_f64(counted.beside as f64 / plan.write_rate);
            let now = Instant::now();
            if due > now {
                // Naps shorter than the kernel's are not worth their cost.
                session
                    .sleep((due - now).max(Duration::from_millis(1)))
                    .await;
                continue;
            }
            let record = random.below(plan.records);
            self.values.make(record, plan.seed, &mut value);
            session.put(&key(record), &value).await?;
            counted.beside += 1;
            counted.bytes_written += self.record_bytes();
            session.breathe().await;
        }
        Ok(counted)
    }
}

/// Records that a scan hands out: in order, each with its value.
struct Seen<'a> {
    values: &'a Values,
    last: Option<[u8; KEY_BYTES]>,
    sum: Sum,
    counted: Counted,
    wrong: u64,
}

impl<'a> Seen<'a> {
    fn new(values: &'a Values) -> Seen<'a> {
        Seen {
            values,
            last: None,
            sum: Sum::default(),
            counted: Counted::default(),
            wrong: 0,
        }
    }

    fn see(&mut self, key: &[u8], value: &[u8]) {
        self.sum.add(value);
        self.counted.bytes_read += value.len() as u64;
        let closely = self.counted.operations.is_multiple_of(COMPARE_EVERY);
        self.counted.operations += 1;
        let right = record_of(key).is_some_and(|record| self.values.is_of(record, value, closely))
            && self.last.is_none_or(|last| last.as_slice() < key);
        self.wrong += u64::from(!right);
        self.last = key.try_into().ok();
    }

    fn finish(self) -> Outcome<Counted> {
        if self.wrong > 0 {
            return Err(format!("a scan met {} wrong records", self.wrong));
        }
        Ok(Counted {
            sum: self.sum.0,
            ..self.counted
        })
    }
}
