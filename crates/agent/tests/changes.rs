//! Notifications of changes of the kernel's configuration.

mod support;

use std::process::Command;

use futures::FutureExt;
use sluice_agent::netlink::{MulticastGroup, changes};
use support::{in_namespace, ip};

/// Rounds after which the first change has reached every socket: the kernel tells all of them before the command ends.
const ROUNDS: usize = 20;

/// Catches an agent that reviews its interfaces after each change of a queueing discipline, for which it did not ask.
#[test]
fn only_agents_that_ask_are_notified_of_queueing_disciplines() {
    in_namespace(|| async {
        // The loopback interface, which then is the only one, changes by nothing else.
        ip("link delete u0");
        let (plain, with_disciplines) = (changes(&[]).unwrap(), changes(&[MulticastGroup::Tc]).unwrap());
        for limit in 1..=ROUNDS {
            let limit = limit.to_string();
            let arguments = ["qdisc", "replace", "dev", "lo", "root", "pfifo", "limit", &limit];
            assert!(Command::new("tc").args(arguments).status().unwrap().success());
            with_disciplines.notified().await;
        }
        assert_eq!(plain.notified().now_or_never(), None);
    });
}
