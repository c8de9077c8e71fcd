//! One command from its message to its reply: look-up, generic arguments, rules, handler, statistics.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{JsonMode, to_extended_json_limited};
use pinion_runtime::{Duration, now};
use pinion_wire::idl::GenericArguments;
use pinion_wire::{
    ClientInfo, Command, Error, ErrorCode, Flags, Invocation, LabelContext, Message, OpContext,
    Registry, Reply, Result, ServerCounters, check_permitted, error_reply, labels_for,
};

use crate::limits::SLOW_COMMAND_LOG_BYTES;
use crate::unwind::CatchUnwind;

/// The operation that is running on a connection, for whoever must interrupt it.
pub(crate) type RunningOp = RefCell<Option<OpContext>>;

/// What a command is run with.
pub(crate) struct Dispatch<'a> {
    pub registry: &'a Registry,
    pub counters: &'a ServerCounters,
    pub client: &'a Arc<ClientInfo>,
    pub running: &'a RunningOp,
    pub op_id: i32,
}

impl Dispatch<'_> {
    /// Runs the command of a message, as the registry found it. The reply is complete, whether the command succeeded or not.
    pub(crate) async fn run(&self, command: Result<&Rc<Command>>, message: &Message) -> Reply {
        match command {
            Ok(command) => self.run_command(command, message).await,
            Err(error) => {
                tracing::debug!(target: "COMMAND", id = 21_965u64, ctx = self.context(), command = message.command_name(), "Command not found in registry");
                error_reply(&error, &[])
            }
        }
    }

    async fn run_command(&self, command: &Rc<Command>, message: &Message) -> Reply {
        command.count_start();
        let ctx = match self.context_of(command, message) {
            Ok(ctx) => ctx,
            Err(error) => {
                command.count_failure();
                return error_reply(&error, &[]);
            }
        };
        *self.running.borrow_mut() = Some(ctx.clone());
        let outcome = match check_permitted(&command.spec, message, &ctx) {
            Ok(()) => self.invoke(command, message, &ctx).await,
            Err(error) => Err(error),
        };
        *self.running.borrow_mut() = None;

        let took = Duration::from_nanos(now().as_nanos().saturating_sub(ctx.started_ns));
        let observer = self.registry.observer();
        if let Some(observer) = observer {
            observer.finished(
                &command.spec,
                &ctx,
                took.as_micros() as u64,
                outcome.as_ref().err(),
            );
        }
        // Hello waits because its client asked it to.
        if took >= Duration::from_millis(self.counters.slow_ms.get())
            && command.spec.name != "hello"
        {
            self.log_slow(message, &ctx, took, outcome.as_ref().err());
        }
        let mut reply = match outcome {
            Ok(mut reply) => {
                reply.append("ok", 1.0);
                reply
            }
            Err(error) => {
                command.count_failure();
                tracing::debug!(target: "COMMAND", id = 21_962u64, ctx = self.context(), command = command.spec.name, db = &*ctx.db, code = error.code.0, error = error.message, "Command failed");
                error_reply(&error, &labels_for(error.code, None, label_context(&ctx)))
            }
        };
        if let Some(observer) = observer {
            observer.complete_reply(&ctx, &mut reply);
        }
        reply
    }

    fn context_of(&self, command: &Command, message: &Message) -> Result<OpContext> {
        let db = message.database()?;
        let args = GenericArguments::parse(message.command_name(), message.body())?;
        let started_ns = now().as_nanos();
        Ok(OpContext::new(
            self.op_id,
            self.client.clone(),
            command.spec.name,
            db,
            args,
            started_ns,
        ))
    }

    async fn invoke(
        &self,
        command: &Rc<Command>,
        message: &Message,
        ctx: &OpContext,
    ) -> Result<Reply> {
        let invocation = Invocation {
            message: message.clone(),
            ctx: ctx.clone(),
            command: command.clone(),
            exhaust_allowed: message.flags().has(Flags::EXHAUST_ALLOWED),
        };
        let outcome = CatchUnwind::new(command.invoke(invocation)).await;
        outcome.unwrap_or_else(|panic| {
            ServerCounters::add(&self.counters.panics, 1);
            tracing::error!(target: "COMMAND", id = 7_100_001u64, ctx = self.context(), command = command.spec.name, panic, "Command handler panicked");
            Err(Error::new(
                ErrorCode::INTERNAL_ERROR,
                format!("The command {} failed because of an internal fault: {panic}", command.spec.name),
            ))
        })
    }

    #[cold]
    fn log_slow(&self, message: &Message, ctx: &OpContext, took: Duration, error: Option<&Error>) {
        let text =
            to_extended_json_limited(message.body(), JsonMode::Relaxed, SLOW_COMMAND_LOG_BYTES);
        tracing::info!(
            target: "COMMAND", id = 51_803u64, ctx = self.context(), r#type = "command", db = &*ctx.db,
            appName = ctx.client.app_name(), command = text, errCode = error.map(|error| error.code.0),
            remote = ctx.client.remote.map(tracing::field::display), durationMillis = took.as_millis() as u64,
            "Slow query"
        );
    }

    fn context(&self) -> String {
        connection_name(self.client)
    }
}

/// "conn7", as MongoDB's log names what runs for a connection.
pub(crate) fn connection_name(client: &ClientInfo) -> String {
    format!("conn{}", client.connection_id)
}

fn label_context(ctx: &OpContext) -> LabelContext {
    let in_transaction = ctx.args.autocommit == Some(false);
    LabelContext {
        in_transaction,
        is_commit_or_abort: matches!(ctx.command, "commitTransaction" | "abortTransaction"),
        is_retryable_write: ctx.args.txn_number.is_some() && !in_transaction,
        ..LabelContext::default()
    }
}
