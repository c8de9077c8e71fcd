//! The syntax of commands: what a node and a router read of them in the same way, before either
//! looks at a collection.

mod collation;
mod hint;
mod runtime_constants;
mod statement_ids;
mod time_series;

mod aggregate;
mod batch;
mod delete;
mod find_and_modify;
mod update;

pub use aggregate::{AggregateSyntax, COLLECTIONLESS, MongosArguments};
pub use batch::BatchSyntax;
pub use collation::CollationOption;
pub use delete::{DeleteSpec, parse_delete};
pub use find_and_modify::FindAndModifySyntax;
pub use hint::hint;
pub use runtime_constants::RuntimeConstants;
pub use statement_ids::{NO_STATEMENT, StatementIds};
pub use time_series::{TimeSeriesSpec, out_series, time_series_change, time_series_option};
pub use update::{
    UPDATE_NAMES, UpdateNames, UpdateSpec, array_filters, check_modification, parse_update,
    read_update,
};
