//! RSP transport of a node: seals messages and sends them as datagrams, receives datagrams and opens them. This
//! file changes when packets are queued, sealed or counted differently.

use std::collections::{HashMap, VecDeque};
use std::future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use sluice_envelope::{self as envelope, BootId, Limits, NodeId, PACKET_BYTES_MAX};
use sluice_rsp::{Message, Opener, SealError, Sealer};
use tokio::sync::watch;

use super::key_store::Keys;
use super::path_mtu::PathMtuCache;
use super::socket::{Datagram, Socket};
use super::stats::{MessageKind, RspStats, Unsent};
use super::wall_clock_ms;
use crate::Error;
use crate::underlay::Vteps;

/// Packets that may wait while a socket is full.
const QUEUE_MAX: usize = 4096;

/// The node and the addresses that a transport is for.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// This node, as the sender of its packets.
    pub node: NodeId,
    /// Underlay addresses that the transport listens on.
    pub vteps: Vteps,
    /// UDP port of this node and of all others.
    pub port: u16,
}

/// Hosts whose keys a gateway keeps. When there are more, it forgets all and derives them when it needs them.
const HOSTS_MAX: usize = 16_384;

/// The keys of hosts that a gateway has derived. Only those of hosts that have sent an authentic packet, or that
/// are sent one, are kept: sources of datagrams may be forged.
#[derive(Default)]
struct HostKeys {
    /// The keys from which they were derived.
    from: Arc<Keys>,
    by_address: HashMap<IpAddr, Arc<Keys>>,
}

impl HostKeys {
    /// The keys to seal packets to a node with, and to open its packets: on hosts, the keys of this node.
    fn get(&mut self, keys: &Arc<Keys>, peer: IpAddr) -> Arc<Keys> {
        if !keys.are_derived() {
            return keys.clone();
        }
        if !Arc::ptr_eq(keys, &self.from) {
            *self = Self { from: keys.clone(), by_address: HashMap::new() };
        }
        self.by_address.get(&peer).cloned().unwrap_or_else(|| Arc::new(keys.of_host(peer)))
    }

    fn keep(&mut self, peer: IpAddr, keys: &Arc<Keys>) {
        if !self.from.are_derived() || self.by_address.contains_key(&peer) {
            return;
        }
        if self.by_address.len() >= HOSTS_MAX {
            self.by_address.clear();
        }
        self.by_address.insert(peer, keys.clone());
    }
}

/// A received, authentic message.
#[derive(Clone, Debug)]
pub struct Received {
    /// Source of the datagram. At a gateway it is authentic: the key is that of the host with this address. At a
    /// host it is not, but only gateways have the host's key.
    pub from: SocketAddr,
    /// The cluster with whose key the message was sealed. It is authoritative for the networks of this
    /// cluster only.
    pub cluster: u32,
    /// The message.
    pub message: Message,
}

struct Outgoing {
    to: SocketAddr,
    kind: MessageKind,
    packet: Vec<u8>,
}

/// RSP transport of a node. A single task uses it.
pub struct RspTransport {
    config: TransportConfig,
    /// At most one socket for each address family.
    sockets: Vec<Socket>,
    keys: watch::Receiver<Arc<Keys>>,
    host_keys: HostKeys,
    opener: Opener,
    sealer: Sealer,
    path_mtu: PathMtuCache,
    queue: VecDeque<Outgoing>,
    buffer: Vec<u8>,
    /// For each socket, the kernel's last count of datagrams dropped because the socket was full.
    overflow_counts: Vec<u32>,
    no_key_logged: bool,
    stats: Arc<RspStats>,
}

impl RspTransport {
    /// Opens a socket for each address of this node. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the port is in use, or the operating system returns no random bytes.
    pub fn open(config: TransportConfig, keys: watch::Receiver<Arc<Keys>>) -> Result<Self, Error> {
        let open = |local: IpAddr| {
            let what = format!("open UDP port {} of {local} for RSP", config.port);
            Socket::bind(local, config.port).map_err(Error::io(what))
        };
        let sockets = config.vteps.addresses().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            overflow_counts: vec![0; sockets.len()],
            sockets,
            keys,
            host_keys: HostKeys::default(),
            opener: Opener::new(Limits::default(), wall_clock_ms()),
            sealer: Sealer::new(config.node, boot_id()?),
            path_mtu: PathMtuCache::default(),
            queue: VecDeque::new(),
            // One byte more than the longest packet, so that longer datagrams are recognized.
            buffer: vec![0; PACKET_BYTES_MAX + 1],
            no_key_logged: false,
            stats: Arc::default(),
            config,
        })
    }

    /// The transport's counters.
    #[must_use]
    pub fn stats(&self) -> Arc<RspStats> {
        self.stats.clone()
    }

    /// This node's address of the same family as `other`; `None` if it has none.
    #[must_use]
    pub fn own_address(&self, other: IpAddr) -> Option<IpAddr> {
        self.socket(other).map(|socket| socket.local)
    }

    fn socket(&self, other: IpAddr) -> Option<&Socket> {
        self.sockets.iter().find(|socket| socket.local.is_ipv4() == other.is_ipv4())
    }

    /// Waits until there may be a datagram to receive, or queued packets can be sent. Canceling the wait
    /// loses nothing.
    pub async fn ready(&self) {
        let writable = async {
            match self.queue.front().and_then(|outgoing| self.socket(outgoing.to.ip())) {
                Some(socket) => socket.writable().await,
                None => future::pending().await,
            }
        };
        // An error is seen again when the socket is used.
        let _ = tokio::select! {
            result = readable(self.sockets.first()) => result,
            result = readable(self.sockets.get(1)) => result,
            result = writable => result,
        };
    }

    /// Receives up to `budget` datagrams from each socket. Refused datagrams are counted.
    pub fn receive(&mut self, budget: usize) -> Vec<Received> {
        let keys = self.keys.borrow().clone();
        let mut received = Vec::new();
        for index in 0..self.sockets.len() {
            for _ in 0..budget {
                match self.sockets[index].receive(&mut self.buffer) {
                    Ok(datagram) => received.extend(self.open_datagram(&keys, index, &datagram)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The error is about a packet that was sent; the next call returns the next datagram.
                    Err(error) => tracing::debug!(%error, "RSP socket"),
                }
            }
        }
        self.stats.set_opener(self.opener.refused(), self.opener.senders().0);
        received
    }

    fn open_datagram(&mut self, keys: &Arc<Keys>, index: usize, datagram: &Datagram) -> Option<Received> {
        if let Some(count) = datagram.overflow {
            let known = std::mem::replace(&mut self.overflow_counts[index], count);
            self.stats.note_overflow(count.wrapping_sub(known).into());
        }
        if keys.is_empty() {
            self.log_no_key();
        }
        let (local, packet) = (self.sockets[index].local, &self.buffer[..datagram.length]);
        let keys = self.host_keys.get(keys, datagram.from.ip());
        match self.opener.open(keys.all(), wall_clock_ms(), local, packet) {
            Ok(opened) => {
                self.stats.note_received(MessageKind::of(&opened.message));
                self.host_keys.keep(datagram.from.ip(), &keys);
                let cluster = keys.cluster_of(opened.key_id)?;
                Some(Received { from: datagram.from, cluster, message: opened.message })
            }
            Err(refusal) => {
                tracing::debug!(from = %datagram.from, %refusal, "RSP packet refused");
                None
            }
        }
    }

    /// Sends a message to the RSP port of an underlay address, sealed with the key of `cluster`. Without a
    /// cluster there is no key. A message that cannot be sent is counted and dropped: the protocol repeats
    /// whatever matters.
    pub fn send(&mut self, cluster: Option<u32>, to: IpAddr, message: &Message) {
        self.send_to(cluster, SocketAddr::new(to, self.config.port), message);
    }

    /// Sends a message as [`RspTransport::send`] does, to a given port: that of the request that it answers.
    pub fn send_to(&mut self, cluster: Option<u32>, to: SocketAddr, message: &Message) {
        match self.seal(cluster, to, message) {
            Ok(packets) => {
                let kind = MessageKind::of(message);
                for packet in packets {
                    if self.queue.len() < QUEUE_MAX {
                        self.queue.push_back(Outgoing { to, kind, packet });
                    } else {
                        self.stats.note_unsent(Unsent::QueueFull);
                    }
                }
                self.flush();
            }
            Err(reason) => self.stats.note_unsent(reason),
        }
    }

    fn seal(
        &mut self,
        cluster: Option<u32>,
        to: SocketAddr,
        message: &Message,
    ) -> Result<Vec<Vec<u8>>, Unsent> {
        let from = self.own_address(to.ip()).ok_or(Unsent::NoAddress)?;
        let keys = self.keys.borrow().clone();
        let keys = self.host_keys.get(&keys, to.ip());
        let Some(ring) = cluster.and_then(|cluster| keys.of_cluster(cluster)) else {
            self.log_no_key();
            return Err(Unsent::NoKey);
        };
        self.host_keys.keep(to.ip(), &keys);
        let mtu = self.path_mtu.mtu(from, to, Instant::now()).map_err(|error| {
            tracing::debug!(%to, %error, "no route for an RSP packet");
            Unsent::Refused
        })?;
        match self.sealer.seal(ring, wall_clock_ms(), to.ip(), mtu, message) {
            Ok(packets) => Ok(packets),
            Err(SealError::Envelope(envelope::SealError::NoKey { .. })) => Err(Unsent::NoKey),
            Err(SealError::Mtu { .. }) => Err(Unsent::TooLong),
            Err(SealError::Envelope(envelope::SealError::CountersExhausted)) => {
                if let Ok(boot) = boot_id() {
                    self.sealer = Sealer::new(self.config.node, boot);
                }
                Err(Unsent::NoKey)
            }
            Err(error @ (SealError::Message(_) | SealError::Envelope(_))) => {
                tracing::warn!(%to, error = crate::error_chain(&error), "cannot encode an RSP message");
                Err(Unsent::Invalid)
            }
        }
    }

    /// Sends queued packets until a socket is full.
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
                    self.path_mtu.forget(to.ip());
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

    fn log_no_key(&mut self) {
        if !std::mem::replace(&mut self.no_key_logged, true) {
            tracing::warn!(
                "there is no cluster key for RSP: no direct paths are learned until the controller sends one"
            );
        }
    }
}

/// Waits until the socket is readable; for ever if there is no socket.
async fn readable(socket: Option<&Socket>) -> io::Result<()> {
    match socket {
        Some(socket) => socket.readable().await,
        None => future::pending().await,
    }
}

fn boot_id() -> Result<BootId, Error> {
    let failed =
        || Error::io("create a boot id")(io::Error::other("the operating system returns no random bytes"));
    BootId::random().ok_or_else(failed)
}
