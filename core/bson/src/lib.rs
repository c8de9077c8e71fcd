//! Raw BSON views, validation of untrusted bytes, comparison order and extended JSON.
//!
//! Everything that crosses a boundary is validated once; behind it documents are read as raw bytes.
//! The rest of the tree names types of the `bson` crate only through this one.

mod array;
mod builder;
mod compare;
pub mod decimal;
mod elements;
mod exact;
mod json;
mod limits;
mod number;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod types;
mod validate;
mod view;

pub use array::{array_of, document_of};
pub use builder::{DocBuilder, append_value, is_field_name};
pub use compare::{
    TextOrder, compare_documents, compare_documents_by, compare_values, compare_values_by,
    compare_views, values_equal,
};
pub use decimal::Decimal;
pub use elements::{Elements, Values, elements, field_count, get, get_path, raw_elements, values};
pub use json::{JsonMode, to_extended_json, to_extended_json_limited, value_to_json};
pub use limits::{
    INTERNAL_ALLOWANCE_BYTES, MAX_DEPTH, MAX_INTERNAL_DOCUMENT_BYTES, MAX_USER_DOCUMENT_BYTES,
    MIN_DOCUMENT_BYTES,
};
pub use number::Number;
pub use types::{
    canonical_type, is_numeric, type_from_alias, type_from_number, type_name, type_number,
};
pub use validate::{Fault, InvalidBson, validate, validate_prefix, validate_wrapped_prefix};
pub use view::{RawElem, RawElems, View, find_nul, with_view};

pub use bson::oid::ObjectId;
pub use bson::raw::{CStr, CString, cstr};
pub use bson::spec::{BinarySubtype, ElementType};
pub use bson::{
    Binary, Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, RawArray, RawArrayBuf,
    RawBinaryRef, RawBson, RawBsonRef, RawDbPointerRef, RawDocument, RawDocumentBuf,
    RawJavaScriptCodeWithScope, RawJavaScriptCodeWithScopeRef, RawRegexRef, Regex, Timestamp, Uuid,
    bson, doc, rawbson, rawdoc,
};
