//! The echo servers: each runs in a process of its own, on one core.

mod epoll;
mod glommio;
mod pinion;
mod ring;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use crate::cpu;

/// The servers in the order of the table.
pub const KINDS: [&str; 4] = ["pinion", "glommio", "epoll", "ring"];

/// A running server process.
pub struct Server {
    pub address: SocketAddr,
    child: Child,
}

impl Server {
    /// Starts this program again as a server and waits until it listens.
    pub fn start(kind: &str, spin_us: u64) -> Server {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            .args(["server", kind, &spin_us.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("the server tells its port");
        let port: u16 = line.trim().parse().expect("a port");
        Server {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            child,
        }
    }

    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .unwrap_or(0)
            * 1024
    }

    pub fn cpu_ns(&self) -> u64 {
        cpu::process_ns(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a server until killed.
pub fn serve(kind: &str, spin_us: u64) {
    let (cpu, _) = cpu::server_and_client();
    match kind {
        "pinion" => pinion::serve(cpu, spin_us),
        "glommio" => glommio::serve(cpu, spin_us),
        "epoll" => epoll::serve(cpu),
        _ => ring::serve(cpu),
    }
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

fn announce(port: u16) {
    println!("{port}");
}
