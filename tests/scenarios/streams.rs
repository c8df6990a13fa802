//! Streams of numbered packets of which none may be lost, and the account of every packet that is missing.
//!
//! Lossless means that as many packets arrive as were sent. If some are missing, the failure names what
//! dropped them: Sluice's own counters of all nodes, the kernel's counters of all namespaces, and the events of
//! the controller. A loss that kernel queues explain while the machine stood still is inconclusive.

use crate::kernel_drops::KernelDrops;
use crate::support::{Failure, Outcome, Probe, address, describe, ensure, ensure_timely, number, soak};
use serde_json::Value;
use sluice_lab::Lab;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Streams that nothing ends end by themselves after this time and [`soak`].
const DURATION_MAX: Duration = Duration::from_secs(300);
/// For how long streams continue after what happened under them: announcements are repeated for 140 ms, and hosts
/// reconcile their paths every 50 ms.
const END: Duration = Duration::from_secs(1);
/// The part of the packets that a stream claims to send which it must have sent: a machine that is not run for
/// moments sends less, since bursts of more than 100 ms are left out.
const SENT_MIN: f64 = 0.97;

fn duration_max() -> Duration {
    DURATION_MAX + soak()
}

/// Streams there and back between VMs, which run until they are ended.
pub struct Streams<'lab> {
    lab: &'lab Lab,
    pps: u64,
    begin: Instant,
    account: Account,
    sent: Vec<(String, Probe)>,
    _listeners: Vec<Probe>,
}

impl<'lab> Streams<'lab> {
    /// Starts a stream for each (sender, receiver, IPv6), each to a port of its own from `port` on.
    pub async fn start(
        lab: &'lab Lab,
        pairs: &[(&str, &str, bool)],
        port: u16,
        pps: u64,
    ) -> Result<Self, Failure> {
        let pairs = pairs.iter().map(|(from, to, ipv6)| Ok((*from, *to, address(lab.vm(to)?, *ipv6)?)));
        Self::to(lab, &pairs.collect::<Result<Vec<_>, Failure>>()?, port, pps).await
    }

    /// Like `start`, with the receivers' addresses.
    pub async fn to(
        lab: &'lab Lab,
        pairs: &[(&str, &str, IpAddr)],
        port: u16,
        pps: u64,
    ) -> Result<Self, Failure> {
        let (mut sent, mut listeners) = (Vec::new(), Vec::new());
        let account = Account::begin(lab).await?;
        for ((from, to, address), port) in pairs.iter().zip(port..) {
            let at = SocketAddr::new(*address, port).to_string();
            listeners.push(Probe::listening(lab, to, &["echo", &at, to]).await?);
            sent.push(Self::send(lab, from, &at, pps)?);
        }
        Ok(Self { lab, pps, begin: Instant::now(), account, sent, _listeners: listeners })
    }

    /// Starts a stream for each (sender, address and port of an `echo` that runs already).
    pub async fn to_flows(lab: &'lab Lab, flows: &[(&str, String)], pps: u64) -> Result<Self, Failure> {
        let account = Account::begin(lab).await?;
        let sent = flows.iter().map(|(from, at)| Self::send(lab, from, at, pps)).collect::<Result<_, _>>()?;
        Ok(Self { lab, pps, begin: Instant::now(), account, sent, _listeners: Vec::new() })
    }

    fn send(lab: &Lab, from: &str, at: &str, pps: u64) -> Result<(String, Probe), Failure> {
        let words = ["stream", at, &pps.to_string(), &duration_max().as_secs().to_string()];
        Ok((format!("{from} -> {at}"), Probe::start(lab, from, &words)?))
    }

    /// Ends the streams after [`END`]. Fails if a packet was lost, or if a stream had ended already.
    pub async fn end(self) -> Outcome {
        let (lab, account) = (self.lab, self.account.clone());
        for (stream, result) in self.results().await? {
            lossless(lab, &account, &stream, &result).await?;
        }
        Ok(())
    }

    /// Ends the streams after [`END`], and returns what each saw. Fails if a stream had ended already, or
    /// sent less than it claims.
    pub async fn results(mut self) -> Result<Vec<(String, Value)>, Failure> {
        tokio::time::sleep(END).await;
        let took = self.begin.elapsed();
        let duration_max = duration_max();
        ensure!(took < duration_max, "the scenario took {took:?} under streams of {duration_max:?}");
        for (_, stream) in &mut self.sent {
            stream.stop().await?;
        }
        let mut results = Vec::new();
        for (what, stream) in self.sent {
            let result = stream.result().await?;
            // Probes start to send within half a second of being started.
            let expected = self.pps as f64 * (took.as_secs_f64() - 0.5);
            let sent = number(&result, "sent")?;
            ensure_timely!(
                sent as f64 >= SENT_MIN * expected,
                "{what}: only {sent} of {expected:.0} packets were sent"
            );
            results.push((what, result));
        }
        Ok(results)
    }
}

/// Fails if a stream lost a packet, and names what dropped it.
pub async fn lossless(lab: &Lab, account: &Account, stream: &str, result: &Value) -> Outcome {
    let (sent, received) = (number(result, "sent")?, number(result, "received")?);
    if sent == received {
        return Ok(());
    }
    let lost = sent - received;
    let by_kernel = KernelDrops::read(lab).await?.risen_since(&account.kernel);
    let by_nodes = account.dropped_by_nodes(lab).await;
    let mut text = format!("{stream}: {lost} of {sent} packets lost: {}\n", result["lost"]);
    text.push_str(&events(lab, account.begin_ms).await);
    text.push_str(&by_nodes);
    for (counter, packets) in &by_kernel {
        text.push_str(&format!("    kernel: {counter} {packets}\n"));
    }
    // All streams share the counters, so they can only tell that the kernel dropped at least as many.
    let explained = by_kernel.values().sum::<u64>() >= lost;
    Err(if explained { Failure::late(text) } else { Failure::new(text) })
}

/// Counters at the beginning of a stream.
#[derive(Clone)]
pub struct Account {
    begin_ms: u64,
    nodes: Drops,
    kernel: KernelDrops,
}

impl Account {
    pub async fn begin(lab: &Lab) -> Result<Self, Failure> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begin_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Ok(Self { begin_ms, nodes: drops(lab).await, kernel: KernelDrops::read(lab).await? })
    }

    /// What Sluice's nodes have dropped since, a line for each counter.
    async fn dropped_by_nodes(&self, lab: &Lab) -> String {
        moved(lab, &self.nodes).await
    }
}

/// Counters of drops by name and labels, by node; `None` for a node that serves no metrics.
type Drops = BTreeMap<String, Option<BTreeMap<String, f64>>>;

/// What all nodes have dropped.
async fn drops(lab: &Lab) -> Drops {
    let mut drops = Drops::new();
    for node in lab.state().nodes.keys() {
        let metrics = lab.metrics(node).await.ok();
        let counters = metrics.map(|metrics| {
            let counters = metrics.samples().filter(|(name, ..)| name.ends_with("_drops_total"));
            counters.map(|(name, labels, value)| (format!("{name} {labels:?}"), value)).collect()
        });
        drops.insert(node.clone(), counters);
    }
    drops
}

/// The counters that have risen since, and the nodes that serve no metrics.
async fn moved(lab: &Lab, before: &Drops) -> String {
    let mut text = String::new();
    for (node, now) in drops(lab).await {
        // Without the earlier value the present one says nothing.
        let (Some(now), Some(before)) = (now, before.get(&node).and_then(Option::as_ref)) else {
            text.push_str(&format!("    {node} did not serve metrics, before or now\n"));
            continue;
        };
        for (counter, value) in now {
            let more = value - before.get(&counter).copied().unwrap_or(0.0);
            if more > 0.0 {
                text.push_str(&format!("    {node}: {counter} {more}\n"));
            }
        }
    }
    if text.is_empty() { "    no node counted a drop\n".to_owned() } else { text }
}

/// The controller's events since the streams began, with their time in milliseconds.
async fn events(lab: &Lab, begin_ms: u64) -> String {
    let events = match lab.api().events(None, None, 1000).await {
        Ok(events) => events,
        Err(error) => return format!("    no events: {}\n", describe(&error)),
    };
    let since = events.into_iter().filter_map(|event| Some((event.time_ms.checked_sub(begin_ms)?, event)));
    since.map(|(ms, event)| format!("    {ms:>6} ms: {}\n", event.text)).collect()
}

/// All drops that nodes have counted, to explain a failure.
pub async fn evidence(lab: &Lab) -> String {
    let never = lab.state().nodes.keys().map(|node| (node.clone(), Some(BTreeMap::new())));
    moved(lab, &never.collect()).await
}
