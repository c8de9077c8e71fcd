//! What an engine must do to be measured, and the session that each client has with it.
//!
//! Everything is asynchronous, so that one loop drives all: Pinion's own executor runs its
//! sessions, and the peers' are polled once by the thread that calls them, for theirs never wait.

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::data::Key;

pub type Outcome<T> = Result<T, String>;

/// When a commit is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At most [`SYNC_INTERVAL`] after it was acknowledged.
    Interval,
    /// Before it is acknowledged.
    Commit,
}

/// How often everything acknowledged is made durable where a commit does not wait for it. It is
/// Pinion's own interval.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(100);
/// How often every engine that has checkpoints takes one while writes are measured. While reads are
/// measured none comes by time: what was changed stays where it is.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);

/// How an engine is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    pub dir: PathBuf,
    pub cache_bytes: u64,
    pub durability: Durability,
    /// Whether checkpoints come every [`CHECKPOINT_INTERVAL`].
    pub checkpoints: bool,
    pub clients: usize,
    pub cores: usize,
    /// Bytes that the data may come to, for those that map their file.
    pub data_bytes: u64,
}

impl Settings {
    pub fn about_checkpoints(&self) -> &'static str {
        if self.checkpoints {
            "checkpoints every 60 s"
        } else {
            "no checkpoints by time"
        }
    }
}

/// One client's dealings with an engine.
#[allow(async_fn_in_trait)] // It is called inside this program only.
pub trait Session {
    /// Reads from now on see the state of this moment.
    async fn refresh(&mut self) -> Outcome<()>;

    /// Hands the value of `key` to `see`; false when there is none.
    async fn get(&mut self, key: &Key, see: impl FnMut(&[u8])) -> Outcome<bool>;

    /// Hands up to `limit` records in the order of keys to `see`, from `from` on or all; says how
    /// many there were.
    async fn scan(
        &mut self,
        from: Option<&Key>,
        limit: usize,
        see: impl FnMut(&[u8], &[u8]),
    ) -> Outcome<usize>;

    /// Writes one record and commits it.
    async fn put(&mut self, key: &Key, value: &[u8]) -> Outcome<()>;

    /// Writes many records with one commit.
    async fn put_all(&mut self, records: &[(Key, Vec<u8>)]) -> Outcome<()>;

    /// Lets other tasks of this thread run.
    async fn breathe(&mut self) {}

    /// Waits.
    async fn sleep(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// An engine whose calls return when they are done.
pub trait Peer: Sized + Sync {
    type Session<'a>: Session
    where
        Self: 'a;

    /// Name, version and where it comes from.
    fn version(&self, settings: &Settings) -> String;
    /// The settings that matter, as they were given.
    fn about(settings: &Settings) -> String;
    fn open(settings: &Settings) -> Outcome<Self>;
    fn session(&self) -> Outcome<Self::Session<'_>>;
    /// Makes everything acknowledged durable. Called each [`SYNC_INTERVAL`] where commits do not.
    fn sync(&self) -> Outcome<()>;
    /// Writes out what is only in memory, and returns when no background work is left.
    fn settle(&self) -> Outcome<()>;
    fn close(self) -> Outcome<()>;
}

/// The result of a future that does not wait.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a peer's session does not wait"),
    }
}

/// Any error as text.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
