//! A collection or a series that takes the place of another one, if that is what it was when it was
//! looked at.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, compare_documents};
use pinion_clock::Timestamp;
use pinion_query::document_text;
use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::coordinator::{behind_gates, coordinate};
use super::guard::Definition;
use super::locks::Scope;
use super::rename::{DropTarget, check, renaming};
use super::series::together;
use crate::catalog::{Catalog, core_catalog};
use crate::gates::GateMode;
use crate::options::CollectionKind;
use crate::specs::{listing_of, to_series};

/// A collection or a series that is to be replaced, as it was listed. Neither options nor indexes:
/// there was none.
#[derive(Clone, Debug, Default)]
pub struct ReplacedCollection {
    /// As `listCollections` shows them. A UUID among them says nothing: what was made again in the
    /// same way is the same.
    pub options: RawDocumentBuf,
    /// As `listIndexes` shows them, in any order.
    pub indexes: Vec<RawDocumentBuf>,
}

impl ReplacedCollection {
    /// What there is of the name now. A view is nothing that could be replaced.
    fn now(catalog: &Catalog, ns: &Namespace) -> ReplacedCollection {
        let view = catalog.view(ns);
        let view = view.filter(|view| view.kind() == CollectionKind::TimeSeries);
        let (options, stored, series) = match (catalog.get(ns), view) {
            (Some(found), _) => (found.options.to_document(), Some(found), None),
            (None, Some(view)) => {
                let series = view.options.time_series.as_ref();
                (view.listed_options(), catalog.get(&view.on()), series)
            }
            (None, None) => return ReplacedCollection::default(),
        };
        let listed = |index: RawDocumentBuf| match series {
            Some(series) => to_series(series, &index).map(|index| listing_of(&index)),
            None => Some(listing_of(&index)),
        };
        let indexes = stored.into_iter().flat_map(|found| found.listed_indexes());
        ReplacedCollection {
            options,
            indexes: indexes.filter_map(listed).collect(),
        }
    }

    /// Compares it with what there is now.
    ///
    /// # Errors
    /// `CommandFailed`.
    fn check(&self, now: &ReplacedCollection, ns: &Namespace) -> Result<()> {
        let failed = |why: String| Err(Error::new(ErrorCode::COMMAND_FAILED, why));
        let options = without_uuid(&self.options);
        if compare_documents(&options, &now.options).is_ne() {
            return failed(format!(
                "collection options of target collection {ns} changed during processing. Original options: {}, new options: {}",
                document_text(&options),
                document_text(&now.options)
            ));
        }
        let sorted = |indexes: &[RawDocumentBuf]| {
            let mut all: Vec<_> = indexes.iter().map(|index| listing_of(index)).collect();
            all.sort_by(|a, b| compare_documents(a, b));
            all
        };
        let (before, now) = (sorted(&self.indexes), sorted(&now.indexes));
        let is_same = |(before, now): (&RawDocumentBuf, &RawDocumentBuf)| {
            compare_documents(before, now).is_eq()
        };
        match before.len() == now.len() && before.iter().zip(&now).all(is_same) {
            true => Ok(()),
            false => failed(format!(
                "indexes of target collection {ns} changed during processing."
            )),
        }
    }
}

fn without_uuid(options: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for elem in pinion_bson::raw_elements(options) {
        if elem.name != b"uuid" {
            out.append_elem(&elem);
        }
    }
    out.finish()
}

/// Puts a collection, or a series, in the place of `to`, which goes if it is there. Where `before`
/// says what `to` was, nothing of it can change between the comparison and that.
///
/// # Errors
/// `CommandFailed` where `to` has other options or indexes than `before`; those of
/// [`rename_collection`](super::rename_collection). Of series: `NamespaceExists` when the name has
/// become that of something else; `BackgroundOperationInProgressForNamespace` while an index of one
/// of the two is built.
pub fn replace_collection(
    ctx: &OpContext,
    from: Namespace,
    to: Namespace,
    before: Option<ReplacedCollection>,
) -> LocalBoxFuture<'_, Result<Timestamp>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::Rename {
            from: from.clone(),
            to: to.clone(),
        };
        coordinate(ctx, definition, move |c| async move {
            // Whatever either of them is: what makes a series of a name locks its buckets too.
            let mut all = together(&from);
            all.extend(together(&to));
            let _lock = c.lock_for(&by, Scope::Namespaces(all.clone())).await?;
            let catalog = core_catalog().current();
            if let Some(before) = &before {
                before.check(&ReplacedCollection::now(&catalog, &to), &to)?;
            }
            if catalog.kind(&from) == Some(CollectionKind::TimeSeries) {
                let operation = c.replace(&from, &to);
                return behind_gates(Some(&by), &all, GateMode::Closed, operation).await;
            }
            check(&catalog, &from, &to, DropTarget::Yes)?;
            let operation = c.commit(|catalog| renaming(catalog, &from, &to, false));
            let gates = [from.clone(), to.clone()];
            behind_gates(Some(&by), &gates, GateMode::Closed, operation).await
        })
        .await
    })
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn what_has_changed() {
        let ns = Namespace::parse("d.c").expect("a namespace");
        let index = |name: &str| {
            let mut key = DocBuilder::new();
            key.append(name, 1i32);
            rawdoc! { "v": 2, "key": key.finish(), "name": name }
        };
        let of = |options: RawDocumentBuf, names: &[&str]| ReplacedCollection {
            options,
            indexes: names.iter().map(|name| index(name)).collect(),
        };
        let check = |before: &ReplacedCollection, now: &ReplacedCollection, expected: &str| {
            let found = before.check(now, &ns).map_err(|error| {
                assert_eq!(error.code, ErrorCode::COMMAND_FAILED);
                error.message
            });
            assert_eq!(found.err().unwrap_or_default(), expected);
        };
        let absent = ReplacedCollection::default();
        let plain = of(rawdoc! {}, &["_id_", "a"]);
        check(&absent, &absent, "");
        check(&plain, &of(rawdoc! {}, &["a", "_id_"]), "");
        let indexes = "indexes of target collection d.c changed during processing.";
        check(&absent, &plain, indexes);
        check(&plain, &of(rawdoc! {}, &["_id_", "b"]), indexes);
        check(&plain, &of(rawdoc! {}, &["_id_"]), indexes);
        let hidden = rawdoc! { "hidden": true, "name": "a", "key": { "a": 1.0 }, "v": 2i64 };
        let mut other = of(rawdoc! {}, &["_id_"]);
        other.indexes.push(hidden);
        check(&plain, &other, indexes);
        // What a client names in another order, or as another number, is the same.
        let mut same = of(rawdoc! {}, &["_id_"]);
        let ordered = rawdoc! { "name": "a", "key": { "a": 1.0 }, "v": 2i64 };
        same.indexes.push(ordered);
        check(&same, &plain, "");
        let with_uuid = of(rawdoc! { "uuid": 5, "validator": { "a": 1 } }, &["_id_"]);
        check(
            &with_uuid,
            &of(rawdoc! { "validator": { "a": 1 } }, &["_id_"]),
            "",
        );
        check(
            &with_uuid,
            &of(rawdoc! { "validator": { "a": 2 } }, &["_id_"]),
            "collection options of target collection d.c changed during processing. Original options: { validator: { a: 1 } }, new options: { validator: { a: 2 } }",
        );
    }
}
