//! The load, against a router of the kernel that changes what it translates to. Needs root.

use super::load::{Checked, Client, Place, Storm, check, open, storm, stormed};
use super::remote::Remote;
use sluice_bench_report::shell::{feed, run};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const NAMES: [&str; 3] = ["sbl-client", "sbl-router", "sbl-far"];
const SESSIONS: usize = 40;

/// Three namespaces in a line, which are removed when this is dropped.
struct Line;

impl Drop for Line {
    fn drop(&mut self) {
        for name in NAMES {
            // Those that were made before an error.
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}

impl Line {
    fn new() -> Self {
        let [client, router, far] = NAMES;
        let line = Self;
        feed(
            "ip -batch -",
            &format!(
                "netns add {client}\nnetns add {router}\nnetns add {far}\n\
                 link add eth0 netns {client} type veth peer name in netns {router}\n\
                 link add out netns {router} type veth peer name eth0 netns {far}\n"
            ),
        )
        .unwrap();
        for (name, lines) in [
            (
                client,
                "link set eth0 up\naddress add 10.77.0.11/24 dev eth0\nroute add default via 10.77.0.1\n",
            ),
            (
                router,
                "link set in up\nlink set out up\naddress add 10.77.0.1/24 dev in\naddress add 203.0.113.1/24 dev out\n\
                 route add 100.64.0.0/10 via 203.0.113.254\n",
            ),
            (far, "link set eth0 up\naddress add 203.0.113.254/24 dev eth0\n"),
        ] {
            feed(&format!("ip -n {name} -batch -"), lines).unwrap();
        }
        run(&format!("ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1")).unwrap();
        line
    }

    /// Forgets all connections, and translates to these ports from now on.
    fn translate_to(&self, ports: &str) {
        let rules = format!(
            "add table ip nat\ndelete table ip nat\ntable ip nat {{\n chain post {{\n type nat hook postrouting priority srcnat; \
             policy accept;\n oifname \"out\" ip protocol udp snat to 203.0.113.1:{ports}\n }}\n}}\n"
        );
        feed(&format!("ip netns exec {} nft -f -", NAMES[1]), &rules).unwrap();
        run(&format!("ip netns exec {} conntrack -F", NAMES[1])).unwrap();
    }
}

/// Catches a load that takes a session that begins a second time for one that goes on, and one that counts what never began.
#[test]
fn sessions_that_end_are_noticed_although_others_begin_in_their_place() {
    let line = Line::new();
    line.translate_to("10000-10999");
    let [namespace, router, far] = NAMES.map(|name| Path::new("/run/netns").join(name));
    let _remote = Remote::start((&far, "eth0"), (&router, "out")).unwrap();
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 11), 20_000);
    let clients = [Client::start(&Place { namespace, from }).unwrap()];
    open(&clients, SESSIONS).unwrap();
    let whole = Checked { sessions: SESSIONS, ..Checked::default() };
    assert_eq!(check(&clients).unwrap(), whole);
    line.translate_to("20000-20999");
    assert_eq!(check(&clients).unwrap(), Checked { moved: SESSIONS, ..whole });
    assert_eq!(check(&clients).unwrap(), whole, "each session is lost once");

    let end = Arc::new(AtomicBool::new(false));
    storm(&clients, &Storm { probes_per_s: 100, fresh_per_s: 100, end: end.clone() });
    std::thread::sleep(Duration::from_millis(300));
    run(&format!("ip -n {} link set eth0 down", NAMES[2])).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    end.store(true, Ordering::Relaxed);
    let stormed = stormed(&clients).unwrap().remove(0);
    let answered = stormed.probes.iter().filter(|(_, answered)| *answered).count();
    assert!(answered > 0 && answered < stormed.probes.len(), "{answered} of {} probes", stormed.probes.len());
    assert!((1..stormed.fresh).contains(&stormed.half_open.len()), "{stormed:?}");
    let checked = check(&clients).unwrap();
    let known = SESSIONS + stormed.fresh - stormed.half_open.len();
    assert_eq!(
        checked,
        Checked { sessions: known, moved: 0, silent: known, never_begun: stormed.half_open.len() }
    );
}
