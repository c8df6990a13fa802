//! Meters: their limits, and the EIPs, VPCs and peerings that have them.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, last, new, peering, vpc, vpc_update};
use crate::internet::{attach, eip, new_eip, pool, to_instance, topology};
use sluice_store::{
    Change, Conflict, Created, EipFilter, EipUpdate, MAX_METERS, Meter, MeterUpdate, NewEip, NewMeter,
    NewPeering, NewVpc, Store, StoreError, Tenant, Vpc, VpcUpdate,
};
use sluice_types::{MeterId, MeterRate, VpcId};

fn rate(kbps: u64, burst: impl Into<Option<u64>>) -> Option<MeterRate> {
    Some(MeterRate { kbps, burst: burst.into() })
}

fn new_meter(tenant: &Tenant, name: &str) -> NewMeter {
    NewMeter { name: name.into(), tenant: tenant.id, inward: rate(8_000, None), outward: rate(64, 16_384) }
}

async fn meter(s: &Store, tenant: &Tenant, name: &str) -> Meter {
    new(s.create_meter(new_meter(tenant, name)).await)
}

pub async fn lifecycle(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let made = meter(s, &c.tenant, "gold").await;
    let NewMeter { name, tenant, inward, outward } = new_meter(&c.tenant, "gold");
    assert_eq!(made, Meter { id: made.id, name, tenant, inward, outward, revision: made.revision });
    assert_eq!(last(s).await, [Change::MeterUpserted(made.clone())]);
    assert_eq!(s.meter(made.id).await.unwrap(), made);
    assert_eq!(topology(s).await.meters, std::slice::from_ref(&made));
    let again = s.create_meter(new_meter(&c.tenant, "gold")).await.unwrap();
    assert_eq!(again, Created::Existing(made.clone()));
    let other = NewMeter { inward: rate(9_000, 20_000), outward: None, ..new_meter(&c.tenant, "gold") };
    let text = conflict(s.create_meter(other).await).to_string();
    let expected = "in_kbps is 8000, not 9000, in_burst is none, not 20000, out_kbps is 64, not none, out_burst is 16384, \
                    not none";
    assert!(text.ends_with(expected), "{text}");

    let update = MeterUpdate { name: "silver".into(), inward: None, outward: rate(400_000_000, None) };
    let changed = s.update_meter(made.id, update.clone(), Some(made.revision)).await.unwrap();
    let MeterUpdate { name, inward, outward } = update.clone();
    assert_eq!(changed, Meter { name, inward, outward, revision: changed.revision, ..made.clone() });
    assert!(changed.revision > made.revision);
    assert_eq!(last(s).await, [Change::MeterUpserted(changed.clone())]);
    assert_eq!(s.update_meter(made.id, update.clone(), None).await.unwrap(), changed);
    let stale = s.update_meter(made.id, update.clone(), Some(made.revision)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));
    let second = meter(s, &c.tenant, "gold").await;
    let taken = conflict(s.update_meter(second.id, update, None).await);
    assert!(matches!(taken, Conflict::NameTaken { name, .. } if name == "silver"));

    let stranger = new(s.create_tenant("other").await);
    let theirs = meter(s, &stranger, "gold").await;
    let listed = async |tenant, name| s.meters(tenant, name, ALL).await.unwrap();
    assert_eq!(listed(Some(c.tenant.id), None).await, [changed.clone(), second.clone()]);
    assert_eq!(listed(None, Some("gold")).await, [second.clone(), theirs]);
    let used = conflict(s.delete_tenant(stranger.id, None).await).to_string();
    assert_eq!(used, "tenant `other` is still used by meter `gold`");
    assert!(matches!(s.delete_meter(second.id, Some(1)).await, Err(StoreError::Stale { .. })));
    s.delete_meter(second.id, None).await.unwrap();
    assert_eq!(last(s).await, [Change::MeterRemoved(second.clone())]);
    assert!(matches!(s.meter(second.id).await, Err(StoreError::NotFound { kind: "meter", .. })));
}

/// Catches: limits that gateways cannot have, and an error that names another field.
pub async fn refused_limits(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let gold = meter(s, &c.tenant, "gold").await;
    let refused = [
        (None, None, "in_kbps"),
        (rate(63, None), None, "in_kbps"),
        (None, rate(400_000_001, None), "out_kbps"),
        (rate(u64::MAX, None), None, "in_kbps"),
        (rate(64, None), rate(64, 16_383), "out_burst"),
        (rate(64, 8_000 * 86_400 + 1), rate(64, None), "in_burst"),
        (rate(64, u64::MAX), None, "in_burst"),
    ];
    for (inward, outward, field) in refused {
        let new = NewMeter { inward, outward, ..new_meter(&c.tenant, "new") };
        let update = MeterUpdate { name: "gold".into(), inward, outward };
        for refused in
            [conflict(s.create_meter(new).await), conflict(s.update_meter(gold.id, update, None).await)]
        {
            assert!(
                matches!(&refused, Conflict::Invalid { offender, .. } if offender == field),
                "{refused:?}"
            );
        }
    }
    assert_eq!(s.meters(None, None, ALL).await.unwrap(), [gold]);
    let most = (rate(400_000_000, 50_000_000_000 * 86_400), rate(64, 16_384));
    let most = NewMeter { inward: most.0, outward: most.1, ..new_meter(&c.tenant, "most") };
    let made = new(s.create_meter(most).await);
    assert_eq!(s.meter(made.id).await.unwrap(), made);
}

pub async fn eips_have_meters(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let pool = pool(&c, &["198.51.100.0/28"]).await;
    let (gold, silver) = (meter(s, &c.tenant, "gold").await, meter(s, &c.tenant, "silver").await);
    let with = |meter: &Meter| NewEip { meter: Some(meter.id), ..new_eip(&c, &pool, "www") };
    let www = new(s.create_eip(with(&gold)).await);
    assert_eq!(www.meter, Some(gold.id));
    assert_eq!(last(s).await, [Change::EipUpserted(www.clone())]);
    assert_eq!(s.create_eip(new_eip(&c, &pool, "www")).await.unwrap(), Created::Existing(www.clone()));
    let differs = conflict(s.create_eip(with(&silver)).await).to_string();
    assert!(differs.ends_with("meter is gold, not silver"), "{differs}");

    // It keeps its meter, whatever it is attached to.
    let vm = c.instance("vm").await;
    let attached = s.update_eip(www.id, attach(Some(to_instance(vm.id))), None).await.unwrap();
    assert_eq!((attached.meter, attached.attachment.is_some()), (Some(gold.id), true));
    s.delete_instance(vm.id, None).await.unwrap();
    let detached = s.eip(www.id).await.unwrap();
    assert_eq!((detached.meter, detached.attachment), (Some(gold.id), None));

    let set = async |meter: Option<&Meter>| {
        let update = EipUpdate { meter: Some(meter.map(|meter| meter.id)), ..EipUpdate::default() };
        s.update_eip(www.id, update, None).await
    };
    let changed = set(Some(&silver)).await.unwrap();
    assert!(changed.meter == Some(silver.id) && changed.revision > detached.revision);
    assert_eq!(set(Some(&silver)).await.unwrap(), changed, "an unchanged EIP takes no revision");
    let of = EipFilter { meter: Some(silver.id), ..EipFilter::default() };
    eip(&c, &pool, "other").await;
    assert_eq!(s.eips(&of, ALL).await.unwrap(), [changed]);
    assert_eq!(topology(s).await.eips[0].meter, Some(silver.id));

    let used = conflict(s.delete_meter(silver.id, None).await).to_string();
    assert_eq!(used, "meter `silver` is still used by EIP `www`");
    let stranger = new(s.create_tenant("stranger").await);
    let theirs = meter(s, &stranger, "theirs").await;
    let text = conflict(set(Some(&theirs)).await).to_string();
    assert_eq!(text, "meter `theirs` and EIP `www` belong to different tenants");
    let new = NewEip { meter: Some(theirs.id), ..new_eip(&c, &pool, "new") };
    assert!(matches!(conflict(s.create_eip(new).await), Conflict::MeterAcrossTenants { .. }));
    let unknown = EipUpdate { meter: Some(Some(MeterId::new(9999))), ..EipUpdate::default() };
    let unknown = s.update_eip(www.id, unknown, None).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { kind: "meter", .. })));
    assert_eq!(s.eip(www.id).await.unwrap().meter, Some(silver.id));
    assert_eq!(set(None).await.unwrap().meter, None);
    s.delete_meter(silver.id, None).await.unwrap();
}

pub async fn vpcs_have_meters(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let gold = meter(s, &c.tenant, "gold").await;
    let request = |meter: Option<&Meter>| NewVpc {
        internet_meter: meter.map(|meter| meter.id),
        ..vpc("metered", &c.tenant, &c.cluster)
    };
    let made = new(s.create_vpc(request(Some(&gold))).await);
    assert_eq!(made.internet_meter, Some(gold.id));
    assert_eq!(s.vpc(made.id).await.unwrap(), made);
    assert_eq!(s.create_vpc(request(None)).await.unwrap(), Created::Existing(made.clone()));
    let silver = meter(s, &c.tenant, "silver").await;
    let differs = conflict(s.create_vpc(request(Some(&silver))).await).to_string();
    assert!(differs.ends_with("internet_meter is gold, not silver"), "{differs}");
    let set = async |vpc: VpcId, meter: Option<&Meter>| {
        let update = VpcUpdate { internet_meter: meter.map(|meter| meter.id), ..vpc_update("metered", 1430) };
        s.update_vpc(vpc, update, None).await
    };
    let changed = set(made.id, Some(&silver)).await.unwrap();
    assert_eq!(changed.internet_meter, Some(silver.id));
    let subnets = Vec::new();
    assert_eq!(last(s).await, [Change::VpcUpserted { vpc: changed.clone(), subnets }]);
    assert_eq!(set(made.id, Some(&silver)).await.unwrap(), changed);
    assert_eq!(topology(s).await.vpcs[1].internet_meter, Some(silver.id));

    let used = conflict(s.delete_meter(silver.id, None).await).to_string();
    assert_eq!(used, "meter `silver` is still used by VPC `metered`");
    let stranger = new(s.create_tenant("stranger").await);
    let theirs = meter(s, &stranger, "theirs").await;
    let text = conflict(set(made.id, Some(&theirs)).await).to_string();
    assert_eq!(text, "meter `theirs` and VPC `metered` belong to different tenants");
    let new = NewVpc { internet_meter: Some(theirs.id), ..vpc("new", &c.tenant, &c.cluster) };
    assert!(matches!(conflict(s.create_vpc(new).await), Conflict::MeterAcrossTenants { .. }));
    assert_eq!(set(made.id, None).await.unwrap().internet_meter, None);
    s.delete_meter(silver.id, None).await.unwrap();
    set(made.id, Some(&gold)).await.unwrap();
    s.delete_vpc(made.id, None).await.unwrap();
    s.delete_meter(gold.id, None).await.unwrap();
}

pub async fn peerings_have_meters(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    let (gold, silver) = (meter(s, &c.tenant, "gold").await, meter(s, &c.tenant, "silver").await);
    let other = c.vpc("other").await;
    let (a, b) = (c.vpc.clone(), other.clone());
    // The VPCs of the request are in the other order than those of the peering.
    let request = |meters: &[(&Vpc, &Meter)]| NewPeering {
        meters: meters.iter().map(|(vpc, meter)| (vpc.id, meter.id)).collect(),
        ..peering("p", &b, &a)
    };
    let made = new(s.create_peering(request(&[(&b, &gold)])).await);
    assert_eq!((made.a, made.b, made.meters), (a.id, b.id, [None, Some(gold.id)]));
    let upserted = |meters| Change::PeeringUpserted {
        a: a.clone(),
        a_subnets: vec![c.subnet.clone()],
        b: b.clone(),
        b_subnets: Vec::new(),
        meters,
    };
    assert_eq!(last(s).await, [upserted([None, Some(gold.id)])]);
    assert_eq!(s.peering(made.id).await.unwrap(), made);
    assert_eq!(s.create_peering(request(&[])).await.unwrap(), Created::Existing(made.clone()));
    assert_eq!(s.create_peering(request(&[(&b, &gold)])).await.unwrap(), Created::Existing(made.clone()));
    let differs = conflict(s.create_peering(request(&[(&a, &silver), (&b, &silver)])).await).to_string();
    let expected = "the meter of VPC `v1` is none, not silver, the meter of VPC `other` is gold, not silver";
    assert!(differs.ends_with(expected), "{differs}");

    let set = async |meters: &[(VpcId, Option<MeterId>)]| {
        s.update_peering(made.id, &meters.iter().copied().collect(), None).await
    };
    let both = set(&[(a.id, Some(silver.id))]).await.unwrap();
    assert_eq!(both.meters, [Some(silver.id), Some(gold.id)], "the other side keeps its meter");
    assert!(both.revision > made.revision);
    assert_eq!(last(s).await, [upserted(both.meters)]);
    assert_eq!(
        set(&[(a.id, Some(silver.id))]).await.unwrap(),
        both,
        "an unchanged peering takes no revision"
    );
    assert_eq!(topology(s).await.peerings, std::slice::from_ref(&both));
    let stale = s.update_peering(made.id, &[(a.id, None)].into(), Some(made.revision)).await;
    assert!(matches!(stale, Err(StoreError::Stale { .. })));

    for used in [&gold, &silver] {
        let text = conflict(s.delete_meter(used.id, None).await).to_string();
        assert_eq!(text, format!("meter `{}` is still used by peering `p`", used.name));
    }
    let stranger = new(s.create_tenant("stranger").await);
    let theirs = meter(s, &stranger, "theirs").await;
    let text = conflict(set(&[(a.id, None), (b.id, Some(theirs.id))]).await).to_string();
    assert_eq!(text, "meter `theirs` and peering `p` belong to different tenants");
    let third = c.vpc("third").await;
    let text = conflict(set(&[(a.id, None), (third.id, Some(gold.id))]).await).to_string();
    assert_eq!(text, "VPC `third` is not one of the two VPCs of peering `p`");
    let text = conflict(s.create_peering(request(&[(&third, &gold)])).await).to_string();
    assert_eq!(text, "VPC `third` is not one of the two VPCs of peering `p`");
    let unknown = set(&[(a.id, Some(MeterId::new(9999)))]).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { kind: "meter", .. })));
    let unknown = set(&[(VpcId::new(9999), None)]).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { kind: "VPC", .. })));
    assert_eq!(s.peering(made.id).await.unwrap(), both, "a refused change changes nothing");

    assert_eq!(set(&[(a.id, None)]).await.unwrap().meters, [None, Some(gold.id)]);
    s.delete_meter(silver.id, None).await.unwrap();
    s.delete_peering(made.id, None).await.unwrap();
    s.delete_meter(gold.id, None).await.unwrap();
}

/// Catches: one tenant that has all meters that a gateway holds.
pub async fn number_of_a_tenant(f: Fixture) {
    let c = Cloud::make(&f).await;
    let s = c.store.as_ref();
    for number in 0..MAX_METERS {
        meter(s, &c.tenant, &format!("m{number}")).await;
    }
    let text = conflict(s.create_meter(new_meter(&c.tenant, "more")).await).to_string();
    assert!(text.starts_with("tenant `acme` has 1024 meters already"), "{text}");
    let existing = s.create_meter(new_meter(&c.tenant, "m7")).await;
    assert!(matches!(existing, Ok(Created::Existing(_))));
    meter(s, &new(s.create_tenant("other").await), "more").await;
}

/// In a database of version 16, peerings have no meters.
pub async fn older_peerings_have_no_meters() {
    let (_dir, s) = crate::old_database::migrated(
        16,
        "INSERT INTO meta (id, database_id, revision, next_id, next_vni, compacted, nat_seed) VALUES (1, 77, 9, 40, 4, 0, 5);
         INSERT INTO tenants VALUES (1, 't', 1);
         INSERT INTO clusters (id, name, vips, revision) VALUES (2, 'c', '0=192.0.2.100', 2);
         INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, revision) VALUES (3, 'v', 1, 3, 2, 1430, 3);
         INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, revision) VALUES (4, 'w', 1, 4, 2, 1430, 4);
         INSERT INTO peerings (id, name, tenant, a, b, revision) VALUES (5, 'p', 1, 3, 4, 5);
         INSERT INTO outbox VALUES (9, 0, 1, x'05ff');",
    )
    .await;
    let outbox = s.outbox(8, 10).await;
    assert!(
        matches!(outbox, Err(StoreError::Compacted { .. })),
        "rows of the old encoding are removed: {outbox:?}"
    );
    let old = topology(&s).await.peerings.remove(0);
    assert_eq!(old.meters, [None; 2]);
    let tenant = s.tenants(None, ALL).await.unwrap().remove(0);
    let gold = meter(&s, &tenant, "gold").await;
    let changed = s.update_peering(old.id, &[(old.b, Some(gold.id))].into(), None).await.unwrap();
    assert_eq!(changed.meters, [None, Some(gold.id)]);
}

/// In a database of version 13, EIPs and VPCs have no meters.
pub async fn older_objects_have_no_meters() {
    let (_dir, s) = crate::old_database::migrated(
        13,
        "INSERT INTO meta (id, database_id, revision, next_id, next_vni, compacted, nat_seed) VALUES (1, 77, 9, 40, 4, 0, 5);
         INSERT INTO tenants VALUES (1, 't', 1);
         INSERT INTO clusters (id, name, vips, revision) VALUES (2, 'c', '0=192.0.2.100', 2);
         INSERT INTO vpcs (id, name, tenant, vni, cluster, mtu, revision) VALUES (3, 'v', 1, 3, 2, 1430, 3);
         INSERT INTO public_pools VALUES (4, 'p', 2, '198.51.100.0/24', '', 4);
         INSERT INTO eips (id, name, tenant, pool, cluster, prefix, family, first, last, revision) VALUES
             (5, 'e', 1, 4, 2, '198.51.100.1/32', 4, x'01', x'01', 5);
         INSERT INTO outbox VALUES (9, 0, 1, x'03ff');",
    )
    .await;
    let outbox = s.outbox(8, 10).await;
    assert!(
        matches!(outbox, Err(StoreError::Compacted { .. })),
        "rows of the old encoding are removed: {outbox:?}"
    );
    assert_eq!(topology(&s).await.eips[0].meter, None);
    let old = s.vpc(VpcId::new(3)).await.unwrap();
    assert_eq!(old.internet_meter, None);
    let tenant = s.tenant(old.tenant).await.unwrap();
    let gold = meter(&s, &tenant, "gold").await;
    let update = VpcUpdate { internet_meter: Some(gold.id), ..vpc_update("v", 1430) };
    assert_eq!(s.update_vpc(old.id, update, None).await.unwrap().internet_meter, Some(gold.id));
}
