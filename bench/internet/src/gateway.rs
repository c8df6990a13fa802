//! A gateway with an Internet interface, and VMs that share public addresses or have one each. It changes with what a gateway's
//! tables need before packets leave.

use crate::packet::{OTHER, OWNER, STANDBY};
use crate::rig::{Order, Record, Rig, Sessions};
use libbpf_rs::Link;
use sluice_bench_report::shell::{Failure, run};
use sluice_bench_spine::gateway::{Gateway, Routes};
use sluice_bench_spine::packet::{GATEWAY, VNI};
use sluice_bench_spine::peers::instance;
use sluice_datapath::{NatCopier, nat_sizes};
use sluice_gateway::SharedNat;
use sluice_tables::nat::{Nat, NatRegions, NatSize, Translation, default_timeouts};
use sluice_tables::sessions::{Family, Session, SessionReader, ticks_now};
use sluice_tables::{
    Membarrier, Meter, NatAddress, NatGateway, NodeConfig, PublicPrefix, Role, Route, Target, UnderlayPort,
};
use sluice_types::{IpNet, MacAddr, MeterLimit, ROUTER_MAC, Vni};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// 16 public addresses in blocks of 64 ports.
const SIZE: NatSize = NatSize { addresses: 16, block_ports: 64 };
const FIRST_SHARED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const FIRST_OWN: Ipv4Addr = Ipv4Addr::new(100, 0, 0, 0);
/// Sessions in a bucket, and how full the table is made.
const SLOTS: u32 = 7;
const FILLED_PERCENT: u64 = 60;
/// Packets between two looks whether the table is full.
const FILL_STEP: u32 = 1 << 12;
/// Rounds of the sweep after which what has ended is free.
const ROUNDS_TO_FREE: u32 = 3;
/// Buckets that one step of the sweep looks at.
const SWEEP_BUCKETS: u32 = 1 << 16;

/// The public addresses of the VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Public {
    /// All share those of a NAT gateway.
    Shared,
    /// Each has one of its own.
    Own,
}

/// A loaded gateway.
pub struct Edge {
    gateway: Gateway,
    /// The owner of the sessions, if the VMs share addresses, and nothing else has it.
    nat: Option<Nat>,
    /// Reads these sessions.
    reader: Option<SessionReader>,
}

impl Edge {
    /// Loads the programs, with room for these sessions and for those of [`crate::side::FRESH`].
    ///
    /// # Errors
    /// Errors of the datapath, the tables or the kernel.
    pub fn new(rig: &Rig, public: Public, sessions: Sessions) -> Result<Self, Failure> {
        let buckets = u64::from(sessions.count()) * 100 / FILLED_PERCENT / u64::from(SLOTS);
        let maps =
            nat_sizes(NatRegions::groups(SIZE)?, NatRegions::port_cells(SIZE), [u32::try_from(buckets)?, 2]);
        let mut gateway = Gateway::with_maps(rig.interfaces, sessions.vms, Routes::One, &maps)?;
        let vni = Vni::new(VNI)?;
        let port =
            |ifindex: i32, mac, internet| UnderlayPort { ifindex: ifindex as u32, mtu: 3400, mac, internet };
        let tables = gateway.tables();
        tables.set_node(&NodeConfig {
            vtep4: Some(GATEWAY),
            vtep6: None,
            router_mac: ROUTER_MAC,
            vxlan_ifindex: 0,
            ports: vec![
                port(rig.interfaces.dut_ifindex, MacAddr::new(rig.interfaces.dut_mac), false),
                port(rig.out_ifindex, rig.out_mac, true),
            ],
        })?;
        tables.upsert_route(&Route { vni, prefix: "0.0.0.0/0".parse()?, target: Target::Internet })?;
        let mut edge = Self { gateway, nat: None, reader: None };
        match public {
            Public::Own => edge.give_addresses(vni, sessions.vms)?,
            Public::Shared => edge.share_addresses(vni)?,
        }
        Ok(edge)
    }

    fn give_addresses(&mut self, vni: Vni, vms: u32) -> Result<(), Failure> {
        for index in 0..vms {
            let outside = Ipv4Addr::from(u32::from(FIRST_OWN) + index);
            self.gateway.tables().upsert_public_prefix(&PublicPrefix {
                outside: IpNet::from(IpAddr::V4(outside)),
                vni,
                inside: IpNet::from(IpAddr::V4(instance(index))),
                vip: GATEWAY.into(),
                meter: 0,
                nptv6: false,
            })?;
        }
        Ok(())
    }

    fn share_addresses(&mut self, vni: Vni) -> Result<(), Failure> {
        let regions = self.gateway.datapath().nat()?;
        let seed = 0x5851_f42d_4c95_7f2d;
        let mut nat =
            Nat::create(&regions, SIZE, seed, &default_timeouts(), ticks_now(), Membarrier::new()?)?;
        let mut addresses = Vec::new();
        for index in 0..SIZE.addresses {
            let address = Ipv4Addr::from(u32::from(FIRST_SHARED) + index);
            addresses.push(NatAddress { address, number: nat.assign(address)? });
        }
        self.gateway.tables().upsert_nat_gateway(&NatGateway {
            vni,
            addresses,
            vip: GATEWAY.into(),
            sessions: u32::MAX,
            blocks: 16,
            any_remote: false,
            shares_ports: false,
            forwards: Vec::new(),
            nat64: None,
        })?;
        self.reader = Some(nat.sessions().reader().clone());
        self.nat = Some(nat);
        Ok(())
    }

    /// Limits what the VMs send.
    ///
    /// # Errors
    /// Errors of the datapath or the tables.
    pub fn limit(&mut self, outward: MeterLimit, now_ns: u64) -> Result<(), Failure> {
        let meters = self.gateway.datapath().meters()?;
        let tables = self.gateway.tables();
        tables.set_meters(meters);
        tables.upsert_meter(&Meter { id: 1, inward: None, outward: Some(outward) }, now_ns)?;
        let number = tables.meter_number(1).ok_or("the tables have no meter")?;
        tables.set_internet_meter(Vni::new(VNI)?, number)?;
        Ok(())
    }

    /// Gives the NAT tables away, to what copies sessions. They stay in the gateway.
    ///
    /// # Errors
    /// If it has none.
    pub fn share_nat(&mut self) -> Result<SharedNat, Failure> {
        Ok(SharedNat::new(self.nat.take().ok_or("the gateway has no NAT tables")?))
    }

    /// The program that installs copies.
    ///
    /// # Errors
    /// Errors of the datapath.
    pub fn copier(&self) -> Result<NatCopier, Failure> {
        Ok(self.gateway.datapath().nat_copier()?)
    }

    /// Makes this gateway a member of a ring of two: its owner, or the other one.
    ///
    /// # Errors
    /// Errors of the tools and the tables.
    pub fn join_ring(&mut self, rig: &Rig, own: u8) -> Result<(), Failure> {
        let gen_mac = MacAddr::new(rig.interfaces.gen_mac);
        run(&format!("ip neigh replace {OTHER} lladdr {gen_mac} dev dut nud permanent"))?;
        let tables = self.gateway.tables();
        tables.upsert_vtep(OTHER.into(), Role::Gateway)?;
        let next = (own == OWNER).then_some((STANDBY, OTHER.into()));
        tables.set_nat_ring(own, next)?;
        rig.end_ring(FIRST_SHARED, own == OWNER)
    }

    /// The first packets of all sessions, as this gateway would send them into a ring.
    ///
    /// # Errors
    /// If a session has another public address than those of the NAT gateway.
    pub fn records(&self) -> Result<Vec<Record>, Failure> {
        let record = |shown: Translation| {
            let (SocketAddr::V4(inside), remote) = (shown.inside, shown.remote) else {
                return Err(Failure::from("a session is not of IPv4"));
            };
            let outside = u32::from(*shown.outside.ip());
            let index = outside.wrapping_sub(FIRST_SHARED.into());
            if index >= SIZE.addresses {
                return Err(format!("{} is no address of the NAT gateway", shown.outside).into());
            }
            // The index in the pool, and nat_ring_check() of the address.
            let address = (index << 4 | (outside % 15 + 1)) as u8;
            Ok(Record { inside, remote: *remote.ip(), outside_port: shown.outside.port(), address })
        };
        self.reader.iter().flatten().map(|session| record(session.into())).collect()
    }

    /// Fails if this gateway has not all sessions of another one, with the same public endpoints.
    ///
    /// # Errors
    /// The number that it lacks.
    pub fn check_copies(&self, owner: &Self) -> Result<(), Failure> {
        let (copies, sessions) = (self.reader.as_ref(), owner.reader.as_ref());
        let (copies, sessions) = copies.zip(sessions).ok_or("a gateway has no NAT tables")?;
        let (now, mut all, mut lacks) = (ticks_now(), 0, 0);
        for session in sessions {
            let copy = copies.lookup(&session.flow, now);
            let outside = |session: Session| Translation::from(session).outside;
            all += 1;
            lacks += usize::from(copy.map(|(copy, _)| outside(copy)) != Some(outside(session)));
        }
        if all == 0 || lacks > 0 {
            return Err(format!("{lacks} of {all} sessions are not copied").into());
        }
        Ok(())
    }

    /// The program for packets of VMs.
    ///
    /// # Errors
    /// Errors of the datapath.
    pub fn program(&self) -> Result<OwnedFd, Failure> {
        self.gateway.program()
    }

    /// Attaches the programs to `dut` and `out` until the links are dropped.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn attach(&self, rig: &Rig) -> Result<[Link; 2], Failure> {
        let at = |name, ifindex| -> Result<Link, Failure> {
            Ok(self.gateway.datapath().program(name)?.attach_xdp(ifindex)?)
        };
        Ok([at("gateway", rig.interfaces.dut_ifindex)?, at("internet", rig.out_ifindex)?])
    }

    /// Fails if not nearly all of these sessions have begun.
    ///
    /// # Errors
    /// The number that has.
    pub fn check(&self, sessions: Sessions) -> Result<(), Failure> {
        let Some(reader) = &self.reader else { return Ok(()) };
        let live = reader.iter().count();
        if live * 100 < sessions.count() as usize * 95 {
            return Err(format!("only {live} of {} sessions have begun", sessions.count()).into());
        }
        Ok(())
    }

    /// Ends all sessions, and frees their ports.
    ///
    /// # Errors
    /// Errors of the tables.
    pub fn forget(&mut self) -> Result<(), Failure> {
        let Some(nat) = &mut self.nat else { return Ok(()) };
        nat.end(|_| true)?;
        let mut rounds = 0;
        while rounds < ROUNDS_TO_FREE {
            rounds += u32::from(nat.sweep(SWEEP_BUCKETS, ticks_now(), &mut |_| {})?.round_completed);
        }
        Ok(())
    }
}

/// A table that has refused a session.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// Sessions that it has.
    pub sessions: usize,
    /// Memory of all NAT tables.
    pub bytes: usize,
    /// Slots of the session table.
    pub slots: usize,
}

impl Filled {
    /// Bytes of the tables for each session.
    pub fn bytes_each(self) -> f64 {
        self.bytes as f64 / self.sessions as f64
    }
}

/// Begins sessions until the table refuses one.
///
/// # Errors
/// Errors of the datapath, the tables or the kernel; a table that refuses none.
pub fn fill(rig: &Rig, sessions: Sessions) -> Result<Filled, Failure> {
    let edge = Edge::new(rig, Public::Shared, sessions)?;
    let nat = edge.nat.as_ref().ok_or("the VMs share no addresses")?;
    // A table for these sessions has no room for as many again.
    let all = Sessions { remotes: sessions.remotes * 2, ..sessions };
    rig.aim(all, Order::From(0), ROUTER_MAC)?;
    let program = edge.program()?;
    // A step of a large table is longer, because each has to begin and end.
    let step = FILL_STEP.max(sessions.count() >> 12);
    let mut sent = 0;
    while nat.usage().sessions.full_events == 0 {
        if sent > all.count() {
            return Err(format!("a table for {} sessions has more", sessions.count()).into());
        }
        rig.timed(program.as_fd(), step)?;
        sent += step;
    }
    let regions = edge.gateway.datapath().nat()?;
    let bytes = regions.groups.bytes() + regions.ports.bytes() + regions.sessions.ipv4.bytes();
    let slots = nat.sessions().buckets(Family::Ipv4) as usize * SLOTS as usize;
    Ok(Filled { sessions: nat.translations().count(), bytes, slots })
}
