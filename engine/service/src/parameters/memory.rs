//! The server parameters that bound what a stage may hold in memory.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_query::MemoryLimits;
use pinion_wire::{Error, Result};

use super::row::{Row, Setting};
use super::rows::{parameters, setting};
use super::values::whole;

/// One of these parameters.
#[derive(Debug)]
pub(super) struct MemoryLimit {
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

/// Their rows.
pub(super) const ROWS: [Row; MEMORY_LIMITS.len()] = {
    let mut rows = [Row::always("", append, parse); MEMORY_LIMITS.len()];
    let mut at = 0;
    while at < rows.len() {
        rows[at].name = MEMORY_LIMITS[at].name;
        at += 1;
    }
    rows
};

fn append(parameter: &str, name: &str, out: &mut DocBuilder) {
    let limits = parameters().borrow().memory;
    out.append(name, MemoryLimit::named(parameter).get(&limits));
}

fn parse(name: &str, value: RawBsonRef<'_>) -> Result<Setting> {
    let limit = MemoryLimit::named(name);
    let bytes = limit.parse(value)?;
    Ok(setting(move |parameters| {
        limit.set(&mut parameters.memory, bytes);
    }))
}

impl MemoryLimit {
    /// The one of this name, which must be one of these.
    fn named(name: &str) -> &'static MemoryLimit {
        let found = MEMORY_LIMITS.iter().find(|limit| limit.name == name);
        found.expect("a limit of memory")
    }

    fn get(&self, limits: &MemoryLimits) -> i64 {
        let mut limits = *limits;
        i64::try_from(*(self.of)(&mut limits)).unwrap_or(i64::MAX)
    }

    fn set(&self, limits: &mut MemoryLimits, bytes: usize) {
        *(self.of)(limits) = bytes;
    }

    /// Checks a value for the parameter.
    fn parse(&self, value: RawBsonRef<'_>) -> Result<usize> {
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
