//! Damage is named, and what is not damaged can still be read.

use std::collections::BTreeSet;

use super::*;
use crate::partition::Readable;

const KEYS: u64 = 300;

fn key(n: u64) -> String {
    format!("key {n:04}")
}

/// Walks the whole tree: the keys that came, and how many reports of damage.
async fn walk(partition: &Partition) -> (BTreeSet<Key>, usize) {
    let (all, forward) = (KeyRange::all(), Direction::Forward);
    let mut cursor = partition.cursor(TREE, all, forward, ReadAt::Newest);
    let (mut seen, mut reports) = (BTreeSet::new(), 0);
    loop {
        match cursor.next_readable().await.unwrap() {
            Readable::Record(key, _) => assert!(seen.insert(key), "a record came twice"),
            Readable::Value(..) | Readable::Page(_) => reports += 1,
            Readable::End => return (seen, reports),
        }
    }
}

#[test]
fn what_is_not_damaged_is_seen() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::hostile()).await;
        for n in 0..KEYS {
            let len = if n % 10 == 0 { 6000 } else { 40 };
            let one = put(&key(n), &"v".repeat(len));
            write(&partition, n + 1, &[one]).await.unwrap();
        }
        let roots = checkpoint(&partition, 1000).await.unwrap();
        assert_eq!(walk(&partition).await.0.len() as u64, KEYS);
        partition.close().await;
        let path = format!("{DIR}/pages");
        let file = File::open(&path, OpenOptions::write()).await.unwrap();
        let (mut damaged, mut lost) = (0, 0);
        for block in 1..roots.file_blocks {
            let offset = block * BLOCK_BYTES as u64;
            let sound = file.read_at(offset, BLOCK_BYTES).await.unwrap();
            let mut flipped = DmaBuf::padded_copy(&sound);
            flipped[100] ^= 1;
            file.write_at(offset, flipped).await.unwrap();
            let options = PartitionOptions::hostile();
            // Without the tree of trees there is no partition.
            if let Ok(partition) = Partition::open(ID, Path::new(DIR), roots, options).await {
                let (seen, reports) = walk(&partition).await;
                for n in 0..KEYS {
                    let key = key(n);
                    let read = partition.get(TREE, key.as_bytes(), ReadAt::Newest).await;
                    let came = seen.contains(key.as_bytes());
                    assert_eq!(read.is_ok(), came, "{key} with block {block} damaged");
                }
                let missing = KEYS as usize - seen.len();
                assert_eq!(missing > 0, reports > 0, "block {block}");
                damaged += reports;
                lost += missing;
                partition.close().await;
            }
            file.write_at(offset, sound).await.unwrap();
        }
        assert!(damaged > 30 && lost > damaged, "{damaged} {lost}");
    });
}

#[test]
fn damage_is_named() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::hostile()).await;
        for n in 0..120 {
            let value = if n % 10 == 0 {
                "large ".repeat(1000)
            } else {
                "v".repeat(40)
            };
            write(&partition, n + 1, &[put(&format!("key {n:04}"), &value)])
                .await
                .unwrap();
        }
        let roots = checkpoint(&partition, 200).await.unwrap();
        partition.close().await;
        let report = verify_partition(ID, Path::new(DIR), &roots).await.unwrap();
        assert!(report.problems.is_empty() && report.pages > 20);
        let path = format!("{DIR}/pages");
        let file = File::open(&path, OpenOptions::write()).await.unwrap();
        let mut rng = Rng::from_seed(8);
        let (mut found, mut harmless, mut lost) = (0, 0, 0);
        for _ in 0..400 {
            let block = rng.below(roots.file_blocks);
            let offset = block * BLOCK_BYTES as u64;
            let sound = file.read_at(offset, BLOCK_BYTES).await.unwrap();
            let mut damaged = DmaBuf::padded_copy(&sound);
            damaged[rng.below(BLOCK_BYTES as u64) as usize] ^= 1 << rng.below(8);
            file.write_at(offset, damaged).await.unwrap();
            match verify_partition(ID, Path::new(DIR), &roots).await {
                Err(ReadError::Corrupt { offset: 0, .. }) if block == 0 => found += 1,
                Err(error) => panic!("{error}"),
                Ok(report) if report.problems.is_empty() => harmless += 1,
                Ok(report) => {
                    let ReadError::Corrupt {
                        file,
                        offset: named,
                        ..
                    } = &report.problems[0]
                    else {
                        panic!("{:?}", report.problems)
                    };
                    assert!(
                        **file == *path
                            && *named <= offset
                            && offset < named + (10 * BLOCK_BYTES) as u64
                    );
                    found += 1;
                    // The partition itself finds it too, or the page is not on the way to any
                    // record.
                    let mut reads = Vec::new();
                    if let Ok(partition) =
                        Partition::open(ID, Path::new(DIR), roots, PartitionOptions::hostile())
                            .await
                    {
                        for n in 0..120 {
                            reads.push(
                                partition
                                    .get(TREE, format!("key {n:04}").as_bytes(), ReadAt::Newest)
                                    .await,
                            );
                        }
                        assert!(
                            reads.iter().flatten().all(Option::is_some),
                            "a record vanished silently"
                        );
                        lost += u32::from(reads.iter().any(Result::is_err));
                        partition.close().await;
                    }
                }
            }
            file.write_at(offset, sound).await.unwrap();
        }
        assert!(
            found > 250 && lost > 100 && harmless < 150,
            "{found} {lost} {harmless}"
        );
    });
}
