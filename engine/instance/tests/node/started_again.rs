//! Transactions that a router starts again on a shard, with the number they had.

use std::rc::Rc;

use pinion_bson::doc;
use pinion_runtime::on_all_cores;
use pinion_service::node_info::{ClusterRole, NodeInfo, node_info};

use crate::harness::with_node;
use crate::retryable::{SHAPES, become_primary, session_id};
use crate::transactions::{abort, all, commit, first, ids, insert, statement};

/// The node is a shard of a cluster from now on.
pub async fn become_shard() {
    on_all_cores(|_| async {
        let info = NodeInfo {
            cluster_role: ClusterRole::Shard,
            cluster_version: Default::default(),
            ..NodeInfo::clone(&node_info())
        };
        pinion_runtime::set_core_local(Rc::new(info));
    })
    .await;
}

#[test]
fn a_shard_starts_an_aborted_transaction_again() {
    for (seed, (cores, partitions)) in (2114..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            const REUSED: i32 = 50_911;
            become_primary().await;
            become_shard().await;
            client.ok(insert(&[1, 2])).await;
            client.ok(first(1, 1, insert(&[3, 4]))).await;
            client.fails(first(1, 1, all()), REUSED).await;
            // That has not disturbed it; a statement that fails aborts it.
            client.ok(statement(1, 1, insert(&[5]))).await;
            let malformed = || doc! { "insert": "c", "documents": 1 };
            client.fails(statement(1, 1, malformed()), 14).await;
            client.on(1).ok(first(1, 1, insert(&[6, 7]))).await;
            let seen = ids(&client, statement(1, 1, all())).await;
            assert_eq!(seen, [1, 2, 6, 7]);
            client.at("admin").ok(commit(1, 1)).await;
            client.fails(first(1, 1, all()), REUSED).await;
            // So does the first statement, and an abort. Each may be several times.
            for _ in 0..2 {
                client.fails(first(1, 2, malformed()), 14).await;
                client.ok(first(1, 2, insert(&[8]))).await;
                client.at("admin").ok(abort(1, 2)).await;
            }
            client.ok(first(1, 2, insert(&[9]))).await;
            client.at("admin").ok(commit(1, 2)).await;
            assert_eq!(ids(&client, all()).await, [1, 2, 6, 7, 9]);
            // A number used by a retryable write starts no transaction.
            let mut retryable = insert(&[10]);
            retryable.insert("lsid", session_id(1));
            retryable.insert("txnNumber", 3i64);
            client.ok(retryable).await;
            client.fails(first(1, 3, all()), REUSED).await;
            // Nor does one with an outcome in its record.
            client.ok(first(1, 4, insert(&[11]))).await;
            let prepare = statement(1, 4, doc! { "prepareTransaction": 1 });
            client.at("admin").ok(prepare).await;
            client.fails(first(1, 4, all()), REUSED).await;
            client.at("admin").ok(abort(1, 4)).await;
            client.fails(first(1, 4, all()), REUSED).await;
            pinion_exec::forget_sessions().await;
            let reply = client.fails(first(1, 4, all()), REUSED).await;
            assert!(reply.contains("TxnState::AbortedWithPrepare"), "{reply}");
        });
    }
}
