//! Random histories of session tables. Packets, run by the C of `sessions.h` in a process or as an eBPF
//! program, the agent's side in Rust, and a naive model must agree after every step.

use proptest::prelude::*;
use sluice_tables::Immediate;
use sluice_tables::layout::{
    SESSION_CONFIRMED, SESSION_FIN, SESSION_ORIGINATOR, SESSION_REPLIED, SESSION_RST,
};
use sluice_tables::sessions::{Direction, Family, Flow, SessionRegions, Sessions, Timeouts};
use sluice_tables_testing::{self as testing, session_test, tcp};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Number of flows in a history; their endpoints, protocols and VNIs differ little.
const FLOWS: u32 = 72;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Op {
    /// An operation of a packet.
    Packet { op: u32, flow: u32, reply: bool, flags: u8, bytes: u32 },
    /// Time passes: a number of ticks.
    Pass(u32),
    /// The sweep makes a complete round, in steps of this many buckets.
    Sweep(u32),
    /// The agent removes a session.
    Remove { flow: u32, reply: bool },
    /// Another agent adopts the tables.
    Adopt,
}

fn flow(number: u32) -> Flow {
    let port = (number / 12 % 3) as u16;
    let ends: [SocketAddr; 2] = if number.is_multiple_of(2) {
        [
            (Ipv4Addr::new(10, 0, 0, 1), 7 - port).into(),
            (Ipv4Addr::new(10, 0, 0, 1 + (number / 36) as u8), 7).into(),
        ]
    } else {
        let far = Ipv6Addr::from((0xfd00_u128 << 112) + (u128::from(number / 36) << 64));
        [(Ipv6Addr::from(0xfd00_u128 << 112), 7 - port).into(), (far, 7).into()]
    };
    let protocol = [TCP, UDP, if number.is_multiple_of(2) { 1 } else { 58 }][(number / 2 % 3) as usize];
    // The identifier of an echo is used as both ports.
    let ends = if protocol == 1 || protocol == 58 { ends.map(|end| (end.ip(), port).into()) } else { ends };
    Flow { scope: 1 + number / 6 % 2, protocol, source: ends[0], destination: ends[1] }
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flags = prop::sample::select(vec![
        tcp::SYN,
        tcp::SYN | tcp::ACK,
        tcp::ACK,
        tcp::ACK,
        tcp::FIN | tcp::ACK,
        tcp::RST,
    ]);
    let packet = (1..=5_u32, 0..FLOWS, any::<bool>(), flags, 40..9000_u32)
        .prop_map(|(op, flow, reply, flags, bytes)| Op::Packet { op, flow, reply, flags, bytes });
    let op = prop_oneof![
        60 => packet,
        10 => (0..30_u32).prop_map(Op::Pass),
        2 => (30..3000_u32).prop_map(Op::Pass),
        2 => (1..20_u32).prop_map(Op::Sweep),
        3 => (0..FLOWS, any::<bool>()).prop_map(|(flow, reply)| Op::Remove { flow, reply }),
        1 => Just(Op::Adopt),
    ];
    prop::collection::vec(op, 1..400)
}

/// A session of the model.
#[derive(Clone, Copy, Debug)]
struct ModelSession {
    flow: Flow,
    created_at: u32,
    expires_at: u32,
    replied: bool,
    confirmed: bool,
    fin: [bool; 2],
    rst: bool,
    packets: [u64; 2],
    bytes: [u64; 2],
    action: [u32; 2],
}

impl ModelSession {
    fn has_expired(&self, now: u32) -> bool {
        self.expires_at.wrapping_sub(now).cast_signed() <= 0
    }

    fn is_closed(&self) -> bool {
        self.rst || self.fin == [true; 2]
    }

    fn timeout(&self, timeouts: &Timeouts) -> u32 {
        8 * match self.flow.protocol {
            TCP if self.is_closed() => timeouts.tcp_closing_s,
            TCP if self.confirmed => timeouts.tcp_established_s,
            TCP => timeouts.tcp_new_s,
            UDP if self.replied => timeouts.udp_two_way_s,
            UDP => timeouts.udp_one_way_s,
            1 | 58 => timeouts.icmp_s,
            _ => timeouts.other_s,
        }
    }

    fn state(&self) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        bit(self.replied, SESSION_REPLIED)
            | bit(self.confirmed, SESSION_CONFIRMED)
            | bit(self.fin[0], SESSION_FIN)
            | bit(self.fin[1], SESSION_FIN << 1)
            | bit(self.rst, SESSION_RST)
    }

    fn touch(&mut self, direction: usize, flags: u8, bytes: u32, now: u32, timeouts: &Timeouts) {
        let is_tcp = self.flow.protocol == TCP;
        if direction == 1 {
            self.replied = true;
        } else if self.replied && (!is_tcp || flags & tcp::ACK != 0) {
            self.confirmed = true;
        }
        self.fin[direction] |= is_tcp && flags & tcp::FIN != 0;
        self.rst |= is_tcp && flags & tcp::RST != 0;
        self.packets[direction] += 1;
        self.bytes[direction] += u64::from(bytes);
        let expires_at = now.wrapping_add(self.timeout(timeouts));
        if expires_at.wrapping_sub(self.expires_at).cast_signed().unsigned_abs() >= 8 {
            self.expires_at = expires_at;
        }
    }
}

/// One key for both directions.
fn key(flow: &Flow) -> Flow {
    *flow.min(&flow.reversed())
}

/// The expected content of the tables.
pub struct Model {
    entries: HashMap<Flow, ModelSession>,
    timeouts: Timeouts,
    now: u32,
    /// By family: slots whose session has ended and that were not swept yet.
    unswept: [u64; 2],
    /// By family: creations that failed because both buckets were full.
    full: [u64; 2],
}

fn family(flow: &Flow) -> Family {
    if flow.source.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
}

impl Model {
    fn occupied(&self, of: Family) -> u64 {
        self.unswept[of as usize] + self.entries.keys().filter(|flow| family(flow) == of).count() as u64
    }

    /// Checks the answer to a packet, and applies its effect to the model.
    fn check_packet(&mut self, flow: &Flow, operation: &session_test) {
        let (key, of) = (key(flow), family(flow));
        if self.entries.get(&key).is_some_and(|entry| entry.has_expired(self.now)) {
            let creates = [testing::SESSION_OP_CREATE, testing::SESSION_OP_PACKET].contains(&operation.op);
            if !creates {
                assert_eq!(
                    operation.answer,
                    testing::SESSION_MISS,
                    "an expired session was found: {operation:?}"
                );
                return;
            }
            self.entries.remove(&key);
            self.unswept[of as usize] += 1;
        }
        let known = self.entries.contains_key(&key);
        match operation.answer {
            testing::SESSION_HIT => assert!(known, "{operation:?}"),
            testing::SESSION_FULL => {
                assert!(
                    !known && self.occupied(of) >= 14,
                    "{} slots in use: {operation:?}",
                    self.occupied(of)
                );
                self.full[of as usize] += 1;
                return;
            }
            testing::SESSION_CREATED => {
                assert!(!known, "{operation:?}");
                let mut entry = ModelSession {
                    flow: *flow,
                    created_at: self.now,
                    expires_at: 0,
                    replied: false,
                    confirmed: false,
                    fin: [false; 2],
                    rst: false,
                    packets: [0; 2],
                    bytes: [0; 2],
                    action: operation.action,
                };
                entry.touch(0, operation.tcp_flags, operation.bytes, self.now, &self.timeouts);
                entry.expires_at = self.now.wrapping_add(entry.timeout(&self.timeouts));
                self.entries.insert(key, entry);
            }
            testing::SESSION_MISS => {
                assert!(!known, "{operation:?}");
                return;
            }
            other => panic!("answer {other} without concurrency: {operation:?}"),
        }
        self.check_found(flow, operation);
    }

    /// Checks the session that a packet found or created, and applies the effect of the packet.
    fn check_found(&mut self, flow: &Flow, operation: &session_test) {
        let key = key(flow);
        let mut entry = self.entries[&key];
        let direction = usize::from(entry.flow != *flow);
        assert_eq!(operation.direction as usize, direction, "{operation:?}");
        // A packet that creates a session was counted by the creation.
        let touches = operation.answer == testing::SESSION_HIT
            && [testing::SESSION_OP_TOUCH, testing::SESSION_OP_PACKET].contains(&operation.op);
        let is_syn = operation.tcp_flags & (tcp::SYN | tcp::ACK) == tcp::SYN;
        let reopens = touches && flow.protocol == TCP && is_syn && entry.is_closed();
        if touches && !reopens {
            assert_eq!(operation.touched, testing::SESSION_HIT, "{operation:?}");
            entry.touch(direction, operation.tcp_flags, operation.bytes, self.now, &self.timeouts);
            self.entries.insert(key, entry);
        }
        if reopens || operation.op == testing::SESSION_OP_END {
            let answer = if reopens { testing::SESSION_GONE } else { testing::SESSION_HIT };
            assert_eq!(operation.touched, answer, "{operation:?}");
            self.entries.remove(&key);
            self.unswept[family(flow) as usize] += 1;
        }
        assert_eq!(operation.created_at, entry.created_at, "{operation:?}");
        assert_eq!(operation.state & !SESSION_ORIGINATOR, entry.state(), "{operation:?}");
        assert_eq!((operation.packets, operation.byte_count), (entry.packets, entry.bytes), "{operation:?}");
        assert_eq!(operation.found_action, entry.action, "{operation:?}");
        assert_eq!((operation.word >> 32) as u32, entry.expires_at, "{operation:?}");
    }

    /// Checks that the Rust reader finds the sessions of the model from both directions, and no others.
    fn check_reader(&self, sessions: &Sessions) {
        for number in 0..FLOWS {
            let wanted = flow(number);
            let expected = self.entries.get(&key(&wanted)).filter(|entry| !entry.has_expired(self.now));
            for wanted in [wanted, wanted.reversed()] {
                let found = sessions.reader().lookup(&wanted, self.now);
                assert_eq!(found.is_some(), expected.is_some(), "{wanted:?}");
                let (Some((session, direction)), Some(entry)) = (found, expected) else { continue };
                let is_original = entry.flow == wanted;
                assert_eq!(direction, if is_original { Direction::Original } else { Direction::Reply });
                assert_eq!(session.flow, entry.flow);
                assert_eq!((session.created_at, session.expires_at), (entry.created_at, entry.expires_at));
                assert_eq!(session.state & !SESSION_ORIGINATOR, entry.state());
                assert_eq!((session.packets, session.bytes), (entry.packets, entry.bytes));
                assert_eq!(session.action, entry.action);
            }
        }
        let mut all: Vec<Flow> = sessions.reader().iter().map(|session| session.flow).collect();
        let mut expected: Vec<Flow> = self.entries.values().map(|entry| entry.flow).collect();
        all.sort();
        expected.sort();
        assert_eq!(all, expected);
    }

    fn live(&self, of: Family) -> u64 {
        self.entries
            .values()
            .filter(|entry| family(&entry.flow) == of && !entry.has_expired(self.now))
            .count() as u64
    }

    /// Makes a complete round of the sweep.
    fn sweep(&mut self, sessions: &mut Sessions, step: u32) {
        let before = self.entries.len();
        let now = self.now;
        self.entries.retain(|_, entry| !entry.has_expired(now));
        let (mut expired, mut freed) = (0, 0);
        loop {
            let swept = sessions.sweep(step, now).unwrap();
            (expired, freed) = (expired + swept.expired, freed + swept.freed);
            assert!(swept.buckets <= u64::from(step));
            if swept.round_completed {
                break;
            }
        }
        assert_eq!(expired, (before - self.entries.len()) as u64);
        assert_eq!(freed, expired + self.unswept.iter().sum::<u64>());
        self.unswept = [0; 2];
        self.check_usage(sessions);
    }

    fn check_usage(&self, sessions: &Sessions) {
        for of in [Family::Ipv4, Family::Ipv6] {
            assert_eq!(sessions.usage(of).live, self.live(of));
            assert_eq!(sessions.usage(of).full_events, self.full[of as usize]);
        }
        assert_eq!(sessions.counters().busy, 0, "busy without concurrency");
    }
}

/// Runs a history that begins at `now`; `packet` runs the operation of a packet.
pub fn run(
    regions: &SessionRegions,
    seed: u64,
    now: u32,
    ops: &[Op],
    mut packet: impl FnMut(&mut session_test),
) {
    let timeouts = Timeouts {
        tcp_new_s: 5,
        tcp_established_s: 200,
        tcp_closing_s: 3,
        udp_one_way_s: 2,
        udp_two_way_s: 7,
        icmp_s: 4,
        other_s: 6,
    };
    let mut sessions = Sessions::create(regions, seed, &timeouts, Immediate).unwrap();
    assert_eq!(sessions.timeouts(), timeouts);
    let mut model = Model { entries: HashMap::new(), timeouts, now, unswept: [0; 2], full: [0; 2] };
    for (number, op) in ops.iter().enumerate() {
        match *op {
            Op::Packet { op, flow: flow_number, reply, flags, bytes } => {
                let flow = if reply { flow(flow_number).reversed() } else { flow(flow_number) };
                let mut operation =
                    testing::operation(op, flow.scope, flow.protocol, [flow.source, flow.destination]);
                operation.tcp_flags = if flow.protocol == TCP { flags } else { 0 };
                (operation.bytes, operation.now, operation.action) =
                    (bytes, model.now, [number as u32, !flow_number]);
                packet(&mut operation);
                model.check_packet(&flow, &operation);
            }
            Op::Pass(ticks) => model.now = model.now.wrapping_add(ticks),
            Op::Sweep(step) => model.sweep(&mut sessions, step),
            Op::Remove { flow: flow_number, reply } => {
                let flow = if reply { flow(flow_number).reversed() } else { flow(flow_number) };
                let is_live =
                    model.entries.get(&key(&flow)).is_some_and(|entry| !entry.has_expired(model.now));
                assert_eq!(sessions.remove(&flow, model.now), is_live);
                if is_live {
                    model.entries.remove(&key(&flow));
                    model.unswept[family(&flow) as usize] += 1;
                }
            }
            Op::Adopt => {
                let generation = sessions.generation();
                sessions = Sessions::adopt(regions, model.now, Immediate).unwrap();
                assert_eq!(sessions.generation(), generation + 1);
                assert_eq!(sessions.timeouts(), timeouts);
                model.check_usage(&sessions);
            }
        }
        if number.is_multiple_of(16) {
            model.check_reader(&sessions);
        }
    }
    model.check_reader(&sessions);
    model.sweep(&mut sessions, 3);
    model.check_reader(&sessions);
}
