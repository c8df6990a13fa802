//! The gateway's own program over its own tables, on the rig's interface `dut`. It changes with what a gateway's
//! tables need before packets are forwarded.

use crate::packet;
use crate::peers::{HOSTS, host_of, instance, mac_of};
use crate::rig::{Interfaces, Rig};
use ipnet::IpNet;
use libbpf_rs::{Link, MapHandle};
use sluice_bench_report::{shell::Failure, stay_on};
use sluice_datapath::{Datapath, FLOW_CELLS_MAP, FlowEvents, ObjectName, Settings};
use sluice_tables::flows::{FlowConfig, Flows, Policy};
use sluice_tables::{
    Endpoint, Membarrier, NodeConfig, NodeTables, Role, Route, Sizes, Target, UnderlayPort, Vip, Vrf,
};
use sluice_types::{MacAddr, ROUTER_MAC, Vni};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const PROGRAM: &str = "gateway";

/// The default of a VPC: 20 kbit/s for a second.
pub const DETECT: Policy =
    Policy::Detect(FlowConfig { period: Duration::from_secs(1), elephant_bytes: 2_500 });

/// A number of cells that is larger than a host route takes.
const ROUTE_CELLS: u32 = 16;

/// Routes that lead to the VM-NC entries of the VPC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Routes {
    /// One route for all entries.
    One,
    /// The same, and one more route for each entry.
    Each,
}

/// A loaded gateway with `count` VM-NC entries in one VPC.
pub struct Gateway {
    datapath: Datapath,
    tables: NodeTables,
}

impl Gateway {
    /// Loads the program with space for `flows` flows and fills the tables. No flow is counted before
    /// [`Gateway::count_flows`].
    ///
    /// # Errors
    /// Errors of the datapath or the tables.
    pub fn with_flows(rig: &Rig, count: u32, routes: Routes, flows: u32) -> Result<Self, Failure> {
        let flow_cells = u32::try_from(Flows::cells_for(u64::from(flows)))?;
        Self::with_maps(rig.interfaces, count, routes, &[(FLOW_CELLS_MAP, flow_cells)])
    }

    /// Loads the program with these sizes of maps and fills the tables.
    ///
    /// # Errors
    /// Errors of the datapath or the tables.
    pub fn with_maps(
        interfaces: Interfaces,
        count: u32,
        routes: Routes,
        maps: &[(&str, u32)],
    ) -> Result<Self, Failure> {
        let cells = (1 << 16 | count) + if routes == Routes::Each { count * ROUTE_CELLS } else { 0 };
        let settings = Settings { object: ObjectName::Gateway, cells, pin_dir: None };
        let datapath = Datapath::load_sized(&settings, maps)?;
        let memory = datapath.memory()?;
        let mut tables = NodeTables::create(memory, Membarrier::new()?, Sizes { endpoints: count as usize })?;
        let vni = Vni::new(packet::VNI)?;
        tables.set_node(&NodeConfig {
            vtep4: Some(packet::GATEWAY),
            vtep6: None,
            router_mac: ROUTER_MAC,
            vxlan_ifindex: 0,
            ports: vec![UnderlayPort {
                ifindex: interfaces.dut_ifindex as u32,
                mtu: 1500,
                mac: MacAddr::new(interfaces.dut_mac),
                internet: false,
            }],
        })?;
        tables.upsert_vip(&Vip {
            address: packet::GATEWAY.into(),
            mac: MacAddr::new(interfaces.dut_mac),
            owned: true,
        })?;
        tables.upsert_vtep(packet::PEER.into(), Role::Host)?;
        for host in 0..HOSTS {
            tables.upsert_vtep(host_of(host).into(), Role::Host)?;
        }
        tables.upsert_vrf(&Vrf {
            vni,
            mtu: 1430,
            router4: Some([10, 0, 0, 1].into()),
            router6: None,
            group: None,
            elephant_bytes: None,
        })?;
        tables.upsert_route(&Route { vni, prefix: "10.0.0.0/8".parse()?, target: Target::Local })?;
        for index in 0..if routes == Routes::Each { count } else { 0 } {
            let prefix = IpNet::from(IpAddr::V4(instance(index)));
            tables.upsert_route(&Route { vni, prefix, target: Target::Local })?;
        }
        // The sender of all packets has an instance of the VPC.
        let (address, host) = (IpAddr::from([10, 255, 255, 254]), packet::PEER.into());
        tables.upsert_endpoint(&Endpoint { vni, address, mac: mac_of(count), host })?;
        let endpoints: Vec<_> = (0..count)
            .map(|index| Endpoint {
                vni,
                address: IpAddr::V4(instance(index)),
                mac: mac_of(index),
                host: IpAddr::V4(host_of(index)),
            })
            .collect();
        let bulk = tables.upsert_endpoints(&endpoints);
        if bulk.failed > 0 {
            return Err(
                format!("{} of {count} entries did not fit: {:?}", bulk.failed, bulk.errors.first()).into()
            );
        }
        Ok(Self { datapath, tables })
    }

    /// The programs and their maps.
    pub fn datapath(&self) -> &Datapath {
        &self.datapath
    }

    /// The tables, to add what else is measured.
    pub fn tables(&mut self) -> &mut NodeTables {
        &mut self.tables
    }

    /// Sets which flows are reported.
    ///
    /// # Errors
    /// Errors of the datapath.
    pub fn count_flows(&self, policy: Policy) -> Result<(), Failure> {
        self.datapath.flows()?.configure(&policy)?;
        Ok(())
    }

    /// The flows that the program reports.
    ///
    /// # Errors
    /// Errors of the datapath.
    pub fn flow_events(&self) -> Result<FlowEvents, Failure> {
        Ok(self.datapath.flow_events()?)
    }

    /// Attaches the program to `dut` until the link is dropped.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn attach(&self, rig: &Rig) -> Result<Link, Failure> {
        Ok(self.datapath.program(PROGRAM)?.attach_xdp(rig.interfaces.dut_ifindex)?)
    }

    /// The program, for threads that have no gateway.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn program(&self) -> Result<OwnedFd, Failure> {
        Ok(self.datapath.program(PROGRAM)?.as_fd().try_clone_to_owned()?)
    }

    /// A map of the program.
    ///
    /// # Errors
    /// If nothing has this name.
    pub fn map(&self, name: &str) -> Result<MapHandle, Failure> {
        Ok(self.datapath.map(name)?)
    }

    /// Number of BPF instructions of the program.
    ///
    /// # Errors
    /// Errors of the datapath.
    pub fn instructions(&self) -> Result<u32, Failure> {
        Ok(u32::try_from(self.datapath.program(PROGRAM)?.insns().len())?)
    }

    /// Nanoseconds that the program takes for a packet, as the mean of `packets`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn nanoseconds(&self, rig: &Rig, packets: u32) -> Result<f64, Failure> {
        rig.nanoseconds(self.datapath.program(PROGRAM)?.as_fd(), packets)
    }

    /// The verdict for a packet that `dut` receives, and what the packet is then.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn forward(&self, rig: &Rig, packet: &[u8]) -> Result<(u32, Vec<u8>), Failure> {
        rig.forward(&self.datapath.program(PROGRAM)?, packet)
    }
}

/// Reads the events of a gateway like an agent, on a core of its own, until it is stopped or dropped.
pub struct EventReader {
    end: Arc<AtomicBool>,
    seen: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl EventReader {
    /// Starts to read on `core`.
    pub fn start(mut events: FlowEvents, core: usize) -> Self {
        let (end, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ending, count) = (end.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            stay_on(core)?;
            let mut batch = Vec::new();
            while !ending.load(Ordering::Relaxed) {
                events.drain(&mut batch)?;
                count.fetch_add(batch.len(), Ordering::Relaxed);
                batch.clear();
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        Self { end, seen, thread: Some(thread) }
    }

    /// Number of events that were read so far.
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }

    /// Stops.
    ///
    /// # Errors
    /// Errors of the datapath while events were read.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.end.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or("the reader of events has ended")?;
        thread.join().map_err(|_| "the reader of events panicked")?
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}
