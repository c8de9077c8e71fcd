//! What is sent to a node in place of a client's command: the same, but for what concerns the
//! connection between the two alone.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_runtime::Duration;
use pinion_server::Outgoing;
use pinion_sharding_protocol::{DatabaseVersion, Form, ShardVersion};
use pinion_wire::{Invocation, OpContext};

use crate::clock::append_gossip;
use crate::cluster::Cluster;
use crate::concerns::append_defaults;
use crate::limits::{LONGEST_COMMAND, REPLY_PATIENCE};

/// A command for a node: its body, and the document sequences behind it.
pub(crate) struct Request {
    pub body: RawDocumentBuf,
    pub sections: Vec<Bytes>,
}

/// The versions of the routing table that a request goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    pub database: Option<DatabaseVersion>,
    pub collection: Option<ShardVersion>,
}

impl From<Option<DatabaseVersion>> for Versions {
    fn from(database: Option<DatabaseVersion>) -> Versions {
        Versions {
            database,
            collection: None,
        }
    }
}

impl Versions {
    /// Those of a request for the part that a shard has of a sharded collection.
    pub(crate) fn of_shard(version: ShardVersion) -> Versions {
        Versions {
            database: None,
            collection: Some(version),
        }
    }

    /// Those of a request for an unsharded collection, at the primary shard of its database.
    pub(crate) fn of_unsharded(database: Option<DatabaseVersion>) -> Versions {
        // What has no version, as `config` has none, is not checked.
        let is_checked = database.is_some_and(|version| !version.is_fixed());
        Versions {
            database,
            collection: is_checked.then_some(ShardVersion::Unsharded),
        }
    }

    /// Appends them to a command, or to what it names a namespace with.
    pub(crate) fn append_to(self, out: &mut DocBuilder) {
        if let Some(version) = self.database.filter(|version| !version.is_fixed()) {
            version.append_to(out, "databaseVersion", Form::Own);
        }
        if let Some(version) = self.collection {
            version.append_to(out, "shardVersion", Form::Own);
        }
    }
}

/// Fields of a client's command that are not passed on: what a node gets of the clocks and of the
/// routing table comes from the router.
const NOT_PASSED_ON: [&[u8]; 15] = [
    b"$db",
    b"$clusterTime",
    b"$configTime",
    b"$topologyTime",
    b"$configServerState",
    b"$replData",
    b"$oplogQueryData",
    b"$client",
    b"$audit",
    b"shardVersion",
    b"databaseVersion",
    b"coordinator",
    b"mayBypassWriteBlocking",
    b"allowImplicitCollectionCreation",
    b"maxTimeMSOpOnly",
];

fn is_passed_on(name: &[u8]) -> bool {
    !NOT_PASSED_ON.contains(&name)
}

impl Request {
    /// A client's command, on a database.
    pub(crate) fn of(cmd: &Invocation, db: &str, versions: impl Into<Versions>) -> Request {
        let mut request = Request::with(cmd, db, versions, |_| {});
        request.sections = cmd.message.sequence_sections();
        request
    }

    /// The body of a client's command, with further fields, which take the place of those that are
    /// named as they are.
    pub(crate) fn with(
        cmd: &Invocation,
        db: &str,
        versions: impl Into<Versions>,
        further: impl FnOnce(&mut DocBuilder),
    ) -> Request {
        let mut more = DocBuilder::new();
        further(&mut more);
        append_defaults(&mut more, cmd);
        let more = more.finish();
        let body = cmd.body();
        let mut out = DocBuilder::with_capacity(body.as_bytes().len() + 256);
        let of_more = |name: &[u8]| {
            let mut elems = pinion_bson::raw_elements(&more);
            elems.find(|elem| elem.name == name)
        };
        for elem in pinion_bson::raw_elements(body) {
            match of_more(elem.name) {
                // The first one is the command's name, and stays that.
                Some(replacing) => out.append_elem(&replacing),
                None if is_passed_on(elem.name) => out.append_elem(&elem),
                None => continue,
            };
        }
        for elem in pinion_bson::raw_elements(&more) {
            if !pinion_bson::raw_elements(body).any(|of_body| of_body.name == elem.name) {
                out.append_elem(&elem);
            }
        }
        append_envelope(&mut out, db, versions.into());
        Request {
            body: out.finish(),
            sections: Vec::new(),
        }
    }

    /// The same, with a document sequence in place of what the client's command has under its name.
    pub(crate) fn with_section(
        cmd: &Invocation,
        db: &str,
        version: impl Into<Versions>,
        (name, section): (&str, Bytes),
        further: impl FnOnce(&mut DocBuilder),
    ) -> Request {
        let request = Request::with(cmd, db, version, further);
        let mut body = DocBuilder::with_capacity(request.body.as_bytes().len());
        for elem in pinion_bson::raw_elements(&request.body) {
            if elem.name != name.as_bytes() {
                body.append_elem(&elem);
            }
        }
        Request {
            body: body.finish(),
            sections: vec![section],
        }
    }

    /// A command that the router itself sends for an operation, on a database.
    pub(crate) fn own(
        db: &str,
        versions: impl Into<Versions>,
        fields: impl FnOnce(&mut DocBuilder),
    ) -> Request {
        let mut out = DocBuilder::new();
        fields(&mut out);
        append_envelope(&mut out, db, versions.into());
        Request {
            body: out.finish(),
            sections: Vec::new(),
        }
    }

    pub(crate) fn outgoing(&self) -> Outgoing<'_> {
        Outgoing {
            body: &self.body,
            sections: &self.sections,
        }
    }

    pub(crate) fn body(&self) -> &RawDocument {
        &self.body
    }
}

/// Appends what stands behind the command itself.
fn append_envelope(out: &mut DocBuilder, db: &str, versions: Versions) {
    versions.append_to(out);
    append_gossip(out, &*Cluster::here().clock);
    out.append("$db", db);
}

/// How long the reply to a request is waited for: the node keeps to the time of the operation, so
/// the reply has some more.
pub(crate) fn time_left(ctx: &OpContext) -> Duration {
    let now = pinion_runtime::now().as_nanos();
    match ctx.remaining_ns(now) {
        Some(ns) => Duration::from_nanos(ns) + REPLY_PATIENCE,
        None => LONGEST_COMMAND,
    }
}
