//! Deleted objects: their addresses, VNIs and VTEPs stay unused until the nodes that had their entries are done.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, host, instance, new, vpc};
use sluice_store::{
    Conflict, LostInstance, NewEip, NewGateway, NewInstance, NewPublicPool, NodeId, NodeState, Options, Page,
    PortSettings, ReleaseOf, Removal, Store, open_with,
};
use sluice_types::{ClusterId, GatewayId};

/// A node that enrolled: the store has a state of it.
async fn enroll(s: &Store, node: NodeId) -> NodeId {
    let state = NodeState { node, acknowledged_revision: 0, last_seen_ms: 0, failures: vec![] };
    s.save_node_states(&[state]).await.unwrap();
    node
}

async fn gateway(s: &Store, name: &str, cluster: ClusterId, vtep: &str) -> GatewayId {
    let vtep4 = Some(vtep.parse().unwrap());
    new(s.create_gateway(NewGateway { name: name.into(), cluster, vtep4, vtep6: None }).await).id
}

fn up_to(removal: &Removal, up_to: u64) -> ReleaseOf {
    ReleaseOf { nodes: removal.nodes.clone(), up_to, deleted_before_ms: u64::MAX }
}

async fn pending(s: &Store, revision: u64) -> Removal {
    s.removal(revision).await.unwrap().expect("it is pending")
}

fn held(what: &str, owner: &str, revision: u64) -> Conflict {
    Conflict::Held { what: what.into(), owner: owner.into(), revision }
}

pub async fn addresses_are_held(f: Fixture) {
    // Room for four instances: the last address is that of the broadcast.
    let c = Cloud::with(&f, Some("10.0.0.0/29"), Some("fd00:1::/64")).await;
    let s = &c.store;
    let other_vpc = c.vpc("v2").await;
    let other = c.subnet("s1", &other_vpc, "10.0.0.0/29").await;
    enroll(s, NodeId::Host(c.host.id)).await;
    let vms = [c.instance("a").await, c.instance("b").await];
    let (address, derived) = (vms[0].ipv4.unwrap(), vms[0].ipv6.unwrap());
    assert_eq!(address.to_string(), "10.0.0.2");
    let revision = s.delete_instance(vms[0].id, None).await.unwrap();
    let removal = pending(s, revision).await;
    assert_eq!((removal.kind.as_str(), removal.name.as_str()), ("instance", "a"));
    assert_eq!((removal.object, removal.revision), (vms[0].id.get(), revision));

    // Requested, alone and in bulk, and derived from the same MAC.
    let want = |name: &str, change: &dyn Fn(&mut NewInstance)| {
        let mut one = c.one(name);
        change(&mut one);
        one
    };
    let v4 = want("c", &|one| one.ipv4 = Some(address));
    let v6 = want("c", &|one| one.ipv6 = Some(derived));
    let mac = want("c", &|one| one.mac = Some(vms[0].mac));
    let owner = "instance `a`";
    assert_eq!(conflict(s.create_instance(c.vpc.id, v4.clone()).await), held("10.0.0.2", owner, revision));
    for wanted in [v6, mac] {
        let error = conflict(s.create_instance(c.vpc.id, wanted).await);
        assert_eq!(error, held(&derived.to_string(), owner, revision));
    }
    let error = s.create_instances(c.vpc.id, vec![c.one("d"), v4.clone()]).await.unwrap_err().to_string();
    assert!(
        error.starts_with("instance 1 (`c`): 10.0.0.2 is held until") && error.contains("`a`"),
        "{error}"
    );
    // Another VPC has other addresses.
    let elsewhere = NewInstance { ipv4: Some(address), ..instance("c", &other, &c.host) };
    new(s.create_instance(other_vpc.id, elsewhere).await);

    // Allocation skips it, also when all others are in use, and finds it after the release.
    for name in ["e", "f", "g"] {
        assert_ne!(c.instance(name).await.ipv4, Some(address), "{name}");
    }
    let full = conflict(s.create_instance(c.vpc.id, c.one("h")).await);
    assert!(matches!(full, Conflict::SubnetFull { .. }), "{full}");
    assert_eq!(s.release_removals(&up_to(&removal, revision - 1)).await.unwrap(), 0);
    pending(s, revision).await;
    assert_eq!(s.release_removals(&up_to(&removal, revision)).await.unwrap(), 1);
    assert_eq!(s.removal(revision).await.unwrap(), None);
    assert_eq!(c.instance("h").await.ipv4, Some(address));
    s.delete_instance(vms[1].id, None).await.unwrap();
}

pub async fn vnis_and_vteps_are_held(f: Fixture) {
    let options = Options { vnis: 1..=3, ..Options::default() };
    let s = open_with(&f.url, options).await.unwrap();
    let c = Cloud::make(&Fixture { store: s.clone(), ..f }).await;
    let gateways = [
        gateway(&s, "g1", c.cluster.id, "192.0.2.11").await,
        gateway(&s, "g2", c.cluster.id, "192.0.2.12").await,
    ];
    enroll(&s, NodeId::Gateway(gateways[0])).await;
    let second = c.vpc("second").await;
    let vni = second.vni;
    let revision = s.delete_vpc(second.id, None).await.unwrap();
    let again = |name: &str, vni| {
        let mut new = vpc(name, &c.tenant, &c.cluster);
        new.vni = vni;
        new
    };
    let error = conflict(s.create_vpc(again("x", Some(vni))).await);
    assert_eq!(error, held(&format!("VNI {vni}"), "VPC `second`", revision));
    let third = new(s.create_vpc(again("third", None)).await);
    assert_ne!(third.vni, vni);
    let none = conflict(s.create_vpc(again("x", None)).await);
    assert!(matches!(none, Conflict::VniExhausted { .. }), "{none}");
    s.release_removals(&up_to(&pending(&s, revision).await, revision)).await.unwrap();
    assert_eq!(new(s.create_vpc(again("x", None)).await).vni, vni);

    // The gateways may accept packets from the host's address.
    let spare = new(s.create_host(host("spare", "192.0.2.50")).await).id;
    let revision = s.delete_host(spare, None).await.unwrap();
    let removal = pending(&s, revision).await;
    assert_eq!(removal.nodes, [NodeId::Gateway(gateways[0])], "the other one never enrolled");
    let error = conflict(s.create_host(host("new", "192.0.2.50")).await);
    assert_eq!(error, held("192.0.2.50", "host `spare`", revision));
    s.release_removals(&up_to(&removal, revision)).await.unwrap();
    let prefixes = vec!["192.0.2.48/29".parse().unwrap()];
    let around = NewPublicPool { name: "around".into(), cluster: c.cluster.id, prefixes, reserved: vec![] };
    let revision = s.delete_host(new(s.create_host(host("new", "192.0.2.50")).await).id, None).await.unwrap();
    let error = conflict(s.create_public_pool(around.clone()).await);
    assert_eq!(error, held("192.0.2.50", "host `new`", revision));
    s.release_removals(&up_to(&pending(&s, revision).await, revision)).await.unwrap();

    // They may send what is for a public address to the Internet.
    let pool = new(s.create_public_pool(around).await).id;
    let eip = NewEip {
        name: "e".into(),
        tenant: c.tenant.id,
        pool,
        address: Some("192.0.2.50".parse().unwrap()),
        family: None,
        prefix_length: None,
        nptv6: None,
        attach: None,
        meter: None,
    };
    let revision = s.delete_eip(new(s.create_eip(eip).await).id, None).await.unwrap();
    s.delete_public_pool(pool, None).await.unwrap();
    let error = conflict(s.create_host(host("new", "192.0.2.50")).await);
    assert_eq!(error, held("192.0.2.50", "EIP `e`", revision));
    let error = conflict(s.create_cluster("c2", &["192.0.2.50".parse().unwrap()], None).await);
    assert_eq!(error, held("192.0.2.50", "EIP `e`", revision));
    s.release_removals(&up_to(&pending(&s, revision).await, revision)).await.unwrap();
    new(s.create_host(host("new", "192.0.2.50")).await);

    // Hosts and the other gateways may take the address for that of a gateway. Deleted nodes are not awaited.
    enroll(&s, NodeId::Host(c.host.id)).await;
    let revision = s.delete_gateway(gateways[1], None).await.unwrap();
    let removal = pending(&s, revision).await;
    assert_eq!(removal.nodes, [NodeId::Gateway(gateways[0]), NodeId::Host(c.host.id)]);
    let error = conflict(s.create_host(host("third", "192.0.2.12")).await);
    assert_eq!(error, held("192.0.2.12", "gateway `g2`", revision));
}

pub async fn awaited_nodes(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    // No node enrolled, so none has entries.
    let vm = c.instance("a").await;
    let revision = s.delete_instance(vm.id, None).await.unwrap();
    assert_eq!(s.removal(revision).await.unwrap(), None);
    assert_eq!(
        new(s.create_instance(c.vpc.id, NewInstance { ipv4: vm.ipv4, ..c.one("b") }).await).ipv4,
        vm.ipv4
    );
    // The gateways of the VPC's cluster and the host; not those of another cluster, nor another host.
    let far = new(s.create_cluster("far", &["192.0.2.200".parse().unwrap()], None).await).id;
    let near = gateway(s, "near", c.cluster.id, "192.0.2.11").await;
    let remote = gateway(s, "remote", far, "192.0.2.12").await;
    let other = new(s.create_host(host("other", "192.0.2.2")).await).id;
    for node in [NodeId::Gateway(near), NodeId::Gateway(remote), NodeId::Host(other), NodeId::Host(c.host.id)]
    {
        enroll(s, node).await;
    }
    let vm = c.instance("c").await;
    let first = s.delete_instance(vm.id, None).await.unwrap();
    let removal = pending(s, first).await;
    assert_eq!(removal.nodes, [NodeId::Gateway(near), NodeId::Host(c.host.id)]);
    // While the VPC moves, the other cluster has its entries, too.
    s.move_vpc(c.vpc.id, far, None).await.unwrap();
    let vm = c.instance("d").await;
    let second = s.delete_instance(vm.id, None).await.unwrap();
    let both = pending(s, second).await;
    assert_eq!(both.nodes, [NodeId::Gateway(near), NodeId::Gateway(remote), NodeId::Host(c.host.id)]);
    let sets: Vec<_> =
        s.awaited_nodes().await.unwrap().into_iter().map(|set| (set.nodes, set.removals)).collect();
    assert_eq!(sets.len(), 2);
    assert!(
        sets.contains(&(removal.nodes.clone(), 1)) && sets.contains(&(both.nodes.clone(), 1)),
        "{sets:?}"
    );
    // Tenants have no entries.
    let tenant = new(s.create_tenant("other").await).id;
    let revision = s.delete_tenant(tenant, None).await.unwrap();
    assert_eq!((s.removal(revision).await.unwrap(), revision), (None, s.revision().await.unwrap()));
    // A deletion is not released before its time.
    let early = ReleaseOf { deleted_before_ms: removal.deleted_ms - 1, ..up_to(&removal, first) };
    assert_eq!(s.release_removals(&early).await.unwrap(), 0);
    let pages =
        [s.removals(Page { after: 0, limit: 1 }).await, s.removals(Page { after: first, limit: 9 }).await];
    assert_eq!(pages.map(Result::unwrap), [vec![removal], vec![both]]);
    // The gateways of both clusters accept packets of one that moves between them.
    let moving = gateway(s, "moving", c.cluster.id, "192.0.2.13").await;
    s.move_gateway(moving, far, "a test", None).await.unwrap();
    let revision = s.delete_gateway(moving, None).await.unwrap();
    let hosts = [c.host.id, other].map(NodeId::Host);
    let mut awaited = vec![NodeId::Gateway(near), NodeId::Gateway(remote)];
    awaited.extend(hosts);
    assert_eq!(pending(s, revision).await.nodes, awaited);
}

pub async fn release_in_parts(f: Fixture) {
    let c = Cloud::with(&f, Some("10.0.0.0/16"), None).await;
    let s = &c.store;
    enroll(s, NodeId::Host(c.host.id)).await;
    let made = s.create_instances(c.vpc.id, c.some(0, 1003)).await.unwrap().0;
    let mut last = 0;
    for vm in &made {
        last = s.delete_instance(vm.id, None).await.unwrap();
    }
    let of = up_to(&pending(s, last).await, u64::MAX);
    assert_eq!(s.release_removals(&of).await.unwrap(), 1000);
    assert_eq!(s.removals(ALL).await.unwrap().len(), 3);
    assert_eq!(s.release_removals(&of).await.unwrap(), 3);
    assert_eq!(s.release_removals(&of).await.unwrap(), 0);
    assert!(s.awaited_nodes().await.unwrap().is_empty());
}

pub async fn adoption_takes_held_addresses(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    enroll(s, NodeId::Host(c.host.id)).await;
    let vm = c.instance("a").await;
    s.delete_instance(vm.id, None).await.unwrap();
    let lost = LostInstance {
        id: vm.id,
        name: "a".into(),
        vni: c.vpc.vni,
        host: c.host.id,
        mac: vm.mac,
        ipv4: vm.ipv4,
        ipv6: vm.ipv6,
        security_groups: None,
        settings: PortSettings::default(),
    };
    let back = s.adopt_instance(lost).await.unwrap();
    assert_eq!((back.id, back.ipv4, back.ipv6), (vm.id, vm.ipv4, vm.ipv6));
    // It is held again after its next deletion.
    let revision = s.delete_instance(vm.id, None).await.unwrap();
    let again = NewInstance { ipv4: vm.ipv4, ..c.one("b") };
    let error = conflict(s.create_instance(c.vpc.id, again).await);
    assert_eq!(error, held(&vm.ipv4.unwrap().to_string(), "instance `a`", revision));
}

pub async fn host_that_an_instance_left_is_awaited(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let (left, there) = (c.host.id, new(s.create_host(host("h2", "192.0.2.2")).await).id);
    enroll(s, NodeId::Host(left)).await;
    enroll(s, NodeId::Host(there)).await;
    let (stale, done) = (c.instance("stale").await, c.instance("done").await);
    let moved = s.move_instance(stale.id, there, None).await.unwrap().revision;
    let port = pending(s, moved).await;
    assert_eq!((port.kind.as_str(), port.nodes.as_slice()), ("port of instance", &[NodeId::Host(left)][..]));
    let revision = s.delete_instance(stale.id, None).await.unwrap();
    assert_eq!(pending(s, revision).await.nodes, [NodeId::Host(left), NodeId::Host(there)]);
    // After the host that it left has acknowledged the move, it is not awaited.
    let moved = s.move_instance(done.id, there, None).await.unwrap().revision;
    s.release_removals(&up_to(&port, moved)).await.unwrap();
    let revision = s.delete_instance(done.id, None).await.unwrap();
    assert_eq!(pending(s, revision).await.nodes, [NodeId::Host(there)]);
}
