//! Documents and values as MongoDB's messages print them.

pub(crate) use pinion_query::{document_text as render, value_text as render_value};
