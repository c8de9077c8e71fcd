//! `distinct`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{
    DocBuilder, MAX_USER_DOCUMENT_BYTES, RawBson, RawBsonRef, RawDocument, RawDocumentBuf,
};
use pinion_catalog::stored_document;
use pinion_collation::Collation;
use pinion_command::syntax::{CollationOption, hint};
use pinion_merge::PART_BATCH_DOCUMENTS;
use pinion_query::{DistinctPlan, Hint, Matcher, spend_sort_keys, work};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::interrupt::pause;
use pinion_service::node_info::is_behind_v44;
use pinion_service::operator_counts::compute_counted;
use pinion_wire::idl::{CommandReader, Namespace, Types};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::aggregate;
use super::namespace_args::named_or_uuid;
use super::query_settings::admitted;
use super::variables::of_filter;
use super::views::Rewritten;
use crate::acquire::{AcquiredCollection, ReadSource, ReadTarget, acquire_viewed};
use crate::cluster_time::bson_time;
use crate::pipeline::{Node, collect_partial};
use crate::read::{Output, ReadRequest, open};

/// A `distinct` as it is written.
pub(super) struct DistinctCommand<'d> {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    key: &'d str,
    query: Option<&'d RawDocument>,
    collation: CollationOption,
    hint: Option<Hint>,
}

/// A parsed `distinct`.
pub(super) struct Distinct {
    key: String,
    pub matcher: Matcher,
    hint: Option<Hint>,
}

/// Reads the command.
pub(super) fn read<'d>(body: &'d RawDocument, db: &str) -> Result<DistinctCommand<'d>> {
    let reader = CommandReader::new("distinct", body)?;
    let ns = named_or_uuid(&reader, "distinct", db)?;
    let key = reader.str("key")?;
    if key.contains('\0') {
        return Err(Error::new(
            ErrorCode(31032),
            "Key field cannot contain an embedded null byte",
        ));
    }
    let query = match reader.value("query") {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => None,
        Some(RawBsonRef::Document(query)) => Some(query),
        Some(other) => {
            return Err(reader.wrong_type("query", other, Types::OBJECT));
        }
    };
    let hint = hint(&reader, is_behind_v44())?;
    let collation = CollationOption::read(&reader)?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.unsupported_unless_empty("includeQueryStatsMetrics", Types::BOOL)?;
    reader.finish()?;
    Ok(DistinctCommand {
        ns,
        uuid,
        key,
        query,
        collation,
        hint,
    })
}

impl DistinctCommand<'_> {
    /// The pipeline of the documents that the command looks at in a view.
    pub(super) fn rewritten(&self, body: &RawDocument) -> RawDocumentBuf {
        Rewritten::new(&self.ns)
            .stage("$match", self.query)
            .options(body, &["collation", "hint"], None)
    }

    /// Parses filter and path, for the collection that was acquired.
    pub(super) async fn parse(
        self,
        ctx: &OpContext,
        acquired: &AcquiredCollection,
    ) -> Result<Distinct> {
        let vars = self.collation.variables(&of_filter(), acquired.collation());
        let empty = RawDocumentBuf::new();
        let query = self.query.unwrap_or(&empty);
        let matcher = compute_counted(ctx, || Matcher::parse_query(query, &vars)).await?;
        pinion_query::check_field_path(self.key)?;
        Ok(Distinct {
            key: self.key.to_owned(),
            matcher,
            hint: self.hint,
        })
    }
}

impl Distinct {
    /// The plan by an index that has every value once in its order, and the read that takes it: it
    /// gives the values, each in a field without a name.
    pub(super) fn by_index(
        &self,
        request: &ReadRequest,
    ) -> Result<Option<(DistinctPlan, ReadRequest)>> {
        let Some(found) = pinion_query::distinct_plan(&request.plan_request(), &self.key)? else {
            return Ok(None);
        };
        let mut request = request.clone();
        request.plan = Some(found.plan.clone());
        request.output = Output::Distinct(found.field);
        Ok(Some((found, request)))
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The read that finds the documents.
    pub(super) fn request(&self, target: ReadTarget) -> ReadRequest {
        let mut request = ReadRequest::new(target, self.matcher.clone());
        request.hint = self.hint.clone();
        request
    }
}

/// Calls `f` with every value that `distinct` finds at a path: arrays on the way and at its end are
/// unwound.
fn for_each_value<'a>(
    value: RawBsonRef<'a>,
    path: Option<&str>,
    f: &mut dyn FnMut(RawBsonRef<'a>) -> Result<()>,
) -> Result<()> {
    let Some(path) = path else {
        return match value {
            RawBsonRef::Array(items) => pinion_bson::values(items).try_for_each(f),
            other => f(other),
        };
    };
    let (head, rest) = match path.split_once('.') {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    };
    match value {
        RawBsonRef::Document(document) => {
            if let Some(inner) = pinion_bson::get(document, head) {
                for_each_value(inner, rest, f)?;
            }
        }
        RawBsonRef::Array(items) => {
            // A number selects an item; a name is looked for in every item that is a document.
            if let Ok(index) = head.parse::<usize>()
                && let Some(item) = pinion_bson::values(items).nth(index)
            {
                return for_each_value(item, rest, f);
            }
            for item in pinion_bson::values(items) {
                if let RawBsonRef::Document(_) = item {
                    for_each_value(item, Some(path), f)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// The values found so far, ordered by KeyString: those that compare equal are one.
#[derive(Default)]
struct Values {
    collation: Option<Arc<Collation>>,
    found: BTreeMap<Vec<u8>, RawBson>,
    bytes: usize,
}

impl Values {
    /// Adds the values that a document has at a path. Refused for its work it has added some of
    /// them, and can be called again: what is there already is not added a second time.
    fn add(&mut self, document: &RawDocument, path: &str) -> Result<()> {
        work::spend_bytes(document.as_bytes().len())?;
        spend_sort_keys(self.collation.as_deref(), document.as_bytes().len())?;
        let Values {
            collation,
            found,
            bytes,
        } = self;
        for_each_value(RawBsonRef::Document(document), Some(path), &mut |value| {
            work::spend_bytes(VALUE_BYTES)?;
            let key = pinion_keystring::encode_id_in(collation.as_deref(), value).to_vec();
            found.entry(key).or_insert_with(|| {
                let owned = RawBson::from(value);
                *bytes += value_size(&owned);
                owned
            });
            Ok(())
        })
    }
}

impl Values {
    fn check(&self) -> Result<()> {
        if self.bytes > MAX_USER_DOCUMENT_BYTES {
            return Err(Error::new(ErrorCode(17217), "distinct too big, 16mb cap"));
        }
        Ok(())
    }

    /// Adds a value that was found elsewhere; false where another one that is equal to it is there
    /// already.
    fn merge(&mut self, key: Vec<u8>, value: RawBson) -> bool {
        let bytes = value_size(&value);
        match self.found.entry(key) {
            Entry::Vacant(place) => {
                place.insert(value);
                self.bytes += bytes;
                true
            }
            Entry::Occupied(place) => {
                let (mut one, mut other) = (DocBuilder::new(), DocBuilder::new());
                one.append("", place.get().as_raw_bson_ref());
                other.append("", value.as_raw_bson_ref());
                one.finish() == other.finish()
            }
        }
    }
}

/// What finding out whether a value is new costs beside its bytes, in bytes examined.
const VALUE_BYTES: usize = 128;

/// `distinct`.
pub(crate) async fn distinct(cmd: Invocation) -> Result<Reply> {
    let command = read(cmd.body(), cmd.db())?;
    let acquired = acquire_viewed(&cmd.ctx, command.ns.clone(), command.uuid).await?;
    let body = command.rewritten(cmd.body());
    let parsed = command.parse(&cmd.ctx, &acquired).await?;
    let settings = match acquired.view() {
        // The pipeline that a view makes of it is looked up itself.
        Some(_) => None,
        None => admitted(&cmd).await?,
    };
    let mut values = Values {
        collation: parsed.matcher.collation().cloned(),
        ..Values::default()
    };
    let mut path = parsed.key.as_str();
    let mut node = match (acquired.view(), acquired.collection()) {
        (Some(_), _) => {
            let stream = aggregate::stream_for(&cmd, &body, &acquired).await?;
            stream.into_node()
        }
        (None, Some(collection)) => {
            let mut request = parsed.request(acquired.target(collection)).bound()?;
            request.settings = settings;
            request.restrict();
            if let Some((_, by_index)) = parsed.by_index(&request)? {
                (request, path) = (by_index, "");
            } else if let Some(values) =
                in_parts(&cmd.ctx, acquired.source(), &request, &parsed).await?
            {
                return Ok(reply(&cmd.ctx, &values, false).await);
            }
            let opened = open(&cmd.ctx, acquired.source(), request, PART_BATCH_DOCUMENTS).await?;
            Node::Read(Box::new(opened.stream))
        }
        (None, None) => {
            acquired.check_text(&parsed.matcher)?;
            Node::List(VecDeque::new())
        }
    };
    let mut added = Bytes::new();
    while let Some(document) = node.next(&cmd.ctx).await? {
        pause(&cmd.ctx).await?;
        let document = document.into_bytes();
        // Parts that read an index give values in its order, so equal ones are adjacent.
        if document == added {
            continue;
        }
        let found = stored_document(&document);
        compute(&cmd.ctx, || values.add(found, path)).await?;
        values.check()?;
        added = document;
    }
    Ok(reply(&cmd.ctx, &values, acquired.view().is_some()).await)
}

/// The values as the partitions find them, each among its own documents; `None` where the order of
/// all documents decides which one of equal values is shown, or where that fails.
async fn in_parts(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    parsed: &Distinct,
) -> Result<Option<Values>> {
    let new = {
        let collation = parsed.matcher.collation().cloned();
        move || Values {
            collation: collation.clone(),
            ..Values::default()
        }
    };
    let add = {
        let key = parsed.key.clone();
        move |values: &mut Values, document: &RawDocument| {
            values.add(document, &key)?;
            values.check()
        }
    };
    let Some(parts) = collect_partial(ctx, source, request, new, add).await? else {
        return Ok(None);
    };
    let mut merged = Values::default();
    for part in parts {
        for (key, value) in part.found {
            pause(ctx).await?;
            if !merged.merge(key, value) {
                return Ok(None);
            }
        }
    }
    Ok(Some(merged).filter(|merged| merged.check().is_ok()))
}

async fn reply(ctx: &OpContext, values: &Values, of_view: bool) -> Reply {
    let mut out = Reply::with_capacity(values.bytes + 64);
    if of_view {
        out.ok_as_int();
    }
    let fields: &mut DocBuilder = &mut out;
    let append = || {
        fields.start_array("values");
        for value in values.found.values() {
            fields.push(value.as_raw_bson_ref());
        }
        fields.end();
    };
    compute_bytes(values.bytes, append).await;
    if let Some(at) = ctx.read_concern.at_cluster_time {
        out.append("atClusterTime", bson_time(at));
    }
    out
}

/// The size of a value in the reply.
fn value_size(value: &RawBson) -> usize {
    let mut document = DocBuilder::new();
    document.append("", value.as_raw_bson_ref());
    document.len() + 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_document_can_be_added_again() {
        let mut document = DocBuilder::new();
        document.start_array("a");
        (0..2000i32).for_each(|item| {
            document.push(item % 500);
        });
        document.end();
        let document = document.finish();
        let mut values = Values::default();
        // Enough for the document's bytes and some of the values.
        assert!(work::within(250_000, || values.add(&document, "a")).is_none());
        let some = values.found.len();
        assert!(0 < some && some < 500, "{some}");
        values.add(&document, "a").expect("without a bound");
        let mut once = Values::default();
        once.add(&document, "a").expect("without a bound");
        assert_eq!((values.found.len(), values.bytes), (500, once.bytes));
    }
}
