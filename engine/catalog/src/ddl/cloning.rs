//! Collections copied into capped ones, beside them or into their place.

use std::sync::Arc;

use pinion_clock::Timestamp;
use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::builds::check_no_build;
use super::coordinator::{Coordinator, behind_gates, coordinate};
use super::guard::Definition;
use super::locks::Scope;
use super::rename::renaming;
use crate::catalog::{Catalog, core_catalog};
use crate::entry::Collection;
use crate::gates::GateMode;
use crate::names::check_creatable;
use crate::options::{Capped, CollectionOptions};

/// Copies the documents of the first collection into the second, in their order. It runs on core 0
/// and passes no gates: no other operation writes to the second collection meanwhile, and neither
/// of them goes away.
pub type CopyDocuments =
    Box<dyn FnOnce(Arc<Collection>, Arc<Collection>) -> LocalBoxFuture<'static, Result<()>> + Send>;

/// Makes a capped collection with the documents of another one. Those for which there is no room
/// are left out, the oldest first; the indexes are left out as well.
///
/// # Errors
/// `NamespaceNotFound` without a source, `CommandNotSupportedOnView` where that is a view,
/// `NamespaceExists`; those of the copy, after which the new collection is gone again.
pub fn clone_as_capped(
    ctx: &OpContext,
    from: Namespace,
    to: Namespace,
    size_bytes: i64,
    copy: CopyDocuments,
) -> LocalBoxFuture<'_, Result<Timestamp>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::CloneAsCapped {
            from: from.clone(),
            to: to.clone(),
        };
        coordinate(ctx, definition, move |c| async move {
        let both = vec![from.clone(), to.clone()];
        let _lock = c.lock_for(&by, Scope::Namespaces(both)).await?;
        let source = source(&core_catalog().current(), &from, "cloneCollectionAsCapped")?;
        check_creatable(&to)?;
        if core_catalog().current().kind(&to).is_some() {
            return Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                format!(
                    "cloneCollectionAsCapped failed - destination collection {to} already exists. source collection: {from}"
                ),
            ));
        }
        let options = capped_options(&source, size_bytes, false);
        // What is inserted before the end is inserted behind the copies.
        let filling = c.fill_capped(&source, &to, options, copy);
        behind_gates(
            Some(&by),
            std::slice::from_ref(&to),
            GateMode::NoWrites,
            filling,
        )
        .await
    })
    .await
    })
}

/// Puts a capped collection with the same documents, as far as there is room for them, in the place
/// of a collection. There are no readers and writers of that meanwhile.
///
/// # Errors
/// As [`clone_as_capped`]; the collection is as before then.
pub fn convert_to_capped(
    ctx: &OpContext,
    ns: Namespace,
    size_bytes: i64,
    copy: CopyDocuments,
) -> LocalBoxFuture<'_, Result<Timestamp>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::ConvertToCapped(ns.clone());
        coordinate(ctx, definition, move |c| async move {
            let name = format!("tmp{}.convertToCapped.{}", c.uuid(), ns.collection());
            // A name that is long already leaves no room for that.
            let temporary = Namespace::new(ns.db(), &name).or_else(|_| {
                Namespace::new(ns.db(), &format!("tmp{}.convertToCapped", c.uuid()))
            })?;
            let both = vec![ns.clone(), temporary.clone()];
            let _lock = c.lock_for(&by, Scope::Namespaces(both.clone())).await?;
            let source = source(&core_catalog().current(), &ns, "convertToCapped")?;
            check_no_build(&source)?;
            let options = capped_options(&source, size_bytes, true);
            let converting = async {
                c.fill_capped(&source, &temporary, options, copy).await?;
                let replacing = |catalog: &Catalog| renaming(catalog, &temporary, &ns, false);
                c.commit(replacing).await
            };
            behind_gates(Some(&by), &both, GateMode::Closed, converting).await
        })
        .await
    })
}

fn source(catalog: &Catalog, ns: &Namespace, command: &str) -> Result<Arc<Collection>> {
    if catalog.view(ns).is_some() {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
            format!("{command} not supported for views: {ns}"),
        ));
    }
    catalog.get(ns).cloned().ok_or_else(|| {
        let what = format!("source collection {ns} does not exist");
        Error::new(ErrorCode::NAMESPACE_NOT_FOUND, what)
    })
}

impl Coordinator {
    /// Makes the capped collection and has the documents copied into it. It is gone again after an
    /// error.
    async fn fill_capped(
        &self,
        source: &Arc<Collection>,
        to: &Namespace,
        options: CollectionOptions,
        copy: CopyDocuments,
    ) -> Result<Timestamp> {
        self.create(to, options).await?;
        let made = core_catalog().get(to).expect("just made");
        match copy(source.clone(), made).await {
            Ok(()) => Ok(pinion_storage::storage().last_allotted()),
            Err(error) => {
                self.drop_one(to).await?;
                Err(error)
            }
        }
    }
}

/// The options of a capped collection in the place of another one, or beside it.
fn capped_options(source: &Collection, size_bytes: i64, temporary: bool) -> CollectionOptions {
    CollectionOptions {
        capped: Some(Capped {
            size_bytes,
            max_documents: None,
        }),
        temporary,
        // The order is that of the records.
        clustered: None,
        expire_after_secs: None,
        ..source.options.clone()
    }
}
