//! The lab in which a VM moves between two hosts, while a peer on a third one talks to it. It changes with how VMs of a lab move.

use super::capture::{Kind, longest_gap, now};
use super::traffic::{PauseByFamily, Pauses, Plan, Seen, Traffic};
use super::{ECHO, SERVED};
use crate::agent::Agent;
use serde_json::json;
use sluice_bench_report::shell::{Failure, run};
use sluice_client::{
    Instance, Migration, MigrationEnd, MigrationStatus, NewSecurityGroup, NewSecurityRule, Remote,
    SecurityRule, SessionMode,
};
use sluice_lab::{Guest, Lab, Options, Topology, VmState};
use sluice_types::{AddressFamily, Direction, HostId, PortRange, Protocol, SecurityGroupId};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::process::Child;
use tokio::time::sleep;

const LAB: &str = "benchmove";
const VM: &str = "mover";
const PEER: &str = "peer";
/// The VM is on one of them, and moves to the other.
const HOSTS: [&str; 2] = ["host-a", "host-b"];
const READY: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// Traffic before a move, in which hosts learn direct paths; after it; and after that of a guest, which may be emulated.
const CALM: Duration = Duration::from_millis(300);
const AFTER: Duration = Duration::from_millis(600);
const AFTER_GUEST: Duration = Duration::from_secs(2);
/// A peer may send so many segments without an answer, for so long, before it repeats any: so each of its segments shows whether
/// packets pass, and its own timers do not.
const METRICS: &str = "initcwnd 1000 rto_min 2s";

/// How a VM moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As a migration, with this done to its sessions.
    Migration(SessionMode),
    /// The API is told when the VM runs on the other host, and hosts hear of it as of any move.
    Plain,
}

/// What a move cost the peer, beyond the VM's own pause: the worst of both families, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Without answers to pings, without datagrams and without segments of TCP: of packets.
    pub packets_ms: [f64; 3],
    /// Without answers for the applications with a connection each.
    pub application_ms: f64,
    /// Connections that ended, or were silent at the end.
    pub lost: u32,
    /// The VM's own pause, the longer one of both families.
    pub pause_ms: f64,
}

/// A VM of the lab, and what answers in it.
pub struct Cloud {
    lab: Lab,
    vm: VmState,
    is_guest: bool,
    plan: Plan,
    _servers: Vec<Child>,
}

/// Starts the lab for `work`, and removes it whatever the result is.
///
/// # Errors
/// Errors of the lab and of `work`.
pub async fn with_cloud<T>(
    binary: &Path,
    probe: &Path,
    guest: Guest,
    work: impl AsyncFnOnce(&mut Cloud) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut options = Options::standard(LAB, binary)?;
    options.topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("vms.yaml"))?;
    options.topology.vms.retain(|vm| [VM, PEER].contains(&&*vm.name));
    options.topology.vms.iter_mut().filter(|vm| vm.name == VM).for_each(|vm| vm.guest = guest);
    let probe = probe.canonicalize().map_err(|error| format!("{}: {error}", probe.display()))?;
    options.topology.guest_programs = vec![probe.clone()];
    let outcome = match Lab::up(options).await {
        Ok(lab) => match Cloud::new(lab, &probe, guest == Guest::Qemu).await {
            Ok(mut cloud) => work(&mut cloud).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error.into()),
    };
    sluice_lab::down(LAB).await?;
    outcome
}

impl Cloud {
    async fn new(lab: Lab, probe: &Path, is_guest: bool) -> Result<Self, Failure> {
        let vm = lab.vm(VM)?.clone();
        let peer = lab.paths().namespace_file(PEER);
        let interval = Duration::from_millis(if is_guest { 20 } else { 2 });
        let plan = Plan { peer, targets: vm.addresses(), interval, patience: Duration::from_secs(3600) };
        let interface = &lab.vm(PEER)?.interface;
        let namespace = lab.paths().namespace(PEER);
        for target in &plan.targets {
            run(&match target {
                IpAddr::V4(_) => {
                    format!("ip -n {namespace} route replace {target}/32 dev {interface} {METRICS}")
                }
                IpAddr::V6(_) => format!(
                    "ip -n {namespace} -6 route replace {target}/128 via fe80::1 dev {interface} {METRICS}"
                ),
            })?;
        }
        let probe = probe.display().to_string();
        let servers =
            if is_guest { serve_in_guest(&lab, &vm, &probe).await? } else { serve(&lab, &vm, &probe)? };
        Ok(Self { lab, vm, is_guest, plan, _servers: servers })
    }

    /// Filters the VM's port: it may get pings, datagrams and connections at the ports that answer, and what belongs to sessions.
    ///
    /// # Errors
    /// Errors of the API.
    pub async fn protect(&self) -> Result<(), Failure> {
        let new = NewSecurityGroup { name: "server".to_owned(), description: None };
        let group = self.lab.api().create(self.lab.vpc(&self.vm.vpc)?.id, &new).await?.object.id;
        for family in [AddressFamily::Ipv4, AddressFamily::Ipv6] {
            let is_ipv4 = family == AddressFamily::Ipv4;
            let (ping, kind) = if is_ipv4 { (Protocol::ICMP, 8) } else { (Protocol::ICMPV6, 128) };
            for (protocol, port, icmp_type) in [
                (Protocol::TCP, Some(SERVED), None),
                (Protocol::UDP, Some(ECHO), None),
                (ping, None, Some(kind)),
            ] {
                let rule = NewSecurityRule {
                    direction: Direction::Ingress,
                    family,
                    protocol,
                    ports: port.and_then(|port| PortRange::new(port, port).ok()),
                    icmp_type,
                    icmp_code: None,
                    remote: Remote::Any,
                    description: String::new(),
                };
                let rule = self.lab.api().create(group, &rule).await?.object.id;
                self.lab.api().wait_programmed::<SecurityRule>(rule, READY).await?;
            }
        }
        self.set_groups(&[group]).await
    }

    async fn set_groups(&self, groups: &[SecurityGroupId]) -> Result<(), Failure> {
        let id = self.vm.id;
        self.lab.api().update::<Instance>(id, &json!({ "security_groups": groups }), None).await?;
        self.lab.api().wait_programmed::<Instance>(id, READY).await?;
        Ok(())
    }

    /// Moves the VM to the other host under traffic. With `timer`, the application connects again after that time without an answer,
    /// and the traffic lasts until then.
    ///
    /// # Errors
    /// Errors of the lab; if packets of a kind get no answer any more, but for TCP of a VM whose sessions are not kept.
    pub async fn moved(&mut self, way: Way, timer: Option<Duration>) -> Result<Cost, Failure> {
        let patience = timer.unwrap_or(self.plan.patience);
        let traffic = Traffic::begin(&Plan { patience, ..self.plan.clone() })?;
        sleep(CALM).await;
        let outcome = if self.is_guest { self.guest(way).await } else { self.namespace(way).await };
        let after = if self.is_guest { AFTER_GUEST } else { AFTER };
        sleep(timer.unwrap_or_default() + after).await;
        let answered_since = now() - after / 2;
        let seen = traffic.end();
        let (since, pauses) = outcome?;
        let keeps_segments = timer.is_none() && way != Way::Migration(SessionMode::Reset);
        let cost = cost(&seen?, &Window { since, pauses, answered_since, keeps_segments })?;
        let [icmp, udp, tcp] = cost.packets_ms;
        eprintln!(
            "bench-hosts: {way:?} to {}: pause {:.1} ms; beyond it {icmp:.1}, {udp:.1}, {tcp:.1} ms, application {:.1} ms; \
             {} connections lost",
            self.vm.host, cost.pause_ms, cost.application_ms, cost.lost
        );
        Ok(cost)
    }

    fn target(&self) -> Result<(&'static str, HostId), Failure> {
        let [first, second] = HOSTS;
        let to = if self.vm.host == first { second } else { first };
        Ok((to, self.lab.node(to)?.id.parse()?))
    }

    /// Moves a VM that is a namespace. Returns when that began, and for how long the VM could not send.
    async fn namespace(&mut self, way: Way) -> Result<(Duration, PauseByFamily), Failure> {
        let (to, host) = self.target()?;
        let (lab, vm) = (&self.lab, &self.vm);
        let migration = match way {
            Way::Migration(mode) => Some(self.start(host, mode).await?),
            Way::Plain => None,
        };
        let moved = lab.prepare_migration(VM, vm, to).await?;
        let agent = Agent::of(lab, to)?;
        if migration.is_some() {
            agent.attach(&moved.port, moved.id).await?;
            self.is_ready().await?;
        }
        let peers = lab.vm(PEER)?.addresses();
        let pauses = Pauses::watch(&lab.paths().namespace_file(VM), &self.plan.peer, &peers)?;
        let since = now();
        lab.switch_guest(VM, vm).await?;
        match migration {
            Some(migration) => self.is_migrated(&migration).await?,
            None => {
                lab.api().update::<Instance>(moved.id, &json!({ "host": host }), None).await?;
                agent.attach(&moved.port, moved.id).await?;
                lab.api().wait_programmed::<Instance>(moved.id, READY).await?;
            }
        }
        let pauses = pauses.end()?;
        lab.end_migration(VM).await?;
        self.vm = moved;
        Ok((since, pauses))
    }

    /// Moves a guest of QEMU. Returns when it was stopped, and for how long.
    async fn guest(&mut self, way: Way) -> Result<(Duration, PauseByFamily), Failure> {
        let Way::Migration(mode) = way else { return Err("guests of QEMU only migrate".into()) };
        let (to, host) = self.target()?;
        let migration = self.start(host, mode).await?;
        let mut waiting = self.lab.prepare_guest_migration(VM, &self.vm, to).await?;
        let port = waiting.moved().port.clone();
        Agent::of(&self.lab, to)?.attach(&port, self.vm.id).await?;
        self.is_ready().await?;
        let moved = waiting.run(&self.lab, true).await?;
        self.is_migrated(&migration).await?;
        self.vm = waiting.finish(&self.lab).await?;
        Ok((moved.stopped, vec![(false, moved.pause), (true, moved.pause)]))
    }

    async fn start(&self, host: HostId, mode: SessionMode) -> Result<Migration, Failure> {
        let vpc = self.lab.vpc(&self.vm.vpc)?.id;
        Ok(self.lab.api().start_migration((vpc, self.vm.id), host, mode, None).await?)
    }

    /// Waits until the target is ready for the VM.
    async fn is_ready(&self) -> Result<(), Failure> {
        let (vpc, begun) = (self.lab.vpc(&self.vm.vpc)?.id, Instant::now());
        loop {
            let migration = self.lab.api().migration(vpc, self.vm.id).await?;
            match migration.phase {
                MigrationStatus::Ready => return Ok(()),
                MigrationStatus::Failed => return Err(migration.problem.into()),
                _ if begun.elapsed() > READY => return Err(format!("not ready: {migration:?}").into()),
                _ => sleep(POLL).await,
            }
        }
    }

    async fn is_migrated(&self, migration: &Migration) -> Result<(), Failure> {
        let vpc = self.lab.vpc(&self.vm.vpc)?.id;
        match self.lab.api().wait_migrated(vpc, migration, READY, |_| {}).await? {
            MigrationEnd::Migrated(_) => Ok(()),
            other => Err(format!("the VM has not migrated: {other:?}").into()),
        }
    }
}

/// Starts what answers in a VM that is a namespace.
fn serve(lab: &Lab, vm: &VmState, probe: &str) -> Result<Vec<Child>, Failure> {
    let mut servers = Vec::new();
    for words in servers_of(vm) {
        let argv: Vec<&str> = std::iter::once(probe).chain(words.iter().map(String::as_str)).collect();
        servers.push(lab.command(VM, &argv)?.stdout(std::process::Stdio::null()).spawn()?);
    }
    Ok(servers)
}

/// Starts what answers in a guest of QEMU. A migration closes all channels of the lab, so these are no commands of a channel.
async fn serve_in_guest(lab: &Lab, vm: &VmState, probe: &str) -> Result<Vec<Child>, Failure> {
    let mut text = String::new();
    for (number, words) in servers_of(vm).iter().enumerate() {
        text.push_str(&format!(
            "setsid {probe} {} </dev/null >/run/server{number} 2>&1 &\n\
             until grep -q ready /run/server{number}; do sleep 0.1; done\n",
            words.join(" ")
        ));
    }
    let output = lab.exec(VM, &["timeout", "60", "sh", "-c", &text]).await?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    Err(format!("starting servers in the guest: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// The arguments of the probe for all servers of a VM.
fn servers_of(vm: &VmState) -> Vec<Vec<String>> {
    let at = |address: IpAddr, port| std::net::SocketAddr::new(address, port).to_string();
    let servers = vm.addresses().into_iter().flat_map(|address| {
        [
            vec!["keep".to_owned(), at(address, SERVED)],
            vec!["echo".to_owned(), at(address, ECHO), VM.to_owned()],
        ]
    });
    servers.collect()
}

/// What of the traffic belongs to a move. Times are since the UNIX epoch.
struct Window {
    /// When the move began.
    since: Duration,
    /// The VM's own pause, of each family.
    pauses: PauseByFamily,
    /// An application that has not been answered since then has lost its connection.
    answered_since: Duration,
    /// Whether segments of the connections pass after the move.
    keeps_segments: bool,
}

/// Computes what a move cost.
fn cost(seen: &Seen, window: &Window) -> Result<Cost, Failure> {
    let Window { since, pauses, answered_since, keeps_segments } = window;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut cost = Cost::default();
    for (ipv6, pause) in pauses {
        cost.pause_ms = cost.pause_ms.max(ms(*pause));
        for (number, kind) in [Kind::Icmp, Kind::Udp, Kind::Tcp].into_iter().enumerate() {
            if kind == Kind::Tcp && !keeps_segments {
                continue;
            }
            let gap = longest_gap(&seen.answers, (kind, *ipv6), *since);
            let gap = gap.ok_or_else(|| format!("no {kind:?} of the VM after its move, IPv6 {ipv6}"))?;
            cost.packets_ms[number] = cost.packets_ms[number].max(ms(gap.saturating_sub(*pause)));
        }
        for (_, talked) in seen.talks.iter().filter(|(of, _)| of == ipv6) {
            let gap = talked.longest_gap(*since).saturating_sub(*pause);
            cost.application_ms = cost.application_ms.max(ms(gap));
            cost.lost += talked.lost + u32::from(talked.lost == 0 && talked.last < *answered_since);
        }
    }
    Ok(cost)
}

/// Whether the lab lacks what guests of QEMU need.
pub fn lacks_guests(error: &Failure) -> bool {
    let missing = error.downcast_ref::<sluice_lab::Error>();
    matches!(missing, Some(sluice_lab::Error::NoGuestKernel(_) | sluice_lab::Error::MissingTool { .. }))
}

#[cfg(test)]
mod tests {
    use super::super::capture::Answer;
    use super::super::client::Talked;
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn seen(tcp: bool) -> Seen {
        let times = [0, 10, 100, 110];
        let kinds = [Kind::Icmp, Kind::Udp, Kind::Tcp].into_iter().filter(|kind| tcp || *kind != Kind::Tcp);
        let answers = kinds.flat_map(|kind| times.map(|at| Answer { at: ms(at), kind, ipv6: false }));
        let talked = if tcp {
            Talked { gaps: vec![(ms(9), ms(8)), (ms(220), ms(210))], last: ms(230), lost: 0 }
        } else {
            Talked { gaps: Vec::new(), last: ms(10), lost: 0 }
        };
        Seen { answers: answers.collect(), talks: vec![(false, talked)] }
    }

    /// Catches pauses of the VM that count as costs of the network, and connections that are silent for ever.
    #[test]
    fn costs_are_what_exceeds_the_pause() {
        let window = |keeps_segments| {
            let pauses = vec![(false, ms(60))];
            Window { since: ms(12), pauses, answered_since: ms(200), keeps_segments }
        };
        let found = cost(&seen(true), &window(true)).unwrap();
        let expected = Cost { packets_ms: [30.0; 3], application_ms: 150.0, lost: 0, pause_ms: 60.0 };
        assert_eq!(found, expected);
        let found = cost(&seen(false), &window(false)).unwrap();
        assert_eq!((found.lost, found.packets_ms), (1, [30.0, 30.0, 0.0]));
        assert!(cost(&seen(false), &window(true)).is_err());
    }
}
