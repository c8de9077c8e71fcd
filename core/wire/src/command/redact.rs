//! Commands as the log, the profiler, `currentOp` and errors show them: without passwords and
//! proofs.

use std::borrow::Cow;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};

/// What stands in the place of a secret, as in MongoDB.
const HIDDEN: &str = "xxx";

/// The arguments of a command that no place shows.
fn secrets(command: &str) -> &'static [&'static str] {
    match command {
        "createUser" | "updateUser" => &["pwd"],
        "saslStart" | "saslContinue" => &["payload"],
        "authenticate" => &["nonce", "key"],
        "hello" | "isMaster" => &["speculativeAuthenticate"],
        _ => &[],
    }
}

/// The body of a command as it is shown. `command` is the name of its row.
pub fn shown_body<'d>(command: &str, body: &'d RawDocument) -> Cow<'d, RawDocument> {
    let secrets = secrets(command);
    let is_secret = |name: &str| secrets.contains(&name);
    if !secrets
        .iter()
        .any(|name| pinion_bson::get(body, name).is_some())
    {
        return Cow::Borrowed(body);
    }
    let mut shown = DocBuilder::with_capacity(body.as_bytes().len());
    for (name, value) in pinion_bson::elements(body) {
        match is_secret(name) {
            true => shown.append(name, RawBsonRef::String(HIDDEN)),
            false => shown.append(name, value),
        };
    }
    Cow::Owned(shown.finish())
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let command = rawdoc! { "createUser": "u", "pwd": "secret", "roles": [] };
        let expected = rawdoc! { "createUser": "u", "pwd": "xxx", "roles": [] };
        assert_eq!(shown_body("createUser", &command).as_ref(), &*expected);
        // Of other commands the same field is an ordinary one.
        assert_eq!(shown_body("find", &command).as_ref(), &*command);
        let hello = rawdoc! { "hello": 1, "speculativeAuthenticate": { "payload": "n,,n=u" } };
        let expected = rawdoc! { "hello": 1, "speculativeAuthenticate": "xxx" };
        assert_eq!(shown_body("hello", &hello).as_ref(), &*expected);
        let without = rawdoc! { "updateUser": "u", "customData": {} };
        assert!(matches!(
            shown_body("updateUser", &without),
            Cow::Borrowed(_)
        ));
    }
}
