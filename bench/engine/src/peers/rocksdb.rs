//! RocksDB, through rust-rocksdb.

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRawIterator, Options, ReadOptions, Snapshot,
    WaitForCompactOptions, WriteBatch, WriteBufferManager, WriteOptions,
};

use crate::data::Key;
use crate::session::{Durability, Outcome, Peer, Session, Settings, text};

pub struct RocksDb {
    db: DB,
    each_commit: bool,
}

pub struct RocksDbSession<'a> {
    db: &'a DB,
    write: WriteOptions,
    // In the order in which they must go: what reads at the snapshot before it.
    cursor: Option<DBRawIterator<'a>>,
    read: ReadOptions,
    snapshot: Option<Snapshot<'a>>,
}

/// The library writes its own version into a file beside the data; it has no call that returns it.
fn written_version(dir: &std::path::Path) -> Option<String> {
    let entries = std::fs::read_dir(dir).ok()?;
    let options = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("OPTIONS-"))
        })?;
    let text = std::fs::read_to_string(options).ok()?;
    let version = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("rocksdb_version="))?;
    Some(version.to_owned())
}

impl Peer for RocksDb {
    type Session<'a> = RocksDbSession<'a>;

    fn version(&self, settings: &Settings) -> String {
        let version = written_version(&settings.dir).unwrap_or("of unknown version".into());
        format!("RocksDB {version} ({})", env!("ROCKSDB_FROM"))
    }

    fn about(settings: &Settings) -> String {
        let sync = match settings.durability {
            Durability::Interval => "WAL written at each commit and synced every 100 ms",
            Durability::Commit => "sync = true",
        };
        format!(
            "{sync}; HyperClockCache of {} MiB that memtables are charged to, bloom filter of 10 bits, blocks of \
             4 KiB, format 6, no compression, direct I/O off, {} background jobs, dynamic levels",
            settings.cache_bytes >> 20,
            settings.cores.max(2)
        )
    }

    fn open(settings: &Settings) -> Outcome<RocksDb> {
        let cache = Cache::new_hyper_clock_cache(settings.cache_bytes as usize, 0);
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&cache);
        blocks.set_bloom_filter(10.0, false);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        blocks.set_format_version(6);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        options.set_compression_type(DBCompressionType::None);
        options.set_max_background_jobs(settings.cores.max(2) as i32);
        options.set_level_compaction_dynamic_level_bytes(true);
        // Memtables take from the same budget as blocks, up to the part that Pinion's changes may
        // take.
        let memtables = settings.cache_bytes as usize / 100 * 40;
        options.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager_with_cache(
            memtables, false, cache,
        ));
        options.set_write_buffer_size((memtables / 4).clamp(4 << 20, 64 << 20));
        options.set_max_write_buffer_number(4);
        let db = DB::open(&options, &settings.dir).map_err(text)?;
        Ok(RocksDb {
            db,
            each_commit: settings.durability == Durability::Commit,
        })
    }

    fn session(&self) -> Outcome<RocksDbSession<'_>> {
        let mut write = WriteOptions::default();
        write.set_sync(self.each_commit);
        Ok(RocksDbSession {
            db: &self.db,
            write,
            cursor: None,
            read: ReadOptions::default(),
            snapshot: None,
        })
    }

    fn sync(&self) -> Outcome<()> {
        self.db.flush_wal(true).map_err(text)
    }

    fn settle(&self) -> Outcome<()> {
        self.db.flush().map_err(text)?;
        let mut options = WaitForCompactOptions::default();
        options.set_flush(true);
        self.db.wait_for_compact(&options).map_err(text)
    }

    fn close(self) -> Outcome<()> {
        self.settle()
    }
}

impl Session for RocksDbSession<'_> {
    async fn refresh(&mut self) -> Outcome<()> {
        self.cursor = None;
        let snapshot = self.db.snapshot();
        self.read = ReadOptions::default();
        self.read.set_snapshot(&snapshot);
        self.snapshot = Some(snapshot);
        Ok(())
    }

    async fn get(&mut self, key: &Key, mut see: impl FnMut(&[u8])) -> Outcome<bool> {
        let value = self.db.get_pinned_opt(key, &self.read).map_err(text)?;
        Ok(value.map(|value| see(&value)).is_some())
    }

    async fn scan(
        &mut self,
        from: Option<&Key>,
        limit: usize,
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Outcome<usize> {
        let snapshot = self.snapshot.as_ref().ok_or("no snapshot was taken")?;
        let db = self.db;
        let cursor = self.cursor.get_or_insert_with(|| {
            let mut options = ReadOptions::default();
            options.set_snapshot(snapshot);
            db.raw_iterator_opt(options)
        });
        match from {
            Some(key) => cursor.seek(key),
            None => cursor.seek_to_first(),
        }
        let mut seen = 0;
        while seen < limit
            && let Some((key, value)) = cursor.item()
        {
            see(key, value);
            seen += 1;
            cursor.next();
        }
        cursor.status().map_err(text)?;
        Ok(seen)
    }

    async fn put(&mut self, key: &Key, value: &[u8]) -> Outcome<()> {
        self.db.put_opt(key, value, &self.write).map_err(text)
    }

    async fn put_all(&mut self, records: &[(Key, Vec<u8>)]) -> Outcome<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in records {
            batch.put(key, value);
        }
        self.db.write_opt(batch, &self.write).map_err(text)
    }
}
