//! The options of a time series: which fields of a measurement say when and of what, and how long a
//! bucket may be.

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};

use super::SeriesForm;
use super::pack::{normal_meta, time_of};

/// How far apart the measurements of one source are, roughly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Granularity {
    Seconds,
    Minutes,
    Hours,
}

impl Granularity {
    pub const NAMES: [(&'static str, Granularity); 3] = [
        ("seconds", Granularity::Seconds),
        ("minutes", Granularity::Minutes),
        ("hours", Granularity::Hours),
    ];

    /// As `create` names it.
    pub fn name(self) -> &'static str {
        let found = Granularity::NAMES.iter().find(|(_, value)| *value == self);
        found.expect("every value has a name").0
    }

    /// The longest time that a bucket spans.
    pub fn max_span_secs(self) -> i32 {
        match self {
            Granularity::Seconds => 60 * 60,
            Granularity::Minutes => 60 * 60 * 24,
            Granularity::Hours => 60 * 60 * 24 * 30,
        }
    }

    /// What the begin of a bucket is rounded down to.
    pub fn rounding_secs(self) -> i32 {
        match self {
            Granularity::Seconds => 60,
            Granularity::Minutes => 60 * 60,
            Granularity::Hours => 60 * 60 * 24,
        }
    }
}

/// The options of a time series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimeSeries {
    pub time_field: String,
    pub meta_field: Option<String>,
    /// `None` where span and rounding were given instead.
    pub granularity: Option<Granularity>,
    /// Listed where it was given.
    pub rounding_secs: Option<i32>,
    pub max_span_secs: i32,
}

/// What `create` or `collMod` says about the buckets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TimeSeriesChange {
    pub granularity: Option<Granularity>,
    pub rounding_secs: Option<i32>,
    pub max_span_secs: Option<i32>,
}

impl TimeSeriesChange {
    /// The bucketing of a new series: granularity, rounding and span.
    ///
    /// # Errors
    /// A text for `InvalidOptions`.
    pub fn resolve(self) -> Result<(Option<Granularity>, Option<i32>, i32), &'static str> {
        let TimeSeriesChange {
            granularity,
            rounding_secs,
            max_span_secs,
        } = self;
        if let Some(granularity) = granularity {
            if max_span_secs.is_some_and(|span| span != granularity.max_span_secs()) {
                return Err(
                    "Timeseries 'bucketMaxSpanSeconds' must be the default of its 'granularity', if both are specified",
                );
            }
            if rounding_secs.is_some_and(|rounding| rounding != granularity.rounding_secs()) {
                return Err(
                    "Timeseries 'bucketRoundingSeconds' must be the default of its 'granularity', if both are specified",
                );
            }
            return Ok((Some(granularity), None, granularity.max_span_secs()));
        }
        match (rounding_secs, max_span_secs) {
            (None, None) => {
                let seconds = Granularity::Seconds;
                Ok((Some(seconds), None, seconds.max_span_secs()))
            }
            (Some(rounding), Some(span)) if rounding == span => Ok((None, Some(rounding), span)),
            (Some(_), Some(_)) => Err(
                "Timeseries 'bucketMaxSpanSeconds' needs to be equal to 'bucketRoundingSeconds'",
            ),
            _ => Err(
                "Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' need to be set alongside each other",
            ),
        }
    }
}

impl TimeSeries {
    /// The greatest span and rounding, a year.
    pub const MAX_SECS: i64 = 60 * 60 * 24 * 365;

    /// What the begin of a bucket is rounded down to.
    pub fn bucket_rounding_secs(&self) -> i32 {
        match (self.rounding_secs, self.granularity) {
            (Some(rounding), _) => rounding,
            (None, granularity) => granularity.unwrap_or(Granularity::Seconds).rounding_secs(),
        }
    }

    /// The time at which a bucket begins that a measurement of this time opens.
    pub fn bucket_start_ms(&self, time_ms: i64) -> i64 {
        let rounding_ms = i64::from(self.bucket_rounding_secs()) * 1000;
        let whole = time_ms.div_euclid(rounding_ms);
        // At the beginning of all times nothing is rounded.
        whole.checked_mul(rounding_ms).unwrap_or(time_ms)
    }

    /// What of a new bucket for a measurement does not depend on others: its meta value, and the
    /// time at which it begins. `None` where the measurement has no time.
    pub fn bucket_origin(&self, measurement: &RawDocument) -> Option<RawDocumentBuf> {
        let form = self.form();
        let start_ms = self.bucket_start_ms(time_of(&form, measurement).ok()?);
        let mut out = DocBuilder::new();
        let meta = form.meta.as_ref();
        if let Some(meta) = meta.and_then(|name| pinion_bson::get(measurement, name)) {
            out.append_raw("meta", normal_meta(meta).as_raw_bson_ref());
        }
        let start = RawBsonRef::DateTime(DateTime::from_millis(start_ms));
        out.start_document("control")
            .start_document("min")
            .append(&form.time, start)
            .end()
            .end();
        Some(out.finish())
    }

    /// The form of its measurements and buckets.
    pub fn form(&self) -> SeriesForm {
        SeriesForm {
            time: self.time_field.clone(),
            meta: self.meta_field.clone(),
            max_span_secs: self.max_span_secs,
        }
    }

    /// The series with other buckets; `None` where nothing changes.
    ///
    /// # Errors
    /// A text for `InvalidOptions`: buckets never become shorter.
    pub fn changed(&self, change: TimeSeriesChange) -> Result<Option<TimeSeries>, &'static str> {
        if change == TimeSeriesChange::default() {
            return Ok(None);
        }
        if let (Some(wanted), Some(present)) = (change.granularity, self.granularity)
            && wanted < present
        {
            return Err("Invalid transition for timeseries.granularity");
        }
        let (granularity, rounding_secs, max_span_secs) = change.resolve()?;
        if max_span_secs < self.max_span_secs {
            return Err(
                "Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' can only be increased",
            );
        }
        let changed = TimeSeries {
            granularity,
            rounding_secs,
            max_span_secs,
            ..self.clone()
        };
        Ok((changed != *self).then_some(changed))
    }

    /// As it is listed.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("timeField", self.time_field.as_str());
        if let Some(meta) = &self.meta_field {
            out.append("metaField", meta.as_str());
        }
        if let Some(granularity) = self.granularity {
            out.append("granularity", granularity.name());
        }
        if let Some(rounding) = self.rounding_secs {
            out.append("bucketRoundingSeconds", rounding);
        }
        out.append("bucketMaxSpanSeconds", self.max_span_secs);
        out.finish()
    }

    /// # Errors
    /// The name of a field that is missing.
    pub fn from_document(stored: &RawDocument) -> Result<TimeSeries, &'static str> {
        let text = |name: &str| stored.get_str(name).ok().map(str::to_owned);
        let number = |name: &str| stored.get_i32(name).ok();
        let granularity = text("granularity").and_then(|name| {
            let known = Granularity::NAMES.iter().find(|(known, _)| *known == name);
            known.map(|(_, value)| *value)
        });
        Ok(TimeSeries {
            time_field: text("timeField").ok_or("timeField")?,
            meta_field: text("metaField"),
            granularity,
            rounding_secs: number("bucketRoundingSeconds"),
            max_span_secs: number("bucketMaxSpanSeconds").ok_or("bucketMaxSpanSeconds")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(granularity: Option<Granularity>, span: i32) -> TimeSeries {
        TimeSeries {
            time_field: "t".into(),
            meta_field: None,
            granularity,
            rounding_secs: granularity.is_none().then_some(span),
            max_span_secs: span,
        }
    }

    #[track_caller]
    fn check(
        from: &TimeSeries,
        change: TimeSeriesChange,
        expected: Result<Option<TimeSeries>, ()>,
    ) {
        assert_eq!(from.changed(change).map_err(|_| ()), expected, "{change:?}");
    }

    #[test]
    fn buckets_only_become_longer() {
        let seconds = series(Some(Granularity::Seconds), 3600);
        let to = |granularity| TimeSeriesChange {
            granularity: Some(granularity),
            ..TimeSeriesChange::default()
        };
        let spans = |rounding, span| TimeSeriesChange {
            granularity: None,
            rounding_secs: rounding,
            max_span_secs: span,
        };
        let minutes = series(Some(Granularity::Minutes), 86_400);
        check(&seconds, TimeSeriesChange::default(), Ok(None));
        check(&seconds, to(Granularity::Seconds), Ok(None));
        check(
            &seconds,
            to(Granularity::Minutes),
            Ok(Some(minutes.clone())),
        );
        check(&minutes, to(Granularity::Seconds), Err(()));
        check(&seconds, spans(Some(3600), None), Err(()));
        check(&seconds, spans(Some(3600), Some(3601)), Err(()));
        check(&seconds, spans(Some(3599), Some(3599)), Err(()));
        check(
            &seconds,
            spans(Some(3600), Some(3600)),
            Ok(Some(series(None, 3600))),
        );
        let both = TimeSeriesChange {
            granularity: Some(Granularity::Seconds),
            rounding_secs: Some(7200),
            max_span_secs: Some(7200),
        };
        check(&seconds, both, Err(()));
    }
}
