//! redb.

use std::ops::Bound;
use std::sync::Mutex;
use std::time::Instant;

use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition};

use crate::data::Key;
use crate::session::{Durability, Outcome, Peer, SYNC_INTERVAL, Session, Settings, text};

const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");

pub struct Redb {
    database: Database,
    each_commit: bool,
    /// When a commit was last made durable.
    synced: Mutex<Instant>,
}

pub struct RedbSession<'a> {
    redb: &'a Redb,
    snapshot: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
}

impl Redb {
    fn write(&self, records: &[(Key, impl AsRef<[u8]>)], durable: bool) -> Outcome<()> {
        let mut txn = self.database.begin_write().map_err(text)?;
        let durability = if durable {
            redb::Durability::Immediate
        } else {
            redb::Durability::None
        };
        txn.set_durability(durability).map_err(text)?;
        {
            let mut table = txn.open_table(RECORDS).map_err(text)?;
            for (key, value) in records {
                table.insert(key.as_slice(), value.as_ref()).map_err(text)?;
            }
        }
        txn.commit().map_err(text)
    }

    /// A commit is durable itself, or the first after the interval makes all before it so.
    fn commit(&self, records: &[(Key, impl AsRef<[u8]>)]) -> Outcome<()> {
        let due = {
            let mut synced = self.synced.lock().map_err(text)?;
            let due = synced.elapsed() >= SYNC_INTERVAL;
            if due {
                *synced = Instant::now();
            }
            due
        };
        self.write(records, self.each_commit || due)
    }
}

impl Peer for Redb {
    type Session<'a> = RedbSession<'a>;

    fn version(&self, _: &Settings) -> String {
        "redb 4.5 (crates.io)".into()
    }

    fn about(settings: &Settings) -> String {
        let sync = match settings.durability {
            Durability::Interval => {
                "Durability::None, and Immediate for the first commit after each 100 ms"
            }
            Durability::Commit => "Durability::Immediate",
        };
        format!("{sync}; cache {} MiB", settings.cache_bytes >> 20)
    }

    fn open(settings: &Settings) -> Outcome<Redb> {
        std::fs::create_dir_all(&settings.dir).map_err(text)?;
        let database = Database::builder()
            .set_cache_size(settings.cache_bytes as usize)
            .create(settings.dir.join("records.redb"))
            .map_err(text)?;
        let redb = Redb {
            database,
            each_commit: settings.durability == Durability::Commit,
            synced: Mutex::new(Instant::now()),
        };
        // The table is there from the first read on.
        redb.write(&[] as &[(Key, &[u8])], true)?;
        Ok(redb)
    }

    fn session(&self) -> Outcome<RedbSession<'_>> {
        Ok(RedbSession {
            redb: self,
            snapshot: None,
        })
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn settle(&self) -> Outcome<()> {
        self.write(&[] as &[(Key, &[u8])], true)
    }

    fn close(self) -> Outcome<()> {
        self.settle()?;
        self.database.close().map_err(text)
    }
}

impl Session for RedbSession<'_> {
    async fn refresh(&mut self) -> Outcome<()> {
        self.snapshot = None;
        let txn = self.redb.database.begin_read().map_err(text)?;
        self.snapshot = Some(txn.open_table(RECORDS).map_err(text)?);
        Ok(())
    }

    async fn get(&mut self, key: &Key, mut see: impl FnMut(&[u8])) -> Outcome<bool> {
        let table = self.snapshot.as_ref().ok_or("no snapshot was taken")?;
        let value = table.get(key.as_slice()).map_err(text)?;
        Ok(value.map(|value| see(value.value())).is_some())
    }

    async fn scan(
        &mut self,
        from: Option<&Key>,
        limit: usize,
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Outcome<usize> {
        let table = self.snapshot.as_ref().ok_or("no snapshot was taken")?;
        let lower = from.map_or(Bound::Unbounded, |key| Bound::Included(key.as_slice()));
        let records = table
            .range::<&[u8]>((lower, Bound::Unbounded))
            .map_err(text)?;
        let mut seen = 0;
        for record in records.take(limit) {
            let (key, value) = record.map_err(text)?;
            see(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }

    async fn put(&mut self, key: &Key, value: &[u8]) -> Outcome<()> {
        self.redb.commit(&[(*key, value)])
    }

    async fn put_all(&mut self, records: &[(Key, Vec<u8>)]) -> Outcome<()> {
        self.redb.commit(records)
    }
}
