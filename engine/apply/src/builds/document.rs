//! `config.system.indexBuilds`: of each build under way what its client asked of the set, and which
//! members are ready.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_catalog::{BuildName, Uuid, core_catalog};
use pinion_clock::Timestamp;
use pinion_exec::acquire::{acquire_read, acquire_write};
use pinion_exec::local::document_by_id;
use pinion_exec::read::{ReadRequest, open};
use pinion_exec::topology::CommitQuorum;
use pinion_exec::write::{Change, ModifyOutcome, ModifyStatement, run};
use pinion_query::{Matcher, Update, Variables};
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

const BUILDS: &str = "config.system.indexBuilds";

/// What is kept of a build.
pub struct KeptBuild {
    pub quorum: CommitQuorum,
    /// The members that are ready, as the configuration calls them.
    pub ready: Vec<String>,
}

/// What is kept of a build; where nothing is, it waits as one does of which nothing was asked.
///
/// # Errors
/// Those of a read.
pub async fn read(build: Uuid) -> Result<KeptBuild> {
    let found = document_by_id(BUILDS, build.to_bson()).await?;
    let field = |name| {
        found
            .as_ref()
            .and_then(|found| pinion_bson::get(found, name))
    };
    let ready = match field("commitReadyMembers") {
        Some(RawBsonRef::Array(hosts)) => {
            let hosts = pinion_bson::values(hosts).filter_map(|host| host.as_str());
            hosts.map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let quorum = field("commitQuorum").and_then(CommitQuorum::stored);
    Ok(KeptBuild {
        quorum: quorum.unwrap_or_default(),
        ready,
    })
}

/// Keeps what a client asked whose build has started: a document with `commitQuorum`.
///
/// # Errors
/// Those of a write.
pub(super) async fn begin(build: BuildName, asked: RawDocumentBuf) -> Result<()> {
    update(&build, |out| {
        out.start_document("$set");
        out.append_all(&asked).end();
    })
    .await?;
    Ok(())
}

/// Keeps that a member is ready; when that was written, if it was not known before.
///
/// # Errors
/// Those of a write.
pub async fn keep_vote(build: &BuildName, host: &str) -> Result<Option<Timestamp>> {
    update(build, |out| {
        out.start_document("$addToSet")
            .append("commitReadyMembers", host)
            .end();
    })
    .await
}

/// Changes which members are waited for.
///
/// # Errors
/// Those of a write.
pub async fn set_quorum(build: &BuildName, quorum: &CommitQuorum) -> Result<Option<Timestamp>> {
    update(build, |out| {
        out.start_document("$set");
        quorum.append("commitQuorum", out);
        out.end();
    })
    .await
}

/// Changes the document of a build, and makes it if it is not there.
async fn update(
    build: &BuildName,
    change: impl FnOnce(&mut DocBuilder),
) -> Result<Option<Timestamp>> {
    let mut operators = DocBuilder::new();
    change(&mut operators);
    operators
        .start_document("$setOnInsert")
        .append("collectionUUID", build.collection.to_bson())
        .start_array("indexNames");
    for name in &build.indexes {
        operators.push(name.as_str());
    }
    operators.end().end();
    let operators = operators.finish();
    let update = Update::parse_with(
        RawBsonRef::Document(&operators),
        None,
        &Variables::default(),
    )?;
    write(build.uuid, Change::Update(update), true).await
}

/// Forgets a build that has ended.
///
/// # Errors
/// Those of a write.
pub(super) async fn forget(build: Uuid) -> Result<()> {
    if core_catalog().get(&Namespace::parse(BUILDS)?).is_some() {
        write(build, Change::Delete, false).await?;
    }
    Ok(())
}

async fn write(build: Uuid, change: Change, upsert: bool) -> Result<Option<Timestamp>> {
    let filter = rawdoc! { "_id": build.to_bson() };
    let statement = ModifyStatement {
        upsert,
        ..ModifyStatement::plain(Matcher::parse(&filter)?, filter, change)
    };
    let ctx = context();
    let acquired = acquire_write(&ctx, Namespace::parse(BUILDS)?, None).await?;
    let mut done = ModifyOutcome::default();
    run(&ctx, acquired, &statement, &mut done).await?;
    Ok(done.last)
}

/// Forgets the builds that a primary before has ended without removing their documents: the catalog
/// no longer has them.
///
/// # Errors
/// Those of a read and a write.
pub async fn forget_ended() -> Result<()> {
    let ctx = context();
    let acquired = acquire_read(&ctx, Namespace::parse(BUILDS)?, None).await?;
    let Some(found) = acquired.collection() else {
        return Ok(());
    };
    let request = ReadRequest::new(
        acquired.target(found),
        Matcher::parse(&RawDocumentBuf::new())?,
    );
    let mut stream = open(&ctx, acquired.source(), request, 1).await?.stream;
    let catalog = core_catalog().current();
    let mut ended = Vec::new();
    while let Some(bytes) = stream.next_wanted(&ctx, 1).await? {
        let kept = pinion_catalog::stored_document(&bytes);
        let build = pinion_bson::get(kept, "_id").and_then(Uuid::from_bson);
        let runs = |build: &Uuid| {
            let mut collections = catalog.collections();
            collections.any(|found| found.builds().contains(build))
        };
        ended.extend(build.filter(|build| !runs(build)));
    }
    drop(stream);
    drop(acquired);
    for build in ended {
        forget(build).await?;
    }
    Ok(())
}

fn context() -> OpContext {
    OpContext::internal(
        0,
        pinion_command::row("voteCommitIndexBuild"),
        "config",
        pinion_runtime::now().as_nanos(),
    )
}
