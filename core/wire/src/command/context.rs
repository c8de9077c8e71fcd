//! OpContext: what every operation carries along, to other cores and to other nodes.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pinion_auth::ResolvedUser;
use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;

use super::login::Login;
use super::spec::CommandSpec;
use super::work::OpWork;
use crate::error::{Error, ErrorCode, Result};
use crate::idl::{
    GenericArguments, Namespace, Path, ReadConcern, RoutingArguments, Types, wrong_type,
};
use crate::limits::{MAX_APP_NAME_BYTES, MAX_CLIENT_METADATA_BYTES};

/// The client that sent an operation. One for each connection, shared by its operations.
#[derive(Debug)]
pub struct ClientInfo {
    /// Counts from 1 through the life of the node; `connectionId` of hello and "conn7" in the log.
    pub connection_id: i32,
    /// `None` for work that the node started itself.
    pub remote: Option<SocketAddr>,
    pub local: Option<SocketAddr>,
    metadata: OnceLock<ClientMetadata>,
    /// It has authenticated as a member of this node's replica set.
    is_member: AtomicBool,
    /// The user that it has authenticated as.
    login: Login,
    /// Its hello says that another node opened the connection.
    says_internal: AtomicBool,
}

impl ClientInfo {
    pub fn new(connection_id: i32, remote: SocketAddr, local: SocketAddr) -> ClientInfo {
        ClientInfo {
            connection_id,
            remote: Some(remote),
            local: Some(local),
            metadata: OnceLock::new(),
            is_member: AtomicBool::new(false),
            login: Login::default(),
            says_internal: AtomicBool::new(false),
        }
    }

    /// The client of work that the node started itself.
    pub fn internal() -> ClientInfo {
        ClientInfo {
            connection_id: 0,
            remote: None,
            local: None,
            metadata: OnceLock::new(),
            is_member: AtomicBool::new(false),
            login: Login::default(),
            says_internal: AtomicBool::new(false),
        }
    }

    /// Whether the node started the work itself.
    pub fn is_internal(&self) -> bool {
        self.remote.is_none()
    }

    /// Whether the connection has authenticated as a member of this node's replica set.
    pub fn is_member(&self) -> bool {
        self.is_member.load(Ordering::Relaxed)
    }

    /// Makes it a member's, or a client's again.
    pub fn set_member(&self, is_member: bool) {
        self.is_member.store(is_member, Ordering::Relaxed);
    }

    /// The user that the connection is logged in as, as it was when it was last looked up.
    pub fn user(&self) -> Option<Arc<ResolvedUser>> {
        self.login.user()
    }

    /// The generation of that user; 0 where there is none.
    pub fn user_generation(&self) -> u64 {
        self.login.generation()
    }

    /// Makes it that of a user, or of none.
    ///
    /// # Panics
    /// If the generation of the user is 0.
    pub fn set_user(&self, user: Option<Arc<ResolvedUser>>) {
        self.login.set(user);
    }

    /// Whether the sender is the node itself, or a member that has authenticated.
    pub fn is_trusted(&self) -> bool {
        self.is_internal() || self.is_member()
    }

    /// Whether it says that it is a node, which any client may: nothing is permitted by that.
    pub fn says_internal(&self) -> bool {
        self.says_internal.load(Ordering::Relaxed)
    }

    /// Keeps that its hello had `internalClient`.
    pub fn set_says_internal(&self) {
        self.says_internal.store(true, Ordering::Relaxed);
    }

    /// What the client reported of itself in its first hello.
    pub fn metadata(&self) -> Option<&ClientMetadata> {
        self.metadata.get()
    }

    /// Keeps the client's metadata of a hello. It is sent once: later metadata is refused.
    pub fn set_metadata(&self, metadata: ClientMetadata) -> Result<()> {
        self.metadata.set(metadata).map_err(|_| {
            Error::new(
                ErrorCode::CLIENT_METADATA_CANNOT_BE_MUTATED,
                "The client metadata document may only be sent in the first hello",
            )
        })
    }

    pub fn app_name(&self) -> Option<&str> {
        self.metadata()
            .and_then(|metadata| metadata.app_name.as_deref())
    }
}

/// The `client` document of a hello, checked.
#[derive(Clone, Debug)]
pub struct ClientMetadata {
    pub document: RawDocumentBuf,
    pub app_name: Option<String>,
}

impl ClientMetadata {
    /// Checks the document as MongoDB does: its size, the application's name, and the fields of
    /// driver and operating system that must be there.
    pub fn parse(document: &RawDocument) -> Result<ClientMetadata> {
        let size = document.as_bytes().len();
        if size > MAX_CLIENT_METADATA_BYTES {
            return Err(Error::new(
                ErrorCode::CLIENT_METADATA_DOCUMENT_TOO_LARGE,
                format!(
                    "The client metadata document must be less then or equal to {MAX_CLIENT_METADATA_BYTES} bytes"
                ),
            ));
        }
        let root = Path::root("client");
        let missing = |message: &str| Error::new(ErrorCode::CLIENT_METADATA_MISSING_FIELD, message);
        let part = |name: &'static str| match pinion_bson::get(document, name) {
            None => Ok(None),
            Some(value) => match value.as_document() {
                Some(part) => Ok(Some(part)),
                None => Err(wrong_type(root.field(name), value, Types::OBJECT)),
            },
        };
        let text = |part: &RawDocument, name: &str| {
            pinion_bson::get(part, name).is_some_and(|v| v.as_str().is_some())
        };

        let mut app_name = None;
        if let Some(application) = part("application")?
            && let Some(value) = pinion_bson::get(application, "name")
        {
            let path = root.field("application");
            let name = value
                .as_str()
                .ok_or_else(|| wrong_type(path.field("name"), value, Types::STRING))?;
            if name.len() > MAX_APP_NAME_BYTES {
                return Err(Error::new(
                    ErrorCode::CLIENT_METADATA_APP_NAME_TOO_LARGE,
                    format!(
                        "The 'client.application.name' field must be less then or equal to {MAX_APP_NAME_BYTES} bytes in the client metadata document"
                    ),
                ));
            }
            app_name = Some(name.to_owned());
        }
        let driver = part("driver")?.ok_or_else(|| {
            missing("Missing required sub-document 'driver' in the client metadata document")
        })?;
        if !text(driver, "name") {
            return Err(missing(
                "Missing required field 'driver.name' in the client metadata document",
            ));
        }
        if !text(driver, "version") {
            return Err(missing(
                "Missing required field 'driver.version' in the client metadata document",
            ));
        }
        let os = part("os")?.ok_or_else(|| {
            missing("Missing required sub-document 'os' in the client metadata document")
        })?;
        if !text(os, "type") {
            return Err(missing(
                "Missing required field 'os.type' in the client metadata document",
            ));
        }
        Ok(ClientMetadata {
            document: document.to_owned(),
            app_name,
        })
    }
}

/// What an operation carries. It is cheap to clone and crosses cores; every clone is killed
/// together.
#[derive(Clone, Debug)]
pub struct OpContext {
    shared: Arc<OpShared>,
    /// What a statement of the operation does, where that is kept apart.
    statement: Option<Arc<OpWork>>,
    /// When the operation's time is up, in nanoseconds of the runtime's monotonic clock.
    pub deadline_ns: Option<u64>,
    /// What the operation reads: what it asked for, until the executor has completed that.
    pub read_concern: ReadConcern,
    /// The critical section that the operation is a part of: its changes of the catalog do not wait
    /// for that.
    pub critical_section: Option<NonZeroU64>,
    /// The namespace that a part of a command of several is about, where a router named its
    /// versions.
    pub routed: Option<Arc<RoutedNamespace>>,
}

/// A namespace of a command that names several, with the versions that a router goes by there.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedNamespace {
    pub ns: Namespace,
    pub versions: RoutingArguments,
}

/// The part of an OpContext that does not change, apart from the kill flag and the work.
#[derive(Debug)]
pub struct OpShared {
    /// `opid` of currentOp and killOp; unique in the node.
    pub op_id: i32,
    pub client: Arc<ClientInfo>,
    pub command: &'static CommandSpec,
    pub db: Box<str>,
    pub args: GenericArguments,
    /// When the operation started, in nanoseconds of the runtime's monotonic clock.
    pub started_ns: u64,
    work: OpWork,
    /// The code of the interruption, 0 while there is none.
    killed: AtomicI32,
    /// The timestamp of its last write, 0 while there is none.
    written_at: AtomicU64,
}

impl OpContext {
    /// The context of a command. `maxTimeMS` sets the deadline.
    pub fn new(
        op_id: i32,
        client: Arc<ClientInfo>,
        command: &'static CommandSpec,
        db: &str,
        args: GenericArguments,
        now_ns: u64,
    ) -> OpContext {
        let deadline_ns = deadline(&args, now_ns);
        let read_concern = args.read_concern.unwrap_or_default();
        let shared = OpShared {
            op_id,
            client,
            command,
            db: db.into(),
            args,
            started_ns: now_ns,
            work: OpWork::default(),
            killed: AtomicI32::new(0),
            written_at: AtomicU64::new(0),
        };
        OpContext {
            shared: Arc::new(shared),
            statement: None,
            deadline_ns,
            read_concern,
            critical_section: None,
            routed: None,
        }
    }

    /// Makes it the context of another operation with the same command, database and arguments,
    /// starting now.
    pub fn renew(&mut self, op_id: i32, now_ns: u64) {
        match Arc::get_mut(&mut self.shared) {
            Some(shared) => {
                shared.op_id = op_id;
                shared.started_ns = now_ns;
                shared.work = OpWork::default();
                *shared.killed.get_mut() = 0;
                *shared.written_at.get_mut() = 0;
            }
            // Somebody still looks at the operation before it.
            None => {
                self.shared = Arc::new(OpShared {
                    op_id,
                    client: self.client.clone(),
                    command: self.command,
                    db: self.db.clone(),
                    args: self.args.clone(),
                    started_ns: now_ns,
                    work: OpWork::default(),
                    killed: AtomicI32::new(0),
                    written_at: AtomicU64::new(0),
                });
            }
        }
        self.deadline_ns = deadline(&self.shared.args, now_ns);
    }

    /// The context of work that the node started itself.
    pub fn internal(op_id: i32, command: &'static CommandSpec, db: &str, now_ns: u64) -> OpContext {
        let client = Arc::new(ClientInfo::internal());
        OpContext::new(
            op_id,
            client,
            command,
            db,
            GenericArguments::default(),
            now_ns,
        )
    }

    /// What the operation has done so far.
    pub fn work(&self) -> &OpWork {
        self.statement.as_deref().unwrap_or(&self.shared.work)
    }

    /// The same operation, for a statement of it whose work is kept apart until [`OpWork::add`]
    /// takes it over.
    #[must_use]
    pub fn for_statement(&self) -> OpContext {
        OpContext {
            statement: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// The same operation with another deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline_ns: Option<u64>) -> OpContext {
        self.deadline_ns = deadline_ns;
        self
    }

    /// The part of the same operation that is about one of its namespaces.
    #[must_use]
    pub fn about(&self, ns: &Namespace, versions: RoutingArguments) -> OpContext {
        let routed = RoutedNamespace {
            ns: ns.clone(),
            versions,
        };
        OpContext {
            routed: Some(Arc::new(routed)),
            ..self.clone()
        }
    }

    /// The same operation as a part of a critical section.
    #[must_use]
    pub fn within(mut self, critical_section: NonZeroU64) -> OpContext {
        self.critical_section = Some(critical_section);
        self
    }

    /// The operation has written at this timestamp.
    pub fn wrote(&self, ts: Timestamp) {
        let written_at = &self.shared.written_at;
        written_at.fetch_max(ts.as_u64(), Ordering::Relaxed);
    }

    /// The timestamp of the last write that the operation has reported.
    pub fn written_at(&self) -> Option<Timestamp> {
        match self.shared.written_at.load(Ordering::Relaxed) {
            0 => None,
            ts => Some(Timestamp::from_u64(ts)),
        }
    }

    /// Interrupts the operation at its next check. The first interruption stays; false if there was
    /// one.
    pub fn kill(&self, code: ErrorCode) -> bool {
        assert_ne!(code.0, 0, "an interruption has a code");
        self.shared
            .killed
            .compare_exchange(0, code.0, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// The code the operation was killed with.
    pub fn killed(&self) -> Option<ErrorCode> {
        match self.shared.killed.load(Ordering::Relaxed) {
            0 => None,
            code => Some(ErrorCode(code)),
        }
    }

    /// Refuses when the operation was killed or its time is up. Long work calls this now and then.
    pub fn check(&self, now_ns: u64) -> Result<()> {
        if let Some(code) = self.killed() {
            return Err(interruption(code));
        }
        match self.deadline_ns {
            Some(deadline) if now_ns >= deadline => {
                Err(interruption(ErrorCode::MAX_TIME_MS_EXPIRED))
            }
            _ => Ok(()),
        }
    }

    /// The nanoseconds left until the deadline; `None` without one.
    pub fn remaining_ns(&self, now_ns: u64) -> Option<u64> {
        self.deadline_ns
            .map(|deadline| deadline.saturating_sub(now_ns))
    }
}

impl Deref for OpContext {
    type Target = OpShared;

    fn deref(&self) -> &OpShared {
        &self.shared
    }
}

/// When the time is up that its arguments give to an operation that starts now.
fn deadline(args: &GenericArguments, now_ns: u64) -> Option<u64> {
    match args.op_time_ms.or(args.max_time_ms) {
        None | Some(0) => None,
        Some(ms) => Some(now_ns.saturating_add(u64::from(ms) * 1_000_000)),
    }
}

/// The error of an operation that was interrupted with this code.
pub fn interruption(code: ErrorCode) -> Error {
    Error::new(
        code,
        match code {
            ErrorCode::MAX_TIME_MS_EXPIRED => "operation exceeded time limit",
            ErrorCode::INTERRUPTED_AT_SHUTDOWN => "interrupted at shutdown",
            ErrorCode::CLIENT_DISCONNECT => {
                "operation was interrupted because a client disconnected"
            }
            ErrorCode::CURSOR_KILLED => "operation was interrupted because its cursor was killed",
            _ => "operation was interrupted",
        },
    )
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    static FIND: CommandSpec = CommandSpec::of_task("find");

    fn context(max_time_ms: Option<u32>) -> OpContext {
        let args = GenericArguments {
            max_time_ms,
            ..GenericArguments::default()
        };
        OpContext::new(
            7,
            Arc::new(ClientInfo::internal()),
            &FIND,
            "test",
            args,
            1_000,
        )
    }

    #[test]
    fn contexts_cross_cores() {
        fn is_send<T: Send + Clone + 'static>(_: &T) {}
        is_send(&context(None));
    }

    #[test]
    fn deadlines() {
        assert!(context(None).check(u64::MAX).is_ok());
        assert!(context(Some(0)).check(u64::MAX).is_ok());
        let limited = context(Some(2));
        assert!(limited.check(2_000_999).is_ok());
        assert_eq!(limited.remaining_ns(1_000), Some(2_000_000));
        let error = limited.check(2_001_000).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (ErrorCode(50), "operation exceeded time limit")
        );
        assert!(limited.with_deadline(None).check(u64::MAX).is_ok());
    }

    #[test]
    fn the_first_kill_stays() {
        let op = context(None);
        let clone = op.clone();
        assert!(clone.kill(ErrorCode::INTERRUPTED));
        assert!(!op.kill(ErrorCode::CLIENT_DISCONNECT));
        assert_eq!(op.check(0).unwrap_err().code, ErrorCode::INTERRUPTED);
    }

    #[test]
    fn client_metadata() {
        let parse =
            |document: &RawDocument| ClientMetadata::parse(document).map_err(|error| error.code.0);
        let good = rawdoc! {
            "application": { "name": "app" },
            "driver": { "name": "d", "version": "1" }, "os": { "type": "Linux" },
        };
        assert_eq!(parse(&good).unwrap().app_name.as_deref(), Some("app"));
        assert_eq!(parse(&rawdoc! {}).unwrap_err(), 183);
        assert_eq!(
            parse(&rawdoc! { "driver": { "name": "d", "version": "1" } }).unwrap_err(),
            183
        );
        assert_eq!(parse(&rawdoc! { "driver": 1 }).unwrap_err(), 14);
        assert_eq!(
            parse(&rawdoc! { "application": { "name": "x".repeat(129) } }).unwrap_err(),
            184
        );
        assert_eq!(parse(&rawdoc! { "x": "x".repeat(600) }).unwrap_err(), 185);
        let client = ClientInfo::internal();
        let metadata = ClientMetadata::parse(&good).unwrap();
        assert!(client.set_metadata(metadata.clone()).is_ok());
        assert_eq!(client.set_metadata(metadata).unwrap_err().code.0, 186);
        assert_eq!(client.app_name(), Some("app"));
    }
}
