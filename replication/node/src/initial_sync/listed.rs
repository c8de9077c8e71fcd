//! The collections of a source that has no rows of a catalog to give: a member of MongoDB's. They
//! are listed as for a client.

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::{ListedCollection, ListedIndex, Uuid, is_replicated};
use pinion_server::RemoteReply;
use pinion_wire::ErrorCode;
use pinion_wire::idl::Namespace;

use super::Failed;
use super::source::{Source, batch_of};

impl Source {
    /// All replicated collections and views of the source, with their indexes.
    ///
    /// # Errors
    /// A collection of a kind that cannot be copied; the source cannot be read.
    pub(super) async fn listed_collections(&mut self) -> Result<Vec<ListedCollection>, Failed> {
        let mut found = Vec::new();
        for db in self.databases().await? {
            for document in self.list(&db, rawdoc! { "listCollections": 1 }).await? {
                if let Some(listed) = self.listed_collection(&db, &document).await? {
                    found.push(listed);
                }
            }
        }
        Ok(found)
    }

    async fn databases(&mut self) -> Result<Vec<String>, Failed> {
        let reply = self
            .run(&rawdoc! {
                "listDatabases": 1,
                "nameOnly": true,
                "$db": "admin",
                "$readPreference": { "mode": "secondaryPreferred" },
            })
            .await?;
        let Some(RawBsonRef::Array(listed)) = pinion_bson::get(reply.body(), "databases") else {
            return Err(Failed::new("the source does not list its databases"));
        };
        let name = |database: RawBsonRef<'_>| {
            let database = database.as_document()?;
            database.get_str("name").ok().map(str::to_owned)
        };
        Ok(pinion_bson::values(listed).filter_map(name).collect())
    }

    /// What a collection of the source is; `None` where it is not to be copied, or gone.
    async fn listed_collection(
        &mut self,
        db: &str,
        listed: &RawDocument,
    ) -> Result<Option<ListedCollection>, Failed> {
        let malformed = |_| Failed::new("the source lists a collection in another form");
        let name = listed.get_str("name").map_err(malformed)?;
        let ns = Namespace::new(db, name)?;
        if !is_replicated(&ns) {
            return Ok(None);
        }
        let options = listed
            .get_document("options")
            .map_err(malformed)?
            .to_owned();
        let kind = listed.get_str("type").unwrap_or("collection");
        let uuid = match kind {
            "view" => None,
            "collection" => {
                let info = listed.get_document("info").map_err(malformed)?;
                let uuid = pinion_bson::get(info, "uuid").and_then(Uuid::from_bson);
                Some(uuid.ok_or_else(|| Failed::new(format!("{ns} has no UUID at the source")))?)
            }
            other => {
                return Err(Failed::new(format!(
                    "{ns} is a {other}, which cannot be copied from a member of MongoDB's"
                )));
            }
        };
        let indexes = match uuid {
            None => Some(Vec::new()),
            Some(_) => self.listed_indexes(&ns).await?,
        };
        Ok(indexes.map(|indexes| ListedCollection {
            ns,
            uuid,
            options,
            indexes,
        }))
    }

    /// `None` if the collection is gone.
    async fn listed_indexes(&mut self, ns: &Namespace) -> Result<Option<Vec<ListedIndex>>, Failed> {
        let ask = rawdoc! { "listIndexes": ns.collection(), "includeBuildUUIDs": true };
        let documents = match self.list(ns.db(), ask).await {
            Err(failed) if failed.code == Some(ErrorCode::NAMESPACE_NOT_FOUND) => return Ok(None),
            listed => listed?,
        };
        let index = |document: RawDocumentBuf| match document.get_document("spec") {
            Ok(spec) => ListedIndex {
                spec: spec.to_owned(),
                build: pinion_bson::get(&document, "buildUUID").and_then(Uuid::from_bson),
            },
            Err(_) => ListedIndex {
                spec: document,
                build: None,
            },
        };
        Ok(Some(documents.into_iter().map(index).collect()))
    }

    /// All documents that a command lists.
    async fn list(
        &mut self,
        db: &str,
        mut command: RawDocumentBuf,
    ) -> Result<Vec<RawDocumentBuf>, Failed> {
        let read_preference = || rawdoc! { "mode": "secondaryPreferred" };
        command.append(pinion_bson::cstr!("$db"), db);
        command.append(pinion_bson::cstr!("$readPreference"), read_preference());
        let mut reply = self.run(&command).await?;
        let mut documents = Vec::new();
        loop {
            take(&reply, &mut documents)?;
            let (id, ns) = super::documents::cursor_of(reply.body())?;
            if id == 0 {
                return Ok(documents);
            }
            let collection = ns.split_once('.').map_or("", |(_, name)| name);
            let more = rawdoc! {
                "getMore": id,
                "collection": collection,
                "$db": db,
                "$readPreference": read_preference(),
            };
            // Not again if the connection breaks: the cursor may have gone on.
            reply = self.run_once(&more).await?;
        }
    }
}

fn take(reply: &RemoteReply, documents: &mut Vec<RawDocumentBuf>) -> Result<(), Failed> {
    for value in pinion_bson::values(batch_of(reply.body())?) {
        match value {
            RawBsonRef::Document(document) => documents.push(document.to_owned()),
            _ => return Err(Failed::new("the source lists a value that is no document")),
        }
    }
    Ok(())
}
