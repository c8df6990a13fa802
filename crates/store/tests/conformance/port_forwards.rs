//! Port forwards of NAT gateways: what they are, which are refused, and what happens to them when other objects go.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, instance, last, new, subnet};
use crate::internet::{eip, pool, topology};
use crate::nat_gateways::{addresses, new_nat, these};
use sluice_store::{
    Attach, Change, Conflict, Created, EipTarget, EipUpdate, Instance, NatAddresses, NatGateway,
    NewNatGateway, NewPortForward, PortForward, PortForwardFilter, StoreError,
};
use sluice_types::{ForwardProtocol, InstanceId, PORT_FORWARDS_MAX};
use std::net::IpAddr;

const TCP: ForwardProtocol = ForwardProtocol::Tcp;

/// A request for a TCP port that leads to port 80.
fn to(nat: &NatGateway, name: &str, port: u16, instance: InstanceId) -> NewPortForward {
    NewPortForward {
        name: name.into(),
        nat_gateway: nat.id,
        protocol: TCP,
        address: None,
        port,
        instance,
        inside_port: Some(80),
    }
}

/// A NAT gateway with 198.51.100.1 and 198.51.100.2, and two instances of its VPC.
async fn with_nat(c: &Cloud) -> (NatGateway, [Instance; 2]) {
    let pool = pool(c, &["198.51.100.0/28"]).await;
    let both = NewNatGateway { addresses: Some(NatAddresses::Number(2)), ..new_nat(&c.vpc, &pool, "out") };
    let nat = new(c.store.create_nat_gateway(both).await);
    (nat, [c.instance("one").await, c.instance("two").await])
}

pub async fn port_forwards(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (nat, [one, two]) = with_nat(&c).await;
    let made = new(s.create_port_forward(to(&nat, "web", 443, one.id)).await);
    let expected = PortForward {
        id: made.id,
        name: "web".into(),
        nat_gateway: nat.id,
        vpc: c.vpc.id,
        cluster: c.cluster.id,
        protocol: TCP,
        address: nat.addresses[0],
        port: 443,
        instance: one.id,
        inside: one.ipv4.unwrap(),
        inside_port: 80,
        revision: made.revision,
    };
    assert_eq!(made, expected);
    assert_eq!(last(s).await, [Change::PortForwardCreated(made.clone())]);
    assert_eq!(s.port_forward(made.id).await.unwrap(), made);
    assert_eq!(topology(s).await.port_forwards, std::slice::from_ref(&made));
    let again = s.create_port_forward(to(&nat, "web", 443, one.id)).await.unwrap();
    assert_eq!(again, Created::Existing(made.clone()));
    let differs = conflict(s.create_port_forward(to(&nat, "web", 444, two.id)).await).to_string();
    let instances = format!("instance is {}, not {}", one.id, two.id);
    assert!(differs.contains("port is 443, not 444") && differs.contains(&instances), "{differs}");

    // The same ports of another address and of another protocol, to another port.
    let other = NewPortForward {
        address: Some(IpAddr::V4(nat.addresses[1])),
        inside_port: None,
        ..to(&nat, "other", 443, one.id)
    };
    let other = new(s.create_port_forward(other).await);
    assert_eq!((other.address, other.inside_port), (nat.addresses[1], 443));
    let udp = NewPortForward { protocol: ForwardProtocol::Udp, ..to(&nat, "udp", 443, one.id) };
    let udp = new(s.create_port_forward(udp).await);
    let second = new(s.create_port_forward(to(&nat, "two", 80, two.id)).await);
    let listed = async |filter| s.port_forwards(&filter, ALL).await.unwrap();
    let none = PortForwardFilter::default;
    let all = [made.clone(), other, udp, second.clone()];
    assert_eq!(listed(PortForwardFilter { nat_gateway: Some(nat.id), ..none() }).await, all);
    assert_eq!(listed(PortForwardFilter { vpc: Some(c.vpc.id), ..none() }).await, all);
    let of_two = PortForwardFilter { instance: Some(two.id), ..none() };
    assert_eq!(listed(of_two).await, std::slice::from_ref(&second));
    let named = PortForwardFilter { name: Some("web".into()), ..none() };
    assert_eq!(listed(named).await, std::slice::from_ref(&made));

    // A NAT gateway keeps what is forwarded.
    let fewer = s.update_nat_gateway(nat.id, addresses(these(&["198.51.100.1"])), None).await;
    let used = "address `198.51.100.2` is still used by port forward `other`";
    assert_eq!(conflict(fewer).to_string(), used);
    let used = "NAT gateway `out` is still used by port forward `web`";
    assert_eq!(conflict(s.delete_nat_gateway(nat.id, None).await).to_string(), used);
    let stale = s.delete_port_forward(made.id, Some(made.revision - 1)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    let revision = s.delete_port_forward(made.id, Some(made.revision)).await.unwrap();
    assert!(revision > second.revision);
    assert_eq!(last(s).await, [Change::PortForwardRemoved(made)]);
    // Another one has the endpoints at once.
    new(s.create_port_forward(to(&nat, "web", 443, one.id)).await);
    for forward in listed(none()).await {
        s.delete_port_forward(forward.id, None).await.unwrap();
    }
    s.delete_nat_gateway(nat.id, None).await.unwrap();
}

pub async fn impossible_port_forwards(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (nat, [one, two]) = with_nat(&c).await;
    new(s.create_port_forward(to(&nat, "web", 443, one.id)).await);
    let foreign = c.subnet("s2", &c.vpc("v2").await, "10.9.0.0/24").await;
    let foreign = new(s.create_instance(foreign.vpc, instance("foreign", &foreign, &c.host)).await);
    let only6 = new(s.create_subnet(subnet("s3", c.vpc.id, None, Some("fd00:3::/64"))).await);
    let only6 = new(s.create_instance(c.vpc.id, instance("only6", &only6, &c.host)).await);
    let inside = one.ipv4.unwrap();
    let base = |port| to(&nat, "x", port, two.id);
    let at = |address: &str| NewPortForward { address: Some(address.parse().unwrap()), ..base(80) };
    for (wanted, text) in [
        (base(443), "tcp port 198.51.100.1:443 is already forwarded by port forward `web`".to_owned()),
        (
            to(&nat, "x", 444, one.id),
            format!(
                "port forward `web` leads to tcp port {inside}:80 already, and answers of an instance have one way out"
            ),
        ),
        // Answers could leave by either address.
        (
            NewPortForward { instance: one.id, ..at("198.51.100.2") },
            format!(
                "port forward `web` leads to tcp port {inside}:80 already, and answers of an instance have one way out"
            ),
        ),
        (at("198.51.100.3"), "NAT gateway `out` does not have the address 198.51.100.3".to_owned()),
        (at("2001:db8::1"), "NAT gateway `out` does not have the address 2001:db8::1".to_owned()),
        (base(0), "a port is 1 to 65535, not 0".to_owned()),
        (NewPortForward { inside_port: Some(0), ..base(80) }, "a port is 1 to 65535, not 0".to_owned()),
        (
            to(&nat, "x", 80, foreign.id),
            "instance `foreign` is not in the VPC of NAT gateway `out`".to_owned(),
        ),
        (to(&nat, "x", 80, only6.id), "instance `only6` has no IPv4 address".to_owned()),
    ] {
        assert_eq!(conflict(s.create_port_forward(wanted).await).to_string(), text);
    }
    for port in 1..PORT_FORWARDS_MAX as u16 {
        let wanted =
            NewPortForward { inside_port: Some(1000 + port), ..to(&nat, &format!("p{port}"), port, two.id) };
        if port != 443 {
            new(s.create_port_forward(wanted).await);
        }
    }
    let full = conflict(s.create_port_forward(base(500)).await);
    assert_eq!(full, Conflict::TooManyPortForwards { nat_gateway: "out".into(), max: PORT_FORWARDS_MAX });
}

/// An instance with an EIP answers by that.
pub async fn port_forwards_and_eips_exclude_each_other(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (nat, [one, two]) = with_nat(&c).await;
    let pool = s.public_pool(nat.pool).await.unwrap();
    let eip = eip(&c, &pool, "www").await;
    let attach = |id| {
        let attach = Attach { target: EipTarget::Instance(id), inside: None };
        EipUpdate { attach: Some(Some(attach)), ..EipUpdate::default() }
    };
    s.update_eip(eip.id, attach(one.id), None).await.unwrap();
    let refused = conflict(s.create_port_forward(to(&nat, "web", 443, one.id)).await);
    assert!(matches!(refused, Conflict::InsideTaken { .. }), "{refused}");
    let made = new(s.create_port_forward(to(&nat, "web", 443, two.id)).await);
    let refused = conflict(s.update_eip(eip.id, attach(two.id), None).await);
    assert_eq!(refused, Conflict::InsideForwarded { inside: two.ipv4.unwrap(), forward: "web".into() });
    s.delete_port_forward(made.id, None).await.unwrap();
    s.update_eip(eip.id, attach(two.id), None).await.unwrap();
    new(s.create_port_forward(to(&nat, "web", 443, one.id)).await);
}

pub async fn instances_take_their_port_forwards_with_them(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (nat, [one, two]) = with_nat(&c).await;
    let web = new(s.create_port_forward(to(&nat, "web", 443, one.id)).await);
    let udp = NewPortForward { protocol: ForwardProtocol::Udp, ..to(&nat, "udp", 443, one.id) };
    let udp = new(s.create_port_forward(udp).await);
    let other = new(s.create_port_forward(to(&nat, "other", 80, two.id)).await);
    s.delete_instance(one.id, None).await.unwrap();
    let changes = last(s).await;
    for gone in [web, udp] {
        assert!(changes.contains(&Change::PortForwardRemoved(gone)), "{changes:?}");
    }
    let left = s.port_forwards(&PortForwardFilter::default(), ALL).await.unwrap();
    assert_eq!(left, [other]);
}
