//! The frame of all definitions: when the state is stored, what is tried again, and how an
//! operation ends.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_wire::idl::{FieldReader, Path};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{Action, Outcome};
use super::change_at_owners::ChangeAtOwners;
use super::create_collection::CreateCollection;
use super::documents::{DDL_COORDINATORS, DdlDocument, DdlId, OperationKind};
use super::drop_collection::DropCollection;
use super::drop_database::DropDatabase;
use super::errors::{is_recoverable, is_refusal};
use super::move_primary::MovePrimary;
use super::operation::{ABORT, Operation, PhaseEnd, Progress};
use super::refine_shard_key::RefineShardKey;
use super::rename_collection::RenameCollection;
use super::set_allow_migrations::SetAllowMigrations;
use crate::version::DatabaseVersion;

const ABORT_REASON: &str = "abortReason";

/// What happens to a machine.
#[derive(Debug)]
pub enum Input {
    /// The first one, of a new machine and of a resumed one.
    Start,
    /// The pause is over.
    Waited,
    /// What was asked for is done.
    Done(Outcome),
    /// It has failed, or it is not known whether it is done.
    Failed(Error),
}

/// What a machine asks for, one at a time.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Write the state, with a majority.
    Store(Box<DdlDocument>),
    /// Remove it, with a majority.
    Remove(DdlId),
    Perform(Box<Action>),
    /// Wait a little because of this error.
    Pause(Error),
    /// Release the locks, and answer.
    End(Result<RawDocumentBuf>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Checking { action: usize },
    Storing { phase: usize },
    Performing { phase: usize, action: usize },
    StoringAbort,
    Undoing { action: usize },
    Removing,
    Ended,
}

/// One definition.
///
/// A phase is stored before it is performed, so that another primary resumes with it; whether the
/// document of a resumed machine has a majority is not known, so it is stored again first.
#[derive(Debug)]
pub struct DdlMachine {
    id: DdlId,
    database_version: DatabaseVersion,
    request: RawDocumentBuf,
    operation: Box<dyn Operation>,
    at: At,
    /// The config servers may have done what the phase asks of them.
    may_have_run: bool,
    /// The error that the operation ends with.
    failed: Option<Error>,
}

fn operation_of(
    id: &DdlId,
    version: DatabaseVersion,
    request: &RawDocument,
    state: &RawDocument,
) -> Result<Box<dyn Operation>> {
    Ok(match id.kind {
        OperationKind::CreateCollection => Box::new(CreateCollection::new(id, request, state)?),
        OperationKind::DropCollection => Box::new(DropCollection::new(id, request, state)?),
        OperationKind::DropDatabase => Box::new(DropDatabase::new(id, version)),
        OperationKind::RefineShardKey => Box::new(RefineShardKey::new(id, request, state)?),
        OperationKind::SetAllowMigrations => Box::new(SetAllowMigrations::new(id, request, state)?),
        OperationKind::CollMod | OperationKind::DropIndexes => {
            Box::new(ChangeAtOwners::new(id, request, state)?)
        }
        OperationKind::RenameCollection => Box::new(RenameCollection::new(id, request, state)?),
        OperationKind::MovePrimary => Box::new(MovePrimary::new(id, version, request, state)?),
    })
}

impl DdlMachine {
    /// A new operation, whose locks are held.
    ///
    /// # Errors
    /// The request cannot be read.
    pub fn new(
        id: DdlId,
        database_version: DatabaseVersion,
        request: RawDocumentBuf,
    ) -> Result<DdlMachine> {
        let operation = operation_of(&id, database_version, &request, &RawDocumentBuf::new())?;
        Ok(DdlMachine {
            id,
            database_version,
            request,
            operation,
            at: At::Checking { action: 0 },
            may_have_run: false,
            failed: None,
        })
    }

    /// An operation that another primary, or this one, has left.
    ///
    /// # Errors
    /// The document is none of a known operation and phase.
    pub fn resume(document: DdlDocument) -> Result<DdlMachine> {
        let DdlDocument {
            id,
            phase,
            database_version,
            request,
            state,
        } = document;
        let operation = operation_of(&id, database_version, &request, &state)?;
        let mut phases = operation.phases().iter();
        let (at, failed) = match phases.position(|known| known.name == phase) {
            Some(phase) => (At::Storing { phase }, None),
            None if phase == ABORT => (At::StoringAbort, Some(abort_reason(&state)?)),
            None => {
                return Err(Error::failed_to_parse(format!(
                    "a document of {DDL_COORDINATORS} has the unknown phase {phase}"
                )));
            }
        };
        Ok(DdlMachine {
            id,
            database_version,
            request,
            operation,
            at,
            may_have_run: true,
            failed,
        })
    }

    pub fn id(&self) -> &DdlId {
        &self.id
    }

    /// What is to be done next, after what the last effect was for has happened.
    ///
    /// # Panics
    /// After the end.
    pub fn step(&mut self, input: Input) -> Effect {
        assert!(self.at != At::Ended, "an operation ends once");
        match input {
            Input::Start | Input::Waited => self.issue(),
            Input::Done(outcome) => match self.advance(outcome) {
                Ok(effect) => effect,
                Err(error) => self.fail(error),
            },
            Input::Failed(error) => self.fail(error),
        }
    }

    fn advance(&mut self, outcome: Outcome) -> Result<Effect> {
        match self.at {
            At::Checking { action } => match self.operation.take_check(outcome)? {
                Progress::Continue => self.at = At::Checking { action: action + 1 },
                Progress::Finish(reply) => return Ok(self.end(Ok(reply))),
            },
            At::Storing { phase } => self.at = At::Performing { phase, action: 0 },
            At::Performing { phase, action } => {
                let name = self.operation.phases()[phase].name;
                self.operation.take(name, outcome)?;
                let action = action + 1;
                self.at = At::Performing { phase, action };
            }
            At::StoringAbort => self.at = At::Undoing { action: 0 },
            At::Undoing { action } => self.at = At::Undoing { action: action + 1 },
            At::Removing => {
                let outcome = match self.failed.take() {
                    Some(error) => Err(error),
                    None => Ok(self.operation.reply()),
                };
                return Ok(self.end(outcome));
            }
            At::Ended => unreachable!("asserted"),
        }
        Ok(self.issue())
    }

    /// The effect of where it is, behind what has nothing to do.
    fn issue(&mut self) -> Effect {
        loop {
            match self.at {
                At::Checking { action } => match self.operation.check(action) {
                    Some(action) => return Effect::Perform(Box::new(action)),
                    None => self.at = At::Storing { phase: 0 },
                },
                At::Storing { phase } => return Effect::Store(Box::new(self.document(phase))),
                At::Performing { phase, action } => {
                    let name = self.operation.phases()[phase].name;
                    if let Some(action) = self.operation.action(name, action) {
                        return Effect::Perform(Box::new(action));
                    }
                    let next = phase + 1;
                    self.may_have_run = false;
                    self.at = match next == self.operation.phases().len() {
                        true => At::Removing,
                        false => At::Storing { phase: next },
                    };
                }
                At::StoringAbort => return Effect::Store(Box::new(self.abort_document())),
                At::Undoing { action } => match self.operation.undo(action) {
                    Some(action) => return Effect::Perform(Box::new(action)),
                    None => self.at = At::Removing,
                },
                At::Removing => return Effect::Remove(self.id.clone()),
                At::Ended => unreachable!("asserted"),
            }
        }
    }

    fn fail(&mut self, error: Error) -> Effect {
        match self.at {
            // Nothing is written.
            At::Checking { .. } => return self.end(Err(error)),
            // It may be there all the same.
            At::Storing { phase: 0 } if !self.may_have_run && !is_recoverable(&error) => {
                self.failed = Some(error.clone());
                self.at = At::Removing;
                return self.issue();
            }
            At::Performing { phase, action } if self.aborts(phase, action, &error) => {
                self.failed = Some(error);
                self.at = At::StoringAbort;
                return self.issue();
            }
            At::Performing { phase, action } => {
                let name = self.operation.phases()[phase].name;
                let asked = self.operation.action(name, action);
                self.may_have_run |= matches!(asked, Some(Action::Configure(_)));
            }
            _ => {}
        }
        Effect::Pause(error)
    }

    fn aborts(&self, phase: usize, action: usize, error: &Error) -> bool {
        let phase = self.operation.phases()[phase];
        if is_recoverable(error) {
            return false;
        }
        match phase.end {
            PhaseEnd::Aborts => true,
            PhaseEnd::Never => false,
            PhaseEnd::AbortsIfRefused => {
                let asked = self.operation.action(phase.name, action);
                let is_of_config = matches!(asked, Some(Action::Configure(_)));
                !self.may_have_run && (!is_of_config || is_refusal(error.code))
            }
        }
    }

    fn end(&mut self, outcome: Result<RawDocumentBuf>) -> Effect {
        self.at = At::Ended;
        Effect::End(outcome)
    }

    fn document(&self, phase: usize) -> DdlDocument {
        DdlDocument {
            id: self.id.clone(),
            phase: self.operation.phases()[phase].name.to_owned(),
            database_version: self.database_version,
            request: self.request.clone(),
            state: self.operation.state(),
        }
    }

    fn abort_document(&self) -> DdlDocument {
        let failed = self
            .failed
            .as_ref()
            .expect("an operation aborts for a reason");
        let mut state = DocBuilder::new();
        state.append_all(&self.operation.state());
        state
            .start_document(ABORT_REASON)
            .append("code", failed.code.0)
            .append("errmsg", failed.message.as_str())
            .end();
        DdlDocument {
            phase: ABORT.to_owned(),
            state: state.finish(),
            ..self.document(0)
        }
    }
}

fn abort_reason(state: &RawDocument) -> Result<Error> {
    let reader = FieldReader::object(Path::root("state"), state)?;
    let reason = reader.path().field(ABORT_REASON);
    let reason = FieldReader::object(reason, reader.doc(ABORT_REASON)?)?;
    let code = reason.i64("code")?;
    let code = i32::try_from(code).map_or(ErrorCode::UNKNOWN_ERROR, ErrorCode);
    Ok(Error::new(code, reason.str("errmsg")?))
}
