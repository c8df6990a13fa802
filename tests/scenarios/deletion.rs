//! Traffic to an instance stops within 100 ms of the API call that deletes it, for each family.
//!
//! Catches: a gateway or host that keeps an entry of a deleted instance, in one family or both, and a push
//! that waits for a poll of the database.

use crate::Ground;
use crate::support::{Failure, Outcome, Probe, address, ensure, ensure_timely, number};
use sluice_client::Instance;
use sluice_lab::Lab;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PORT: u16 = 7009;
const WITHIN_US: u64 = 100_000;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    for (family, ipv6) in [("IPv4", false), ("IPv6", true)] {
        let name = format!("doomed-{}-{}", ground.attempt, u8::from(ipv6));
        let delay_us = delete_under_traffic(lab, &name, ipv6).await?;
        println!("    {family} traffic stopped {delay_us} us after the deletion");
        ensure_timely!(
            delay_us <= WITHIN_US,
            "{family} traffic stopped only {delay_us} us after the deletion"
        );
    }
    Ok(())
}

/// Microseconds from the deletion's answer to the sending of the last packet that arrived.
async fn delete_under_traffic(lab: &Lab, name: &str, ipv6: bool) -> Result<u64, Failure> {
    let vm = lab.add_vm(name, "web", "front", "host-b").await?;
    let at = SocketAddr::new(address(&vm, ipv6)?, PORT).to_string();
    let sink = Probe::listening(lab, name, &["sink", &at, "2"]).await?;
    let source = Probe::start(lab, "web-1", &["send", &at, "1000", "3"])?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let requested = now_us()?;
    lab.api().delete::<Instance>(vm.id, None).await?;
    let deleted = now_us()?;
    let result = sink.result().await?;
    drop(source);
    lab.unplug_vm(name).await?;
    let (received, last) = (number(&result, "received")?, number(&result, "last_sent_us")?);
    ensure!(received > 500, "only {received} packets arrived before the deletion");
    ensure_timely!(last + 50_000 > requested, "traffic stopped before the deletion: {result}");
    Ok(last.saturating_sub(deleted))
}

fn now_us() -> Result<u64, Failure> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?)
}
