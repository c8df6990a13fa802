//! From messages to datagrams and back.

use std::collections::VecDeque;
use std::future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use sluice_rsp::{BootId, Limits, Message, NodeId, Opener, PACKET_BYTES_MAX, SealError, Sealer};
use tokio::sync::watch;

use super::keys::Keys;
use super::socket::{Datagram, Socket};
use super::stats::{Kind, RspStats, Unsent};
use super::wall_clock_ms;
use super::way::Ways;
use crate::Error;
use crate::underlay::Vteps;

/// Packets that wait for a socket that is full.
const QUEUE_MAX: usize = 4096;

/// Who speaks, and where.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// This node.
    pub node: NodeId,
    /// Its addresses on the underlay, on which it listens.
    pub vteps: Vteps,
    /// UDP port, this node's and all others'.
    pub port: u16,
}

/// An authentic message.
#[derive(Clone, Debug)]
pub struct Received {
    /// Where it seems to come from: the sender's address is not authenticated.
    pub from: SocketAddr,
    /// The cluster with whose key it was sealed: it speaks for that one's networks only.
    pub cluster: u32,
    /// What it says.
    pub message: Message,
}

struct Outgoing {
    to: SocketAddr,
    kind: Kind,
    packet: Vec<u8>,
}

/// A node's end of RSP. One task has it.
pub struct Edge {
    config: EdgeConfig,
    /// At most one of each family.
    sockets: Vec<Socket>,
    keys: watch::Receiver<Arc<Keys>>,
    opener: Opener,
    sealer: Sealer,
    ways: Ways,
    queue: VecDeque<Outgoing>,
    buffer: Vec<u8>,
    /// The kernel's counts of datagrams that found each socket full.
    overflowed: Vec<u32>,
    keyless_told: bool,
    stats: Arc<RspStats>,
}

impl Edge {
    /// Opens the sockets of the families that this node has an address of. To be called within a runtime.
    ///
    /// # Errors
    /// If the port is taken, or there are no random bytes.
    pub fn open(config: EdgeConfig, keys: watch::Receiver<Arc<Keys>>) -> Result<Self, Error> {
        let vteps = [config.vteps.v4.map(IpAddr::V4), config.vteps.v6.map(IpAddr::V6)];
        let open = |local: IpAddr| {
            let what = format!("open UDP port {} of {local} for RSP", config.port);
            Socket::bind(local, config.port).map_err(Error::io(what))
        };
        let sockets = vteps.into_iter().flatten().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            overflowed: vec![0; sockets.len()],
            sockets,
            keys,
            opener: Opener::new(Limits::default(), wall_clock_ms()),
            sealer: Sealer::new(config.node, boot_id()?),
            ways: Ways::default(),
            queue: VecDeque::new(),
            // A datagram that is longer than any packet is seen to be so.
            buffer: vec![0; PACKET_BYTES_MAX + 1],
            keyless_told: false,
            stats: Arc::default(),
            config,
        })
    }

    /// What it counts.
    #[must_use]
    pub fn stats(&self) -> Arc<RspStats> {
        self.stats.clone()
    }

    /// This node's address of the family of another one's; `None` if it has none.
    #[must_use]
    pub fn own_address(&self, other: IpAddr) -> Option<IpAddr> {
        self.socket(other).map(|socket| socket.local)
    }

    fn socket(&self, other: IpAddr) -> Option<&Socket> {
        self.sockets.iter().find(|socket| socket.local.is_ipv4() == other.is_ipv4())
    }

    /// Waits until there may be something to receive, or the queue can go on. Nothing is lost when this is
    /// given up.
    pub async fn ready(&self) {
        let writable = async {
            match self.queue.front().and_then(|outgoing| self.socket(outgoing.to.ip())) {
                Some(socket) => socket.writable().await,
                None => future::pending().await,
            }
        };
        // An error shows when the socket is used.
        let _ = tokio::select! {
            result = readable(self.sockets.first()) => result,
            result = readable(self.sockets.get(1)) => result,
            result = writable => result,
        };
    }

    /// Takes up to `budget` datagrams that have come to each address. What is refused is counted.
    pub fn receive(&mut self, budget: usize) -> Vec<Received> {
        let keys = self.keys.borrow().clone();
        let mut received = Vec::new();
        for at in 0..self.sockets.len() {
            for _ in 0..budget {
                match self.sockets[at].receive(&mut self.buffer) {
                    Ok(datagram) => received.extend(self.open_datagram(&keys, at, &datagram)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The kernel reports an earlier packet's fate; the next call is about the next datagram.
                    Err(error) => tracing::debug!(%error, "RSP socket"),
                }
            }
        }
        self.stats.set_opener(self.opener.refused(), self.opener.senders().0);
        received
    }

    fn open_datagram(&mut self, keys: &Keys, at: usize, datagram: &Datagram) -> Option<Received> {
        if let Some(count) = datagram.overflow {
            let known = std::mem::replace(&mut self.overflowed[at], count);
            self.stats.note_overflow(count.wrapping_sub(known).into());
        }
        if keys.is_empty() {
            self.tell_keyless();
        }
        let (local, packet) = (self.sockets[at].local, &self.buffer[..datagram.length]);
        match self.opener.open(keys.all(), wall_clock_ms(), local, packet) {
            Ok(opened) => {
                self.stats.note_received(Kind::of(&opened.message));
                let cluster = keys.cluster_of(opened.key_id)?;
                Some(Received { from: datagram.from, cluster, message: opened.message })
            }
            Err(refusal) => {
                tracing::debug!(from = %datagram.from, %refusal, "RSP packet refused");
                None
            }
        }
    }

    /// Sends a message to the node at an underlay address, sealed with a cluster's key. What cannot be sent
    /// is counted, and forgotten: the protocol says everything again that matters.
    pub fn send(&mut self, cluster: u32, to: IpAddr, message: &Message) {
        self.send_to(cluster, SocketAddr::new(to, self.config.port), message);
    }

    /// The same, to where a question came from.
    pub fn send_to(&mut self, cluster: u32, to: SocketAddr, message: &Message) {
        match self.seal(cluster, to, message) {
            Ok(packets) => {
                let kind = Kind::of(message);
                for packet in packets {
                    if self.queue.len() < QUEUE_MAX {
                        self.queue.push_back(Outgoing { to, kind, packet });
                    } else {
                        self.stats.note_unsent(Unsent::QueueFull);
                    }
                }
                self.flush();
            }
            Err(why) => self.stats.note_unsent(why),
        }
    }

    fn seal(&mut self, cluster: u32, to: SocketAddr, message: &Message) -> Result<Vec<Vec<u8>>, Unsent> {
        let from = self.own_address(to.ip()).ok_or(Unsent::NoAddress)?;
        let keys = self.keys.borrow().clone();
        let Some(ring) = keys.of(cluster) else {
            self.tell_keyless();
            return Err(Unsent::NoKey);
        };
        let mtu = self.ways.mtu(from, to, Instant::now()).map_err(|error| {
            tracing::debug!(%to, %error, "no way for RSP");
            Unsent::Refused
        })?;
        match self.sealer.seal(ring, wall_clock_ms(), to.ip(), mtu, message) {
            Ok(packets) => Ok(packets),
            Err(SealError::NoKey { .. }) => Err(Unsent::NoKey),
            Err(SealError::Mtu { .. }) => Err(Unsent::TooLong),
            Err(SealError::Exhausted) => {
                if let Ok(boot) = boot_id() {
                    self.sealer = Sealer::new(self.config.node, boot);
                }
                Err(Unsent::NoKey)
            }
            Err(error @ SealError::Message(_)) => {
                tracing::warn!(%to, error = crate::chain(&error), "a message that cannot be said");
                Err(Unsent::Invalid)
            }
        }
    }

    /// Sends what waits, as far as the sockets take it.
    pub fn flush(&mut self) {
        while let Some(outgoing) = self.queue.front() {
            let (to, kind) = (outgoing.to, outgoing.kind);
            let result = match self.socket(to.ip()) {
                Some(socket) => socket.send(to, &outgoing.packet),
                None => Err(io::ErrorKind::AddrNotAvailable.into()),
            };
            match result {
                Ok(()) => self.stats.note_sent(kind),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    self.ways.forget(to.ip());
                    self.stats.note_unsent(Unsent::TooLong);
                }
                Err(error) => {
                    tracing::debug!(%to, %error, "RSP packet not sent");
                    self.stats.note_unsent(Unsent::Refused);
                }
            }
            self.queue.pop_front();
        }
    }

    fn tell_keyless(&mut self) {
        if !std::mem::replace(&mut self.keyless_told, true) {
            tracing::warn!(
                "no cluster key for RSP: no direct paths are learned until the controller sends it"
            );
        }
    }
}

/// Never, where there is no socket.
async fn readable(socket: Option<&Socket>) -> io::Result<()> {
    match socket {
        Some(socket) => socket.readable().await,
        None => future::pending().await,
    }
}

fn boot_id() -> Result<BootId, Error> {
    let none = || Error::io("draw a boot id")(io::Error::other("the operating system gives no random bytes"));
    BootId::random().ok_or_else(none)
}
