//! Numbers that a core makes: random ones, ObjectIds and timestamps of documents.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_bson::ObjectId;
use pinion_clock::Timestamp;
use pinion_runtime::Rng;

/// What one core makes them of.
pub struct Generators {
    rng: RefCell<Rng>,
    /// Seeds the streams of `$rand`.
    expression_rng: RefCell<Rng>,
    /// The bytes of this core in its ObjectIds.
    process: [u8; 5],
    object_id_counter: Cell<u32>,
    last_timestamp: Cell<Timestamp>,
}

impl Default for Generators {
    fn default() -> Generators {
        let mut rng = pinion_runtime::random_stream("exec");
        let mut process = [0; 5];
        rng.fill_bytes(&mut process);
        Generators {
            process,
            object_id_counter: Cell::new(rng.next_u64() as u32 & 0x00ff_ffff),
            rng: RefCell::new(rng),
            expression_rng: RefCell::new(pinion_runtime::random_stream("expressions")),
            last_timestamp: Cell::new(Timestamp::MIN),
        }
    }
}

fn generators() -> Rc<Generators> {
    pinion_runtime::core_local()
}

/// A random number below `n`.
pub fn jitter(n: u64) -> u64 {
    generators().rng.borrow_mut().below(n)
}

/// The random numbers of one command's expressions.
pub fn random() -> pinion_query::Random {
    pinion_query::Random::seeded(generators().expression_rng.borrow_mut().next_u64())
}

/// Random bytes.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    generators().rng.borrow_mut().fill_bytes(&mut bytes);
    bytes
}

/// A new ObjectId: seconds, bytes of this core, a counter.
///
/// # Panics
/// Before the node is open on this core.
pub fn new_object_id() -> ObjectId {
    let of = generators();
    let secs = (pinion_runtime::wall_ms() / 1000) as u32;
    let count = of.object_id_counter.get();
    of.object_id_counter.set((count + 1) & 0x00ff_ffff);
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&secs.to_be_bytes());
    bytes[4..9].copy_from_slice(&of.process);
    bytes[9..].copy_from_slice(&count.to_be_bytes()[1..]);
    ObjectId::from_bytes(bytes)
}

/// A timestamp for a field that asks for the present time; each call gives a later one.
pub fn next_timestamp() -> Timestamp {
    next_timestamps(1)
}

/// As many, one after the other: the first of them.
pub fn next_timestamps(count: usize) -> Timestamp {
    let of = generators();
    let now = Timestamp::new((pinion_runtime::wall_ms() / 1000) as u32, 1);
    let first = now.max(of.last_timestamp.get().next());
    if count > 0 {
        let last = Timestamp::from_u64(first.as_u64() + count as u64 - 1);
        of.last_timestamp.set(last);
    }
    first
}
