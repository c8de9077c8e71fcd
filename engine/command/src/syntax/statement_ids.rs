//! Which statements of its session a command is of: `stmtId` and `stmtIds`.

use pinion_bson::{RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_wire::idl::{CommandReader, i64_exact};
use pinion_wire::{Error, ErrorCode, Result};

/// The number of what a server does for a client's retryable write that is no statement of it.
pub const NO_STATEMENT: i32 = -1;

/// The numbers of a command's statements: those listed, or one after another from the first.
#[derive(Clone, Debug, Default)]
pub struct StatementIds {
    first: Option<i32>,
    listed: Option<Vec<i32>>,
}

impl StatementIds {
    /// Reads the fields of a command of several statements.
    ///
    /// # Errors
    /// One of them has another type.
    pub fn read(reader: &CommandReader<'_>) -> Result<StatementIds> {
        let first = reader.opt_i32("stmtId")?;
        let Some(listed) = reader.opt_array("stmtIds")? else {
            return Ok(StatementIds {
                first,
                listed: None,
            });
        };
        let number = |value: RawBsonRef<'_>| {
            let number = i64_exact(value).and_then(|number| i32::try_from(number).ok());
            number.ok_or_else(|| Error::type_mismatch("a statement id is no 32-bit integer"))
        };
        Ok(StatementIds {
            first,
            listed: Some(
                pinion_bson::values(listed)
                    .map(number)
                    .collect::<Result<_>>()?,
            ),
        })
    }

    /// That of a command that is one statement.
    pub fn one(first: Option<i32>) -> StatementIds {
        StatementIds {
            first,
            listed: None,
        }
    }

    /// Refuses numbers that are not those of this number of statements.
    ///
    /// # Errors
    /// `InvalidLength`, `InvalidOptions`.
    pub fn check(&self, statements: usize) -> Result<()> {
        let Some(listed) = &self.listed else {
            return Ok(());
        };
        let shown = |document: RawDocumentBuf| pinion_query::document_text(&document);
        let ids = || {
            let mut ids = pinion_bson::RawArrayBuf::new();
            listed.iter().for_each(|id| ids.push(*id));
            ids
        };
        if listed.len() != statements {
            return Err(Error::new(
                ErrorCode::INVALID_LENGTH,
                format!(
                    "Number of statement ids must match the number of batch entries. Got {} statement ids but \
                     {statements} operations. Statement ids: {}",
                    listed.len(),
                    shown(rawdoc! { "stmtIds": ids() })
                ),
            ));
        }
        match self.first {
            Some(first) => Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                format!(
                    "May not specify both stmtId and stmtIds in write command. Got {}",
                    shown(rawdoc! { "stmtId": first, "stmtIds": ids() })
                ),
            )),
            None => Ok(()),
        }
    }

    /// One that several statements have.
    pub fn repeated(&self) -> Option<i32> {
        let mut sorted = self.listed.clone()?;
        sorted.retain(|id| *id != NO_STATEMENT);
        sorted.sort_unstable();
        let mut pairs = sorted.windows(2);
        pairs.find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }

    /// The number of the statement at this place of the command.
    pub fn of(&self, place: usize) -> i32 {
        match &self.listed {
            Some(listed) => listed[place],
            None => self.first.unwrap_or(0).wrapping_add(place as i32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_listed_or_follow_the_first() {
        let check =
            |ids: StatementIds, statements: usize, expected: std::result::Result<i32, i32>| {
                let found = ids.check(statements).map(|()| ids.of(1));
                assert_eq!(found.map_err(|error| error.code.0), expected, "{ids:?}");
            };
        let ids = |first, listed: Option<&[i32]>| StatementIds {
            first,
            listed: listed.map(<[i32]>::to_vec),
        };
        check(ids(None, None), 2, Ok(1));
        check(ids(Some(7), None), 2, Ok(8));
        check(ids(None, Some(&[5, 3])), 2, Ok(3));
        check(ids(None, Some(&[5])), 2, Err(16));
        check(ids(Some(1), Some(&[5, 3])), 2, Err(72));
        assert_eq!(ids(None, Some(&[3, -1, 5, -1, 3])).repeated(), Some(3));
        assert_eq!(ids(None, Some(&[3, -1, -1])).repeated(), None);
    }
}
