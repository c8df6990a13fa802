//! Neighbours that the kernel is asked to keep resolved.

mod support;

use sluice_agent::netlink::Netlink;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;
use support::{in_namespace, ip};

const ADDRESSES: [&str; 2] = ["192.0.2.11", "2001:db8::11"];

async fn resolved(netlink: &Netlink) -> usize {
    let all = netlink.neighbours().await.unwrap();
    all.iter().filter(|neighbour| neighbour.kept && neighbour.resolved).count()
}

/// Waits for a number of resolved neighbours, for less time than the kernel lets pass between two tries.
async fn becomes(netlink: &Netlink, number: usize) {
    for _ in 0..40 {
        if resolved(netlink).await == number {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not {number} resolved: {}", ip("neigh show nud all dev u0"));
}

async fn ask(netlink: &Netlink, index: u32) {
    for address in ADDRESSES {
        netlink.ask_neighbour(index, address.parse::<IpAddr>().unwrap()).await.unwrap();
    }
}

#[test]
fn one_that_did_not_answer_is_asked_again_at_once() {
    in_namespace(|| async {
        let netlink = Netlink::open().unwrap();
        let index = netlink.require_link("u0").await.unwrap().index;
        // Both ends are of one stack: it must believe that a packet of its own comes from outside.
        fs::write("/proc/sys/net/ipv4/conf/t0/accept_local", "1").unwrap();
        ask(&netlink, index).await;
        let failed = || ip("neigh show nud failed dev u0").lines().count() == ADDRESSES.len();
        support::eventually("nobody answers", || failed().then_some(())).await;
        assert_eq!(resolved(&netlink).await, 0);
        // As long as its first question is not answered, the kernel asks once a second.
        ask(&netlink, index).await;

        ip("addr add 192.0.2.11/32 dev t0");
        ip("addr add 2001:db8::11/128 dev t0 nodad");
        ask(&netlink, index).await;
        becomes(&netlink, 2).await;

        // The kernel forgets them with the carrier.
        ip("link set t0 down");
        becomes(&netlink, 0).await;
        ip("link set t0 up");
        ip("addr replace 2001:db8::11/128 dev t0 nodad");
        ask(&netlink, index).await;
        becomes(&netlink, 2).await;
    });
}
