//! What a document may be: everything that was written since it was last known to be on the disk.

/// A document's state: the version that was written, or that it was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub version: u64,
    pub present: bool,
}

impl State {
    /// What a reader finds.
    fn found(self) -> Option<u64> {
        self.present.then_some(self.version)
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGKILL: what was acknowledged without being journaled may be lost.
    Killed,
    /// SIGTERM: nothing that was acknowledged may be lost.
    Asked,
}

/// What is known of one key. Only one worker ever writes it, and one write at a time.
#[derive(Clone, Debug)]
pub struct Key {
    /// On the disk for certain.
    durable: State,
    /// Acknowledged after that without being journaled, in this order.
    later: Vec<State>,
    /// Sent, with an unknown outcome.
    unknown: Option<State>,
    /// Versions are never given twice, so that what was lost cannot come back as something else.
    newest: u64,
}

impl Key {
    pub fn absent() -> Self {
        Self {
            durable: State {
                version: 0,
                present: false,
            },
            later: Vec::new(),
            unknown: None,
            newest: 0,
        }
    }

    /// What a reader must find now.
    pub fn now(&self) -> State {
        self.later.last().copied().unwrap_or(self.durable)
    }

    /// A write is sent; it makes this state.
    pub fn send(&mut self, present: bool) -> State {
        assert!(self.unknown.is_none(), "one write at a time");
        self.newest += 1;
        let state = State {
            version: self.newest,
            present,
        };
        self.unknown = Some(state);
        state
    }

    /// The write that was sent is acknowledged.
    pub fn acknowledged(&mut self) {
        let state = self.unknown.take().expect("a write was sent");
        self.later.push(state);
    }

    /// Everything that was acknowledged is on the disk.
    pub fn journaled(&mut self) {
        if let Some(last) = self.later.pop() {
            self.durable = last;
            self.later.clear();
        }
    }

    /// Takes what is found behind a restart, if that may be; otherwise says what would be right.
    pub fn settle(&mut self, found: Option<u64>, end: End) -> Result<(), String> {
        let mut allowed = match end {
            End::Killed => {
                let mut all = vec![self.durable];
                all.extend(&self.later);
                all
            }
            End::Asked => vec![self.now()],
        };
        allowed.extend(self.unknown);
        // The newest of equals: a deleted document does not show which of several deletions it was.
        match allowed.iter().rev().find(|state| state.found() == found) {
            Some(state) => {
                self.durable = *state;
                self.later.clear();
                self.unknown = None;
                Ok(())
            }
            None => Err(format!(
                "{} was found after {}, and {} must be",
                shown(found),
                match end {
                    End::Killed => "a kill",
                    End::Asked => "an orderly end",
                },
                allowed
                    .iter()
                    .map(|state| shown(state.found()))
                    .collect::<Vec<_>>()
                    .join(" or ")
            )),
        }
    }
}

pub fn shown(found: Option<u64>) -> String {
    found.map_or("nothing".into(), |version| format!("version {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key with version 1 journaled, 2 and a deletion acknowledged, and 4 in flight.
    fn key() -> Key {
        let mut key = Key::absent();
        for present in [true, true, false] {
            key.send(present);
            key.acknowledged();
            if key.newest == 1 {
                key.journaled();
            }
        }
        key.send(true);
        key
    }

    fn check(end: End, found: Option<u64>, right: bool) {
        assert_eq!(key().settle(found, end).is_ok(), right, "{end:?} {found:?}");
    }

    #[test]
    fn a_kill_may_lose_what_was_not_journaled_and_nothing_else() {
        for found in [Some(1), Some(2), None, Some(4)] {
            check(End::Killed, found, true);
        }
        check(End::Killed, Some(3), false);
        check(End::Killed, Some(5), false);
        let mut journaled = Key::absent();
        journaled.send(true);
        journaled.acknowledged();
        journaled.journaled();
        let why = journaled.settle(None, End::Killed).unwrap_err();
        assert_eq!(why, "nothing was found after a kill, and version 1 must be");
    }

    #[test]
    fn an_orderly_end_loses_nothing() {
        check(End::Asked, None, true);
        check(End::Asked, Some(4), true);
        check(End::Asked, Some(2), false);
        check(End::Asked, Some(1), false);
    }

    #[test]
    fn what_was_found_is_what_counts_from_then_on() {
        let mut key = key();
        key.settle(Some(2), End::Killed).unwrap();
        assert_eq!(key.now().version, 2);
        assert!(key.settle(Some(1), End::Killed).is_err());
        assert!(key.clone().settle(Some(4), End::Killed).is_err());
        // The next version is one that was never sent.
        assert_eq!(key.send(true).version, 5);
    }
}
