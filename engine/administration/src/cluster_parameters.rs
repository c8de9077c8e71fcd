//! `getClusterParameter` and `setClusterParameter`.

use pinion_bson::RawBsonRef;
use pinion_exec::cluster_parameter_store::store;
use pinion_service::cluster_parameters::{NAMES, cluster_parameters, known, parse_setting};
use pinion_service::node_info::{ClusterRole, node_info};
use pinion_wire::idl::{Types, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

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
    if node_info().cluster_role != ClusterRole::None {
        return Err(Error::new(
            ErrorCode::NOT_IMPLEMENTED,
            "setClusterParameter can only run on mongos in sharded clusters",
        ));
    }
    let (name, value) = parse_setting(setting)?;
    store(cmd.ctx.clone(), name.to_owned(), value, None).await?;
    let mut out = Reply::new();
    pinion_exec::commands::acknowledge(&cmd.ctx, None, &mut out).await?;
    Ok(out)
}
