//! The server parameters that bound what a stage may hold in memory.

use pinion_bson::RawBsonRef;
use pinion_query::MemoryLimits;
use pinion_wire::{Error, Result};

use super::values::whole;

/// One of these parameters.
#[derive(Debug)]
pub struct MemoryLimit {
    name: &'static str,
    of: fn(&mut MemoryLimits) -> &mut usize,
    least: i64,
}

static MEMORY_LIMITS: [MemoryLimit; 5] = [
    MemoryLimit {
        name: "internalDocumentSourceBucketAutoMaxMemoryBytes",
        of: |limits| &mut limits.bucket_auto,
        least: 1,
    },
    MemoryLimit {
        name: "internalDocumentSourceGroupMaxMemoryBytes",
        of: |limits| &mut limits.group,
        least: 1,
    },
    MemoryLimit {
        name: "internalDocumentSourceSetWindowFieldsMaxMemoryBytes",
        of: |limits| &mut limits.window_fields,
        least: 1,
    },
    MemoryLimit {
        name: "internalQueryMaxBlockingSortMemoryUsageBytes",
        of: |limits| &mut limits.sort,
        least: 0,
    },
    MemoryLimit {
        name: "internalQuerySlotBasedExecutionHashAggApproxMemoryUseInBytesBeforeSpill",
        of: |limits| &mut limits.hash_agg,
        least: 1,
    },
];

impl MemoryLimit {
    pub(crate) fn find(name: &str) -> Option<&'static MemoryLimit> {
        MEMORY_LIMITS.iter().find(|limit| limit.name == name)
    }

    pub(crate) fn get(&self, limits: &MemoryLimits) -> i64 {
        let mut limits = *limits;
        i64::try_from(*(self.of)(&mut limits)).unwrap_or(i64::MAX)
    }

    pub(crate) fn set(&self, limits: &mut MemoryLimits, bytes: usize) {
        *(self.of)(limits) = bytes;
    }

    /// Checks a value for the parameter.
    pub(crate) fn parse(&self, value: RawBsonRef<'_>) -> Result<usize> {
        let name = self.name;
        let bytes = whole(name, value)?;
        if bytes < self.least {
            let bound = match self.least {
                0 => "greater than or equal to 0",
                _ => "greater than 0",
            };
            return Err(Error::bad_value(format!(
                "Invalid value for parameter {name}: {bytes} is not {bound}"
            )));
        }
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}
