//! Datagrams with which gateways report the demand of meters, and their envelope.
//!
//! An input is a byte that selects what is decoded, one that selects what is forged, and the bytes to decode.

use crate::sealed::{BOOT, NOW_MS, RECEIVER, forge, keys};
use sluice_cluster::meters::{Demand, MeterReport, MeterSharing, ReportCodec, Sample};
use sluice_types::{GatewayId, METER_WHOLE};

/// Selects that the bytes are a datagram; otherwise they are the report in one.
const DATAGRAM: u8 = 1;

const OWN: GatewayId = GatewayId::new(1);
const SENDER: GatewayId = GatewayId::new(8);

pub fn run(data: &[u8]) {
    let [kind, choice, bytes @ ..] = data else { return };
    let mut receiver = ReportCodec::new(OWN, BOOT, NOW_MS);
    if *kind == DATAGRAM {
        // Only the sealed parts of other inputs are authentic.
        assert!(receiver.open(keys(), NOW_MS, RECEIVER, bytes).is_err(), "an unsealed datagram was accepted");
        return;
    }
    let Ok(report) = MeterReport::decode(bytes) else { return };
    assert_eq!(report.encode(), bytes, "a report has one encoding");
    take_shares(&report);
    let mut sender = ReportCodec::new(SENDER, BOOT, NOW_MS);
    let Ok(packet) = sender.seal(keys(), NOW_MS, RECEIVER, &report) else { return };
    let forged = forge(&packet, *choice);
    assert!(receiver.open(keys(), NOW_MS, RECEIVER, &forged).is_err(), "a forged datagram was accepted");
    assert_eq!(receiver.open(keys(), NOW_MS, RECEIVER, &packet), Ok((SENDER, report)));
    assert!(receiver.open(keys(), NOW_MS, RECEIVER, &packet).is_err(), "a replayed datagram was accepted");
}

/// Whatever another gateway reports, the shares of a gateway with demand are within their bounds.
fn take_shares(report: &MeterReport) {
    let mut sharing = MeterSharing::new(OWN);
    sharing.set_members(0, vec![OWN, SENDER]);
    let id = report.demands[0].id;
    for tick in 1..4 {
        let sample = Sample {
            id,
            rates: [8_000, 50_000_000_000],
            shares: [METER_WHOLE; 2],
            offered: [tick * 9_999; 2],
        };
        for (_, shares) in sharing.tick(tick * 100_000, &[sample]).shares {
            assert!(shares.iter().all(|share| (1..=METER_WHOLE).contains(share)), "{shares:?}");
        }
        assert!(sharing.receive(tick * 100_000, SENDER, report));
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let demand = |id, inward, outward| Demand { id, bytes_per_s: [inward, outward] };
    let reports = [
        MeterReport { demands: vec![demand(1, 0, 300)] },
        MeterReport { demands: vec![demand(7, 1 << 40, 0), demand(u32::MAX, 8_000, 1)] },
    ];
    let mut seeds: Vec<_> = reports.iter().map(|report| [vec![0, 0], report.encode()].concat()).collect();
    // Sealed for another receiver.
    let mut sender = ReportCodec::new(SENDER, BOOT, NOW_MS);
    let elsewhere = "2001:db8::8".parse().expect("an address");
    let packet = sender.seal(keys(), NOW_MS, elsewhere, &reports[0]).expect("a key is valid");
    seeds.push([vec![DATAGRAM, 0], packet].concat());
    seeds
}
