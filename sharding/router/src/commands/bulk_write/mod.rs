//! `bulkWrite`: operations on collections of one database are sent together; those of several are
//! sent database by database. What a shard refuses since the database has another place is sent
//! again, and nothing else.

mod results;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_service::command_checks::check_batch_size;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{Namespace, i64_exact, truthy};
use pinion_wire::{Documents, Invocation, Reply, Result, document_section};
use rustc_hash::FxHashMap;

use self::results::{Results, has_refused};
use super::writes::{append_numbers, statement_numbers};
use crate::cursor::{CursorKind, first_reply};
use crate::dispatch::{Answer, WhenAbsent, at_database, pause_before_retry};
use crate::limits::MAX_STALE_RETRIES;
use crate::placement::{check_is_unsharded, forget_database};
use crate::reply::passed_on;
use crate::request::{Request, Versions};

/// `bulkWrite`.
pub(super) async fn bulk_write(cmd: Invocation) -> Result<Reply> {
    let bulk = Bulk::of(&cmd)?;
    for ns in bulk.namespaces.iter() {
        if let Some(ns) = named_in(ns) {
            check_is_unsharded("bulkWrite", &ns).await?;
        }
    }
    let all: Vec<usize> = (0..bulk.operations.len()).collect();
    let mut results = Results::default();
    let mut left = all;
    if let Some(db) = bulk.only_database() {
        let answer = bulk.send(db, &left, CursorOf::Client).await?;
        if is_in(&cmd.ctx) || !has_refused(answer.body()) {
            return first_reply(&cmd, &answer, CursorKind::default());
        }
        let refused = results.add(&cmd, &answer, &left, IfStale::Again).await?;
        left = bulk.again(&left, &refused);
        forget_database(db).await;
    }
    for attempt in 0.. {
        let if_stale = match attempt < MAX_STALE_RETRIES {
            true => IfStale::Again,
            false => IfStale::Error,
        };
        left = bulk.send_parts(&left, if_stale, &mut results).await?;
        if left.is_empty() {
            break;
        }
        pause_before_retry(&cmd, attempt).await?;
    }
    results.into_reply(&cmd).await
}

/// What becomes of operations that a shard refuses as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfStale {
    Again,
    Error,
}

/// Whose wishes the cursor of a part follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CursorOf {
    Client,
    /// All results are collected here, whatever batches the client wants.
    Router,
}

/// The operations of a command.
struct Bulk<'c> {
    cmd: &'c Invocation,
    operations: Documents,
    namespaces: Documents,
    /// The database of each operation; `None` where it names none.
    places: Vec<Option<String>>,
    is_ordered: bool,
    /// The client's own, where it numbers them.
    numbers: Option<Vec<i32>>,
}

impl Bulk<'_> {
    fn of(cmd: &Invocation) -> Result<Bulk<'_>> {
        let operations = cmd.documents("ops")?;
        check_batch_size(&operations)?;
        let namespaces = cmd.documents("nsInfo")?;
        Ok(Bulk {
            places: databases_of(&operations, &namespaces),
            is_ordered: pinion_bson::get(cmd.body(), "ordered").is_none_or(truthy),
            numbers: statement_numbers(cmd.body()),
            cmd,
            operations,
            namespaces,
        })
    }

    /// The database that all operations are of, if they are of one. Where none names what there
    /// could be, a node says what is wrong with it.
    fn only_database(&self) -> Option<&str> {
        let Some(first) = self.places.iter().flatten().next() else {
            return Some("admin");
        };
        let mut places = self.places.iter();
        places
            .all(|place| place.as_ref() == Some(first))
            .then_some(first)
    }

    /// Sends operations in parts, as far as one that fails where they have an order. Gives those
    /// that are to be sent again.
    async fn send_parts(
        &self,
        which: &[usize],
        if_stale: IfStale,
        results: &mut Results,
    ) -> Result<Vec<usize>> {
        let mut again = Vec::new();
        for (db, part) in parts(&self.places, which, self.is_ordered) {
            let errors = results.errors();
            match self.send(&db, &part, CursorOf::Router).await {
                Ok(answer) => {
                    let refused = results.add(self.cmd, &answer, &part, if_stale).await?;
                    if !refused.is_empty() {
                        forget_database(&db).await;
                        again.extend(self.again(which, &refused));
                    }
                }
                Err(error) if is_in(&self.cmd.ctx) || results.is_empty() => return Err(error),
                // What was done before is the client's to know.
                Err(error) => {
                    let failed = if self.is_ordered {
                        &part[..1]
                    } else {
                        &part[..]
                    };
                    results.fail(&self.operations, failed, &error);
                }
            }
            if self.is_ordered && (results.errors() > errors || !again.is_empty()) {
                break;
            }
        }
        again.sort_unstable();
        again.dedup();
        Ok(again)
    }

    /// What is sent again after some were refused: where there is an order, what stands behind the
    /// first of them was not executed either.
    fn again(&self, sent: &[usize], refused: &[usize]) -> Vec<usize> {
        match (self.is_ordered, refused.first()) {
            (true, Some(first)) => sent.iter().copied().filter(|at| at >= first).collect(),
            _ => refused.to_vec(),
        }
    }

    /// Sends operations to the primary shard of their database.
    async fn send(&self, db: &str, which: &[usize], cursor: CursorOf) -> Result<Answer> {
        let cmd = self.cmd;
        at_database(cmd, db, WhenAbsent::Make, |versions| {
            let operations = which.iter().map(|at| self.operations.get(*at));
            let section = document_section("ops", operations);
            Request::with_section(cmd, cmd.db(), None, ("ops", section), |out| {
                self.append_namespaces(out, db, versions);
                if cursor == CursorOf::Router {
                    out.start_document("cursor").end();
                }
                let is_part = which.len() < self.operations.len();
                if is_part && cmd.ctx.args.txn_number.is_some() && !is_in(&cmd.ctx) {
                    append_numbers(out, self.numbers.as_deref(), which);
                }
            })
        })
        .await
    }

    /// Appends `nsInfo`, with the versions that this router goes by for one database. Those that a
    /// client names are not passed on.
    fn append_namespaces(&self, out: &mut DocBuilder, db: &str, versions: Versions) {
        // A version that a command names stands with its collection: this one names many.
        let versions = Versions::of_unsharded(versions.database);
        out.start_array("nsInfo");
        for ns in self.namespaces.iter() {
            out.push_document();
            for elem in pinion_bson::raw_elements(ns) {
                if !matches!(elem.name, b"shardVersion" | b"databaseVersion") {
                    out.append_elem(&elem);
                }
            }
            if named_in(ns).is_some_and(|ns| ns.db() == db) {
                versions.append_to(out);
            }
            out.end();
        }
        out.end();
    }
}

/// `explain` of a `bulkWrite`, which has one operation.
pub(super) async fn explain(cmd: Invocation) -> Result<Reply> {
    let command = pinion_bson::get_path(cmd.body(), "explain.nsInfo");
    let first = match command {
        Some(RawBsonRef::Array(namespaces)) => pinion_bson::values(namespaces).next(),
        _ => None,
    };
    let ns = first.and_then(|ns| pinion_bson::get(ns.as_document()?, "ns"));
    let ns = ns.and_then(|ns| Namespace::parse(ns.as_str()?).ok());
    if let Some(ns) = &ns {
        check_is_unsharded("bulkWrite", ns).await?;
    }
    let db = ns.map_or_else(|| "admin".to_owned(), |ns| ns.db().to_owned());
    let answer = at_database(&cmd, &db, WhenAbsent::Answer, |version| {
        Request::of(&cmd, cmd.db(), version)
    })
    .await?;
    Ok(passed_on(answer.body()))
}

/// The namespace that an entry of `nsInfo` names.
fn named_in(entry: &RawDocument) -> Option<Namespace> {
    Namespace::parse(pinion_bson::get(entry, "ns")?.as_str()?).ok()
}

/// The database of each operation; `None` where it names none.
fn databases_of(operations: &Documents, namespaces: &Documents) -> Vec<Option<String>> {
    let databases: Vec<Option<String>> = namespaces
        .iter()
        .map(|ns| Some(named_in(ns)?.db().to_owned()))
        .collect();
    operations
        .iter()
        .map(|operation| {
            let (_, at) = pinion_bson::elements(operation).next()?;
            let at = usize::try_from(i64_exact(at)?).ok()?;
            databases.get(at)?.clone()
        })
        .collect()
}

/// Which operations are sent together: in order those that follow one another, otherwise all of a
/// database.
fn parts(
    places: &[Option<String>],
    which: &[usize],
    is_ordered: bool,
) -> Vec<(String, Vec<usize>)> {
    let mut parts: Vec<(String, Vec<usize>)> = Vec::new();
    let mut known: FxHashMap<&str, usize> = FxHashMap::default();
    for at in which {
        // What names no database is refused by the node that gets it.
        let db = places[*at].as_deref().unwrap_or("admin");
        let found = match is_ordered {
            true => parts
                .len()
                .checked_sub(1)
                .filter(|last| parts[*last].0 == db),
            false => known.get(db).copied(),
        };
        match found {
            Some(number) => parts[number].1.push(*at),
            None => {
                known.insert(db, parts.len());
                parts.push((db.to_owned(), vec![*at]));
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_go_together() {
        let places = |text: &str| -> Vec<Option<String>> {
            text.chars().map(|db| Some(db.to_string())).collect()
        };
        let check = |text: &str, is_ordered: bool, expected: &[(&str, &[usize])]| {
            let found = {
                let all: Vec<usize> = (0..text.len()).collect();
                parts(&places(text), &all, is_ordered)
            };
            let seen: Vec<(&str, &[usize])> =
                found.iter().map(|(db, which)| (&**db, &**which)).collect();
            assert_eq!(seen, expected, "{text} {is_ordered}");
        };
        check("aab", true, &[("a", &[0, 1]), ("b", &[2])]);
        check("aba", true, &[("a", &[0]), ("b", &[1]), ("a", &[2])]);
        check("aba", false, &[("a", &[0, 2]), ("b", &[1])]);
        check("", true, &[]);
    }
}
