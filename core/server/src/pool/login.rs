//! How this process proves to another one that it has a key of their set or cluster, and has that
//! one prove it too.
//!
//! Source: RFC 5802; as in MongoDB it is by SCRAM-SHA-256, as the user `__system` of `local`. While
//! keys are changed the other process may have a later key than the first one here, so each is
//! tried.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pinion_auth::{
    Challenge, ClientConversation, Hash, MEMBER_DATABASE, MEMBER_USER, MemberAuth, ScramError,
    Secrets, nonce_text,
};
use pinion_bson::{Binary, BinarySubtype, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::offload_bounded;
use pinion_wire::idl::truthy;
use pinion_wire::{Error, ErrorCode};

use crate::limits::{MAX_LOGIN_ITERATIONS, MAX_LOGINS};
use crate::remote::{Remote, RemoteError};

const NONCE_BYTES: usize = 24;

/// One attempt.
pub(super) struct Login {
    conversation: ClientConversation,
}

impl Login {
    pub(super) fn new() -> Result<Login, RemoteError> {
        let mut nonce = [0; NONCE_BYTES];
        pinion_runtime::os_random(&mut nonce);
        let conversation = ClientConversation::new(Hash::Sha256, MEMBER_USER, nonce_text(&nonce))
            .map_err(failed)?;
        Ok(Login { conversation })
    }

    fn start(&self) -> RawDocumentBuf {
        rawdoc! {
            "saslStart": 1,
            "mechanism": Hash::Sha256.mechanism(),
            "payload": binary(&self.conversation.first()),
            "options": { "skipEmptyExchange": true },
        }
    }

    /// What begins it within a hello.
    pub(super) fn speculative(&self) -> RawDocumentBuf {
        let mut start = self.start();
        start.append(pinion_bson::cstr!("db"), MEMBER_DATABASE);
        start
    }

    /// What begins it as a command.
    fn command(&self) -> RawDocumentBuf {
        let mut start = self.start();
        start.append(pinion_bson::cstr!("$db"), MEMBER_DATABASE);
        start
    }

    /// Continues behind the other side's first message.
    async fn continue_after(
        mut self,
        remote: &mut Remote,
        derived: &Derived,
        key: &str,
        first_reply: &RawDocument,
    ) -> Result<(), RemoteError> {
        let challenge = self.conversation.challenge(payload(first_reply)?);
        let challenge = challenge.map_err(failed)?;
        let secrets = derived.secrets(key, &challenge).await?;
        let proof = self.conversation.answer(&challenge, &secrets);
        let conversation = pinion_bson::get(first_reply, "conversationId");
        let id = conversation.and_then(pinion_wire::idl::i32_clamped);
        let mut sent = proof;
        let mut is_verified = false;
        // One that does not know how to leave out the last, empty message asks for it.
        for _ in 0..2 {
            let reply = remote
                .run(&rawdoc! {
                    "saslContinue": 1,
                    "conversationId": id.unwrap_or(1),
                    "payload": binary(&sent),
                    "$db": MEMBER_DATABASE,
                })
                .await?;
            if !is_verified {
                let last = payload(reply.body())?;
                self.conversation.verify(last).map_err(failed)?;
                is_verified = true;
            }
            if pinion_bson::get(reply.body(), "done").is_some_and(truthy) {
                return Ok(());
            }
            sent = String::new();
        }
        Err(RemoteError::Protocol(
            "the other side does not end the conversation".into(),
        ))
    }
}

/// Proves to have a key, on a connection whose hello has started that.
///
/// # Errors
/// `Refused` with `AuthenticationFailed` where either side does not have a key of the other's.
pub(super) async fn log_in(
    remote: &mut Remote,
    auth: &MemberAuth,
    derived: &Derived,
    speculative: Login,
    greeted: &RawDocument,
) -> Result<(), RemoteError> {
    let first_reply = match pinion_bson::get(greeted, "speculativeAuthenticate") {
        Some(RawBsonRef::Document(first_reply)) => Some((speculative, first_reply)),
        _ => None,
    };
    let mut first_reply = first_reply;
    let mut outcome = Ok(());
    for key in auth.keys.all() {
        outcome = match first_reply.take() {
            Some((login, first_reply)) => {
                login
                    .continue_after(remote, derived, key, first_reply)
                    .await
            }
            None => attempt(remote, derived, key).await,
        };
        match &outcome {
            Err(error) if is_refusal(error) => {}
            _ => return outcome,
        }
    }
    match outcome {
        // The other side has no key yet.
        Err(_) if auth.is_transition => Ok(()),
        outcome => outcome,
    }
}

async fn attempt(remote: &mut Remote, derived: &Derived, key: &str) -> Result<(), RemoteError> {
    let login = Login::new()?;
    let first_reply = remote.run(&login.command()).await?;
    login
        .continue_after(remote, derived, key, first_reply.body())
        .await
}

/// Whether the other side answered that it does not accept this process; the connection stays
/// usable.
fn is_refusal(error: &RemoteError) -> bool {
    let codes = [
        ErrorCode::AUTHENTICATION_FAILED,
        ErrorCode::MECHANISM_UNAVAILABLE,
    ];
    error
        .refusal()
        .is_some_and(|refusal| codes.contains(&refusal.code))
}

/// What the other side sent is not what one with the key would have sent.
fn failed(error: ScramError) -> RemoteError {
    let error = Error::new(ErrorCode::AUTHENTICATION_FAILED, error.to_string());
    RemoteError::Refused(Box::new(error))
}

fn binary(text: &str) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.as_bytes().to_vec(),
    }
}

fn payload(reply: &RawDocument) -> Result<&str, RemoteError> {
    let text = match pinion_bson::get(reply, "payload") {
        Some(RawBsonRef::Binary(binary)) => std::str::from_utf8(binary.bytes).ok(),
        Some(RawBsonRef::String(text)) => Some(text),
        _ => None,
    };
    text.ok_or_else(|| RemoteError::Protocol("a reply to saslStart has no payload".into()))
}

/// A key, a salt, and how often they are hashed.
type Derivation = (String, Vec<u8>, u32);

/// What was derived of the keys for other processes. Each of them has one salt as long as it runs.
#[derive(Default)]
pub(super) struct Derived(RefCell<BTreeMap<Derivation, Secrets>>);

impl Derived {
    async fn secrets(&self, key: &str, challenge: &Challenge) -> Result<Secrets, RemoteError> {
        let (salt, iterations) = (&challenge.salt, challenge.iterations);
        if iterations > MAX_LOGIN_ITERATIONS {
            return Err(RemoteError::Protocol(format!(
                "the other side asks for {iterations} iterations"
            )));
        }
        let named = (key.to_owned(), salt.clone(), iterations);
        let found = self.0.borrow().get(&named).cloned();
        if let Some(found) = found {
            return Ok(found);
        }
        let made = offload_bounded(|| Secrets::derive(Hash::Sha256, key, salt, iterations)).await;
        let mut known = self.0.borrow_mut();
        if known.len() >= MAX_LOGINS {
            known.clear();
        }
        known.insert(named, made.clone());
        Ok(made)
    }
}
