//! The trace: a running hash over every decision, message and completion of a simulation.

use std::cell::Cell;

/// What a trace step was; part of the hash.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Step {
    Poll = 1,
    Timer,
    Pause,
    Mesh,
    Start,
    Death,
    DiskRead,
    DiskWrite,
    DiskSync,
    DiskName,
    DiskFault,
    DiskCrash,
    Connect,
    Segment,
    ConnectionEnd,
    LinkFault,
    Mark,
}

pub(super) struct Trace {
    hash: Cell<u64>,
    steps: Cell<u64>,
    print: bool,
}

impl Trace {
    pub(super) fn new(seed: u64, print: bool) -> Trace {
        Trace {
            hash: Cell::new(mix(0x5eed, seed)),
            steps: Cell::new(0),
            print,
        }
    }

    pub(super) fn add(&self, now: u64, step: Step, a: u64, b: u64) {
        let hash = mix(mix(mix(self.hash.get(), now ^ ((step as u64) << 56)), a), b);
        self.hash.set(hash);
        self.steps.set(self.steps.get() + 1);
        if self.print {
            eprintln!(
                "{} {now} {step:?} {a:x} {b:x} -> {hash:016x}",
                self.steps.get()
            );
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash.get()
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.get()
    }
}

fn mix(hash: u64, value: u64) -> u64 {
    let product =
        u128::from(hash ^ value ^ 0x2d35_8dcc_aa6c_78a5) * u128::from(0x8bb8_4b93_962e_acc9_u64);
    ((product >> 64) as u64) ^ (product as u64).rotate_left(17)
}

/// Hash of a message's or a transfer's bytes. Of long ones only both ends and every 512th byte
/// count.
pub(super) fn content_hash(bytes: &[u8]) -> u64 {
    const WHOLE: usize = 8192;
    if bytes.len() <= WHOLE {
        return hash_words(bytes.len() as u64, bytes);
    }
    let ends = hash_words(
        hash_words(bytes.len() as u64, &bytes[..1024]),
        &bytes[bytes.len() - 1024..],
    );
    bytes
        .iter()
        .step_by(512)
        .fold(ends, |hash, byte| mix(hash, u64::from(*byte)))
}

fn hash_words(start: u64, bytes: &[u8]) -> u64 {
    let chunks = bytes.chunks_exact(8);
    let rest = chunks.remainder();
    let mut hash = start;
    for chunk in chunks {
        hash = mix(
            hash,
            u64::from_le_bytes(chunk.try_into().expect("chunks of eight bytes")),
        );
    }
    rest.iter()
        .fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}
