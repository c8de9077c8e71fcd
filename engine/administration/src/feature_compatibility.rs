//! `setFeatureCompatibilityVersion`: the data files have one version, and there is none to go back
//! to. Data that came from members of MongoDB 4.4 keep theirs until this is called.
//!
//! Config servers have all shards go through the phases of a change, and change their own version
//! behind the first. Each phase may be sent again.

use pinion_exec::feature_compatibility::raise_version;
use pinion_exec::placement::{FeatureVersionPhase, cluster_node};
use pinion_service::feature_version::feature_version;
use pinion_service::node_info::{ClusterRole, is_behind_v44, node_info};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

/// MongoDB's code of a phase that no shard gets.
const PHASE_OF_SHARDS: ErrorCode = ErrorCode(5_563_600);

/// What the config servers of MongoDB 4.4 give to a shard that they add.
const V44: &str = "4.4";

/// `setFeatureCompatibilityVersion: <version>, confirm`, and `phase` on shards.
pub(crate) async fn set_feature_compatibility_version(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let wanted = reader.str("setFeatureCompatibilityVersion")?;
    let confirmed = reader.opt_safe_bool("confirm")?.unwrap_or(false);
    let phase = reader.opt_str("phase")?.map(parse_phase).transpose()?;
    reader.opt_timestamp("changeTimestamp")?;
    let from_config = reader.opt_bool("fromConfigServer")?.unwrap_or(false);
    reader.finish()?;
    let role = node_info().cluster_role;
    if phase.is_some() && role != ClusterRole::Shard {
        return Err(Error::new(
            PHASE_OF_SHARDS,
            "'phase' field is only valid to be specified on shards",
        ));
    }
    if is_behind_v44() && wanted == V44 {
        // The features of the cluster: the node's own data stay as they are.
        return Ok(Reply::new());
    }
    check(wanted, confirmed || from_config)?;
    match phase {
        // There is no version whose features would have to be left first.
        Some(FeatureVersionPhase::Start | FeatureVersionPhase::Prepare) => {}
        Some(FeatureVersionPhase::Complete) => raise_version().await?,
        None if role == ClusterRole::Config => raise_all().await?,
        None => raise_version().await?,
    }
    Ok(Reply::new())
}

fn parse_phase(text: &str) -> Result<FeatureVersionPhase> {
    let phases = FeatureVersionPhase::ALL;
    let found = phases.into_iter().find(|phase| phase.name() == text);
    found.ok_or_else(|| {
        Error::bad_value(format!(
            "Enumeration value '{text}' for field 'setFeatureCompatibilityVersion.phase' is not a valid value."
        ))
    })
}

/// Refuses a version that there is not, and one that is not confirmed.
fn check(wanted: &str, is_confirmed: bool) -> Result<()> {
    let present = feature_version();
    if !is_confirmed {
        return Err(Error::new(
            ErrorCode(7_369_100),
            format!(
                "Once you have upgraded to {present}, you will not be able to downgrade FCV and binary version without \
                 support assistance. Please re-run this command with 'confirm: true' to acknowledge this and continue \
                 with the FCV upgrade."
            ),
        ));
    }
    if wanted != present {
        let code = ErrorCode(4_926_900);
        let message = format!(
            "Invalid feature compatibility version value '{wanted}'; expected '{present}'. See \
             https://docs.mongodb.com/manual/release-notes/{present}-compatibility/#feature-compatibility."
        );
        return Err(Error::new(code, message));
    }
    Ok(())
}

/// Raises the version of a cluster.
async fn raise_all() -> Result<()> {
    let node = cluster_node();
    for phase in FeatureVersionPhase::ALL {
        if let Some(node) = &node {
            node.raise_shards(phase).await?;
        }
        if phase == FeatureVersionPhase::Start {
            raise_version().await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_versions() {
        for phase in FeatureVersionPhase::ALL {
            assert_eq!(parse_phase(phase.name()).ok(), Some(phase));
        }
        assert!(parse_phase("begin").is_err());
        let code = |wanted: &str, is_confirmed| {
            check(wanted, is_confirmed).map_or_else(|error| error.code.0, |()| 0)
        };
        assert_eq!(code(&feature_version(), true), 0);
        assert_eq!(code(&feature_version(), false), 7_369_100);
        assert_eq!(code("7.0", true), 4_926_900);
        assert_eq!(code("7.0", false), 7_369_100);
    }
}
