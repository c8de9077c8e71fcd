//! LMDB, through heed.

use std::ops::Bound;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RoTxn, WithTls};

use crate::data::Key;
use crate::session::{Durability, Outcome, Peer, Session, Settings, text};

pub struct Lmdb {
    env: Env,
    records: Database<'static, Bytes, Bytes>,
}

pub struct LmdbSession<'a> {
    lmdb: &'a Lmdb,
    snapshot: Option<RoTxn<'a, WithTls>>,
}

impl Peer for Lmdb {
    type Session<'a> = LmdbSession<'a>;

    fn version(&self, _: &Settings) -> String {
        let version = heed::lmdb_version();
        format!(
            "LMDB {}.{}.{} (crates.io, heed 0.23)",
            version.major, version.minor, version.patch
        )
    }

    fn about(settings: &Settings) -> String {
        let sync = match settings.durability {
            Durability::Interval => {
                "MDB_NOSYNC and mdb_env_sync every 100 ms; between two syncs a power cut may damage the file"
            }
            Durability::Commit => "sync at each commit",
        };
        format!(
            "{sync}; MDB_NORDAHEAD; its cache is the kernel's page cache, which no budget bounds"
        )
    }

    fn open(settings: &Settings) -> Outcome<Lmdb> {
        std::fs::create_dir_all(&settings.dir).map_err(text)?;
        let mut options = EnvOpenOptions::new();
        options
            .map_size((settings.data_bytes as usize * 3 + (4 << 30)).next_multiple_of(1 << 20))
            .max_readers(settings.clients as u32 + 8);
        // Reading ahead serves neither data in memory nor random reads beyond it.
        let mut flags = EnvFlags::NO_READ_AHEAD;
        if settings.durability == Durability::Interval {
            flags |= EnvFlags::NO_SYNC;
        }
        // SAFETY: nothing else opens or changes the directory while this process has it.
        let env = unsafe { options.flags(flags).open(&settings.dir) }.map_err(text)?;
        let txn = env.write_txn().map_err(text)?;
        let records = env
            .create_databases_and_commit(txn, |tables, txn| {
                let records = tables.create_database::<Bytes, Bytes>(txn, None)?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(records))
            })
            .map_err(text)?
            .unwrap_commit();
        Ok(Lmdb { env, records })
    }

    fn session(&self) -> Outcome<LmdbSession<'_>> {
        Ok(LmdbSession {
            lmdb: self,
            snapshot: None,
        })
    }

    fn sync(&self) -> Outcome<()> {
        self.env.force_sync().map_err(text)
    }

    fn settle(&self) -> Outcome<()> {
        self.sync()
    }

    fn close(self) -> Outcome<()> {
        self.sync()?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

impl LmdbSession<'_> {
    fn snapshot(&self) -> Outcome<&RoTxn<'_, WithTls>> {
        self.snapshot.as_ref().ok_or("no snapshot was taken".into())
    }
}

impl Session for LmdbSession<'_> {
    async fn refresh(&mut self) -> Outcome<()> {
        self.snapshot = None;
        self.snapshot = Some(self.lmdb.env.read_txn().map_err(text)?);
        Ok(())
    }

    async fn get(&mut self, key: &Key, mut see: impl FnMut(&[u8])) -> Outcome<bool> {
        let value = self.lmdb.records.get(self.snapshot()?, key).map_err(text)?;
        Ok(value.map(&mut see).is_some())
    }

    async fn scan(
        &mut self,
        from: Option<&Key>,
        limit: usize,
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Outcome<usize> {
        let lower = from.map_or(Bound::Unbounded, |key| Bound::Included(key.as_slice()));
        let range = (lower, Bound::Unbounded);
        let records = self
            .lmdb
            .records
            .range(self.snapshot()?, &range)
            .map_err(text)?;
        let mut seen = 0;
        for record in records.take(limit) {
            let (key, value) = record.map_err(text)?;
            see(key, value);
            seen += 1;
        }
        Ok(seen)
    }

    async fn put(&mut self, key: &Key, value: &[u8]) -> Outcome<()> {
        let mut txn = self.lmdb.env.write_txn().map_err(text)?;
        self.lmdb.records.put(&mut txn, key, value).map_err(text)?;
        txn.commit().map_err(text)
    }

    async fn put_all(&mut self, records: &[(Key, Vec<u8>)]) -> Outcome<()> {
        let mut txn = self.lmdb.env.write_txn().map_err(text)?;
        for (key, value) in records {
            self.lmdb.records.put(&mut txn, key, value).map_err(text)?;
        }
        txn.commit().map_err(text)
    }
}
