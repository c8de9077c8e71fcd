//! What other shards of a cluster of MongoDB 4.4 are sent in the place of Pinion's own commands.

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, Result};

use super::check_own_cluster;
use crate::config_servers::with_majority;
use crate::part::Membership;

/// The command for the other shards, as it is sent; `None` where they have nothing to do.
///
/// # Errors
/// `CommandNotSupported`.
pub(crate) fn for_shards(
    shard: &Membership,
    command: &RawDocument,
) -> Result<Option<RawDocumentBuf>> {
    let (name, value) = pinion_bson::elements(command)
        .next()
        .ok_or_else(|| Error::internal("a command has a name"))?;
    match (name, value) {
        ("_shardsvrCreateCollectionParticipant", RawBsonRef::String(collection)) => {
            let db = pinion_bson::get(command, "$db").and_then(|db| db.as_str());
            let ns = Namespace::new(db.unwrap_or_default(), collection)?;
            Ok(Some(with_majority(rawdoc! {
                "_cloneCollectionOptionsFromPrimaryShard": ns.as_str(),
                "primaryShard": shard.shard().as_str(), "$db": ns.db(),
            })))
        }
        // The copies of a definition that was given up stay, as in MongoDB 4.4: they are empty, and
        // the next attempt takes them.
        ("_shardsvrDropCollectionParticipant", _) => Ok(None),
        // It takes no write concern there.
        ("_flushRoutingTableCacheUpdates", _) => Ok(Some(command.to_owned())),
        (name, _) => check_own_cluster(name).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::membership_of;

    #[test]
    fn commands_in_the_form_of_4_4() {
        let shard = membership_of("s1");
        let translated = |command: RawDocumentBuf| for_shards(&shard, &command).expect("known");
        let creation = rawdoc! {
            "_shardsvrCreateCollectionParticipant": "c", "options": {}, "indexes": [], "$db": "d",
        };
        let expected = rawdoc! {
            "_cloneCollectionOptionsFromPrimaryShard": "d.c", "primaryShard": "s1", "$db": "d",
        };
        assert_eq!(translated(creation), Some(with_majority(expected)));
        let removal = rawdoc! { "_shardsvrDropCollectionParticipant": "c", "$db": "d" };
        assert_eq!(translated(removal), None);
        let flush = rawdoc! { "_flushRoutingTableCacheUpdates": "d.c", "$db": "admin" };
        assert_eq!(translated(flush.clone()), Some(flush));
    }
}
