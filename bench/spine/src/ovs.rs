//! Open vSwitch's user-space datapath, with one flow for each instance. It changes with Open vSwitch's tools.

use crate::packet;
use crate::peers::{host_of, instance};
use sluice_bench_report::shell::{Failure, feed, run};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Open vSwitch with its database and sockets in a temporary directory. It ends when the value is dropped.
pub struct Ovs {
    directory: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ovs {
    /// Starts it with `dut` as its underlay port and one flow for each instance.
    ///
    /// # Errors
    /// Errors of its tools.
    pub fn start(count: u32, dut_mac: &str, peer_mac: &str) -> Result<Self, Failure> {
        let mut ovs = Self { directory: tempfile::tempdir()?, children: Vec::new() };
        let database = ovs.path("conf.db");
        run(&format!("ovsdb-tool create {} /usr/share/openvswitch/vswitch.ovsschema", database.display()))?;
        ovs.spawn(
            "ovsdb-server",
            &[database.display().to_string(), format!("--remote=punix:{}", ovs.path("db.sock").display())],
        )?;
        ovs.wait_for("db.sock")?;
        ovs.vsctl("--no-wait init")?;
        ovs.spawn(
            "ovs-vswitchd",
            &[format!("unix:{}", ovs.path("db.sock").display()), "--disable-system".into()],
        )?;
        ovs.vsctl(&format!(
            "add-br br-phy -- set bridge br-phy datapath_type=netdev other-config:hwaddr={dut_mac} -- add-port br-phy dut"
        ))?;
        ovs.vsctl("add-br br-int -- set bridge br-int datapath_type=netdev -- add-port br-int vx -- set interface vx type=vxlan options:remote_ip=flow options:key=flow options:local_ip=192.0.2.2")?;
        run("ip address flush dev dut")?;
        run("ip link set br-phy up")?;
        run("ip address add 192.0.2.2/24 dev br-phy")?;
        run("ip route replace 172.16.0.0/12 via 192.0.2.1 dev br-phy")?;
        ovs.appctl(&format!("tnl/arp/set br-phy 192.0.2.1 {peer_mac}"))?;
        ovs.appctl("ovs/route/add 172.16.0.0/12 br-phy 192.0.2.1")?;
        ovs.flows(count)?;
        Ok(ovs)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn spawn(&mut self, program: &str, arguments: &[String]) -> Result<(), Failure> {
        let log = std::fs::File::create(self.path(&format!("{program}.log")))?;
        let child = Command::new(program)
            .args(arguments)
            .arg(format!("--unixctl={}", self.path(&format!("{program}.ctl")).display()))
            .env("OVS_RUNDIR", self.directory.path())
            .env("OVS_LOGDIR", self.directory.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{program}: {error} (package openvswitch-switch)"))?;
        self.children.push(child);
        Ok(())
    }

    fn wait_for(&self, socket: &str) -> Result<(), Failure> {
        let start = Instant::now();
        while !self.path(socket).exists() {
            if start.elapsed() > Duration::from_secs(5) {
                return Err(format!("{socket} did not appear within 5 s").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn vsctl(&self, line: &str) -> Result<(), Failure> {
        run(&format!("ovs-vsctl --timeout=20 --db=unix:{} {line}", self.path("db.sock").display())).map(drop)
    }

    fn appctl(&self, line: &str) -> Result<(), Failure> {
        run(&format!("ovs-appctl --timeout=20 -t {} {line}", self.path("ovs-vswitchd.ctl").display()))
            .map(drop)
    }

    fn flows(&self, count: u32) -> Result<(), Failure> {
        let target = format!("unix:{}", self.path("br-int.mgmt").display());
        run(&format!("ovs-ofctl del-flows {target}"))?;
        let mut flows = String::new();
        for index in 0..count {
            let (to, host) = (instance(index), host_of(index));
            writeln!(
                flows,
                "priority=10,ip,tun_id={},nw_dst={to},actions=dec_ttl,set_field:02:00:00:00:00:63->eth_dst,\
                 set_field:{}->tun_id,set_field:{host}->tun_dst,in_port",
                packet::VNI,
                packet::VNI
            )?;
        }
        feed(&format!("ovs-ofctl --timeout=120 add-flows {target} -"), &flows)
    }
}
