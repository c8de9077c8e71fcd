//! The options of `validate` and which of them go together.

use pinion_bson::RawBsonRef;
use pinion_wire::idl::{CommandReader, truthy};
use pinion_wire::{Error, ErrorCode, Result};

/// What is mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RepairMode {
    None,
    /// What the catalog says of arrays.
    AdjustMultikey,
    /// All that can be.
    FixErrors,
}

impl RepairMode {
    /// MongoDB's word for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            RepairMode::None => "None",
            RepairMode::AdjustMultikey => "AdjustMultikey",
            RepairMode::FixErrors => "FixErrors",
        }
    }
}

/// What is to be examined, and what is to be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Options {
    /// At what a majority of the set has, where the node is in one.
    pub background: bool,
    /// Documents are checked for what MongoDB calls conformance, as far as that takes long.
    pub conformance: bool,
    /// The count of records that is kept beside them is compared with theirs.
    pub enforce_count: bool,
    /// The catalog alone.
    pub metadata: bool,
    pub repair: RepairMode,
}

impl Options {
    /// Nothing but what is there, and nothing mended.
    pub(super) const LOOKING: Options = Options {
        background: true,
        conformance: false,
        enforce_count: false,
        metadata: false,
        repair: RepairMode::None,
    };

    pub(super) fn read(reader: &CommandReader<'_>, is_member: bool) -> Result<Options> {
        // What is no boolean counts as true, and unknown fields are passed over.
        Options::parse(|name| reader.value(name), is_member)
    }

    fn parse<'d>(
        value: impl Fn(&str) -> Option<RawBsonRef<'d>>,
        is_member: bool,
    ) -> Result<Options> {
        let flag = |name: &str| value(name).is_some_and(truthy);
        let both = |a: &str, b: &str| match flag(a) && flag(b) {
            true => Err(invalid(format!(
                "Running the validate command with both {{ {a}: true }} and {{ {b}: true }} is not supported."
            ))),
            false => Ok(()),
        };
        both("background", "full")?;
        both("background", "enforceFastCount")?;
        let is_whole = flag("full") || flag("enforceFastCount");
        if value("checkBSONConformance").is_some() && !flag("checkBSONConformance") && is_whole {
            return Err(invalid(
                "Cannot explicitly set 'checkBSONConformance: false' with full validation set.",
            ));
        }
        both("background", "repair")?;
        both("enforceFastCount", "repair")?;
        both("checkBSONConformance", "repair")?;
        both("background", "fixMultikey")?;
        for name in ["repair", "fixMultikey"] {
            if is_member && flag(name) {
                return Err(invalid(format!(
                    "Running the validate command with {{ {name}: true }} can only be performed in standalone mode."
                )));
            }
        }
        let others = [
            "background",
            "full",
            "enforceFastCount",
            "checkBSONConformance",
            "repair",
            "fixMultikey",
        ];
        if flag("metadata") && others.into_iter().any(flag) {
            return Err(invalid(
                "Running the validate command with { metadata: true } is not supported with any other options",
            ));
        }
        Ok(Options {
            background: flag("background"),
            conformance: is_whole || flag("checkBSONConformance"),
            enforce_count: flag("enforceFastCount"),
            metadata: flag("metadata"),
            repair: match (flag("repair"), flag("fixMultikey")) {
                (true, _) => RepairMode::FixErrors,
                (false, true) => RepairMode::AdjustMultikey,
                (false, false) => RepairMode::None,
            },
        })
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn parse(options: &RawDocumentBuf, is_member: bool) -> Result<Options> {
        Options::parse(|name| pinion_bson::get(options, name), is_member)
    }

    #[test]
    fn options_that_do_not_go_together() {
        let check = |options: RawDocumentBuf, expected: Option<&str>| {
            let refused = parse(&options, false).err();
            match expected {
                Some(expected) => {
                    let error = refused.expect("a refusal");
                    assert_eq!(error.code, ErrorCode::INVALID_OPTIONS);
                    assert!(error.message.contains(expected), "{}", error.message);
                }
                None => assert!(refused.is_none(), "{options:?}: {refused:?}"),
            }
        };
        check(rawdoc! {}, None);
        check(rawdoc! { "full": true, "enforceFastCount": 1 }, None);
        check(rawdoc! { "full": true, "repair": true }, None);
        check(
            rawdoc! { "background": true, "checkBSONConformance": true },
            None,
        );
        check(rawdoc! { "repair": true, "fixMultikey": true }, None);
        check(
            rawdoc! { "full": false, "checkBSONConformance": false },
            None,
        );
        check(
            rawdoc! { "full": true, "checkBSONConformance": 0 },
            Some("explicitly"),
        );
        check(
            rawdoc! { "background": true, "full": true },
            Some("full: true"),
        );
        check(
            rawdoc! { "background": 1, "enforceFastCount": 1 },
            Some("enforceFastCount"),
        );
        check(rawdoc! { "background": 1, "repair": 1 }, Some("repair"));
        check(
            rawdoc! { "background": 1, "fixMultikey": 1 },
            Some("fixMultikey"),
        );
        check(
            rawdoc! { "enforceFastCount": 1, "repair": 1 },
            Some("enforceFastCount"),
        );
        check(
            rawdoc! { "checkBSONConformance": 1, "repair": 1 },
            Some("checkBSON"),
        );
        for other in [
            "full",
            "background",
            "repair",
            "fixMultikey",
            "enforceFastCount",
        ] {
            let mut options = rawdoc! { "metadata": true };
            options.append(
                pinion_bson::CString::try_from(other.to_owned()).expect("a name"),
                true,
            );
            check(options, Some("metadata: true"));
        }
    }

    #[test]
    fn a_member_mends_nothing_by_itself() {
        for name in ["repair", "fixMultikey"] {
            let mut options = RawDocumentBuf::new();
            options.append(
                pinion_bson::CString::try_from(name.to_owned()).expect("a name"),
                true,
            );
            let error = parse(&options, true).expect_err("a refusal");
            assert!(
                error.message.contains("standalone mode"),
                "{}",
                error.message
            );
            assert!(parse(&options, false).is_ok());
        }
    }
}
