//! Counters of packets that the kernel dropped in a lab's namespaces.
//!
//! A lossless scenario must be able to name every packet that is missing. Sluice counts its own drops; this
//! file reads the kernel's counters: queues of processors and interfaces, sockets, neighbor tables, IP.

use crate::support::Failure;
use sluice_lab::Lab;
use std::collections::BTreeMap;

/// Files that are read in each namespace.
const FILES: [&str; 5] = [
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/snmp6",
    "/proc/net/stat/arp_cache",
    "/proc/net/stat/ndisc_cache",
];
/// Counters of `/proc/net/snmp`, as `Protocol Name`, which count lost packets.
const SNMP: [&str; 6] = [
    "Ip InDiscards",
    "Ip OutDiscards",
    "Ip OutNoRoutes",
    "Ip InAddrErrors",
    "Udp RcvbufErrors",
    "Udp SndbufErrors",
];
/// The same for `/proc/net/snmp6`.
const SNMP6: [&str; 6] = [
    "Ip6InDiscards",
    "Ip6OutDiscards",
    "Ip6OutNoRoutes",
    "Ip6InAddrErrors",
    "Udp6RcvbufErrors",
    "Udp6SndbufErrors",
];

/// Counters by `namespace: name`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelDrops(BTreeMap<String, u64>);

impl KernelDrops {
    /// The current counters of all namespaces of a lab.
    pub async fn read(lab: &Lab) -> Result<Self, Failure> {
        let mut drops = BTreeMap::new();
        drops.insert(
            "backlog of the processors".to_owned(),
            softnet(&std::fs::read_to_string("/proc/net/softnet_stat")?),
        );
        let state = lab.state();
        let places = state.nodes.keys().chain(state.vms.keys());
        for place in places.chain(state.topology.switches.iter().map(|switch| &switch.name)) {
            let argv: Vec<&str> = std::iter::once("head").chain(["-n", "-0"]).chain(FILES).collect();
            // The namespace of a VM that was removed does not exist any more.
            let Ok(output) = lab.exec(place, &argv).await else { continue };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            drops.extend(parse(&text).into_iter().map(|(name, value)| (format!("{place}: {name}"), value)));
        }
        Ok(Self(drops))
    }

    /// The counters that increased since `before`, and the increase.
    pub fn risen_since(&self, before: &Self) -> BTreeMap<String, u64> {
        let risen = |(name, value): (&String, &u64)| {
            let more = value.saturating_sub(before.0.get(name).copied().unwrap_or(0));
            (more > 0).then(|| (name.clone(), more))
        };
        self.0.iter().filter_map(risen).collect()
    }
}

/// Packets that did not fit the backlog queue of their processor: the second hexadecimal number of each line.
fn softnet(text: &str) -> u64 {
    let second = |line: &str| u64::from_str_radix(line.split_ascii_whitespace().nth(1)?, 16).ok();
    text.lines().filter_map(second).sum()
}

/// Parses what `head` prints of [`FILES`], each after a line `==> NAME <==`.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let mut drops = BTreeMap::new();
    for part in text.split("==> ").skip(1) {
        let Some((name, content)) = part.split_once(" <==\n") else { continue };
        match name {
            "/proc/net/dev" => drops.extend(interfaces(content)),
            "/proc/net/snmp" => drops.extend(snmp(content)),
            "/proc/net/snmp6" => drops.extend(snmp6(content)),
            other => drops.extend(neighbor_table(other.rsplit('/').next().unwrap_or(other), content)),
        }
    }
    drops
}

/// `/proc/net/dev`: after the colon bytes, packets, errors and drops received, and from the ninth number on
/// the same for what was sent.
fn interfaces(content: &str) -> Vec<(String, u64)> {
    let mut drops = Vec::new();
    for line in content.lines() {
        let Some((interface, numbers)) = line.split_once(':') else { continue };
        let numbers: Vec<u64> =
            numbers.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        for (at, what) in
            [(2, "receive errors"), (3, "receive drops"), (10, "send errors"), (11, "send drops")]
        {
            if let Some(value) = numbers.get(at) {
                drops.push((format!("{} {what}", interface.trim()), *value));
            }
        }
    }
    drops
}

/// `/proc/net/snmp`: pairs of lines, names and values, which begin with the protocol.
fn snmp(content: &str) -> Vec<(String, u64)> {
    let lines: Vec<&str> = content.lines().collect();
    let mut drops = Vec::new();
    for pair in lines.chunks_exact(2) {
        let (Some((protocol, names)), Some((_, values))) = (pair[0].split_once(':'), pair[1].split_once(':'))
        else {
            continue;
        };
        for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
            let name = format!("{protocol} {name}");
            if let (true, Ok(value)) = (SNMP.contains(&name.as_str()), value.parse()) {
                drops.push((name, value));
            }
        }
    }
    drops
}

fn snmp6(content: &str) -> Vec<(String, u64)> {
    let counter = |line: &str| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        SNMP6.contains(&name).then_some((name.to_owned(), value.trim().parse().ok()?))
    };
    content.lines().filter_map(counter).collect()
}

/// `/proc/net/stat/*_cache`: a line of names and, for each processor, a line of hexadecimal numbers.
fn neighbor_table(table: &str, content: &str) -> Vec<(String, u64)> {
    let mut lines = content.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split_ascii_whitespace().collect()).collect();
    let sum = |name: &str| {
        let at = names.iter().position(|it| *it == name)?;
        let values = rows.iter().filter_map(|row| u64::from_str_radix(row.get(at)?, 16).ok());
        Some((format!("{table} {name}"), values.sum()))
    };
    ["unresolved_discards", "table_fulls"].into_iter().filter_map(sum).collect()
}
