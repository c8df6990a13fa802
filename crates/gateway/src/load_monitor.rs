//! Monitors the load of this gateway: measures it, shows it as metrics, and configures which flows the packet
//! program reports. This file changes when another resource is measured.

use std::collections::VecDeque;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_agent::metric_source::{MetricSource, gauge};
use sluice_agent::{Error, Node, NodeLoad, error_chain, flow_bytes};
use sluice_tables::Vrf;
use sluice_tables::flows::{FlowConfig, Flows, Policy};
use tokio::time::{MissedTickBehavior, interval};

use crate::offload_metrics::OffloadStats;
use crate::overload::{CpuTicks, Overload, Resource, memory_share, tables_share};
use crate::role::{FLOW_PERIOD, GatewayRole, SharedLoad};

/// Interval at which the CPUs are sampled, and the load is reported to the controller: that of the
/// cluster protocol's heartbeats.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which packets of a host are accepted in a VNI after its last instance of it has gone. Hosts forward
/// packets for such instances for 60 s.
const SENDER_LINGER: Duration = Duration::from_secs(70);
/// Interval at which memory and tables are measured.
const MEMORY_INTERVAL: Duration = Duration::from_secs(1);
/// Samples in the long window: one second.
const LONG_WINDOW: usize = 20;
/// Samples in the short window: a tenth of a second. The higher load of the two windows counts, so a burst is
/// seen at once, and is over when it is out of the long window.
const SHORT_WINDOW: usize = 2;
/// Most counters that are read for each sample. If there are more, no packet count is reported.
const COUNTERS_MAX: usize = 256;
/// 20 kbit/s (Zeta section IV-C), in bytes per period, for VPCs without a threshold of their own.
const ELEPHANT_BYTES: u64 = flow_bytes(20, FLOW_PERIOD);

/// Which flows the packet program reports: every flow, elephants, or none. If none, it does not count them either.
fn flow_policy(all: bool, has_elephants: bool) -> Policy {
    if all {
        return Policy::Every { period: FLOW_PERIOD };
    }
    if !has_elephants {
        return Policy::Off;
    }
    Policy::Detect(FlowConfig { period: FLOW_PERIOD, elephant_bytes: ELEPHANT_BYTES })
}

/// Whether a flow of a network with this threshold can be an elephant. Where hosts look for elephants themselves (model
/// `achelous`), gateways have the largest threshold, which means that they answer requests but need not count.
fn is_reachable(elephant_bytes: Option<u32>) -> bool {
    elephant_bytes.is_none_or(|bytes| bytes < Vrf::NEVER_ELEPHANTS - 1)
}

/// Whether a flow of one of these networks can be an elephant. It can as long as there are no networks: those that come may
/// have the default.
fn has_elephants(mut thresholds: impl Iterator<Item = Option<u32>>) -> bool {
    thresholds.next().is_none_or(|first| is_reachable(first) || thresholds.any(is_reachable))
}

/// The last measured load, for metrics.
#[derive(Debug, Default)]
pub struct LoadStats {
    /// Shares in thousandths, in the order of [`Resource::ALL`].
    permille: [AtomicU32; 3],
    offload_all: AtomicBool,
    counts_flows: AtomicBool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResourceLabel {
    resource: &'static str,
}

impl MetricSource for LoadStats {
    fn register(&self, registry: &mut Registry) {
        let loads = Family::<ResourceLabel, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
        for (resource, permille) in Resource::ALL.iter().zip(&self.permille) {
            let share = f64::from(permille.load(Ordering::Relaxed)) / 1000.0;
            loads.get_or_create(&ResourceLabel { resource: resource.name() }).set(share);
        }
        let help = "Share of a resource in use, 0 to 1; every flow is offloaded from 0.8 on";
        registry.register("gateway_load_ratio", help, loads);
        let all = self.offload_all.load(Ordering::Relaxed).into();
        gauge(registry, "offload_all", "1 while every flow is offloaded, whatever its rate", all);
        let counts = self.counts_flows.load(Ordering::Relaxed).into();
        let help = "1 while packets are counted by flow; 0 if no flow could be an elephant";
        gauge(registry, "flows_counted", help, counts);
    }
}

/// The load of the CPUs in the long and in the short window.
#[derive(Clone, Copy, Debug)]
struct CpuLoad {
    long: Option<f64>,
    short: Option<f64>,
}

/// Monitors the load. A single task runs it.
pub struct LoadMonitor {
    node: Arc<Node<GatewayRole>>,
    flows: Flows,
    /// The load that the agent's heartbeats report.
    shared: SharedLoad,
    stats: Arc<LoadStats>,
    offload_stats: Arc<OffloadStats>,
    /// CPU samples, the newest last.
    samples: VecDeque<CpuTicks>,
    /// Indices of the packet counters of all VNIs.
    counters: Vec<u32>,
    /// Share of memory in use, as measured last.
    memory: Option<f64>,
    /// Share of the tables in use, as measured last.
    tables: Option<f64>,
    overload: Overload,
    /// Whether a flow can be an elephant, as the networks' thresholds were read last.
    has_elephants: bool,
    /// What the packet program reports.
    policy: Policy,
    unreadable_logged: Once,
    /// Whether the last attempt to configure the flow policy failed.
    configure_failed: bool,
}

impl LoadMonitor {
    /// Configures the packet program to report elephants only, whatever an earlier agent configured.
    ///
    /// # Errors
    /// If the flow table cannot be configured.
    pub fn new(
        node: Arc<Node<GatewayRole>>,
        flows: Flows,
        shared: SharedLoad,
        offload_stats: Arc<OffloadStats>,
    ) -> Result<Self, Error> {
        let policy = flow_policy(false, true);
        flows.configure(&policy)?;
        let stats = Arc::new(LoadStats { counts_flows: true.into(), ..LoadStats::default() });
        node.add_metrics(stats.clone());
        Ok(Self {
            node,
            flows,
            shared,
            stats,
            offload_stats,
            samples: VecDeque::new(),
            counters: Vec::new(),
            memory: None,
            tables: None,
            overload: Overload::default(),
            has_elephants: true,
            policy,
            unreadable_logged: Once::new(),
            configure_failed: false,
        })
    }

    /// Runs until the table writer has ended. Passes each sample to `report`, for the controller.
    ///
    /// # Errors
    /// [`Error::WriterGone`].
    pub async fn run(mut self, report: impl Fn(sluice_cluster::Load)) -> Result<(), Error> {
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut measured: Option<Instant> = None;
        loop {
            ticks.tick().await;
            if measured.is_none_or(|at| at.elapsed() >= MEMORY_INTERVAL) {
                measured = Some(Instant::now());
                self.measure_memory_and_tables().await?;
            }
            let cpu = self.sample_cpu();
            self.update(cpu);
            // The message has no value for an unknown load. `read_file` logs once that it is unknown.
            let busy_permille = cpu.short.map_or(0, permille) as u16;
            report(sluice_cluster::Load { busy_permille, packets: self.packets() });
        }
    }

    /// Removes senders that have had no instance for a while. Measures what changes slowly or takes long to read:
    /// memory, tables, whether there can be elephants, the indices of the packet counters, and the number of lost flow
    /// events.
    async fn measure_memory_and_tables(&mut self) -> Result<(), Error> {
        let read = self.node.writer.run(|applier| {
            if let Err(error) = applier.tables.remove_idle_senders(SENDER_LINGER) {
                tracing::warn!(error = error_chain(&error), "cannot remove senders without instances");
            }
            let counters: Vec<u32> = applier.tables.vrfs().map(|entry| entry.counters).collect();
            let has_elephants = has_elephants(applier.tables.vrfs().map(|entry| entry.vrf.elephant_bytes));
            (applier.tables.usage(), counters, has_elephants)
        });
        let (usage, mut counters, has_elephants) = read.await?;
        self.has_elephants = has_elephants;
        // Several VNIs may share index 0.
        counters.sort_unstable();
        counters.dedup();
        self.counters = counters;
        self.tables = tables_share(&usage);
        self.memory = self.read_file("/proc/meminfo").and_then(|text| memory_share(&text));
        let datapath = &self.node.datapath;
        match datapath.events_lost().and_then(|lost| Ok((lost, datapath.events_refused()?))) {
            Ok((lost, refused)) => {
                self.offload_stats.set_lost(lost);
                self.offload_stats.set_refused(refused);
            }
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "cannot read the number of lost flow events")
            }
        }
        Ok(())
    }

    fn sample_cpu(&mut self) -> CpuLoad {
        let Some(text) = self.read_file("/proc/stat") else { return CpuLoad { long: None, short: None } };
        let now = CpuTicks::parse(&text);
        let since = |samples: usize| {
            let index = self.samples.len().saturating_sub(samples);
            self.samples.get(index).and_then(|before| now.softirq_share(before))
        };
        let load = CpuLoad { long: since(LONG_WINDOW), short: since(SHORT_WINDOW) };
        self.samples.push_back(now);
        if self.samples.len() > LONG_WINDOW {
            self.samples.pop_front();
        }
        load
    }

    /// Number of forwarded packets; `None` if there are too many counters to read them for each sample.
    fn packets(&self) -> Option<u64> {
        let counters = (self.counters.len() <= COUNTERS_MAX).then_some(&self.counters)?;
        let traffic = self.node.datapath.vni_traffic(counters);
        let traffic = traffic.inspect_err(|error| {
            tracing::debug!(error = error_chain(error), "cannot read the packet counters");
        });
        Some(traffic.ok()?.iter().map(|traffic| traffic.packets).sum())
    }

    fn read_file(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(path);
        text.inspect_err(|error| {
            self.unreadable_logged
                .call_once(|| tracing::error!(path, %error, "cannot measure this gateway's load"));
        })
        .ok()
    }

    /// Publishes the load, and changes the flow policy if overload began or ended, or if networks got or lost thresholds that
    /// flows reach.
    fn update(&mut self, cpu: CpuLoad) {
        for (to, share) in self.stats.permille.iter().zip([cpu.long, self.memory, self.tables]) {
            if let Some(share) = share {
                to.store(permille(share), Ordering::Relaxed);
            }
        }
        let [cpu_permille, memory, tables] =
            self.stats.permille.each_ref().map(|permille| permille.load(Ordering::Relaxed));
        let higher = cpu.long.zip(cpu.short).map(|(long, short)| long.max(short));
        let overload = self.overload.next(&[higher, self.memory, self.tables]);
        let memory_permille = memory.max(tables);
        let mut load = NodeLoad { cpu_permille, memory_permille, offload_all: self.overload.any() };
        self.shared.set(load);
        if !self.set_policy(flow_policy(overload.any(), self.has_elephants)) || overload == self.overload {
            return;
        }
        let percent = |permille: u32| permille / 10;
        tracing::warn!(
            overloaded = %overload,
            cpu = percent(higher.map_or(0, permille)),
            memory = percent(memory),
            tables = percent(tables),
            "{}",
            if overload.any() { "offloading every flow" } else { "offloading only elephants again" }
        );
        self.overload = overload;
        load.offload_all = overload.any();
        self.shared.set(load);
        self.stats.offload_all.store(overload.any(), Ordering::Relaxed);
    }
}

impl LoadMonitor {
    /// Configures what the packet program reports, if that is something else than before. Returns false if it cannot.
    fn set_policy(&mut self, policy: Policy) -> bool {
        if policy == self.policy {
            return true;
        }
        if let Err(error) = self.flows.configure(&policy) {
            // The next sample tries again. A row of failures is logged once.
            if !std::mem::replace(&mut self.configure_failed, true) {
                tracing::error!(error = error_chain(&error), "cannot configure which flows are reported");
            }
            return false;
        }
        (self.configure_failed, self.policy) = (false, policy);
        self.stats.counts_flows.store(policy != Policy::Off, Ordering::Relaxed);
        true
    }
}

/// A share in thousandths.
fn permille(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_agent::elephant_bytes;
    use sluice_southbound::{ELEPHANT_DEFAULT, ELEPHANT_NEVER};

    /// Catches a gateway that counts flows for nothing, and one that does not count although it is overloaded, or although a
    /// network has elephants.
    #[test]
    fn flows_are_counted_only_where_one_can_be_reported() {
        let of = |thresholds: &[u32]| {
            has_elephants(thresholds.iter().map(|kbps| elephant_bytes(*kbps, FLOW_PERIOD)))
        };
        // What gateways get under `achelous` (`Model::gateways_elephant_kbps`), and of VPCs without direct paths.
        let (hosts_look, never) = (ELEPHANT_NEVER - 1, ELEPHANT_NEVER);
        assert!(!of(&[hosts_look]) && !of(&[never]) && !of(&[hosts_look, never, hosts_look]));
        assert!(of(&[]), "the networks have not come yet");
        for other in [ELEPHANT_DEFAULT, 20, 1_000_000] {
            assert!(of(&[other]) && of(&[other, never]) && of(&[hosts_look, never, other]));
        }
        assert_eq!(flow_policy(false, false), Policy::Off);
        assert!(matches!(flow_policy(false, true), Policy::Detect(_)));
        for has_elephants in [false, true] {
            assert!(matches!(flow_policy(true, has_elephants), Policy::Every { .. }));
        }
    }
}
