//! What a node is to be in a sharded cluster: `--shardsvr`, `--configsvr`, `sharding.clusterRole`.

use std::collections::BTreeMap;

use pinion_process::options::{OptionError, OptionValue, Reader};
use pinion_service::node_info::{ClusterRole, ClusterVersion};

const ROLE: &str = "clusterRole";
const SHARD: &str = "shardsvr";
const CONFIG: &str = "configsvr";
const VERSION: &str = "clusterVersion";

/// Brings the two switches into the form of the configuration file, in which `getCmdLineOpts`
/// shows them.
///
/// # Errors
/// Both are given.
pub(super) fn fold_switches(
    given: &mut BTreeMap<&'static str, Vec<OptionValue>>,
) -> Result<(), OptionError> {
    let mut is_on = |name| {
        let values = given.remove(name);
        values.is_some_and(|values| values.last() == Some(&OptionValue::Switch(true)))
    };
    let role = match (is_on(SHARD), is_on(CONFIG)) {
        (false, false) => return Ok(()),
        (true, false) => SHARD,
        (false, true) => CONFIG,
        (true, true) => {
            return Err(OptionError(
                "--shardsvr and --configsvr cannot be used together: a node has one role".into(),
            ));
        }
    };
    // The command line wins over the file.
    given.insert(ROLE, vec![OptionValue::Text(role.into())]);
    Ok(())
}

/// The role.
///
/// # Errors
/// There is no such role, or the node is to be no member of a replica set.
pub(super) fn cluster_role(reader: &Reader) -> Result<ClusterRole, OptionError> {
    let Some(name) = reader.last(ROLE) else {
        return Ok(ClusterRole::None);
    };
    let role = match name.as_str() {
        SHARD => ClusterRole::Shard,
        CONFIG => ClusterRole::Config,
        other => {
            return Err(OptionError(format!(
                "Invalid value '{other}' for sharding.clusterRole: expected shardsvr or configsvr"
            )));
        }
    };
    match reader.last("replSet") {
        Some(_) => Ok(role),
        None => Err(OptionError(format!(
            "Cannot start a {name} as a standalone server. Please use the option --replSet to start the node as a replica set."
        ))),
    }
}

/// Whose routers and config servers the shard has.
///
/// # Errors
/// There is no such version of them, or the node is no shard.
pub(super) fn cluster_version(
    reader: &Reader,
    role: ClusterRole,
) -> Result<ClusterVersion, OptionError> {
    match reader.last(VERSION).as_deref() {
        None => Ok(ClusterVersion::Newest),
        Some(_) if role != ClusterRole::Shard => Err(OptionError(format!(
            "--{VERSION} needs --shardsvr: it says whose routers a shard has"
        ))),
        Some("4.4") => Ok(ClusterVersion::V44),
        Some(other) => Err(OptionError(format!(
            "Invalid value '{other}' for --{VERSION}: expected 4.4, or nothing for routers of Pinion"
        ))),
    }
}

/// The port of a node of this role where none is given.
pub(super) fn default_port(role: ClusterRole) -> u16 {
    match role {
        ClusterRole::None => 27_017,
        ClusterRole::Shard => 27_018,
        ClusterRole::Config => 27_019,
    }
}
