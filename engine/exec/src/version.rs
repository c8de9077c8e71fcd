//! The version that the data files say they are of, as tools look for it in `admin.system.version`.

use pinion_bson::{RawBsonRef, rawdoc};
use pinion_catalog::{LogForm, set_log_form};
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, submit_to};
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::local::document_by_id;
use crate::write::put_document;

/// The version whose behaviour this node follows.
pub(crate) const COMPATIBLE_VERSION: [i32; 4] = [8, 0, 16, 0];

const DATABASE: &str = "admin";
const COLLECTION: &str = "system.version";
const DOCUMENT: &str = "featureCompatibilityVersion";

/// The version of the features that are in use.
pub(crate) fn feature_version() -> String {
    let [major, minor, ..] = COMPATIBLE_VERSION;
    format!("{major}.{minor}")
}

/// Stores the version where there is none yet: one that is there is that of the set, whose other members may know no newer one.
/// Called once, on core 0, when the node has opened.
///
/// # Errors
/// Those of a write.
pub fn keep_version() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        match stored_version().await? {
            Some(_) => Ok(()),
            None => store_version().await,
        }
    })
}

/// Versions of the data under which members of MongoDB 4.4 may follow this node.
const PLAIN_VERSIONS: [&str; 2] = ["4.2", "4.4"];

/// Chooses in which form this node logs what it does as a primary, by the version that the data say they are of. Called on core 0,
/// before anything is written as one.
///
/// # Errors
/// Those of a read.
pub fn choose_log_form() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let version = stored_version().await?;
        let is_plain = version.is_some_and(|version| PLAIN_VERSIONS.contains(&version.as_str()));
        let form = match is_plain {
            true => LogForm::Plain,
            false => LogForm::Full,
        };
        set_log_form(form).await;
        Ok(())
    })
}

/// Stores the newest version, in the place of an older one: no member of MongoDB's follows any more.
///
/// # Errors
/// Those of a write.
pub(crate) async fn raise_version() -> Result<()> {
    submit_to(CoreId(0), Queue::Foreground, || async {
        if stored_version().await? == Some(feature_version()) {
            return Ok(());
        }
        store_version().await?;
        choose_log_form().await
    })
    .await
}

async fn store_version() -> Result<()> {
    let ns = Namespace::new(DATABASE, COLLECTION)?;
    let now_ns = pinion_runtime::now().as_nanos();
    let ctx = OpContext::internal(0, "setFeatureCompatibilityVersion", DATABASE, now_ns);
    let document = rawdoc! { "_id": DOCUMENT, "version": feature_version() };
    put_document(&ctx, ns, DOCUMENT, &document).await
}

/// The version that the data say they are of.
async fn stored_version() -> Result<Option<String>> {
    let ns = format!("{DATABASE}.{COLLECTION}");
    let found = document_by_id(&ns, RawBsonRef::String(DOCUMENT)).await?;
    let version = found.and_then(|found| found.get_str("version").map(str::to_owned).ok());
    Ok(version)
}
