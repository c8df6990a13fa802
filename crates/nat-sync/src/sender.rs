//! The sending side, for one other gateway.
//!
//! ```text
//!          due, wanted, or to be repeated              the receiver knows the pass
//!   IDLE --------------------------------> BEGINNING ------------------------------> STREAMING
//!    ^                                                                                   |
//!    +-----------------------------------------------------------------------------------+
//!       the receiver has done what it was asked, or a part of it; no longer knows the pass; is silent
//! ```
//!
//! The first session is read after the receiver has noted when the pass began. So a session that begins after it was not seen
//! has activity at the receiver after that time, because its first packets went through the receiver.

use crate::message::{Ack, Data, Message, PassId, Progress, Role, WINDOW};
use crate::params::{Backoff, Params, TICK_US};
use crate::record::Record;
use crate::table::SessionTable;
use crate::wire::{RECORDS_MAX, fitting};
use sluice_types::Vni;
use std::collections::{BTreeMap, VecDeque};

/// What a part of a table costs at least, in sessions: reading its words without any takes less time than to read and send so many.
/// A table of 4 million sessions, which is nearly empty, is read in 2 s.
const PART_COST_MIN: i64 = 4;

#[derive(Debug)]
pub(crate) struct Sender {
    boot: u64,
    /// Number of the last pass.
    number: u32,
    state: State,
    /// The next pass begins at this time.
    pub next_us: u64,
    /// Time until the next pass if the present one is not completely successful.
    retry_us: u64,
}

#[derive(Debug)]
enum State {
    Idle,
    Beginning { ask: Backoff },
    Streaming(Box<Streaming>),
}

#[derive(Debug)]
struct Streaming {
    pass: PassId,
    heard_us: u64,
    /// NAT gateways of which the pass will have all sessions.
    units: BTreeMap<Vni, Role>,
    /// The part of the table that is read next; `None` after the last one.
    part: Option<u64>,
    /// Sessions that were read, and when.
    records: Vec<(Record, u64)>,
    /// NAT gateways that are yet to be named, after all sessions.
    unnamed: Option<Vec<(Vni, Role)>>,
    next_seq: u32,
    /// Datagrams from the oldest one without an answer on; `None`: was received.
    sent: VecDeque<Option<Sent>>,
    last_sent: bool,
    /// When the result is asked for.
    ask: Backoff,
}

#[derive(Debug)]
struct Sent {
    data: Data,
    first_us: u64,
    again: Backoff,
}

/// The end of a pass.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The receiver has all sessions of what this node owns, and all of what this node returns.
    pub copied: bool,
    pub returned: bool,
    /// NAT gateways whose role did not change during the pass.
    pub units: BTreeMap<Vni, Role>,
}

impl Sender {
    pub fn new(boot: u64, now_us: u64, params: &Params) -> Self {
        Self { boot, number: 0, state: State::Idle, next_us: now_us, retry_us: params.retry_us }
    }

    fn pass(&self) -> PassId {
        PassId { boot: self.boot, number: self.number }
    }

    /// Gives up the present pass. The next one begins at `next_us`.
    pub fn stop(&mut self, next_us: u64) {
        (self.state, self.next_us) = (State::Idle, next_us);
    }

    /// Lets the next pass begin as soon as the present one is over.
    pub fn begin_soon(&mut self, now_us: u64) {
        self.next_us = self.next_us.min(now_us);
    }

    /// Whether a pass is asked for, or begins only later.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// The role of this NAT gateway has changed: the present pass does not have all its sessions.
    pub fn forget(&mut self, vni: Vni) {
        if let State::Streaming(streaming) = &mut self.state {
            streaming.units.remove(&vni);
            if let Some(unnamed) = &mut streaming.unnamed {
                unnamed.retain(|(unit, _)| *unit != vni);
            }
        }
    }

    /// When [`advance`](Self::advance) has something to do, if no message comes before.
    pub fn deadline_us(&self, now_us: u64, params: &Params) -> u64 {
        match &self.state {
            State::Idle => self.next_us,
            State::Beginning { ask } => ask.at_us,
            State::Streaming(_) => now_us + params.tick_us,
        }
    }

    /// Does what is due. `budget` is the number of sessions that may be read.
    pub fn advance(
        &mut self,
        now_us: u64,
        params: &Params,
        budget: &mut i64,
        table: &dyn SessionTable,
        send: &mut Vec<Message>,
    ) {
        let pass = self.pass();
        match &mut self.state {
            State::Idle if now_us >= self.next_us => {
                // A number is used once in a run, so 2^32 passes of it would be 2,700 years.
                self.number = self.number.wrapping_add(1).max(1);
                let ask = Backoff::after(now_us, params.resend_us);
                self.state = State::Beginning { ask };
                self.next_us = now_us + params.interval_us;
                send.push(Message::Begin(self.pass()));
            }
            State::Idle => {}
            State::Beginning { ask } => {
                if ask.is_due(now_us, params.resend_max_us) {
                    send.push(Message::Begin(pass));
                }
            }
            State::Streaming(streaming) if now_us > streaming.heard_us + params.give_up_us => {
                self.stop(now_us);
            }
            State::Streaming(streaming) => streaming.advance(now_us, params, budget, table, send),
        }
    }

    /// Handles an answer. `units` are the NAT gateways that the sender speaks for now.
    pub fn acknowledged(
        &mut self,
        now_us: u64,
        params: &Params,
        ack: &Ack,
        units: impl FnOnce() -> BTreeMap<Vni, Role>,
    ) -> Option<Finished> {
        if ack.pass != self.pass() {
            return None;
        }
        match (&mut self.state, ack.progress) {
            (State::Idle, _) => None,
            (State::Beginning { .. }, Progress::Receiving) => {
                let streaming = Streaming::new(ack.pass, now_us, units(), params);
                self.state = State::Streaming(Box::new(streaming));
                None
            }
            (State::Beginning { .. }, _) => None,
            (State::Streaming(_), Progress::Unknown) => {
                self.stop(now_us);
                None
            }
            (State::Streaming(streaming), progress) => {
                streaming.acknowledged(now_us, ack);
                let Progress::Done { copied, returned } = progress else { return None };
                if !streaming.last_sent || !streaming.sent.is_empty() {
                    return None;
                }
                let units = std::mem::take(&mut streaming.units);
                let finished = Finished { copied, returned, units };
                if copied && returned {
                    self.retry_us = params.retry_us;
                    self.stop(self.next_us);
                } else {
                    self.stop(now_us + self.retry_us);
                    self.retry_us = (self.retry_us * 2).min(params.interval_us);
                }
                Some(finished)
            }
        }
    }
}

impl Streaming {
    fn new(pass: PassId, now_us: u64, units: BTreeMap<Vni, Role>, params: &Params) -> Self {
        Self {
            pass,
            heard_us: now_us,
            units,
            part: Some(0),
            records: Vec::new(),
            unnamed: None,
            next_seq: 0,
            sent: VecDeque::new(),
            last_sent: false,
            ask: Backoff::after(now_us, params.resend_us),
        }
    }

    fn advance(
        &mut self,
        now_us: u64,
        params: &Params,
        budget: &mut i64,
        table: &dyn SessionTable,
        send: &mut Vec<Message>,
    ) {
        for sent in self.sent.iter_mut().flatten() {
            if sent.again.is_due(now_us, params.resend_max_us) {
                send.push(sent.message(now_us));
            }
        }
        while !self.last_sent && self.sent.len() < WINDOW as usize {
            let full = self.records.len() >= RECORDS_MAX;
            match self.part {
                Some(part) if !full && *budget > 0 => *budget -= self.read(now_us, part, table),
                Some(_) if !full => break,
                _ => self.send_next(now_us, params, send),
            }
        }
        if self.last_sent && self.sent.is_empty() && self.ask.is_due(now_us, params.resend_max_us) {
            send.push(Message::Begin(self.pass));
        }
    }

    /// Reads a part of the table. Returns what it costs.
    fn read(&mut self, now_us: u64, part: u64, table: &dyn SessionTable) -> i64 {
        let mut visited = 0;
        let (units, records) = (&self.units, &mut self.records);
        self.part = table.read(part, &mut |record| {
            visited += 1;
            if units.contains_key(&record.vni) {
                records.push((record, now_us));
            }
        });
        PART_COST_MIN.max(visited)
    }

    /// Sends the next datagram: sessions, or after the last part of the table what is left of them, and NAT gateways.
    fn send_next(&mut self, now_us: u64, params: &Params, send: &mut Vec<Message>) {
        let count = fitting(self.records.iter().map(|(record, _)| record));
        let as_of_now = |(record, read_us): (Record, u64)| {
            let idle = record.idle.saturating_add(u32::from(ticks_since(read_us, now_us)));
            Record { idle, ..record }
        };
        let records = self.records.drain(..count).map(as_of_now).collect();
        let mut data =
            Data { pass: self.pass, seq: self.next_seq, last: false, age: 0, records, units: Vec::new() };
        if self.part.is_none() && self.records.is_empty() {
            let units = &self.units;
            let unnamed =
                self.unnamed.get_or_insert_with(|| units.iter().map(|(vni, role)| (*vni, *role)).collect());
            let first = unnamed.len().saturating_sub(data.has_room());
            data.units = unnamed.split_off(first);
            data.last = unnamed.is_empty();
        }
        self.last_sent = data.last;
        self.next_seq += 1;
        let sent = Sent { data, first_us: now_us, again: Backoff::after(now_us, params.resend_us) };
        send.push(sent.message(now_us));
        self.sent.push_back(Some(sent));
    }

    fn acknowledged(&mut self, now_us: u64, ack: &Ack) {
        let first = self.next_seq - self.sent.len() as u32;
        if ack.next > self.next_seq {
            return;
        }
        self.heard_us = now_us;
        for (seq, sent) in (first..).zip(&mut self.sent) {
            let bit = seq.checked_sub(ack.next);
            if bit.is_none_or(|bit| bit < WINDOW && ack.seen >> bit & 1 != 0) {
                *sent = None;
            }
        }
        while self.sent.front().is_some_and(Option::is_none) {
            self.sent.pop_front();
        }
    }
}

impl Sent {
    fn message(&self, now_us: u64) -> Message {
        Message::Data(Data { age: ticks_since(self.first_us, now_us), ..self.data.clone() })
    }
}

fn ticks_since(then_us: u64, now_us: u64) -> u16 {
    u16::try_from(now_us.saturating_sub(then_us) / TICK_US).unwrap_or(u16::MAX)
}
