//! Which options may be changed of what, and to what.

use super::{CollMod, invalid};
use crate::options::{Capped, CollectionOptions};
use pinion_wire::Result;

/// The options of a collection after the change.
pub(super) fn changed(present: &CollectionOptions, change: &CollMod) -> Result<CollectionOptions> {
    let mut options = present.clone();
    if change.view_on.is_some() || change.pipeline.is_some() {
        let option = if change.view_on.is_some() {
            "viewOn"
        } else {
            "pipeline"
        };
        return Err(invalid(format!(
            "'{option}' option not supported on a collection"
        )));
    }
    if let Some(validator) = &change.validator {
        options.validator = Some(validator.clone()).filter(|validator| !validator.is_empty());
    }
    options.validation_level = change.validation_level.or(options.validation_level);
    options.validation_action = change.validation_action.or(options.validation_action);
    if change.validator.is_some()
        || change.validation_level.is_some()
        || change.validation_action.is_some()
    {
        options.complete_validation();
    }
    if let Some(images) = change.pre_and_post_images {
        options.pre_and_post_images = images;
    }
    if let Some(wanted) = change.time_series {
        let Some(series) = &options.time_series else {
            return Err(invalid(
                "collMod 'timeseries' options are only supported on time-series collections",
            ));
        };
        if let Some(changed) = series.changed(wanted).map_err(invalid)? {
            options.time_series = Some(changed);
        }
    }
    change_capped(&mut options, change)?;
    if let Some(expiry) = change.expire_after_secs {
        if options.clustered.is_none() {
            return Err(invalid(
                "'expireAfterSeconds' is only supported on time-series collections or when the 'clusteredIndex' option is specified",
            ));
        }
        options.expire_after_secs = expiry;
    }
    Ok(options)
}

fn change_capped(options: &mut CollectionOptions, change: &CollMod) -> Result<()> {
    if change.capped_size.is_none() && change.capped_max.is_none() {
        return Ok(());
    }
    let Some(capped) = options.capped else {
        return Err(invalid("Collection must be capped."));
    };
    options.capped = Some(Capped {
        size_bytes: change.capped_size.unwrap_or(capped.size_bytes),
        max_documents: change.capped_max.unwrap_or(capped.max_documents),
    });
    Ok(())
}

/// Refuses what series do not have.
pub(super) fn check_for_series(change: &CollMod) -> Result<()> {
    let options = [
        ("validator", change.validator.is_some()),
        ("validationLevel", change.validation_level.is_some()),
        ("validationAction", change.validation_action.is_some()),
        ("viewOn", change.view_on.is_some()),
        ("pipeline", change.pipeline.is_some()),
        (
            "changeStreamPreAndPostImages",
            change.pre_and_post_images.is_some(),
        ),
    ];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(invalid(format!(
            "option not supported on a time-series collection: {option}"
        ))),
        None => Ok(()),
    }
}

/// Refuses what only documents of its own would have a use for.
pub(super) fn check_for_view(change: &CollMod) -> Result<()> {
    let options = [
        ("index", change.index.is_some()),
        ("validator", change.validator.is_some()),
        ("validationLevel", change.validation_level.is_some()),
        ("validationAction", change.validation_action.is_some()),
        (
            "changeStreamPreAndPostImages",
            change.pre_and_post_images.is_some(),
        ),
        ("timeseries", change.time_series.is_some()),
        ("cappedSize", change.capped_size.is_some()),
        ("cappedMax", change.capped_max.is_some()),
        ("expireAfterSeconds", change.expire_after_secs.is_some()),
        ("dryRun", change.dry_run),
    ];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(invalid(format!("option not supported on a view: {option}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Clustered, ValidationLevel};
    use pinion_bson::rawdoc;
    use pinion_wire::ErrorCode;

    #[track_caller]
    fn check(
        present: &CollectionOptions,
        change: CollMod,
        expected: std::result::Result<pinion_bson::RawDocumentBuf, ErrorCode>,
    ) {
        let found = changed(present, &change);
        let found = found.map(|options| options.to_document());
        assert_eq!(found.map_err(|error| error.code), expected, "{change:?}");
    }

    #[test]
    fn only_what_is_there_is_changed() {
        let plain = CollectionOptions::default();
        let refused = || Err(ErrorCode::INVALID_OPTIONS);
        let sized = || CollMod {
            capped_size: Some(9),
            ..CollMod::default()
        };
        check(&plain, sized(), refused());
        let capped = CollectionOptions {
            capped: Some(Capped {
                size_bytes: 5,
                max_documents: Some(7),
            }),
            ..CollectionOptions::default()
        };
        let listed = rawdoc! { "capped": true, "size": 9, "max": 7 };
        check(&capped, sized(), Ok(listed));
        let unbounded = CollMod {
            capped_max: Some(None),
            ..CollMod::default()
        };
        check(
            &capped,
            unbounded,
            Ok(rawdoc! { "capped": true, "size": 5 }),
        );
        let expiring = || CollMod {
            expire_after_secs: Some(Some(3)),
            ..CollMod::default()
        };
        check(&plain, expiring(), refused());
        let clustered = CollectionOptions {
            clustered: Some(Clustered::Legacy),
            ..CollectionOptions::default()
        };
        let listed = rawdoc! { "clusteredIndex": true, "expireAfterSeconds": 3i64 };
        check(&clustered, expiring(), Ok(listed));
        let on_view = CollMod {
            view_on: Some("c".into()),
            ..CollMod::default()
        };
        check(&plain, on_view, refused());
    }

    #[test]
    fn an_empty_validator_is_none() {
        let present = CollectionOptions {
            validator: Some(rawdoc! { "a": 1 }),
            ..CollectionOptions::default()
        };
        let cleared = CollMod {
            validator: Some(rawdoc! {}),
            ..CollMod::default()
        };
        let defaults = rawdoc! { "validationLevel": "strict", "validationAction": "error" };
        check(&present, cleared, Ok(defaults));
    }

    #[test]
    fn a_change_of_validation_stores_level_and_action() {
        let lenient = CollMod {
            validation_level: Some(ValidationLevel::Off),
            ..CollMod::default()
        };
        let stored = rawdoc! { "validationLevel": "off", "validationAction": "error" };
        check(&CollectionOptions::default(), lenient, Ok(stored));
    }
}
