//! VMs that are members of services: their vNICs, what they answer, how they and their hosts fail, and who watches that.
//! Benches and scenarios measure by the same programs, which run in VMs.

use crate::error::{Error, IoContext, Result};
use crate::exec::{ip_batch, script};
use crate::lab::{Lab, VmState};
use crate::vm::{attach, link, prepare_port};
use serde::Deserialize;
use serde_json::Value;
use sluice_client::{Mount, ServiceMember, Subnet};
use sluice_types::{IpNet, first_host};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout};

/// Every VPC of a lab carries packets of this length.
const MTU: u16 = 1280;

const PRELUDE: &str = "import json, select, socket, sys, time\n\
    def family_of(at):\n    return socket.AF_INET6 if ':' in at else socket.AF_INET\n";

/// Answers each datagram to a port of these interfaces with the name of the VM and of the interface, and what came. A socket is
/// bound to its interface, because several may have the same address.
const SERVE: &str = "name, ports, sockets = sys.argv[1], sys.argv[2].split(','), {}\n\
    for interface in sys.argv[3:]:\n    \
        for family, any in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):\n        \
            for port in ports:\n            \
                s = socket.socket(family, socket.SOCK_DGRAM)\n            \
                if family == socket.AF_INET6:\n                \
                    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)\n            \
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())\n            \
                s.bind((any, int(port)))\n            \
                sockets[s] = f'{name} {interface}'.encode()\n\
    print('ready', flush=True)\n\
    while True:\n    \
        for s in select.select(list(sockets), [], [])[0]:\n        \
            data, to = s.recvfrom(2048)\n        \
            try:\n            s.sendto(sockets[s], to)\n        \
            except OSError:\n            pass\n";

/// Begins a flow every 2 ms, each from another port, until a line of input. Prints how many there were, when those began that got no
/// answer in half a second, and when the first and the last flow began that each of those that answered has got.
const WATCH: &str = "at, port = sys.argv[1], int(sys.argv[2])\n\
    poll, pending, result = select.epoll(), {}, {'sent': 0, 'failed': [], 'first': {}, 'last': {}}\n\
    poll.register(0, select.EPOLLIN)\n\
    print('ready', flush=True)\n\
    due, done = time.monotonic(), False\n\
    while not done or pending:\n    \
        now = time.monotonic()\n    \
        if now >= due and not done:\n        \
            s = socket.socket(family_of(at), socket.SOCK_DGRAM)\n        \
            s.setblocking(False)\n        \
            result['sent'] += 1\n        \
            due = max(due + 0.002, now)\n        \
            try:\n            s.connect((at, port))\n            s.send(b'?')\n        \
            except OSError:\n            s.close()\n            result['failed'].append(now)\n        \
            else:\n            pending[s.fileno()] = s, now\n            poll.register(s, select.EPOLLIN)\n    \
        while pending:\n        \
            fd, (s, begun) = next(iter(pending.items()))\n        \
            if now - begun < 0.5:\n            break\n        \
            del pending[fd]\n        \
            s.close()\n        \
            result['failed'].append(begun)\n    \
        for fd, _ in poll.poll(0.001):\n        \
            if fd == 0:\n            done = True\n            poll.unregister(0)\n            continue\n        \
            s, begun = pending.pop(fd)\n        \
            try:\n            name = s.recv(2048).decode()\n        \
            except OSError:\n            result['failed'].append(begun)\n        \
            else:\n            result['first'].setdefault(name, begun)\n            \
                result['last'][name] = begun\n        \
            s.close()\n\
    print(json.dumps(result), flush=True)\n";

/// Has flows from ports of their own. For each line of input asks by all of them, and prints who has answered each in half a second.
const FLOWS: &str = "at, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n\
    flows = [socket.socket(family_of(at), socket.SOCK_DGRAM) for _ in range(count)]\n\
    for s in flows:\n    s.setblocking(False)\n    s.connect((at, port))\n\
    print('ready', flush=True)\n\
    for _ in sys.stdin:\n    \
        names, until = {}, time.monotonic() + 0.5\n    \
        for s in flows:\n        \
            try:\n            s.send(b'?')\n        \
            except OSError:\n            pass\n    \
        while len(names) < count and time.monotonic() < until:\n        \
            for s in select.select([s for s in flows if s not in names], [], [], 0.05)[0]:\n            \
                try:\n                names[s] = s.recv(2048).decode()\n            \
                except OSError:\n                pass\n    \
        print(json.dumps([names.get(s) for s in flows]), flush=True)\n";

/// Prints the time, and then does something to a VM or a host.
const FAULT: &str = "import subprocess\n\
    begun = time.monotonic()\n\
    subprocess.run(sys.argv[1:], check=True)\n\
    print(begun, flush=True)\n";

/// A program that runs in a VM; killed when it is dropped.
pub struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// What a watcher has seen. Times are seconds of the monotonic clock of the machine.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Watched {
    /// Number of flows.
    pub sent: u64,
    /// When the flows began that got no answer.
    pub failed: Vec<f64>,
    /// When the first flow began that each VM and interface has answered.
    pub first: BTreeMap<String, f64>,
    /// When the last one began.
    pub last: BTreeMap<String, f64>,
}

impl Watched {
    /// The VMs that have answered.
    pub fn machines(&self) -> Vec<&str> {
        let mut machines: Vec<&str> = self.first.keys().filter_map(|name| name.split(' ').next()).collect();
        machines.dedup();
        machines
    }

    /// When the first flow began that a VM has answered.
    pub fn first_of(&self, machine: &str) -> Option<f64> {
        of_machine(&self.first, machine).reduce(f64::min)
    }

    /// When the last flow began that a VM has answered.
    pub fn last_of(&self, machine: &str) -> Option<f64> {
        of_machine(&self.last, machine).reduce(f64::max)
    }

    /// Milliseconds from a fault until the last flow began that got no answer; 0 without one.
    pub fn outage_ms(&self, fault: f64) -> f64 {
        self.failed.iter().map(|begun| (begun - fault) * 1e3).fold(0.0, f64::max)
    }
}

fn of_machine<'a>(times: &'a BTreeMap<String, f64>, machine: &'a str) -> impl Iterator<Item = f64> + 'a {
    times.iter().filter(move |(name, _)| name.split(' ').next() == Some(machine)).map(|(_, time)| *time)
}

fn bad(what: &str, problem: impl ToString) -> Error {
    Error::Form { what: what.to_owned(), problem: problem.to_string() }
}

/// Seconds of the monotonic clock of the machine, by which programs in VMs say when something was.
#[must_use]
pub fn monotonic_s() -> f64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map(std::time::Duration::from).unwrap_or_default().as_secs_f64()
}

impl Program {
    async fn start(lab: &Lab, place: &str, code: &str, arguments: &[&str]) -> Result<Self> {
        let code = format!("{PRELUDE}{code}");
        let argv: Vec<&str> = ["python3", "-c", &code].iter().chain(arguments).copied().collect();
        let mut command = lab.command(place, &argv)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start", "python3")?;
        let stdout = child.stdout.take().ok_or_else(|| bad("a program", "no output"))?;
        let mut program = Self { child, stdout: BufReader::new(stdout) };
        match program.line().await?.as_str() {
            "ready" => Ok(program),
            line => Err(bad("a program", line)),
        }
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).await.context("cannot read", "the output of a program")?;
        Ok(line.trim().to_owned())
    }

    /// Sends a line of input, and returns the line that the program prints.
    async fn ask(&mut self) -> Result<String> {
        if let Some(stdin) = &mut self.child.stdin {
            stdin.write_all(b"\n").await.context("cannot write", "the input of a program")?;
        }
        self.line().await
    }

    /// Ends a watcher.
    ///
    /// # Errors
    /// [`Error::Form`] if the program has failed.
    pub async fn watched(mut self) -> Result<Watched> {
        serde_json::from_str(&self.ask().await?).map_err(|error| bad("what a watcher has seen", error))
    }

    /// Asks by all flows of the program. Returns who has answered each of them, as `VM INTERFACE`.
    ///
    /// # Errors
    /// [`Error::Form`] if the program has failed.
    pub async fn round(&mut self) -> Result<Vec<Option<String>>> {
        serde_json::from_str(&self.ask().await?).map_err(|error| bad("who has answered flows", error))
    }
}

impl Lab {
    /// Gives the VM of a member an interface for its vNIC of a mount, `eth1` and so on, attaches it, and gives it the addresses.
    ///
    /// # Errors
    /// Errors of the API and of the commands.
    pub async fn add_vnic(
        &self,
        vm: &VmState,
        number: usize,
        member: &ServiceMember,
        mount: &Mount,
    ) -> Result<VmState> {
        let unknown = || bad("the API's list", format!("no vNIC of {} in {}", vm.machine, mount.name));
        let vnics = self.api.vnics(mount.id).await?;
        let vnic = vnics.into_iter().find(|vnic| vnic.member == vm.id).ok_or_else(unknown)?;
        let (vpc, state) = self.state.vpcs.iter().find(|(_, it)| it.id == mount.vpc).ok_or_else(unknown)?;
        let port = format!("x-v{number}-{}", vm.machine).chars().take(15).collect();
        let nic = VmState {
            id: vnic.id,
            vpc: vpc.clone(),
            vni: state.vni,
            port,
            interface: crate::topology::interface(number),
            mac: member.mac,
            ipv4: mount.ipv4,
            ipv6: mount.ipv6,
            ipv6_mode: None,
            ..vm.clone()
        };
        let subnet = self.api.get::<Subnet>(mount.subnet).await?;
        let router = subnet.ipv4.and_then(|net| first_host(&IpNet::from(net)));
        ip_batch(&self.paths, "plugging a vNIC in", &link(&self.paths, &nic)).await?;
        prepare_port(self, &nic.port, &nic).await?;
        script(&self.paths, &nic.machine, "configuring a vNIC", &configuration(&nic, number, router)).await?;
        attach(self, &nic).await?;
        Ok(nic)
    }

    /// Attaches the interface that a VM had for a vNIC to the vNIC that it has since it is a member again.
    ///
    /// # Errors
    /// Errors of the API and of the commands.
    pub async fn reattach_vnic(
        &self,
        nic: &VmState,
        member: &ServiceMember,
        mount: &Mount,
    ) -> Result<VmState> {
        let unknown = || bad("the API's list", format!("no vNIC of {} in {}", nic.machine, mount.name));
        let vnics = self.api.vnics(mount.id).await?;
        let vnic = vnics.into_iter().find(|vnic| vnic.member == member.instance).ok_or_else(unknown)?;
        let nic = VmState { id: vnic.id, mac: member.mac, ..nic.clone() };
        let text = format!("ip link set {} address {}\n", nic.interface, nic.mac);
        let (address, attached) = tokio::join!(
            script(&self.paths, &nic.machine, "setting the MAC address of a vNIC", &text),
            attach(self, &nic)
        );
        address?;
        attached?;
        Ok(nic)
    }

    /// Starts the program that answers datagrams to ports of interfaces of a VM with the VM's name.
    ///
    /// # Errors
    /// Errors of the program.
    pub async fn serve(&self, machine: &str, ports: &[u16], interfaces: &[&str]) -> Result<Program> {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let ports = ports.join(",");
        let arguments: Vec<&str> = [machine, &ports].iter().chain(interfaces).copied().collect();
        Program::start(self, machine, SERVE, &arguments).await
    }

    /// Starts the program that begins flows to an address all the time, until [`Program::watched`].
    ///
    /// # Errors
    /// Errors of the program.
    pub async fn watch(&self, from: &str, at: IpAddr, port: u16) -> Result<Program> {
        Program::start(self, from, WATCH, &[&at.to_string(), &port.to_string()]).await
    }

    /// Starts the program that has some flows to an address, which [`Program::round`] uses.
    ///
    /// # Errors
    /// Errors of the program.
    pub async fn flows(&self, from: &str, at: IpAddr, port: u16, count: usize) -> Result<Program> {
        let (at, port, count) = (at.to_string(), port.to_string(), count.to_string());
        Program::start(self, from, FLOWS, &[&at, &port, &count]).await
    }

    /// Lets a VM hang, as to the network: it gets no frame from any of these interfaces. Returns when, by [`monotonic_s`].
    ///
    /// # Errors
    /// Errors of the command.
    pub async fn hang_vm(&self, machine: &str, interfaces: &[&str]) -> Result<f64> {
        let devices = interfaces.join(", ");
        let rules = format!(
            "table netdev hung {{\nchain silence {{\n\
             type filter hook ingress devices = {{ {devices} }} priority 0; policy drop;\n}}\n}}\n"
        );
        self.fault(machine, &["nft", &rules]).await
    }

    /// Ends what [`Lab::hang_vm`] began.
    ///
    /// # Errors
    /// Errors of the command.
    pub async fn wake_vm(&self, machine: &str) -> Result<()> {
        self.fault(machine, &["nft", "delete table netdev hung"]).await.map(drop)
    }

    /// Disconnects a node from the underlay at its switch, or connects it again. Returns when, by [`monotonic_s`].
    ///
    /// # Errors
    /// [`Error::Unknown`], and errors of the command.
    pub async fn connect_host(&self, name: &str, connected: bool) -> Result<f64> {
        let unknown = || bad("the topology", format!("no host {name}"));
        let topology = &self.state.topology;
        let number = topology.nodes().position(|node| node == name).ok_or_else(unknown)?;
        let host = topology.hosts.iter().find(|host| host.name == name).ok_or_else(unknown)?;
        let (port, state) = (format!("p{number}"), if connected { "up" } else { "down" });
        self.fault(&host.switch, &["ip", "link", "set", &port, state]).await
    }

    async fn fault(&self, place: &str, argv: &[&str]) -> Result<f64> {
        let code = format!("{PRELUDE}{FAULT}");
        let argv: Vec<&str> = ["python3", "-c", &code].iter().chain(argv).copied().collect();
        let text = crate::exec::succeed("a fault", self.exec(place, &argv).await?)?;
        let time: Value = serde_json::from_str(text.trim()).map_err(|error| bad("a fault", error))?;
        time.as_f64().ok_or_else(|| bad("a fault", time))
    }
}

/// The commands that configure an interface. Programs bind their sockets to it, because others may have the same addresses.
fn configuration(nic: &VmState, number: usize, router: Option<IpAddr>) -> String {
    let (interface, table) = (&nic.interface, 200 + number);
    let mut text = format!(
        "echo 0 >/proc/sys/net/ipv6/conf/{interface}/accept_ra\n\
         echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter\n\
         echo 0 >/proc/sys/net/ipv4/conf/{interface}/rp_filter\n\
         ip link set lo up\nip link set {interface} mtu {MTU} up\n"
    );
    // Writing to a string cannot fail.
    if let (Some(address), Some(router)) = (nic.ipv4, router) {
        let _ = write!(
            text,
            "ip -4 addr add {address}/32 dev {interface}\n\
             ip -4 route add default via {router} dev {interface} onlink src {address} table {table}\n\
             ip -4 rule add oif {interface} lookup {table}\n"
        );
    }
    if let Some(address) = nic.ipv6 {
        let _ = write!(
            text,
            "ip -6 addr add {address}/128 dev {interface} nodad\n\
             ip -6 route add default via fe80::1 dev {interface} src {address} table {table}\n\
             ip -6 rule add oif {interface} lookup {table}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_are_from_the_fault_to_the_last_flow_without_an_answer() {
        let seen = r#"{"sent": 9, "failed": [10.25, 10.5], "first": {"fw-1 eth1": 1, "fw-1 eth2": 2, "fw-2 eth1": 3},
            "last": {"fw-1 eth1": 7, "fw-1 eth2": 8, "fw-2 eth1": 9}}"#;
        let watched: Watched = serde_json::from_str(seen).unwrap();
        assert_eq!(watched.machines(), ["fw-1", "fw-2"]);
        assert_eq!((watched.first_of("fw-1"), watched.last_of("fw-1")), (Some(1.0), Some(8.0)));
        assert_eq!(watched.first_of("fw-3"), None);
        assert_eq!((watched.outage_ms(10.0), watched.outage_ms(11.0)), (500.0, 0.0));
    }
}
