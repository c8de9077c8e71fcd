//! Who may change which namespace now: locks of namespaces and databases, granted in the order of
//! their requests.
//!
//! A request names everything that it needs at once, and holds it as soon as no earlier request,
//! waiting or holding, conflicts with it. So nobody holds one thing and waits for another, and a
//! request for a whole database is not overtaken for ever by those for its collections.

use std::cell::RefCell;

use pinion_runtime::sync::Notify;
use pinion_wire::idl::Namespace;

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

    fn conflicts(&self, other: &Scope) -> bool {
        match (self, other) {
            (Scope::Database(a), Scope::Database(b)) => a == b,
            (Scope::Namespaces(a), Scope::Namespaces(b)) => a.iter().any(|ns| b.contains(ns)),
            (Scope::Database(db), Scope::Namespaces(list))
            | (Scope::Namespaces(list), Scope::Database(db)) => list.iter().any(|ns| ns.db() == db),
        }
    }
}

/// The locks of a node. Lives on core 0 with the coordinator.
#[derive(Default)]
pub(crate) struct Locks {
    /// In the order in which they came.
    requests: RefCell<Vec<(u64, Scope)>>,
    next: std::cell::Cell<u64>,
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
    /// Waits until nobody who asked before changes anything of this scope.
    pub(crate) async fn lock(&self, scope: Scope) -> Lock<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        let tally = match &scope {
            Scope::Namespaces(_) => &self.in_databases,
            Scope::Database(_) => &self.whole_databases,
        };
        self.requests.borrow_mut().push((number, scope));
        let lock = Lock {
            locks: self,
            number,
        };
        if !self.is_held(number) {
            let _counted = tally.begin_wait();
            while !self.is_held(number) {
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

    fn is_held(&self, number: u64) -> bool {
        let requests = self.requests.borrow();
        let place = requests.iter().position(|(other, _)| *other == number);
        let place = place.expect("a request is listed until its lock is dropped");
        let (earlier, own) = (&requests[..place], &requests[place].1);
        !earlier.iter().any(|(_, scope)| scope.conflicts(own))
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let mut requests = self.locks.requests.borrow_mut();
        requests.retain(|(number, _)| *number != self.number);
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

    /// Requests the scopes in their order and tells which of them are held at once.
    #[track_caller]
    fn check(scopes: &[Scope], held: &[bool]) {
        let locks = Locks::default();
        let mut kept = Vec::new();
        let mut got = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        for scope in scopes {
            let mut request = Box::pin(locks.lock(scope.clone()));
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
        let first = pin!(locks.lock(scope.clone())).poll(&mut context);
        let mut second = Box::pin(locks.lock(scope.clone()));
        assert!(second.as_mut().poll(&mut context).is_pending());
        // A request that is given up does not stand in the way.
        let mut third = Box::pin(locks.lock(scope));
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(second);
        drop(first);
        assert!(third.as_mut().poll(&mut context).is_ready());
    }
}
