//! Versions: what is equal, what is older, what each change gives, and both forms.

use pinion_bson::rawdoc;

use super::*;

pub(crate) fn incarnation(epoch: u8, secs: u32) -> Incarnation {
    Incarnation {
        epoch: ObjectId::from_bytes([epoch; 12]),
        timestamp: Timestamp::new(secs, 0),
    }
}

fn version(epoch: u8, secs: u32, major: u32, minor: u32) -> ChunkVersion {
    ChunkVersion {
        of: incarnation(epoch, secs),
        major,
        minor,
    }
}

#[test]
fn order_of_chunk_versions() {
    let check = |one: (u8, u32, u32, u32), other: (u8, u32, u32, u32), equal, older, newer| {
        let [one, other] = [one, other].map(|(e, t, major, minor)| version(e, t, major, minor));
        assert_eq!(one.is_placement_equal(other), equal, "{one:?} {other:?}");
        assert_eq!(other.is_placement_equal(one), equal, "{other:?} {one:?}");
        assert_eq!(one.is_older_than(other), older, "{one:?} {other:?}");
        assert_eq!(other.is_older_than(one), newer, "{other:?} {one:?}");
    };
    let (yes, no) = (Some(true), Some(false));
    check((1, 5, 2, 0), (1, 5, 2, 0), true, no, no);
    check((1, 5, 2, 0), (1, 5, 2, 7), true, yes, no);
    check((1, 5, 2, 9), (1, 5, 3, 0), false, yes, no);
    check((1, 5, 9, 9), (2, 6, 1, 0), false, yes, no);
    // The same time in two lives, or no time at all: neither is known to be older.
    check((1, 5, 1, 0), (2, 5, 2, 0), false, None, None);
    check((1, 0, 1, 0), (2, 6, 2, 0), false, None, None);
    // 4.4's form of one side.
    check((1, 0, 1, 0), (1, 6, 1, 5), true, yes, no);
    check((1, 0, 1, 0), (1, 6, 2, 0), false, yes, no);
    // A shard without chunks may have lost them at any time, but in one life alone.
    check((1, 5, 0, 0), (1, 5, 4, 0), false, None, None);
    check((1, 5, 0, 0), (1, 5, 0, 0), true, no, no);
    check((1, 5, 0, 0), (2, 6, 1, 0), false, yes, no);
}

#[test]
fn order_of_shard_versions() {
    let placed = ShardVersion::Placed(version(1, 5, 2, 0));
    let newer = ShardVersion::Placed(version(1, 5, 3, 0));
    let (unsharded, ignored) = (ShardVersion::Unsharded, ShardVersion::Ignored);
    let equal = |one: ShardVersion, other| one.is_placement_equal(other);
    assert!(equal(placed, placed) && equal(unsharded, unsharded) && equal(ignored, ignored));
    assert!(equal(ignored, placed) && equal(unsharded, ignored));
    assert!(!equal(unsharded, placed) && !equal(placed, newer));
    assert_eq!(placed.is_older_than(newer), Some(true));
    assert_eq!(unsharded.is_older_than(unsharded), Some(false));
    for (one, other) in [(unsharded, placed), (placed, unsharded), (ignored, placed)] {
        assert_eq!(one.is_older_than(other), None);
    }
}

#[test]
fn changes_of_the_table() {
    let of = incarnation(1, 5);
    assert_eq!(ChunkVersion::first(of), version(1, 5, 1, 0));
    assert_eq!(ChunkVersion::without_chunks(of), version(1, 5, 0, 0));
    let collection = version(1, 5, 7, 3);
    let moved = collection.moved();
    assert_eq!(moved.migrated, version(1, 5, 8, 0));
    assert_eq!(moved.control, version(1, 5, 8, 1));
    let parts: Vec<ChunkVersion> = collection.split(3).collect();
    assert_eq!(
        parts,
        [
            version(1, 5, 7, 4),
            version(1, 5, 7, 5),
            version(1, 5, 7, 6)
        ]
    );
    assert_eq!(collection.merged(), version(1, 5, 7, 4));
    let refined = collection.refined(incarnation(2, 9));
    assert_eq!(refined, version(2, 9, 7, 3));
    // Behind the last minor version.
    let last = version(1, 5, 7, u32::MAX);
    assert_eq!(last.merged(), version(1, 5, 8, 0));
    assert_eq!(last.split(2).last(), Some(version(1, 5, 8, 1)));
}

#[test]
fn forms_of_a_shard_version() {
    let check = |version: ShardVersion, form, expected: pinion_bson::RawDocumentBuf| {
        let mut out = DocBuilder::new();
        version.append_to(&mut out, "v", form);
        let written = out.finish();
        assert_eq!(written, expected);
        let value = pinion_bson::get(&written, "v").expect("written");
        ShardVersion::parse(Path::root("v"), value).expect("a version")
    };
    let time = |secs, inc| bson_time(Timestamp::new(secs, inc));
    let epoch = ObjectId::from_bytes([1; 12]);
    let none = ObjectId::from_bytes([0; 12]);
    let ignored = ObjectId::parse_str("00000000ffffffffffffffff").expect("an id");
    let max = time(u32::MAX, u32::MAX);
    let placed = ShardVersion::Placed(version(1, 5, 2, 3));

    let own = rawdoc! { "v": { "e": epoch, "t": time(5, 0), "v": time(2, 3) } };
    assert_eq!(check(placed, Form::Own, own), placed);
    let old = rawdoc! { "v": [time(2, 3), epoch] };
    let without_time = ShardVersion::Placed(version(1, 0, 2, 3));
    assert_eq!(check(placed, Form::Mongo44, old), without_time);
    for (version, epoch, t) in [
        (ShardVersion::Unsharded, none, time(0, 0)),
        (ShardVersion::Ignored, ignored, max),
    ] {
        let own = rawdoc! { "v": { "e": epoch, "t": t, "v": time(0, 0) } };
        assert_eq!(check(version, Form::Own, own), version);
        let old = rawdoc! { "v": [time(0, 0), epoch] };
        assert_eq!(check(version, Form::Mongo44, old), version);
        assert_eq!(ShardVersion::from_sent(version.to_sent()), version);
    }
    // A shard without chunks is no unsharded collection.
    let empty = ShardVersion::Placed(version(1, 5, 0, 0));
    assert_eq!(ShardVersion::from_sent(empty.to_sent()), empty);

    let refused = |document: pinion_bson::RawDocumentBuf, code| {
        let value = pinion_bson::get(&document, "v").expect("there");
        let error = ShardVersion::parse(Path::root("v"), value).expect_err("no version");
        assert_eq!(error.code.0, code, "{document:?}");
    };
    refused(rawdoc! { "v": { "e": epoch, "v": time(1, 0) } }, 40414);
    refused(
        rawdoc! { "v": { "e": 1, "t": time(1, 0), "v": time(1, 0) } },
        14,
    );
    refused(rawdoc! { "v": [epoch] }, 2);
    refused(rawdoc! { "v": 1 }, 14);
}

fn database(uuid: u8, secs: u32, last_mod: i32) -> DatabaseVersion {
    DatabaseVersion {
        uuid: Uuid::from_bytes([uuid; 16]),
        timestamp: Timestamp::new(secs, 0),
        last_mod,
    }
}

#[test]
fn order_of_database_versions() {
    let check = |one: DatabaseVersion, other, equal, older| {
        assert_eq!(one.is_placement_equal(other), equal, "{one:?} {other:?}");
        assert_eq!(one.is_older_than(other), older, "{one:?} {other:?}");
    };
    check(database(1, 5, 1), database(1, 5, 1), true, Some(false));
    check(database(1, 5, 1), database(1, 5, 2), false, Some(true));
    check(database(1, 5, 3), database(1, 5, 2), false, Some(false));
    check(database(1, 5, 9), database(2, 6, 1), false, Some(true));
    check(database(2, 6, 1), database(1, 5, 9), false, Some(false));
    check(database(1, 0, 1), database(2, 6, 1), false, None);
    check(database(1, 0, 1), database(1, 6, 2), false, Some(true));
    check(database(1, 0, 1), database(1, 6, 1), true, Some(false));
    let first = DatabaseVersion::first(Uuid::from_bytes([1; 16]), Timestamp::new(5, 0));
    assert_eq!(first, database(1, 5, 1));
    assert_eq!(first.next_primary(), database(1, 5, 2));
    assert!(DatabaseVersion::FIXED.is_fixed() && !first.is_fixed());
    assert!(has_fixed_placement("admin") && has_fixed_placement("config"));
    assert!(!has_fixed_placement("local") && !has_fixed_placement("Config"));
}

#[test]
fn forms_of_a_database_version() {
    let check = |version: DatabaseVersion, form, expected: DatabaseVersion, names: &[&str]| {
        let mut out = DocBuilder::new();
        version.append_to(&mut out, "version", form);
        let written = out.finish();
        let inner = written.get_document("version").expect("a document");
        let found: Vec<&str> = pinion_bson::elements(inner).map(|(name, _)| name).collect();
        assert_eq!(found, names);
        let read = DatabaseVersion::parse(Path::root("v"), inner).expect("a version");
        assert_eq!(read, expected);
        assert_eq!(DatabaseVersion::from_sent(version.to_sent()), version);
    };
    let version = database(1, 5, 2);
    check(
        version,
        Form::Own,
        version,
        &["uuid", "timestamp", "lastMod"],
    );
    check(
        version,
        Form::Mongo44,
        database(1, 0, 2),
        &["uuid", "lastMod"],
    );
    let error = DatabaseVersion::parse(Path::root("v"), &rawdoc! { "lastMod": 1 });
    assert_eq!(error.expect_err("no uuid").code.0, 40414);
}
