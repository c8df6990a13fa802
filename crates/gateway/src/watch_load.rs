//! Measures this gateway's load, and sets what is told of flows by it.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_agent::metrics::{Source, gauge};
use sluice_agent::{Error, Load, NoPorts, Node, chain};
use sluice_tables::flows::Flows;
use tokio::time::{MissedTickBehavior, interval};

use crate::flows::policy;
use crate::load::{CpuTicks, Overload, Resource, Shares, memory_share, tables_share};
use crate::offload::OffloadStats;

const EVERY: Duration = Duration::from_secs(1);

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
    before: CpuTicks,
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
            before: CpuTicks::default(),
            overload: Overload::default(),
            unreadable: Once::new(),
        })
    }

    /// Runs for ever.
    ///
    /// # Errors
    /// [`Error::WriterGone`].
    pub async fn run(mut self) -> Result<(), Error> {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let fill = self.node.writer.run(|applier| applier.tables.fill()).await?;
            let cpu = self.read("/proc/stat").and_then(|text| {
                let now = CpuTicks::parse(&text);
                let share = now.softirq_share(&self.before);
                self.before = now;
                share
            });
            let memory = self.read("/proc/meminfo").and_then(|text| memory_share(&text));
            self.judge(&[cpu, memory, tables_share(&fill)]);
            match self.node.datapath.events_lost() {
                Ok(lost) => self.events.set_lost(lost),
                Err(error) => tracing::warn!(error = chain(&error), "lost events of flows"),
            }
        }
    }

    fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(path);
        text.inspect_err(|error| {
            self.unreadable.call_once(|| tracing::error!(path, %error, "this gateway's load is not known"));
        })
        .ok()
    }

    fn judge(&mut self, shares: &Shares) {
        for (to, share) in self.load.permille.iter().zip(shares) {
            if let Some(share) = share {
                to.store((share * 1000.0).round() as u32, Ordering::Relaxed);
            }
        }
        let [cpu_permille, memory, tables] =
            self.load.permille.each_ref().map(|permille| permille.load(Ordering::Relaxed));
        let overload = self.overload.next(shares);
        let memory_permille = memory.max(tables);
        self.node.load.set(Load { cpu_permille, memory_permille, offload_all: overload.any() });
        if overload == self.overload {
            return;
        }
        if overload.any() != self.overload.any()
            && let Err(error) = self.flows.configure(&policy(overload.any()))
        {
            // The next second tries again.
            tracing::error!(error = chain(&error), "cannot change what is told of flows");
            return;
        }
        let percent = |permille: u32| permille / 10;
        tracing::warn!(
            overloaded = %overload,
            cpu = percent(cpu_permille),
            memory = percent(memory),
            tables = percent(tables),
            "{}",
            if overload.any() { "every flow is offloaded" } else { "only elephants are offloaded again" }
        );
        self.overload = overload;
        self.load.all.store(overload.any(), Ordering::Relaxed);
    }
}
