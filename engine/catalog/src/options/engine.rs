//! `storageEngine` of collections and indexes: settings for another engine, which are checked and
//! kept as MongoDB keeps them.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_wire::{Error, ErrorCode, Result};

/// The keys that WiredTiger's `create` takes.
const CONFIGURATION_KEYS: [&str; 46] = [
    "access_pattern_hint",
    "allocation_size",
    "app_metadata",
    "assert",
    "block_allocation",
    "block_compressor",
    "cache_resident",
    "checksum",
    "colgroups",
    "collator",
    "columns",
    "dictionary",
    "encryption",
    "exclusive",
    "extractor",
    "format",
    "huffman_key",
    "huffman_value",
    "ignore_in_memory_cache_size",
    "immutable",
    "import",
    "internal_item_max",
    "internal_key_max",
    "internal_key_truncate",
    "internal_page_max",
    "key_format",
    "key_gap",
    "leaf_item_max",
    "leaf_key_max",
    "leaf_page_max",
    "leaf_value_max",
    "log",
    "lsm",
    "memory_page_image_max",
    "memory_page_max",
    "os_cache_dirty_max",
    "os_cache_max",
    "prefix_compression",
    "prefix_compression_min",
    "source",
    "split_deepen_min_child",
    "split_deepen_per_child",
    "split_pct",
    "type",
    "value_format",
    "write_timestamp_usage",
];

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

/// Checks `{wiredTiger: {configString}}`.
pub fn check_storage_engine(engines: &RawDocument) -> Result<()> {
    for (name, value) in pinion_bson::elements(engines) {
        let RawBsonRef::Document(settings) = value else {
            return Err(Error::bad_value(format!(
                "storageEngine.{name} has to be an embedded document."
            )));
        };
        if name != "wiredTiger" {
            return Err(invalid(format!(
                "{name} is not a registered storage engine for this server"
            )));
        }
        for (setting, value) in pinion_bson::elements(settings) {
            match (setting, value) {
                ("configString", RawBsonRef::String(text)) => check_configuration(text)?,
                ("configString", _) => {
                    return Err(Error::type_mismatch("'configString' must be a string."));
                }
                _ => {
                    return Err(invalid(format!(
                        "'{setting}' is not a supported option in storageEngine.wiredTiger"
                    )));
                }
            }
        }
    }
    Ok(())
}

/// A configuration is a list of `key=value`, where a value may have a list of its own in brackets.
fn check_configuration(text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::failed_to_parse("malformed 'configString' value."));
    }
    let bad = || {
        Error::bad_value(format!(
            "unknown configuration key or malformed value: '{text}': Invalid argument"
        ))
    };
    let (mut depth, mut start) = (0usize, 0);
    let mut parts = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1).ok_or_else(bad)?,
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    let is_known = |part: &&str| {
        let key = part.split(['=', ':']).next().unwrap_or_default().trim();
        part.trim().is_empty() || CONFIGURATION_KEYS.contains(&key)
    };
    match depth == 0 && parts.iter().all(is_known) {
        true => Ok(()),
        false => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(text: &str, expected: Option<ErrorCode>) {
        let found = check_configuration(text).err().map(|error| error.code);
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn configurations() {
        check_text("", None);
        check_text("block_compressor=zlib", None);
        check_text("log=(enabled=true), type=file ,", None);
        check_text("invalid=bad", Some(ErrorCode::BAD_VALUE));
        check_text("log=(enabled=true", Some(ErrorCode::BAD_VALUE));
        check_text("log=)", Some(ErrorCode::BAD_VALUE));
        check_text("a\0b", Some(ErrorCode::FAILED_TO_PARSE));
    }
}
