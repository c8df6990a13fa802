//! Services: what gateways and hosts have of them, which hosts may send to vNICs, and which hosts gateways watch.

use super::operations::SERVICES;
use super::*;
use crate::compile::{Gate, NodeGroup};
use sluice_southbound::Service as ServiceEntry;

/// What a node has of services.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tables {
    pub services: BTreeMap<u32, ServiceEntry>,
    pub addresses: BTreeMap<(Vni, IpAddr), u32>,
    pub watched: BTreeSet<IpAddr>,
}

impl Tables {
    pub fn apply(&mut self, update: &Update) {
        let services = update.services.iter().map(|service| (service.id, service.clone()));
        self.services.extend(services);
        for address in &update.service_addresses {
            assert!(self.services.contains_key(&address.service), "{address:?} comes before its service");
            for ip in keys(address.ipv4, address.ipv6) {
                self.addresses.insert((address.vni, ip), address.service);
            }
        }
        for gone in &update.removed_service_addresses {
            for ip in keys(gone.ipv4, gone.ipv6) {
                self.addresses.remove(&(gone.vni, ip));
            }
        }
        self.services.retain(|id, _| !update.removed_services.contains(id));
        if let Some(watched) = &update.watched_hosts {
            self.watched = watched.iter().copied().collect();
        }
    }

    /// The hashes that digests count.
    pub fn hashes(&self) -> impl Iterator<Item = EntryHash> + '_ {
        let services = self.services.values().map(|service| service.entry_hash().1);
        let addresses = self.addresses.iter();
        services.chain(addresses.map(|((vni, ip), id)| EntryHash::service_address(*vni, *ip, *id)))
    }
}

/// A random operation on services, their members and their mounts.
pub(super) async fn execute(store: &Store, (_, x, y, z): Operation, vpcs: &[Vpc]) -> Option<()> {
    let services = store.services(None, None, ALL).await.unwrap();
    let mounts = store.mounts(&MountFilter::default(), ALL).await.unwrap();
    if z % 8 == 0 {
        let (name, vpc) = (format!("s{}", y % 2), choose(vpcs, x)?.id);
        store.create_service(NewService { name, vpc, any_tenant: None, tenants: None }).await.ok()?;
        return Some(());
    }
    let service = choose(&services, x)?;
    let members = store.members(service.id).await.unwrap();
    match z % 8 {
        1 | 2 => {
            let instances = store.instances(Some(service.vpc), None, None, ALL).await.unwrap();
            store.add_member(service.id, choose(&instances, y)?.id).await.ok()?;
        }
        3 | 4 => {
            let subnet = choose(&store.subnets(None, None, ALL).await.unwrap(), y)?;
            let groups = super::security::some_groups(store, subnet.vpc, x).await;
            let new = NewMount {
                name: format!("m{}", x % 3),
                vpc: subnet.vpc,
                subnet: subnet.id,
                service: service.id,
                ipv4: None,
                ipv6: None,
                security_groups: (x % 2 == 0).then_some(groups),
            };
            store.create_mount(new).await.ok()?;
        }
        5 if x % 2 == 0 => {
            store.remove_member(service.id, choose(&members, y)?.instance).await.ok()?;
        }
        5 => drop(store.delete_mount(choose(&mounts, y)?.id, None).await.ok()?),
        6 => {
            let status = choose(
                &[MemberStatus::Up, MemberStatus::Up, MemberStatus::VmSilent, MemberStatus::HostUnreachable],
                x,
            )?;
            let report = MemberReport { member: choose(&members, y)?.id, status, evidence: String::new() };
            store.set_member_states(&[report]).await.unwrap();
        }
        _ => {
            let member = choose(&members, y)?;
            store.drain_member(service.id, member.instance, !member.draining).await.unwrap();
        }
    }
    Some(())
}

/// A service with a member and a mount. Without them, few histories would have vNICs.
pub(super) const FIRST: [Operation; 4] =
    [(SERVICES, 0, 0, 0), (SERVICES, 0, 0, 1), (SERVICES, 0, 0, 3), (SERVICES, 0, 0, 6)];

/// Two VPCs on a cluster with three hosts; the first VPC has a service with members on the first two hosts.
struct Cloud {
    world: World,
    store: Arc<Store>,
    gateway: GatewayId,
    hosts: Vec<HostId>,
    service: Service,
    members: Vec<StoredMember>,
    red: Vpc,
    web: Subnet,
}

async fn cloud() -> Cloud {
    let world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    let gateway = store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
    let mut hosts = Vec::new();
    for last in [21, 22, 23] {
        let vtep = ip(&format!("192.0.2.{last}"));
        let new = NewHost { name: format!("h{last}"), vtep, agent: true };
        hosts.push(store.create_host(new).await.unwrap().into_inner().id);
    }
    let own = store.create_vpc(new_vpc("svc", tenant, cluster)).await.unwrap().into_inner();
    let subnet =
        store.create_subnet(new_subnet(own.id, "s", "10.1.0.0/24", None)).await.unwrap().into_inner();
    let red = store.create_vpc(new_vpc("red", tenant, cluster)).await.unwrap().into_inner();
    let web = new_subnet(red.id, "web", "10.2.0.0/24", Some("2001:db8:2::/64"));
    let web = store.create_subnet(web).await.unwrap().into_inner();
    let new = NewService { name: "fw".into(), vpc: own.id, any_tenant: None, tenants: None };
    let service = store.create_service(new).await.unwrap().into_inner();
    let mut members = Vec::new();
    for (number, host) in hosts.iter().take(2).enumerate() {
        let vm = new_instance(&format!("fw-{number}"), subnet.id, *host);
        let vm = store.create_instance(own.id, vm).await.unwrap().into_inner();
        members.push(store.add_member(service.id, vm.id).await.unwrap().into_inner());
    }
    let mut cloud = Cloud { world, store, gateway, hosts, service, members, red, web };
    cloud.follow().await;
    cloud
}

impl Cloud {
    async fn follow(&mut self) {
        self.world.follow().await;
        self.world.check().await;
        self.world.check_digests().await;
    }

    async fn mount(&mut self) -> Mount {
        let new = NewMount {
            name: "m".into(),
            vpc: self.red.id,
            subnet: self.web.id,
            service: self.service.id,
            ipv4: None,
            ipv6: None,
            security_groups: None,
        };
        let mount = self.store.create_mount(new).await.unwrap().into_inner();
        self.follow().await;
        mount
    }

    async fn report(&mut self, member: usize, status: MemberStatus) {
        let report = MemberReport { member: self.members[member].id, status, evidence: String::new() };
        self.store.set_member_states(&[report]).await.unwrap();
        self.follow().await;
    }

    /// The numbers of the members that a host or the gateway (`None`) has, and whether they get new flows.
    fn chosen(&self, host: Option<usize>) -> Option<Vec<(u8, bool)>> {
        let tables = match host {
            Some(at) => self.world.host(self.hosts[at]),
            None => self.world.gateway(self.gateway),
        };
        let service = tables.services.services.get(&(self.service.id.get() as u32))?;
        Some(service.members.iter().map(|member| (member.number, member.selected)).collect())
    }
}

/// Catches a host that keeps entries of a VPC that it has no port of any more, one that lacks them, and a change that is sent
/// to hosts that have no use for it.
#[tokio::test]
async fn hosts_have_the_services_of_their_networks() {
    let mut cloud = cloud().await;
    let mount = cloud.mount().await;
    let tables = |cloud: &Cloud, host: usize| cloud.world.host(cloud.hosts[host]).services.clone();
    let addresses: BTreeMap<_, _> =
        mount.addresses().map(|address| ((cloud.red.vni, address), cloud.service.id.get() as u32)).collect();
    assert_eq!(cloud.world.gateway(cloud.gateway).services.addresses, addresses);
    let watched = [ip("192.0.2.21"), ip("192.0.2.22")].into();
    assert_eq!(cloud.world.gateway(cloud.gateway).services.watched, watched);
    for host in [0, 1] {
        assert_eq!(tables(&cloud, host).addresses, addresses, "it has a vNIC");
    }
    assert_eq!(tables(&cloud, 2), Tables::default());
    let ports = &cloud.world.host(cloud.hosts[0]).ports;
    let bonded: Vec<_> = ports.values().filter(|port| port.options.bonded).collect();
    let [port] = bonded[..] else { panic!("{bonded:?}") };
    assert_eq!((port.name.as_str(), port.mac), ("red/m@svc/fw-0", cloud.members[0].mac));
    assert_eq!((port.ipv4.map(|net| net.addr()), port.vni), (mount.ipv4, cloud.red.vni));
    let probed = ports.values().find(|port| !port.options.bonded).unwrap();
    assert_eq!(probed.options.member.unwrap().epoch, cloud.members[0].id.get());

    // With its first instance of the VPC, the third host gets the service.
    let vm = new_instance("vm", cloud.web.id, cloud.hosts[2]);
    let vm = cloud.store.create_instance(cloud.red.id, vm).await.unwrap().into_inner();
    cloud.follow().await;
    assert_eq!(tables(&cloud, 2).addresses, addresses);
    cloud.store.delete_instance(vm.id, None).await.unwrap();
    cloud.follow().await;
    assert_eq!(tables(&cloud, 2), Tables::default());

    cloud.store.delete_mount(mount.id, None).await.unwrap();
    cloud.follow().await;
    assert!((0..3).all(|host| tables(&cloud, host) == Tables::default()));
    assert_eq!(cloud.world.gateway(cloud.gateway).services, Tables::default());
    assert!(cloud.world.host(cloud.hosts[0]).ports.values().all(|port| !port.options.bonded));
}

/// Catches nodes that choose different members, and flows to a member that is not up.
#[tokio::test]
async fn states_of_members_reach_all_nodes() {
    let mut cloud = cloud().await;
    cloud.mount().await;
    let everywhere = |cloud: &Cloud, expected: &[(u8, bool)]| {
        for node in [None, Some(0), Some(1)] {
            assert_eq!(cloud.chosen(node).as_deref(), Some(expected), "{node:?}");
        }
    };
    everywhere(&cloud, &[]);
    cloud.report(0, MemberStatus::Up).await;
    everywhere(&cloud, &[(1, true)]);
    cloud.report(1, MemberStatus::Up).await;
    everywhere(&cloud, &[(1, true), (2, true)]);
    let first = cloud.members[0].clone();
    cloud.store.drain_member(first.service, first.instance, true).await.unwrap();
    cloud.follow().await;
    everywhere(&cloud, &[(1, false), (2, true)]);
    cloud.report(1, MemberStatus::VmSilent).await;
    everywhere(&cloud, &[(1, true)]);
    cloud.report(0, MemberStatus::HostUnreachable).await;
    everywhere(&cloud, &[(1, false), (2, true)]);
    cloud.store.remove_member(first.service, first.instance).await.unwrap();
    cloud.follow().await;
    assert_eq!(cloud.chosen(None), Some(vec![(2, true)]));
    assert_eq!(cloud.chosen(Some(0)), None, "it has no port of the VPC any more");
    assert_eq!(cloud.world.gateway(cloud.gateway).services.watched, [ip("192.0.2.22")].into());
}

/// Catches a host that is down and delays the mounts of all tenants, and a mount that gateways have before the hosts of its
/// members.
#[tokio::test]
async fn gateways_wait_with_a_mount_for_the_hosts_of_members_that_are_up() {
    let mut cloud = cloud().await;
    cloud.report(0, MemberStatus::Up).await;
    cloud.report(1, MemberStatus::Up).await;
    cloud.report(1, MemberStatus::HostUnreachable).await;
    let mut state = cloud.world.state.clone();
    cloud.mount().await;
    let revision = cloud.store.revision().await.unwrap();
    let rows = cloud.store.outbox(revision - 1, 10).await.unwrap();
    let changes: Vec<Change> = rows.into_iter().map(|row| row.change).collect();
    let gates = state.apply(revision, &changes).gates;
    let (held, awaited) = (NodeGroup::Gateways(cloud.red.cluster), NodeGroup::Host(cloud.hosts[0]));
    assert_eq!(gates, [Gate { held, awaited }]);
}

/// Catches a cluster that lacks the services of a VPC that moves to it, and one that keeps them.
#[tokio::test]
async fn services_move_with_the_network_that_has_the_mount() {
    let mut cloud = cloud().await;
    cloud.mount().await;
    let other = cloud.store.create_cluster("d", &[ip("192.0.2.11")], None).await.unwrap().into_inner().id;
    let gateway = cloud.store.create_gateway(new_gateway("h", other, "192.0.2.2")).await.unwrap();
    let gateway = gateway.into_inner().id;
    cloud.follow().await;
    assert_eq!(cloud.world.gateway(gateway).services, Tables::default());
    cloud.store.move_vpc(cloud.red.id, other, None).await.unwrap();
    cloud.follow().await;
    let both = [cloud.gateway, gateway].map(|id| cloud.world.gateway(id).services.clone());
    assert!(both[0] == both[1] && both[0].watched.len() == 2 && both[0].addresses.len() == 2, "{both:?}");
}
