//! Network classes on hosts: the policy of each instance's class is in its port, and that of the default class is sent once to each host.

use super::operations::NETWORK_CLASSES;
use super::*;

fn policy(number: u8) -> CreditPolicy {
    let base = 1 + u32::from(number);
    let allowance = Some(Allowance { base, max: 2 * base, clamp: base, credit: u64::from(base) });
    let (mbps, kpps) = if number.is_multiple_of(2) { (allowance, None) } else { (None, allowance) };
    CreditPolicy { mbps, kpps, cpu_permille: None }
}

/// A host's ports have the policies of the classes that their instances have, and no others.
pub(super) async fn check_credit(store: &Store, host: HostId, tables: &NodeTables) {
    let classes = store.network_classes(None, ALL).await.unwrap();
    let default = classes.iter().find(|class| class.is_default).map(|class| class.policy);
    assert_eq!(tables.default_credit, default, "{host}");
    let classes: BTreeMap<_, _> = classes.into_iter().map(|class| (class.id, class.policy)).collect();
    let mut expected = BTreeMap::new();
    for instance in store.instances(None, Some(host), None, ALL).await.unwrap() {
        let policy = instance.options.network_class.map(|class| classes[&class.id]);
        assert!(policy.is_none() || instance.options.qos.rate_mbps.is_none(), "{} has both", instance.id);
        expected.extend(policy.map(|policy| (instance.id, policy)));
    }
    let found = tables.ports.values().filter_map(|port| Some((port.instance, port.options.qos.credit?)));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{host}");
}

/// A random operation on network classes.
pub(super) async fn execute(store: &Store, (_, x, y, z): Operation) -> Option<()> {
    let classes = store.network_classes(None, ALL).await.unwrap();
    match z % 8 {
        0 | 1 => {
            let is_default = y % 5 == 0;
            let new = NewNetworkClass { name: format!("k{}", x % 3), policy: policy(y), is_default };
            store.create_network_class(new).await.ok()?;
        }
        2 | 3 => {
            let CreditPolicy { mbps, kpps, .. } = policy(y);
            let (mbps, kpps) = (Some(mbps), Some(kpps));
            let is_default = (x % 3 == 0).then_some(y % 2 == 0);
            let update = NetworkClassUpdate { mbps, kpps, is_default, ..NetworkClassUpdate::default() };
            store.update_network_class(choose(&classes, x)?.id, update, None).await.ok()?;
        }
        4 => {
            store.delete_network_class(choose(&classes, x)?.id, None).await.ok()?;
        }
        _ => {
            let instance = choose(&store.instances(None, None, None, ALL).await.unwrap(), x)?;
            let class = choose(&classes, y).filter(|_| y % 4 != 0).map(|class| class.id);
            let settings = PortSettings { network_class: Some(class), ..PortSettings::default() };
            store.update_instance(instance.id, &settings, None).await.ok()?;
        }
    }
    Some(())
}

/// A class, and two instances that have it. Without them, few histories would have hosts with classes.
pub(super) const FIRST: [Operation; 3] =
    [(NETWORK_CLASSES, 0, 6, 0), (NETWORK_CLASSES, 0, 1, 5), (NETWORK_CLASSES, 1, 1, 5)];

/// Catches: a host that keeps the old policy, one that is sent a snapshot, and gateways that are sent entries for which
/// nothing changed.
#[tokio::test]
async fn hosts_follow_the_classes_of_their_instances() {
    let mut world = World::new().await;
    let store = world.store.clone();
    let tenant = store.create_tenant("t").await.unwrap().into_inner().id;
    let cluster = store.create_cluster("c", &[ip("192.0.2.10")], None).await.unwrap().into_inner().id;
    store.create_gateway(new_gateway("g", cluster, "192.0.2.1")).await.unwrap();
    let mut hosts = Vec::new();
    for (last, agent) in [(21, true), (22, true), (23, false)] {
        let new = NewHost { name: format!("h{last}"), vtep: ip(&format!("192.0.2.{last}")), agent };
        hosts.push(store.create_host(new).await.unwrap().into_inner().id);
    }
    let new = NewNetworkClass { name: "gold".into(), policy: policy(10), is_default: false };
    let gold = store.create_network_class(new).await.unwrap().into_inner();
    let settings = PortSettings { network_class: Some(Some(gold.id)), ..PortSettings::default() };
    let mut with_class = Vec::new();
    for (number, name) in ["a", "b"].into_iter().enumerate() {
        let vpc = store.create_vpc(new_vpc(name, tenant, cluster)).await.unwrap().into_inner().id;
        let new = new_subnet(vpc, "s", &format!("10.{number}.0.0/24"), None);
        let subnet = store.create_subnet(new).await.unwrap().into_inner().id;
        for (index, host) in hosts.iter().enumerate() {
            let new = new_instance(&format!("i{index}"), subnet, *host);
            let new = NewInstance { settings: settings.clone(), ..new };
            with_class.push(store.create_instance(vpc, new).await.unwrap().into_inner());
        }
        store.create_instance(vpc, new_instance("plain", subnet, hosts[0])).await.unwrap();
    }
    world.follow().await;
    world.check().await;
    let before = world.snapshots;
    let mbps = Some(Allowance { base: 1, max: 9, clamp: 4, credit: 8 });
    let update = NetworkClassUpdate { mbps: Some(mbps), ..NetworkClassUpdate::default() };
    store.update_network_class(gold.id, update, None).await.unwrap();
    let rows = store.outbox(world.state.revision(), 10).await.unwrap();
    let changes: Vec<Change> = rows.iter().map(|row| row.change.clone()).collect();
    let compiled = world.state.clone().apply(rows[0].revision, &changes);
    // The policies of the ports' identities are there for hosts that do not have them yet.
    let updates = compiled.updates.iter().filter(|(target, _)| !matches!(target, Target::Policy(..)));
    let sent: BTreeMap<Target, usize> =
        updates.map(|(target, update)| (*target, update.ports.len())).collect();
    let expected = BTreeMap::from([hosts[0], hosts[1]].map(|host| (Target::Host(host), 2_usize)));
    assert_eq!(sent, expected, "two ports of each host with an agent, and nothing to gateways");
    world.follow().await;
    world.check().await;
    world.check_digests().await;
    assert_eq!(world.snapshots, before);
    let port = &world.host(hosts[1]).ports[&with_class[1].id];
    assert_eq!(port.options.qos.credit, Some(CreditPolicy { mbps, ..CreditPolicy::default() }));

    // A change of the default is one entry for all hosts of a family, and none for gateways.
    let update = NetworkClassUpdate { is_default: Some(true), ..NetworkClassUpdate::default() };
    store.update_network_class(gold.id, update, None).await.unwrap();
    let rows = store.outbox(world.state.revision(), 10).await.unwrap();
    let changes: Vec<Change> = rows.iter().map(|row| row.change.clone()).collect();
    let compiled = world.state.clone().apply(rows[0].revision, &changes);
    let entries = |update: &Update| (update.entry_count(), update.default_credit.is_some());
    let sent: BTreeMap<Target, _> =
        compiled.updates.iter().map(|(target, update)| (*target, entries(update))).collect();
    let all_hosts = [Family::V4, Family::V6].map(|family| (Target::AllHosts(family), (1, true)));
    assert_eq!(sent, BTreeMap::from(all_hosts));
    world.follow().await;
    world.check().await;
    assert_eq!(world.host(hosts[1]).default_credit, Some(CreditPolicy { mbps, ..CreditPolicy::default() }));

    let none = PortSettings { network_class: Some(None), ..PortSettings::default() };
    store.update_instance(with_class[1].id, &none, None).await.unwrap();
    world.follow().await;
    world.check().await;
    assert_eq!(world.host(hosts[1]).ports[&with_class[1].id].options.qos.credit, None);
}
