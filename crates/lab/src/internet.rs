//! The Internet of a lab: places behind the gateways' interfaces `eth1`, in documentation prefixes.
//!
//! ```text
//!   gateways --eth1-- ix --- isp ------------ far ------ internet-web
//!                              |   MTU 1400
//!                              +--- internet-client
//! ```
//!
//! `ix` is a switch. `isp` is the gateways' default router, and reaches public addresses of VMs by ARP and neighbor
//! discovery there. `far` is a router. `internet-web` serves a page and the file [`LARGE_FILE`] by HTTP, and is the name server of
//! [`ZONE`].

use crate::error::{IoContext, Result};
use crate::exec::{ip_batch, script};
use crate::lab::Lab;
use crate::net::xdp_peer;
use crate::paths::Paths;
pub use crate::places::{CLIENT, EXCHANGE, FAR, ISP, WEB};
use crate::places::{FIRST_GATEWAY, NAMES, PLACES};
use crate::process::Process;
use crate::topology::{Eip, Internet, Topology, Vpc};
use futures::future::try_join_all;
use sluice_client::{EipSpec, NatGatewaySpec, PublicPoolSpec, RouteSpec, RouteTargetSpec};
use sluice_types::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Address of the web server.
pub fn web_address(ipv6: bool) -> IpAddr {
    address_of(WEB, ipv6)
}

/// Address of the computer that is next to the gateways' router.
pub fn client_address(ipv6: bool) -> IpAddr {
    address_of(CLIENT, ipv6)
}

/// URL of the web server's page.
pub fn page(ipv6: bool) -> String {
    format!("http://{}/", SocketAddr::new(web_address(ipv6), 80)).replace(":80/", "/")
}

/// Name of the public pool.
pub const POOL: &str = "public";

/// Name of the file on the web server besides its page.
pub const LARGE_FILE: &str = "large";
/// Its size.
pub const LARGE_FILE_BYTES: u64 = 8 << 20;

/// The zone of the name server, which has the web server's addresses as `www` and a long text as [`LONG_TEXT`].
pub const ZONE: &str = "example.net";
/// Name of a text in [`ZONE`], of which an answer by UDP has [`LONG_TEXT_BYTES`] and more: it comes in fragments.
pub const LONG_TEXT: &str = "long.example.net";
/// Bytes of that text.
pub const LONG_TEXT_BYTES: usize = 12 * 200;

/// The link between `isp` and `far`.
const FAR_MTU: u16 = 1400;
const MTU: u16 = 1500;
/// An interface: place, name, addresses with the lengths of their networks.
struct Interface(&'static str, &'static str, [&'static str; 2]);

const INTERFACES: [Interface; 7] = [
    Interface(ISP, "ix0", ["198.51.100.1/26", "2001:db8:100:1::1/64"]),
    Interface(ISP, "far0", ["198.51.100.65/30", "2001:db8:100:2::1/64"]),
    Interface(FAR, "isp0", ["198.51.100.66/30", "2001:db8:100:2::2/64"]),
    Interface(FAR, "web0", ["198.51.100.129/26", "2001:db8:100:3::1/64"]),
    Interface(WEB, "eth0", ["198.51.100.130/26", "2001:db8:100:3::2/64"]),
    Interface(ISP, "client0", ["198.51.100.193/26", "2001:db8:100:4::1/64"]),
    Interface(CLIENT, "eth0", ["198.51.100.194/26", "2001:db8:100:4::2/64"]),
];

/// Routes by place.
const ROUTES: [(&str, &str); 8] = [
    (ISP, "198.51.100.128/26 via 198.51.100.66"),
    (ISP, "2001:db8:100:3::/64 via 2001:db8:100:2::2"),
    (FAR, "default via 198.51.100.65"),
    (FAR, "default via 2001:db8:100:2::1"),
    (WEB, "default via 198.51.100.129"),
    (WEB, "default via 2001:db8:100:3::1"),
    (CLIENT, "default via 198.51.100.193"),
    (CLIENT, "default via 2001:db8:100:4::1"),
];

/// Address of a place with one interface.
fn address_of(place: &str, ipv6: bool) -> IpAddr {
    let interface = INTERFACES.iter().find(|interface| interface.0 == place);
    let network = interface.and_then(|interface| interface.2[usize::from(ipv6)].parse::<IpNet>().ok());
    network.map_or(Ipv4Addr::UNSPECIFIED.into(), |network| network.addr())
}

/// Makes and configures the places, and the gateways' interfaces to them. The gateways' namespaces exist.
pub(crate) async fn build(paths: &Paths, topology: &Topology) -> Result<()> {
    let Some(internet) = &topology.internet else { return Ok(()) };
    ip_batch(paths, "making the Internet", &links(paths, topology)).await?;
    set_up(paths, topology, internet).await
}

/// Lines of `ip -batch` in the root namespace that make the places and their links.
fn links(paths: &Paths, topology: &Topology) -> String {
    let mut lines = String::new();
    let at = |place: &str| paths.namespace(place);
    for place in PLACES {
        let _ = writeln!(lines, "netns add {}", at(place));
    }
    let _ = writeln!(lines, "link add br0 mtu {MTU} netns {} type bridge mcast_snooping 0", at(EXCHANGE));
    let mut link = |(a, name): (&str, &str), (b, peer): (&str, &str), mtu: u16| {
        let (a, b) = (at(a), at(b));
        let _ = writeln!(
            lines,
            "link add {name} mtu {mtu} netns {a} type veth peer name {peer} mtu {mtu} netns {b}"
        );
    };
    link((ISP, "ix0"), (EXCHANGE, "isp0"), MTU);
    link((ISP, "far0"), (FAR, "isp0"), FAR_MTU);
    link((FAR, "web0"), (WEB, "eth0"), MTU);
    link((ISP, "client0"), (CLIENT, "eth0"), MTU);
    for (number, gateway) in topology.gateways.iter().enumerate() {
        link((&gateway.name, "eth1"), (EXCHANGE, &format!("gw{number}")), MTU);
    }
    lines
}

/// Configures the places, and the gateways' interfaces to them.
async fn set_up(paths: &Paths, topology: &Topology, internet: &Internet) -> Result<()> {
    let mut texts = vec![(EXCHANGE, exchange_script(paths, topology))];
    texts.extend([ISP, FAR, WEB, CLIENT].map(|place| (place, place_script(place, internet))));
    for (number, gateway) in topology.gateways.iter().enumerate() {
        texts.push((&gateway.name, gateway_script(FIRST_GATEWAY + number)));
    }
    let run = async |(place, text): &(&str, String)| {
        script(paths, place, "setting up the Internet", text).await.map(drop)
    };
    try_join_all(texts.iter().map(run)).await.map(drop)
}

fn exchange_script(paths: &Paths, topology: &Topology) -> String {
    let mut text = "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6\nip link set br0 up\n\
                    ip link set isp0 master br0 up\n"
        .to_owned();
    for number in 0..topology.gateways.len() {
        let port = format!("gw{number}");
        let _ = writeln!(text, "ip link set {port} master br0 up");
        text.push_str(&xdp_peer(paths, &port));
    }
    text
}

fn place_script(place: &str, internet: &Internet) -> String {
    let mut text = String::new();
    if place == ISP || place == FAR {
        // All ICMP errors are sent: scenarios wait for each.
        text.push_str(
            "echo 1 >/proc/sys/net/ipv4/ip_forward\necho 1 >/proc/sys/net/ipv6/conf/all/forwarding\n\
             echo 0 >/proc/sys/net/ipv4/icmp_ratelimit\necho 0 >/proc/sys/net/ipv6/icmp/ratelimit\n",
        );
    }
    text.push_str("ip -batch - <<END\nlink set lo up\n");
    for Interface(_, name, addresses) in INTERFACES.iter().filter(|interface| interface.0 == place) {
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            let _ = writeln!(text, "addr add {address} dev {name} {nodad}");
        }
        let _ = writeln!(text, "link set {name} up");
    }
    for (_, route) in ROUTES.iter().filter(|(at, _)| *at == place) {
        let _ = writeln!(text, "route add {route}");
    }
    if place == ISP {
        for prefix in &internet.pool {
            let _ = writeln!(text, "route add {prefix} dev ix0");
        }
    }
    text.push_str("END\n");
    text
}

fn gateway_script(number: usize) -> String {
    format!(
        "echo 0 >/proc/sys/net/ipv6/conf/eth1/accept_ra\necho 0 >/proc/sys/net/ipv4/conf/eth1/rp_filter\n\
         ip -batch - <<END\naddr add 198.51.100.{number}/26 dev eth1\n\
         addr add 2001:db8:100:1::{number}/64 dev eth1 nodad\nlink set eth1 up\n\
         route add default via 198.51.100.1 dev eth1\nroute add default via 2001:db8:100:1::1 dev eth1\nEND\n"
    )
}

/// Starts the web server, which logs the source of each request. The large file has random content, so that a damaged download shows.
pub(crate) fn start_web_server(lab: &Lab) -> Result<Process> {
    let root = lab.paths.web_root();
    fs::create_dir_all(&root).context("cannot make", &root)?;
    let page = root.join("index.html");
    fs::write(&page, "Welcome to the Internet.\n").context("cannot write", page)?;
    let file = root.join(LARGE_FILE);
    let random = File::open("/dev/urandom").context("cannot open", "/dev/urandom")?;
    File::create(&file)
        .and_then(|mut to| io::copy(&mut random.take(LARGE_FILE_BYTES), &mut to))
        .context("cannot write", file)?;
    let root = root.display().to_string();
    let argv = ["busybox", "httpd", "-f", "-vv", "-p", "80", "-h", &root].map(str::to_owned);
    Process::start(&lab.paths, WEB, Some(WEB), argv.into())
}

/// Starts the name server, which logs each question.
pub(crate) fn start_name_server(lab: &Lab) -> Result<Process> {
    let [ipv4, ipv6] = [false, true].map(web_address);
    // A string of a text record has up to 255 bytes.
    let text = vec!["t".repeat(200); LONG_TEXT_BYTES / 200].join(",");
    let argv = [
        "dnsmasq".to_owned(),
        "--conf-file=/dev/null".to_owned(),
        "--keep-in-foreground".to_owned(),
        "--user=root".to_owned(),
        "--pid-file".to_owned(),
        "--no-resolv".to_owned(),
        "--no-hosts".to_owned(),
        "--bind-interfaces".to_owned(),
        "--log-queries".to_owned(),
        "--log-facility=-".to_owned(),
        "--edns-packet-max=4096".to_owned(),
        format!("--listen-address={ipv4},{ipv6}"),
        format!("--local=/{ZONE}/"),
        format!("--host-record=www.{ZONE},{ipv4},{ipv6}"),
        format!("--txt-record={LONG_TEXT},{text}"),
    ];
    Process::start(&lab.paths, NAMES, Some(WEB), argv.into())
}

/// The public pool in the API.
pub(crate) fn pools(topology: &Topology) -> Vec<PublicPoolSpec> {
    let pool = |internet: &Internet| PublicPoolSpec {
        name: POOL.to_owned(),
        cluster: topology.cluster.name.clone(),
        prefixes: internet.pool.clone(),
        reserved: Vec::new(),
    };
    topology.internet.iter().map(pool).collect()
}

/// The EIPs in the API, attached to VMs.
pub(crate) fn eips(topology: &Topology) -> Vec<EipSpec> {
    let spec = |eip: &Eip| {
        let vm = topology.vms.iter().find(|vm| vm.name == eip.vm)?;
        let vpc = topology.vpcs.iter().find(|vpc| vpc.name == vm.vpc)?;
        Some(EipSpec {
            name: eip.name(),
            tenant: vpc.tenant.clone(),
            pool: POOL.to_owned(),
            address: Some(eip.address),
            family: None,
            prefix_length: None,
            nptv6: None,
            vpc: Some(vpc.name.clone()),
            instance: Some(vm.name.clone()),
            subnet: None,
            inside: None,
            meter: None,
        })
    };
    topology.internet.iter().flat_map(|internet| &internet.eips).filter_map(spec).collect()
}

/// The NAT gateway of a VPC in the API.
pub(crate) fn nat_gateway(vpc: &Vpc) -> Option<NatGatewaySpec> {
    let spec = NatGatewaySpec {
        name: vpc.name.clone(),
        pool: POOL.to_owned(),
        addresses: Some(vpc.nat.iter().copied().map(IpAddr::V4).collect()),
        address_count: None,
        sessions: None,
        blocks: None,
        filtering: None,
        mapping: None,
        nat64_prefix: "64:ff9b::/96".parse().ok(),
        port_forwards: Vec::new(),
    };
    (!vpc.nat.is_empty()).then_some(spec)
}

/// The routes of a VPC to the Internet.
pub(crate) fn routes(vpc: &Vpc) -> Vec<RouteSpec> {
    let default = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
    let routes = default.map(|destination| RouteSpec { destination, target: RouteTargetSpec::Internet });
    routes.into_iter().filter(|_| vpc.internet).collect()
}
