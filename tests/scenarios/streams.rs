//! Streams of numbered packets of which nothing may be lost, and what nodes and controller say of what was.

use crate::support::{Failure, Outcome, Probe, address, describe, ensure, number};
use serde_json::Value;
use sluice_lab::Lab;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When streams end that nobody ends.
const STREAMS_END: Duration = Duration::from_secs(300);

/// Streams to and fro between VMs by a family, until they are ended.
pub struct Streams<'lab> {
    lab: &'lab Lab,
    pps: u64,
    begin: Instant,
    begin_ms: u64,
    dropped: Drops,
    sent: Vec<(String, Probe)>,
    _listeners: Vec<Probe>,
}

impl<'lab> Streams<'lab> {
    /// Starts them, each to a port of its own from `port` on.
    pub async fn start(
        lab: &'lab Lab,
        ways: &[(&str, &str, bool)],
        port: u16,
        pps: u64,
    ) -> Result<Self, Failure> {
        let ways = ways.iter().map(|(from, to, ipv6)| Ok((*from, *to, address(lab.vm(to)?, *ipv6)?)));
        Self::to(lab, &ways.collect::<Result<Vec<_>, Failure>>()?, port, pps).await
    }

    /// As `start`, to addresses that VMs have.
    pub async fn to(
        lab: &'lab Lab,
        ways: &[(&str, &str, IpAddr)],
        port: u16,
        pps: u64,
    ) -> Result<Self, Failure> {
        let (mut sent, mut listeners) = (Vec::new(), Vec::new());
        let dropped = drops(lab).await;
        for ((from, to, address), port) in ways.iter().zip(port..) {
            let at = SocketAddr::new(*address, port).to_string();
            listeners.push(Probe::listening(lab, to, &["echo", &at, to]).await?);
            let words = ["stream", &at, &pps.to_string(), &STREAMS_END.as_secs().to_string()];
            sent.push((format!("{from} -> {at}"), Probe::start(lab, from, &words)?));
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begin_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Ok(Self { lab, pps, begin: Instant::now(), begin_ms, dropped, sent, _listeners: listeners })
    }

    /// Ends them two seconds later; fails if anything was lost, or if they had ended already.
    pub async fn end(self) -> Outcome {
        let (lab, begin_ms, dropped) = (self.lab, self.begin_ms, self.dropped.clone());
        for (what, result) in self.results().await? {
            let (sent, received) = (number(&result, "sent")?, number(&result, "received")?);
            if sent != received {
                let (lost, ranges) = (sent - received, &result["lost"]);
                let witnesses = format!("{}{}", told(lab, begin_ms).await, moved(lab, &dropped).await);
                return Err(Failure::new(format!(
                    "{what}: {lost} of {sent} packets lost: {ranges}\n{witnesses}"
                )));
            }
        }
        Ok(())
    }

    /// Ends them two seconds later: what each saw. Fails if they had ended already, or hardly begun.
    pub async fn results(mut self) -> Result<Vec<(String, Value)>, Failure> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let took = self.begin.elapsed();
        ensure!(took < STREAMS_END, "what the streams are for took {took:?}, and they {STREAMS_END:?}");
        for (_, stream) in &mut self.sent {
            stream.stop().await?;
        }
        let mut results = Vec::new();
        for (what, stream) in self.sent {
            let result = stream.result().await?;
            // They began a moment after they were started.
            let expected = self.pps * took.as_secs().saturating_sub(1);
            let sent = number(&result, "sent")?;
            ensure!(sent * 4 >= expected, "{what}: only {sent} of about {expected} packets were sent");
            results.push((what, result));
        }
        Ok(results)
    }
}

/// Counters of drops by name and labels, by node; `None` where it serves none.
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

/// Which of them have moved, and who serves none.
async fn moved(lab: &Lab, before: &Drops) -> String {
    let mut text = String::new();
    for (node, now) in drops(lab).await {
        // Of one that did not answer before nobody knows what is new.
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

/// What the controller told meanwhile, by milliseconds since the streams began.
async fn told(lab: &Lab, begin_ms: u64) -> String {
    let events = match lab.api().events(None, None, 1000).await {
        Ok(events) => events,
        Err(error) => return format!("    no events: {}\n", describe(&error)),
    };
    let since = events.into_iter().filter_map(|event| Some((event.time_ms.checked_sub(begin_ms)?, event)));
    since.map(|(ms, event)| format!("    {ms:>6} ms: {}\n", event.text)).collect()
}

/// What may say why a scenario failed.
pub async fn evidence(lab: &Lab) -> String {
    let never = lab.state().nodes.keys().map(|node| (node.clone(), Some(BTreeMap::new())));
    moved(lab, &never.collect()).await
}
