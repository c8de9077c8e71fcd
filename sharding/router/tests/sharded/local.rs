//! Reads and pipelines over collections that are lists: what a shard does, and the model.

use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, get};
use pinion_merge::{
    Batch, MergeObserver, MergedStream, Node, Part, PartCounters, Passes, PipelineStream, Sources,
    StepSize,
};
use pinion_query::{
    Document, Expression, ExternalStage, Matcher, Memory, MetaKind, Metadata, Pipeline, Projection,
    SortPattern, Subject, Variables, parse_collation,
};
use pinion_wire::idl::i64_exact;
use pinion_wire::{CommandSpec, OpContext, Result};

static TASK: CommandSpec = CommandSpec::of_task("local");

/// All collections of a place.
pub struct Local {
    pub collections: BTreeMap<String, Vec<RawDocumentBuf>>,
    vars: Variables,
    memory: Memory,
}

/// No list is read in parts.
pub enum NoPart {}

impl Part for NoPart {
    async fn step(&mut self, _: &OpContext, _: StepSize) -> Result<Batch> {
        match *self {}
    }
}

impl MergeObserver for NoPart {
    fn stepped(&mut self, _: &OpContext, _: &PartCounters) {}
    fn returned(&mut self, _: u64) {}
    fn ended(&mut self) {}
}

impl Sources for Local {
    type Read = MergedStream<NoPart, NoPart>;
    type Held = ();

    fn vars(&self) -> &Variables {
        &self.vars
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    async fn open(
        self: &Rc<Self>,
        _: &OpContext,
        from: Option<&str>,
        stages: &RawArray,
        vars: &Variables,
        _: Passes,
    ) -> Result<(Node<Self>, Option<()>)> {
        let made = Pipeline::documents(stages, vars)?
            .into_iter()
            .flatten()
            .collect();
        let list = match from {
            Some(from) => self.list(from),
            None => made,
        };
        let inner = Rc::new(Local {
            collections: self.collections.clone(),
            vars: vars.clone(),
            memory: Memory::default(),
        });
        let pipeline = Pipeline::parse_sub(stages, vars)?;
        Ok((Node::chain(Node::List(list), pipeline, &inner), Some(())))
    }

    async fn open_own(self: &Rc<Self>, _: &OpContext, _: &Pipeline) -> Result<Node<Self>> {
        panic!("no test ranks");
    }

    async fn write(self: &Rc<Self>, _: &OpContext, _: &ExternalStage, _: Node<Self>) -> Result<()> {
        panic!("no test writes");
    }
}

/// The collation and the variables of a command.
pub fn variables(command: &RawDocument) -> Result<Variables> {
    let collation = match get(command, "collation") {
        Some(RawBsonRef::Document(spec)) => parse_collation(spec)?,
        _ => None,
    };
    let mut vars = Variables {
        collation,
        ..Variables::default()
    };
    if let Some(RawBsonRef::Document(lets)) = get(command, "let") {
        for (name, value) in pinion_bson::elements(lets) {
            // The time of the operation, from the router.
            if matches!(name, "NOW" | "CLUSTER_TIME") {
                continue;
            }
            let expression = Expression::parse(value, &vars)?;
            let nothing = RawDocumentBuf::new();
            let value = expression
                .evaluate(&nothing)?
                .as_ref()
                .map(pinion_bson::RawBson::from);
            vars.bind(name, value);
        }
    }
    if let Some(RawBsonRef::Document(constants)) = get(command, "c") {
        for (name, value) in pinion_bson::elements(constants) {
            vars.bind(name, Some(value.into()));
        }
    }
    Ok(vars)
}

fn number(command: &RawDocument, name: &str) -> Option<usize> {
    let number = get(command, name).and_then(i64_exact)?;
    usize::try_from(number.abs()).ok()
}

fn filtered(
    documents: Vec<RawDocumentBuf>,
    filter: Option<RawBsonRef<'_>>,
    vars: &Variables,
) -> Result<Vec<RawDocumentBuf>> {
    let empty = RawDocumentBuf::new();
    let filter = filter.and_then(|filter| filter.as_document());
    let matcher = Matcher::parse_query(filter.unwrap_or(&empty), vars)?;
    let mut out = Vec::new();
    for document in documents {
        if matcher.matches(&*document)? {
            out.push(document);
        }
    }
    Ok(out)
}

fn limited<T>(documents: Vec<T>, command: &RawDocument) -> Vec<T> {
    let skip = number(command, "skip").unwrap_or(0);
    let limit = number(command, "limit").filter(|limit| *limit > 0);
    let limit = limit.unwrap_or(usize::MAX);
    documents.into_iter().skip(skip).take(limit).collect()
}

impl Local {
    pub fn new(collections: BTreeMap<String, Vec<RawDocumentBuf>>) -> Local {
        Local {
            collections,
            vars: Variables::default(),
            memory: Memory::default(),
        }
    }

    fn list(&self, name: &str) -> std::collections::VecDeque<Document> {
        let found = self.collections.get(name).cloned().unwrap_or_default();
        found.into_iter().map(Document::from).collect()
    }

    fn documents(&self, command: &RawDocument) -> Vec<RawDocumentBuf> {
        let name = pinion_bson::elements(command).next().expect("a command").1;
        let name = name.as_str().expect("a name");
        self.collections.get(name).cloned().unwrap_or_default()
    }

    /// The documents of a `find`.
    pub fn find(&self, command: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
        let vars = variables(command)?;
        let mut found = filtered(self.documents(command), get(command, "filter"), &vars)?;
        let mut sort = None;
        if let Some(RawBsonRef::Document(spec)) = get(command, "sort") {
            let pattern = SortPattern::parse_find(spec)?.with_collation(vars.collation.clone());
            found.sort_by_cached_key(|document| pattern.sort_key(document).expect("a key"));
            sort = Some(pattern);
        }
        let found = limited(found, command);
        let Some(RawBsonRef::Document(spec)) = get(command, "projection") else {
            return Ok(found);
        };
        let projection = Projection::parse_find(spec, &vars)?;
        let project = |document: &RawDocumentBuf| {
            let mut metadata = Metadata::default();
            if let Some(sort) = &sort {
                metadata = metadata.with(MetaKind::SortKey, sort.sort_values(document)?);
            }
            let subject = Subject {
                document,
                metadata: &metadata,
            };
            projection.apply(subject, None)
        };
        found.iter().map(project).collect()
    }

    pub fn count(&self, command: &RawDocument) -> Result<usize> {
        let vars = variables(command)?;
        let found = filtered(self.documents(command), get(command, "query"), &vars)?;
        Ok(limited(found, command).len())
    }

    /// The values of a field without arrays or documents on its way.
    pub fn distinct(&self, command: &RawDocument) -> Result<RawDocumentBuf> {
        let vars = variables(command)?;
        let key = get(command, "key")
            .and_then(|key| key.as_str())
            .expect("a key");
        let found = filtered(self.documents(command), get(command, "query"), &vars)?;
        let mut values = BTreeMap::new();
        for value in found.iter().filter_map(|document| get(document, key)) {
            let key = pinion_keystring::encode_id_in(vars.collation.as_deref(), value).to_vec();
            values.entry(key).or_insert(value);
        }
        let mut out = pinion_bson::DocBuilder::new();
        out.start_array("values");
        for value in values.values() {
            out.push(*value);
        }
        out.end();
        Ok(out.finish())
    }

    /// The documents of an `aggregate`.
    pub async fn aggregate(self, command: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
        let vars = variables(command)?;
        let Some(RawBsonRef::Array(stages)) = get(command, "pipeline") else {
            panic!("a pipeline is an array");
        };
        let pipeline = Pipeline::parse(stages, &vars)?;
        let source = self
            .documents(command)
            .into_iter()
            .map(Document::from)
            .collect();
        let sources = Rc::new(Local { vars, ..self });
        let ctx = OpContext::internal(0, &TASK, "test", 0);
        let mut stream = PipelineStream::new(Node::List(source), pipeline, &sources);
        let mut out = Vec::new();
        while let Some(document) = stream.next(&ctx).await? {
            let document = RawDocument::from_bytes(&document).expect("a document");
            out.push(document.to_owned());
        }
        Ok(out)
    }
}
