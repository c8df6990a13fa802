//! A small cloud with which test cases start.

use crate::Fixture;
use sluice_store::{
    Change, Cluster, Conflict, Created, Host, Instance, InstancesOf, NewGateway, NewHost, NewInstance,
    NewPeering, NewRoute, NewSubnet, NewVpc, Page, PortSettings, Result, RouteTable, RouteTarget,
    SnapshotPart, Store, StoreError, Subnet, Tenant, Vpc, VpcUpdate,
};
use sluice_types::{ClusterId, GatewayId, PeeringId, VpcId};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const ALL: Page = Page { after: 0, limit: 1000 };

pub struct Cloud {
    pub store: Arc<Store>,
    pub tenant: Tenant,
    pub cluster: Cluster,
    pub host: Host,
    pub vpc: Vpc,
    pub subnet: Subnet,
}

/// The object of a creation, which must be new.
pub fn new<T: std::fmt::Debug>(created: Result<Created<T>>) -> T {
    match created {
        Ok(Created::New(object)) => object,
        other => panic!("not created: {other:?}"),
    }
}

/// The conflict with which a call must fail.
pub fn conflict<T: std::fmt::Debug>(result: Result<T>) -> Conflict {
    match result {
        Err(StoreError::Conflict(conflict)) => conflict,
        other => panic!("no conflict: {other:?}"),
    }
}

pub fn vpc(name: &str, tenant: &Tenant, cluster: &Cluster) -> NewVpc {
    NewVpc {
        name: name.into(),
        tenant: tenant.id,
        vni: None,
        cluster: cluster.id,
        mtu: 1430,
        offload_kbps: None,
        internet_meter: None,
    }
}

pub fn vpc_update(name: &str, mtu: u16) -> VpcUpdate {
    VpcUpdate { name: name.into(), mtu, offload_kbps: None, internet_meter: None }
}

pub fn subnet(name: &str, vpc: VpcId, ipv4: Option<&str>, ipv6: Option<&str>) -> NewSubnet {
    NewSubnet {
        name: name.into(),
        vpc,
        ipv4: ipv4.map(|net| net.parse().unwrap()),
        ipv6: ipv6.map(|net| net.parse().unwrap()),
        ipv6_mode: None,
        dns: vec![],
    }
}

pub fn host(name: &str, vtep: &str) -> NewHost {
    NewHost { name: name.into(), vtep: vtep.parse().unwrap(), agent: true }
}

pub fn instance(name: &str, subnet: &Subnet, host: &Host) -> NewInstance {
    NewInstance {
        name: name.into(),
        subnet: subnet.id,
        host: host.id,
        mac: None,
        ipv4: None,
        ipv6: None,
        security_groups: None,
        settings: PortSettings::default(),
    }
}

impl Cloud {
    /// One object of each kind, dual-stack.
    pub async fn make(fixture: &Fixture) -> Self {
        Self::with(fixture, Some("10.0.0.0/24"), Some("fd00:1::/64")).await
    }

    pub async fn with(fixture: &Fixture, ipv4: Option<&str>, ipv6: Option<&str>) -> Self {
        let store = fixture.store.clone();
        let tenant = new(store.create_tenant("acme").await);
        let cluster = new(store.create_cluster("c1", &["192.0.2.100".parse().unwrap()], None).await);
        let host = new(store.create_host(host("h1", "192.0.2.1")).await);
        let vpc = new(store.create_vpc(vpc("v1", &tenant, &cluster)).await);
        let subnet = new(store.create_subnet(subnet("s1", vpc.id, ipv4, ipv6)).await);
        Self { store, tenant, cluster, host, vpc, subnet }
    }

    pub async fn vpc(&self, name: &str) -> Vpc {
        new(self.store.create_vpc(vpc(name, &self.tenant, &self.cluster)).await)
    }

    pub async fn subnet(&self, name: &str, vpc: &Vpc, ipv4: &str) -> Subnet {
        new(self.store.create_subnet(subnet(name, vpc.id, Some(ipv4), None)).await)
    }

    pub async fn instance(&self, name: &str) -> Instance {
        new(self.store.create_instance(self.vpc.id, self.one(name)).await)
    }

    /// A request for an instance in the first subnet.
    pub fn one(&self, name: &str) -> NewInstance {
        instance(name, &self.subnet, &self.host)
    }

    /// Requests for instances `vm-FIRST..` in the first subnet.
    pub fn some(&self, first: usize, count: usize) -> Vec<NewInstance> {
        (first..first + count).map(|i| self.one(&format!("vm-{i}"))).collect()
    }

    pub async fn table(&self, vpc: &Vpc) -> RouteTable {
        self.store.route_tables(Some(vpc.id), ALL).await.unwrap().remove(0)
    }

    pub async fn route(&self, vpc: &Vpc, prefix: &str, target: RouteTarget) -> NewRoute {
        NewRoute { table: self.table(vpc).await.id, prefix: prefix.parse().unwrap(), target }
    }

    pub async fn peer(&self, name: &str, a: &Vpc, b: &Vpc) -> PeeringId {
        new(self.store.create_peering(peering(name, a, b)).await).id
    }
}

pub fn peering(name: &str, a: &Vpc, b: &Vpc) -> NewPeering {
    NewPeering { name: name.into(), a: a.id, b: b.id, meters: BTreeMap::new() }
}

/// A gateway with VTEPs of the families of its cluster's vIPs.
pub async fn gateway(s: &Store, cluster: ClusterId, last: u8) -> GatewayId {
    let vips = s.cluster(cluster).await.unwrap().addresses();
    let has = |ipv4: bool| vips.iter().any(|vip| vip.is_ipv4() == ipv4);
    let vtep4 = has(true).then(|| [198, 51, 100, last].into());
    let vtep6 = has(false).then(|| [0x2001, 0xdb8, 1, 0, 0, 0, 0, u16::from(last)].into());
    new(s.create_gateway(NewGateway { name: format!("g{last}"), cluster, vtep4, vtep6 }).await).id
}

/// The changes of the last revision.
pub async fn last(s: &Store) -> Vec<Change> {
    let rows = s.outbox(s.revision().await.unwrap() - 1, 1000).await.unwrap();
    rows.into_iter().map(|row| row.change).collect()
}

/// The instances of a snapshot.
pub async fn snapshot_instances(s: &Store, of: InstancesOf) -> Vec<Instance> {
    let (sink, mut parts) = tokio::sync::mpsc::channel(1);
    let read = async {
        let mut all = Vec::new();
        while let Some(part) = parts.recv().await {
            if let SnapshotPart::Instances(mut some) = part {
                all.append(&mut some);
            }
        }
        all
    };
    let (done, all) = tokio::join!(s.snapshot(of, sink), read);
    done.unwrap();
    all
}
