//! What stages read of documents beside their fields, and whether anything before them gives it.

use pinion_wire::Result;

use super::stage::{Stage, StageKind};
use super::{Outside, Pipeline};
use crate::error::error;
use crate::expression::{MetaKind, MetaSet};

impl Stage {
    /// What the stage reads.
    fn reads(&self) -> MetaSet {
        match &self.kind {
            StageKind::Match(matcher) => matcher.reads(),
            StageKind::Project(projection) => projection.reads(),
            StageKind::Sort(sort) => sort.reads(),
            StageKind::Group(group) | StageKind::PartialGroup(group) => group.reads(),
            StageKind::BucketAuto(buckets) => buckets.reads(),
            StageKind::Window(fields) => fields.reads(),
            StageKind::ReplaceRoot(expression, _) | StageKind::Redact(expression) => {
                expression.reads()
            }
            StageKind::Facet(facet) => all(&facet.0),
            StageKind::Outside(outside) => match &**outside {
                Outside::Facet(branches) => all(branches),
                Outside::Lookup(lookup) => lookup.reads(),
                Outside::GraphLookup(lookup) => lookup.reads(),
                Outside::Merge(merge) => merge.reads(),
                Outside::UnionWith(_) | Outside::Out(_) => MetaSet::default(),
            },
            StageKind::Rank(ranks) => ranks.reads(),
            StageKind::Known(_)
            | StageKind::Fuse(_)
            | StageKind::Skip(_)
            | StageKind::Limit(_)
            | StageKind::Count(_)
            | StageKind::MergedGroup(_)
            | StageKind::MergedCount(_)
            | StageKind::Unwind(_)
            | StageKind::Unpack(_)
            | StageKind::GeoNear(_)
            | StageKind::Densify(_)
            | StageKind::Sample(_) => MetaSet::default(),
        }
    }

    /// What is known behind the stage, of what is known before it.
    fn passes(&self, known: MetaSet) -> MetaSet {
        match &self.kind {
            StageKind::Match(matcher) => known.union(matcher.tells()),
            StageKind::GeoNear(_) => {
                let mut known = known;
                known.insert(MetaKind::GeoNearDistance);
                known.insert(MetaKind::GeoNearPoint);
                known
            }
            StageKind::Fuse(fusion) => known.union(fusion.tells()),
            // Their documents are made of many.
            StageKind::Group(_)
            | StageKind::BucketAuto(_)
            | StageKind::Count(_)
            | StageKind::Facet(_) => MetaSet::default(),
            StageKind::Outside(outside) if matches!(**outside, Outside::Facet(_)) => {
                MetaSet::default()
            }
            _ => known,
        }
    }
}

fn all(branches: &[(String, Pipeline)]) -> MetaSet {
    branches
        .iter()
        .map(|(_, pipeline)| pipeline.reads())
        .fold(MetaSet::default(), MetaSet::union)
}

impl Pipeline {
    /// Whether the stages look at the scores of a text search.
    pub fn reads_scores(&self) -> bool {
        self.reads().contains(MetaKind::TextScore)
    }

    /// What the stages read.
    pub(super) fn reads(&self) -> MetaSet {
        self.stages
            .iter()
            .map(Stage::reads)
            .fold(MetaSet::default(), MetaSet::union)
    }

    /// Refuses stages that read what nothing before them gives.
    pub(super) fn check_metadata(&self, given: MetaSet) -> Result<()> {
        let mut known = given;
        for stage in &self.stages {
            let facets = match &stage.kind {
                StageKind::Facet(facet) => Some(&facet.0),
                _ => None,
            };
            match facets {
                Some(branches) => {
                    for (_, inner) in branches {
                        inner.check_metadata(known)?;
                    }
                }
                None => {
                    // A filter may read what its own `$text` tells.
                    let known = match &stage.kind {
                        StageKind::Match(matcher) => known.union(matcher.tells()),
                        _ => known,
                    };
                    for kind in stage.reads().iter() {
                        kind.refuse_outside_find()?;
                        kind.check_given(known.contains(kind))?;
                    }
                }
            }
            known = stage.passes(known);
        }
        Ok(())
    }

    /// Refuses a `$text` anywhere but at the front.
    pub(super) fn check_text(&self, at_front: bool) -> Result<()> {
        let behind = self.stages.iter().skip(usize::from(at_front));
        for stage in behind {
            if matches!(&stage.kind, StageKind::Match(matcher) if matcher.has_text()) {
                return Err(error(
                    17313,
                    "$match with $text is only allowed as the first pipeline stage",
                ));
            }
        }
        Ok(())
    }

    /// Whether a `$text` is at the front.
    pub(super) fn has_text(&self) -> bool {
        let first = self.stages.first().map(|stage| &stage.kind);
        matches!(first, Some(StageKind::Match(matcher)) if matcher.has_text())
    }
}
