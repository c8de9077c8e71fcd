//! Messages written by hand, refused ones, and random mutations.

use pinion_bson::{RawDocumentBuf, rawdoc};

use super::*;
use crate::message::{Reply, ReplyFrame, encode_request, error_reply};

fn frame(opcode: OpCode, rest: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + rest.len()) as u32;
    let header = Header {
        length,
        request_id: 42,
        response_to: 0,
        opcode,
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(rest);
    bytes
}

fn op_msg(flags: u32, sections: &[Vec<u8>]) -> Vec<u8> {
    let mut rest = flags.to_le_bytes().to_vec();
    sections
        .iter()
        .for_each(|section| rest.extend_from_slice(section));
    frame(OpCode::MSG, &rest)
}

fn body(document: RawDocumentBuf) -> Vec<u8> {
    let mut section = vec![0];
    section.extend_from_slice(document.as_bytes());
    section
}

fn sequence(name: &str, documents: &[RawDocumentBuf]) -> Vec<u8> {
    let mut content = name.as_bytes().to_vec();
    content.push(0);
    documents
        .iter()
        .for_each(|document| content.extend_from_slice(document.as_bytes()));
    let mut section = vec![1];
    section.extend_from_slice(&(content.len() as i32 + 4).to_le_bytes());
    section.extend_from_slice(&content);
    section
}

fn op_query(namespace: &str, query: RawDocumentBuf) -> Vec<u8> {
    let mut rest = vec![0; 4];
    rest.extend_from_slice(namespace.as_bytes());
    rest.extend_from_slice(&[0; 9]);
    rest.extend_from_slice(query.as_bytes());
    frame(OpCode::QUERY, &rest)
}

fn parse(bytes: Vec<u8>) -> Result<Message, ParseError> {
    parse_message(Bytes::from(bytes))
}

fn check_refused(bytes: Vec<u8>, code: i32, close: bool, answered: bool) {
    let refused = parse(bytes).expect_err("refused");
    let seen = (
        refused.error.code.0,
        refused.close,
        refused.answer.is_some(),
    );
    assert_eq!(seen, (code, close, answered), "{}", refused.error);
}

#[test]
fn body_and_sequences() {
    let message = parse(op_msg(
        1 << 16,
        &[
            body(rawdoc! { "insert": "c", "$db": "test" }),
            sequence(
                "documents",
                &[rawdoc! { "_id": 1 }, rawdoc! { "_id": 2, "x": "y" }],
            ),
            sequence("other", &[]),
        ],
    ))
    .unwrap();
    assert_eq!(message.command_name(), "insert");
    assert_eq!(message.database().unwrap(), "test");
    assert_eq!(message.request_id(), 42);
    assert!(message.flags().has(Flags::EXHAUST_ALLOWED) && message.wants_reply());
    assert_eq!(
        message.sequence_names().collect::<Vec<_>>(),
        ["documents", "other"]
    );
    let documents = message.documents("documents").unwrap().unwrap();
    assert_eq!(documents.len(), 2);
    assert_eq!(documents.get(1).get_str("x").unwrap(), "y");
    assert_eq!(&documents.get_bytes(0)[..], rawdoc! { "_id": 1 }.as_bytes());
    assert!(message.documents("updates").unwrap().is_none());
}

#[test]
fn documents_in_the_body() {
    let message = parse(op_msg(
        0,
        &[body(
            rawdoc! { "insert": "c", "documents": [{ "a": 1 }, { "b": 2 }], "$db": "t" },
        )],
    ));
    let documents = message.unwrap().documents("documents").unwrap().unwrap();
    assert_eq!(documents.iter().count(), 2);
    assert_eq!(documents.get(1).get_i32("b").unwrap(), 2);
    let refuse = |document: RawDocumentBuf| {
        let message = parse(op_msg(0, &[body(document)])).unwrap();
        let error = message.documents("documents").unwrap_err();
        (error.code.0, error.message)
    };
    assert_eq!(
        refuse(rawdoc! { "insert": "c", "documents": [{}, 1] }),
        (
            14,
            "BSON field 'insert.documents.1' is the wrong type 'int', expected type 'object'"
                .into()
        )
    );
    assert_eq!(
        refuse(rawdoc! { "insert": "c", "documents": {} }),
        (
            14,
            "BSON field 'insert.documents' is the wrong type 'object', expected type 'array'"
                .into()
        )
    );
}

#[test]
fn database_is_required() {
    let message = parse(op_msg(0, &[body(rawdoc! { "ping": 1 })])).unwrap();
    assert_eq!(message.database().unwrap_err().code.0, 40571);
    let message = parse(op_msg(0, &[body(rawdoc! { "ping": 1, "$db": 1 })])).unwrap();
    assert_eq!(message.database().unwrap_err().code.0, 14);
}

#[test]
fn refused_messages() {
    let ping = || body(rawdoc! { "ping": 1 });
    check_refused(op_msg(0, &[]), 40587, false, true);
    check_refused(op_msg(0, &[ping(), ping()]), 40430, false, true);
    check_refused(op_msg(0, &[vec![2]]), 40432, false, true);
    check_refused(
        op_msg(0, &[ping(), sequence("a", &[]), sequence("a", &[])]),
        40431,
        false,
        true,
    );
    check_refused(
        op_msg(0, &[ping(), sequence("ping", &[])]),
        40433,
        false,
        true,
    );
    check_refused(op_msg(1 << 2, &[ping()]), 223, true, true);
    check_refused(op_msg(1 << 15, &[ping()]), 223, true, true);
    assert!(parse(op_msg(1 << 31, &[ping()])).is_ok());
    let many: Vec<Vec<u8>> = (0..=MAX_DOCUMENT_SEQUENCES)
        .map(|n| sequence(&format!("s{n}"), &[]))
        .collect();
    check_refused(op_msg(0, &many), 233, true, true);
    // Broken BSON is answered and the connection kept; a client that waits for nothing gets
    // nothing.
    check_refused(op_msg(0, &[vec![0, 5, 0, 0, 0, 1]]), 22, false, true);
    check_refused(op_msg(2, &[vec![0, 5, 0, 0, 0, 1]]), 22, false, false);
    check_refused(
        op_msg(0, &[vec![1, 200, 0, 0, 0, b'a', 0]]),
        15,
        false,
        true,
    );
    check_refused(
        op_msg(0, &[vec![1, 6, 0, 0, 0, b'a', b'b']]),
        15,
        false,
        true,
    );
    check_refused(frame(OpCode::MSG, &[0, 0]), 17, true, false);
    check_refused(frame(OpCode::INSERT, &[0; 20]), 17, true, false);
    check_refused(frame(OpCode(77), &[]), 17, true, false);
    check_refused(vec![0; 5], 17, true, false);
}

#[test]
fn checksums() {
    let document = rawdoc! { "ping": 1, "$db": "admin" };
    let good = encode_request(42, Flags::CHECKSUM_PRESENT, &document);
    let message = parse(good.to_vec()).unwrap();
    assert_eq!(message.body().as_bytes(), document.as_bytes());
    for at in HEADER_BYTES + 4..good.len() {
        let mut bad = good.to_vec();
        bad[at] ^= 1;
        check_refused(bad, 288, true, true);
    }
    // The reply carries one too, and it is right.
    let mut reply = Reply::new();
    reply.append("ok", 1.0);
    let bytes = reply.encode(ReplyFrame::answering(&message, 7));
    let parsed = parse_message(bytes.clone()).unwrap();
    assert!(parsed.flags().has(Flags::CHECKSUM_PRESENT));
    assert_eq!(Header::read(&bytes).unwrap().response_to, 42);
}

#[test]
fn legacy_handshake() {
    let message = parse(op_query(
        "admin.$cmd",
        rawdoc! { "isMaster": 1, "helloOk": true },
    ))
    .unwrap();
    assert_eq!(
        (message.command_name(), message.database().unwrap()),
        ("isMaster", "admin")
    );
    let wrapped = rawdoc! { "$query": { "hello": 1 }, "$readPreference": { "mode": "secondary" } };
    let message = parse(op_query("admin.$cmd", wrapped)).unwrap();
    assert_eq!(
        (message.kind(), message.command_name()),
        (MessageKind::OpQuery, "hello")
    );

    let mut reply = Reply::new();
    reply.append("ok", 1.0);
    let bytes = reply.encode(ReplyFrame::answering(&message, 9));
    let header = Header::read(&bytes).unwrap();
    assert_eq!(
        (header.opcode, header.length as usize),
        (OpCode::REPLY, bytes.len())
    );
    assert_eq!(&bytes[16..20], &8i32.to_le_bytes());
    assert_eq!(&bytes[20..32], &[0; 12]);
    assert_eq!(&bytes[32..36], &1i32.to_le_bytes());
    assert_eq!(&bytes[36..], rawdoc! { "ok": 1.0 }.as_bytes());

    check_refused(
        op_query("admin.$cmd", rawdoc! { "find": 1 }),
        352,
        false,
        true,
    );
    check_refused(op_query("test.c", rawdoc! {}), 5739101, false, true);
    check_refused(frame(OpCode::QUERY, &[0; 4]), 17, true, false);
    check_refused(
        frame(OpCode::QUERY, &[0, 0, 0, 0, b'a', b'b']),
        17,
        true,
        false,
    );
}

#[test]
fn error_replies() {
    let error = Error::new(ErrorCode::DUPLICATE_KEY, "E11000 duplicate")
        .with_extra(rawdoc! { "keyPattern": { "_id": 1 } })
        .with_label(crate::labels::RETRYABLE_WRITE);
    let message = Message::from_body(rawdoc! { "insert": 1 });
    let bytes = error_reply(
        &error,
        &[
            crate::labels::RETRYABLE_WRITE,
            crate::labels::NO_WRITES_PERFORMED,
        ],
    )
    .encode(ReplyFrame::answering(&message, 1));
    let expected = rawdoc! {
        "ok": 0.0, "errmsg": "E11000 duplicate", "code": 11000, "codeName": "DuplicateKey",
        "keyPattern": { "_id": 1 }, "errorLabels": ["RetryableWriteError", "NoWritesPerformed"],
    };
    assert_eq!(parse_message(bytes).unwrap().body(), &*expected);
}

#[test]
fn mutations_never_panic() {
    let mut random = 0x1234_5678_9abc_def1u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let seeds = [
        op_msg(
            0,
            &[
                body(
                    rawdoc! { "insert": "c", "$db": "test", "a": [1, { "b": "c" }], "lsid": { "id": 1 } },
                ),
                sequence(
                    "documents",
                    &[rawdoc! { "_id": 1 }, rawdoc! { "_id": 2, "x": "y" }],
                ),
            ],
        ),
        op_query(
            "admin.$cmd",
            rawdoc! { "isMaster": 1, "client": { "driver": { "name": "x" } } },
        ),
        encode_request(
            42,
            Flags::CHECKSUM_PRESENT,
            &rawdoc! { "ping": 1, "$db": "admin" },
        )
        .to_vec(),
    ];
    let mut accepted = 0;
    for round in 0..60_000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..=next() % 4 {
            let at = next() as usize % bytes.len();
            match next() % 4 {
                0 => bytes[at] = next() as u8,
                1 => bytes[at] ^= 1 << (next() % 8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, next() as u8),
            }
        }
        // Most mutants get a true length, so that they come past the first check.
        if next() % 4 != 0 && bytes.len() >= 4 {
            let length = bytes.len() as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        if let Ok(message) = parse(bytes) {
            accepted += 1;
            let _ = message.database();
            let _ = message.command_name();
            let _ = crate::idl::GenericArguments::parse(message.command_name(), message.body());
            if let Ok(Some(documents)) = message.documents("documents") {
                assert!(
                    documents
                        .iter()
                        .all(|document| document.as_bytes().len() >= 5)
                );
            }
        }
    }
    assert!(accepted > 1000, "the mutants die too early: {accepted}");
    for length in 0..400 {
        let bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        let _ = parse(bytes);
    }
}
