//! The guard: rules of nftables that keep the interfaces of VMs away from the host's own stack. This file changes
//! with what the host's stack accepts from an interface, or sends to it by itself.
//!
//! The rules name interfaces by patterns, so they hold for an interface from the moment at which it appears, and
//! without any process of Sluice: while no program is attached yet, or no longer. The program of a port takes its
//! packets before these rules (docs/decisions/vswitch.md).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Stdio;
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;
use sluice_agent::Error;
use sluice_agent::netlink::{Link, Netlink};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::vxlan_device;

/// Name of the guard's tables.
const TABLE: &str = "sluice_guard";
/// Families of the tables: what the host receives over IP, the ARP in both directions, and what it sends over
/// IPv6.
const FAMILIES: [&str; 3] = ["inet", "arp", "ip6"];
/// Interfaces whose packets are counted separately.
const INTERFACES_MAX: u32 = 4096;
/// Longest name that the kernel gives to an interface, in bytes.
const NAME_MAX: usize = 15;
/// Most names: packets from the underlay are compared with each of them.
const NAMES_MAX: usize = 16;

/// Names of VM interfaces: a name, or the beginning of names with `*` at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    text: String,
}

impl PortName {
    /// Whether an interface has such a name.
    #[must_use]
    pub fn matches(&self, ifname: &str) -> bool {
        self.text.strip_suffix('*').map_or(self.text == ifname, |begin| ifname.starts_with(begin))
    }
}

impl FromStr for PortName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let begin = text.strip_suffix('*').unwrap_or(text);
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.@+".contains(letter);
        if begin.is_empty() {
            return Err("give the beginning of the names, for example sl-*".to_owned());
        }
        if begin.len() > NAME_MAX || !begin.chars().all(is_allowed) {
            return Err(format!(
                "expected at most {NAME_MAX} letters, digits or any of -_.@+ and then possibly *"
            ));
        }
        Ok(Self { text: text.to_owned() })
    }
}

/// An interface that is not a port, and whose packets are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuardedView {
    /// The interface.
    pub ifname: String,
    /// Whether `--port-names` includes it. Other interfaces were ports, and only their program guards them.
    pub named: bool,
    /// Packets from it that were dropped: by the program while it was not a port, and by the guard.
    pub dropped: u64,
}

/// Whether an interface may be a VM's.
#[must_use]
pub fn is_vm_interface(names: &[PortName], ifname: &str) -> bool {
    names.iter().any(|name| name.matches(ifname))
}

/// Refuses names that interfaces of the host itself have: it would lose its own packets.
///
/// # Errors
/// If there are too many names, or they match `lo`, the VXLAN device, the uplink, or an interface with the default route.
pub async fn check_names(netlink: &Netlink, names: &[PortName], uplink: Option<&Link>) -> Result<(), Error> {
    if names.len() > NAMES_MAX {
        return Err(Error::Config(format!("--port-names has {} names, at most {NAMES_MAX}", names.len())));
    }
    let mut own = vec!["lo".to_owned(), vxlan_device::NAME.to_owned()];
    own.extend(uplink.map(|link| link.name.clone()));
    let links = netlink.links().await?;
    for internet in ["192.0.2.1", "2001:db8::1"] {
        let address = internet.parse().expect("an address of RFC 5737 or RFC 3849");
        let hops = netlink.next_hops(address).await?;
        let of_hop = |link: &&Link| hops.iter().any(|(index, _)| *index == link.index);
        own.extend(links.iter().filter(of_hop).map(|link| link.name.clone()));
    }
    match own.iter().find(|name| is_vm_interface(names, name)) {
        Some(name) => Err(Error::Config(format!(
            "--port-names includes {name}, which is an interface of this host itself: packets of VMs and of \
             the host must use different interfaces"
        ))),
        None => Ok(()),
    }
}

/// The chains of the guard: family, name, hook, and the interface that is compared.
const CHAINS: [(&str, &str, &str, &str); 4] = [
    // Before fragments are reassembled, at -400.
    ("inet", "received", "prerouting priority -450", "iifname"),
    ("arp", "received", "input priority -450", "iifname"),
    ("arp", "sent", "output priority -450", "oifname"),
    ("ip6", "sent", "output priority -450", "oifname"),
];

/// The rules for these names, each after its table. The VXLAN device is among them: until its program is attached, its
/// packets must not reach the host's stack.
fn rules(names: &[PortName]) -> Vec<(String, String)> {
    let device = [vxlan_device::NAME];
    let names = || names.iter().map(|name| name.text.as_str()).chain(device);
    let of_chain = |(family, chain, _, compared): &(&str, &str, &str, &str)| {
        let rule = |name| format!("{compared} \"{name}\" goto drop_{chain}");
        names().map(|name| (format!("{family} {TABLE} {chain}"), rule(name))).collect::<Vec<_>>()
    };
    CHAINS.iter().flat_map(of_chain).collect()
}

/// The commands that create the tables or replace their rules. Counters of interfaces are kept.
fn script(names: &[PortName]) -> String {
    let mut text = String::new();
    for (family, chain, hook, compared) in CHAINS {
        let _ = write!(
            text,
            "add table {family} {TABLE}\n\
             add set {family} {TABLE} {chain}_by {{ type ifname; size {INTERFACES_MAX}; flags dynamic,timeout; timeout 1d; }}\n\
             add chain {family} {TABLE} drop_{chain}\n\
             add chain {family} {TABLE} {chain} {{ type filter hook {hook}; policy accept; }}\n\
             flush chain {family} {TABLE} {chain}\n\
             flush chain {family} {TABLE} drop_{chain}\n\
             add rule {family} {TABLE} drop_{chain} update @{chain}_by {{ {compared} counter }}\n\
             add rule {family} {TABLE} drop_{chain} drop\n"
        );
    }
    for (chain, rule) in rules(names) {
        let _ = writeln!(text, "add rule {chain} {rule}");
    }
    text
}

/// Installs the guard for interfaces with these names. The rules of an earlier guard are replaced in one step.
///
/// # Errors
/// If `nft` is not installed, or the kernel refuses the rules.
pub async fn install(names: &[PortName]) -> Result<(), Error> {
    nft(&["-f", "-"], &script(names)).await.map(drop)
}

/// Whether the guard is installed and has rules for all these names.
///
/// # Errors
/// If `nft` fails.
pub async fn is_installed(names: &[PortName]) -> Result<bool, Error> {
    let tables = nft(&["list", "tables"], "").await?;
    if !FAMILIES.iter().all(|family| tables.lines().any(|line| line == format!("table {family} {TABLE}"))) {
        return Ok(false);
    }
    let mut installed = String::new();
    // One command for each table: `nft` 1.0.6 does not find the tables of several families at once.
    for family in FAMILIES {
        installed += &nft(&["list", "table", family, TABLE], "").await?;
    }
    let count = |wanted: &str| installed.lines().filter(|line| line.trim() == wanted).count();
    let rules = rules(names);
    Ok(rules.iter().all(|(_, rule)| count(rule) == rules.iter().filter(|(_, other)| other == rule).count()))
}

/// Removes the guard. Without it, and without a program, the host's stack receives what VMs send.
///
/// # Errors
/// If `nft` fails.
pub async fn remove() -> Result<(), Error> {
    // Each table is created first, because `nft` refuses to delete one that does not exist.
    let line = |family: &&str| format!("add table {family} {TABLE}\ndelete table {family} {TABLE}\n");
    nft(&["-f", "-"], &FAMILIES.iter().map(line).collect::<String>()).await.map(drop)
}

/// Packets from VMs that the guard has dropped, by interface. A count is forgotten when its interface has sent
/// nothing for a day.
///
/// # Errors
/// If the guard is not installed, or `nft` fails.
pub async fn dropped() -> Result<BTreeMap<String, u64>, Error> {
    let mut sum = BTreeMap::new();
    for family in ["inet", "arp"] {
        let text = nft(&["-j", "list", "set", family, TABLE, "received_by"], "").await?;
        for (ifname, packets) in counts(&text) {
            *sum.entry(ifname).or_default() += packets;
        }
    }
    Ok(sum)
}

/// Reads `nft`'s description of a set of interface names with counters.
fn counts(text: &str) -> Vec<(String, u64)> {
    let list: Value = serde_json::from_str(text).unwrap_or_default();
    let objects = list["nftables"].as_array().into_iter().flatten();
    let elements = objects.filter_map(|object| object["set"]["elem"].as_array()).flatten();
    let count = |element: &Value| {
        let element = &element["elem"];
        Some((element["val"].as_str()?.to_owned(), element["counter"]["packets"].as_u64()?))
    };
    elements.filter_map(count).collect()
}

async fn nft(arguments: &[&str], input: &str) -> Result<String, Error> {
    let failed = |what: &str| Error::io(format!("{what} `nft`, which the guard of VM interfaces needs"));
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed("start"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If `nft` ends early, its own message says why.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(failed("run"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Config(format!("the guard of VM interfaces: nft {}: {message}", arguments.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_whole_or_by_their_beginning() {
        let names: Vec<PortName> = ["sl-*", "tap0"].iter().map(|text| text.parse().unwrap()).collect();
        for (ifname, expected) in [
            ("sl-", true),
            ("sl-web", true),
            ("sluice-vx", false),
            ("tap0", true),
            ("tap01", false),
            ("", false),
        ] {
            assert_eq!(is_vm_interface(&names, ifname), expected, "{ifname}");
        }
    }

    /// Catches a name that is more than a name to `nft`.
    #[test]
    fn impossible_names_are_refused() {
        for text in ["", "*", "a*b", "a\"b", "a b", "a;b", "a/b", "1234567890123456", "a\\*"] {
            assert!(text.parse::<PortName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn counters_are_read_from_the_description_of_a_set() {
        let text = r#"{"nftables": [{"metainfo": {"json_schema_version": 1}}, {"set": {"family": "inet",
            "name": "received_by", "elem": [{"elem": {"val": "vm0", "expires": 3598, "counter":
            {"packets": 8, "bytes": 640}}}, {"elem": {"val": "vm1", "counter": {"packets": 1, "bytes": 9}}}]}}]}"#;
        assert_eq!(counts(text), [("vm0".to_owned(), 8), ("vm1".to_owned(), 1)]);
        assert_eq!(counts(r#"{"nftables": [{"set": {"name": "received_by"}}]}"#), []);
        assert_eq!(counts("no json"), []);
    }
}
