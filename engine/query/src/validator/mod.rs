//! Validators of collections: any filter that looks at one document alone, with what a document
//! breaks it by.

mod details;
mod predicate;

#[cfg(test)]
mod tests;

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use crate::expression::Variables;
use crate::matcher::Matcher;
use crate::work;

/// A parsed validator.
#[derive(Clone, Debug)]
pub struct Validator {
    matcher: Matcher,
    variables: Variables,
}

impl Validator {
    /// Parses a validator; the errors are MongoDB's. What needs an index or a script (`$near`,
    /// `$text`, `$where`) is refused. `variables` are those of the operation whose documents are
    /// checked: see `uses_variables`.
    pub fn parse(filter: &RawDocument, variables: &Variables) -> Result<Validator> {
        Ok(Validator {
            matcher: Matcher::parse_validator(filter, variables)?,
            variables: variables.clone(),
        })
    }

    /// The validator as it was given.
    pub fn filter(&self) -> &RawDocument {
        self.matcher.filter()
    }

    /// Whether an expression in it may ask for what changes from one operation to the next, such as
    /// the time: then it is parsed for each operation.
    pub fn uses_variables(&self) -> bool {
        self.matcher.root().has_expression()
    }

    /// Checks a document. Of one that breaks the validator it gives `details`, as the errors of
    /// MongoDB have them under `errInfo`. The call itself fails only where it was refused for its
    /// work.
    pub fn check(&self, document: &RawDocument) -> Result<Option<RawDocumentBuf>> {
        // An expression that fails for a document breaks the validator, as in MongoDB.
        let accepted = matches!(self.matcher.matches(document), Ok(true));
        work::check()?;
        if accepted {
            return Ok(None);
        }
        let details = details::details(self.filter(), document, &self.variables);
        work::check()?;
        Ok(Some(details))
    }
}
