//! Which index a collection must have for its shard key.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, rawdoc};
use pinion_query::document_text;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{CollectionFacts, IndexFacts};
use super::create_request::CreateCollectionRequest;
use crate::key::ShardKeyPattern;

/// A shard key that a collection is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProposedKey<'k> {
    pub(super) key: &'k ShardKeyPattern,
    pub(super) is_unique: bool,
    /// Whether unique indexes are looked at.
    pub(super) enforces_uniqueness: bool,
}

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

/// Whether the index holds every document, in the order of the shard key.
fn is_useful(proposed: ProposedKey<'_>, index: &IndexFacts) -> bool {
    let excluded = index.is_sparse
        || index.is_partial
        || index.is_hidden
        || index.is_multikey
        || index.has_collation;
    !excluded && proposed.key.is_prefix_of_index(&index.key)
}

/// Whether the collection has an index that starts with the key.
///
/// # Errors
/// `InvalidOptions` where a unique index cannot be kept over shards.
fn has_index(ns: &Namespace, proposed: ProposedKey<'_>, local: &CollectionFacts) -> Result<bool> {
    let key = proposed.key.to_bson();
    let foreign =
        |index: &&IndexFacts| index.is_unique && !proposed.key.is_unique_index_possible(&index.key);
    if proposed.enforces_uniqueness
        && let Some(index) = local.indexes.iter().find(foreign)
    {
        return Err(invalid(format!(
            "can't shard collection '{ns}' with unique index on {} and proposed shard key {}. \
             Uniqueness can't be maintained unless shard key is a prefix",
            document_text(&index.key),
            document_text(&key)
        )));
    }
    if !local.indexes.iter().any(|index| is_useful(proposed, index)) {
        return Ok(false);
    }
    let same = |index: &&IndexFacts| is_same_key(&index.key, &key);
    let is_id = is_same_key(&key, &rawdoc! { "_id": 1 });
    let is_unique = |index: &IndexFacts| is_id || (index.is_unique && is_useful(proposed, index));
    let mut exact = local.indexes.iter().filter(same);
    // An index with more fields does not keep the key itself unique.
    if proposed.is_unique && proposed.enforces_uniqueness && !exact.any(is_unique) {
        return Err(invalid(format!(
            "can't shard collection {ns}, {} index not unique, and unique index explicitly specified",
            document_text(&key)
        )));
    }
    Ok(true)
}

/// The index that is to be made before the collection is sharded, if one is missing.
///
/// # Errors
/// `InvalidOptions` where a unique index cannot be kept over shards, and where the collection has
/// documents and no index that starts with the key.
pub(super) fn missing_index(
    ns: &Namespace,
    request: &CreateCollectionRequest,
    local: &CollectionFacts,
) -> Result<Option<RawDocumentBuf>> {
    let proposed = ProposedKey {
        key: &request.key,
        is_unique: request.is_unique,
        enforces_uniqueness: request.enforces_uniqueness,
    };
    if has_index(ns, proposed, local)? {
        return Ok(None);
    }
    if !local.is_empty {
        return Err(invalid(
            "Please create an index that starts with the proposed shard key before sharding the collection"
                .to_owned(),
        ));
    }
    match request.makes_index {
        true => Ok(Some(index_of(request, &request.index_key(), local))),
        false => Ok(None),
    }
}

/// Checks that a collection can be sharded by a finer key, for which no index is made.
///
/// # Errors
/// `InvalidOptions`.
pub(super) fn check_refined(
    ns: &Namespace,
    proposed: ProposedKey<'_>,
    local: &CollectionFacts,
) -> Result<()> {
    match has_index(ns, proposed, local)? {
        true => Ok(()),
        false => Err(invalid(
            "Please create an index that starts with the proposed shard key before refining the shard key of the collection"
                .to_owned(),
        )),
    }
}

fn is_same_key(a: &RawDocument, b: &RawDocument) -> bool {
    pinion_bson::compare_documents(a, b).is_eq()
}

/// `{key, name, unique?, collation?}`.
fn index_of(
    request: &CreateCollectionRequest,
    key: &RawDocument,
    local: &CollectionFacts,
) -> RawDocumentBuf {
    let mut name = String::new();
    for (path, value) in pinion_bson::elements(key) {
        let kind = value.as_str().unwrap_or("1");
        let separator = if name.is_empty() { "" } else { "_" };
        name.push_str(&format!("{separator}{path}_{kind}"));
    }
    let mut out = DocBuilder::new();
    out.append("key", key).append("name", name.as_str());
    if request.is_unique {
        out.append("unique", true);
    }
    if local.collation.is_some() {
        out.append("collation", &*rawdoc! { "locale": "simple" });
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: RawDocumentBuf, unique: bool) -> CreateCollectionRequest {
        let request = rawdoc! { "shardKey": key, "unique": unique };
        CreateCollectionRequest::parse(&request).expect("a request")
    }

    fn index(key: RawDocumentBuf) -> IndexFacts {
        IndexFacts {
            name: "x".to_owned(),
            key,
            is_unique: false,
            is_sparse: false,
            is_partial: false,
            is_hidden: false,
            is_multikey: false,
            has_collation: false,
        }
    }

    fn id() -> IndexFacts {
        IndexFacts {
            is_unique: true,
            ..index(rawdoc! { "_id": 1 })
        }
    }

    #[track_caller]
    fn check(
        request: &CreateCollectionRequest,
        indexes: Vec<IndexFacts>,
        is_empty: bool,
        expected: Result<Option<RawDocumentBuf>, &str>,
    ) {
        let mut local = CollectionFacts::absent();
        local.is_empty = is_empty;
        local.indexes.push(id());
        local.indexes.extend(indexes);
        let ns = Namespace::parse("d.c").expect("a namespace");
        match (missing_index(&ns, request, &local), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(part)) => {
                assert_eq!(error.code, ErrorCode::INVALID_OPTIONS);
                assert!(error.message.contains(part), "{error}");
            }
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn indexes_for_a_key() {
        let a = || request(rawdoc! { "a": 1 }, false);
        let made = rawdoc! { "key": { "a": 1 }, "name": "a_1" };
        check(&a(), vec![], true, Ok(Some(made.clone())));
        check(&a(), vec![], false, Err("Please create an index"));
        check(
            &a(),
            vec![index(rawdoc! { "a": 1, "b": 1 })],
            false,
            Ok(None),
        );
        check(
            &a(),
            vec![index(rawdoc! { "b": 1, "a": 1 })],
            false,
            Err("Please create"),
        );
        let usable = || index(rawdoc! { "a": 1 });
        let unusable = [
            IndexFacts {
                is_sparse: true,
                ..usable()
            },
            IndexFacts {
                is_partial: true,
                ..usable()
            },
            IndexFacts {
                is_hidden: true,
                ..usable()
            },
            IndexFacts {
                is_multikey: true,
                ..usable()
            },
            IndexFacts {
                has_collation: true,
                ..usable()
            },
        ];
        for index in unusable {
            check(&a(), vec![index], false, Err("Please create an index"));
        }
        let id_key = request(rawdoc! { "_id": 1 }, true);
        check(&id_key, vec![], false, Ok(None));
        let hashed = request(rawdoc! { "_id": "hashed" }, false);
        let expected = rawdoc! { "key": { "_id": "hashed" }, "name": "_id_hashed" };
        check(&hashed, vec![], true, Ok(Some(expected)));
    }

    #[test]
    fn indexes_for_a_finer_key() {
        let key = ShardKeyPattern::parse(&rawdoc! { "a": 1, "b": 1 }).expect("a key");
        let ns = Namespace::parse("d.c").expect("a namespace");
        let check = |is_unique, enforces_uniqueness, indexes: Vec<IndexFacts>, expected: &str| {
            let proposed = ProposedKey {
                key: &key,
                is_unique,
                enforces_uniqueness,
            };
            let mut local = CollectionFacts::absent();
            local.indexes = indexes;
            let found = check_refined(&ns, proposed, &local);
            let found = found.map_or_else(|error| error.message, |()| String::new());
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty());
        };
        let both = || rawdoc! { "a": 1, "b": 1 };
        let unique = |key| IndexFacts {
            is_unique: true,
            ..index(key)
        };
        check(false, true, vec![id(), index(both())], "");
        // Also of an empty collection none is made.
        check(
            false,
            true,
            vec![id(), index(rawdoc! { "a": 1 })],
            "before refining",
        );
        // What was unique over all shards would not be any more.
        let coarse = || vec![id(), unique(rawdoc! { "a": 1 }), index(both())];
        check(true, true, coarse(), "Uniqueness can't be maintained");
        check(true, false, coarse(), "");
        check(true, true, vec![id(), index(both())], "index not unique");
        check(true, true, vec![id(), unique(both())], "");
    }

    #[test]
    fn unique_indexes() {
        let unique = |key| IndexFacts {
            is_unique: true,
            ..index(key)
        };
        let a = || request(rawdoc! { "a": 1 }, false);
        check(
            &a(),
            vec![unique(rawdoc! { "b": 1 })],
            true,
            Err("Uniqueness can't be maintained"),
        );
        check(
            &a(),
            vec![unique(rawdoc! { "a": 1, "b": 1 })],
            true,
            Ok(None),
        );
        let unique_a = || request(rawdoc! { "a": 1 }, true);
        let made = rawdoc! { "key": { "a": 1 }, "name": "a_1", "unique": true };
        check(&unique_a(), vec![], true, Ok(Some(made)));
        check(
            &unique_a(),
            vec![index(rawdoc! { "a": 1 })],
            true,
            Err("index not unique"),
        );
        check(
            &unique_a(),
            vec![unique(rawdoc! { "a": 1 })],
            true,
            Ok(None),
        );
        check(
            &unique_a(),
            vec![unique(rawdoc! { "a": 1, "b": 1 })],
            true,
            Err("index not unique"),
        );
        let unchecked = CreateCollectionRequest {
            enforces_uniqueness: false,
            ..a()
        };
        check(
            &unchecked,
            vec![unique(rawdoc! { "b": 1 }), index(rawdoc! { "a": 1 })],
            true,
            Ok(None),
        );
    }
}
