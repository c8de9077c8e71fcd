//! Named limits of the runtime.

/// Alignment, in bytes, of file offsets, transfer lengths and buffers: the largest logical sector
/// in common use.
pub const ALIGN: usize = 4096;
/// Largest single file transfer, in bytes.
pub const MAX_IO_BYTES: usize = 64 * 1024 * 1024;
/// Largest file read by [`crate::fs::read_small`], in bytes.
pub const MAX_SMALL_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Most cores one process uses.
pub const MAX_CORES: usize = 1024;
/// Slots of the ring between two cores, in each direction.
pub const MESH_RING_SLOTS: usize = 256;
/// Bytes queued for sending on one connection above which `send` waits. One message may overshoot
/// it.
pub const OUTPUT_BUFFER_BYTES: usize = 64 * 1024;
/// Most bytes that one `recv` appends.
pub const RECEIVE_CHUNK_BYTES: usize = 64 * 1024;
/// Shares of a core that its foreground queue has where both queues have work.
pub const FOREGROUND_SHARES: usize = 1000;
/// Shares of a core that its background queue has unless [`crate::set_background_shares`] gave
/// others.
pub const BACKGROUND_SHARES: usize = 100;
/// Connections waiting to be accepted on one listener.
pub const ACCEPT_BACKLOG: usize = 1024;

const _: () = assert!(ALIGN.is_power_of_two());
const _: () = assert!(MAX_IO_BYTES.is_multiple_of(ALIGN));
const _: () = assert!(MAX_SMALL_FILE_BYTES as usize <= MAX_IO_BYTES);
const _: () = assert!(MESH_RING_SLOTS.is_power_of_two());
