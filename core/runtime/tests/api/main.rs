//! The runtime's interface, tested alike on both backends.
//!
//! Each test is an async function that runs on core 0 of a node with the stated number of cores, on
//! the simulator with several seeds and settings, and on the real backend.
#![allow(
    clippy::disallowed_methods,
    reason = "the tests' own directories are made outside of the runtime"
)]

mod compute;
mod files;
mod mesh;
mod sockets;
mod sync;
mod tasks;
mod time;

use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;

use pinion_runtime::real::{RealOptions, available_cpus, run};
use pinion_runtime::sim::{Sim, SimOptions};
use pinion_runtime::{core_local, set_core_local};

/// A directory of the test's own.
struct TestDir(PathBuf);

/// A path in the test's directory.
fn path(name: &str) -> PathBuf {
    core_local::<TestDir>().0.join(name)
}

fn on_sim<F, Fut>(cores: usize, test: F)
where
    F: Fn() -> Fut + Copy + 'static,
    Fut: Future<Output = ()> + 'static,
{
    for seed in 0..8 {
        let options = if seed == 0 {
            SimOptions::default()
        } else {
            SimOptions::random(seed)
        };
        let sim = Sim::new(seed, options);
        let node = sim.add_node("node", cores, move |core| async move {
            set_core_local(Rc::new(TestDir(PathBuf::from("/"))));
            if core.0 == 0 {
                test().await;
            }
        });
        if let Err(stuck) = sim.run_until_down(node) {
            panic!("seed {seed}: the test does not end: {stuck:?}");
        }
    }
}

fn on_real<F, Fut>(name: &str, cores: usize, test: F)
where
    F: Fn() -> Fut + Copy + Send + 'static,
    Fut: Future<Output = ()> + 'static,
{
    // Not in the system's directory for temporary files, which may lie in memory and refuse direct
    // I/O.
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("api-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let cpus = available_cpus()
        .unwrap()
        .into_iter()
        .cycle()
        .take(cores)
        .collect();
    let options = RealOptions {
        cpus,
        handle_signals: false,
        on_usr1: None,
        on_quiet: None,
        on_large: None,
        on_idle: None,
        ..RealOptions::default()
    };
    let own = directory.clone();
    let result = run(options, move |core| {
        let own = own.clone();
        async move {
            set_core_local(Rc::new(TestDir(own)));
            if core.0 == 0 {
                test().await;
            }
        }
    });
    std::fs::remove_dir_all(&directory).unwrap();
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Defines the tests of a module: names of async functions, each with the number of cores it wants.
macro_rules! suite {
    ($($name:ident($cores:expr)),* $(,)?) => {
        mod simulated {
            $(#[test] fn $name() { crate::on_sim($cores, super::$name); })*
        }
        mod real {
            $(#[test] fn $name() { crate::on_real(stringify!($name), $cores, super::$name); })*
        }
    };
}
pub(crate) use suite;
