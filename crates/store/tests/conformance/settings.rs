//! Settings, plans, numbers of instances, and preferred owners that the scheduler sets.

use crate::Fixture;
use crate::cloud::Cloud;
use sluice_store::{AddressCounts, Conflict, NewGateway, PlanState, StoreError, Subnet};
use sluice_types::GatewayId;
use std::net::IpAddr;

pub async fn vip_gets_another_preferred_owner(f: Fixture) {
    let s = &f.store;
    let vips: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let cluster = s.create_cluster("c", &vips, None).await.unwrap().into_inner().id;
    let mut gateways = Vec::new();
    for number in 1u8..=3 {
        let new = NewGateway {
            name: format!("g{number}"),
            cluster,
            vtep4: Some([192, 0, 2, 100 + number].into()),
            vtep6: Some([0xfd00, 0, 0, 0, 0, 0, 1, u16::from(number)].into()),
        };
        gateways.push(s.create_gateway(new).await.unwrap().into_inner().id);
    }
    let preferred_owners = async || {
        let cluster = s.cluster(cluster).await.unwrap();
        cluster.vips.iter().map(|vip| vip.preferred_owner.unwrap()).collect::<Vec<GatewayId>>()
    };
    let (of4, of6) = (preferred_owners().await[0], preferred_owners().await[1]);
    let other = |not: GatewayId| gateways[..2].iter().copied().find(|id| *id != not).unwrap();
    assert!(s.set_preferred_owner(cluster, vips[0], of4, gateways[2]).await.unwrap());
    assert!(s.set_preferred_owner(cluster, vips[1], of6, other(of6)).await.unwrap());
    assert_eq!(preferred_owners().await, [gateways[2], other(of6)]);
    let now = s.cluster(cluster).await.unwrap();
    assert_eq!(now.vip_plan_revision, s.revision().await.unwrap(), "nodes get the new plan");
    for (vip, from, to) in [
        (vips[0], of4, other(of4)),
        (vips[1], other(of6), GatewayId::new(999)),
        ("192.0.2.9".parse().unwrap(), of4, other(of4)),
    ] {
        let reason = "the preferred owner is another gateway, there is no such gateway, no such vIP";
        assert!(!s.set_preferred_owner(cluster, vip, from, to).await.unwrap(), "{vip} to {to}: {reason}");
    }
    s.drain_gateway(gateways[0], true, None).await.unwrap();
    let at = preferred_owners().await[0];
    assert!(!s.set_preferred_owner(cluster, vips[0], at, gateways[0]).await.unwrap(), "it is draining");
    assert_eq!(s.cluster(cluster).await.unwrap().vip_plan_revision, s.revision().await.unwrap());
}

pub async fn setting_is_written_only_if_unchanged(f: Fixture) {
    let s = &f.store;
    let before = s.revision().await.unwrap();
    assert_eq!(s.setting("a").await.unwrap(), None);
    assert!(!s.put_setting("a", Some("1"), "2").await.unwrap(), "the setting does not exist");
    assert!(s.put_setting("a", None, "1").await.unwrap());
    assert!(!s.put_setting("a", None, "2").await.unwrap(), "the setting exists");
    assert!(s.put_setting("a", Some("1"), "{\"b\": \"ü\"}").await.unwrap());
    assert_eq!(s.setting("a").await.unwrap().as_deref(), Some("{\"b\": \"ü\"}"));
    assert_eq!(s.setting("b").await.unwrap(), None);
    assert_eq!(s.revision().await.unwrap(), before, "no object was changed");
}

pub async fn addresses_are_counted(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = &c.store;
    assert_eq!(s.address_counts().await.unwrap().1, []);
    for number in 0..5 {
        c.instance(&format!("i{number}")).await;
    }
    let now = s.revision().await.unwrap();
    let families = |subnet: &Subnet| (subnet.ipv4.map_or(0, |_| 5), subnet.ipv6.map_or(0, |_| 5));
    let (ipv4, ipv6) = families(&c.subnet);
    assert_eq!(
        s.address_counts().await.unwrap(),
        (now, vec![(c.vpc.id, AddressCounts { ipv4, ipv6, prefixes: 0 })])
    );
    let names = ["i4", "i5", "i0"].map(str::to_owned);
    let mut taken = s.taken_names(c.vpc.id, &names).await.unwrap();
    taken.sort();
    assert_eq!(taken, ["i0", "i4"]);
}

pub async fn plans_are_stored_and_one_is_applied_at_a_time(f: Fixture) {
    let s = &f.store;
    assert!(matches!(s.plan(1).await, Err(StoreError::NotFound { kind: "plan", .. })));
    assert_eq!(s.add_plan(1_000, 3, "first").await.unwrap(), 1);
    assert_eq!(s.add_plan(2_000, 1, "second").await.unwrap(), 2);
    assert!(
        !s.update_plan_progress(1, PlanState::Applying, 1, "").await.unwrap(),
        "no controller applies it"
    );
    let progress = s.apply_plan(1, 2).await.unwrap();
    assert_eq!((progress.state, progress.parallel, progress.done), (PlanState::Applying, 2, 0));
    let refused = s.apply_plan(2, 1).await;
    assert!(matches!(refused, Err(StoreError::Conflict(Conflict::PlanApplying { plan: 1 }))));
    // Many newer plans do not displace the one that is being applied, but they do displace the other.
    for number in 3..=20 {
        assert_eq!(s.add_plan(3_000, 0, "more").await.unwrap(), number);
    }
    let ids: Vec<u64> = s.plans().await.unwrap().into_iter().map(|plan| plan.id).collect();
    assert_eq!(ids, [vec![1], (5..=20).collect()].concat());
    assert!(s.update_plan_progress(1, PlanState::Stopped, 1, "why").await.unwrap());
    let refused = s.stop_plan(1, "again").await;
    assert!(matches!(refused, Err(StoreError::Conflict(Conflict::PlanNotApplying { plan: 1 }))));
    let stopped = s.plan(1).await.unwrap();
    assert_eq!((stopped.body.as_str(), stopped.progress.done), ("first", 1));
    assert_eq!((stopped.progress.state, stopped.progress.note.as_str()), (PlanState::Stopped, "why"));
    // It continues at the step where it was stopped.
    let again = s.apply_plan(1, 1).await.unwrap();
    assert_eq!((again.state, again.done, again.note.as_str()), (PlanState::Applying, 1, ""));
    let stopped = s.stop_plan(1, "by hand").await.unwrap();
    assert_eq!((stopped.state, stopped.done, stopped.note.as_str()), (PlanState::Stopped, 1, "by hand"));
    assert!(!s.update_plan_progress(1, PlanState::Applying, 2, "").await.unwrap(), "it is stopped");
    assert!(matches!(s.stop_plan(99, "").await, Err(StoreError::NotFound { kind: "plan", .. })));
    s.apply_plan(1, 1).await.unwrap();
    assert!(s.update_plan_progress(1, PlanState::Done, 3, "").await.unwrap());
    let refused = s.apply_plan(1, 1).await;
    assert!(matches!(refused, Err(StoreError::Conflict(Conflict::PlanDone { plan: 1 }))));
}
