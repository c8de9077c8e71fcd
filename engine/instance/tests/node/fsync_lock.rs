//! The lock of `fsync`, with writers on every core.

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::{Document, doc};
use pinion_runtime::{Duration, Queue, sleep, spawn};

use crate::harness::{Client, with_crashes, with_node};

const WRITERS: u16 = 5;

fn locking() -> Document {
    doc! { "fsync": 1, "lock": true }
}

/// Writes into the collection of all and into its own, which its first insert makes and which it
/// drops now and then. Gives the number of its rounds.
async fn write(client: Client, number: u16, stop: Rc<Cell<bool>>) -> i32 {
    let own = format!("own{number}");
    let mut rounds = 0;
    while !stop.get() {
        let documents = [doc! { "w": i32::from(number) }, doc! { "a": [1, 2] }];
        client
            .ok(doc! { "insert": "all", "documents": documents })
            .await;
        client
            .ok(doc! { "insert": &own, "documents": [{ "_id": rounds, "n": 0 }] })
            .await;
        client
            .ok(doc! { "update": &own, "updates": [{ "q": {}, "u": { "$inc": { "n": 1 } }, "multi": true }] })
            .await;
        if rounds % 5 == 4 {
            client.ok(doc! { "drop": &own }).await;
            client
                .ok(doc! { "createIndexes": &own, "indexes": [{ "key": { "n": 1 }, "name": "n" }] })
                .await;
        }
        rounds += 1;
    }
    rounds
}

/// All that a client sees.
async fn everything(client: &Client) -> Vec<Document> {
    let mut found = client.find(doc! { "find": "all" }).await;
    for number in 0..WRITERS {
        let own = format!("own{number}");
        found.extend(client.find(doc! { "find": own, "batchSize": 2 }).await);
    }
    found
}

#[test]
fn nothing_is_written_while_the_node_is_locked() {
    for seed in 0..12 {
        with_node(
            500 + seed,
            1 + (seed as usize % 3),
            4,
            move |client| async move {
                let stop = Rc::new(Cell::new(false));
                let admin = client.at("admin");
                let writers: Vec<_> = (0..WRITERS)
                    .map(|number| {
                        let writing = write(client.on(number), number, stop.clone());
                        spawn(Queue::Foreground, writing)
                    })
                    .collect();
                for turn in 0..6_u16 {
                    sleep(Duration::from_millis(u64::from(turn) * 3 + seed)).await;
                    let mut command = locking();
                    // One that is stopped on the way leaves the node as it was.
                    if turn % 3 == 2 {
                        command.insert("maxTimeMS", 1 + (seed as i32 % 4));
                    }
                    let reply = admin.on(turn).run(command).await;
                    if reply.get_i32("code").ok() == Some(50) {
                        admin.fails(doc! { "fsyncUnlock": 1 }, 20).await;
                        continue;
                    }
                    assert_eq!(reply.get_i64("lockCount").ok(), Some(1), "{reply}");
                    let allotted = pinion_storage::storage().last_allotted();
                    let before = everything(&client).await;
                    sleep(Duration::from_millis(300)).await;
                    assert_eq!(everything(&client).await, before, "seed {seed}");
                    assert_eq!(pinion_storage::storage().last_allotted(), allotted);
                    admin.on(turn + 1).ok(doc! { "fsyncUnlock": 1 }).await;
                }
                stop.set(true);
                let mut rounds = 0;
                for (number, writer) in writers.into_iter().enumerate() {
                    let written = writer.await.expect("a writer ends by itself");
                    let own = client.find(doc! { "find": format!("own{number}") }).await;
                    let first = written - written % 5;
                    let expected: Vec<Document> = (first..written)
                        .map(|id| doc! { "_id": id, "n": written - id })
                        .collect();
                    assert_eq!(own, expected, "seed {seed}");
                    rounds += written;
                }
                assert!(rounds > 0, "nobody wrote anything");
                let all = client.find(doc! { "find": "all", "batchSize": 100 }).await;
                assert_eq!(all.len() as i32, 2 * rounds);
                admin.fails(doc! { "fsyncUnlock": 1 }, 20).await;
            },
        );
    }
}

#[test]
fn the_lock_does_not_outlive_the_node() {
    with_crashes(520, &[2, 2], 3, |life, client| async move {
        let admin = client.at("admin");
        if life == 0 {
            client
                .ok(doc! { "insert": "c", "documents": [{ "_id": 1 }] })
                .await;
            for count in 1..=2_i64 {
                let reply = admin.on(count as u16).ok(locking()).await;
                assert_eq!(reply.get_i64("lockCount").ok(), Some(count));
            }
            let late = doc! { "insert": "c", "documents": [{ "_id": 2 }], "maxTimeMS": 30 };
            client.fails(late, 50).await;
        } else {
            admin.fails(doc! { "fsyncUnlock": 1 }, 20).await;
            client
                .ok(doc! { "insert": "c", "documents": [{ "_id": 3 }] })
                .await;
            let found = client.find(doc! { "find": "c" }).await;
            assert_eq!(found, [doc! { "_id": 1 }, doc! { "_id": 3 }]);
        }
    });
}
