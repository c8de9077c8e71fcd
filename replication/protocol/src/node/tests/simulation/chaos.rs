//! What goes wrong: members crash and are cut off, messages are lost, operators interfere.

use super::super::config::host;
use super::world::{CHAOS_MS, ELECTION_TIMEOUT_MS, Event, Origin, World, name};
use crate::message::StepDown;
use crate::node::{Command, Input};

type Outcome = Result<(), String>;

impl World {
    pub(super) fn interfere(&mut self) -> Outcome {
        if self.now.ms >= CHAOS_MS {
            return Ok(());
        }
        let after_ms = 50 + self.random.below(ELECTION_TIMEOUT_MS as u64);
        self.at(0, 0, after_ms, Event::Chaos);
        let at = self.random.below(self.members.len() as u64) as usize;
        match self.random.below(14) {
            0 | 1 => self.crash(at, 2 * ELECTION_TIMEOUT_MS as u64),
            2 => self.cut_off(at),
            3 => self.cut_one_way(at),
            4 => self.cut.clear(),
            5 => self.loss_percent = self.random.below(3) * 10,
            6 => return self.crash_primary(),
            7 => return self.operate(at),
            8..=10 => return self.reconfigure(),
            11 => self.rival(at),
            12 => {
                let ms = self.random.below(2 * ELECTION_TIMEOUT_MS as u64);
                self.freeze(at, ms);
            }
            _ => return self.copy_again(at),
        }
        Ok(())
    }

    /// A member loses what it did not store, and starts again within this time.
    pub(super) fn crash(&mut self, at: usize, within_ms: u64) {
        if self.members[at].life.take().is_some() {
            self.account.crashes += 1;
            let after_ms = 1 + self.random.below(within_ms);
            self.at(at, 0, after_ms, Event::Start);
        }
    }

    /// A member does nothing for a while, and then what it missed.
    pub(super) fn freeze(&mut self, at: usize, for_ms: u64) {
        self.account.freezes += 1;
        let until = self.now.ms + for_ms;
        let frozen = &mut self.members[at].frozen_until_ms;
        *frozen = until.max(*frozen);
    }

    pub(super) fn primary(&self) -> Option<usize> {
        self.members.iter().position(|member| {
            let life = member.life.as_ref();
            life.is_some_and(|life| life.node.is_writable_primary())
        })
    }

    fn crash_primary(&mut self) -> Outcome {
        if let Some(at) = self.primary() {
            self.crash(at, 2 * ELECTION_TIMEOUT_MS as u64);
        }
        Ok(())
    }

    pub(super) fn cut_off(&mut self, at: usize) {
        for other in 0..self.members.len() {
            self.cut.insert((at, other));
            self.cut.insert((other, at));
        }
    }

    fn cut_one_way(&mut self, at: usize) {
        let other = self.random.below(self.members.len() as u64) as usize;
        self.cut.insert((at, other));
    }

    /// Two members that do not hear of each other stand for election in one term.
    fn rival(&mut self, at: usize) {
        let other = self.random.below(self.members.len() as u64) as usize;
        self.cut.insert((at, other));
        self.cut.insert((other, at));
        for member in [at, other] {
            let stand = Command::StepUp { skip_dry_run: true };
            self.soon(member, 60, Event::Operator(stand));
        }
    }

    fn operate(&mut self, at: usize) -> Outcome {
        if self.members[at].life.is_none() {
            return Ok(());
        }
        let command = match self.random.below(5) {
            0 => Command::StepUp { skip_dry_run: true },
            1 => Command::StepUp {
                skip_dry_run: false,
            },
            2 => Command::Freeze { secs: 1 },
            3 => Command::AbortPrimaryCatchUp,
            _ => Command::StepDown(StepDown {
                force: self.random.below(2) == 0,
                period_secs: 2,
                catch_up_secs: 1,
            }),
        };
        self.command(at, command, Origin::Operator)
    }

    /// The primary gets a configuration with another priority, another vote, or a member more or
    /// less.
    fn reconfigure(&mut self) -> Outcome {
        let Some(at) = self.primary() else {
            return Ok(());
        };
        let life = self.members[at].life.as_ref().expect("it lives");
        let mut config = life.node.config().expect("it is a member").clone();
        let me = life.node.self_index().expect("it is a member");
        config.version += 1;
        let other = self.random.below(config.members.len() as u64) as usize;
        let mut hosts = (0..self.members.len()).map(|at| host(&name(at)));
        let missing = hosts.find(|host| config.member_of(host).is_none());
        let own_id = config.members[me].id;
        let member = &mut config.members[other];
        match (self.random.below(4), missing) {
            (0 | 3, Some(missing)) => {
                let mut added = member.clone();
                let ids = config.members.iter().map(|member| member.id);
                added.id = ids.max().unwrap_or(0) + 1;
                added.host = missing;
                config.members.push(added);
            }
            (1, _) if other != me => drop(config.members.remove(other)),
            (2, _) if other != me && !member.arbiter_only => {
                member.votes = 1 - member.votes;
                member.priority = member.votes as f64;
            }
            _ if !member.arbiter_only && member.votes > 0 => {
                member.priority = 1.0 + self.random.below(3) as f64;
            }
            _ => return Ok(()),
        }
        let self_index = config.members.iter().position(|member| member.id == own_id);
        let self_index = self_index.expect("the primary stays");
        let command = Command::Reconfig {
            config,
            self_index: Ok(self_index),
            force: false,
        };
        self.command(at, command, Origin::Operator)
    }

    /// A member without a vote loses its data: those of one that has a vote are what a majority
    /// relies on.
    fn copy_again(&mut self, at: usize) -> Outcome {
        let Some(life) = &self.members[at].life else {
            return Ok(());
        };
        let node = &life.node;
        let me = node
            .self_index()
            .and_then(|me| node.config()?.members.get(me));
        let has_vote = me.is_none_or(|me| me.is_voter());
        if has_vote || node.is_writable_primary() {
            return Ok(());
        }
        self.step(at, Input::SyncNeeded)
    }
}
