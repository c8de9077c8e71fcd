//! When a fail point that is on acts: always, n times, after n times, or now and then.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_wire::idl::{f64_lossy, i64_exact};
use pinion_wire::{Error, ErrorCode, Result};

/// The mode of a fail point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mode {
    #[default]
    Off,
    AlwaysOn,
    /// Acts with this probability.
    Random(f64),
    /// Acts this many times more.
    Times(i32),
    /// Passes over this many first.
    Skip(i32),
}

impl Mode {
    /// Reads `mode` of `configureFailPoint`, with MongoDB's codes and messages.
    pub fn parse(mode: Option<RawBsonRef<'_>>) -> Result<Mode> {
        match mode {
            None => Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                "When setting a failpoint, you must supply a 'mode'",
            )),
            Some(RawBsonRef::String("off")) => Ok(Mode::Off),
            Some(RawBsonRef::String("alwaysOn")) => Ok(Mode::AlwaysOn),
            Some(RawBsonRef::String(other)) => {
                Err(Error::bad_value(format!("unknown mode: {other}")))
            }
            Some(RawBsonRef::Document(mode)) => Mode::parse_object(mode),
            Some(_) => Err(Error::type_mismatch(
                "'mode' must be a string or JSON object",
            )),
        }
    }

    fn parse_object(mode: &RawDocument) -> Result<Mode> {
        if let Some(times) = pinion_bson::get(mode, "times") {
            return Ok(Mode::Times(count_of("times", times)?));
        }
        if let Some(skip) = pinion_bson::get(mode, "skip") {
            return Ok(Mode::Skip(count_of("skip", skip)?));
        }
        match pinion_bson::get(mode, "activationProbability").map(f64_lossy) {
            None => Err(Error::bad_value(
                "'mode' must be one of 'off', 'alwaysOn', 'times', 'skip' or 'activationProbability'",
            )),
            Some(None) => Err(Error::type_mismatch(
                "the 'activationProbability' option to 'mode' must be a double between 0 and 1",
            )),
            Some(Some(probability)) if (0.0..=1.0).contains(&probability) => {
                Ok(Mode::Random(probability))
            }
            Some(Some(probability)) => Err(Error::bad_value(format!(
                "activationProbability must be between 0.0 and 1.0; found {probability}"
            ))),
        }
    }

    /// Whether the fail point acts now; `draw` gives a random number from 0 to below 1.
    pub fn advance(&mut self, draw: impl FnOnce() -> f64) -> bool {
        match self {
            Mode::Off => false,
            Mode::AlwaysOn => true,
            Mode::Random(probability) => draw() < *probability,
            Mode::Times(left) => {
                // One that was set to none acts once, as MongoDB's does.
                *left -= 1;
                if *left <= 0 {
                    *self = Mode::Off;
                }
                true
            }
            Mode::Skip(left) => {
                let passed = *left <= 0;
                *left = (*left - 1).max(0);
                passed
            }
        }
    }

    /// MongoDB's number of the mode.
    pub fn number(self) -> i32 {
        match self {
            Mode::Off => 0,
            Mode::AlwaysOn => 1,
            Mode::Random(_) => 2,
            Mode::Times(_) => 3,
            Mode::Skip(_) => 4,
        }
    }
}

fn count_of(name: &str, value: RawBsonRef<'_>) -> Result<i32> {
    let Some(count) = i64_exact(value) else {
        return Err(Error::type_mismatch(format!(
            "'{name}' option to 'mode' must be a whole number"
        )));
    };
    if count < 0 {
        return Err(Error::bad_value(format!(
            "'{name}' option to 'mode' must be positive"
        )));
    }
    i32::try_from(count)
        .map_err(|_| Error::bad_value(format!("'{name}' option to 'mode' is too large")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawBson, rawbson};

    #[track_caller]
    fn check(mode: Option<RawBson>, expected: std::result::Result<Mode, i32>) {
        let parsed = Mode::parse(mode.as_ref().map(RawBson::as_raw_bson_ref));
        assert_eq!(parsed.map_err(|error| error.code.0), expected, "{mode:?}");
    }

    #[test]
    fn modes() {
        check(None, Err(20));
        check(Some(rawbson!("off")), Ok(Mode::Off));
        check(Some(rawbson!("alwaysOn")), Ok(Mode::AlwaysOn));
        check(Some(rawbson!("on")), Err(2));
        check(Some(rawbson!(1)), Err(14));
        check(Some(rawbson!({ "times": 2 })), Ok(Mode::Times(2)));
        check(Some(rawbson!({ "times": 2.0 })), Ok(Mode::Times(2)));
        check(Some(rawbson!({ "times": -1 })), Err(2));
        check(Some(rawbson!({ "times": 1i64 << 40 })), Err(2));
        check(Some(rawbson!({ "times": "x" })), Err(14));
        check(Some(rawbson!({ "skip": 3 })), Ok(Mode::Skip(3)));
        check(
            Some(rawbson!({ "activationProbability": 0.5 })),
            Ok(Mode::Random(0.5)),
        );
        check(Some(rawbson!({ "activationProbability": 1.5 })), Err(2));
        check(Some(rawbson!({ "activationProbability": "x" })), Err(14));
        check(Some(rawbson!({})), Err(2));
    }

    #[track_caller]
    fn check_acts(mut mode: Mode, expected: [bool; 4]) {
        let shown = mode;
        let acted = [0.1, 0.6, 0.1, 0.6].map(|drawn| mode.advance(|| drawn));
        assert_eq!(acted, expected, "{shown:?}");
    }

    #[test]
    fn when_they_act() {
        check_acts(Mode::Off, [false; 4]);
        check_acts(Mode::AlwaysOn, [true; 4]);
        check_acts(Mode::Times(2), [true, true, false, false]);
        check_acts(Mode::Times(0), [true, false, false, false]);
        check_acts(Mode::Skip(3), [false, false, false, true]);
        check_acts(Mode::Skip(0), [true; 4]);
        check_acts(Mode::Random(0.5), [true, false, true, false]);
        check_acts(Mode::Random(0.0), [false; 4]);
    }
}
