//! Strict reading of command documents, with the errors that MongoDB's IDL parsers give.

mod concern;
mod errors;
mod generic;
mod namespace;
mod numbers;
mod read_preference;
mod reader;
mod routing;

pub use concern::{
    ReadConcern, ReadConcernLevel, WriteConcern, WriteConcernW, parse_read_concern,
    parse_write_concern,
};
pub use errors::{
    Path, Types, duplicate_field, idl_type_name, missing_field, unknown_field, wrong_type,
};
pub use generic::{
    ApiParameters, ChildSession, GenericArguments, Lsid, NO_USER, append_cluster_time, append_lsid,
    is_generic_argument, parse_cluster_time, read_lsid,
};
pub use namespace::{Namespace, is_valid_collection_name, is_valid_database_name};
pub use numbers::{f64_lossy, i32_clamped, i64_clamped, i64_exact, is_number, truthy};
pub use read_preference::{ReadPreference, ReadPreferenceMode, TagSet, parse_read_preference};
pub use reader::{CommandReader, FieldReader, Objects};
pub use routing::{RoutingArguments, SentDatabaseVersion, SentShardVersion};
