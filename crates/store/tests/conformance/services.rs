//! Services: their members, their mounts, and the vNICs of both.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, host, instance, last, new, vpc};
use sluice_store::{
    Change, Conflict, Created, Instance, InstanceChange, InstanceOptions, MAX_SERVICES_OF_INSTANCE,
    MemberReport, Mount, MountFilter, NewInstance, NewMount, NewService, NodeId, NodeState, PortsOfHost,
    Service, ServiceConflict, ServiceUpdate, Store, StoreError, StoredMember, Subnet, Vpc,
};
use sluice_types::{HostId, MemberStatus, SessionMode, VpcId};
use std::net::{IpAddr, Ipv4Addr};

fn new_service(name: &str, vpc: VpcId) -> NewService {
    NewService { name: name.into(), vpc, any_tenant: None, tenants: None }
}

fn new_mount(name: &str, subnet: &Subnet, service: &Service) -> NewMount {
    NewMount {
        name: name.into(),
        vpc: subnet.vpc,
        subnet: subnet.id,
        service: service.id,
        ipv4: None,
        ipv6: None,
        security_groups: None,
    }
}

/// A cloud whose VPC has a service, and another VPC of the tenant with a subnet.
struct Setting {
    cloud: Cloud,
    service: Service,
    red: Vpc,
    web: Subnet,
}

async fn setting(f: &Fixture) -> Setting {
    let cloud = Cloud::make(f).await;
    let service = new(cloud.store.create_service(new_service("fw", cloud.vpc.id)).await);
    let red = cloud.vpc("red").await;
    let request = crate::cloud::subnet("web", red.id, Some("10.1.0.0/24"), Some("fd00:2::/64"));
    let web = new(cloud.store.create_subnet(request).await);
    Setting { cloud, service, red, web }
}

impl Setting {
    fn store(&self) -> &Store {
        self.cloud.store.as_ref()
    }

    async fn mount(&self, name: &str) -> Mount {
        new(self.store().create_mount(new_mount(name, &self.web, &self.service)).await)
    }

    async fn member(&self, name: &str) -> (Instance, StoredMember) {
        let vm = self.cloud.instance(name).await;
        let member = new(self.store().add_member(self.service.id, vm.id).await);
        (self.store().instance(vm.id).await.unwrap(), member)
    }
}

fn refusal<T: std::fmt::Debug>(result: sluice_store::Result<T>) -> ServiceConflict {
    match conflict(result) {
        Conflict::Service(conflict) => conflict,
        other => panic!("another conflict: {other:?}"),
    }
}

fn report(member: &StoredMember, status: MemberStatus) -> MemberReport {
    MemberReport { member: member.id, status, evidence: "3 of 3".to_owned() }
}

pub async fn lifecycle(f: Fixture) {
    let c = setting(&f).await;
    let (s, id) = (c.store(), c.service.id);
    let kept = s.service(id).await.unwrap();
    assert_eq!(kept, c.service);
    assert!(kept.seed[0] != kept.seed[1] && !kept.any_tenant && kept.tenants.is_empty());
    let again = s.create_service(new_service("fw", c.cloud.vpc.id)).await.unwrap();
    assert_eq!(again, Created::Existing(kept.clone()));
    let differs = NewService { any_tenant: Some(true), ..new_service("fw", c.cloud.vpc.id) };
    let text = conflict(s.create_service(differs).await).to_string();
    assert!(text.ends_with("allow_all_tenants is false, not true"), "{text}");
    let other = new(s.create_service(new_service("fw", c.red.id)).await);
    assert_eq!(last(s).await, [Change::ServiceUpserted(other.clone())]);
    assert_eq!(s.services(None, Some("fw"), ALL).await.unwrap(), [kept.clone(), other.clone()]);
    assert_eq!(s.services(Some(c.red.id), None, ALL).await.unwrap(), std::slice::from_ref(&other));
    assert!(matches!(s.delete_service(other.id, Some(1)).await, Err(StoreError::Stale { .. })));
    s.delete_service(other.id, None).await.unwrap();
    assert_eq!(last(s).await, [Change::ServiceRemoved(other.clone())]);
    assert!(matches!(s.service(other.id).await, Err(StoreError::NotFound { kind: "service", .. })));

    let mount = c.mount("m").await;
    let user = |conflict: Conflict| match conflict {
        Conflict::InUse { user, .. } => user,
        other => panic!("{other:?}"),
    };
    assert_eq!(user(conflict(s.delete_service(id, None).await)), "mount `m`");
    assert_eq!(user(conflict(s.delete_subnet(c.web.id, None).await)), "mount `m`");
    s.delete_mount(mount.id, None).await.unwrap();
    let (vm, _) = c.member("a").await;
    assert_eq!(user(conflict(s.delete_service(id, None).await)), "member `a`");
    s.remove_member(id, vm.id).await.unwrap();
    s.delete_instance(vm.id, None).await.unwrap();
    s.delete_subnet(c.cloud.subnet.id, None).await.unwrap();
    assert_eq!(user(conflict(s.delete_vpc(c.cloud.vpc.id, None).await)), "service `fw`");
    s.delete_service(id, None).await.unwrap();
    s.delete_vpc(c.cloud.vpc.id, None).await.unwrap();
}

/// Catches a mount of a tenant that the service's owner has not permitted, and a permission that is withdrawn under a mount.
pub async fn owners_consent_to_mounts(f: Fixture) {
    let c = setting(&f).await;
    let s = c.store();
    let tenant = new(s.create_tenant("other").await);
    let theirs = new(s.create_vpc(vpc("theirs", &tenant, &c.cloud.cluster)).await);
    let subnet = c.cloud.subnet("s", &theirs, "10.2.0.0/24").await;
    let request = new_mount("m", &subnet, &c.service);
    let (service, vpc) = ("fw".to_owned(), "theirs".to_owned());
    let refused = ServiceConflict::TenantNotPermitted { service: service.clone(), vpc: vpc.clone() };
    assert_eq!(refusal(s.create_mount(request.clone()).await), refused);
    let allow = |any_tenant, tenants: Option<&[_]>| ServiceUpdate {
        any_tenant,
        tenants: tenants.map(<[sluice_types::TenantId]>::to_vec),
    };
    let update = allow(None, Some(&[tenant.id, tenant.id]));
    let permitted = s.update_service(c.service.id, update, Some(c.service.revision)).await.unwrap();
    assert_eq!((permitted.any_tenant, &permitted.tenants[..]), (false, &[tenant.id][..]));
    assert_eq!(last(s).await, [Change::ServiceUpserted(permitted.clone())]);
    new(s.create_mount(request.clone()).await);
    let none = s.update_service(c.service.id, allow(None, Some(&[])), None).await;
    assert_eq!(refusal(none), ServiceConflict::StillMounted { service, mount: "m".to_owned(), vpc });
    let all = s.update_service(c.service.id, allow(Some(true), Some(&[])), None).await.unwrap();
    assert!(all.any_tenant && all.tenants.is_empty());
    assert_eq!(s.service(c.service.id).await.unwrap(), all);
    assert_eq!(s.update_service(c.service.id, allow(Some(true), None), None).await.unwrap(), all);
    let absent = allow(None, Some(&[sluice_types::TenantId::new(999)]));
    assert!(matches!(s.update_service(c.service.id, absent, None).await, Err(StoreError::NotFound { .. })));
}

/// Catches a member without a vNIC for one of the mounts, a number that another one has, and a host that is not told to probe.
pub async fn members_have_numbers_and_vnics(f: Fixture) {
    let c = setting(&f).await;
    let (s, service) = (c.store(), c.service.id);
    let mount = c.mount("m").await;
    let (vm, first) = c.member("a").await;
    assert_eq!((first.number, first.status, first.draining), (1, MemberStatus::Waiting, false));
    assert_eq!((first.instance, first.host, first.name.as_str()), (vm.id, c.cloud.host.id, "a"));
    assert_eq!(vm.options, InstanceOptions { member: Some(first.id.get()), ..InstanceOptions::default() });
    let vnics = s.vnics(mount.id).await.unwrap();
    let [vnic] = vnics[..] else { panic!("{vnics:?}") };
    assert_eq!((vnic.member, vnic.service, vnic.vpc, vnic.host), (first.id, service, c.red.id, first.host));
    assert!(vnic.id.get() > first.id.get(), "ids of vNICs are in the number space of instances");
    let before = InstanceOptions::default();
    let told = [
        Change::InstancesChanged {
            vpc: c.cloud.vpc.clone(),
            hosts: vec![c.cloud.host.clone()],
            changes: vec![InstanceChange { before, after: vm.clone() }],
        },
        Change::MemberAdded { member: first.clone(), vnics: vnics.clone() },
    ];
    assert_eq!(last(s).await, told);
    assert_eq!(s.add_member(service, vm.id).await.unwrap(), Created::Existing(first.clone()));

    let (other, second) = c.member("b").await;
    assert_eq!(second.number, 2);
    assert_ne!(second.mac, first.mac);
    assert_eq!(s.members(service).await.unwrap(), [first.clone(), second.clone()]);
    assert_eq!(s.members_of_instances(&[other.id]).await.unwrap(), std::slice::from_ref(&second));
    assert_eq!(s.members_on_hosts(&[c.cloud.host.id]).await.unwrap().len(), 2);
    assert_eq!(s.members_on_hosts(&[HostId::new(999)]).await.unwrap(), []);
    assert_eq!(s.vnics_of_host(c.cloud.host.id).await.unwrap().len(), 2);

    s.remove_member(service, vm.id).await.unwrap();
    let removed = Change::MemberRemoved { member: first.clone(), vnics };
    assert_eq!(last(s).await.pop(), Some(removed));
    assert_eq!(s.instance(vm.id).await.unwrap().options, InstanceOptions::default());
    let gone = s.member(service, vm.id).await;
    assert!(matches!(gone, Err(StoreError::NotFound { kind: "member", .. })));
    assert_eq!(s.vnics(mount.id).await.unwrap().len(), 1);
    let again = new(s.add_member(service, vm.id).await);
    assert_eq!(again.number, 1, "the lowest free number");
    assert_ne!((again.id, again.mac), (first.id, first.mac));

    let foreign = instance("c", &c.web, &c.cloud.host);
    let foreign = new(s.create_instance(c.red.id, foreign).await);
    let refused = ServiceConflict::ForeignMember { instance: "c".to_owned(), service: "fw".to_owned() };
    assert_eq!(refusal(s.add_member(service, foreign.id).await), refused);
    let bare = new(s.create_host(sluice_store::NewHost { agent: false, ..host("bare", "192.0.2.9") }).await);
    let on_bare = instance("d", &c.cloud.subnet, &bare);
    let on_bare = new(s.create_instance(c.cloud.vpc.id, on_bare).await);
    let refused = refusal(s.add_member(service, on_bare.id).await);
    assert!(matches!(refused, ServiceConflict::MemberWithoutVswitch { .. }), "{refused}");
}

/// Catches a member that leaves the host to which flows go.
pub async fn members_stay_where_they_are(f: Fixture) {
    let c = setting(&f).await;
    let s = c.store();
    let target = new(s.create_host(host("h2", "192.0.2.2")).await);
    let (vm, _) = c.member("a").await;
    let expected = ServiceConflict::InstanceIsMember { instance: "a".to_owned(), service: "fw".to_owned() };
    let moved = s.move_instance(vm.id, target.id, None).await;
    assert_eq!(refusal(moved), expected);
    assert_eq!(refusal(s.start_migration(vm.id, target.id, SessionMode::Copy, None).await), expected);
    assert_eq!(refusal(s.delete_instance(vm.id, None).await), expected);
    s.remove_member(c.service.id, vm.id).await.unwrap();
    let moving = new(s.start_migration(vm.id, target.id, SessionMode::Copy, None).await);
    let refused = refusal(s.add_member(c.service.id, moving.id).await);
    assert_eq!(refused, ServiceConflict::MemberMigrates { instance: "a".to_owned() });
}

/// Catches an address that a mount shares with something else, and one that is given away before nodes have removed it.
pub async fn mounts_have_addresses_of_their_own(f: Fixture) {
    let c = setting(&f).await;
    let s = c.store();
    let (vm, _) = c.member("a").await;
    let gateway = crate::cloud::gateway(s, c.cloud.cluster.id, 1).await;
    s.save_node_states(&[NodeState {
        node: NodeId::Gateway(gateway),
        acknowledged_revision: 0,
        last_seen_ms: 1,
        failures: Vec::new(),
    }])
    .await
    .unwrap();
    let mount = c.mount("m").await;
    let lowest: Ipv4Addr = "10.1.0.2".parse().unwrap();
    assert_eq!((mount.ipv4, mount.ipv6), (Some(lowest), Some("fd00:2::2".parse().unwrap())));
    assert_eq!(s.mount(mount.id).await.unwrap(), mount);
    let change = last(s).await;
    let Some(Change::MountCreated { vpc, subnets, mount: told, vnics, ports }) = change.last() else {
        panic!("{change:?}")
    };
    assert_eq!((vpc, subnets, told, ports), (&c.red, &vec![c.web.clone()], &mount, &Vec::new()));
    assert_eq!(vnics, &s.vnics(mount.id).await.unwrap());
    let request = new_mount("m", &c.web, &c.service);
    assert_eq!(s.create_mount(request.clone()).await.unwrap(), Created::Existing(mount.clone()));
    let other = NewMount { ipv4: Some("10.1.0.9".parse().unwrap()), ..request.clone() };
    let text = conflict(s.create_mount(other).await).to_string();
    assert!(text.ends_with("ipv4 is 10.1.0.2, not 10.1.0.9"), "{text}");
    let second = NewMount { name: "n".into(), ..request.clone() };
    assert!(matches!(refusal(s.create_mount(second).await), ServiceConflict::MountedAlready { .. }));
    let filter = MountFilter { service: Some(c.service.id), ..MountFilter::default() };
    assert_eq!(s.mounts(&filter, ALL).await.unwrap(), std::slice::from_ref(&mount));

    let at = |ipv4: Ipv4Addr| NewInstance { ipv4: Some(ipv4), ..instance("x", &c.web, &c.cloud.host) };
    let taken = conflict(s.create_instance(c.red.id, at(lowest)).await);
    assert_eq!(
        taken,
        Conflict::AddressIsMounted { address: lowest.to_string(), mount: "m".to_owned() },
        "the VPC has no instance yet"
    );
    let next = new(s.create_instance(c.red.id, instance("x", &c.web, &c.cloud.host)).await);
    assert_eq!(next.ipv4, Some("10.1.0.3".parse().unwrap()));
    assert_eq!(s.address_counts().await.unwrap().1.last().unwrap().1.ipv4, 2);

    s.delete_mount(mount.id, None).await.unwrap();
    let gone = last(s).await;
    assert!(matches!(&gone[..], [Change::MountRemoved { mount: told, .. }] if *told == mount));
    assert_eq!(s.vnics(mount.id).await.unwrap(), []);
    let held = |result| match conflict::<Mount>(result) {
        Conflict::Held { what, owner, .. } => (what, owner),
        other => panic!("{other:?}"),
    };
    let same = NewMount { ipv4: Some(lowest), ..request.clone() };
    let refused = s.create_mount(same).await.map(Created::into_inner);
    assert_eq!(held(refused), (lowest.to_string(), "mount `m`".to_owned()));
    let taken = NewMount { ipv4: next.ipv4, ..request };
    let expected = Conflict::AddressTaken { address: "10.1.0.3".to_owned(), instance: "x".to_owned() };
    assert_eq!(conflict(s.create_mount(taken).await), expected);
    let ports = vec![PortsOfHost { vpc: c.red.id, host: c.cloud.host.id, ports: 1 }];
    let mount = c.mount("again").await;
    let change = last(s).await.pop();
    assert!(
        matches!(&change, Some(Change::MountCreated { ports: told, .. }) if *told == ports),
        "{change:?}"
    );
    assert!(mount.addresses().all(|address| address != IpAddr::V4(lowest)));
    assert_eq!(s.vnics(mount.id).await.unwrap().len(), 1, "the member `{}`", vm.name);
}

/// Catches groups of a mount that are deleted, and ones of another VPC.
pub async fn mounts_have_security_groups(f: Fixture) {
    let c = setting(&f).await;
    let s = c.store();
    let group = sluice_store::NewSecurityGroup { name: "g".into(), vpc: c.red.id, description: None };
    let group = new(s.create_security_group(group).await);
    let request = NewMount { security_groups: Some(vec![group.id]), ..new_mount("m", &c.web, &c.service) };
    let mount = new(s.create_mount(request.clone()).await);
    assert!(mount.identity > 1, "identity 1 is that of the group `default`");
    assert_eq!(s.create_mount(request).await.unwrap(), Created::Existing(mount.clone()));
    let user = conflict(s.delete_security_group(group.id, None).await).to_string();
    assert!(user.ends_with("is still used by mount `m`"), "{user}");
    s.delete_mount(mount.id, None).await.unwrap();
    assert_eq!(c.mount("n").await.identity, 1);
    s.delete_security_group(group.id, None).await.unwrap();
    let foreign = s.security_groups(Some(c.cloud.vpc.id), None, ALL).await.unwrap().remove(0);
    let unfiltered = c.cloud.vpc("blue").await;
    let subnet = c.cloud.subnet("s", &unfiltered, "10.3.0.0/24").await;
    let request = new_mount("m", &subnet, &c.service);
    let of_other = NewMount { security_groups: Some(vec![foreign.id]), ..request.clone() };
    assert!(matches!(conflict(s.create_mount(of_other).await), Conflict::ForeignSecurityGroup { .. }));
    let none = NewMount { security_groups: Some(Vec::new()), ..request };
    assert_eq!(new(s.create_mount(none).await).identity, 0);
}

/// Catches a state that takes a revision each time it is reported, and one without an event.
pub async fn states_are_recorded_once(f: Fixture) {
    let c = setting(&f).await;
    let (s, service) = (c.store(), c.service.id);
    let (vm, a) = c.member("a").await;
    let (_, b) = c.member("b").await;
    let up = [report(&a, MemberStatus::Up), report(&b, MemberStatus::Up)];
    let changed = s.set_member_states(&up).await.unwrap();
    assert_eq!(changed.iter().map(|member| member.status).collect::<Vec<_>>(), [MemberStatus::Up; 2]);
    assert_eq!(s.members(service).await.unwrap(), changed);
    assert_eq!(last(s).await, [Change::MembersChanged { members: changed.clone() }]);
    let revision = s.revision().await.unwrap();
    assert_eq!(s.set_member_states(&up).await.unwrap(), []);
    assert_eq!(s.revision().await.unwrap(), revision);
    let down =
        s.set_member_states(&[report(&a, MemberStatus::HostUnreachable), up[1].clone()]).await.unwrap();
    assert_eq!(down.len(), 1);
    assert_eq!((down[0].status, down[0].evidence.as_str()), (MemberStatus::HostUnreachable, "3 of 3"));

    let draining = s.drain_member(service, vm.id, true).await.unwrap();
    assert!(draining.draining && draining.status == MemberStatus::HostUnreachable);
    assert_eq!(last(s).await, [Change::MembersChanged { members: vec![draining.clone()] }]);
    assert_eq!(s.drain_member(service, vm.id, true).await.unwrap(), draining);
    assert!(!s.drain_member(service, vm.id, false).await.unwrap().draining);
    s.remove_member(service, vm.id).await.unwrap();
    assert_eq!(s.set_member_states(&[report(&a, MemberStatus::Up)]).await.unwrap(), [], "it is gone");
    let events = s.events(Some(&service.to_string()), None, 100).await.unwrap();
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
    let expected = [
        "member_added",
        "member_added",
        "member_up",
        "member_up",
        "member_down",
        "member_draining",
        "member_undrained",
        "member_removed",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[4].details["evidence"], "3 of 3");
}

pub async fn limits(f: Fixture) {
    let c = setting(&f).await;
    let s = c.store();
    let (vm, _) = c.member("a").await;
    for number in 1..MAX_SERVICES_OF_INSTANCE {
        let service = new(s.create_service(new_service(&format!("s{number}"), c.cloud.vpc.id)).await);
        new(s.add_member(service.id, vm.id).await);
    }
    let one_more = new(s.create_service(new_service("last", c.cloud.vpc.id)).await);
    let refused = refusal(s.add_member(one_more.id, vm.id).await);
    assert!(matches!(refused, ServiceConflict::TooManyServices { .. }), "{refused}");
    let newest = s.members_of_instances(&[vm.id]).await.unwrap().pop().unwrap();
    assert_eq!(s.instance(vm.id).await.unwrap().options.member, Some(newest.id.get()));
    let instances = c.cloud.some(0, 126);
    let made = s.create_instances(c.cloud.vpc.id, instances).await.unwrap().0;
    for instance in &made {
        new(s.add_member(c.service.id, instance.id).await);
    }
    let extra = c.cloud.instance("extra").await;
    let refused = refusal(s.add_member(c.service.id, extra.id).await);
    assert_eq!(refused, ServiceConflict::TooManyMembers { service: "fw".to_owned(), max: 127 });
}
