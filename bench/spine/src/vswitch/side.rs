//! One side: a host in a namespace with everything outside of it, and what is measured there. It changes with what the
//! time of a path consists of.

use super::frames::{FLOWS, Flows, Ports};
use super::kernel;
use super::namespace::Namespace;
use super::place::{self, BY_GATEWAY, BY_PATH, PLAIN_RECEIVER, RECEIVER, REMOTE_VMS, SENDER, UPLINK, VMS};
use super::sluice::{PORT_PROGRAM, Sluice};
use super::traffic::{Hook, Traffic};
use crate::contender::{Contender, Turns};
use sluice_bench_report::median;
use sluice_bench_report::shell::Failure;
use sluice_sys::PacketSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Packets that are sent at once. The same number without a path follows, so that both see the same machine.
const SMALL_AT_ONCE: u32 = 4096;
const LONG_AT_ONCE: u32 = 256;
/// Flows of [`Load::Known`], and the packets after which all of them have begun: one in 10^5 turns misses one.
const KNOWN_FLOWS: u32 = 1024;
const KNOWN_BEGUN: u32 = 5 * SMALL_AT_ONCE;
/// Most packets of [`Load::Fresh`] in a turn: sides remember 2^18 flows.
const FRESH_MAX: u32 = 40 * SMALL_AT_ONCE;

/// A path of packets through a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// From a VM to a gateway.
    Out,
    /// From a gateway to a VM.
    In,
    /// The same to a VM that receives through its port.
    InPlain,
    /// From a VM to another one on this host.
    Local,
    /// The same to a VM that receives through its port.
    LocalPlain,
    /// From a VM to another host.
    Direct,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Small packets of many flows.
    Small,
    /// TCP packets of almost 64 KiB.
    Long,
    /// Small packets of few flows, all of which have begun before.
    Known,
    /// Small packets, each of which begins a flow. The flows are forgotten after the turn.
    Fresh,
}

/// What a VM that receives accepts. Other VMs accept everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Everything, and nothing is remembered of it.
    None,
    /// What one of so many rules permits, and what belongs to it.
    Count(u32),
    /// The same, by rules whose prefixes and ranges of ports are combined so that each lookup has the longest way.
    Nested,
}

/// What a side measures in a turn.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// Nanoseconds of a packet on the path, over so many seconds.
    Path(Path, Load, f64),
    /// Nanoseconds of Sluice's program of ports on the path alone, as the mean of so many packets.
    Program(Path, Load, u32),
}

/// Whose vSwitch the host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Sluice, as its agent sets it up.
    Sluice,
    /// The bridge and the VXLAN device of the kernel.
    Kernel,
}

struct Side {
    traffic: Traffic,
    socket: PacketSocket,
    indices: Indices,
    sluice: Option<Sluice>,
    _outside: Namespace,
}

/// Indices of interfaces.
struct Indices {
    /// On the host: the sender's port, the interface to the underlay, and the one whose packets end there.
    port: u32,
    under: u32,
    idle: u32,
    /// Outside: the sender's own interface, that of the underlay as VXLAN device, and two that lead to `idle`.
    vm: u32,
    tunnel: u32,
    vm_to_idle: u32,
    tunnel_to_idle: u32,
}

impl Path {
    fn flows(self) -> Flows {
        let source = SENDER.address;
        match self {
            Self::Out => Flows { source, base: BY_GATEWAY, count: REMOTE_VMS },
            Self::Direct => Flows { source, base: BY_PATH, count: REMOTE_VMS },
            Self::Local => Flows { source, base: RECEIVER.address, count: 1 },
            Self::LocalPlain => Flows { source, base: PLAIN_RECEIVER.address, count: 1 },
            Self::In => Flows::to(RECEIVER),
            Self::InPlain => Flows::to(PLAIN_RECEIVER),
        }
    }

    /// Whether packets come from the underlay.
    fn is_inward(self) -> bool {
        matches!(self, Self::In | Self::InPlain)
    }
}

/// Starts a side on a thread of its own.
///
/// # Errors
/// Errors of the tools or the kernel.
pub fn start(switch: Switch, rules: Rules) -> Result<Contender<Turn>, Failure> {
    let name = if switch == Switch::Sluice { "sluice" } else { "kernel" };
    Contender::start(name, move |turns| serve(switch, rules, turns))
}

fn serve(switch: Switch, rules: Rules, turns: &Turns<Turn>) -> Result<(), Failure> {
    let mut side = Side::new(switch, rules)?;
    turns.serve(|turn| match turn {
        Turn::Path(path, load, seconds) => side.path(path, load, seconds),
        Turn::Program(path, load, packets) => side.program(path, load, packets),
    })
}

impl Side {
    fn new(switch: Switch, rules: Rules) -> Result<Self, Failure> {
        let outside = Namespace::new()?;
        place::set_up(&outside)?;
        let sluice = match switch {
            Switch::Sluice => Some(Sluice::start(rules)?),
            Switch::Kernel => kernel::start(rules).map(|()| None)?,
        };
        let traffic = Traffic::new([place::ifindex("unused-0")?, place::ifindex("unused-1")?])?;
        let (port, under, idle) =
            (place::ifindex(SENDER.interface)?, place::ifindex(UPLINK)?, place::ifindex("idle")?);
        traffic.end_at(under, Hook::Egress)?;
        traffic.end_at(idle, Hook::Ingress)?;
        let (socket, [vm, tunnel, vm_to_idle, tunnel_to_idle]) = outside.within(|| {
            for vm in VMS {
                traffic.end_at(place::ifindex(vm.interface)?, Hook::Ingress)?;
            }
            let [to_host, to_idle] = place::TUNNELS.map(|(name, ..)| place::ifindex(name));
            let indices = [place::ifindex(SENDER.interface)?, to_host?, place::ifindex("idle")?, to_idle?];
            Ok((PacketSocket::open_with_offload()?, indices))
        })?;
        let indices = Indices { port, under, idle, vm, tunnel, vm_to_idle, tunnel_to_idle };
        Ok(Self { traffic, socket, indices, sluice, _outside: outside })
    }

    /// Nanoseconds that a packet takes on the path longer than one that ends where it enters the host.
    fn path(&mut self, path: Path, load: Load, seconds: f64) -> Result<f64, Failure> {
        match load {
            Load::Small | Load::Known | Load::Fresh => {
                let is_inward = path.is_inward();
                self.aim(path, load)?;
                let enter = if is_inward { self.indices.under } else { self.indices.port };
                let receive = |ifindex| self.traffic.receive(ifindex, is_inward, SMALL_AT_ONCE);
                for _ in 0..if load == Load::Known { KNOWN_BEGUN / SMALL_AT_ONCE } else { 0 } {
                    receive(enter)?;
                }
                let turns_max = if load == Load::Fresh { FRESH_MAX / SMALL_AT_ONCE } else { u32::MAX };
                let time = longer(seconds, turns_max, || receive(enter), || receive(self.indices.idle))?;
                if load == Load::Fresh {
                    self.forget_flows()?;
                }
                Ok(time)
            }
            Load::Long => {
                let frame = path.flows().long_frame();
                let (enter, idle) = match path.is_inward() {
                    true => (self.indices.tunnel, self.indices.tunnel_to_idle),
                    false => (self.indices.vm, self.indices.vm_to_idle),
                };
                let send = |ifindex| self.traffic.send(&self.socket, ifindex, &frame, LONG_AT_ONCE);
                longer(seconds, u32::MAX, || send(enter), || send(idle))
            }
        }
    }

    /// Sets what small packets are sent.
    fn aim(&self, path: Path, load: Load) -> Result<(), Failure> {
        let ports = match load {
            Load::Known => Ports::Random(KNOWN_FLOWS),
            Load::Fresh => Ports::Fresh(1),
            Load::Small | Load::Long => Ports::Random(FLOWS),
        };
        self.traffic.aim(&path.flows().template(path.is_inward(), ports))
    }

    fn forget_flows(&mut self) -> Result<(), Failure> {
        match &mut self.sluice {
            Some(sluice) => sluice.forget_flows(),
            None => kernel::forget_flows(),
        }
    }

    fn program(&mut self, path: Path, load: Load, packets: u32) -> Result<f64, Failure> {
        let sluice = self.sluice.as_ref().ok_or("only Sluice has a program")?;
        let program = sluice.program(PORT_PROGRAM)?;
        self.aim(path, load)?;
        let packets = if load == Load::Fresh { packets.min(FRESH_MAX) } else { packets };
        let time = self.traffic.time_program(program.as_fd(), self.indices.port, packets)?;
        if load == Load::Fresh {
            self.forget_flows()?;
        }
        Ok(time)
    }
}

/// Median of the differences of neighboring times, for `seconds` and at least once, at most `turns_max` times.
fn longer(
    seconds: f64,
    turns_max: u32,
    with: impl Fn() -> Result<f64, Failure>,
    without: impl Fn() -> Result<f64, Failure>,
) -> Result<f64, Failure> {
    let (start, bound) = (Instant::now(), Duration::from_secs_f64(seconds));
    // Caches and page pools are warm afterwards.
    with()?;
    let mut differences = Vec::new();
    // One turn was before.
    for turn in 2.. {
        differences.push(with()? - without()?);
        if turn >= turns_max || start.elapsed() >= bound {
            break;
        }
    }
    Ok(median(differences))
}

#[cfg(test)]
mod tests {
    use super::super::frames::{FRAME_BYTES, TUNNEL_BYTES};
    use super::super::place::{VIPS, host_of};
    use super::*;
    use std::net::Ipv4Addr;

    const SMALL: [Path; 6] =
        [Path::Out, Path::In, Path::InPlain, Path::Local, Path::LocalPlain, Path::Direct];

    /// For each path, the packet that arrived last, without its random parts, and the address of the host or gateway to
    /// which it was sent.
    fn packets(switch: Switch) -> Vec<(Vec<u8>, Option<Ipv4Addr>)> {
        let inside = move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let mut side = Side::new(switch, Rules::None).unwrap();
            SMALL.map(|path| {
                side.path(path, Load::Small, 0.0).unwrap();
                // The run without a path was the last one.
                side.aim(path, Load::Small).unwrap();
                let enter = if path.is_inward() { side.indices.under } else { side.indices.port };
                side.traffic.receive(enter, path.is_inward(), 1).unwrap();
                fixed_parts(path, side.traffic.kept().unwrap())
            })
        };
        std::thread::spawn(inside).join().unwrap().into()
    }

    fn fixed_parts(path: Path, mut packet: Vec<u8>) -> (Vec<u8>, Option<Ipv4Addr>) {
        let is_tunneled = matches!(path, Path::Out | Path::Direct);
        let frame = if is_tunneled { TUNNEL_BYTES } else { 0 };
        packet.truncate(frame + FRAME_BYTES);
        let address_at =
            |packet: &[u8], at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
        let host = is_tunneled.then(|| address_at(&packet, 30));
        let vm = u32::from(address_at(&packet, frame + 30));
        match (path, host) {
            (Path::Direct, Some(host)) => assert_eq!(host, host_of(vm - u32::from(BY_PATH))),
            (_, Some(host)) => assert!(VIPS.contains(&host), "{host}"),
            _ => {}
        }
        // Identification, checksum, destination and source port of the outer headers.
        let outer = [18..20, 24..26, 30..34, 34..36].into_iter().filter(|_| is_tunneled);
        // The VM's MAC and address, the checksum, and the source port.
        let inner = [2..6, 24..26, 30..34, 34..36].map(|part| frame + part.start..frame + part.end);
        outer.chain(inner).for_each(|part| packet[part].fill(0));
        (packet, host)
    }

    /// Catches sides that send other packets: through another tunnel, to another host, or with a changed frame.
    /// Needs root.
    #[test]
    fn both_sides_send_the_same_packets() {
        let (ours, theirs) = (packets(Switch::Sluice), packets(Switch::Kernel));
        for ((path, ours), theirs) in SMALL.iter().zip(ours).zip(theirs) {
            assert_eq!(ours.0, theirs.0, "{path:?}");
            assert_eq!(ours.1.is_some(), theirs.1.is_some(), "{path:?}");
        }
    }
}
