//! Traffic to an instance stops within 100 ms of the API call that deletes it.

use crate::Ground;
use crate::support::{Failure, Outcome, Probe, address, ensure, number};
use sluice_client::Instance;
use sluice_lab::Lab;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PORT: u16 = 7009;
const WITHIN_US: u64 = 100_000;
/// A busy machine may delay any one of them.
const ATTEMPTS: usize = 3;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let mut delays = Vec::new();
    for attempt in 0..ATTEMPTS {
        let delay = delete_under_traffic(lab, &format!("doomed-{attempt}"), attempt % 2 == 1).await?;
        delays.push(delay);
        if delay <= WITHIN_US {
            println!("    traffic stopped {} us after the deletion", delays[attempt]);
            return Ok(());
        }
    }
    Err(Failure::new(format!("traffic stopped only after {delays:?} us")))
}

/// Microseconds from the deletion's answer to the last packet that arrived.
async fn delete_under_traffic(lab: &Lab, name: &str, ipv6: bool) -> Result<u64, Failure> {
    let vm = lab.add_vm(name, "web", "front", "host-b").await?;
    let at = SocketAddr::new(address(&vm, ipv6)?, PORT).to_string();
    let sink = Probe::listening(lab, name, &["sink", &at, "4"]).await?;
    let source = Probe::start(lab, "web-1", &["send", &at, "1000", "3"])?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = now_us()?;
    lab.api().delete::<Instance>(vm.id, None).await?;
    let deleted = now_us()?;
    let result = sink.result().await?;
    drop(source);
    lab.unplug_vm(name).await?;
    let (received, last) = (number(&result, "received")?, number(&result, "last_sent_us")?);
    ensure!(received > 100, "only {received} packets arrived before the deletion");
    ensure!(last + 500_000 > asked, "traffic stopped before the deletion: {result}");
    Ok(last.saturating_sub(deleted))
}

fn now_us() -> Result<u64, Failure> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?)
}
