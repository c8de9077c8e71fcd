//! One read of the log on each core for all change streams there that keep up: its entries are
//! handed to the streams that they concern. So a thousand streams cost one read and the events that
//! concern each, and no stream is woken by writes that do not concern it.
//!
//! A stream joins where the feed stands. What comes for it is kept until it asks, within a bound;
//! one that does not ask in time leaves, and reads the log itself until it has caught up.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use pinion_catalog::stored_document;
use pinion_clock::Timestamp;
use pinion_query::{Concerned, Scope, concerned_by};
use pinion_runtime::sync::Notify;
use pinion_runtime::{Duration, JoinHandle, LocalBoxFuture, Queue, spawn, yield_if_due};
use pinion_storage::storage;

use crate::limits::{CHANGE_BATCH_BYTES, CHANGE_BATCH_ENTRIES, CHANGE_ENTRY_COPY_BYTES};
use crate::topology::replica_set;

/// The time up to which a majority holds everything, as far as this member has applied it.
pub(super) fn committed() -> Timestamp {
    let set = replica_set();
    set.map_or(Timestamp::MIN, |set| set.commit_point().ts)
}

/// The feed of one core. Its task runs while a stream watches.
#[derive(Default)]
pub struct ChangeFeed {
    watched: RefCell<Watched>,
    /// Everything up to here was handed out.
    through: Cell<Timestamp>,
    task: RefCell<Option<JoinHandle<()>>>,
    stopping: Cell<bool>,
    /// It may be over: the last stream has left, or the node closes.
    changed: Notify,
}

/// The watchers by what they watch.
#[derive(Default)]
struct Watched {
    collections: BTreeMap<String, Vec<Rc<Watcher>>>,
    databases: BTreeMap<String, Vec<Rc<Watcher>>>,
    all: Vec<Rc<Watcher>>,
    count: usize,
}

struct Watcher {
    scope: Scope,
    queue: RefCell<VecDeque<(Timestamp, Bytes)>>,
    queue_bytes: Cell<usize>,
    /// The last entry that it was handed.
    last: Cell<Timestamp>,
    /// It gets nothing more: it has what there was up to here.
    left_at: Cell<Option<Timestamp>>,
    changed: Notify,
}

/// A stream's place in the feed.
pub(super) struct Watch {
    watcher: Rc<Watcher>,
    feed: Rc<ChangeFeed>,
    /// What comes behind it comes by the feed.
    pub from: Timestamp,
}

/// What the feed has for a stream.
pub(super) enum Handed {
    Entry(Timestamp, Bytes),
    /// Nothing more up to here.
    Nothing {
        through: Timestamp,
    },
    /// Nothing any more; what is behind this time the stream reads itself.
    Left {
        at: Timestamp,
    },
}

impl Watched {
    fn lists<'w>(&'w self, ns: &str) -> impl Iterator<Item = &'w Rc<Watcher>> {
        let db = ns.split_once('.').map_or(ns, |(db, _)| db);
        let of_collection = self.collections.get(ns);
        let of_database = self.databases.get(db);
        let lists = [of_collection, of_database, Some(&self.all)];
        lists.into_iter().flatten().flatten()
    }

    fn all(&self) -> impl Iterator<Item = &Rc<Watcher>> {
        let lists = self.collections.values().chain(self.databases.values());
        lists.flatten().chain(&self.all)
    }

    fn add(&mut self, watcher: Rc<Watcher>) {
        let list = match &watcher.scope {
            Scope::Collection(ns) => self.collections.entry(ns.clone()).or_default(),
            Scope::Database(db) => self.databases.entry(db.clone()).or_default(),
            Scope::Cluster => &mut self.all,
        };
        list.push(watcher);
        self.count += 1;
    }

    fn remove(&mut self, watcher: &Rc<Watcher>) {
        let (table, name) = match &watcher.scope {
            Scope::Collection(ns) => (&mut self.collections, ns),
            Scope::Database(db) => (&mut self.databases, db),
            Scope::Cluster => {
                self.count -= take_out(&mut self.all, watcher);
                return;
            }
        };
        if let Some(list) = table.get_mut(name) {
            self.count -= take_out(list, watcher);
            if list.is_empty() {
                table.remove(name);
            }
        }
    }
}

/// How many were taken out of a list: one that has left already is in none.
fn take_out(list: &mut Vec<Rc<Watcher>>, watcher: &Rc<Watcher>) -> usize {
    let place = list.iter().position(|other| Rc::ptr_eq(other, watcher));
    place.map_or(0, |at| {
        list.swap_remove(at);
        1
    })
}

impl Watcher {
    /// Hands it an entry; false if it has not asked for those before in time.
    fn hand(&self, ts: Timestamp, entry: &Bytes) -> bool {
        let mut queue = self.queue.borrow_mut();
        let bytes = self.queue_bytes.get() + entry.len();
        if !queue.is_empty() && (bytes > CHANGE_BATCH_BYTES || queue.len() >= CHANGE_BATCH_ENTRIES)
        {
            return false;
        }
        self.queue_bytes.set(bytes);
        self.last.set(ts);
        queue.push_back((ts, entry.clone()));
        true
    }

    fn leave(&self, at: Timestamp) {
        self.left_at.set(Some(at));
        self.changed.notify_all();
    }
}

/// What reads the log for this core's change streams.
pub fn change_feed() -> Rc<ChangeFeed> {
    pinion_runtime::core_local()
}

impl ChangeFeed {
    /// A stream begins to watch.
    pub(super) fn join(self: &Rc<Self>, scope: &Scope) -> Watch {
        let mut task = self.task.borrow_mut();
        if task.is_none() {
            let readable = storage().oplog_read_timestamp();
            self.through.set(committed().min(readable));
            *task = Some(spawn(Queue::Foreground, run(self.clone())));
        }
        let watcher = Rc::new(Watcher {
            scope: scope.clone(),
            queue: RefCell::default(),
            queue_bytes: Cell::new(0),
            last: Cell::new(Timestamp::MIN),
            left_at: Cell::new(None),
            changed: Notify::new(),
        });
        self.watched.borrow_mut().add(watcher.clone());
        Watch {
            watcher,
            feed: self.clone(),
            from: self.through.get(),
        }
    }

    /// Ends it: when this returns nothing reads the log for it. Streams that are left read for
    /// themselves.
    pub async fn stop(&self) {
        self.stopping.set(true);
        self.changed.notify_all();
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            // One that was dropped has ended too.
            let _ = task.await;
        }
        self.end();
        self.stopping.set(false);
    }

    fn is_over(&self) -> bool {
        self.stopping.get() || self.watched.borrow().count == 0
    }

    /// No stream is served any more.
    fn end(&self) {
        let watched = std::mem::take(&mut *self.watched.borrow_mut());
        let through = self.through.get();
        watched.all().for_each(|watcher| watcher.leave(through));
        self.task.borrow_mut().take();
    }

    /// Hands an entry to those whom it concerns.
    fn hand_out(&self, ts: Timestamp, entry: &Bytes) {
        assert!(ts > self.through.get(), "entries come in their order");
        let concerned = concerned_by(stored_document(entry));
        // A short one lies with others in a piece of memory, which a queue should not keep.
        let mut copy = None;
        let mut late = Vec::new();
        let mut hand = |watcher: &Rc<Watcher>| {
            if watcher.last.get() == ts {
                return;
            }
            let entry = copy.get_or_insert_with(|| match entry.len() <= CHANGE_ENTRY_COPY_BYTES {
                true => Bytes::copy_from_slice(entry),
                false => entry.clone(),
            });
            match watcher.hand(ts, entry) {
                true => watcher.changed.notify_all(),
                false => late.push(watcher.clone()),
            }
        };
        let watched = self.watched.borrow();
        match concerned {
            Concerned::NoStream => {}
            Concerned::Namespaces(namespaces) => {
                for ns in namespaces {
                    let by_name = watched.lists(ns);
                    by_name
                        .filter(|watcher| watcher.scope.has(ns))
                        .for_each(&mut hand);
                }
            }
            Concerned::AllStreams => watched.all().for_each(&mut hand),
        }
        drop(watched);
        let before = self.through.replace(ts);
        // One may be late by several of its names.
        for watcher in late {
            if watcher.left_at.get().is_none() {
                self.watched.borrow_mut().remove(&watcher);
                watcher.leave(before);
            }
        }
    }

    /// Waits until there may be more to hand out.
    async fn wait(&self) {
        let changed = self.changed.notified();
        if self.is_over() {
            return;
        }
        let through = self.through.get();
        let more: LocalBoxFuture<'_, ()> = match replica_set() {
            // What is committed may be readable a moment later than that is known.
            Some(_) if committed() > through => {
                Box::pin(pinion_runtime::sleep(Duration::from_millis(1)))
            }
            Some(set) => set.wait_commit_beyond(through),
            None => Box::pin(std::future::pending()),
        };
        let (mut changed, mut more) = (pin!(changed), more);
        poll_fn(|cx| match more.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => changed.as_mut().poll(cx).map(|_| ()),
        })
        .await;
    }
}

async fn run(feed: Rc<ChangeFeed>) {
    let mut log = storage().log_after(feed.through.get());
    let mut ahead: VecDeque<(Timestamp, Bytes)> = VecDeque::new();
    while !feed.is_over() {
        let bound = committed();
        match ahead.front() {
            Some((ts, _)) if *ts <= bound => {
                let (ts, entry) = ahead.pop_front().expect("just seen");
                feed.hand_out(ts, &entry);
            }
            Some(_) => {
                feed.through.set(bound.max(feed.through.get()));
                feed.wait().await;
            }
            None => {
                let readable = storage().oplog_read_timestamp().min(bound);
                let read = log.next_batch(CHANGE_BATCH_ENTRIES, CHANGE_BATCH_BYTES);
                // A stream that reads for itself reports the error.
                let Ok(batch) = read.await else {
                    break;
                };
                ahead = batch.into();
                if ahead.is_empty() {
                    feed.through.set(readable.max(feed.through.get()));
                    feed.wait().await;
                }
            }
        }
        yield_if_due().await;
    }
    feed.end();
}

impl Watch {
    /// The next entry behind `after`.
    pub(super) fn next(&self, after: Timestamp) -> Handed {
        let mut queue = self.watcher.queue.borrow_mut();
        while let Some((ts, entry)) = queue.pop_front() {
            let bytes = self.watcher.queue_bytes.get() - entry.len();
            self.watcher.queue_bytes.set(bytes);
            if ts > after {
                return Handed::Entry(ts, entry);
            }
        }
        match self.watcher.left_at.get() {
            Some(at) => Handed::Left { at },
            None => Handed::Nothing {
                through: self.feed.through.get(),
            },
        }
    }

    /// Whether something is there.
    pub(super) fn has_news(&self) -> bool {
        !self.watcher.queue.borrow().is_empty() || self.watcher.left_at.get().is_some()
    }

    /// Up to where it is known that nothing else is there, if nothing is.
    pub(super) fn quiet_through(&self) -> Option<Timestamp> {
        (!self.has_news()).then(|| self.feed.through.get())
    }

    /// Waits until something is there.
    pub(super) async fn changed(&self) {
        loop {
            let changed = self.watcher.changed.notified();
            if self.has_news() {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.feed.watched.borrow_mut().remove(&self.watcher);
        if self.feed.is_over() {
            self.feed.changed.notify_all();
        }
    }
}
