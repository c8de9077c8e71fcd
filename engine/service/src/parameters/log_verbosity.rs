//! `logComponentVerbosity`: the verbosity of each component of the log, as a document with a part
//! for each.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_wire::idl::f64_lossy;
use pinion_wire::{Error, Result};

/// How commands reach the log: a core-local value, where there is a log.
pub struct LogControl {
    /// The components that have a verbosity of their own, by their dotted names; the first is what
    /// the others go by.
    pub components: &'static [&'static str],
    /// The verbosity of a component, by its place; negative where it has none of its own.
    pub get: fn(usize) -> i32,
    /// Sets it, for all cores.
    pub set: fn(usize, i32),
    /// Begins a new log file; the outcome comes on the channel.
    pub rotate: fn() -> std::sync::mpsc::Receiver<std::io::Result<()>>,
}

/// Sets the verbosities of components, each by its place, where there is a log.
pub(super) fn set(verbosities: &[(usize, i32)]) {
    if let Some(control) = pinion_runtime::try_core_local::<LogControl>() {
        for (component, level) in verbosities {
            (control.set)(*component, *level);
        }
    }
}

/// Reads the components with their new verbosities, each by its place.
pub(super) fn parse(value: RawBsonRef<'_>) -> Result<Vec<(usize, i32)>> {
    let RawBsonRef::Document(document) = value else {
        return Err(Error::type_mismatch(format!(
            "logComponentVerbosity is not a BSON object, but of type {}",
            pinion_bson::type_name(value.element_type())
        )));
    };
    let components = pinion_runtime::try_core_local::<LogControl>()
        .map_or(&[""][..], |control| control.components);
    let mut found = Vec::new();
    read(components, "", document, &mut found)?;
    Ok(found)
}

fn read(
    components: &[&str],
    name: &str,
    document: &RawDocument,
    found: &mut Vec<(usize, i32)>,
) -> Result<()> {
    let place = components.iter().position(|own| *own == name);
    let place = place.ok_or_else(|| {
        Error::bad_value(format!(
            "Invalid component name logComponentVerbosity.{name}"
        ))
    })?;
    for (field, value) in pinion_bson::elements(document) {
        if field == "verbosity" {
            found.push((place, verbosity(name, value)?));
            continue;
        }
        let inner = match name {
            "" => field.to_owned(),
            name => format!("{name}.{field}"),
        };
        let RawBsonRef::Document(value) = value else {
            return Err(Error::bad_value(format!(
                "Invalid type for component {inner} in logComponentVerbosity"
            )));
        };
        read(components, &inner, value, found)?;
    }
    Ok(())
}

fn verbosity(component: &str, value: RawBsonRef<'_>) -> Result<i32> {
    match f64_lossy(value) {
        Some(level) if level.is_finite() && level.trunc() == f64::from(level as i32) => {
            Ok((level as i32).clamp(-1, 5))
        }
        _ => Err(Error::bad_value(format!(
            "Invalid verbosity {} of component '{component}' in logComponentVerbosity",
            pinion_query::value_text(value)
        ))),
    }
}

/// Appends the verbosities of all components.
pub(super) fn append(name: &str, out: &mut DocBuilder) {
    out.start_document(name);
    if let Some(control) = pinion_runtime::try_core_local::<LogControl>() {
        append_below("", control.components, control.get, out);
    }
    out.end();
}

/// Appends the verbosity of a component and those of the components that are parts of it.
fn append_below(
    name: &str,
    components: &[&'static str],
    get: impl Fn(usize) -> i32 + Copy,
    out: &mut DocBuilder,
) {
    let above = |component: &str| match component.rsplit_once('.') {
        Some((above, _)) => above.to_owned(),
        None => String::new(),
    };
    for (place, component) in components.iter().enumerate() {
        if *component == name {
            out.append("verbosity", get(place));
        } else if above(component) == name {
            let short = component.rsplit('.').next().unwrap_or(component);
            out.start_document(short);
            append_below(component, components, get, out);
            out.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    const COMPONENTS: [&str; 3] = ["", "storage", "storage.recovery"];

    #[track_caller]
    fn check(document: RawDocumentBuf, expected: std::result::Result<&[(usize, i32)], i32>) {
        let mut found = Vec::new();
        let read = read(&COMPONENTS, "", &document, &mut found);
        assert_eq!(
            read.map(|()| &found[..]).map_err(|error| error.code.0),
            expected
        );
    }

    #[test]
    fn components() {
        check(rawdoc! { "verbosity": 2 }, Ok(&[(0, 2)]));
        check(
            rawdoc! { "storage": { "verbosity": -1, "recovery": { "verbosity": 7.0 } } },
            Ok(&[(1, -1), (2, 5)]),
        );
        check(rawdoc! { "nope": { "verbosity": 1 } }, Err(2));
        check(rawdoc! { "storage": 1 }, Err(2));
        check(rawdoc! { "verbosity": "x" }, Err(2));
        check(rawdoc! { "verbosity": 2147483648i64 }, Err(2));
        check(rawdoc! { "verbosity": f64::NAN }, Err(2));
    }

    #[test]
    fn parts_stand_in_their_components() {
        let mut out = DocBuilder::new();
        append_below("", &COMPONENTS, |place| place as i32, &mut out);
        let expected = rawdoc! {
            "verbosity": 0, "storage": { "verbosity": 1, "recovery": { "verbosity": 2 } }
        };
        assert_eq!(out.finish(), expected);
    }
}
