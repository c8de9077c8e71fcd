//! Cluster parameters and query settings as they are stored, and how every core comes to use them.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{id_key, partition_of, stored_document};
use pinion_query::Matcher;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue};
use pinion_service::cluster_parameters::{
    COLLECTION, ClusterParameters, NAMES, cluster_parameters, read_stored,
};
use pinion_service::query_settings::{STORED_AS, SettingsTable, query_settings};
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::acquire::acquire_read;
use crate::read::{ReadRequest, open, read_newest};

/// What is stored of the parameters and of query settings, which lie beside them.
#[derive(Clone, Default)]
struct Stored {
    parameters: ClusterParameters,
    settings: Arc<SettingsTable>,
}

impl Stored {
    /// Takes up a document; false if its form is unknown.
    fn add(&mut self, document: &RawDocument) -> bool {
        if document.get_str("_id").ok() == Some(STORED_AS) {
            self.settings = Arc::new(SettingsTable::read_stored(document));
            return true;
        }
        let read = read_stored(document);
        let known = read.is_some();
        if let Some((name, set)) = read {
            self.parameters.set(name, set);
        }
        known
    }

    async fn use_everywhere(self) {
        pinion_runtime::on_all_cores(move |_| {
            let Stored {
                parameters,
                settings,
            } = self.clone();
            async move {
                *cluster_parameters().borrow_mut() = parameters;
                *query_settings().borrow_mut() = settings;
            }
        })
        .await;
    }
}

/// Has every core use what is stored. Called on core 0 when the node opens, and when it has copied
/// another one's data.
pub fn load() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let ns = Namespace::new(COLLECTION.0, COLLECTION.1)?;
        let now_ns = pinion_runtime::now().as_nanos();
        let ctx = OpContext::internal(
            0,
            pinion_command::row("getClusterParameter"),
            COLLECTION.0,
            now_ns,
        );
        let acquired = acquire_read(&ctx, ns, None).await?;
        let mut stored = Stored::default();
        let Some(collection) = acquired.collection() else {
            stored.use_everywhere().await;
            return Ok(());
        };
        let request = ReadRequest::new(
            acquired.target(collection),
            Matcher::parse(&RawDocumentBuf::new())?,
        );
        let mut stream = open(&ctx, acquired.source(), request, NAMES.len())
            .await?
            .stream;
        while let Some(document) = stream.next_wanted(&ctx, NAMES.len()).await? {
            let document = stored_document(&document);
            if !stored.add(document) {
                let id = pinion_bson::get(document, "_id").map(pinion_query::value_text);
                tracing::warn!(target: "CONTROL", id = 7_300_010u64, parameter = id, "A stored cluster parameter is not known, and has no effect");
            }
        }
        stored.use_everywhere().await;
        Ok(())
    })
}

/// Has every core use what another member has changed: the newest versions, as they may be applied
/// and not be visible yet.
pub async fn reload() -> Result<()> {
    pinion_runtime::submit_to(CoreId(0), Queue::Foreground, || async {
        // A task that reads later has seen more, and has it used later.
        let _turn = cluster_parameters().turn.acquire().await;
        let ctx = OpContext::internal(
            0,
            pinion_command::row("find"),
            COLLECTION.0,
            pinion_runtime::now().as_nanos(),
        );
        let ns = Namespace::new(COLLECTION.0, COLLECTION.1)?;
        let acquired = acquire_read(&ctx, ns, None).await?;
        let mut stored = Stored::default();
        if let Some(collection) = acquired.collection() {
            for name in NAMES.into_iter().chain([STORED_AS]) {
                let key = id_key(RawBsonRef::String(name));
                let partition = partition_of(collection, &key);
                if let Some(found) = read_newest(collection.tree(), partition, key).await? {
                    stored.add(stored_document(&found));
                }
            }
        }
        stored.use_everywhere().await;
        Ok(())
    })
    .await
}
