//! Named limits of the real backend.

use std::time::Duration;

/// Stack of each thread, of which only what is used is memory. Documents of the greatest depth are
/// computed by recursion, and so is a pipeline of as many stages as there may be that each ask the
/// one before them: for these the two megabytes that threads have by default are too few.
pub(super) const STACK_BYTES: usize = 64 * 1024 * 1024;

/// Entries of a core's submission queue. A full queue is submitted at once, so this bounds a batch,
/// not the work.
pub(super) const SUBMISSION_ENTRIES: u32 = 1024;
/// Entries of a core's completion queue. On overflow the kernel keeps completions aside and they
/// are fetched later.
pub(super) const COMPLETION_ENTRIES: u32 = 8192;

/// What of a mapped file is brought into memory at once.
pub(super) const MAPPED_WINDOW_BYTES: usize = 4 * 1024 * 1024;

/// Size of one provided receive buffer.
pub(super) const RECV_BUFFER_BYTES: usize = 16 * 1024;
/// Receive buffers of a core, shared by all its connections: none is tied to an idle connection.
pub(super) const RECV_BUFFERS: u16 = 256;

/// Above this many unread bytes a connection's receive is cancelled: the peer then fills its window
/// and waits.
pub(super) const INPUT_HIGH_BYTES: usize = 256 * 1024;
/// Below this many unread bytes a paused connection receives again.
pub(super) const INPUT_LOW_BYTES: usize = 64 * 1024;
/// A spilled input buffer larger than this is given back once it is empty.
pub(super) const INPUT_KEEP_BYTES: usize = 2 * 1024;

/// Queued pieces above which `send` waits, whatever their size.
pub(super) const OUTPUT_HIGH_PIECES: usize = 1024;
/// Pieces up to this size in total are copied together rather than sent as a vector.
pub(super) const COALESCE_BYTES: usize = 32 * 1024;
/// Pieces of one vectored send.
pub(super) const SEND_PIECES: usize = 64;
/// How long queued output of a dropped connection is still offered to its peer.
pub(super) const LINGER: Duration = Duration::from_secs(10);

/// Pause after an accept that failed for want of resources (open files, memory).
pub(super) const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Messages taken from one ring before the other rings get their turn.
pub(super) const MESH_BATCH: usize = 256;

/// How long the tasks of a queue run before sockets, files, timers and the mesh are looked at
/// again.
pub(super) const TURN: Duration = Duration::from_micros(250);
/// After this long in one poll `should_yield` asks a foreground task to yield.
pub(super) const TASK_SLICE: Duration = Duration::from_micros(200);
/// A poll longer than this, without the time that the thread waited for its processor, is a stall:
/// counted and reported.
pub(super) const STALL: Duration = Duration::from_millis(10);
/// How old a reading of the thread's time on the run queue may be when a poll begins: so much of a
/// stall may stay unseen.
pub(super) const WAIT_SAMPLE: Duration = Duration::from_millis(1);
/// How long the background queue runs before the foreground is looked at.
pub(super) const BACKGROUND_TURN: Duration = Duration::from_micros(100);
/// How often glommio looks whether the background's shares are others: a merge's pace changes no
/// faster.
pub(super) const SHARES_PERIOD: Duration = Duration::from_millis(10);
/// After how long glommio's executor leaves its queues to look at its own rings: never. Nothing of
/// ours completes there, and it loses its way coming back. It arms a preemption timer, looks
/// whether that has fired, and only then at its queues; if the thread lost its processor in between
/// for as long as the timer takes, it believes that nothing was there to run and waits for a
/// completion that never comes.
pub(super) const PREEMPTION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Loop turns after which the foreground yields to glommio even without background work.
pub(super) const TURNS_BETWEEN_YIELDS: u32 = 1024;

/// How often the monitor thread looks at the cores' heartbeats.
pub(super) const MONITOR_PERIOD: Duration = Duration::from_millis(100);
/// A task still running after this long is reported by the monitor, once each time the time
/// doubles.
pub(super) const STUCK: Duration = Duration::from_secs(1);

/// A node whose cores polled less than this, each and a second, for so long, is quiet. What a node
/// does without requests (timers, flushes, a monitor's questions) is far below.
pub(super) const QUIET: Duration = Duration::from_secs(4);
/// See [`QUIET`].
pub(super) const QUIET_POLLS_PER_SEC: u64 = 1000;

/// How often a process that stays larger than it should be is asked to become smaller.
pub(super) const LARGE_PERIOD: Duration = Duration::from_secs(1);
/// See [`LARGE_PERIOD`]: at once if it has grown by this part of its limit since.
pub(super) const LARGE_GROWTH_PART: u64 = 8;

/// Requests waiting for the blocking thread (directory operations).
pub(super) const BLOCKING_QUEUE: usize = 4096;

/// How long a stopping core waits for the kernel to finish with its buffers.
pub(super) const STOP_WAIT: Duration = Duration::from_secs(10);

/// Computations of each kind waiting for a compute thread; one more looks again after
/// [`COMPUTE_RETRY`].
pub(super) const COMPUTE_QUEUE: usize = 1024;
/// See [`COMPUTE_QUEUE`].
pub(super) const COMPUTE_RETRY: Duration = Duration::from_millis(5);

/// Host names that are looked up at one time; each has a thread meanwhile.
pub(super) const RESOLVING_AT_ONCE: usize = 16;

const _: () = assert!(INPUT_LOW_BYTES < INPUT_HIGH_BYTES);
const _: () = assert!(RECV_BUFFERS.is_power_of_two());
const _: () = assert!(COMPLETION_ENTRIES >= SUBMISSION_ENTRIES);
const _: () = assert!(SEND_PIECES <= 1024, "IOV_MAX");
const _: () = assert!(BACKGROUND_TURN.as_nanos() < TURN.as_nanos());
const _: () = assert!(TASK_SLICE.as_nanos() < STALL.as_nanos());
