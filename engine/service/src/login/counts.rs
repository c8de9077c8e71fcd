//! Attempts of connections to authenticate, and successes: `security` of `serverStatus`.

use std::rc::Rc;

use pinion_auth::Hash;
use pinion_bson::DocBuilder;

use crate::counter::Counter;

/// The mechanisms.
const MECHANISMS: [Hash; 2] = [Hash::Sha1, Hash::Sha256];

/// The way of authentication, or the user it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// With its first hello.
    Speculative = 0,
    /// As a member of the set.
    Cluster = 1,
    /// In whatever way.
    Any = 2,
}

/// The counts of one mechanism, by the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfMechanism {
    received: [u64; 3],
    successful: [u64; 3],
}

/// The counts of one core.
#[derive(Debug, Default)]
pub struct AuthenticationCounts {
    received: [[Counter; 3]; 2],
    successful: [[Counter; 3]; 2],
    /// How often the mechanisms of a user were asked for.
    mechanisms_asked: Counter,
}

/// Their values, summed over cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationValues {
    mechanisms: [OfMechanism; 2],
    mechanisms_asked: u64,
}

fn place(mechanism: Hash) -> usize {
    let place = MECHANISMS.iter().position(|known| *known == mechanism);
    place.expect("all mechanisms are counted")
}

/// What this core has counted of authentications.
pub fn authentication_counts() -> Rc<AuthenticationCounts> {
    pinion_runtime::core_local()
}

impl AuthenticationCounts {
    pub(crate) fn received(&self, mechanism: Hash, way: Way) {
        self.received[place(mechanism)][way as usize].inc();
    }

    pub(crate) fn succeeded(&self, mechanism: Hash, way: Way) {
        self.successful[place(mechanism)][way as usize].inc();
    }

    /// Counts a question for the mechanisms of a user.
    pub fn mechanisms_asked(&self) {
        self.mechanisms_asked.inc();
    }

    /// The present counts.
    pub fn values(&self) -> AuthenticationValues {
        let values = |counters: &[Counter; 3]| counters.each_ref().map(Counter::get);
        let mut mechanisms = [OfMechanism::default(); 2];
        for (place, of) in mechanisms.iter_mut().enumerate() {
            of.received = values(&self.received[place]);
            of.successful = values(&self.successful[place]);
        }
        AuthenticationValues {
            mechanisms,
            mechanisms_asked: self.mechanisms_asked.get(),
        }
    }
}

impl AuthenticationValues {
    /// Adds another core's.
    pub fn add(&mut self, other: &AuthenticationValues) {
        self.mechanisms_asked += other.mechanisms_asked;
        for (mine, theirs) in self.mechanisms.iter_mut().zip(&other.mechanisms) {
            for way in 0..3 {
                mine.received[way] += theirs.received[way];
                mine.successful[way] += theirs.successful[way];
            }
        }
    }

    /// Appends `security`.
    pub fn append(&self, out: &mut DocBuilder) {
        out.start_document("security")
            .start_document("authentication")
            .append("saslSupportedMechsReceived", self.mechanisms_asked as i64)
            .start_document("mechanisms");
        for (mechanism, of) in MECHANISMS.iter().zip(&self.mechanisms) {
            out.start_document(mechanism.mechanism());
            for (name, way) in [
                ("speculativeAuthenticate", Way::Speculative),
                ("clusterAuthenticate", Way::Cluster),
                ("authenticate", Way::Any),
            ] {
                out.start_document(name)
                    .append("received", of.received[way as usize] as i64)
                    .append("successful", of.successful[way as usize] as i64)
                    .end();
            }
            out.end();
        }
        out.end().end().end();
    }
}
