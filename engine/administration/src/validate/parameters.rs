//! The server parameter of validation: what its sums may take in memory.

use std::cell::Cell;
use std::rc::Rc;

use pinion_service::parameters::{Row, Setting, within};

use crate::limits::VALIDATE_MEMORY_MB;

/// What the sums of a validation may take, in megabytes; every core holds the same.
pub struct ValidateMemory(Cell<i64>);

impl Default for ValidateMemory {
    fn default() -> ValidateMemory {
        ValidateMemory(Cell::new(VALIDATE_MEMORY_MB))
    }
}

fn validate_memory() -> Rc<ValidateMemory> {
    pinion_runtime::core_local()
}

/// What the sums of a validation may take now, in megabytes.
pub(super) fn memory_mb() -> i64 {
    validate_memory().0.get()
}

/// Its row.
pub(crate) const ROWS: [Row; 1] = [Row::always(
    "maxValidateMemoryUsageMB",
    |_, name, out| {
        out.append(name, memory_mb() as i32);
    },
    |name, value| {
        let megabytes = within(name, value, 1, i64::from(i32::MAX))?;
        Ok(Setting::new(move || validate_memory().0.set(megabytes)))
    },
)];
