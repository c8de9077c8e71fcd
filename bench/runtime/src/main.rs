//! Measures the runtime beside glommio's own sockets, a plain epoll server and a bare ring.
//!
//! `pinion-bench-runtime echo|idle|mesh|files|commit|all`
//! with `[--seconds S] [--rounds N] [--spin-us U] [--dir D]`
// A load generator runs outside of a node: its clocks, threads and sockets are real.
#![allow(clippy::disallowed_methods)]

mod commit;
mod cpu;
mod disk;
mod echo;
mod files;
mod idle;
mod kit;
mod mesh;
mod options;
mod servers;

use options::Options;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, kind, spin_us] = arguments.as_slice()
        && mode == "server"
    {
        servers::serve(kind, spin_us.parse().expect("microseconds"));
        return;
    }
    let (command, options) = match Options::parse(&arguments) {
        Ok(parsed) => parsed,
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(2);
        }
    };
    match command.as_str() {
        "echo" => echo::run(&options),
        "idle" => idle::run(&options),
        "mesh" => mesh::run(&options),
        "files" => files::run(&options),
        "commit" => commit::run(&options),
        _ => {
            echo::run(&options);
            idle::run(&options);
            mesh::run(&options);
            files::run(&options);
            commit::run(&options);
        }
    }
}
