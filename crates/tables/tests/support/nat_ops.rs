//! The steps of random histories of source NAT, and what is constant in each.

use super::{ADDRESSES, NUMBERS_MAX, VPCS};
use proptest::prelude::*;
use sluice_tables::nat::NatSize;
use sluice_tables_testing::nat::{self as testing, nat_pool};
use sluice_tables_testing::tcp;
use std::num::NonZeroU32;

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Op {
    /// A packet of a VM.
    Out { vm: u32, protocol: usize, port: u16, remote: u32, flags: u8, peek: bool },
    /// A packet from the Internet: to the outside endpoint of a session (by number), or to any port.
    In { session: usize, port: Option<u16>, remote: Option<u32>, flags: u8, peek: bool },
    /// Another gateway describes a session of a VM that sends nothing itself, and was idle for so many ticks.
    Install { vm: u32, protocol: usize, port: u16, remote: u32, idle: u32, of_owner: bool, shares: bool },
    /// Time passes: a number of ticks.
    Pass(u32),
    /// The sweep makes a complete round, in steps of this many buckets.
    Round(u32),
    /// One step of the sweep.
    Step,
    /// The agent ends a session, by number.
    Remove(usize),
    /// The agent ends what a VM or a VPC has.
    End { vm: u32, is_vpc: bool },
    /// A VPC gets a public address, which the other one may have, or loses it.
    Pool { vpc: usize, address: u32 },
    /// The mapping and the filtering of all NAT gateways change: `flags` of pools.
    Change(u8),
    /// Another agent adopts the tables.
    Adopt,
}

/// What is constant in a history.
#[derive(Clone, Debug)]
pub struct World {
    pub size: NatSize,
    /// What the pools of all VPCs have at first, but the numbers.
    pub limits: nat_pool,
    /// Sessions of a VPC.
    pub vpc_sessions: NonZeroU32,
    pub seed: u64,
    pub now: u32,
}

pub fn worlds() -> impl Strategy<Value = World> {
    let now = prop::sample::select(vec![0, 5, 0x7fff_fff0, 0xffff_ff00, 0xffff_fffe]);
    let size = (2..=NUMBERS_MAX, prop::sample::select(vec![64, 512, 4096]));
    let limits = (3..60_u32, 1..4_u8, flags_of_pools());
    // Some are not reached.
    let vpc_sessions = prop_oneof![6..80_u32, Just(u32::MAX)];
    (size, limits, vpc_sessions, any::<u64>(), now).prop_map(
        |(size, (sessions_limit, blocks_limit, flags), vpc_sessions, seed, now)| World {
            size: NatSize { addresses: size.0, block_ports: size.1 },
            limits: nat_pool { sessions_limit, blocks_limit, flags, ..Default::default() },
            vpc_sessions: NonZeroU32::new(vpc_sessions).unwrap(),
            seed,
            now,
        },
    )
}

fn flags_of_pools() -> impl Strategy<Value = u8> {
    let both = testing::ANY_REMOTE | testing::SHARES_PORTS;
    prop_oneof![2 => Just(0), 2 => Just(testing::ANY_REMOTE), 4 => Just(testing::SHARES_PORTS), 1 => Just(both)]
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flags =
        || prop::sample::select(vec![tcp::SYN, tcp::SYN, tcp::ACK, tcp::ACK, tcp::FIN | tcp::ACK, tcp::RST]);
    // Some VMs use few ports, and some many.
    let port = prop_oneof![0..4_u16, 0..300_u16, any::<u16>()];
    let peek = || prop::bool::weighted(0.1);
    // Most are of few VMs.
    let vm = || prop_oneof![3 => 0..12_u32, 1 => 0..60_u32];
    let out = (vm(), 0..3_usize, port, 0..4_u32, flags(), peek()).prop_map(
        |(vm, protocol, port, remote, flags, peek)| Op::Out { vm, protocol, port, remote, flags, peek },
    );
    let remote = prop::option::weighted(0.3, 0..4_u32);
    let port = prop::option::weighted(0.1, any::<u16>());
    let into = (any::<usize>(), port, remote, flags(), peek())
        .prop_map(|(session, port, remote, flags, peek)| Op::In { session, port, remote, flags, peek });
    let install = (0..8_u32, 0..3_usize, 0..3_u16, 0..4_u32, 0..40_u32, any::<bool>(), any::<bool>())
        .prop_map(|(vm, protocol, port, remote, idle, of_owner, shares)| {
            // No packet is of these.
            Op::Install { vm: 60 + vm, protocol, port, remote, idle, of_owner, shares }
        });
    let op = prop_oneof![
        60 => out,
        40 => into,
        20 => install,
        12 => (0..30_u32).prop_map(Op::Pass),
        2 => (30..300_u32).prop_map(Op::Pass),
        4 => (1..40_u32).prop_map(Op::Round),
        6 => Just(Op::Step),
        3 => any::<usize>().prop_map(Op::Remove),
        1 => (vm(), any::<bool>()).prop_map(|(vm, is_vpc)| Op::End { vm, is_vpc }),
        2 => (0..VPCS, 0..ADDRESSES).prop_map(|(vpc, address)| Op::Pool { vpc, address }),
        1 => flags_of_pools().prop_map(Op::Change),
        1 => Just(Op::Adopt),
    ];
    prop::collection::vec(op, 1..500)
}
