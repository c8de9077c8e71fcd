//! The variables of a command: `$$NOW` and those of `let`.

use std::sync::Arc;

use pinion_bson::{RawBson, RawDocument, RawDocumentBuf, Timestamp};
use pinion_collation::Collation;
use pinion_query::{Expression, Variables, check_variable_name};
use pinion_service::compute::compute;
use pinion_service::generate::random;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::topology::cluster_time;

/// The variables that a command's expressions may use. The values of `let` are expressions without
/// a document.
pub(super) async fn variables(
    ctx: &OpContext,
    definitions: Option<&RawDocument>,
    collation: Option<Arc<Collation>>,
) -> Result<Variables> {
    let mut variables = Variables {
        now_ms: Some(pinion_runtime::wall_ms()),
        cluster_time: cluster_time(),
        collation,
        random: random(),
        ..Variables::default()
    };
    let Some(definitions) = definitions else {
        return Ok(variables);
    };
    let nothing = RawDocumentBuf::new();
    for (name, value) in pinion_bson::elements(definitions) {
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

/// The variables of a command that writes. It has a cluster time, which is zero where there is no
/// cluster.
pub(super) async fn variables_of_write(
    ctx: &OpContext,
    definitions: Option<&RawDocument>,
) -> Result<Variables> {
    let mut variables = variables(ctx, definitions, None).await?;
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
