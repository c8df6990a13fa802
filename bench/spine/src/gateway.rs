//! The real gateway program over real tables, on the rig's `dut`.

use crate::packet;
use crate::peers::{HOSTS, host_of, instance};
use crate::rig::Rig;
use ipnet::IpNet;
use libbpf_rs::Link;
use sluice_bench_report::shell::Failure;
use sluice_datapath::{Datapath, FLOW_CELLS_MAP, FlowEvents, ObjectName, Settings};
use sluice_tables::flows::{Flows, Policy};
use sluice_tables::{
    Endpoint, Membarrier, NodeConfig, NodeTables, Role, Route, Sizes, Target, UnderlayPort, Vip, Vrf,
};
use sluice_types::{MacAddr, ROUTER_MAC, Vni};
use std::net::IpAddr;
use std::os::fd::AsFd;

const PROGRAM: &str = "gateway";

/// Cells that a host route may take, more than enough.
const ROUTE_CELLS: u32 = 16;

/// What leads to the VM-NC entries of the VPC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Routes {
    /// One route for all.
    One,
    /// One more for each entry.
    Each,
}

/// A loaded gateway with `count` VM-NC entries in one VPC.
pub struct Gateway {
    datapath: Datapath,
    _tables: NodeTables,
}

impl Gateway {
    /// Loads the program and fills the tables.
    ///
    /// # Errors
    /// The datapath's or the tables'.
    pub fn new(rig: &Rig, count: u32, routes: Routes) -> Result<Self, Failure> {
        Self::with_flows(rig, count, routes, 0)
    }

    /// The same, with room for so many flows. None are counted before [`Gateway::count_flows`].
    ///
    /// # Errors
    /// The datapath's or the tables'.
    pub fn with_flows(rig: &Rig, count: u32, routes: Routes, flows: u32) -> Result<Self, Failure> {
        let cells = (1 << 16 | count) + if routes == Routes::Each { count * ROUTE_CELLS } else { 0 };
        let settings = Settings { object: ObjectName::Gateway, cells, pin_dir: None };
        let flow_cells = u32::try_from(Flows::cells_for(u64::from(flows)))?;
        let datapath = Datapath::load_sized(&settings, &[(FLOW_CELLS_MAP, flow_cells)])?;
        let memory = datapath.memory()?;
        let mut tables = NodeTables::create(memory, Membarrier::new()?, Sizes { endpoints: count as usize })?;
        let vni = Vni::new(packet::VNI)?;
        tables.set_node(&NodeConfig {
            vtep4: Some(packet::GATEWAY),
            vtep6: None,
            router_mac: ROUTER_MAC,
            vxlan_ifindex: 0,
            ports: vec![UnderlayPort {
                ifindex: rig.dut_ifindex as u32,
                mtu: 1500,
                mac: MacAddr::new(rig.dut_mac),
            }],
        })?;
        tables.upsert_vip(&Vip {
            address: packet::GATEWAY.into(),
            mac: MacAddr::new(rig.dut_mac),
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
        let endpoints: Vec<_> = (0..count)
            .map(|index| Endpoint {
                vni,
                address: IpAddr::V4(instance(index)),
                mac: MacAddr::local(u64::from(index)),
                host: IpAddr::V4(host_of(index)),
            })
            .collect();
        let bulk = tables.upsert_endpoints(&endpoints);
        if bulk.failed > 0 {
            return Err(
                format!("{} of {count} entries did not fit: {:?}", bulk.failed, bulk.errors.first()).into()
            );
        }
        Ok(Self { datapath, _tables: tables })
    }

    /// Says what is told of flows.
    ///
    /// # Errors
    /// The datapath's.
    pub fn count_flows(&self, policy: Policy) -> Result<(), Failure> {
        self.datapath.flows()?.configure(&policy)?;
        Ok(())
    }

    /// What the program tells of flows.
    ///
    /// # Errors
    /// The datapath's.
    pub fn flow_events(&self) -> Result<FlowEvents, Failure> {
        Ok(self.datapath.flow_events()?)
    }

    /// Puts the program on `dut` until the link is dropped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(&self, rig: &Rig) -> Result<Link, Failure> {
        Ok(self.datapath.program(PROGRAM)?.attach_xdp(rig.dut_ifindex)?)
    }

    /// Nanoseconds that the program takes for a packet, as the mean of `packets`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn nanoseconds(&self, rig: &Rig, packets: u32) -> Result<f64, Failure> {
        rig.nanoseconds(self.datapath.program(PROGRAM)?.as_fd(), packets)
    }
}
