//! Cluster parameters and query settings as they are stored, and how every core comes to use them.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};
use pinion_catalog::{id_key, partition_of, stored_document};
use pinion_query::Matcher;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue};
use pinion_service::cluster_parameters::{
    COLLECTION, ClusterParameters, NAMES, cluster_parameters, read_stored,
};
use pinion_service::generate::next_timestamp;
use pinion_service::query_settings::{STORED_AS, SettingsTable, query_settings};
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::acquire::acquire_read;
use crate::read::{ReadRequest, open, read_newest};
use crate::write::upsert_by_id;

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
        use_newest().await
    })
    .await
}

async fn use_newest() -> Result<()> {
    let mut stored = Stored::default();
    for name in NAMES.into_iter().chain([STORED_AS]) {
        if let Some(found) = newest(name).await? {
            stored.add(&found);
        }
    }
    stored.use_everywhere().await;
    Ok(())
}

async fn newest(name: &str) -> Result<Option<RawDocumentBuf>> {
    let now_ns = pinion_runtime::now().as_nanos();
    let ctx = OpContext::internal(0, pinion_command::row("find"), COLLECTION.0, now_ns);
    let ns = Namespace::new(COLLECTION.0, COLLECTION.1)?;
    let acquired = acquire_read(&ctx, ns, None).await?;
    let Some(collection) = acquired.collection() else {
        return Ok(None);
    };
    let key = id_key(RawBsonRef::String(name));
    let partition = partition_of(collection, &key);
    let found = read_newest(collection.tree(), partition, key).await?;
    Ok(found.map(|found| stored_document(&found).to_owned()))
}

/// A stored parameter, or the query settings: the time at which it was set, and its value.
pub struct StoredParameter {
    pub time: Timestamp,
    pub value: RawDocumentBuf,
}

/// What is stored under this name, if anything is.
///
/// # Errors
/// Those of a read.
pub async fn stored_parameter(name: &str) -> Result<Option<StoredParameter>> {
    let name = name.to_owned();
    pinion_runtime::submit_to(CoreId(0), Queue::Foreground, move || async move {
        Ok(newest(&name).await?.as_deref().and_then(parameter_in))
    })
    .await
}

fn parameter_in(document: &RawDocument) -> Option<StoredParameter> {
    let time = document.get_timestamp("clusterParameterTime").ok()?;
    let mut value = DocBuilder::new();
    for (field, of_it) in pinion_bson::elements(document) {
        if !matches!(field, "_id" | "clusterParameterTime") {
            value.append(field, of_it);
        }
    }
    let value = value.finish();
    Some(StoredParameter { time, value })
}

/// The time of a parameter that is set now.
pub fn parameter_time() -> Timestamp {
    let time = next_timestamp();
    Timestamp {
        time: time.secs(),
        increment: time.inc(),
    }
}

/// Stores a value, which is checked, and then has every core use it. One at a time on core 0, so
/// that what is stored last holds. A value with a time is set unless the stored one is as new.
///
/// # Errors
/// Those of a write.
pub async fn store(
    ctx: OpContext,
    name: String,
    value: RawDocumentBuf,
    time: Option<Timestamp>,
) -> Result<()> {
    pinion_runtime::submit_to(CoreId(0), Queue::Foreground, move || async move {
        let _turn = cluster_parameters().turn.acquire().await;
        if let Some(time) = time
            && let Some(found) = newest(&name).await?.as_deref().and_then(parameter_in)
            && (found.time.time, found.time.increment) >= (time.time, time.increment)
        {
            return Ok(());
        }
        let time = time.unwrap_or_else(parameter_time);
        let mut document = DocBuilder::new();
        document
            .append("_id", name.as_str())
            .append("clusterParameterTime", RawBsonRef::Timestamp(time));
        document.append_all(&value);
        let ns = Namespace::new(COLLECTION.0, COLLECTION.1)?;
        upsert_by_id(&ctx, ns, &name, &document.finish()).await?;
        use_newest().await
    })
    .await
}
