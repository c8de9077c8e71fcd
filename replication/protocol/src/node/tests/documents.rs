//! The documents that clients are shown.

use pinion_bson::{JsonMode, RawDocument, RawDocumentBuf, to_extended_json};
use pinion_wire::MemberState;

use super::config::{SET, config, config_id, entry, host};
use crate::message::HeartbeatResponse;
use crate::node::{Effect, Identity, Input, Node, Now, Parameters, Persisted, Progress};

const START: Now = Now {
    ms: 1_000,
    wall_ms: 1_700_000_000_000,
};

/// Member a of a set, whose last entry is of term 1 and second 5.
fn member(members: &str) -> Node {
    let config = config(members, config_id("1/1"));
    let (self_index, _) = config.member_of(&host("a")).expect("a is a member");
    let found = Persisted {
        config: Some(config),
        self_index: Some(self_index),
        progress: Progress::all_at(entry("1.5")),
        needs_initial_sync: false,
        ..Persisted::nothing()
    };
    let identity = Identity {
        set_name: SET.into(),
        host: host("a"),
        seed: 1,
        parameters: Parameters::default(),
    };
    Node::new(identity, found, START)
}

/// Answers the first heartbeat to each other member so.
fn hear(node: &mut Node, state: MemberState) {
    for effect in node.step(START, Input::Tick) {
        let Effect::Send { id, .. } = effect else {
            continue;
        };
        let response = HeartbeatResponse {
            set_name: Some(SET.into()),
            state: Some(state),
            election_time: None,
            has_data: None,
            config_version: 1,
            config_term: 1,
            config: None,
            term: pinion_clock::Term(1),
            primary_id: None,
            sync_source: None,
            applied: entry("1.4"),
            durable: entry("1.3"),
            written: None,
            electable: Some(true),
            primary_silent_ms: None,
        };
        let reply = Ok(response.to_bson());
        let later = Now {
            ms: START.ms + 7,
            wall_ms: START.wall_ms + 7,
        };
        let _ = node.step(later, Input::Response { id, reply });
    }
}

fn elect_alone(node: &mut Node) {
    let mut inputs = vec![Input::Tick];
    while let Some(input) = inputs.pop() {
        for effect in node.step(START, input) {
            match effect {
                Effect::StoreVote(vote) => inputs.push(Input::VoteStored(vote)),
                Effect::Drain => inputs.push(Input::Drained),
                Effect::WriteNewPrimary { term } => {
                    let at = entry(&format!("{term}.6"));
                    inputs.push(Input::NewPrimaryWritten { term, at });
                    inputs.push(Input::Progress(Progress::all_at(at)));
                }
                Effect::StoreConfig(_) => inputs.insert(0, Input::ConfigStored(Ok(()))),
                _ => {}
            }
        }
    }
}

#[track_caller]
fn check(document: &RawDocument, expected: &str) {
    assert_eq!(to_extended_json(document, JsonMode::Relaxed), expected);
}

#[test]
fn hello() {
    let hello = |members: &str| member(members).view().hello;
    check(
        &hello("a,b:p0,c:arb,d:p0:hidden"),
        r#"{"hosts":["a:27017"],"passives":["b:27017"],"arbiters":["c:27017"],"setName":"rs","setVersion":1,"secondary":false,"tags":{"name":"a"},"me":"a:27017"}"#,
    );
    check(
        &hello("b,a:p0:hidden:d5"),
        r#"{"hosts":["b:27017"],"setName":"rs","setVersion":1,"secondary":false,"passive":true,"hidden":true,"secondaryDelaySecs":5,"tags":{"name":"a"},"me":"a:27017"}"#,
    );
    check(
        &hello("b,a:arb"),
        r#"{"hosts":["b:27017"],"arbiters":["a:27017"],"setName":"rs","setVersion":1,"secondary":false,"arbiterOnly":true,"me":"a:27017"}"#,
    );
    let mut node = member("a");
    elect_alone(&mut node);
    check(
        &node.view().hello,
        r#"{"hosts":["a:27017"],"setName":"rs","setVersion":1,"secondary":false,"primary":"a:27017","tags":{"name":"a"},"me":"a:27017","electionId":{"$oid":"7fffffff0000000000000002"}}"#,
    );
    assert!(node.view().writable);
}

#[test]
fn a_view() {
    let mut node = member("a,b,c:arb,d:v0:p0");
    hear(&mut node, MemberState::Secondary);
    let view = node.view();
    assert_eq!(
        (view.voters, view.write_majority, view.data_members),
        (3, 2, 3)
    );
    assert_eq!((view.config_version, view.config_term), (1, 1));
    assert_eq!(view.state, MemberState::Secondary);
    assert!(!view.writable && view.journal_default && view.primary.is_none());
    assert!(
        !view.default_is_majority,
        "the arbiter could leave it unsatisfied"
    );
}

#[test]
fn get_config() {
    let mut node = member("a,b:new");
    let document = node.get_config(false).expect("there is one");
    let shown = to_extended_json(&document, JsonMode::Relaxed);
    assert!(
        shown.starts_with(r#"{"config":{"_id":"rs","version":1,"term":1,"members":[{"_id":0,"#)
    );
    assert!(!shown.contains("newlyAdded"), "{shown}");
    let refused = node.get_config(true).expect_err("it is no primary");
    assert_eq!(
        refused.message,
        "commitmentStatus is only supported on primary."
    );
    let _ = node.step(START, Input::Tick);
    let mut alone = member("a");
    elect_alone(&mut alone);
    let document = alone.get_config(true).expect("it is the primary");
    let shown = to_extended_json(&document, JsonMode::Relaxed);
    assert!(shown.ends_with(r#""commitmentStatus":true}"#), "{shown}");
    assert!(member_without_set().get_config(false).is_err());
}

fn member_without_set() -> Node {
    let identity = Identity {
        set_name: SET.into(),
        host: host("a"),
        seed: 1,
        parameters: Parameters::default(),
    };
    Node::new(identity, Persisted::nothing(), START)
}

fn status(node: &Node) -> RawDocumentBuf {
    let status = node.status(START, |out| {
        out.append("lastStableRecoveryTimestamp", 1);
    });
    status.expect("it is a member")
}

#[test]
fn status_of_a_secondary() {
    let mut node = member("a,b");
    hear(&mut node, MemberState::Primary);
    check(&status(&node), include_str!("secondary.json").trim_end());
}

#[test]
fn status_of_a_primary() {
    let mut node = member("a");
    elect_alone(&mut node);
    check(&status(&node), include_str!("primary.json").trim_end());
}

#[test]
fn status_without_a_set() {
    let refused = member_without_set().status(START, |_| {});
    let refused = refused.expect_err("there is no set");
    assert_eq!(
        (refused.code.0, &*refused.message),
        (94, "no replset config has been received")
    );
}
