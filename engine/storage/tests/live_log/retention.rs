//! What is kept of the log, for which readers, and the error of one whose entries were given up.

use std::cell::Cell;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::sim::{Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Queue, fs, now, sleep, spawn, submit_to};
use pinion_storage::{
    Applier, ApplyError, LogCursor, LogReadError, LogRetention, StorageOptions, open, storage,
};

use super::model::number_of;
use super::statement;

struct Ignored;

impl Applier for Ignored {
    async fn apply(&self, _: Timestamp, _: bytes::Bytes) -> Result<(), ApplyError> {
        Ok(())
    }
}

/// Opens and closes one directory with each of these numbers of cores, and runs `test` with the
/// number of each life.
fn run<F, Fut>(cores: &[usize], options: StorageOptions, test: F)
where
    F: Fn(usize) -> Fut + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let sim = Sim::new(7, SimOptions::default());
    let life = Rc::new(Cell::new(0));
    let done = Rc::new(Cell::new(false));
    let (lives, ended) = (life.clone(), done.clone());
    let node = sim.add_node("node", cores[0], move |core| {
        let (options, test) = (options.clone(), test.clone());
        let (life, done) = (life.clone(), done.clone());
        async move {
            if core != CoreId(0) {
                while !done.get() {
                    sleep(Duration::from_millis(1)).await;
                }
                return;
            }
            open(options).await.unwrap().recover(Ignored).await.unwrap();
            test(life.get()).await;
            storage().close().await;
            done.set(true);
        }
    });
    for (nth, _) in cores.iter().enumerate() {
        sim.run_until_down(node).unwrap();
        assert!(ended.take(), "life {nth} did not run to its end");
        lives.set(nth + 1);
        if let Some(&cores) = cores.get(nth + 1) {
            sim.restart(node, cores);
        }
    }
}

const KEEP: u64 = 512 * 1024;

fn keep(bytes: u64) -> Option<LogRetention> {
    let min_age = Duration::ZERO;
    Some(LogRetention { bytes, min_age })
}

fn options(bytes: Option<u64>) -> StorageOptions {
    StorageOptions {
        partitions: Some(4),
        checkpoint_interval: Duration::MAX,
        segment_bytes: 64 * 1024,
        log_tail_bytes: 16 * 1024,
        log_retention: bytes.and_then(keep),
        ..StorageOptions::new("/srv/pinion/data")
    }
}

/// What documents of the log take, read one by one.
async fn document_bytes() -> u64 {
    let mut cursor = storage().log_after(Timestamp::MIN);
    let mut bytes = 0;
    loop {
        let batch = cursor.next_batch(50, 1 << 20).await.unwrap();
        if batch.is_empty() {
            return bytes;
        }
        bytes += batch
            .iter()
            .map(|(_, entry)| entry.len() as u64)
            .sum::<u64>();
    }
}

/// Writes entries of about 2 KB with these numbers, spread over the cores.
async fn write(numbers: std::ops::Range<u64>) -> Timestamp {
    let mut last = Timestamp::MIN;
    for number in numbers {
        let statement = statement(number, 2000, &[number]);
        let mut outcomes = storage().execute(vec![statement], true).await;
        last = outcomes.pop().unwrap().unwrap();
    }
    storage().wait_durable(last).await.unwrap();
    last
}

async fn read(cursor: &mut LogCursor) -> Result<Vec<u64>, LogReadError> {
    let mut numbers = Vec::new();
    loop {
        let batch = cursor.next_batch(50, 1 << 20).await?;
        if batch.is_empty() {
            return Ok(numbers);
        }
        numbers.extend(batch.iter().map(|(ts, entry)| number_of(*ts, entry)));
    }
}

async fn read_all() -> Vec<u64> {
    read(&mut storage().log_after(Timestamp::MIN))
        .await
        .unwrap()
}

fn is_end_of(numbers: &[u64], end: u64) -> bool {
    let first = numbers.first().copied().unwrap_or(end);
    numbers.iter().copied().eq(first..end)
}

#[test]
fn as_many_bytes_are_kept_as_was_said_over_restarts_and_other_numbers_of_cores() {
    run(&[3, 1, 2], options(Some(KEEP)), |life| async move {
        let (begin, end) = (life as u64 * 2000, (life as u64 + 1) * 2000);
        let before = read_all().await;
        assert!(is_end_of(&before, begin));
        assert!(life == 0 || before.len() > 150, "{} entries", before.len());
        write(begin..begin + 10).await;
        let after = [before, (begin..begin + 10).collect()].concat();
        assert_eq!(read_all().await, after);
        write(begin + 10..end).await;
        assert!(is_end_of(&read_all().await, end));
        storage().checkpoint().await.unwrap();
        let numbers = read_all().await;
        assert!(is_end_of(&numbers, end));
        let stats = storage().log_stats(Timestamp::MAX).await.unwrap();
        assert!((KEEP..KEEP + 64 * 1024).contains(&stats.bytes), "{stats:?}");
        assert!((150..300).contains(&numbers.len()), "{}", numbers.len());
        assert_eq!(stats.first, storage().log_first().await.unwrap());
        assert_eq!(stats.last, storage().last_allotted());
        let about = numbers.len() as u64 * 9 / 10..numbers.len() as u64 * 11 / 10;
        assert!(
            about.contains(&stats.entries),
            "{stats:?}, {}",
            numbers.len()
        );
    });
}

#[test]
fn documents_are_counted_while_they_are_written_and_estimated_after_a_start() {
    run(&[2, 2, 1], options(Some(u64::MAX)), |life| async move {
        let stats = storage().log_stats(Timestamp::MAX).await.unwrap();
        let (entries, bytes) = (read_all().await.len() as u64, document_bytes().await);
        let about = |exact: u64| exact * 9 / 10..=exact * 11 / 10;
        assert!(
            about(entries).contains(&stats.entries) && about(bytes).contains(&stats.entry_bytes),
            "life {life}: {stats:?}, {entries} entries of {bytes} bytes"
        );
        // Each alone in its flush, so that most of a frame is empty.
        for number in 0..50 {
            let number = life as u64 * 2000 + number;
            write(number..number + 1).await;
        }
        let begin = life as u64 * 2000 + 50;
        write(begin..begin + 500).await;
        let after = storage().log_stats(Timestamp::MAX).await.unwrap();
        assert_eq!(after.entries - stats.entries, 550);
        assert_eq!(
            after.entry_bytes - stats.entry_bytes,
            document_bytes().await - bytes
        );
        assert!(after.bytes > after.entry_bytes);
    });
}

#[test]
fn a_standalone_keeps_what_no_checkpoint_has() {
    run(&[2], options(None), |_| async {
        write(0..1000).await;
        assert_eq!(read_all().await.len(), 1000);
        storage().checkpoint().await.unwrap();
        assert_eq!(read_all().await, []);
        assert_eq!(storage().log_first().await, Ok(None));
        write(1000..1003).await;
        assert_eq!(read_all().await, [1000, 1001, 1002]);
    });
}

#[test]
fn a_reader_whose_entries_were_given_up_gets_an_error() {
    run(&[2], options(Some(u64::MAX)), |_| async {
        write(0..1000).await;
        let mut behind = storage().log_after(Timestamp::MIN);
        let mut back = storage().log_backward(Timestamp::MAX);
        let mut at_end = storage().log_after(storage().last_allotted());
        assert_eq!(behind.next_batch(5, 1 << 20).await.unwrap().len(), 5);
        assert_eq!(back.next_batch(5, 1 << 20).await.unwrap().len(), 5);
        assert_eq!(read(&mut at_end).await, Ok(vec![]));
        storage().set_log_retention(None).await;
        write(1000..1001).await;
        storage().checkpoint().await.unwrap();
        assert_eq!(read(&mut behind).await, Err(LogReadError::PositionLost));
        assert_eq!(read(&mut back).await, Err(LogReadError::PositionLost));
        assert_eq!(read(&mut at_end).await, Ok(vec![1000]));
        write(1001..1002).await;
        assert_eq!(read(&mut at_end).await, Ok(vec![1001]));
    });
}

#[test]
fn a_backward_reader_comes_to_an_end_where_the_log_begins_meanwhile() {
    run(&[2], options(Some(u64::MAX)), |_| async {
        write(0..1000).await;
        let mut back = storage().log_backward(Timestamp::MAX);
        // Far enough to be reading files.
        let batch = back.next_batch(100, 1 << 20).await.unwrap();
        let mut numbers: Vec<u64> = batch.iter().map(|(ts, e)| number_of(*ts, e)).collect();
        storage().set_log_retention(keep(KEEP)).await;
        write(1000..1001).await;
        storage().checkpoint().await.unwrap();
        numbers.extend(read(&mut back).await.unwrap());
        numbers.reverse();
        assert!(is_end_of(&numbers, 1000));
        assert!((100..900).contains(&numbers.len()), "{}", numbers.len());
    });
}

/// A member that took over the data of another, and none of its log.
#[test]
fn a_log_may_begin_anywhere() {
    run(&[2, 1], options(Some(u64::MAX)), |life| async move {
        let begin = life as u64 * 100;
        let last = write(begin..begin + 40).await;
        let mut reader = storage().log_after(last);
        assert_eq!(read(&mut reader).await, Ok(vec![]));
        let pin = storage().pin_log(last).unwrap();
        storage().follow().await.unwrap();
        let above = Timestamp::from_u64(last.as_u64() + 1_000);
        storage().begin_log_at(above).await.unwrap();
        assert_eq!(read_all().await, []);
        drop(pin);
        storage().lead().await;
        write(begin + 50..begin + 100).await;
        assert_eq!(read(&mut reader).await, Err(LogReadError::PositionLost));
        assert!(read_all().await.iter().copied().eq(begin + 50..begin + 100));
        let behind = read(&mut storage().log_backward(above)).await;
        assert_eq!(behind, Ok(vec![]));
    });
}

/// Openings that write next to nothing, each of which begins segments, neither fill the disk nor
/// drive out what is kept.
#[test]
fn many_openings_take_little_of_what_is_kept() {
    run(&[2; 20], options(Some(KEEP)), |life| async move {
        let begin = life as u64 * 100;
        let count = if life == 0 { 100 } else { 2 };
        write(begin..begin + count).await;
        storage().checkpoint().await.unwrap();
        assert_eq!(read_all().await.len() as u64, 100 + 2 * life as u64);
        let rings = ["ring-00", "ring-01"].map(|ring| storage().dir().join(ring));
        let mut bytes = 0;
        for ring in rings {
            for segment in fs::read_dir(&ring).await.unwrap() {
                bytes += fs::file_len(ring.join(segment)).await.unwrap();
            }
        }
        // The segments that are written or ready to be, and what is kept.
        assert!(bytes < 2 * KEEP, "{bytes} bytes in life {life}");
    });
}

#[test]
fn a_pin_keeps_the_log_from_its_timestamp_on() {
    run(&[2], options(None), |_| async {
        write(0..500).await;
        let from = write(500..501).await;
        write(501..1000).await;
        let pin = submit_to(CoreId(1), Queue::Foreground, move || async move {
            let pin = storage().pin_log(from).unwrap();
            spawn(Queue::Foreground, async move {
                sleep(Duration::from_secs(5)).await;
                drop(pin);
            });
        });
        pin.await;
        storage().checkpoint().await.unwrap();
        assert!(read_all().await.iter().copied().eq(500..1000));
        sleep(Duration::from_secs(6)).await;
        write(1000..1001).await;
        storage().checkpoint().await.unwrap();
        assert_eq!(read_all().await, []);
        let late = storage().pin_log(from).err();
        assert_eq!(late, Some(LogReadError::PositionLost));
    });
}

#[test]
fn young_entries_stay_however_many_there_are() {
    let mut options = options(Some(1));
    options.log_retention = options.log_retention.map(|retention| LogRetention {
        min_age: Duration::from_secs(60),
        ..retention
    });
    run(&[2], options, |_| async {
        write(0..500).await;
        storage().checkpoint().await.unwrap();
        assert_eq!(read_all().await.len(), 500);
        sleep(Duration::from_secs(30)).await;
        write(500..1000).await;
        sleep(Duration::from_secs(32)).await;
        write(1000..1001).await;
        storage().checkpoint().await.unwrap();
        let numbers = read_all().await;
        assert!(is_end_of(&numbers, 1001));
        assert!((501..600).contains(&numbers.len()), "{}", numbers.len());
    });
}

#[test]
fn who_waits_for_the_end_is_woken_on_any_core() {
    run(&[3], options(None), |_| async {
        let end = write(0..10).await;
        for core in 0..3 {
            let end = storage().oplog_read_timestamp().max(end);
            let woken = spawn(
                Queue::Foreground,
                submit_to(CoreId(core), Queue::Foreground, move || async move {
                    let mut cursor = storage().log_after(end);
                    assert!(cursor.next_batch(1, 1).await.unwrap().is_empty());
                    cursor.wait().await.unwrap();
                    let at = now();
                    (at, cursor.next_batch(9, 9).await.unwrap().len())
                }),
            );
            sleep(Duration::from_secs(1)).await;
            let before = now();
            write(u64::from(core) + 10..u64::from(core) + 11).await;
            let (at, entries) = woken.await.unwrap();
            assert_eq!(entries, 1);
            assert!(at >= before && at - before < Duration::from_millis(5));
        }
    });
}
