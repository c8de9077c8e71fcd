//! `findAndModify` on a sharded collection.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_command::syntax::FindAndModifySyntax;
use pinion_query::Variables;
use pinion_service::interrupt::{check, interruptible};
use pinion_sharding_protocol::{RoutingTable, ShardId, Targets, WritePlan};
use pinion_wire::idl::{CommandReader, Namespace, i64_exact};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::found::{OneDocument, Said, write_one};
use super::outcome::owner_would_change;
use super::plan::write_plan;
use super::statement::{FIND_AND_MODIFY, Form, Modify};
use crate::dispatch::{Answer, Route, pause_before_retry, send};
use crate::limits::MAX_STALE_RETRIES;
use crate::placement::{error_is_stale, table_of};
use crate::reads::variables;
use crate::reply::{passed_on, refused};
use crate::request::{Request, Versions};
use crate::transactions;

/// A client's command.
struct FindAndModify<'c> {
    cmd: &'c Invocation,
    ns: Namespace,
    vars: Variables,
    modify: Modify<'c>,
}

impl OneDocument for FindAndModify<'_> {
    fn cmd(&self) -> &Invocation {
        self.cmd
    }

    fn ns(&self) -> &Namespace {
        &self.ns
    }

    fn vars(&self) -> &Variables {
        &self.vars
    }

    fn modify(&self) -> &Modify<'_> {
        &self.modify
    }

    fn request(&self, form: &Form<'_>, versions: Versions) -> Request {
        let request = Request::of(self.cmd, self.cmd.db(), versions);
        let mut body = DocBuilder::with_capacity(request.body.as_bytes().len());
        form.append(&mut body, &request.body, FIND_AND_MODIFY);
        Request {
            body: body.finish(),
            sections: request.sections,
        }
    }

    fn said(&self, reply: &RawDocument) -> Said {
        let n = pinion_bson::get_path(reply, "lastErrorObject.n").and_then(i64_exact);
        Said {
            n: n.unwrap_or(0),
            is_retried: pinion_bson::get(reply, "retriedStmtId").is_some(),
        }
    }

    fn error<'r>(&self, _: &'r RawDocument) -> Option<(ErrorCode, &'r RawDocument)> {
        None
    }
}

/// `findAndModify`; `None` where the collection is not sharded.
///
/// # Errors
/// Those of the command at its shard, and of the way there.
pub(crate) async fn find_and_modify(cmd: &Invocation) -> Result<Option<Reply>> {
    let empty = RawDocumentBuf::new();
    let reader = CommandReader::new(cmd.message.command_name(), cmd.body())?;
    let ns = reader.namespace(cmd.message.command_name(), cmd.db())?;
    if table_of(&ns, Targets::Unknown).await?.is_none() {
        return Ok(None);
    }
    let syntax = FindAndModifySyntax::read(cmd.body(), cmd.message.command_name(), cmd.db())?;
    let command = FindAndModify {
        cmd,
        vars: variables(syntax.lets)?,
        modify: Modify::of_find_and_modify(&reader, &empty)?,
        ns,
    };
    let answer = match run(&command).await {
        Err(error) if error.code == ErrorCode::WOULD_CHANGE_OWNING_SHARD => {
            return Err(owner_would_change(&command.ns));
        }
        answer => answer?,
    };
    Ok(answer.map(|answer| passed_on(answer.body())))
}

async fn run(command: &FindAndModify<'_>) -> Result<Option<Answer>> {
    let cmd = command.cmd;
    for attempt in 0.. {
        let Some((table, plan)) = command.plan().await? else {
            return Ok(None);
        };
        let Some(shard) = plan else {
            return write_one(command).await;
        };
        let route = Route::of_shard(&shard);
        let versions = Versions::of_shard(table.shard_version(&shard));
        let outcome = send(cmd, &route, Request::of(cmd, cmd.db(), versions)).await;
        check(&cmd.ctx)?;
        let error = match outcome {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        let may_repeat = error_is_stale(&error).await?
            && attempt < MAX_STALE_RETRIES
            && transactions::may_send_again(cmd, &route).await?;
        if !may_repeat {
            return Err(refused(error));
        }
        pause_before_retry(cmd, attempt).await?;
    }
    unreachable!("it returns at the last attempt")
}

impl FindAndModify<'_> {
    /// The shard that the command goes to, if it is one; otherwise its document has to be found.
    /// `None` in all where the collection is not sharded.
    async fn plan(&self) -> Result<Option<(std::sync::Arc<RoutingTable>, Option<ShardId>)>> {
        let mut targets = Targets::Unknown;
        for _ in 0..crate::limits::MAX_TARGETINGS {
            let table = table_of(&self.ns, targets.clone());
            let Some(table) = interruptible(&self.cmd.ctx, table).await?? else {
                return Ok(None);
            };
            let plan = write_plan(&table, &self.modify, &self.vars, false)?;
            let WritePlan::One(shard) = plan else {
                return Ok(Some((table, None)));
            };
            let shard = table.shard(shard).clone();
            let wanted = Targets::Shards([shard.clone()].into());
            if targets == wanted {
                return Ok(Some((table, Some(shard))));
            }
            targets = wanted;
        }
        Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!(
                "the routing table of {} changes faster than it can be used",
                self.ns
            ),
        ))
    }
}
