//! Lines of the log on their way to getLog, whose memory belongs to the cores.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Threads that are no core log too.

use std::collections::VecDeque;
use std::sync::Mutex;

/// Lines kept for getLog until a core takes them.
const EARLY_LINES: usize = 256;

/// getLog's memory belongs to the cores. Lines of threads that are no core (before the cores run,
/// the watchdog) wait here for the next line of a core.
#[derive(Default)]
pub struct Early(Mutex<EarlyLines>);

#[derive(Default)]
struct EarlyLines {
    waiting: VecDeque<String>,
    startup_warnings: Vec<String>,
}

impl Early {
    /// A line that was logged.
    pub fn line(&self, line: &str, is_startup_warning: bool) {
        let Ok(mut early) = self.0.lock() else {
            return;
        };
        if is_startup_warning {
            early.startup_warnings.push(line.to_owned());
        }
        if !pinion_runtime::is_core() {
            if early.waiting.len() == EARLY_LINES {
                early.waiting.pop_front();
            }
            early.waiting.push_back(line.to_owned());
            return;
        }
        let waiting = std::mem::take(&mut early.waiting);
        drop(early);
        for line in &waiting {
            pinion_service::logbuf::push(line);
        }
        pinion_service::logbuf::push(line);
    }

    /// The warnings of the start, so far.
    pub fn startup_warnings(&self) -> Vec<String> {
        self.0
            .lock()
            .map(|early| early.startup_warnings.clone())
            .unwrap_or_default()
    }
}
