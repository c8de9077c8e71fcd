//! What one core knows of collections. Core 0 changes it on all of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_exec::placement::Ownership;
use pinion_runtime::on_all_cores;
use pinion_sharding_protocol::{RoutingTable, TableHistory};
use rustc_hash::FxHashMap;

use crate::part::part;

/// What is known of a collection.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// There is none that is sharded.
    Unsharded,
    /// A change may have been missed: it is refreshed before it is used.
    Stale,
    Table(Arc<RoutingTable>),
}

/// The collections of which more is known than that they are not sharded.
pub(crate) struct Collections {
    entries: RefCell<FxHashMap<Box<str>, Entry>>,
    /// The number of the distrust since which there need not be an entry for each collection that
    /// this node has kept: one that has none is stale.
    unlisted_since: Cell<Option<u64>>,
}

impl Default for Collections {
    fn default() -> Collections {
        Collections {
            entries: RefCell::default(),
            unlisted_since: Cell::new(Some(0)),
        }
    }
}

#[derive(Default)]
struct Entry {
    /// The number of the distrust by which it has become stale.
    stale_since: Option<u64>,
    /// The table stays while it is stale: the next one is built on it.
    tables: TableHistory,
    /// What the shard owns by the current table, once it was asked for.
    ownership: Option<Arc<dyn Ownership>>,
}

/// Which entries become stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Distrusted {
    /// These, whether they were there or not.
    Named(BTreeSet<String>),
    /// Those that are there.
    All,
    /// Those that are there, and it is not known which others there should be.
    Unlisted,
}

impl Collections {
    fn is_listed(&self) -> bool {
        self.unlisted_since.get().is_none()
    }

    pub(crate) fn known(&self, ns: &str) -> Known {
        let entries = self.entries.borrow();
        match entries.get(ns) {
            Some(entry) if entry.stale_since.is_some() => Known::Stale,
            Some(entry) => match entry.tables.current() {
                Some(table) => Known::Table(table.clone()),
                None => Known::Unsharded,
            },
            None if self.is_listed() => Known::Unsharded,
            None => Known::Stale,
        }
    }

    /// The last table, which may be stale.
    pub(super) fn table(&self, ns: &str) -> Option<Arc<RoutingTable>> {
        let entries = self.entries.borrow();
        entries.get(ns)?.tables.current().cloned()
    }

    /// The tables that are not stale, by the names of their collections.
    pub(super) fn tables(&self) -> Vec<Arc<RoutingTable>> {
        let entries = self.entries.borrow();
        let trusted = entries
            .values()
            .filter(|entry| entry.stale_since.is_none())
            .filter_map(|entry| entry.tables.current().cloned());
        let mut tables: Vec<Arc<RoutingTable>> = trusted.collect();
        tables.sort_unstable_by(|one, other| one.ns.as_str().cmp(other.ns.as_str()));
        tables
    }

    /// What the shard owns now by the last table, made by `make` for the first that asks.
    pub(super) fn ownership(
        &self,
        ns: &str,
        make: impl FnOnce(Arc<RoutingTable>) -> Arc<dyn Ownership>,
    ) -> Option<Arc<dyn Ownership>> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(ns)?;
        let table = entry.tables.current()?.clone();
        Some(entry.ownership.get_or_insert_with(|| make(table)).clone())
    }

    /// Whether an entry is stale, and was made so at or before a distrust.
    pub(super) fn is_stale_until(&self, ns: &str, distrust: u64) -> bool {
        let entries = self.entries.borrow();
        let since = entries.get(ns).and_then(|entry| entry.stale_since);
        since.is_some_and(|since| since <= distrust)
    }

    fn install(&self, ns: &str, table: Option<Arc<RoutingTable>>) {
        let mut entries = self.entries.borrow_mut();
        match table {
            None if self.is_listed() => drop(entries.remove(ns)),
            table => {
                let entry = entries.entry(ns.into()).or_default();
                entry.stale_since = None;
                entry.ownership = None;
                entry.tables.install(table);
            }
        }
    }

    fn distrust(&self, which: &Distrusted, number: u64) {
        let mut entries = self.entries.borrow_mut();
        match which {
            Distrusted::Named(names) => {
                for name in names {
                    let entry = entries.entry(name.as_str().into()).or_default();
                    entry.stale_since = Some(number);
                }
            }
            Distrusted::All | Distrusted::Unlisted => {
                for entry in entries.values_mut() {
                    entry.stale_since = Some(number);
                }
            }
        }
        if *which == Distrusted::Unlisted {
            self.unlisted_since.set(Some(number));
        }
    }

    /// These are kept, as was read after a distrust and before the next one of all.
    fn list(&self, names: &BTreeSet<String>, number: u64) {
        if self
            .unlisted_since
            .get()
            .is_some_and(|since| since > number)
        {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        for name in names {
            let entry = entries.entry(name.as_str().into());
            entry.or_insert_with(|| Entry {
                stale_since: Some(number),
                ..Entry::default()
            });
        }
        entries.retain(|name, entry| match entry.stale_since {
            Some(since) => since > number || names.contains(&**name),
            None => entry.tables.current().is_some(),
        });
        self.unlisted_since.set(None);
    }
}

/// Replaces what is known of a collection on every core; `None`: it is not sharded. Called in the
/// turn of such changes.
pub(super) async fn install_collection(ns: &str, table: Option<Arc<RoutingTable>>) {
    let ns: Arc<str> = ns.into();
    on_all_cores(move |_| {
        let (ns, table) = (ns.clone(), table.clone());
        async move { part().collections.install(&ns, table) }
    })
    .await;
}

/// Makes entries stale on every core. Called in the turn of such changes.
pub(super) async fn install_distrust(which: Distrusted, number: u64) {
    let which = Arc::new(which);
    on_all_cores(move |_| {
        let which = which.clone();
        async move { part().collections.distrust(&which, number) }
    })
    .await;
}

/// Has every core know which entries there are, as was read after a distrust. Called in the turn of
/// such changes.
pub(super) async fn install_list(names: BTreeSet<String>, number: u64) {
    let names = Arc::new(names);
    on_all_cores(move |_| {
        let names = names.clone();
        async move { part().collections.list(&names, number) }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::super::testing::{on_shard, table};
    use super::*;

    fn named(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn known(ns: &str) -> &'static str {
        match part().collections.known(ns) {
            Known::Unsharded => "unsharded",
            Known::Stale => "stale",
            Known::Table(_) => "table",
        }
    }

    #[test]
    fn what_is_not_listed_is_stale() {
        on_shard(|| async {
            let new = || Some(table(5, &[], &[("s1", 1, 0)]));
            assert_eq!(known("d.c"), "stale");
            install_collection("d.c", new()).await;
            install_collection("d.other", None).await;
            assert_eq!(
                [known("d.c"), known("d.other"), known("d.more")],
                ["table", "unsharded", "stale"]
            );
            install_list(named(&["d.kept", "d.c"]), 0).await;
            assert_eq!(
                [known("d.c"), known("d.kept"), known("d.more")],
                ["table", "stale", "unsharded"]
            );
            // What has become stale behind a read of the list stays so.
            install_distrust(Distrusted::Named(named(&["d.new"])), 2).await;
            install_list(named(&[]), 1).await;
            assert_eq!(
                [known("d.kept"), known("d.new"), known("d.c")],
                ["unsharded", "stale", "table"]
            );
            install_list(named(&[]), 2).await;
            assert_eq!(known("d.new"), "unsharded");
        });
    }

    #[test]
    fn a_list_from_before_does_not_count() {
        on_shard(|| async {
            install_list(named(&[]), 0).await;
            install_collection("d.c", Some(table(5, &[], &[("s1", 1, 0)]))).await;
            install_distrust(Distrusted::Unlisted, 1).await;
            install_list(named(&[]), 0).await;
            assert_eq!([known("d.c"), known("d.more")], ["stale", "stale"]);
            // The next table is built on the one that is stale.
            assert!(part().collections.table("d.c").is_some());
            install_list(named(&["d.c"]), 1).await;
            assert_eq!([known("d.c"), known("d.more")], ["stale", "unsharded"]);
            install_distrust(Distrusted::All, 2).await;
            assert_eq!([known("d.c"), known("d.more")], ["stale", "unsharded"]);
            assert!(part().collections.tables().is_empty());
        });
    }
}
