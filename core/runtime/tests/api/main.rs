//! The runtime's interface, tested alike on both backends.
//!
//! Each test is an async function that runs on core 0 of a node with the stated number of cores, on the simulator with
//! several seeds and settings, and on the real backend.

mod files;
mod mesh;
mod sockets;
mod sync;
mod tasks;
mod time;

use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;

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
        let options = if seed == 0 { SimOptions::default() } else { SimOptions::random(seed) };
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

/// Defines the tests of a module: names of async functions, each with the number of cores it wants.
macro_rules! suite {
    ($($name:ident($cores:expr)),* $(,)?) => {
        mod simulated {
            $(#[test] fn $name() { crate::on_sim($cores, super::$name); })*
        }
    };
}
pub(crate) use suite;
