//! A key as it is stored in `admin.system.keys`:
//! `{_id: <long>, purpose: "HMAC", key: <20 bytes>, expiresAt: <timestamp>}`.

use pinion_bson::{Binary, BinarySubtype, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_clock::{KEY_BYTES, Key, KeyId, Timestamp};

pub const PURPOSE: &str = "HMAC";

/// A stored key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDocument {
    pub id: KeyId,
    pub key: Key,
    pub expires_at: Timestamp,
}

impl KeyDocument {
    /// Reads one; `None` for a document of another kind, which does no harm.
    pub fn parse(document: &RawDocument) -> Option<KeyDocument> {
        let field = |name| pinion_bson::get(document, name);
        let purpose = field("purpose")?.as_str()?;
        match (field("_id")?, field("key")?, field("expiresAt")?) {
            (RawBsonRef::Int64(id), RawBsonRef::Binary(key), RawBsonRef::Timestamp(at))
                if purpose == PURPOSE && id != 0 =>
            {
                let bytes: [u8; KEY_BYTES] = key.bytes.try_into().ok()?;
                Some(KeyDocument {
                    id: KeyId(id),
                    key: Key(bytes),
                    expires_at: Timestamp::new(at.time, at.increment),
                })
            }
            _ => None,
        }
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        rawdoc! {
            "_id": self.id.0,
            "purpose": PURPOSE,
            "key": Binary { subtype: BinarySubtype::Generic, bytes: self.key.0.to_vec() },
            "expiresAt": pinion_bson::Timestamp {
                time: self.expires_at.secs(),
                increment: self.expires_at.inc(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let key = KeyDocument {
            id: KeyId(7),
            key: Key([3; KEY_BYTES]),
            expires_at: Timestamp::new(9, 1),
        };
        let stored = key.to_bson();
        assert_eq!(KeyDocument::parse(&stored), Some(key));
        let not = |document: RawDocumentBuf| {
            assert_eq!(KeyDocument::parse(&document), None, "{document:?}");
        };
        not(rawdoc! {});
        let bytes = |n: usize| Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![1; n],
        };
        let at = pinion_bson::Timestamp {
            time: 1,
            increment: 0,
        };
        not(rawdoc! { "_id": 7i64, "purpose": "other", "key": bytes(20), "expiresAt": at });
        not(rawdoc! { "_id": 7i64, "purpose": "HMAC", "key": bytes(19), "expiresAt": at });
        not(rawdoc! { "_id": 7, "purpose": "HMAC", "key": bytes(20), "expiresAt": at });
        not(rawdoc! { "_id": 0i64, "purpose": "HMAC", "key": bytes(20), "expiresAt": at });
        not(rawdoc! { "_id": 7i64, "purpose": "HMAC", "key": bytes(20), "expiresAt": 1 });
    }
}
