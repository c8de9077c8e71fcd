//! What is left of open and prepared units after crashes, wherever checkpoints lie.

use super::*;

/// Lives of a node, each with what was prepared when it began, until all are through.
fn lives<F, Fut>(cores: usize, options: StorageOptions, count: usize, live: F)
where
    F: Fn(usize, BTreeMap<Timestamp, PreparedUnit>) -> Fut + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let sim = Sim::new(11, SimOptions::default());
    let life = Rc::new(Cell::new(0));
    let done = life.clone();
    let node = sim.add_node("node", cores, move |core| {
        let (options, live, life) = (options.clone(), live.clone(), life.clone());
        async move {
            if core == CoreId(0) {
                let applier = TestApplier::default();
                let restored = applier.restored.clone();
                open(options).await.unwrap().recover(applier).await.unwrap();
                live(life.get(), restored.take()).await;
                life.set(life.get() + 1);
            }
            std::future::pending().await
        }
    });
    for nth in 1..=count {
        sim.run_until(|| done.get() == nth).unwrap();
        sim.crash(node, Death::PowerCut);
        if nth < count {
            sim.restart(node, cores);
        }
    }
}

#[test]
fn what_is_open_is_gone_after_a_crash_and_what_is_committed_is_whole() {
    lives(3, options(), 3, |life, restored| async move {
        let storage = storage();
        assert!(restored.is_empty());
        let all: Vec<Write> = (0..20).map(|key| put(key, "committed")).collect();
        match life {
            0 => {
                let mut unit = begin().await;
                let mut other = begin().await;
                let others = (30..50).map(|key| put(key, "open")).collect();
                storage.write_unit(&mut unit, all.clone()).await.unwrap();
                storage.write_unit(&mut other, others).await.unwrap();
                // A checkpoint holds nothing of what is open.
                execute(vec![put(60, "alone")]).await.unwrap();
                storage.checkpoint().await.unwrap();
                let entries = all
                    .chunks(5)
                    .enumerate()
                    .map(|(nth, part)| {
                        let kind = if nth < 3 { Kind::Part } else { Kind::Writes };
                        entry_of(kind, &[], part)
                    })
                    .collect();
                let ts = storage
                    .commit_unit(unit, entries, Vec::new())
                    .await
                    .unwrap();
                storage.wait_durable(ts).await.unwrap();
            }
            _ => {
                let mut expected: Vec<(u64, &str)> =
                    (0..20).map(|key| (key, "committed")).collect();
                expected.push((60, "alone"));
                let found = scan(ReadAt::Newest, Direction::Forward).await;
                assert_eq!(found, pairs(&expected));
                assert_eq!(records().await, 21);
                storage.checkpoint().await.unwrap();
            }
        }
    });
}

#[test]
fn what_is_prepared_survives_crashes_whatever_checkpoints_come() {
    // Small segments, so that the log would be given up where nothing kept it.
    let options = StorageOptions {
        segment_bytes: 8 * 4096,
        ..options()
    };
    lives(2, options, 5, |life, restored| async move {
        let storage = storage();
        let fill = || async {
            for key in 100..300 {
                execute(vec![put(key, &"f".repeat(1000))]).await.unwrap();
            }
            storage.checkpoint().await.unwrap();
        };
        if life == 0 {
            execute(vec![put(1, "old"), put(2, "old")]).await.unwrap();
            let writes = [put(1, "new"), delete(2), put(3, "new")];
            let mut unit = begin().await;
            storage
                .write_unit(&mut unit, writes.to_vec())
                .await
                .unwrap();
            let unit = prepare(unit, &writes).await.unwrap();
            storage
                .wait_durable(unit.prepare_timestamp())
                .await
                .unwrap();
            fill().await;
            fill().await;
            return;
        }
        if life < 4 {
            assert_eq!(restored.len(), 1, "in life {life}");
            let (&ts, unit) = restored.first_key_value().unwrap();
            assert!(
                storage
                    .log_first()
                    .await
                    .unwrap()
                    .is_some_and(|first| first <= ts)
            );
            assert_eq!(unit.prepare_timestamp(), ts);
            assert!(
                waits(1, ReadAt::Newest).await && waits(3, ReadAt::At(storage.visible())).await
            );
            assert_eq!(records().await, 202);
            fill().await;
            if life == 3 {
                let ended = commit_prepared(unit, ts).await.unwrap();
                fill().await;
                fill().await;
                storage.wait_durable(ended).await.unwrap();
                let kept = storage.log_first().await.unwrap();
                assert!(
                    kept.is_none_or(|first| first > ts),
                    "the log is kept for nobody"
                );
            }
            return;
        }
        assert!(restored.is_empty());
        assert_eq!(read(1, ReadAt::Newest).await.as_deref(), Some("new"));
        assert_eq!(read(2, ReadAt::Newest).await, None);
        assert_eq!(read(3, ReadAt::Newest).await.as_deref(), Some("new"));
        assert_eq!(records().await, 202);
    });
}

/// On a member the base stays below what is stable: the outcome, or half of a transaction's
/// entries, may lie above it.
#[test]
fn a_checkpoint_between_the_entries_of_a_transaction_keeps_them_all() {
    let options = StorageOptions {
        is_member: true,
        segment_bytes: 4 * 4096,
        ..options()
    };
    lives(2, options, 3, |life, restored| async move {
        let storage = storage();
        assert!(restored.is_empty());
        let large = |key| put(key, &"l".repeat(3000));
        if life == 0 {
            execute(vec![put(1, "old")]).await.unwrap();
            let writes: Vec<Write> = (10..30).map(large).collect();
            let mut unit = begin().await;
            storage.write_unit(&mut unit, writes.clone()).await.unwrap();
            let entries: Vec<Entry> = writes
                .iter()
                .enumerate()
                .map(|(nth, write)| {
                    let kind = if nth < 19 { Kind::Part } else { Kind::Writes };
                    entry_of(kind, &[], std::slice::from_ref(write))
                })
                .collect();
            let ts = storage
                .commit_unit(unit, entries, Vec::new())
                .await
                .unwrap();
            // In the midst of them.
            storage.set_stable(Timestamp::from_u64(ts.as_u64() - 5));
            storage.checkpoint().await.unwrap();
            storage.checkpoint_merging_all().await.unwrap();
            storage.wait_durable(ts).await.unwrap();
            return;
        }
        assert_eq!(records().await, 21);
        assert_eq!(scan(ReadAt::Newest, Direction::Forward).await.len(), 21);
        let last = storage.last_allotted();
        storage.set_stable(last);
        storage.checkpoint().await.unwrap();
    });
}
