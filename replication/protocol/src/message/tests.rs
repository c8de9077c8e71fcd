//! Messages go through BSON and come back, and what is not one is refused.

use pinion_bson::{DocBuilder, JsonMode, ObjectId, RawDocument, rawdoc, to_extended_json};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_wire::{MemberState, Result};

use super::*;
use crate::config::{Config, ConfigVersion, HostPort};

fn at(secs: u32, term: i64) -> OpTimeAndWallTime {
    let optime = OpTime::new(Timestamp::new(secs, 1), Term(term));
    OpTimeAndWallTime::new(optime, i64::from(secs) * 1000)
}

fn config_id(version: i64, term: i64) -> ConfigVersion {
    ConfigVersion { version, term }
}

fn heartbeat() -> HeartbeatRequest {
    HeartbeatRequest {
        set_name: "rs".into(),
        check_empty: true,
        config: config_id(3, 2),
        sender: Some(HostPort::new("a", 1)),
        sender_id: Some(0),
        term: Term(5),
        primary_id: None,
    }
}

fn response() -> HeartbeatResponse {
    let config = rawdoc! { "_id": "rs", "version": 4, "members": [{ "_id": 0, "host": "a:1" }] };
    HeartbeatResponse {
        set_name: Some("rs".into()),
        state: Some(MemberState::Primary),
        election_time: Some(Timestamp::new(9, 9)),
        has_data: Some(true),
        config_version: 4,
        config_term: -1,
        config: Some(Config::parse(&config).unwrap()),
        term: Term(6),
        primary_id: Some(2),
        sync_source: Some(HostPort::new("b", 2)),
        applied: at(7, 6),
        durable: at(8, 6),
        written: None,
        electable: Some(false),
        primary_silent_ms: Some(1_600),
    }
}

fn metadata() -> ReplSetMetadata {
    ReplSetMetadata {
        term: Term(6),
        last_committed: at(3, 6),
        last_visible: at(4, 6).optime,
        config: config_id(4, 6),
        replica_set_id: Some(ObjectId::from_bytes([7; 12])),
        primary_index: Some(1),
        sync_source_index: None,
        is_primary: false,
    }
}

fn votes() -> VoteRequest {
    VoteRequest {
        set_name: "rs".into(),
        dry_run: true,
        term: Term(6),
        candidate_index: 1,
        config: config_id(4, 6),
        last_written: at(4, 6).optime,
    }
}

fn position() -> UpdatePosition {
    let position = MemberPosition {
        member_id: 2,
        config_version: 4,
        applied: at(4, 6),
        durable: at(5, 6),
        written: Some(at(7, 6)),
    };
    UpdatePosition {
        positions: vec![position],
        metadata: Some(metadata()),
    }
}

#[test]
fn requests_come_back() {
    let body = Request::Heartbeat(heartbeat()).to_bson();
    assert_eq!(HeartbeatRequest::parse(&body).unwrap(), heartbeat());
    let body = Request::Votes(votes()).to_bson();
    assert_eq!(VoteRequest::parse(&body).unwrap(), votes());
    let body = Request::Position(position()).to_bson();
    assert_eq!(UpdatePosition::parse(&body).unwrap(), position());
    let body = Request::StepUp { skip_dry_run: true }.to_bson();
    assert!(parse_step_up(&body).unwrap());
}

#[test]
fn replies_come_back() {
    assert_eq!(
        HeartbeatResponse::parse(&response().to_bson()).unwrap(),
        response()
    );
    let vote = VoteResponse {
        term: Term(3),
        granted: false,
        reason: "no".into(),
    };
    assert_eq!(VoteResponse::parse(&vote.to_bson()).unwrap(), vote);
    let mut out = DocBuilder::new();
    metadata().append_to(&mut out);
    let query = OplogQueryMetadata {
        last_committed: at(3, 6),
        last_applied: at(4, 6).optime,
        rollback_id: 2,
        primary_index: Some(0),
        sync_source_index: Some(1),
        sync_source: Some(HostPort::new("b", 2)),
    };
    query.append_to(&mut out);
    let reply = out.finish();
    assert_eq!(
        ReplSetMetadata::of_message(&reply).unwrap(),
        Some(metadata())
    );
    assert_eq!(OplogQueryMetadata::of_message(&reply).unwrap(), Some(query));
    let asks = rawdoc! { "$replData": 1, "$oplogQueryData": 1 };
    assert_eq!(ReplSetMetadata::of_message(&asks).unwrap(), None);
    assert_eq!(OplogQueryMetadata::of_message(&asks).unwrap(), None);
}

#[test]
fn shapes_are_mongodbs() {
    let check = |document: &RawDocument, expected: &str| {
        assert_eq!(to_extended_json(document, JsonMode::Relaxed), expected);
    };
    let mut plain = heartbeat();
    plain.check_empty = false;
    plain.sender = None;
    check(
        &Request::Heartbeat(plain).to_bson(),
        r#"{"replSetHeartbeat":"rs","configVersion":3,"configTerm":2,"hbv":1,"from":"","fromId":0,"term":5,"primaryId":-1,"$replData":1,"$db":"admin"}"#,
    );
    check(
        &Request::Votes(votes()).to_bson(),
        r#"{"replSetRequestVotes":1,"setName":"rs","dryRun":true,"term":6,"candidateIndex":1,"configVersion":4,"configTerm":6,"lastAppliedOpTime":{"ts":{"$timestamp":{"t":4,"i":1}},"t":6},"$db":"admin"}"#,
    );
}

#[test]
fn what_is_malformed_is_refused() {
    fn check<T: std::fmt::Debug>(parsed: Result<T>, expected: &str) {
        assert_eq!(parsed.unwrap_err().message, expected);
    }
    check(
        HeartbeatRequest::parse(&rawdoc! { "replSetHeartbeat": "rs", "term": 1i64 }),
        "BSON field 'replSetHeartbeat.configVersion' is missing but a required field",
    );
    let mut strange = Request::Heartbeat(heartbeat()).to_bson();
    strange.append(pinion_bson::cstr!("strange"), 1);
    check(
        HeartbeatRequest::parse(&strange),
        "BSON field 'replSetHeartbeat.strange' is an unknown field.",
    );
    check(
        VoteRequest::parse(&rawdoc! { "replSetRequestVotes": 1, "setName": 1 }),
        "BSON field 'replSetRequestVotes.setName' is the wrong type 'int', expected type 'string'",
    );
    check(
        UpdatePosition::parse(&rawdoc! { "replSetUpdatePosition": 1, "optimes": [1] }),
        "BSON field 'replSetUpdatePosition.optimes.0' is the wrong type 'int', expected type 'object'",
    );
    check(
        HeartbeatResponse::parse(&rawdoc! { "v": 1, "state": 4 }),
        "Value for \"state\" in response to replSetHeartbeat is out of range; legal values are non-negative and no more than 10, found 4",
    );
    check(
        VoteResponse::parse(&rawdoc! { "term": 1i64 }),
        "BSON field 'ReplSetRequestVotesResponse.voteGranted' is missing but a required field",
    );
}

#[test]
fn newer_members_report_what_is_written() {
    let mut body = Request::Votes(votes()).to_bson();
    let later = rawdoc! { "ts": pinion_bson::Timestamp { time: 9, increment: 1 }, "t": 6i64 };
    body.append(pinion_bson::cstr!("lastWrittenOpTime"), later);
    let parsed = VoteRequest::parse(&body).unwrap();
    assert_eq!(parsed.last_written, at(9, 6).optime);
    let mut newer = response();
    newer.written = Some(at(20, 6));
    let parsed = HeartbeatResponse::parse(&newer.to_bson()).unwrap();
    assert_eq!(parsed.last_written(), at(20, 6).optime);
    assert_eq!(response().last_written(), at(8, 6).optime);
}

/// A term near the end of the numbers would leave a set that believes it without elections.
#[test]
fn terms_that_no_set_reaches_are_refused() {
    fn check<T>(parse: impl Fn(i64) -> Result<T>) {
        assert!(parse(MAX_TERM.0).is_ok());
        for term in [MAX_TERM.0 + 1, i64::MAX] {
            let refused = parse(term).err().expect("it is refused");
            let expected = format!("value must be <= {}, actual value '{term}'", MAX_TERM.0);
            assert!(refused.message.contains(&expected), "{}", refused.message);
        }
    }
    check(|term| {
        let mut request = votes();
        request.term = Term(term);
        VoteRequest::parse(&Request::Votes(request).to_bson())
    });
    check(|term| {
        let mut request = votes();
        request.last_written.term = Term(term);
        VoteRequest::parse(&Request::Votes(request).to_bson())
    });
    check(|term| {
        let mut request = heartbeat();
        request.term = Term(term);
        HeartbeatRequest::parse(&Request::Heartbeat(request).to_bson())
    });
    check(|term| {
        let mut response = response();
        response.term = Term(term);
        HeartbeatResponse::parse(&response.to_bson())
    });
    check(|term| {
        let mut sent = metadata();
        sent.term = Term(term);
        let mut out = DocBuilder::new();
        sent.append_to(&mut out);
        ReplSetMetadata::of_message(&out.finish())
    });
    check(|term| {
        let reply = rawdoc! { "term": term, "voteGranted": true };
        VoteResponse::parse(&reply)
    });
    check(|term| {
        let config = rawdoc! { "_id": "rs", "term": term, "members": [] };
        Config::parse(&config)
    });
}
