//! `$merge`

use pinion_bson::{DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::lookup::{parse_lets, path_of};
use crate::error::{bad_value, error, type_mismatch};
use crate::expression::{Expression, MetaSet, Variables, check_field_path};
use crate::pipeline::Document;
use crate::pipeline::spec::{
    check_duplicates, missing_field, optional_text, unknown_field, wrong_type,
};
use crate::update::Update;
use crate::value::{elements, field, is_nullish, items, type_name};
use crate::work::spend_bytes;

/// What happens to a document of the target that has the values of the `on` fields.
#[derive(Clone, Debug)]
enum Matched {
    Replace,
    KeepExisting,
    Merge,
    Fail,
    Pipeline(RawArrayBuf),
}

/// What happens where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotMatched {
    Insert,
    Discard,
    Fail,
}

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub struct Merge {
    /// None for the database of the command.
    pub db: Option<String>,
    pub collection: String,
    /// The fields that identify a document; none for the default, `_id`.
    on: Option<Vec<String>>,
    matched: Matched,
    pub not_matched: NotMatched,
    lets: Option<Vec<(String, Expression)>>,
}

/// What is written for one document.
#[derive(Debug)]
pub enum MergeWrite {
    Insert,
    /// No document can have the same key, as this one has no `_id` yet.
    Unmatched,
    /// What finds the document to change, the update, and the variables for it.
    Update {
        filter: RawDocumentBuf,
        update: RawBson,
        variables: Box<Variables>,
    },
}

impl Merge {
    pub(in crate::pipeline) fn parse(spec: RawBsonRef<'_>, variables: &Variables) -> Result<Merge> {
        let spec = match spec {
            RawBsonRef::String(name) => {
                let (db, collection) = (None, name.to_owned());
                check_target(None, &collection, 73)?;
                return Ok(Merge {
                    db,
                    collection,
                    on: None,
                    matched: Matched::Merge,
                    not_matched: NotMatched::Insert,
                    lets: None,
                });
            }
            RawBsonRef::Document(spec) => spec,
            other => {
                return Err(type_mismatch(format!(
                    "$merge requires a string or object argument, but found {}",
                    type_name(other)
                )));
            }
        };
        let (mut into, mut on, mut lets) = (None, None, None);
        let (mut matched, mut not_matched) = (Matched::Merge, NotMatched::Insert);
        check_duplicates("$merge", spec)?;
        for (name, value) in elements(spec) {
            match name {
                "into" => into = Some(parse_into(value)?),
                "on" => on = Some(parse_on(value)?),
                "whenMatched" => matched = parse_matched(value)?,
                "whenNotMatched" if matches!(value, RawBsonRef::Null) => {}
                "whenNotMatched" => not_matched = parse_not_matched(value)?,
                "let" if matches!(value, RawBsonRef::Null) => {}
                "let" => {
                    if !matches!(value, RawBsonRef::Document(_)) {
                        return Err(wrong_type("$merge.let", value, "object"));
                    }
                    lets = Some(value);
                }
                "targetCollectionVersion" | "allowMergeOnNullishValues" => {}
                other => return Err(unknown_field(&format!("$merge.{other}"))),
            }
        }
        let (db, collection) = into.ok_or_else(|| missing_field("$merge.into"))?;
        check_combination(&matched, not_matched)?;
        let lets = match (lets, &matched) {
            (None, _) => None,
            (Some(lets), Matched::Pipeline(_)) => Some(checked_lets(lets, variables)?),
            (Some(_), _) => {
                return Err(error(
                    51199,
                    format!(
                        "Cannot use 'let' variables with 'whenMatched: {}' mode",
                        matched.name()
                    ),
                ));
            }
        };
        let merge = Merge {
            db,
            collection,
            on,
            matched,
            not_matched,
            lets,
        };
        if let Matched::Pipeline(stages) = &merge.matched {
            let mut inner = variables.clone();
            inner.leave_unbound("new");
            for (name, _) in merge.lets.iter().flatten() {
                inner.leave_unbound(name);
            }
            Update::parse_with(RawBsonRef::Array(stages), None, &inner)?;
        }
        Ok(merge)
    }

    /// What is read beside the documents.
    pub(in crate::pipeline) fn reads(&self) -> MetaSet {
        let lets = self.lets.iter().flatten().map(|(_, value)| value.reads());
        lets.fold(MetaSet::default(), MetaSet::union)
    }

    /// The fields that identify a document.
    pub fn on(&self) -> Vec<&str> {
        match &self.on {
            Some(fields) => fields.iter().map(String::as_str).collect(),
            None => vec!["_id"],
        }
    }

    /// Whether the stage names these fields.
    pub fn names_fields(&self) -> bool {
        self.on.is_some()
    }

    /// The same stage with other fields that identify a document.
    #[must_use]
    pub fn identified_by(mut self, fields: Vec<String>) -> Merge {
        assert!(!fields.is_empty(), "a document is identified by something");
        self.on = Some(fields);
        self
    }

    /// Whether a document that is not in the target comes to it by the update of the one that might
    /// have been there, so that its fields stand in the order of an update's.
    pub fn inserts_by_update(&self) -> bool {
        matches!(self.matched, Matched::Merge | Matched::KeepExisting)
            && self.not_matched == NotMatched::Insert
    }

    /// What is written for a document that has come.
    pub fn write(&self, document: &Document, variables: &Variables) -> Result<MergeWrite> {
        spend_bytes(document.as_bytes().len())?;
        if matches!(self.matched, Matched::Fail) {
            return Ok(MergeWrite::Insert);
        }
        if self.on().contains(&"_id") && field(document, "_id").is_none() {
            return Ok(MergeWrite::Unmatched);
        }
        let filter = self.filter(document)?;
        let mut inner = variables.clone();
        let literal = |operator: &str| {
            let mut out = DocBuilder::new();
            out.append(operator, RawBsonRef::Document(document));
            RawBson::Document(out.finish())
        };
        let update = match &self.matched {
            Matched::Replace => RawBson::Document(RawDocument::to_owned(document)),
            Matched::KeepExisting => literal("$setOnInsert"),
            Matched::Fail => unreachable!("inserted above"),
            Matched::Merge => literal("$set"),
            Matched::Pipeline(stages) => {
                let lets = self.lets.as_deref().unwrap_or_default();
                for (name, expression) in lets {
                    inner.forget(name);
                    // The update never hears of a variable without a value.
                    if let Some(value) = expression.evaluate(document)?.into_owned() {
                        inner.bind(name, Some(value));
                    }
                }
                if !lets.iter().any(|(name, _)| name == "new") {
                    let new = RawDocument::to_owned(document);
                    inner.bind("new", Some(RawBson::Document(new)));
                }
                RawBson::Array(stages.clone())
            }
        };
        Ok(MergeWrite::Update {
            filter,
            update,
            variables: Box::new(inner),
        })
    }

    fn filter(&self, document: &RawDocument) -> Result<RawDocumentBuf> {
        let mut out = DocBuilder::new();
        for on in self.on() {
            let path = path_of(on);
            let mut value = Some(RawBsonRef::Document(document));
            for name in &path {
                value = match value {
                    Some(RawBsonRef::Document(inner)) => field(inner, name),
                    Some(RawBsonRef::Array(_)) => {
                        return Err(error(
                            51132,
                            "$merge write error: 'on' field cannot be missing, null, undefined or an array",
                        ));
                    }
                    _ => None,
                };
            }
            match value {
                Some(value) if !is_nullish(value) && !matches!(value, RawBsonRef::Array(_)) => {
                    out.start_document(on).append_raw("$eq", value);
                    out.end();
                }
                Some(RawBsonRef::Array(_)) => {
                    return Err(error(
                        51185,
                        "$merge write error: 'on' field cannot be an array",
                    ));
                }
                _ => {
                    return Err(error(
                        51132,
                        "$merge write error: 'on' field cannot be missing, null, undefined or an array",
                    ));
                }
            }
        }
        Ok(out.finish())
    }
}

impl Matched {
    fn name(&self) -> &'static str {
        match self {
            Matched::Replace => "replace",
            Matched::KeepExisting => "keepExisting",
            Matched::Merge => "merge",
            Matched::Fail => "fail",
            Matched::Pipeline(_) => "pipeline",
        }
    }
}

fn check_combination(matched: &Matched, not_matched: NotMatched) -> Result<()> {
    let refused = matches!(matched, Matched::KeepExisting | Matched::Fail)
        && not_matched != NotMatched::Insert;
    if !refused {
        return Ok(());
    }
    let other = match not_matched {
        NotMatched::Insert => "insert",
        NotMatched::Discard => "discard",
        NotMatched::Fail => "fail",
    };
    Err(error(
        51181,
        format!(
            "Combination of {{whenMatched: {}}} and {{whenNotMatched: {other}}} is not supported",
            matched.name()
        ),
    ))
}

fn check_target(db: Option<&str>, collection: &str, empty: i32) -> Result<()> {
    if let Some(db @ ("admin" | "config" | "local")) = db {
        return Err(error(
            31320,
            format!("Cannot $merge to internal database: {db}"),
        ));
    }
    if collection.is_empty() {
        return Err(error(
            empty,
            "Invalid $merge target namespace: collection names cannot be empty",
        ));
    }
    if collection.starts_with("system.") {
        return Err(error(
            31319,
            format!("Cannot $merge to special collection: {collection}"),
        ));
    }
    if collection.contains(['$', '\0']) || collection.starts_with('.') {
        return Err(error(
            73,
            format!("Invalid namespace specified: {collection}"),
        ));
    }
    Ok(())
}

fn parse_into(value: RawBsonRef<'_>) -> Result<(Option<String>, String)> {
    let (db, collection) = match value {
        RawBsonRef::String(name) => (None, name.to_owned()),
        RawBsonRef::Document(into) => {
            let (mut db, mut collection) = (None, None);
            check_duplicates("$merge.into", into)?;
            for (name, value) in elements(into) {
                match name {
                    "db" => {
                        let text = optional_text("$merge.into.db", value)?;
                        db = text.filter(|text| !text.is_empty()).map(str::to_owned);
                    }
                    "coll" => {
                        collection = optional_text("$merge.into.coll", value)?.map(str::to_owned);
                    }
                    _ => return Err(unknown_field(&format!("$merge.into.{name}"))),
                }
            }
            let collection = collection.ok_or_else(|| missing_field("$merge.into.coll"))?;
            (db, collection)
        }
        other => {
            return Err(error(
                51178,
                format!(
                    "$merge 'into' field must be either a string or an object, but found {}",
                    type_name(other)
                ),
            ));
        }
    };
    check_target(db.as_deref(), &collection, 5_786_800)?;
    Ok((db, collection))
}

fn parse_on(value: RawBsonRef<'_>) -> Result<Vec<String>> {
    let mut fields: Vec<String> = Vec::new();
    match value {
        RawBsonRef::String(name) => fields.push(name.to_owned()),
        RawBsonRef::Array(names) => {
            for name in items(names) {
                let RawBsonRef::String(name) = name else {
                    return Err(error(
                        51134,
                        format!(
                            "$merge 'on' array elements must be strings, but found {}",
                            type_name(name)
                        ),
                    ));
                };
                if fields.iter().any(|other| other == name) {
                    return Err(error(31465, format!("Found a duplicate field '{name}'")));
                }
                fields.push(name.to_owned());
            }
            if fields.is_empty() {
                return Err(error(
                    51187,
                    "If explicitly specifying $merge 'on', must include at least one field",
                ));
            }
        }
        other => {
            return Err(error(
                51186,
                format!(
                    "$merge 'on' field must be either a string or an array of strings, but found {}",
                    type_name(other)
                ),
            ));
        }
    }
    fields.iter().try_for_each(|name| check_field_path(name))?;
    Ok(fields)
}

fn unknown_value(name: &str, value: &str) -> pinion_wire::Error {
    bad_value(format!(
        "Enumeration value '{value}' for field '$merge.{name}' is not a valid value."
    ))
}

fn parse_matched(value: RawBsonRef<'_>) -> Result<Matched> {
    Ok(match value {
        RawBsonRef::String("replace") => Matched::Replace,
        RawBsonRef::String("keepExisting") => Matched::KeepExisting,
        RawBsonRef::String("merge") => Matched::Merge,
        RawBsonRef::String("fail") => Matched::Fail,
        RawBsonRef::String(other) => return Err(unknown_value("whenMatched", other)),
        RawBsonRef::Array(stages) => Matched::Pipeline(stages.to_owned()),
        other => {
            return Err(error(
                51191,
                format!(
                    "$merge 'whenMatched' field must be either a string or an array, but found {}",
                    type_name(other)
                ),
            ));
        }
    })
}

fn parse_not_matched(value: RawBsonRef<'_>) -> Result<NotMatched> {
    Ok(match value {
        RawBsonRef::String("insert") => NotMatched::Insert,
        RawBsonRef::String("discard") => NotMatched::Discard,
        RawBsonRef::String("fail") => NotMatched::Fail,
        RawBsonRef::String(other) => return Err(unknown_value("whenNotMatched", other)),
        other => return Err(wrong_type("$merge.whenNotMatched", other, "string")),
    })
}

fn checked_lets(value: RawBsonRef<'_>, variables: &Variables) -> Result<Vec<(String, Expression)>> {
    if let RawBsonRef::Document(lets) = value
        && let Some(new) = field(lets, "new")
        && !matches!(new, RawBsonRef::String("$$ROOT"))
    {
        return Err(error(
            51273,
            "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'",
        ));
    }
    parse_lets("$merge", value, variables)
}
