//! Options of geographical indexes.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::idl::f64_lossy;
use pinion_wire::{Error, ErrorCode, Result};

use super::{cannot_create, key_of, part};
use crate::text::{render, render_value};

/// The version that a new `2dsphere` index gets.
const LATEST_SPHERE_VERSION: i32 = 3;

/// The most bits of a coordinate of a `2d` index.
const MAX_BITS: f64 = 32.0;

/// The finest level of cells on a sphere.
const MAX_LEVEL: f64 = 30.0;

fn number(listed: &RawDocument, field: &str, default: f64) -> f64 {
    part(listed, field).and_then(f64_lossy).unwrap_or(default)
}

/// Checks the options of a `2d` index.
pub(super) fn check_plane(listed: &RawDocument) -> Result<()> {
    let mut fields = pinion_bson::elements(key_of(listed));
    let is_geo = |value: RawBsonRef<'_>| matches!(value, RawBsonRef::String(_));
    if !fields.next().is_some_and(|(_, value)| is_geo(value)) {
        return Err(Error::new(ErrorCode(13023), "2d has to be first in index"));
    }
    if fields.any(|(_, value)| is_geo(value)) {
        return Err(Error::new(ErrorCode(13022), "can't have 2 geo field"));
    }
    let bits = number(listed, "bits", 26.0).trunc();
    if !(1.0..=MAX_BITS).contains(&bits) {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!("bits in geo index must be between 1 and 32, but got {bits}"),
        ));
    }
    let (min, max) = (number(listed, "min", -180.0), number(listed, "max", 180.0));
    if min.partial_cmp(&max) != Some(std::cmp::Ordering::Less) {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "region for hash must be valid and have positive area, but [{min}, {max}] was provided"
            ),
        ));
    }
    Ok(())
}

/// Checks the options of a `2dsphere` index and adds its version.
pub(super) fn normal_sphere(listed: &RawDocument) -> Result<RawDocumentBuf> {
    let (coarsest, finest) = (
        number(listed, "coarsestIndexedLevel", 0.0),
        number(listed, "finestIndexedLevel", 23.0),
    );
    let check = |holds: bool, code: i32, message: &str| {
        if holds {
            Ok(())
        } else {
            Err(Error::new(ErrorCode(code), message))
        }
    };
    check(coarsest >= 0.0, 16747, "coarsestIndexedLevel must be >= 0")?;
    check(
        finest <= MAX_LEVEL,
        16748,
        "finestIndexedLevel must be <= 30",
    )?;
    check(
        finest >= coarsest,
        16749,
        "finestIndexedLevel must be >= coarsestIndexedLevel",
    )?;
    for (_, value) in pinion_bson::elements(key_of(listed)) {
        if !matches!(value, RawBsonRef::String(_)) && f64_lossy(value).is_none() {
            return Err(Error::new(
                ErrorCode(16823),
                format!(
                    "Cannot use {} index with other special index types: {}",
                    "2dsphere",
                    render(key_of(listed))
                ),
            ));
        }
    }
    let mut out = DocBuilder::new();
    out.append_all(listed);
    match part(listed, "2dsphereIndexVersion") {
        None => {
            out.append("2dsphereIndexVersion", LATEST_SPHERE_VERSION);
        }
        Some(version) => {
            let supported = [1.0, 2.0, 3.0];
            if !f64_lossy(version).is_some_and(|version| supported.contains(&version.trunc())) {
                return Err(cannot_create(format!(
                    "unsupported geo index version {{ 2dsphereIndexVersion : {} }}, only support versions: [1,2,3]",
                    render_value(version)
                )));
            }
        }
    }
    Ok(out.finish())
}
