//! Starting and ending a node: one glommio executor for each core, a monitor thread, a blocking
//! thread, and threads for long computations.
#![allow(clippy::disallowed_methods)] // The runtime's own threads are started here.

use std::cell::RefCell;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_lite::FutureExt;
use glommio::{LocalExecutorBuilder, Placement, spawn_local_into};

use super::blocking::Blocking;
use super::compute::Computing;
use super::core::RealCore;
use super::limits::{PREEMPTION, STACK_BYTES};
use super::monitor::{self, SignalHandlers};
use super::options::{RealOptions, StartError};
use super::ports::Ports;
use super::shared::{CoreShared, Node, set_home};
use super::{preflight, queues, sys};
use crate::context::{Backend, CoreContext, StreamSeed};
use crate::limits::MAX_CORES;
use crate::mesh::doorbell::Doorbell;
use crate::{CoreId, Queue, context};

/// glommio's own I/O is not used: the least memory and the smallest rings that it takes.
const GLOMMIO_IO_MEMORY: usize = 64 * 1024;
const GLOMMIO_RING_DEPTH: usize = 32;

/// Runs `main` on every core and returns what the mains returned, in the order of the cores.
///
/// A core serves calls from other cores until all mains have returned; tasks that still run then
/// are dropped. A panic in any task stops the whole node, because what it left half done cannot be
/// trusted.
pub fn run<R, F, Fut>(options: RealOptions, main: F) -> Result<Vec<R>, StartError>
where
    F: Fn(CoreId) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = R> + 'static,
    R: Send + 'static,
{
    check(&options)?;
    let count = options.cpus.len();
    let cores = (0..count)
        .map(|core| CoreShared::new(CoreId(core as u16), Arc::new(Doorbell::new())).map(Arc::new))
        .collect::<Result<Vec<_>, _>>()
        .map_err(StartError::System)?;
    let node = Arc::new(Node::new(cores));

    let eventfd = Arc::new(sys::eventfd(0).map_err(StartError::System)?);
    let stop = Arc::new(AtomicBool::new(false));
    let monitor = {
        let (node, eventfd, stop) = (node.clone(), eventfd.clone(), stop.clone());
        let options = options.clone();
        thread("pinion-monitor", move || {
            monitor::run(node, eventfd, stop, &options)
        })?
    };
    let handlers = if options.handle_signals {
        SignalHandlers::install(&eventfd, options.on_usr1.is_some()).map_err(StartError::System)?
    } else {
        None
    };
    let (blocking, blocking_thread) = Blocking::new();
    let blocking_thread = thread("pinion-files", move || blocking_thread.run())?;

    let (computing, compute_thread_kinds) = Computing::new();
    let on_idle = options.on_idle;
    let compute_threads = compute_thread_kinds
        .iter()
        .flat_map(|kind| std::iter::repeat_n(kind, count))
        .map(|of_kind| {
            let own = of_kind.clone();
            thread("pinion-compute", move || own.run(on_idle))
        })
        .collect::<Result<Vec<_>, _>>()?;

    let mut executors = Vec::new();
    for (core, ports) in Ports::all(count).into_iter().enumerate() {
        let seed = Seed {
            unstarted: Unstarted(Some(node.clone())),
            node: node.clone(),
            ports,
            blocking: blocking.clone(),
            computing: computing.clone(),
            spin: options.spin,
            core,
            cpu: options.cpus[core],
            count,
        };
        let main = main.clone();
        let builder = LocalExecutorBuilder::new(Placement::Fixed(options.cpus[core]))
            .io_memory(GLOMMIO_IO_MEMORY)
            .ring_depth(GLOMMIO_RING_DEPTH)
            .preempt_timer(PREEMPTION);
        // The executor starts threads with the stack that the system library gives them, so it runs
        // in one of ours.
        let started = thread(&format!("pinion-core-{core}"), move || {
            let executor = builder.make().map_err(|error| error.to_string())?;
            let seed = seed.started();
            Ok::<_, String>(executor.run(core_main(seed, main)))
        });
        match started {
            Ok(executor) => executors.push(executor),
            Err(error) => {
                // Cores that run wait for all mains: this one's will never be.
                node.fail(StartError::Core {
                    core,
                    cpu: options.cpus[core],
                    message: error.to_string(),
                });
                break;
            }
        }
    }
    drop(blocking);
    drop(computing);

    let mut results = Vec::new();
    for (core, executor) in executors.into_iter().enumerate() {
        let ended = executor
            .join()
            .unwrap_or_else(|_| Err("its thread panicked".to_owned()));
        match ended {
            Ok(result) => results.extend(result),
            // Also what a core that was never run says, after its `Unstarted` has stopped the
            // others.
            Err(message) => node.fail(StartError::Core {
                core,
                cpu: options.cpus[core],
                message,
            }),
        }
    }
    drop(handlers);
    stop.store(true, Ordering::SeqCst);
    sys::eventfd_signal(std::os::fd::AsRawFd::as_raw_fd(&*eventfd));
    // No thread panics, and all but the first end with their last senders, once they have done what
    // was asked of them.
    let _ = monitor.join();
    let _ = blocking_thread.join();
    for thread in compute_threads {
        let _ = thread.join();
    }
    match node.take_failure() {
        Some(error) => Err(error),
        None => {
            assert_eq!(
                results.len(),
                count,
                "a core ended without its main's result and without a failure"
            );
            Ok(results)
        }
    }
}

fn check(options: &RealOptions) -> Result<(), StartError> {
    if options.cpus.is_empty() {
        return Err(StartError::Options(
            "a node needs at least one core".to_owned(),
        ));
    }
    if options.cpus.len() > MAX_CORES {
        return Err(StartError::Options(format!(
            "a node has at most {MAX_CORES} cores"
        )));
    }
    let available = super::available_cpus().map_err(StartError::System)?;
    if let Some(cpu) = options.cpus.iter().find(|cpu| !available.contains(cpu)) {
        return Err(StartError::Options(format!(
            "CPU {cpu} is not among the CPUs this process may use: {available:?}"
        )));
    }
    // glommio ends the process where io_uring is missing, so we look first.
    preflight::check_system(options.cpus.len())
        .map_err(|problem| StartError::Options(problem.to_string()))
}

fn thread<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>, StartError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(f)
        .map_err(StartError::System)
}

/// Dropped when a core's executor does not come to run it: the other cores would wait for its main
/// for ever.
struct Unstarted(Option<Arc<Node>>);

impl Drop for Unstarted {
    fn drop(&mut self) {
        if let Some(node) = self.0.take() {
            node.stop_now();
        }
    }
}

/// What a core's thread starts from.
struct Seed {
    unstarted: Unstarted,
    node: Arc<Node>,
    ports: Ports,
    blocking: Blocking,
    computing: Computing,
    spin: Duration,
    core: usize,
    cpu: usize,
    count: usize,
}

impl Seed {
    fn started(mut self) -> Seed {
        self.unstarted.0 = None;
        self
    }
}

async fn core_main<R, F, Fut>(seed: Seed, main: F) -> Option<R>
where
    F: Fn(CoreId) -> Fut,
    Fut: Future<Output = R> + 'static,
    R: 'static,
{
    let Seed {
        unstarted: _,
        node,
        ports,
        blocking,
        computing,
        spin,
        core: index,
        cpu,
        count,
    } = seed;
    let shared = node.cores[index].clone();
    let core = match RealCore::new(
        shared.clone(),
        node.clone(),
        ports,
        blocking,
        computing,
        spin,
    ) {
        Ok(core) => core,
        Err(error) => {
            let message = format!("its ring could not be made: {error}");
            node.fail(StartError::Core {
                core: index,
                cpu,
                message,
            });
            return None;
        }
    };
    let id = CoreId(index as u16);
    set_home(Some(shared));
    RealCore::set_current(Some(core.clone()));
    let context = CoreContext::new(id, count, Backend::Real(core.clone()), StreamSeed::os());
    context::enter(Some(context.clone()));

    let result = Rc::new(RefCell::new(None));
    let main = AssertUnwindSafe(main);
    {
        let (node, result) = (node.clone(), result.clone());
        // The future is made inside of the task, so that a panic in `main` itself is contained as
        // well.
        let future = std::panic::catch_unwind(|| (main)(id));
        match future {
            Ok(future) => core.spawn(Queue::Foreground, async move {
                let value = future.await;
                *result.borrow_mut() = Some(value);
                node.main_returned();
            }),
            Err(payload) => core.fail(payload.as_ref()),
        }
    }
    let (foreground, background) = queues::create(core.background_shares());
    let background = spawn_local_into(
        contained(core.clone(), queues::background(core.clone())),
        background,
    );
    let foreground = spawn_local_into(
        contained(core.clone(), queues::foreground(core.clone())),
        foreground,
    );
    match (foreground, background) {
        (Ok(foreground), Ok(background)) => {
            foreground.await;
            background.await;
        }
        (Err(error), _) | (_, Err(error)) => {
            node.fail(StartError::Core {
                core: index,
                cpu,
                message: error.to_string(),
            });
        }
    }

    context.ended.set(true);
    let stop = || {
        core.tasks().drop_all();
        while let Some(local) = context.locals.pop() {
            drop(local);
        }
        core.stop()
    };
    let stopped = std::panic::catch_unwind(AssertUnwindSafe(stop)).unwrap_or_else(|payload| {
        core.fail(payload.as_ref());
        false
    });
    context::enter(None);
    RealCore::set_current(None);
    set_home(None);
    if !stopped {
        tracing::error!(
            target: "CONTROL",
            id = 7_200_003u64,
            core = index,
            "requests to the kernel did not end, so their memory is kept"
        );
        std::mem::forget(core);
    }
    result.take()
}

/// Runs one of the core's own tasks so that a panic stops the node with a clear message: in glommio
/// it would abort.
async fn contained(core: RealCore, task: impl Future<Output = ()>) {
    if let Err(payload) = AssertUnwindSafe(task).catch_unwind().await {
        core.fail(payload.as_ref());
        core.bell(Queue::Foreground).ring();
        core.bell(Queue::Background).ring();
    }
}
