//! The state of a definition, `config.system.sharding_ddl_coordinators`, and the gates that one
//! keeps closed, `config.collectionCriticalSections`.

use std::fmt;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, Result};

use crate::shard_id::ShardId;
use crate::version::{DatabaseVersion, Form};

pub const DDL_COORDINATORS: &str = "config.system.sharding_ddl_coordinators";
pub const CRITICAL_SECTIONS: &str = "config.collectionCriticalSections";

/// Which operation a document is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    CreateCollection,
    DropCollection,
    DropDatabase,
    RefineShardKey,
    SetAllowMigrations,
    CollMod,
    DropIndexes,
    RenameCollection,
    MovePrimary,
}

impl OperationKind {
    const NAMES: [(&'static str, OperationKind); 9] = [
        ("createCollection", OperationKind::CreateCollection),
        ("dropCollection", OperationKind::DropCollection),
        ("dropDatabase", OperationKind::DropDatabase),
        ("refineCollectionShardKey", OperationKind::RefineShardKey),
        ("setAllowMigrations", OperationKind::SetAllowMigrations),
        ("collMod", OperationKind::CollMod),
        ("dropIndexes", OperationKind::DropIndexes),
        ("renameCollection", OperationKind::RenameCollection),
        ("movePrimary", OperationKind::MovePrimary),
    ];

    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, kind)| *kind == self);
        found.map_or("", |(name, _)| name)
    }
}

/// `{namespace, operationType}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DdlId {
    /// A collection's, or the name of a database.
    pub namespace: String,
    pub kind: OperationKind,
}

impl DdlId {
    pub fn db(&self) -> &str {
        let db = self.namespace.split_once('.').map(|(db, _)| db);
        db.unwrap_or(&self.namespace)
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("namespace", self.namespace.as_str());
        out.append("operationType", self.kind.name());
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(path: Path<'_>, document: &RawDocument) -> Result<DdlId> {
        let reader = FieldReader::object(path, document)?;
        let kind = reader.opt_one_of("operationType", &OperationKind::NAMES)?;
        Ok(DdlId {
            namespace: reader.str("namespace")?.to_owned(),
            kind: kind.ok_or_else(|| {
                pinion_wire::idl::missing_field(reader.path().field("operationType"))
            })?,
        })
    }
}

impl fmt::Display for DdlId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.kind.name(), self.namespace)
    }
}

/// `{_id, phase, databaseVersion, request, state}`: from which phase a definition is resumed.
#[derive(Clone, Debug, PartialEq)]
pub struct DdlDocument {
    pub id: DdlId,
    pub phase: String,
    /// The version that the operation was sent to.
    pub database_version: DatabaseVersion,
    /// What was asked for.
    pub request: RawDocumentBuf,
    /// What the phases have decided so far.
    pub state: RawDocumentBuf,
}

impl DdlDocument {
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<DdlDocument> {
        let reader = FieldReader::object(Path::root(DDL_COORDINATORS), document)?;
        let version = reader.path().field("databaseVersion");
        Ok(DdlDocument {
            id: DdlId::parse(reader.path().field("_id"), reader.doc("_id")?)?,
            phase: reader.str("phase")?.to_owned(),
            database_version: DatabaseVersion::parse(version, reader.doc("databaseVersion")?)?,
            request: reader.doc("request")?.to_owned(),
            state: reader.doc("state")?.to_owned(),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", &*self.id.to_bson());
        out.append("phase", self.phase.as_str());
        self.database_version
            .append_to(&mut out, "databaseVersion", Form::Own);
        out.append("request", &*self.request);
        out.append("state", &*self.state);
        out.finish()
    }
}

/// `{_id, reason, blockReads, coordinator?, to?, open?}`: a gate that a new primary closes again
/// before requests with versions pass.
#[derive(Clone, Debug, PartialEq)]
pub struct CriticalSectionDocument {
    /// A collection's, or the name of a database.
    pub namespace: String,
    /// The operation that keeps it closed.
    pub reason: DdlId,
    /// Otherwise writes alone are kept out.
    pub blocks_reads: bool,
    /// The shard that coordinates the operation, where that is another one.
    pub coordinator: Option<ShardId>,
    /// A collection that is kept closed together with this one, which gets its name.
    pub to: Option<Namespace>,
    /// Collections of a database that stay open.
    pub open: Vec<String>,
}

impl CriticalSectionDocument {
    /// # Errors
    /// A field that is missing or of a wrong type; `FailedToParse` where the id is empty.
    pub fn parse(document: &RawDocument) -> Result<CriticalSectionDocument> {
        let reader = FieldReader::object(Path::root(CRITICAL_SECTIONS), document)?;
        let namespace = reader.str("_id")?.to_owned();
        if namespace.is_empty() {
            let message = format!("a document of {CRITICAL_SECTIONS} names no namespace");
            return Err(Error::failed_to_parse(message));
        }
        Ok(CriticalSectionDocument {
            namespace,
            reason: DdlId::parse(reader.path().field("reason"), reader.doc("reason")?)?,
            blocks_reads: reader.bool("blockReads")?,
            coordinator: reader.opt_str("coordinator")?.map(ShardId::new),
            to: match reader.opt_str("to")? {
                Some(to) => Some(Namespace::parse_sought(to)?),
                None => None,
            },
            open: match document.get_array("open") {
                Ok(open) => pinion_bson::values(open)
                    .filter_map(|ns| ns.as_str().map(str::to_owned))
                    .collect(),
                Err(_) => Vec::new(),
            },
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.namespace.as_str());
        out.append("reason", &*self.reason.to_bson());
        out.append("blockReads", self.blocks_reads);
        if let Some(coordinator) = &self.coordinator {
            out.append("coordinator", coordinator.as_str());
        }
        if let Some(to) = &self.to {
            out.append("to", to.as_str());
        }
        if !self.open.is_empty() {
            out.start_array("open");
            for ns in &self.open {
                out.push(ns.as_str());
            }
            out.end();
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Uuid, rawdoc};
    use pinion_clock::Timestamp;

    use super::*;

    #[test]
    fn forms() {
        let id = DdlId {
            namespace: "d.c.e".to_owned(),
            kind: OperationKind::CreateCollection,
        };
        assert_eq!(id.db(), "d");
        let document = DdlDocument {
            id: id.clone(),
            phase: "commit".to_owned(),
            database_version: DatabaseVersion::first(
                Uuid::from_bytes([3; 16]),
                Timestamp::new(5, 1),
            ),
            request: rawdoc! { "shardKey": { "a": 1 } },
            state: rawdoc! { "x": 1 },
        };
        let read = DdlDocument::parse(&document.to_bson());
        assert_eq!(read.ok(), Some(document));
        let to = Namespace::parse("d.e").expect("a namespace");
        let others = [(None, None), (Some(ShardId::new("s0")), Some(to))];
        for (coordinator, to) in others {
            let section = CriticalSectionDocument {
                namespace: "d.c".to_owned(),
                reason: id.clone(),
                blocks_reads: true,
                coordinator,
                to,
                open: vec!["d.e".to_owned()],
            };
            let read = CriticalSectionDocument::parse(&section.to_bson());
            assert_eq!(read.ok(), Some(section));
        }
        let unknown = rawdoc! { "_id": { "namespace": "d.c", "operationType": "x" } };
        assert!(DdlDocument::parse(&unknown).is_err());
    }
}
