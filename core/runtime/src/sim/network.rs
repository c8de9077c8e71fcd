//! The simulated network: listeners, connections, and the links that their bytes travel.
//!
//! A connection keeps the order of its bytes and loses none while it lives, as TCP does. What a
//! network does to it is delay, stalls, cuts and resets; different connections overtake each other
//! freely.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use bytes::{Buf, Bytes};

use super::life::Death;
use super::options::LinkFaults;
use super::trace::{Step, content_hash};
use super::world::World;
use crate::limits::{ACCEPT_BACKLOG, OUTPUT_BUFFER_BYTES};
use crate::sync::{Notify, OneshotSender, oneshot};

/// Bytes of one direction that may be under way or unread.
const WINDOW_BYTES: usize = 64 * 1024;
const CONNECT_TIMEOUT_NS: u64 = 10_000_000_000;
/// How long a peer that lost its power goes unnoticed, at most.
const KEEPALIVE_NS: u64 = 30_000_000_000;
const FIRST_EPHEMERAL_PORT: u16 = 32_768;

pub(super) type ConnectionId = u64;

#[derive(Default)]
pub(super) struct Network {
    listeners: BTreeMap<(usize, u16), ListenerState>,
    connections: BTreeMap<ConnectionId, [End; 2]>,
    links: BTreeMap<(usize, usize), Link>,
    opened: u64,
    next_ports: BTreeMap<usize, u16>,
}

struct ListenerState {
    loopback_only: bool,
    backlog: VecDeque<ConnectionId>,
    arrived: Notify,
}

#[derive(Default)]
struct Link {
    faults: LinkFaults,
    clogged_until: u64,
}

/// A piece of a stream; `None` ends it.
type Segment = Option<Bytes>;

/// One end of a connection.
pub(super) struct End {
    pub(super) node: usize,
    pub(super) addr: SocketAddr,
    output: VecDeque<Bytes>,
    pub(super) output_bytes: usize,
    end_wanted: bool,
    end_sent: bool,
    under_way: usize,
    /// What arrived while the link was cut, to be sent again.
    held: VecDeque<Segment>,
    last_arrival: u64,
    input: VecDeque<Bytes>,
    input_bytes: usize,
    pub(super) ended_by_peer: bool,
    pub(super) error: Option<io::ErrorKind>,
    /// The node holds it open.
    attached: bool,
    pub(super) readable: Notify,
    pub(super) writable: Notify,
}

impl End {
    fn new(node: usize, addr: SocketAddr) -> End {
        End {
            node,
            addr,
            output: VecDeque::new(),
            output_bytes: 0,
            end_wanted: false,
            end_sent: false,
            under_way: 0,
            held: VecDeque::new(),
            last_arrival: 0,
            input: VecDeque::new(),
            input_bytes: 0,
            ended_by_peer: false,
            error: None,
            attached: true,
            readable: Notify::new(),
            writable: Notify::new(),
        }
    }

    fn fail(&mut self, error: io::ErrorKind) {
        if self.error.is_none() {
            self.error = Some(error);
        }
        self.output.clear();
        self.output_bytes = 0;
        self.input.clear();
        self.input_bytes = 0;
        self.held.clear();
        self.readable.notify_all();
        self.writable.notify_all();
    }

    /// Takes received bytes, at most `limit`.
    pub(super) fn take_input(&mut self, limit: usize, into: &mut bytes::BytesMut) -> usize {
        let mut taken = 0;
        while taken < limit {
            let Some(front) = self.input.front_mut() else {
                break;
            };
            let piece = front.split_to(front.len().min(limit - taken));
            taken += piece.len();
            into.extend_from_slice(&piece);
            if front.is_empty() {
                self.input.pop_front();
            }
        }
        self.input_bytes -= taken;
        taken
    }

    pub(super) fn has_input(&self) -> bool {
        self.input_bytes > 0
    }

    pub(super) fn push_output(&mut self, data: Bytes) {
        self.output_bytes += data.len();
        self.output.push_back(data);
    }

    pub(super) fn want_end(&mut self) {
        self.end_wanted = true;
    }

    fn is_done(&self) -> bool {
        !self.attached && (self.error.is_some() || self.end_sent)
    }
}

impl Network {
    pub(super) fn end(&mut self, id: ConnectionId, side: usize) -> &mut End {
        &mut self
            .connections
            .get_mut(&id)
            .expect("a connection lives while an end is attached")[side]
    }

    fn port(&mut self, node: usize) -> u16 {
        let next = self.next_ports.entry(node).or_insert(FIRST_EPHEMERAL_PORT);
        loop {
            let port = *next;
            *next = if port == u16::MAX {
                FIRST_EPHEMERAL_PORT
            } else {
                port + 1
            };
            if !self.listeners.contains_key(&(node, port)) {
                return port;
            }
        }
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        from != to
            && self
                .links
                .get(&(from, to))
                .is_some_and(|link| link.faults.cut)
    }

    pub(super) fn connection_count(&self) -> usize {
        self.connections.len()
    }
}

impl World {
    /// When a piece sent now arrives, not before `earliest`.
    fn arrival(&self, network: &Network, from: usize, to: usize, earliest: u64) -> u64 {
        let mut rng = self.network_rng.borrow_mut();
        let now = self.now();
        if from == to {
            return (now + rng.between(1_000, 20_000)).max(earliest);
        }
        let mut at = now;
        let mut delay = rng.between(*self.options.link_ns.start(), *self.options.link_ns.end());
        if let Some(link) = network.links.get(&(from, to)) {
            at = at.max(link.clogged_until);
            delay += u64::try_from(link.faults.delay.as_nanos())
                .expect("a delay of centuries is not simulated");
            if rng.chance(link.faults.loss) {
                self.stats.borrow_mut().segments_lost += 1;
                delay += rng.between(200_000_000, 2_000_000_000);
            }
        }
        (at + delay).max(earliest)
    }

    // Links.

    pub(super) fn set_link(self: &Rc<World>, from: usize, to: usize, faults: LinkFaults) {
        self.trace(
            Step::LinkFault,
            (from as u64) << 32 | to as u64,
            u64::from(faults.cut),
        );
        let mut network = self.network.borrow_mut();
        network.links.entry((from, to)).or_default().faults = faults;
        if network.is_cut(from, to) {
            return;
        }
        let waiting: Vec<(ConnectionId, usize)> = network
            .connections
            .iter()
            .flat_map(|(id, ends)| {
                [
                    (*id, 0, ends[0].node, ends[1].node),
                    (*id, 1, ends[1].node, ends[0].node),
                ]
            })
            .filter(|(_, _, sender, receiver)| (*sender, *receiver) == (from, to))
            .map(|(id, side, ..)| (id, side))
            .collect();
        for (id, side) in waiting {
            let held = std::mem::take(&mut network.end(id, side).held);
            for segment in held {
                self.send_segment(&mut network, id, side, segment);
            }
            self.pump(&mut network, id, side);
        }
    }

    pub(super) fn link_faults(&self, from: usize, to: usize) -> LinkFaults {
        self.network
            .borrow()
            .links
            .get(&(from, to))
            .map(|link| link.faults.clone())
            .unwrap_or_default()
    }

    pub(super) fn clog(&self, from: usize, to: usize, until: u64) {
        self.trace(Step::LinkFault, (from as u64) << 32 | to as u64, until);
        self.network
            .borrow_mut()
            .links
            .entry((from, to))
            .or_default()
            .clogged_until = until;
    }

    // Listeners.

    pub(super) fn bind(&self, node: usize, addr: SocketAddr) -> io::Result<SocketAddr> {
        let ip = addr.ip();
        if !ip.is_loopback() && !ip.is_unspecified() && ip != self.node(node).ip() {
            return Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("{ip} is not an address of this node"),
            ));
        }
        let mut network = self.network.borrow_mut();
        let port = if addr.port() == 0 {
            network.port(node)
        } else {
            addr.port()
        };
        if network.listeners.contains_key(&(node, port)) {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("port {port} is in use"),
            ));
        }
        let listener = ListenerState {
            loopback_only: ip.is_loopback(),
            backlog: VecDeque::new(),
            arrived: Notify::new(),
        };
        network.listeners.insert((node, port), listener);
        Ok(SocketAddr::new(ip, port))
    }

    /// A connection that waits to be accepted, or the notification of an arrival.
    pub(super) fn try_accept(
        &self,
        node: usize,
        port: u16,
    ) -> Result<ConnectionId, crate::sync::Notified> {
        let mut network = self.network.borrow_mut();
        let listener = network
            .listeners
            .get_mut(&(node, port))
            .expect("a listener accepts while it lives");
        listener
            .backlog
            .pop_front()
            .ok_or_else(|| listener.arrived.notified())
    }

    pub(super) fn close_listener(self: &Rc<World>, node: usize, port: u16) {
        let mut network = self.network.borrow_mut();
        if let Some(listener) = network.listeners.remove(&(node, port)) {
            for id in listener.backlog {
                self.abandon(&mut network, id, 1);
            }
        }
    }

    // Connections.

    /// Starts to connect; the answer comes through `answer`.
    pub(super) fn start_connect(
        self: &Rc<World>,
        node: usize,
        target: SocketAddr,
        answer: OneshotSender<io::Result<ConnectionId>>,
    ) {
        let loopback = target.ip().is_loopback() || target.ip().is_unspecified();
        let found = if loopback {
            Some(node)
        } else {
            self.node_at(target.ip())
        };
        let Some(peer) = found else {
            let unreachable = io::Error::new(
                io::ErrorKind::HostUnreachable,
                format!("no node has {}", target.ip()),
            );
            // No receiver waits when the caller is gone.
            let _ = answer.send(Err(unreachable));
            return;
        };
        let mut network = self.network.borrow_mut();
        let ip = if loopback {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            self.node(node).ip()
        };
        let local = SocketAddr::new(ip, network.port(node));
        if network.is_cut(node, peer) || network.is_cut(peer, node) {
            drop(network);
            self.refuse_later(
                self.now() + CONNECT_TIMEOUT_NS,
                answer,
                io::ErrorKind::TimedOut,
            );
            return;
        }
        let at = self.arrival(&network, node, peer, 0);
        drop(network);
        self.schedule_call(at, move |world| {
            world.arrive_at_listener(node, local, peer, target, answer)
        });
    }

    fn refuse_later(
        &self,
        at: u64,
        answer: OneshotSender<io::Result<ConnectionId>>,
        error: io::ErrorKind,
    ) {
        self.schedule_call(at, move |_| {
            // No receiver waits when the caller is gone.
            let _ = answer.send(Err(error.into()));
        });
    }

    fn arrive_at_listener(
        self: &Rc<World>,
        node: usize,
        local: SocketAddr,
        peer: usize,
        target: SocketAddr,
        answer: OneshotSender<io::Result<ConnectionId>>,
    ) {
        let peer_node = self.node(peer);
        let powered =
            peer_node.life().is_some() || peer_node.last_death.get() != Some(Death::PowerCut);
        let mut network = self.network.borrow_mut();
        let back = self.arrival(&network, peer, node, 0);
        let loopback = local.ip().is_loopback();
        let listener = network.listeners.get_mut(&(peer, target.port()));
        let listener = listener.filter(|listener| {
            (loopback || !listener.loopback_only) && listener.backlog.len() < ACCEPT_BACKLOG
        });
        let accepted = listener.is_some() && !answer.is_closed();
        self.trace(
            Step::Connect,
            (node as u64) << 32 | peer as u64,
            u64::from(accepted),
        );
        let Some(listener) = listener else {
            drop(network);
            if powered {
                self.refuse_later(back, answer, io::ErrorKind::ConnectionRefused);
            } else {
                self.refuse_later(
                    self.now() + CONNECT_TIMEOUT_NS,
                    answer,
                    io::ErrorKind::TimedOut,
                );
            }
            return;
        };
        if answer.is_closed() {
            return;
        }
        let arrived = listener.arrived.clone();
        network.opened += 1;
        let id = network.opened;
        let target_ip = if loopback {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            peer_node.ip()
        };
        let ends = [
            End::new(node, local),
            End::new(peer, SocketAddr::new(target_ip, target.port())),
        ];
        network.connections.insert(id, ends);
        network
            .listeners
            .get_mut(&(peer, target.port()))
            .expect("just seen")
            .backlog
            .push_back(id);
        drop(network);
        arrived.notify_one();
        self.schedule_call(back, move |world| {
            if answer.send(Ok(id)).is_err() {
                world.detach(id, 0, true);
            }
        });
    }

    /// Sends what the window has room for.
    pub(super) fn pump(self: &Rc<World>, network: &mut Network, id: ConnectionId, side: usize) {
        loop {
            let Some(ends) = network.connections.get_mut(&id) else {
                return;
            };
            let (node, peer_node) = (ends[side].node, ends[1 - side].node);
            let unread = ends[1 - side].input_bytes;
            let end = &mut ends[side];
            if end.error.is_some() || !end.held.is_empty() {
                return;
            }
            let Some(front) = end.output.front_mut() else {
                if end.end_wanted && !end.end_sent {
                    end.end_sent = true;
                    self.send_segment(network, id, side, None);
                }
                return;
            };
            let room = WINDOW_BYTES
                .saturating_sub(end.under_way + unread)
                .min(self.options.segment_bytes);
            if room == 0 {
                return;
            }
            let mut len = front.remaining().min(room);
            // A piece may be cut anywhere, and now and then is, so that no reader relies on whole
            // messages.
            {
                let mut rng = self.network_rng.borrow_mut();
                if len > 1 && rng.below(8) == 0 {
                    len = 1 + rng.below(len as u64 - 1) as usize;
                }
            }
            let piece = front.split_to(len);
            if front.is_empty() {
                end.output.pop_front();
            }
            end.output_bytes -= len;
            end.under_way += len;
            if end.output_bytes <= OUTPUT_BUFFER_BYTES {
                end.writable.notify_all();
            }
            let reset = network
                .links
                .get(&(node, peer_node))
                .map_or(0.0, |link| link.faults.reset);
            if node != peer_node && self.network_rng.borrow_mut().chance(reset) {
                self.stats.borrow_mut().connections_reset += 1;
                // The owner of this end has it still, and gets the error.
                self.reset(network, id, side);
                return;
            }
            self.send_segment(network, id, side, Some(piece));
        }
    }

    fn send_segment(
        self: &Rc<World>,
        network: &mut Network,
        id: ConnectionId,
        side: usize,
        segment: Segment,
    ) {
        let ends = &network.connections[&id];
        let at = self.arrival(
            network,
            ends[side].node,
            ends[1 - side].node,
            ends[side].last_arrival,
        );
        network.end(id, side).last_arrival = at;
        self.schedule_call(at, move |world| world.deliver(id, side, segment));
    }

    fn deliver(self: &Rc<World>, id: ConnectionId, side: usize, segment: Segment) {
        let mut network = self.network.borrow_mut();
        let Some(ends) = network.connections.get(&id) else {
            return;
        };
        let (from, to) = (ends[side].node, ends[1 - side].node);
        if ends[side].error.is_some() || ends[1 - side].error.is_some() {
            return;
        }
        // Once a piece is held, those behind it wait with it.
        if network.is_cut(from, to) || !network.end(id, side).held.is_empty() {
            network.end(id, side).held.push_back(segment);
            return;
        }
        let hash = segment.as_ref().map_or(0, |piece| content_hash(piece));
        self.trace(Step::Segment, id << 1 | side as u64, hash);
        match segment {
            Some(piece) => {
                network.end(id, side).under_way -= piece.len();
                let peer = network.end(id, 1 - side);
                if peer.attached {
                    peer.input_bytes += piece.len();
                    peer.input.push_back(piece);
                    peer.readable.notify_all();
                } else {
                    // No task will read this: the system answers with a reset.
                    self.reset(&mut network, id, 1 - side);
                }
                self.pump(&mut network, id, side);
            }
            None => {
                let peer = network.end(id, 1 - side);
                peer.ended_by_peer = true;
                peer.readable.notify_all();
            }
        }
        self.forget_if_done(&mut network, id);
    }

    /// Ends the connection at this end, and at the other one after the way there.
    fn reset(self: &Rc<World>, network: &mut Network, id: ConnectionId, side: usize) {
        let Some(ends) = network.connections.get(&id) else {
            return;
        };
        let (from, to) = (ends[side].node, ends[1 - side].node);
        let at = self.arrival(network, from, to, 0);
        network.end(id, side).fail(io::ErrorKind::ConnectionReset);
        self.schedule_call(at, move |world| world.arrive_reset(id, 1 - side));
    }

    /// This end has no owner any more, and what it had to send is lost.
    fn abandon(self: &Rc<World>, network: &mut Network, id: ConnectionId, side: usize) {
        if let Some(ends) = network.connections.get_mut(&id) {
            ends[side].attached = false;
            self.reset(network, id, side);
        }
    }

    fn arrive_reset(self: &Rc<World>, id: ConnectionId, side: usize) {
        let mut network = self.network.borrow_mut();
        let Some(ends) = network.connections.get(&id) else {
            return;
        };
        let (to, from) = (ends[side].node, ends[1 - side].node);
        if network.is_cut(from, to) {
            // Sent again until it gets through.
            drop(network);
            self.schedule_call(self.now() + 1_000_000_000, move |world| {
                world.arrive_reset(id, side)
            });
            return;
        }
        self.trace(Step::ConnectionEnd, id, side as u64);
        network.end(id, side).fail(io::ErrorKind::ConnectionReset);
        self.forget_if_done(&mut network, id);
    }

    /// The owner of an end releases it: at once, or after its output was sent.
    pub(super) fn detach(self: &Rc<World>, id: ConnectionId, side: usize, abort: bool) {
        let mut network = self.network.borrow_mut();
        if !network.connections.contains_key(&id) {
            return;
        }
        let end = network.end(id, side);
        if !end.attached {
            return;
        }
        end.attached = false;
        // As TCP does it: unread input or dropped output make it a reset.
        if end.error.is_none() && (end.has_input() || (abort && end.output_bytes > 0)) {
            self.reset(&mut network, id, side);
        } else {
            end.end_wanted = true;
            self.pump(&mut network, id, side);
        }
        self.forget_if_done(&mut network, id);
    }

    fn forget_if_done(&self, network: &mut Network, id: ConnectionId) {
        if network
            .connections
            .get(&id)
            .is_some_and(|ends| ends.iter().all(End::is_done))
        {
            network.connections.remove(&id);
        }
    }

    // Nodes.

    fn node_at(&self, ip: IpAddr) -> Option<usize> {
        self.nodes()
            .iter()
            .find(|node| node.ip() == ip)
            .map(|node| node.index)
    }

    pub(super) fn network_node_died(self: &Rc<World>, node: usize, death: Death) {
        let mut network = self.network.borrow_mut();
        network.listeners.retain(|(owner, _), _| *owner != node);
        let sides: Vec<(ConnectionId, usize)> = network
            .connections
            .iter()
            .flat_map(|(id, ends)| [(*id, 0, ends[0].node), (*id, 1, ends[1].node)])
            .filter(|(_, _, owner)| *owner == node)
            .map(|(id, side, _)| (id, side))
            .collect();
        for (id, side) in sides {
            match death {
                Death::PowerCut => {
                    // Nothing is sent; the peer notices when it asks.
                    let at = self.now() + self.network_rng.borrow_mut().below(KEEPALIVE_NS);
                    let Some(ends) = network.connections.get_mut(&id) else {
                        continue;
                    };
                    ends[side].attached = false;
                    ends[side].fail(io::ErrorKind::ConnectionReset);
                    self.schedule_call(at, move |world| world.arrive_reset(id, 1 - side));
                }
                Death::Kill => self.abandon(&mut network, id, side),
                Death::Exit => {
                    let Some(ends) = network.connections.get_mut(&id) else {
                        continue;
                    };
                    let end = &mut ends[side];
                    end.attached = false;
                    if end.has_input() {
                        self.reset(&mut network, id, side);
                    } else {
                        end.end_wanted = true;
                        self.pump(&mut network, id, side);
                    }
                }
            }
            self.forget_if_done(&mut network, id);
        }
    }

    /// A machine that is back answers what still comes for its former life with resets.
    pub(super) fn network_node_started(self: &Rc<World>, node: usize) {
        let network = self.network.borrow();
        let stale: Vec<(ConnectionId, usize)> = network
            .connections
            .iter()
            .flat_map(|(id, ends)| [(*id, 0, &ends[0]), (*id, 1, &ends[1])])
            .filter(|(_, _, end)| end.node == node && !end.attached && end.error.is_some())
            .map(|(id, side, _)| (id, side))
            .collect();
        drop(network);
        for (id, side) in stale {
            let at = self.now()
                + self
                    .network_rng
                    .borrow_mut()
                    .between(1_000_000, 500_000_000);
            self.schedule_call(at, move |world| world.arrive_reset(id, 1 - side));
        }
    }
}

/// Connects and waits for the answer.
pub(super) async fn connect(
    world: &Rc<World>,
    node: usize,
    target: SocketAddr,
) -> io::Result<ConnectionId> {
    let (sender, receiver) = oneshot();
    world.start_connect(node, target, sender);
    match receiver.await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
