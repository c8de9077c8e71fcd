//! What an action is done on, and the patterns by which privileges name it.
//!
//! Source: MongoDB's manual, "Resource Document" and "Built-In Roles", which says what a system
//! collection is.

use pinion_bson::{DocBuilder, RawDocument, elements};

use crate::access_error::AccessError;
use crate::fields;

/// Collections of measurements have this before the name of their view.
const BUCKETS_PREFIX: &str = "system.buckets.";

/// What an operation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// Everything there is.
    Any,
    Cluster,
    /// The normal collections of all databases but `local` and `config`.
    AllNormal,
    /// A database with its normal collections.
    Database(&'a str),
    Collection {
        db: &'a str,
        collection: &'a str,
    },
}

/// The resources that a privilege is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourcePattern {
    /// `{anyResource: true}`
    Any,
    /// `{cluster: true}`
    Cluster,
    /// `{db: "", collection: ""}`: the normal collections of all databases but `local` and
    /// `config`.
    AllNormal,
    /// `{db: "d", collection: ""}`: a database with its normal collections.
    Database(String),
    /// `{db: "", collection: "c"}`: the collections of this name in all databases.
    Named(String),
    /// `{db: "d", collection: "c"}`
    Collection { db: String, collection: String },
    /// `{db: "", system_buckets: ""}`: the buckets of all time series.
    AllBuckets,
    /// `{db: "d", system_buckets: ""}`: the buckets of all time series of a database.
    DatabaseBuckets(String),
    /// `{db: "", system_buckets: "c"}`: the buckets of the time series of this name in all
    /// databases.
    NamedBuckets(String),
    /// `{db: "d", system_buckets: "c"}`: the buckets of a time series.
    Buckets { db: String, collection: String },
}

/// Whether a collection is one of the system's, which patterns of normal collections do not match:
/// `system.*`, and `replset.*` of `local`.
pub fn is_system_collection(db: &str, collection: &str) -> bool {
    collection.starts_with("system.") || (db == "local" && collection.starts_with("replset."))
}

/// Whether `{db: "", collection: ""}` matches the database. `local` and `config` are named by
/// privileges that are about them.
pub(crate) fn is_normal_database(db: &str) -> bool {
    db != "local" && db != "config"
}

/// The time series whose buckets a collection has.
pub(crate) fn bucketed(collection: &str) -> Option<&str> {
    collection.strip_prefix(BUCKETS_PREFIX)
}

impl ResourcePattern {
    /// Whether a privilege on this pattern is one on the resource.
    pub fn matches(&self, resource: Resource<'_>) -> bool {
        use ResourcePattern as Pattern;
        match (self, resource) {
            (Pattern::Any, _)
            | (Pattern::Cluster, Resource::Cluster)
            | (Pattern::AllNormal, Resource::AllNormal) => true,
            (Pattern::AllNormal, Resource::Database(db)) => is_normal_database(db),
            (Pattern::Database(name), Resource::Database(db)) => name == db,
            (_, Resource::Collection { db, collection }) => self.has_collection(db, collection),
            _ => false,
        }
    }

    fn has_collection(&self, db: &str, collection: &str) -> bool {
        let is_normal = !is_system_collection(db, collection);
        let series = bucketed(collection);
        match self {
            Self::Any => true,
            Self::Cluster => false,
            Self::AllNormal => is_normal && is_normal_database(db),
            Self::Database(name) => is_normal && name == db,
            Self::Named(name) => name == collection,
            Self::Collection {
                db: database,
                collection: name,
            } => database == db && name == collection,
            Self::AllBuckets => series.is_some(),
            Self::DatabaseBuckets(name) => series.is_some() && name == db,
            Self::NamedBuckets(name) => series == Some(name),
            Self::Buckets {
                db: database,
                collection: name,
            } => series == Some(name) && database == db,
        }
    }

    /// The one database that it is about, if it is one.
    pub fn database(&self) -> Option<&str> {
        match self {
            Self::Database(db)
            | Self::Collection { db, .. }
            | Self::DatabaseBuckets(db)
            | Self::Buckets { db, .. } => Some(db),
            _ => None,
        }
    }

    /// Reads a resource document. `path` names it in errors: `createRole.privileges.0.resource`.
    ///
    /// # Errors
    /// `IDLUnknownField` and `TypeMismatch` of a field; `BadValue` if the fields are not those of
    /// one kind of resource.
    pub fn parse(resource: &RawDocument, path: &str) -> Result<ResourcePattern, AccessError> {
        let mut read = ResourceFields::default();
        for (name, value) in elements(resource) {
            let field = &format!("{path}.{name}");
            match name {
                "db" => read.db = Some(fields::string(value, field)?),
                "collection" => read.collection = Some(fields::string(value, field)?),
                "system_buckets" => read.buckets = Some(fields::string(value, field)?),
                "cluster" => read.cluster = Some(fields::boolean(value, field)?),
                "anyResource" => read.any = Some(fields::boolean(value, field)?),
                _ => return Err(fields::unknown(path, name)),
            }
        }
        read.pattern()
    }

    /// Writes the resource document into the document that is open, under this name.
    pub fn append_to(&self, out: &mut DocBuilder, name: &str) {
        let (db, kind, collection) = match self {
            Self::Any | Self::Cluster => {
                let is_any = matches!(self, Self::Any);
                let kind = if is_any { "anyResource" } else { "cluster" };
                out.start_document(name).append(kind, true).end();
                return;
            }
            Self::AllNormal => ("", "collection", ""),
            Self::Database(db) => (&**db, "collection", ""),
            Self::Named(collection) => ("", "collection", &**collection),
            Self::Collection { db, collection } => (&**db, "collection", &**collection),
            Self::AllBuckets => ("", "system_buckets", ""),
            Self::DatabaseBuckets(db) => (&**db, "system_buckets", ""),
            Self::NamedBuckets(collection) => ("", "system_buckets", &**collection),
            Self::Buckets { db, collection } => (&**db, "system_buckets", &**collection),
        };
        out.start_document(name)
            .append("db", db)
            .append(kind, collection)
            .end();
    }
}

/// The fields that a resource document has.
#[derive(Default)]
struct ResourceFields<'d> {
    db: Option<&'d str>,
    collection: Option<&'d str>,
    buckets: Option<&'d str>,
    cluster: Option<bool>,
    any: Option<bool>,
}

impl ResourceFields<'_> {
    fn pattern(self) -> Result<ResourcePattern, AccessError> {
        let flags = [("anyResource", self.any), ("cluster", self.cluster)];
        let others = [
            ("cluster", self.cluster.is_some()),
            ("db", self.db.is_some()),
            ("collection", self.collection.is_some()),
            ("system_buckets", self.buckets.is_some()),
        ];
        for (kind, value) in flags {
            let Some(value) = value else { continue };
            if !value {
                let message = format!("'{kind}' must be true when specified");
                return Err(AccessError::bad_value(message));
            }
            let other = others
                .iter()
                .find(|(other, is_set)| *is_set && *other != kind);
            if let Some((other, _)) = other {
                return Err(AccessError::bad_value(format!(
                    "resource: {{{kind}: true}} conflicts with resource type '{other}'"
                )));
            }
            let is_any = kind == "anyResource";
            return Ok(if is_any {
                ResourcePattern::Any
            } else {
                ResourcePattern::Cluster
            });
        }
        self.collections()
    }

    fn collections(self) -> Result<ResourcePattern, AccessError> {
        let (db, collection, is_buckets) = match (self.db, self.collection, self.buckets) {
            (_, Some(_), Some(_)) => {
                return Err(AccessError::bad_value(
                    "resource must not set both 'collection' and 'system_buckets'",
                ));
            }
            (Some(db), Some(collection), None) => (db, collection, false),
            (Some(db), None, Some(collection)) => (db, collection, true),
            (None, None, None) => {
                return Err(AccessError::bad_value(
                    "resource must have only 'db' and 'collection' set, or have only 'cluster' \
                     set, or have only 'anyResource' set",
                ));
            }
            _ => {
                return Err(AccessError::bad_value(
                    "resource must set both 'db' and 'collection' or neither, not exactly one",
                ));
            }
        };
        // No name of a database has these; one with a NUL could not be written back.
        if db.contains(['/', '\\', '.', ' ', '"', '\0']) || collection.contains('\0') {
            let name = format!("{db}.{collection}").replace('\0', "");
            return Err(AccessError::bad_value(format!(
                "'{name}' is not a valid namespace"
            )));
        }
        let (db, collection) = (db.to_owned(), collection.to_owned());
        Ok(match (db.is_empty(), collection.is_empty(), is_buckets) {
            (true, true, false) => ResourcePattern::AllNormal,
            (false, true, false) => ResourcePattern::Database(db),
            (true, false, false) => ResourcePattern::Named(collection),
            (false, false, false) => ResourcePattern::Collection { db, collection },
            (true, true, true) => ResourcePattern::AllBuckets,
            (false, true, true) => ResourcePattern::DatabaseBuckets(db),
            (true, false, true) => ResourcePattern::NamedBuckets(collection),
            (false, false, true) => ResourcePattern::Buckets { db, collection },
        })
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn parse(resource: &RawDocument) -> Result<ResourcePattern, AccessError> {
        ResourcePattern::parse(resource, "createRole.privileges.0.resource")
    }

    #[test]
    fn patterns_are_read_and_written_back() {
        use ResourcePattern as Pattern;
        let pattern = |db: &str, collection: &str| Pattern::Collection {
            db: db.into(),
            collection: collection.into(),
        };
        let buckets = Pattern::Buckets {
            db: "d".into(),
            collection: "c".into(),
        };
        let cases: Vec<(RawDocumentBuf, Pattern)> = vec![
            (rawdoc! { "anyResource": true }, Pattern::Any),
            (rawdoc! { "cluster": true }, Pattern::Cluster),
            (rawdoc! { "db": "", "collection": "" }, Pattern::AllNormal),
            (
                rawdoc! { "db": "d", "collection": "" },
                Pattern::Database("d".into()),
            ),
            (
                rawdoc! { "db": "", "collection": "c" },
                Pattern::Named("c".into()),
            ),
            (
                rawdoc! { "db": "d", "collection": "c.d" },
                pattern("d", "c.d"),
            ),
            (
                rawdoc! { "db": "", "system_buckets": "" },
                Pattern::AllBuckets,
            ),
            (
                rawdoc! { "db": "d", "system_buckets": "" },
                Pattern::DatabaseBuckets("d".into()),
            ),
            (
                rawdoc! { "db": "", "system_buckets": "c" },
                Pattern::NamedBuckets("c".into()),
            ),
            (rawdoc! { "db": "d", "system_buckets": "c" }, buckets),
        ];
        for (document, expected) in cases {
            assert_eq!(parse(&document).as_ref(), Ok(&expected), "{document:?}");
            let mut out = DocBuilder::new();
            expected.append_to(&mut out, "resource");
            assert_eq!(out.finish(), rawdoc! { "resource": document });
        }
    }

    #[test]
    fn what_is_no_resource() {
        let check = |resource: RawDocumentBuf, code: i32, message: &str| {
            let error = parse(&resource).expect_err(message);
            assert_eq!((error.code.number(), &*error.message), (code, message));
        };
        check(
            rawdoc! { "db": "d", "cluster": true, "collection": "" },
            2,
            "resource: {cluster: true} conflicts with resource type 'db'",
        );
        check(
            rawdoc! { "anyResource": true, "cluster": true },
            2,
            "resource: {anyResource: true} conflicts with resource type 'cluster'",
        );
        check(
            rawdoc! { "cluster": false },
            2,
            "'cluster' must be true when specified",
        );
        check(
            rawdoc! { "db": "d" },
            2,
            "resource must set both 'db' and 'collection' or neither, not exactly one",
        );
        check(
            rawdoc! {},
            2,
            "resource must have only 'db' and 'collection' set, or have only 'cluster' set, or \
             have only 'anyResource' set",
        );
        check(
            rawdoc! { "db": "d", "collection": "c", "system_buckets": "c" },
            2,
            "resource must not set both 'collection' and 'system_buckets'",
        );
        check(
            rawdoc! { "db": "a.b", "collection": "c" },
            2,
            "'a.b.c' is not a valid namespace",
        );
        check(
            rawdoc! { "db": "d", "coll": "" },
            40415,
            "BSON field 'createRole.privileges.0.resource.coll' is an unknown field.",
        );
        check(
            rawdoc! { "db": 1, "collection": "" },
            14,
            "BSON field 'createRole.privileges.0.resource.db' is the wrong type 'int', expected \
             type 'string'",
        );
    }

    #[test]
    fn resources_are_matched() {
        let patterns: Vec<(&str, ResourcePattern)> = [
            ("any", rawdoc! { "anyResource": true }),
            ("cluster", rawdoc! { "cluster": true }),
            ("normal", rawdoc! { "db": "", "collection": "" }),
            ("d", rawdoc! { "db": "d", "collection": "" }),
            ("config", rawdoc! { "db": "config", "collection": "" }),
            ("*.c", rawdoc! { "db": "", "collection": "c" }),
            ("d.c", rawdoc! { "db": "d", "collection": "c" }),
            ("*.js", rawdoc! { "db": "", "collection": "system.js" }),
            ("buckets", rawdoc! { "db": "", "system_buckets": "" }),
            ("d.buckets", rawdoc! { "db": "d", "system_buckets": "" }),
            ("buckets.c", rawdoc! { "db": "", "system_buckets": "c" }),
            ("d.buckets.c", rawdoc! { "db": "d", "system_buckets": "c" }),
            (
                "exact bucket",
                rawdoc! { "db": "d", "collection": "system.buckets.c" },
            ),
        ]
        .map(|(name, document)| (name, parse(&document).unwrap()))
        .into();
        let check = |resource: Resource<'_>, expected: &[&str]| {
            let matching = patterns
                .iter()
                .filter(|(_, pattern)| pattern.matches(resource));
            let names: Vec<&str> = matching.map(|(name, _)| *name).collect();
            assert_eq!(names, expected, "{resource:?}");
        };
        let collection = |db, collection| Resource::Collection { db, collection };
        check(Resource::Any, &["any"]);
        check(Resource::Cluster, &["any", "cluster"]);
        check(Resource::AllNormal, &["any", "normal"]);
        check(Resource::Database("d"), &["any", "normal", "d"]);
        check(Resource::Database("config"), &["any", "config"]);
        check(collection("d", "c"), &["any", "normal", "d", "*.c", "d.c"]);
        check(collection("e", "c"), &["any", "normal", "*.c"]);
        check(collection("d", "e"), &["any", "normal", "d"]);
        check(collection("local", "c"), &["any", "*.c"]);
        check(collection("config", "e"), &["any", "config"]);
        check(collection("local", "replset.minvalid"), &["any"]);
        check(collection("d", "replset.minvalid"), &["any", "normal", "d"]);
        check(collection("d", "system.js"), &["any", "*.js"]);
        check(collection("d", "system.views"), &["any"]);
        check(
            collection("d", "system.buckets.c"),
            &[
                "any",
                "buckets",
                "d.buckets",
                "buckets.c",
                "d.buckets.c",
                "exact bucket",
            ],
        );
        check(
            collection("e", "system.buckets.c"),
            &["any", "buckets", "buckets.c"],
        );
        check(
            collection("d", "system.buckets.e"),
            &["any", "buckets", "d.buckets"],
        );
    }
}
