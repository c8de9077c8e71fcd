//! An index's specification, read once from the form in which it is stored and listed.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_keystring::{Ordering, Strings};
use pinion_wire::Result;

use super::wildcard::projection_of;
use super::{IndexKind, MultikeyPaths, PATH_FIELD, WildcardFields};
use crate::collation::parse_collation;
use crate::error::error;
use crate::expression::Variables;
use crate::fulltext::TextFields;
use crate::geo::GeoIndex;
use crate::matcher::Matcher;
use crate::path::Path;
use crate::value::{elements, field, is_true};

/// An index as far as keys and plans are concerned.
#[derive(Clone, Debug)]
pub struct IndexSpec {
    pub name: String,
    pub key: RawDocumentBuf,
    pub kind: IndexKind,
    /// The directions of the components of a key.
    pub ordering: Ordering,
    pub unique: bool,
    pub sparse: bool,
    /// Kept up, but no plan may use it.
    pub hidden: bool,
    /// New documents must not share a key with another one, though some that are there may.
    pub prepare_unique: bool,
    /// How the strings of its keys compare; by their bytes without one.
    pub collation: Option<Arc<Collation>>,
    /// Only documents that match have keys.
    pub filter: Option<Matcher>,
    /// How long after the date in its key a document expires.
    pub expire_after_secs: Option<i64>,
    /// Where documents have arrays; `None` while none has one.
    pub multikey: Option<MultikeyPaths>,
    /// It is no index of its own: the collection is in the order of its keys.
    pub clustered: bool,
    /// Whether it holds all documents that it should: an index that is being built does not.
    pub ready: bool,
    paths: Vec<Path>,
    /// Of a wildcard index: which paths it holds.
    wildcard: Option<Arc<WildcardFields>>,
    /// Of a geospatial index: its cells.
    geo: Option<GeoIndex>,
    /// Of a text index: what it makes its terms of.
    text: Option<Arc<TextFields>>,
}

impl IndexSpec {
    /// Reads a specification `{key, name, unique, ...}` that was checked when the index was made.
    pub fn parse(listed: &RawDocument) -> Result<IndexSpec> {
        let (Some(RawBsonRef::String(name)), Some(RawBsonRef::Document(key))) =
            (field(listed, "name"), field(listed, "key"))
        else {
            return Err(pinion_wire::Error::internal(
                "an index specification has no name or no key",
            ));
        };
        let flag = |name: &str| field(listed, name).is_some_and(is_true);
        let collation = match field(listed, "collation") {
            Some(RawBsonRef::Document(collation)) => parse_collation(collation)?,
            _ => None,
        };
        let variables = Variables {
            collation: collation.clone(),
            ..Variables::default()
        };
        let filter = match field(listed, "partialFilterExpression") {
            Some(RawBsonRef::Document(filter)) => Some(Matcher::parse_with(filter, &variables)?),
            _ => None,
        };
        let expire_after = field(listed, "expireAfterSeconds");
        let plain = IndexSpec::new(name, key)?;
        let wildcard = (plain.kind == IndexKind::Wildcard)
            .then(|| Arc::new(WildcardFields::parse(key, projection_of(listed))));
        let geo = geo_of(&plain.kind, listed);
        let text = match plain.kind {
            IndexKind::Text => {
                let fields = TextFields::parse(listed);
                let fields = fields.ok_or_else(|| error(67, "default_language is not valid"))?;
                Some(Arc::new(fields))
            }
            _ => None,
        };
        Ok(IndexSpec {
            geo,
            text,
            unique: flag("unique"),
            sparse: flag("sparse"),
            hidden: flag("hidden"),
            prepare_unique: flag("prepareUnique"),
            collation,
            filter,
            expire_after_secs: expire_after.and_then(crate::number::truncated_i64),
            wildcard,
            ..plain
        })
    }

    /// An index on this key pattern without options. The pattern has been checked; too many fields
    /// are refused.
    pub fn new(name: impl Into<String>, key: &RawDocument) -> Result<IndexSpec> {
        let kind = IndexKind::of_pattern(key)
            .map_err(|name| error(67, format!("Unknown index plugin '{name}'")))?;
        let ordering =
            ordering_of(key, &kind).ok_or_else(|| error(13103, "too many compound keys"))?;
        let paths = elements(key).map(|(name, _)| Path::parse(name)).collect();
        let wildcard =
            (kind == IndexKind::Wildcard).then(|| Arc::new(WildcardFields::parse(key, None)));
        let geo = geo_of(&kind, &RawDocumentBuf::new());
        Ok(IndexSpec {
            geo,
            text: None,
            name: name.into(),
            key: key.to_owned(),
            kind,
            ordering,
            unique: false,
            sparse: false,
            hidden: false,
            prepare_unique: false,
            collation: None,
            filter: None,
            expire_after_secs: None,
            clustered: false,
            multikey: None,
            ready: true,
            paths,
            wildcard,
        })
    }

    pub(crate) fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The number of fields of the pattern.
    pub fn fields(&self) -> usize {
        self.paths.len()
    }

    /// The number of values in each key.
    pub fn components(&self) -> usize {
        self.paths.len() + usize::from(self.wildcard.is_some())
    }

    /// How the strings of a value in each key are written. The path of a wildcard index is no
    /// string of a document.
    pub fn strings(&self, component: u32) -> Strings<'_> {
        match &self.collation {
            Some(collation) if !self.is_path(component) => Strings::Collated(collation),
            _ => Strings::Plain,
        }
    }

    /// How the strings of a bound stand in it: those of an index with a collation are sort keys.
    pub fn bound_strings(&self, component: u32) -> Strings<'_> {
        match &self.collation {
            Some(_) if !self.is_path(component) => Strings::SortKeys,
            _ => Strings::Plain,
        }
    }

    /// Whether this is the path in the keys of a wildcard index, also of an expanded one.
    fn is_path(&self, component: u32) -> bool {
        match &self.wildcard {
            Some(fields) => fields.position == component as usize,
            None => {
                let path = self.paths.get(component as usize);
                path.is_some_and(|path| path.text() == PATH_FIELD)
            }
        }
    }

    /// The names of the values in each key.
    pub fn component_names(&self) -> impl Iterator<Item = &str> {
        let wildcard = self.wildcard.as_ref().map(|fields| fields.position);
        elements(&self.key)
            .enumerate()
            .flat_map(move |(at, (name, _))| {
                let path = (wildcard == Some(at)).then_some(PATH_FIELD);
                path.into_iter().chain(std::iter::once(name))
            })
    }

    /// What a text index makes its terms of.
    pub(crate) fn text(&self) -> Option<&Arc<TextFields>> {
        self.text.as_ref()
    }

    pub(crate) fn wildcard(&self) -> Option<&WildcardFields> {
        self.wildcard.as_deref()
    }

    /// The cells of a geospatial index.
    pub(crate) fn geo(&self) -> Option<&GeoIndex> {
        self.geo.as_ref()
    }

    /// Whether the index is the one on `_id` alone, which is the collection's own order.
    pub fn is_id(&self) -> bool {
        self.kind == IndexKind::Btree
            && self.paths.len() == 1
            && self.paths[0].text() == "_id"
            && !self.ordering.is_descending(0)
    }

    /// Whether another index on the same key, under the same collation, has the same documents and
    /// paths.
    pub fn holds_the_same(&self, other: &IndexSpec) -> bool {
        let filter = |index: &IndexSpec| index.filter.as_ref().map(Matcher::parsed_query);
        let same_filter = match (filter(self), filter(other)) {
            (None, None) => true,
            (Some(a), Some(b)) => pinion_bson::compare_documents(&a, &b).is_eq(),
            _ => false,
        };
        same_filter && self.wildcard == other.wildcard
    }

    /// Whether plans may use it unasked and by hint.
    pub fn is_usable(&self) -> bool {
        self.ready && !self.hidden
    }

    /// Whether new documents may not share a key with another one.
    pub fn enforces_unique(&self) -> bool {
        self.unique || self.prepare_unique
    }

    /// Whether some document has several keys.
    pub fn is_multikey(&self) -> bool {
        self.multikey.is_some()
    }

    /// Whether the values of this field are hashed.
    pub(crate) fn is_hashed_field(&self, at: usize) -> bool {
        self.kind == IndexKind::Hashed
            && matches!(
                elements(&self.key).nth(at),
                Some((_, RawBsonRef::String(_)))
            )
    }

    /// Whether an array may stand at this path in some document of a wildcard index.
    pub(crate) fn is_wildcard_array(&self, path: &str) -> bool {
        self.multikey
            .as_ref()
            .is_some_and(|known| known.is_array(path))
    }

    /// A wildcard index as an index on this path: the path of a key and its value are fields of it.
    pub(crate) fn expanded(&self, path: &str) -> IndexSpec {
        let mut key = pinion_bson::DocBuilder::new();
        let mut fields: Vec<Vec<u16>> = Vec::with_capacity(self.components());
        for (name, direction) in elements(&self.key) {
            if !super::kind::is_wildcard_field(name) {
                key.append(name, direction);
                fields.push(Vec::new());
                continue;
            }
            key.append(PATH_FIELD, 1i32).append(path, direction);
            let ends = path.match_indices('.').map(|(at, _)| at);
            let arrays = ends
                .chain(std::iter::once(path.len()))
                .enumerate()
                .filter(|(_, end)| self.is_wildcard_array(&path[..*end]))
                .map(|(component, _)| component as u16);
            fields.extend([Vec::new(), arrays.collect()]);
        }
        let key = key.finish();
        let paths = elements(&key).map(|(name, _)| Path::parse(name)).collect();
        let multikey = fields.iter().any(|arrays| !arrays.is_empty());
        IndexSpec {
            multikey: multikey.then_some(MultikeyPaths::Fields(fields)),
            key,
            paths,
            wildcard: None,
            ..self.clone()
        }
    }

    /// Whether an array stands at this component of a field's path in some document.
    pub(crate) fn is_multikey_component(&self, field: usize, component: usize) -> bool {
        let multikey = self.multikey.as_ref();
        multikey.is_some_and(|paths| paths.is_component(field, component))
    }

    /// For each field of the pattern, whether each component of its path is an array in some
    /// document. `None` for kinds of indexes that do not record where arrays are, and for an index
    /// of which only that it has some is known.
    pub fn multikey_components(&self) -> Option<Vec<Vec<bool>>> {
        let is_recorded = match self.kind {
            IndexKind::Btree | IndexKind::TwoDSphere => true,
            // An expanded one stands for an index on one path.
            IndexKind::Wildcard => self.wildcard.is_none(),
            IndexKind::Hashed | IndexKind::Text | IndexKind::TwoD => false,
        };
        if !is_recorded || self.multikey == Some(MultikeyPaths::Anywhere) {
            return None;
        }
        let of_field = |(field, path): (usize, &Path)| {
            let components = 0..path.components().len();
            let is_array = |component| self.is_multikey_component(field, component);
            components.map(is_array).collect()
        };
        Some(self.paths.iter().enumerate().map(of_field).collect())
    }

    /// Whether any array stands on a field's path.
    pub(crate) fn is_multikey_field(&self, field: usize) -> bool {
        self.multikey
            .as_ref()
            .is_some_and(|paths| paths.is_field(field))
    }

    /// Whether the index knows already of arrays in these places.
    pub fn knows_multikey(&self, found: &MultikeyPaths) -> bool {
        self.multikey
            .as_ref()
            .is_some_and(|known| known.contains(found))
    }

    /// Adds what a document says; true when it was not known before.
    pub fn merge_multikey(&mut self, found: &MultikeyPaths) -> bool {
        match &mut self.multikey {
            Some(known) => known.merge(found),
            None => {
                self.multikey = Some(found.clone());
                true
            }
        }
    }
}

/// The cells of a geospatial index, by its options.
fn geo_of(kind: &IndexKind, listed: &RawDocument) -> Option<GeoIndex> {
    match kind {
        IndexKind::TwoD => Some(GeoIndex::plane(listed)),
        IndexKind::TwoDSphere => Some(GeoIndex::sphere(listed)),
        _ => None,
    }
}

/// The directions of the values of a key. The path of a wildcard index's key is ascending.
fn ordering_of(key: &RawDocument, kind: &IndexKind) -> Option<Ordering> {
    if *kind != IndexKind::Wildcard {
        return Ordering::from_pattern(key);
    }
    let mut pattern = pinion_bson::DocBuilder::new();
    for (name, value) in elements(key) {
        if super::kind::is_wildcard_field(name) {
            pattern.append(PATH_FIELD, 1i32);
        }
        pattern.append(name, value);
    }
    Ordering::from_pattern(&pattern.finish())
}
