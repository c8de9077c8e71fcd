//! Time series made and replaced: always the view and the collection of its buckets together.

use pinion_bson::{DocBuilder, rawdoc};
use pinion_clock::Timestamp;
use pinion_query::{TimeSeries, buckets_of, series_of};
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::builds::check_no_build;
use super::coordinator::{Commit, Coordinator};
use super::create::{check_database_case, system_document};
use super::locks::Scope;
use crate::catalog::Catalog;
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::names::check_not_view;
use crate::options::{CollectionKind, CollectionOptions};
use crate::series::{buckets_options, default_index, view_options};
use crate::specs;
use crate::uuid::Uuid;
use crate::view::{SYSTEM_VIEWS, View};

/// What changes with a namespace: a series and its buckets change together.
pub(super) fn scope_of(ns: &Namespace) -> Scope {
    Scope::Namespaces(together(ns))
}

/// The namespace, and with a series its buckets, and the other way round.
pub(super) fn together(ns: &Namespace) -> Vec<Namespace> {
    let mut all = vec![ns.clone()];
    match series_of(ns) {
        Some(series) => all.push(series),
        // A name that is too long for buckets is that of no series.
        None => all.extend(buckets_of(ns).ok()),
    }
    all
}

/// The collection that a command on indexes means.
pub(super) struct Indexed {
    pub ns: Namespace,
    /// The series whose buckets it has, where that is what was named.
    pub series: Option<TimeSeries>,
}

/// What a command on the indexes of this name means.
///
/// # Errors
/// For a view.
pub(super) fn indexed(catalog: &Catalog, ns: &Namespace) -> Result<Indexed> {
    let named = catalog
        .view(ns)
        .and_then(|view| view.options.time_series.clone());
    if let Some(series) = named {
        return Ok(Indexed {
            ns: buckets_of(ns)?,
            series: Some(series),
        });
    }
    check_not_view(catalog, ns)?;
    Ok(Indexed {
        ns: ns.clone(),
        series: None,
    })
}

impl Coordinator {
    /// Makes a series, for a caller that holds the locks of both its namespaces. Buckets that are
    /// there already without their series become its own if they are of the same kind.
    pub(super) async fn create_series(
        &self,
        ns: &Namespace,
        asked: CollectionOptions,
        uuid: Option<Uuid>,
    ) -> Result<Timestamp> {
        let buckets = buckets_of(ns)?;
        let options = buckets_options(&asked);
        let holder = Namespace::new(ns.db(), SYSTEM_VIEWS)?;
        let number = self.numbers(&holder, 1);
        let view = View::new(ns.clone(), number, view_options(&buckets, &asked));
        let mut made = self.new_collection(buckets.clone(), options);
        made.uuid = uuid.unwrap_or(made.uuid);
        if let Some(index) = asked.time_series.as_ref().and_then(default_index)
            && let Ok(missing) = specs::missing(&made, &[index])
        {
            for wanted in missing.wanted {
                made = made.with_index(wanted.into_index(TreeId(self.numbers(&buckets, 1))));
            }
        }
        let mut o = DocBuilder::new();
        o.append("create", ns.collection())
            .append_all(&asked.to_document());
        let holder = self.new_collection(holder, CollectionOptions::default());
        let compute = |catalog: &Catalog| {
            check_database_case(catalog, ns.db())?;
            let mut change = CatalogChange::default();
            match catalog.get(&buckets) {
                None => change.puts.push(made),
                Some(present) if present.options == made.options => {}
                Some(_) => return Err(other_buckets(&buckets)),
            }
            put_view(catalog, &mut change, holder, view);
            Ok(Commit::command(ns, None, o.finish(), change))
        };
        self.commit(compute).await
    }
}

fn other_buckets(buckets: &Namespace) -> Error {
    Error::new(
        ErrorCode::NAMESPACE_EXISTS,
        format!("namespace {buckets} already exists, but with different options"),
    )
}

/// Adds a view to a change, with its document, and the collection of the views if this is the
/// first.
pub(super) fn put_view(
    catalog: &Catalog,
    change: &mut CatalogChange,
    holder: Collection,
    view: View,
) {
    let tree = match catalog.get(&holder.ns) {
        Some(present) => present.tree(),
        None => {
            let tree = holder.tree();
            change.puts.push(holder);
            tree
        }
    };
    change.documents.push(system_document(tree, &view));
    change.views.push(view);
}

impl Coordinator {
    /// Puts the buckets of one series in the place of those of another, which need not be there.
    /// The first series is gone then. The caller holds the locks of all four namespaces and has
    /// closed their gates.
    ///
    /// # Errors
    /// `NamespaceExists` when the name has become that of something else;
    /// `BackgroundOperationInProgressForNamespace` while an index of one of the two is built.
    pub(super) async fn replace(&self, from: &Namespace, to: &Namespace) -> Result<Timestamp> {
        let (from_buckets, to_buckets) = (buckets_of(from)?, buckets_of(to)?);
        let holder = Namespace::new(to.db(), SYSTEM_VIEWS)?;
        let number = self.numbers(&holder, 1);
        let holder = self.new_collection(holder, CollectionOptions::default());
        let compute = |catalog: &Catalog| {
            check_database_case(catalog, to.db())?;
            let gone = || {
                let why = format!("Source collection {from} does not exist");
                Error::new(ErrorCode::NAMESPACE_NOT_FOUND, why)
            };
            let source = catalog.get(&from_buckets).ok_or_else(gone)?;
            let view = catalog.view(from).ok_or_else(gone)?;
            check_no_build(source)?;
            let mut change = CatalogChange {
                puts: vec![source.renamed(to_buckets.clone(), false)],
                removes: vec![view.number],
                ..Default::default()
            };
            if let Some(holder) = catalog.get(&Namespace::new(from.db(), SYSTEM_VIEWS)?) {
                change.documents.push(crate::change::SystemDocument {
                    tree: holder.tree(),
                    id: from.as_str().to_owned(),
                    document: None,
                });
            }
            if let Some(target) = catalog.get(&to_buckets) {
                check_no_build(target)?;
                change.removes.push(target.number);
                change.dropped_trees.extend(target.trees());
            }
            match catalog.kind(to) {
                Some(CollectionKind::TimeSeries) => {}
                None => {
                    let options = view_options(&to_buckets, &view.options);
                    let view = View::new(to.clone(), number, options);
                    put_view(catalog, &mut change, holder, view);
                }
                Some(_) => {
                    let why = format!("{to} is no time series any more");
                    return Err(Error::new(ErrorCode::NAMESPACE_EXISTS, why));
                }
            }
            let o = rawdoc! {
                "renameCollection": from_buckets.as_str(),
                "to": to_buckets.as_str(),
                "stayTemp": false,
            };
            Ok(Commit::command(&from_buckets, Some(source.uuid), o, change))
        };
        self.commit(compute).await
    }
}
