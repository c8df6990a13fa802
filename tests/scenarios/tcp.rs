//! TCP with iperf3, in both directions, in frames of MTU size and with segmentation offload: at a fair part of
//! what the same hosts reach on the underlay without Sluice, with no wrong checksum and few retransmissions; large
//! segments leave the host whole.
//!
//! Catches: segmentation or checksum offload that is lost on the path, loss, reordering, a slow program.

use crate::Ground;
use crate::support::{Failure, Outcome, address, checksum_errors, ensure, ensure_timely, iperf};
use serde_json::Value;
use sluice_lab::{Lab, Options};
use std::net::IpAddr;

const PORT: u16 = 5207;
/// Part of the rate between the stacks of two hosts in the same lab, with offload and without. Through a gateway,
/// whose XDP program gets frames of MTU size, it is 12% with offload and 30% without on a machine that is busy with
/// other work; half of that is a fault.
const RATE_MIN: [(bool, f64); 2] = [(true, 0.06), (false, 0.15)];
/// TCP fills the queues of the processor that is busiest until segments are dropped. Without offload it sends up to 2.4%
/// of its segments again for this reason, the more the faster the hosts are compared with the gateway.
const RETRANSMITTED_MAX: f64 = 0.05;
const SECONDS: &str = "1";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    let underlay = underlay_rates(&lab).await?;
    for (from, to, ipv6) in [
        ("web-1", "web-3", false),
        ("web-1", "web-3", true),
        ("db-1", "db-2", false),
        ("web-3", "db-2", true),
    ] {
        let target = address(lab.vm(to)?, ipv6)?;
        for ((offload, part), underlay) in RATE_MIN.into_iter().zip(underlay) {
            for vm in [from, to] {
                set_offload(&lab, vm, offload).await?;
            }
            let outcome = both_directions(&lab, from, to, target, offload, part * underlay).await;
            for vm in [from, to] {
                set_offload(&lab, vm, true).await?;
            }
            outcome?;
        }
    }
    Ok(())
}

/// Bits per second between the stacks of host-a and host-b, with offload and without.
async fn underlay_rates(lab: &Lab) -> Result<[f64; 2], Failure> {
    let hosts = &lab.state().topology.hosts;
    let host = |name: &str| hosts.iter().find(|host| host.name == name);
    let target = host("host-b").ok_or_else(|| Failure::new("the lab has no host-b"))?.vtep();
    let mut rates = [0.0; 2];
    for (rate, offload) in rates.iter_mut().zip([true, false]) {
        set_offload(lab, "host-a", offload).await?;
        let report = iperf(lab, ("host-a", "host-b"), target, PORT, &options(false)).await;
        set_offload(lab, "host-a", true).await?;
        *rate = number("the underlay", &report?, "sum_received", "bits_per_second")?;
    }
    println!("    underlay: {:.0} Mbit/s with offload, {:.0} without", rates[0] / 1e6, rates[1] / 1e6);
    Ok(rates)
}

async fn set_offload(lab: &Lab, vm: &str, on: bool) -> Outcome {
    let word = if on { "on" } else { "off" };
    let output = lab.exec(vm, &["ethtool", "-K", "eth0", "tso", word, "gso", word]).await?;
    ensure!(output.status.success(), "ethtool in {vm}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn both_directions(
    lab: &Lab,
    from: &str,
    to: &str,
    target: IpAddr,
    offload: bool,
    rate_min: f64,
) -> Outcome {
    let errors = [checksum_errors(lab, from).await?, checksum_errors(lab, to).await?];
    for reverse in [false, true] {
        let sender_host = lab.vm(if reverse { to } else { from })?.host.clone();
        let before = sent(lab, &sender_host).await?;
        let report = iperf(lab, (from, to), target, PORT, &options(reverse)).await?;
        let after = sent(lab, &sender_host).await?;
        let what = format!("{from} -> {to} ({target}, offload {offload}, reverse {reverse})");
        judge(&what, &report, rate_min)?;
        let mean = (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64;
        if offload {
            ensure!(
                mean > 1600.0,
                "{what}: {sender_host} sent packets of {mean:.0} bytes: segments were cut early"
            );
        } else {
            ensure!(mean < 1520.0, "{what}: {sender_host} sent packets of {mean:.0} bytes without offload");
        }
    }
    let after = [checksum_errors(lab, from).await?, checksum_errors(lab, to).await?];
    ensure!(errors == after, "{from} <-> {to}: wrong checksums, from {errors:?} to {after:?}");
    Ok(())
}

/// Packets and bytes that a host has sent on its underlay.
async fn sent(lab: &Lab, host: &str) -> Result<(u64, u64), Failure> {
    let output = lab.exec(host, &["ip", "-j", "-s", "link", "show", "eth0"]).await?;
    let links: Value = serde_json::from_slice(&output.stdout)?;
    let tx = &links[0]["stats64"]["tx"];
    let number = |key: &str| tx[key].as_u64().ok_or_else(|| Failure::new(format!("no {key} in {links}")));
    Ok((number("packets")?, number("bytes")?))
}

fn number(what: &str, report: &Value, part: &str, key: &str) -> Result<f64, Failure> {
    let value = report["end"][part][key].as_f64();
    value.ok_or_else(|| Failure::new(format!("{what}: no {part}.{key} in iperf3's report")))
}

fn judge(what: &str, report: &Value, rate_min: f64) -> Outcome {
    let rate = number(what, report, "sum_received", "bits_per_second")?;
    println!("    {what}: {:.0} Mbit/s", rate / 1e6);
    ensure_timely!(rate > rate_min, "{what}: {:.1} Mbit/s, at least {:.1}", rate / 1e6, rate_min / 1e6);
    let resent = number(what, report, "sum_sent", "retransmits")?;
    let segments = number(what, report, "sum_sent", "bytes")? / 1400.0;
    ensure_timely!(
        resent / segments < RETRANSMITTED_MAX,
        "{what}: {resent} of {segments:.0} segments were sent again"
    );
    Ok(())
}

/// Options of the client: in reverse, the server sends.
fn options(reverse: bool) -> Vec<&'static str> {
    let mut options = vec!["-t", SECONDS];
    if reverse {
        options.push("-R");
    }
    options
}
