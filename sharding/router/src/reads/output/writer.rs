//! The commands by which a stage writes: what a client could send, in the name of the aggregation's
//! own client.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_runtime::core_local;
use pinion_service::interrupt::interruptible;
use pinion_wire::idl::{GenericArguments, Namespace, append_lsid, i64_exact};
use pinion_wire::{
    Error, ErrorCode, Invocation, OpContext, Registry, Reply, Result, document_section,
    encode_with_sections, parse_message,
};

use crate::limits::{OUTPUT_BATCH_BYTES, OUTPUT_BATCH_DOCUMENTS};
use crate::reads::sources::Routed;
use crate::writes::{Batch, BatchKind, number_of, run};

/// Writes into one collection, wherever that is.
pub(super) struct Writer<'w> {
    pub ctx: &'w OpContext,
    pub around: &'w Routed,
    pub ns: &'w Namespace,
}

/// What a batch has done.
pub(super) struct Written {
    /// Documents inserted, matched and upserted.
    pub n: i64,
    /// The first statement that has failed.
    pub failed: Option<Error>,
}

/// Documents for one command.
pub(super) struct Filling<T> {
    items: Vec<T>,
    bytes: usize,
}

impl<T> Filling<T> {
    pub(super) fn new() -> Filling<T> {
        Filling {
            items: Vec::new(),
            bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds one of a size. Whether there is no room for another.
    pub(super) fn add(&mut self, item: T, bytes: usize) -> bool {
        self.items.push(item);
        self.bytes += bytes;
        self.items.len() >= OUTPUT_BATCH_DOCUMENTS || self.bytes >= OUTPUT_BATCH_BYTES
    }

    pub(super) fn take(&mut self) -> Vec<T> {
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }
}

impl Writer<'_> {
    /// Sends statements to the shards that they concern. Those behind one that fails are executed,
    /// unless there is an order.
    ///
    /// # Errors
    /// Those of the whole command; the operation is interrupted.
    pub(super) async fn write(
        &self,
        kind: BatchKind,
        is_ordered: bool,
        statements: &[RawDocumentBuf],
    ) -> Result<Written> {
        let cmd = self.command(kind, is_ordered, statements)?;
        let running = async { run(Batch::read(&cmd, kind)?).await };
        let reply = interruptible(self.ctx, Box::pin(running)).await;
        if let Some(time) = cmd.ctx.written_at() {
            self.ctx.wrote(time);
        }
        Ok(self.written(&reply??))
    }

    fn written(&self, reply: &Reply) -> Written {
        if let Some(RawBsonRef::Document(error)) = reply.get("writeConcernError") {
            self.around.note_concern_error(error);
        }
        let errors = reply
            .get("writeErrors")
            .and_then(|errors| errors.as_array());
        let first = errors.and_then(|errors| pinion_bson::values(errors).next());
        Written {
            n: reply.get("n").and_then(i64_exact).unwrap_or(0),
            failed: first.and_then(|first| first.as_document()).map(error_of),
        }
    }

    /// A client's command with these statements.
    fn command(
        &self,
        kind: BatchKind,
        is_ordered: bool,
        statements: &[RawDocumentBuf],
    ) -> Result<Invocation> {
        let name = match kind {
            BatchKind::Insert => "insert",
            BatchKind::Update => "update",
            BatchKind::Delete => "delete",
        };
        let section = document_section(kind.field(), statements.iter().map(|one| &**one));
        let body = self.body(name, is_ordered);
        let message = parse_message(encode_with_sections(0, &body, &[section]));
        let message =
            message.map_err(|_| Error::internal("the router cannot read its own command"))?;
        let outer = &self.around.cmd.ctx;
        let registry = core_local::<Registry>();
        let command = registry.find(name)?.clone();
        let args = GenericArguments {
            lsid: outer.args.lsid,
            write_concern: outer.args.write_concern.clone().filter(|concern| {
                // What was written has to be known.
                !concern.is_unacknowledged()
            }),
            api: outer.args.api,
            ..GenericArguments::default()
        };
        let (client, db) = (outer.client.clone(), self.ns.db());
        let ctx = OpContext::new(
            outer.op_id,
            client,
            command.spec,
            db,
            args,
            outer.started_ns,
        );
        Ok(Invocation {
            message,
            ctx: ctx.with_deadline(self.ctx.deadline_ns),
            command,
            exhaust_allowed: false,
        })
    }

    fn body(&self, name: &str, is_ordered: bool) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append(name, self.ns.collection())
            .append("ordered", is_ordered);
        self.around.append_write_options(&mut out);
        if let Some(lsid) = &self.ctx.args.lsid {
            append_lsid(&mut out, "lsid", lsid);
        }
        let now = pinion_runtime::now().as_nanos();
        if let Some(left) = self.ctx.remaining_ns(now) {
            let ms = i64::try_from(left / 1_000_000).unwrap_or(i64::MAX);
            out.append("maxTimeMS", ms.clamp(1, i64::from(i32::MAX)));
        }
        out.append("$db", self.ns.db());
        out.finish()
    }
}

/// The error of an entry of `writeErrors`.
fn error_of(entry: &RawDocument) -> Error {
    let text = pinion_bson::get(entry, "errmsg").and_then(|text| text.as_str());
    let error = Error::new(
        ErrorCode(number_of(entry, "code") as i32),
        text.unwrap_or_default(),
    );
    let mut further = DocBuilder::new();
    for elem in pinion_bson::raw_elements(entry) {
        if !matches!(elem.name, b"index" | b"code" | b"codeName" | b"errmsg") {
            further.append_elem(&elem);
        }
    }
    let further: RawDocumentBuf = further.finish();
    match further.is_empty() {
        true => error,
        false => error.with_extra(further),
    }
}
