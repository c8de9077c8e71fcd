//! Settings of the cluster that the config servers change on all shards: whether writes of users
//! are blocked, and cluster parameters.
//!
//! A change is a document of the config servers while it is made. Each of its phases is performed
//! by all shards, then by the config servers, and may be performed again. A shard that is added
//! meanwhile, or later, gets what the config servers have.
//!
//! A message may be late. That of a parameter has a time, by which a shard sees that it has a newer
//! value. Of a block of writes a shard asks the config servers whether it is of the phase that they
//! are in.
//!
//! Source: sharding document, "User Write Blocking".

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use pinion_wire::idl::{FieldReader, Path, missing_field};
use pinion_wire::{Error, Result};

use crate::values::bson_time;

/// The collection of changes that are made.
pub const CONFIG_COORDINATORS: &str = "config.sharding_configsvr_coordinators";

/// To block: no definition of the cluster starts, then no user writes. To unblock the other way
/// round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPhase {
    Prepare,
    Complete,
}

impl BlockPhase {
    fn name(self) -> &'static str {
        match self {
            BlockPhase::Prepare => "prepare",
            BlockPhase::Complete => "complete",
        }
    }

    fn parse(reader: &FieldReader<'_, '_>) -> Result<BlockPhase> {
        let name = reader.str("phase")?;
        let all = [BlockPhase::Prepare, BlockPhase::Complete];
        let found = all.into_iter().find(|phase| phase.name() == name);
        found.ok_or_else(|| {
            Error::bad_value(format!(
                "Enumeration value '{name}' for field '{}' is not a valid value.",
                reader.path().field("phase")
            ))
        })
    }
}

/// What is blocked on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    pub definitions: bool,
    pub writes: bool,
}

/// A phase of a change of what is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStep {
    pub blocks: bool,
    pub phase: BlockPhase,
}

impl BlockStep {
    /// The command for a shard.
    pub fn to_command(self) -> RawDocumentBuf {
        rawdoc! {
            "_shardsvrSetUserWriteBlockMode": 1, "global": self.blocks,
            "phase": self.phase.name(), "$db": "admin",
        }
    }

    /// Reads the command's fields.
    ///
    /// # Errors
    /// A field that is missing, of a wrong type or of another value.
    pub fn of_command(reader: &FieldReader<'_, '_>) -> Result<BlockStep> {
        let blocks = reader.opt_bool("global")?;
        Ok(BlockStep {
            blocks: blocks.ok_or_else(|| missing_field(reader.path().field("global")))?,
            phase: BlockPhase::parse(reader)?,
        })
    }

    /// Whether a message is not late: it is of the change that is made, or, where none is, of what
    /// the config servers have.
    pub fn is_current(self, made: Option<BlockStep>, config_servers: Blocked) -> bool {
        let Blocked {
            definitions,
            writes,
        } = config_servers;
        match (made, self.phase, self.blocks) {
            (Some(made), ..) => made == self,
            (None, BlockPhase::Prepare, true) => definitions,
            (None, BlockPhase::Complete, true) => writes,
            (None, BlockPhase::Prepare, false) => !writes,
            (None, BlockPhase::Complete, false) => !writes && !definitions,
        }
    }

    /// What brings a shard that is added to what the config servers have.
    pub fn to_reach(config_servers: Blocked) -> Vec<BlockStep> {
        let step = |blocks, phase| BlockStep { blocks, phase };
        match config_servers {
            Blocked { writes: true, .. } => vec![
                step(true, BlockPhase::Prepare),
                step(true, BlockPhase::Complete),
            ],
            Blocked {
                definitions: true, ..
            } => vec![step(true, BlockPhase::Prepare)],
            Blocked { .. } => vec![
                step(false, BlockPhase::Prepare),
                step(false, BlockPhase::Complete),
            ],
        }
    }
}

/// A change that is made, with the phase that it is in.
#[derive(Clone, Debug, PartialEq)]
pub enum SettingsChange {
    UserWriteBlock(BlockStep),
    /// A cluster parameter, or the query settings, with the time at which it was set.
    Parameter {
        name: String,
        time: Timestamp,
        value: RawDocumentBuf,
    },
}

const USER_WRITE_BLOCK: &str = "setUserWriteBlockMode";
const PARAMETER: &str = "setClusterParameter";

impl SettingsChange {
    pub fn block(blocks: bool) -> SettingsChange {
        SettingsChange::UserWriteBlock(BlockStep {
            blocks,
            phase: BlockPhase::Prepare,
        })
    }

    /// The `_id` of its document: there is one change of a kind, and of a parameter, at a time.
    pub fn id(&self) -> RawDocumentBuf {
        match self {
            SettingsChange::UserWriteBlock(_) => rawdoc! { "coordinatorType": USER_WRITE_BLOCK },
            SettingsChange::Parameter { name, .. } => {
                rawdoc! { "coordinatorType": PARAMETER, "subId": name.as_str() }
            }
        }
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", &*self.id());
        match self {
            SettingsChange::UserWriteBlock(step) => {
                out.append("block", step.blocks)
                    .append("phase", step.phase.name());
            }
            SettingsChange::Parameter { name, time, value } => {
                out.start_document("parameter").append(name, &**value).end();
                out.append("clusterParameterTime", RawBsonRef::Timestamp(*time));
            }
        }
        out.finish()
    }

    /// # Errors
    /// The document is of no change that is known.
    pub fn parse(document: &RawDocument) -> Result<SettingsChange> {
        let reader = FieldReader::object(Path::root(CONFIG_COORDINATORS), document)?;
        let id = FieldReader::object(reader.path().field("_id"), reader.doc("_id")?)?;
        match id.str("coordinatorType")? {
            USER_WRITE_BLOCK => {
                let blocks = reader.opt_bool("block")?;
                Ok(SettingsChange::UserWriteBlock(BlockStep {
                    blocks: blocks.ok_or_else(|| missing_field(reader.path().field("block")))?,
                    phase: BlockPhase::parse(&reader)?,
                }))
            }
            PARAMETER => parameter(&reader, "parameter"),
            other => Err(Error::bad_value(format!(
                "{CONFIG_COORDINATORS}: the coordinatorType '{other}' is unknown"
            ))),
        }
    }

    /// The command by which a shard performs the phase.
    pub fn to_command(&self) -> RawDocumentBuf {
        match self {
            SettingsChange::UserWriteBlock(step) => step.to_command(),
            SettingsChange::Parameter { name, time, value } => {
                let mut out = DocBuilder::new();
                out.start_document("_shardsvrSetClusterParameter")
                    .append(name, &**value)
                    .end();
                out.append("clusterParameterTime", RawBsonRef::Timestamp(*time));
                out.append("$db", "admin");
                out.finish()
            }
        }
    }

    /// The change with its next phase; none where it is made.
    pub fn next(&self) -> Option<SettingsChange> {
        match self {
            SettingsChange::UserWriteBlock(step) if step.phase == BlockPhase::Prepare => {
                Some(SettingsChange::UserWriteBlock(BlockStep {
                    phase: BlockPhase::Complete,
                    ..*step
                }))
            }
            _ => None,
        }
    }
}

/// Reads the parameter that is the one field of the field `name`, and its time.
///
/// # Errors
/// A field that is missing or of a wrong type, or not one parameter.
pub fn parameter(reader: &FieldReader<'_, '_>, name: &str) -> Result<SettingsChange> {
    let path = reader.path().field(name);
    let mut parameters = pinion_bson::elements(reader.doc(name)?);
    let (Some((id, RawBsonRef::Document(value))), None) = (parameters.next(), parameters.next())
    else {
        return Err(Error::failed_to_parse(format!(
            "'{path}' has to be one parameter with an object as its value"
        )));
    };
    let time = reader.opt_timestamp("clusterParameterTime")?;
    let time = time.ok_or_else(|| missing_field(reader.path().field("clusterParameterTime")))?;
    Ok(SettingsChange::Parameter {
        name: id.to_owned(),
        time: bson_time(time),
        value: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Blocked = Blocked {
        definitions: false,
        writes: false,
    };
    const DEFINITIONS: Blocked = Blocked {
        definitions: true,
        writes: false,
    };
    const ALL: Blocked = Blocked {
        definitions: true,
        writes: true,
    };

    fn step(blocks: bool, phase: BlockPhase) -> BlockStep {
        BlockStep { blocks, phase }
    }

    fn steps() -> [BlockStep; 4] {
        [
            step(true, BlockPhase::Prepare),
            step(true, BlockPhase::Complete),
            step(false, BlockPhase::Prepare),
            step(false, BlockPhase::Complete),
        ]
    }

    #[test]
    fn documents_and_commands() {
        let time = Timestamp {
            time: 7,
            increment: 1,
        };
        let parameter_set = SettingsChange::Parameter {
            name: "p".to_owned(),
            time,
            value: rawdoc! { "enabled": true },
        };
        let blocks = steps().map(SettingsChange::UserWriteBlock);
        for change in blocks.iter().chain([&parameter_set]) {
            let document = change.to_bson();
            assert_eq!(SettingsChange::parse(&document).ok().as_ref(), Some(change));
        }
        for step in steps() {
            let command = step.to_command();
            let reader = FieldReader::object(Path::root("c"), &command).expect("an object");
            assert_eq!(BlockStep::of_command(&reader).ok(), Some(step));
        }
        let command = parameter_set.to_command();
        let reader = FieldReader::object(Path::root("c"), &command).expect("an object");
        let read = parameter(&reader, "_shardsvrSetClusterParameter");
        assert_eq!(read.ok(), Some(parameter_set));
        let check_bad = |document: RawDocumentBuf, code: i32| {
            let error = SettingsChange::parse(&document).expect_err("unknown");
            assert_eq!(error.code.0, code, "{error}");
        };
        check_bad(rawdoc! { "_id": { "coordinatorType": "other" } }, 2);
        let id = rawdoc! { "coordinatorType": USER_WRITE_BLOCK };
        check_bad(rawdoc! { "_id": id.clone(), "phase": "prepare" }, 40_414);
        check_bad(rawdoc! { "_id": id, "block": true, "phase": "x" }, 2);
        let id = rawdoc! { "coordinatorType": PARAMETER, "subId": "p" };
        check_bad(rawdoc! { "_id": id, "parameter": { "p": {}, "q": {} } }, 9);
    }

    #[test]
    fn phases_follow_one_another() {
        for blocks in [true, false] {
            let mut change = SettingsChange::block(blocks);
            let mut phases = Vec::new();
            loop {
                let SettingsChange::UserWriteBlock(step) = &change else {
                    panic!("another change");
                };
                assert_eq!(step.blocks, blocks);
                phases.push(step.phase);
                match change.next() {
                    Some(next) => change = next,
                    None => break,
                }
            }
            assert_eq!(phases, [BlockPhase::Prepare, BlockPhase::Complete]);
        }
    }

    #[test]
    fn late_messages() {
        let check = |made: Option<BlockStep>, config_servers, expected: [bool; 4]| {
            let found = steps().map(|step| step.is_current(made, config_servers));
            assert_eq!(found, expected, "{made:?} {config_servers:?}");
        };
        check(None, NOTHING, [false, false, true, true]);
        check(None, DEFINITIONS, [true, false, true, false]);
        check(None, ALL, [true, true, false, false]);
        // What is made decides alone: the config servers follow the shards.
        for (at, made) in steps().into_iter().enumerate() {
            let mut expected = [false; 4];
            expected[at] = true;
            for config_servers in [NOTHING, DEFINITIONS, ALL] {
                check(Some(made), config_servers, expected);
            }
        }
    }

    #[test]
    fn a_shard_that_is_added_is_brought_up_by_messages_that_it_takes() {
        for config_servers in [NOTHING, DEFINITIONS, ALL] {
            let steps = BlockStep::to_reach(config_servers);
            let mut after = NOTHING;
            for step in steps {
                assert!(step.is_current(None, config_servers), "{step:?}");
                match step.phase {
                    BlockPhase::Prepare if step.blocks => after.definitions = true,
                    BlockPhase::Prepare => after.writes = false,
                    BlockPhase::Complete if step.blocks => after.writes = true,
                    BlockPhase::Complete => after = NOTHING,
                }
            }
            assert_eq!(after, config_servers);
        }
    }
}
