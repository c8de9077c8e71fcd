//! `distinct`.

use std::collections::BTreeMap;

use pinion_bson::{
    DocBuilder, MAX_USER_DOCUMENT_BYTES, RawBson, RawBsonRef, RawDocument, RawDocumentBuf,
};
use pinion_catalog::{Access, core_catalog, stored_document};
use pinion_query::Matcher;
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::collections::check_uuid;
use super::refuse;
use crate::compute::compute;
use crate::interrupt::interruptible;
use crate::limits::PART_BATCH_DOCUMENTS;
use crate::read::{ReadRequest, open, parse_hint};
use pinion_query::Hint;

/// A parsed `distinct`.
pub(super) struct Distinct {
    pub ns: Namespace,
    pub key: String,
    pub matcher: Matcher,
    pub hint: Option<Hint>,
}

/// Reads the command.
pub(super) async fn parse(ctx: &OpContext, body: &RawDocument, db: &str) -> Result<Distinct> {
    let reader = CommandReader::new("distinct", body)?;
    let ns = reader.namespace("distinct", db)?;
    let key = reader.str("key")?;
    if key.contains('\0') {
        return Err(Error::new(
            ErrorCode(31032),
            "Key field cannot contain an embedded null byte",
        ));
    }
    let empty = RawDocumentBuf::new();
    let query = match reader.value("query") {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => &empty,
        Some(RawBsonRef::Document(query)) => query,
        Some(other) => {
            return Err(reader.wrong_type("query", other, pinion_wire::idl::Types::OBJECT));
        }
    };
    let hint = parse_hint(reader.value("hint"))?;
    refuse::collation(&reader)?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.ignore(&["maxTimeMS"]);
    reader.finish()?;
    check_uuid(&ns, uuid)?;
    let matcher = compute(ctx, || Matcher::parse(query)).await?;
    pinion_query::check_field_path(key)?;
    Ok(Distinct {
        ns,
        key: key.to_owned(),
        matcher,
        hint,
    })
}

/// Calls `f` with every value that `distinct` finds at a path: arrays on the way and at its end are unwound.
fn for_each_value<'a>(
    value: RawBsonRef<'a>,
    path: Option<&str>,
    f: &mut dyn FnMut(RawBsonRef<'a>),
) {
    let Some(path) = path else {
        match value {
            RawBsonRef::Array(items) => pinion_bson::values(items).for_each(f),
            other => f(other),
        }
        return;
    };
    let (head, rest) = match path.split_once('.') {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    };
    match value {
        RawBsonRef::Document(document) => {
            if let Some(inner) = pinion_bson::get(document, head) {
                for_each_value(inner, rest, f);
            }
        }
        RawBsonRef::Array(items) => {
            // A number selects an item; a name is looked for in every item that is a document.
            if let Ok(index) = head.parse::<usize>()
                && let Some(item) = pinion_bson::values(items).nth(index)
            {
                for_each_value(item, rest, f);
                return;
            }
            for item in pinion_bson::values(items) {
                if let RawBsonRef::Document(_) = item {
                    for_each_value(item, Some(path), f);
                }
            }
        }
        _ => {}
    }
}

/// `distinct`.
pub(crate) async fn distinct(cmd: Invocation) -> Result<Reply> {
    let parsed = parse(&cmd.ctx, cmd.body(), cmd.db()).await?;
    let catalog = core_catalog();
    let _pass = interruptible(&cmd.ctx, catalog.gates().enter(&parsed.ns, Access::Read)).await?;
    // Ordered by KeyString: values that compare equal are one.
    let mut found: BTreeMap<Vec<u8>, RawBson> = BTreeMap::new();
    let mut bytes = 0;
    if let Some(collection) = catalog.get(&parsed.ns) {
        let mut request = ReadRequest::new(collection, parsed.matcher.clone());
        request.hint = parsed.hint.clone();
        let mut stream = open(&cmd.ctx, request, PART_BATCH_DOCUMENTS).await?.stream;
        while let Some(document) = stream.next_wanted(&cmd.ctx, PART_BATCH_DOCUMENTS).await? {
            let root = RawBsonRef::Document(stored_document(&document));
            for_each_value(root, Some(&parsed.key), &mut |value| {
                let key = pinion_keystring::encode_id(value).to_vec();
                found.entry(key).or_insert_with(|| {
                    let owned = RawBson::from(value);
                    bytes += value_size(&owned);
                    owned
                });
            });
            if bytes > MAX_USER_DOCUMENT_BYTES {
                return Err(Error::new(ErrorCode(17217), "distinct too big, 16mb cap"));
            }
        }
    }
    let mut out = Reply::with_capacity(bytes + 64);
    out.start_array("values");
    for value in found.values() {
        out.push(value.as_raw_bson_ref());
    }
    out.end();
    Ok(out)
}

fn value_size(value: &RawBson) -> usize {
    let mut document = DocBuilder::new();
    document.append("", value.as_raw_bson_ref());
    document.len() + 4
}
