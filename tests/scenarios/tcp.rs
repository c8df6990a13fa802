//! TCP with iperf3, both ways, in frames of MTU size and with segmentation
//! offload: fast, with no wrong checksum and few retransmissions, and large
//! segments leave the host whole.

use crate::Ground;
use crate::support::{Failure, Outcome, address, checksum_errors, ensure};
use serde_json::Value;
use sluice_lab::{Lab, Options};
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

const PORT: &str = "5207";
/// Far below what the slowest machine does, far above what a path does that
/// loses or resends large packets.
const LEAST_BITS_PER_SECOND: f64 = 50e6;
const MOST_RETRANSMITTED: f64 = 0.02;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    for (from, to, ipv6) in [
        ("web-1", "web-3", false),
        ("web-1", "web-3", true),
        ("db-1", "db-2", false),
        ("web-3", "db-2", true),
    ] {
        let target = address(lab.vm(to)?, ipv6)?;
        for offload in [true, false] {
            for vm in [from, to] {
                set_offload(&lab, vm, offload).await?;
            }
            let outcome = both_ways(&lab, from, to, target, offload).await;
            for vm in [from, to] {
                set_offload(&lab, vm, true).await?;
            }
            outcome?;
        }
    }
    Ok(())
}

async fn set_offload(lab: &Lab, vm: &str, on: bool) -> Outcome {
    let word = if on { "on" } else { "off" };
    let output = lab.exec(vm, &["ethtool", "-K", "eth0", "tso", word, "gso", word]).await?;
    ensure!(output.status.success(), "ethtool in {vm}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn both_ways(lab: &Lab, from: &str, to: &str, target: IpAddr, offload: bool) -> Outcome {
    let errors = [checksum_errors(lab, from).await?, checksum_errors(lab, to).await?];
    for reverse in [false, true] {
        let sender_host = lab.vm(if reverse { to } else { from })?.host.clone();
        let before = sent(lab, &sender_host).await?;
        let report = iperf(lab, from, to, target, reverse).await?;
        let after = sent(lab, &sender_host).await?;
        let what = format!("{from} -> {to} ({target}, offload {offload}, reverse {reverse})");
        judge(&what, &report)?;
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

async fn iperf(lab: &Lab, from: &str, to: &str, target: IpAddr, reverse: bool) -> Result<Value, Failure> {
    let target = target.to_string();
    let mut server = lab
        .command(to, &["iperf3", "-s", "-1", "-B", &target, "-p", PORT])?
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut argv = vec!["iperf3", "-c", &target, "-p", PORT, "-t", "2", "-J"];
    if reverse {
        argv.push("-R");
    }
    let mut last = String::new();
    // The server needs a moment to listen.
    for _ in 0..20 {
        let output = lab.exec(from, &argv).await?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        if report["error"].is_null() {
            server.wait().await?;
            return Ok(report);
        }
        last = report["error"].to_string();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Failure::new(format!("iperf3 from {from} to {to}: {last}")))
}

fn judge(what: &str, report: &Value) -> Outcome {
    let number = |part: &str, key: &str| {
        let value = report["end"][part][key].as_f64();
        value.ok_or_else(|| Failure::new(format!("{what}: no {part}.{key} in iperf3's report")))
    };
    let rate = number("sum_received", "bits_per_second")?;
    ensure!(rate > LEAST_BITS_PER_SECOND, "{what}: only {:.1} Mbit/s", rate / 1e6);
    let (resent, bytes) = (number("sum_sent", "retransmits")?, number("sum_sent", "bytes")?);
    let segments = bytes / 1400.0;
    ensure!(resent / segments < MOST_RETRANSMITTED, "{what}: {resent} of {segments:.0} segments sent again");
    Ok(())
}
