//! The flows and the ports with the most packets, which findings about overload name (Achelous, Table 2). Pure. This file changes
//! with what is named.

use super::rules::PortSample;

/// Reads which flows have the most packets now. It may block for a second.
pub type FlowMeter = Box<dyn FnMut() -> Vec<HeavyFlow> + Send>;

/// The flow with the most packets of those that a port sends, or of those that it receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyFlow {
    /// Interface of the port.
    pub ifname: String,
    /// Whether the VM sends it; otherwise the VM receives it.
    pub is_sent: bool,
    /// Protocol, addresses and ports.
    pub flow: String,
    /// Its packets in a second.
    pub packets: u64,
}

fn named(flow: Option<&HeavyFlow>) -> String {
    flow.map_or_else(String::new, |it| format!("; heaviest flow: {}, {} packets", it.flow, it.packets))
}

/// What is added to the evidence that a VM does not take what is sent to it: the heaviest flow to the VM.
pub fn to_port(flows: &[HeavyFlow], ifname: &str) -> String {
    let received = flows.iter().filter(|it| !it.is_sent && it.ifname == ifname);
    named(received.max_by_key(|it| it.packets))
}

/// What is added to the evidence that a host has too many packets: the VM with the most packets, and the heaviest flow of all.
pub fn of_node(flows: &[HeavyFlow], ports: &[PortSample]) -> String {
    let packets = |port: &PortSample| {
        let counters = port.interface.counters;
        counters.rx_packets + counters.tx_packets
    };
    let busiest = ports.iter().filter(|port| packets(port) > 0).max_by_key(|port| packets(port));
    let of_port = busiest.map_or_else(String::new, |port| {
        // What the interface receives, the VM has sent.
        let (sent, received) = (port.interface.counters.rx_packets, port.interface.counters.tx_packets);
        let (instance, name) = (port.instance, &port.interface.name);
        format!("; busiest VM: {instance} ({name}), {sent} packets sent, {received} received")
    });
    of_port + &named(flows.iter().max_by_key(|it| it.packets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::rules::InterfaceSample;
    use crate::health::sample::InterfaceCounters;
    use sluice_types::InstanceId;

    fn port(number: u64, rx_packets: u64, tx_packets: u64) -> PortSample {
        let counters = InterfaceCounters { rx_packets, tx_packets, ..InterfaceCounters::default() };
        let interface = InterfaceSample { name: format!("sl-{number}"), counters, has_carrier: true };
        PortSample { interface, instance: InstanceId::new(number), answers: true }
    }

    fn flow(number: u64, is_sent: bool, packets: u64) -> HeavyFlow {
        HeavyFlow { ifname: format!("sl-{number}"), is_sent, flow: format!("udp {packets}"), packets }
    }

    /// Catches a flow that a VM sends and is called the cause of what the VM cannot take.
    #[test]
    fn the_heaviest_is_named() {
        let flows = [flow(1, true, 900), flow(1, false, 20), flow(1, false, 30), flow(2, false, 70)];
        assert_eq!(to_port(&flows, "sl-1"), "; heaviest flow: udp 30, 30 packets");
        assert_eq!(to_port(&flows, "sl-3"), "");
        let ports = [port(1, 900, 50), port(2, 1, 70)];
        assert_eq!(
            of_node(&flows, &ports),
            "; busiest VM: inst-1 (sl-1), 900 packets sent, 50 received; heaviest flow: udp 900, 900 packets"
        );
        assert_eq!(of_node(&[], &[port(1, 0, 0)]), "");
    }
}
