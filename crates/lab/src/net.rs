//! Creates and removes namespaces, bridges and links of a lab.

use crate::error::{Error, IoContext, Result};
use crate::exec::{command, feed, ip_batch, script, words};
use crate::paths::{MANAGEMENT_NETWORKS, Paths, bridge, management};
use crate::topology::{Guest, Topology};
use futures::future::try_join_all;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

/// First management address of a node; the bridge has .1.
const FIRST_NODE: u8 = 10;

/// Names of the lab's namespaces that exist.
pub(crate) fn namespaces(paths: &Paths) -> Vec<String> {
    let prefix = paths.namespace_prefix();
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Takes the first free management network by creating its bridge, which only one lab
/// can do; returns the index.
pub(crate) async fn claim_network(paths: &Paths) -> Result<u16> {
    let taken: Vec<String> = links().await?.into_iter().map(|(name, _)| name).collect();
    for index in (0..MANAGEMENT_NETWORKS).filter(|index| !taken.contains(&bridge(*index))) {
        let name = bridge(index);
        let mac = paths.bridge_mac();
        let make =
            words(&["ip", "link", "add", &name, "address", &mac, "type", "bridge", "mcast_snooping", "0"]);
        match feed("making the management bridge", command(paths, None, &make), "").await {
            Ok(_) => {
                let lines = format!("addr add {}/24 dev {name}\nlink set {name} up\n", management(index, 1));
                ip_batch(paths, "configuring the management bridge", &lines).await?;
                return Ok(index);
            }
            Err(Error::Command { output, .. }) if output.contains("File exists") => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::NoNetwork)
}

/// Name and MAC address of the links in the root namespace.
pub(crate) async fn links() -> Result<Vec<(String, String)>> {
    let mut ip = tokio::process::Command::new("ip");
    ip.args(["-j", "link", "show"]);
    let text = feed("listing links", ip, "").await?;
    let list: Vec<serde_json::Value> = serde_json::from_str(&text)
        .map_err(|error| Error::Form { what: "`ip -j link`".to_owned(), problem: error.to_string() })?;
    let text = |link: &serde_json::Value, key: &str| link[key].as_str().unwrap_or_default().to_owned();
    Ok(list.iter().map(|link| (text(link, "ifname"), text(link, "address"))).collect())
}

/// Management address of a node.
pub(crate) fn node_management(topology: &Topology, index: u16, node: &str) -> Option<std::net::Ipv4Addr> {
    let position = topology.nodes().position(|name| name == node)?;
    Some(management(index, FIRST_NODE + u8::try_from(position).ok()?))
}

/// All namespaces, and the links between switches and nodes.
pub(crate) async fn build(paths: &Paths, topology: &Topology, index: u16) -> Result<()> {
    let mtu = topology.underlay.mtu;
    let mut lines = String::new();
    let vms = topology.vms.iter().filter(|vm| vm.guest == Guest::Namespace).map(|vm| vm.name.as_str());
    for place in topology.switches.iter().map(|s| s.name.as_str()).chain(topology.nodes()).chain(vms) {
        let _ = writeln!(lines, "netns add {}", paths.namespace(place));
    }
    for (number, switch) in topology.switches.iter().enumerate() {
        let namespace = paths.namespace(&switch.name);
        let _ = writeln!(lines, "link add br0 mtu {mtu} netns {namespace} type bridge mcast_snooping 0");
        if let Some(uplink) = &switch.uplink {
            let _ = writeln!(
                lines,
                "link add up0 mtu {mtu} netns {namespace} type veth peer name down{number} mtu {mtu} netns {}",
                paths.namespace(uplink)
            );
        }
    }
    for (number, (node, switch, _)) in nodes(topology).enumerate() {
        let (namespace, switch) = (paths.namespace(node), paths.namespace(switch));
        let port = format!("{}p{number}", bridge(index));
        let _ = writeln!(
            lines,
            "link add eth0 mtu {mtu} netns {namespace} type veth peer name p{number} mtu {mtu} netns {switch}\n\
             link add {port} type veth peer name mgmt0 netns {namespace}\n\
             link set {port} master {} up",
            bridge(index)
        );
    }
    ip_batch(paths, "making namespaces and links", &lines).await?;
    let switches = topology.switches.iter().map(|switch| set_up_switch(paths, topology, &switch.name));
    let nodes = nodes(topology).map(|(node, _, addresses)| {
        let management = node_management(topology, index, node);
        set_up_node(paths, topology, node, addresses, management)
    });
    tokio::try_join!(try_join_all(switches), try_join_all(nodes)).map(drop)
}

/// Name, switch and underlay addresses of the nodes.
fn nodes(topology: &Topology) -> impl Iterator<Item = (&str, &str, Vec<IpAddr>)> {
    let gateways = topology.gateways.iter().map(|g| (&g.name, &g.switch, g.ipv4, g.ipv6));
    let hosts = topology.hosts.iter().map(|h| (&h.name, &h.switch, h.ipv4, h.ipv6));
    gateways.chain(hosts).map(|(name, switch, ipv4, ipv6)| {
        let addresses = ipv4.map(IpAddr::from).into_iter().chain(ipv6.map(IpAddr::from));
        (name.as_str(), switch.as_str(), addresses.collect())
    })
}

async fn set_up_switch(paths: &Paths, topology: &Topology, switch: &str) -> Result<()> {
    let mut text =
        "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6\nip -batch - <<END\nlink set br0 up\n".to_owned();
    let attached = nodes(topology).enumerate().filter(|(_, (_, at, _))| *at == switch);
    let ports: Vec<String> = attached.map(|(number, _)| format!("p{number}")).collect();
    let below =
        topology.switches.iter().enumerate().filter(|(_, other)| other.uplink.as_deref() == Some(switch));
    let trunks = below.map(|(number, _)| format!("down{number}"));
    let own = topology.switches.iter().any(|s| s.name == switch && s.uplink.is_some());
    for port in ports.iter().cloned().chain(trunks).chain(own.then(|| "up0".to_owned())) {
        let _ = writeln!(text, "link set {port} master br0 up");
    }
    text.push_str("END\n");
    for (number, _) in topology.gateways.iter().enumerate() {
        let port = format!("p{number}");
        if ports.contains(&port) {
            text.push_str(&xdp_peer(paths, &port));
        }
    }
    script(paths, switch, "setting up a switch", &text).await.map(drop)
}

/// Prepares the other end of a veth with an XDP program. Checksums and segmentation must be done before
/// the packet is handed over, since XDP sees the raw frame; and that end needs a program of its own, without
/// which it accepts no frames sent by XDP_TX.
pub(crate) fn xdp_peer(paths: &Paths, port: &str) -> String {
    format!(
        "ethtool -K {port} tx off tso off gso off >/dev/null\n\
         ip link set dev {port} xdp object {} section xdp\n",
        paths.switch_port().display()
    )
}

async fn set_up_node(
    paths: &Paths,
    topology: &Topology,
    node: &str,
    addresses: Vec<IpAddr>,
    management: Option<std::net::Ipv4Addr>,
) -> Result<()> {
    let mut text = "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_ra\n\
                    echo 0 >/proc/sys/net/ipv4/conf/eth0/rp_filter\n\
                    echo 1 >/proc/sys/net/ipv6/conf/mgmt0/disable_ipv6\n\
                    ip -batch - <<END\nlink set lo up\n"
        .to_owned();
    for address in addresses {
        let _ = match address {
            IpAddr::V4(_) => {
                writeln!(text, "addr add {address}/{} dev eth0", topology.underlay.ipv4.prefix_len())
            }
            IpAddr::V6(_) => {
                writeln!(text, "addr add {address}/{} dev eth0 nodad", topology.underlay.ipv6.prefix_len())
            }
        };
    }
    text.push_str("link set eth0 up\n");
    if let Some(management) = management {
        let _ = writeln!(text, "addr add {management}/24 dev mgmt0\nlink set mgmt0 up");
    }
    text.push_str("END\n");
    script(paths, node, "setting up a node", &text).await.map(drop)
}

/// Removes the lab's links in the root namespace and its namespaces.
pub(crate) async fn remove(paths: &Paths) -> Result<()> {
    let links = links().await?;
    let own = |(name, mac): &&(String, String)| name.starts_with("slm") && *mac == paths.bridge_mac();
    let mut lines = String::new();
    for (bridge, _) in links.iter().filter(own) {
        let prefix = format!("{bridge}p");
        for (port, _) in links.iter().filter(|(name, _)| name.starts_with(&prefix)) {
            let _ = writeln!(lines, "link del {port}");
        }
        let _ = writeln!(lines, "link del {bridge}");
    }
    for namespace in namespaces(paths) {
        // A namespace that is no longer mounted is a plain file, which `ip` refuses.
        let file = Path::new("/run/netns").join(&namespace);
        if is_mounted(&file) {
            let _ = writeln!(lines, "netns del {namespace}");
        } else {
            std::fs::remove_file(&file).context("cannot remove", &file)?;
        }
    }
    let delete = command(paths, None, &words(&["ip", "-force", "-batch", "-"]));
    match feed("removing links and namespaces", delete, &lines).await {
        // The kernel may have removed some of them in the meantime. `ip -force` has removed the others, and what
        // remains is reported at the end (down.rs).
        Ok(_) | Err(Error::Command { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_mounted(file: &Path) -> bool {
    mounts().iter().any(|mount| mount == file)
}

/// Mount points of this process.
pub(crate) fn mounts() -> Vec<std::path::PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(4)).map(std::path::PathBuf::from).collect()
}
