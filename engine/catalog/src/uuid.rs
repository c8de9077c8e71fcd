//! Collection and index-build UUIDs.

use std::fmt;

use pinion_bson::{BinarySubtype, RawBinaryRef, RawBsonRef};
use pinion_runtime::Rng;

/// A random (version 4) UUID, as BSON binary of subtype 4.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// A new random UUID out of the given stream.
    pub fn random(rng: &mut Rng) -> Uuid {
        let mut bytes = [0u8; 16];
        rng.fill_bytes(&mut bytes);
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Uuid(bytes)
    }

    /// The UUID that a BSON value holds, if it holds one.
    pub fn from_bson(value: RawBsonRef<'_>) -> Option<Uuid> {
        match value {
            RawBsonRef::Binary(b) if b.subtype == BinarySubtype::Uuid => {
                b.bytes.try_into().ok().map(Uuid)
            }
            _ => None,
        }
    }

    /// This UUID as a BSON value.
    pub fn to_bson(&self) -> RawBsonRef<'_> {
        RawBsonRef::Binary(RawBinaryRef {
            subtype: BinarySubtype::Uuid,
            bytes: &self.0,
        })
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
