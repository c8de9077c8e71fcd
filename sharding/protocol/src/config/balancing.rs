//! How a collection is balanced, and which settings of the balancer there may be.
//!
//! Source: the rules and their messages are MongoDB's.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, rawdoc};
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, Result};

use crate::documents::{AutoMergeSettings, AutoSplitSettings, BalancerSettings, ChunkSizeSettings};

/// `_configsvrConfigureCollectionBalancing: <ns>, chunkSize?, enableAutoMerger?, noBalance?,
/// enableBalancing?, defragmentCollection?`.
#[derive(Clone, Debug, PartialEq)]
pub struct BalancingRequest {
    pub ns: Namespace,
    /// In bytes; `Some(None)`: that of `config.settings` again.
    pub max_chunk_size_bytes: Option<Option<i64>>,
    pub enables_auto_merge: Option<bool>,
    pub no_balance: Option<bool>,
}

const MEGABYTE: i64 = 1 << 20;
const MAX_MEGABYTES: i64 = 1024;
const OPTIONS: [&str; 6] = [
    "chunkSize",
    "enableAutoMerger",
    "noBalance",
    "enableBalancing",
    "defragmentCollection",
    "enableAutoSplitter",
];

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

impl BalancingRequest {
    /// Reads the command of a client or a router, which has this name.
    ///
    /// # Errors
    /// A field of a wrong type; `InvalidOptions` for a size that no chunk has, for two options that
    /// contradict each other, and where there is nothing to set; `CommandNotSupported` for what
    /// there is not.
    pub fn parse(name: &str, command: &RawDocument) -> Result<BalancingRequest> {
        let reader = FieldReader::object(Path::root(name), command)?;
        for absent in ["defragmentCollection", "enableAutoSplitter"] {
            if reader.opt_safe_bool(absent)? == Some(true) {
                return Err(Error::new(
                    ErrorCode::COMMAND_NOT_SUPPORTED,
                    format!("{name} with {absent} is not supported"),
                ));
            }
        }
        let enables = reader.opt_safe_bool("enableBalancing")?;
        let refuses = reader.opt_safe_bool("noBalance")?;
        if enables.is_some() && enables == refuses {
            return Err(invalid(
                "enableBalancing and noBalance contradict each other".to_owned(),
            ));
        }
        if !OPTIONS.iter().any(|option| reader.has(option)) {
            return Err(invalid(format!(
                "{name} needs at least one of {}",
                OPTIONS.join(", ")
            )));
        }
        Ok(BalancingRequest {
            ns: Namespace::parse(reader.str(name)?)?,
            max_chunk_size_bytes: match reader.opt_i64("chunkSize")? {
                None => None,
                Some(0) => Some(None),
                Some(size @ 1..=MAX_MEGABYTES) => Some(Some(size * MEGABYTE)),
                Some(size) => {
                    return Err(invalid(format!(
                        "Chunk size '{size}' out of range [1MB, 1GB]"
                    )));
                }
            },
            enables_auto_merge: reader.opt_safe_bool("enableAutoMerger")?,
            no_balance: enables.map(|enables| !enables).or(refuses),
        })
    }

    pub fn fields() -> &'static [&'static str] {
        &OPTIONS
    }

    /// The update of the collection's document; `None` where nothing changes.
    pub fn update(&self) -> Option<RawDocumentBuf> {
        let (mut set, mut unset) = (DocBuilder::new(), DocBuilder::new());
        match self.max_chunk_size_bytes {
            Some(Some(bytes)) => {
                set.append("maxChunkSizeBytes", bytes);
            }
            Some(None) => {
                unset.append("maxChunkSizeBytes", "");
            }
            None => {}
        }
        if let Some(enables) = self.enables_auto_merge {
            set.append("enableAutoMerge", enables);
        }
        if let Some(no_balance) = self.no_balance {
            set.append("noBalance", no_balance);
        }
        let mut out = DocBuilder::new();
        for (operator, fields) in [("$set", set.finish()), ("$unset", unset.finish())] {
            if !fields.is_empty() {
                out.append(operator, &*fields);
            }
        }
        Some(out.finish()).filter(|update| !update.is_empty())
    }
}

/// The validator of `config.settings`: what a client may write there.
pub fn settings_validator() -> RawDocumentBuf {
    let of = |id: &str| rawdoc! { "enum": [id] };
    let boolean = || rawdoc! { "bsonType": "bool" };
    let text = || rawdoc! { "bsonType": "string" };
    let chunk_size = rawdoc! {
        "properties": {
            "_id": of(ChunkSizeSettings::ID),
            "value": { "bsonType": "number", "minimum": 1, "maximum": 1024 },
        },
        "required": ["value"],
        "additionalProperties": false,
    };
    let balancer = rawdoc! {
        "properties": {
            "_id": of(BalancerSettings::ID),
            "mode": { "enum": ["full", "autoSplitOnly", "off"] },
            "stopped": boolean(),
            "activeWindow": {
                "bsonType": "object", "required": ["start", "stop"],
                "properties": { "start": text(), "stop": text() },
            },
            "_secondaryThrottle": { "oneOf": [boolean(), { "bsonType": "object" }] },
            "_waitForDelete": boolean(),
            "attemptToBalanceJumboChunks": boolean(),
        },
    };
    let switch = |id: &str| {
        rawdoc! {
            "properties": { "_id": of(id), "enabled": boolean() }, "required": ["enabled"],
        }
    };
    let others = rawdoc! {
        "properties": { "_id": { "enum": ["ReadWriteConcernDefaults", "audit"] } },
    };
    rawdoc! {
        "$jsonSchema": {
            "oneOf": [
                chunk_size, balancer, switch(AutoSplitSettings::ID), switch(AutoMergeSettings::ID),
                others,
            ],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: RawDocumentBuf) -> Result<BalancingRequest> {
        let mut command = DocBuilder::new();
        command.append("configureCollectionBalancing", "d.c");
        command.append_all(&options);
        BalancingRequest::parse("configureCollectionBalancing", &command.finish())
    }

    #[test]
    fn what_is_set() {
        let check = |options: RawDocumentBuf, expected: Option<RawDocumentBuf>| {
            assert_eq!(parse(options).expect("readable").update(), expected);
        };
        let mb = |n: i64| n << 20;
        check(
            rawdoc! { "chunkSize": 8 },
            Some(rawdoc! { "$set": { "maxChunkSizeBytes": mb(8) } }),
        );
        check(
            rawdoc! { "chunkSize": 0, "enableAutoMerger": false },
            Some(rawdoc! {
                "$set": { "enableAutoMerge": false }, "$unset": { "maxChunkSizeBytes": "" },
            }),
        );
        let off = Some(rawdoc! { "$set": { "noBalance": true } });
        check(rawdoc! { "noBalance": true }, off.clone());
        check(rawdoc! { "enableBalancing": false }, off.clone());
        check(rawdoc! { "enableBalancing": false, "noBalance": true }, off);
        check(rawdoc! { "defragmentCollection": false }, None);
    }

    #[test]
    fn what_is_refused() {
        let check = |options: RawDocumentBuf, code: i32| {
            assert_eq!(parse(options).expect_err("refused").code.0, code);
        };
        check(rawdoc! {}, 72);
        check(rawdoc! { "chunkSize": -1 }, 72);
        check(rawdoc! { "chunkSize": 1025 }, 72);
        check(rawdoc! { "chunkSize": "x" }, 14);
        check(rawdoc! { "enableBalancing": true, "noBalance": true }, 72);
        check(rawdoc! { "defragmentCollection": true }, 115);
    }
}
