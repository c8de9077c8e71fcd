//! Look-up, counters, and the rules that hold before a handler.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pinion_bson::{RawDocumentBuf, rawdoc};

use super::*;
use crate::command::context::ClientInfo;
use crate::command::spec::CommandClass;
use crate::idl::GenericArguments;

static HELLO: CommandSpec = CommandSpec {
    aliases: &["isMaster", "ismaster"],
    in_api_v1: true,
    ..CommandSpec::of_task("hello")
};

static INSERT: CommandSpec = CommandSpec {
    class: CommandClass::Write,
    supports_write_concern: true,
    sequences: &["documents"],
    ..CommandSpec::of_task("insert")
};

static COUNT: CommandSpec = CommandSpec {
    class: CommandClass::Read,
    read_concern: ReadConcernSupport::NoSnapshot,
    ..CommandSpec::of_task("count")
};

static SHUTDOWN: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::of_task("shutdown")
};

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.attach(&HELLO, |_| async { Ok(Reply::new()) });
    registry.attach(&INSERT, |invocation| async move {
        let documents = invocation.documents("documents")?;
        let mut reply = Reply::new();
        reply.append("n", documents.len() as i32);
        Ok(reply)
    });
    registry.attach(&COUNT, |_| async { Ok(Reply::new()) });
    registry.attach(&SHUTDOWN, |_| async { Ok(Reply::new()) });
    registry
}

fn invocation(registry: &Registry, db: &str, body: RawDocumentBuf) -> Result<Invocation> {
    let message = Message::from_body(body);
    let command = registry.find(message.command_name())?.clone();
    let args = GenericArguments::parse(command.spec.name, message.body())?;
    let ctx = OpContext::new(
        1,
        Arc::new(ClientInfo::internal()),
        command.spec,
        db,
        args,
        0,
    );
    check_permitted(command.spec, &message, &ctx)?;
    Ok(Invocation {
        message,
        ctx,
        command,
        exhaust_allowed: false,
    })
}

fn run(invocation: Invocation) -> Result<Reply> {
    let command = invocation.command.clone();
    let mut future = command.invoke(invocation);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("the handler waits"),
    }
}

fn check_refused(db: &str, body: RawDocumentBuf, code: i32, message: &str) {
    let error = invocation(&registry(), db, body).err().expect("refused");
    assert_eq!((error.code.0, error.message.as_str()), (code, message));
}

#[test]
fn lookup() {
    let registry = registry();
    assert_eq!(registry.lookup("isMaster").unwrap().spec.name, "hello");
    assert!(registry.find("foo").is_err());
    assert_eq!(registry.unknown(), 1);
    assert_eq!(
        registry
            .iter()
            .map(|command| command.spec.name)
            .collect::<Vec<_>>(),
        ["hello", "insert", "count", "shutdown"]
    );
}

#[test]
fn refused_before_the_handler() {
    check_refused("test", rawdoc! { "foo": 1 }, 59, "no such command: 'foo'");
    check_refused("test", rawdoc! {}, 59, "no such command: ''");
    check_refused(
        "test",
        rawdoc! { "shutdown": 1 },
        13,
        "shutdown may only be run against the admin database.",
    );
    check_refused(
        "te st",
        rawdoc! { "hello": 1 },
        73,
        "Invalid database name specified 'te st'",
    );
    check_refused(
        "",
        rawdoc! { "hello": 1 },
        73,
        "Invalid database name specified ''",
    );
    check_refused(
        "test",
        rawdoc! { "hello": 1, "writeConcern": { "w": 1 } },
        72,
        "Command does not support writeConcern",
    );
    check_refused(
        "test",
        rawdoc! { "hello": 1, "readConcern": { "level": "majority" } },
        72,
        "Command hello does not support { readConcern: { level: \"majority\", provenance: \"clientSupplied\" } } \
         :: caused by :: read concern not supported",
    );
    for (body, allowed) in [
        (
            rawdoc! { "hello": 1, "readConcern": { "level": "local" } },
            true,
        ),
        (rawdoc! { "hello": 1, "readConcern": {} }, true),
        (
            rawdoc! { "count": 1, "readConcern": { "level": "linearizable" } },
            true,
        ),
        (
            rawdoc! { "count": 1, "readConcern": { "level": "snapshot" } },
            false,
        ),
    ] {
        assert_eq!(
            invocation(&registry(), "test", body.clone()).is_ok(),
            allowed,
            "{body:?}"
        );
    }
    let strict = rawdoc! { "insert": "c", "apiVersion": "1", "apiStrict": true };
    assert_eq!(
        invocation(&registry(), "test", strict)
            .err()
            .unwrap()
            .code
            .0,
        323
    );
    assert!(invocation(&registry(), "admin", rawdoc! { "shutdown": 1 }).is_ok());
}

#[test]
fn handlers_read_their_documents() {
    let registry = registry();
    let insert = |body| invocation(&registry, "test", body).and_then(run);
    assert!(
        insert(rawdoc! { "insert": "c", "documents": [{}, {}] })
            .unwrap()
            .contains("n")
    );
    let error = insert(rawdoc! { "insert": "c" }).unwrap_err();
    assert_eq!(
        (error.code.0, error.message.as_str()),
        (
            40414,
            "BSON field 'insert.documents' is missing but a required field"
        )
    );
}

#[test]
#[should_panic(expected = "has two handlers")]
fn a_name_has_one_handler() {
    static OTHER: CommandSpec = CommandSpec {
        aliases: &["ismaster"],
        ..CommandSpec::of_task("x")
    };
    registry().attach(&OTHER, |_| async { Ok(Reply::new()) });
}
