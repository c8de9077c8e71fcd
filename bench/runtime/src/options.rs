//! Command-line options.

use std::path::PathBuf;
use std::time::Duration;

/// What to measure and for how long.
pub struct Options {
    pub seconds: f64,
    pub rounds: usize,
    /// Microseconds for which the runtime spins before it sleeps; zero for comparing CPU time.
    pub spin_us: u64,
    pub directory: PathBuf,
    pub connections: Vec<usize>,
}

const USAGE: &str = "usage: pinion-bench-runtime echo|idle|mesh|files|commit|all \
    [--seconds S] [--rounds N] [--spin-us U] [--dir D] [--connections A,B,..]";

impl Options {
    /// The command and its options.
    pub fn parse(arguments: &[String]) -> Result<(String, Options), String> {
        let mut options = Options {
            seconds: 1.5,
            rounds: 3,
            spin_us: 0,
            directory: std::env::temp_dir(),
            connections: vec![1, 16, 64, 256, 1024],
        };
        let (command, mut rest) = arguments.split_first().ok_or(USAGE)?;
        if !["echo", "idle", "mesh", "files", "commit", "all"].contains(&command.as_str()) {
            return Err(USAGE.to_owned());
        }
        while let Some((name, tail)) = rest.split_first() {
            let (value, tail) = tail
                .split_first()
                .ok_or_else(|| format!("{name} needs a value"))?;
            let wrong = |_| format!("{name} {value} is not a number");
            match name.as_str() {
                "--seconds" => {
                    options.seconds = value
                        .parse()
                        .map_err(|_| format!("{value} is not a number"))?
                }
                "--rounds" => options.rounds = value.parse().map_err(wrong)?,
                "--spin-us" => options.spin_us = value.parse().map_err(wrong)?,
                "--dir" => options.directory = PathBuf::from(value),
                "--connections" => {
                    options.connections = value
                        .split(',')
                        .map(|n| n.parse().map_err(wrong))
                        .collect::<Result<_, _>>()?;
                }
                _ => return Err(USAGE.to_owned()),
            }
            rest = tail;
        }
        Ok((command.clone(), options))
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// The median of some measurements.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
