//! The newest report of the node's health, shared between the monitor, the stream that sends it, and the metrics. This file
//! changes when something else decides when a report is sent.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_southbound::{HealthReport, ReportSender};
use sluice_types::AnomalyClass;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::Error;
use crate::metric_source::{MetricSource, counter};

/// Longest time between two reports, which also have the round-trip times.
const REPEAT: Duration = Duration::from_secs(30);

/// Figures of the monitor besides its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonitorFigures {
    /// Probes of other nodes that were not answered in time.
    pub lost: u64,
    /// Echo requests that this node did not answer.
    pub echoes_refused: u64,
    /// Symptoms that were ignored because too many are followed.
    pub symptoms_refused: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<(HealthReport, MonitorFigures)>,
    /// There is news.
    changed: Notify,
}

/// The nodes of which no probe was answered lately.
fn unreachable(report: &HealthReport) -> BTreeSet<IpAddr> {
    report.links.iter().filter(|link| link.loss_permille == 1000).map(|link| link.peer).collect()
}

/// The newest report of a node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct HealthReports(Arc<Shared>);

impl HealthReports {
    fn state(&self) -> MutexGuard<'_, (HealthReport, MonitorFigures)> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the report. Returns whether the findings, or the nodes that are not reached, are others.
    pub fn publish(&self, report: HealthReport, figures: MonitorFigures) -> bool {
        let mut state = self.state();
        let is_news = state.0.findings != report.findings
            || state.0.others != report.others
            || unreachable(&state.0) != unreachable(&report);
        *state = (report, figures);
        drop(state);
        if is_news {
            self.0.changed.notify_one();
        }
        is_news
    }

    /// Sends the report at once, when there is news, and every [`REPEAT`], until the stream ends.
    pub(crate) async fn send(&self, reports: &ReportSender) -> Result<(), Error> {
        loop {
            let report = self.state().0.clone();
            reports.health(report).await?;
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = sleep(REPEAT) => {}
            }
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClassLabel {
    class: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PeerLabel {
    peer: String,
    kind: &'static str,
}

impl MetricSource for HealthReports {
    fn register(&self, registry: &mut Registry) {
        let (report, figures) = self.state().clone();
        let findings = Family::<ClassLabel, Gauge>::default();
        for class in AnomalyClass::ALL {
            let count = report.findings.iter().filter(|finding| finding.class == class).count();
            let label = ClassLabel { class: class.to_string() };
            findings.get_or_create(&label).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        registry.register("health_findings", "Anomalies that this node has found, by class", findings);
        let rtts = Family::<PeerLabel, Gauge<f64, AtomicU64>>::default();
        let losses = Family::<PeerLabel, Gauge<f64, AtomicU64>>::default();
        for link in &report.links {
            let kind = if link.gateway { "gateway" } else { "host" };
            let label = PeerLabel { peer: link.peer.to_string(), kind };
            if link.rtt_us > 0 {
                rtts.get_or_create(&label).set(f64::from(link.rtt_us) / 1e6);
            }
            losses.get_or_create(&label).set(f64::from(link.loss_permille) / 1e3);
        }
        let help = "Round-trip time of the last answered probe of another node, by its VTEP";
        registry.register("health_probe_rtt_seconds", help, rtts);
        let help = "Part of the last 8 probes of another node that was not answered, by its VTEP";
        registry.register("health_probe_loss_ratio", help, losses);
        let help = "Probes of other nodes that were not answered in time";
        registry.register("health_probes_lost", help, counter(figures.lost));
        let help = "Echo requests that this node did not answer: not of a known node's echo, or too many";
        registry.register("health_echoes_refused", help, counter(figures.echoes_refused));
        let help = "Symptoms that were ignored because too many are followed";
        registry.register("health_symptoms_refused", help, counter(figures.symptoms_refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;
    use sluice_southbound::{Finding, HealthSubject, LinkHealth};

    #[test]
    fn changes_of_findings_are_news_and_each_figure_has_its_metric() {
        let reports = HealthReports::default();
        let finding = Finding {
            class: AnomalyClass::NicFault,
            subject: HealthSubject::Node,
            since_ms: 1,
            evidence: String::new(),
            cause: String::new(),
        };
        let peer = [192, 0, 2, 1].into();
        let link = |rtt_us| LinkHealth { peer, gateway: true, loss_permille: 250, rtt_us };
        let report = |rtt_us| HealthReport {
            findings: vec![finding.clone()],
            others: false,
            links: vec![link(rtt_us)],
        };
        let figures = MonitorFigures { lost: 5, echoes_refused: 6, symptoms_refused: 7 };
        assert!(reports.publish(report(1000), figures));
        assert!(!reports.publish(report(2000), figures), "a round-trip time is no news");
        let (mut registry, mut page) = (Registry::default(), String::new());
        reports.register(&mut registry);
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "health_findings{class=\"nic_fault\"} 1",
            "health_findings{class=\"switch_overload\"} 0",
            "health_probe_rtt_seconds{peer=\"192.0.2.1\",kind=\"gateway\"} 0.002",
            "health_probe_loss_ratio{peer=\"192.0.2.1\",kind=\"gateway\"} 0.25",
            "health_probes_lost_total 5",
            "health_echoes_refused_total 6",
            "health_symptoms_refused_total 7",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
        assert!(reports.publish(HealthReport::default(), figures));
    }
}
