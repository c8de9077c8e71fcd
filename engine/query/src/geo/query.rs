//! `$geoWithin` and `$geoIntersects`.

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::parse;
use super::relate;
use super::shape::{Geometry, Shape};
use crate::error::bad_value;
use crate::text::{document_text, element_text};
use crate::value::elements;
use crate::work;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    Within,
    Intersects,
}

/// A predicate on stored geometries.
#[derive(Clone, Debug)]
pub(crate) struct GeoPredicate {
    pub relation: Relation,
    pub shape: Shape,
    /// The operator as it was written.
    pub source: RawDocumentBuf,
}

impl GeoPredicate {
    /// Reads the operators at a path, of which one of these must be the only one.
    pub(crate) fn parse(operators: &RawDocument) -> Result<GeoPredicate> {
        work::spend_bytes(operators.as_bytes().len())?;
        let mut fields = elements(operators);
        let operator = fields.next();
        if let Some((name, value)) = fields.next() {
            let extra = element_text(name, value);
            return Err(bad_value(format!("can't parse extra field: {extra}")));
        }
        let (relation, argument) = match operator {
            Some(("$geoIntersects", argument)) => (Relation::Intersects, argument),
            Some(("$geoWithin" | "$within", argument)) => (Relation::Within, argument),
            _ => {
                let text = document_text(operators);
                return Err(bad_value(format!("invalid geo query predicate: {text}")));
            }
        };
        let RawBsonRef::Document(argument) = argument else {
            return Err(bad_value("geometry must be an object"));
        };
        let mut found: Option<Shape> = None;
        for (name, value) in elements(argument).filter(|(name, _)| *name != "$uniqueDocs") {
            let shape = parse::shape(name, value)?;
            if found.replace(shape).is_some() {
                let extra = element_text(name, value);
                return Err(bad_value(format!(
                    "geo query has more than one geometry: {extra}"
                )));
            }
        }
        let shape = found.ok_or_else(|| bad_value("geo query doesn't have any geometry"))?;
        check(relation, &shape, operators)?;
        Ok(GeoPredicate {
            relation,
            shape,
            source: operators.to_owned(),
        })
    }

    /// Whether a stored value satisfies the predicate; what is no geometry does not.
    pub(crate) fn matches(&self, value: RawBsonRef<'_>) -> Result<bool> {
        if parse::object(value).is_none() {
            return Ok(false);
        }
        let Ok(geometry) = parse::stored(value) else {
            work::check()?;
            return Ok(false);
        };
        if matches!(geometry, Geometry::BigPolygon(_)) {
            return Ok(false);
        }
        match self.relation {
            Relation::Within => relate::within(&geometry, &self.shape),
            Relation::Intersects => relate::intersects(&geometry, &self.shape),
        }
    }
}

fn check(relation: Relation, shape: &Shape, operators: &RawDocument) -> Result<()> {
    match relation {
        Relation::Within if !shape.has_area() => Err(bad_value(format!(
            "$within not supported with provided geometry: {}",
            document_text(operators)
        ))),
        // An intersection is one on the sphere.
        Relation::Intersects if shape.parts().is_none() => Err(bad_value(format!(
            "$geoIntersect not supported with provided geometry: {}",
            document_text(operators)
        ))),
        _ => Ok(()),
    }
}
