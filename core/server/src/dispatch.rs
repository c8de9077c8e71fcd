//! One command from its message to its reply: look-up, generic arguments, rules, handler,
//! statistics.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, JsonMode, RawBsonRef, to_extended_json, to_extended_json_limited};
use pinion_runtime::{Duration, now};
use pinion_wire::idl::GenericArguments;
use pinion_wire::{
    Attempt, Category, ClientInfo, Command, CommandRole, Error, ErrorCode, Flags, HandlerFuture,
    Invocation, LabelContext, Message, OpContext, Prepared, Reply, Result, ServerCounters,
    SlowLine, append_labels, check_permitted, error_reply, labels_for, namespace_named, shown_body,
};

use crate::core::ServerCore;
use crate::limits::{MAX_REPLY_BYTES, SHORTENED_MESSAGE_BYTES, SLOW_COMMAND_LOG_BYTES};
use crate::unwind::{CatchUnwind, panic_text};

/// Whose commands are run, one after another.
pub(crate) struct Caller {
    pub client: Arc<ClientInfo>,
    /// The operation that is running, for those that must interrupt it.
    pub running: RefCell<Option<OpContext>>,
    /// What the next command may be run by, if it is like the one before.
    prepared: RefCell<Option<Prepared>>,
}

impl Caller {
    pub(crate) fn new(client: Arc<ClientInfo>) -> Caller {
        Caller {
            client,
            running: RefCell::new(None),
            prepared: RefCell::new(None),
        }
    }
}

/// What a command is run with.
pub(crate) struct Dispatch<'a> {
    core: &'a ServerCore,
    caller: &'a Caller,
}

impl<'a> Dispatch<'a> {
    pub(crate) fn new(core: &'a ServerCore, caller: &'a Caller) -> Dispatch<'a> {
        Dispatch { core, caller }
    }

    /// The reply to this message if it repeats a command and can be answered at once, here or by
    /// another core.
    pub(crate) async fn repeat_now(&self, bytes: &Bytes) -> Option<Reply> {
        let (started_ns, attempt) = {
            let prepared = self.caller.prepared.borrow();
            let known = prepared.as_ref()?;
            let started_ns = now().as_nanos();
            let attempt = catch_unwind(AssertUnwindSafe(|| known.run_now(bytes, started_ns)));
            (started_ns, attempt.map_err(|panic| panic_text(&*panic)))
        };
        let ran = match attempt {
            Ok(Attempt::Not) => return None,
            Ok(Attempt::Ran(ran)) => Ok(ran),
            Ok(Attempt::Asked(asked)) => CatchUnwind::new(asked).await.transpose()?,
            Err(panic) => Err(panic),
        };
        let mut prepared = self.caller.prepared.borrow_mut();
        let known = prepared.as_mut().expect("nothing else runs meanwhile");
        known.command.count_start();
        let ended_ns = match &ran {
            Ok(ran) => ran.ended_ns,
            Err(_) => now().as_nanos(),
        };
        let took = Duration::from_nanos(ended_ns.saturating_sub(started_ns));
        let outcome = match ran {
            Ok(ran) if !self.is_slow(took) => return Some(self.completed(ran.reply)),
            Ok(ran) => Ok(ran.reply),
            Err(panic) => Err(self.panicked(&known.command, &panic)),
        };
        let ctx = known.context(self.core.next_op_id(), started_ns);
        let message = known.message(bytes).expect("it was run");
        let command = known.command.clone();
        if outcome.is_err() {
            *prepared = None;
        }
        Some(self.finish(&command, &message, &ctx, took, outcome))
    }

    /// The message if it repeats a command: there is nothing to check in it.
    pub(crate) fn known(&self, bytes: &Bytes) -> Option<Message> {
        self.caller.prepared.borrow().as_ref()?.message(bytes)
    }

    /// Runs the command of a message, as the registry found it. The reply is complete, whether the
    /// command succeeded or not.
    pub(crate) async fn run(&self, command: Result<&Rc<Command>>, message: &Message) -> Reply {
        match command {
            Ok(command) => self.run_command(command, message).await,
            Err(error) => {
                tracing::debug!(target: "COMMAND", id = 21_965u64, ctx = self.context(), command = message.command_name(), "Command not found in registry");
                self.failed(None, &error, &[])
            }
        }
    }

    async fn run_command(&self, command: &Rc<Command>, message: &Message) -> Reply {
        command.count_start();
        // Taken out while it runs, so that nothing is borrowed across a wait.
        let known = match message.repeats() {
            true => self.caller.prepared.take(),
            false => None,
        };
        let (ctx, outcome) = match known {
            Some(mut known) => {
                let ctx = known.context(self.core.next_op_id(), now().as_nanos());
                *self.caller.running.borrow_mut() = Some(ctx.clone());
                let running = known.run(invocation(command, message, &ctx));
                let outcome = self.caught(command, running).await;
                *self.caller.prepared.borrow_mut() = Some(known);
                (ctx, outcome)
            }
            None => {
                let ctx = match self.context_of(command, message) {
                    Ok(ctx) => ctx,
                    Err(error) => {
                        command.count_failure();
                        return self.failed(None, &error, &[]);
                    }
                };
                *self.caller.running.borrow_mut() = Some(ctx.clone());
                let outcome = match check_permitted(command.spec, message, &ctx) {
                    Ok(()) => {
                        let running = command.invoke(invocation(command, message, &ctx));
                        self.caught(command, running).await
                    }
                    Err(error) => Err(error),
                };
                (ctx, outcome)
            }
        };
        *self.caller.running.borrow_mut() = None;
        let busy_since_ns = ctx.started_ns + ctx.work().awaited_ns();
        let took = Duration::from_nanos(now().as_nanos().saturating_sub(busy_since_ns));
        let mut reply = self.finish(command, message, &ctx, took, outcome);
        if let Some(repeatable) = reply.take_repeatable() {
            *self.caller.prepared.borrow_mut() =
                Some(Prepared::new(repeatable, command.clone(), ctx));
        }
        reply
    }

    /// The end of every command: its reply, and its entries in the log and the counters.
    fn finish(
        &self,
        command: &Command,
        message: &Message,
        ctx: &OpContext,
        took: Duration,
        outcome: Result<Reply>,
    ) -> Reply {
        // Hello waits because its client asked it to.
        let is_slow = match ctx.work().slow_line() {
            SlowLine::ByTime => self.is_slow(took),
            SlowLine::Decided(written) => written,
        };
        if is_slow && command.spec.role != CommandRole::Hello {
            self.log_slow(message, ctx, took, &outcome);
        }
        match outcome.and_then(check_size) {
            Ok(reply) => self.succeeded(command, ctx, reply),
            Err(error) => {
                command.count_failure();
                tracing::debug!(target: "COMMAND", id = 21_962u64, ctx = self.context(), command = command.spec.name, db = &*ctx.db, code = error.code.0, error = error.message, "Command failed");
                let write_concern = error
                    .extra
                    .as_ref()
                    .and_then(|extra| code_of(pinion_bson::get(extra, "writeConcernError")?));
                let labels = labels_for(error.code, write_concern, label_context(ctx));
                let mut reply = self.failed(Some(ctx), &error, &labels);
                // A client that sends writes and waits for no reply learns only in this way that
                // they reach the wrong node.
                if error.is(Category::NOT_PRIMARY) && !message.wants_reply() {
                    reply.close_connection();
                }
                reply
            }
        }
    }

    /// The reply of a command that succeeded.
    fn succeeded(&self, command: &Command, ctx: &OpContext, mut reply: Reply) -> Reply {
        reply.append_ok();
        let failure = match command.spec.supports_write_concern {
            true => reply.get("writeConcernError").and_then(code_of),
            false => None,
        };
        if failure.is_some() {
            let labels = labels_for(ErrorCode::OK, failure, label_context(ctx));
            append_labels(&mut reply, &labels);
        }
        self.append_epilogue(Some(ctx), failure, &mut reply);
        reply
    }

    /// The reply of a read that repeated another and succeeded.
    fn completed(&self, mut reply: Reply) -> Reply {
        reply.append_ok();
        self.append_epilogue(None, None, &mut reply);
        reply
    }

    /// The reply of a command that failed.
    fn failed(&self, ctx: Option<&OpContext>, error: &Error, labels: &[&'static str]) -> Reply {
        let mut reply = error_reply(error, labels);
        if reply.len() > MAX_REPLY_BYTES {
            reply = error_reply(&shortened(error), labels);
        }
        self.append_epilogue(ctx, Some(error.code), &mut reply);
        reply
    }

    fn append_epilogue(
        &self,
        ctx: Option<&OpContext>,
        failure: Option<ErrorCode>,
        reply: &mut Reply,
    ) {
        if let Some(epilogue) = self.core.registry.epilogue() {
            epilogue.append(ctx, failure, reply);
        }
    }

    fn is_slow(&self, took: Duration) -> bool {
        took >= Duration::from_millis(self.core.counters.slow_ms.get())
    }

    fn context_of(&self, command: &Command, message: &Message) -> Result<OpContext> {
        let db = message.database()?;
        let args = GenericArguments::parse(message.command_name(), message.body())?;
        let started_ns = now().as_nanos();
        Ok(OpContext::new(
            self.core.next_op_id(),
            self.caller.client.clone(),
            command.spec,
            db,
            args,
            started_ns,
        ))
    }

    /// Runs a handler; a panic in it is an error of its command.
    async fn caught(&self, command: &Command, running: HandlerFuture) -> Result<Reply> {
        let outcome = CatchUnwind::new(running).await;
        outcome.unwrap_or_else(|panic| Err(self.panicked(command, &panic)))
    }

    #[cold]
    fn panicked(&self, command: &Command, panic: &str) -> Error {
        ServerCounters::add(&self.core.counters.panics, 1);
        tracing::error!(target: "COMMAND", id = 7_100_001u64, ctx = self.context(), command = command.spec.name, panic, "Command handler panicked");
        Error::new(
            ErrorCode::INTERNAL_ERROR,
            format!(
                "The command {} failed because of an internal fault: {panic}",
                command.spec.name
            ),
        )
    }

    #[cold]
    fn log_slow(
        &self,
        message: &Message,
        ctx: &OpContext,
        took: Duration,
        outcome: &Result<Reply>,
    ) {
        let body = shown_body(ctx.command.name, message.body());
        let text = to_extended_json_limited(&body, JsonMode::Relaxed, SLOW_COMMAND_LOG_BYTES);
        let (error, reply) = (outcome.as_ref().err(), outcome.as_ref().ok());
        let (work, written) = (ctx.work(), ctx.work().written());
        let known = |documents: u64| (documents > 0).then_some(documents);
        let (mut choice, mut locks) = (DocBuilder::new(), DocBuilder::new());
        if let Some(plan) = work.plan() {
            plan.append_choice(&mut choice);
        }
        work.append_locks(&mut locks);
        let (choice, locks) = (choice.finish(), locks.finish());
        let mut tickets = DocBuilder::new();
        work.append_tickets(&mut tickets);
        let tickets = tickets.finish();
        let chosen = |name| pinion_bson::get(&choice, name);
        let hash = |name| chosen(name).and_then(|hash| hash.as_str());
        tracing::info!(
            target: "COMMAND", id = 51_803u64, ctx = self.context(), r#type = "command", ns = namespace_named(ctx.command, &ctx.db, message.body()),
            db = &*ctx.db, appName = ctx.client.app_name(), command = display(&text), planSummary = work.plan_summary(),
            planningTimeMicros = chosen("planningTimeMicros").and_then(|us| us.as_i64()),
            cursorid = work.cursor(), keysExamined = work.keys_examined(), docsExamined = work.docs_examined(),
            fromMultiPlanner = chosen("fromMultiPlanner").map(|_| true), hasSortStage = work.has_sort().then_some(true), usedDisk = work.used_disk().then_some(true),
            cursorExhausted = work.is_exhausted().then_some(true), numYields = work.yields(),
            nMatched = known(written.matched), nModified = known(written.modified), ninserted = known(written.inserted),
            ndeleted = known(written.deleted), nUpserted = known(written.upserted), nreturned = work.documents_returned(),
            queryHash = hash("queryHash"), planCacheShapeHash = hash("planCacheShapeHash"), planCacheKey = hash("planCacheKey"),
            queryFramework = work.plan().map(|_| "classic"), errCode = error.map(|error| error.code.0),
            errMsg = error.map(|error| &*error.message), reslen = reply.map(|reply| reply.len() as u64),
            locks = display(to_extended_json(&locks, JsonMode::Relaxed)),
            flowControl = (!tickets.is_empty()).then(|| display(to_extended_json(&tickets, JsonMode::Relaxed))),
            remote = ctx.client.remote.map(display), protocol = "op_msg",
            durationMillis = took.as_millis() as u64, "Slow query"
        );
    }

    fn context(&self) -> String {
        connection_name(&self.caller.client)
    }
}

fn invocation(command: &Rc<Command>, message: &Message, ctx: &OpContext) -> Invocation {
    Invocation {
        message: message.clone(),
        ctx: ctx.clone(),
        command: command.clone(),
        exhaust_allowed: message.flags().has(Flags::EXHAUST_ALLOWED),
    }
}

/// Refuses a reply that no client reads. What the command has done stays done.
fn check_size(reply: Reply) -> Result<Reply> {
    let size = reply.len();
    if size <= MAX_REPLY_BYTES {
        return Ok(reply);
    }
    Err(Error::new(
        ErrorCode::BSON_OBJECT_TOO_LARGE,
        format!(
            "BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and {MAX_REPLY_BYTES}"
        ),
    ))
}

/// The error with as much of its message as a client can be sent, and without further fields.
#[cold]
fn shortened(error: &Error) -> Error {
    let message = &error.message;
    let end = message.floor_char_boundary(SHORTENED_MESSAGE_BYTES);
    Error::new(error.code, &message[..end])
}

/// The code of a write concern error.
fn code_of(error: RawBsonRef<'_>) -> Option<ErrorCode> {
    let code = pinion_bson::get(error.as_document()?, "code")?.as_i32()?;
    Some(ErrorCode(code))
}

/// "conn7", as MongoDB's log names what runs for a connection.
pub(crate) fn connection_name(client: &ClientInfo) -> String {
    format!("conn{}", client.connection_id)
}

fn label_context(ctx: &OpContext) -> LabelContext {
    let in_transaction = ctx.args.autocommit == Some(false);
    LabelContext {
        in_transaction,
        // What was prepared before a failover may be so still, as what was committed.
        is_commit_or_abort: ctx.command.in_transaction.ends(),
        is_retryable_write: ctx.args.txn_number.is_some() && !in_transaction,
        is_change_stream: ctx.work().is_of_change_stream(),
        ..LabelContext::default()
    }
}
