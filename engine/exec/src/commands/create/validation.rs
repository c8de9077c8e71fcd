//! `validator`, `validationLevel`, `validationAction`, of `create` and `collMod`.

use pinion_bson::RawDocument;
use pinion_catalog::{ValidationAction, ValidationLevel};
use pinion_query::{Validator, Variables};
use pinion_service::compute::compute;
use pinion_wire::idl::{FieldReader, Namespace};
use pinion_wire::{OpContext, Result};

use super::invalid;
use crate::topology::cluster_time;

pub(in crate::commands) fn level(reader: &FieldReader<'_, '_>) -> Result<Option<ValidationLevel>> {
    reader.opt_one_of("validationLevel", &ValidationLevel::NAMES)
}

pub(in crate::commands) fn action(
    reader: &FieldReader<'_, '_>,
) -> Result<Option<ValidationAction>> {
    reader.opt_one_of("validationAction", &ValidationAction::NAMES)
}

/// Refuses what is no validator, and any on a collection of the node's own.
pub(in crate::commands) async fn check_validator(
    ctx: &OpContext,
    ns: &Namespace,
    validator: &RawDocument,
) -> Result<()> {
    if validator.is_empty() {
        return Ok(());
    }
    if ns.collection().starts_with("system.") {
        return Err(invalid(format!(
            "Document validators not allowed on system collection {ns}"
        )));
    }
    if matches!(ns.db(), "admin" | "local" | "config") {
        return Err(invalid(format!(
            "Document validators are not allowed on collection {ns} in the {} internal database",
            ns.db()
        )));
    }
    let variables = Variables {
        now_ms: Some(pinion_runtime::wall_ms()),
        cluster_time: cluster_time(),
        ..Variables::default()
    };
    compute(ctx, || Validator::parse(validator, &variables)).await?;
    Ok(())
}
