//! Locks to change namespaces and databases, granted in the order of their requests.
//!
//! A request names everything that it needs at once, and holds it as soon as no earlier request,
//! waiting or holding, conflicts with it. So no request holds one thing while it waits for another,
//! and one for a whole database is not overtaken for ever by those for its collections.
//!
//! A critical section is a request too, which is kept for as long as its hold lasts. What is a part
//! of it passes it, and so does the end of a build that began before: also where others came
//! earlier that wait for the critical section, since it may wait for what passes it.

use std::cell::{Cell, RefCell};

use pinion_runtime::sync::Notify;
use pinion_wire::OpContext;
use pinion_wire::idl::Namespace;

use crate::gates::HoldId;
use crate::tally::{Acquisitions, Tally};

/// What an operation changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// Some namespaces.
    Namespaces(Vec<Namespace>),
    /// A database and all that is in it.
    Database(String),
}

impl Scope {
    pub(crate) fn one(ns: &Namespace) -> Scope {
        Scope::Namespaces(vec![ns.clone()])
    }

    /// Those that it names: a database names none.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        match self {
            Scope::Namespaces(namespaces) => namespaces,
            Scope::Database(_) => &[],
        }
    }

    fn conflicts(&self, other: &Scope) -> bool {
        match (self, other) {
            (Scope::Database(a), Scope::Database(b)) => a == b,
            (Scope::Namespaces(a), Scope::Namespaces(b)) => a.iter().any(|ns| b.contains(ns)),
            (Scope::Database(db), Scope::Namespaces(list))
            | (Scope::Namespaces(list), Scope::Database(db)) => list.iter().any(|ns| ns.db() == db),
        }
    }
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// A change of the catalog.
    Change,
    /// One that is a part of this critical section.
    Within(HoldId),
    /// The end of a build, which began before any critical section that it meets.
    BuildEnd,
    CriticalSection(HoldId),
}

impl Claim {
    /// What an operation changes the catalog for.
    pub(crate) fn of(ctx: &OpContext) -> Claim {
        ctx.critical_section.map_or(Claim::Change, Claim::Within)
    }

    /// Whether it does not wait for the other.
    fn passes(self, other: Claim) -> bool {
        match other {
            Claim::CriticalSection(id) => self == Claim::Within(id) || self == Claim::BuildEnd,
            Claim::Change | Claim::Within(_) | Claim::BuildEnd => false,
        }
    }
}

struct Request {
    number: u64,
    scope: Scope,
    claim: Claim,
    /// The operation that waits for it, if it is one's.
    op_id: Option<i32>,
    is_granted: Cell<bool>,
}

impl Request {
    fn waits_for(&self, other: &Request) -> bool {
        other.number != self.number
            && other.scope.conflicts(&self.scope)
            && !self.claim.passes(other.claim)
    }
}

/// An operation that waits until it may change something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AwaitedLock {
    pub op_id: i32,
    /// It waits for a whole database.
    pub is_of_database: bool,
    /// A critical section is among what it waits for.
    pub by_critical_section: bool,
}

/// The locks of a node. Lives on core 0 with the coordinator.
#[derive(Default)]
pub(crate) struct Locks {
    /// In the order in which they came.
    requests: RefCell<Vec<Request>>,
    next: Cell<u64>,
    released: Notify,
    /// Of requests for namespaces, and for whole databases.
    in_databases: Tally,
    whole_databases: Tally,
}

/// How often changes of the catalog locked databases against each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseLocks {
    /// To change namespaces in them.
    pub in_part: Acquisitions,
    /// To change all that is in them.
    pub whole: Acquisitions,
}

/// A request. What it names is locked until this is dropped.
pub(crate) struct Lock<'a> {
    locks: &'a Locks,
    number: u64,
}

impl Locks {
    /// Waits until no change that this request has to wait for affects the scope.
    pub(crate) async fn lock(&self, scope: Scope, claim: Claim, op_id: Option<i32>) -> Lock<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        let tally = match &scope {
            Scope::Namespaces(_) => &self.in_databases,
            Scope::Database(_) => &self.whole_databases,
        };
        self.requests.borrow_mut().push(Request {
            number,
            scope,
            claim,
            op_id,
            is_granted: Cell::new(false),
        });
        let lock = Lock {
            locks: self,
            number,
        };
        if !self.grant(number) {
            let _counted = tally.begin_wait();
            while !self.grant(number) {
                self.released.notified().await;
            }
        }
        tally.acquired();
        lock
    }

    pub(crate) fn counts(&self) -> DatabaseLocks {
        DatabaseLocks {
            in_part: self.in_databases.get(),
            whole: self.whole_databases.get(),
        }
    }

    /// The operations that wait.
    pub(crate) fn waiting(&self) -> Vec<AwaitedLock> {
        let requests = self.requests.borrow();
        let is_section = |other: &Request| matches!(other.claim, Claim::CriticalSection(_));
        let waiting = requests.iter().filter(|request| !request.is_granted.get());
        let awaited = |request: &Request| {
            let mut others = requests.iter();
            Some(AwaitedLock {
                op_id: request.op_id?,
                is_of_database: matches!(request.scope, Scope::Database(_)),
                by_critical_section: others
                    .any(|other| is_section(other) && request.waits_for(other)),
            })
        };
        waiting.filter_map(awaited).collect()
    }

    /// Grants a request if there is nothing to wait for.
    fn grant(&self, number: u64) -> bool {
        let requests = self.requests.borrow();
        let place = requests.iter().position(|other| other.number == number);
        let place = place.expect("a request is listed until its lock is dropped");
        let (earlier, own) = (&requests[..place], &requests[place]);
        let mut granted = requests.iter().filter(|other| other.is_granted.get());
        if granted.any(|other| own.waits_for(other)) {
            return false;
        }
        let held_up = held_up(earlier, own.claim);
        let mut first = earlier.iter().zip(held_up);
        let is_free = !first.any(|(other, is_held_up)| !is_held_up && own.waits_for(other));
        own.is_granted.set(is_free);
        is_free
    }
}

/// Which of the requests wait, maybe for others in between, for a critical section that the claim
/// passes.
fn held_up(requests: &[Request], claim: Claim) -> Vec<bool> {
    if !requests.iter().any(|request| claim.passes(request.claim)) {
        return vec![false; requests.len()];
    }
    let mut held_up: Vec<bool> = Vec::with_capacity(requests.len());
    for (place, request) in requests.iter().enumerate() {
        let mut first = requests[..place].iter().zip(&held_up);
        let waits = !request.is_granted.get()
            && first.any(|(other, is_held_up)| {
                (*is_held_up || claim.passes(other.claim)) && request.waits_for(other)
            });
        held_up.push(waits);
    }
    held_up
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let mut requests = self.locks.requests.borrow_mut();
        requests.retain(|request| request.number != self.number);
        self.locks.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use pinion_runtime::sim;

    use super::*;

    fn ns(text: &str) -> Namespace {
        Namespace::parse(text).expect("a namespace")
    }

    /// Requests the scopes in their order and checks which of them are held at once.
    #[track_caller]
    fn check(scopes: &[Scope], held: &[bool]) {
        let locks = Locks::default();
        let mut kept = Vec::new();
        let mut got = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        for scope in scopes {
            let mut request = Box::pin(locks.lock(scope.clone(), Claim::Change, None));
            match request.as_mut().poll(&mut context) {
                std::task::Poll::Ready(lock) => {
                    got.push(true);
                    kept.push(Ok(lock));
                }
                std::task::Poll::Pending => {
                    got.push(false);
                    kept.push(Err(request));
                }
            }
        }
        assert_eq!(got, held, "{scopes:?}");
    }

    #[test]
    fn requests_that_do_not_conflict_are_held_together() {
        sim::block_on(1, async { check_requests() });
    }

    fn check_requests() {
        let a = || Scope::one(&ns("d.a"));
        let b = || Scope::one(&ns("d.b"));
        let d = || Scope::Database("d".into());
        check(&[a(), b()], &[true, true]);
        check(&[a(), a()], &[true, false]);
        check(
            &[a(), d(), Scope::Database("e".into())],
            &[true, false, true],
        );
        // Behind a request for the database even one that conflicts with no holder waits.
        check(&[a(), d(), b()], &[true, false, false]);
        let both = Scope::Namespaces(vec![ns("d.b"), ns("e.c")]);
        check(&[b(), both, Scope::one(&ns("e.c"))], &[true, false, false]);
    }

    #[test]
    fn a_lock_is_passed_on_when_it_is_dropped() {
        sim::block_on(1, async { drop_locks() });
    }

    fn drop_locks() {
        let locks = Locks::default();
        let mut context = Context::from_waker(Waker::noop());
        let scope = Scope::one(&ns("d.a"));
        let first = pin!(locks.lock(scope.clone(), Claim::Change, None)).poll(&mut context);
        let mut second = Box::pin(locks.lock(scope.clone(), Claim::Change, None));
        assert!(second.as_mut().poll(&mut context).is_pending());
        // A request that is given up does not stand in the way.
        let mut third = Box::pin(locks.lock(scope, Claim::Change, None));
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(second);
        drop(first);
        assert!(third.as_mut().poll(&mut context).is_ready());
    }
}
