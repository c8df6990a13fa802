//! Packets between VMs and the underlay pass the netfilter rules of their host only with `--kernel-vxlan`, except the
//! few that make the kernel confirm its neighbors. While the agent is restarted with the option and without it, no
//! packet is lost.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, ensure, execute};
use sluice_lab::Lab;
use std::time::Duration;

const HOST: &str = "host-a";
const PORT: u16 = 7044;
const PPS: u64 = 500;
/// Streams to a VM on another host, in both families.
const STREAMS: [(&str, &str, bool); 2] = [("web-1", "web-3", false), ("web-1", "web-3", true)];
/// For how long packets are counted in each state.
const COUNTED: Duration = Duration::from_secs(2);
const BACK: Duration = Duration::from_secs(75);
/// Counts what the host's stack receives and sends on the VXLAN port.
const RULES: &str = "add table inet seen; add counter inet seen received; add counter inet seen sent;
    add chain inet seen i { type filter hook input priority 0; };
    add chain inet seen o { type filter hook output priority 0; };
    add rule inet seen i udp dport 4789 counter name received;
    add rule inet seen o udp dport 4789 counter name sent";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    execute(lab, HOST, &["nft", RULES]).await?;
    let outcome = counted(lab).await;
    execute(lab, HOST, &["nft", "delete table inet seen"]).await?;
    outcome
}

async fn counted(lab: &Lab) -> Outcome {
    let streams = Streams::start(lab, &STREAMS, PORT, PPS).await?;
    // The first packets resolve next hops, and learn direct paths.
    tokio::time::sleep(COUNTED).await;
    passes_netfilter(lab, false).await?;
    let mut argv = lab.process(HOST)?.argv;
    argv.push("--kernel-vxlan".to_owned());
    let ordinary = lab.restart_with(HOST, argv).await?;
    lab.synchronized(HOST, BACK).await?;
    let outcome = passes_netfilter(lab, true).await;
    lab.restart_with(HOST, ordinary).await?;
    lab.synchronized(HOST, BACK).await?;
    outcome?;
    // Next hops are resolved again within a second.
    tokio::time::sleep(COUNTED).await;
    passes_netfilter(lab, false).await?;
    streams.end().await
}

/// Fails unless the packets of the streams, in both directions, pass netfilter, or unless they do not.
async fn passes_netfilter(lab: &Lab, wanted: bool) -> Outcome {
    let before = seen(lab).await?;
    tokio::time::sleep(COUNTED).await;
    let after = seen(lab).await?;
    let expected = COUNTED.as_secs() * PPS * STREAMS.len() as u64;
    for (what, before, after) in [("received", before[0], after[0]), ("sent", before[1], after[1])] {
        let passed = after - before;
        // A busy machine sends less than it should. Without the option, each next hop still gets a packet a second, which
        // makes the kernel confirm its neighbor.
        let few = passed < expected / 20 && (what == "received" || passed > 0);
        let holds = if wanted { passed > expected / 2 } else { few };
        ensure!(holds, "{passed} packets of {expected} {what} passed netfilter; all should: {wanted}");
    }
    Ok(())
}

/// Packets that the host's stack has received and sent on the VXLAN port.
async fn seen(lab: &Lab) -> Result<[u64; 2], Failure> {
    let output = lab.exec(HOST, &["nft", "list counters table inet seen"]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<u64> = text
        .split_whitespace()
        .zip(text.split_whitespace().skip(1))
        .filter_map(|(word, number)| (word == "packets").then(|| number.parse().ok()).flatten())
        .collect();
    <[u64; 2]>::try_from(numbers).map_err(|_| Failure::new(format!("counters of nft: {text}")))
}
