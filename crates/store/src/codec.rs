//! Encoding of outbox payloads: a version byte, then postcard.
//!
//! The outbox can carry millions of instances, so they have a compact encoding: ids and addresses are numbers
//! instead of the texts that they are elsewhere.

use crate::{Change, Host, Instance, InstanceOptions, Migration, Result, StoreError, Subnet, Vpc};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, HostId, InstanceId, MacAddr, SubnetId, VpcId};
use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

/// First byte of a payload. Variants are encoded by position, here and in [`Change`]: new ones are added at
/// the end, and any other change of the format needs a new version.
///
/// Version 1: instances without an identity. Version 2: without options. Version 3: VPCs and EIPs without meters. Version 4:
/// EIPs without NPTv6. Version 5: peerings without meters. Version 6: NAT gateways without a prefix of NAT64.
/// Version 7: without a mapping. Version 8: instances without a network class and migrations. Version 9: network classes of which
/// none is the default, and instances without a membership of a service. The migrations to schema versions 9, 11, 14 and 16 to 23
/// delete their rows.
const VERSION: u8 = 10;

/// As many bytes of payloads are decoded on two threads.
const BYTES_OF_TWO_THREADS: usize = 4 << 20;

#[derive(Serialize, Deserialize)]
struct CompactInstance<'a> {
    id: u64,
    #[serde(borrow)]
    name: Cow<'a, str>,
    subnet: u64,
    host: u64,
    mac: [u8; 6],
    ipv4: Option<[u8; 4]>,
    ipv6: Option<[u8; 16]>,
    identity: u16,
    /// Most instances have none.
    options: Option<Cow<'a, InstanceOptions>>,
    migration: Option<Migration>,
    revision: u64,
}

#[derive(Serialize, Deserialize)]
enum Payload<'a> {
    Plain(Box<Cow<'a, Change>>),
    Created {
        vpc: Cow<'a, Vpc>,
        subnets: Cow<'a, [Subnet]>,
        hosts: Cow<'a, [Host]>,
        #[serde(borrow)]
        instances: Vec<CompactInstance<'a>>,
    },
    Removed {
        vpc: Cow<'a, Vpc>,
        #[serde(borrow)]
        instances: Vec<CompactInstance<'a>>,
    },
    EndpointsAdded {
        vpc: Cow<'a, Vpc>,
        cluster: u64,
        hosts: Cow<'a, [Host]>,
        #[serde(borrow)]
        instances: Vec<CompactInstance<'a>>,
    },
    EndpointsRemoved {
        vpc: Cow<'a, Vpc>,
        cluster: u64,
        #[serde(borrow)]
        instances: Vec<CompactInstance<'a>>,
    },
    CreditChanged {
        vpc: Cow<'a, Vpc>,
        #[serde(borrow)]
        instances: Vec<CompactInstance<'a>>,
    },
}

fn compact(instance: &Instance) -> CompactInstance<'_> {
    CompactInstance {
        id: instance.id.get(),
        name: Cow::Borrowed(&instance.name),
        subnet: instance.subnet.get(),
        host: instance.host.get(),
        mac: instance.mac.octets(),
        ipv4: instance.ipv4.map(|a| a.octets()),
        ipv6: instance.ipv6.map(|a| a.octets()),
        identity: instance.identity,
        options: Some(&instance.options)
            .filter(|options| **options != InstanceOptions::default())
            .map(Cow::Borrowed),
        migration: instance.migration.as_deref().copied(),
        revision: instance.revision,
    }
}

fn expand(vpc: VpcId, compact: CompactInstance<'_>) -> Instance {
    Instance {
        id: InstanceId::new(compact.id),
        name: compact.name.into_owned(),
        vpc,
        subnet: SubnetId::new(compact.subnet),
        host: HostId::new(compact.host),
        mac: MacAddr::new(compact.mac),
        ipv4: compact.ipv4.map(Ipv4Addr::from),
        ipv6: compact.ipv6.map(Ipv6Addr::from),
        identity: compact.identity,
        options: compact.options.map(Cow::into_owned).unwrap_or_default(),
        migration: compact.migration.map(Box::new),
        revision: compact.revision,
    }
}

/// Encodes [`Change::InstancesCreated`] without copying the instances into a [`Change`] first.
pub(crate) fn encode_created(
    vpc: &Vpc,
    subnets: &[Subnet],
    hosts: &[Host],
    instances: &[Instance],
) -> Result<Vec<u8>> {
    to_bytes(&Payload::Created {
        vpc: Cow::Borrowed(vpc),
        subnets: Cow::Borrowed(subnets),
        hosts: Cow::Borrowed(hosts),
        instances: instances.iter().map(compact).collect(),
    })
}

pub(crate) fn encode(change: &Change) -> Result<Vec<u8>> {
    match change {
        Change::InstancesCreated { vpc, subnets, hosts, instances } => {
            encode_created(vpc, subnets, hosts, instances)
        }
        Change::InstancesRemoved { vpc, instances } => to_bytes(&Payload::Removed {
            vpc: Cow::Borrowed(vpc),
            instances: instances.iter().map(compact).collect(),
        }),
        Change::EndpointsAdded { vpc, cluster, hosts, instances } => to_bytes(&Payload::EndpointsAdded {
            vpc: Cow::Borrowed(vpc),
            cluster: cluster.get(),
            hosts: Cow::Borrowed(hosts),
            instances: instances.iter().map(compact).collect(),
        }),
        Change::EndpointsRemoved { vpc, cluster, instances } => to_bytes(&Payload::EndpointsRemoved {
            vpc: Cow::Borrowed(vpc),
            cluster: cluster.get(),
            instances: instances.iter().map(compact).collect(),
        }),
        Change::CreditChanged { vpc, instances } => to_bytes(&Payload::CreditChanged {
            vpc: Cow::Borrowed(vpc),
            instances: instances.iter().map(compact).collect(),
        }),
        other => to_bytes(&Payload::Plain(Box::new(Cow::Borrowed(other)))),
    }
}

fn to_bytes(payload: &Payload<'_>) -> Result<Vec<u8>> {
    postcard::to_extend(payload, vec![VERSION])
        .map_err(|e| StoreError::Corrupt(format!("cannot encode an outbox row: {e}")))
}

/// Decodes payloads, many bytes of them on two threads.
pub(crate) fn decode_all(payloads: &[&[u8]]) -> Result<Vec<Change>> {
    let decode =
        |payloads: &[&[u8]]| payloads.iter().map(|payload| decode(payload)).collect::<Result<Vec<_>>>();
    if payloads.iter().map(|payload| payload.len()).sum::<usize>() < BYTES_OF_TWO_THREADS {
        return decode(payloads);
    }
    let (first, second) = payloads.split_at(payloads.len() / 2);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| decode(second));
        let mut all = decode(first)?;
        all.extend(second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        Ok(all)
    })
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Change> {
    let corrupt = |what: String| StoreError::Corrupt(format!("outbox row: {what}"));
    let body = match bytes.split_first() {
        Some((&VERSION, body)) => body,
        Some((version, _)) => {
            return Err(corrupt(format!("unknown version {version}; this program knows version {VERSION}")));
        }
        None => return Err(corrupt("empty".into())),
    };
    Ok(match postcard::from_bytes(body).map_err(|e| corrupt(e.to_string()))? {
        Payload::Plain(change) => change.into_owned(),
        Payload::Created { vpc, subnets, hosts, instances } => {
            let vpc = vpc.into_owned();
            Change::InstancesCreated {
                subnets: subnets.into_owned(),
                hosts: hosts.into_owned(),
                instances: instances.into_iter().map(|i| expand(vpc.id, i)).collect(),
                vpc,
            }
        }
        Payload::Removed { vpc, instances } => {
            let vpc = vpc.into_owned();
            let instances = instances.into_iter().map(|i| expand(vpc.id, i)).collect();
            Change::InstancesRemoved { vpc, instances }
        }
        Payload::EndpointsAdded { vpc, cluster, hosts, instances } => {
            let (vpc, cluster) = (vpc.into_owned(), ClusterId::new(cluster));
            let instances = instances.into_iter().map(|i| expand(vpc.id, i)).collect();
            Change::EndpointsAdded { vpc, cluster, hosts: hosts.into_owned(), instances }
        }
        Payload::EndpointsRemoved { vpc, cluster, instances } => {
            let (vpc, cluster) = (vpc.into_owned(), ClusterId::new(cluster));
            let instances = instances.into_iter().map(|i| expand(vpc.id, i)).collect();
            Change::EndpointsRemoved { vpc, cluster, instances }
        }
        Payload::CreditChanged { vpc, instances } => {
            let vpc = vpc.into_owned();
            let instances = instances.into_iter().map(|i| expand(vpc.id, i)).collect();
            Change::CreditChanged { vpc, instances }
        }
    })
}
