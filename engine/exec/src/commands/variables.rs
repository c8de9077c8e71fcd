//! The variables of a command: `$$NOW` and those of `let`.

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};
use pinion_collation::Collation;
use pinion_command::syntax::RuntimeConstants;
use pinion_query::{Expression, Variables, check_variable_name};
use pinion_service::compute::compute;
use pinion_service::generate::random;
use pinion_service::node_info::is_behind_v44;
use pinion_wire::idl::CommandReader;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::topology::cluster_time;

/// The times that a mongos of MongoDB 4.4 sent with a command, which all of its shards take. No
/// other command has them.
///
/// # Errors
/// Those of [`RuntimeConstants::read`].
pub(super) fn sent_constants(reader: &CommandReader<'_>) -> Result<Option<RuntimeConstants>> {
    match is_behind_v44() {
        true => RuntimeConstants::read(reader),
        false => Ok(None),
    }
}

/// The variables that a command's expressions may use. The values of `let` are expressions without
/// a document.
pub(super) async fn variables(
    ctx: &OpContext,
    definitions: Option<&RawDocument>,
    constants: Option<RuntimeConstants>,
    collation: Option<Arc<Collation>>,
) -> Result<Variables> {
    let mut variables = Variables {
        now_ms: Some(pinion_runtime::wall_ms()),
        cluster_time: cluster_time(),
        collation,
        random: random(),
        ..Variables::default()
    };
    if let Some(constants) = constants {
        variables.now_ms = Some(constants.now_ms);
        variables.cluster_time = constants.cluster_time;
    }
    let Some(definitions) = definitions else {
        return Ok(variables);
    };
    let nothing = RawDocumentBuf::new();
    let is_of_router = ctx.client.says_internal();
    for (name, value) in pinion_bson::elements(definitions) {
        if is_of_router && set_constant(&mut variables, name, value) {
            continue;
        }
        check_variable_name(name, false)?;
        let evaluate = || {
            let expression = Expression::parse(value, &variables)?;
            if expression.reads_document() || expression.reads_metadata() {
                return Err(Error::new(
                    ErrorCode(4_890_500),
                    "Command let Expression tried to access a field, but this is not allowed because Command let \
                     expressions run before the query examines any documents.",
                ));
            }
            Ok(expression.evaluate(&nothing)?.as_ref().map(RawBson::from))
        };
        let value = compute(ctx, evaluate).await?;
        variables.bind(name, value);
    }
    Ok(variables)
}

/// Takes the time of an operation that its router runs at several nodes: it is the same for all.
/// False for any other definition.
fn set_constant(variables: &mut Variables, name: &str, value: RawBsonRef<'_>) -> bool {
    match (name, value) {
        ("NOW", RawBsonRef::DateTime(now)) => variables.now_ms = Some(now.timestamp_millis()),
        ("CLUSTER_TIME", RawBsonRef::Timestamp(time)) => variables.cluster_time = Some(time),
        _ => return false,
    }
    true
}

/// The variables of a command that writes. It has a cluster time, which is zero where there is no
/// cluster.
pub(super) async fn variables_of_write(
    ctx: &OpContext,
    definitions: Option<&RawDocument>,
    constants: Option<RuntimeConstants>,
) -> Result<Variables> {
    let mut variables = variables(ctx, definitions, constants, None).await?;
    variables.cluster_time.get_or_insert(Timestamp {
        time: 0,
        increment: 0,
    });
    Ok(variables)
}

/// The variables of a filter in a command that has no `let`, and in which there is no `$$NOW`.
pub(super) fn of_filter() -> Variables {
    Variables {
        in_cluster: cluster_time().is_some(),
        random: random(),
        ..Variables::default()
    }
}

/// The variables with the constants of a pipeline update, which are taken as they are, and hide
/// variables of `let`.
pub(super) fn with_constants(variables: &Variables, constants: &RawDocument) -> Variables {
    let mut variables = variables.clone();
    for (name, value) in pinion_bson::elements(constants) {
        variables.values.retain(|(hidden, _)| hidden != name);
        variables.values.push((name.to_owned(), value.into()));
    }
    variables
}
