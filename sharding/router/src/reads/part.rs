//! What a shard contributes to a read: the documents of its cursor, with what orders them.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument, rawdoc};
use pinion_merge::{
    Batch, Item, MergeObserver, MergedStream, OrderKey, Part, PartCounters, StepSize,
};
use pinion_query::SortPattern;
use pinion_wire::{Error, OpContext, Result};

use crate::cursor::{RemoteBatch, RemoteStream};

/// The field that a `find` has the values in by which a document is sorted.
pub(crate) const SORT_KEY: &str = "$sortKey";
/// The same for its distance: a projection has no other names with a dollar sign.
pub(super) const DISTANCE: &str = "__geoNearDistance";
/// Those that the last stage of a shard's pipeline makes: the same, and the document.
pub(super) const KEY_FIELD: &str = "k";
pub(super) const DOCUMENT_FIELD: &str = "d";

/// In which form documents come.
#[derive(Clone, Debug)]
pub(super) enum PartForm {
    /// As they are, in no order.
    Plain,
    /// With `$sortKey`.
    Keyed(SortPattern),
    /// With their distance.
    Near,
    /// As `{k: <values>, d: <document>}`.
    Wrapped(SortPattern),
}

/// The merged documents of several shards.
pub(super) type ShardsRead = MergedStream<ShardPart, Unobserved>;

/// The cursor of a shard.
pub(crate) struct ShardPart {
    stream: RemoteStream,
    form: PartForm,
}

/// A router's reads are counted where their documents are.
pub(crate) struct Unobserved;

impl MergeObserver for Unobserved {
    fn stepped(&mut self, _: &OpContext, _: &PartCounters) {}

    fn returned(&mut self, _: u64) {}

    fn ended(&mut self) {}
}

impl ShardPart {
    /// The part of a cursor, and its first step. A cursor that has given nothing so far is read on.
    ///
    /// # Errors
    /// The shard's, and those of documents that are not in the form.
    pub(super) async fn open(
        ctx: &OpContext,
        stream: RemoteStream,
        first: RemoteBatch,
        form: PartForm,
    ) -> Result<(ShardPart, Batch)> {
        let mut part = ShardPart { stream, form };
        let mut batch = part.batch(first)?;
        if batch.items.is_empty() && !batch.done {
            batch = part.step(ctx, StepSize::for_wanted(usize::MAX)).await?;
        }
        Ok((part, batch))
    }

    fn batch(&self, batch: RemoteBatch) -> Result<Batch> {
        let items: Result<Vec<Item>> = (batch.documents.into_iter())
            .map(|document| self.item(document))
            .collect();
        Ok(Batch {
            items: items?,
            done: batch.id == 0,
            counters: PartCounters::default(),
        })
    }

    fn item(&self, bytes: Bytes) -> Result<Item> {
        let (order, document) = match &self.form {
            PartForm::Plain => (OrderKey::new(), bytes),
            PartForm::Keyed(sort) => {
                let document = read(&bytes)?;
                let order = order_of(sort, document, SORT_KEY)?;
                (order, without(document, SORT_KEY))
            }
            PartForm::Near => {
                let document = read(&bytes)?;
                let distance = pinion_bson::get(document, DISTANCE).ok_or_else(malformed)?;
                let mut values = RawArrayBuf::new();
                values.push(RawBson::from(distance));
                let order = OrderKey::from_vec(by_distance().key_of_values(&values));
                (order, without(document, DISTANCE))
            }
            PartForm::Wrapped(sort) => {
                let document = read(&bytes)?;
                let order = order_of(sort, document, KEY_FIELD)?;
                let Some(RawBsonRef::Document(inner)) = pinion_bson::get(document, DOCUMENT_FIELD)
                else {
                    return Err(malformed());
                };
                (order, bytes.slice_ref(inner.as_bytes()))
            }
        };
        Ok(Item {
            order,
            id: None,
            document: Ok(document),
        })
    }
}

/// The order of distances, the least first.
pub(super) fn by_distance() -> SortPattern {
    let pattern = rawdoc! { "distance": 1 };
    SortPattern::parse_find(&pattern).expect("it is a sort")
}

fn without(document: &RawDocument, name: &str) -> Bytes {
    let mut out = DocBuilder::with_capacity(document.as_bytes().len());
    for elem in pinion_bson::raw_elements(document) {
        if elem.name != name.as_bytes() {
            out.append_elem(&elem);
        }
    }
    Bytes::from(out.finish().into_bytes())
}

fn malformed() -> Error {
    Error::internal("a shard's document has no sort key")
}

fn read(bytes: &Bytes) -> Result<&RawDocument> {
    RawDocument::from_bytes(bytes).map_err(|error| Error::internal(error.to_string()))
}

fn order_of(sort: &SortPattern, document: &RawDocument, field: &str) -> Result<OrderKey> {
    match pinion_bson::get(document, field) {
        Some(RawBsonRef::Array(values)) => Ok(OrderKey::from_vec(sort.key_of_values(values))),
        _ => Err(malformed()),
    }
}

impl Part for ShardPart {
    async fn step(&mut self, ctx: &OpContext, size: StepSize) -> Result<Batch> {
        loop {
            let batch = self.stream.next_batch(ctx, size.documents).await?;
            let batch = self.batch(batch)?;
            if batch.done || !batch.items.is_empty() {
                return Ok(batch);
            }
        }
    }
}
