//! The settings of one shape: read, merged with those that are there, and as the planner takes
//! them.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, document_of};
use pinion_query::{Hint, IndexFilter};
use pinion_wire::idl::{FieldReader, Namespace, Path, Types, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

/// The fields, in the order in which they are stored.
const FIELDS: [&str; 4] = ["indexHints", "queryFramework", "reject", "comment"];

/// The settings of a shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuerySettings {
    /// As they are stored and shown; nothing in here has its default.
    written: RawDocumentBuf,
    hints: Vec<(Namespace, IndexHints)>,
    reject: bool,
}

/// What the plans of a collection may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexHints {
    pub indexes: IndexFilter,
    /// `$natural`, if that is allowed.
    pub natural: Option<Hint>,
}

impl QuerySettings {
    /// Reads settings as a command has them.
    ///
    /// # Errors
    /// What is wrong with them; without any field they are refused.
    pub fn parse(settings: &RawDocument) -> Result<QuerySettings> {
        let root = Path::root("setQuerySettings");
        let reader = FieldReader::object(root.field("settings"), settings)?;
        let hints = match reader.value("indexHints") {
            None => Vec::new(),
            Some(value) => read_hints(&reader, value)?,
        };
        let frameworks = [("classic", ()), ("sbe", ())];
        reader.opt_one_of("queryFramework", &frameworks)?;
        let reject = reader.opt_bool("reject")?.unwrap_or(false);
        reader.ignore(&["comment"]);
        reader.finish()?;
        if settings.is_empty() {
            return Err(Error::new(
                ErrorCode(8_727_502),
                "settings field in setQuerySettings command cannot be empty",
            ));
        }
        Ok(QuerySettings {
            written: settings.to_owned(),
            hints,
            reject,
        })
    }

    /// These settings with the fields of newer ones in the place of their own; what has its default
    /// is left out.
    ///
    /// # Errors
    /// Where nothing is left.
    pub fn merged(&self, newer: &QuerySettings) -> Result<QuerySettings> {
        let mut out = DocBuilder::new();
        for name in FIELDS {
            let value = pinion_bson::get(&newer.written, name)
                .or_else(|| pinion_bson::get(&self.written, name));
            match value {
                Some(RawBsonRef::Boolean(false)) if name == "reject" => {}
                Some(RawBsonRef::Array(hints)) if name == "indexHints" && hints.is_empty() => {}
                Some(value) => {
                    out.append_raw(name, value);
                }
                None => {}
            }
        }
        let merged = out.finish();
        // A comment alone asks for nothing.
        if pinion_bson::elements(&merged).all(|(name, _)| name == "comment") {
            return Err(Error::new(
                ErrorCode(7_746_604),
                "the resulting settings cannot be empty or contain only default values",
            ));
        }
        QuerySettings::parse(&merged)
    }

    /// The settings as they are stored and shown.
    pub fn written(&self) -> &RawDocument {
        &self.written
    }

    /// Whether commands of the shape are rejected.
    pub fn rejects(&self) -> bool {
        self.reject
    }

    /// What the plans of this collection may use, if that is restricted.
    pub fn hints_for(&self, ns: &Namespace) -> Option<&IndexHints> {
        let found = self.hints.iter().find(|(of, _)| of == ns);
        found.map(|(_, hints)| hints)
    }
}

/// The hints of one collection or several.
fn read_hints(
    reader: &FieldReader<'_, '_>,
    value: RawBsonRef<'_>,
) -> Result<Vec<(Namespace, IndexHints)>> {
    let several: Vec<RawBsonRef<'_>> = match value {
        RawBsonRef::Document(_) => vec![value],
        RawBsonRef::Array(several) => pinion_bson::values(several).collect(),
        other => {
            let expected = Types::Many(&["array", "object"]);
            return Err(reader.wrong_type("indexHints", other, expected));
        }
    };
    let mut hints: Vec<(Namespace, IndexHints)> = Vec::new();
    for one in several {
        let RawBsonRef::Document(one) = one else {
            return Err(reader.wrong_type("indexHints", one, Types::OBJECT));
        };
        let path = reader.path().field("indexHints");
        let one = FieldReader::object(path, one)?;
        let (ns, of_it) = read_hint(&one)?;
        if hints.iter().any(|(of, _)| *of == ns) {
            return Err(Error::new(
                ErrorCode(7_746_608),
                format!(
                    "In 'settings': index hints for the namespace '{ns}' are given more than once"
                ),
            ));
        }
        // A list without indexes restricts nothing.
        if of_it != IndexHints::default() {
            hints.push((ns, of_it));
        }
    }
    Ok(hints)
}

fn read_hint(reader: &FieldReader<'_, '_>) -> Result<(Namespace, IndexHints)> {
    let Some(ns) = reader.opt_object("ns")? else {
        return Err(missing_field(reader.path().field("ns")));
    };
    let (db, collection) = (ns.opt_str("db")?, ns.opt_str("coll")?);
    ns.finish()?;
    let (Some(db), Some(collection)) = (db, collection) else {
        let missing = if db.is_none() { "db" } else { "coll" };
        return Err(Error::new(
            ErrorCode(8_727_500),
            format!("{missing} field is missing in the namespace of the index hints"),
        ));
    };
    let ns = Namespace::new(db, collection)?;
    let mut hints = IndexHints::default();
    for allowed in pinion_bson::values(reader.array("allowedIndexes")?) {
        let allowed = match allowed {
            RawBsonRef::Array(key) => RawBsonRef::Document(document_of(key)),
            RawBsonRef::String(_) | RawBsonRef::Document(_) => allowed,
            other => {
                let expected = Types::Many(&["string", "object"]);
                return Err(reader.wrong_type("allowedIndexes", other, expected));
            }
        };
        match Hint::parse(allowed)? {
            Some(Hint::Name(name)) => hints.indexes.names.push(name),
            Some(Hint::Pattern(key)) => hints.indexes.keys.push(key),
            natural @ Some(Hint::Natural(_)) => hints.natural = natural,
            None => {
                return Err(Error::new(
                    ErrorCode(7_746_607),
                    "allowedIndexes has an index without a key",
                ));
            }
        }
    }
    reader.finish()?;
    Ok((ns, hints))
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[track_caller]
    fn check(settings: RawDocumentBuf, expected: std::result::Result<bool, i32>) {
        let parsed = QuerySettings::parse(&settings);
        let found = parsed.map(|settings| !settings.hints.is_empty());
        assert_eq!(
            found.map_err(|error| error.code.0),
            expected,
            "{settings:?}"
        );
    }

    #[test]
    fn what_settings_may_be() {
        check(rawdoc! { "reject": true }, Ok(false));
        check(rawdoc! { "queryFramework": "sbe", "comment": 5 }, Ok(false));
        check(rawdoc! { "queryFramework": "other" }, Err(2));
        check(rawdoc! { "reject": 1 }, Err(14));
        check(rawdoc! { "unknown": 1 }, Err(40415));
        check(rawdoc! {}, Err(8_727_502));
        let hints = |hints: RawDocumentBuf| rawdoc! { "indexHints": [hints] };
        let ns = rawdoc! { "db": "d", "coll": "c" };
        check(
            hints(rawdoc! { "ns": ns.clone(), "allowedIndexes": ["a_1", { "b": 1 }] }),
            Ok(true),
        );
        check(
            hints(rawdoc! { "ns": ns.clone(), "allowedIndexes": [] }),
            Ok(false),
        );
        check(hints(rawdoc! { "ns": ns.clone() }), Err(40414));
        check(hints(rawdoc! { "allowedIndexes": [] }), Err(40414));
        check(
            hints(rawdoc! { "ns": { "db": "d" }, "allowedIndexes": ["a"] }),
            Err(8_727_500),
        );
        check(
            hints(rawdoc! { "ns": ns.clone(), "allowedIndexes": [1] }),
            Err(14),
        );
        let one = rawdoc! { "ns": ns.clone(), "allowedIndexes": ["a_1"] };
        check(rawdoc! { "indexHints": one.clone() }, Ok(true));
        check(
            rawdoc! { "indexHints": [one.clone(), one.clone()] },
            Err(7_746_608),
        );
    }

    #[test]
    fn newer_settings_take_the_place_of_older_ones() {
        let parse = |settings: RawDocumentBuf| QuerySettings::parse(&settings).expect("right");
        let rejected = parse(rawdoc! { "reject": true, "comment": "why" });
        let sbe = parse(rawdoc! { "queryFramework": "sbe" });
        let both = rejected.merged(&sbe).expect("something is left");
        let expected = rawdoc! { "queryFramework": "sbe", "reject": true, "comment": "why" };
        assert_eq!(both.written(), &*expected);
        assert!(both.rejects());
        let taken_back = parse(rawdoc! { "reject": false });
        let left = both.merged(&taken_back).expect("the framework is left");
        assert!(!left.rejects());
        let nothing = rejected.merged(&taken_back).expect_err("a comment is left");
        assert_eq!(nothing.code, ErrorCode(7_746_604));
    }
}
