//! Keys of geospatial indexes: cells of the sphere or of the plane, with the values of the other
//! fields.

use pinion_bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument};
use pinion_wire::{Error, Result};
use smallvec::SmallVec;

use super::{IndexKey, IndexKeys, IndexSpec, MultikeyPaths};
use crate::error::error;
use crate::geo::{GeoIndex, PlaneIndex, SphereIndex, flat_location, values_at};
use crate::keygen;
use crate::limits::MAX_INDEX_KEYS_PER_DOCUMENT;
use crate::path::Path;
use crate::sort::key_error;
use crate::text::document_text;
use crate::value::{array_document, elements, first, is_empty, is_number};
use crate::work;

type Values = SmallVec<[RawBson; 4]>;

/// The values of one field, and the components of its path that are arrays.
struct FieldValues {
    values: Vec<RawBson>,
    arrays: Vec<u16>,
}

pub(super) fn keys<'a>(
    document: &RawDocument,
    index: &IndexSpec,
    geo: &GeoIndex,
) -> Result<IndexKeys<'a>> {
    match geo {
        GeoIndex::Sphere(sphere) => sphere_keys(document, index, sphere),
        GeoIndex::Plane(plane) => plane_keys(document, index, plane),
    }
}

fn is_geo(kind: RawBsonRef<'_>) -> bool {
    matches!(kind, RawBsonRef::String(_))
}

fn sphere_keys<'a>(
    document: &RawDocument,
    index: &IndexSpec,
    sphere: &SphereIndex,
) -> Result<IndexKeys<'a>> {
    let mut fields = Vec::with_capacity(index.fields());
    let mut has_geo = false;
    for ((_, kind), path) in elements(&index.key).zip(index.paths()) {
        fields.push(if is_geo(kind) {
            let cells = cells(document, path, sphere)?;
            has_geo |= !cells.values.is_empty();
            cells
        } else {
            literals(document, path)?
        });
    }
    if sphere.leaves_out_missing() && !has_geo {
        return Ok(IndexKeys::default());
    }
    combined(fields)
}

/// The cells of all geometries at a path: none where there is none.
fn cells(document: &RawDocument, path: &Path, sphere: &SphereIndex) -> Result<FieldValues> {
    let (mut found, arrays) = located(document, path);
    if sphere.leaves_out_missing()
        && let [only] = found[..]
        && is_missing(only)
    {
        found.clear();
    }
    let mut field = FieldValues {
        values: Vec::new(),
        arrays,
    };
    for value in found {
        let keys = sphere
            .keys(value)
            .map_err(|cause| not_extracted(document, cause))?;
        if keys.is_empty() {
            return Err(error(
                16756,
                format!(
                    "Unable to generate keys for (likely malformed) geometry: {}",
                    document_text(document)
                ),
            ));
        }
        if keys.len() > 1 {
            field.mark_last(path);
        }
        field.values.extend(keys.into_iter().map(RawBson::Int64));
    }
    Ok(field)
}

fn not_extracted(document: &RawDocument, cause: Error) -> Error {
    // A call that was refused for its work says so.
    if work::is_exhausted() {
        return cause;
    }
    error(
        16755,
        format!(
            "Can't extract geo keys: {}  {}",
            document_text(document),
            cause.message
        ),
    )
}

/// Whether a value stands for no geometry.
fn is_missing(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Null | RawBsonRef::Undefined => true,
        RawBsonRef::Document(document) => is_empty(document),
        RawBsonRef::Array(array) => is_empty(array_document(array)),
        _ => false,
    }
}

/// The values at a path with the components of it that are arrays.
fn located<'a>(document: &'a RawDocument, path: &Path) -> (Vec<RawBsonRef<'a>>, Vec<u16>) {
    let mut arrays = Vec::new();
    let mut found = Vec::new();
    values_at(document, path, &mut arrays, &mut |value| found.push(value));
    (found, arrays)
}

/// The values of a field that is not geospatial, as an ordinary index has them.
fn literals(document: &RawDocument, path: &Path) -> Result<FieldValues> {
    let found = keygen::keys(document, std::slice::from_ref(path), false).map_err(key_error)?;
    let arrays = found.multikey.and_then(|fields| fields.into_iter().next());
    let values = found
        .keys
        .into_iter()
        .filter_map(|key| key.first().copied());
    Ok(FieldValues {
        values: values.map(RawBson::from).collect(),
        arrays: arrays.unwrap_or_default(),
    })
}

impl FieldValues {
    /// Notes that the end of the path gives several keys.
    fn mark_last(&mut self, path: &Path) {
        let last = path.components().len() as u16 - 1;
        if !self.arrays.contains(&last) {
            self.arrays.push(last);
            self.arrays.sort_unstable();
        }
    }
}

/// Every combination of the fields' values; a field without any has null.
fn combined<'a>(fields: Vec<FieldValues>) -> Result<IndexKeys<'a>> {
    let multikey = fields.iter().any(|field| !field.arrays.is_empty());
    let multikey = multikey
        .then(|| MultikeyPaths::Fields(fields.iter().map(|field| field.arrays.clone()).collect()));
    let mut keys: Vec<Values> = vec![Values::new()];
    for mut field in fields {
        if field.values.is_empty() {
            field.values.push(RawBson::Null);
        }
        let count = keys.len().saturating_mul(field.values.len());
        if count > MAX_INDEX_KEYS_PER_DOCUMENT {
            return Err(key_error(keygen::KeyError::TooMany));
        }
        work::spend(count as work::Units * 2 * work::STEP)?;
        keys = keys
            .iter()
            .flat_map(|key| {
                field.values.iter().map(|value| {
                    let mut longer = key.clone();
                    longer.push(value.clone());
                    longer
                })
            })
            .collect();
    }
    keys.sort_by(order);
    keys.dedup_by(|a, b| order(a, b).is_eq());
    Ok(IndexKeys {
        keys: keys.into_iter().map(IndexKey::Owned).collect(),
        multikey,
    })
}

fn order(a: &Values, b: &Values) -> std::cmp::Ordering {
    let pairs = a.iter().zip(b.iter());
    pairs.fold(std::cmp::Ordering::Equal, |order, (a, b)| {
        order.then_with(|| crate::value::compare_owned(a, b))
    })
}

fn plane_keys<'a>(
    document: &RawDocument,
    index: &IndexSpec,
    plane: &PlaneIndex,
) -> Result<IndexKeys<'a>> {
    let Some(path) = index.paths().first() else {
        return Ok(IndexKeys::default());
    };
    let (found, arrays) = located(document, path);
    let mut field = FieldValues {
        values: Vec::new(),
        arrays,
    };
    for value in found {
        let Some(locations) = crate::geo::object(value) else {
            continue;
        };
        if is_empty(locations) {
            continue;
        }
        if first(locations).is_some_and(|(_, value)| is_number(value)) {
            let at = flat_location(locations, document)?;
            field.values.push(RawBson::Int64(plane.key(&at, document)?));
            continue;
        }
        field.mark_last(path);
        for (_, location) in elements(locations) {
            work::spend(work::STEP)?;
            let Some(location) = crate::geo::object(location) else {
                return Err(error(
                    16804,
                    "location object expected, location array not in correct format",
                ));
            };
            if !is_empty(location) {
                let at = flat_location(location, document)?;
                field.values.push(RawBson::Int64(plane.key(&at, document)?));
            }
        }
    }
    if field.values.is_empty() {
        return Ok(IndexKeys::default());
    }
    let mut fields = vec![field];
    for path in &index.paths()[1..] {
        fields.push(whole(literals(document, path)?));
    }
    combined(fields)
}

/// The values of a field as one: several are an array.
fn whole(field: FieldValues) -> FieldValues {
    let mut values = field.values;
    if values.len() > 1 {
        let mut array = RawArrayBuf::new();
        values.drain(..).for_each(|value| array.push(value));
        values.push(RawBson::Array(array));
    }
    FieldValues {
        values,
        arrays: Vec::new(),
    }
}
