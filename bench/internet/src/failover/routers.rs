//! The peer: two Linux routers with nftables, keepalived (VRRP) and conntrackd (FTFW), in network namespaces. It changes with how
//! such a pair loses least.
//!
//! ```text
//!   client -- br-in -- r1, r2 -- br-out -- isp ----- far
//!                      |   |                         remote endpoints, server
//!                      br-sync
//! ```
//!
//! The bridges are in a namespace of their own, `sw`. As in the lab of Sluice, the router `isp` finds the public address by ARP.

use super::Side;
use super::load::Place;
use super::remote::Remote;
use crate::kernel::Limits;
use sluice_bench_report::shell::{Failure, feed, run};
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PREFIX: &str = "sbi-";
const PLACES: [&str; 6] = ["client", "r1", "r2", "isp", "far", "sw"];
const BRIDGES: [&str; 3] = ["in", "out", "sync"];
const CLIENTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 11), Ipv4Addr::new(10, 77, 0, 12)];
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 130);
/// Seconds between two advertisements: the least that VRRP (RFC 5798) has.
pub const ADVERTISEMENT: &str = "0.01";
/// Connections that the kernel tracks: those that stay, and all of a run of kills.
const SPARE: u32 = 2_000_000;
const READY_MAX: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
/// Time in which daemons start.
const START: Duration = Duration::from_secs(1);
/// A copy lacks what began or ended a moment ago.
const COPIED_PERCENT: u64 = 98;

/// The two routers, of which one may be dead.
pub struct Routers {
    folder: PathBuf,
    daemons: [Vec<Child>; 2],
    dead: Option<usize>,
    _remote: Option<Remote>,
    _limits: Limits,
}

fn namespace(place: &str) -> String {
    format!("{PREFIX}{place}")
}

/// Runs a command line in a namespace.
fn at(place: &str, line: &str) -> Result<String, Failure> {
    run(&format!("ip netns exec {} {line}", namespace(place)))
}

/// Starts the routers for `work`, and removes them whatever the result is.
///
/// # Errors
/// Errors of the tools and of `work`.
pub fn with_routers<T>(
    sessions: usize,
    work: impl AsyncFnOnce(&mut Routers) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let folder = std::env::temp_dir().join(format!("sluice-bench-internet-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let limits = Limits::raise(u32::try_from(sessions)? + SPARE)?;
    let mut routers = Routers {
        folder: folder.clone(),
        daemons: [const { Vec::new() }; 2],
        dead: None,
        _remote: None,
        _limits: limits,
    };
    let outcome = match routers.build() {
        Ok(()) => runtime.block_on(work(&mut routers)),
        Err(error) => Err(error),
    };
    drop(routers);
    fs::remove_dir_all(folder)?;
    outcome
}

impl Routers {
    fn build(&mut self) -> Result<(), Failure> {
        let mut lines = String::new();
        for place in PLACES {
            writeln!(lines, "netns add {}", namespace(place))?;
        }
        for bridge in BRIDGES {
            writeln!(lines, "link add br-{bridge} netns {} type bridge mcast_snooping 0", namespace("sw"))?;
        }
        let mut link = |(place, name): (&str, &str), (other, peer): (&str, &str)| {
            let (place, other) = (namespace(place), namespace(other));
            writeln!(lines, "link add {name} netns {place} type veth peer name {peer} netns {other}")
        };
        link(("client", "eth0"), ("sw", "client"))?;
        link(("isp", "ix0"), ("sw", "isp"))?;
        link(("isp", "far0"), ("far", "isp0"))?;
        for router in ["r1", "r2"] {
            for bridge in BRIDGES {
                link((router, bridge), ("sw", &format!("{router}-{bridge}")))?;
            }
        }
        feed("ip -batch -", &lines)?;
        self.configure_places()?;
        for router in 0..2 {
            self.configure_router(router)?;
            self.start(router)?;
            // The first one has the addresses before the second one starts: otherwise both announce them.
            std::thread::sleep(START);
        }
        let [far, isp] = ["far", "isp"].map(|place| Path::new("/run/netns").join(namespace(place)));
        self._remote = Some(Remote::start((&far, "isp0"), (&isp, "far0"))?);
        Ok(())
    }

    fn configure_places(&self) -> Result<(), Failure> {
        let batch = |place: &str, lines: &str| feed(&format!("ip -n {} -batch -", namespace(place)), lines);
        let mut ports = String::new();
        for bridge in BRIDGES {
            writeln!(ports, "link set br-{bridge} up")?;
            for router in ["r1", "r2"] {
                writeln!(ports, "link set {router}-{bridge} master br-{bridge} up")?;
            }
        }
        ports.push_str("link set client master br-in up\nlink set isp master br-out up\n");
        batch("sw", &ports)?;
        let mut client = "link set lo up\nlink set eth0 up\n".to_owned();
        for address in CLIENTS {
            writeln!(client, "address add {address}/24 dev eth0")?;
        }
        client.push_str("route add default via 10.77.0.1\n");
        batch("client", &client)?;
        batch(
            "isp",
            "link set ix0 up\nlink set far0 up\naddress add 203.0.113.254/24 dev ix0\n\
             address add 198.51.100.65/30 dev far0\nroute add 100.64.0.0/10 via 198.51.100.66\n\
             route add 198.51.100.128/26 via 198.51.100.66\n",
        )?;
        batch(
            "far",
            &format!(
                "link set lo up\nlink set isp0 up\naddress add 198.51.100.66/30 dev isp0\naddress add {SERVER}/32 dev lo\n\
                 route add default via 198.51.100.65\n"
            ),
        )?;
        at("isp", "sysctl -qw net.ipv4.ip_forward=1").map(drop)
    }

    fn configure_router(&self, router: usize) -> Result<(), Failure> {
        let (name, own) = (name_of(router), router + 2);
        feed(
            &format!("ip -n {} -batch -", namespace(name)),
            &format!(
                "link set lo up\nlink set in up\nlink set out up\nlink set sync up\naddress add 10.77.0.{own}/24 dev in\n\
                 address add 203.0.113.{own}/24 dev out\naddress add 10.78.0.{own}/24 dev sync\n\
                 route add default via 203.0.113.254\n"
            ),
        )?;
        for setting in [
            "net.ipv4.ip_forward=1",
            "net.ipv4.conf.all.rp_filter=0",
            // The timeouts of Sluice's gateways: no session of UDP ends by itself between two checks.
            "net.netfilter.nf_conntrack_udp_timeout=300",
            "net.netfilter.nf_conntrack_udp_timeout_stream=300",
        ] {
            at(name, &format!("sysctl -qw {setting}"))?;
        }
        // Not what the routers send themselves: VRRP must keep its source.
        let ruleset = "table ip nat {\n chain post {\n type nat hook postrouting priority srcnat; policy accept;\n \
                       ip saddr 10.77.0.0/24 oifname \"out\" snat to 203.0.113.1\n }\n}\n";
        feed(&format!("ip netns exec {} nft -f -", namespace(name)), ruleset)?;
        let conntrackd = self.file(router, "conntrackd.conf");
        fs::write(&conntrackd, self.conntrackd(router))?;
        let script = self.file(router, "role.sh");
        fs::write(&script, role_script(&conntrackd))?;
        run(&format!("chmod +x {}", script.display()))?;
        Ok(fs::write(self.file(router, "keepalived.conf"), keepalived(router, &script))?)
    }

    fn file(&self, router: usize, what: &str) -> PathBuf {
        self.folder.join(format!("{}.{what}", name_of(router)))
    }

    /// As Debian's example of the mode FTFW, with sizes for the sessions of this bench.
    fn conntrackd(&self, router: usize) -> String {
        let (own, other) = (router + 2, 3 - router);
        let [lock, control] = ["lock", "ctl"].map(|what| self.file(router, what).display().to_string());
        format!(
            "Sync {{\n Mode FTFW {{\n ResendQueueSize 262144\n }}\n UDP {{\n IPv4_address 10.78.0.{own}\n \
             IPv4_Destination_Address 10.78.0.{other}\n Port 3780\n Interface sync\n SndSocketBuffer 33554432\n \
             RcvSocketBuffer 33554432\n Checksum on\n }}\n}}\n\
             General {{\n HashSize 262144\n HashLimit 4194304\n LogFile off\n Syslog off\n LockFile {lock}\n UNIX {{\n \
             Path {control}\n }}\n NetlinkBufferSize 33554432\n NetlinkBufferSizeMaxGrowth 268435456\n \
             Filter From Userspace {{\n Protocol Accept {{\n TCP\n UDP\n }}\n Address Ignore {{\n IPv4_address 127.0.0.1\n \
             IPv4_address 10.78.0.2\n IPv4_address 10.78.0.3\n }}\n }}\n}}\n"
        )
    }

    /// Starts the daemons of a router.
    fn start(&mut self, router: usize) -> Result<(), Failure> {
        let netns = namespace(name_of(router));
        let file = |what: &str| self.file(router, what).display().to_string();
        let daemon = |words: &[&str], log: &str| -> Result<Child, Failure> {
            let log = fs::File::create(self.folder.join(format!("{}.{log}", name_of(router))))?;
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &netns]).args(words).stdin(Stdio::null());
            Ok(command.stdout(log.try_clone()?).stderr(log).spawn()?)
        };
        let conntrackd = daemon(&["conntrackd", "-C", &file("conntrackd.conf")], "conntrackd.log")?;
        let argv = [
            "keepalived",
            "-nlDPR",
            "-f",
            &file("keepalived.conf"),
            "-p",
            &file("pid"),
            "-r",
            &file("vrrp.pid"),
        ];
        let keepalived = daemon(&argv, "keepalived.log")?;
        self.daemons[router] = vec![conntrackd, keepalived];
        Ok(())
    }

    /// Kills the daemons of a router. The child of keepalived first: it withdraws when its parent ends.
    fn stop(&mut self, router: usize) {
        if let Ok(child) = fs::read_to_string(self.file(router, "vrrp.pid")) {
            // It may have ended.
            let _ = run(&format!("kill -KILL {}", child.trim()));
        }
        for mut daemon in self.daemons[router].drain(..) {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for what in ["lock", "ctl", "pid", "vrrp.pid"] {
            let _ = fs::remove_file(self.file(router, what));
        }
    }

    /// The router that has the public address, and to which clients and the Internet send.
    fn owner(&self) -> Result<usize, Failure> {
        for router in (0..2).filter(|router| self.dead != Some(*router)) {
            let name = name_of(router);
            let has_address = at(name, "ip -o -4 address show dev out")?.contains("203.0.113.1/");
            let is_used = |by: &str, address: &str, interface: &str| -> Result<bool, Failure> {
                let mac = at(name, &format!("cat /sys/class/net/{interface}/address"))?;
                Ok(at(by, &format!("ip neigh show {address}"))?.contains(mac.trim()))
            };
            if has_address && is_used("isp", "203.0.113.1", "out")? && is_used("client", "10.77.0.1", "in")? {
                return Ok(router);
            }
        }
        Err("no router has the public address and gets all packets".into())
    }

    /// Sets the ports of a router, at the switches.
    fn connect(&self, router: usize, state: &str) -> Result<(), Failure> {
        let mut lines = String::new();
        for bridge in BRIDGES {
            writeln!(lines, "link set {}-{bridge} {state}", name_of(router))?;
        }
        feed(&format!("ip -n {} -batch -", namespace("sw")), &lines)
    }

    /// Connections in a cache of conntrackd.
    fn cached(&self, router: usize, cache: &str) -> Result<u64, Failure> {
        let config = self.file(router, "conntrackd.conf");
        let text = at(name_of(router), &format!("conntrackd -C {} -s", config.display()))?;
        let section = text.split(&format!("cache {cache}:")).nth(1).unwrap_or_default();
        let line = section.lines().find(|line| line.contains("current active connections"));
        let number = line.and_then(|line| line.split_whitespace().last()).and_then(|word| word.parse().ok());
        number.ok_or_else(|| format!("conntrackd says {text:?}").into())
    }

    fn is_copied(&self) -> Result<bool, Failure> {
        let owner = self.owner()?;
        let (own, copied) = (self.cached(owner, "internal")?, self.cached(1 - owner, "external")?);
        Ok(copied * 100 >= own * COPIED_PERCENT)
    }
}

fn name_of(router: usize) -> &'static str {
    PLACES[1 + router]
}

fn keepalived(router: usize, script: &Path) -> String {
    let (script, router) = (script.display(), router + 1);
    let mut text = format!(
        "global_defs {{\n router_id r{router}\n vrrp_version 3\n vrrp_rt_priority 50\n vrrp_rlimit_rttime 2000000\n script_user root\n enable_script_security\n}}\n\
         vrrp_sync_group both {{\n group {{\n in\n out\n }}\n notify_master \"{script} primary\"\n notify_backup \"{script} backup\"\n \
         notify_fault \"{script} fault\"\n}}\n"
    );
    for (number, (interface, address)) in
        [("in", "10.77.0.1/24"), ("out", "203.0.113.1/24")].into_iter().enumerate()
    {
        text.push_str(&format!(
            "vrrp_instance {interface} {{\n interface {interface}\n state BACKUP\n virtual_router_id {}\n priority {}\n \
             advert_int {ADVERTISEMENT}\n nopreempt\n virtual_ipaddress {{\n {address}\n }}\n}}\n",
            51 + number,
            110 - 10 * router,
        ));
    }
    text
}

/// What Debian's `primary-backup.sh` does.
fn role_script(config: &Path) -> String {
    let tell = format!("conntrackd -C {}", config.display());
    format!(
        "#!/bin/sh\ncase \"$1\" in\nprimary)\n {tell} -c\n {tell} -f\n {tell} -R\n {tell} -B\n ;;\nbackup)\n {tell} -t\n {tell} -n\n ;;\n\
         fault)\n {tell} -t\n ;;\nesac\n"
    )
}

impl Side for Routers {
    fn places(&self) -> Vec<Place> {
        let namespace = Path::new("/run/netns").join(namespace("client"));
        let place = |address| Place { namespace: namespace.clone(), from: SocketAddrV4::new(address, 0) };
        CLIENTS.map(place).to_vec()
    }

    fn server(&self) -> (String, Ipv4Addr) {
        (namespace("far"), SERVER)
    }

    async fn ready(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            match self.is_copied() {
                Ok(true) => return Ok(()),
                outcome if begun.elapsed() > READY_MAX => {
                    let problem = outcome.err().map_or_else(String::new, |error| format!(": {error}"));
                    return Err(format!(
                        "conntrackd has not copied all sessions within {READY_MAX:?}{problem}"
                    )
                    .into());
                }
                _ => tokio::time::sleep(POLL).await,
            }
        }
    }

    async fn kill(&mut self) -> Result<Instant, Failure> {
        let owner = self.owner()?;
        let killed = Instant::now();
        self.connect(owner, "down")?;
        self.dead = Some(owner);
        self.stop(owner);
        Ok(killed)
    }

    async fn bring_back(&mut self) -> Result<(), Failure> {
        if let Some(dead) = self.dead {
            // A machine that starts has no connections, and no address of the pair.
            at(name_of(dead), "conntrack -F")?;
            for (address, interface) in [("10.77.0.1/24", "in"), ("203.0.113.1/24", "out")] {
                // It has them, unless it died in between.
                let _ = at(name_of(dead), &format!("ip address del {address} dev {interface}"));
            }
            self.connect(dead, "up")?;
            self.start(dead)?;
            self.dead = None;
            tokio::time::sleep(START).await;
        }
        self.ready().await
    }
}

impl Drop for Routers {
    fn drop(&mut self) {
        self._remote = None;
        (0..2).for_each(|router| self.stop(router));
        for place in PLACES {
            // Those that were made before an error.
            let _ = run(&format!("ip netns del {}", namespace(place)));
        }
    }
}
