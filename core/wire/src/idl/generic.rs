//! The arguments every command takes, parsed once by the dispatcher.

use pinion_bson::{
    BinarySubtype, DocBuilder, RawBinaryRef, RawBson, RawBsonRef, RawDocument, raw_elements,
};
use pinion_clock::{KeyId, SignedTime};

use super::concern::{ReadConcern, WriteConcern, parse_read_concern, parse_write_concern};
use super::errors::{Path, Types, out_of_bounds, wrong_type};
use super::numbers::{i64_exact, is_number};
use super::read_preference::{ReadPreference, parse_read_preference};
use super::reader::{FieldReader, uuid_of};
use super::routing::RoutingArguments;
use crate::error::{Error, ErrorCode, Result};

/// The digest of the user that sessions have whose client is no user: SHA-256 of nothing.
pub const NO_USER: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// The name of a logical session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsid {
    pub id: [u8; 16],
    /// The digest of the user, where a node sends the session of its client on.
    pub uid: Option<[u8; 32]>,
    /// That of an internal transaction, which servers run for the session of `id` and `uid`.
    pub child: Option<ChildSession>,
}

/// What distinguishes the session of an internal transaction from its parent, for which the
/// transaction is run.
///
/// Source: sharding document, "Logical Sessions".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildSession {
    /// The number of the parent's retryable write that the transaction executes; `None` if it is
    /// none of a retryable write.
    pub txn_number: Option<i64>,
    pub txn_uuid: [u8; 16],
}

impl Lsid {
    /// The session of a client.
    pub fn of_client(id: [u8; 16], uid: Option<[u8; 32]>) -> Lsid {
        Lsid {
            id,
            uid,
            child: None,
        }
    }

    /// The session that it is a child of; itself if it is none.
    pub fn parent(&self) -> Lsid {
        Lsid::of_client(self.id, self.uid)
    }

    /// The number of the parent's retryable write that is executed in this session.
    pub fn retryable_number(&self) -> Option<i64> {
        self.child?.txn_number
    }
}

/// Stable API parameters. Version 1 is the only one there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiParameters {
    pub version_1: bool,
    pub strict: bool,
    pub deprecation_errors: bool,
}

/// The generic arguments of one command.
#[derive(Clone, Debug, Default)]
pub struct GenericArguments {
    pub lsid: Option<Lsid>,
    pub txn_number: Option<i64>,
    pub autocommit: Option<bool>,
    pub start_transaction: bool,
    pub read_concern: Option<ReadConcern>,
    pub write_concern: Option<WriteConcern>,
    pub read_preference: Option<ReadPreference>,
    /// `None` or 0: no limit.
    pub max_time_ms: Option<u32>,
    /// `maxTimeMSOpOnly`: the limit of this operation alone, which another server sets beside that
    /// of its client.
    pub op_time_ms: Option<u32>,
    pub comment: Option<Box<RawBson>>,
    pub cluster_time: Option<SignedTime>,
    /// The reply carries what this member knows of the set to another member: `$replData`, and
    /// `$oplogQueryData`.
    pub asks_repl_data: bool,
    pub asks_oplog_query_data: bool,
    /// What routers send along.
    pub routing: Option<Box<RoutingArguments>>,
    /// What a collection stores is to be read, and not what it shows.
    pub raw_data: bool,
    pub api: ApiParameters,
    /// The command is to describe itself, and not to run.
    pub help: bool,
}

/// True for a field that every command takes, so that no command's own reader refuses it.
pub fn is_generic_argument(name: &str) -> bool {
    is_generic_name(name.as_bytes())
}

pub(super) fn is_generic_name(name: &[u8]) -> bool {
    // Every name begins with one of these letters, which settles most fields of most commands at
    // once.
    match name.first() {
        Some(b'$') => matches!(
            name,
            b"$db"
                | b"$readPreference"
                | b"$clusterTime"
                | b"$audit"
                | b"$client"
                | b"$configServerState"
                | b"$oplogQueryData"
                | b"$queryOptions"
                | b"$replData"
                | b"$configTime"
                | b"$topologyTime"
                | b"$tenant"
        ),
        Some(b'a'..=b'd' | b'h' | b'l' | b'm' | b'r'..=b't' | b'w') => matches!(
            name,
            b"lsid"
                | b"txnNumber"
                | b"autocommit"
                | b"startTransaction"
                | b"startOrContinueTransaction"
                | b"readConcern"
                | b"writeConcern"
                | b"maxTimeMS"
                | b"maxTimeMSOpOnly"
                | b"comment"
                | b"apiVersion"
                | b"apiStrict"
                | b"apiDeprecationErrors"
                | b"help"
                | b"clientOperationKey"
                | b"stmtId"
                | b"txnRetryCounter"
                | b"allowImplicitCollectionCreation"
                | b"databaseVersion"
                | b"shardVersion"
                | b"tracking_info"
                | b"coordinator"
                | b"mayBypassWriteBlocking"
                | b"rawData"
        ),
        _ => false,
    }
}

impl GenericArguments {
    /// Reads the generic arguments of a command's body; what belongs to the command is passed over.
    pub fn parse(command: &str, body: &RawDocument) -> Result<GenericArguments> {
        let mut found = GenericArguments::default();
        let mut api_version_given = false;
        let command = Path::root(command);
        // The first element is the command itself, whose name is no generic argument.
        for elem in raw_elements(body).skip(1) {
            if elem.name == b"$db" || !is_generic_name(elem.name) {
                continue;
            }
            let (Some(name), Some(value)) = (elem.name_str(), elem.to_value()) else {
                continue;
            };
            if matches!(value, RawBsonRef::Null | RawBsonRef::Undefined) {
                continue;
            }
            let path = command.field(name);
            match name {
                "$replData" => found.asks_repl_data = true,
                "$oplogQueryData" => found.asks_oplog_query_data = true,
                "rawData" => found.raw_data = boolean(path, value)?,
                "lsid" => found.lsid = Some(parse_lsid(object(path, value)?)?),
                "txnNumber" => match value {
                    RawBsonRef::Int64(n) => found.txn_number = Some(n),
                    _ => return Err(wrong_type(path, value, Types::LONG)),
                },
                "autocommit" => found.autocommit = Some(boolean(path, value)?),
                "startTransaction" => found.start_transaction = boolean(path, value)?,
                "txnRetryCounter" => return Err(refused_counter(path, value)),
                "startOrContinueTransaction" => {
                    boolean(path, value)?;
                    return Err(of_sharded(name));
                }
                "readConcern" => {
                    found.read_concern = Some(parse_read_concern(object(path, value)?)?)
                }
                "writeConcern" => {
                    found.write_concern = Some(parse_write_concern(object(path, value)?)?)
                }
                "$readPreference" => {
                    found.read_preference = Some(parse_read_preference(object(path, value)?)?)
                }
                "maxTimeMS" => found.max_time_ms = Some(parse_max_time_ms(path, value)?),
                "maxTimeMSOpOnly" => found.op_time_ms = Some(parse_op_time_ms(path, value)?),
                "comment" => found.comment = Some(Box::new(value.into())),
                "$clusterTime" => {
                    found.cluster_time = Some(parse_cluster_time(object(path, value)?)?)
                }
                "apiVersion" => {
                    api_version_given = true;
                    let RawBsonRef::String(version) = value else {
                        return Err(wrong_type(path, value, Types::STRING));
                    };
                    if version != "1" {
                        return Err(Error::new(
                            ErrorCode::API_VERSION_ERROR,
                            format!("API version must be \"1\", found: \"{version}\""),
                        ));
                    }
                    found.api.version_1 = true;
                }
                "apiStrict" => found.api.strict = boolean(path, value)?,
                "apiDeprecationErrors" => found.api.deprecation_errors = boolean(path, value)?,
                "help" => found.help = super::truthy(value),
                "$client" | "$audit" => object(path, value).map(|_| ())?,
                "clientOperationKey" => uuid_of(path, value).map(|_| ())?,
                name if RoutingArguments::NAMES.contains(&name) => {
                    let routing = found.routing.get_or_insert_default();
                    routing.take(name, path, value)?;
                }
                // What has no meaning here, whatever it is.
                _ => {}
            }
        }
        if !api_version_given && (found.api.strict || found.api.deprecation_errors) {
            return Err(Error::new(
                ErrorCode(4_886_600),
                "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
            ));
        }
        found.check_session()?;
        Ok(found)
    }

    /// The rules between `lsid`, `txnNumber`, `autocommit` and `startTransaction` that hold on
    /// every topology.
    fn check_session(&self) -> Result<()> {
        let refuse = |message: &str| Err(Error::new(ErrorCode::INVALID_OPTIONS, message));
        if self.txn_number.is_some() && self.lsid.is_none() {
            return refuse("Transaction number requires a session ID to also be specified");
        }
        if self.txn_number.is_some_and(|number| number < 0) {
            return refuse("Transaction number cannot be negative");
        }
        if self.autocommit.is_some() && self.txn_number.is_none() {
            return refuse("'autocommit' field requires a transaction number to also be specified");
        }
        if self.autocommit == Some(true) {
            return refuse("Specifying autocommit=true is not allowed.");
        }
        if self.start_transaction && self.autocommit.is_none() {
            return refuse(
                "'startTransaction' field requires 'autocommit' field to also be specified",
            );
        }
        Ok(())
    }
}

/// What routers send to shards alone.
fn of_sharded(name: &str) -> Error {
    let what = format!("{name} is only supported in sharded clusters");
    Error::new(ErrorCode::INVALID_OPTIONS, what)
}

fn refused_counter(path: Path<'_>, value: RawBsonRef<'_>) -> Error {
    match value {
        RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_) => {
            of_sharded("txnRetryCounter")
        }
        other => wrong_type(path, other, Types::INT),
    }
}

fn object<'d>(path: Path<'_>, value: RawBsonRef<'d>) -> Result<&'d RawDocument> {
    match value {
        RawBsonRef::Document(document) => Ok(document),
        other => Err(wrong_type(path, other, Types::OBJECT)),
    }
}

fn boolean(path: Path<'_>, value: RawBsonRef<'_>) -> Result<bool> {
    match value {
        RawBsonRef::Boolean(b) => Ok(b),
        other => Err(wrong_type(path, other, Types::BOOL)),
    }
}

fn parse_lsid(document: &RawDocument) -> Result<Lsid> {
    // What drivers send: { id: <UUID> } alone.
    let mut fields = raw_elements(document);
    if let (Some(id), None) = (fields.next(), fields.next())
        && id.name == b"id"
        && let Some(RawBsonRef::Binary(binary)) = id.to_value()
        && binary.subtype == BinarySubtype::Uuid
        && let Ok(id) = binary.bytes.try_into()
    {
        return Ok(Lsid::of_client(id, None));
    }
    let reader = FieldReader::object(Path::root("lsid"), document)?;
    read_lsid(&reader)
}

/// Reads the name of a session, as clients and servers send it. Other fields are refused.
///
/// # Errors
/// Those of the fields; `InvalidOptions` where it says for which write it is, and not which of
/// those it is.
pub fn read_lsid(reader: &FieldReader<'_, '_>) -> Result<Lsid> {
    reader.only(&["id", "uid", "txnNumber", "txnUUID"])?;
    let id = reader
        .opt_uuid("id")?
        .ok_or_else(|| super::missing_field(reader.path().field("id")))?;
    let uid = match reader.opt_binary("uid")? {
        None => None,
        Some(bytes) => Some(bytes.try_into().map_err(|_| {
            Error::new(
                ErrorCode::UNSUPPORTED_FORMAT,
                "Unsupported SHA256Block hash length",
            )
        })?),
    };
    let child = match (reader.opt_long("txnNumber")?, reader.opt_uuid("txnUUID")?) {
        (Some(txn_number), Some(_)) if txn_number < 0 => {
            return Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                "Transaction number cannot be negative",
            ));
        }
        (txn_number, Some(txn_uuid)) => Some(ChildSession {
            txn_number,
            txn_uuid,
        }),
        (None, None) => None,
        (Some(_), None) => {
            return Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                "Cannot specify txnNumber in lsid without specifying txnUUID",
            ));
        }
    };
    Ok(Lsid { id, uid, child })
}

/// Appends a session's name.
pub fn append_lsid(out: &mut DocBuilder, name: &str, lsid: &Lsid) {
    let binary = |out: &mut DocBuilder, name, subtype, bytes| {
        out.append(name, RawBsonRef::Binary(RawBinaryRef { subtype, bytes }));
    };
    out.start_document(name);
    binary(out, "id", BinarySubtype::Uuid, &lsid.id);
    if let Some(uid) = &lsid.uid {
        binary(out, "uid", BinarySubtype::Generic, uid);
    }
    if let Some(child) = &lsid.child {
        if let Some(number) = child.txn_number {
            out.append("txnNumber", number);
        }
        binary(out, "txnUUID", BinarySubtype::Uuid, &child.txn_uuid);
    }
    out.end();
}

/// Reads `$clusterTime`.
///
/// # Errors
/// Those of its fields.
pub fn parse_cluster_time(document: &RawDocument) -> Result<SignedTime> {
    let reader = FieldReader::object(Path::root("$clusterTime"), document)?;
    let time = reader
        .opt_timestamp("clusterTime")?
        .ok_or_else(|| super::missing_field(reader.path().field("clusterTime")))?;
    let mut signed = SignedTime::unsigned(time);
    // A node without keys gossips without a signature, and clients hand that on.
    if let Some(signature) = reader.opt_object("signature")? {
        if let Some(hash) = signature.opt_binary("hash")? {
            signed.proof = hash.try_into().map_err(|_| {
                Error::new(
                    ErrorCode::UNSUPPORTED_FORMAT,
                    "Unsupported SHA1Block hash length",
                )
            })?;
        }
        signed.key_id = KeyId(signature.opt_i64("keyId")?.unwrap_or(0));
    }
    Ok(signed)
}

/// Appends `$clusterTime` in the form in which it is gossiped.
pub fn append_cluster_time(builder: &mut DocBuilder, signed: &SignedTime) {
    let time = pinion_bson::Timestamp {
        time: signed.time.secs(),
        increment: signed.time.inc(),
    };
    let hash = RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes: &signed.proof,
    };
    builder
        .start_document("$clusterTime")
        .append("clusterTime", RawBsonRef::Timestamp(time));
    builder.start_document("signature");
    builder
        .append("hash", RawBsonRef::Binary(hash))
        .append("keyId", signed.key_id.0);
    builder.end().end();
}

/// The most of `maxTimeMS`.
const MAX_TIME_MS: u32 = i32::MAX as u32;
/// What servers add to the time of their client for the way of its reply.
const OP_TIME_PADDING_MS: u32 = 100;

/// `maxTimeMS`: a whole number within 0 and 2^31 - 1; 0 is no limit.
pub(crate) fn parse_max_time_ms(path: Path<'_>, value: RawBsonRef<'_>) -> Result<u32> {
    milliseconds("maxTimeMS", path, value, MAX_TIME_MS)
}

/// `maxTimeMSOpOnly`, likewise.
fn parse_op_time_ms(path: Path<'_>, value: RawBsonRef<'_>) -> Result<u32> {
    let most = MAX_TIME_MS + OP_TIME_PADDING_MS;
    milliseconds("maxTimeMSOpOnly", path, value, most)
}

fn milliseconds(name: &str, path: Path<'_>, value: RawBsonRef<'_>, most: u32) -> Result<u32> {
    if !is_number(value) {
        return Err(wrong_type(path, value, Types::NUMBER));
    }
    let n = whole_number(name, value)?;
    if n < 0 {
        return Err(out_of_bounds(name, ">=", 0, n));
    }
    let within = u32::try_from(n).ok().filter(|n| *n <= most);
    within.ok_or_else(|| {
        Error::bad_value(format!("{n} value for {name} is out of range [0, {most}]"))
    })
}

/// A number that must be whole and fit 64 bits.
pub(super) fn whole_number(name: &str, value: RawBsonRef<'_>) -> Result<i64> {
    let shown = match value {
        RawBsonRef::Double(n) => n.to_string(),
        RawBsonRef::Decimal128(n) => n.to_string(),
        _ => String::new(),
    };
    i64_exact(value).ok_or_else(|| {
        Error::failed_to_parse(if shown.contains("NaN") {
            format!("Expected an integer, but found NaN in: {name}: {shown}")
        } else if shown.to_ascii_lowercase().contains("inf") {
            format!("Cannot represent as a 64-bit integer: {name}: {shown}")
        } else {
            format!("Expected an integer: {name}: {shown}")
        })
    })
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Binary, Bson, RawDocumentBuf, rawdoc};
    use pinion_clock::Timestamp;

    use super::super::ReadPreferenceMode;
    use super::*;

    fn uuid() -> Binary {
        Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![7; 16],
        }
    }

    fn check(document: RawDocumentBuf, expected: (i32, &str)) {
        let error = GenericArguments::parse("find", &document).expect_err("refused");
        assert_eq!(
            (error.code.0, error.message.as_str()),
            expected,
            "{document:?}"
        );
    }

    fn read(document: RawDocumentBuf) -> GenericArguments {
        GenericArguments::parse("find", &document)
            .unwrap_or_else(|error| panic!("{document:?}: {error}"))
    }

    #[test]
    fn accepted() {
        let args = read(rawdoc! {
            "find": "c", "$db": "test", "maxTimeMS": 5.0, "comment": [1], "readConcern": { "level": "local" },
            "lsid": { "id": uuid() }, "apiVersion": "1", "$readPreference": { "mode": "nearest" },
            "$clusterTime": {
                "clusterTime": pinion_bson::Timestamp { time: 9, increment: 2 },
                "signature": { "hash": Binary { subtype: BinarySubtype::Generic, bytes: vec![3; 20] }, "keyId": 4i64 },
            },
        });
        assert_eq!(args.max_time_ms, Some(5));
        assert_eq!(args.lsid, Some(Lsid::of_client([7; 16], None)));
        assert!(args.api.version_1 && !args.api.strict);
        assert!(args.comment.is_some());
        let preference = args.read_preference.map(|preference| preference.mode);
        assert_eq!(preference, Some(ReadPreferenceMode::Nearest));
        let signed = SignedTime {
            time: Timestamp::new(9, 2),
            proof: [3; 20],
            key_id: KeyId(4),
        };
        assert_eq!(args.cluster_time, Some(signed));
        let mut builder = DocBuilder::new();
        builder.append("find", 1);
        append_cluster_time(&mut builder, &signed);
        assert_eq!(read(builder.finish()).cluster_time, Some(signed));
        assert_eq!(
            read(rawdoc! { "find": "c", "maxTimeMS": RawBson::Null }).max_time_ms,
            None
        );
        let child = |lsid: RawDocumentBuf| read(rawdoc! { "find": "c", "lsid": lsid }).lsid;
        let of_write = child(rawdoc! { "id": uuid(), "txnNumber": 5i64, "txnUUID": uuid() });
        let expected = ChildSession {
            txn_number: Some(5),
            txn_uuid: [7; 16],
        };
        assert_eq!(of_write.and_then(|lsid| lsid.child), Some(expected));
        assert_eq!(of_write.map(|lsid| lsid.parent()), args.lsid);
        let alone = child(rawdoc! { "id": uuid(), "txnUUID": uuid() }).expect("a session");
        assert_eq!(
            (alone.child.is_some(), alone.retryable_number()),
            (true, None)
        );
        // The command's own field may bear the name of a generic argument.
        read(rawdoc! { "comment": 1 });
    }

    #[test]
    fn refused() {
        check(
            rawdoc! { "find": 1, "lsid": 1 },
            (
                14,
                "BSON field 'find.lsid' is the wrong type 'int', expected type 'object'",
            ),
        );
        check(
            rawdoc! { "find": 1, "lsid": {} },
            (
                40414,
                "BSON field 'lsid.id' is missing but a required field",
            ),
        );
        let of_sharded = |name: &str| format!("{name} is only supported in sharded clusters");
        check(
            rawdoc! { "find": 1, "lsid": { "id": uuid() }, "txnNumber": 1i64, "autocommit": false, "txnRetryCounter": 0 },
            (72, &of_sharded("txnRetryCounter")),
        );
        check(
            rawdoc! { "find": 1, "startOrContinueTransaction": true },
            (72, &of_sharded("startOrContinueTransaction")),
        );
        check(
            rawdoc! { "find": 1, "startOrContinueTransaction": 1 },
            (
                14,
                "BSON field 'find.startOrContinueTransaction' is the wrong type 'int', expected type 'bool'",
            ),
        );
        check(
            rawdoc! { "find": 1, "lsid": { "id": uuid(), "txnNumber": 1i64 } },
            (
                72,
                "Cannot specify txnNumber in lsid without specifying txnUUID",
            ),
        );
        check(
            rawdoc! { "find": 1, "txnNumber": 1, "lsid": { "id": uuid() } },
            (
                14,
                "BSON field 'find.txnNumber' is the wrong type 'int', expected type 'long'",
            ),
        );
        check(
            rawdoc! { "find": 1, "txnNumber": 1i64 },
            (
                72,
                "Transaction number requires a session ID to also be specified",
            ),
        );
        check(
            rawdoc! { "find": 1, "writeConcern": "x" },
            (
                14,
                "BSON field 'find.writeConcern' is the wrong type 'string', expected type 'object'",
            ),
        );
        check(
            rawdoc! { "find": 1, "clientOperationKey": 1 },
            (
                14,
                "BSON field 'find.clientOperationKey' is the wrong type 'int', expected type 'binData'",
            ),
        );
        check(
            rawdoc! { "find": 1, "$configTime": true },
            (
                14,
                "BSON field 'find.$configTime' is the wrong type 'bool', expected type 'timestamp'",
            ),
        );
        check(
            rawdoc! { "find": 1, "$client": "x" },
            (
                14,
                "BSON field 'find.$client' is the wrong type 'string', expected type 'object'",
            ),
        );
        check(
            rawdoc! { "find": 1, "maxTimeMSOpOnly": 2_147_483_748i64 },
            (
                2,
                "2147483748 value for maxTimeMSOpOnly is out of range [0, 2147483747]",
            ),
        );
        check(
            rawdoc! { "find": 1, "apiVersion": "2" },
            (322, "API version must be \"1\", found: \"2\""),
        );
        check(
            rawdoc! { "find": 1, "apiStrict": true },
            (
                4886600,
                "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
            ),
        );
    }

    #[test]
    fn max_time_ms() {
        let with = |value: Bson| rawdoc! { "find": 1, "maxTimeMS": pinion_bson::RawBson::try_from(value).unwrap() };
        check(
            with(Bson::String("x".into())),
            (
                14,
                "BSON field 'find.maxTimeMS' is the wrong type 'string', expected types '[long, int, decimal, double']",
            ),
        );
        check(
            with(Bson::Int32(-1)),
            (
                2,
                "BSON field 'maxTimeMS' value must be >= 0, actual value '-1'",
            ),
        );
        check(
            with(Bson::Int64(2_147_483_648)),
            (
                2,
                "2147483648 value for maxTimeMS is out of range [0, 2147483647]",
            ),
        );
        check(
            with(Bson::Double(1.5)),
            (9, "Expected an integer: maxTimeMS: 1.5"),
        );
        check(
            with(Bson::Double(f64::NAN)),
            (9, "Expected an integer, but found NaN in: maxTimeMS: NaN"),
        );
        check(
            with(Bson::Double(f64::INFINITY)),
            (9, "Cannot represent as a 64-bit integer: maxTimeMS: inf"),
        );
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        assert_eq!(read(with(decimal("50E2"))).max_time_ms, Some(5000));
        assert_eq!(read(with(Bson::Double(-0.0))).max_time_ms, Some(0));
        assert_eq!(read(with(decimal("-0E+10"))).max_time_ms, Some(0));
        assert!(GenericArguments::parse("find", &with(decimal("Infinity"))).is_err());
    }
}
