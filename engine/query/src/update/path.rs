//! The dotted path of an update operator.

use pinion_wire::Result;

use crate::error::{bad_value, error};
use crate::limits::MAX_PATH_COMPONENTS;

/// One component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Name(Box<str>),
    /// `$`: the position the filter matched at.
    Matched,
    /// `$[]`: every item.
    All,
    /// `$[id]`: the items an array filter selects.
    Filtered(Box<str>),
}

impl Part {
    /// The array filter's identifier of a part that stands for items; the empty one for all of
    /// them.
    pub(super) fn item_filter(&self) -> Option<&str> {
        match self {
            Part::All => Some(""),
            Part::Filtered(id) => Some(id),
            Part::Name(_) | Part::Matched => None,
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Part::Name(name) => name.to_string(),
            Part::Matched => "$".into(),
            Part::All => "$[]".into(),
            Part::Filtered(id) => format!("$[{id}]"),
        }
    }
}

/// A path and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpdatePath {
    text: Box<str>,
    parts: Vec<Part>,
}

impl UpdatePath {
    pub(super) fn parse(text: &str) -> Result<UpdatePath> {
        if text.is_empty() {
            return Err(error(56, "An empty update path is not valid."));
        }
        let mut parts = Vec::new();
        for name in text.split('.') {
            if name.is_empty() {
                return Err(error(
                    56,
                    format!(
                        "The update path '{text}' contains an empty field name, which is not allowed."
                    ),
                ));
            }
            parts.push(
                match name
                    .strip_prefix("$[")
                    .and_then(|rest| rest.strip_suffix(']'))
                {
                    Some("") => Part::All,
                    Some(id) => Part::Filtered(id.into()),
                    None if name == "$" => Part::Matched,
                    None => Part::Name(name.into()),
                },
            );
        }
        if parts.len() > MAX_PATH_COMPONENTS {
            return Err(error(
                15,
                format!("The update path '{text}' has more than {MAX_PATH_COMPONENTS} components"),
            ));
        }
        match &parts[0] {
            Part::Name(_) => {}
            Part::Matched => {
                return Err(bad_value(format!(
                    "Cannot have positional (i.e. '$') element in the first position in path '{text}'"
                )));
            }
            Part::All | Part::Filtered(_) => {
                return Err(bad_value(format!(
                    "Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '{text}'"
                )));
            }
        }
        if parts.iter().filter(|part| **part == Part::Matched).count() > 1 {
            return Err(bad_value(format!(
                "Too many positional (i.e. '$') elements found in path '{text}'"
            )));
        }
        Ok(UpdatePath {
            text: text.into(),
            parts,
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The identifiers of the array filters it names.
    pub(super) fn identifiers(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Filtered(id) => Some(&**id),
            _ => None,
        })
    }

    pub(super) fn has_matched(&self) -> bool {
        self.parts.contains(&Part::Matched)
    }
}
