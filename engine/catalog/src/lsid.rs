//! The names of sessions, as documents have them.

use pinion_bson::{BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef, RawDocument};
use pinion_wire::idl::{ChildSession, Lsid, NO_USER};

/// Appends a session's name, `{id, uid}`, and `{txnNumber, txnUUID}` of an internal one; without a
/// `uid` that of no user.
pub fn append_lsid(out: &mut DocBuilder, name: &str, lsid: &Lsid) {
    out.start_document(name);
    append_parts(out, lsid);
    out.end();
}

fn append_parts(out: &mut DocBuilder, lsid: &Lsid) {
    let binary = |subtype, bytes| RawBsonRef::Binary(RawBinaryRef { subtype, bytes });
    let uid = lsid.uid.as_ref().unwrap_or(&NO_USER);
    out.append("id", binary(BinarySubtype::Uuid, lsid.id.as_slice()))
        .append("uid", binary(BinarySubtype::Generic, uid.as_slice()));
    append_child(out, lsid);
}

/// Appends what distinguishes the session of an internal transaction from its parent, if it is one.
pub fn append_child(out: &mut DocBuilder, lsid: &Lsid) {
    let Some(child) = &lsid.child else {
        return;
    };
    if let Some(txn_number) = child.txn_number {
        out.append("txnNumber", txn_number);
    }
    let uuid = RawBinaryRef {
        subtype: BinarySubtype::Uuid,
        bytes: &child.txn_uuid,
    };
    out.append("txnUUID", RawBsonRef::Binary(uuid));
}

/// A session's name as a document.
pub fn lsid_document(lsid: &Lsid) -> pinion_bson::RawDocumentBuf {
    let mut out = DocBuilder::with_capacity(96);
    append_parts(&mut out, lsid);
    out.finish()
}

/// Reads a session's name; `None` if the document is none. That of no user has a `uid` too.
pub fn read_lsid(document: &RawDocument) -> Option<Lsid> {
    let binary = |name, subtype| match pinion_bson::get(document, name) {
        Some(RawBsonRef::Binary(binary)) if binary.subtype == subtype => Some(binary.bytes),
        _ => None,
    };
    let uid = match pinion_bson::get(document, "uid") {
        None => NO_USER,
        Some(_) => binary("uid", BinarySubtype::Generic)?.try_into().ok()?,
    };
    let child = match pinion_bson::get(document, "txnUUID") {
        None => None,
        Some(_) => Some(ChildSession {
            txn_number: match pinion_bson::get(document, "txnNumber") {
                None => None,
                Some(RawBsonRef::Int64(number)) => Some(number),
                Some(_) => return None,
            },
            txn_uuid: binary("txnUUID", BinarySubtype::Uuid)?.try_into().ok()?,
        }),
    };
    Some(Lsid {
        id: binary("id", BinarySubtype::Uuid)?.try_into().ok()?,
        uid: Some(uid),
        child,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let check = |uid: Option<[u8; 32]>, expected: [u8; 32]| {
            for txn_number in [None, Some(3)] {
                let txn_uuid = [9; 16];
                let child = ChildSession {
                    txn_number,
                    txn_uuid,
                };
                for child in [None, Some(child)] {
                    let lsid = Lsid {
                        child,
                        ..Lsid::of_client([7; 16], uid)
                    };
                    let read = read_lsid(&lsid_document(&lsid)).expect("a name");
                    assert_eq!((read.id, read.uid), ([7; 16], Some(expected)));
                    assert_eq!(read.child, child);
                }
            }
        };
        check(None, NO_USER);
        check(Some([1; 32]), [1; 32]);
        assert_eq!(read_lsid(&pinion_bson::rawdoc! { "id": 1 }), None);
    }
}
