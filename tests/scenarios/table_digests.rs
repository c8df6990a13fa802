//! Memory of a gateway's forwarding tables is damaged while it forwards. The controller finds that digests differ, and a
//! snapshot repairs the tables: a wrong endpoint, a lost one, a foreign one and a wrong route are named in the event log.
//! When a large part of the tables is damaged, the gateway gives its vIPs up until they are repaired. The same for a wrong, a
//! lost and an additional entry of a host, whose VMs lose no packet.
//!
//! Catches: damage that stays, that is not named, or that names something else; a gateway that forwards by tables of which
//! it knows that they are wrong; digests that differ although nothing is damaged.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, ensure, eventually};
use crate::takeover::{Bench, Hellos, lab_of_three};
use sluice_client::{HappenedEvent, Instance, NewHost, NewInstance, NewSubnet, NewVpc, Vpc};
use sluice_lab::Lab;
use sluice_tables::damage::{find_words, flip};
use sluice_tables::{Lookup, Memory, Reader};
use sluice_types::{MacAddr, Vni};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

const DAMAGED: &str = "gw-b";
const DAMAGED_HOST: &str = "host-a";
/// Nodes whose entries are damaged on that host: they do not exist.
const WRONG: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 97);
const LOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 98);
const PORT: u16 = 7081;
/// Entries enough that a damaged half of them concerns most shards.
const INSTANCES: usize = 2_000;
const FOUND_MAX: Duration = Duration::from_secs(5);
/// Digests are sent every 3 s.
const QUIET: Duration = Duration::from_secs(8);

/// The instance that is damaged: what its endpoint consists of.
struct Victim {
    vni: Vni,
    ipv4: IpAddr,
    mac: MacAddr,
}

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Slow).await?;
    let victims = fill_tables(&lab).await?;
    let bench = Bench::new(&lab).await?;
    bench.owners_preferred().await?;
    let memory = sluice_datapath::pinned_tables(&lab.paths().pin_dir(DAMAGED))?;
    nothing_differs(&lab).await?;
    one_entry(&lab, &memory, &victims[7], "was wrong", |memory, victim| {
        // The MAC address of an endpoint is a word of its own.
        let words = find_words(memory, |word| word == victim.mac.to_u64());
        words.into_iter().for_each(|at| flip(memory, at, 1 << 3));
    })
    .await?;
    one_entry(&lab, &memory, &victims[8], "was missing", |memory, victim| {
        let words = find_words(memory, |word| is_key_of(word, victim));
        words.into_iter().for_each(|at| flip(memory, at, 1 << 20));
    })
    .await?;
    entries_of_host(&lab).await?;
    many_entries(&bench, &memory, &victims).await?;
    nothing_differs(&lab).await
}

/// Whether a word is the key of an IPv4 address: kind, VNI and address, below the generation.
fn is_key_of(word: u64, victim: &Victim) -> bool {
    let IpAddr::V4(address) = victim.ipv4 else { return false };
    word & ((1 << 58) - 1) == 1 << 56 | u64::from(victim.vni.get()) << 32 | u64::from(u32::from(address))
}

/// Without damage, digests agree.
async fn nothing_differs(lab: &Lab) -> Outcome {
    let before = lab.controller_metrics().await?;
    tokio::time::sleep(QUIET).await;
    let after = lab.controller_metrics().await?;
    let of = |name: &str| after.sum(name, &[]) - before.sum(name, &[]);
    let equal = of("sluice_controller_digests_equal_total");
    ensure!(equal >= 6.0, "only {equal} digests of three gateways were compared in {QUIET:?}");
    let different = of("sluice_controller_digests_different_total");
    ensure!(different == 0.0, "{different} digests differ, though nothing is damaged");
    Ok(())
}

async fn one_entry(
    lab: &Lab,
    memory: &Memory,
    victim: &Victim,
    what: &str,
    damage: impl Fn(&Memory, &Victim),
) -> Outcome {
    let reader = Reader::new(memory.clone());
    let right = reader.find(victim.vni.get(), victim.ipv4);
    let known = repairs(lab).await?.len();
    damage(memory, victim);
    ensure!(reader.find(victim.vni.get(), victim.ipv4) != right, "the damage changed nothing");
    let begin = Instant::now();
    let name = format!("endpoint {} of VNI {} {what}", victim.ipv4, victim.vni);
    eventually(FOUND_MAX, || async {
        let events = repairs(lab).await?;
        ensure!(events.len() > known, "{name}: no event");
        let named = events[known].details["entries"].to_string();
        ensure!(named.contains(&name), "{name}: the event says {named}");
        Ok(())
    })
    .await?;
    ensure!(reader.find(victim.vni.get(), victim.ipv4) == right, "{name}: not repaired");
    println!("    {name}: found and repaired after {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Three entries of a host, under traffic of its VMs.
async fn entries_of_host(lab: &Lab) -> Outcome {
    let memory = sluice_datapath::pinned_tables(&lab.paths().pin_dir(DAMAGED_HOST))?;
    let reader = Reader::new(memory.clone());
    let find = |address: Ipv4Addr| reader.find(0, address.into());
    let right = (find(WRONG), find(LOST));
    let streams =
        Streams::start(lab, &[("web-1", "web-3", false), ("web-3", "web-1", true)], PORT, 500).await?;
    let known = repairs(lab).await?.len();
    // The address in the cell of a next hop.
    let word = u64::from(u32::from_le_bytes(WRONG.octets()));
    find_words(&memory, |found| found == word).into_iter().for_each(|at| flip(&memory, at, 1 << 8));
    let foreign = change_key(&memory, &reader)?;
    ensure!(find(LOST) == Lookup::Miss, "the damage changed nothing");
    let begin = Instant::now();
    let names = [(WRONG, "was wrong"), (LOST, "was missing"), (foreign, "was additional")]
        .map(|(address, what)| format!("VTEP {address} {what}"));
    eventually(FOUND_MAX, || async {
        let events = repairs(lab).await?;
        let named: String =
            events[known..].iter().map(|event| event.details["entries"].to_string()).collect();
        ensure!(names.iter().all(|name| named.contains(name)), "{DAMAGED_HOST}: the events say {named:?}");
        Ok(())
    })
    .await?;
    println!("    {}: found and repaired after {:.1} s", names.join(", "), begin.elapsed().as_secs_f64());
    ensure!((find(WRONG), find(LOST)) == right && find(foreign) == Lookup::Miss, "not repaired");
    let wrong = find_words(&memory, |found| found == word ^ 1 << 8);
    ensure!(wrong.is_empty(), "{WRONG} still leads to another address");
    streams.end().await
}

/// Makes the entry of one node that of another, which lookups find. Returns that address.
fn change_key(memory: &Memory, reader: &Reader) -> Result<Ipv4Addr, Failure> {
    let key = 1 << 56 | u64::from(u32::from(LOST));
    let words = find_words(memory, |word| word & ((1 << 58) - 1) == key);
    for number in 1_u32..1 << 20 {
        let bits = u64::from(number);
        words.iter().for_each(|at| flip(memory, *at, bits));
        let address = Ipv4Addr::from(u32::from(LOST) ^ number);
        // The lab's nodes are in the same network.
        if number >> 8 != 0 && matches!(reader.find(0, address.into()), Lookup::Hit(_)) {
            return Ok(address);
        }
        words.iter().for_each(|at| flip(memory, *at, bits));
    }
    Err(Failure::new("no other key is found in this place"))
}

/// Half of the endpoints lead to wrong MAC addresses: the gateway has no vIPs until they are repaired.
async fn many_entries(bench: &Bench<'_>, memory: &Memory, victims: &[Victim]) -> Outcome {
    let lab = bench.lab;
    let known = repairs(lab).await?.len();
    let behind = lab.metrics(DAMAGED).await?.sum("sluice_cluster_announcements_total", &[]);
    let macs: std::collections::HashSet<u64> =
        victims.iter().step_by(2).map(|victim| victim.mac.to_u64()).collect();
    find_words(memory, |word| macs.contains(&word)).into_iter().for_each(|at| flip(memory, at, 1 << 3));
    let mut was_partial = false;
    let began = Instant::now();
    while repairs(lab).await?.len() == known {
        let metrics = lab.metrics(DAMAGED).await?;
        was_partial |= metrics.sum("sluice_cluster_tables", &[("tables", "partial")]) == 1.0;
        ensure!(began.elapsed() < FOUND_MAX, "damage of {} endpoints is not repaired", macs.len());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let event = repairs(lab).await?.swap_remove(known);
    let differences = event.details["differences"].as_u64().unwrap_or(0);
    ensure!(differences >= macs.len() as u64, "only {differences} differences: {}", event.text);
    ensure!(was_partial, "the gateway relied on tables of which {differences} entries were wrong");
    bench.owners_preferred().await?;
    let after = lab.metrics(DAMAGED).await?.sum("sluice_cluster_announcements_total", &[]);
    ensure!(after > behind, "the gateway kept its vIPs");
    println!("    {differences} entries repaired; the gateway gave its vIPs up meanwhile");
    Ok(())
}

async fn repairs(lab: &Lab) -> Result<Vec<HappenedEvent>, Failure> {
    let events = lab.api().events(None, None, 1_000).await?;
    Ok(events.into_iter().filter(|event| event.kind == "tables_repaired").collect())
}

/// Creates instances on a host that does not exist, in a VPC of the same cluster.
async fn fill_tables(lab: &Lab) -> Result<Vec<Victim>, Failure> {
    let api = lab.api();
    let like = api.get::<Vpc>(lab.vpc("web")?.id).await?;
    for (name, vtep) in [("wrong", WRONG), ("lost", LOST)] {
        let host = NewHost { name: name.to_owned(), vtep: vtep.into(), agent: false };
        api.create((), &host).await?;
    }
    let host = NewHost { name: "many".to_owned(), vtep: "192.0.2.99".parse()?, agent: false };
    let host = api.create((), &host).await?.object.id;
    let name = || "many".to_owned();
    let (tenant, cluster) = (like.tenant, Some(like.cluster));
    let vpc = NewVpc {
        name: name(),
        tenant,
        cluster,
        vni: None,
        mtu: None,
        offload_kbps: None,
        internet_meter: None,
    };
    let vpc = api.create((), &vpc).await?.object;
    let (ipv4, ipv6) = (Some("10.64.0.0/12".parse()?), Some("fd00:64::/64".parse()?));
    let subnet = api
        .create(vpc.id, &NewSubnet { name: name(), ipv4, ipv6, ipv6_mode: None, dns: Vec::new() })
        .await?
        .object
        .id;
    let instance = |number: usize| {
        let name = format!("many-{number}");
        NewInstance {
            name,
            subnet,
            host,
            mac: None,
            ipv4: None,
            ipv6: None,
            security_groups: Some(Vec::new()),
            settings: Default::default(),
        }
    };
    let new: Vec<NewInstance> = (0..INSTANCES).map(instance).collect();
    api.create_instances(vpc.id, &new).await?;
    let made = api.list::<Instance>(&[("vpc", &vpc.id.to_string())], None).await?;
    let victims = made.into_iter().filter_map(|instance| {
        Some(Victim { vni: vpc.vni, ipv4: IpAddr::V4(instance.ipv4?), mac: instance.mac })
    });
    Ok(victims.collect())
}
