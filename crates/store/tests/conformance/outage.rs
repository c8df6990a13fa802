//! Databases that fail and recover.

use crate::cloud::{ALL, new};
use crate::outbox::complete;
use crate::postgres::Server;
use sluice_store::{Page, Store, StoreError, open};
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// First argument of this program when it runs [`on_a_small_disk`].
pub const SMALL_DISK: &str = "--on-a-small-disk";

type Case = fn() -> Pin<Box<dyn Future<Output = ()> + Send>>;

pub fn cases() -> Vec<(&'static str, Case)> {
    vec![
        ("outage::postgres_stops_and_starts", || Box::pin(postgres_stops_and_starts())),
        ("outage::nothing_there", || Box::pin(nothing_there())),
        ("outage::sqlite_on_a_full_disk", || Box::pin(sqlite_on_a_full_disk())),
        ("history::sqlite_file_is_restored", || Box::pin(crate::history::sqlite_file_is_restored())),
        ("history::postgres_fails_over_and_loses_commits", || {
            Box::pin(crate::history::postgres_fails_over_and_loses_commits())
        }),
        ("clusters::older_database_is_migrated", || Box::pin(crate::clusters::older_database_is_migrated())),
        ("addresses::older_instances_have_no_options", || {
            Box::pin(crate::addresses::older_instances_have_no_options())
        }),
        ("addresses::options_without_a_newer_field_are_read", || {
            Box::pin(crate::addresses::options_without_a_newer_field_are_read())
        }),
        ("meters::older_objects_have_no_meters", || Box::pin(crate::meters::older_objects_have_no_meters())),
        (
            "meters::older_peerings_have_no_meters",
            || Box::pin(crate::meters::older_peerings_have_no_meters()),
        ),
        ("network_classes::older_instances_have_no_class", || {
            Box::pin(crate::network_classes::older_instances_have_no_class())
        }),
        ("subnets::older_subnets_keep_deriving_addresses", || {
            Box::pin(crate::subnets::older_subnets_keep_deriving_addresses())
        }),
        ("security::older_database_gets_default_groups", || {
            Box::pin(crate::security::older_database_gets_default_groups())
        }),
    ]
}

/// The cause with which a call fails as unavailable.
fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable { cause, .. }) => cause,
        other => panic!("not unavailable: {other:?}"),
    }
}

/// Creates tenants until it is stopped. Returns the acknowledged names.
async fn write(store: Arc<Store>, writer: usize) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for round in 0.. {
        let name = format!("w{writer}-{round}");
        match store.create_tenant(&name).await {
            Ok(_) => acknowledged.push(name),
            Err(StoreError::Unavailable { .. }) => break,
            Err(other) => panic!("{other}"),
        }
    }
    acknowledged
}

async fn all_names(store: &Store) -> Vec<String> {
    let page = Page { after: 0, limit: u32::MAX };
    store.tenants(None, page).await.unwrap().into_iter().map(|tenant| tenant.name).collect()
}

async fn postgres_stops_and_starts() {
    let mut server = Server::start().await;
    let url = server.create_database("cloud").await;
    let store = open(&url).await.unwrap();
    let writers: Vec<_> = (0..6).map(|w| tokio::spawn(write(store.clone(), w))).collect();
    tokio::time::sleep(Duration::from_millis(700)).await;
    server.stop();
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    assert!(acknowledged.len() > 10, "{} writes before the stop", acknowledged.len());
    for _ in 0..2 {
        let started = Instant::now();
        let cause = unavailable(store.create_tenant("while-down").await);
        assert!(cause.contains("connection"), "{cause}");
        unavailable(store.tenants(None, ALL).await);
        unavailable(store.check_writable().await);
        unavailable(store.outbox(0, 10).await);
        assert!(started.elapsed() < Duration::from_secs(60), "{:?} for four calls", started.elapsed());
    }
    server.run().await;
    new(store.create_tenant("after").await);
    store.check_writable().await.unwrap();
    let names = all_names(store.as_ref()).await;
    for name in &acknowledged {
        assert!(names.contains(name), "{name} was acknowledged");
    }
    assert!(!names.contains(&"while-down".to_owned()));
    let revision = store.revision().await.unwrap();
    complete(&store.outbox(0, u32::MAX).await.unwrap(), 0, revision);
    assert_eq!(names.len() as u64, revision, "one revision a tenant");
}

async fn nothing_there() {
    let started = Instant::now();
    let opened = open("postgres://nobody@127.0.0.1:1/nothing").await.map(drop);
    let cause = unavailable(opened);
    assert!(cause.contains("refused"), "{cause}");
    assert!(started.elapsed() < Duration::from_secs(30));
    let cause = unavailable(open("sqlite:/nonexistent/folder/cloud.db").await.map(drop));
    assert!(cause.contains("/nonexistent/folder/cloud.db") && cause.contains("opened"), "{cause}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("not-a-database");
    std::fs::write(&path, "something else entirely, and long enough to be looked at".repeat(40)).unwrap();
    match open(&format!("sqlite:{}", path.display())).await.map(drop) {
        Err(StoreError::Corrupt(text)) => assert!(text.contains("not a database"), "{text}"),
        other => panic!("{other:?}"),
    }
}

/// Runs this program again with a file system of 6 MiB that only the child process sees, and that is removed
/// when it ends.
async fn sqlite_on_a_full_disk() {
    let directory = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let script = r#"mount -t tmpfs -o size=6m none "$1" && exec "$2" "$3" "$1""#;
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([directory.path().as_os_str(), program.as_os_str(), SMALL_DISK.as_ref()])
        .status()
        .expect("unshare of util-linux");
    assert!(status.success(), "mounting needs root; otherwise see above");
}

pub async fn on_a_small_disk(directory: &Path) {
    let store = open(&format!("sqlite:{}/cloud.db", directory.display())).await.unwrap();
    let mut acknowledged = Vec::new();
    let filler = directory.join("filler");
    std::fs::write(&filler, vec![1; 3 << 20]).unwrap();
    let cause = loop {
        let name = format!("t-{}", acknowledged.len());
        match store.create_tenant(&name).await {
            Ok(_) => acknowledged.push(name),
            refused => break unavailable(refused),
        }
        if acknowledged.len() == 50 {
            // Fills the rest of the disk, so that the test is short.
            let _ = std::fs::write(directory.join("more"), vec![1; 6 << 20]);
        }
        assert!(acknowledged.len() < 100_000, "the disk never ran full");
    };
    assert!(cause.contains("disk full"), "{cause}");
    let revision = store.revision().await.expect("reading goes on");
    assert_eq!(revision, acknowledged.len() as u64);
    unavailable(store.create_tenant("still-full").await);
    std::fs::remove_file(&filler).unwrap();
    new(store.create_tenant("room-again").await);
    store.check_writable().await.unwrap();
    acknowledged.push("room-again".into());
    assert_eq!(all_names(store.as_ref()).await, acknowledged, "exactly what was acknowledged");
    let reopened = open(&format!("sqlite:{}/cloud.db", directory.display())).await.unwrap();
    assert_eq!(all_names(reopened.as_ref()).await, acknowledged);
    complete(&reopened.outbox(0, u32::MAX).await.unwrap(), 0, revision + 1);
}
