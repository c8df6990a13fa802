//! Live migrations: what both hosts have of the instance, in which order they lose it, and that digests agree meanwhile.

use super::*;
use sluice_southbound::MigrationSide;

/// Starts, cancels or finishes a migration.
pub(super) async fn execute(store: &Store, (x, y, z): (u8, u8, u8), hosts: &[Host]) -> Option<()> {
    let instances = store.instances(None, None, None, ALL).await.unwrap();
    let migrating: Vec<Instance> =
        instances.iter().filter(|instance| instance.migration.is_some()).cloned().collect();
    match z % 4 {
        0 | 1 => {
            let (id, to) = (choose(&instances, x)?.id, choose(hosts, y)?.id);
            store.start_migration(id, to, SessionMode::Copy, None).await.ok()?;
        }
        2 => drop(store.cancel_migration(choose(&migrating, x)?.id, None).await.unwrap()),
        _ => finish(store, &choose(&migrating, x)?).await,
    }
    Some(())
}

/// The target host of a migration reports that it has switched.
async fn finish(store: &Store, instance: &Instance) {
    let Migration { id, to, .. } = **instance.migration.as_ref().unwrap();
    let report = MigrationReport {
        instance: instance.id,
        migration: id,
        step: MigrationStep::Switched,
        sessions: 1,
        problem: String::new(),
    };
    let outcome = store.report_migration(to, &report).await.unwrap();
    assert!(matches!(outcome, MigrationOutcome::Finished(_)), "{outcome:?}");
}

/// A VPC with an instance on the first of three hosts.
struct Cloud {
    world: World,
    store: Arc<Store>,
    gateway: GatewayId,
    hosts: Vec<HostId>,
    vm: Instance,
    vni: Vni,
}

impl Cloud {
    async fn of(model: Model) -> Self {
        let world = World::of(model).await;
        let store = world.store.clone();
        let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
        let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
        let gateway =
            store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap().into_inner().id;
        let mut hosts = Vec::new();
        for last in [21, 22, 23] {
            let vtep = ip(&format!("192.0.2.{last}"));
            let new = NewHost { name: format!("h{last}"), vtep, agent: true };
            hosts.push(store.create_host(new).await.unwrap().into_inner().id);
        }
        let vpc = store.create_vpc(new_vpc("v", tenant, cluster)).await.unwrap().into_inner();
        let subnet = new_subnet(vpc.id, "s", "10.1.0.0/24", Some("2001:db8:1::/64"));
        let subnet = store.create_subnet(subnet).await.unwrap().into_inner().id;
        let new = new_instance("vm", subnet, hosts[0]);
        let vm = store.create_instance(vpc.id, new).await.unwrap().into_inner();
        let mut cloud = Self { world, store, gateway, hosts, vm, vni: vpc.vni };
        cloud.follow().await;
        cloud
    }

    /// Sends all changes, and compares every node with a snapshot and with the digests of what was compiled.
    async fn follow(&mut self) {
        self.world.follow().await;
        self.world.check().await;
        self.world.check_digests().await;
    }

    async fn migrate(&mut self, to: usize) -> Instance {
        let to = self.hosts[to];
        let started = self.store.start_migration(self.vm.id, to, SessionMode::None, None).await;
        self.follow().await;
        started.unwrap().into_inner()
    }

    /// The port of the instance on a host.
    fn port(&self, host: usize) -> Option<&Port> {
        self.world.host(self.hosts[host]).ports.get(&self.vm.id)
    }

    /// The VTEP to which the gateway sends the packets to the instance.
    fn located(&self) -> IpAddr {
        let key = (self.vni, IpAddr::from(self.vm.ipv4.unwrap()));
        self.world.gateway(self.gateway).endpoints[&key].1
    }
}

/// Catches a target host without what the port needs, a port that is open on both hosts, and a gateway that has the new
/// location before the switch or the old one after it.
#[tokio::test]
async fn both_hosts_have_the_port_until_the_switch() {
    let mut cloud = Cloud::of(Model::Zeta).await;
    let moving = cloud.migrate(1).await;
    let migration = *moving.migration.unwrap();
    let (source, target) = (cloud.port(0).unwrap(), cloud.port(1).unwrap());
    let sides = [source, target].map(|port| port.migration.unwrap());
    assert_eq!(sides[0].side, MigrationSide::Outgoing { to: ip("192.0.2.22") });
    assert_eq!(sides[1].side, MigrationSide::Incoming { from: ip("192.0.2.21") });
    for side in sides {
        assert_eq!((side.id, side.key, side.sessions), (migration.id, migration.key, SessionMode::None));
    }
    assert_eq!(Port { migration: None, ..source.clone() }, Port { migration: None, ..target.clone() });
    let tables = cloud.world.host(cloud.hosts[1]);
    assert!(tables.vrfs.contains_key(&cloud.vni) && tables.policies.len() == 1 && tables.keys.len() == 1);
    assert_eq!(cloud.located(), ip("192.0.2.21"));
    // What is changed meanwhile reaches both hosts.
    cloud.store.set_security_groups(cloud.vm.id, &[], None).await.unwrap();
    cloud.follow().await;
    let settings = PortSettings { spoofing_protection: Some(false), ..PortSettings::default() };
    cloud.store.update_instance(cloud.vm.id, &settings, None).await.unwrap();
    cloud.follow().await;
    for host in [0, 1] {
        let port = cloud.port(host).unwrap();
        assert!(port.identity == 0 && port.options.unprotected && port.migration.is_some(), "{port:?}");
    }
    let now = cloud.store.instance(cloud.vm.id).await.unwrap();
    finish(&cloud.store, &now).await;
    cloud.follow().await;
    assert_eq!((cloud.port(0), cloud.port(1).unwrap().migration), (None, None));
    assert!(cloud.world.host(cloud.hosts[0]).vrfs.is_empty());
    assert_eq!(cloud.located(), ip("192.0.2.22"));
    // The last port of the target host is counted once.
    cloud.store.delete_instance(cloud.vm.id, None).await.unwrap();
    cloud.follow().await;
    assert!(cloud.world.host(cloud.hosts[1]).vrfs.is_empty());
}

/// Catches a rollback that leaves anything on the target, or the source with a port that is closed.
#[tokio::test]
async fn a_canceled_migration_leaves_nothing_on_the_target() {
    for model in [Model::Zeta, Model::Preprogrammed] {
        let mut cloud = Cloud::of(model).await;
        let before = cloud.hosts.iter().map(|host| cloud.world.host(*host).clone()).collect::<Vec<_>>();
        for end in 0..3 {
            cloud.migrate(1).await;
            assert!(cloud.port(1).is_some());
            match end {
                0 => drop(cloud.store.cancel_migration(cloud.vm.id, None).await.unwrap()),
                // A move elsewhere, and back.
                1 => {
                    cloud.store.move_instance(cloud.vm.id, cloud.hosts[2], None).await.unwrap();
                    cloud.follow().await;
                    assert!(cloud.port(0).is_none() && cloud.port(1).is_none() && cloud.port(2).is_some());
                    assert_eq!(cloud.located(), ip("192.0.2.23"));
                    cloud.store.move_instance(cloud.vm.id, cloud.hosts[0], None).await.unwrap();
                }
                _ => drop(cloud.store.delete_instance(cloud.vm.id, None).await.unwrap()),
            }
            cloud.follow().await;
            let now = cloud.hosts.iter().map(|host| cloud.world.host(*host).clone()).collect::<Vec<_>>();
            if end < 2 {
                assert_eq!(now, before, "{model:?} {end}");
            } else {
                assert!(now.iter().all(|tables| tables.ports.is_empty() && tables.vrfs.is_empty()));
            }
        }
    }
}
