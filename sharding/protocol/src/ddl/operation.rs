//! What the frame asks of an operation.

use pinion_bson::RawDocumentBuf;
use pinion_wire::Result;

use super::action::{Action, Outcome};

/// The phase of an operation whose traces are being removed.
pub(super) const ABORT: &str = "abort";

/// A phase of an operation. Its document is stored before it is performed; each may be performed
/// several times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    pub name: &'static str,
    pub end: PhaseEnd,
}

/// What an error does in a phase that is not recoverable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseEnd {
    /// It ends the operation, whose traces are removed.
    Aborts,
    /// The same, where the config servers cannot have done what they were asked for; otherwise it
    /// is tried again.
    AbortsIfRefused,
    /// It is tried again: something was destroyed, or others use what was made.
    Never,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Progress {
    Continue,
    /// Everything is as it is asked for.
    Finish(RawDocumentBuf),
}

pub(super) trait Operation: std::fmt::Debug {
    fn phases(&self) -> &'static [Phase];

    /// What the document keeps between phases.
    fn state(&self) -> RawDocumentBuf;

    /// What is to be known before the document is stored, one after the other; `at` have been
    /// performed.
    fn check(&self, at: usize) -> Option<Action>;

    /// # Errors
    /// Those that the operation is refused with.
    fn take_check(&mut self, outcome: Outcome) -> Result<Progress>;

    /// The actions of a phase, of which `at` have been performed.
    fn action(&self, phase: &str, at: usize) -> Option<Action>;

    /// # Errors
    /// Those that the phase fails with.
    fn take(&mut self, phase: &str, outcome: Outcome) -> Result<()>;

    /// What removes the traces of an operation that ends in a phase that it may end in.
    fn undo(&self, at: usize) -> Option<Action>;

    fn reply(&self) -> RawDocumentBuf;
}
