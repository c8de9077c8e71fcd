//! The ramp to the knee: the highest open-loop rate at which a stated p99 holds.

use std::sync::Arc;
use std::time::Duration;

use super::drive::{Drive, Measured};
use crate::options::Settings;
use crate::protocol::{Protocol, Session};

/// Rates are distinguished no finer than this share.
const PRECISION: f64 = 0.05;
/// The steps of a search; each lasts as long as `--duration` says.
const MAX_STEPS: usize = 24;
/// How much a rate grows while the p99 holds.
const GROWTH: f64 = 1.25;

/// One rate that was tried.
pub struct Step {
    pub rate: f64,
    pub per_sec: f64,
    pub p99: Duration,
    pub holds: bool,
    /// Why not, where it is not the p99 alone.
    pub invalid: Vec<String>,
}

/// The search itself: `holds` tries a rate. Gives the highest that held, if any did.
pub fn search(
    start: f64,
    mut holds: impl FnMut(f64) -> Result<bool, String>,
) -> Result<Option<f64>, String> {
    let (mut held, mut failed): (Option<f64>, Option<f64>) = (None, None);
    let mut rate = start;
    for _ in 0..MAX_STEPS {
        if holds(rate)? {
            held = Some(rate);
        } else {
            failed = Some(rate);
        }
        rate = match (held, failed) {
            (Some(held), Some(failed)) if failed - held <= failed * PRECISION => break,
            (Some(held), Some(failed)) => (held + failed) / 2.0,
            (Some(held), None) => held * GROWTH,
            (None, _) => rate / 2.0,
        };
        if rate < 1.0 {
            break;
        }
    }
    Ok(held)
}

/// Finds the knee. The measurement of the highest rate that held comes back, with all steps.
pub fn run<P: Protocol>(
    settings: &Settings,
    session: &Arc<Session>,
    limit: Duration,
) -> Result<(Measured, Vec<Step>), String> {
    let first = Drive {
        settings,
        session,
        target: None,
        label: "closed loop",
        step: 0,
    }
    .run::<P>()?;
    if let Some(why) = first.invalid(settings).first() {
        return Err(format!(
            "the closed loop before the ramp is not valid: {why}"
        ));
    }
    let mut steps = Vec::new();
    let mut best: Option<Measured> = None;
    // A closed loop's rate is about the most that can be; the search begins below it.
    search(first.per_sec() * 0.8, |rate| {
        let label = format!("{rate:.0}/s");
        let measured = Drive {
            settings,
            session,
            target: Some(rate),
            label: &label,
            step: steps.len() as u64 + 1,
        }
        .run::<P>()?;
        let invalid = measured.invalid(settings);
        let p99 = Duration::from_nanos(measured.total.all().value_at_quantile(0.99));
        let holds = invalid.is_empty() && p99 <= limit;
        steps.push(Step {
            rate,
            per_sec: measured.per_sec(),
            p99,
            holds,
            invalid,
        });
        if holds && best.as_ref().is_none_or(|best| best.target < Some(rate)) {
            best = Some(measured);
        }
        Ok(holds)
    })?;
    match best {
        Some(best) => Ok((best, steps)),
        None => Err(format!(
            "no rate held a p99 of {:.3} ms: {}",
            limit.as_secs_f64() * 1e3,
            steps.last().map_or(String::new(), |step| format!(
                "{:.0}/s had {:.3} ms {}",
                step.rate,
                step.p99.as_secs_f64() * 1e3,
                step.invalid.join("; ")
            ))
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::search;

    fn check(start: f64, knee: f64) {
        let mut tried = Vec::new();
        let found = search(start, |rate| {
            tried.push(rate);
            Ok(rate <= knee)
        });
        let found = found.unwrap().unwrap();
        assert!(
            found <= knee && found >= knee * 0.94,
            "{found} of {knee} after {tried:?}"
        );
        assert!(tried.len() <= 20, "{tried:?}");
    }

    #[test]
    fn the_knee_is_found_from_above_and_below() {
        check(1000.0, 990.0);
        check(1000.0, 1000.0);
        check(1000.0, 120.0);
        check(1000.0, 5000.0);
        assert_eq!(search(1000.0, |_| Ok(false)), Ok(None));
    }
}
