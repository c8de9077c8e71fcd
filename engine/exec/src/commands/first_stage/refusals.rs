//! What first stages with little or nothing in their specifications refuse.

use pinion_bson::{DocBuilder, RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument};
use pinion_query::element_text;
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, Result};

use super::super::sessions::parse_list;
use super::{FirstStage, PipelineTarget, wrong_place};

fn type_name(value: RawBsonRef<'_>) -> &'static str {
    pinion_bson::type_name(value.element_type())
}

/// `$indexStats` takes nothing.
pub(super) fn index_stats(spec: RawBsonRef<'_>) -> Result<()> {
    match spec {
        RawBsonRef::Document(spec) if spec.is_empty() => Ok(()),
        _ => Err(Error::new(
            ErrorCode(28803),
            "The $indexStats stage specification must be an empty object",
        )),
    }
}

/// `$planCacheStats` may say that it means all hosts of a cluster, of which this is none.
pub(super) fn plan_cache_stats(spec: RawBsonRef<'_>) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(Error::failed_to_parse(format!(
            "$planCacheStats value must be an object. Found: {}",
            type_name(spec)
        )));
    };
    let mut fields = pinion_bson::elements(spec);
    let Some((name, value)) = fields.next() else {
        return Ok(());
    };
    if name != "allHosts" {
        return Err(Error::failed_to_parse(format!(
            "$planCacheStats parameters object may contain only 'allHosts' field. Found: {name}"
        )));
    }
    let RawBsonRef::Boolean(all_hosts) = value else {
        return Err(Error::new(
            ErrorCode(13111),
            format!(
                "wrong type for field (allHosts) {} != bool",
                type_name(value)
            ),
        ));
    };
    if all_hosts {
        return Err(Error::new(
            ErrorCode(4503200),
            "$planCacheStats stage supports allHosts parameter only for sharded clusters",
        ));
    }
    match fields.next() {
        None => Ok(()),
        Some((name, value)) => Err(Error::failed_to_parse(format!(
            "$planCacheStats parameters object may contain only one field 'allHosts'. Found: {}",
            element_text(name, value)
        ))),
    }
}

/// `$querySettings` may ask for the shapes of queries: gives whether it does.
pub(super) fn query_settings(spec: RawBsonRef<'_>) -> Result<bool> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(Error::new(
            ErrorCode(7746800),
            "$querySettings stage expects a document as argument",
        ));
    };
    let path = Path::root("$querySettings");
    let reader = FieldReader::object(path, spec)?;
    if let Some(RawBsonRef::Null) = reader.value("showDebugQueryShape") {
        // The option has a default, and what has one may not be null.
        let found = RawBsonRef::Null;
        return Err(reader.wrong_type("showDebugQueryShape", found, pinion_wire::idl::Types::BOOL));
    }
    let with_shapes = reader.opt_bool("showDebugQueryShape")?.unwrap_or(false);
    reader.finish()?;
    Ok(with_shapes)
}

/// `$queryStats` may ask for names that disclose nothing.
pub(super) fn query_stats(spec: RawBsonRef<'_>, place: PipelineTarget<'_>) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(Error::failed_to_parse(format!(
            "$queryStats value must be an object. Found: {}",
            type_name(spec)
        )));
    };
    place.needs_admin("$queryStats")?;
    let path = Path::root("$queryStats");
    let reader = FieldReader::object(path, spec)?;
    if let Some(transform) = reader.opt_object("transformIdentifiers")? {
        let algorithm = transform.opt_one_of("algorithm", &[("hmac-sha-256", ())])?;
        if algorithm.is_none() {
            return Err(pinion_wire::idl::missing_field(
                transform.path().field("algorithm"),
            ));
        }
        transform.opt_binary("hmacKey")?;
        transform.finish()?;
    }
    reader.finish()
}

/// `$listSampledQueries` may name a collection.
pub(super) fn list_sampled_queries(spec: RawBsonRef<'_>, place: PipelineTarget<'_>) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(Error::new(
            ErrorCode(6_876_001),
            format!(
                "$listSampledQueries must take a nested object but found: {}",
                element_text("$listSampledQueries", spec)
            ),
        ));
    };
    place.needs_admin("$listSampledQueries")?;
    let reader = FieldReader::object(Path::root("$listSampledQueries"), spec)?;
    if let Some(ns) = reader.opt_str("namespace")? {
        Namespace::parse(ns)?;
    }
    reader.finish()
}

/// `$listLocalSessions`.
pub(super) fn local_sessions(
    spec: RawBsonRef<'_>,
    place: PipelineTarget<'_>,
) -> Result<FirstStage> {
    let spec = options("$listLocalSessions", spec)?;
    if !place.collectionless {
        return Err(wrong_place(
            "$listLocalSessions must be run against the database with {aggregate: 1}, not a collection".into(),
        ));
    }
    let of_users = parse_list("$listLocalSessions", spec)?;
    Ok(FirstStage::Sessions { of_users })
}

/// The stages with a filter in the place of the `$listSessions` in front. No session here belongs
/// to a user.
pub(super) fn list_sessions(spec: RawBsonRef<'_>, stages: &RawArray) -> Result<RawArrayBuf> {
    let of_users = parse_list("$listSessions", options("$listSessions", spec)?)?;
    let mut filter = DocBuilder::new();
    filter.start_document("$match");
    if of_users {
        filter.append("$alwaysFalse", 1i32);
    }
    filter.end();
    let mut out = RawArrayBuf::new();
    out.push(filter.finish());
    for stage in pinion_bson::values(stages).skip(1) {
        out.push(RawBson::from(stage));
    }
    Ok(out)
}

fn options<'d>(name: &str, spec: RawBsonRef<'d>) -> Result<&'d RawDocument> {
    match spec {
        RawBsonRef::Document(spec) => Ok(spec),
        other => Err(Error::type_mismatch(format!(
            "{name} options must be specified in an object, but found: {}",
            type_name(other)
        ))),
    }
}
