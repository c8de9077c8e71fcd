//! The options of `insert`, `update` and `delete` beside their statements.

use pinion_bson::RawDocument;
use pinion_wire::Result;
use pinion_wire::idl::{CommandReader, Namespace, Types};

use super::statement_ids::StatementIds;

/// Options of a batch.
pub struct BatchSyntax<'d> {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    pub ordered: bool,
    pub bypasses_validation: Option<bool>,
    pub keep_empty_timestamps: bool,
    pub ids: StatementIds,
    pub lets: Option<&'d RawDocument>,
}

impl<'d> BatchSyntax<'d> {
    /// Reads the options of `command`, whose statements are in the field `statements`.
    ///
    /// # Errors
    /// A field that is not known, of a wrong type, or refused; the namespace is none.
    pub fn read(
        reader: &CommandReader<'d>,
        db: &str,
        command: &str,
        statements: &str,
    ) -> Result<BatchSyntax<'d>> {
        let ns = reader.namespace(command, db)?;
        let ordered = reader.opt_bool("ordered")?.unwrap_or(true);
        let bypasses_validation = reader.opt_safe_bool("bypassDocumentValidation")?;
        let keep_empty_timestamps = command != "delete"
            && reader
                .opt_safe_bool("bypassEmptyTsReplacement")?
                .unwrap_or(false);
        let ids = StatementIds::read(reader)?;
        let lets = match command {
            "insert" => None,
            _ => {
                reader.unsupported("legacyRuntimeConstants", Types::OBJECT)?;
                reader.opt_doc("let")?
            }
        };
        reader.unsupported("encryptionInformation", Types::OBJECT)?;
        let uuid = reader.opt_uuid("collectionUUID")?;
        reader.ignore(&[statements]);
        reader.finish()?;
        Ok(BatchSyntax {
            ns,
            uuid,
            ordered,
            bypasses_validation,
            keep_empty_timestamps,
            ids,
            lets,
        })
    }
}
