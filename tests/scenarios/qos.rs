//! Quality of service, in both address families: a port's DSCP is on all packets of its VM, TCP comes near the rate of a
//! port in both directions, and packets of high priority lose nothing while normal ones exceed the rate.
//!
//! Catches: marks that are lost or change others' packets, a meter or a shaper that starves TCP or is not there,
//! priorities that are not kept.

use crate::Ground;
use crate::support::{Failure, Outcome, address, drops, ensure, ensure_timely, eventually, execute, iperf};
use serde_json::{Value, json};
use sluice_client::Instance;
use sluice_lab::{Lab, Options};
use std::process::Stdio;
use std::time::Duration;

/// Of web-3, in Mbit/s.
const RATE: u32 = 20;
/// Part of the rate that TCP reaches, as payload: 97% of a full packet.
const TCP_MIN: f64 = 0.8;
/// Of each measurement, after a second in which a bucket that was full empties.
const SECONDS: &str = "4";
/// More than the rate, for what the bucket has gained at the end of the first second: at most 0.3 s of the rate.
const RATE_MAX: f64 = 1.1;
/// What normal packets and packets of high priority are sent with. Together, they are not many for a machine that stands
/// still for a tenth of a second: what overflows in the kernel's backlog has no priority.
const FLOOD: &str = "40M";
const VOICE: &str = "1M";
/// DSCP 46 and an ECN-capable transport; DSCP 10.
const EXPEDITED: &str = "0xb8";
const ASSURED: &str = "0x28";
const PROGRAMMED: Duration = Duration::from_secs(10);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    set_qos(&lab, "web-1", &json!({ "dscp": 46 })).await?;
    set_qos(&lab, "web-3", &json!({ "rate_mbps": RATE })).await?;
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
        high_priority_loses_nothing(&lab, "sent", [("web-3", "web-2"), ("web-3", "web-1")], ipv6).await?;
    }
    drops_are_counted(&lab).await?;
    set_qos(&lab, "web-3", &json!({})).await?;
    let report = load(&lab, ("web-2", "web-3"), false, 5214, &[]).await?;
    let mbps = number(&report, "sum_received", "bits_per_second")? / 1e6;
    ensure_timely!(mbps > 2.0 * f64::from(RATE), "{mbps:.1} Mbit/s received without a rate");
    Ok(())
}

/// Checks that normal packets were dropped over the rate in both directions, and of high priority none.
async fn drops_are_counted(lab: &Lab) -> Outcome {
    let vni = lab.vm("web-3")?.vni;
    ensure!(drops(lab, vni, "rate_limit").await? > 0.0, "no drop was counted as rate_limit");
    for direction in ["sent", "received"] {
        // What was received is counted at the reviews of interfaces.
        eventually(Duration::from_secs(40), async || {
            let metrics = lab.metrics("host-b").await?;
            let sum = |priority| {
                metrics
                    .sum("sluice_port_rate_drops_total", &[("direction", direction), ("priority", priority)])
            };
            let (normal, high) = (sum("normal"), sum("high"));
            ensure!(
                normal > 0.0 && high == 0.0,
                "{direction}: {normal} normal drops, {high} of high priority"
            );
            Ok(())
        })
        .await?;
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
    let options: &[&str] = if reverse { &["-R"] } else { &[] };
    let report = load(lab, ("web-2", "web-3"), ipv6, 5211, options).await?;
    let mbps = number(&report, "sum_received", "bits_per_second")? / 1e6;
    let direction = if reverse { "sent" } else { "received" };
    println!("    TCP {direction}, IPv6 {ipv6}: {mbps:.1} of {RATE} Mbit/s");
    let part = mbps / f64::from(RATE);
    ensure!(part < RATE_MAX, "{mbps} Mbit/s {direction} at a rate of {RATE}");
    ensure_timely!(part > TCP_MIN, "only {mbps} Mbit/s {direction} at a rate of {RATE}");
    Ok(())
}

/// Floods a port with normal packets from or to the first VM, and sends few of high priority from or to the second.
async fn high_priority_loses_nothing(
    lab: &Lab,
    direction: &str,
    [normal, high]: [(&str, &str); 2],
    ipv6: bool,
) -> Outcome {
    let flood = load(lab, normal, ipv6, 5212, &["-u", "-l", "1300", "-b", FLOOD]);
    let voice = load(lab, high, ipv6, 5213, &["-u", "-l", "400", "-b", VOICE, "-S", EXPEDITED]);
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

fn number(report: &Value, part: &str, key: &str) -> Result<f64, Failure> {
    let value = report["end"][part][key].as_f64();
    value.ok_or_else(|| Failure::new(format!("no {part}.{key} in iperf3's report")))
}

/// Loads the path from one VM to another for some seconds, of which iperf3 leaves out the first. Returns its report.
async fn load(
    lab: &Lab,
    between: (&str, &str),
    ipv6: bool,
    port: u16,
    options: &[&str],
) -> Result<Value, Failure> {
    let options = [&["-t", SECONDS, "-O", "1"], options].concat();
    iperf(lab, between, address(lab.vm(between.1)?, ipv6)?, port, &options).await
}
