//! A VM sends many flows by its public addresses, at four times the rate of their meter, through a cluster of three gateways: together
//! they let pass the rate, and again after one of them has died. `vpc_meter` is about both directions.
//!
//! Catches: gateways that enforce the whole rate each, or an equal part of it; shares that follow neither the demand
//! nor the death of a gateway.

use crate::Ground;
use crate::internet::output_of;
use crate::support::{Failure, Outcome, ensure, ensure_timely, iperf};
use crate::takeover::{Hellos, lab_of_three};
use serde_json::{Value, json};
use sluice_client::{Eip, NewMeter, Tenant};
use sluice_lab::Lab;
use sluice_lab::internet::{WEB, web_address};
use std::time::Duration;
use tokio::time::sleep;

const VM: &str = "web-1";
/// Rate of the meter in kbit/s of IP packets, and a burst that is used up soon.
pub const KBPS: u64 = 8_000;
pub const BURST: u64 = 32 << 10;
const PORT: u16 = 5262;
/// Flows, each at a sixth of the rate. Hosts choose a vIP for each, of which each gateway has two.
const FLOWS: &str = "24";
pub const FLOW_RATE: &str = "1334K";
pub const BYTES: &str = "1000";
/// From the answer of the API until all gateways have the change.
const PROGRAMMED: Duration = Duration::from_secs(10);
/// From the first packets until the rate is exact: an interval until all gateways know the demand, and the bursts. Of it, iperf3 needs
/// half a second to begin.
pub const SETTLED: Duration = Duration::from_secs(3);
/// From the death of a gateway until the rate is exact: at hellos of 100 ms, a third of a second until the vIP has another owner and
/// the share is free, and two intervals until the others know each other's new demand.
const TAKEN_OVER: Duration = Duration::from_secs(2);
/// What the rate may be missed by, as a meter promises it. The time is read with a precision of 10 ms, which is 0.3% of
/// the shortest measurement.
const PERCENT: f64 = 2.0;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Slow).await?;
    give_meter(&lab).await?;
    let six = async {
        sleep(SETTLED).await;
        passes_the_rate(&lab, &[WEB], Duration::from_secs(3), "IPv6").await
    };
    tokio::try_join!(flows(&lab, true, "7"), six)?;
    let four = async {
        sleep(SETTLED).await;
        passes_the_rate(&lab, &[WEB], Duration::from_secs(5), "IPv4").await?;
        is_shared(&lab, &["gw-a", "gw-b", "gw-c"], "out").await?;
        lab.connect_gateway(0, false).await?;
        lab.kill("gw-a").await?;
        sleep(TAKEN_OVER).await;
        passes_the_rate(&lab, &[WEB], Duration::from_secs(3), "two gateways").await?;
        is_shared(&lab, &["gw-b", "gw-c"], "out").await
    };
    tokio::try_join!(flows(&lab, false, "15"), four).map(drop)
}

/// Both public addresses of the VM get the same meter.
async fn give_meter(lab: &Lab) -> Outcome {
    let tenant = lab.api().find::<Tenant>("red", &[]).await?.id;
    let (out_kbps, out_burst) = (Some(KBPS), Some(BURST));
    let new = NewMeter { name: "shared".into(), tenant, in_kbps: None, in_burst: None, out_kbps, out_burst };
    let meter = lab.api().create((), &new).await?.object.id;
    for family in [4, 6] {
        let eip = lab.api().find::<Eip>(&format!("{VM}-v{family}"), &[]).await?.id;
        lab.api().update::<Eip>(eip, &json!({ "meter": meter }), None).await?;
        lab.api().wait_programmed::<Eip>(eip, PROGRAMMED).await?;
    }
    Ok(())
}

/// Sends the flows for so many seconds.
async fn flows(lab: &Lab, ipv6: bool, seconds: &str) -> Outcome {
    let options = ["-u", "-P", FLOWS, "-l", BYTES, "-b", FLOW_RATE, "-t", seconds];
    iperf(lab, (VM, WEB), web_address(ipv6), PORT, &options).await.map(drop)
}

/// Bytes of IP packets that have come to a place, and the time in seconds.
async fn received(lab: &Lab, place: &str) -> Result<(f64, f64), Failure> {
    // One process reads them all, so that they are of one moment.
    let files = ["cat", "/proc/net/netstat", "/proc/net/snmp6", "/proc/uptime"];
    let text = output_of(&lab.exec(place, &files).await?);
    let parse = || {
        let mut four =
            text.lines().filter(|line| line.starts_with("IpExt:")).map(str::split_ascii_whitespace);
        let (mut names, mut values) = (four.next()?, four.next()?);
        let four = values.nth(names.position(|name| name == "InOctets")?)?.parse::<f64>().ok()?;
        let six =
            text.lines().find_map(|line| line.strip_prefix("Ip6InOctets"))?.trim().parse::<f64>().ok()?;
        let seconds = text.lines().last()?.split(' ').next()?.parse().ok()?;
        Some((four + six, seconds))
    };
    parse().ok_or_else(|| Failure::new(format!("{place} has no counters: {text}")))
}

/// What comes to these places together in this time is the rate.
pub async fn passes_the_rate(lab: &Lab, places: &[&str], time: Duration, what: &str) -> Outcome {
    let mut before = Vec::new();
    for place in places {
        before.push(received(lab, place).await?);
    }
    sleep(time).await;
    let mut kbps = 0.0;
    for (place, (bytes_before, begun)) in places.iter().zip(before) {
        let (bytes, ended) = received(lab, place).await?;
        kbps += (bytes - bytes_before) * 8.0 / 1000.0 / (ended - begun);
    }
    let percent = (kbps / KBPS as f64 - 1.0) * 100.0;
    println!("    {what}: {kbps:.0} of {KBPS} kbit/s, {percent:+.2}%");
    ensure!(percent <= PERCENT, "{what}: {kbps:.0} kbit/s of {KBPS}");
    ensure_timely!(percent >= -PERCENT, "{what}: only {kbps:.0} kbit/s of {KBPS}");
    Ok(())
}

/// Each of these gateways has a share of the rate in a direction, `in` or `out`, and has dropped what exceeded it.
pub async fn is_shared(lab: &Lab, gateways: &[&str], direction: &str) -> Outcome {
    let mut shares = Vec::new();
    for gateway in gateways {
        let socket = lab.paths().socket(gateway).display().to_string();
        let argv = ["agent", "meters", "--output", "json", "--socket", &socket];
        let output = tokio::process::Command::new(&lab.state().binary).args(argv).output().await?;
        let meters: Value = serde_json::from_slice(&output.stdout)?;
        let [meter] = meters.as_array().map_or(&[][..], Vec::as_slice) else {
            return Err(Failure::new(format!("{gateway} does not have one meter: {}", output_of(&output))));
        };
        let dropped = meter[format!("{direction}_dropped_bytes")].as_u64();
        ensure!(dropped.is_some_and(|bytes| bytes > 0), "{gateway} has dropped nothing: {meter}");
        shares.push(meter[format!("{direction}_share")].as_f64().unwrap_or_default());
    }
    let sum: f64 = shares.iter().sum();
    println!("    shares of {gateways:?} {direction}: {shares:.3?}");
    ensure!(shares.iter().all(|share| *share > 0.0) && (sum - 1.0).abs() < 0.02, "shares {shares:?}");
    Ok(())
}
