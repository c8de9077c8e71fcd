//! The routing table of a collection that gets another name.

use pinion_bson::{Binary, RawDocumentBuf, rawdoc};
use pinion_runtime::wall_ms;
use pinion_sharding_protocol::config::{MetadataRename, RenameChange, ShardedEntry};
use pinion_sharding_protocol::documents::CollectionDocument;
use pinion_wire::Result;

use super::changelog::note;
use super::collections::{collection, remove_left_chunks};
use crate::local::{LocalClient, wait_majority};
use crate::part::part;

/// Renames a collection: its document and its zones go to the new name together, in the place of
/// what has that. Its chunks stay, which are of its UUID; those of the other collection go behind
/// it. Called on core 0.
///
/// # Errors
/// As of [`MetadataRename::decide`]; those of a write.
pub(super) async fn rename(rename: &MetadataRename, sender: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let from = collection(&client, &rename.from).await?;
    let to = collection(&client, &rename.to).await?;
    let details = rawdoc! {
        "source": rename.from.as_str(), "destination": rename.to.as_str(),
    };
    let ns = rename.from.as_str();
    let change = rename.decide(from.as_ref(), to.as_ref(), wall_ms())?;
    if let RenameChange::Write(new) = &change {
        note(
            &client,
            sender,
            "renameCollection.start",
            ns,
            details.clone(),
        )
        .await;
        client
            .run_together(&commands(rename, new.as_deref()))
            .await?;
    }
    // An attempt may have ended before it had removed all chunks.
    if let Some(target) = rename.target {
        remove_left_chunks(&client, target.uuid).await?;
    }
    wait_majority().await?;
    if change != RenameChange::Done {
        note(&client, sender, "renameCollection.end", ns, details).await;
    }
    Ok(())
}

/// What is written in one transaction.
fn commands(rename: &MetadataRename, new: Option<&CollectionDocument>) -> Vec<RawDocumentBuf> {
    let (from, to) = (rename.from.as_str(), rename.to.as_str());
    let removal = |ns: &str, entry: ShardedEntry| {
        rawdoc! { "q": { "_id": ns, "uuid": Binary::from(entry.uuid) }, "limit": 1 }
    };
    let source = rename.source.map(|entry| removal(from, entry));
    let target = rename.target.map(|entry| removal(to, entry));
    let mut commands: Vec<RawDocumentBuf> =
        source.into_iter().chain(target).map(removing).collect();
    commands.push(rawdoc! {
        "delete": "tags", "deletes": [{ "q": { "ns": to }, "limit": 0 }], "$db": "config",
    });
    if let Some(new) = new {
        commands.push(rawdoc! {
            "insert": "collections", "documents": [new.to_bson()], "$db": "config",
        });
        let move_zones = rawdoc! {
            "q": { "ns": from }, "u": { "$set": { "ns": to } }, "multi": true,
        };
        commands.push(rawdoc! { "update": "tags", "updates": [move_zones], "$db": "config" });
    }
    commands
}

fn removing(statement: RawDocumentBuf) -> RawDocumentBuf {
    rawdoc! { "delete": "collections", "deletes": [statement], "$db": "config" }
}
