//! The variables of a command: `$$NOW`, `$$CLUSTER_TIME`, and those of `let`.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::{Expression, Variables, check_variable_name};
use pinion_service::generate::random;
use pinion_wire::{Error, ErrorCode, Result};

use crate::cluster::Cluster;

/// The variables that a command's expressions may use. The values of `let` are expressions without
/// a document.
///
/// # Errors
/// Those of the expressions; one looks at a document.
pub(crate) fn variables(definitions: Option<&RawDocument>) -> Result<Variables> {
    let time = Cluster::here().clock.time().cluster();
    let mut variables = Variables {
        now_ms: Some(pinion_runtime::wall_ms()),
        cluster_time: (!time.is_null()).then_some(pinion_bson::Timestamp {
            time: time.secs(),
            increment: time.inc(),
        }),
        in_cluster: true,
        random: random(),
        ..Variables::default()
    };
    let nothing = RawDocumentBuf::new();
    for (name, value) in definitions.into_iter().flat_map(pinion_bson::elements) {
        check_variable_name(name, false)?;
        let expression = Expression::parse(value, &variables)?;
        if expression.reads_document() || expression.reads_metadata() {
            return Err(Error::new(
                ErrorCode(4_890_500),
                "Command let Expression tried to access a field, but this is not allowed because \
                 Command let expressions run before the query examines any documents.",
            ));
        }
        let value = expression.evaluate(&nothing)?.as_ref().map(RawBson::from);
        variables.bind(name, value);
    }
    Ok(variables)
}

/// Whether a command may look at the time of its operation, which is then the same at all shards.
pub(crate) fn reads_time(command: &[u8]) -> bool {
    let has = |name: &[u8]| command.windows(name.len()).any(|found| found == name);
    has(b"$$NOW") || has(b"$$CLUSTER_TIME")
}

/// `let` for a command that a shard runs with these variables, and the time of the operation, which
/// a shard takes from a router alone.
pub(crate) fn definitions(variables: &Variables) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    if let Some(now_ms) = variables.now_ms {
        let now = pinion_bson::DateTime::from_millis(now_ms);
        out.append_raw("NOW", RawBsonRef::DateTime(now));
    }
    if let Some(time) = variables.cluster_time {
        out.append_raw("CLUSTER_TIME", RawBsonRef::Timestamp(time));
    }
    for (name, value) in &variables.values {
        out.start_document(name);
        out.append_raw("$literal", value.as_raw_bson_ref()).end();
    }
    for name in &variables.missing {
        out.append(name, "$$REMOVE");
    }
    out.finish()
}
