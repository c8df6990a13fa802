//! A VM with security groups migrates with sessions `reset`: its TCP connections, in both directions and of both families, end at both
//! ends within seconds, also those that are idle, and begin again by the rules of the new host. A connection between other VMs goes on, and
//! segments that a stranger forges cause no reset.

use crate::Ground;
use crate::connections::{STRAY_SEGMENTS, TALKER, go_on, line, start};
use crate::migration::{OLD, OUTWARD, PEERS, SERVED, VM, begin, finish, metric, peer, protect, serve, talk};
use crate::moved_instance::{NEW, with_another_host};
use crate::security_groups::create;
use crate::support::{Failure, Outcome, drops, ensure, ensure_timely, eventually};
use sluice_client::{Remote, SessionMode};
use sluice_lab::{Lab, VmState};
use sluice_types::{AddressFamily, Protocol, SecurityGroupId};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::process::Child;

/// The neighbor of the VM at its new host serves here, for members of its own group.
const OTHER: u16 = 7503;
const STRANGER: &str = "web-2";
/// Source port of what the stranger forges.
const FORGED: &str = "40001";
/// Longest time from the switch until a connection has begun again. An idle guest is provoked again after 1 s and 2 s.
const AGAIN_MAX: Duration = Duration::from_secs(3);
/// After this time, no guest is provoked any more.
const QUIET: Duration = Duration::from_secs(3);

/// Connects until it succeeds. Without a reset, a program notices the end of a connection by its timeout only.
const CONNECT: &str = "import select\n\
    def connect():\n    \
        while True:\n        \
            try:\n            \
                s = socket.create_connection((at, port), 1)\n            \
                s.settimeout(20)\n            return s, s.makefile('rb')\n        \
            except OSError:\n            time.sleep(0.02)\n\
    s, f = connect()\n";

/// Talks all the time until a line of input, and connects again if the connection ends. Prints the longest time without an answer in
/// milliseconds, and how often it has connected again.
const BUSY: &str = "print('ready', flush=True)\n\
    longest, again, last = 0, 0, time.time()\n\
    while not select.select([sys.stdin], [], [], 0.02)[0]:\n    \
        try:\n        \
            s.sendall(b'x\\n')\n        \
            if f.readline() != b'x\\n':\n            raise ConnectionResetError\n    \
        except OSError:\n        \
            s.close()\n        s, f = connect()\n        again += 1\n        continue\n    \
        now = time.time()\n    longest, last = max(longest, now - last), now\n\
    print(int(longest * 1000), again)\n";

/// Talks once, and sends nothing until its connection is reset. Then it connects and talks again.
const IDLE: &str = "def talk():\n    \
        s.sendall(b'x\\n')\n    assert f.readline() == b'x\\n'\n\
    talk()\n\
    s.settimeout(None)\n\
    print('ready', flush=True)\n\
    try:\n    f.readline()\n    print('closed', flush=True)\n\
    except ConnectionResetError:\n    \
        s, f = connect()\n    talk()\n    print('again', flush=True)\n";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(with_another_host(ground)?).await?;
    let neighbor = lab.add_vm("neighbor", "web", "front", NEW).await?;
    let vm = lab.add_vm(VM, "web", "front", OLD).await?;
    let client = protect(&lab, &vm, &neighbor).await?;
    let mut servers = serve(&lab, &vm, &neighbor)?;
    servers.extend(serve_others(&lab, &neighbor, client).await?);
    let moved = connections_begin_again(&lab, &vm, &neighbor).await?;
    forged_segments_reset_nothing(&lab, &moved, &neighbor).await?;
    for server in &mut servers {
        server.kill().await?;
    }
    Ok(())
}

/// The neighbor answers connections of the VMs of its own group.
async fn serve_others(lab: &Lab, neighbor: &VmState, client: SecurityGroupId) -> Result<Vec<Child>, Failure> {
    for family in [AddressFamily::Ipv4, AddressFamily::Ipv6] {
        create(lab, client, family, Protocol::TCP, OTHER, Remote::Group(client)).await?;
    }
    let at = neighbor.addresses().into_iter();
    at.map(|at| start(lab, "neighbor", TALKER, &at.to_string(), OTHER, "")).collect()
}

/// Starts a program with each peer, in both directions and of both families.
async fn each_way(
    lab: &Lab,
    vm: &VmState,
    neighbor: &VmState,
    program: &str,
) -> Result<Vec<(String, Child)>, Failure> {
    let program = format!("{CONNECT}{program}");
    let mut begun = Vec::new();
    for name in PEERS {
        let inward = vm.addresses().into_iter().map(|at| (name, at, SERVED));
        let outward = peer(lab, neighbor, name)?.addresses().into_iter().map(|at| (VM, at, OUTWARD));
        for (from, at, port) in inward.chain(outward) {
            let mut child = start(lab, from, &program, &at.to_string(), port, "")?;
            let text = line(&mut child).await?;
            ensure!(text == "ready", "{from} -> {at} said {text}");
            begun.push((format!("{from} -> {at}"), child));
        }
    }
    Ok(begun)
}

/// Connections between other VMs, of which one is at the new host.
async fn between_others(lab: &Lab, neighbor: &VmState) -> Result<Vec<(String, Child)>, Failure> {
    let mut begun = Vec::new();
    for from in ["web-1", "web-3"] {
        for at in neighbor.addresses() {
            begun.push((format!("{from} -> {at}"), talk(lab, from, at, OTHER).await?));
        }
    }
    Ok(begun)
}

/// Ends programs that talk. Returns for each the numbers that it prints.
async fn end_all(children: Vec<(String, Child)>) -> Result<Vec<(String, [u64; 2])>, Failure> {
    let mut results = Vec::new();
    for (way, mut child) in children {
        go_on(&mut child).await?;
        let output = child.wait_with_output().await?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "the connection {way} has ended: {errors}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [first, second] = words[..] else { return Err(Failure::new(format!("{way} said {text}"))) };
        results.push((way, [first, second]));
    }
    Ok(results)
}

async fn connections_begin_again(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Result<VmState, Failure> {
    let idle = each_way(lab, vm, neighbor, IDLE).await?;
    let busy = each_way(lab, vm, neighbor, BUSY).await?;
    let others = between_others(lab, neighbor).await?;
    let connections = (idle.len() + busy.len()) as f64;
    let (migration, moved) = begin(lab, vm, NEW, SessionMode::Reset).await?;
    lab.switch_guest(VM, vm).await?;
    let switched = Instant::now();
    let mut latest = Duration::ZERO;
    for (way, mut child) in idle {
        let text = tokio::time::timeout(AGAIN_MAX * 4, line(&mut child)).await;
        let text = text.map_err(|_| Failure::new(format!("the idle connection {way} was not reset")))??;
        ensure!(text == "again", "{way} said {text}");
        latest = switched.elapsed();
    }
    println!("    idle connections have begun again after {} ms", latest.as_millis());
    ensure_timely!(latest <= AGAIN_MAX, "idle connections have begun again after {} ms", latest.as_millis());
    finish(lab, &migration, &moved).await?;
    let mut longest_ms = 0;
    for (way, [gap_ms, again]) in end_all(busy).await? {
        ensure!(again == 1, "{way} has connected again {again} times");
        longest_ms = longest_ms.max(gap_ms);
    }
    println!("    connections in use had no answer for at most {longest_ms} ms");
    let gap_max = AGAIN_MAX.as_millis() as u64;
    ensure_timely!(longest_ms <= gap_max, "a connection had no answer for {longest_ms} ms");
    for (way, [gap_ms, answered]) in end_all(others).await? {
        ensure!(answered > 10, "{way}, of other VMs, was answered {answered} times, after up to {gap_ms} ms");
    }
    let reset = metric(lab, NEW, "sluice_migration_connections_reset_total").await?;
    ensure!(reset >= connections, "{NEW} has reset {reset} connections of {connections}");
    let copied = metric(lab, NEW, "sluice_migration_sessions_copied_total").await?;
    ensure!(copied == 0.0, "{NEW} has copied {copied} sessions");
    Ok(moved)
}

/// While the old connections are still known at the new host, segments of a VM that has none of them get no answer.
async fn forged_segments_reset_nothing(lab: &Lab, vm: &VmState, neighbor: &VmState) -> Outcome {
    tokio::time::sleep(QUIET).await;
    let others = between_others(lab, neighbor).await?;
    let of_vm = each_way(lab, vm, neighbor, BUSY).await?;
    let [reset, refused] = counts(lab, vm.vni).await?;
    let targets: Vec<(IpAddr, u16)> = vm
        .addresses()
        .into_iter()
        .map(|at| (at, SERVED))
        .chain(neighbor.addresses().into_iter().map(|at| (at, OTHER)))
        .collect();
    for (at, port) in &targets {
        let output = start(lab, STRANGER, STRAY_SEGMENTS, &at.to_string(), *port, FORGED)?;
        let output = output.wait_with_output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // Each sends three segments.
    let forged = (targets.len() * 3) as f64;
    eventually(Duration::from_secs(2), || async {
        let [_, now] = counts(lab, vm.vni).await?;
        ensure!(now - refused >= forged, "{} of {forged} forged segments were refused", now - refused);
        Ok(())
    })
    .await?;
    let [now, _] = counts(lab, vm.vni).await?;
    ensure!(now == reset, "{} forged segments were taken for those of connections that end", now - reset);
    for (way, [_, again]) in end_all(of_vm).await? {
        ensure!(again == 0, "{way} has connected again {again} times");
    }
    end_all(others).await?;
    Ok(())
}

/// Segments of connections that end, and of none.
async fn counts(lab: &Lab, vni: u32) -> Result<[f64; 2], Failure> {
    Ok([drops(lab, vni, "session_reset").await?, drops(lab, vni, "no_session").await?])
}
