//! Privileges: actions on a resource, lists of them, and the privileges of a user in a form that is
//! asked often.

mod index;

use pinion_bson::{DocBuilder, RawArray, RawDocument, elements, values};
use rustc_hash::FxHashMap;

use crate::access_error::{AccessError, AccessErrorCode};
use crate::action::{Action, ActionSet};
use crate::fields;
use crate::resource::ResourcePattern;

pub use index::Privileges;

/// Actions on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privilege {
    pub resource: ResourcePattern,
    pub actions: ActionSet,
}

/// The privileges of an array, and the names of actions that MongoDB 8 does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrivilegeArray {
    pub privileges: Vec<Privilege>,
    pub unknown_actions: Vec<String>,
}

impl Privilege {
    pub fn new(resource: ResourcePattern, actions: ActionSet) -> Privilege {
        Privilege { resource, actions }
    }

    /// Reads an array of privileges: `[{resource: {..}, actions: ["find", ..]}, ..]`, as commands
    /// have it. Those on one resource are merged. `path` names the array in errors:
    /// `createRole.privileges`.
    ///
    /// # Errors
    /// `TypeMismatch`, `IDLUnknownField` and `IDLFailedToParse` of a field, those of resources,
    /// `FailedToParse` of a privilege without actions, `BadValue` of actions that do not exist.
    pub fn parse_all(array: &RawArray, path: &str) -> Result<Vec<Privilege>, AccessError> {
        let read = parse_array(array, path)?;
        if !read.unknown_actions.is_empty() {
            let names = read.unknown_actions.join(",");
            let message = format!("Unrecognized action privilege strings: {names}");
            return Err(AccessError::bad_value(message));
        }
        Ok(read.privileges)
    }

    /// Writes privileges as an array into the document that is open, under this name.
    pub fn append_all(privileges: &[Privilege], out: &mut DocBuilder, name: &str) {
        out.start_array(name);
        for privilege in privileges {
            out.push_document();
            privilege.resource.append_to(out, "resource");
            out.start_array("actions");
            for action in privilege.actions.names() {
                out.push(action);
            }
            out.end().end();
        }
        out.end();
    }

    /// The privileges with those on one resource as one, each where its resource comes first: the
    /// order in which MongoDB prints them. Privileges without actions are left out.
    pub fn merged(privileges: impl IntoIterator<Item = Privilege>) -> Vec<Privilege> {
        let mut places = FxHashMap::<ResourcePattern, usize>::default();
        let mut merged: Vec<Privilege> = Vec::new();
        for Privilege { resource, actions } in privileges {
            match places.get(&resource) {
                Some(place) => {
                    let known = &mut merged[*place].actions;
                    *known = known.union(actions);
                }
                None if actions.is_empty() => {}
                None => {
                    places.insert(resource.clone(), merged.len());
                    merged.push(Privilege { resource, actions });
                }
            }
        }
        merged
    }

    /// What is left of privileges when others are revoked: actions are revoked on the resource that
    /// names them alone, not on resources within it. Privileges without actions are left out.
    pub fn revoked(privileges: &[Privilege], revoked: &[Privilege]) -> Vec<Privilege> {
        let left = privileges.iter().map(|privilege| {
            let gone = revoked
                .iter()
                .filter(|revoked| revoked.resource == privilege.resource)
                .fold(ActionSet::EMPTY, |gone, revoked| {
                    gone.union(revoked.actions)
                });
            Privilege::new(privilege.resource.clone(), privilege.actions.without(gone))
        });
        left.filter(|privilege| !privilege.actions.is_empty())
            .collect()
    }
}

/// Reads an array of privileges. A stored role may have actions of another version, which grant
/// nothing: they are for the caller to judge.
///
/// # Errors
/// Those of `Privilege::parse_all` but for actions that do not exist.
pub(crate) fn parse_array(array: &RawArray, path: &str) -> Result<PrivilegeArray, AccessError> {
    let mut read = PrivilegeArray::default();
    for (at, value) in values(array).enumerate() {
        let path = &format!("{path}.{at}");
        let privilege = parse_privilege(fields::document(value, path)?, path, &mut read)?;
        read.privileges.push(privilege);
    }
    read.privileges = Privilege::merged(read.privileges);
    Ok(read)
}

fn parse_privilege(
    privilege: &RawDocument,
    path: &str,
    read: &mut PrivilegeArray,
) -> Result<Privilege, AccessError> {
    let mut resource = None;
    let mut actions = None;
    for (name, value) in elements(privilege) {
        let field = &format!("{path}.{name}");
        match name {
            "resource" => {
                let document = fields::document(value, field)?;
                resource = Some(ResourcePattern::parse(document, field)?);
            }
            "actions" => actions = Some(parse_actions(fields::array(value, field)?, field, read)?),
            _ => return Err(fields::unknown(path, name)),
        }
    }
    let resource = resource.ok_or_else(|| fields::missing(path, "resource"))?;
    let actions = actions.ok_or_else(|| fields::missing(path, "actions"))?;
    Ok(Privilege { resource, actions })
}

fn parse_actions(
    array: &RawArray,
    path: &str,
    read: &mut PrivilegeArray,
) -> Result<ActionSet, AccessError> {
    let mut actions = ActionSet::EMPTY;
    let mut count = 0;
    for (at, value) in values(array).enumerate() {
        let name = fields::string(value, &format!("{path}.{at}"))?;
        count += 1;
        match Action::parse(name) {
            Some(action) => actions.insert(action),
            None => read.unknown_actions.push(name.to_owned()),
        }
    }
    if count == 0 {
        return Err(AccessError::new(
            AccessErrorCode::FailedToParse,
            "missing actions field",
        ));
    }
    Ok(actions)
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawArrayBuf, RawBson, RawDocumentBuf, rawbson, rawdoc};

    use super::*;

    fn array(value: RawBson) -> RawArrayBuf {
        let RawBson::Array(array) = value else {
            panic!("an array")
        };
        array
    }

    fn written(privileges: &[Privilege]) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        Privilege::append_all(privileges, &mut out, "privileges");
        out.finish()
    }

    #[test]
    fn privileges_are_merged_and_written_in_order() {
        let given = array(rawbson!([
            { "resource": { "db": "d", "collection": "c" }, "actions": ["update", "find"] },
            { "actions": ["serverStatus"], "resource": { "cluster": true } },
            { "resource": { "db": "d", "collection": "c" }, "actions": ["insert", "find"] },
            { "resource": { "anyResource": true }, "actions": ["find", "anyAction"] },
        ]));
        let privileges = Privilege::parse_all(&given, "createRole.privileges").unwrap();
        let expected = rawdoc! { "privileges": [
            {
                "resource": { "db": "d", "collection": "c" },
                "actions": ["find", "insert", "update"],
            },
            { "resource": { "cluster": true }, "actions": ["serverStatus"] },
            { "resource": { "anyResource": true }, "actions": ["anyAction"] },
        ] };
        assert_eq!(written(&privileges), expected);
        assert_eq!(written(&[]), rawdoc! { "privileges": [] });
    }

    #[test]
    fn what_is_no_privilege() {
        let check = |given: RawBson, code: i32, message: &str| {
            let error = Privilege::parse_all(&array(given), "createRole.privileges");
            let error = error.expect_err(message);
            assert_eq!((error.code.number(), &*error.message), (code, message));
        };
        check(
            rawbson!([{ "resource": { "cluster": true }, "actions": ["find", "fnd", "", "top"] }]),
            2,
            "Unrecognized action privilege strings: fnd,",
        );
        check(
            rawbson!([{ "resource": { "cluster": true }, "actions": [] }]),
            9,
            "missing actions field",
        );
        check(
            rawbson!([{ "resource": { "cluster": true } }]),
            40414,
            "BSON field 'createRole.privileges.0.actions' is missing but a required field",
        );
        check(
            rawbson!([{ "actions": ["find"] }]),
            40414,
            "BSON field 'createRole.privileges.0.resource' is missing but a required field",
        );
        check(
            rawbson!([{ "resource": "d.c", "actions": ["find"] }]),
            14,
            "BSON field 'createRole.privileges.0.resource' is the wrong type 'string', expected \
             type 'object'",
        );
        check(
            rawbson!([{ "resource": { "cluster": true }, "actions": ["find", 1] }]),
            14,
            "BSON field 'createRole.privileges.0.actions.1' is the wrong type 'int', expected \
             type 'string'",
        );
        check(
            rawbson!(["find"]),
            14,
            "BSON field 'createRole.privileges.0' is the wrong type 'string', expected type \
             'object'",
        );
        check(
            rawbson!([{ "resource": { "cluster": true }, "actions": ["top"], "on": 1 }]),
            40415,
            "BSON field 'createRole.privileges.0.on' is an unknown field.",
        );
    }

    #[test]
    fn privileges_are_revoked_where_they_are_named() {
        let read = |value| Privilege::parse_all(&array(value), "privileges").unwrap();
        let all = read(rawbson!([
            { "resource": { "db": "d", "collection": "" }, "actions": ["find", "insert"] },
            { "resource": { "db": "d", "collection": "c" }, "actions": ["find"] },
        ]));
        let left = Privilege::revoked(
            &all,
            &read(rawbson!([
                { "resource": { "db": "d", "collection": "c" }, "actions": ["find", "insert"] },
                { "resource": { "db": "d", "collection": "" }, "actions": ["insert", "update"] },
                { "resource": { "anyResource": true }, "actions": ["anyAction"] },
            ])),
        );
        let expected = rawbson!([
            { "resource": { "db": "d", "collection": "" }, "actions": ["find"] },
        ]);
        assert_eq!(left, read(expected));
    }
}
