//! What a pipeline's run and its stages at work say to each other, and to the caller that steps the run.

use pinion_wire::Result;

use super::Document;

/// What a run needs before it goes on, or what it has done.
#[derive(Debug)]
pub enum Want {
    /// The next document in front of the pipeline: [`Input::Document`], or [`Input::End`] where none follows.
    Document,
    /// Nothing: this document has passed all stages.
    Output(Document),
    /// Nothing, but others may run before the next step.
    Pause,
    /// More time than a step on a core may take: [`super::PipelineRun::step_until`] comes next, on another thread.
    Compute,
    /// Nothing any more: all documents have been given.
    Done,
}

/// What a run is given with its next step.
#[derive(Debug)]
pub enum Input {
    /// Nothing was wanted.
    Go,
    /// The document that was wanted.
    Document(Document),
    /// There is no such document, nor will there be one.
    End,
}

/// A stage at work.
///
/// No call does more than one document's work. One that fails because its work was refused (see [`crate::work`]) has
/// changed nothing, and is made again.
pub(super) trait Step: std::fmt::Debug + Send {
    /// Takes the next document.
    fn take(&mut self, document: &Document) -> Result<Taken>;

    /// No more documents come. What the stage held back is asked for with [`Step::give`] then.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    /// The next document made of what was taken; called after [`Taken::Gives`] and after the end, until there is nothing.
    fn give(&mut self) -> Result<Given> {
        Ok(Given::Nothing)
    }
}

/// What a stage does with a document that it takes.
#[derive(Debug)]
pub(super) enum Taken {
    /// Nothing goes on for now.
    Kept,
    /// The document goes on as it is.
    Passed,
    /// The document goes on as it is, and no further one will.
    PassedLast,
    /// This one goes on in its place.
    Made(Document),
    /// What goes on is asked for with [`Step::give`].
    Gives,
}

/// What a stage has to give.
#[derive(Debug)]
pub(super) enum Given {
    Document(Document),
    /// Nothing yet: the stage was at work, and is asked again.
    Working,
    /// Nothing, before it takes a further document.
    Nothing,
}
