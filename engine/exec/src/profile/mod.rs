//! The profiler: which operations are written to their database's `system.profile`, and what of them.

mod entry;
mod record;
mod settings;

pub(crate) use record::{Profiled, ProfiledStatement, make_collection};
pub use settings::set_profile_defaults;
pub(crate) use settings::{Level, Profile, Profiles, forget, is_written, profiles};

/// The collection of a database that its operations are written to.
pub(crate) const COLLECTION: &str = "system.profile";
