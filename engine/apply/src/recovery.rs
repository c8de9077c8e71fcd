//! Recovery of what a data directory has: the catalog, and the entries of the log.

use std::fmt;

use pinion_catalog::{ApplyMode, begin_builds, core_catalog};
use pinion_clock::Timestamp;
use pinion_exec::placement::{WrittenDocuments, documents_applied};
use pinion_storage::{OpenError, Opened, RecoveryReport};

use crate::applier::Applier;
use crate::cloning::PassedOver;

/// Why a node did not open.
#[derive(Debug)]
pub enum OpenNodeError {
    Storage(OpenError),
    Catalog(pinion_wire::Error),
}

impl fmt::Display for OpenNodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenNodeError::Storage(error) => error.fmt(f),
            OpenNodeError::Catalog(error) => f.write_str(&error.message),
        }
    }
}

impl std::error::Error for OpenNodeError {}

/// Replays the log of a directory whose base is open, for the catalog that it has.
pub async fn recover(opened: Opened) -> Result<RecoveryReport, OpenNodeError> {
    pinion_catalog::load()
        .await
        .map_err(OpenNodeError::Catalog)?;
    let report = match core_catalog().current().is_partial() {
        false => opened.recover(Applier::new(ApplyMode::Recovery)).await,
        // A part of a copy is of no use, and what was logged beside it has nothing to be applied
        // to.
        true => opened.recover(PassedOver).await,
    };
    report.map_err(OpenNodeError::Storage)
}

/// The catalog, the entries up to `limit`, and what a member knows of its data, when that is opened
/// again. The node follows afterwards.
pub async fn recover_node(
    opened: Opened,
    limit: Timestamp,
) -> Result<RecoveryReport, OpenNodeError> {
    pinion_catalog::load()
        .await
        .map_err(OpenNodeError::Catalog)?;
    let report = opened
        .recover_up_to(limit, Applier::new(ApplyMode::Recovery))
        .await
        .map_err(OpenNodeError::Storage)?;
    pinion_catalog::reap(false)
        .await
        .map_err(OpenNodeError::Catalog)?;
    // A build that starts again writes nothing as a primary would.
    let followed = pinion_storage::storage().follow().await;
    followed.map_err(|fatal| OpenNodeError::Storage(OpenError::Fatal(fatal)))?;
    let started = begin_builds().await;
    started.map_err(OpenNodeError::Catalog)?;
    pinion_exec::cluster_parameter_store::load()
        .await
        .map_err(OpenNodeError::Catalog)?;
    pinion_exec::user_write_block_store::load()
        .await
        .map_err(OpenNodeError::Catalog)?;
    pinion_service::login::forget_users().await;
    documents_applied(WrittenDocuments::ALL).await;
    Ok(report)
}
