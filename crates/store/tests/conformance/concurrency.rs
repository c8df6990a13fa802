//! Concurrent writers.

use crate::Fixture;
use crate::cloud::{ALL, Cloud, conflict, instance};
use crate::outbox::complete;
use sluice_store::{Created, Page, Store, StoreError, open};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A writer that creates and deletes instances. Returns its revisions.
async fn write(store: Arc<Store>, c: Arc<Cloud>, writer: usize, rounds: usize) -> Vec<u64> {
    let mut revisions = Vec::new();
    for round in 0..rounds {
        let name = format!("w{writer}-{round}");
        let made = crate::cloud::new(store.create_instance(c.vpc.id, c.one(&name)).await);
        revisions.push(made.revision);
        assert!(store.revision().await.unwrap() >= made.revision, "what is acknowledged is seen");
        if round % 3 == 0 {
            store.delete_instance(made.id, Some(made.revision)).await.unwrap();
        }
    }
    revisions
}

/// While writers run, a reader of the outbox never sees a gap that is filled later.
async fn watch(store: Arc<Store>, from: u64, until: u64) {
    let mut at = from;
    while at < until {
        let rows = store.outbox(at, 7).await.unwrap();
        if let Some(last) = rows.last().map(|row| row.revision) {
            complete(&rows, at, last);
            at = last;
        } else {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

async fn run(stores: Vec<Arc<Store>>, c: Arc<Cloud>, writers: usize, rounds: usize) {
    let before = c.store.revision().await.unwrap();
    let deletions = rounds.div_ceil(3);
    let until = before + (writers * (rounds + deletions)) as u64;
    let watcher = tokio::spawn(watch(stores[0].clone(), before, until));
    let tasks: Vec<_> = (0..writers)
        .map(|w| tokio::spawn(write(stores[w % stores.len()].clone(), c.clone(), w, rounds)))
        .collect();
    let mut seen = BTreeSet::new();
    for task in tasks {
        for revision in task.await.unwrap() {
            assert!(seen.insert(revision), "revision {revision} twice");
        }
    }
    watcher.await.unwrap();
    assert_eq!(c.store.revision().await.unwrap(), until, "no lost update");
    let left = c.store.instances(Some(c.vpc.id), None, None, ALL).await.unwrap();
    assert_eq!(left.len(), writers * (rounds - deletions));
    let addresses: BTreeSet<_> = left.iter().map(|i| i.ipv4).collect();
    assert_eq!(addresses.len(), left.len(), "no address twice");
}

pub async fn writers_are_serialized(f: Fixture) {
    let c = Arc::new(Cloud::with(&f, Some("10.0.0.0/16"), Some("fd00:1::/64")).await);
    run(vec![f.store.clone()], c, 12, 9).await;
}

/// Two controllers can share a PostgreSQL database; SQLite locks its file.
pub async fn two_stores_on_one_database(f: Fixture) {
    if f.url == "sqlite::memory:" {
        return; // cannot be opened twice
    }
    let c = Arc::new(Cloud::with(&f, Some("10.0.0.0/16"), Some("fd00:1::/64")).await);
    let second = open(&f.url).await.unwrap();
    run(vec![f.store.clone(), second], c, 6, 6).await;
}

pub async fn same_name_is_created_once(f: Fixture) {
    let c = Arc::new(Cloud::make(&f).await);
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let c = c.clone();
            tokio::spawn(async move { c.store.create_instance(c.vpc.id, c.one("same")).await })
        })
        .collect();
    let (mut new, mut ids) = (0, BTreeSet::new());
    for task in tasks {
        let created = task.await.unwrap().unwrap();
        new += usize::from(matches!(created, Created::New(_)));
        ids.insert(created.into_inner().id);
    }
    assert_eq!((new, ids.len()), (1, 1));
    // Many requests for the same address.
    let tasks: Vec<_> = (0..10)
        .map(|i| {
            let c = c.clone();
            let mut wanted = c.one(&format!("wants-{i}"));
            wanted.ipv4 = Some("10.0.0.200".parse().unwrap());
            tokio::spawn(async move { c.store.create_instance(c.vpc.id, wanted).await })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => drop(conflict::<()>(Err(error))),
        }
    }
    assert_eq!(made, 1);
}

/// A cluster gets other vIPs in two revisions. Changes between them are no error of a caller that expects no
/// revision.
pub async fn vips_are_replaced_while_the_cluster_changes(f: Fixture) {
    let c = Cloud::make(&f).await;
    let (store, id) = (c.store.clone(), c.cluster.id);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let other = tokio::spawn(async move {
        let mut interval_ms = 4;
        while !stopped.load(Ordering::Relaxed) {
            interval_ms = 9 - interval_ms;
            store.set_hello_interval(id, interval_ms, None).await.unwrap();
        }
    });
    let vips: [IpAddr; 2] = ["192.0.2.101".parse().unwrap(), "192.0.2.102".parse().unwrap()];
    for round in 0..20 {
        let vip = vips[round % 2];
        let changed = c.store.update_cluster(id, &[vip], None).await.unwrap();
        assert_eq!(changed.addresses(), [vip]);
    }
    stop.store(true, Ordering::Relaxed);
    other.await.unwrap();
}

/// Calls that are canceled at different moments.
const ROUNDS: u64 = 36;

/// A caller that is canceled in the middle of a call leaves all or nothing, and no lock.
pub async fn cancelled_call_leaves_all_or_nothing(f: Fixture) {
    let c = Cloud::make(&f).await;
    let big = c.subnet("big", &c.vpc, "10.16.0.0/12").await;
    let start = c.store.revision().await.unwrap();
    for round in 0..ROUNDS {
        let store = c.store.clone();
        let requests: Vec<_> =
            (0..3000).map(|i| instance(&format!("vm-{round}-{i}"), &big, &c.host)).collect();
        let vpc = c.vpc.id;
        let task = tokio::spawn(async move { store.create_instances(vpc, requests).await });
        tokio::time::sleep(std::time::Duration::from_millis(round % 12 * 7)).await;
        task.abort();
        let _ = task.await; // cancelled, or done in time
        match c.store.create_tenant(&format!("t{round}")).await {
            Ok(_) => {}
            Err(StoreError::Unavailable { cause, .. }) => panic!("still locked: {cause}"),
            Err(other) => panic!("{other}"),
        }
    }
    let until = c.store.revision().await.unwrap();
    complete(&c.store.outbox(start, 100_000).await.unwrap(), start, until);
    let mut count = 0;
    let mut after = 0;
    while let Some(last) = {
        let page =
            c.store.instances(Some(c.vpc.id), None, None, Page { after, limit: 20_000 }).await.unwrap();
        count += page.len();
        page.last().map(|vm| vm.id.get())
    } {
        after = last;
    }
    assert_eq!(count % 3000, 0, "whole calls only");
    assert_eq!((until - start) as usize, ROUNDS as usize + count / 3000);
}
