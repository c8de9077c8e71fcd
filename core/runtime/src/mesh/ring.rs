//! A lock-free ring from one core to another: one sender, one receiver, bounded.
//!
//! The sender owns `tail`, the receiver owns `head`; each keeps a copy of the other's index and
//! rereads it only when the copy says "full" or "empty", so that a busy ring moves one cache line
//! for a batch of messages, not for each.
//!
//! When a push is refused the sender sets `space_wanted` and tries once more; the receiver looks at
//! the flag after each batch. A sequentially consistent fence on both sides excludes that each
//! misses the other.
//!
//! Model check:
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p pinion-runtime --lib mesh::`.

use super::primitives::{Arc, AtomicBool, AtomicUsize, Ordering, SlotCell, fence};

/// Keeps what the two sides write on separate cache lines (two, because processors fetch lines in
/// pairs).
#[repr(align(128))]
struct Padded<T>(T);

struct Shared<T> {
    slots: Box<[SlotCell<Option<T>>]>,
    /// Messages received since the start; wraps.
    head: Padded<AtomicUsize>,
    /// Messages sent since the start; wraps.
    tail: Padded<AtomicUsize>,
    /// The sender was refused and waits for room.
    space_wanted: Padded<AtomicBool>,
}

// SAFETY: a slot is touched only by the side whose index range it lies in: by the sender while it
// is in `tail..head + capacity`, by the receiver while it is in `head..tail`. Ownership passes with
// the release store of an index and the acquire load by the other side. There is one sender and one
// receiver, because neither type is Clone and both operations take `&mut self`. Values cross
// threads, so they must be Send.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

/// The sending end.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    /// `head` as last read.
    known_head: usize,
}

/// The receiving end.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// `tail` as last read.
    known_tail: usize,
}

/// A ring with room for `capacity` messages.
///
/// # Panics
/// When `capacity` is not a power of two.
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(
        capacity.is_power_of_two(),
        "a ring's capacity must be a power of two"
    );
    let shared = Arc::new(Shared {
        slots: (0..capacity).map(|_| SlotCell::new(None)).collect(),
        head: Padded(AtomicUsize::new(0)),
        tail: Padded(AtomicUsize::new(0)),
        space_wanted: Padded(AtomicBool::new(false)),
    });
    let sender = Sender {
        shared: Arc::clone(&shared),
        tail: 0,
        known_head: 0,
    };
    (
        sender,
        Receiver {
            shared,
            head: 0,
            known_tail: 0,
        },
    )
}

impl<T: Send> Sender<T> {
    /// Sends, or gives the message back when the ring is full.
    pub fn try_send(&mut self, message: T) -> Result<(), T> {
        let capacity = self.shared.slots.len();
        if self.tail.wrapping_sub(self.known_head) == capacity {
            self.known_head = self.shared.head.0.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.known_head) == capacity {
                return Err(message);
            }
        }
        assert!(self.tail.wrapping_sub(self.known_head) < capacity);
        self.shared.slots[self.tail & (capacity - 1)].with_mut(|slot| {
            // SAFETY: the slot is in `tail..head + capacity`, so it is the sender's alone until
            // `tail` is published.
            unsafe { *slot = Some(message) };
        });
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Asks for a notification when there is room. True when there is some already; then none
    /// comes.
    pub fn want_space(&mut self) -> bool {
        self.shared.space_wanted.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.known_head = self.shared.head.0.load(Ordering::Acquire);
        if self.tail.wrapping_sub(self.known_head) == self.shared.slots.len() {
            return false;
        }
        self.shared.space_wanted.0.store(false, Ordering::Relaxed);
        true
    }
}

impl<T: Send> Receiver<T> {
    /// The next message, if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        if self.head == self.known_tail {
            self.known_tail = self.shared.tail.0.load(Ordering::Acquire);
            if self.head == self.known_tail {
                return None;
            }
        }
        let capacity = self.shared.slots.len();
        let message = self.shared.slots[self.head & (capacity - 1)].with_mut(|slot| {
            // SAFETY: the slot is in `head..tail`, so it is the receiver's alone until `head` is
            // published.
            unsafe { (*slot).take() }
        });
        self.head = self.head.wrapping_add(1);
        self.shared.head.0.store(self.head, Ordering::Release);
        Some(message.expect("a published slot holds a message"))
    }

    /// True when no message waits.
    pub fn is_empty(&self) -> bool {
        self.head == self.shared.tail.0.load(Ordering::Acquire)
    }

    /// True when the sender was refused and must be notified that there is room. Called after a
    /// batch was received.
    pub fn take_space_wanted(&mut self) -> bool {
        fence(Ordering::SeqCst);
        // The plain load keeps the common case free of a locked instruction.
        self.shared.space_wanted.0.load(Ordering::Relaxed)
            && self.shared.space_wanted.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_order_across_threads() {
        const MESSAGES: u64 = 20_000;
        let (mut sender, mut receiver) = channel::<u64>(8);
        #[allow(
            clippy::disallowed_methods,
            reason = "the ring exists to cross threads"
        )]
        let sending = std::thread::spawn(move || {
            for n in 0..MESSAGES {
                let mut message = n;
                while let Err(refused) = sender.try_send(message) {
                    message = refused;
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < MESSAGES {
            match receiver.try_recv() {
                Some(n) => {
                    assert_eq!(n, expected);
                    expected += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        sending.join().unwrap();
        assert!(receiver.try_recv().is_none() && receiver.is_empty());
    }

    #[test]
    fn a_full_ring_refuses_and_then_announces_room() {
        let (mut sender, mut receiver) = channel::<u32>(2);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Ok(()));
        assert_eq!(sender.try_send(3), Err(3));
        assert!(!receiver.take_space_wanted());
        assert!(!sender.want_space());
        assert_eq!(receiver.try_recv(), Some(1));
        assert!(receiver.take_space_wanted());
        assert!(!receiver.take_space_wanted());
        assert_eq!(sender.try_send(3), Ok(()));
        assert_eq!(
            (
                receiver.try_recv(),
                receiver.try_recv(),
                receiver.try_recv()
            ),
            (Some(2), Some(3), None)
        );
    }

    #[test]
    fn messages_left_in_a_ring_are_dropped_with_it() {
        let counted = std::rc::Rc::new(());
        // An Rc stands in for any value with a destructor; the ring does not leave this thread.
        struct Token(#[allow(dead_code, reason = "held for its destructor")] std::rc::Rc<()>);
        // SAFETY: the test uses one thread only.
        unsafe impl Send for Token {}
        let (mut sender, receiver) = channel(4);
        assert!(sender.try_send(Token(counted.clone())).is_ok());
        drop((sender, receiver));
        assert_eq!(std::rc::Rc::strong_count(&counted), 1);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::mesh::doorbell::Doorbell;

    /// Every message arrives once and in order, through a ring smaller than their number.
    #[test]
    fn ring_carries_all_messages_in_order() {
        loom::model(|| {
            let (mut sender, mut receiver) = channel::<usize>(2);
            let sending = loom::thread::spawn(move || {
                for n in 0..3 {
                    let mut message = n;
                    while let Err(refused) = sender.try_send(message) {
                        message = refused;
                        loom::thread::yield_now();
                    }
                }
            });
            let mut received = 0;
            while received < 3 {
                match receiver.try_recv() {
                    Some(n) => {
                        assert_eq!(n, received);
                        received += 1;
                    }
                    None => loom::thread::yield_now(),
                }
            }
            sending.join().unwrap();
        });
    }

    /// A receiver that goes to sleep is woken for a message that it did not see.
    #[test]
    fn sleeping_receiver_is_woken() {
        loom::model(|| {
            let (mut sender, mut receiver) = channel::<usize>(2);
            let bell = Arc::new(Doorbell::new());
            let eventfd = Arc::new(AtomicBool::new(false));
            let (sender_bell, sender_eventfd) = (Arc::clone(&bell), Arc::clone(&eventfd));
            let sending = loom::thread::spawn(move || {
                assert!(sender.try_send(7).is_ok());
                if sender_bell.ring() {
                    sender_eventfd.store(true, Ordering::SeqCst);
                }
            });
            bell.prepare_sleep();
            let sleeps = receiver.is_empty();
            if !sleeps {
                bell.awake();
            }
            sending.join().unwrap();
            if sleeps {
                assert!(
                    eventfd.load(Ordering::SeqCst),
                    "the receiver sleeps on a message and nobody wakes it"
                );
                bell.awake();
            }
            assert_eq!(receiver.try_recv(), Some(7));
        });
    }

    /// A sender that was refused either finds room on its second look or is notified by the
    /// receiver.
    #[test]
    fn refused_sender_is_notified() {
        loom::model(|| {
            let (mut sender, mut receiver) = channel::<usize>(1);
            assert!(sender.try_send(1).is_ok());
            let receiving = loom::thread::spawn(move || {
                let message = receiver.try_recv();
                assert_eq!(message, Some(1));
                let notified = receiver.take_space_wanted();
                (receiver, notified)
            });
            let sent = match sender.try_send(2) {
                Ok(()) => true,
                Err(_) => sender.want_space() && sender.try_send(2).is_ok(),
            };
            let (mut receiver, notified) = receiving.join().unwrap();
            assert!(
                sent || notified,
                "the sender waits for room that nobody tells it of"
            );
            if !sent {
                assert!(sender.try_send(2).is_ok());
            }
            assert_eq!(receiver.try_recv(), Some(2));
        });
    }
}
