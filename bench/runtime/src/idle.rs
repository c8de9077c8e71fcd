//! What idle connections cost: memory of each and CPU of all, beside the other servers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use crate::options::Options;
use crate::servers::{KINDS, Server};

const CONNECTIONS: usize = 1000;
const REQUEST: usize = 4096;

pub fn run(options: &Options) {
    println!(
        "\n# {CONNECTIONS} connections that have each echoed {REQUEST} bytes and then idle, spin {} us",
        options.spin_us
    );
    println!("server    CPU of the server   resident bytes a connection");
    for kind in KINDS {
        let server = Server::start(kind, options.spin_us);
        // A few first, so that what every server needs once is not counted.
        drop((0..10).map(|_| connect(&server)).collect::<Vec<_>>());
        let before = server.resident_bytes();
        let connections: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(&server)).collect();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let (cpu, begin) = (server.cpu_ns(), Instant::now());
        std::thread::sleep(options.duration());
        let share = (server.cpu_ns() - cpu) as f64 / begin.elapsed().as_nanos() as f64;
        let bytes = server.resident_bytes().saturating_sub(before) / connections.len() as u64;
        println!("{kind:<9} {:>15.3} % {bytes:>29}", share * 100.0);
    }
}

fn connect(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).expect("the server accepts");
    let mut buffer = [7; REQUEST];
    stream.write_all(&buffer).expect("the server reads");
    stream.read_exact(&mut buffer).expect("the server echoes");
    stream
}
