//! The check of documents that are about to be written against their collection's validator.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_catalog::{Collection, ValidationAction, ValidationLevel, document_id};
use pinion_query::Validator;
use pinion_service::compute::compute;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::topology::cluster_time;

/// Whether documents are checked: `bypassDocumentValidation` says that they are not.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Validation {
    #[default]
    Enforced,
    Bypassed,
}

impl Validation {
    /// What the option of a command asks for.
    pub fn unless(bypassed: Option<bool>) -> Validation {
        match bypassed {
            Some(true) => Validation::Bypassed,
            _ => Validation::Enforced,
        }
    }
}

/// Checks a document that is about to be written in place of `old`.
///
/// # Errors
/// `DocumentValidationFailure`, unless the collection only warns.
pub(super) async fn check_document(
    ctx: &OpContext,
    collection: &Collection,
    validation: Validation,
    old: Option<&RawDocument>,
    new: &RawDocument,
) -> Result<()> {
    if validation == Validation::Bypassed || !collection.has_validator() {
        return Ok(());
    }
    let (now_ms, cluster_time) = (pinion_runtime::wall_ms(), cluster_time());
    let validator = compute(ctx, || collection.validator(now_ms, cluster_time)).await?;
    let Some(details) = compute(ctx, || validator.check(new)).await? else {
        return Ok(());
    };
    let level = collection.options.validation_level.unwrap_or_default();
    if level == ValidationLevel::Moderate
        && let Some(old) = old
        && compute(ctx, || validator.check(old)).await?.is_some()
    {
        return Ok(());
    }
    refuse(collection, &validator, new, details)
}

/// What the collection does with a document that breaks its validator.
#[cold]
fn refuse(
    collection: &Collection,
    validator: &Arc<Validator>,
    document: &RawDocument,
    details: RawDocumentBuf,
) -> Result<()> {
    let mut info = DocBuilder::new();
    info.append("failingDocumentId", document_id(document)?)
        .append("details", &*details);
    let info = info.finish();
    let action = collection.options.validation_action.unwrap_or_default();
    if action != ValidationAction::Error {
        tracing::warn!(
            target: "STORAGE",
            id = 20_294u64,
            namespace = collection.ns.as_str(),
            document = pinion_query::document_text(document),
            errInfo = pinion_query::document_text(&info),
            validator = pinion_query::document_text(validator.filter()),
            "Document would fail validation"
        );
    }
    if action == ValidationAction::Warn {
        return Ok(());
    }
    let mut extra = DocBuilder::new();
    extra.append("errInfo", &*info);
    Err(Error::new(
        ErrorCode::DOCUMENT_VALIDATION_FAILURE,
        "Document failed validation",
    )
    .with_extra(extra.finish()))
}
