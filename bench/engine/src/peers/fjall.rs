//! fjall.

use std::ops::Bound;
use std::time::{Duration, Instant};

use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot,
};

use crate::data::Key;
use crate::session::{Durability, Outcome, Peer, Session, Settings, text};

/// No flush and no compaction for so long: none is left. There is no call that waits for them.
const QUIET: Duration = Duration::from_millis(50);

pub struct Fjall {
    database: Database,
    records: Keyspace,
    each_commit: bool,
}

pub struct FjallSession<'a> {
    fjall: &'a Fjall,
    snapshot: Option<Snapshot>,
}

impl Peer for Fjall {
    type Session<'a> = FjallSession<'a>;

    fn version(&self, _: &Settings) -> String {
        "fjall 3.1 (crates.io)".into()
    }

    fn about(settings: &Settings) -> String {
        let sync = match settings.durability {
            Durability::Interval => "journal written at each commit and synced every 100 ms",
            Durability::Commit => "PersistMode::SyncData at each commit",
        };
        format!(
            "{sync}; cache {} MiB, {} worker threads, no compression, expect_point_read_hits off",
            settings.cache_bytes >> 20,
            settings.cores
        )
    }

    fn open(settings: &Settings) -> Outcome<Fjall> {
        let database = Database::builder(&settings.dir)
            .cache_size(settings.cache_bytes)
            .worker_threads(settings.cores)
            .journal_compression(CompressionType::None)
            .open()
            .map_err(text)?;
        let records = database
            .keyspace("records", || {
                KeyspaceCreateOptions::default()
                    .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
                    .index_block_compression_policy(CompressionPolicy::all(CompressionType::None))
            })
            .map_err(text)?;
        Ok(Fjall {
            database,
            records,
            each_commit: settings.durability == Durability::Commit,
        })
    }

    fn session(&self) -> Outcome<FjallSession<'_>> {
        Ok(FjallSession {
            fjall: self,
            snapshot: None,
        })
    }

    fn sync(&self) -> Outcome<()> {
        self.database.persist(PersistMode::SyncData).map_err(text)
    }

    fn settle(&self) -> Outcome<()> {
        self.records.rotate_memtable_and_wait().map_err(text)?;
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET {
            if self.database.outstanding_flushes() > 0
                || self.database.active_compactions() > 0
                || self.records.sealed_memtable_count() > 0
            {
                quiet_since = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn close(self) -> Outcome<()> {
        self.settle()?;
        self.database.persist(PersistMode::SyncAll).map_err(text)
    }
}

impl FjallSession<'_> {
    fn committed(&self) -> Outcome<()> {
        if self.fjall.each_commit {
            self.fjall.sync()?;
        }
        Ok(())
    }
}

impl Session for FjallSession<'_> {
    async fn refresh(&mut self) -> Outcome<()> {
        self.snapshot = None;
        self.snapshot = Some(self.fjall.database.snapshot());
        Ok(())
    }

    async fn get(&mut self, key: &Key, mut see: impl FnMut(&[u8])) -> Outcome<bool> {
        let snapshot = self.snapshot.as_ref().ok_or("no snapshot was taken")?;
        let value = snapshot.get(&self.fjall.records, key).map_err(text)?;
        Ok(value.map(|value| see(&value)).is_some())
    }

    async fn scan(
        &mut self,
        from: Option<&Key>,
        limit: usize,
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Outcome<usize> {
        let snapshot = self.snapshot.as_ref().ok_or("no snapshot was taken")?;
        let lower = from.map_or(Bound::Unbounded, |key| Bound::Included(*key));
        let mut seen = 0;
        for record in snapshot
            .range(&self.fjall.records, (lower, Bound::Unbounded))
            .take(limit)
        {
            let (key, value) = record.into_inner().map_err(text)?;
            see(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }

    async fn put(&mut self, key: &Key, value: &[u8]) -> Outcome<()> {
        self.fjall
            .records
            .insert(key.as_slice(), value)
            .map_err(text)?;
        self.committed()
    }

    async fn put_all(&mut self, records: &[(Key, Vec<u8>)]) -> Outcome<()> {
        let mut batch = self.fjall.database.batch();
        for (key, value) in records {
            batch.insert(&self.fjall.records, key.as_slice(), value.as_slice());
        }
        batch.commit().map_err(text)?;
        self.committed()
    }
}
