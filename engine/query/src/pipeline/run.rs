//! A pipeline at work: documents are pushed in at the front and taken out at the end.
//!
//! A step that is refused for its work (see [`crate::work`]) has changed nothing, and the document it was given is kept with the
//! step's place, so that the run goes on from there.

use std::borrow::Cow;
use std::collections::VecDeque;

use pinion_bson::{
    DocBuilder, MAX_INTERNAL_DOCUMENT_BYTES, RawBsonRef, RawDocument, RawDocumentBuf,
};
use pinion_wire::Result;

use super::facet::Facets;
use super::group::Groups;
use super::{Pipeline, Stage, owned};
use crate::error::error;
use crate::limits::{MAX_OUTPUT_BYTES, MAX_SORT_BYTES};
use crate::sorter::Sorter;
use crate::text::{document_text, value_text};
use crate::work;

/// A pipeline at work.
#[derive(Debug)]
pub struct PipelineRun {
    steps: Vec<Step>,
    out: VecDeque<RawDocumentBuf>,
    /// The bytes of what is in `out`.
    out_bytes: usize,
    /// Documents on their way through the steps, the one to go on with first.
    held_up: VecDeque<HeldUp>,
    /// What a step that has seen everything gives now.
    giving: Option<Giving>,
}

/// A document in front of a step.
#[derive(Debug)]
struct HeldUp {
    step: usize,
    document: RawDocumentBuf,
    /// How many items of its array an `$unwind` has given already.
    items: usize,
}

struct Giving {
    /// The place of the step.
    step: usize,
    documents: Source,
    /// What is said of a document that is too large; `None` where none can be.
    too_large: Option<&'static str>,
}

/// Where a step's documents come from.
enum Source {
    Groups(Groups),
    Iterator(Box<dyn Iterator<Item = RawDocumentBuf> + Send>),
}

impl Source {
    fn next(&mut self) -> Result<Option<RawDocumentBuf>> {
        match self {
            Source::Groups(groups) => groups.give(),
            Source::Iterator(documents) => Ok(documents.next()),
        }
    }
}

impl std::fmt::Debug for Giving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Giving")
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Step {
    /// A stage that needs no memory.
    Plain(Stage),
    Skip(i64),
    Limit(i64),
    Count(String, i64),
    Sort {
        stage: crate::sort::SortPattern,
        sorter: Sorter<RawDocumentBuf>,
        arrived: u64,
    },
    Group(Groups),
    Facet(Facets),
    /// A stage that has given all it had.
    Spent,
}

impl Step {
    /// Whether the step gives its documents only when all have come.
    fn is_blocking(&self) -> bool {
        matches!(
            self,
            Step::Sort { .. } | Step::Group(_) | Step::Count(..) | Step::Facet(_)
        )
    }
}

impl PipelineRun {
    pub fn new(pipeline: &Pipeline) -> PipelineRun {
        let stages = &pipeline.stages;
        let mut steps = Vec::with_capacity(stages.len());
        for (at, stage) in stages.iter().enumerate() {
            steps.push(match stage.clone() {
                Stage::Skip(amount) => Step::Skip(amount),
                Stage::Limit(amount) => Step::Limit(amount),
                Stage::Count(name) => Step::Count(name, 0),
                Stage::Sort(pattern) => {
                    let sorter = Sorter::new(limit_behind(&stages[at + 1..]), MAX_SORT_BYTES);
                    Step::Sort {
                        stage: pattern,
                        sorter,
                        arrived: 0,
                    }
                }
                Stage::Group(group) => Step::Group(Groups::new(group)),
                Stage::Facet(facet) => Step::Facet(Facets::new(&facet)),
                plain => Step::Plain(plain),
            });
        }
        PipelineRun {
            steps,
            out: VecDeque::new(),
            out_bytes: 0,
            held_up: VecDeque::new(),
            giving: None,
        }
    }

    /// Takes one document in. It may be held up on its way: see [`PipelineRun::is_held_up`].
    pub fn push(&mut self, document: &RawDocument) -> Result<()> {
        assert!(!self.is_held_up(), "documents keep their order");
        self.send(0, Cow::Borrowed(document), 0)
    }

    /// Whether documents wait on their way, because what came out was much or because their work was refused; then
    /// [`PipelineRun::resume`] comes before anything else goes in.
    pub fn is_held_up(&self) -> bool {
        !self.held_up.is_empty()
    }

    /// Goes on with documents that were held up, until one is again.
    pub fn resume(&mut self) -> Result<()> {
        while self.has_room()
            && let Some(next) = self.held_up.pop_front()
        {
            // What is held up once more comes in front of those that waited behind it.
            let behind = std::mem::take(&mut self.held_up);
            let sent = self.send(next.step, Cow::Owned(next.document), next.items);
            self.held_up.extend(behind);
            sent?;
        }
        Ok(())
    }

    /// Tells that no more documents come; at most so many documents of what sorts and groups held go on. Whether that was
    /// all. It is called again after its work was refused.
    pub fn finish_some(&mut self, documents: usize) -> Result<bool> {
        self.resume()?;
        if self.is_held_up() {
            return Ok(false);
        }
        if self.giving.is_none() {
            self.giving = self.next_giving()?;
            return Ok(self.giving.is_none());
        }
        for _ in 0..documents {
            let Some(giving) = &mut self.giving else {
                break;
            };
            let Some(document) = giving.documents.next()? else {
                self.giving = None;
                break;
            };
            if let Some(what) = giving.too_large
                && document.as_bytes().len() > MAX_INTERNAL_DOCUMENT_BYTES
            {
                return Err(error(17419, what));
            }
            let next = giving.step + 1;
            self.send(next, Cow::Owned(document), 0)?;
            if self.is_held_up() {
                break;
            }
        }
        Ok(false)
    }

    /// What the first step that still holds something has to give.
    fn next_giving(&mut self) -> Result<Option<Giving>> {
        let Some(step) = self.steps.iter().position(Step::is_blocking) else {
            return Ok(None);
        };
        if let Step::Facet(facets) = &self.steps[step] {
            facets.spend_finish()?;
        }
        let mut too_large = None;
        let documents: Box<dyn Iterator<Item = RawDocumentBuf> + Send> =
            match std::mem::replace(&mut self.steps[step], Step::Spent) {
                Step::Sort { sorter, .. } => {
                    Box::new(sorter.finish().map(|(_, document)| document))
                }
                Step::Group(mut groups) => {
                    groups.end();
                    return Ok(Some(Giving {
                        step,
                        too_large: Some("Resulting document after $group is larger than 16777216"),
                        documents: Source::Groups(groups),
                    }));
                }
                Step::Facet(facets) => {
                    too_large = Some("Resulting document after $facet is larger than 16777216");
                    Box::new(std::iter::once(facets.finish()?))
                }
                Step::Count(name, counted) if counted > 0 => {
                    let mut document = DocBuilder::new();
                    match i32::try_from(counted) {
                        Ok(small) => document.append(&name, RawBsonRef::Int32(small)),
                        Err(_) => document.append(&name, RawBsonRef::Int64(counted)),
                    };
                    Box::new(std::iter::once(document.finish()))
                }
                _ => Box::new(std::iter::empty()),
            };
        Ok(Some(Giving {
            step,
            documents: Source::Iterator(documents),
            too_large,
        }))
    }

    /// The next finished document.
    pub fn pop(&mut self) -> Option<RawDocumentBuf> {
        let document = self.out.pop_front()?;
        self.out_bytes -= document.as_bytes().len();
        Some(document)
    }

    fn has_room(&self) -> bool {
        self.out_bytes < MAX_OUTPUT_BYTES
    }

    /// Sends a document through the steps from this one on.
    fn send(&mut self, step: usize, document: Cow<'_, RawDocument>, items: usize) -> Result<()> {
        let mut way = Way {
            out: &mut self.out,
            out_bytes: &mut self.out_bytes,
            held_up: &mut self.held_up,
        };
        way.go(&mut self.steps, step, document, items)
    }

    /// Whether further documents would change nothing.
    pub fn is_satisfied(&self) -> bool {
        for step in &self.steps {
            match step {
                Step::Limit(0) => return true,
                // Behind these everything that comes in may still count.
                step if step.is_blocking() => return false,
                _ => {}
            }
        }
        false
    }
}

/// How many documents are wanted of a sort: a limit behind it, with the skips in between.
fn limit_behind(stages: &[Stage]) -> Option<usize> {
    let mut skipped = 0_i64;
    for stage in stages {
        match stage {
            Stage::Skip(amount) => skipped = skipped.saturating_add(*amount),
            Stage::Limit(amount) => return usize::try_from(amount.saturating_add(skipped)).ok(),
            Stage::Project(_) => {}
            _ => return None,
        }
    }
    None
}

/// Where documents go that have passed a step.
struct Way<'r> {
    out: &'r mut VecDeque<RawDocumentBuf>,
    out_bytes: &'r mut usize,
    held_up: &'r mut VecDeque<HeldUp>,
}

/// What a step does with a document.
enum Passes {
    No,
    AsItIs,
    /// Another one goes on in its place.
    As(RawDocumentBuf),
    /// To a sort, under this key.
    Sorted(Vec<u8>),
    /// Each item of its array.
    Unwound,
}

impl Way<'_> {
    /// Hands a document to the step at `at`. One that a step has made goes through to the end without being copied.
    fn go(
        &mut self,
        steps: &mut [Step],
        at: usize,
        document: Cow<'_, RawDocument>,
        skip: usize,
    ) -> Result<()> {
        let Some(step) = steps.get_mut(at) else {
            *self.out_bytes += document.as_bytes().len();
            self.out.push_back(document.into_owned());
            return Ok(());
        };
        let taken = step
            .take(&document)
            .and_then(|passes| work::check().map(|()| passes));
        let passes = match taken {
            Ok(passes) => passes,
            Err(error) => {
                if work::is_exhausted() {
                    self.hold_up(at, document, skip);
                }
                return Err(error);
            }
        };
        match passes {
            Passes::No => Ok(()),
            Passes::AsItIs => self.go(steps, at + 1, document, 0),
            Passes::As(made) => self.go(steps, at + 1, Cow::Owned(made), 0),
            Passes::Sorted(key) => {
                let Step::Sort { sorter, .. } = step else {
                    unreachable!("only a sort makes keys");
                };
                let size = document.as_bytes().len();
                sorter.push(key, document.into_owned(), size)
            }
            Passes::Unwound => {
                let Step::Plain(Stage::Unwind(unwind)) = step else {
                    unreachable!("only this stage unwinds");
                };
                let unwind = unwind.clone();
                let mut next = None;
                let sent = unwind.apply(&document, skip, |item, unwound| {
                    next = Some(item);
                    // Each is a copy of all the rest of the document.
                    work::spend_bytes(unwound.as_bytes().len())?;
                    next = Some(item + 1);
                    self.go(steps, at + 1, Cow::Owned(unwound), 0)?;
                    let room = *self.out_bytes < MAX_OUTPUT_BYTES && self.held_up.is_empty();
                    if room {
                        next = None;
                    }
                    Ok(room)
                });
                if let Some(next) = next
                    && (sent.is_ok() || work::is_exhausted())
                {
                    self.hold_up(at, document, next);
                }
                sent
            }
        }
    }

    fn hold_up(&mut self, step: usize, document: Cow<'_, RawDocument>, items: usize) {
        self.held_up.push_back(HeldUp {
            step,
            document: document.into_owned(),
            items,
        });
    }
}

impl Step {
    /// What the step does with a document. When it fails, it has changed nothing.
    fn take(&mut self, document: &RawDocument) -> Result<Passes> {
        Ok(match self {
            Step::Skip(left) if *left > 0 => {
                *left -= 1;
                Passes::No
            }
            Step::Skip(_) => Passes::AsItIs,
            Step::Limit(0) | Step::Spent => Passes::No,
            Step::Limit(left) => {
                *left -= 1;
                Passes::AsItIs
            }
            Step::Count(_, counted) => {
                *counted += 1;
                Passes::No
            }
            Step::Sort { stage, arrived, .. } => {
                // Documents of equal keys stay in the order in which they came.
                let mut key = stage.value_key(document)?;
                key.extend_from_slice(&arrived.to_be_bytes());
                *arrived += 1;
                Passes::Sorted(key)
            }
            Step::Group(groups) => {
                groups.take(document)?;
                Passes::No
            }
            Step::Facet(facets) => {
                facets.push(document)?;
                Passes::No
            }
            Step::Plain(Stage::Match(matcher)) => match matcher.matches(document)? {
                true => Passes::AsItIs,
                false => Passes::No,
            },
            Step::Plain(Stage::Unwind(_)) => Passes::Unwound,
            Step::Plain(Stage::Redact(expression)) => {
                work::spend_bytes(document.as_bytes().len())?;
                super::redact::redact(expression, document, document)?
                    .map_or(Passes::No, Passes::As)
            }
            // What makes no document out of one has steps of its own.
            Step::Plain(one) => transformed(one, document)?.map_or(Passes::No, Passes::As),
        })
    }
}

/// What a stage that makes one document out of one makes of it; `None` for other stages.
pub(super) fn transformed(stage: &Stage, document: &RawDocument) -> Result<Option<RawDocumentBuf>> {
    match stage {
        Stage::Project(projection) => projection.apply(document, None).map(Some),
        Stage::ReplaceRoot(expression, what) => {
            let value = expression.evaluate(document)?;
            work::spend_bytes(value.bytes())?;
            match value.as_ref() {
                Some(RawBsonRef::Document(new_root)) => Ok(Some(owned(new_root))),
                other => Err(error(
                    40228,
                    format!(
                        "{what}must evaluate to an object, but resulting value was: {}. Type of resulting value: '{}'. \
                         Input document: {}",
                        other.map_or_else(|| "MISSING".into(), value_text),
                        value.type_name(),
                        document_text(document)
                    ),
                )),
            }
        }
        _ => Ok(None),
    }
}

const _: () = {
    const fn goes_to_another_thread<T: Send>() {}
    goes_to_another_thread::<PipelineRun>();
};
