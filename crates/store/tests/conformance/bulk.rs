//! Bulk creation.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, host, instance, new};
use sluice_store::{Conflict, NewInstance, Page, StoreError};
use std::collections::HashSet;

fn in_bulk<T: std::fmt::Debug>(result: sluice_store::Result<T>) -> (usize, String, StoreError) {
    match result {
        Err(StoreError::InBulk { index, name, source }) => (index, name, *source),
        other => panic!("{other:?}"),
    }
}

pub async fn many_at_once(f: Fixture) {
    let c = Cloud::make(&f).await;
    let big = c.subnet("big", &c.vpc, "10.16.0.0/12").await;
    let count = 20_000;
    let requests: Vec<NewInstance> =
        (0..count).map(|i| instance(&format!("vm-{i}"), &big, &c.host)).collect();
    let before = c.store.revision().await.unwrap();
    let (made, existing) = c.store.create_instances(c.vpc.id, requests).await.unwrap();
    assert_eq!((made.len(), existing), (count, 0));
    assert_eq!(c.store.revision().await.unwrap(), before + 1, "one revision");
    assert!(made.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(made.iter().enumerate().all(|(i, vm)| vm.name == format!("vm-{i}")), "in the order asked for");
    assert_eq!(made.iter().map(|vm| vm.ipv4).collect::<HashSet<_>>().len(), count);
    assert_eq!(made.iter().map(|vm| vm.mac).collect::<HashSet<_>>().len(), count);
    let (mut after, mut read) = (0, Vec::new());
    loop {
        let page = c.store.instances(Some(c.vpc.id), None, None, Page { after, limit: 7000 }).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.id.get();
        read.extend(page);
    }
    assert_eq!(read, made);
}

pub async fn all_or_nothing(f: Fixture) {
    let c = Cloud::make(&f).await;
    let before = c.store.revision().await.unwrap();
    let mut requests = c.some(0, 50);
    requests[30].ipv4 = Some("10.9.9.9".parse().unwrap());
    let (index, name, error) = in_bulk(c.store.create_instances(c.vpc.id, requests).await);
    assert_eq!((index, name.as_str()), (30, "vm-30"));
    assert!(matches!(error, StoreError::Conflict(Conflict::OutsideSubnet { .. })), "{error}");
    let mut requests = c.some(0, 50);
    requests[49].host = sluice_types::HostId::new(9999);
    let (index, _, error) = in_bulk(c.store.create_instances(c.vpc.id, requests).await);
    assert_eq!(index, 49);
    assert!(matches!(error, StoreError::NotFound { kind: "host", .. }), "{error}");
    assert!(c.store.instances(Some(c.vpc.id), None, None, ALL).await.unwrap().is_empty());
    assert_eq!(c.store.revision().await.unwrap(), before);
}

pub async fn repeated_and_existing_names(f: Fixture) {
    let c = Cloud::make(&f).await;
    let (first, _) = c.store.create_instances(c.vpc.id, c.some(0, 10)).await.unwrap();
    let mut requests = c.some(5, 10);
    requests.push(c.one("vm-14"));
    let before = c.store.revision().await.unwrap();
    let (made, existing) = c.store.create_instances(c.vpc.id, requests.clone()).await.unwrap();
    assert_eq!((made.len(), existing), (5, 6), "vm-5..9 were there, vm-14 is named twice");
    assert!(made[0].id > first[9].id);
    let (none, existing) = c.store.create_instances(c.vpc.id, requests).await.unwrap();
    assert_eq!((none.len(), existing), (0, 11));
    assert_eq!(c.store.revision().await.unwrap(), before + 1, "the second call changed nothing");
    let other = new(c.store.create_host(host("h2", "192.0.2.2")).await);
    let mut requests = c.some(100, 3);
    requests[2].name = "vm-3".into();
    requests[2].host = other.id;
    let (index, name, error) = in_bulk(c.store.create_instances(c.vpc.id, requests).await);
    assert_eq!((index, name.as_str()), (2, "vm-3"));
    let difference = format!("host is {}, not {}", c.host.id, other.id);
    let expected = Conflict::NameTaken { kind: "instance", name, difference };
    assert_eq!(conflict::<()>(Err(error)), expected);
    let mut requests = c.some(200, 2);
    requests[1].name = "vm-200".into();
    requests[1].host = other.id;
    let (index, _, error) = in_bulk(c.store.create_instances(c.vpc.id, requests).await);
    assert_eq!(index, 1);
    assert!(matches!(error, StoreError::Conflict(Conflict::NameTaken { .. })), "{error}");
    assert_eq!(c.store.create_instances(c.vpc.id, vec![]).await.unwrap(), (vec![], 0));
}

pub async fn given_and_allocated_mix(f: Fixture) {
    let c = Cloud::make(&f).await;
    let mut requests = c.some(0, 20);
    requests[19].ipv4 = Some("10.0.0.2".parse().unwrap());
    requests[18].ipv4 = Some("10.0.0.5".parse().unwrap());
    requests[17].mac = Some("52:54:00:00:00:01".parse().unwrap());
    let (made, _) = c.store.create_instances(c.vpc.id, requests).await.unwrap();
    assert_eq!(made[0].ipv4, Some("10.0.0.3".parse().unwrap()), ".2 is given to a later one");
    assert_eq!(made[2].ipv4, Some("10.0.0.6".parse().unwrap()));
    assert_eq!(made[19].ipv4, Some("10.0.0.2".parse().unwrap()));
    assert_eq!(made[17].ipv6, Some("fd00:1::5054:ff:fe00:1".parse().unwrap()));
    for field in ["mac", "ipv4", "ipv6"] {
        let mut requests = c.some(100, 2);
        for request in &mut requests {
            match field {
                "mac" => request.mac = Some("52:54:00:00:00:99".parse().unwrap()),
                "ipv4" => request.ipv4 = Some("10.0.0.99".parse().unwrap()),
                _ => request.ipv6 = Some("fd00:1::99".parse().unwrap()),
            }
        }
        let (index, _, error) = in_bulk(c.store.create_instances(c.vpc.id, requests).await);
        assert_eq!(index, 1);
        assert!(error.to_string().contains("vm-100"), "{error}");
    }
    let mut requests = c.some(100, 2);
    requests[0].mac = Some("52:54:00:00:00:aa".parse().unwrap());
    requests[1].ipv6 = Some("fd00:1::5054:ff:fe00:aa".parse().unwrap());
    let (index, _, error) = in_bulk(c.store.create_instances(c.vpc.id, requests).await);
    assert_eq!(index, 0);
    assert!(error.to_string().contains("vm-101"), "{error}");
}

pub async fn onto_existing(f: Fixture) {
    let c = Cloud::make(&f).await;
    let big = c.subnet("big", &c.vpc, "10.16.0.0/12").await;
    let some = |first: usize, count: usize| -> Vec<NewInstance> {
        (first..first + count).map(|i| instance(&format!("vm-{i}"), &big, &c.host)).collect()
    };
    c.store.create_instances(c.vpc.id, some(0, 3000)).await.unwrap();
    let (made, existing) = c.store.create_instances(c.vpc.id, some(2000, 3000)).await.unwrap();
    assert_eq!((made.len(), existing), (2000, 1000));
    assert_eq!(made[0].ipv4.map(u32::from), Some(0x0a10_0002 + 3000));
    let mut requests = some(5000, 2000);
    requests[1234].ipv4 = made[77].ipv4;
    let (index, name, error) = in_bulk(c.store.create_instances(c.vpc.id, requests).await);
    assert_eq!((index, name.as_str()), (1234, "vm-6234"));
    let address = made[77].ipv4.unwrap().to_string();
    let expected = Conflict::AddressTaken { address, instance: made[77].name.clone() };
    assert_eq!(conflict::<()>(Err(error)), expected);
}

pub async fn full_subnet_is_named(f: Fixture) {
    let c = Cloud::with(&f, Some("10.0.0.0/28"), None).await;
    let (index, _, error) = in_bulk(c.store.create_instances(c.vpc.id, c.some(0, 20)).await);
    assert_eq!(index, 13, "13 addresses beside network, router and broadcast");
    let expected = Conflict::SubnetFull { subnet: "s1".into(), prefix: "10.0.0.0/28".into() };
    assert_eq!(conflict::<()>(Err(error)), expected);
    let (made, _) = c.store.create_instances(c.vpc.id, c.some(0, 13)).await.unwrap();
    assert_eq!(made.len(), 13);
}

pub async fn many_hosts(f: Fixture) {
    let c = Cloud::make(&f).await;
    let mut hosts = Vec::new();
    for i in 0..40 {
        hosts.push(new(c.store.create_host(host(&format!("n{i}"), &format!("198.51.100.{}", i + 1))).await));
    }
    let mut requests = c.some(0, 200);
    for (i, request) in requests.iter_mut().enumerate() {
        request.host = hosts[i % 40].id;
    }
    let before = c.store.revision().await.unwrap();
    let (made, _) = c.store.create_instances(c.vpc.id, requests).await.unwrap();
    let row = c.store.outbox(before, 1).await.unwrap().remove(0);
    let sluice_store::Change::InstancesCreated { hosts: told, instances, .. } = row.change else {
        panic!("{row:?}")
    };
    assert_eq!((told, instances), (hosts.clone(), made));
    for host in &hosts {
        assert_eq!(c.store.instances(None, Some(host.id), None, ALL).await.unwrap().len(), 5);
    }
}
