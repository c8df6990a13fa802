//! Neighbors that the kernel keeps resolved for an agent, on real interfaces.

mod support;

use sluice_agent::netlink::Netlink;
use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;
use support::{in_namespace, ip};

const ADDRESSES: [&str; 2] = ["192.0.2.11", "2001:db8::11"];

async fn resolved(netlink: &Netlink) -> usize {
    let all = netlink.neighbors().await.unwrap();
    all.iter().filter(|neighbor| neighbor.kept && neighbor.resolved).count()
}

/// Waits until `number` neighbors are resolved: 2 s at most, less than the 5 s between two probes of the
/// kernel. Without a probe of the agent it would fail.
async fn wait_for_resolved(netlink: &Netlink, number: usize) {
    for _ in 0..40 {
        if resolved(netlink).await == number {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("there are not {number} resolved neighbors: {}", ip("neigh show nud all dev u0"));
}

async fn probe(netlink: &Netlink, index: u32) {
    for address in ADDRESSES {
        netlink.probe_neighbor(index, address.parse::<IpAddr>().unwrap()).await.unwrap();
    }
}

/// Catches an agent that leaves failed neighbors to the kernel, which probes them only every five seconds.
#[test]
fn failed_neighbor_is_probed_again_at_once() {
    in_namespace(|| async {
        let netlink = Netlink::open().unwrap();
        let index = netlink.require_link("u0").await.unwrap().index;
        // Both ends of the veth are in one stack, which must accept packets with its own source address.
        fs::write("/proc/sys/net/ipv4/conf/t0/accept_local", "1").unwrap();
        probe(&netlink, index).await;
        let failed = || ip("neigh show nud failed dev u0").lines().count() == ADDRESSES.len();
        support::eventually("both neighbors fail", || failed().then_some(())).await;
        assert_eq!(resolved(&netlink).await, 0);
        // While the first probe is unanswered, the kernel repeats it once a second.
        probe(&netlink, index).await;

        ip("addr add 192.0.2.11/32 dev t0");
        ip("addr add 2001:db8::11/128 dev t0 nodad");
        probe(&netlink, index).await;
        wait_for_resolved(&netlink, 2).await;

        // The kernel forgets neighbors when the carrier is lost.
        ip("link set t0 down");
        wait_for_resolved(&netlink, 0).await;
        ip("link set t0 up");
        ip("addr replace 2001:db8::11/128 dev t0 nodad");
        probe(&netlink, index).await;
        wait_for_resolved(&netlink, 2).await;
    });
}

/// Catches a release that removes nothing, and a list that takes entries of others for the agent's.
#[test]
fn only_kept_neighbors_are_marked_and_released() {
    in_namespace(|| async {
        let netlink = Netlink::open().unwrap();
        let index = netlink.require_link("u0").await.unwrap().index;
        ip("neigh add 192.0.2.12 lladdr 02:00:00:00:00:0c dev u0 nud permanent");
        let kept: IpAddr = "192.0.2.11".parse().unwrap();
        netlink.keep_neighbor(index, kept).await.unwrap();
        let list = async || {
            let all = netlink.neighbors().await.unwrap();
            let of_u0 = all.into_iter().filter(|neighbor| neighbor.ifindex == index);
            let mut found: Vec<_> = of_u0
                .filter(|neighbor| neighbor.address.is_ipv4() && !neighbor.address.is_multicast())
                .map(|neighbor| (neighbor.address.to_string(), neighbor.kept, neighbor.is_static))
                .collect();
            found.sort();
            found
        };
        let fixed = ("192.0.2.12".to_owned(), false, true);
        assert_eq!(list().await, [(kept.to_string(), true, false), fixed.clone()]);
        netlink.release_neighbor(index, kept).await.unwrap();
        netlink.release_neighbor(index, kept).await.expect("an absent entry is no error");
        assert_eq!(list().await, [fixed]);
    });
}

/// The kernel refuses to begin a list on a socket that has not finished another. Catches lists that fail because
/// two tasks need them at the same time.
#[test]
fn lists_of_several_tasks_at_the_same_time_succeed() {
    in_namespace(|| async {
        let netlink = Netlink::open().unwrap();
        // More than the kernel sends at once.
        let mut batch = String::new();
        for number in 0..2_000 {
            writeln!(batch, "address add 198.18.{}.{}/32 dev u0", number / 250, number % 250).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("batch");
        fs::write(&file, batch).unwrap();
        ip(&format!("-batch {}", file.display()));
        let tasks: Vec<_> = (0..40)
            .map(|number| {
                let netlink = netlink.clone();
                tokio::spawn(async move {
                    match number % 2 {
                        0 => netlink.links().await.map(|links| links.len()),
                        _ => netlink.addresses(None).await.map(|addresses| addresses.len()),
                    }
                })
            })
            .collect();
        for task in tasks {
            assert!(task.await.unwrap().unwrap() > 1);
        }
    });
}
