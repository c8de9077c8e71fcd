//! The conversations of the RFCs from both sides, and what either side does not take.

use super::*;

struct Example {
    hash: Hash,
    client_nonce: &'static str,
    server_nonce: &'static str,
    salt: &'static str,
    second: &'static str,
    last: &'static str,
}

/// RFC 5802, section 5, and RFC 7677, section 3: the user "user" with the password "pencil".
const EXAMPLES: [Example; 2] = [
    Example {
        hash: Hash::Sha1,
        client_nonce: "fyko+d2lbbFgONRv9qkxdawL",
        server_nonce: "3rfcNHYJY1ZVvWVs7j",
        salt: "QSXCR+Q6sek8bf92",
        second: "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        last: "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    },
    Example {
        hash: Hash::Sha256,
        client_nonce: "rOprNGfwEbeRWgbNEkqO",
        server_nonce: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        salt: "W22ZaJ0SNY7soEsUEjb6gQ==",
        second: "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        last: "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    },
];

impl Example {
    fn salt(&self) -> Vec<u8> {
        STANDARD.decode(self.salt).unwrap()
    }

    fn secrets(&self, password: &str) -> Secrets {
        Secrets::derive(self.hash, password, &self.salt(), 4096)
    }

    fn client(&self) -> ClientConversation {
        ClientConversation::new(self.hash, "user", self.client_nonce.into()).unwrap()
    }

    fn server(&self) -> (ServerConversation, String) {
        let first = ClientFirst::parse(&self.client().first()).unwrap();
        assert_eq!(first.user, "user");
        first.challenge(self.hash, self.server_nonce, &self.salt(), 4096)
    }
}

#[test]
fn the_conversations_of_the_rfcs() {
    for example in EXAMPLES {
        let mut client = example.client();
        let nonce = example.client_nonce;
        assert_eq!(client.first(), format!("n,,n=user,r={nonce}"));
        let (server, first) = example.server();
        let (added, salt) = (example.server_nonce, example.salt);
        assert_eq!(first, format!("r={nonce}{added},s={salt},i=4096"));
        let challenge = client.challenge(&first).unwrap();
        assert_eq!(
            (&challenge.salt, challenge.iterations),
            (&example.salt(), 4096)
        );
        let secrets = example.secrets("pencil");
        assert_eq!(client.answer(&challenge, &secrets), example.second);
        let last = server.finish(example.second, &[secrets]).unwrap();
        assert_eq!(last, example.last);
        client.verify(&last).unwrap();
        client.verify("v=AAAA").unwrap_err();
        client.verify("v=").unwrap_err();
        client.verify("e=other-error").unwrap_err();
    }
}

#[test]
fn any_of_several_passwords_is_taken() {
    for example in EXAMPLES {
        let known = ["old", "pencil"].map(|password| example.secrets(password));
        let (server, _) = example.server();
        let last = server.clone().finish(example.second, &known).unwrap();
        assert_eq!(last, example.last);
        server
            .clone()
            .finish(example.second, &known[..1])
            .unwrap_err();
        server.finish(example.second, &[]).unwrap_err();
    }
}

#[test]
fn users_authenticate_by_stored_credentials() {
    let user = crate::UserName::new("user", "admin");
    for hash in [Hash::Sha1, Hash::Sha256] {
        let salt = vec![9; hash.salt_bytes()];
        let stored = StoredCredentials::derive(hash, "pencil", &salt, MIN_ITERATIONS);
        let made_up = StoredCredentials::made_up(hash, b"secret", &user, MIN_ITERATIONS);
        let converse = |credentials: &StoredCredentials, password: &str| {
            let mut client = ClientConversation::new(hash, "user", "rOprNGfw".into()).unwrap();
            let first = ClientFirst::parse(&client.first()).unwrap();
            let (server, first) = first.challenge_of(credentials, "3rfcNHYJ");
            let challenge = client.challenge(&first).unwrap();
            let (salt, iterations) = (&challenge.salt, challenge.iterations);
            let secrets = Secrets::derive(hash, password, salt, iterations);
            let second = client.answer(&challenge, &secrets);
            let last = server.finish_of(&second, credentials)?;
            client.verify(&last)
        };
        converse(&stored, "pencil").unwrap();
        let wrong = converse(&stored, "pen").unwrap_err();
        // An unknown user is refused in the same words.
        assert_eq!(converse(&made_up, "pencil").unwrap_err(), wrong);
    }
}

#[test]
fn what_a_client_does_not_take() {
    let client = EXAMPLES[1].client();
    let nonce = EXAMPLES[1].client_nonce;
    let refused = |first: &str, why: &str| {
        let error = client.challenge(first).unwrap_err().to_string();
        assert!(error.contains(why), "{first}: {error}");
    };
    refused("r=other,s=QSXC,i=4096", "nonce");
    refused(&format!("r={nonce},s=QSXC,i=4096"), "nonce");
    refused(&format!("r={nonce}x,s=QSXC,i=4095"), "iterations");
    refused(&format!("r={nonce}x,s=QSXC,i=10000001"), "iterations");
    refused(&format!("r={nonce}x,s=QSXC,i=many"), "iterations");
    refused(&format!("r={nonce}x,s=??,i=4096"), "salt");
    refused(&format!("r={nonce}x,i=4096"), "'s='");
    refused(&format!("m=x,r={nonce}x,s=QSXC,i=4096"), "extension");
    refused("", "'r='");
    assert!(ClientConversation::new(Hash::Sha256, "ü", "n".into()).is_err());
}

#[test]
fn what_a_server_does_not_take() {
    for message in [
        "",
        "n",
        "n,",
        "n,,",
        "n,,n=user",
        "n,,n=,r=abcdef",
        "n,,user,r=abcdef",
        "n,,n=user,r=abc",
        "n,a=other,n=user,r=abcdef",
        "p=tls-unique,,n=user,r=abcdef",
        "n,,m=x,n=user,r=abcdef",
    ] {
        ClientFirst::parse(message).expect_err(message);
    }
    let first = ClientFirst::parse("y,a=a=3Db=2C,n=a=3Db=2C,r=abcdef").unwrap();
    assert_eq!(first.user, "a=b,");
    let example = &EXAMPLES[1];
    let secrets = [example.secrets("pencil")];
    let (server, _) = example.server();
    let second = example.second;
    for message in [
        "",
        ",p=",
        "c=biws,p=AAAA",
        &second.replace("p=dHz", "p=dHx"),
        &second.replace("p=dHzb", "p="),
        &second.replace("c=biws", "c=eSws"),
        &second.replace(",r=rOpr", ",r=rOpq"),
        &second.replace("p=dHz", "p=??"),
        &second.replace(",p=", ",x=y,p="),
    ] {
        let refused = server.clone().finish(message, &secrets);
        refused.expect_err(message);
    }
}

#[test]
fn secrets_do_not_show() {
    assert_eq!(format!("{:?}", EXAMPLES[0].secrets("p")), "Secrets(..)");
}
