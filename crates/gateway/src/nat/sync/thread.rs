//! The thread that copies sessions: feeds datagrams, commands and the clock to [`SyncPeer`], and sends what it returns. This file
//! changes when it waits for something else.

use std::io::ErrorKind;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_nat_sync::{DATAGRAM_BYTES_MAX, SessionTable};
use tokio::sync::watch;

use super::Command;
use super::peer::{Event, SyncPeer};
use super::status::{SyncStatus, lock};
use crate::ownership::{Receiver, Sockets, now};
use sluice_agent::mailbox::Inbox;

/// Datagrams received from a socket before the other sockets get their turn.
const BURST: usize = 64;
/// Interval at which sockets are opened that could not be opened before.
const OPEN_SOCKETS_US: u64 = 500_000;
/// Shortest time between two updates of the status: it names each NAT gateway.
const STATUS_US: u64 = 500_000;

/// State of the thread.
pub struct SyncThread {
    pub peer: SyncPeer,
    pub table: Box<dyn SessionTable + Send>,
    pub sockets: Sockets,
    /// Commands. The thread ends when the other end is dropped.
    pub inbox: Inbox<Command>,
    pub status: Arc<Mutex<SyncStatus>>,
    /// Whether this gateway has all copies.
    pub complete: watch::Sender<bool>,
    /// Times at which sockets and status are due.
    pub open_sockets_us: u64,
    pub status_us: u64,
}

impl SyncThread {
    /// Runs until the other end of the inbox is dropped.
    pub fn run(mut self) {
        while self.turn() {}
    }

    /// Waits for an input and handles all inputs. Returns false when the thread must end.
    fn turn(&mut self) -> bool {
        if !self.wait() {
            return false;
        }
        self.receive();
        let continues = self.handle_commands();
        if now().boot_us >= self.peer.due_us() {
            self.handle(Event::Timer);
        }
        let now_us = now().boot_us;
        if now_us >= self.open_sockets_us {
            self.open_sockets_us = now_us + OPEN_SOCKETS_US;
            self.sockets.open();
        }
        let complete = self.peer.is_complete();
        let has_changed =
            self.complete.send_if_modified(|known| std::mem::replace(known, complete) != complete);
        if has_changed || now_us >= self.status_us {
            self.status_us = now_us + STATUS_US;
            *lock(&self.status) = self.peer.status();
        }
        continues
    }

    /// Waits until an input arrives or something is due. Returns false when the thread must end.
    fn wait(&mut self) -> bool {
        let due_us = self.peer.due_us().min(self.open_sockets_us).min(self.status_us);
        let wait = Duration::from_micros(due_us.saturating_sub(now().boot_us));
        self.inbox.wait(self.sockets.descriptors(), wait)
    }

    fn receive(&mut self) {
        // Longer datagrams are cut, and refused.
        let mut packet = [0; DATAGRAM_BYTES_MAX + 1];
        for index in 0..self.sockets.gateway_sockets() {
            for _ in 0..BURST {
                match self.sockets.receive_from_gateway(index, &mut packet) {
                    Ok((local, _, bytes)) => self.handle(Event::Datagram { local, packet: &packet[..bytes] }),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // An ICMP error about an earlier datagram.
                    Err(_) => {}
                }
            }
        }
    }

    /// Handles all commands. Returns false if their sender was dropped.
    fn handle_commands(&mut self) -> bool {
        loop {
            match self.inbox.take() {
                Ok(Command::Keys(keys)) => self.handle(Event::Keys(keys)),
                Ok(Command::View(view)) => self.handle(Event::View(view)),
                Ok(Command::Units(units)) => self.handle(Event::Units(units)),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn handle(&mut self, event: Event<'_>) {
        for (to, packet) in self.peer.handle(now(), event, &mut *self.table) {
            if let Err(error) = self.sockets.send(Receiver::Gateway(to), &packet) {
                // It is sent again.
                tracing::trace!(%to, %error, "cannot send a datagram");
            }
        }
    }
}
