//! Pinion's engine, through its public interface: partitions for reads, statements for writes.

use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::real::{self, RealOptions};
use pinion_runtime::{CoreId, Queue, join_all, should_yield, sleep, spawn, submit_to, yield_now};
use pinion_storage::{
    Applier, ApplyError, Direction, ENTRY_TERM_OFFSET, ENTRY_TS_OFFSET, Entry, Expect,
    Key as StoredKey, KeyRange, Op, PartitionId, ReadAt, SnapshotPin, Statement, Storage,
    StorageOptions, TreeId, Write, WriteError, open, storage,
};
use serde_json::{Value, json};

use crate::data::{KEY_BYTES, Key, Values};
use crate::drive::{Client, clients};
use crate::measure::Meter;
use crate::plan::{Counted, Plan};
use crate::serve::{Request, answer, opened};
use crate::session::{
    CHECKPOINT_INTERVAL, Durability, Outcome, SYNC_INTERVAL, Session, Settings, text,
};

const TREE: TreeId = TreeId(5);
/// How often core 0 looks for a request while it has nothing to do.
const LOOK_FOR_REQUESTS: Duration = Duration::from_millis(1);
/// How long a write that memory refused waits before it is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// The logged document: `{ts: timestamp, t: i64, k: binary, v: binary}`. What comes before each
/// value.
const BEFORE_TS: &[u8] = b"\0\0\0\0\x11ts\0";
const BEFORE_TERM: &[u8] = b"\x12t\0";
const BEFORE_KEY: &[u8] = b"\x05k\0\x10\0\0\0\0";
const BEFORE_VALUE: &[u8] = b"\x05v\0\0\0\0\0\0";
const KEY_AT: usize = ENTRY_TERM_OFFSET + 8 + BEFORE_KEY.len();
const VALUE_AT: usize = KEY_AT + KEY_BYTES + BEFORE_VALUE.len();

const _: () = assert!(BEFORE_TS.len() == ENTRY_TS_OFFSET && BEFORE_KEY[3] as usize == KEY_BYTES);
const _: () = assert!(BEFORE_TS.len() + 8 + BEFORE_TERM.len() == ENTRY_TERM_OFFSET);

fn entry(key: &Key, value: &[u8]) -> Entry {
    let len = VALUE_AT + value.len() + 1;
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(BEFORE_TS);
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(BEFORE_TERM);
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(BEFORE_KEY);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(BEFORE_VALUE);
    bytes.extend_from_slice(value);
    bytes.push(0);
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    let value_len_at = VALUE_AT - 5;
    bytes[value_len_at..value_len_at + 4].copy_from_slice(&(value.len() as u32).to_le_bytes());
    Entry::new(bytes)
}

fn write(key: &[u8], value: Bytes) -> Write {
    Write {
        partition: storage().partition_of_hash(key),
        tree: TREE,
        key: StoredKey::from_slice(key),
        op: Op::Put(value),
        expect: Expect::Any,
    }
}

fn statement(key: &Key, value: &[u8]) -> Statement {
    Statement {
        writes: vec![write(key, Bytes::copy_from_slice(value))],
        entry: Some(entry(key, value)),
    }
}

/// Writes again what the log holds above the base.
struct Again;

impl Applier for Again {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        let key = &entry[KEY_AT..KEY_AT + KEY_BYTES];
        let value = entry.slice(VALUE_AT..entry.len() - 1);
        storage().apply_at(ts, vec![write(key, value)]).await
    }
}

/// Serves until it is closed. The executor has this process's cores; another thread reads what the
/// parent asks for.
pub fn serve(settings: Settings) -> Outcome<()> {
    let mut cpus = real::available_cpus().map_err(text)?;
    cpus.truncate(settings.cores);
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let request = line
                .map_err(text)
                .and_then(|line| Request::from_line(&line));
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let options = RealOptions {
        cpus,
        spin: Duration::ZERO,
        handle_signals: false,
        ..RealOptions::default()
    };
    let results = real::run(options, move |core| {
        let (settings, receiver) = (settings.clone(), receiver.clone());
        async move {
            if core != CoreId(0) {
                // A core serves the others for as long as one has not returned.
                return Ok(());
            }
            let receiver = receiver.lock().map_err(text)?.take();
            serve_requests(settings, receiver.ok_or("core 0 starts once")?).await
        }
    })
    .map_err(text)?;
    results.into_iter().collect()
}

async fn serve_requests(settings: Settings, requests: Receiver<Outcome<Request>>) -> Outcome<()> {
    let begin = Instant::now();
    let options = StorageOptions {
        partitions: Some(settings.cores as u16),
        cache_bytes: settings.cache_bytes,
        journal_commit_interval: SYNC_INTERVAL,
        checkpoint_interval: if settings.checkpoints {
            CHECKPOINT_INTERVAL
        } else {
            Duration::MAX
        },
        ..StorageOptions::new(&settings.dir)
    };
    let about = format!(
        "{}; cache {} MiB for pages and changes, {} partitions, {}, direct I/O",
        match settings.durability {
            Durability::Interval => "rings flushed every 100 ms",
            Durability::Commit => "wait_durable before each acknowledgement",
        },
        options.cache_bytes >> 20,
        settings.cores,
        settings.about_checkpoints(),
    );
    let opening = async {
        open(options)
            .await
            .map_err(text)?
            .recover(Again)
            .await
            .map_err(text)
    };
    if let Err(why) = opening.await {
        return answer(Err(why));
    }
    let version = format!("Pinion {} (this tree)", env!("CARGO_PKG_VERSION"));
    answer(Ok(opened(version, about, begin)))?;
    loop {
        let request = match requests.try_recv() {
            Ok(request) => request?,
            Err(TryRecvError::Empty) => {
                sleep(LOOK_FOR_REQUESTS).await;
                continue;
            }
            Err(TryRecvError::Disconnected) => Request::Close,
        };
        let done = match request {
            Request::Run(plan) => run(&settings, plan).await,
            Request::Settle => settle().await.map(|()| json!({})),
            Request::Close => {
                storage().close().await;
                let closed = storage()
                    .fatal()
                    .map_or(Ok(json!({})), |why| Err(text(why)));
                return answer(closed);
            }
        };
        answer(done)?;
    }
}

async fn settle() -> Outcome<()> {
    storage().checkpoint().await.map(drop).map_err(text)
}

async fn run(settings: &Settings, plan: Plan) -> Outcome<Value> {
    let values = Arc::new(Values::new(plan.value_bytes));
    let wait_durable = settings.durability == Durability::Commit;
    let cores = settings.cores;
    let mut meter = Meter::start()?;
    // A task each: within one they would share its turns.
    let parts = join_all((0..clients(&plan)).map(|number| {
        let values = values.clone();
        let core = CoreId((number % cores) as u16);
        let on_core = submit_to(core, Queue::Foreground, move || async move {
            let client = Client {
                plan,
                number,
                values: &values,
            };
            client.run(PinionSession::new(wait_durable)).await
        });
        spawn(Queue::Foreground, on_core)
    }))
    .await;
    meter.acknowledged();
    if plan.settle {
        settle().await?;
    }
    let mut counted = Counted::default();
    for part in parts {
        counted.add(part.map_err(|_| "a client was stopped")??);
    }
    let mut done = meter.finish(&counted, &settings.dir)?;
    let stats = storage().stats();
    done["delta_bytes"] = stats.delta_bytes.into();
    done["checkpoints"] = stats.checkpoints.into();
    done["page_cache_bytes"] = stats.cache_bytes.into();
    Ok(done)
}

struct PinionSession {
    storage: Rc<Storage>,
    at: ReadAt,
    /// Of this core's partitions. Those of others keep a snapshot for longer than one is read at.
    pins: Vec<SnapshotPin>,
    wait_durable: bool,
}

impl PinionSession {
    fn new(wait_durable: bool) -> PinionSession {
        PinionSession {
            storage: storage(),
            at: ReadAt::Newest,
            pins: Vec::new(),
            wait_durable,
        }
    }

    /// Writes records, each a statement of its own, and waits as the settings say. What memory
    /// refuses is tried again.
    async fn write(&self, mut records: impl Iterator<Item = Statement> + Clone) -> Outcome<()> {
        loop {
            let outcomes = self.storage.execute(records.clone().collect(), true).await;
            let mut last = None;
            let mut refused = false;
            for outcome in outcomes {
                match outcome {
                    Ok(ts) => {
                        last = Some(ts);
                        records.next();
                    }
                    Err(WriteError::CacheFull) => {
                        refused = true;
                        break;
                    }
                    Err(why) => return Err(text(why)),
                }
            }
            if let (true, Some(ts)) = (self.wait_durable, last) {
                self.storage.wait_durable(ts).await.map_err(text)?;
            }
            if !refused {
                return Ok(());
            }
            sleep(TRY_AGAIN).await;
        }
    }
}

impl Session for PinionSession {
    async fn refresh(&mut self) -> Outcome<()> {
        let ts = self.storage.visible();
        let local = (0..self.storage.partition_count())
            .filter_map(|partition| self.storage.partition(PartitionId(partition)));
        self.pins = local
            .map(|partition| partition.pin(ts).map_err(text))
            .collect::<Outcome<_>>()?;
        self.at = ReadAt::At(ts);
        Ok(())
    }

    async fn get(&mut self, key: &Key, mut see: impl FnMut(&[u8])) -> Outcome<bool> {
        let (number, at) = (self.storage.partition_of_hash(key), self.at);
        let read = match self.storage.partition(number) {
            Some(partition) => partition.get(TREE, key, at).await,
            None => {
                let key = *key;
                submit_to(
                    self.storage.owner(number),
                    Queue::Foreground,
                    move || async move {
                        let partition = storage().partition(number).expect("its owner has it");
                        partition.get(TREE, &key, at).await
                    },
                )
                .await
            }
        };
        let read = read.map_err(text)?;
        Ok(read.map(|read| see(&read.value)).is_some())
    }

    async fn scan(
        &mut self,
        from: Option<&Key>,
        limit: usize,
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Outcome<usize> {
        // Merging partitions is not storage's part.
        if self.storage.partition_count() != 1 {
            return Err("scans are measured with one partition".into());
        }
        let partition = self
            .storage
            .partition(PartitionId(0))
            .ok_or("no partition 0")?;
        let range = KeyRange {
            lower: from.map_or(Bound::Unbounded, |key| {
                Bound::Included(StoredKey::from_slice(key))
            }),
            upper: Bound::Unbounded,
        };
        let mut cursor = partition.cursor(TREE, range, Direction::Forward, self.at);
        let mut seen = 0;
        while seen < limit
            && let Some((key, read)) = cursor.next().await.map_err(text)?
        {
            see(&key, &read.value);
            seen += 1;
            if seen.is_multiple_of(64) {
                self.breathe().await;
            }
        }
        Ok(seen)
    }

    async fn put(&mut self, key: &Key, value: &[u8]) -> Outcome<()> {
        self.write(std::iter::once(()).map(|()| statement(key, value)))
            .await
    }

    async fn put_all(&mut self, records: &[(Key, Vec<u8>)]) -> Outcome<()> {
        self.write(records.iter().map(|(key, value)| statement(key, value)))
            .await
    }

    async fn breathe(&mut self) {
        if should_yield() {
            yield_now().await;
        }
    }

    async fn sleep(&mut self, time: Duration) {
        sleep(time).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_gives_back_what_it_was_made_of() {
        let key = crate::data::key(7);
        let entry = entry(&key, b"a value").bytes;
        assert_eq!(
            entry.len() as u32,
            u32::from_le_bytes(entry[..4].try_into().unwrap())
        );
        assert_eq!(entry[KEY_AT..KEY_AT + KEY_BYTES], key);
        assert_eq!(&entry[VALUE_AT..entry.len() - 1], b"a value");
    }
}
