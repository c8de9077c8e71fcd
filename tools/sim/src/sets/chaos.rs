//! What happens to the members of a set, drawn from the seed.

use pinion_bson::rawdoc;
use pinion_runtime::sim::{Death, DiskFaults, LinkFaults, NodeId, SimHandle};
use pinion_runtime::{Duration, Rng};

/// Events of a member at which crashes are placed, with how many occurrences may pass before.
const CRASH_EVENTS: &[(&str, u64)] = &[
    ("flush", 60),
    ("flush", 10),
    ("entries logged", 30),
    ("entries logged", 5),
    ("vote stored", 2),
    ("configuration stored", 1),
    ("elected", 1),
    ("writes stopped", 1),
    ("drained", 1),
    ("term begun", 1),
    ("stepped down", 1),
    ("checkpoint begin", 2),
    ("checkpoint end", 2),
    ("superblock", 4),
    ("ddl", 2),
    ("recovery end", 1),
    ("rollback begin", 1),
    ("rolled back", 1),
];
/// A crash is placed at most so long behind its event.
const MAX_CRASH_DELAY_US: u64 = 20_000;
/// How long a member is down.
const MAX_DOWN_MS: u64 = 12_000;
/// How far a wall clock jumps, either way: mostly a little, now and then far.
const CLOCK_JUMPS_SECS: [i64; 4] = [1, 5, 60, 3_600];

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Happening {
    /// Members die at once, or at an event, and come back after a while.
    Crash {
        members: Vec<usize>,
        at_event: Option<(&'static str, u64, Duration)>,
        death: Death,
    },
    /// A member ends in order and comes back.
    Shutdown(usize),
    /// Nothing passes between two groups; `one_way` only to the first.
    Cut {
        apart: Vec<usize>,
        one_way: bool,
    },
    /// What goes from and to a member is slow, and gets lost now and then.
    SlowLinks(usize),
    Clog {
        from: usize,
        to: usize,
        lasts: Duration,
    },
    ClockJump(usize, i64),
    SlowDisk(usize),
    StepDown {
        member: usize,
        force: bool,
    },
    StepUp(usize),
    /// A primary is cut off from all others while its clients ask for no majority: what they write
    /// is rolled back.
    Strand(usize),
    /// The primary dies, and the whole set loses power when the next one has just been elected.
    TornElection(usize),
    /// All lose power at once, those that follow on slow disks, and the primary comes back last.
    Blackout(usize),
    /// Another primary is elected, and its voters forget what was not on their disks.
    ForgottenVotes(usize),
    /// What a primary wrote alone gets to the others when it is elected a second time, and somebody
    /// else takes it back.
    CommitOverTerms(usize),
    /// A member is added, or the configuration is changed otherwise.
    Reconfig,
    /// A member is removed from the set, loses its disk, and comes back.
    Replace(usize),
}

impl Happening {
    /// Draws one of those that leaders die of, most of them right after they wrote or were elected.
    pub fn draw_of_leaders(rng: &mut Rng, primary: usize) -> Happening {
        match rng.below(8) {
            0 | 1 => Happening::Strand(primary),
            2 => Happening::TornElection(primary),
            3 => Happening::Blackout(primary),
            4 => Happening::ForgottenVotes(primary),
            _ => Happening::CommitOverTerms(primary),
        }
    }

    /// Draws one. `primary` is the member that is thought to be it: half of all things happen to
    /// it.
    pub fn draw(rng: &mut Rng, members: usize, primary: usize) -> Happening {
        let member = match rng.chance(0.5) {
            true => primary,
            false => rng.below(members as u64) as usize,
        };
        match rng.below(24) {
            0..4 => Happening::draw_crash(rng, members, member),
            4 => Happening::Shutdown(member),
            5..8 => {
                let mut apart = vec![member];
                let more = rng.below(members as u64 / 2 + 1) as usize;
                apart.extend((0..members).filter(|other| *other != member).take(more));
                Happening::Cut {
                    apart,
                    one_way: rng.chance(0.4),
                }
            }
            8 => Happening::SlowLinks(member),
            9 => Happening::Clog {
                from: member,
                to: (member + 1 + rng.below(members as u64 - 1) as usize) % members,
                lasts: Duration::from_millis(rng.between(100, 15_000)),
            },
            10 => {
                let secs = CLOCK_JUMPS_SECS[rng.below(4) as usize];
                let back = if rng.chance(0.5) { -1 } else { 1 };
                Happening::ClockJump(member, back * secs)
            }
            11 => Happening::SlowDisk(member),
            12 => Happening::StepDown {
                member: primary,
                force: rng.chance(0.4),
            },
            13 => Happening::StepUp(member),
            14 | 15 => Happening::Strand(primary),
            16 => Happening::TornElection(primary),
            17 | 18 => Happening::Reconfig,
            19 | 20 => Happening::Blackout(primary),
            21 => Happening::ForgottenVotes(primary),
            22 => Happening::CommitOverTerms(primary),
            _ => {
                Happening::Replace((primary + 1 + rng.below(members as u64 - 1) as usize) % members)
            }
        }
    }

    /// Draws one that needs nothing but the members of a set, which may be a single one.
    pub fn draw_within(rng: &mut Rng, members: usize, primary: usize) -> Happening {
        loop {
            let drawn = match members {
                1 => Happening::draw_alone(rng),
                _ => Happening::draw(rng, members, primary),
            };
            if !drawn.is_scene() {
                return drawn;
            }
        }
    }

    /// Draws one of those that can happen to a set of one member.
    fn draw_alone(rng: &mut Rng) -> Happening {
        match rng.below(6) {
            0 | 1 => Happening::draw_crash(rng, 1, 0),
            2 => Happening::Shutdown(0),
            3 => Happening::ClockJump(0, CLOCK_JUMPS_SECS[rng.below(3) as usize]),
            4 => Happening::SlowDisk(0),
            _ => Happening::StepDown {
                member: 0,
                force: true,
            },
        }
    }

    /// Whether it takes more than what is done to single members.
    fn is_scene(&self) -> bool {
        matches!(
            self,
            Happening::Strand(_)
                | Happening::TornElection(_)
                | Happening::Blackout(_)
                | Happening::ForgottenVotes(_)
                | Happening::CommitOverTerms(_)
                | Happening::Reconfig
                | Happening::Replace(_)
        )
    }

    fn draw_crash(rng: &mut Rng, members: usize, member: usize) -> Happening {
        let all = rng.chance(0.15);
        let at_event = rng.chance(0.6).then(|| {
            let (event, most) = CRASH_EVENTS[rng.below(CRASH_EVENTS.len() as u64) as usize];
            let most_delay = [0, 0, 50, MAX_CRASH_DELAY_US][rng.below(4) as usize];
            let after = Duration::from_micros(rng.below(most_delay + 1));
            (event, rng.between(1, most), after)
        });
        Happening::Crash {
            members: match all {
                true => (0..members).collect(),
                false => vec![member],
            },
            at_event,
            death: match rng.chance(0.8) {
                true => Death::PowerCut,
                false => Death::Kill,
            },
        }
    }

    /// What the totals call it.
    pub fn name(&self) -> &'static str {
        match self {
            Happening::Crash { .. } => "crashes ordered",
            Happening::Shutdown(_) => "shutdowns ordered",
            Happening::Cut { one_way: true, .. } => "links cut one way",
            Happening::Cut { .. } => "links cut",
            Happening::SlowLinks(_) => "links slowed",
            Happening::Clog { .. } => "links clogged",
            Happening::ClockJump(..) => "clocks jumped",
            Happening::SlowDisk(_) => "disks slowed",
            Happening::StepDown { .. } => "step-downs ordered",
            Happening::StepUp(_) => "step-ups ordered",
            Happening::Strand(_) => "primaries stranded",
            Happening::TornElection(_) => "torn elections ordered",
            Happening::Blackout(_) => "blackouts",
            Happening::ForgottenVotes(_) => "elections with forgotten votes",
            Happening::CommitOverTerms(_) => "elections over terms",
            Happening::Reconfig => "reconfigurations ordered",
            Happening::Replace(_) => "replacements ordered",
        }
    }
}

/// How long a member that is down stays so.
pub fn down_time(rng: &mut Rng) -> Duration {
    let most = [50, 1_500, MAX_DOWN_MS][rng.below(3) as usize];
    Duration::from_millis(rng.below(most + 1))
}

/// Does to the network and the disks of members what `happening` says; crashes and commands are the
/// run's.
pub fn disturb(sim: &SimHandle, nodes: &[NodeId], happening: &Happening, rng: &mut Rng) {
    let others = |member: usize| {
        let nodes = nodes.iter().enumerate();
        nodes
            .filter(move |(at, _)| *at != member)
            .map(|(_, node)| *node)
    };
    match happening {
        Happening::Cut { apart, one_way } => {
            let rest = (0..nodes.len()).filter(|member| !apart.contains(member));
            for other in rest {
                for member in apart {
                    sim.cut(nodes[other], nodes[*member]);
                    if !one_way {
                        sim.cut(nodes[*member], nodes[other]);
                    }
                }
            }
        }
        Happening::SlowLinks(member) => {
            let faults = LinkFaults {
                delay: Duration::from_millis(rng.between(5, 800)),
                loss: [0.0, 0.05][rng.below(2) as usize],
                reset: [0.0, 0.005][rng.below(2) as usize],
                cut: false,
            };
            for other in others(*member) {
                sim.set_links(nodes[*member], other, faults.clone());
            }
        }
        Happening::Clog { from, to, lasts } => sim.clog(nodes[*from], nodes[*to], *lasts),
        Happening::ClockJump(member, secs) => {
            sim.shift_wall_clock(nodes[*member], secs * 1_000_000)
        }
        Happening::SlowDisk(member) => {
            let slowness = rng.between(2, 100);
            let faults = DiskFaults {
                slowness,
                ..DiskFaults::default()
            };
            sim.set_disk_faults(nodes[*member], faults);
        }
        Happening::Crash { .. }
        | Happening::Shutdown(_)
        | Happening::StepDown { .. }
        | Happening::StepUp(_)
        | Happening::Strand(_)
        | Happening::TornElection(_)
        | Happening::Blackout(_)
        | Happening::ForgottenVotes(_)
        | Happening::CommitOverTerms(_)
        | Happening::Reconfig
        | Happening::Replace(_) => {}
    }
}

/// Has the members of a crash die, at once or at its event.
pub fn crash(sim: &SimHandle, nodes: &[NodeId], happening: &Happening) {
    let Happening::Crash {
        members,
        at_event,
        death,
    } = happening
    else {
        return;
    };
    for member in members {
        let node = nodes[*member];
        match at_event {
            Some((event, nth, after)) => sim.crash_after(node, event, *nth, *after, *death),
            None => sim.crash(node, *death),
        }
    }
}

/// The command that makes a member step down or up.
pub fn command(
    happening: &Happening,
    rng: &mut Rng,
) -> Option<(usize, pinion_bson::RawDocumentBuf)> {
    match happening {
        Happening::StepDown { member, force } => {
            let secs = rng.between(2, 10) as i32;
            let catch_up = rng.below(secs as u64) as i32;
            let command = rawdoc! { "replSetStepDown": secs, "secondaryCatchUpPeriodSecs": catch_up, "force": *force, "$db": "admin" };
            Some((*member, command))
        }
        Happening::StepUp(member) => {
            let command = rawdoc! { "replSetStepUp": 1_i32, "$db": "admin" };
            Some((*member, command))
        }
        _ => None,
    }
}
