//! Users: their documents in `admin.system.users`.
//!
//! Source: MongoDB's manual, "system.users Collection".

use std::fmt;

use pinion_bson::{
    Binary, BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, get,
};

use crate::access_error::{AccessError, AccessErrorCode};
use crate::name::{RoleName, UserName};
use crate::restriction::Restrictions;
use crate::scram::{Hash, StoredCredentials};

/// The id of a user, which its name keeps while it exists: a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserId(pub [u8; 16]);

/// How a user proves to be that.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// By a password that is known elsewhere: `{external: true}`.
    External,
    /// By a password, with one mechanism or both.
    Scram {
        sha1: Option<StoredCredentials>,
        sha256: Option<StoredCredentials>,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.mechanisms().join(", "))
    }
}

/// A stored user.
#[derive(Clone, Debug, PartialEq)]
pub struct UserDefinition {
    pub name: UserName,
    /// Users that versions before MongoDB 4.0 made have none.
    pub id: Option<UserId>,
    pub credentials: Credentials,
    pub roles: Vec<RoleName>,
    pub restrictions: Restrictions,
    pub custom_data: Option<RawDocumentBuf>,
}

impl UserId {
    /// As a value of BSON.
    pub fn to_binary(self) -> Binary {
        Binary {
            subtype: BinarySubtype::Uuid,
            bytes: self.0.to_vec(),
        }
    }
}

impl Credentials {
    /// The credentials of a mechanism.
    pub fn of(&self, hash: Hash) -> Option<&StoredCredentials> {
        match (self, hash) {
            (Self::External, _) => None,
            (Self::Scram { sha1, .. }, Hash::Sha1) => sha1.as_ref(),
            (Self::Scram { sha256, .. }, Hash::Sha256) => sha256.as_ref(),
        }
    }

    /// The field `mechanisms` of what `usersInfo` shows.
    pub fn mechanisms(&self) -> Vec<&'static str> {
        if *self == Self::External {
            return vec!["external"];
        }
        [Hash::Sha1, Hash::Sha256]
            .into_iter()
            .filter(|hash| self.of(*hash).is_some())
            .map(Hash::mechanism)
            .collect()
    }

    fn parse(credentials: &RawDocument, name: &UserName) -> Result<Credentials, AccessError> {
        let external = get(credentials, "external");
        if name.is_external() || external.is_some() {
            return match external {
                Some(RawBsonRef::Boolean(true)) if name.is_external() => Ok(Credentials::External),
                _ => Err(broken(
                    "User documents for users defined on '$external' must have 'credentials' \
                     field set to {external: true}",
                )),
            };
        }
        let of = |hash: Hash| match get(credentials, hash.mechanism()) {
            None => Ok(None),
            Some(RawBsonRef::Document(document)) => {
                StoredCredentials::parse(hash, document).map(Some)
            }
            Some(_) => {
                let mechanism = hash.mechanism();
                let message = format!("{mechanism} credential must be an object if present");
                Err(broken(message))
            }
        };
        let (sha1, sha256) = (of(Hash::Sha1)?, of(Hash::Sha256)?);
        if sha1.is_none() && sha256.is_none() {
            return Err(broken(
                "User document must provide credentials for all non-external users",
            ));
        }
        Ok(Credentials::Scram { sha1, sha256 })
    }

    /// Writes them into the document that is open, as its field `credentials`.
    pub fn append_to(&self, out: &mut DocBuilder) {
        out.start_document("credentials");
        match self {
            Self::External => {
                out.append("external", true);
            }
            Self::Scram { sha1, sha256 } => {
                for credentials in [sha1, sha256].into_iter().flatten() {
                    credentials.append_to(out);
                }
            }
        }
        out.end();
    }
}

impl UserDefinition {
    /// Reads a document of `admin.system.users`. Fields that are not known are passed over.
    ///
    /// # Errors
    /// `UnsupportedFormat`, whatever is wrong with it.
    pub fn parse(document: &RawDocument) -> Result<UserDefinition, AccessError> {
        let name = UserName::new(name_field(document, "user")?, name_field(document, "db")?);
        match get(document, "_id") {
            Some(RawBsonRef::String(id)) if id == name.id() => {}
            _ => {
                return Err(broken(
                    "User document needs '_id' field to be the string db.user",
                ));
            }
        }
        let credentials = match get(document, "credentials") {
            Some(RawBsonRef::Document(credentials)) => Credentials::parse(credentials, &name)?,
            _ => {
                return Err(broken(
                    "User document needs 'credentials' field to be an object",
                ));
            }
        };
        let roles = match get(document, "roles") {
            Some(RawBsonRef::Array(array)) => {
                RoleName::parse_all(array, &name.db).map_err(unsupported)?
            }
            _ => return Err(broken("User document needs 'roles' field to be an array")),
        };
        let restrictions = match get(document, "authenticationRestrictions") {
            None => Restrictions::default(),
            Some(RawBsonRef::Array(array)) => {
                Restrictions::parse(array, "authenticationRestrictions").map_err(unsupported)?
            }
            Some(_) => {
                return Err(broken(
                    "'authenticationRestrictions' field must be an array",
                ));
            }
        };
        let custom_data = match get(document, "customData") {
            None | Some(RawBsonRef::Null) => None,
            Some(RawBsonRef::Document(data)) => Some(data.to_owned()),
            Some(_) => return Err(broken("'customData' field must be an object")),
        };
        Ok(UserDefinition {
            id: id_field(document)?,
            name,
            credentials,
            roles,
            restrictions,
            custom_data,
        })
    }

    /// The document of `admin.system.users`. Restrictions and data that the user does not have are
    /// left out.
    pub fn document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", &*self.name.id());
        if let Some(UserId(bytes)) = &self.id {
            let subtype = BinarySubtype::Uuid;
            out.append("userId", RawBinaryRef { subtype, bytes });
        }
        out.append("user", &*self.name.user)
            .append("db", &*self.name.db);
        self.credentials.append_to(&mut out);
        if let Some(data) = &self.custom_data {
            out.append("customData", &**data);
        }
        RoleName::append_all(&self.roles, &mut out, "roles");
        if !self.restrictions.is_empty() {
            self.restrictions
                .append_to(&mut out, "authenticationRestrictions");
        }
        out.finish()
    }
}

fn name_field<'d>(document: &'d RawDocument, field: &str) -> Result<&'d str, AccessError> {
    match get(document, field) {
        Some(RawBsonRef::String("")) => {
            let message = format!("User document needs '{field}' field to be non-empty");
            Err(broken(message))
        }
        Some(RawBsonRef::String(name)) if !name.contains('\0') => Ok(name),
        _ => {
            let message = format!("User document needs '{field}' field to be a string");
            Err(broken(message))
        }
    }
}

fn id_field(document: &RawDocument) -> Result<Option<UserId>, AccessError> {
    match get(document, "userId") {
        None => Ok(None),
        Some(RawBsonRef::Binary(binary)) if binary.subtype == BinarySubtype::Uuid => {
            let bytes = binary.bytes.try_into();
            let bytes = bytes.map_err(|_| broken("'userId' field must be a UUID"))?;
            Ok(Some(UserId(bytes)))
        }
        Some(_) => Err(broken("'userId' field must be a UUID")),
    }
}

fn broken(message: impl Into<String>) -> AccessError {
    AccessError::new(AccessErrorCode::UnsupportedFormat, message)
}

fn unsupported(error: AccessError) -> AccessError {
    broken(error.message)
}

#[cfg(test)]
mod tests {
    use pinion_bson::testing::Rng;
    use pinion_bson::{RawBson, elements, rawbson, rawdoc};

    use super::*;

    fn stored() -> RawDocumentBuf {
        let key = |byte: u8, length: usize| {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.encode(vec![byte; length])
        };
        let uuid = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: (0..16).collect(),
        };
        rawdoc! {
            "_id": "test.u",
            "userId": uuid,
            "user": "u",
            "db": "test",
            "credentials": {
                "SCRAM-SHA-1": {
                    "iterationCount": 10_000,
                    "salt": key(1, 16),
                    "storedKey": key(2, 20),
                    "serverKey": key(3, 20),
                },
                "SCRAM-SHA-256": {
                    "iterationCount": 15_000,
                    "salt": key(4, 28),
                    "storedKey": key(5, 32),
                    "serverKey": key(6, 32),
                },
            },
            "customData": { "team": "x" },
            "roles": [{ "role": "readWrite", "db": "test" }, { "role": "read", "db": "other" }],
            "authenticationRestrictions": [{ "clientSource": ["10.0.0.1"] }],
        }
    }

    fn with(name: &str, value: Option<RawBson>) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        for (field, known) in elements(&stored()) {
            match &value {
                _ if field != name => out.append(field, known),
                Some(value) => out.append(field, value.as_raw_bson_ref()),
                None => &mut out,
            };
        }
        out.finish()
    }

    #[test]
    fn users_are_read_and_written_back() {
        let user = UserDefinition::parse(&stored()).unwrap();
        assert_eq!(user.name, UserName::new("u", "test"));
        assert_eq!(
            user.id.map(UserId::to_binary).unwrap().bytes,
            Vec::from_iter(0..16)
        );
        assert_eq!(
            user.credentials.mechanisms(),
            ["SCRAM-SHA-1", "SCRAM-SHA-256"]
        );
        assert!(user.credentials.of(Hash::Sha256).is_some());
        assert_eq!(user.document(), stored());
        for optional in ["userId", "customData", "authenticationRestrictions"] {
            let without = with(optional, None);
            let user = UserDefinition::parse(&without).unwrap();
            assert_eq!(user.document(), without, "{optional}");
        }
        assert!(!format!("{user:?}").contains("AQEB"));
    }

    #[test]
    fn external_users_have_no_password() {
        let external = |credentials: RawBson| {
            UserDefinition::parse(&rawdoc! {
                "_id": "$external.CN=x",
                "user": "CN=x",
                "db": "$external",
                "credentials": credentials,
                "roles": [],
            })
        };
        let user = external(rawbson!({ "external": true })).unwrap();
        assert_eq!(user.credentials.mechanisms(), ["external"]);
        assert_eq!(user.credentials.of(Hash::Sha256), None);
        assert_eq!(UserDefinition::parse(&user.document()), Ok(user));
        external(rawbson!({ "external": false })).unwrap_err();
        external(rawbson!({})).unwrap_err();
        external(stored().get("credentials").unwrap().unwrap().into()).unwrap_err();
        let elsewhere = with("credentials", Some(rawbson!({ "external": true })));
        UserDefinition::parse(&elsewhere).unwrap_err();
    }

    #[test]
    fn broken_users_are_refused() {
        let check = |name: &str, value: Option<RawBson>, message: &str| {
            let error = UserDefinition::parse(&with(name, value)).expect_err(message);
            assert_eq!(error.code, AccessErrorCode::UnsupportedFormat, "{error}");
            assert!(error.message.contains(message), "{error}");
        };
        check("user", None, "needs 'user' field to be a string");
        check(
            "user",
            Some(rawbson!("")),
            "needs 'user' field to be non-empty",
        );
        check("db", Some(rawbson!(1)), "needs 'db' field to be a string");
        check("_id", Some(rawbson!("u")), "needs '_id' field");
        check(
            "userId",
            Some(rawbson!("x")),
            "'userId' field must be a UUID",
        );
        check(
            "credentials",
            None,
            "needs 'credentials' field to be an object",
        );
        check(
            "credentials",
            Some(rawbson!({})),
            "must provide credentials",
        );
        let credentials = rawbson!({ "SCRAM-SHA-1": 1 });
        check(
            "credentials",
            Some(credentials),
            "SCRAM-SHA-1 credential must be an object",
        );
        let credentials = rawbson!({ "SCRAM-SHA-1": {} });
        check(
            "credentials",
            Some(credentials),
            "no valid field 'iterationCount'",
        );
        check("roles", None, "needs 'roles' field to be an array");
        check("roles", Some(rawbson!([1])), "Role name must be");
        check(
            "customData",
            Some(rawbson!(1)),
            "'customData' field must be an object",
        );
        check(
            "authenticationRestrictions",
            Some(rawbson!({})),
            "must be an array",
        );
        check(
            "authenticationRestrictions",
            Some(rawbson!([{}])),
            "At least one of",
        );
    }

    /// Whatever a field holds, the document is read or refused.
    #[test]
    fn no_document_does_harm() {
        let mut rng = Rng::new(5);
        let stored = stored();
        let names: Vec<&str> = elements(&stored).map(|(name, _)| name).collect();
        for _ in 0..500 {
            let name = rng.pick(&names);
            let value = pinion_bson::testing::value(&mut rng);
            match UserDefinition::parse(&with(name, Some(value))) {
                Ok(user) => drop(user.document()),
                Err(error) => assert_eq!(error.code, AccessErrorCode::UnsupportedFormat),
            }
            let _ = UserDefinition::parse(&pinion_bson::testing::document(&mut rng));
        }
    }
}
