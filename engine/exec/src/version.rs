//! The version that the data files say they are of, as tools look for it in `admin.system.version`.

use pinion_bson::rawdoc;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

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

/// Stores the version where it is not yet. Called once, on core 0, when the node has opened.
///
/// # Errors
/// Those of a write.
pub async fn keep_version() -> Result<()> {
    let ns = Namespace::new(DATABASE, COLLECTION)?;
    let now_ns = pinion_runtime::now().as_nanos();
    let ctx = OpContext::internal(0, "setFeatureCompatibilityVersion", DATABASE, now_ns);
    let document = rawdoc! { "_id": DOCUMENT, "version": feature_version() };
    put_document(&ctx, ns, DOCUMENT, &document).await
}
