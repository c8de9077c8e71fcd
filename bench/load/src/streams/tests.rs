//! Streams of a stub server: what is counted, and what must not be believed.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::{Plan, invalid, measure, options, plan};
use crate::protocol::bson;
use crate::run::tests::alone;

/// What the stub's streams deliver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Right,
    /// The second stream has two events in another order.
    Swapped,
    /// One event never comes.
    Lost,
    /// One event comes a second time in the place of the next.
    Twice,
    /// One value is another.
    OtherValue,
}

/// What all connections of the stub share: the documents that were inserted, in their order.
#[derive(Default)]
struct Log {
    documents: Mutex<Vec<Vec<u8>>>,
    grown: Condvar,
}

fn start(manner: Manner) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let log = Arc::new(Log::default());
    std::thread::spawn(move || {
        let streams = Arc::new(Mutex::new(0));
        for stream in listener.incoming() {
            let (log, streams, stream) = (Arc::clone(&log), Arc::clone(&streams), stream.unwrap());
            // The measurement closes its connections: an error is the end.
            std::thread::spawn(move || serve(stream, manner, &log, &streams));
        }
    });
    port
}

fn serve(
    mut stream: TcpStream,
    manner: Manner,
    log: &Log,
    streams: &Mutex<i64>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // Of each stream: where it is, and whether its fault is done.
    let mut positions: HashMap<i64, (usize, bool)> = HashMap::new();
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut message = vec![0; u32::from_le_bytes(length) as usize - 4];
        stream.read_exact(&mut message)?;
        let request = u32::from_le_bytes(*message.first_chunk().unwrap());
        let body = &message[17..];
        let length = u32::from_le_bytes(*body.first_chunk().unwrap()) as usize;
        let (body, sections) = body.split_at(length);
        let command = bson::Elements::new(body).unwrap().next().unwrap();
        let mut reply = Vec::new();
        match command.name {
            b"insert" => {
                // Kind, length and name of the sequence stand before its document.
                let document = sections[1 + 4 + b"documents\0".len()..].to_vec();
                log.documents.lock().unwrap().push(document);
                log.grown.notify_all();
                bson::document(&mut reply, |out| {
                    bson::int32(out, "n", 1);
                    bson::int32(out, "ok", 1);
                });
            }
            b"aggregate" => {
                let mut number = streams.lock().unwrap();
                *number += 1;
                positions.insert(*number, (0, false));
                batch(&mut reply, "firstBatch", *number, &[]);
            }
            b"getMore" => {
                let id = i64::from_le_bytes(*command.value.first_chunk().unwrap());
                let (position, spoiled) = positions.get_mut(&id).unwrap();
                let documents = log.documents.lock().unwrap();
                let wait = Duration::from_millis(50);
                let (documents, _) = log
                    .grown
                    .wait_timeout_while(documents, wait, |all| all.len() < *position + 20)
                    .unwrap();
                // By tens, so that a fault's two events come in one.
                let end = if documents.len() >= *position + 20 {
                    *position + 10
                } else {
                    documents.len()
                };
                let mut events = documents[*position..end].to_vec();
                spoil(manner, id, spoiled, &mut events);
                *position = end;
                drop(documents);
                batch(&mut reply, "nextBatch", id, &events);
            }
            _ => bson::document(&mut reply, |out| {
                bson::string(out, "version", "stub");
                bson::int32(out, "ok", 1);
            }),
        }
        let mut out = Vec::new();
        for word in [21 + reply.len() as u32, 0, request, 2013, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.push(0);
        out.extend_from_slice(&reply);
        stream.write_all(&out)?;
    }
}

/// Does the fault in the first batch that has events enough; another value is in every event.
fn spoil(manner: Manner, id: i64, spoiled: &mut bool, events: &mut Vec<Vec<u8>>) {
    if manner == Manner::OtherValue {
        for document in events {
            // The last byte but the document's end is its value's.
            let at = document.len() - 2;
            document[at] ^= 1;
        }
        return;
    }
    if events.len() < 3 || std::mem::replace(spoiled, true) {
        return;
    }
    match manner {
        Manner::Swapped if id == 2 => events.swap(0, 1),
        Manner::Lost => drop(events.remove(1)),
        Manner::Twice => events[1] = events[0].clone(),
        Manner::Right | Manner::Swapped | Manner::OtherValue => {}
    }
}

fn batch(out: &mut Vec<u8>, name: &str, id: i64, documents: &[Vec<u8>]) {
    bson::document(out, |out| {
        bson::nested(out, "cursor", |out| {
            bson::int64(out, "id", id);
            bson::array(out, name, |out| {
                for (place, document) in documents.iter().enumerate() {
                    bson::nested(out, &place.to_string(), |out| {
                        bson::string(out, "operationType", "insert");
                        out.extend_from_slice(b"\x03fullDocument\0");
                        out.extend_from_slice(document);
                        let key = bson::get(document, "_id").unwrap();
                        bson::nested(out, "documentKey", |out| {
                            bson::string(out, "_id", &key.text())
                        });
                    });
                }
            });
        });
        bson::int32(out, "ok", 1);
    });
}

fn planned(manner: Manner, given: &str) -> Plan {
    let port = start(manner);
    let line = format!(
        "streams --uri mongodb://127.0.0.1:{port} --duration 0.5 --warm-up 0 --drain 1 {given}"
    );
    plan(
        &options()
            .try_get_matches_from(line.split_whitespace())
            .unwrap(),
    )
    .unwrap()
}

#[test]
fn each_event_of_each_stream_is_counted_once() {
    let _alone = alone();
    // More writes on their way than a batch has: the stub holds events back for those that are
    // still to come.
    let plan = planned(Manner::Right, "--streams 3 --writers 2 --ahead 100");
    let (server, measured) = measure(&plan).unwrap();
    assert!(server.contains("version stub"), "{server}");
    assert_eq!(invalid(&plan, &measured), [""; 0]);
    assert!(measured.writes > 0 && measured.events > 0 && measured.compared > 0);
    // What came after the end is delivered all the same, and not counted.
    assert!(
        measured.events <= 3 * (measured.writes + 2),
        "{} events, {} writes",
        measured.events,
        measured.writes
    );
    assert_eq!(measured.latency_ns.len(), measured.events);
}

#[test]
fn a_rate_of_writes_is_held() {
    let _alone = alone();
    let plan = planned(Manner::Right, "--streams 2 --writers 4 --target 200");
    let (_, measured) = measure(&plan).unwrap();
    assert!(measured.writes <= 101, "{}", measured.writes);
    assert!(measured.writes > 0);
    let more = planned(Manner::Right, "--streams 1 --writers 1 --target 9000000");
    let (_, measured) = measure(&more).unwrap();
    let why = invalid(&more, &measured);
    assert!(
        why.len() == 1 && why[0].contains("do not hold the rate"),
        "{why:?}"
    );
}

fn check_invalid(manner: Manner, streams: usize, what: &str) {
    let plan = planned(manner, &format!("--streams {streams} --writers 4"));
    let (_, measured) = measure(&plan).unwrap();
    let why = invalid(&plan, &measured);
    assert!(why.iter().any(|why| why.contains(what)), "{what}: {why:?}");
}

#[test]
fn what_streams_deliver_wrong_is_found() {
    let _alone = alone();
    check_invalid(Manner::Swapped, 2, "where another stream has");
    check_invalid(Manner::Lost, 1, "were not delivered");
    check_invalid(Manner::Twice, 1, "was told twice");
    check_invalid(Manner::OtherValue, 1, "a value that was not written");
}
