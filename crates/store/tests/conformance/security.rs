//! Security groups, their rules, and the sets of groups of instances.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, last, new, vpc};
use sluice_store::{
    Change, Conflict, Created, DEFAULT_GROUP, GroupSet, Instance, InstancesOf, JumpReason, LostInstance,
    MAX_GROUPS, MAX_RULES, NewInstance, NewSecurityGroup, NewSecurityRule, NodeId, NodeState, Options,
    PortSettings, ReleaseOf, Remote, RuleMatch, SecurityGroup, SecurityGroupUpdate, SecurityRule, Seen,
    SnapshotPart, StoreError, Topology, Vpc, open_with,
};
use sluice_types::{
    AddressFamily, Direction, InstanceId, MacAddr, PortRange, Protocol, SecurityGroupId, SecurityRuleId,
};
use std::sync::Arc;

fn group(name: &str, vpc: &Vpc) -> NewSecurityGroup {
    NewSecurityGroup { name: name.into(), vpc: vpc.id, description: None }
}

/// TCP from any IPv4 address to these ports.
fn tcp(group: &SecurityGroup, ports: &str) -> NewSecurityRule {
    let matches = RuleMatch {
        direction: Direction::Ingress,
        family: AddressFamily::Ipv4,
        protocol: Protocol::TCP,
        ports: Some(ports.parse().unwrap()),
        icmp_type: None,
        icmp_code: None,
        remote: Remote::Any,
    };
    NewSecurityRule { group: group.id, matches, description: String::new() }
}

fn matching(base: &NewSecurityRule, change: impl FnOnce(&mut RuleMatch)) -> NewSecurityRule {
    let mut rule = base.clone();
    change(&mut rule.matches);
    rule
}

impl Cloud {
    async fn group(&self, name: &str) -> SecurityGroup {
        new(self.store.create_security_group(group(name, &self.vpc)).await)
    }

    async fn default_group(&self, vpc: &Vpc) -> SecurityGroup {
        self.store.security_groups(Some(vpc.id), Some(DEFAULT_GROUP), ALL).await.unwrap().remove(0)
    }

    fn with_groups(&self, name: &str, groups: &[&SecurityGroup]) -> NewInstance {
        let ids = groups.iter().map(|group| group.id).collect();
        NewInstance { security_groups: Some(ids), ..self.one(name) }
    }

    async fn member(&self, name: &str, groups: &[&SecurityGroup]) -> Instance {
        new(self.store.create_instance(self.vpc.id, self.with_groups(name, groups)).await)
    }

    /// The groups of an instance as the store has them.
    async fn groups_of(&self, instance: &Instance) -> Vec<SecurityGroupId> {
        let (found, groups, _) = self.store.instance_with_groups(instance.id).await.unwrap();
        let listed = self.store.instances_with_groups(None, None, Some(&instance.name), ALL).await.unwrap();
        assert_eq!(listed, [(found, groups.clone(), None)]);
        groups
    }
}

/// The texts of a group's rules.
async fn texts(c: &Cloud, group: &SecurityGroup) -> Vec<String> {
    let rules = c.store.security_rules(None, Some(group.id), ALL).await.unwrap();
    rules.iter().map(|rule| rule.matches.to_string()).collect()
}

async fn topology(c: &Cloud) -> Topology {
    let (sink, mut parts) = tokio::sync::mpsc::channel(1);
    c.store.snapshot(InstancesOf::None, sink).await.unwrap();
    let Some(SnapshotPart::Topology(topology)) = parts.recv().await else { panic!("no topology") };
    *topology
}

/// Catches a VPC without the group, or with other initial rules.
pub async fn each_vpc_has_a_default_group(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let default = c.default_group(&c.vpc).await;
    assert_eq!((default.revision, default.description.as_str()), (c.vpc.revision, ""));
    let from_itself = format!("any from {}", default.id);
    let expected = [
        "egress ipv4 any to any".to_owned(),
        "egress ipv6 any to any".to_owned(),
        format!("ingress ipv4 {from_itself}"),
        format!("ingress ipv6 {from_itself}"),
    ];
    assert_eq!(texts(&c, &default).await, expected);
    let other = c.vpc("v2").await;
    let changes = last(s).await;
    let theirs = c.default_group(&other).await;
    let set = GroupSet { vpc: other.id, identity: 1, groups: vec![theirs.id] };
    let rules = s.security_rules(None, Some(theirs.id), ALL).await.unwrap();
    assert_eq!(rules.len(), 4);
    let expected = [
        Change::VpcUpserted { vpc: other.clone(), subnets: vec![] },
        Change::SecurityGroupCreated { vpc: other.clone(), group: theirs.clone(), rules },
        Change::GroupSetsCreated { vpc: other.clone(), sets: vec![set] },
    ];
    assert_eq!(changes, expected);

    // It can be described and get other rules, but not be renamed or deleted.
    let refused = Conflict::DefaultSecurityGroup { vpc: "v1".into() };
    assert_eq!(conflict(s.delete_security_group(default.id, None).await), refused);
    let rename = SecurityGroupUpdate { name: Some("other".into()), description: None };
    assert_eq!(conflict(s.update_security_group(default.id, rename, None).await), refused);
    let describe = SecurityGroupUpdate { name: None, description: Some("of all".into()) };
    assert_eq!(s.update_security_group(default.id, describe, None).await.unwrap().description, "of all");
    let first = s.security_rules(None, Some(default.id), ALL).await.unwrap().remove(0);
    s.delete_security_rule(first.id, None).await.unwrap();
    s.create_security_rule(tcp(&default, "22")).await.unwrap();
    assert_eq!(texts(&c, &default).await.len(), 4);
    // The VPC is deleted with it.
    s.delete_vpc(other.id, None).await.unwrap();
    assert_eq!(last(s).await, [Change::VpcRemoved(other)]);
    assert!(matches!(s.security_group(theirs.id).await, Err(StoreError::NotFound { .. })));
    assert_eq!(s.security_groups(None, None, ALL).await.unwrap().len(), 1);
}

pub async fn lifecycle(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let request = NewSecurityGroup { description: Some("front ends".into()), ..group("web", &c.vpc) };
    let web = new(s.create_security_group(request.clone()).await);
    let rules = s.security_rules(None, Some(web.id), ALL).await.unwrap();
    assert_eq!(texts(&c, &web).await, ["egress ipv4 any to any", "egress ipv6 any to any"]);
    let expected =
        Change::SecurityGroupCreated { vpc: c.vpc.clone(), group: web.clone(), rules: rules.clone() };
    assert_eq!(last(s).await, [expected]);
    assert_eq!(s.security_group(web.id).await.unwrap(), web);
    // The same again, with and without the description.
    for request in [request.clone(), group("web", &c.vpc)] {
        assert_eq!(s.create_security_group(request).await.unwrap(), Created::Existing(web.clone()));
    }
    let other = NewSecurityGroup { description: Some("x".into()), ..request };
    let error = conflict(s.create_security_group(other).await).to_string();
    assert!(error.ends_with("description is front ends, not x"), "{error}");

    let empty = NewSecurityGroup { description: Some("x".into()), ..group(DEFAULT_GROUP, &c.vpc) };
    let error = conflict(s.create_security_group(empty).await).to_string();
    assert!(error.ends_with("description is empty, not x"), "{error}");

    let update = SecurityGroupUpdate { name: Some("www".into()), description: None };
    let before = s.revision().await.unwrap();
    assert!(matches!(
        s.update_security_group(web.id, update.clone(), Some(1)).await,
        Err(StoreError::Stale { .. })
    ));
    let renamed = s.update_security_group(web.id, update.clone(), Some(web.revision)).await.unwrap();
    assert_eq!((renamed.name.as_str(), renamed.description.as_str()), ("www", "front ends"));
    assert_eq!(renamed.revision, before + 1);
    let expected = Change::SecurityGroupUpdated { vpc: c.vpc.clone(), group: renamed.clone() };
    assert_eq!(last(s).await, [expected]);
    assert_eq!(s.update_security_group(web.id, update, None).await.unwrap(), renamed, "nothing changed");
    let taken = SecurityGroupUpdate { name: Some(DEFAULT_GROUP.into()), description: None };
    assert!(matches!(
        conflict(s.update_security_group(web.id, taken, None).await),
        Conflict::NameTaken { .. }
    ));

    let rule = s.create_security_rule(tcp(&renamed, "80-90")).await.unwrap();
    assert_eq!(rule.matches.to_string(), "ingress ipv4 tcp ports 80-90 from any");
    let expected = Change::SecurityRuleCreated { vpc: c.vpc.clone(), rule: rule.clone() };
    assert_eq!(last(s).await, [expected]);
    assert_eq!(s.security_rule(rule.id).await.unwrap(), rule);
    assert_eq!(s.security_rules(Some(c.vpc.id), None, ALL).await.unwrap().len(), 7);
    s.delete_security_rule(rule.id, Some(rule.revision)).await.unwrap();
    let expected = Change::SecurityRuleRemoved { vpc: c.vpc.clone(), rule: rule.clone() };
    assert_eq!(last(s).await, [expected]);
    assert!(matches!(s.security_rule(rule.id).await, Err(StoreError::NotFound { .. })));

    // A VPC with further groups is not deleted, like one with subnets.
    s.delete_subnet(c.subnet.id, None).await.unwrap();
    let in_use = conflict(s.delete_vpc(c.vpc.id, None).await);
    let user = "security group `www`".to_owned();
    assert_eq!(in_use, Conflict::InUse { kind: "VPC", name: "v1".into(), user });
    s.delete_security_group(web.id, None).await.unwrap();
    let expected = Change::SecurityGroupRemoved { vpc: c.vpc.clone(), group: renamed, identities: vec![] };
    assert_eq!(last(s).await, [expected]);
    assert!(matches!(s.security_rule(rules[0].id).await, Err(StoreError::NotFound { .. })));
    s.delete_vpc(c.vpc.id, None).await.unwrap();
}

/// Catches a field of a rule that is lost or confused with another in the database or in the outbox.
pub async fn rules_are_stored_whole(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let (web, db) = (c.group("web").await, c.group("db").await);
    let base = tcp(&web, "80");
    let ports = |min, max| Some(PortRange::new(min, max).unwrap());
    let icmpv6 = |icmp_type, icmp_code| {
        matching(&base, |m| {
            (m.family, m.protocol, m.ports) = (AddressFamily::Ipv6, Protocol::ICMPV6, None);
            (m.icmp_type, m.icmp_code) = (icmp_type, icmp_code);
        })
    };
    let any = RuleMatch { protocol: Protocol::ANY, ports: None, ..base.matches.clone() };
    let of = |matches: RuleMatch| NewSecurityRule { matches, ..base.clone() };
    let requests = [
        base.clone(),
        matching(&base, |m| m.ports = ports(0, 65535)),
        matching(&base, |m| m.ports = None),
        matching(&base, |m| m.protocol = Protocol::UDP),
        matching(&base, |m| m.protocol = Protocol::SCTP),
        matching(&base, |m| m.direction = Direction::Egress),
        matching(&base, |m| m.family = AddressFamily::Ipv6),
        matching(&base, |m| m.remote = Remote::Prefix("10.0.0.0/8".parse().unwrap())),
        matching(&base, |m| m.remote = Remote::Group(db.id)),
        icmpv6(None, None),
        icmpv6(Some(0), None),
        icmpv6(Some(0), Some(0)),
        icmpv6(Some(255), Some(255)),
        of(any.clone()),
        of(RuleMatch { protocol: Protocol::new(47).unwrap(), ..any.clone() }),
        NewSecurityRule {
            description: "for everything".into(),
            ..of(RuleMatch { family: AddressFamily::Ipv6, ..any })
        },
    ];
    for request in requests {
        let rule = s.create_security_rule(request.clone()).await.unwrap();
        let expected = SecurityRule {
            id: rule.id,
            group: web.id,
            vpc: c.vpc.id,
            matches: request.matches.clone(),
            description: request.description.clone(),
            revision: s.revision().await.unwrap(),
        };
        assert_eq!(rule, expected);
        assert_eq!(s.security_rule(rule.id).await.unwrap(), expected);
        assert_eq!(last(s).await, [Change::SecurityRuleCreated { vpc: c.vpc.clone(), rule }]);
        // The same again, whatever its description is.
        let again = NewSecurityRule { description: "again".into(), ..request.clone() };
        let matches = request.matches.to_string();
        let same = Conflict::SameSecurityRule { group: "web".into(), rule: expected.id.to_string(), matches };
        assert_eq!(conflict(s.create_security_rule(again).await), same);
        // Another group can have it.
        s.create_security_rule(NewSecurityRule { group: db.id, ..request }).await.unwrap();
    }
    // A prefix of length 0 is any address.
    let zero = matching(&base, |m| m.remote = Remote::Prefix("0.0.0.0/0".parse().unwrap()));
    assert!(matches!(conflict(s.create_security_rule(zero).await), Conflict::SameSecurityRule { .. }));
}

pub async fn refused_rules(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let web = c.group("web").await;
    let before = s.revision().await.unwrap();
    let base = tcp(&web, "80");
    type Change = fn(&mut RuleMatch);
    let cases: [(Change, &str, &str); 10] = [
        (|m| m.protocol = Protocol::ANY, "ports", "only tcp, udp and sctp have ports, not any"),
        (|m| m.protocol = Protocol::ICMP, "ports", "only tcp, udp and sctp have ports, not icmp"),
        (|m| m.icmp_type = Some(8), "icmp_type", "only icmp and icmpv6 have a type, not tcp"),
        (
            |m| (m.protocol, m.ports, m.icmp_code) = (Protocol::ICMP, None, Some(1)),
            "icmp_code",
            "a code needs the icmp_type that it belongs to",
        ),
        (
            |m| (m.protocol, m.ports) = (Protocol::ICMPV6, None),
            "protocol",
            "ipv4 has no icmpv6; did you mean icmp?",
        ),
        (
            |m| (m.protocol, m.ports, m.family) = (Protocol::ICMP, None, AddressFamily::Ipv6),
            "protocol",
            "ipv6 has no icmp; did you mean icmpv6?",
        ),
        (
            |m| m.remote = Remote::Prefix("fd00::/8".parse().unwrap()),
            "remote",
            "fd00::/8 is a prefix of ipv6, but the rule is for ipv4",
        ),
        (
            |m| (m.family, m.remote) = (AddressFamily::Ipv6, Remote::Prefix("10.0.0.0/8".parse().unwrap())),
            "remote",
            "10.0.0.0/8 is a prefix of ipv4, but the rule is for ipv6",
        ),
        (
            |m| m.remote = Remote::Prefix("10.0.0.1/8".parse().unwrap()),
            "remote",
            "prefix 10.0.0.1/8 has host bits set; did you mean 10.0.0.0/8?",
        ),
        (
            |m| (m.family, m.remote) = (AddressFamily::Ipv6, Remote::Prefix("fd00::1/64".parse().unwrap())),
            "remote",
            "prefix fd00::1/64 has host bits set; did you mean fd00::/64?",
        ),
    ];
    for (change, field, text) in cases {
        let refused = conflict(s.create_security_rule(matching(&base, change)).await);
        assert_eq!(refused, Conflict::Invalid { offender: field.into(), message: text.into() });
    }
    for description in ["x".repeat(256), "a\nb".into()] {
        let refused = conflict(s.create_security_rule(NewSecurityRule { description, ..base.clone() }).await);
        assert!(
            matches!(&refused, Conflict::Invalid { offender, .. } if offender == "description"),
            "{refused}"
        );
    }
    let other = c.vpc("v2").await;
    let theirs = c.default_group(&other).await;
    let before_refusals = s.revision().await.unwrap();
    let foreign = matching(&base, |m| m.remote = Remote::Group(theirs.id));
    let expected = Conflict::ForeignSecurityGroup { group: "default".into(), vpc: "v1".into() };
    assert_eq!(conflict(s.create_security_rule(foreign).await), expected);
    let absent = matching(&base, |m| m.remote = Remote::Group(SecurityGroupId::new(999_999)));
    assert!(matches!(
        s.create_security_rule(absent).await,
        Err(StoreError::NotFound { kind: "security group", .. })
    ));
    assert!(matches!(
        s.delete_security_rule(SecurityRuleId::new(999_999), None).await,
        Err(StoreError::NotFound { kind: "security rule", .. })
    ));
    assert_eq!((before_refusals, s.revision().await.unwrap()), (before + 1, before + 1));
}

/// Catches an instance that gets no groups, other ones or those of another VPC.
pub async fn instances_have_groups(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let default = c.default_group(&c.vpc).await;
    let (web, db) = (c.group("web").await, c.group("db").await);
    let plain = c.instance("plain").await;
    assert_eq!((plain.identity, c.groups_of(&plain).await), (1, vec![default.id]));
    let open = c.member("open", &[]).await;
    assert_eq!((open.identity, c.groups_of(&open).await), (0, vec![]));
    let both = c.member("both", &[&db, &web]).await;
    assert_eq!((both.identity, c.groups_of(&both).await), (2, vec![web.id, db.id]));
    let set = GroupSet { vpc: c.vpc.id, identity: 2, groups: vec![web.id, db.id] };
    let changes = last(s).await;
    assert_eq!(changes[0], Change::GroupSetsCreated { vpc: c.vpc.clone(), sets: vec![set.clone()] });
    assert!(
        matches!(&changes[1], Change::InstancesCreated { instances, .. } if *instances == [both.clone()])
    );
    assert_eq!(changes.len(), 2);
    // The order does not matter, and a set has one identity.
    let again = c.member("again", &[&web, &db]).await;
    assert_eq!((again.identity, last(s).await.len()), (2, 1));
    // Identities belong to their VPC.
    let topology = topology(&c).await;
    assert_eq!(topology.group_sets, [GroupSet { vpc: c.vpc.id, identity: 1, groups: vec![default.id] }, set]);
    assert_eq!(topology.security_groups, [default.clone(), web.clone(), db.clone()]);
    assert_eq!(topology.security_rules.len(), 8);

    // Creation is idempotent: the groups are compared if the request lists them.
    let existing = |result: sluice_store::Result<Created<Instance>>| match result.unwrap() {
        Created::Existing(instance) => instance.name,
        created => panic!("{created:?}"),
    };
    assert_eq!(existing(s.create_instance(c.vpc.id, c.one("both")).await), "both");
    assert_eq!(existing(s.create_instance(c.vpc.id, c.with_groups("both", &[&db, &web])).await), "both");
    assert_eq!(existing(s.create_instance(c.vpc.id, c.with_groups("open", &[])).await), "open");
    for (name, groups, text) in [
        ("both", vec![&web], format!("security_groups is {},{}, not {}", web.id, db.id, web.id)),
        ("both", vec![], format!("security_groups is {},{}, not empty", web.id, db.id)),
        ("open", vec![&default], format!("security_groups is empty, not {}", default.id)),
    ] {
        let refused = conflict(s.create_instance(c.vpc.id, c.with_groups(name, &groups)).await);
        assert!(refused.to_string().ends_with(&text), "{refused}");
    }

    refused_groups(&c, &web).await;
    // It survives in the database, and a deleted instance leaves the set.
    assert_eq!(s.instance(again.id).await.unwrap(), again);
    for vm in [&both, &again] {
        s.delete_instance(vm.id, None).await.unwrap();
    }
    assert_eq!(c.member("later", &[&web, &db]).await.identity, 2, "the same set gets the same identity");
}

async fn refused_groups(c: &Cloud, web: &SecurityGroup) {
    let s = &c.store;
    let other = c.vpc("v2").await;
    let theirs = c.default_group(&other).await;
    let before = s.revision().await.unwrap();
    let foreign = Conflict::ForeignSecurityGroup { group: "default".into(), vpc: "v1".into() };
    let request = c.with_groups("vm", &[web, &theirs]);
    assert_eq!(conflict(s.create_instance(c.vpc.id, request).await), foreign);
    let invalid = |message: String| Conflict::Invalid { offender: "security_groups".into(), message };
    let twice = c.with_groups("vm", &[web, web]);
    let expected = invalid(format!("security group {} is listed twice", web.id));
    assert_eq!(conflict(s.create_instance(c.vpc.id, twice.clone()).await), expected);
    let six = (1..=6).map(SecurityGroupId::new).collect();
    let six = NewInstance { security_groups: Some(six), ..c.one("vm") };
    let expected = invalid("6 security groups; an instance can have at most 5".into());
    assert_eq!(conflict(s.create_instance(c.vpc.id, six).await), expected);
    let absent = NewInstance { security_groups: Some(vec![SecurityGroupId::new(99_999)]), ..c.one("vm") };
    assert!(matches!(
        s.create_instance(c.vpc.id, absent).await,
        Err(StoreError::NotFound { kind: "security group", .. })
    ));
    // In bulk, the error names the instance, and nothing is created.
    let bulk = vec![c.one("vm-1"), c.with_groups("vm-2", &[web]), twice];
    match s.create_instances(c.vpc.id, bulk).await {
        Err(StoreError::InBulk { index: 2, name, .. }) => assert_eq!(name, "vm"),
        other => panic!("{other:?}"),
    }
    // Two requests with one name must have the same groups.
    let differing = vec![c.with_groups("vm", &[web]), c.one("vm")];
    let Err(StoreError::InBulk { index: 1, source, .. }) = s.create_instances(c.vpc.id, differing).await
    else {
        panic!("no error")
    };
    assert!(source.to_string().contains("security_groups"), "{source}");
    assert_eq!(s.revision().await.unwrap(), before, "no identity was assigned");
}

pub async fn groups_of_an_instance_change(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let default = c.default_group(&c.vpc).await;
    let (web, db) = (c.group("web").await, c.group("db").await);
    let vm = c.instance("vm").await;
    let before = s.revision().await.unwrap();
    assert_eq!(s.set_security_groups(vm.id, &[default.id], None).await.unwrap(), vm, "nothing changed");
    assert_eq!(s.revision().await.unwrap(), before);
    let changed = s.set_security_groups(vm.id, &[db.id, web.id], Some(vm.revision)).await.unwrap();
    assert_eq!(changed, Instance { identity: 2, revision: before + 1, ..vm.clone() });
    assert_eq!(c.groups_of(&changed).await, [web.id, db.id]);
    let set = GroupSet { vpc: c.vpc.id, identity: 2, groups: vec![web.id, db.id] };
    let told = |instance: &Instance, from| Change::InstanceGroupsChanged {
        vpc: c.vpc.clone(),
        host: c.host.clone(),
        instance: instance.clone(),
        from,
    };
    let created = Change::GroupSetsCreated { vpc: c.vpc.clone(), sets: vec![set] };
    assert_eq!(last(s).await, [created, told(&changed, 1)]);
    let open = s.set_security_groups(vm.id, &[], None).await.unwrap();
    assert_eq!((open.identity, last(s).await), (0, vec![told(&open, 2)]));
    assert!(c.groups_of(&open).await.is_empty());
    let back = s.set_security_groups(vm.id, &[web.id, db.id], None).await.unwrap();
    assert_eq!((back.identity, last(s).await), (2, vec![told(&back, 0)]));

    assert!(matches!(s.set_security_groups(vm.id, &[], Some(1)).await, Err(StoreError::Stale { .. })));
    let theirs = c.default_group(&c.vpc("v2").await).await;
    assert!(matches!(
        conflict(s.set_security_groups(vm.id, &[theirs.id], None).await),
        Conflict::ForeignSecurityGroup { .. }
    ));
    assert!(matches!(
        conflict(s.set_security_groups(vm.id, &[web.id, web.id], None).await),
        Conflict::Invalid { .. }
    ));
    assert!(matches!(
        s.set_security_groups(vm.id, &[SecurityGroupId::new(99_999)], None).await,
        Err(StoreError::NotFound { kind: "security group", .. })
    ));
    // The groups follow the instance to another host.
    let h2 = new(s.create_host(crate::cloud::host("h2", "192.0.2.2")).await);
    assert_eq!(s.move_instance(vm.id, h2.id, None).await.unwrap().identity, 2);
}

/// Catches a group that is deleted although something uses it, and an error that does not say what.
pub async fn used_groups_are_not_deleted(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let (web, db) = (c.group("web").await, c.group("db").await);
    let in_use =
        |user: &str| Conflict::InUse { kind: "security group", name: "web".into(), user: user.into() };
    let mut members = vec![c.member("vm-0", &[&web]).await];
    assert_eq!(conflict(s.delete_security_group(web.id, None).await), in_use("instance `vm-0`"));
    for number in 1..5 {
        members.push(c.member(&format!("vm-{number}"), &[&web, &db]).await);
    }
    let user = "5 instances: `vm-0`, `vm-1`, `vm-2` and 2 more";
    assert_eq!(conflict(s.delete_security_group(web.id, None).await), in_use(user));
    for vm in &members[2..] {
        s.set_security_groups(vm.id, &[db.id], None).await.unwrap();
    }
    let user = "2 instances: `vm-0`, `vm-1`";
    assert_eq!(conflict(s.delete_security_group(web.id, None).await), in_use(user));
    s.delete_instance(members[0].id, None).await.unwrap();
    assert_eq!(conflict(s.delete_security_group(web.id, None).await), in_use("instance `vm-1`"));
    s.delete_instance(members[1].id, None).await.unwrap();
    // A rule of another group names it; one of its own does not matter.
    s.create_security_rule(matching(&tcp(&web, "80"), |m| m.remote = Remote::Group(web.id))).await.unwrap();
    let rule =
        s.create_security_rule(matching(&tcp(&db, "5432"), |m| m.remote = Remote::Group(web.id))).await;
    let rule = rule.unwrap();
    let user = format!("rule {} of group `db`", rule.id);
    assert_eq!(conflict(s.delete_security_group(web.id, None).await), in_use(&user));
    s.delete_security_rule(rule.id, None).await.unwrap();
    s.delete_security_group(web.id, None).await.unwrap();
    let expected = Change::SecurityGroupRemoved { vpc: c.vpc.clone(), group: web, identities: vec![2, 3] };
    assert_eq!(last(s).await, [expected]);
    let left: Vec<_> = topology(&c).await.group_sets.iter().map(|set| set.identity).collect();
    assert_eq!(left, [1, 4], "sets with the group are removed");
}

/// Catches a set that counts as one with a group whose id is only a part of the text of another id.
pub async fn ids_within_ids_are_told_apart(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let short = c.group("short").await;
    let digits = short.id.get().to_string();
    let mut long = c.group("g").await;
    let mut number = 0;
    while !long.id.get().to_string().contains(&digits) {
        number += 1;
        long = c.group(&format!("g{number}")).await;
    }
    let vm = c.member("vm", &[&long]).await;
    s.delete_security_group(short.id, None).await.unwrap();
    assert_eq!(c.groups_of(&vm).await, [long.id]);
}

/// Catches an identity that is given to another set while nodes may still have the old one, and one that is never free
/// again.
pub async fn identities_are_held_and_used_again(f: Fixture) {
    let c = Cloud::make(&f).await;
    if f.url == "sqlite::memory:" {
        return; // cannot be opened twice
    }
    let small = open_with(&f.url, Options { max_identity: 3, ..Options::default() }).await.unwrap();
    let c = Cloud { store: small, ..c };
    let s = &c.store;
    let node = NodeId::Host(c.host.id);
    let state = NodeState { node, acknowledged_revision: 0, last_seen_ms: 0, failures: vec![] };
    s.save_node_states(&[state]).await.unwrap();
    let (a, b, d) = (c.group("a").await, c.group("b").await, c.group("d").await);
    let default = c.instance("default").await;
    let first = c.member("first", &[&a]).await;
    assert_eq!((default.identity, first.identity, c.member("second", &[&b]).await.identity), (1, 2, 3));
    let exhausted = Conflict::IdentitiesExhausted { vpc: "v1".into(), max: 3 };
    let third = c.with_groups("third", &[&d]);
    assert_eq!(conflict(s.create_instance(c.vpc.id, third.clone()).await), exhausted);
    assert_eq!(conflict(s.set_security_groups(first.id, &[a.id, b.id], None).await), exhausted);
    assert_eq!(c.member("known", &[&a]).await.identity, 2, "sets that have an identity are possible");

    // No instance has the set any more: it keeps its identity as long as the group exists.
    let members = s.instances(Some(c.vpc.id), None, None, ALL).await.unwrap();
    for vm in members.iter().filter(|vm| vm.identity == 2) {
        s.delete_instance(vm.id, None).await.unwrap();
    }
    assert_eq!(conflict(s.create_instance(c.vpc.id, third.clone()).await), exhausted);
    let revision = s.delete_security_group(a.id, None).await.unwrap();
    let removal = s.removal(revision).await.unwrap().expect("the host has entries");
    assert_eq!((removal.kind.as_str(), removal.nodes.as_slice()), ("security group", &[node][..]));
    assert_eq!(conflict(s.create_instance(c.vpc.id, third.clone()).await), exhausted, "it is held");
    let done = ReleaseOf { nodes: vec![node], up_to: revision, deleted_before_ms: u64::MAX };
    assert!(s.release_removals(&done).await.unwrap() > 0);
    assert_eq!(new(s.create_instance(c.vpc.id, third).await).identity, 2);
}

/// Catches an identity that is assigned a second time after the database went back: nodes may have it from the lost
/// commits.
pub async fn identities_jump_with_the_history(f: Fixture) {
    let c = Cloud::with(&f, Some("10.0.0.0/24"), None).await;
    let s = &c.store;
    let (web, db) = (c.group("web").await, c.group("db").await);
    assert_eq!(c.member("a", &[&web]).await.identity, 2);
    s.jump(&Seen { revision: 1_000_000, ..Seen::default() }, JumpReason::WentBack).await.unwrap();
    assert_eq!(c.member("b", &[&web]).await.identity, 2, "known sets keep theirs");
    assert_eq!(c.member("c", &[&db]).await.identity, 3 + 256);
    // An adopted instance gets the groups of a new one, or those of the request.
    let adopt = async |id: u64, security_groups| {
        let (name, mac) = (format!("lost-{id}"), MacAddr::local(id));
        let (id, ipv4) = (InstanceId::new(id), Some([10, 0, 0, id as u8].into()));
        let (vni, host, ipv6) = (c.vpc.vni, c.host.id, None);
        s.adopt_instance(LostInstance {
            id,
            name,
            vni,
            host,
            mac,
            ipv4,
            ipv6,
            security_groups,
            settings: PortSettings::default(),
        })
        .await
        .unwrap()
    };
    assert_eq!(adopt(100, None).await.identity, 1);
    assert_eq!(adopt(101, Some(vec![])).await.identity, 0);
    assert_eq!(adopt(102, Some(vec![db.id])).await.identity, 259);
    // They are counted as members, too.
    for vm in s.instances(Some(c.vpc.id), None, None, ALL).await.unwrap() {
        s.delete_instance(vm.id, None).await.unwrap();
    }
    s.delete_security_group(db.id, None).await.unwrap();
}

/// Two writers want the last identity: one of them gets it.
pub async fn the_last_identity_is_assigned_once(f: Fixture) {
    let c = Cloud::make(&f).await;
    if f.url == "sqlite::memory:" {
        return; // cannot be opened twice
    }
    let small = open_with(&f.url, Options { max_identity: 2, ..Options::default() }).await.unwrap();
    let c = Arc::new(Cloud { store: small, ..c });
    let mut groups = Vec::new();
    for number in 0..8 {
        groups.push(c.group(&format!("g{number}")).await);
    }
    let tasks: Vec<_> = groups
        .into_iter()
        .map(|group| {
            let c = c.clone();
            let request = c.with_groups(&group.name, &[&group]);
            tokio::spawn(async move { c.store.create_instance(c.vpc.id, request).await })
        })
        .collect();
    let (mut made, mut refused) = (Vec::new(), 0);
    for task in tasks {
        match task.await.unwrap() {
            Ok(created) => made.push(created.into_inner().identity),
            Err(StoreError::Conflict(Conflict::IdentitiesExhausted { .. })) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((made, refused), (vec![2], 7));
}

/// A group is deleted while an instance joins it: one of both is refused, and no instance has a group that does not
/// exist.
pub async fn deletion_and_members_exclude_each_other(f: Fixture) {
    let c = Arc::new(Cloud::make(&f).await);
    let (mut joined, mut deleted) = (0, 0);
    for round in 0..24 {
        let group = c.group(&format!("g{round}")).await;
        let vm = c.instance(&format!("vm{round}")).await;
        let (one, two) = (c.clone(), c.clone());
        let id = group.id;
        let join = tokio::spawn(async move { one.store.set_security_groups(vm.id, &[id], None).await });
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        let delete = tokio::spawn(async move { two.store.delete_security_group(id, None).await });
        match (join.await.unwrap(), delete.await.unwrap()) {
            (Ok(vm), Err(StoreError::Conflict(Conflict::InUse { .. }))) => {
                joined += 1;
                assert_eq!(c.groups_of(&vm).await, [id]);
            }
            (Err(StoreError::NotFound { .. }), Ok(_)) => deleted += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(joined + deleted, 24);
}

pub async fn limits(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let web = c.group("web").await;
    for number in 2..MAX_GROUPS {
        c.group(&format!("g{number}")).await;
    }
    let refused = conflict(s.create_security_group(group("one-more", &c.vpc)).await);
    assert_eq!(refused, Conflict::TooManySecurityGroups { vpc: "v1".into(), max: 250 });
    assert!(matches!(s.create_security_group(group("web", &c.vpc)).await, Ok(Created::Existing(_))));
    let other = c.vpc("v2").await;
    new(s.create_security_group(group("web", &other)).await);
    for port in 2..MAX_RULES {
        s.create_security_rule(tcp(&web, &port.to_string())).await.unwrap();
    }
    let refused = conflict(s.create_security_rule(tcp(&web, "7000")).await);
    assert_eq!(refused, Conflict::TooManySecurityRules { group: "web".into(), max: 1000 });
}

/// The sets of a bulk are looked up once, so that many instances with few sets take as long as without groups.
pub async fn groups_in_bulk(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let big = c.subnet("big", &c.vpc, "10.16.0.0/12").await;
    let (web, db, ops) = (c.group("web").await, c.group("db").await, c.group("ops").await);
    // The last two are the same set, both in another order than that of the database.
    let (one, other) = (vec![db.id, web.id, ops.id], vec![ops.id, db.id, web.id]);
    let lists = [None, Some(vec![]), Some(vec![web.id]), Some(one), Some(other)];
    let request = |number: usize| NewInstance {
        subnet: big.id,
        security_groups: lists[number % lists.len()].clone(),
        ..c.one(&format!("vm-{number}"))
    };
    let (made, _) = s.create_instances(c.vpc.id, (0..20_000).map(request).collect()).await.unwrap();
    let identities: Vec<_> = made.iter().take(5).map(|vm| vm.identity).collect();
    assert_eq!(identities, [1, 0, 2, 3, 3]);
    assert!(made.iter().enumerate().all(|(number, vm)| vm.identity == identities[number % 5]));
    let changes = last(s).await;
    assert!(matches!(&changes[0], Change::GroupSetsCreated { sets, .. } if sets.len() == 2));
    let told = changes[1..].iter().flat_map(|change| match change {
        Change::InstancesCreated { instances, .. } => instances.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(told.collect::<Vec<_>>(), made);
    // The number of members is that of all.
    let refused = conflict(s.delete_security_group(web.id, None).await).to_string();
    assert!(refused.contains("12000 instances: `vm-2`, `vm-3`, `vm-4` and 11997 more"), "{refused}");
}

/// A database of version 8 with VPCs and instances: the VPCs get their group, the instances stay unfiltered.
pub async fn older_database_gets_default_groups() {
    let (_dir, s) = crate::old_database::migrated(
        8,
        "INSERT INTO meta (id, database_id, revision, next_id, next_vni, compacted) VALUES (1, 77, 9, 40, 4, 0);
         INSERT INTO tenants VALUES (1, 't', 1);
         INSERT INTO clusters (id, name, vips, revision) VALUES (2, 'c', '0=192.0.2.100', 2);
         INSERT INTO hosts VALUES (3, 'h', '192.0.2.1', 1, 3);
         INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, revision) VALUES (4, 'v', 1, 1, 2, 1430, 4);
         INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, revision) VALUES (5, 'w', 1, 2, 2, 1430, 5);
         INSERT INTO subnets VALUES (6, 's', 4, '10.0.0.0/24', NULL, '', 6, x'0000000000000000000000000a000003',
            x'0000000000000000000000000a000003', NULL, NULL);
         INSERT INTO instances VALUES (7, 'vm', 4, 6, 3, 2199023255559, 167772162, NULL, 7, 1);
         INSERT INTO outbox VALUES (9, 0, 1, x'0100');",
    )
    .await;
    assert_eq!(s.revision().await.unwrap(), 9);
    assert!(s.outbox(8, 10).await.is_err(), "rows of the old encoding are removed");
    let groups = s.security_groups(None, None, ALL).await.unwrap();
    let found: Vec<_> = groups.iter().map(|g| (g.id.get(), g.name.as_str(), g.vpc.get())).collect();
    assert_eq!(found, [(40, "default", 4), (45, "default", 5)]);
    let rules = s.security_rules(None, Some(groups[1].id), ALL).await.unwrap();
    let texts: Vec<_> = rules.iter().map(|rule| rule.matches.to_string()).collect();
    let expected = [
        "egress ipv4 any to any",
        "egress ipv6 any to any",
        "ingress ipv4 any from sg-45",
        "ingress ipv6 any from sg-45",
    ];
    assert_eq!(texts, expected);
    let (old, of_old, _) = s.instances_with_groups(None, None, None, ALL).await.unwrap().remove(0);
    assert_eq!((old.name.as_str(), old.identity, of_old), ("vm", 0, vec![]));
    // New objects continue after them.
    let tenant = s.tenants(None, ALL).await.unwrap().remove(0);
    let cluster = s.cluster(sluice_types::ClusterId::new(2)).await.unwrap();
    assert_eq!(new(s.create_vpc(vpc("x", &tenant, &cluster)).await).id.get(), 50);
    let request = NewInstance {
        name: "new".into(),
        subnet: old.subnet,
        host: old.host,
        mac: None,
        ipv4: None,
        ipv6: None,
        security_groups: None,
        settings: PortSettings::default(),
    };
    assert_eq!(new(s.create_instance(old.vpc, request).await).identity, 1);
    let changed = s.set_security_groups(old.id, &[groups[0].id], None).await.unwrap();
    assert_eq!(changed.identity, 1);
    let web = NewSecurityGroup { name: "web".into(), vpc: old.vpc, description: None };
    let web = new(s.create_security_group(web).await);
    assert_eq!(s.set_security_groups(old.id, &[web.id], None).await.unwrap().identity, 2);
}
