//! `findAndModify`.

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_query::Hint;
use pinion_wire::idl::{CommandReader, Namespace, Types};
use pinion_wire::{Error, Result};

use super::collation::CollationOption;
use super::hint::hint;
use super::statement_ids::StatementIds;
use super::update::{array_filters, check_modification};

/// A `findAndModify` as it is written.
pub struct FindAndModifySyntax<'d> {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    pub query: Option<&'d RawDocument>,
    pub sort: Option<&'d RawDocument>,
    pub fields: Option<&'d RawDocument>,
    /// None removes the document.
    pub update: Option<RawBsonRef<'d>>,
    pub filters: Option<&'d RawArray>,
    pub keep_empty_timestamps: bool,
    pub new: bool,
    pub upsert: bool,
    pub hint: Option<Hint>,
    pub lets: Option<&'d RawDocument>,
    pub bypasses_validation: Option<bool>,
    pub collation: CollationOption,
    pub ids: StatementIds,
}

impl<'d> FindAndModifySyntax<'d> {
    /// Reads the command, in the spelling that it was sent in.
    ///
    /// # Errors
    /// A field that is not known, of a wrong type, or that does not stand beside another.
    pub fn read(
        body: &'d RawDocument,
        command: &'d str,
        db: &str,
    ) -> Result<FindAndModifySyntax<'d>> {
        let reader = CommandReader::new(command, body)?;
        FindAndModifySyntax::read_from(&reader, command, db)
    }

    /// Reads the command from a reader that the caller has asked for further fields.
    ///
    /// # Errors
    /// As those of [`FindAndModifySyntax::read`].
    pub fn read_from(
        reader: &CommandReader<'d>,
        command: &str,
        db: &str,
    ) -> Result<FindAndModifySyntax<'d>> {
        let ns = reader.namespace(command, db)?;
        let query = reader.opt_doc("query")?;
        let sort = reader.opt_doc("sort")?;
        let fields = reader.opt_doc("fields")?;
        let remove = reader.opt_safe_bool("remove")?.unwrap_or(false);
        let new = reader.opt_safe_bool("new")?.unwrap_or(false);
        let upsert = reader.opt_safe_bool("upsert")?.unwrap_or(false);
        let update = match reader.value("update") {
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => None,
            Some(update) => Some(update),
        };
        let hint = hint(reader, false)?;
        let uuid = reader.opt_uuid("collectionUUID")?;
        let bypasses_validation = reader.opt_safe_bool("bypassDocumentValidation")?;
        let keep_empty_timestamps = reader
            .opt_safe_bool("bypassEmptyTsReplacement")?
            .unwrap_or(false);
        let ids = StatementIds::one(reader.opt_i32("stmtId")?);
        let filters = array_filters(reader)?;
        let collation = CollationOption::read(reader)?;
        let lets = reader.opt_doc("let")?;
        for option in ["legacyRuntimeConstants", "encryptionInformation"] {
            reader.unsupported(option, Types::OBJECT)?;
        }
        reader.finish()?;
        if remove {
            let has_filters = filters.is_some_and(|filters| !filters.is_empty());
            check_removal(update.is_some(), has_filters, upsert, new)?;
        }
        match update {
            Some(update) => check_modification(update)?,
            None if remove => {}
            None => {
                return Err(Error::failed_to_parse(
                    "Either an update or remove=true must be specified",
                ));
            }
        }
        Ok(FindAndModifySyntax {
            ns,
            uuid,
            query,
            sort,
            fields,
            update,
            filters,
            keep_empty_timestamps,
            new,
            upsert,
            hint,
            lets,
            bypasses_validation,
            collation,
            ids,
        })
    }
}

/// Refuses what does not stand beside `remove`.
fn check_removal(has_update: bool, has_filters: bool, upsert: bool, new: bool) -> Result<()> {
    let beside = [
        (has_update, "Cannot specify both an update and remove=true"),
        (has_filters, "Cannot specify arrayFilters and remove=true"),
        (upsert, "Cannot specify both upsert=true and remove=true"),
        (
            new,
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
        ),
    ];
    match beside.into_iter().find(|(is_there, _)| *is_there) {
        Some((_, message)) => Err(Error::failed_to_parse(message)),
        None => Ok(()),
    }
}
