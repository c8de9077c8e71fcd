//! The reply to a hello, as far as it says something of the replica set.

use pinion_bson::{ObjectId, RawBsonRef, RawDocument, RawDocumentBuf, get, rawdoc, values};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_wire::HostPort;
use pinion_wire::idl::{i32_clamped, i64_clamped, truthy};

use super::topology::LastWrite;
use crate::limits::MAX_SET_HOSTS;

/// `topologyVersion`: grows with each change of what a member reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyVersion {
    pub process: ObjectId,
    pub counter: i64,
}

impl TopologyVersion {
    /// Reads the field of a reply; `None` where there is none, or one of another form.
    pub fn of(reply: &RawDocument) -> Option<TopologyVersion> {
        let version = get(reply, "topologyVersion")?.as_document()?;
        Some(TopologyVersion {
            process: get(version, "processId")?.as_object_id()?,
            counter: get(version, "counter").and_then(i64_clamped)?,
        })
    }

    pub fn to_document(self) -> RawDocumentBuf {
        rawdoc! { "processId": self.process, "counter": self.counter }
    }

    /// Whether this says nothing that `other` does not say. Versions of two processes cannot be
    /// compared.
    pub fn is_at_most(&self, other: &TopologyVersion) -> bool {
        self.process == other.process && self.counter <= other.counter
    }
}

/// What a node says of itself and its set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HelloReply {
    pub set: Option<String>,
    /// It is to be a member of a set, but has no configuration yet.
    pub is_ghost: bool,
    pub is_primary: bool,
    pub is_secondary: bool,
    pub is_arbiter: bool,
    pub is_hidden: bool,
    pub set_version: Option<i64>,
    pub election_id: Option<ObjectId>,
    /// `hosts`, `passives` and `arbiters`.
    pub hosts: Vec<HostPort>,
    pub me: Option<HostPort>,
    pub tags: Vec<(String, String)>,
    pub last_write: Option<LastWrite>,
    pub min_wire_version: i32,
    pub max_wire_version: i32,
    pub topology_version: Option<TopologyVersion>,
}

impl HelloReply {
    /// Reads a reply to `hello` or `isMaster`. What is not of its type counts as absent.
    pub fn parse(reply: &RawDocument) -> HelloReply {
        let is = |name| get(reply, name).is_some_and(truthy);
        let number = |name| get(reply, name).and_then(i64_clamped);
        let text = |name| get(reply, name).and_then(|value| value.as_str());
        let wire_version = |name| get(reply, name).and_then(i32_clamped).unwrap_or(0);
        let mut hosts = Vec::new();
        for list in ["hosts", "passives", "arbiters"] {
            append_hosts(get(reply, list), &mut hosts);
        }
        HelloReply {
            set: text("setName").map(str::to_owned),
            is_ghost: is("isreplicaset"),
            is_primary: is("isWritablePrimary") || is("ismaster"),
            is_secondary: is("secondary"),
            is_arbiter: is("arbiterOnly"),
            is_hidden: is("hidden"),
            set_version: number("setVersion"),
            election_id: get(reply, "electionId").and_then(|id| id.as_object_id()),
            hosts,
            me: text("me").and_then(|me| HostPort::parse(me).ok()),
            tags: tags_of(reply),
            last_write: last_write_of(reply),
            min_wire_version: wire_version("minWireVersion"),
            max_wire_version: wire_version("maxWireVersion"),
            topology_version: TopologyVersion::of(reply),
        }
    }
}

fn append_hosts(list: Option<RawBsonRef<'_>>, hosts: &mut Vec<HostPort>) {
    let Some(RawBsonRef::Array(list)) = list else {
        return;
    };
    for host in values(list) {
        let host = host.as_str().and_then(|host| HostPort::parse(host).ok());
        if let Some(host) = host
            && hosts.len() < MAX_SET_HOSTS
            && !hosts.contains(&host)
        {
            hosts.push(host);
        }
    }
}

fn tags_of(reply: &RawDocument) -> Vec<(String, String)> {
    let Some(RawBsonRef::Document(tags)) = get(reply, "tags") else {
        return Vec::new();
    };
    let tags = pinion_bson::elements(tags);
    let texts = tags.filter_map(|(name, value)| Some((name, value.as_str()?)));
    texts
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn last_write_of(reply: &RawDocument) -> Option<LastWrite> {
    let last = get(reply, "lastWrite")?.as_document()?;
    let date = get(last, "lastWriteDate")?.as_datetime()?;
    let op_time = get(last, "opTime").and_then(|time| time.as_document());
    let op_time = op_time.and_then(|time| {
        let ts = get(time, "ts")?.as_timestamp()?;
        let term = get(time, "t").and_then(i64_clamped);
        let term = term.map_or(Term::UNINITIALIZED, Term);
        Some(OpTime::new(Timestamp::new(ts.time, ts.increment), term))
    });
    Some(LastWrite {
        date_ms: date.timestamp_millis(),
        op_time: op_time.unwrap_or_default(),
    })
}
