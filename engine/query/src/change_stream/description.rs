//! `updateDescription`: an entry's diff as paths.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_wire::Result;

use crate::error::error;
use crate::number::exact_i64;
use crate::update::sections_of;
use crate::value::{elements, field};

/// A step of a path.
#[derive(Clone, Copy)]
enum Component<'a> {
    Field(&'a str),
    Index(u32),
}

struct Described<'a> {
    updated: DocBuilder,
    removed: Vec<String>,
    truncated: Vec<(String, i64)>,
    /// Paths whose text would be taken for another one.
    disambiguated: Option<DocBuilder>,
    path: Vec<Component<'a>>,
}

fn malformed(what: &str) -> pinion_wire::Error {
    error(
        280,
        format!("an entry of the oplog has a diff that is none: {what}"),
    )
}

/// Appends `updateDescription` of an update's `o`.
///
/// # Errors
/// `ChangeStreamFatalError` when it is no diff.
pub(super) fn append_description(
    o: &RawDocument,
    is_expanded: bool,
    out: &mut DocBuilder,
) -> Result<()> {
    let mut described = Described {
        updated: DocBuilder::new(),
        removed: Vec::new(),
        truncated: Vec::new(),
        disambiguated: is_expanded.then(DocBuilder::new),
        path: Vec::new(),
    };
    match field(o, "diff") {
        Some(RawBsonRef::Document(_)) => described.document(sections_of(o)?, 0)?,
        Some(_) => return Err(malformed("it is no document")),
        None => described.operators(o),
    }
    let updated = described.updated.finish();
    out.start_document("updateDescription")
        .append("updatedFields", &*updated)
        .start_array("removedFields");
    for path in &described.removed {
        out.push(path.as_str());
    }
    out.end().start_array("truncatedArrays");
    for (path, len) in &described.truncated {
        out.push_document().append("field", path.as_str());
        match i32::try_from(*len) {
            Ok(len) => out.append("newSize", len),
            Err(_) => out.append("newSize", *len),
        };
        out.end();
    }
    out.end();
    if let Some(paths) = described.disambiguated {
        out.append("disambiguatedPaths", &*paths.finish());
    }
    out.end();
    Ok(())
}

/// How deep a diff may lie in itself: as deep as documents do.
const MAX_DEPTH: usize = 200;

impl<'a> Described<'a> {
    /// The text of the path to a step below the present one. Where a field in it has a dot or is a
    /// number, which as the text stands would be taken for another path, its steps are listed.
    fn path_to(&mut self, last: Component<'a>) -> String {
        let mut text = String::new();
        let mut is_ambiguous = false;
        for (at, component) in self.path.iter().chain([&last]).enumerate() {
            if at > 0 {
                text.push('.');
            }
            match component {
                Component::Field(name) => {
                    let is_number =
                        at > 0 && !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
                    is_ambiguous |= is_number || name.contains('.');
                    text.push_str(name);
                }
                Component::Index(index) => text.push_str(&index.to_string()),
            }
        }
        if is_ambiguous && let Some(paths) = &mut self.disambiguated {
            paths.start_array(&text);
            for component in self.path.iter().chain([&last]) {
                match component {
                    Component::Field(name) => paths.push(*name),
                    Component::Index(index) => paths.push(*index as i32),
                };
            }
            paths.end();
        }
        text
    }

    /// A path whose name occurs again below it must not be listed twice.
    fn document(&mut self, diff: &'a RawDocument, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(malformed("it is too deep"));
        }
        crate::work::spend_bytes(diff.as_bytes().len())?;
        for (name, value) in elements(diff) {
            match (name, value) {
                ("d", RawBsonRef::Document(fields)) => {
                    for (name, _) in elements(fields) {
                        let path = self.path_to(Component::Field(name));
                        self.removed.push(path);
                    }
                }
                ("u" | "i", RawBsonRef::Document(fields)) => {
                    for (name, value) in elements(fields) {
                        let path = self.path_to(Component::Field(name));
                        self.updated.append_raw(&path, value);
                    }
                }
                (name, RawBsonRef::Document(nested)) if name.starts_with('s') => {
                    self.below(Component::Field(&name[1..]), nested, depth)?;
                }
                _ => return Err(malformed("a section is not known")),
            }
        }
        Ok(())
    }

    fn below(
        &mut self,
        component: Component<'a>,
        diff: &'a RawDocument,
        depth: usize,
    ) -> Result<()> {
        self.path.push(component);
        let is_array = field(diff, "a") == Some(RawBsonRef::Boolean(true));
        let result = match is_array {
            true => self.array(diff, depth + 1),
            false => self.document(diff, depth + 1),
        };
        self.path.pop();
        result
    }

    fn array(&mut self, diff: &'a RawDocument, depth: usize) -> Result<()> {
        for (name, value) in elements(diff) {
            if name == "a" {
                continue;
            }
            if name == "l" {
                let len = exact_i64(value).ok_or_else(|| malformed("a length is no number"))?;
                let last = self.path.pop().expect("an array is in a field");
                let path = self.path_to(last);
                self.path.push(last);
                self.truncated.push((path, len));
                continue;
            }
            let index = name.get(1..).and_then(|index| index.parse().ok());
            let index = index.ok_or_else(|| malformed("an element has no index"))?;
            match (name.as_bytes()[0], value) {
                (b'u', value) => {
                    let path = self.path_to(Component::Index(index));
                    self.updated.append_raw(&path, value);
                }
                (b's', RawBsonRef::Document(nested)) => {
                    self.below(Component::Index(index), nested, depth)?;
                }
                _ => return Err(malformed("a change of an element is not known")),
            }
        }
        Ok(())
    }

    /// An update in the form of old: `{$set: {...}, $unset: {...}}`, with paths as names.
    fn operators(&mut self, o: &RawDocument) {
        if let Some(RawBsonRef::Document(set)) = field(o, "$set") {
            self.updated.append_all(set);
        }
        if let Some(RawBsonRef::Document(unset)) = field(o, "$unset") {
            let names = elements(unset).map(|(name, _)| name.to_owned());
            self.removed.extend(names);
        }
    }
}
