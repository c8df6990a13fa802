//! Traffic to an instance stops within 100 ms of the API call that deletes it, for each family.
//!
//! Catches: a gateway or host that keeps an entry of a deleted instance, in one family or both, and a push
//! that waits for a poll of the database.

use crate::Ground;
use crate::support::{Failure, Outcome, Probe, address, ensure, ensure_timely, number};
use futures::future::try_join;
use sluice_client::Instance;
use sluice_lab::{Lab, VmState};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PORT: u16 = 7009;
const WITHIN_US: u64 = 100_000;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let name = |family: &str| format!("deleted-{family}-{}", ground.attempt);
    let (name4, name6) = (name("ipv4"), name("ipv6"));
    let vm4 = lab.add_vm(&name4, "web", "front", "host-b").await?;
    let vm6 = lab.add_vm(&name6, "web", "front", "host-b").await?;
    let delays = try_join(
        delete_under_traffic(lab, &name4, &vm4, false),
        delete_under_traffic(lab, &name6, &vm6, true),
    )
    .await?;
    for (family, delay_us) in [("IPv4", delays.0), ("IPv6", delays.1)] {
        println!("    {family} traffic stopped {delay_us} us after the deletion");
        ensure_timely!(
            delay_us <= WITHIN_US,
            "{family} traffic stopped only {delay_us} us after the deletion"
        );
    }
    Ok(())
}

/// Microseconds from the deletion's answer to the sending of the last packet that arrived.
async fn delete_under_traffic(lab: &Lab, name: &str, vm: &VmState, ipv6: bool) -> Result<u64, Failure> {
    let at = SocketAddr::new(address(vm, ipv6)?, PORT).to_string();
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
