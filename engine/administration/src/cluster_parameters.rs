//! `getClusterParameter` and `setClusterParameter`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_exec::write::upsert_by_id;
use pinion_runtime::{CoreId, Queue};
use pinion_service::cluster_parameters::{
    COLLECTION, NAMES, Set, append_set, cluster_parameters, known, parse,
};
use pinion_service::generate::next_timestamp;
use pinion_wire::idl::{Namespace, Types, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

/// `getClusterParameter`. MongoDB passes over fields that it does not know here, and in the command
/// that sets.
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
    pinion_exec::commands::acknowledge(&cmd.ctx, None, &mut out).await?;
    Ok(out)
}

/// Stores a value and then has every core use it. One at a time on core 0, so that what is stored
/// last holds.
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
    upsert_by_id(&ctx, ns, name, &document).await?;
    use_everywhere(name, set).await;
    Ok(())
}

async fn use_everywhere(name: &'static str, set: Set) {
    pinion_runtime::on_all_cores(move |_| {
        let set = set.clone();
        async move { cluster_parameters().borrow_mut().set(name, set) }
    })
    .await;
}
