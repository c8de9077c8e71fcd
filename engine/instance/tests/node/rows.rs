//! Every command against the rules that its row decides, as a client meets them. The lists are
//! written by hand, so that a change of a row has to be stated here too.

use pinion_bson::{Document, doc};
use pinion_runtime::core_local;
use pinion_wire::{CommandSpec, Registry};

use crate::harness::{Client, with_node};
use crate::retryable::{become_primary, session_id};
use crate::transactions::statement;

const IN_TRANSACTIONS: [&str; 15] = [
    "abortTransaction",
    "aggregate",
    "bulkWrite",
    "commitTransaction",
    "create",
    "createIndexes",
    "delete",
    "distinct",
    "find",
    "findAndModify",
    "getMore",
    "insert",
    "killCursors",
    "prepareTransaction",
    "update",
];

const RETRYABLE: [&str; 5] = ["bulkWrite", "delete", "findAndModify", "insert", "update"];

const EXPLAINED: [&str; 7] = [
    "aggregate",
    "count",
    "delete",
    "distinct",
    "find",
    "findAndModify",
    "update",
];

/// The commands of the node. There are many, or the test would show nothing.
fn commands() -> Vec<&'static CommandSpec> {
    let registry = core_local::<Registry>();
    let commands: Vec<_> = registry.iter().map(|command| command.spec).collect();
    assert!(commands.len() > 100, "{}", commands.len());
    commands
}

/// What a command that has only this body is refused with: code and text.
async fn refusal(client: &Client, spec: &CommandSpec, body: Document) -> (i32, String) {
    let db = match spec.admin_only {
        true => "admin",
        false => "test",
    };
    let reply = client.at(db).run(body).await;
    let code = reply.get_i32("code");
    let text = reply.get_str("errmsg").unwrap_or_default().to_owned();
    let code = code.unwrap_or_else(|_| panic!("{} answered {reply}", spec.name));
    (code, text)
}

#[test]
fn commands_in_transactions() {
    with_node(1260, 1, 1, |client| async move {
        become_primary().await;
        for spec in commands() {
            let name = spec.name;
            // The transaction is not there, so what may be in one is refused for that.
            let body = statement(1, 1, doc! { name: 1 });
            let (code, text) = refusal(&client, spec, body).await;
            let refused = format!("Cannot run '{name}' in a multi-document transaction.");
            let expected = !IN_TRANSACTIONS.contains(&name);
            assert_eq!(
                text.starts_with(&refused),
                expected,
                "{name}: {code} {text}"
            );
            assert!(!expected || code == 263, "{name}: {code} {text}");
            assert_eq!(text.contains("transaction-count"), name == "count");
        }
    });
}

#[test]
fn commands_with_a_transaction_number() {
    with_node(1261, 1, 1, |client| async move {
        become_primary().await;
        for spec in commands() {
            let name = spec.name;
            let body = doc! { name: 1, "lsid": session_id(1), "txnNumber": 1_i64 };
            let (code, text) = refusal(&client, spec, body).await;
            let expected = !RETRYABLE.contains(&name);
            assert_eq!(code == 50768, expected, "{name}: {code} {text}");
        }
    });
}

#[test]
fn commands_that_are_explained() {
    with_node(1262, 1, 1, |client| async move {
        for spec in commands() {
            for name in std::iter::once(&spec.name).chain(spec.aliases) {
                let reply = client.run(doc! { "explain": { *name: 1 } }).await;
                let text = reply.get_str("errmsg").unwrap_or_default();
                let refused = text == format!("Cannot explain cmd: {name}");
                let expected = !EXPLAINED.contains(&spec.name);
                assert_eq!(refused, expected, "{name}: {reply}");
            }
        }
        let unknown = client.fails(doc! { "explain": { "nothing": 1 } }, 59).await;
        assert!(unknown.contains("unknown command: nothing"), "{unknown}");
    });
}
