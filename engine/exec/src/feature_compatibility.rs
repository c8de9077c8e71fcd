//! The version that the data files say they are of, as tools look for it in `admin.system.version`.

use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, rawdoc};
use pinion_catalog::{Observers, OpEvent, OpKind, OpObserver, OplogFormat, set_oplog_format};
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, submit_to};
use pinion_service::feature_version::feature_version;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::local::document_by_id;
use crate::own_collections::VERSION;
use crate::write::upsert_by_id;

const DATABASE: &str = "admin";
const NAMESPACE: &str = "admin.system.version";
const DOCUMENT: &str = "featureCompatibilityVersion";

/// Stores the version where there is none yet: one that is there is that of the set, whose other
/// members may know no newer one. Called once, on core 0, when the node has opened.
///
/// # Errors
/// Those of a write.
pub fn keep_version() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        // The version of a member's data is its set's.
        if pinion_storage::storage().standalone_above().is_some() {
            return Ok(());
        }
        match stored_version().await? {
            Some(_) => Ok(()),
            None => store_version().await,
        }
    })
}

/// Versions of the data under which members of MongoDB 4.4 may follow this node.
const V44_VERSIONS: [&str; 2] = ["4.2", "4.4"];

/// Chooses in which form this node logs what it does as a primary, by the version that the data say
/// they are of. Called on core 0, before anything is written as one.
///
/// # Errors
/// Those of a read.
pub fn choose_oplog_format() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let version = stored_version().await?;
        let is_v44 = version.is_some_and(|version| V44_VERSIONS.contains(&version.as_str()));
        let form = match is_v44 {
            true => OplogFormat::V44,
            false => OplogFormat::Native,
        };
        set_oplog_format(form).await;
        Ok(())
    })
}

/// Stores the newest version, in the place of an older one: no member of MongoDB's follows any
/// more.
///
/// # Errors
/// Those of a write.
pub async fn raise_version() -> Result<()> {
    submit_to(CoreId(0), Queue::Foreground, || async {
        if stored_version().await? == Some(feature_version()) {
            return Ok(());
        }
        store_version().await?;
        choose_oplog_format().await
    })
    .await
}

/// Keeps clients from a version that the node could not read again. Sees every write of
/// `admin.system.version`.
struct VersionObserver;

/// Has the writes of this core seen. Called once on each core.
pub fn observe() {
    let mut observers = Observers::clone(&pinion_runtime::core_local::<Observers>());
    observers.register(Rc::new(VersionObserver));
    pinion_runtime::set_core_local(Rc::new(observers));
}

impl OpObserver for VersionObserver {
    fn on_op(&self, event: &OpEvent<'_>) -> Result<()> {
        match event.ns == NAMESPACE {
            true => check_write(event.kind, event.o, event.o2),
            false => Ok(()),
        }
    }
}

/// Refuses to remove the version, or to write one that there is not.
fn check_write(kind: OpKind, o: &RawDocument, o2: Option<&RawDocument>) -> Result<()> {
    let id = pinion_bson::get(o2.unwrap_or(o), "_id");
    if id != Some(RawBsonRef::String(DOCUMENT)) {
        return Ok(());
    }
    match kind {
        OpKind::Insert => check_version(pinion_bson::get(o, "version")),
        OpKind::Update => match pinion_bson::get(o, "diff") {
            Some(RawBsonRef::Document(diff)) => check_diff(diff),
            _ => check_version(pinion_bson::get(o, "version")),
        },
        OpKind::Delete => Err(Error::new(
            ErrorCode(40_670),
            "removing FeatureCompatibilityVersion document is not allowed",
        )),
        OpKind::Command | OpKind::Noop => Ok(()),
    }
}

/// What a diff makes of the field `version`: unset, set, or inserted.
fn check_diff(diff: &RawDocument) -> Result<()> {
    let field = |section| match pinion_bson::get(diff, section) {
        Some(RawBsonRef::Document(fields)) => pinion_bson::get(fields, "version"),
        _ => None,
    };
    if field("d").is_some() {
        return check_version(None);
    }
    let written = field("u").or_else(|| field("i"));
    written.map_or(Ok(()), |version| check_version(Some(version)))
}

fn check_version(version: Option<RawBsonRef<'_>>) -> Result<()> {
    let newest = feature_version();
    let found = match version {
        Some(RawBsonRef::String(version)) => version,
        Some(other) => {
            return Err(Error::type_mismatch(format!(
                "BSON field 'FeatureCompatibilityVersionDocument.version' is the wrong type '{}', expected type 'string'",
                pinion_bson::type_name(other.element_type())
            )));
        }
        None => {
            return Err(Error::new(
                ErrorCode(40_414),
                "BSON field 'FeatureCompatibilityVersionDocument.version' is missing but a required field",
            ));
        }
    };
    if found == newest || V44_VERSIONS.contains(&found) {
        return Ok(());
    }
    Err(Error::bad_value(format!(
        "Invalid feature compatibility version value '{found}', expected '{}' or '{newest}'",
        V44_VERSIONS.join("' or '")
    )))
}

async fn store_version() -> Result<()> {
    let ns = Namespace::new(DATABASE, VERSION)?;
    let now_ns = pinion_runtime::now().as_nanos();
    let ctx = OpContext::internal(
        0,
        pinion_command::row("setFeatureCompatibilityVersion"),
        DATABASE,
        now_ns,
    );
    let document = rawdoc! { "_id": DOCUMENT, "version": feature_version() };
    upsert_by_id(&ctx, ns, DOCUMENT, &document).await
}

/// The version that the data say they are of.
async fn stored_version() -> Result<Option<String>> {
    let found = document_by_id(NAMESPACE, RawBsonRef::String(DOCUMENT)).await?;
    let version = found.and_then(|found| found.get_str("version").map(str::to_owned).ok());
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_there_are_not_are_refused() {
        let id = rawdoc! { "_id": DOCUMENT };
        let check = |kind, o: &RawDocument, o2: Option<&RawDocument>, code: i32| {
            let found = check_write(kind, o, o2).map_or_else(|error| error.code.0, |()| 0);
            assert_eq!(found, code, "{o:?}");
        };
        check(OpKind::Delete, &id, None, 40_670);
        check(OpKind::Delete, &rawdoc! { "_id": "authSchema" }, None, 0);
        let with = |version: &str| rawdoc! { "_id": DOCUMENT, "version": version };
        check(OpKind::Insert, &with("8.0"), None, 0);
        check(OpKind::Insert, &with("banana"), None, 2);
        check(OpKind::Insert, &id, None, 40_414);
        check(OpKind::Update, &with("banana"), Some(&id), 2);
        check(
            OpKind::Update,
            &rawdoc! { "$v": 2, "diff": { "u": { "version": "9" } } },
            Some(&id),
            2,
        );
        check(
            OpKind::Update,
            &rawdoc! { "$v": 2, "diff": { "u": { "version": 8 } } },
            Some(&id),
            14,
        );
        check(
            OpKind::Update,
            &rawdoc! { "$v": 2, "diff": { "d": { "version": false } } },
            Some(&id),
            40_414,
        );
        check(
            OpKind::Update,
            &rawdoc! { "$v": 2, "diff": { "i": { "x": 1 } } },
            Some(&id),
            0,
        );
    }
}
