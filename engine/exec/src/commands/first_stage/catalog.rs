//! `$listClusterCatalog` and `$listCatalog`: what the catalog knows, as documents.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_catalog::{Collection, View, core_catalog};
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::super::collections::{collection_info, view_info};
use super::PipelineTarget;
use crate::acquire::catalog_of;

/// `$listClusterCatalog`
#[derive(Clone, Debug)]
pub(in crate::commands) struct ClusterCatalog {
    /// None for all databases.
    db: Option<String>,
    shards: bool,
    tracked: bool,
    balancing: bool,
}

impl ClusterCatalog {
    pub(super) fn parse(spec: RawBsonRef<'_>, place: PipelineTarget<'_>) -> Result<ClusterCatalog> {
        let name = "$listClusterCatalog";
        let RawBsonRef::Document(spec) = spec else {
            return Err(Error::new(
                ErrorCode(9621302),
                format!(
                    "{name} must take a nested object but found a {}",
                    pinion_bson::type_name(spec.element_type())
                ),
            ));
        };
        if !place.collectionless {
            return Err(Error::new(
                ErrorCode(9621301),
                format!("{name} must be run against the database with {{aggregate: 1}}"),
            ));
        }
        let reader = FieldReader::object(Path::root(name), spec)?;
        let option = |name| Ok::<bool, Error>(reader.opt_bool(name)?.unwrap_or(false));
        let stage = ClusterCatalog {
            db: Some(place.ns.db().to_owned()).filter(|db| db != "admin"),
            shards: option("shards")?,
            tracked: option("tracked")?,
            balancing: option("balancingConfiguration")?,
        };
        reader.finish()?;
        Ok(stage)
    }

    pub(super) fn documents(&self) -> Vec<Bytes> {
        let catalog = core_catalog().current();
        let asked = |ns: &Namespace| self.db.as_deref().is_none_or(|db| db == ns.db());
        let collections = catalog.collections().filter(|c| asked(&c.ns));
        let views = catalog.views().filter(|view| asked(&view.ns));
        collections
            .map(|collection| self.describe(&collection.ns, &collection_info(collection, false)))
            .chain(views.map(|view| self.describe(&view.ns, &view_info(view, false))))
            .collect()
    }

    /// What `listCollections` shows of a collection, with what a cluster adds. Here no collection
    /// is sharded.
    fn describe(&self, ns: &Namespace, info: &pinion_bson::RawDocument) -> Bytes {
        let mut out = DocBuilder::new();
        out.append("ns", ns.as_str()).append("db", ns.db());
        for (name, value) in pinion_bson::elements(info).filter(|(name, _)| *name != "name") {
            out.append(name, value);
        }
        out.append("sharded", false);
        if self.tracked {
            out.append("tracked", false);
        }
        if self.balancing {
            out.append("balancingEnabled", false)
                .append("balancingEnabledReason", "The collection is not sharded")
                .append("autoMergingEnabled", false);
        }
        if self.shards {
            out.start_array("shards").end();
        }
        Bytes::from(out.finish_bytes())
    }
}

/// `$listCatalog`
#[derive(Clone, Debug)]
pub(in crate::commands) struct Catalog {
    /// None for everything.
    ns: Option<Namespace>,
}

impl Catalog {
    pub(super) fn parse(spec: RawBsonRef<'_>, place: PipelineTarget<'_>) -> Result<Catalog> {
        match spec {
            RawBsonRef::Document(spec) if spec.is_empty() => {}
            _ => {
                return Err(Error::new(
                    ErrorCode(6200600),
                    "The $listCatalog stage specification must be an empty object",
                ));
            }
        }
        if place.collectionless && place.ns.db() != "admin" {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                "Collectionless $listCatalog must be run against the 'admin' database with {aggregate: 1}",
            ));
        }
        Ok(Catalog {
            ns: (!place.collectionless).then(|| place.ns.clone()),
        })
    }

    /// The rows of the catalog at one time, that of the operation's read concern.
    pub(super) fn documents(&self, ctx: &OpContext) -> Result<Vec<Bytes>> {
        let catalog = catalog_of(ctx)?;
        let asked = |ns: &Namespace| self.ns.as_ref().is_none_or(|asked| asked == ns);
        let collections = catalog.collections().filter(|c| asked(&c.ns));
        let views = catalog.views().filter(|view| asked(&view.ns));
        Ok(collections
            .map(|collection| of_collection(collection))
            .chain(views.map(|view| of_view(view)))
            .collect())
    }
}

/// The row of a collection in the catalog.
fn of_collection(collection: &Collection) -> Bytes {
    let mut out = begin(&collection.ns, "collection");
    out.append_all(&collection.to_row());
    Bytes::from(out.finish_bytes())
}

/// A view with its document in `system.views`. That of a series has its options among those of the
/// buckets.
fn of_view(view: &View) -> Bytes {
    let mut out = begin(&view.ns, view.kind().name());
    out.append("ns", view.ns.as_str());
    for (name, value) in pinion_bson::elements(&view.to_system_document()) {
        if name != "timeseries" {
            out.append_raw(name, value);
        }
    }
    Bytes::from(out.finish_bytes())
}

fn begin(ns: &Namespace, kind: &str) -> DocBuilder {
    let mut out = DocBuilder::new();
    out.append("db", ns.db())
        .append("name", ns.collection())
        .append("type", kind);
    out
}
