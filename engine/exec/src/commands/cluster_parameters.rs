//! `getClusterParameter` and `setClusterParameter`.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{id_key, partition_of, stored_document};
use pinion_query::Matcher;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue};
use pinion_wire::idl::{Namespace, Types, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::{query_settings, read_newest};
use crate::acquire::acquire_read;
use crate::cluster_parameters::{
    COLLECTION, ClusterParameters, NAMES, Set, append_set, cluster_parameters, known, parse,
    read_stored,
};
use crate::generate::next_timestamp;
use crate::query_settings::{SettingsTable, query_settings};
use crate::read::{ReadRequest, open};
use crate::write::put_document;

/// `getClusterParameter`. MongoDB passes over fields that it does not know here, and in the command that sets.
pub(crate) async fn get_cluster_parameter(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let mut names = Vec::new();
    match reader.value("getClusterParameter") {
        Some(RawBsonRef::String("*")) => names.extend(NAMES),
        Some(RawBsonRef::String(name)) => names.push(known(name)?),
        Some(RawBsonRef::Array(several)) => {
            for name in pinion_bson::values(several) {
                match name {
                    RawBsonRef::String(name) => names.push(known(name)?),
                    other => {
                        return Err(reader.wrong_type("getClusterParameter", other, Types::STRING));
                    }
                }
            }
            if names.is_empty() {
                return Err(Error::bad_value(
                    "Must supply at least one cluster server parameter name to getClusterParameter",
                ));
            }
        }
        Some(other) => return Err(reader.wrong_type("getClusterParameter", other, Types::STRING)),
        None => return Err(missing_field(reader.path().field("getClusterParameter"))),
    }
    let cluster_parameters = cluster_parameters();
    let parameters = cluster_parameters.borrow();
    let mut out = Reply::new();
    out.start_array("clusterParameters");
    for name in names {
        out.push_document();
        parameters.append(name, &mut out);
        out.end();
    }
    out.end();
    Ok(out)
}

/// `setClusterParameter`.
pub(crate) async fn set_cluster_parameter(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let setting = reader.doc("setClusterParameter")?;
    let mut settings = pinion_bson::elements(setting);
    let Some((name, value)) = settings.next() else {
        return Err(Error::new(
            ErrorCode::NO_SUCH_KEY,
            "setClusterParameter names no parameter",
        ));
    };
    if settings.next().is_some() {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "setClusterParameter only supports setting exactly one parameter",
        ));
    }
    let name = known(name)?;
    let value = parse(name, value)?;
    let ctx = cmd.ctx.clone();
    pinion_runtime::submit_to(CoreId(0), Queue::Foreground, move || {
        store(ctx, name, value)
    })
    .await?;
    let mut out = Reply::new();
    super::acknowledge(&cmd.ctx, None, &mut out).await?;
    Ok(out)
}

/// Stores a value and then has every core use it. One at a time on core 0, so that what is stored last holds.
async fn store(ctx: OpContext, name: &'static str, value: RawDocumentBuf) -> Result<()> {
    let _turn = cluster_parameters().turn.acquire().await;
    let set = Set {
        time: {
            let time = next_timestamp();
            pinion_bson::Timestamp {
                time: time.secs(),
                increment: time.inc(),
            }
        },
        value,
    };
    let mut document = DocBuilder::new();
    append_set(name, &set, &mut document);
    let document = document.finish();
    let ns = Namespace::new(COLLECTION.0, COLLECTION.1)?;
    put_document(&ctx, ns, name, &document).await?;
    use_everywhere(name, set).await;
    Ok(())
}

/// What is stored of the parameters and of query settings, which lie beside them.
#[derive(Clone, Default)]
struct Stored {
    parameters: ClusterParameters,
    settings: Arc<SettingsTable>,
}

impl Stored {
    /// Takes up a document; false if nobody knows what it is.
    fn add(&mut self, document: &RawDocument) -> bool {
        if document.get_str("_id").ok() == Some(query_settings::STORED_AS) {
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

async fn use_everywhere(name: &'static str, set: Set) {
    pinion_runtime::on_all_cores(move |_| {
        let set = set.clone();
        async move { cluster_parameters().borrow_mut().set(name, set) }
    })
    .await;
}

/// Has every core use what is stored. Called on core 0 when the node opens, and when it has copied another one's data.
pub(crate) fn load() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let ns = Namespace::new(COLLECTION.0, COLLECTION.1)?;
        let now_ns = pinion_runtime::now().as_nanos();
        let ctx = OpContext::internal(0, "getClusterParameter", COLLECTION.0, now_ns);
        let acquired = acquire_read(&ctx, ns, None).await?;
        let mut stored = Stored::default();
        let Some(collection) = acquired.collection() else {
            stored.use_everywhere().await;
            return Ok(());
        };
        let request = ReadRequest::new(collection.clone(), Matcher::parse(&RawDocumentBuf::new())?);
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

/// Has every core use what another member has changed: the newest versions, as they may be applied and not be visible yet.
pub(crate) async fn reload() -> Result<()> {
    pinion_runtime::submit_to(CoreId(0), Queue::Foreground, || async {
        // One that reads later has seen more, and tells it later.
        let _turn = cluster_parameters().turn.acquire().await;
        let ctx = OpContext::internal(0, "find", COLLECTION.0, pinion_runtime::now().as_nanos());
        let ns = Namespace::new(COLLECTION.0, COLLECTION.1)?;
        let acquired = acquire_read(&ctx, ns, None).await?;
        let mut stored = Stored::default();
        if let Some(collection) = acquired.collection() {
            for name in NAMES.into_iter().chain([query_settings::STORED_AS]) {
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
