//! Text search: the terms of texts in MongoDB's languages, their scores, and `$text` queries.

mod keys;
mod language;
mod matches;
mod query;
mod score;
mod spec;
mod stop_words;
mod tokenizer;
mod unicode;

pub(crate) use keys::{keys, term_of_key};
pub use language::is_text_language;
pub(crate) use query::{TextOperand, TextQuery};
pub(crate) use spec::TextFields;
