//! Quality of service, in both address families: a port's DSCP is on all packets of its VM, TCP comes near the rate of a
//! port in both directions, and packets of high priority lose nothing while normal ones exceed the rate.
//!
//! Catches: marks that are lost or change others' packets, a meter or a shaper that starves TCP or is not there,
//! priorities that are not kept.

use crate::Ground;
use crate::support::{Failure, Outcome, address, drops, ensure, ensure_timely, execute};
use serde_json::{Value, json};
use sluice_client::Instance;
use sluice_lab::{Lab, Options};
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

/// Of web-3, in Mbit/s.
const RATE: f64 = 50.0;
/// Part of the rate that TCP reaches, as payload: 97% of a full packet.
const TCP_MIN: f64 = 0.8;
/// Seconds of each measurement, in which a bucket that was full adds 0.2 s of the rate.
const SECONDS: f64 = 3.0;
/// Seconds of the rate that a full bucket adds, with a margin for the interval that iperf3 divides by.
const BURST_S: f64 = 0.3;
/// What normal packets are sent with, against the rate, and packets of high priority.
const FLOOD: &str = "100M";
const VOICE: &str = "2M";
/// DSCP 46 and an ECN-capable transport; DSCP 10.
const EXPEDITED: &str = "0xb8";
const ASSURED: &str = "0x28";
const PROGRAMMED: Duration = Duration::from_secs(10);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    set_qos(&lab, "web-1", &json!({ "dscp": 46 })).await?;
    set_qos(&lab, "web-3", &json!({ "rate_mbps": RATE as u32 })).await?;
    for ipv6 in [false, true] {
        arrives_with(&lab, ("web-1", "web-3"), ipv6, ASSURED, EXPEDITED).await?;
        arrives_with(&lab, ("web-2", "web-3"), ipv6, ASSURED, ASSURED).await?;
        arrives_with(&lab, ("web-3", "web-1"), ipv6, ASSURED, ASSURED).await?;
    }
    for ipv6 in [false, true] {
        for reverse in [false, true] {
            tcp_comes_near_the_rate(&lab, ipv6, reverse).await?;
        }
    }
    for ipv6 in [false, true] {
        high_priority_loses_nothing(&lab, "received", [("web-2", "web-3"), ("web-1", "web-3")], ipv6).await?;
        let vni = lab.vm("web-3")?.vni;
        let before = drops(&lab, vni, "rate_limit").await?;
        high_priority_loses_nothing(&lab, "sent", [("web-3", "web-2"), ("web-3", "web-1")], ipv6).await?;
        ensure!(drops(&lab, vni, "rate_limit").await? > before, "no drop was counted as rate_limit");
    }
    Ok(())
}

async fn set_qos(lab: &Lab, vm: &str, qos: &Value) -> Outcome {
    let id = lab.vm(vm)?.id;
    lab.api().update::<Instance>(id, &json!({ "qos": qos }), None).await?;
    lab.api().wait_programmed::<Instance>(id, PROGRAMMED).await?;
    Ok(())
}

/// Checks that echo requests that one VM sends with a traffic class reach another one with the class that is expected.
async fn arrives_with(
    lab: &Lab,
    (from, to): (&str, &str),
    ipv6: bool,
    sent: &str,
    expected: &str,
) -> Outcome {
    let (source, target) = (address(lab.vm(from)?, ipv6)?, address(lab.vm(to)?, ipv6)?);
    let filter = if ipv6 {
        format!("ip6 src {source} and icmp6 and ip6[40] = 128 and (ip6[0:2] >> 4 & 0xfc) = {expected}")
    } else {
        format!("ip src {source} and icmp[0] = 8 and ip[1] & 0xfc = {expected}")
    };
    let argv = ["timeout", "10", "tcpdump", "-nn", "-i", "eth0", "--immediate-mode", "-c", "3", &filter];
    let mut capture = lab.command(to, &argv)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let target = target.to_string();
    execute(lab, from, &["ping", "-c", "15", "-i", "0.2", "-Q", sent, &target]).await?;
    let status = capture.wait().await?;
    ensure!(status.success(), "{from} -> {target}: sent with {sent}, but not received with {expected}");
    Ok(())
}

async fn tcp_comes_near_the_rate(lab: &Lab, ipv6: bool, reverse: bool) -> Outcome {
    let report = iperf(lab, ("web-2", "web-3"), ipv6, 5211, if reverse { &["-R"] } else { &[] }).await?;
    let mbps = number(&report, "sum_received", "bits_per_second")? / 1e6;
    let direction = if reverse { "sent" } else { "received" };
    println!("    TCP {direction}, IPv6 {ipv6}: {mbps:.1} of {RATE} Mbit/s");
    ensure!(mbps < RATE * (1.0 + BURST_S / SECONDS), "{mbps} Mbit/s {direction} at a rate of {RATE}");
    ensure_timely!(mbps > RATE * TCP_MIN, "only {mbps} Mbit/s {direction} at a rate of {RATE}");
    Ok(())
}

/// Floods a port with normal packets from or to the first VM, and sends few of high priority from or to the second.
async fn high_priority_loses_nothing(
    lab: &Lab,
    direction: &str,
    [normal, high]: [(&str, &str); 2],
    ipv6: bool,
) -> Outcome {
    let flood = iperf(lab, normal, ipv6, 5212, &["-u", "-l", "1300", "-b", FLOOD]);
    let voice = iperf(lab, high, ipv6, 5213, &["-u", "-l", "200", "-b", VOICE, "-S", EXPEDITED]);
    let (flood, voice) = futures::future::try_join(flood, voice).await?;
    let lost = |report: &Value| {
        Ok::<_, Failure>((number(report, "sum", "lost_packets")?, number(report, "sum", "packets")?))
    };
    let ((lost, of), (high_lost, high_of)) = (lost(&flood)?, lost(&voice)?);
    println!(
        "    {direction}, IPv6 {ipv6}: lost {lost} of {of} normal packets, {high_lost} of {high_of} others"
    );
    ensure!(lost > of * 0.2, "{direction}: only {lost} of {of} packets over the rate were lost");
    ensure_timely!(
        high_lost == 0.0 && high_of > 0.0,
        "{direction}: lost {high_lost} of {high_of} of high priority"
    );
    Ok(())
}

/// Runs iperf3 from one VM to another, with options for the client. Returns its report.
async fn iperf(
    lab: &Lab,
    (from, to): (&str, &str),
    ipv6: bool,
    port: u16,
    options: &[&str],
) -> Result<Value, Failure> {
    let target: IpAddr = address(lab.vm(to)?, ipv6)?;
    let (target, port, seconds) = (target.to_string(), port.to_string(), SECONDS.to_string());
    let mut server = lab
        .command(to, &["iperf3", "-s", "-1", "-B", &target, "-p", &port])?
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let argv = [&["iperf3", "-c", &target, "-p", &port, "-t", &seconds, "-J"], options].concat();
    let mut last = String::new();
    // The server needs some time until it listens.
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
    server.kill().await?;
    Err(Failure::new(format!("iperf3 from {from} to {to}: {last}")))
}

fn number(report: &Value, part: &str, key: &str) -> Result<f64, Failure> {
    let value = report["end"][part][key].as_f64();
    value.ok_or_else(|| Failure::new(format!("no {part}.{key} in iperf3's report")))
}
