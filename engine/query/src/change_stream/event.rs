//! Events: what clients get of a change.

use std::borrow::Cow;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};
use pinion_wire::{Error, Result};
use smallvec::{SmallVec, smallvec};

use super::description::append_description;
use super::options::{BeforeChange, ChangeStreamOptions, FullDocument};
use super::scope::{DEFINITIONS, Scope};
use super::token::{ResumeToken, TokenData, TokenForm};
use super::unwind::{Change, ImagePlace, document_of};
use crate::error::error;
use crate::text::document_text;
use crate::update::apply_diff;
use crate::value::{elements, field, first};

/// A document that is a field of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Image {
    /// There is no such field.
    Absent,
    Null,
    Document(RawDocumentBuf),
    /// The caller looks it up: the document of this collection with this `_id`, if that is still
    /// this collection.
    LookUp {
        ns: String,
        uuid: Option<[u8; 16]>,
        key: RawDocumentBuf,
    },
}

/// What clients get of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub token: ResumeToken,
    pub cluster_time: Timestamp,
    /// `fullDocument`.
    pub full_document: Image,
    before: Image,
    /// The fields before the full document, and those behind it.
    front: RawDocumentBuf,
    back: RawDocumentBuf,
    /// Nothing comes behind it.
    pub is_invalidate: bool,
}

impl Event {
    /// The whole event.
    ///
    /// # Panics
    /// If a document was to be looked up and was not.
    pub fn into_document(self) -> RawDocumentBuf {
        let bytes = |image: &Image| match image {
            Image::Document(document) => document.as_bytes().len(),
            _ => 0,
        };
        let images = bytes(&self.full_document) + bytes(&self.before);
        let fields = self.front.as_bytes().len() + self.back.as_bytes().len();
        let mut out = DocBuilder::with_capacity(fields + images + 64);
        out.append_all(&self.front);
        append_image("fullDocument", &self.full_document, &mut out);
        out.append_all(&self.back);
        append_image("fullDocumentBeforeChange", &self.before, &mut out);
        out.finish()
    }
}

fn append_image(name: &str, image: &Image, out: &mut DocBuilder) {
    match image {
        Image::Absent => {}
        Image::Null => {
            out.append_raw(name, RawBsonRef::Null);
        }
        Image::Document(document) => {
            out.append(name, &**document);
        }
        Image::LookUp { .. } => unreachable!("it was looked up before"),
    }
}

/// What an entry says of one operation.
struct Parts<'a> {
    ns: &'a str,
    o: &'a RawDocument,
    o2: Option<&'a RawDocument>,
    uuid: Option<[u8; 16]>,
    /// The document before the change, where the log has it and it has not expired.
    pre_image: Option<&'a RawDocument>,
}

fn damaged(what: &str) -> Error {
    error(280, format!("an entry of the oplog has no {what}"))
}

fn document<'a>(entry: &'a RawDocument, name: &str) -> Option<&'a RawDocument> {
    match field(entry, name) {
        Some(RawBsonRef::Document(document)) => Some(document),
        _ => None,
    }
}

/// The fields of the event of a change.
struct EventFields {
    operation: &'static str,
    full_document: Image,
    before: Image,
    document_key: Option<RawDocumentBuf>,
    /// Fields behind the document's key.
    more: DocBuilder,
    operation_description: Option<RawDocumentBuf>,
    state_before: Option<RawDocumentBuf>,
    /// Of a rename.
    to: Option<String>,
    ns_type: Option<&'static str>,
    /// The namespace is a database.
    is_database: bool,
    invalidates: bool,
}

impl EventFields {
    fn new(operation: &'static str) -> EventFields {
        EventFields {
            operation,
            full_document: Image::Absent,
            before: Image::Absent,
            document_key: None,
            more: DocBuilder::new(),
            operation_description: None,
            state_before: None,
            to: None,
            ns_type: None,
            is_database: false,
            invalidates: false,
        }
    }

    /// An event that only shows with `showExpandedEvents`.
    fn expanded(operation: &'static str, description: RawDocumentBuf) -> EventFields {
        EventFields {
            operation_description: Some(description),
            ..EventFields::new(operation)
        }
    }

    /// What tokens of a form have to distinguish it from other events at its place.
    fn identifier_in(&self, form: TokenForm, is_expanded: bool) -> Option<RawDocumentBuf> {
        match form {
            TokenForm::Newest => Some(self.identifier(is_expanded)),
            TokenForm::V44 => self.document_key.clone(),
        }
    }

    /// What distinguishes it from other events at its place.
    fn identifier(&self, is_expanded: bool) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("operationType", self.operation);
        match (&self.document_key, &self.operation_description) {
            (Some(key), _) => {
                out.append("documentKey", &**key);
            }
            (None, Some(description)) if is_expanded && !is_classic(self.operation) => {
                out.append("operationDescription", &**description);
            }
            _ => {}
        }
        out.finish()
    }
}

fn is_classic(operation: &str) -> bool {
    matches!(operation, "drop" | "dropDatabase" | "rename")
}

impl ChangeStreamOptions {
    /// The events of a change, in their order: none where it is nothing that this stream shows, two
    /// where the change ends the stream. Documents as they were before a change are known from this
    /// time on, in milliseconds since 1970.
    ///
    /// # Errors
    /// `NoMatchingDocument` when the stream requires an image that there is none of.
    pub fn events(
        &self,
        scope: &Scope,
        change: &Change,
        images_since_ms: i64,
    ) -> Result<SmallVec<[Event; 2]>> {
        let head = document_of(&change.head);
        let operation = document_of(&change.operation);
        let Some(RawBsonRef::Timestamp(cluster_time)) = field(head, "ts") else {
            return Err(damaged("ts"));
        };
        let wall = field(head, "wall");
        let is_known = match wall {
            Some(RawBsonRef::DateTime(wall)) => wall.timestamp_millis() >= images_since_ms,
            _ => false,
        };
        let Some(RawBsonRef::String(ns)) = field(operation, "ns") else {
            return Err(damaged("ns"));
        };
        let o = document(operation, "o").ok_or_else(|| damaged("o"))?;
        let op = field(operation, "op");
        let ns = match op {
            Some(RawBsonRef::String("c")) => command_ns(ns, o),
            _ => Cow::Borrowed(ns),
        };
        let uuid = match field(operation, "ui") {
            Some(RawBsonRef::Binary(uuid)) => uuid.bytes.try_into().ok(),
            _ => None,
        };
        let parts = Parts {
            ns: &ns,
            o,
            o2: document(operation, "o2"),
            uuid,
            pre_image: match &change.image {
                ImagePlace::In(no_op) => document(document_of(no_op), "preImage"),
                ImagePlace::Inside | ImagePlace::Before => document(operation, "preImage"),
            }
            .filter(|_| is_known),
        };
        let fields = match op {
            Some(RawBsonRef::String("i")) => Some(inserted(&parts)?),
            Some(RawBsonRef::String("u")) => Some(self.updated(&parts)?),
            Some(RawBsonRef::String("d")) => Some(self.deleted(&parts)),
            Some(RawBsonRef::String("c")) => self.command(scope, &parts),
            Some(RawBsonRef::String("n")) if self.show_expanded_events => {
                sharding_definition(&parts)
            }
            _ => None,
        };
        let Some(fields) = fields else {
            return Ok(SmallVec::new());
        };
        let data = TokenData {
            cluster_time,
            is_event: true,
            operation: change.place,
            from_invalidate: false,
            uuid: parts.uuid,
            identifier: fields.identifier_in(self.token_form, self.show_expanded_events),
            fragment: None,
        };
        let invalidate = fields.invalidates.then(|| self.invalidate(&data, wall));
        let event = self.event(change, fields, &parts, (data, wall))?;
        Ok(match invalidate {
            Some(invalidate) => smallvec![event, invalidate],
            None => smallvec![event],
        })
    }

    fn event(
        &self,
        change: &Change,
        fields: EventFields,
        parts: &Parts<'_>,
        (data, wall): (TokenData, Option<RawBsonRef<'_>>),
    ) -> Result<Event> {
        let token = data.token_in(self.token_form);
        let mut front = DocBuilder::with_capacity(512);
        append_front(&token, fields.operation, data.cluster_time, &mut front);
        if self.show_expanded_events
            && let Some(uuid) = &parts.uuid
        {
            append_uuid("collectionUUID", uuid, &mut front);
        }
        append_wall(wall, &mut front);
        let head = document_of(&change.head);
        let is_in_transaction = change.is_inner
            && field(head, "stmtId").is_none()
            && field(head, "multiOpType").is_none();
        for name in ["txnNumber", "lsid"] {
            if let Some(value) = field(head, name).filter(|_| is_in_transaction) {
                front.append_raw(name, value);
            }
        }
        let mut back = DocBuilder::with_capacity(256);
        append_ns("ns", parts.ns, fields.is_database, &mut back);
        if let Some(ns_type) = fields.ns_type {
            back.append("nsType", ns_type);
        }
        if let Some(to) = &fields.to {
            append_ns("to", to, false, &mut back);
        }
        if let Some(key) = &fields.document_key {
            back.append("documentKey", &**key);
        }
        back.append_all(&fields.more.finish());
        if self.show_expanded_events
            && let Some(description) = &fields.operation_description
        {
            back.append("operationDescription", &**description);
        }
        if let Some(state) = &fields.state_before {
            back.append("stateBeforeChange", &**state);
        }
        let event = Event {
            cluster_time: data.cluster_time,
            full_document: fields.full_document,
            before: fields.before,
            front: front.finish(),
            back: back.finish(),
            is_invalidate: false,
            token,
        };
        self.check_images(&event)?;
        Ok(event)
    }

    /// The event that ends a stream.
    fn invalidate(&self, of: &TokenData, wall: Option<RawBsonRef<'_>>) -> Event {
        let token = TokenData {
            from_invalidate: true,
            ..of.clone()
        }
        .token_in(self.token_form);
        let mut front = DocBuilder::new();
        append_front(&token, "invalidate", of.cluster_time, &mut front);
        append_wall(wall, &mut front);
        Event {
            token,
            cluster_time: of.cluster_time,
            full_document: Image::Absent,
            before: Image::Absent,
            front: front.finish(),
            back: RawDocumentBuf::new(),
            is_invalidate: true,
        }
    }

    fn check_images(&self, event: &Event) -> Result<()> {
        let missing = |what: &str, of: &str| {
            Err(error(
                47,
                format!(
                    "Change stream was configured to require a {what} for all {of} events, but the {what} was not found \
                     for event: {}",
                    document_text(&event.front)
                ),
            ))
        };
        if self.full_document == FullDocument::Required && event.full_document == Image::Null {
            return missing("post-image", "update");
        }
        if self.before_change == BeforeChange::Required && event.before == Image::Null {
            return missing("pre-image", "update, delete and replace");
        }
        Ok(())
    }

    /// The document before the change.
    fn before(&self, parts: &Parts<'_>) -> Image {
        match (self.before_change, parts.pre_image) {
            (BeforeChange::Off, _) => Image::Absent,
            (_, Some(image)) => Image::Document(image.to_owned()),
            (_, None) => Image::Null,
        }
    }

    fn deleted(&self, parts: &Parts<'_>) -> EventFields {
        EventFields {
            document_key: Some(parts.o.to_owned()),
            before: self.before(parts),
            ..EventFields::new("delete")
        }
    }

    fn updated(&self, parts: &Parts<'_>) -> Result<EventFields> {
        let key = parts.o2.ok_or_else(|| damaged("o2"))?.to_owned();
        let before = self.before(parts);
        let is_replacement = match first(parts.o) {
            Some((name, _)) => name != "$v" && name != "diff" && !name.starts_with('$'),
            None => true,
        };
        if is_replacement {
            return Ok(EventFields {
                full_document: Image::Document(parts.o.to_owned()),
                document_key: Some(key),
                before,
                ..EventFields::new("replace")
            });
        }
        let full_document = match self.full_document {
            FullDocument::Default => Image::Absent,
            FullDocument::UpdateLookup => Image::LookUp {
                ns: parts.ns.to_owned(),
                uuid: parts.uuid,
                key: key.clone(),
            },
            FullDocument::WhenAvailable | FullDocument::Required => match parts.pre_image {
                Some(image) => Image::Document(apply_diff(image, parts.o)?),
                None => Image::Null,
            },
        };
        let mut more = DocBuilder::new();
        append_description(parts.o, self.show_expanded_events, &mut more)?;
        Ok(EventFields {
            full_document,
            document_key: Some(key),
            before,
            more,
            ..EventFields::new("update")
        })
    }

    /// The fields of the event of a command; `None` for a command that is not shown.
    fn command(&self, scope: &Scope, parts: &Parts<'_>) -> Option<EventFields> {
        let (name, _) = first(parts.o)?;
        let is_collection = matches!(scope, Scope::Collection(_));
        match name {
            "drop" => {
                return Some(EventFields {
                    invalidates: is_collection,
                    ..EventFields::new("drop")
                });
            }
            "dropDatabase" => {
                return Some(EventFields {
                    is_database: true,
                    invalidates: matches!(scope, Scope::Database(_)),
                    ..EventFields::new("dropDatabase")
                });
            }
            "renameCollection" => {
                let to = match field(parts.o, "to") {
                    Some(RawBsonRef::String(to)) => to.to_owned(),
                    _ => return None,
                };
                let mut description = DocBuilder::new();
                append_ns("to", &to, false, &mut description);
                if let Some(target) = field(parts.o, "dropTarget") {
                    description.append_raw("dropTarget", target);
                }
                return Some(EventFields {
                    to: Some(to),
                    operation_description: Some(description.finish()),
                    invalidates: is_collection,
                    ..EventFields::new("rename")
                });
            }
            _ if !self.show_expanded_events => return None,
            _ => {}
        }
        Some(match name {
            "create" => EventFields {
                ns_type: Some(kind_of(parts.o)),
                ..EventFields::expanded("create", without_first(parts.o))
            },
            "createIndexes" => {
                let index = without_first(parts.o);
                EventFields::expanded("createIndexes", list_of([&*index]))
            }
            "commitIndexBuild" => {
                let RawBsonRef::Array(indexes) = field(parts.o, "indexes")? else {
                    return None;
                };
                let mut description = DocBuilder::new();
                description.append("indexes", indexes);
                EventFields::expanded("createIndexes", description.finish())
            }
            "dropIndexes" | "deleteIndexes" => {
                // What is beside the index in `o2` is the catalog's.
                let index = parts.o2.map(index_of).unwrap_or_default();
                EventFields::expanded("dropIndexes", list_of([&*index]))
            }
            "collMod" => EventFields {
                state_before: parts.o2.and_then(state_before),
                ..EventFields::expanded("modify", without_first(parts.o))
            },
            _ => return None,
        })
    }
}

/// The event of what a shard has noted of a collection's shard key.
fn sharding_definition(parts: &Parts<'_>) -> Option<EventFields> {
    let o2 = parts.o2?;
    let (name, _) = first(o2)?;
    let operation = DEFINITIONS.into_iter().find(|known| *known == name)?;
    Some(EventFields::expanded(operation, without_first(o2)))
}

/// The namespace that a command is about.
fn command_ns<'a>(ns: &'a str, o: &'a RawDocument) -> Cow<'a, str> {
    let db = ns.split_once('.').map_or(ns, |(db, _)| db);
    match first(o) {
        Some(("renameCollection", RawBsonRef::String(from))) => Cow::Borrowed(from),
        Some((_, RawBsonRef::String(collection))) => [db, ".", collection].concat().into(),
        _ => Cow::Borrowed(ns),
    }
}

fn inserted(parts: &Parts<'_>) -> Result<EventFields> {
    let key = match parts.o2 {
        Some(key) => key.to_owned(),
        None => {
            let id = field(parts.o, "_id").ok_or_else(|| damaged("_id in its document"))?;
            let mut key = DocBuilder::new();
            key.append_raw("_id", id);
            key.finish()
        }
    };
    Ok(EventFields {
        full_document: Image::Document(parts.o.to_owned()),
        document_key: Some(key),
        ..EventFields::new("insert")
    })
}

fn kind_of(o: &RawDocument) -> &'static str {
    match (field(o, "timeseries"), field(o, "viewOn")) {
        (Some(_), _) => "timeseries",
        (None, Some(_)) => "view",
        (None, None) => "collection",
    }
}

fn without_first(o: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for (name, value) in elements(o).skip(1) {
        out.append_raw(name, value);
    }
    out.finish()
}

fn list_of<const N: usize>(indexes: [&RawDocument; N]) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.start_array("indexes");
    for index in indexes {
        out.push(index);
    }
    out.end();
    out.finish()
}

/// The specification of an index that was dropped.
fn index_of(o2: &RawDocument) -> RawDocumentBuf {
    match document(o2, "index") {
        Some(index) => index.to_owned(),
        // As MongoDB has it.
        None => o2.to_owned(),
    }
}

/// How a collection was before it was modified.
fn state_before(o2: &RawDocument) -> Option<RawDocumentBuf> {
    let options = field(o2, "collectionOptions_old")?;
    let mut out = DocBuilder::new();
    out.append_raw("collectionOptions", options);
    if let Some(index) = field(o2, "indexOptions_old") {
        out.append_raw("indexOptions", index);
    }
    Some(out.finish())
}

fn append_front(
    token: &ResumeToken,
    operation: &str,
    cluster_time: Timestamp,
    out: &mut DocBuilder,
) {
    out.start_document("_id");
    token.append_to(out);
    out.end()
        .append("operationType", operation)
        .append("clusterTime", RawBsonRef::Timestamp(cluster_time));
}

fn append_wall(wall: Option<RawBsonRef<'_>>, out: &mut DocBuilder) {
    if let Some(wall) = wall {
        out.append_raw("wallTime", wall);
    }
}

fn append_uuid(name: &str, uuid: &[u8; 16], out: &mut DocBuilder) {
    out.append_raw(
        name,
        RawBsonRef::Binary(pinion_bson::RawBinaryRef {
            subtype: pinion_bson::BinarySubtype::Uuid,
            bytes: uuid,
        }),
    );
}

/// A namespace as events have it.
fn append_ns(name: &str, ns: &str, is_database: bool, out: &mut DocBuilder) {
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    out.start_document(name).append("db", db);
    if !is_database {
        out.append("coll", collection);
    }
    out.end();
}
