//! A pipeline at work: documents are pushed in at the front and taken out at the end.

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
use crate::limits::MAX_SORT_BYTES;
use crate::sorter::Sorter;
use crate::text::{document_text, value_text};

/// A pipeline at work.
#[derive(Debug)]
pub struct PipelineRun {
    steps: Vec<Step>,
    out: VecDeque<RawDocumentBuf>,
    /// What a step that has seen everything gives now.
    giving: Option<Giving>,
}

struct Giving {
    /// The place of the step.
    step: usize,
    documents: Box<dyn Iterator<Item = RawDocumentBuf>>,
    /// What is said of a document that is too large; `None` where none can be.
    too_large: Option<&'static str>,
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
            giving: None,
        }
    }

    /// Takes one document in.
    pub fn push(&mut self, document: &RawDocument) -> Result<()> {
        let (steps, out) = (&mut self.steps[..], &mut self.out);
        push(steps, Cow::Borrowed(document), out)
    }

    /// Tells that no more documents come; what sorts and groups held goes on.
    pub fn finish(&mut self) -> Result<()> {
        while !self.finish_some(usize::MAX)? {}
        Ok(())
    }

    /// A part of [`PipelineRun::finish`]: at most so many documents of what sorts and groups held go on. Whether that was
    /// all.
    pub fn finish_some(&mut self, documents: usize) -> Result<bool> {
        let Some(giving) = &mut self.giving else {
            self.giving = self.next_giving()?;
            return Ok(self.giving.is_none());
        };
        let after = &mut self.steps[giving.step + 1..];
        for _ in 0..documents {
            let Some(document) = giving.documents.next() else {
                self.giving = None;
                return Ok(false);
            };
            if let Some(what) = giving.too_large
                && document.as_bytes().len() > MAX_INTERNAL_DOCUMENT_BYTES
            {
                return Err(error(17419, what));
            }
            push(after, Cow::Owned(document), &mut self.out)?;
        }
        Ok(false)
    }

    /// What the first step that still holds something has to give.
    fn next_giving(&mut self) -> Result<Option<Giving>> {
        let Some(step) = self.steps.iter().position(Step::is_blocking) else {
            return Ok(None);
        };
        let mut too_large = None;
        let documents: Box<dyn Iterator<Item = RawDocumentBuf>> =
            match std::mem::replace(&mut self.steps[step], Step::Spent) {
                Step::Sort { sorter, .. } => {
                    Box::new(sorter.finish().map(|(_, document)| document))
                }
                Step::Group(groups) => {
                    too_large = Some("Resulting document after $group is larger than 16777216");
                    Box::new(groups.finish())
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
            documents,
            too_large,
        }))
    }

    /// The next finished document.
    pub fn pop(&mut self) -> Option<RawDocumentBuf> {
        self.out.pop_front()
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

/// Hands a document to the first of the steps. One that a step has made goes through to the end without being copied.
fn push(
    steps: &mut [Step],
    document: Cow<'_, RawDocument>,
    out: &mut VecDeque<RawDocumentBuf>,
) -> Result<()> {
    let Some((step, rest)) = steps.split_first_mut() else {
        out.push_back(document.into_owned());
        return Ok(());
    };
    match step {
        Step::Skip(left) if *left > 0 => {
            *left -= 1;
            Ok(())
        }
        Step::Skip(_) => push(rest, document, out),
        Step::Limit(left) => {
            if *left == 0 {
                return Ok(());
            }
            *left -= 1;
            push(rest, document, out)
        }
        Step::Count(_, counted) => {
            *counted += 1;
            Ok(())
        }
        Step::Sort {
            stage,
            sorter,
            arrived,
        } => {
            // Documents of equal keys stay in the order in which they came.
            let mut key = stage.value_key(&document)?;
            key.extend_from_slice(&arrived.to_be_bytes());
            *arrived += 1;
            let size = document.as_bytes().len();
            sorter.push(key, document.into_owned(), size)
        }
        Step::Group(groups) => groups.push(&document),
        Step::Facet(facets) => facets.push(&document),
        Step::Spent => Ok(()),
        Step::Plain(stage) => match stage {
            Stage::Match(matcher) => {
                if matcher.matches(&document)? {
                    push(rest, document, out)?;
                }
                Ok(())
            }
            Stage::Unwind(unwind) => unwind.apply(&document, &mut |unwound| {
                push(rest, Cow::Owned(unwound), out)
            }),
            Stage::Redact(expression) => {
                match super::redact::redact(expression, &document, &document)? {
                    Some(kept) => push(rest, Cow::Owned(kept), out),
                    None => Ok(()),
                }
            }
            one => match transformed(one, &document)? {
                Some(made) => push(rest, Cow::Owned(made), out),
                // What is left has steps of its own.
                None => Ok(()),
            },
        },
    }
}

/// What a stage that makes one document out of one makes of it; `None` for other stages.
pub(super) fn transformed(stage: &Stage, document: &RawDocument) -> Result<Option<RawDocumentBuf>> {
    match stage {
        Stage::Project(projection) => projection.apply(document, None).map(Some),
        Stage::ReplaceRoot(expression, what) => {
            let value = expression.evaluate(document)?;
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
