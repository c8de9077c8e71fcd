//! Request and response over loopback: the server on one core, the client on the other.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::cpu;
use crate::kit::Kit;
use crate::options::{Options, median};
use crate::servers::{KINDS, Server};

const MESSAGE: usize = 64;
const SEND: u64 = 1 << 41;

/// One measurement.
struct Sample {
    rate: f64,
    server_ns: f64,
    client_ns: f64,
    p50_us: f64,
    p99_us: f64,
}

struct Peer {
    stream: TcpStream,
    sending: Vec<u8>,
    /// Bytes of responses for which no request was sent yet.
    owed: usize,
    in_flight: bool,
    sent_at: Instant,
}

pub fn run(options: &Options) {
    let (server_cpu, client_cpu) = cpu::server_and_client();
    // Started before this thread is pinned: a process inherits the CPUs of the thread that starts
    // it.
    let servers: Vec<Server> = KINDS
        .iter()
        .map(|kind| Server::start(kind, options.spin_us))
        .collect();
    cpu::pin(client_cpu);
    println!(
        "\n# Echo, {MESSAGE}-byte requests over loopback; server on CPU {server_cpu}, client on CPU {client_cpu}, spin {} us",
        options.spin_us
    );
    println!(
        "connections depth  server      ops/s  server ns/op  client ns/op   p50 us   p99 us   (median of {} interleaved rounds)",
        options.rounds
    );
    let mut cases: Vec<(usize, usize)> = options
        .connections
        .iter()
        .map(|&connections| (connections, 1))
        .collect();
    cases.extend(
        options
            .connections
            .iter()
            .filter(|&&connections| connections <= 64)
            .map(|&connections| (connections, 16)),
    );
    for (connections, depth) in cases {
        let mut samples: Vec<Vec<Sample>> = KINDS.iter().map(|_| Vec::new()).collect();
        for _ in 0..options.rounds {
            for (server, samples) in servers.iter().zip(&mut samples) {
                samples.push(measure(server, connections, depth, options.duration()));
            }
        }
        let mut rows = Vec::new();
        for (kind, samples) in KINDS.iter().zip(&samples) {
            let pick = |f: fn(&Sample) -> f64| median(samples.iter().map(f).collect());
            let (rate, server_ns) = (pick(|s| s.rate), pick(|s| s.server_ns));
            println!(
                "{connections:>11} {depth:>5}  {kind:<8} {rate:>9.0} {server_ns:>13.0} {:>13.0} {:>8.1} {:>8.1}",
                pick(|s| s.client_ns),
                pick(|s| s.p50_us),
                pick(|s| s.p99_us)
            );
            rows.push((rate, server_ns));
        }
        let [pinion, glommio, epoll, ring] = rows[..] else {
            unreachable!("four servers")
        };
        println!(
            "{:>17}  pinion: rate {:.2}x glommio, {:.2}x best other; CPU/op {:.2}x better than glommio, {:.2}x best other",
            "",
            pinion.0 / glommio.0,
            pinion.0 / epoll.0.max(ring.0),
            glommio.1 / pinion.1,
            epoll.1.min(ring.1) / pinion.1
        );
    }
}

fn measure(server: &Server, connections: usize, depth: usize, duration: Duration) -> Sample {
    let mut kit = Kit::new();
    let mut peers: Vec<Peer> = (0..connections)
        .map(|_| Peer::connect(server.address))
        .collect();
    for (index, peer) in peers.iter_mut().enumerate() {
        kit.receive(peer.stream.as_raw_fd(), index as u64);
        peer.owed = depth * MESSAGE;
        peer.send(&mut kit, index);
    }
    let mut latencies =
        Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
    // A short run first, so that connections are established and caches warm.
    drive(
        &mut kit,
        &mut peers,
        Duration::from_millis(200),
        &mut latencies,
    );
    latencies.reset();
    let (server_before, client_before, begin) = (server.cpu_ns(), cpu::thread_ns(), Instant::now());
    let operations = drive(&mut kit, &mut peers, duration, &mut latencies) as f64;
    let elapsed = begin.elapsed().as_secs_f64();
    let (server_after, client_after) = (server.cpu_ns(), cpu::thread_ns());
    drop(peers);
    drop(kit);
    // Let the server see the ends of these connections before the next measurement begins.
    std::thread::sleep(Duration::from_millis(50));
    Sample {
        rate: operations / elapsed,
        server_ns: (server_after - server_before) as f64 / operations,
        client_ns: (client_after - client_before) as f64 / operations,
        p50_us: latencies.value_at_quantile(0.5) as f64 / 1000.0,
        p99_us: latencies.value_at_quantile(0.99) as f64 / 1000.0,
    }
}

impl Peer {
    fn connect(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("nodelay");
        Peer {
            stream,
            sending: Vec::new(),
            owed: 0,
            in_flight: false,
            sent_at: Instant::now(),
        }
    }

    /// Sends a request for each whole response that came.
    fn send(&mut self, kit: &mut Kit, index: usize) {
        let requests = self.owed / MESSAGE;
        if requests == 0 || self.in_flight {
            return;
        }
        self.owed -= requests * MESSAGE;
        self.sending.resize(requests * MESSAGE, 0x11);
        self.in_flight = true;
        self.sent_at = Instant::now();
        kit.send(self.stream.as_raw_fd(), &self.sending, index as u64 | SEND);
    }
}

/// Runs the closed loop; how many responses came.
fn drive(
    kit: &mut Kit,
    peers: &mut [Peer],
    duration: Duration,
    latencies: &mut Histogram<u64>,
) -> u64 {
    let end = Instant::now() + duration;
    let mut events = Vec::new();
    let mut received = 0u64;
    loop {
        kit.turn(Duration::from_millis(100), &mut events);
        let now = Instant::now();
        for event in events.drain(..) {
            let index = (event.user_data & !SEND) as usize;
            let peer = &mut peers[index];
            if event.user_data & SEND != 0 {
                assert!(event.result > 0, "the server closed a connection");
                peer.in_flight = false;
            } else {
                if let Some(buffer) = event.buffer() {
                    kit.give_back(buffer);
                    received += event.result as u64;
                    peer.owed += event.result as usize;
                    latencies.saturating_record((now - peer.sent_at).as_nanos() as u64);
                }
                if !event.more() {
                    assert!(event.result != 0, "the server closed a connection");
                    kit.receive(peer.stream.as_raw_fd(), index as u64);
                }
            }
            peer.send(kit, index);
        }
        if now >= end {
            return received / MESSAGE as u64;
        }
    }
}
