//! The SCRAM conversations that other members have with this node, one for each connection.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use pinion_auth::{ClientFirst, Hash, ITERATIONS, ServerConversation, nonce_text};
use pinion_wire::ClientInfo;

use super::counts::Way;
use super::{MEMBER_DATABASE, MEMBER_USER};
use crate::members::{authentication_counts, member_access};

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
    is_speculative: bool,
    next: Next,
}

/// What the client is to send.
enum Next {
    Proof {
        conversation: ServerConversation,
        skips_empty: bool,
    },
    /// An empty message, which clients send that do not know how to leave it out.
    Empty,
}

/// The authentications under way on this core.
pub fn conversations() -> Rc<Conversations> {
    pinion_runtime::core_local()
}

impl Conversations {
    fn put(&self, client: &Arc<ClientInfo>, is_speculative: bool, next: Next) {
        let mut under_way = self.under_way.borrow_mut();
        under_way.retain(|_, other| other.client.strong_count() > 0);
        let client_of_it = Arc::downgrade(client);
        under_way.insert(
            client.connection_id,
            UnderWay {
                client: client_of_it,
                is_speculative,
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

/// What the server answers, and whether that was all.
pub struct Step {
    pub payload: String,
    pub is_done: bool,
}

/// Why a client is refused. Clients learn no more than that they are.
pub type Refused = String;

/// Begins a conversation; one that was under way on the connection ends.
///
/// # Errors
/// The user may not authenticate.
pub fn start(client: &Arc<ClientInfo>, request: &StartRequest<'_>) -> Result<Step, Refused> {
    conversations().take(client);
    let counts = authentication_counts();
    counts.received(request.mechanism, Way::Any);
    if request.is_speculative {
        counts.received(request.mechanism, Way::Speculative);
    }
    let first = ClientFirst::parse(request.payload).map_err(|error| error.to_string())?;
    if first.user != MEMBER_USER || request.database != MEMBER_DATABASE {
        let (user, database) = (&first.user, request.database);
        return Err(format!(
            "UserNotFound: Could not find user \"{user}\" for db \"{database}\""
        ));
    }
    counts.received(request.mechanism, Way::Cluster);
    let access = member_access().ok_or(
        "It is not possible to authenticate as the __system user on servers started without a --keyFile parameter",
    )?;
    if request.mechanism != Hash::Sha256 {
        return Err("members authenticate by SCRAM-SHA-256".into());
    }
    let mut nonce = [0; NONCE_BYTES];
    pinion_runtime::os_random(&mut nonce);
    let (conversation, payload) =
        first.challenge(Hash::Sha256, &nonce_text(&nonce), &access.salt, ITERATIONS);
    let next = Next::Proof {
        conversation,
        skips_empty: request.skips_empty,
    };
    let conversations = &conversations();
    conversations.put(client, request.is_speculative, next);
    Ok(Step {
        payload,
        is_done: false,
    })
}

/// Continues the conversation of a connection, which ends if that fails.
///
/// # Errors
/// The client did not prove to have a key.
pub fn continue_with(client: &Arc<ClientInfo>, payload: &str) -> Result<Step, Refused> {
    let none = "no conversation is under way";
    let under_way = conversations().take(client).ok_or(none)?;
    let is_speculative = under_way.is_speculative;
    let payload = match under_way.next {
        Next::Empty if payload.is_empty() => String::new(),
        Next::Empty => return Err("the last message of a client is empty".into()),
        Next::Proof {
            conversation,
            skips_empty,
        } => {
            let access = member_access();
            let secrets = match &access {
                Some(access) => &access.secrets[..],
                None => &[],
            };
            let proven = conversation.finish(payload, secrets);
            let payload = proven.map_err(|error| error.to_string())?;
            if !skips_empty {
                let conversations = &conversations();
                conversations.put(client, is_speculative, Next::Empty);
                return Ok(Step {
                    payload,
                    is_done: false,
                });
            }
            payload
        }
    };
    client.set_member(true);
    let counts = authentication_counts();
    // No client gets here by another mechanism, or as another user.
    counts.succeeded(Hash::Sha256, Way::Any);
    counts.succeeded(Hash::Sha256, Way::Cluster);
    if is_speculative {
        counts.succeeded(Hash::Sha256, Way::Speculative);
    }
    Ok(Step {
        payload,
        is_done: true,
    })
}
