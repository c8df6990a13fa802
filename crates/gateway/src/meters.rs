//! The meters as the local API lists them: `GET /meters`. This file changes with what is shown of a meter.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use sluice_agent::local_api::ApiError;
use sluice_agent::{Error, TableWriter, monotonic_ns};
use sluice_datapath::{MeterBytes, MeterCounters};
use sluice_tables::{MeteredPeer, NodeTables};
use sluice_types::{METER_WHOLE, MeterLimit};

use crate::role::GatewayRole;

/// A meter, with what is left in its buckets. A direction without a limit has neither rate, burst, bytes nor a share.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct MeterView {
    /// The controller's identifier, and the number of the meter on this gateway.
    id: u32,
    number: u32,
    in_kbps: Option<u64>,
    in_burst_bytes: Option<u64>,
    in_left_bytes: Option<u64>,
    /// Part of rate and burst that this gateway enforces.
    in_share: Option<f64>,
    /// Bytes that the meter let pass and that it dropped here, since it has its number.
    in_passed_bytes: u64,
    in_dropped_bytes: u64,
    out_kbps: Option<u64>,
    out_burst_bytes: Option<u64>,
    out_left_bytes: Option<u64>,
    out_share: Option<f64>,
    out_passed_bytes: u64,
    out_dropped_bytes: u64,
    /// Public prefixes, VPCs and peerings of this gateway that have the meter. A peering counts only if a route uses it.
    public_prefixes: usize,
    vpcs: usize,
    peerings: usize,
}

/// All meters in the order of their identifiers, and for how many there is room.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct MeterViews {
    meters: Vec<MeterView>,
    total: u32,
}

/// What answers a request.
#[derive(Clone)]
struct Shown {
    writer: TableWriter<GatewayRole>,
    counters: Arc<MeterCounters>,
}

/// Route `GET /meters`.
pub fn routes(writer: TableWriter<GatewayRole>, counters: MeterCounters) -> Router {
    let shown = Shown { writer, counters: Arc::new(counters) };
    Router::new().route("/meters", get(list_meters)).with_state(shown)
}

async fn list_meters(State(shown): State<Shown>) -> Result<Json<MeterViews>, ApiError> {
    let Shown { writer, counters } = shown;
    let read = move |number| counters.read(number);
    let views = writer.run(move |applier| list(&applier.tables, monotonic_ns(), read)).await?;
    Ok(Json(views.map_err(Error::from)?))
}

fn list<E>(
    tables: &NodeTables,
    now_ns: u64,
    read: impl Fn(u32) -> Result<MeterBytes, E>,
) -> Result<MeterViews, E> {
    let prefixes = counts(tables.public_prefixes().map(|public| public.meter));
    let vpcs = counts(tables.vrfs().map(|entry| tables.internet_meter(entry.vrf.vni)));
    let peerings: HashSet<(u32, [u32; 2])> = tables.metered_peers().flat_map(peering_uses).collect();
    let peerings = counts(peerings.into_iter().map(|(number, _)| number));
    let used = |counts: &HashMap<u32, usize>, number| counts.get(&number).copied().unwrap_or_default();
    let rate = |limit: Option<MeterLimit>| limit.map(|limit| limit.rate_kbps);
    let burst = |limit: Option<MeterLimit>| limit.map(|limit| limit.burst_bytes);
    let part = |limit: Option<MeterLimit>, share| limit.map(|_| f64::from(share) / f64::from(METER_WHOLE));
    let view = |(number, meter): (u32, sluice_tables::Meter)| {
        let level = tables.meter_level(number, now_ns);
        let ([in_share, out_share], MeterBytes { passed, dropped }) =
            (tables.meter_shares(number), read(number)?);
        Ok(MeterView {
            id: meter.id,
            number,
            in_kbps: rate(meter.inward),
            in_burst_bytes: burst(meter.inward),
            in_left_bytes: level.inward_bytes,
            in_share: part(meter.inward, in_share),
            in_passed_bytes: passed[0],
            in_dropped_bytes: dropped[0],
            out_kbps: rate(meter.outward),
            out_burst_bytes: burst(meter.outward),
            out_left_bytes: level.outward_bytes,
            out_share: part(meter.outward, out_share),
            out_passed_bytes: passed[1],
            out_dropped_bytes: dropped[1],
            public_prefixes: used(&prefixes, number),
            vpcs: used(&vpcs, number),
            peerings: used(&peerings, number),
        })
    };
    let meters = tables.meters().map(view).collect::<Result<_, E>>()?;
    Ok(MeterViews { meters, total: tables.meters_total() })
}

/// The meters of a route to a peer, each with the VNIs of the peering in ascending order.
fn peering_uses(route: MeteredPeer) -> [(u32, [u32; 2]); 2] {
    let MeteredPeer { vni, peer, out_meter, in_meter } = route;
    [out_meter, in_meter].map(|number| (number, [vni.min(peer), vni.max(peer)]))
}

/// How often each number occurs. The writer of the tables counts: one pass for all meters.
fn counts(numbers: impl Iterator<Item = u32>) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_tables::{Immediate, Memory, Meter, NamedMeters, Route, Sizes, Target, Vrf};

    #[test]
    fn meters_are_shown_with_their_use_and_what_is_left() {
        let memory = Memory::anonymous(4096).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes { endpoints: 1 }).unwrap();
        let memory = Memory::anonymous(NamedMeters::cells_for(3)).unwrap();
        tables.set_meters(NamedMeters::open(memory).unwrap());
        let limit = MeterLimit { rate_kbps: 64, burst_bytes: 16_384 };
        tables.upsert_meter(&Meter { id: 9, inward: Some(limit), outward: None }, 5).unwrap();
        let vni = 7.try_into().unwrap();
        let vrf = Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None };
        tables.upsert_vrf(&vrf).unwrap();
        let number = tables.meter_number(9).unwrap();
        tables.share_meters(&[(9, [250_000, METER_WHOLE])], 5).unwrap();
        tables.set_internet_meter(vni, number).unwrap();
        // Both directions of one peering, and two of its routes.
        let peer = 8.try_into().unwrap();
        tables.upsert_vrf(&Vrf { vni: peer, ..vrf }).unwrap();
        for (from, to, prefix) in
            [(vni, peer, "10.8.0.0/16"), (vni, peer, "fd08::/64"), (peer, vni, "10.7.0.0/16")]
        {
            let target = Target::MeteredPeer { vni: to, out_meter: number, in_meter: 0 };
            tables.upsert_route(&Route { vni: from, prefix: prefix.parse().unwrap(), target }).unwrap();
        }
        let expected = MeterView {
            id: 9,
            number,
            in_kbps: Some(64),
            in_burst_bytes: Some(16_384),
            in_left_bytes: Some(16_384),
            in_share: Some(0.25),
            in_passed_bytes: 1,
            in_dropped_bytes: 3,
            out_kbps: None,
            out_burst_bytes: None,
            out_left_bytes: None,
            out_share: None,
            out_passed_bytes: 2,
            out_dropped_bytes: 4,
            public_prefixes: 0,
            vpcs: 1,
            peerings: 1,
        };
        let read = |counted| {
            assert_eq!(counted, number);
            Ok::<_, ()>(MeterBytes { passed: [1, 2], dropped: [3, 4] })
        };
        assert_eq!(list(&tables, 5, read), Ok(MeterViews { meters: vec![expected], total: 3 }));
    }
}
