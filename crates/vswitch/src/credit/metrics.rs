//! The metrics of credit. This file changes with what they show.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Limited;
use super::keeper::{CreditKeeper, name, standings};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DimensionLabel {
    interface: String,
    dimension: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitedLabel {
    interface: String,
    dimension: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DropLabel {
    interface: String,
    direction: &'static str,
    limit: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CostLabel {
    of: &'static str,
}

impl CreditKeeper {
    /// Adds the metrics of all ports.
    pub fn register(&self, registry: &mut Registry) {
        let state = self.lock();
        let (used, limits, credits) = (
            Family::<DimensionLabel, Gauge>::default(),
            Family::<DimensionLabel, Gauge>::default(),
            Family::<DimensionLabel, Gauge>::default(),
        );
        let (limited, drops) =
            (Family::<LimitedLabel, Gauge>::default(), Family::<DropLabel, Counter>::default());
        for (scope, interface) in &state.ports {
            for (dimension, standing) in standings(&state.credits, *scope) {
                let label = DimensionLabel { interface: interface.clone(), dimension: name(dimension) };
                used.get_or_create(&label).set(i64::try_from(standing.rate).unwrap_or(i64::MAX));
                if let Some(limit) = standing.limit {
                    limits.get_or_create(&label).set(limit.into());
                }
                if let Some(credit) = standing.credit {
                    credits.get_or_create(&label).set(credit);
                }
                let reasons = [("contended", Limited::Contended), ("no_credit", Limited::NoCredit)];
                // Without a class, there is no credit that could be used up.
                for (reason, of) in reasons.into_iter().take(1 + usize::from(standing.credit.is_some())) {
                    let label =
                        LimitedLabel { interface: interface.clone(), dimension: name(dimension), reason };
                    limited.get_or_create(&label).set(i64::from(standing.limited == Some(of)));
                }
            }
            let dropped = self.memory.drops(*scope);
            for (limit, counts) in [("packet_rate", dropped.packets), ("cpu", dropped.cpu)] {
                for (direction, count) in ["sent", "received"].into_iter().zip(counts) {
                    let label = DropLabel { interface: interface.clone(), direction, limit };
                    drops.get_or_create(&label).inc_by(count);
                }
            }
            let label = DropLabel { interface: interface.clone(), direction: "received", limit: "rate" };
            drops.get_or_create(&label).inc_by(dropped.received_rate);
        }
        drop(state);
        self.register_costs(registry);
        registry.register("port_used", "What an instance uses", used);
        registry.register(
            "port_limit",
            "What an instance may use now, if credit or contention limits it",
            limits,
        );
        let help = "Credit of an instance, in the unit of the dimension times seconds; negative: it owes";
        registry.register("port_credit", help, credits);
        let help = "1: the instance may not use its maximum, for this reason";
        registry.register("port_limited", help, limited);
        let help = "Packets over the limits of credit and contention; sent ones over the bit rate are in port_rate_drops";
        registry.register("port_credit_drops", help, drops);
    }

    /// Adds the metrics of what packets are taken to cost.
    fn register_costs(&self, registry: &mut Registry) {
        let (costs, calibrated) = (Family::<CostLabel, Gauge>::default(), Gauge::<i64>::default());
        let view = self.costs();
        for (of, ns) in [("packet", view.packet_ns), ("kib", view.kib_ns)] {
            costs.get_or_create(&CostLabel { of }).set(ns.into());
        }
        calibrated.set(view.calibrated.into());
        let help = "Nanoseconds that the kernel is taken to spend on a packet and on 1024 bytes, besides the program";
        registry.register("packet_cost_ns", help, costs);
        registry.register(
            "packet_cost_calibrated",
            "1: the costs of packets were measured on this host",
            calibrated,
        );
    }
}
