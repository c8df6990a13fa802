//! How instances of a subnet get their IPv6 addresses.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, new, subnet};
use sluice_store::{Change, Conflict, Created, NewSubnet};
use sluice_types::{Ipv6Mode, SubnetId};

pub async fn ipv6_modes(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    let with = |name: &str, net: Option<&str>, mode| NewSubnet {
        ipv6_mode: mode,
        ..subnet(name, c.vpc.id, Some(&format!("10.0.{}.0/24", name.len())), net)
    };
    let (dhcp, slaac) = (Some(Ipv6Mode::Dhcp), Some(Ipv6Mode::Slaac));
    let before = s.revision().await.unwrap();
    for (name, net, given, kept) in [
        ("a", Some("fd00:2::/64"), None, dhcp),
        ("bb", Some("fd00:3::/64"), dhcp, dhcp),
        ("ccc", Some("fd00:4::/64"), slaac, slaac),
        ("dddd", Some("fd00:5::/112"), None, dhcp),
        ("eeeee", None, None, None),
    ] {
        let made = new(s.create_subnet(with(name, net, given)).await);
        assert_eq!(made.ipv6_mode, kept, "{name}");
        assert_eq!(s.subnet(made.id).await.unwrap(), made);
        assert_eq!(s.subnets(Some(c.vpc.id), Some(name), ALL).await.unwrap(), std::slice::from_ref(&made));
        // A repetition may name the mode or not, but not another one.
        for same in [given, kept, None] {
            let again = s.create_subnet(with(name, net, same)).await.unwrap();
            assert_eq!(again, Created::Existing(made.clone()));
        }
    }
    let other = conflict(s.create_subnet(with("ccc", Some("fd00:4::/64"), dhcp)).await);
    assert!(
        matches!(other, Conflict::NameTaken { difference, .. } if difference == "ipv6_mode is slaac, not dhcp")
    );
    for (net, mode) in [(Some("fd00:6::/65"), slaac), (None, dhcp), (None, slaac)] {
        let refused = conflict(s.create_subnet(with("ffffff", net, mode)).await);
        assert!(
            matches!(&refused, Conflict::Invalid { offender, .. } if offender == "ipv6_mode"),
            "{refused}"
        );
    }
    // The outbox carries it to the nodes.
    let modes: Vec<_> = s
        .outbox(before, 100)
        .await
        .unwrap()
        .into_iter()
        .filter_map(|entry| match entry.change {
            Change::SubnetUpserted { subnet, .. } => Some(subnet.ipv6_mode),
            _ => None,
        })
        .collect();
    assert_eq!(modes, [dhcp, dhcp, slaac, dhcp, None]);
}

/// In a database of version 9, instances derive their addresses.
pub async fn older_subnets_keep_deriving_addresses() {
    let (_dir, s) = crate::old_database::migrated(
        9,
        "INSERT INTO meta (id, database_id, revision, next_id, next_vni, compacted) VALUES (1, 77, 9, 40, 4, 0);
         INSERT INTO tenants VALUES (1, 't', 1);
         INSERT INTO clusters (id, name, vips, revision) VALUES (2, 'c', '0=192.0.2.100', 2);
         INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, revision) VALUES (4, 'v', 1, 1, 2, 1430, 4);
         INSERT INTO subnets (id, name, vpc, ipv4, ipv6, dns, revision)
            VALUES (6, 's', 4, '10.0.0.0/24', NULL, '', 6), (7, 'd', 4, NULL, 'fd00::/64', '', 7);
         INSERT INTO outbox VALUES (9, 0, 1, x'0100');",
    )
    .await;
    assert_eq!(s.revision().await.unwrap(), 9);
    assert!(s.outbox(8, 10).await.is_err(), "rows of the old encoding are removed");
    assert_eq!(s.subnet(SubnetId::new(6)).await.unwrap().ipv6_mode, None);
    let derives = s.subnet(SubnetId::new(7)).await.unwrap();
    assert_eq!(derives.ipv6_mode, Some(Ipv6Mode::Slaac));
    // A cloud file that names no mode still describes it.
    let again = s.create_subnet(subnet("d", derives.vpc, None, Some("fd00::/64"))).await.unwrap();
    assert_eq!(again, Created::Existing(derives));
}
