//! Datagrams of migrations: a socket, and the keys by which they are sealed. This file changes when datagrams are sealed or sent
//! in another way.

use std::io;
use std::net::{IpAddr, SocketAddr};

use sluice_agent::rsp::{Socket, wall_clock_ms};
use sluice_agent::{Error, error_chain};
use sluice_envelope::{
    BootId, ClusterKey, KeyRing, Limits, NodeId, Opener, PACKET_BYTES_MAX, Refusal, SealError, Sealer,
};
use sluice_southbound::PortMigration;

use super::wire::{Message, PROTOCOL};

/// Boot ids that are remembered: each other host has a few while it takes part in migrations.
const SENDERS_MAX: usize = 1024;

/// A datagram was refused, or its body is malformed.
enum Refused {
    Envelope(Refusal),
    Malformed,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Envelope(refusal)
    }
}

/// The transport of a host.
pub struct Transport {
    node: NodeId,
    socket: Socket,
    port: u16,
    sealer: Sealer,
    opener: Opener,
    /// Keys of the migrations, by number, and all of them for opening.
    keys: Vec<(u64, KeyRing)>,
    all: KeyRing,
    buffer: Vec<u8>,
}

impl Transport {
    /// Opens the transport of this node. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the port is in use, or the operating system returns no random bytes.
    pub fn open(name: &str, own: IpAddr, port: u16) -> Result<Self, Error> {
        let node: NodeId = match name.parse() {
            Ok(sluice_southbound::Node::Host(id)) => id.into(),
            Ok(sluice_southbound::Node::Gateway(id)) => id.into(),
            Err(error) => return Err(Error::Config(format!("{name}: {error}"))),
        };
        let what = format!("open UDP port {port} of {own} for migrations");
        Ok(Self {
            node,
            socket: Socket::bind(own, port).map_err(Error::io(what))?,
            port,
            sealer: Sealer::new(PROTOCOL, node, boot_id()?),
            opener: Opener::new(
                PROTOCOL,
                Limits { senders_max: SENDERS_MAX, ..Limits::default() },
                wall_clock_ms(),
            ),
            keys: Vec::new(),
            all: KeyRing::default(),
            buffer: vec![0; PACKET_BYTES_MAX + 1],
        })
    }

    /// Sets the migrations that this host takes part in.
    pub fn set_keys<'a>(&mut self, migrations: impl Iterator<Item = &'a PortMigration>) {
        let (mut keys, mut all) = (Vec::new(), Vec::new());
        for migration in migrations {
            // In the header, a key has 32 bits. Of two with the same ones, the later migration waits for the other one's end.
            let id = migration.id as u32;
            if all.iter().any(|key: &ClusterKey| key.id() == id) {
                continue;
            }
            let key = ClusterKey::new(id, migration.key.bytes(), 0, u64::MAX);
            match key.and_then(|key| Ok((KeyRing::new(vec![key.clone()])?, key))) {
                Ok((ring, key)) => {
                    keys.push((migration.id, ring));
                    all.push(key);
                }
                Err(error) => {
                    tracing::error!(migration = migration.id, error = error_chain(&error), "unusable key");
                }
            }
        }
        match KeyRing::new(all) {
            Ok(all) => (self.keys, self.all) = (keys, all),
            Err(error) => tracing::error!(error = error_chain(&error), "unusable keys of migrations"),
        }
    }

    /// Waits until there may be a datagram.
    pub async fn ready(&self) {
        // An error is seen again when the socket is used.
        let _ = self.socket.readable().await;
    }

    /// Receives a datagram; `None` if no datagram waits, an error if it was refused.
    pub fn receive(&mut self) -> Option<Result<(SocketAddr, Message), ()>> {
        let datagram = match self.socket.receive(&mut self.buffer) {
            Ok(datagram) => datagram,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => {
                // The error is about a packet that was sent; the next call returns the next datagram.
                tracing::debug!(%error, "socket of migrations");
                return Some(Err(()));
            }
        };
        let (local, packet) = (self.socket.local, &self.buffer[..datagram.length]);
        let read = |_: u8, body: &[u8]| Message::decode(body).ok_or(Refused::Malformed);
        match self.opener.open(&self.all, wall_clock_ms(), local, packet, read) {
            Ok(opened) => {
                // Another migration's key must not speak for this one.
                let is_its_own = message_migration(&opened.body) as u32 == opened.key_id;
                Some(if is_its_own { Ok((datagram.from, opened.body)) } else { Err(()) })
            }
            Err(refused) => {
                let reason = match refused {
                    Refused::Envelope(refusal) => refusal.to_string(),
                    Refused::Malformed => "malformed".to_owned(),
                };
                tracing::debug!(from = %datagram.from, reason, "datagram of a migration refused");
                Some(Err(()))
            }
        }
    }

    /// Sends a message to a host. What cannot be sent is lost: the target asks again.
    pub fn send(&mut self, to: IpAddr, message: &Message) {
        let migration = message_migration(message);
        let Some((_, ring)) = self.keys.iter().find(|(known, _)| *known == migration) else { return };
        let packet = match self.sealer.seal(ring, wall_clock_ms(), to, &message.encode()) {
            Ok(packet) => packet,
            Err(SealError::CountersExhausted) => {
                if let Ok(boot) = boot_id() {
                    self.sealer = Sealer::new(PROTOCOL, self.node, boot);
                }
                return;
            }
            Err(error) => {
                tracing::warn!(%to, error = error_chain(&error), "cannot seal a message of a migration");
                return;
            }
        };
        if let Err(error) = self.socket.send(SocketAddr::new(to, self.port), &packet) {
            tracing::debug!(%to, %error, "message of a migration not sent");
        }
    }
}

fn message_migration(message: &Message) -> u64 {
    match message {
        Message::Request(request) => request.head.migration,
        Message::Reply(reply) => reply.head.migration,
    }
}

fn boot_id() -> Result<BootId, Error> {
    let failed =
        || Error::io("create a boot id")(io::Error::other("the operating system returns no random bytes"));
    BootId::random().ok_or_else(failed)
}
