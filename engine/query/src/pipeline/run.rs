//! A pipeline at work, as a machine: each step does a little and says what the run wants next.
//!
//! Between two stages there is never more than one document. The stage that is asked is always the
//! last that can do something, so documents leave as early as they can and none waits in a queue,
//! but in front of the first stage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pinion_wire::Result;

use super::step::{Accepted, Input, OnDisk, Produced, StageRequest, Step};
use super::{Document, Pipeline};
use crate::limits::{MOVES_PER_STEP, STEP_SHARE_OF_BUDGET};
use crate::spill::Memory;
use crate::work::{self, Units};

/// A pipeline at work.
#[derive(Debug)]
pub struct PipelineRun {
    nodes: Vec<Node>,
    /// The nodes before this one have given all they had.
    front: usize,
    /// No document comes in at the front any more.
    fed: bool,
    /// No node behind this one has anything to do.
    at: usize,
    /// Documents that came with the one that was wanted.
    waiting: VecDeque<Document>,
    /// How many of those an end was reached before.
    passed_over: usize,
    /// A document for the caller.
    out: Option<Document>,
}

/// A stage at work with the document in front of it.
#[derive(Debug)]
struct Node {
    step: Box<dyn Step>,
    inbox: Option<Document>,
    gives: bool,
    /// It is asked what has to be done on disk.
    spills: bool,
    ended: bool,
}

impl Node {
    fn new(step: Box<dyn Step>) -> Node {
        Node {
            step,
            inbox: None,
            gives: false,
            spills: false,
            ended: false,
        }
    }
}

impl PipelineRun {
    /// A run that has seen nothing.
    pub fn new(pipeline: Pipeline, memory: &Memory) -> PipelineRun {
        PipelineRun {
            nodes: pipeline.into_steps(memory).map(Node::new).collect(),
            front: 0,
            fed: false,
            at: 0,
            waiting: VecDeque::new(),
            passed_over: 0,
            out: None,
        }
    }

    /// Takes what was wanted and continues, with a budget of work.
    pub fn step(&mut self, input: Input, budget: Units) -> Result<StageRequest> {
        self.accept(input)?;
        let (mut moves, reserve) = (0, budget - budget / STEP_SHARE_OF_BUDGET);
        match work::within(budget, || self.go(&mut moves, reserve)) {
            Some(result) => result,
            // What did not fit behind other moves may fit alone.
            None if moves > 0 => Ok(StageRequest::Pause),
            None => Ok(StageRequest::Compute),
        }
    }

    /// Continues after [`StageRequest::Compute`] without a budget, until `stop` is set: then it
    /// fails.
    pub fn step_until(&mut self, stop: Arc<AtomicBool>) -> Result<StageRequest> {
        work::until(stop, || self.go(&mut 0, 0))
    }

    /// Whether no more documents are wanted in front of the pipeline.
    pub fn is_fed(&self) -> bool {
        self.fed
    }

    /// How many documents no stage has taken, of those that came with one that was wanted: they
    /// wait, or the pipeline has ended before them.
    pub fn unused(&self) -> usize {
        self.waiting.len() + self.passed_over
    }

    /// Makes moves until something is wanted, or no more than `reserve` is left of the budget.
    fn go(&mut self, moves: &mut usize, reserve: Units) -> Result<StageRequest> {
        while *moves < MOVES_PER_STEP && (*moves == 0 || work::left() >= reserve) {
            if let Some(want) = self.advance()? {
                return Ok(want);
            }
            *moves += 1;
        }
        Ok(StageRequest::Pause)
    }

    /// Takes what was wanted.
    pub(super) fn accept(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Go => {}
            Input::Document(document) => {
                assert!(!self.fed, "a document after the last one");
                self.hand(self.front, document);
            }
            Input::Documents(documents) => {
                assert!(!self.fed, "documents after the last one");
                assert!(self.waiting.is_empty(), "documents that were not wanted");
                self.waiting = documents;
            }
            Input::End => self.fed = true,
            // The node that asked is still the one that can do something.
            Input::Disk(reply) => self.nodes[self.at].step.reply(reply)?,
        }
        Ok(())
    }

    /// Hands a document to the node at this place, which is idle.
    fn hand(&mut self, place: usize, document: Document) {
        let inbox = match self.nodes.get_mut(place) {
            Some(node) => &mut node.inbox,
            None => &mut self.out,
        };
        assert!(
            inbox.replace(document).is_none(),
            "one document between two stages"
        );
        self.at = place;
    }

    /// Makes one move. Returns what the run wants next; none if it can continue without that.
    pub(super) fn advance(&mut self) -> Result<Option<StageRequest>> {
        if let Some(document) = self.out.take() {
            self.at = self.nodes.len();
            return Ok(Some(StageRequest::Output(document)));
        }
        self.at = self.at.min(self.nodes.len().saturating_sub(1));
        while self.front < self.nodes.len() {
            let at = self.at;
            let node = &mut self.nodes[at];
            if node.spills {
                return match checked(node.step.disk())? {
                    OnDisk::Request(request) => Ok(Some(StageRequest::Disk(request))),
                    OnDisk::Working => Ok(None),
                    OnDisk::Nothing => {
                        node.spills = false;
                        Ok(None)
                    }
                };
            }
            if node.gives {
                self.give(at)?;
                return Ok(None);
            }
            if node.inbox.is_some() {
                self.take(at)?;
                return Ok(None);
            }
            if at > self.front {
                self.at -= 1;
                continue;
            }
            if !self.fed {
                match self.waiting.pop_front() {
                    Some(document) => self.hand(self.front, document),
                    None => return Ok(Some(StageRequest::Document)),
                }
                continue;
            }
            if node.ended {
                self.finish_through(at);
            } else {
                checked(node.step.end())?;
                (node.ended, node.gives) = (true, true);
            }
            return Ok(None);
        }
        if let Some(document) = self.waiting.pop_front() {
            self.hand(self.front, document);
            return Ok(None);
        }
        Ok(Some(if self.fed {
            StageRequest::Done
        } else {
            StageRequest::Document
        }))
    }

    fn take(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        let document = node.inbox.as_ref().expect("looked at before");
        let taken = checked(node.step.take(document))?;
        let document = node.inbox.take().expect("looked at before");
        match taken {
            Accepted::Kept => {}
            Accepted::KeptLast => self.finish_through(at),
            Accepted::Passed => self.hand(at + 1, document),
            Accepted::PassedLast => {
                self.finish_through(at);
                self.hand(at + 1, document);
            }
            Accepted::Made(made) => self.hand(at + 1, made.made_of(&document)),
            Accepted::Gives => node.gives = true,
            Accepted::Spills => node.spills = true,
        }
        Ok(())
    }

    fn give(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        match checked(node.step.give())? {
            Produced::Document(document) => self.hand(at + 1, document),
            Produced::Working => {}
            Produced::Disk => node.spills = true,
            Produced::Nothing => node.gives = false,
        }
        Ok(())
    }

    /// Nothing more comes of the nodes up to this one, which let go of what they hold.
    fn finish_through(&mut self, at: usize) {
        for node in &mut self.nodes[self.front..=at] {
            *node = Node {
                ended: true,
                ..Node::new(Box::new(Exhausted))
            };
        }
        self.front = at + 1;
        self.at = self.front;
        self.fed = true;
        self.passed_over += self.waiting.len();
        self.waiting.clear();
    }
}

/// The result of a call, unless the call was refused for its work and an expression has put a value
/// in the place of that error.
fn checked<T>(result: Result<T>) -> Result<T> {
    result.and_then(|value| work::check().map(|()| value))
}

/// Stands in the place of a stage that has given all it had.
#[derive(Debug)]
struct Exhausted;

impl Step for Exhausted {
    fn take(&mut self, _: &Document) -> Result<Accepted> {
        unreachable!("nothing is handed to a stage that has ended")
    }
}

const _: () = {
    const fn goes_to_another_thread<T: Send>() {}
    goes_to_another_thread::<PipelineRun>();
};
