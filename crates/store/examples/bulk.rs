//! Times bulk creation, outbox reading, snapshot and deletion:
//! `cargo run --release -p sluice-store --example bulk -- URL COUNT[+SECONDARY]...`, with the number of
//! secondary addresses of each instance.
//! The figures of `docs/decisions/store.md` were made with it.

use sluice_store::{InstancesOf, NewHost, NewInstance, NewSubnet, NewVpc, PortSettings, Store, open};
use sluice_types::{HostId, SubnetId};
use std::time::Instant;

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const HOSTS: usize = 1000;

#[tokio::main]
async fn main() -> Fallible<()> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("usage: bulk URL COUNT[+SECONDARY]...")?;
    let store = open(&url).await?;
    let run = store.revision().await?;
    let tenant = store.create_tenant(&format!("t{run}")).await?.into_inner();
    let vip = std::net::Ipv4Addr::from(0x0b00_0000 + run as u32);
    let cluster = store.create_cluster(&format!("c{run}"), &[vip.into()], None).await?.into_inner();
    let mut hosts = Vec::new();
    let started = Instant::now();
    for i in 0..HOSTS {
        let vtep = std::net::Ipv4Addr::from(0x0c00_0000 + i as u32).into();
        hosts.push(
            store.create_host(NewHost { name: format!("h{i}"), vtep, agent: false }).await?.into_inner().id,
        );
    }
    println!("{HOSTS} hosts, one by one: {:.3} s", started.elapsed().as_secs_f64());
    for (round, count) in args.enumerate() {
        let new = NewVpc {
            name: format!("v{round}"),
            tenant: tenant.id,
            vni: None,
            cluster: cluster.id,
            mtu: 1430,
            offload_kbps: None,
            internet_meter: None,
        };
        let vpc = store.create_vpc(new).await?.into_inner();
        let subnet = NewSubnet {
            name: "s".into(),
            vpc: vpc.id,
            ipv4: Some("10.0.0.0/8".parse()?),
            ipv6: Some("fd00::/64".parse()?),
            ipv6_mode: None,
            dns: vec![],
        };
        let subnet = store.create_subnet(subnet).await?.into_inner();
        let (count, secondary) = count.split_once('+').unwrap_or((&count, "0"));
        let counts = (count.parse()?, secondary.parse()?);
        measure(store.as_ref(), &vpc, subnet.id, &hosts, counts).await?;
    }
    let started = Instant::now();
    let (sink, mut parts) = tokio::sync::mpsc::channel(4);
    let count = tokio::spawn(async move {
        let mut count = 0;
        while let Some(part) = parts.recv().await {
            if let sluice_store::SnapshotPart::Instances(page) = part {
                count += page.len();
            }
        }
        count
    });
    store.snapshot(InstancesOf::Cluster(cluster.id), sink).await?;
    println!("snapshot of {}: {:.3} s", count.await?, started.elapsed().as_secs_f64());
    Ok(())
}

async fn measure(
    store: &Store,
    vpc: &sluice_store::Vpc,
    subnet: SubnetId,
    hosts: &[HostId],
    (count, secondary): (usize, usize),
) -> Fallible<()> {
    let addresses = |i: usize| {
        let number = |j: usize| 0x0a80_0000 + (i * secondary + j) as u32;
        (0..secondary).map(|j| std::net::Ipv4Addr::from(number(j)).into()).collect()
    };
    let settings = |i: usize| match secondary {
        0 => PortSettings::default(),
        _ => PortSettings { secondary_addresses: Some(addresses(i)), ..PortSettings::default() },
    };
    let one = |i: usize| NewInstance {
        name: format!("vm-{i}"),
        subnet,
        host: hosts[i % hosts.len()],
        mac: None,
        ipv4: None,
        ipv6: None,
        security_groups: None,
        settings: settings(i),
    };
    let before = store.revision().await?;
    let started = Instant::now();
    let (made, _) = store.create_instances(vpc.id, (0..count).map(one).collect()).await?;
    println!("create {count}: {:.3} s", started.elapsed().as_secs_f64());
    let started = Instant::now();
    let rows = store.outbox(before, 1).await?;
    println!("read its {} outbox rows: {:.3} s", rows.len(), started.elapsed().as_secs_f64());
    let started = Instant::now();
    store.create_instances(vpc.id, (count..count * 2).map(one).collect()).await?;
    println!("create {count} onto {count}: {:.3} s", started.elapsed().as_secs_f64());
    let started = Instant::now();
    for instance in made.iter().step_by((made.len() / 100).max(1)).take(100) {
        store.delete_instance(instance.id, None).await?;
    }
    println!("delete one: {:.2} ms", started.elapsed().as_secs_f64() * 1000.0 / 100.0);
    let started = Instant::now();
    for i in 0..100 {
        store.create_instance(vpc.id, one(count * 2 + i)).await?;
    }
    println!("create one: {:.2} ms", started.elapsed().as_secs_f64() * 1000.0 / 100.0);
    Ok(())
}
