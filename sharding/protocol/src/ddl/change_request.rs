//! What `_shardsvrCollMod` and `_shardsvrDropIndexes` ask of the shard that coordinates, and what
//! that asks of the shards that own chunks.
//!
//! A message may be late: it names the run of the definition that sends it, and the phase.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Uuid, raw_elements};
use pinion_query::TimeSeries;
use pinion_wire::idl::{
    FieldReader, Namespace, Path, i32_clamped, is_generic_argument, missing_field,
};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::ShardReply;
use super::documents::{DdlId, OperationKind};
use crate::series::{SERIES_FIELDS, series_in};
use crate::shard_id::ShardId;
use crate::values::append_uuid;

/// A change of a collection on every shard that owns chunks of it.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerChange {
    /// The client's command on the collection, without what belongs to its sender.
    pub command: RawDocumentBuf,
    /// Another collection of that name is not changed.
    pub uuid: Option<Uuid>,
}

impl OwnerChange {
    /// The change that a client's command, or that of its router, asks for: `name` is what shards
    /// know it by.
    ///
    /// # Errors
    /// `collectionUUID` is of a wrong type.
    pub fn of_command(name: &str, ns: &Namespace, command: &RawDocument) -> Result<OwnerChange> {
        let reader = FieldReader::object(Path::root(name), command)?;
        let uuid = reader.opt_uuid("collectionUUID")?.map(Uuid::from_bytes);
        let mut out = DocBuilder::new();
        out.append(name, ns.collection());
        for field in raw_elements(command).skip(1) {
            let is_of_sender = std::str::from_utf8(field.name).is_ok_and(is_generic_argument);
            if !is_of_sender && field.name != b"collectionUUID" {
                out.append_elem(&field);
            }
        }
        Ok(OwnerChange {
            command: out.finish(),
            uuid,
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("command", &*self.command);
        if let Some(uuid) = self.uuid {
            append_uuid(&mut out, "collectionUUID", uuid);
        }
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub(super) fn parse(request: &RawDocument) -> Result<OwnerChange> {
        let reader = FieldReader::object(Path::root("request"), request)?;
        Ok(OwnerChange {
            command: reader.doc("command")?.to_owned(),
            uuid: reader.opt_uuid("collectionUUID")?.map(Uuid::from_bytes),
        })
    }
}

/// The part of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct ParticipantChange {
    pub uuid: Uuid,
    pub command: RawDocumentBuf,
    /// What the buckets of the shard become, in place of the command. Of a check: beside it.
    pub series: Option<TimeSeries>,
    /// Nothing is changed: the shard looks whether it could be.
    pub is_check: bool,
    pub reason: DdlId,
    pub phase: String,
    /// The run of the definition.
    pub run: Uuid,
    pub from: ShardId,
}

const FIELDS: [&str; 8] = [
    "collectionUUID",
    "command",
    SERIES_FIELDS,
    "check",
    "reason",
    "phase",
    "run",
    "from",
];

impl ParticipantChange {
    /// The command for the shards.
    ///
    /// # Panics
    /// For a definition of another kind.
    pub(super) fn to_command(&self, ns: &Namespace) -> RawDocumentBuf {
        let name = match self.reason.kind {
            OperationKind::CollMod => "_shardsvrCollModParticipant",
            OperationKind::DropIndexes => "_shardsvrDropIndexesParticipant",
            kind => unreachable!("{} has no such part", kind.name()),
        };
        let mut out = DocBuilder::new();
        out.append(name, ns.collection());
        append_uuid(&mut out, "collectionUUID", self.uuid);
        out.append("command", &*self.command);
        if let Some(series) = &self.series {
            out.append(SERIES_FIELDS, &*series.to_document());
        }
        out.append("check", self.is_check)
            .append("reason", &*self.reason.to_bson())
            .append("phase", self.phase.as_str());
        append_uuid(&mut out, "run", self.run);
        out.append("from", self.from.as_str())
            .append("$db", ns.db());
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(command: &RawDocument) -> Result<ParticipantChange> {
        let reader = FieldReader::object(Path::root("participant"), command)?;
        let uuid = |name| {
            let uuid = reader.opt_uuid(name)?.map(Uuid::from_bytes);
            uuid.ok_or_else(|| missing_field(reader.path().field(name)))
        };
        Ok(ParticipantChange {
            uuid: uuid("collectionUUID")?,
            command: reader.doc("command")?.to_owned(),
            series: series_in(&reader, SERIES_FIELDS)?,
            is_check: reader.bool("check")?,
            reason: DdlId::parse(reader.path().field("reason"), reader.doc("reason")?)?,
            phase: reader.str("phase")?.to_owned(),
            run: uuid("run")?,
            from: ShardId::new(reader.str("from")?),
        })
    }

    pub fn fields() -> &'static [&'static str] {
        &FIELDS
    }
}

/// Appends `shards`: what each shard has answered to a definition.
pub(super) fn append_replies(out: &mut DocBuilder, replies: &[ShardReply]) {
    out.start_array("shards");
    for (shard, reply) in replies {
        out.push_document().append("shard", shard.as_str());
        match reply {
            Ok(reply) => {
                out.append("reply", &**reply);
            }
            Err(error) => {
                out.append("code", error.code.0)
                    .append("errmsg", error.message.as_str());
                if let Some(extra) = &error.extra {
                    out.append("extra", &***extra);
                }
            }
        }
        out.end();
    }
    out.end();
}

/// What each shard has answered, as the reply or the error of a coordinator has it; `None` where it
/// has nothing of that.
///
/// # Errors
/// It cannot be read.
pub fn replies_in(document: &RawDocument) -> Result<Option<Vec<ShardReply>>> {
    let reader = FieldReader::object(Path::root("reply"), document)?;
    let Some(objects) = reader.opt_objects("shards")? else {
        return Ok(None);
    };
    let path = objects.path();
    let mut found = Vec::new();
    for object in objects {
        let (at, object) = object?;
        let one = FieldReader::object(path.index(at), object)?;
        let reply = match one.opt_doc("reply")? {
            Some(reply) => Ok(reply.to_owned()),
            None => Err(error_in(&one)?),
        };
        found.push((ShardId::new(one.str("shard")?), reply));
    }
    Ok(Some(found))
}

fn error_in(reader: &FieldReader<'_, '_>) -> Result<Error> {
    let code = reader.value("code").and_then(i32_clamped);
    let code = code.map_or(ErrorCode::UNKNOWN_ERROR, ErrorCode);
    let error = Error::new(code, reader.str("errmsg")?);
    Ok(match reader.opt_doc("extra")? {
        Some(extra) => error.with_extra(extra.to_owned()),
        None => error,
    })
}

/// What a client's `dropIndexes` names: names, one key, or `*`, of which nothing can be missing.
pub fn named_indexes(command: &RawDocument) -> Vec<RawBsonRef<'_>> {
    match pinion_bson::get(command, "index") {
        None | Some(RawBsonRef::String("*")) => Vec::new(),
        Some(RawBsonRef::Array(names)) => {
            let names: Vec<RawBsonRef<'_>> = pinion_bson::values(names).collect();
            match names[..] {
                [RawBsonRef::String("*")] => Vec::new(),
                _ => names,
            }
        }
        Some(one) => vec![one],
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn forms() {
        let ns = Namespace::parse("d.c").expect("a namespace");
        let uuid = Uuid::from_bytes([7; 16]);
        let command = rawdoc! {
            "_shardsvrCollMod": "c", "validator": { "a": 1 }, "writeConcern": { "w": 1 },
            "collectionUUID": pinion_bson::Binary::from(uuid), "$db": "d",
        };
        let change = OwnerChange::of_command("collMod", &ns, &command).expect("a change");
        assert_eq!(
            change.command,
            rawdoc! { "collMod": "c", "validator": { "a": 1 } }
        );
        assert_eq!(change.uuid, Some(uuid));
        let read = OwnerChange::parse(&change.to_bson());
        assert_eq!(read.ok().as_ref(), Some(&change));
        let series = TimeSeries {
            time_field: "t".into(),
            meta_field: None,
            granularity: None,
            rounding_secs: Some(7200),
            max_span_secs: 7200,
        };
        for (kind, series) in [
            (OperationKind::CollMod, Some(series)),
            (OperationKind::DropIndexes, None),
        ] {
            let part = ParticipantChange {
                uuid,
                command: change.command.clone(),
                series,
                is_check: true,
                reason: DdlId {
                    namespace: "d.c".to_owned(),
                    kind,
                },
                phase: "check".to_owned(),
                run: Uuid::from_bytes([8; 16]),
                from: "s0".into(),
            };
            let read = ParticipantChange::parse(&part.to_command(&ns));
            assert_eq!(read.ok(), Some(part));
        }
    }

    #[test]
    fn replies() {
        let refused = Error::new(ErrorCode::INVALID_OPTIONS, "no");
        let replies = vec![
            (ShardId::new("s0"), Ok(rawdoc! { "nIndexesWas": 2 })),
            (ShardId::new("s1"), Err(refused.clone())),
            (
                ShardId::new("s2"),
                Err(refused.with_extra(rawdoc! { "x": 1 })),
            ),
        ];
        let mut out = DocBuilder::new();
        append_replies(&mut out, &replies);
        let found = replies_in(&out.finish()).expect("readable").expect("some");
        let shown = |replies: &[ShardReply]| format!("{replies:?}");
        assert_eq!(shown(&found), shown(&replies));
        assert!(
            replies_in(&rawdoc! { "ok": 1 })
                .expect("readable")
                .is_none()
        );
    }

    #[test]
    fn names() {
        let check = |command: RawDocumentBuf, expected: usize| {
            assert_eq!(named_indexes(&command).len(), expected);
        };
        check(rawdoc! { "index": "*" }, 0);
        check(rawdoc! { "index": ["*"] }, 0);
        check(rawdoc! { "index": "a_1" }, 1);
        check(rawdoc! { "index": { "a": 1 } }, 1);
        check(rawdoc! { "index": ["a_1", "b_1"] }, 2);
    }
}
