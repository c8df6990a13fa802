//! Digests of a gateway's tables with a million entries: the processor time that they take, and the time until damage is
//! found and repaired. It changes with how damage is found.

use sluice_bench_report::Measure;
use sluice_bench_report::shell::Failure;
use sluice_client::{Instance, Vpc};
use sluice_lab::Lab;
use sluice_tables::damage::{find_words, flip};
use sluice_tables::{Memory, Reader};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The gateway whose tables are damaged.
const DAMAGED: &str = "gw-a";
/// A window in which processor time is measured, and the number of windows. Digests are computed every 3 s.
const WINDOW: Duration = Duration::from_secs(15);
const WINDOWS: usize = 4;
/// Entries that are damaged, one after the other.
const FAULTS: usize = 8;
/// The pause between a repair and the next fault is longer by this for each fault, so that faults come at different times
/// between two digests.
const SHIFT: Duration = Duration::from_millis(370);
/// A fault that is not found or repaired within this time is an error.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures `digest_core_pct`, `digest_found_s` and `digest_repaired_s` in a lab whose gateways have the entries of
/// [`crate::programming`].
///
/// # Errors
/// Errors of the lab and its API; a fault that is not found.
pub async fn measure(lab: &Lab) -> Result<Vec<Measure>, Failure> {
    let shares = shares(lab).await?;
    let memory = sluice_datapath::pinned_tables(&lab.paths().pin_dir(DAMAGED))?;
    let vpc: Vpc = lab.api().find("bulk-1m", &[]).await?;
    let instances: Vec<Instance> = lab.api().list(&[("vpc", &vpc.id.to_string())], Some(FAULTS)).await?;
    let (mut found, mut repaired) = (Vec::new(), Vec::new());
    for (number, instance) in instances.iter().enumerate() {
        tokio::time::sleep(Duration::from_secs(3) + SHIFT * number as u32).await;
        let times = fault(lab, &memory, &vpc, instance).await?;
        found.push(times.0);
        repaired.push(times.1);
    }
    Ok(vec![
        Measure::alone("digest_core_pct", "%", &shares),
        Measure::alone("digest_found_s", "s", &found),
        Measure::alone("digest_repaired_s", "s", &repaired),
    ])
}

/// For each window and gateway, the part of a core that digests took, in percent.
async fn shares(lab: &Lab) -> Result<Vec<f64>, Failure> {
    let mut shares = Vec::new();
    for _ in 0..WINDOWS {
        let mut before = Vec::new();
        for name in ["gw-a", "gw-b"] {
            before.push((name, digest_seconds(lab, name).await?, Instant::now()));
        }
        tokio::time::sleep(WINDOW).await;
        for (name, seconds, begin) in before {
            let spent = digest_seconds(lab, name).await? - seconds;
            shares.push(100.0 * spent / begin.elapsed().as_secs_f64());
        }
    }
    Ok(shares)
}

async fn digest_seconds(lab: &Lab, gateway: &str) -> Result<f64, Failure> {
    Ok(lab.metrics(gateway).await?.sum("sluice_table_digest_seconds_total", &[]))
}

/// Inverts a bit of an instance's MAC address in the tables. Returns the seconds until the controller saw that digests
/// differ, and until lookups find the right address.
async fn fault(lab: &Lab, memory: &Memory, vpc: &Vpc, instance: &Instance) -> Result<(f64, f64), Failure> {
    let address = IpAddr::V4(instance.ipv4.ok_or("the instance has no IPv4 address")?);
    let reader = Reader::new(memory.clone());
    let find = || reader.find(vpc.vni.get(), address);
    let (right, mac) = (find(), instance.mac.to_u64());
    let words = find_words(memory, |word| word == mac);
    let known = different(lab).await?;
    words.into_iter().for_each(|at| flip(memory, at, 1 << 3));
    if find() == right {
        return Err(format!("the damage of {address} changed nothing").into());
    }
    let begin = Instant::now();
    let mut found = None;
    while found.is_none() || find() != right {
        if begin.elapsed() > TIMEOUT {
            return Err(format!("{address}: found after {found:?} s, not repaired within {TIMEOUT:?}").into());
        }
        if found.is_none() && different(lab).await? > known {
            found = Some(begin.elapsed().as_secs_f64());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok((found.unwrap_or_default(), begin.elapsed().as_secs_f64()))
}

/// How many digests the controller found to differ.
async fn different(lab: &Lab) -> Result<f64, Failure> {
    Ok(lab.controller_metrics().await?.sum("sluice_controller_digests_different_total", &[]))
}
