//! Network classes: their policies, and the instances that have them.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, last, new, snapshot_instances};
use sluice_store::{
    Change, ClassOfInstance, Conflict, Created, Instance, InstanceChange, InstanceOptions, InstancesOf,
    NetworkClass, NetworkClassUpdate, NewInstance, NewNetworkClass, PortSettings, Store, StoreError,
};
use sluice_types::{Allowance, CreditPolicy, InstanceId, NetworkClassId, Qos};

const GOLD: Allowance = Allowance { base: 100, max: 400, clamp: 200, credit: 3000 };

fn policy() -> CreditPolicy {
    CreditPolicy { mbps: Some(GOLD), kpps: None, cpu_permille: Some(Allowance { max: 64_000, ..GOLD }) }
}

fn new_class(name: &str) -> NewNetworkClass {
    NewNetworkClass { name: name.into(), policy: policy(), is_default: false }
}

async fn class(s: &Store, name: &str) -> NetworkClass {
    new(s.create_network_class(new_class(name)).await)
}

fn of_instance(class: &NetworkClass) -> Option<Box<ClassOfInstance>> {
    Some(Box::new(ClassOfInstance { id: class.id, policy: class.policy }))
}

fn with(class: Option<NetworkClassId>) -> PortSettings {
    PortSettings { network_class: Some(class), ..PortSettings::default() }
}

async fn set(s: &Store, vm: InstanceId, class: Option<NetworkClassId>) -> Instance {
    s.update_instance(vm, &with(class), None).await.unwrap()
}

pub async fn lifecycle(f: Fixture) {
    let s = f.store.as_ref();
    let made = class(s, "gold").await;
    let expected = NetworkClass { name: "gold".into(), policy: policy(), ..made.clone() };
    assert_eq!(made, expected);
    assert_eq!(last(s).await, [Change::NetworkClassUpserted(made.clone())]);
    assert_eq!(s.network_class(made.id).await.unwrap(), made);
    assert_eq!(s.create_network_class(new_class("gold")).await.unwrap(), Created::Existing(made.clone()));
    let differs = NewNetworkClass { policy: CreditPolicy { mbps: None, ..policy() }, ..new_class("gold") };
    let text = conflict(s.create_network_class(differs).await).to_string();
    assert!(text.ends_with("mbps is base=100,max=400,clamp=200,credit=3000, not none"), "{text}");

    let rename = NetworkClassUpdate { name: Some("silver".into()), ..NetworkClassUpdate::default() };
    let renamed = s.update_network_class(made.id, rename.clone(), Some(made.revision)).await.unwrap();
    assert_eq!((renamed.name.as_str(), renamed.policy), ("silver", made.policy));
    assert_eq!(last(s).await, [Change::NetworkClassUpserted(renamed.clone())]);
    assert_eq!(s.update_network_class(made.id, rename.clone(), None).await.unwrap(), renamed);
    let stale = s.update_network_class(made.id, rename.clone(), Some(made.revision)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    let kpps = Some(Allowance { base: 1, ..GOLD });
    let update = NetworkClassUpdate { mbps: Some(None), kpps: Some(kpps), ..NetworkClassUpdate::default() };
    let changed = s.update_network_class(made.id, update, None).await.unwrap();
    assert_eq!(changed.policy, CreditPolicy { mbps: None, kpps, ..policy() });
    assert_eq!(s.network_class(made.id).await.unwrap(), changed);

    let second = class(s, "gold").await;
    let taken = conflict(s.update_network_class(second.id, rename, None).await);
    assert!(matches!(taken, Conflict::NameTaken { name, .. } if name == "silver"));
    assert_eq!(s.network_classes(None, ALL).await.unwrap(), [changed.clone(), second.clone()]);
    assert_eq!(s.network_classes(Some("gold"), ALL).await.unwrap(), std::slice::from_ref(&second));
    assert!(matches!(s.delete_network_class(second.id, Some(1)).await, Err(StoreError::Stale { .. })));
    s.delete_network_class(second.id, None).await.unwrap();
    assert_eq!(last(s).await, [Change::NetworkClassRemoved(second.clone())]);
    let gone = s.network_class(second.id).await;
    assert!(matches!(gone, Err(StoreError::NotFound { kind: "network class", .. })));
}

/// Catches: policies that hosts cannot have, and an error that names another field.
pub async fn refused_policies(f: Fixture) {
    let s = f.store.as_ref();
    let gold = class(s, "gold").await;
    let at = |mbps| CreditPolicy { mbps: Some(mbps), ..CreditPolicy::default() };
    for (policy, field) in [
        (CreditPolicy::default(), "mbps"),
        (at(Allowance { max: 400_001, ..GOLD }), "mbps.max"),
        (at(Allowance { base: 0, ..GOLD }), "mbps.base"),
        (at(Allowance { clamp: 99, ..GOLD }), "mbps.clamp"),
        (at(Allowance { credit: 300 * 86_400 + 1, ..GOLD }), "mbps.credit"),
        (CreditPolicy { kpps: Some(Allowance { base: 500, ..GOLD }), ..policy() }, "kpps.base"),
    ] {
        let CreditPolicy { mbps, kpps, cpu_permille } = policy;
        let update = NetworkClassUpdate {
            name: None,
            mbps: Some(mbps),
            kpps: Some(kpps),
            cpu_permille: Some(cpu_permille),
            is_default: None,
        };
        let new = NewNetworkClass { name: "new".into(), policy, is_default: false };
        for refused in [
            conflict(s.create_network_class(new).await),
            conflict(s.update_network_class(gold.id, update, None).await),
        ] {
            assert!(
                matches!(&refused, Conflict::Invalid { offender, .. } if offender == field),
                "{refused:?}"
            );
        }
    }
    assert_eq!(s.network_classes(None, ALL).await.unwrap(), [gold]);
}

pub async fn instances_have_classes(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (gold, silver) = (class(s, "gold").await, class(s, "silver").await);
    let request = |settings| NewInstance { settings, ..c.one("vm") };
    let vm = new(s.create_instance(c.vpc.id, request(with(Some(gold.id)))).await);
    assert_eq!(vm.options.network_class, of_instance(&gold));
    assert_eq!(s.instance(vm.id).await.unwrap(), vm);
    assert_eq!(snapshot_instances(s, InstancesOf::All).await, std::slice::from_ref(&vm));
    let [Change::InstancesCreated { instances, .. }] = &last(s).await[..] else { panic!("not created") };
    assert_eq!(instances[..], *std::slice::from_ref(&vm));
    for same in [with(Some(gold.id)), PortSettings::default()] {
        assert_eq!(s.create_instance(c.vpc.id, request(same)).await.unwrap(), Created::Existing(vm.clone()));
    }
    for (other, text) in [(Some(silver.id), silver.id.to_string()), (None, "none".to_owned())] {
        let differs = conflict(s.create_instance(c.vpc.id, request(with(other))).await).to_string();
        assert!(differs.ends_with(&format!("network_class is {}, not {text}", gold.id)), "{differs}");
    }

    let changed = set(s, vm.id, Some(silver.id)).await;
    assert_eq!(changed.options.network_class, of_instance(&silver));
    let change = InstanceChange { before: vm.options.clone(), after: changed.clone() };
    let hosts = vec![c.host.clone()];
    assert_eq!(
        last(s).await,
        [Change::InstancesChanged { vpc: c.vpc.clone(), hosts, changes: vec![change] }]
    );
    assert_eq!(set(s, vm.id, Some(silver.id)).await, changed, "an unchanged instance takes no revision");
    // Other settings keep it.
    let open = PortSettings { spoofing_protection: Some(false), ..PortSettings::default() };
    let open = s.update_instance(vm.id, &open, None).await.unwrap();
    assert_eq!(open.options.network_class, of_instance(&silver));
    let removed = set(s, vm.id, None).await;
    assert_eq!(removed.options, InstanceOptions { network_class: None, ..open.options });
    assert_eq!(s.instance(vm.id).await.unwrap(), removed);

    let unknown = NetworkClassId::new(9999);
    for result in [
        s.update_instance(vm.id, &with(Some(unknown)), None).await.map(drop),
        s.create_instance(c.vpc.id, request(with(Some(unknown)))).await.map(drop),
    ] {
        assert!(matches!(result, Err(StoreError::NotFound { kind: "network class", .. })), "{result:?}");
    }
    let many = vec![c.one("a"), NewInstance { settings: with(Some(unknown)), ..c.one("b") }];
    let error = s.create_instances(c.vpc.id, many).await;
    assert!(matches!(error, Err(StoreError::InBulk { index: 1, .. })), "{error:?}");
}

/// Catches an instance with two limits, whichever comes last.
pub async fn rates_and_classes_exclude_each_other(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let gold = class(s, "gold").await;
    let rate =
        |rate| PortSettings { qos: Some(Qos { dscp: Some(46), rate_mbps: rate }), ..PortSettings::default() };
    let both = PortSettings { network_class: Some(Some(gold.id)), ..rate(Some(100)) };
    let expected = format!("qos.rate_mbps is 100, and network_class is {}", gold.id);
    let refused = async |vm: InstanceId, settings: &PortSettings| {
        let text = conflict(s.update_instance(vm, settings, None).await).to_string();
        assert!(text.ends_with(&expected), "{text}");
    };
    let new_vm = NewInstance { settings: both.clone(), ..c.one("both") };
    let text = conflict(s.create_instance(c.vpc.id, new_vm).await).to_string();
    assert!(text.ends_with(&expected), "{text}");
    let vm = c.instance("vm").await.id;
    refused(vm, &both).await;
    set(s, vm, Some(gold.id)).await;
    refused(vm, &rate(Some(100))).await;
    // A DSCP is no limit.
    s.update_instance(vm, &rate(None), None).await.unwrap();
    let rated = PortSettings { network_class: Some(None), ..rate(Some(100)) };
    s.update_instance(vm, &rated, None).await.unwrap();
    refused(vm, &with(Some(gold.id))).await;
    let back = PortSettings { network_class: Some(Some(gold.id)), ..rate(None) };
    assert_eq!(s.update_instance(vm, &back, None).await.unwrap().options.network_class, of_instance(&gold));
}

/// Catches: instances of another class in the change, those that are missing, and old policies.
pub async fn a_changed_class_sends_its_instances(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (gold, silver) = (class(s, "gold").await, class(s, "silver").await);
    let other = c.vpc("other").await;
    let subnet = c.subnet("s", &other, "10.1.0.0/24").await;
    let mut of_gold = Vec::new();
    for (vpc, subnet) in [(&c.vpc, &c.subnet), (&other, &subnet)] {
        let many = (0..3).map(|number| NewInstance {
            settings: with(Some(if number == 1 { silver.id } else { gold.id })),
            ..crate::cloud::instance(&format!("vm-{number}"), subnet, &c.host)
        });
        let (mut made, _) = s.create_instances(vpc.id, many.collect()).await.unwrap();
        made.remove(1);
        of_gold.push((vpc.clone(), made));
    }
    let none = NetworkClassUpdate { mbps: Some(None), ..NetworkClassUpdate::default() };
    let changed = s.update_network_class(gold.id, none, None).await.unwrap();
    let mut expected = vec![Change::NetworkClassUpserted(changed.clone())];
    for (vpc, mut instances) in of_gold {
        for instance in &mut instances {
            instance.options.network_class = of_instance(&changed);
            assert_eq!(s.instance(instance.id).await.unwrap(), *instance);
        }
        expected.push(Change::CreditChanged { vpc, instances });
    }
    assert_eq!(last(s).await, expected);

    // An instance that moves, or gets other groups, has the policy of now.
    let vm = s.instances(Some(c.vpc.id), None, Some("vm-0"), ALL).await.unwrap().remove(0);
    let to = new(s.create_host(crate::cloud::host("h2", "192.0.2.2")).await);
    let moved = s.move_instance(vm.id, to.id, None).await.unwrap();
    assert_eq!(moved.options.network_class, of_instance(&changed));
    assert_eq!(moved.revision, s.revision().await.unwrap());
}

/// Catches: two classes that are the default at once, and a change of which hosts hear too little.
pub async fn at_most_one_class_is_the_default(f: Fixture) {
    let s = f.store.as_ref();
    let default = async || {
        let all = s.network_classes(None, ALL).await.unwrap();
        all.into_iter().filter(|class| class.is_default).map(|class| class.name).collect::<Vec<_>>()
    };
    let gold = class(s, "gold").await;
    assert_eq!((gold.is_default, default().await), (false, vec![]));
    let as_default = |is_default| NetworkClassUpdate { is_default: Some(is_default), ..Default::default() };
    let gold = s.update_network_class(gold.id, as_default(true), None).await.unwrap();
    assert_eq!(last(s).await, [Change::NetworkClassUpserted(gold.clone())]);
    assert!(gold.is_default);
    assert_eq!(
        s.update_network_class(gold.id, as_default(true), None).await.unwrap(),
        gold,
        "nothing changes"
    );
    // Another one takes its place, in the same revision.
    let request = |name| NewNetworkClass { is_default: true, ..new_class(name) };
    let silver = new(s.create_network_class(request("silver")).await);
    let old = NetworkClass { is_default: false, revision: silver.revision, ..gold.clone() };
    let changes = [Change::NetworkClassUpserted(old.clone()), Change::NetworkClassUpserted(silver.clone())];
    assert_eq!(last(s).await, changes);
    assert_eq!((s.network_class(gold.id).await.unwrap(), default().await), (old, vec!["silver".to_owned()]));
    let text = conflict(s.create_network_class(new_class("silver")).await).to_string();
    assert!(text.ends_with("is_default is true, not false"), "{text}");
    let again = s.update_network_class(gold.id, as_default(true), None).await.unwrap();
    assert_eq!(default().await, ["gold"]);
    let policy = NetworkClassUpdate { mbps: Some(None), ..Default::default() };
    let changed = s.update_network_class(gold.id, policy, Some(again.revision)).await.unwrap();
    assert!(changed.is_default, "it stays the default");
    assert!(!s.update_network_class(gold.id, as_default(false), None).await.unwrap().is_default);
    assert!(default().await.is_empty());
    s.update_network_class(silver.id, as_default(true), None).await.unwrap();
    s.delete_network_class(silver.id, None).await.unwrap();
    assert!(default().await.is_empty());
}

pub async fn used_classes_are_not_deleted(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let gold = class(s, "gold").await;
    let (a, b) = (c.instance("a").await.id, c.instance("b").await.id);
    set(s, a, Some(gold.id)).await;
    let refused = async || conflict(s.delete_network_class(gold.id, None).await).to_string();
    assert_eq!(refused().await, format!("network class `gold` is still used by instance `a` ({a})"));
    set(s, b, Some(gold.id)).await;
    let expected =
        format!("network class `gold` is still used by 2 instances, one of which is instance `a` ({a})");
    assert_eq!(refused().await, expected);
    s.delete_instance(a, None).await.unwrap();
    assert!(refused().await.ends_with(&format!("instance `b` ({b})")));
    set(s, b, None).await;
    s.delete_network_class(gold.id, None).await.unwrap();
}

/// In a database of version 16, instances have options and no class.
pub async fn older_instances_have_no_class() {
    let (_dir, s) = crate::old_database::migrated(
        16,
        "INSERT INTO meta (id, database_id, revision, next_id, next_vni, compacted, nat_seed) VALUES (1, 77, 9, 40, 4, 0, 5);
         INSERT INTO tenants VALUES (1, 't', 1);
         INSERT INTO clusters (id, name, vips, revision) VALUES (2, 'c', '0=192.0.2.100', 2);
         INSERT INTO hosts (id, name, vtep, agent, revision) VALUES (3, 'h', '192.0.2.1', 1, 3);
         INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, revision) VALUES (4, 'v', 1, 3, 2, 1430, 4);
         INSERT INTO subnets (id, name, vpc, ipv4, dns, revision) VALUES (5, 's', 4, '10.0.0.0/24', '', 5);
         INSERT INTO instances (id, name, vpc, subnet, host, mac, ipv4, revision, derived, identity, options) VALUES
             (6, 'i', 4, 5, 3, 6, 167772162, 6, 0, 0, '{\"unprotected\":true}');
         INSERT INTO outbox VALUES (9, 0, 1, x'08ff');",
    )
    .await;
    let outbox = s.outbox(8, 10).await;
    assert!(
        matches!(outbox, Err(StoreError::Compacted { .. })),
        "rows of the old encoding are removed: {outbox:?}"
    );
    let old = s.instance(InstanceId::new(6)).await.unwrap();
    assert_eq!(old.options, InstanceOptions { unprotected: true, ..InstanceOptions::default() });
    let gold = class(&s, "gold").await;
    let changed = set(&s, old.id, Some(gold.id)).await;
    assert_eq!(changed.options.network_class, of_instance(&gold));
    assert!(changed.options.unprotected);
}
