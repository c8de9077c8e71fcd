//! The rules, one by one, with the code and a part of the message.

use pinion_bson::{DocBuilder, ObjectId, RawBson, RawDocumentBuf, rawdoc};
use pinion_wire::Result;

use super::*;

const NEXT_ID: [u8; 12] = [7; 12];

/// A member with its host's number, and further fields.
fn member(id: i32, more: RawDocumentBuf) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("_id", id);
    if !more
        .iter()
        .any(|field| field.is_ok_and(|(name, _)| name == "host"))
    {
        out.append("host", format!("host{id}:27017").as_str());
    }
    out.append_all(&more);
    out.finish()
}

fn set(version: i32, members: Vec<RawDocumentBuf>) -> RawDocumentBuf {
    with_settings(version, members, rawdoc! {})
}

fn with_settings(
    version: i32,
    members: Vec<RawDocumentBuf>,
    settings: RawDocumentBuf,
) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("_id", "rs").append("version", version);
    out.start_array("members");
    for member in &members {
        out.push(&**member);
    }
    out.end().append("settings", &*settings);
    out.finish()
}

fn plain(ids: std::ops::Range<i32>) -> Vec<RawDocumentBuf> {
    ids.map(|id| member(id, rawdoc! {})).collect()
}

fn parsed(document: &RawDocument) -> Result<Config> {
    let config = Config::parse(document)?;
    config.validate()?;
    Ok(config)
}

fn config(document: &RawDocument) -> Config {
    parsed(document).unwrap_or_else(|error| panic!("{}", error.message))
}

#[track_caller]
fn check(document: RawDocumentBuf, expected: std::result::Result<(), (i32, &str)>) {
    check_outcome(parsed(&document).map(drop), expected);
}

#[track_caller]
fn check_outcome(outcome: Result<()>, expected: std::result::Result<(), (i32, &str)>) {
    match (outcome, expected) {
        (Ok(()), Ok(())) => {}
        (Err(error), Err((code, part))) => {
            assert_eq!(error.code.0, code, "{}", error.message);
            assert!(error.message.contains(part), "{}", error.message);
        }
        (outcome, expected) => panic!("{outcome:?} where {expected:?} was expected"),
    }
}

#[test]
fn fields() {
    let one = || plain(0..1);
    check(set(1, one()), Ok(()));
    check(rawdoc! { "version": 1, "members": [] }, Err((40414, "_id")));
    check(
        rawdoc! { "_id": "", "version": 1, "members": [] },
        Err((2, "non-empty _id")),
    );
    check(set(0, one()), Err((2, "version")));
    check(
        rawdoc! { "_id": "rs", "version": 1, "members": 7 },
        Err((14, "members")),
    );
    check(
        rawdoc! { "_id": "rs", "version": 1, "members": [7] },
        Err((14, "members.0")),
    );
    check(
        rawdoc! { "_id": "rs", "version": 1, "members": [], "other": 1 },
        Err((40415, "other")),
    );
    let of = |more| set(1, vec![member(0, more)]);
    check(of(rawdoc! { "colour": "red" }), Err((40415, "colour")));
    check(of(rawdoc! { "host": "a:b" }), Err((9, "Port number")));
    check(of(rawdoc! { "tags": { "dc": 1 } }), Err((14, "tags")));
    check(of(rawdoc! { "tags": { "dc": "x" } }), Ok(()));
    check(set(1, vec![member(256, rawdoc! {})]), Ok(()));
    check(set(1, vec![member(-1, rawdoc! {})]), Err((2, "_id")));
    let horizon = rawdoc! { "horizons": { "out": "x:1" } };
    check(of(horizon), Err((2, "horizons are not supported")));
    let both = concat!("sl", "aveDelay");
    let mut delays = DocBuilder::new();
    delays.append("secondaryDelaySecs", 1).append(both, 1);
    check(of(delays.finish()), Err((2, "Cannot specify both")));
    let settings = |settings| with_settings(1, plain(0..1), settings);
    check(
        settings(rawdoc! { "electionTimeoutMillis": 0 }),
        Err((2, "electionTimeoutMillis")),
    );
    check(settings(rawdoc! { "catchUpTimeoutMillis": -1 }), Ok(()));
    check(
        settings(rawdoc! { "getLastErrorDefaults": { "w": 2 } }),
        Err((2, "setDefaultRWConcern")),
    );
    check(
        settings(rawdoc! { "getLastErrorDefaults": { "w": 1.0, "wtimeout": 0 } }),
        Ok(()),
    );
    check(settings(rawdoc! { "x": 1 }), Err((40415, "x")));
}

#[test]
fn rules_of_one_member() {
    let two = |more| set(1, vec![member(0, rawdoc! {}), member(1, more)]);
    check(
        two(rawdoc! { "votes": 2 }),
        Err((2, "votes field value is 2")),
    );
    check(two(rawdoc! { "priority": -1 }), Err((2, "out of range")));
    check(two(rawdoc! { "priority": 1001 }), Err((2, "out of range")));
    check(two(rawdoc! { "arbiterOnly": true }), Ok(()));
    check(
        two(rawdoc! { "arbiterOnly": true, "priority": 2 }),
        Err((2, "arbiter")),
    );
    check(
        two(rawdoc! { "arbiterOnly": true, "tags": { "a": "b" } }),
        Err((2, "Cannot set tags on arbiters")),
    );
    check(
        two(rawdoc! { "arbiterOnly": true, "votes": 0 }),
        Err((2, "Arbiter must vote")),
    );
    check(two(rawdoc! { "votes": 0 }), Err((2, "non-voting")));
    check(two(rawdoc! { "votes": 0, "priority": 0 }), Ok(()));
    check(two(rawdoc! { "hidden": true }), Err((2, "hidden=true")));
    check(
        two(rawdoc! { "buildIndexes": false }),
        Err((2, "buildIndexes=false")),
    );
    check(
        two(rawdoc! { "secondaryDelaySecs": 5 }),
        Err((2, "secondaryDelaySecs is used")),
    );
    check(
        two(rawdoc! { "secondaryDelaySecs": 31_622_401, "priority": 0 }),
        Err((2, "out of range")),
    );
    check(
        two(rawdoc! { "secondaryDelaySecs": 5, "priority": 0, "hidden": true }),
        Ok(()),
    );
}

#[test]
fn rules_of_members_together() {
    check(set(1, vec![]), Err((2, "contains 0 members")));
    check(set(1, plain(0..51)), Err((2, "contains 51 members")));
    check(set(1, plain(0..8)), Err((2, "contains 8 voting members")));
    let mut eight = plain(0..7);
    eight.push(member(7, rawdoc! { "votes": 0, "priority": 0 }));
    check(set(1, eight), Ok(()));
    let none = vec![member(0, rawdoc! { "votes": 0, "priority": 0 })];
    check(set(1, none), Err((2, "contains 0 voting members")));
    let unelectable = vec![member(0, rawdoc! { "priority": 0 })];
    check(set(1, unelectable), Err((2, "priority > 0")));
    let same_id = vec![
        member(0, rawdoc! {}),
        member(0, rawdoc! { "host": "other" }),
    ];
    check(
        set(1, same_id),
        Err((2, "members.0._id == members.1._id == 0")),
    );
    let same_host = vec![
        member(0, rawdoc! {}),
        member(1, rawdoc! { "host": "host0" }),
    ];
    check(
        set(1, same_host),
        Err((2, "members.0.host == members.1.host == host0:27017")),
    );
    let mixed = vec![
        member(0, rawdoc! {}),
        member(1, rawdoc! { "host": "localhost" }),
    ];
    check(set(1, mixed), Err((2, "found 1 out of 2")));
    let mut other_protocol = DocBuilder::new();
    other_protocol.append_all(&set(1, plain(0..1)));
    other_protocol.append("protocolVersion", 0);
    check(other_protocol.finish(), Err((2, "is not 1")));
    let mode = |count: i32| {
        let tagged = vec![
            member(0, rawdoc! { "tags": { "dc": "x" } }),
            member(1, rawdoc! { "tags": { "dc": "y" } }),
            member(2, rawdoc! { "tags": { "dc": "y" } }),
        ];
        with_settings(
            1,
            tagged,
            rawdoc! { "getLastErrorModes": { "m": { "dc": count } } },
        )
    };
    check(mode(2), Ok(()));
    check(mode(3), Err((100, "Not enough members")));
    check(mode(0), Err((2, "positive number")));
    let unknown = rawdoc! { "getLastErrorModes": { "m": { "rack": 1 } } };
    check(with_settings(1, plain(0..1), unknown), Err((4, "rack")));
}

#[test]
fn modes_count_different_values() {
    let given = with_settings(
        1,
        vec![
            member(0, rawdoc! { "tags": { "dc": "x", "disk": "ssd" } }),
            member(1, rawdoc! { "tags": { "dc": "x" } }),
            member(2, rawdoc! { "tags": { "dc": "y" } }),
        ],
        rawdoc! { "getLastErrorModes": { "two": { "dc": 2 }, "fast": { "disk": 1, "dc": 1 } } },
    );
    let config = config(&given);
    let check = |mode: usize, holding: &[usize], expected: bool| {
        let members = holding.iter().map(|at| &config.members[*at]);
        let mode = &config.settings.modes[mode];
        assert_eq!(
            mode.is_satisfied_by(members),
            expected,
            "{mode:?} {holding:?}"
        );
    };
    check(0, &[0, 1], false);
    check(0, &[0, 2], true);
    check(1, &[1, 2], false);
    check(1, &[0], true);
    check(1, &[], false);
}

#[test]
fn majorities() {
    let check = |members: Vec<RawDocumentBuf>, votes, writes, by_majority| {
        let config = config(&set(1, members));
        let found = (config.majority_votes(), config.write_majority());
        assert_eq!(found, (votes, writes));
        assert_eq!(config.default_is_majority(), by_majority);
    };
    let arbiter = |id| member(id, rawdoc! { "arbiterOnly": true });
    check(plain(0..1), 1, 1, true);
    check(plain(0..2), 2, 2, true);
    check(plain(0..3), 2, 2, true);
    check(plain(0..5), 3, 3, true);
    // Two that bear data and one that votes alone: with one of the two gone no majority write would
    // end.
    check(
        vec![member(0, rawdoc! {}), member(1, rawdoc! {}), arbiter(2)],
        2,
        2,
        false,
    );
    check(vec![member(0, rawdoc! {}), arbiter(1)], 2, 1, false);
    let mut four = plain(0..3);
    four.push(arbiter(3));
    check(four, 3, 3, false);
    let mut five = plain(0..4);
    five.push(arbiter(4));
    check(five, 3, 3, true);
}

#[test]
fn shown_as_read() {
    let given = with_settings(
        3,
        vec![
            member(0, rawdoc! { "priority": 2.5, "tags": { "dc": "x" } }),
            member(1, rawdoc! { "arbiterOnly": true }),
            member(
                2,
                rawdoc! { "priority": 0, "hidden": true, "secondaryDelaySecs": 60, "votes": 0 },
            ),
        ],
        rawdoc! { "chainingAllowed": false, "replicaSetId": ObjectId::from_bytes(NEXT_ID) },
    );
    let first = config(&given);
    let shown = first.to_bson();
    assert_eq!(config(&shown), first, "{shown:?}");
    let names: Vec<&str> = pinion_bson::elements(&shown)
        .map(|(name, _)| name)
        .collect();
    let expected = [
        "_id",
        "version",
        "members",
        "protocolVersion",
        "writeConcernMajorityJournalDefault",
        "settings",
    ];
    assert_eq!(names, expected);
    assert_eq!(shown.get_i32("version").unwrap(), 3);
    let settings = shown.get_document("settings").unwrap();
    assert!(!settings.get_bool("chainingAllowed").unwrap());
    let members = shown.get_array("members").unwrap();
    let first = members.get_document(0).unwrap();
    assert!(first.get_f64("priority").is_ok());
    let arbiter = members.get_document(1).unwrap();
    assert_eq!(arbiter.get_i32("priority").unwrap(), 0);
}

#[test]
fn newer_configurations() {
    let check = |a: (i64, i64), b: (i64, i64), expected: (bool, bool)| {
        let of = |(term, version)| ConfigVersion { term, version };
        let found = (of(a).is_newer_than(of(b)), of(b).is_newer_than(of(a)));
        assert_eq!(found, expected, "{a:?} {b:?}");
    };
    check((1, 5), (2, 3), (false, true));
    check((2, 3), (2, 4), (false, true));
    check((2, 3), (2, 3), (false, false));
    // Forced: without a term, its version counts.
    check((-1, 9), (2, 3), (true, false));
    check((-1, 2), (2, 3), (false, true));
}

#[test]
fn the_first_configuration() {
    let initiate = |document: RawDocumentBuf| {
        let request = Initiate {
            set_name: "rs",
            document: &document,
            host: HostPort::new("here", 1),
            is_config_server: false,
            replica_set_id: ObjectId::from_bytes(NEXT_ID),
        };
        request.config()
    };
    let alone = initiate(rawdoc! {}).unwrap();
    assert_eq!(alone.members[0].host.to_string(), "here:1");
    assert_eq!((alone.version, alone.term), (1, 0));
    assert_eq!(alone.replica_set_id(), Some(ObjectId::from_bytes(NEXT_ID)));
    let refused = |document, expected| check_outcome(initiate(document).map(drop), Err(expected));
    refused(set(2, plain(0..1)), (93, "version 1, but found 2"));
    let other = rawdoc! { "_id": "other", "version": 1, "members": [{ "_id": 0, "host": "a" }] };
    refused(other, (93, "differs from command line set name"));
    let id = rawdoc! { "replicaSetId": ObjectId::from_bytes([1; 12]) };
    refused(
        with_settings(1, plain(0..1), id),
        (93, "cannot contain 'replicaSetId'"),
    );
    let no_indexes = rawdoc! { "buildIndexes": false, "priority": 0 };
    let two = vec![member(0, rawdoc! {}), member(1, no_indexes)];
    refused(
        set(1, two),
        (93, "members.1.buildIndexes: false is not supported"),
    );
    let config_server =
        rawdoc! { "_id": "rs", "configsvr": true, "members": [{ "_id": 0, "host": "a" }] };
    refused(
        config_server,
        (93, "must be started with the --configsvr flag"),
    );
    refused(rawdoc! { "_id": "rs", "x": 1 }, (93, "missing"));
    refused(set(1, vec![]), (93, "contains 0 members"));
    let of_term = rawdoc! { "_id": "rs", "term": 2, "members": [{ "_id": 0, "host": "a" }] };
    refused(of_term, (93, "cannot have a term"));
    let unversioned = rawdoc! { "_id": "rs", "members": [{ "_id": 0, "host": "a" }] };
    assert_eq!(initiate(unversioned).unwrap().version, 1);
}

#[test]
fn the_place_of_this_node() {
    let config = config(&set(1, plain(0..3)));
    let find = |names: &[&str]| find_self(&config, |host| names.contains(&host.host.as_str()));
    assert_eq!(find(&["host1"]).unwrap(), 1);
    check_outcome(find(&[]).map(drop), Err((74, "maps to this node")));
    check_outcome(
        find(&["host0", "host2"]).map(drop),
        Err((93, "host0:27017 and host2:27017 all map to this node")),
    );
}

#[test]
fn changes() {
    let check = |old: &RawDocument, new: &RawDocument, force: bool, expected| {
        let (old, new) = (config(old), config(new));
        check_outcome(check_reconfig(&old, &new, force), expected);
    };
    let three = set(1, plain(0..3));
    let allowed = |new: RawDocumentBuf| check(&three, &new, false, Ok(()));
    let refused = |new: RawDocumentBuf, code, part| {
        check(&three, &new, false, Err((code, part)));
    };
    allowed(set(2, plain(0..3)));
    allowed(set(2, plain(0..4)));
    allowed(set(2, plain(0..2)));
    allowed(set(9, plain(0..3)));
    refused(set(1, plain(0..3)), 103, "must be greater than old");
    refused(
        set(2, plain(0..5)),
        93,
        "at most 1 voting member. Found 2 added and 0 removed",
    );
    refused(set(2, plain(0..1)), 93, "Found 0 added and 2 removed");
    let replaced = |id: i32, more: RawDocumentBuf| {
        let mut members = plain(0..3);
        members[2] = member(id, more);
        set(2, members)
    };
    refused(replaced(7, rawdoc! {}), 93, "Found 1 added and 1 removed");
    refused(
        replaced(7, rawdoc! { "host": "host2" }),
        103,
        "_id field is 7 and in the old configuration it is 2",
    );
    refused(
        replaced(2, rawdoc! { "arbiterOnly": true }),
        103,
        "arbiterOnly",
    );
    let no_indexes = rawdoc! { "buildIndexes": false, "priority": 0 };
    refused(replaced(2, no_indexes.clone()), 103, "buildIndexes");
    // A member that comes may not ask for it, and one that has it keeps it.
    let mut added = plain(0..3);
    added.push(member(3, no_indexes.clone()));
    refused(
        set(2, added.clone()),
        103,
        "buildIndexes: false is not supported",
    );
    check(&set(1, added.clone()), &set(2, added), false, Ok(()));
    // One voter fewer, as one member keeps its place without its vote.
    allowed(replaced(2, rawdoc! { "votes": 0, "priority": 0 }));
    // The same member at another place.
    let moved = rawdoc! { "host": "elsewhere", "arbiterOnly": true };
    refused(replaced(2, moved), 103, "arbiterOnly");
    allowed(replaced(2, rawdoc! { "host": "elsewhere" }));
    // One that has no data yet does not count.
    let mut added = plain(0..4);
    added.push(member(4, rawdoc! { "newlyAdded": true }));
    allowed(set(2, added));
    check(&three, &set(2, plain(0..5)), true, Ok(()));
    check(
        &three,
        &set(1, plain(0..3)),
        true,
        Err((103, "must be greater")),
    );

    let named = |id: &str, set_id: u8| {
        let mut out = DocBuilder::new();
        for (name, value) in pinion_bson::elements(&three) {
            match name {
                "_id" => out.append("_id", id),
                "version" => out.append("version", 1 + i32::from(set_id)),
                "settings" => {
                    let id = ObjectId::from_bytes([set_id; 12]);
                    out.append_raw(
                        "settings",
                        RawBson::Document(rawdoc! { "replicaSetId": id }).as_raw_bson_ref(),
                    )
                }
                _ => out.append_raw(name, value),
            };
        }
        out.finish()
    };
    check(
        &named("rs", 1),
        &named("rs", 2),
        false,
        Err((103, "replica set ID")),
    );
    // An operator's document that names no identity keeps the set's.
    let (of_set, nameless) = (config(&named("rs", 1)), config(&set(3, plain(0..3))));
    assert!(check_reconfig(&of_set, &nameless, false).is_err());
    let named_so = nameless.with_identity_of(&of_set);
    assert!(check_reconfig(&of_set, &named_so, false).is_ok());
    check(
        &three,
        &named("other", 1),
        false,
        Err((103, "replica set name")),
    );
}

#[test]
fn a_set_with_members_of_mongodb_4_4_keeps_their_names() {
    let old = concat!("sl", "aveDelay");
    let delay_in = |config: &Config, name: &str| {
        let shown = config.to_bson();
        let members = shown.get_array("members").expect("members");
        let first = pinion_bson::values(members).next().expect("a member");
        let first = first.as_document().expect("a document");
        pinion_bson::get(first, name).is_some()
    };
    let member = {
        let mut member = DocBuilder::new();
        member
            .append("_id", 0)
            .append("host", "a:1")
            .append(old, 0i64);
        member.finish()
    };
    let of_mongodb = rawdoc! { "_id": "rs", "version": 3, "term": 2, "members": [member] };
    let of_mongodb = config(&of_mongodb);
    assert!(delay_in(&of_mongodb, old) && !delay_in(&of_mongodb, "secondaryDelaySecs"));
    let again = config(&of_mongodb.to_bson());
    assert!(delay_in(&again, old) && again == of_mongodb);
    // An operator's document without a delay does not end it; one with a delay under the new name
    // does.
    let plain = rawdoc! { "_id": "rs", "version": 4, "members": [{ "_id": 0, "host": "a:1" }] };
    let plain = config(&plain);
    assert!(delay_in(&plain, "secondaryDelaySecs"));
    assert!(delay_in(&plain.with_identity_of(&of_mongodb), old));
    let new = rawdoc! {
        "_id": "rs", "version": 4, "members": [{ "_id": 0, "host": "a:1", "secondaryDelaySecs": 0 }],
    };
    let new = config(&new).with_identity_of(&of_mongodb);
    assert!(delay_in(&new, "secondaryDelaySecs"));
}

#[test]
fn roles_in_a_cluster() {
    let config_set = |members: Vec<RawDocumentBuf>| {
        let mut document = set(1, members);
        document.append(pinion_bson::cstr!("configsvr"), true);
        document
    };
    let check = |document: &RawDocumentBuf, is_config_server: bool, expected| {
        check_outcome(config(document).check_role(is_config_server), expected);
    };
    check(&set(1, plain(0..3)), false, Ok(()));
    check(&config_set(plain(0..3)), true, Ok(()));
    let must = "must have configsvr:true in their config";
    check(&set(1, plain(0..3)), true, Err((2, must)));
    let flag = "must be started with the --configsvr flag";
    check(&config_set(plain(0..3)), false, Err((2, flag)));
    for (given, expected) in [
        (rawdoc! { "arbiterOnly": true }, "Arbiters are not allowed"),
        (
            rawdoc! { "buildIndexes": false, "priority": 0 },
            "must build indexes",
        ),
        (
            rawdoc! { "secondaryDelaySecs": 5, "priority": 0 },
            "non-zero secondaryDelaySecs",
        ),
    ] {
        let members = vec![member(0, rawdoc! {}), member(1, given)];
        check(&config_set(members), true, Err((2, expected)));
    }
    let mut unjournaled = config(&config_set(plain(0..1)));
    unjournaled.write_concern_majority_journal_default = false;
    let outcome = unjournaled.check_role(true);
    check_outcome(
        outcome,
        Err((2, "writeConcernMajorityJournalDefault must be true")),
    );
    let document = rawdoc! {};
    let alone = Initiate {
        set_name: "rs",
        document: &document,
        host: HostPort::new("here", 1),
        is_config_server: true,
        replica_set_id: ObjectId::from_bytes(NEXT_ID),
    };
    assert!(alone.config().unwrap().config_server);
}
