//! Signed cluster times: only a holder of a key can make time go forward.
//!
//! Source: sharding document, "SignedComponentFormat" and "Key management".

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use crate::timestamp::Timestamp;

/// The length of keys and of proofs.
pub const KEY_BYTES: usize = 20;

/// The proof covers all times that agree above these bits, as MongoDB's does, so that one
/// computation serves many gossiped times; a client gains at most a quarter of a million ticks by
/// it.
const RANGE_MASK: u64 = 0x3_ffff;

/// The name of a key: `_id` of its document in `admin.system.keys`, which is the cluster time when
/// it was made, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub i64);

/// A signing key. It never shows in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; KEY_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A cluster time with its proof: `$clusterTime` on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedTime {
    pub time: Timestamp,
    pub proof: [u8; KEY_BYTES],
    pub key_id: KeyId,
}

impl SignedTime {
    /// A time without a proof, as nodes without keys gossip it.
    pub fn unsigned(time: Timestamp) -> SignedTime {
        SignedTime {
            time,
            proof: [0; KEY_BYTES],
            key_id: KeyId(0),
        }
    }
}

/// Why a signed time is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyError {
    /// The key is not known here, or not yet (KeyNotFound).
    UnknownKey(KeyId),
    /// The proof is wrong (TimeProofMismatch).
    Mismatch,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerifyError::UnknownKey(id) => {
                write!(
                    f,
                    "No keys found for HMAC that is valid for time with id: {}",
                    id.0
                )
            }
            VerifyError::Mismatch => write!(f, "Proof does not match the cluster time"),
        }
    }
}

impl std::error::Error for VerifyError {}

#[derive(Clone, Debug)]
struct KeyRecord {
    key: Key,
    expires_at: Timestamp,
}

/// The keys known to a node. Old ones stay: they verify what was signed in the past.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    keys: BTreeMap<KeyId, KeyRecord>,
    /// The last proof computed: most gossip is of the same quarter million ticks under the same
    /// key.
    latest: Cell<Option<(KeyId, u64, [u8; KEY_BYTES])>>,
}

impl KeyRing {
    pub fn new() -> KeyRing {
        KeyRing::default()
    }

    /// Adds a key document of `admin.system.keys`.
    pub fn insert(&mut self, id: KeyId, key: Key, expires_at: Timestamp) {
        self.latest.set(None);
        self.keys.insert(id, KeyRecord { key, expires_at });
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Signs with the key that expires first of those still valid at this time; `None` if there is
    /// none.
    pub fn sign(&self, time: Timestamp) -> Option<SignedTime> {
        let (id, record) = self
            .keys
            .iter()
            .filter(|(_, record)| record.expires_at > time)
            .min_by_key(|(id, record)| (record.expires_at, **id))?;
        Some(SignedTime {
            time,
            proof: self.proof(*id, &record.key, time),
            key_id: *id,
        })
    }

    /// Checks a proof. An expired key still verifies: the time was valid when it was signed.
    pub fn verify(&self, signed: &SignedTime) -> Result<(), VerifyError> {
        let record = self
            .keys
            .get(&signed.key_id)
            .ok_or(VerifyError::UnknownKey(signed.key_id))?;
        let expected = self.proof(signed.key_id, &record.key, signed.time);
        // No early exit: the time taken must not reveal how much of a guess is right.
        let differing = expected
            .iter()
            .zip(&signed.proof)
            .fold(0, |all, (a, b)| all | (a ^ b));
        if differing == 0 {
            Ok(())
        } else {
            Err(VerifyError::Mismatch)
        }
    }

    fn proof(&self, id: KeyId, key: &Key, time: Timestamp) -> [u8; KEY_BYTES] {
        let ceiling = time.as_u64() | RANGE_MASK;
        if let Some((cached_id, cached_ceiling, proof)) = self.latest.get()
            && (cached_id, cached_ceiling) == (id, ceiling)
        {
            return proof;
        }
        let mut mac = Hmac::<Sha1>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
        mac.update(&ceiling.to_be_bytes());
        let proof: [u8; KEY_BYTES] = mac.finalize().into_bytes().into();
        self.latest.set(Some((id, ceiling, proof)));
        proof
    }

    /// The expiry times of the keys that must be made now, so that at `now` there is a valid key
    /// and a next one, each lasting `interval_secs` (three months by default). Empty most of the
    /// time.
    pub fn missing_keys(&self, now: Timestamp, interval_secs: u32) -> Vec<Timestamp> {
        let mut expiries: Vec<Timestamp> = self
            .keys
            .values()
            .map(|record| record.expires_at)
            .filter(|expiry| *expiry > now)
            .collect();
        expiries.sort();
        let after = |time: Timestamp| Timestamp::new(time.secs().saturating_add(interval_secs), 0);
        match expiries.as_slice() {
            [] => vec![after(now), after(after(now))],
            [only] => vec![after(*only)],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> KeyRing {
        let mut ring = KeyRing::new();
        ring.insert(KeyId(1), Key([1; 20]), Timestamp::new(100, 0));
        ring.insert(KeyId(2), Key([2; 20]), Timestamp::new(200, 0));
        ring
    }

    #[test]
    fn hmac_sha1_of_rfc_2202() {
        let mut mac = Hmac::<Sha1>::new_from_slice(&[0x0b; 20]).unwrap();
        mac.update(b"Hi There");
        let digest: [u8; 20] = mac.finalize().into_bytes().into();
        assert_eq!(
            digest,
            [
                0xb6, 0x17, 0x31, 0x86, 0x55, 0x05, 0x72, 0x64, 0xe2, 0x8b, 0xc0, 0xb6, 0xfb, 0x37,
                0x8c, 0x8e, 0xf1, 0x46, 0xbe, 0x00
            ]
        );
    }

    #[test]
    fn signing_and_verifying() {
        let ring = ring();
        let signed = ring.sign(Timestamp::new(50, 3)).unwrap();
        assert_eq!(signed.key_id, KeyId(1));
        assert_eq!(ring.verify(&signed), Ok(()));
        // Within the range of one proof the proof is the same; beyond it, it is not.
        assert_eq!(
            ring.verify(&SignedTime {
                time: Timestamp::new(50, 9),
                ..signed
            }),
            Ok(())
        );
        let later = SignedTime {
            time: Timestamp::new(51, 3),
            ..signed
        };
        assert_eq!(ring.verify(&later), Err(VerifyError::Mismatch));
        for at in 0..20 {
            let mut forged = signed;
            forged.proof[at] ^= 1;
            assert_eq!(ring.verify(&forged), Err(VerifyError::Mismatch));
        }
        let unknown = SignedTime {
            key_id: KeyId(9),
            ..signed
        };
        assert_eq!(
            ring.verify(&unknown),
            Err(VerifyError::UnknownKey(KeyId(9)))
        );
        let other_key = SignedTime {
            key_id: KeyId(2),
            ..signed
        };
        assert_eq!(ring.verify(&other_key), Err(VerifyError::Mismatch));
        assert!(
            ring.verify(&SignedTime::unsigned(Timestamp::new(50, 3)))
                .is_err()
        );
    }

    #[test]
    fn keys_expire_for_signing_alone() {
        let ring = ring();
        let old = ring.sign(Timestamp::new(99, 0)).unwrap();
        assert_eq!(old.key_id, KeyId(1));
        assert_eq!(ring.sign(Timestamp::new(100, 0)).unwrap().key_id, KeyId(2));
        assert_eq!(ring.sign(Timestamp::new(200, 0)), None);
        assert_eq!(ring.verify(&old), Ok(()));
    }

    #[test]
    fn a_next_key_is_always_ready() {
        let at = |secs| Timestamp::new(secs, 0);
        assert_eq!(KeyRing::new().missing_keys(at(10), 100), [at(110), at(210)]);
        assert_eq!(ring().missing_keys(at(10), 100), []);
        assert_eq!(ring().missing_keys(at(100), 100), [at(300)]);
        assert_eq!(ring().missing_keys(at(500), 100), [at(600), at(700)]);
    }

    #[test]
    fn keys_do_not_show() {
        assert!(!format!("{:?}", ring()).contains("1, 1"));
    }
}
