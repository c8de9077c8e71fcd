//! What was done to the series, and what a read of it may show.
//!
//! A measurement that was sent and acknowledged while the series was there is there, until the
//! series is about to be dropped or measurements of its source to be deleted. What was acknowledged
//! before a drop or a deletion began is not there after it. Nothing is there twice. Of what was
//! sent beside a drop or a deletion no more is known, and neither of what was sent again since its
//! answer did not come: a router may still be busy with the first attempt.

use pinion_bson::{DateTime, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use pinion_runtime::Instant;

#[derive(Clone, Debug)]
struct Measurement {
    source: i32,
    at_ms: i64,
    sent: Instant,
    acknowledged: Option<Instant>,
    is_left_behind: bool,
}

/// A time in which the series is there for certain, and its drop.
#[derive(Debug)]
struct Life {
    made: Instant,
    drop_began: Option<Instant>,
    drop_ended: Option<Instant>,
}

/// Of all measurements of a source.
#[derive(Debug)]
struct Deletion {
    source: i32,
    sent: Instant,
    acknowledged: Option<Instant>,
    /// When nothing of it is under way any more.
    over: Option<Instant>,
}

/// Which measurements are meant.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub source: Option<i32>,
    /// The whole meta field is compared, not the field in it.
    pub by_whole_meta: bool,
    /// From a time on, and before another.
    pub window: Option<(i64, i64)>,
}

impl Filter {
    pub fn of_source(source: i32) -> Filter {
        Filter {
            source: Some(source),
            ..Filter::default()
        }
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = RawDocumentBuf::new();
        match self.source {
            Some(source) if self.by_whole_meta => out.append(cstr!("m"), rawdoc! { "s": source }),
            Some(source) => out.append(cstr!("m.s"), source),
            None => {}
        }
        if let Some((from, before)) = self.window {
            let [from, before] = [from, before].map(DateTime::from_millis);
            out.append(cstr!("t"), rawdoc! { "$gte": from, "$lt": before });
        }
        out
    }

    fn matches(&self, measurement: &Measurement) -> bool {
        let in_window = |(from, before): (i64, i64)| (from..before).contains(&measurement.at_ms);
        self.source
            .is_none_or(|source| source == measurement.source)
            && self.window.is_none_or(in_window)
    }
}

/// A measurement that was read.
#[derive(Clone, Copy, Debug)]
pub struct Sighting {
    pub id: i64,
    pub source: i32,
    pub at_ms: Option<i64>,
}

impl Sighting {
    /// # Errors
    /// No client has written it so.
    pub fn read(document: &RawDocument) -> Result<Sighting, String> {
        let id = document.get_i64("u");
        let at = document.get_datetime("t");
        match (id, pinion_bson::get_path(document, "m.s"), at) {
            (Ok(id), Some(RawBsonRef::Int32(source)), Ok(at)) => Ok(Sighting {
                id,
                source,
                at_ms: Some(at.timestamp_millis()),
            }),
            _ => Err(format!("it was never written so: {document:?}")),
        }
    }
}

/// The document of a measurement.
pub fn document(id: i64, source: i32, at_ms: i64) -> RawDocumentBuf {
    rawdoc! { "t": DateTime::from_millis(at_ms), "m": { "s": source }, "u": id }
}

/// What a read between two times shows of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    There,
    Gone,
    Unknown,
}

/// All that was done.
#[derive(Debug, Default)]
pub struct Records {
    measurements: Vec<Measurement>,
    lives: Vec<Life>,
    deletions: Vec<Deletion>,
}

impl Records {
    pub fn made(&mut self, at: Instant) {
        self.lives.push(Life {
            made: at,
            drop_began: None,
            drop_ended: None,
        });
    }

    /// # Panics
    /// When it was never made.
    pub fn drop_began(&mut self, at: Instant) {
        self.life().drop_began = Some(at);
    }

    /// # Panics
    /// When it was never made.
    pub fn drop_ended(&mut self, at: Instant) {
        self.life().drop_ended = Some(at);
    }

    fn life(&mut self) -> &mut Life {
        self.lives.last_mut().expect("the series was made")
    }

    /// Whether the series was there for certain at this time, and ever since.
    pub fn is_there_since(&self, at: Instant) -> bool {
        let life = self.lives.last();
        life.is_some_and(|life| life.made <= at && life.drop_began.is_none())
    }

    /// The number of a measurement that is about to be sent.
    pub fn sent(&mut self, source: i32, at_ms: i64, at: Instant) -> i64 {
        self.measurements.push(Measurement {
            source,
            at_ms,
            sent: at,
            acknowledged: None,
            is_left_behind: false,
        });
        self.measurements.len() as i64 - 1
    }

    pub fn acknowledged(&mut self, id: i64, is_left_behind: bool, at: Instant) {
        let measurement = &mut self.measurements[id as usize];
        measurement.acknowledged = Some(at);
        measurement.is_left_behind = is_left_behind;
    }

    /// The number of a deletion that is about to be sent.
    pub fn deletion_sent(&mut self, source: i32, at: Instant) -> usize {
        self.deletions.push(Deletion {
            source,
            sent: at,
            acknowledged: None,
            over: None,
        });
        self.deletions.len() - 1
    }

    pub fn deletion_acknowledged(&mut self, number: usize, at: Instant) {
        self.deletions[number].acknowledged = Some(at);
        self.deletions[number].over = Some(at);
    }

    /// Nothing is known of a deletion but when it is over.
    pub fn deletion_over(&mut self, number: usize, at: Instant) {
        self.deletions[number].over = Some(at);
    }

    fn standing(&self, of: &Measurement, began: Instant, ended: Instant) -> Standing {
        let Some(acknowledged) = of.acknowledged else {
            return Standing::Unknown;
        };
        let is_dropped = |life: &Life| {
            life.drop_began.is_some_and(|drop| acknowledged < drop)
                && life.drop_ended.is_some_and(|drop| drop <= began)
        };
        let is_deleted = |deletion: &Deletion| {
            deletion.source == of.source
                && acknowledged < deletion.sent
                && deletion.acknowledged.is_some_and(|done| done <= began)
        };
        if self.lives.iter().any(is_dropped) || self.deletions.iter().any(is_deleted) {
            return match of.is_left_behind {
                true => Standing::Unknown,
                false => Standing::Gone,
            };
        }
        let lasts = |life: &Life| {
            life.made <= of.sent
                && acknowledged <= began
                && life.drop_began.is_none_or(|drop| drop > ended)
        };
        let spares = |deletion: &Deletion| {
            deletion.source != of.source
                || deletion.sent > ended
                || deletion.over.is_some_and(|over| over <= of.sent)
        };
        match self.lives.iter().any(lasts) && self.deletions.iter().all(spares) {
            true => Standing::There,
            false => Standing::Unknown,
        }
    }

    /// Checks what a filter has found between two times.
    pub fn check_found(
        &self,
        filter: &Filter,
        found: &[Sighting],
        began: Instant,
        ended: Instant,
    ) -> Result<(), String> {
        let mut is_found = vec![false; self.measurements.len()];
        for sighting in found {
            let known = usize::try_from(sighting.id).ok();
            let known = known.and_then(|at| Some((at, self.measurements.get(at)?)));
            let Some((at, measurement)) = known else {
                return Err(format!("it was never sent: {sighting:?}"));
            };
            let is_of_then = sighting
                .at_ms
                .is_none_or(|at_ms| at_ms == measurement.at_ms);
            if sighting.source != measurement.source || !is_of_then {
                return Err(format!("{measurement:?} is shown as {sighting:?}"));
            }
            if std::mem::replace(&mut is_found[at], true) {
                return Err(format!("measurement {at} is there twice"));
            }
            if !filter.matches(measurement) {
                return Err(format!("measurement {at} does not match: {measurement:?}"));
            }
        }
        let all = self.measurements.iter().zip(is_found).enumerate();
        for (at, (measurement, is_found)) in all.filter(|(_, (one, _))| filter.matches(one)) {
            match (self.standing(measurement, began, ended), is_found) {
                (Standing::There, false) => {
                    return Err(format!("measurement {at} is not there: {measurement:?}"));
                }
                (Standing::Gone, true) => {
                    return Err(format!("measurement {at} is there again: {measurement:?}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks how many a filter has counted between two times.
    pub fn check_count(
        &self,
        filter: &Filter,
        count: i64,
        began: Instant,
        ended: Instant,
    ) -> Result<(), String> {
        let matching = self.measurements.iter().filter(|one| filter.matches(one));
        let (mut least, mut most) = (0, 0);
        for measurement in matching {
            let standing = self.standing(measurement, began, ended);
            least += i64::from(standing == Standing::There);
            most += i64::from(standing != Standing::Gone);
        }
        match (least..=most).contains(&count) {
            true => Ok(()),
            false => Err(format!("{count} are counted, and not {least} to {most}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// A series that is made at 10, with measurements of two sources that are acknowledged at 20
    /// and 30.
    fn records() -> Records {
        let mut records = Records::default();
        records.made(at(10));
        for (source, time) in [(0, 19), (1, 29)] {
            let id = records.sent(source, time as i64, at(time));
            records.acknowledged(id, false, at(time + 1));
        }
        records
    }

    fn find(records: &Records, ids: &[i64], began: u64, ended: u64) -> Result<(), String> {
        let seen = |id: &i64| Sighting {
            id: *id,
            source: *id as i32,
            at_ms: None,
        };
        let found: Vec<Sighting> = ids.iter().map(seen).collect();
        records.check_found(&Filter::default(), &found, at(began), at(ended))
    }

    #[test]
    fn what_was_acknowledged_is_there_once() {
        let records = records();
        assert!(find(&records, &[0, 1], 30, 31).is_ok());
        assert!(find(&records, &[1], 30, 31).is_err());
        // The read began before the second one was acknowledged.
        assert!(find(&records, &[0], 29, 31).is_ok());
        assert!(find(&records, &[0, 1, 0], 30, 31).is_err());
        assert!(find(&records, &[0, 1, 2], 30, 31).is_err());
        let count = |count| records.check_count(&Filter::default(), count, at(30), at(31));
        assert!(count(2).is_ok() && count(1).is_err() && count(3).is_err());
    }

    #[test]
    fn filters() {
        let records = records();
        let seen = [Sighting {
            id: 1,
            source: 1,
            at_ms: Some(29),
        }];
        let check = |filter: &Filter| records.check_found(filter, &seen, at(30), at(31)).is_ok();
        assert!(check(&Filter::of_source(1)) && !check(&Filter::of_source(0)));
        let window = |from, before| Filter {
            window: Some((from, before)),
            ..Filter::default()
        };
        assert!(check(&window(20, 30)) && !check(&window(19, 30)) && !check(&window(20, 29)));
        let other = [Sighting {
            at_ms: Some(28),
            ..seen[0]
        }];
        let shown = records.check_found(&window(20, 30), &other, at(30), at(31));
        assert!(shown.is_err_and(|why| why.contains("is shown as")));
    }

    #[test]
    fn what_was_dropped_is_gone() {
        let mut records = records();
        records.drop_began(at(40));
        // Both may be there until the drop has ended.
        assert!(find(&records, &[0], 41, 42).is_ok());
        assert!(find(&records, &[0], 30, 39).is_err());
        records.drop_ended(at(50));
        assert!(find(&records, &[0, 1], 49, 51).is_ok());
        assert!(find(&records, &[], 50, 51).is_ok());
        assert!(find(&records, &[1], 50, 51).is_err());
        // A router may still have had the first one.
        records.measurements[0].is_left_behind = true;
        assert!(find(&records, &[0], 50, 51).is_ok());
    }

    #[test]
    fn deletions() {
        let mut records = records();
        let number = records.deletion_sent(1, at(40));
        assert!(find(&records, &[0], 40, 41).is_ok());
        assert!(find(&records, &[1], 40, 41).is_err());
        records.deletion_acknowledged(number, at(50));
        assert!(find(&records, &[0], 50, 51).is_ok());
        assert!(find(&records, &[0, 1], 50, 51).is_err());
        let id = records.sent(1, 0, at(55));
        records.acknowledged(id, false, at(56));
        let count = |records: &Records, count| {
            records.check_count(&Filter::of_source(1), count, at(60), at(61))
        };
        assert!(count(&records, 1).is_ok() && count(&records, 0).is_err());
        // One of unknown outcome may take it until it is over.
        let number = records.deletion_sent(1, at(52));
        records.deletion_over(number, at(58));
        assert!(count(&records, 0).is_ok() && count(&records, 2).is_err());
    }
}
