//! The list of the sessions in use, `config.system.sessions` of the config servers, which routers
//! and shards write: the commands on it, and what its documents say.
//!
//! Source: sharding document, "The logical session cache".

use std::collections::BTreeSet;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_service::session_ids::at_home;
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Lsid, Path, append_lsid, read_lsid};

pub const SESSION_LIST: &str = "config.system.sessions";
const COLLECTION: &str = "system.sessions";

fn append_name(out: &mut DocBuilder, lsid: &Lsid) {
    append_lsid(out, "_id", &at_home(lsid));
}

/// Appends the `update` that lists sessions as used, each with the time of its last use in
/// milliseconds since 1970. The times are given, so it may be sent twice, and the later of two uses
/// stays, whichever process lists it last.
pub fn append_uses(out: &mut DocBuilder, used: &[(Lsid, i64)]) {
    out.append("update", COLLECTION).append("ordered", false);
    out.start_array("updates");
    for (lsid, used_ms) in used {
        out.push_document().start_document("q");
        append_name(out, lsid);
        out.end().start_document("u").start_document("$max");
        let date = RawBsonRef::DateTime(DateTime::from_millis(*used_ms));
        out.append("lastUse", date).end().end();
        out.append("upsert", true).end();
    }
    out.end();
}

/// Appends the `delete` that removes ended sessions from the list.
pub fn append_removals(out: &mut DocBuilder, ended: &[Lsid]) {
    out.append("delete", COLLECTION).append("ordered", false);
    out.start_array("deletes");
    for lsid in ended {
        out.push_document().start_document("q");
        append_name(out, lsid);
        out.end().append("limit", 1i32).end();
    }
    out.end();
}

/// Selects the documents of sessions.
pub fn listed_filter(lsids: &[Lsid]) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.start_document("_id").start_array("$in");
    for lsid in lsids {
        let mut name = DocBuilder::new();
        append_name(&mut name, lsid);
        if let Some(name) = pinion_bson::get(&name.finish(), "_id") {
            out.push(name);
        }
    }
    out.end().end();
    out.finish()
}

/// The sessions that documents of the list are of.
///
/// # Errors
/// A document names no session.
pub fn listed_in(documents: &[RawDocumentBuf]) -> Result<BTreeSet<Lsid>> {
    let named = documents.iter().map(|document| {
        let reader = FieldReader::object(Path::root(SESSION_LIST), document)?;
        let name = reader.doc("_id")?;
        read_lsid(&FieldReader::object(Path::root("_id"), name)?)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawBsonRef, rawdoc};
    use pinion_wire::idl::NO_USER;

    use super::*;

    fn lsid(number: u8) -> Lsid {
        Lsid::of_client([number; 16], None)
    }

    fn name(number: u8) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        append_name(&mut out, &lsid(number));
        match pinion_bson::get(&out.finish(), "_id") {
            Some(RawBsonRef::Document(name)) => name.to_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn built(append: impl FnOnce(&mut DocBuilder)) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        append(&mut out);
        out.finish()
    }

    #[test]
    fn commands() {
        let date = DateTime::from_millis(5);
        let expected = rawdoc! {
            "update": "system.sessions", "ordered": false,
            "updates": [{
                "q": { "_id": name(1) }, "u": { "$max": { "lastUse": date } }, "upsert": true,
            }],
        };
        assert_eq!(built(|out| append_uses(out, &[(lsid(1), 5)])), expected);
        let expected = rawdoc! {
            "delete": "system.sessions", "ordered": false,
            "deletes": [
                { "q": { "_id": name(1) }, "limit": 1 }, { "q": { "_id": name(2) }, "limit": 1 }
            ],
        };
        let both = [lsid(1), lsid(2)];
        assert_eq!(built(|out| append_removals(out, &both)), expected);
        let expected = rawdoc! { "_id": { "$in": [name(1), name(2)] } };
        assert_eq!(listed_filter(&both), expected);
    }

    #[test]
    fn names_of_documents() {
        let of_no_user = Lsid::of_client([1; 16], Some(NO_USER));
        let listed = rawdoc! { "_id": name(1), "lastUse": DateTime::from_millis(5) };
        assert_eq!(
            listed_in(&[listed]).ok(),
            Some(BTreeSet::from([of_no_user]))
        );
        // It does not count as a session that is over.
        assert!(listed_in(&[rawdoc! { "_id": 1 }]).is_err());
        assert!(listed_in(&[rawdoc! { "_id": { "id": 1 } }]).is_err());
    }
}
