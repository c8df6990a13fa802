//! The log of a NAT gateway arrives at a collector of IPFIX messages: `nfcapd` of the package nfdump. It stores one record of the begin and
//! one of the end of each connection, with the endpoints that the sockets of both ends have. A second decoder, `ipfixDump` of libfixbuf,
//! reads the messages that the collector passes on, because nfdump 1.7.1 keeps no port ranges: it finds one record of the block that each
//! instance got, which has all its ports, one of its return, and the connections of NAT64. No message is missing, and only the gateway that
//! translates sends some.
//!
//! The connections end because the NAT gateway gets another public address: their shortest time-out is a minute.
//!
//! Catches: templates that do not say what the records are, so that collectors show wrong values; addresses or ports in each other's
//! place; connections or blocks that are logged twice, by a gateway that has copies, or not at all; messages that are lost.

use crate::Ground;
use crate::internet::{curl, output_of};
use crate::nat::{owner_of, sessions_at};
use crate::nat64::mapped;
use crate::support::{
    Failure, Outcome, Probe, address, ensure, ensure_timely, eventually, number, slow_hellos, who,
};
use serde_json::{Value, json};
use sluice_client::NatGateway;
use sluice_lab::internet::{WEB, web_address};
use sluice_lab::{Lab, Options, Process};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// VMs behind the NAT gateway, at different hosts, and the public address that it has first, and later.
const VMS: [&str; 2] = ["shop-1", "shop-3"];
const PUBLIC: &str = "203.0.113.128";
const NEXT: &str = "203.0.113.140";
/// Where the web server echoes, and from which port on it keeps connections: that of the first VM at this port, the other at the next one.
const ECHO: u16 = 7111;
const KEEP: u16 = 7121;
/// What the machine needs, with the packages. `scripts/setup.sh test` installs them.
const PROGRAMS: [(&str, &str); 3] =
    [("nfcapd", "nfdump"), ("nfdump", "nfdump"), ("ipfixDump", "libfixbuf-tools")];
const COLLECTOR: &str = "collector";
const COLLECTOR_PORT: u16 = 4739;
/// The collector writes this when it listens.
const STARTED: &str = "Startup nfcapd.";
/// From an event until it is logged: rounds and passes begin once a second. A loaded machine included.
const LOGGED: Duration = Duration::from_secs(10);
/// From the line in the log to the message: a tenth of a second. A loaded machine included.
const SENT: Duration = Duration::from_millis(500);
const PROGRAMMED: Duration = Duration::from_secs(10);
/// Ports of a block, the default of `--nat-block-ports`.
const BLOCK_PORTS: u16 = 512;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Elements of records by their numbers, and values of natEvent (RFC 8158 section 4).
mod element {
    pub const SOURCE_PORT: u16 = 7;
    pub const SOURCE4: u16 = 8;
    pub const DESTINATION_PORT: u16 = 11;
    pub const SOURCE6: u16 = 27;
    pub const POST_NAT_SOURCE: u16 = 225;
    pub const POST_NAT_PORT: u16 = 227;
    pub const NAT_EVENT: u16 = 230;
    pub const VRF: u16 = 234;
    pub const RANGE_START: u16 = 361;
    pub const RANGE_END: u16 = 362;

    pub const NAT44: [&str; 2] = ["4", "5"];
    pub const NAT64: [&str; 2] = ["6", "7"];
    pub const BLOCK: [&str; 2] = ["16", "17"];
}

/// Values of a record, by the numbers of their elements.
type Elements = BTreeMap<u16, String>;

pub async fn scenario(ground: &Ground) -> Outcome {
    programs_are_there()?;
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    slow_hellos(&mut options.topology);
    for gateway in &mut options.topology.gateways {
        gateway.nat_log = Some("sessions".to_owned());
        gateway.nat_ipfix_port = Some(COLLECTOR_PORT);
    }
    let lab = Lab::up(options).await?;
    let collector = Collector::start(&lab).await?;
    let [echo, keep] = [ECHO, KEEP].map(|port| SocketAddr::new(web_address(false), port).to_string());
    let _echo = Probe::listening(&lab, WEB, &["echo", &echo, WEB]).await?;
    let _keep = Probe::listening(&lab, WEB, &["keep", &keep]).await?;
    ask_by_udp(&lab, &VMS).await?;
    let owner = owner_of(&lab, PUBLIC).await?;
    let (mut connections, mut open) = (Vec::new(), Vec::new());
    for (vm, port) in VMS.into_iter().zip(KEEP..) {
        open.push(open_by_tcp(&lab, vm, port)?);
        connections.push(of_tcp(&lab, vm, port).await?);
        connections.push(of_udp(&lab, vm, &owner).await?);
        get_by_nat64(&lab, vm).await?;
    }
    replace_address(&lab, &owner, connections.len() + VMS.len()).await?;
    let collected = collector.stop(&lab).await?;
    drop(open);

    for connection in &connections {
        begins_and_ends_once(&lab, connection, &collected.records)?;
    }
    blocks_have_the_ports(&lab, &connections, &collected.elements)?;
    nat64_is_logged(&lab, &collected.elements)?;
    nothing_is_missing(&lab, &owner, &collected).await
}

fn programs_are_there() -> Outcome {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    for (program, package) in PROGRAMS {
        ensure!(
            is_there(program),
            "the program {program} is missing: `scripts/setup.sh test` installs its package, {package}"
        );
    }
    Ok(())
}

/// `nfcapd`, which also sends what it gets to a socket of the scenario.
struct Collector {
    repeated: UdpSocket,
}

/// What has come to the collector.
struct Collected {
    /// As `nfdump` shows it.
    records: Vec<Value>,
    /// As `ipfixDump` shows it.
    elements: Vec<Elements>,
}

impl Collector {
    /// Starts it, and waits until it listens.
    async fn start(lab: &Lab) -> Result<Self, Failure> {
        let repeated = UdpSocket::bind("127.0.0.1:0")?;
        repeated.set_nonblocking(true)?;
        let to = repeated.local_addr()?;
        let directory = lab.paths().root().join(COLLECTOR);
        std::fs::create_dir_all(&directory)?;
        let (directory, own) = (directory.display().to_string(), lab.management_address().to_string());
        let (port, to) = (COLLECTOR_PORT.to_string(), format!("{}/{}", to.ip(), to.port()));
        let argv = ["nfcapd", "-w", &directory, "-b", &own, "-p", &port, "-R", &to].map(str::to_owned);
        Process::start(lab.paths(), COLLECTOR, None, argv.into())?;
        eventually(LOGGED, async || {
            let log = std::fs::read_to_string(lab.paths().log(COLLECTOR))?;
            ensure!(log.contains(STARTED), "the collector does not listen: {log}");
            Ok(())
        })
        .await?;
        Ok(Self { repeated })
    }

    /// Ends it, after which its file is complete, and decodes what it got.
    async fn stop(self, lab: &Lab) -> Result<Collected, Failure> {
        sleep(SENT).await;
        lab.stop(COLLECTOR).await?;
        let directory = lab.paths().root().join(COLLECTOR);
        let stored = directory.display().to_string();
        let text = run(&["nfdump", "-R", &stored, "-o", "json"]).await?;
        let records = serde_json::from_str(&text)
            .map_err(|error| Failure::new(format!("nfdump shows no records: {error}: {text}")))?;
        let summary = run(&["nfdump", "-R", &stored, "-I"]).await?;
        ensure!(summary.contains("Sequence failures: 0"), "the collector lacks messages: {summary}");
        let messages = directory.with_extension("ipfix");
        std::fs::write(&messages, self.messages()?)?;
        let text = run(&["ipfixDump", "--data", "--in", &messages.display().to_string()]).await?;
        Ok(Collected { records, elements: elements(&text) })
    }

    /// The messages one behind another, as a file of IPFIX has them (RFC 5655).
    fn messages(&self) -> Result<Vec<u8>, Failure> {
        let (mut all, mut buffer) = (Vec::new(), [0; 2048]);
        loop {
            match self.repeated.recv(&mut buffer) {
                Ok(bytes) => all.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(all),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Runs a program of this machine, and returns what it prints.
async fn run(argv: &[&str]) -> Result<String, Failure> {
    let output = Command::new(argv[0]).args(&argv[1..]).stdin(Stdio::null()).output().await?;
    ensure!(output.status.success(), "{argv:?}: {}: {}", output.status, output_of(&output));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads `(NUMBER)  NAME : VALUE` of each record that `ipfixDump` prints.
fn elements(text: &str) -> Vec<Elements> {
    let mut records: Vec<Elements> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("--- data record") {
            records.push(Elements::new());
        }
        let Some((number, rest)) = line.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
            continue;
        };
        let value = rest.split_once(" : ").map(|(_, value)| value.trim().to_owned());
        if let (Ok(number), Some(value), Some(record)) = (number.parse(), value, records.last_mut()) {
            record.insert(number, value);
        }
    }
    records
}

/// VMs ask the web server.
async fn ask_by_udp(lab: &Lab, vms: &[&str]) -> Outcome {
    let at = SocketAddr::new(web_address(false), ECHO);
    for vm in vms {
        let name = who(lab, vm, "udp", at).await?;
        ensure!(name.as_deref() == Some(WEB), "{vm} asked {at} by UDP, and {name:?} answered");
    }
    Ok(())
}

/// Opens a connection that lasts as long as the process.
fn open_by_tcp(lab: &Lab, vm: &str, port: u16) -> Result<Child, Failure> {
    let script = format!("exec 3<>/dev/tcp/{}/{port}; read -r -u 3", web_address(false));
    let mut shell = lab.command(vm, &["bash", "-c", &script])?;
    Ok(shell.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn()?)
}

/// A connection of a VM.
#[derive(Debug)]
struct Connection {
    vm: &'static str,
    protocol: u8,
    inside: SocketAddr,
    outside: SocketAddr,
    remote: SocketAddr,
}

/// The connection of a VM to this port, as the sockets of both ends have it.
async fn of_tcp(lab: &Lab, vm: &'static str, port: u16) -> Result<Connection, Failure> {
    let remote = SocketAddr::new(web_address(false), port);
    let (inside, outside) = (Cell::new(remote), Cell::new(remote));
    eventually(LOGGED, async || {
        inside.set(end_of_socket(lab, vm, &format!("dport = :{port}"), 2).await?);
        outside.set(end_of_socket(lab, WEB, &format!("sport = :{port}"), 3).await?);
        Ok(())
    })
    .await?;
    let (inside, outside) = (inside.get(), outside.get());
    ensure!(outside.ip().to_string() == PUBLIC, "{vm} is connected to {WEB} from {outside}, not {PUBLIC}");
    Ok(Connection { vm, protocol: TCP, inside, outside, remote })
}

/// An endpoint of the only connection that a filter of `ss` selects: in field 2 the own one, in field 3 that of the peer.
async fn end_of_socket(lab: &Lab, place: &str, filter: &str, field: usize) -> Result<SocketAddr, Failure> {
    let argv = ["ss", "-Htn", "state", "established", filter];
    let text = output_of(&lab.exec(place, &argv).await?);
    let mut ends = text.lines().filter_map(|line| line.split_ascii_whitespace().nth(field)?.parse().ok());
    let (end, other) = (ends.next(), ends.next());
    end.filter(|_| other.is_none())
        .ok_or_else(|| Failure::new(format!("{place} does not have one connection with {filter}: {text}")))
}

/// The question of a VM, as the gateway shows it.
async fn of_udp(lab: &Lab, vm: &'static str, owner: &str) -> Result<Connection, Failure> {
    let options = ["--outside", PUBLIC, "--protocol", "udp"];
    let sessions = sessions_at(lab, vm, owner, &options).await?;
    let [session] = &*sessions else {
        return Err(Failure::new(format!("{vm} does not have one session of UDP: {sessions:?}")));
    };
    let port = |key: &str| Ok::<_, Failure>(u16::try_from(number(session, key)?)?);
    let inside = SocketAddr::new(address(lab.vm(vm)?, false)?, port("inside_port")?);
    let outside = SocketAddr::new(PUBLIC.parse()?, port("outside_port")?);
    let remote = SocketAddr::new(web_address(false), ECHO);
    Ok(Connection { vm, protocol: UDP, inside, outside, remote })
}

/// A VM fetches the page of the web server from its IPv6 address.
async fn get_by_nat64(lab: &Lab, vm: &str) -> Outcome {
    let IpAddr::V4(web) = web_address(false) else {
        return Err(Failure::new("the web server has no IPv4 address"));
    };
    let url = format!("http://[{}]/", mapped(web));
    let text = output_of(&lab.exec(vm, &curl(&[], &url)).await?);
    ensure!(text == "Welcome to the Internet.\n", "{vm} got from {url}: {text}");
    Ok(())
}

/// Waits until the log has begun so many connections, gives the NAT gateway another address, and waits until the log has ended them. Then a
/// VM gets ports of the new address.
async fn replace_address(lab: &Lab, owner: &str, connections: usize) -> Outcome {
    let logged = async |what: &str, events: usize| {
        eventually(LOGGED, async || {
            let name = format!("sluice_nat_{what}_total");
            let found = lab.metrics(owner).await?.sum(&name, &[]);
            ensure!(found >= events as f64, "{owner}: {name} is {found}, not yet {events}");
            Ok(())
        })
        .await
    };
    // Each VM has a block for each of its two addresses.
    let blocks = 2 * VMS.len();
    logged("sessions_begun", connections).await?;
    logged("blocks_claimed", blocks).await?;
    let nat = lab.api().find::<NatGateway>("shop", &[]).await?.id;
    lab.api().update::<NatGateway>(nat, &json!({ "addresses": [NEXT] }), None).await?;
    lab.api().wait_programmed::<NatGateway>(nat, PROGRAMMED).await?;
    logged("sessions_ended", connections).await?;
    logged("blocks_returned", blocks).await?;
    ask_by_udp(lab, &VMS[..1]).await?;
    logged("sessions_begun", connections + 1).await?;
    logged("blocks_claimed", blocks + 1).await
}

/// A value of `nfdump`, some of which are numbers in quotes.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The collector has one record of the begin of a connection, and a later one of its end.
fn begins_and_ends_once(lab: &Lab, connection: &Connection, records: &[Value]) -> Outcome {
    let Connection { vm, protocol, inside, outside, remote } = connection;
    let expected = [
        ("ingress_vrf", lab.vm(vm)?.vni.to_string()),
        ("proto", protocol.to_string()),
        ("src4_addr", inside.ip().to_string()),
        ("src_port", inside.port().to_string()),
        ("src4_xlt_ip", outside.ip().to_string()),
        ("src_xlt_port", outside.port().to_string()),
        ("dst4_addr", remote.ip().to_string()),
        ("dst_port", remote.port().to_string()),
    ];
    let mut times = Vec::new();
    for event in element::NAT44 {
        let is_it = |record: &&Value| {
            text(&record["nat_event_id"]) == event
                && expected.iter().all(|(key, value)| text(&record[*key]) == *value)
        };
        let found: Vec<_> = records.iter().filter(is_it).collect();
        ensure!(found.len() == 1, "{} records of event {event} of {connection:?}: {records:#?}", found.len());
        times.push(text(&found[0]["t_event"]));
    }
    ensure!(times[0] <= times[1], "{connection:?} began at {}, and ended at {}", times[0], times[1]);
    Ok(())
}

/// Whether a record has these values.
fn has(record: &Elements, values: &[(u16, &str)]) -> bool {
    values.iter().all(|(number, value)| record.get(number).is_some_and(|found| found == value))
}

/// Whether a record is about an instance with this address. IPv6 addresses are printed in another form.
fn is_of(record: &Elements, inside: IpAddr) -> bool {
    let (element, other) = match inside {
        IpAddr::V4(_) => (element::SOURCE4, element::SOURCE6),
        IpAddr::V6(_) => (element::SOURCE6, element::SOURCE4),
    };
    let found = record.get(&element).and_then(|found| found.parse::<IpAddr>().ok());
    found == Some(inside) && !record.contains_key(&other)
}

/// The ports of the blocks of an instance at a public address: those that it got, and those that it returned.
fn blocks_of(
    records: &[Elements],
    vni: u32,
    (inside, outside): (IpAddr, &str),
) -> [Vec<RangeInclusive<u16>>; 2] {
    let port = |record: &Elements, number: u16| record.get(&number)?.parse::<u16>().ok();
    let vni = vni.to_string();
    element::BLOCK.map(|event| {
        let values =
            [(element::NAT_EVENT, event), (element::VRF, &*vni), (element::POST_NAT_SOURCE, outside)];
        let found = records.iter().filter(|record| is_of(record, inside) && has(record, &values));
        let ranges =
            found.map(|record| Some(port(record, element::RANGE_START)?..=port(record, element::RANGE_END)?));
        ranges.flatten().collect()
    })
}

/// Each instance got one block of the first address, which has all its ports, and returned it. One got a block of the other address. No
/// ports were given to two.
fn blocks_have_the_ports(lab: &Lab, connections: &[Connection], records: &[Elements]) -> Outcome {
    let mut starts = BTreeSet::new();
    for (vm, ipv6) in VMS.into_iter().flat_map(|vm| [(vm, false), (vm, true)]) {
        let (inside, vni) = (address(lab.vm(vm)?, ipv6)?, lab.vm(vm)?.vni);
        let [given, returned] = blocks_of(records, vni, (inside, PUBLIC));
        ensure!(
            given.len() == 1 && returned == given,
            "{vm} ({inside}) got {given:?}, returned {returned:?}"
        );
        let ports = &given[0];
        ensure!(ports.end() - ports.start() == BLOCK_PORTS - 1, "{vm} got the ports {ports:?}");
        let of_vm = connections.iter().filter(|connection| connection.inside.ip() == inside);
        for connection in of_vm {
            ensure!(ports.contains(&connection.outside.port()), "{ports:?} lacks a port: {connection:?}");
        }
        ensure!(starts.insert(*ports.start()), "the ports {ports:?} were given to two instances");
    }
    let vm = lab.vm(VMS[0])?;
    let [given, returned] = blocks_of(records, vm.vni, (address(vm, false)?, NEXT));
    ensure!(given.len() == 1 && returned.is_empty(), "{NEXT}: got {given:?}, returned {returned:?}");
    Ok(())
}

/// Each connection of NAT64 has one record of its begin and one of its end, with the instance's IPv6 address and a port of its block.
fn nat64_is_logged(lab: &Lab, records: &[Elements]) -> Outcome {
    for vm in VMS {
        let (inside, vni) = (address(lab.vm(vm)?, true)?, lab.vm(vm)?.vni);
        let vrf = vni.to_string();
        let mut ends = Vec::new();
        for event in element::NAT64 {
            let values = [
                (element::NAT_EVENT, event),
                (element::VRF, &*vrf),
                (element::POST_NAT_SOURCE, PUBLIC),
                (element::DESTINATION_PORT, "80"),
            ];
            let found = records.iter().filter(|record| is_of(record, inside) && has(record, &values));
            let found: Vec<_> = found.collect();
            ensure!(found.len() == 1, "{} records of event {event} of {inside}: {records:#?}", found.len());
            ends.push([element::SOURCE_PORT, element::POST_NAT_PORT].map(|end| found[0].get(&end).cloned()));
        }
        ensure!(ends[0] == ends[1], "a connection of {inside} began and ended with {ends:?}");
        let port = ends[0][1].as_ref().and_then(|port| port.parse::<u16>().ok());
        let [given, _] = blocks_of(records, vni, (inside, PUBLIC));
        let is_given = |port: u16| given.iter().any(|ports| ports.contains(&port));
        ensure!(port.is_some_and(is_given), "{inside} has used {port:?}, but got {given:?}");
    }
    Ok(())
}

/// Both decoders have all records that the owner has sent, and the other gateways have sent none.
async fn nothing_is_missing(lab: &Lab, owner: &str, collected: &Collected) -> Outcome {
    for gateway in &lab.state().topology.gateways {
        let metrics = lab.metrics(&gateway.name).await?;
        let [sent, lost] =
            ["records", "lost"].map(|what| metrics.sum(&format!("sluice_nat_ipfix_{what}_total"), &[]));
        ensure!(lost == 0.0, "{} could not send {lost} records", gateway.name);
        if gateway.name == owner {
            let found = [collected.records.len(), collected.elements.len()];
            ensure!(found.map(|count| count as f64) == [sent; 2], "{found:?} of {sent} records have arrived");
        } else {
            // Unless the machine stood still, and it was the owner for a moment.
            ensure_timely!(sent == 0.0, "{} translates, but {} has sent {sent} records", owner, gateway.name);
        }
    }
    Ok(())
}
