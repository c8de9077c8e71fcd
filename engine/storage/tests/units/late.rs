//! Units that were prepared and are committed behind readers and checkpoints.

use super::*;

/// A commit below the base is seen by every read at or above it, whatever checkpoints come.
#[test]
fn a_late_commit_is_seen_by_older_snapshots() {
    run(2, options(), |storage| async move {
        execute(vec![put(1, "old"), put(2, "old")]).await.unwrap();
        let mut unit = begin().await;
        storage
            .write_unit(&mut unit, vec![put(1, "new")])
            .await
            .unwrap();
        let unit = prepare(unit, &[put(1, "new")]).await.unwrap();
        let mut holds = Vec::new();
        for _ in 0..4 {
            let at = execute(vec![put(2, "filler")]).await.unwrap();
            holds.push(storage.hold_snapshot(at).await.unwrap());
            execute(vec![put(3, "filler")]).await.unwrap();
            storage.checkpoint_merging_all().await.unwrap();
        }
        let commit = holds[1].timestamp();
        commit_prepared(&unit, commit).await.unwrap();
        for round in 0..4 {
            for (nth, hold) in holds.iter().enumerate() {
                let expected = if nth < 1 { "old" } else { "new" };
                let found = read(1, ReadAt::At(hold.timestamp())).await;
                assert_eq!(
                    found.as_deref(),
                    Some(expected),
                    "round {round}, snapshot {nth}"
                );
            }
            execute(vec![put(3, "filler")]).await.unwrap();
            storage.checkpoint_merging_all().await.unwrap();
        }
        assert_eq!(records().await, 3);
        for hold in holds {
            storage.release_snapshot(hold).await;
        }
    });
}

/// A reader that does not wait for what is prepared sees all of it or nothing, whenever in between
/// it is committed behind the reader, and whatever checkpoints come.
#[test]
fn a_late_commit_is_seen_as_a_whole_without_waiting() {
    run(2, options(), |storage| async move {
        let all = |value: &str| (0..8).map(|key| put(key, value)).collect::<Vec<Write>>();
        execute(all("old")).await.unwrap();
        let mut unit = begin().await;
        storage
            .write_unit(&mut unit, [all("new"), vec![put(8, "new")]].concat())
            .await
            .unwrap();
        let unit = prepare(unit, &all("new")).await.unwrap();
        let earlier = execute(vec![put(20, "filler")]).await.unwrap();
        let at = ReadAt::DecidedAt(execute(vec![put(21, "filler")]).await.unwrap());
        let hold = storage.hold_snapshot(at_of(at)).await.unwrap();
        let seen = |value: &'static str, at: ReadAt| async move {
            let found = scan(at, Direction::Forward).await;
            let of_unit = found.into_iter().filter(|(key, _)| *key < 20);
            let values: Vec<String> = of_unit.map(|(_, value)| value).collect();
            let len = if value == "new" { 9 } else { 8 };
            assert_eq!(values, vec![value; len], "{at:?}");
        };
        // A reader that has seen one partition before the commit, and sees the others after it.
        let first = read(0, at).await;
        assert_eq!(first.as_deref(), Some("old"));
        let decided = commit_prepared(&unit, earlier).await.unwrap();
        for round in 0..3 {
            seen("old", at).await;
            seen("new", ReadAt::At(at_of(at))).await;
            seen("new", ReadAt::DecidedAt(decided)).await;
            for key in 0..8 {
                let found = read(key, at).await;
                assert_eq!(found.as_deref(), Some("old"), "{key} in round {round}");
            }
            execute(vec![put(22, "filler")]).await.unwrap();
            storage.checkpoint_merging_all().await.unwrap();
        }
        storage.release_snapshot(hold).await;
    });
}

fn at_of(at: ReadAt) -> Timestamp {
    match at {
        ReadAt::DecidedAt(ts) => ts,
        at => panic!("{at:?}"),
    }
}
