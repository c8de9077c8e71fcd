//! `$unionWith`

use pinion_bson::{RawArray, RawArrayBuf, RawBsonRef};
use pinion_wire::Result;

use super::{begins_with_documents, check_foreign, check_inner, sub_pipeline};
use crate::error::failed_to_parse;
use crate::expression::Variables;
use crate::pipeline::Pipeline;
use crate::pipeline::spec::{check_duplicates, optional_text, unknown_field};
use crate::value::{elements, type_name};

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub struct UnionWith {
    from: Option<String>,
    stages: RawArrayBuf,
    /// Stages over the collection that is read in front of this one, in the place of all that.
    own: Option<Pipeline>,
}

impl UnionWith {
    pub(in crate::pipeline) fn parse(
        spec: RawBsonRef<'_>,
        variables: &Variables,
    ) -> Result<UnionWith> {
        let (from, stages) = match spec {
            RawBsonRef::String(name) => (Some(name.to_owned()), None),
            RawBsonRef::Document(spec) => {
                let (mut from, mut stages) = (None, None);
                check_duplicates("$unionWith", spec)?;
                for (name, value) in elements(spec) {
                    match name {
                        "coll" => {
                            from = optional_text("$unionWith.coll", value)?.map(str::to_owned);
                        }
                        "pipeline" => stages = sub_pipeline("$unionWith", Some(value))?,
                        _ => return Err(unknown_field(&format!("$unionWith.{name}"))),
                    }
                }
                (from, stages)
            }
            other => {
                return Err(failed_to_parse(format!(
                    "the $unionWith stage specification must be an object or string, but found {}",
                    type_name(other)
                )));
            }
        };
        if let Some(from) = &from {
            check_foreign(from)?;
        }
        let stages = stages.unwrap_or_default();
        if from.is_none() && !begins_with_documents(&stages) {
            return Err(failed_to_parse(
                "$unionWith stage without explicit collection must have a pipeline with $documents as first stage",
            ));
        }
        let codes = [31_441, 9_621_301];
        check_inner("$unionWith", &stages, &codes, |row| row.in_union)?;
        Pipeline::parse_sub(&stages, variables)?;
        Ok(UnionWith {
            from,
            stages,
            own: None,
        })
    }

    /// A union with other documents of the same collection.
    pub(in crate::pipeline) fn of_own(pipeline: Pipeline) -> UnionWith {
        UnionWith {
            from: None,
            stages: RawArrayBuf::new(),
            own: Some(pipeline),
        }
    }

    /// The stages that are run over the collection that is read in front of this one, if that is
    /// meant.
    pub fn own(&self) -> Option<&Pipeline> {
        self.own.as_ref()
    }

    /// The collection that is read; none where the pipeline makes its documents.
    pub fn from(&self) -> Option<&str> {
        self.from.as_deref()
    }

    /// The stages over it.
    pub fn stages(&self) -> &RawArray {
        &self.stages
    }
}
