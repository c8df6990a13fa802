//! The thread that shares meters: reads them, feeds datagrams, commands and the clock to [`SharePeer`], sends what it returns, and has
//! shares written. This file changes when it waits for something else, or meters are read in another way.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use sluice_cluster::MESSAGE_BYTES_MAX;
use sluice_cluster::meters::{Sample, TICK_US};
use sluice_datapath::{MeterBytes, MeterCounters};
use sluice_tables::{FoundMeter, MeterReader};

use super::Command;
use super::peer::{SharePeer, Shares};
use super::status::ShareMetrics;
use crate::ownership::{Receiver, Sockets, now};
use sluice_agent::mailbox::Inbox;

/// Datagrams received from a socket before the other sockets get their turn.
const BURST: usize = 64;
/// Size of the receive buffer. Longer datagrams are not reports.
const DATAGRAM_BYTES: usize = MESSAGE_BYTES_MAX + 128;
/// Interval at which sockets are opened that could not be opened before.
const OPEN_SOCKETS_US: u64 = 500_000;
/// Intervals of [`TICK_US`] after which all numbers are looked at for meters that were added.
const SCAN_TICKS: u32 = 10;

/// Writes shares into the tables. What it cannot write is tried again in the next interval.
pub type SetShares = Box<dyn FnMut(Shares) + Send>;

/// The meters of a gateway, which others write meanwhile.
pub trait MeterSource: Send {
    /// Numbers from 1 to this one may have a meter.
    fn total(&self) -> u32;

    /// The meter with this number.
    fn find(&self, number: u32) -> Option<FoundMeter>;

    /// What it was offered.
    ///
    /// # Errors
    /// If the counters cannot be read.
    fn read(&self, number: u32) -> Result<MeterBytes, sluice_datapath::Error>;
}

impl MeterSource for (MeterReader, MeterCounters) {
    fn total(&self) -> u32 {
        self.0.total()
    }

    fn find(&self, number: u32) -> Option<FoundMeter> {
        self.0.find(number)
    }

    fn read(&self, number: u32) -> Result<MeterBytes, sluice_datapath::Error> {
        self.1.read(number)
    }
}

/// The meters that are there. Most numbers have none, so all of them are looked at less often.
pub struct SharedMeters {
    source: Box<dyn MeterSource>,
    numbers: Vec<u32>,
    ticks: u32,
    failure_logged: bool,
}

impl SharedMeters {
    /// The first samples are of the meters that are there then.
    pub fn new(source: Box<dyn MeterSource>) -> Self {
        Self { source, numbers: Vec::new(), ticks: 0, failure_logged: false }
    }

    /// What was offered to each meter until now.
    pub fn samples(&mut self) -> Vec<Sample> {
        if self.ticks.is_multiple_of(SCAN_TICKS) {
            let source = &self.source;
            self.numbers = (1..=source.total()).filter(|number| source.find(*number).is_some()).collect();
        }
        self.ticks = self.ticks.wrapping_add(1);
        // While a meter moves to another number, two may have its identifier.
        let mut samples = BTreeMap::new();
        for &number in &self.numbers {
            let Some(FoundMeter { id, rates_kbps, shares }) = self.source.find(number) else { continue };
            match self.source.read(number) {
                Ok(MeterBytes { passed, dropped }) => {
                    let offered = [0, 1].map(|direction| passed[direction].wrapping_add(dropped[direction]));
                    let rates = rates_kbps.map(|kbps| kbps.saturating_mul(125));
                    samples.insert(id, Sample { id, rates, shares, offered });
                }
                Err(error) if !self.failure_logged => {
                    self.failure_logged = true;
                    tracing::error!(%error, meter = id, "cannot share meters between gateways");
                }
                Err(_) => {}
            }
        }
        samples.into_values().collect()
    }
}

/// State of the thread.
pub struct ShareThread {
    pub peer: SharePeer,
    pub meters: SharedMeters,
    pub set_shares: SetShares,
    pub sockets: Sockets,
    /// Commands. The thread ends when the other end is dropped.
    pub inbox: Inbox<Command>,
    pub metrics: ShareMetrics,
    /// Times at which sockets and meters are due.
    pub open_sockets_us: u64,
    pub tick_us: u64,
}

impl ShareThread {
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
        let now_us = now().boot_us;
        if now_us >= self.open_sockets_us {
            self.open_sockets_us = now_us + OPEN_SOCKETS_US;
            self.sockets.open();
        }
        if now_us >= self.tick_us {
            self.tick_us = now_us + TICK_US;
            self.tick();
        }
        continues
    }

    fn tick(&mut self) {
        let samples = self.meters.samples();
        let (datagrams, shares) = self.peer.tick(now(), &samples);
        for (to, packet) in datagrams {
            if let Err(error) = self.sockets.send(Receiver::Gateway(to), &packet) {
                // The next report follows soon.
                tracing::trace!(%to, %error, "cannot send a datagram");
            }
        }
        if !shares.is_empty() {
            (self.set_shares)(shares);
        }
        self.metrics.set(self.peer.counts());
    }

    /// Waits until an input arrives or something is due. Returns false when the thread must end.
    fn wait(&mut self) -> bool {
        let wait =
            Duration::from_micros(self.tick_us.min(self.open_sockets_us).saturating_sub(now().boot_us));
        self.inbox.wait(self.sockets.descriptors(), wait)
    }

    fn receive(&mut self) {
        // Longer datagrams are cut, and refused.
        let mut packet = [0; DATAGRAM_BYTES];
        for index in 0..self.sockets.gateway_sockets() {
            for _ in 0..BURST {
                match self.sockets.receive_from_gateway(index, &mut packet) {
                    Ok((local, _, bytes)) => self.peer.receive(now(), local, &packet[..bytes]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // An ICMP error about an earlier datagram: a gateway of an earlier version has no such socket.
                    Err(_) => {}
                }
            }
        }
    }

    /// Handles all commands. Returns false if their sender was dropped.
    fn handle_commands(&mut self) -> bool {
        loop {
            match self.inbox.take() {
                Ok(Command::Keys(keys)) => self.peer.set_keys(keys),
                Ok(Command::View(view)) => self.peer.set_view(now(), *view),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}
