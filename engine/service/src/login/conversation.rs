//! The SCRAM conversations that clients and other members have with this node, one for each
//! connection.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use pinion_auth::{
    ClientFirst, Hash, ITERATIONS, MEMBER_DATABASE, MEMBER_USER, ResolvedUser, ServerConversation,
    StoredCredentials, UserName, nonce_text,
};
use pinion_wire::{ClientInfo, Error, ErrorCode};

use super::counts::{Way, authentication_counts};
use super::directory::{is_admitted, user_directory};
use super::made_up::made_up_credentials;
use crate::members::member_access;
use crate::parameters::parameters;

/// Random bytes of a nonce: MongoDB's.
const NONCE_BYTES: usize = 24;

/// The conversations of one core's connections.
#[derive(Default)]
pub struct Conversations {
    under_way: RefCell<BTreeMap<i32, UnderWay>>,
}

struct UnderWay {
    /// Whose it is. Those of connections that are gone are dropped with the next one that begins.
    client: Weak<ClientInfo>,
    about: About,
    next: Next,
}

/// What an attempt is, as the log shows it.
#[derive(Clone, Debug)]
pub struct About {
    pub mechanism: Hash,
    /// It came with a hello.
    pub is_speculative: bool,
    pub user: UserName,
}

impl About {
    /// Whether it is as a member of the set.
    pub fn is_of_member(&self) -> bool {
        (&*self.user.user, &*self.user.db) == (MEMBER_USER, MEMBER_DATABASE)
    }
}

/// Whom a client wants to be.
enum Subject {
    Member,
    User {
        /// `None` if there is none that could authenticate so.
        known: Option<Arc<ResolvedUser>>,
        /// Made up where there is none.
        credentials: StoredCredentials,
    },
}

/// What the client is to send.
enum Next {
    Proof {
        conversation: ServerConversation,
        subject: Subject,
        skips_empty: bool,
    },
    /// An empty message, which clients send that do not know how to leave it out.
    Empty(Option<Arc<ResolvedUser>>),
}

/// The authentications under way on this core.
pub fn conversations() -> Rc<Conversations> {
    pinion_runtime::core_local()
}

impl Conversations {
    fn put(&self, client: &Arc<ClientInfo>, about: About, next: Next) {
        let mut under_way = self.under_way.borrow_mut();
        under_way.retain(|_, other| other.client.strong_count() > 0);
        let client_of_it = Arc::downgrade(client);
        under_way.insert(
            client.connection_id,
            UnderWay {
                client: client_of_it,
                about,
                next,
            },
        );
    }

    fn take(&self, client: &ClientInfo) -> Option<UnderWay> {
        self.under_way.borrow_mut().remove(&client.connection_id)
    }

    /// Whether this connection is in the midst of one.
    pub fn is_under_way(&self, client: &ClientInfo) -> bool {
        self.under_way.borrow().contains_key(&client.connection_id)
    }
}

/// What begins a conversation.
pub struct StartRequest<'m> {
    pub mechanism: Hash,
    pub database: &'m str,
    pub payload: &'m str,
    pub skips_empty: bool,
    /// It came with a hello.
    pub is_speculative: bool,
}

/// What the server answers.
pub struct Step {
    pub payload: String,
    /// As whom the connection is logged in now, if that was all.
    pub done: Option<About>,
}

/// Why a client is refused.
pub enum Refused {
    /// Clients learn no more than that they are; the log has the reason.
    Failed { about: Option<About>, why: String },
    /// It is no matter of who they are: they learn the reason.
    Error(Error),
}

fn failed(about: &About, why: impl Into<String>) -> Refused {
    Refused::Failed {
        about: Some(about.clone()),
        why: why.into(),
    }
}

/// Begins a conversation; one that was under way on the connection ends.
///
/// # Errors
/// The client may not authenticate so.
pub async fn start(client: &Arc<ClientInfo>, request: &StartRequest<'_>) -> Result<Step, Refused> {
    conversations().take(client);
    let hash = request.mechanism;
    let counts = authentication_counts();
    counts.received(hash, Way::Any);
    if request.is_speculative {
        counts.received(hash, Way::Speculative);
    }
    let first = ClientFirst::parse(request.payload).map_err(|error| Refused::Failed {
        about: None,
        why: error.to_string(),
    })?;
    let about = About {
        mechanism: hash,
        is_speculative: request.is_speculative,
        user: UserName::new(&*first.user, request.database),
    };
    let mut nonce = [0; NONCE_BYTES];
    pinion_runtime::os_random(&mut nonce);
    let nonce = nonce_text(&nonce);
    let (conversation, payload, subject) = match about.is_of_member() {
        true => {
            counts.received(hash, Way::Cluster);
            let (conversation, payload) = challenge_member(first, &about, &nonce)?;
            (conversation, payload, Subject::Member)
        }
        false => {
            check_enabled(hash)?;
            let (known, credentials) = find_user(&about).await?;
            let (conversation, payload) = first.challenge_of(&credentials, &nonce);
            (conversation, payload, Subject::User { known, credentials })
        }
    };
    let next = Next::Proof {
        conversation,
        subject,
        skips_empty: request.skips_empty,
    };
    conversations().put(client, about, next);
    Ok(Step {
        payload,
        done: None,
    })
}

fn challenge_member(
    first: ClientFirst,
    about: &About,
    nonce: &str,
) -> Result<(ServerConversation, String), Refused> {
    let access = member_access().ok_or_else(|| {
        failed(
            about,
            "It is not possible to authenticate as the __system user on servers started without a \
             --keyFile parameter",
        )
    })?;
    if about.mechanism != Hash::Sha256 {
        return Err(failed(about, "members authenticate by SCRAM-SHA-256"));
    }
    Ok(first.challenge(Hash::Sha256, nonce, access.salt(), ITERATIONS))
}

/// Refuses a mechanism that users cannot authenticate by.
fn check_enabled(hash: Hash) -> Result<(), Refused> {
    match parameters().borrow().mechanisms.has(hash) {
        true => Ok(()),
        false => Err(Refused::Error(not_enabled(hash.mechanism()))),
    }
}

/// The error for a mechanism that is not enabled, or that there is not.
pub(crate) fn not_enabled(mechanism: &str) -> Error {
    Error::new(
        ErrorCode::MECHANISM_UNAVAILABLE,
        format!("Received authentication for mechanism {mechanism} which is not enabled"),
    )
}

/// The user and its credentials. Credentials are made up in either case, so that it takes the same
/// time to find none.
async fn find_user(
    about: &About,
) -> Result<(Option<Arc<ResolvedUser>>, StoredCredentials), Refused> {
    let (hash, name) = (about.mechanism, &about.user);
    let absent = || failed(about, format!("UserNotFound: {}", name.not_found().message));
    let made_up = made_up_credentials(hash, name).ok_or_else(absent)?;
    let directory = user_directory().ok_or_else(absent)?;
    let found = directory.find(name).await.map_err(Refused::Error)?;
    let found = found.and_then(|user| {
        let credentials = user.credentials(hash).cloned()?;
        Some((user, credentials))
    });
    Ok(match found {
        Some((user, credentials)) => (Some(user), credentials),
        None => (None, made_up),
    })
}

/// Continues the conversation of a connection, which ends if that fails.
///
/// # Errors
/// The client did not prove to be whom it wants to be, or may not be that on this connection.
pub fn continue_with(client: &Arc<ClientInfo>, payload: &str) -> Result<Step, Refused> {
    let under_way = conversations().take(client);
    let UnderWay { about, next, .. } = under_way.ok_or_else(|| Refused::Failed {
        about: None,
        why: "no conversation is under way".into(),
    })?;
    let (payload, user) = match next {
        Next::Empty(user) if payload.is_empty() => (String::new(), user),
        Next::Empty(_) => return Err(failed(&about, "the last message of a client is empty")),
        Next::Proof {
            conversation,
            subject,
            skips_empty,
        } => {
            let (payload, user) = check_proof(client, &about, conversation, subject, payload)?;
            if !skips_empty {
                conversations().put(client, about, Next::Empty(user));
                return Ok(Step {
                    payload,
                    done: None,
                });
            }
            (payload, user)
        }
    };
    log_in(client, &about, user)?;
    Ok(Step {
        payload,
        done: Some(about),
    })
}

/// Checks the client's proof: the last message to the client, and the user that it is.
fn check_proof(
    client: &ClientInfo,
    about: &About,
    conversation: ServerConversation,
    subject: Subject,
    payload: &str,
) -> Result<(String, Option<Arc<ResolvedUser>>), Refused> {
    let (proven, known) = match subject {
        Subject::Member => {
            let access = member_access();
            let secrets = access.as_ref().map_or(&[][..], |access| access.secrets());
            (conversation.finish(payload, secrets), None)
        }
        Subject::User { known, credentials } => {
            let proven = conversation.finish_of(payload, &credentials);
            if known.is_none() {
                let why = format!("UserNotFound: {}", about.user.not_found().message);
                return Err(failed(about, why));
            }
            (proven, known)
        }
    };
    let payload = proven.map_err(|error| failed(about, error.to_string()))?;
    if let Some(user) = &known
        && !is_admitted(client, user)
    {
        let why = "AuthenticationFailed: unmet authentication restrictions";
        return Err(failed(about, why));
    }
    Ok((payload, known))
}

/// MongoDB's codes of a second user on a connection: of another database, and of the same one.
const SECOND_DATABASE: ErrorCode = ErrorCode(5_626_701);
const SECOND_USER: ErrorCode = ErrorCode(5_626_702);

/// The connection is that of a user, or of a member where there is no user, from here on.
fn log_in(
    client: &ClientInfo,
    about: &About,
    user: Option<Arc<ResolvedUser>>,
) -> Result<(), Refused> {
    let before = match (client.user(), client.is_member()) {
        (Some(user), _) => Some(user.name().clone()),
        (None, true) => Some(UserName::new(MEMBER_USER, MEMBER_DATABASE)),
        (None, false) => None,
    };
    if let Some(before) = before {
        check_same(&before, &about.user)?;
    }
    match user {
        Some(user) => client.set_user(Some(user)),
        None => client.set_member(true),
    }
    let counts = authentication_counts();
    counts.succeeded(about.mechanism, Way::Any);
    if about.is_of_member() {
        counts.succeeded(about.mechanism, Way::Cluster);
    }
    if about.is_speculative {
        counts.succeeded(about.mechanism, Way::Speculative);
    }
    Ok(())
}

/// A connection may authenticate again as the same user.
fn check_same(before: &UserName, user: &UserName) -> Result<(), Refused> {
    if before == user {
        tracing::warn!(target: "ACCESS", id = 5_626_700u64, user = %user, "Client has attempted to reauthenticate as a single user");
        return Ok(());
    }
    let error = match before.db == user.db {
        false => Error::new(
            SECOND_DATABASE,
            format!(
                "Each client connection may only be authenticated once. Previously authenticated \
                 as: {before}"
            ),
        ),
        true => Error::new(
            SECOND_USER,
            format!(
                "Client has attempted to authenticate on multiple databases.Already authenticated \
                 as: {before}"
            ),
        ),
    };
    Err(Refused::Error(error))
}
