//! A VM never reaches the network stack of its host: not before its port is attached, while it is attached or after it
//! is detached, not while no agent runs, the file of attachments is lost or damaged, after `--flush`, and not on a
//! host that boots with VMs before its agent starts. All the while the VM sends what would reach the host or pass
//! through it (`sluice-probe host`). No frame arrives at the host's stack, the host's stack sends none to the VM, and
//! all are counted as dropped. The same frames on an interface that is not a VM's reach the host and are answered, in
//! every state; and on the VM's own interface when the guard is removed.

use crate::Ground;
use crate::support::{Failure, Outcome, Probe, answers, ensure, eventually, execute, who};
use serde_json::Value;
use sluice_lab::{Lab, Options, VmState};
use sluice_types::MacAddr;
use std::cell::Cell;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::Duration;

const HOST: &str = "host-a";
const PORT: u16 = 7014;
/// Names of the hosts' ends of VM interfaces, as the lab gives them to agents.
const PORT_NAMES: &str = "--port-names=vm*,x-*,y-*";
/// A VM's second interface. No name of `--port-names` includes its other end.
const CONTROL: &str = "ctl0";
/// An underlay address of the host, and one that the host has a route to.
const ADDRESSES: [&str; 2] = ["192.0.2.21", "192.0.2.22"];
/// How long each state lasts: 50 rounds of all frames.
const STATE: Duration = Duration::from_secs(1);
const BACK: Duration = Duration::from_secs(75);
const LISTED: Duration = Duration::from_secs(5);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    execute(&lab, HOST, &["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]).await?;
    let any = format!("[::]:{PORT}");
    let _service = Probe::listening(&lab, HOST, &["echo", &any, HOST]).await?;
    let test = Test { lab: &lab };
    let vm = test.plug("probe").await?;
    while_the_agent_runs(&test, &vm).await?;
    without_attachments(&test, &vm).await?;
    after_a_flush(&test, &vm).await?;
    at_boot(&test, &vm).await
}

/// Before the VM is attached, attached, with a killed and a restarted agent.
async fn while_the_agent_runs(test: &Test<'_>, vm: &Guest) -> Outcome {
    let lab = test.lab;
    test.is_closed("before its port is attached", vm).await?;
    test.service_is_silent(vm).await?;
    lab.start_vm(&vm.name, &vm.state).await?;
    let before = drops(lab).await?;
    test.reaches_no_host("attached", vm).await?;
    ensure!(drops(lab).await? > before, "the drops of the attached port are not counted");
    test.network_works(vm).await?;
    lab.kill(HOST).await?;
    test.reaches_no_host("attached, and its agent was killed", vm).await?;
    test.network_works(vm).await?;
    // Only the guard is there when this VM is connected.
    let late = test.plug("late").await?;
    test.is_closed("connected while no agent runs", &late).await?;
    test.start_agent().await?;
    test.reaches_no_host("attached, and its agent was restarted", vm).await?;
    test.is_closed("not attached, and the agent was restarted", &late).await?;
    test.lists_as_guarded(&late, true).await?;
    test.lists_as_guarded(vm, false).await
}

/// The file of attachments is lost, then damaged; the port is attached again, and detached.
async fn without_attachments(test: &Test<'_>, vm: &Guest) -> Outcome {
    let lab = test.lab;
    let file = lab.paths().state_dir(HOST).join("attachments.json");
    lab.kill(HOST).await?;
    std::fs::remove_file(&file)?;
    test.start_agent().await?;
    test.is_closed("attached, and the file of attachments was lost", vm).await?;
    test.lists_as_guarded(vm, true).await?;
    lab.kill(HOST).await?;
    std::fs::write(&file, "{")?;
    let agent = lab.restart(HOST)?;
    ensure!(agent.ended(BACK).await, "an agent runs with a damaged file of attachments");
    test.is_closed("and the file of attachments is damaged", vm).await?;
    std::fs::remove_file(&file)?;
    test.start_agent().await?;
    test.port(&["attach", &vm.port, "--instance", &vm.state.id.to_string()]).await?;
    test.network_works(vm).await?;
    test.port(&["detach", &vm.port]).await?;
    test.is_closed("detached", vm).await?;
    test.service_is_silent(vm).await
}

async fn after_a_flush(test: &Test<'_>, vm: &Guest) -> Outcome {
    test.port(&["attach", &vm.port, "--instance", &vm.state.id.to_string()]).await?;
    test.lab.stop(HOST).await?;
    test.vswitch(&["--flush"]).await?;
    test.is_closed("after --flush", vm).await?;
    // The programs that --flush attaches drop everything even if another program removes all rules.
    execute(test.lab, HOST, &["nft", "delete", "table", "inet", "sluice_guard"]).await?;
    execute(test.lab, HOST, &["nft", "delete", "table", "arp", "sluice_guard"]).await?;
    test.is_closed("after --flush, without rules", vm).await?;
    test.vswitch(&["--flush", "--unguard"]).await?;
    // The same counters count on this interface. The host's IPv6 stack first checks its address there.
    eventually(LISTED, async || {
        let before = test.seen(vm, "eth0", &vm.port).await?;
        tokio::time::sleep(STATE).await;
        let after = test.seen(vm, "eth0", &vm.port).await?;
        ensure!(
            is_more(after, before),
            "without the guard the VM does not reach its host: {before:?}, {after:?}"
        );
        Ok(())
    })
    .await
}

/// The host starts with nothing of Sluice but the guard, then a VM is connected, then the agent starts.
async fn at_boot(test: &Test<'_>, vm: &Guest) -> Outcome {
    let binary = test.lab.state().binary.display().to_string();
    execute(test.lab, HOST, &[&binary, "port", "guard", PORT_NAMES]).await?;
    vm.seen.set(test.seen(vm, "eth0", &vm.port).await?);
    let early = test.plug("early").await?;
    test.is_closed("connected before the first agent", &early).await?;
    test.is_closed("connected before the guard was installed", vm).await?;
    test.start_agent().await?;
    test.is_closed("connected when the first agent started", &early).await?;
    test.lists_as_guarded(&early, true).await?;
    test.lab.start_vm(&early.name, &early.state).await?;
    test.reaches_no_host("attached after the boot", &early).await?;
    test.network_works(&early).await
}

/// A VM that sends to its host all the while.
struct Guest {
    name: String,
    /// The host's end of its interface, and of its control interface.
    port: String,
    control: String,
    state: VmState,
    /// What was seen at the end of the last state.
    seen: Cell<Seen>,
    _probe: Probe,
}

/// Packets from an interface of a VM that reached the host's stack, and frames that the VM received from it.
type Seen = [u64; 2];

fn is_more(after: Seen, before: Seen) -> bool {
    after.iter().zip(before).all(|(after, before)| *after > before)
}

struct Test<'a> {
    lab: &'a Lab,
}

impl Test<'_> {
    /// Connects a VM to the host. It begins to send before the host's end of its interface is up.
    async fn plug(&self, name: &str) -> Result<Guest, Failure> {
        let lab = self.lab;
        let state = lab.plug_vm(name, "web", "front", HOST).await?;
        let (port, control) = (state.port.clone(), format!("c-{name}"));
        let (guest, host) = (lab.paths().namespace(name), lab.paths().namespace(HOST));
        let pair = ["ip", "link", "add", CONTROL, "netns", &guest, "type", "veth", "peer", "name", &control];
        let status = tokio::process::Command::new(pair[0]).args(&pair[1..]).args(["netns", &host]).status();
        ensure!(status.await?.success(), "cannot connect the control interface of {name}");
        for (place, up) in [(name, "lo"), (name, "eth0"), (name, CONTROL), (HOST, &control)] {
            execute(lab, place, &["ip", "link", "set", up, "up"]).await?;
        }
        let own4 = state.ipv4.ok_or_else(|| Failure::new("the VM has no IPv4 address"))?;
        let [host4, beyond] = ADDRESSES.map(str::to_owned);
        let mut words = vec!["host".to_owned(), PORT.to_string(), host4, beyond];
        for (own, other) in [("eth0", &port), (CONTROL, &control)] {
            let (mac, host_mac) = (link(lab, name, own).await?.1, link(lab, HOST, other).await?.1);
            let from_host = format!(
                "add table netdev seen; add chain netdev seen {own} {{ type filter hook ingress device {own} \
                 priority 0; }}; add rule netdev seen {own} ether saddr {host_mac} counter"
            );
            execute(lab, name, &["nft", &from_host]).await?;
            execute(lab, HOST, &["nft", &count_received(other)]).await?;
            words.push(format!("{own},{mac},{own4},{host_mac}"));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let probe = Probe::listening(lab, name, &words).await?;
        execute(lab, HOST, &["ip", "link", "set", &port, "up"]).await?;
        Ok(Guest { name: name.to_owned(), port, control, state, seen: Cell::default(), _probe: probe })
    }

    async fn seen(&self, vm: &Guest, own: &str, other: &str) -> Result<Seen, Failure> {
        Ok([counted(self.lab, HOST, other).await?, counted(self.lab, &vm.name, own).await?])
    }

    /// Checks that nothing of the VM has reached the host's stack since the last check, and nothing of that stack the
    /// VM, while the same frames on the control interface do and are answered.
    async fn reaches_no_host(&self, state: &str, vm: &Guest) -> Outcome {
        let before = self.seen(vm, CONTROL, &vm.control).await?;
        tokio::time::sleep(STATE).await;
        let control = self.seen(vm, CONTROL, &vm.control).await?;
        let seen = self.seen(vm, "eth0", &vm.port).await?;
        let last = vm.seen.replace(seen);
        ensure!(
            seen == last,
            "VM {}, {state}: {seen:?} packets reached the host's stack and came from it; before {last:?}",
            vm.name
        );
        ensure!(is_more(control, before), "the control of {} is blind: {before:?}, {control:?}", vm.name);
        Ok(())
    }

    /// Checks in addition that the drops are counted by interface.
    async fn is_closed(&self, state: &str, vm: &Guest) -> Outcome {
        let before = self.dropped(vm).await?;
        self.reaches_no_host(state, vm).await?;
        let after = self.dropped(vm).await?;
        ensure!(after > before, "VM {}, {state}: {after} drops are counted, before {before}", vm.name);
        Ok(())
    }

    /// Drops that the programs and the guard have counted for the VM's interface. An agent that runs adds them.
    async fn dropped(&self, vm: &Guest) -> Result<u64, Failure> {
        let map = self.lab.paths().pin_dir(HOST).join("maps/unknown_ports");
        let (index, _) = link(self.lab, HOST, &vm.port).await?;
        let mut sum = 0;
        if map.exists() {
            let dump =
                ["bpftool", "-j", "map", "dump", "pinned", &map.display().to_string()].map(str::to_owned);
            let entries = json(self.lab, HOST, &dump.each_ref().map(String::as_str)).await?;
            let entries = entries.as_array().into_iter().flatten().map(|entry| &entry["formatted"]);
            sum += entries.filter(|it| it["key"] == index).filter_map(|it| it["value"].as_u64()).sum::<u64>();
        }
        let rules = json(self.lab, HOST, &["nft", "-j", "list", "ruleset"]).await?;
        let sets = rules["nftables"].as_array().into_iter().flatten().map(|object| &object["set"]);
        let received = sets.filter(|set| set["name"] == "received_by" && set["table"] == "sluice_guard");
        let elements = received.filter_map(|set| set["elem"].as_array()).flatten().map(|it| &it["elem"]);
        let own = elements.filter(|element| element["val"] == vm.port.as_str());
        Ok(sum + own.filter_map(|element| element["counter"]["packets"].as_u64()).sum::<u64>())
    }

    /// Checks by TCP that the host's service answers on the control interface and not on the VM's own.
    async fn service_is_silent(&self, vm: &Guest) -> Outcome {
        for (own, other, expected) in [(CONTROL, &vm.control, Some(HOST)), ("eth0", &vm.port, None)] {
            let (index, _) = link(self.lab, &vm.name, own).await?;
            let (_, host_mac) = link(self.lab, HOST, other).await?;
            let at = SocketAddrV6::new(link_local(host_mac), PORT, 0, index);
            // Both ends of the control interface first check their new addresses.
            eventually(LISTED, async || {
                let found = who(self.lab, &vm.name, "tcp", at.into()).await?;
                ensure!(found.as_deref() == expected, "TCP from {} to {at}: {found:?} answered", vm.name);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    async fn network_works(&self, vm: &Guest) -> Outcome {
        for address in self.lab.vm("web-3")?.addresses() {
            answers(self.lab, &vm.name, address, &[]).await?;
        }
        Ok(())
    }

    async fn start_agent(&self) -> Outcome {
        self.lab.restart(HOST)?;
        Ok(self.lab.synchronized(HOST, BACK).await?)
    }

    /// Runs the host's own command of `sluice vswitch` with more options.
    async fn vswitch(&self, options: &[&str]) -> Outcome {
        let argv = self.lab.process(HOST)?.argv;
        let words: Vec<&str> = argv.iter().map(String::as_str).chain(options.iter().copied()).collect();
        execute(self.lab, HOST, &words).await
    }

    async fn port(&self, words: &[&str]) -> Outcome {
        let (binary, socket) = (self.lab.state().binary.display().to_string(), self.socket());
        execute(self.lab, HOST, &[&[&binary, "port"], words, &["--socket", &socket]].concat()).await
    }

    fn socket(&self) -> String {
        self.lab.paths().socket(HOST).display().to_string()
    }

    /// Waits until the agent lists the VM's interface as guarded, with drops, or does not.
    async fn lists_as_guarded(&self, vm: &Guest, expected: bool) -> Outcome {
        let (binary, socket) = (self.lab.state().binary.display().to_string(), self.socket());
        let argv = [&binary, "port", "guarded", "--output", "json", "--socket", &socket];
        eventually(LISTED, async || {
            let list = json(self.lab, HOST, &argv).await?;
            let own = list.as_array().into_iter().flatten().find(|it| it["ifname"] == vm.port.as_str());
            let drops = own.and_then(|view| view["dropped"].as_u64());
            ensure!(drops.is_some_and(|drops| drops > 0) == expected, "{} in {list}", vm.port);
            Ok(())
        })
        .await
    }
}

/// Rules that count what the host's stack receives from an interface: for itself and to forward it.
fn count_received(ifname: &str) -> String {
    let mut text = String::new();
    for (family, hook) in [("inet", "input"), ("inet", "forward"), ("arp", "input")] {
        text.push_str(&format!(
            "add table {family} seen; add chain {family} seen {hook} {{ type filter hook {hook} priority 0; }}; \
             add rule {family} seen {hook} iifname \"{ifname}\" counter; "
        ));
    }
    text
}

/// Sum of the counters of an interface in a namespace's tables `seen`.
async fn counted(lab: &Lab, place: &str, ifname: &str) -> Result<u64, Failure> {
    let rules = json(lab, place, &["nft", "-j", "list", "ruleset"]).await?;
    let rules = rules["nftables"].as_array().into_iter().flatten().map(|object| &object["rule"]);
    let mut sum = None;
    for rule in rules.filter(|rule| rule["table"] == "seen") {
        let expressions = || rule["expr"].as_array().into_iter().flatten();
        if rule["chain"] == ifname || expressions().any(|it| it["match"]["right"] == ifname) {
            let packets: u64 = expressions().filter_map(|it| it["counter"]["packets"].as_u64()).sum();
            sum = Some(sum.unwrap_or(0) + packets);
        }
    }
    sum.ok_or_else(|| Failure::new(format!("no rule counts {ifname} in {place}")))
}

/// Sum of the drops that the host's agent reports.
async fn drops(lab: &Lab) -> Result<f64, Failure> {
    Ok(lab.metrics(HOST).await?.sum("sluice_drops_total", &[]))
}

/// Runs a command that prints JSON.
async fn json(lab: &Lab, place: &str, argv: &[&str]) -> Result<Value, Failure> {
    let output = lab.exec(place, argv).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).map_err(|error| Failure::new(format!("{argv:?} in {place}: {error}: {text}")))
}

/// Index and MAC address of an interface.
async fn link(lab: &Lab, place: &str, ifname: &str) -> Result<(u32, MacAddr), Failure> {
    let list = json(lab, place, &["ip", "-j", "link", "show", "dev", ifname]).await?;
    let index = list[0]["ifindex"].as_u64().and_then(|index| u32::try_from(index).ok());
    let mac = list[0]["address"].as_str().and_then(|text| text.parse().ok());
    index.zip(mac).ok_or_else(|| Failure::new(format!("{ifname} in {place}: {list}")))
}

/// The link-local address that the kernel makes from a MAC address (RFC 4291 appendix A).
fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
