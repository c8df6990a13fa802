//! A VM with security groups migrates between hosts while it talks to VMs on its old host, on its new host and on a third one.
//! Connections in both directions go on, also those that its rules permit only because they exist already; streams lose no more
//! than what is sent while the guest has no link. The same with the controller away at the switch, with the agent of the target
//! killed before it, to a host whose agent has just started and that has had no instance, and after a cancelation. What is sent to
//! an address of a prefix that is delegated to the VM follows it as well. Without copies of its sessions the connections end: so the copies matter.

use crate::Ground;
use crate::attack::sessions;
use crate::connections::{TALKER, go_on, line, start};
use crate::moved_instance::{NEW, with_another_host};
use crate::security_groups::{create, group};
use crate::streams::Streams;
use crate::support::{Failure, Outcome, Probe, ensure, ensure_timely, eventually, execute, number};
use serde_json::{Value, json};
use sluice_client::{Instance, Migration, MigrationEnd, MigrationStatus, Remote, SessionMode};
use sluice_lab::{CONTROLLER, Host, Lab, VmState};
use sluice_types::{AddressFamily, HostId, Protocol, SecurityGroupId};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::process::Child;

pub const OLD: &str = "host-b";
pub const VM: &str = "mover";
/// On a third host, on the old host, and on the new one.
pub const PEERS: [&str; 3] = ["web-1", "web-3", "neighbor"];
/// Prefixes that are delegated to the VM, outside of the subnets, and the VM's address in each.
const PREFIXES: [&str; 2] = ["10.244.2.0/24", "fd10:244:0:2::/64"];
const PODS: [&str; 2] = ["10.244.2.7", "fd10:244:0:2::7"];
/// A host that has never had an instance.
const COLD: &str = "host-e";
/// The VM serves here, and members of one group may connect.
pub const SERVED: u16 = 7501;
/// The peers serve here.
pub const OUTWARD: u16 = 7502;
/// The VM echoes datagrams from here on.
const STREAMS: u16 = 7510;
const PPS: u64 = 200;
const READY: Duration = Duration::from_secs(10);
const MIGRATED: Duration = Duration::from_secs(20);
/// What streams may lose beyond the time in which the guest has no link: until the source has closed its port and the target has
/// opened its own.
const SWITCH_MAX: Duration = Duration::from_millis(250);

/// Talks all the time until a line of input; prints the longest time without an answer in milliseconds, and how many there were.
const CONVERSATION: &str = "import select\n\
    s = socket.create_connection((at, port), 5)\n\
    s.settimeout(8)\n\
    f = s.makefile('rb')\n\
    print('ready', flush=True)\n\
    longest, count, last = 0, 0, time.time()\n\
    while not select.select([sys.stdin], [], [], 0.02)[0]:\n    \
        s.sendall(b'x\\n')\n    assert f.readline() == b'x\\n'\n    \
        now = time.time()\n    longest, count, last = max(longest, now - last), count + 1, now\n\
    print(int(longest * 1000), count)\n";

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = with_another_host(ground)?;
    options.topology.hosts.push(Host {
        name: COLD.to_owned(),
        switch: "tor-1".to_owned(),
        ipv4: "192.0.2.25".parse().ok(),
        ipv6: None,
        sessions: None,
        table_memory_mib: None,
    });
    let lab = Lab::up(options).await?;
    let neighbor = lab.add_vm("neighbor", "web", "front", NEW).await?;
    let vm = lab.add_vm(VM, "web", "front", OLD).await?;
    protect(&lab, &vm, &neighbor).await?;
    let mut servers = serve(&lab, &vm, &neighbor)?;
    let vm = under_load(&lab, &vm, &neighbor).await?;
    let vm = controller_away(&lab, &vm, &neighbor).await?;
    let vm = target_killed(&lab, &vm, &neighbor).await?;
    let vm = cold_target(&lab, &vm, &neighbor).await?;
    canceled(&lab, &vm, &neighbor).await?;
    without_copies(&lab, &vm, &neighbor).await?;
    for server in &mut servers {
        server.kill().await?;
    }
    Ok(())
}

/// The VM of a peer.
pub fn peer<'a>(lab: &'a Lab, neighbor: &'a VmState, name: &str) -> Result<&'a VmState, Failure> {
    if name == "neighbor" { Ok(neighbor) } else { Ok(lab.vm(name)?) }
}

/// The VM's rules permit one port for TCP and those of the streams from members of a group, and nothing else from outside. Returns
/// that group, which the peers are in.
pub async fn protect(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Result<SecurityGroupId, Failure> {
    let (server, client) = (group(lab, "server").await?, group(lab, "client").await?);
    for family in [AddressFamily::Ipv4, AddressFamily::Ipv6] {
        create(lab, server, family, Protocol::TCP, SERVED, Remote::Group(client)).await?;
        create(lab, client, family, Protocol::TCP, OUTWARD, Remote::Group(server)).await?;
        for port in STREAMS..STREAMS + 2 * PEERS.len() as u16 {
            create(lab, server, family, Protocol::UDP, port, Remote::Group(client)).await?;
        }
    }
    set(lab, vm, &json!({ "security_groups": [server] })).await?;
    set(lab, vm, &json!({ "delegated_prefixes": PREFIXES })).await?;
    for at in PODS {
        // A single address, of an interface that stays.
        let add = ["ip", "addr", "add", at, "dev", "lo", "nodad"];
        execute(lab, VM, if at.contains(':') { &add } else { &add[..6] }).await?;
    }
    for name in PEERS {
        set(lab, peer(lab, neighbor, name)?, &json!({ "security_groups": [client] })).await?;
    }
    Ok(client)
}

async fn set(lab: &Lab, vm: &VmState, patch: &Value) -> Outcome {
    lab.api().update::<Instance>(vm.id, patch, None).await?;
    lab.api().wait_programmed::<Instance>(vm.id, READY).await?;
    Ok(())
}

/// The addresses at which the VM is reached, with those of its prefixes.
fn served(vm: &VmState) -> Result<Vec<IpAddr>, Failure> {
    let pods = PODS.iter().map(|at| at.parse()).collect::<Result<Vec<IpAddr>, _>>()?;
    Ok(vm.addresses().into_iter().chain(pods).collect())
}

/// Starts what answers connections, at the VM and at its peers.
pub fn serve(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Result<Vec<Child>, Failure> {
    let mut servers = Vec::new();
    for at in served(vm)? {
        servers.push(start(lab, VM, TALKER, &at.to_string(), SERVED, "")?);
    }
    for name in PEERS {
        for at in peer(lab, neighbor, name)?.addresses() {
            servers.push(start(lab, name, TALKER, &at.to_string(), OUTWARD, "")?);
        }
    }
    Ok(servers)
}

/// Connections in both directions, of both families, with each peer.
struct Conversations(Vec<(String, Child)>);

impl Conversations {
    async fn begin(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Result<Self, Failure> {
        let mut begun = Vec::new();
        for name in PEERS {
            let inward = served(vm)?.into_iter().map(|at| (name, at, SERVED));
            let outward = peer(lab, neighbor, name)?.addresses().into_iter().map(|at| (VM, at, OUTWARD));
            for (from, at, port) in inward.chain(outward) {
                begun.push((format!("{from} -> {at}"), talk(lab, from, at, port).await?));
            }
        }
        Ok(Self(begun))
    }

    /// Ends all, of which none may have ended before.
    async fn end(self, what: &str) -> Outcome {
        let mut longest_ms = 0;
        for (way, mut child) in self.0 {
            go_on(&mut child).await?;
            let output = child.wait_with_output().await?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.success(), "{what}: the connection {way} has ended: {errors}");
            let words: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [gap_ms, answered] = words[..] else {
                return Err(Failure::new(format!("{way} said {text}")));
            };
            ensure!(answered > 10, "{what}: {way} was answered only {answered} times");
            longest_ms = longest_ms.max(gap_ms);
        }
        println!("    {what}: no connection had no answer for longer than {longest_ms} ms");
        Ok(())
    }
}

/// Begins a connection. Its server may not listen yet.
pub async fn talk(lab: &Lab, from: &str, at: IpAddr, port: u16) -> Result<Child, Failure> {
    let mut last = String::new();
    for _ in 0..20 {
        let mut child = start(lab, from, CONVERSATION, &at.to_string(), port, "")?;
        match line(&mut child).await {
            Ok(text) if text == "ready" => return Ok(child),
            Ok(text) => last = text,
            Err(failure) => last = failure.to_string(),
        }
        drop(child);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Failure::new(format!("{from} cannot connect to {at} port {port}: {last}")))
}

pub fn host_id(lab: &Lab, host: &str) -> Result<HostId, Failure> {
    lab.node(host)?.id.parse().map_err(|_| Failure::new(format!("the id of {host}")))
}

/// Starts a migration, and waits until the target is ready for the guest.
pub async fn begin(
    lab: &Lab,
    vm: &VmState,
    to: &str,
    mode: SessionMode,
) -> Result<(Migration, VmState), Failure> {
    let vpc = lab.vpc("web")?.id;
    let migration = lab.api().start_migration((vpc, vm.id), host_id(lab, to)?, mode, None).await?;
    let moved = lab.prepare_migration(VM, vm, to).await?;
    lab.attach_port(&moved).await?;
    is_ready(lab, vm).await?;
    Ok((migration, moved))
}

/// Waits until the target is ready for the guest.
pub async fn is_ready(lab: &Lab, vm: &VmState) -> Outcome {
    let vpc = lab.vpc("web")?.id;
    eventually(READY, || async {
        let migration = lab.api().migration(vpc, vm.id).await?;
        ensure!(migration.phase == MigrationStatus::Ready, "{migration:?}");
        Ok(())
    })
    .await
}

/// Waits until the controller has moved the instance.
pub async fn finish(lab: &Lab, migration: &Migration, moved: &VmState) -> Outcome {
    let end = lab.api().wait_migrated(lab.vpc("web")?.id, migration, MIGRATED, |_| {}).await?;
    ensure!(matches!(end, MigrationEnd::Migrated(_)), "{end:?}");
    let instance = lab.api().get::<Instance>(moved.id).await?;
    ensure!(instance.host == host_id(lab, &moved.host)?, "the instance is on {:?}", instance.host);
    Ok(lab.end_migration(VM).await?)
}

pub async fn metric(lab: &Lab, node: &str, name: &str) -> Result<f64, Failure> {
    Ok(lab.metrics(node).await?.sum(name, &[]))
}

/// From the old host to the new one, with connections and streams.
async fn under_load(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Result<VmState, Failure> {
    let conversations = Conversations::begin(lab, vm, neighbor).await?;
    let ways: Vec<(&str, &str, IpAddr)> =
        PEERS.iter().flat_map(|name| vm.addresses().into_iter().map(move |at| (*name, VM, at))).collect();
    let streams = Streams::to(lab, &ways, STREAMS, PPS).await?;
    let (migration, moved) = begin(lab, vm, NEW, SessionMode::Copy).await?;
    let copied = metric(lab, NEW, "sluice_migration_sessions_copied_total").await?;
    // 18 connections and 6 streams.
    ensure!(copied >= 24.0, "{NEW} has copied only {copied} sessions");
    let away = lab.switch_guest(VM, vm).await?;
    finish(lab, &migration, &moved).await?;
    conversations.end("copy").await?;
    for (what, result) in streams.results().await? {
        let lost = number(&result, "sent")? - number(&result, "received")?;
        let lost_max = (away + SWITCH_MAX).as_secs_f64() * PPS as f64;
        println!(
            "    {what}: {lost} packets lost ({} ms); the guest had no link for {} ms",
            lost * 1000 / PPS,
            away.as_millis()
        );
        ensure_timely!(lost as f64 <= lost_max, "{what}: {lost} packets lost, {lost_max:.0} at most");
    }
    let switch_us = metric(lab, NEW, "sluice_migration_last_switch_microseconds").await?;
    println!("    the port of {NEW} was open {switch_us} us after the first frame of the guest");
    let frozen = metric(lab, OLD, "sluice_migration_ports_frozen_total").await?;
    ensure!(frozen == 1.0, "{OLD} has closed {frozen} ports");
    eventually(READY, || async {
        let of_old = sessions(lab, OLD, &vm.port).await;
        ensure!(of_old.is_err(), "{OLD} still has the port: {of_old:?}");
        Ok(())
    })
    .await?;
    let of_new = sessions(lab, NEW, &moved.port).await?;
    ensure!(!of_new.is_empty(), "{NEW} has no sessions of the VM");
    for at in moved.addresses() {
        is_refused(lab, "web-1", at).await?;
    }
    Ok(moved)
}

/// What the rules do not permit is not permitted at the new host either.
async fn is_refused(lab: &Lab, from: &str, at: IpAddr) -> Outcome {
    let at = SocketAddr::new(at, OUTWARD).to_string();
    let answer = Probe::start(lab, from, &["ask", "tcp", &at, "500"])?.result().await?;
    ensure!(!answer["name"].is_string(), "{from} reaches {at}");
    Ok(())
}

/// Back, while the controller is away from before the switch until long after it.
async fn controller_away(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Result<VmState, Failure> {
    let conversations = Conversations::begin(lab, vm, neighbor).await?;
    let (migration, moved) = begin(lab, vm, OLD, SessionMode::Copy).await?;
    lab.stop(CONTROLLER).await?;
    lab.switch_guest(VM, vm).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    conversations.end("controller away").await?;
    let conversations = Conversations::begin(lab, &moved, neighbor).await?;
    lab.restart(CONTROLLER)?;
    finish(lab, &migration, &moved).await?;
    conversations.end("controller back").await?;
    Ok(moved)
}

/// To the new host again; the target's agent is killed while it waits for the guest.
async fn target_killed(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Result<VmState, Failure> {
    let conversations = Conversations::begin(lab, vm, neighbor).await?;
    let (migration, moved) = begin(lab, vm, NEW, SessionMode::Copy).await?;
    lab.kill(NEW).await?;
    lab.restart(NEW)?;
    lab.synchronized(NEW, Duration::from_secs(30)).await?;
    is_ready(lab, vm).await?;
    lab.switch_guest(VM, vm).await?;
    finish(lab, &migration, &moved).await?;
    conversations.end("target killed").await?;
    Ok(moved)
}

/// To a host that has never had an instance, and whose agent starts right before the migration: it knows neither the network nor
/// a path.
async fn cold_target(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Result<VmState, Failure> {
    let conversations = Conversations::begin(lab, vm, neighbor).await?;
    lab.stop(COLD).await?;
    lab.restart(COLD)?;
    lab.synchronized(COLD, Duration::from_secs(30)).await?;
    eventually(READY, || async {
        let known = lab.paths_of(COLD).await?;
        ensure!(known.is_empty(), "{COLD} knows paths already: {known:?}");
        let opened = metric(lab, COLD, "sluice_migration_ports_opened_total").await?;
        ensure!(opened == 0.0, "{COLD} has opened {opened} ports before");
        Ok(())
    })
    .await?;
    let (migration, moved) = begin(lab, vm, COLD, SessionMode::Copy).await?;
    lab.switch_guest(VM, vm).await?;
    finish(lab, &migration, &moved).await?;
    let opened = metric(lab, COLD, "sluice_migration_ports_opened_total").await?;
    ensure!(opened == 1.0, "{COLD} has opened {opened} ports");
    conversations.end("cold target").await?;
    // The VM begins connections there as well.
    let conversations = Conversations::begin(lab, &moved, neighbor).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    conversations.end("after a migration to a cold host").await?;
    Ok(moved)
}

/// A migration that is canceled before the guest runs at the target.
async fn canceled(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Outcome {
    let conversations = Conversations::begin(lab, vm, neighbor).await?;
    let (_, moved) = begin(lab, vm, OLD, SessionMode::Copy).await?;
    // The hypervisor says that the guest is stopped, but it continues: its next frame opens the port again.
    lab.pause_port(vm).await?;
    let paused = metric(lab, &vm.host, "sluice_migration_ports_paused_total").await?;
    ensure!(paused == 1.0, "{} has closed {paused} ports of stopped guests", vm.host);
    eventually(READY, || async {
        ensure!(sessions(lab, &vm.host, &vm.port).await.is_ok(), "{} has not opened the port again", vm.host);
        Ok(())
    })
    .await?;
    let again = Conversations::begin(lab, vm, neighbor).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    again.end("stopped and continued").await?;
    lab.api().cancel_migration(lab.vpc("web")?.id, vm.id, None).await?;
    lab.api().wait_programmed::<Instance>(vm.id, READY).await?;
    lab.end_migration(VM).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    conversations.end("canceled").await?;
    eventually(READY, || async {
        ensure!(sessions(lab, OLD, &moved.port).await.is_err(), "{OLD} still has the port");
        Ok(())
    })
    .await
}

/// Without copies, no connection goes on; new ones begin.
async fn without_copies(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Outcome {
    let conversations = Conversations::begin(lab, vm, neighbor).await?;
    let (migration, moved) = begin(lab, vm, OLD, SessionMode::None).await?;
    lab.switch_guest(VM, vm).await?;
    finish(lab, &migration, &moved).await?;
    for (way, child) in conversations.0 {
        let output = child.wait_with_output().await?;
        ensure!(!output.status.success(), "the connection {way} goes on, though its session was not copied");
    }
    let conversations = Conversations::begin(lab, &moved, neighbor).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    conversations.end("after a migration without copies").await
}
