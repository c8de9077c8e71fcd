//! Server selection, as a table.

use std::time::Duration;

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_wire::idl::parse_read_preference;

use super::super::*;
use super::host;
use crate::limits::LOCAL_THRESHOLD;

/// A member by its letter and kind, with its round trip in milliseconds, its zone, and the second
/// of its last write.
type Row<'r> = (&'r str, char, u64, &'r str, u32);

pub(super) fn topology(rows: &[Row<'_>]) -> SetTopology {
    let members = rows.iter().map(|(name, kind, rtt_ms, zone, secs)| {
        let kind = match kind {
            'P' => MemberKind::Primary,
            'S' => MemberKind::Secondary,
            'A' => MemberKind::Arbiter,
            'O' => MemberKind::Other,
            _ => MemberKind::Unknown,
        };
        let member = Member {
            kind,
            tags: vec![("dc".to_owned(), (*zone).to_owned())],
            rtt: Some(Duration::from_millis(*rtt_ms)),
            last_write: Some(LastWrite {
                date_ms: i64::from(*secs) * 1000,
                op_time: OpTime::new(Timestamp::new(*secs, 0), Term(1)),
            }),
            updated_ms: 1_000_000,
            ..Member::default()
        };
        (host(name), member)
    });
    SetTopology {
        name: "rs".to_owned(),
        number: 1,
        members: members.collect(),
    }
}

#[track_caller]
fn check(rows: &[Row<'_>], preference: RawDocumentBuf, min_secs: Option<u32>, expected: &str) {
    let topology = topology(rows);
    let preference = parse_read_preference(&preference).expect("it is well formed");
    let min_time = min_secs.map(|secs| Timestamp::new(secs, 0));
    let found = topology.select(&preference, min_time, LOCAL_THRESHOLD);
    let found: String = found.iter().map(|host| &*host.host).collect();
    assert_eq!(found, expected, "{preference}");
}

fn mode(mode: &str) -> RawDocumentBuf {
    rawdoc! { "mode": mode }
}

fn tagged(mode: &str, zones: &[&str]) -> RawDocumentBuf {
    let mut tags = pinion_bson::RawArrayBuf::new();
    for zone in zones {
        match zone.is_empty() {
            true => tags.push(rawdoc! {}),
            false => tags.push(rawdoc! { "dc": *zone }),
        }
    }
    rawdoc! { "mode": mode, "tags": tags }
}

const ALL: &[Row<'static>] = &[
    ("a", 'P', 10, "x", 500),
    ("b", 'S', 1, "y", 495),
    ("c", 'S', 9, "y", 400),
    ("d", 'S', 30, "z", 499),
    ("e", 'A', 1, "y", 0),
    ("f", 'O', 1, "y", 500),
    ("g", '?', 1, "y", 500),
];
const NO_PRIMARY: &[Row<'static>] = &[
    ("a", '?', 10, "x", 500),
    ("b", 'S', 1, "y", 495),
    ("c", 'S', 9, "y", 400),
];
const PRIMARY_ALONE: &[Row<'static>] = &[("a", 'P', 10, "x", 500), ("b", '?', 1, "y", 1)];

#[test]
fn modes() {
    check(ALL, mode("primary"), None, "a");
    check(ALL, mode("primaryPreferred"), None, "a");
    check(ALL, mode("secondary"), None, "bc");
    check(ALL, mode("secondaryPreferred"), None, "bc");
    check(ALL, mode("nearest"), None, "abc");
    check(NO_PRIMARY, mode("primary"), None, "");
    check(NO_PRIMARY, mode("primaryPreferred"), None, "bc");
    check(NO_PRIMARY, mode("nearest"), None, "bc");
    check(PRIMARY_ALONE, mode("secondary"), None, "");
    check(PRIMARY_ALONE, mode("secondaryPreferred"), None, "a");
    check(&[], mode("nearest"), None, "");
}

#[test]
fn sets_of_tags() {
    check(ALL, tagged("secondary", &["z"]), None, "d");
    check(ALL, tagged("secondary", &["w", "z", "y"]), None, "d");
    check(ALL, tagged("secondary", &["w"]), None, "");
    check(ALL, tagged("secondary", &["x"]), None, "");
    check(ALL, tagged("secondary", &["w", ""]), None, "bc");
    check(ALL, tagged("nearest", &["x"]), None, "a");
    // The primary is taken whatever its tags are.
    check(ALL, tagged("secondaryPreferred", &["w"]), None, "a");
    check(ALL, tagged("primaryPreferred", &["y"]), None, "a");
    check(NO_PRIMARY, tagged("primaryPreferred", &["w"]), None, "");
}

#[test]
fn staleness() {
    let stale = |mode: &str, secs: i32| rawdoc! { "mode": mode, "maxStalenessSeconds": secs };
    // One that is 100 seconds behind by its own dates may be 110 seconds behind.
    check(ALL, stale("secondary", 109), None, "b");
    check(ALL, stale("secondary", 110), None, "bc");
    check(ALL, stale("nearest", 90), None, "ab");
    // Without a primary the newest secondary is what they are compared with.
    check(NO_PRIMARY, stale("secondary", 104), None, "b");
    check(NO_PRIMARY, stale("secondary", 105), None, "bc");
}

#[test]
fn cluster_times() {
    check(ALL, mode("secondary"), Some(450), "b");
    check(ALL, mode("secondary"), Some(496), "d");
    check(ALL, mode("nearest"), Some(496), "a");
    // Where no member has it, one will have to wait.
    check(ALL, mode("secondary"), Some(501), "bc");
    check(ALL, mode("primary"), Some(501), "a");
    check(ALL, mode("secondaryPreferred"), Some(500), "a");
}

#[test]
fn what_is_said_where_no_member_fits() {
    let check = |preference: RawDocumentBuf, shown: &str| {
        let preference = parse_read_preference(&preference).expect("it is well formed");
        let error = cannot_satisfy(&preference, "rs");
        let text = format!("Could not find host matching read preference {shown} for set rs");
        assert_eq!((error.code.0, error.message), (133, text));
    };
    check(mode("primary"), "{ mode: \"primary\" }");
    let shown = "{ mode: \"secondary\", tags: [ { dc: \"w\" }, {} ] }";
    check(tagged("secondary", &["w", ""]), shown);
}
