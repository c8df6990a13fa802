//! Checks that the minimal forwarder sends what the gateway sends, and runs the parts that need no lab at a small
//! size. The figures are not checked. Needs root and two cores.

use sluice_bench_report::shell::Failure;
use sluice_bench_spine::forward::Effort;
use sluice_bench_spine::gateway::{Gateway, Routes};
use sluice_bench_spine::minimal::Minimal;
use sluice_bench_spine::packet::PACKET_BYTES;
use sluice_bench_spine::rig::Rig;
use sluice_bench_spine::{cores, forward, ns};
use sluice_types::ROUTER_MAC;
use std::collections::BTreeSet;
use std::ops::Range;

const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const ENDPOINTS: u32 = 2_000;
const PACKETS: usize = 100;
/// Bytes that the minimal forwarder reads: up to the inner ports.
const HEADER_BYTES: usize = 88;
/// UDP source port of the outer header. Each program has its own hash of the flow.
const SOURCE_PORT: Range<usize> = 34..36;
/// Bytes of a packet, one of which differs in a packet that is not for the minimal forwarder.
const CHECKED: [(&str, usize); 7] = [
    ("EtherType", 12),
    ("outer header length", 14),
    ("protocol", 23),
    ("outer destination", 33),
    ("UDP destination port", 37),
    ("VNI", 48),
    ("inner EtherType", 63),
];

/// Runs `work` on a thread in a new network namespace.
fn in_namespace<T: Send>(work: impl FnOnce() -> Result<T, Failure> + Send) -> T {
    let inside = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        work()
    };
    let outcome = std::thread::scope(|scope| scope.spawn(inside).join());
    outcome.expect("the thread does not panic").expect("as root, on two cores")
}

/// Catches a minimal forwarder that does less than what is needed, or something else.
#[test]
fn minimal_forwarder_sends_what_the_gateway_sends() {
    in_namespace(|| {
        let rig = Rig::new()?;
        rig.aim(ENDPOINTS, 64, ROUTER_MAC.octets())?;
        let gateway = Gateway::with_flows(&rig, ENDPOINTS, Routes::One, 0)?;
        let minimal = Minimal::new(&rig, ENDPOINTS)?;
        for _ in 0..PACKETS {
            let packet = rig.packet()?;
            let (mut expected, mut sent) = (gateway.forward(&rig, &packet)?, minimal.forward(&rig, &packet)?);
            assert_eq!((expected.0, sent.0), (XDP_TX, XDP_TX));
            assert!(expected.1[..PACKET_BYTES] != packet[..PACKET_BYTES], "the gateway changed nothing");
            for bytes in [&mut expected.1, &mut sent.1] {
                assert!(bytes[SOURCE_PORT.start] >= 0xc0, "a source port below 49152");
                bytes[SOURCE_PORT].fill(0);
            }
            assert_eq!(expected.1, sent.1, "of {packet:?}");
        }
        Ok(())
    });
}

#[test]
fn minimal_forwarder_passes_what_is_not_for_it() {
    in_namespace(|| {
        let rig = Rig::new()?;
        rig.aim(1, 1, ROUTER_MAC.octets())?;
        let (minimal, packet) = (Minimal::new(&rig, 1)?, rig.packet()?);
        let pass = |packet: &[u8]| -> Result<bool, Failure> {
            let (verdict, sent) = minimal.forward(&rig, packet)?;
            Ok(verdict == XDP_PASS && sent == packet)
        };
        assert!(!pass(&packet)?, "a packet for it was not forwarded");
        for (what, at) in CHECKED {
            let mut other = packet.clone();
            other[at] ^= 1;
            assert!(pass(&other)?, "a packet with another {what} was not passed");
        }
        assert!(pass(&packet[..HEADER_BYTES - 1])?, "a truncated packet was not passed");
        Ok(())
    });
}

#[test]
fn parts_without_a_lab_run_and_give_their_figures() {
    let effort = Effort { seconds: 0.05, rounds: 1, peers_to: 0 };
    let sizes = ["2k".to_owned()];
    let mut measures = ns::measure(effort, &sizes).expect("as root, on two cores");
    measures.extend(forward::measure(effort, &sizes).expect("the same sides were set up before"));
    measures.extend(cores::measure(effort, &sizes).expect("there are two cores"));
    let found: BTreeSet<(&str, &str)> =
        measures.iter().map(|measure| (measure.measure.as_str(), measure.peer)).collect();
    let expected = BTreeSet::from([
        ("gateway_ns_2k", "minimal"),
        ("gateway_mpps_2k", "minimal"),
        ("gateway_mpps_2k", "reflector"),
        ("gateway_mpps_2k", "kernel_vxlan"),
        ("gateway_mpps_2k", "ovs_netdev"),
        ("gateway_routed_mpps_2k", "reflector"),
        ("gateway_routed_mpps_2k", "kernel_vxlan"),
        ("gateway_routed_mpps_2k", "kernel_nexthops"),
        ("gateway_routed_ns_2k", "-"),
        ("gateway_over_reflector_ns_2k", "-"),
        ("gateway_two_cores_2k", "one core"),
    ]);
    assert_eq!(found, expected);
    for measure in measures.iter().filter(|measure| measure.measure != "gateway_over_reflector_ns_2k") {
        assert!(measure.ours.median > 0.0, "{measure:?}");
    }
}
