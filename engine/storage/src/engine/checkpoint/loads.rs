//! Trees that were loaded begin: a manifest with their roots, beside the base that is there.
//!
//! Nothing of the delta is merged for it, so it costs what the trees' own pages do. The base keeps
//! its timestamp: what the entries above it do to the trees is applied by replay, as to all others.
//! The trees that are named begin in all partitions by one manifest, so an opening of the directory
//! finds all of them or none.

use std::sync::Arc;

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, join_all, submit_to};

use super::on_node;
use crate::base::PartitionRoots;
use crate::engine::checkpoint::Turn;
use crate::engine::storage::{Storage, storage};
use crate::manifest::Manifest;
use crate::types::{Fatal, PartitionId, TreeId};

impl Storage {
    /// Makes those of these trees begin that were loaded and finished; durable on return. While
    /// checkpoints are held it must not be called.
    ///
    /// # Errors
    /// A page or a manifest could not be written; storage has stopped then.
    pub fn install_loads<'a>(
        &'a self,
        trees: &'a [TreeId],
    ) -> LocalBoxFuture<'a, Result<(), Fatal>> {
        Box::pin(async move {
            // A checkpoint under way should be over soon.
            let _awaits = self.await_checkpoint();
            let trees: Arc<[TreeId]> = trees.into();
            on_node(async move |storage| storage.install_loads_everywhere(trees).await).await
        })
    }

    async fn install_loads_everywhere(&self, trees: Arc<[TreeId]>) -> Result<(), Fatal> {
        let node = self.node_state();
        let mut turn = node.turns.take().await;
        self.check_fatal()?;
        assert!(
            node.held.get().is_none(),
            "a tree is loaded while checkpoints are held"
        );
        let installed = self.write_loads(&mut turn, trees).await;
        if let Err(fatal) = &installed {
            self.poison(fatal.clone());
        }
        installed
    }

    async fn write_loads(&self, turn: &mut Turn<'_>, trees: Arc<[TreeId]>) -> Result<(), Fatal> {
        let merged = join_all((0..self.cores as u16).map(|core| {
            let trees = trees.clone();
            submit_to(CoreId(core), Queue::Background, move || async move {
                storage().merge_owned_loads(&trees).await
            })
        }))
        .await;
        let mut merged_roots = Vec::new();
        for core in merged {
            merged_roots.extend(core?);
        }
        if merged_roots.is_empty() {
            return Ok(());
        }
        let changed = merged_roots.clone();
        self.write_manifest(turn, |current| {
            let mut next = Manifest::clone(current);
            for (partition, roots) in changed {
                next.roots[usize::from(partition.0)] = roots;
            }
            next
        })
        .await?;
        join_all((0..self.cores as u16).map(|core| {
            let merged_roots = merged_roots.clone();
            submit_to(CoreId(core), Queue::Background, move || async move {
                let storage = storage();
                for (partition, roots) in merged_roots {
                    if let Some(partition) = storage.partition(partition) {
                        partition.install(roots);
                    }
                }
                storage.publish_memory();
            })
        }))
        .await;
        Ok(())
    }

    /// Forgets all that is in these trees, also what was loaded and is in no manifest yet, so that
    /// they can be loaded again; durable on return. They must not be read or written meanwhile, and
    /// checkpoints must not be held. Call it on core 0.
    ///
    /// # Errors
    /// A page or a manifest could not be written; storage has stopped then.
    pub fn clear_trees<'a>(&'a self, trees: &'a [TreeId]) -> LocalBoxFuture<'a, Result<(), Fatal>> {
        Box::pin(async move {
            if trees.is_empty() {
                return Ok(());
            }
            let trees: Arc<[TreeId]> = trees.into();
            let dropped = (0..self.cores as u16).map(|core| {
                let trees = trees.clone();
                submit_to(CoreId(core), Queue::Foreground, move || async move {
                    for tree in trees.iter() {
                        // Whatever timestamps its versions have.
                        storage().drop_tree(*tree, Timestamp::MIN);
                    }
                })
            });
            join_all(dropped).await;
            self.node_state().dirty.set(true);
            self.checkpoint().await?;
            Ok(())
        })
    }

    /// What the manifest shall say of those of this core's partitions that have loaded trees.
    async fn merge_owned_loads(
        &self,
        trees: &[TreeId],
    ) -> Result<Vec<(PartitionId, PartitionRoots)>, Fatal> {
        let mut merged = Vec::new();
        for partition in self.owned().cloned().collect::<Vec<_>>() {
            if let Some(roots) = partition.merge_loads(trees).await? {
                merged.push((partition.id(), roots));
            }
        }
        Ok(merged)
    }
}
