//! Measures this gateway's load, and sets what is told of flows by it.

use std::collections::VecDeque;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_agent::metrics::{Source, gauge};
use sluice_agent::{Error, Load, NoPorts, Node, chain};
use sluice_tables::flows::{FlowConfig, Flows, Policy};
use tokio::time::{MissedTickBehavior, interval};

use crate::load::{CpuTicks, Overload, Resource, memory_share, tables_share};
use crate::offload::OffloadStats;

/// The processors are looked at so often, and the controller is told: as often as heartbeats are sent.
const EVERY: Duration = Duration::from_millis(50);
/// Everything else.
const SELDOM: Duration = Duration::from_secs(1);
/// What the processors did in the last second...
const SAMPLES: usize = 20;
/// ... and lately, in a tenth of it: a burst is seen at once, but it is over only when the second is.
const LATELY: usize = 2;
/// Where there are more VNIs, their packets are counted once a second only.
const COUNTED_MAX: usize = 256;
/// How long a flow's bytes are added up.
const PERIOD: Duration = Duration::from_secs(1);
/// 20 kbit/s (Zeta section IV-C), in bytes a period: where a VPC has no threshold of its own.
const ELEPHANT_BYTES: u64 = 20_000 / 8;

/// What is told of flows; `all`: of every one.
fn policy(all: bool) -> Policy {
    if all {
        return Policy::Every { period: PERIOD };
    }
    Policy::Detect(FlowConfig { period: PERIOD, elephant_bytes: ELEPHANT_BYTES })
}

/// The load as it was measured last, for metrics.
#[derive(Debug, Default)]
pub struct LoadStats {
    /// In thousandths, by [`Resource::ALL`].
    permille: [AtomicU32; 3],
    all: AtomicBool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResourceLabel {
    resource: &'static str,
}

impl Source for LoadStats {
    fn register(&self, registry: &mut Registry) {
        let loads = Family::<ResourceLabel, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
        for (resource, permille) in Resource::ALL.iter().zip(&self.permille) {
            let share = f64::from(permille.load(Ordering::Relaxed)) / 1000.0;
            loads.get_or_create(&ResourceLabel { resource: resource.name() }).set(share);
        }
        let help = "How much of a resource is taken, 0 to 1; every flow is offloaded from 0.8 on";
        registry.register("gateway_load_ratio", help, loads);
        let all = self.all.load(Ordering::Relaxed).into();
        gauge(registry, "offload_all", "1 while every flow is offloaded, whatever its size", all);
    }
}

/// One task has it.
pub struct LoadWatch {
    node: Arc<Node<NoPorts>>,
    flows: Flows,
    load: Arc<LoadStats>,
    events: Arc<OffloadStats>,
    /// The newest last.
    samples: VecDeque<CpuTicks>,
    /// The VNIs' counters.
    counters: Vec<u32>,
    /// Taken of memory and of the tables, as last looked at.
    memory: Option<f64>,
    tables: Option<f64>,
    overload: Overload,
    unreadable: Once,
}

impl LoadWatch {
    /// Sets the ordinary policy: what a predecessor measured is over.
    ///
    /// # Errors
    /// If the flow table refuses it.
    pub fn new(node: Arc<Node<NoPorts>>, flows: Flows, events: Arc<OffloadStats>) -> Result<Self, Error> {
        flows.configure(&policy(false))?;
        let load = Arc::new(LoadStats::default());
        node.add_source(load.clone());
        Ok(Self {
            node,
            flows,
            load,
            events,
            samples: VecDeque::new(),
            counters: Vec::new(),
            memory: None,
            tables: None,
            overload: Overload::default(),
            unreadable: Once::new(),
        })
    }

    /// Runs for ever; `tell` is told what the controller should know.
    ///
    /// # Errors
    /// [`Error::WriterGone`].
    pub async fn run(mut self, tell: impl Fn(sluice_cluster::Load)) -> Result<(), Error> {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked: Option<Instant> = None;
        loop {
            ticks.tick().await;
            if looked.is_none_or(|at| at.elapsed() >= SELDOM) {
                looked = Some(Instant::now());
                self.look().await?;
            }
            let (second, lately) = self.cpu();
            self.judge(second, lately);
            let busy_permille = lately.map_or(0, permille) as u16;
            tell(sluice_cluster::Load { busy_permille, packets: self.packets() });
        }
    }

    /// At what changes slowly, or takes time.
    async fn look(&mut self) -> Result<(), Error> {
        let of_tables = self.node.writer.run(|applier| {
            let counters: Vec<u32> = applier.tables.vrfs().map(|entry| entry.counters).collect();
            (applier.tables.fill(), counters)
        });
        let (fill, mut counters) = of_tables.await?;
        counters.sort_unstable();
        // 0 is shared.
        counters.dedup();
        self.counters = counters;
        self.tables = tables_share(&fill);
        self.memory = self.read("/proc/meminfo").and_then(|text| memory_share(&text));
        match self.node.datapath.events_lost() {
            Ok(lost) => self.events.set_lost(lost),
            Err(error) => tracing::warn!(error = chain(&error), "lost events of flows"),
        }
        Ok(())
    }

    /// The forwarding cores' share in the last second, and lately.
    fn cpu(&mut self) -> (Option<f64>, Option<f64>) {
        let Some(text) = self.read("/proc/stat") else { return (None, None) };
        let now = CpuTicks::parse(&text);
        let since = |samples: usize| {
            let at = self.samples.len().saturating_sub(samples);
            self.samples.get(at).and_then(|before| now.softirq_share(before))
        };
        let shares = (since(SAMPLES), since(LATELY));
        self.samples.push_back(now);
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        shares
    }

    /// Packets that were forwarded, if they are quickly counted.
    fn packets(&self) -> Option<u64> {
        let few = (self.counters.len() <= COUNTED_MAX).then_some(&self.counters)?;
        let traffic = self.node.datapath.vni_traffic(few);
        let traffic = traffic.inspect_err(|error| tracing::debug!(error = chain(error), "packets of VNIs"));
        Some(traffic.ok()?.iter().map(|traffic| traffic.packets).sum())
    }

    fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(path);
        text.inspect_err(|error| {
            self.unreadable.call_once(|| tracing::error!(path, %error, "this gateway's load is not known"));
        })
        .ok()
    }

    fn judge(&mut self, second: Option<f64>, lately: Option<f64>) {
        for (to, share) in self.load.permille.iter().zip([second, self.memory, self.tables]) {
            if let Some(share) = share {
                to.store(permille(share), Ordering::Relaxed);
            }
        }
        let [cpu_permille, memory, tables] =
            self.load.permille.each_ref().map(|permille| permille.load(Ordering::Relaxed));
        let worse = second.zip(lately).map(|(second, lately)| second.max(lately));
        let overload = self.overload.next(&[worse, self.memory, self.tables]);
        let memory_permille = memory.max(tables);
        self.node.load.set(Load { cpu_permille, memory_permille, offload_all: overload.any() });
        if overload == self.overload {
            return;
        }
        if overload.any() != self.overload.any()
            && let Err(error) = self.flows.configure(&policy(overload.any()))
        {
            // The next look tries again.
            tracing::error!(error = chain(&error), "cannot change what is told of flows");
            return;
        }
        let percent = |permille: u32| permille / 10;
        tracing::warn!(
            overloaded = %overload,
            cpu = percent(worse.map_or(0, permille)),
            memory = percent(memory),
            tables = percent(tables),
            "{}",
            if overload.any() { "every flow is offloaded" } else { "only elephants are offloaded again" }
        );
        self.overload = overload;
        self.load.all.store(overload.any(), Ordering::Relaxed);
    }
}

/// A share in thousandths.
fn permille(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}
