//! The sides that translate: Sluice's gateway and the kernel, each in a network namespace of its own. It changes with what is
//! measured of both.

use crate::gateway::{Edge, Public};
use crate::kernel;
use crate::packet::{OWNER, STANDBY};
use crate::rig::{Order, Rig, Sessions};
use sluice_bench_report::shell::Failure;
use sluice_bench_spine::contender::{Contender, Turns};
use sluice_types::ROUTER_MAC;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A gateway's part in a ring of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first packets of its sessions go to the other gateway. Its answers come from the Internet.
    Owner,
    /// It gets them, installs the sessions, and sends the packets to the Internet.
    Standby,
}

/// What is measured in a turn.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// Millions of packets a second that are translated, in both directions together, over so many seconds.
    Mpps(f64),
    /// Nanoseconds of the program for a packet of a VM, as the mean of so many packets.
    Nanoseconds(u32),
    /// Sessions that begin in a second, from none.
    Fresh,
}

/// Starts a gateway with these sessions, or with public addresses of the VMs.
///
/// # Errors
/// Errors of the datapath, the tables or the kernel.
pub fn sluice(name: &'static str, public: Public, sessions: Sessions) -> Result<Contender<Turn>, Failure> {
    Contender::start(name, move |turns: &Turns<Turn>| {
        let rig = Rig::new()?;
        let mut edge = Edge::new(&rig, public, sessions)?;
        rig.aim(sessions, Order::From(0), ROUTER_MAC)?;
        rig.timed(edge.program()?.as_fd(), sessions.count())?;
        edge.check(sessions)?;
        turns.serve(|turn| match turn {
            Turn::Mpps(seconds) => {
                rig.aim(sessions, Order::Random, ROUTER_MAC)?;
                let _links = edge.attach(&rig)?;
                rig.mpps(seconds)
            }
            Turn::Nanoseconds(packets) => {
                rig.aim(sessions, Order::Random, ROUTER_MAC)?;
                rig.nanoseconds(edge.program()?.as_fd(), packets)
            }
            Turn::Fresh => {
                edge.forget()?;
                rig.aim(sessions, Order::From(0), ROUTER_MAC)?;
                let links = edge.attach(&rig)?;
                let rate = fresh(&rig, sessions, Rig::send)?;
                drop(links);
                edge.check(sessions)?;
                Ok(rate)
            }
        })
    })
}

/// Starts a kernel with these sessions.
///
/// # Errors
/// Errors of the tools or the kernel.
pub fn nftables(sessions: Sessions) -> Result<Contender<Turn>, Failure> {
    Contender::start("nftables", move |turns: &Turns<Turn>| {
        let rig = Rig::new()?;
        let router = peers_router()?;
        kernel::set_up(sessions.vms)?;
        rig.aim(sessions, Order::From(0), router)?;
        kernel::fill(&rig, sessions)?;
        turns.serve(|turn| match turn {
            Turn::Mpps(seconds) => {
                rig.aim(sessions, Order::Random, router)?;
                let _links = rig.pass()?;
                rig.mpps(seconds)
            }
            Turn::Fresh => {
                kernel::forget()?;
                rig.aim(sessions, Order::From(0), router)?;
                let _links = rig.pass()?;
                fresh(&rig, sessions, Rig::send)
            }
            Turn::Nanoseconds(_) => Err("only a program can be timed alone".into()),
        })
    })
}

/// Starts a gateway with a part in a ring, without sessions. It takes turns of [`Turn::Fresh`].
///
/// # Errors
/// Errors of the datapath, the tables or the kernel.
pub fn in_ring(part: Part, sessions: Sessions) -> Result<Contender<Turn>, Failure> {
    let name = match part {
        Part::Owner => "owner",
        Part::Standby => "standby",
    };
    Contender::start(name, move |turns: &Turns<Turn>| {
        let rig = Rig::with_records(sessions.count())?;
        let mut edge = Edge::new(&rig, Public::Shared, sessions)?;
        if part == Part::Standby {
            // What an owner with the same secret gives them.
            rig.aim(sessions, Order::From(0), ROUTER_MAC)?;
            rig.timed(edge.program()?.as_fd(), sessions.count())?;
            edge.check(sessions)?;
            rig.set_records(&edge.records()?)?;
        }
        edge.join_ring(&rig, if part == Part::Owner { OWNER } else { STANDBY })?;
        turns.serve(|turn| {
            if !matches!(turn, Turn::Fresh) {
                return Err("gateways in a ring are measured by new sessions only".into());
            }
            edge.forget()?;
            rig.aim(sessions, Order::From(0), ROUTER_MAC)?;
            let links = edge.attach(&rig)?;
            let rate = match part {
                Part::Owner => fresh(&rig, sessions, Rig::send)?,
                Part::Standby => fresh(&rig, sessions, Rig::send_records)?,
            };
            drop(links);
            edge.check(sessions)?;
            Ok(rate)
        })
    })
}

fn peers_router() -> Result<sluice_types::MacAddr, Failure> {
    Ok(sluice_bench_spine::peers::ROUTER.parse()?)
}

/// Time after the last packet after which no other one is expected.
const QUIET: Duration = Duration::from_millis(50);

/// Sends the first packet of each session. Returns the number of those that left, in a second.
fn fresh(
    rig: &Rig,
    sessions: Sessions,
    send: impl FnOnce(&Rig, u32) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let before = rig.arrived()?.outside;
    let start = Instant::now();
    send(rig, sessions.count())?;
    let (mut begun, mut last) = (rig.arrived()?.outside, Instant::now());
    while last.elapsed() < QUIET {
        let now = rig.arrived()?.outside;
        if now != begun {
            (begun, last) = (now, Instant::now());
        }
    }
    begun -= before;
    if begun * 100 < u64::from(sessions.count()) * 95 {
        return Err(format!("only {begun} of {} first packets left", sessions.count()).into());
    }
    Ok(begun as f64 / (last - start).as_secs_f64())
}
