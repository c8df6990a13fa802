//! Elastic credit of instances (Figures 13 and 14 of Achelous, in small). An instance that was quiet bursts above its base until its
//! credit is used up, in each direction by itself, in both address families and with two congestion controls. A flood of small packets is
//! limited by packet rate and by processor time, without loss at a neighbor on the same host. A class is changed and removed
//! while it is used, and the agent is killed and started again.
//!
//! Catches: limits that are not enforced or starve TCP, credit that is not saved, is saved twice or counts for the other direction, a
//! flood that costs neighbors packets, limits or credit that end with the agent, changes that come late.

use crate::Ground;
use crate::support::{Failure, Outcome, address, drops, ensure, ensure_timely, eventually, iperf};
use futures::future::try_join;
use serde_json::{Value, json};
use sluice_client::{Instance, NetworkClass, NewNetworkClass};
use sluice_lab::{Lab, Options};
use sluice_types::{Allowance, CreditPolicy, NetworkClassId};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The instance with credit, and its host.
const VM: &str = "web-3";
const HOST: &str = "host-b";
/// Full credit lasts for 2 s of burst, and is saved in 2 s of silence.
const SMALL: Allowance = Allowance { base: 20, max: 40, clamp: 30, credit: 40 };
/// Credit grows slowly, and its maximum is never reached.
const SLOW: Allowance = Allowance { base: 4, max: 40, clamp: 20, credit: 400 };
const REDUCED: Allowance = always(10);
/// What is paid back and saved until credit is full takes 3 s.
const SAVED: Duration = Duration::from_secs(10);
/// Of a stream that bursts; the credit is used up after 2 to 3 s, and looked at later.
const BURST_SECONDS: usize = 6;
const SPENT: Duration = Duration::from_millis(4500);
/// Part of the base that TCP exceeds in the first second.
const FIRST_MIN: f64 = 1.2;
/// Part of a limit that TCP reaches in the last two seconds, as payload.
const LAST_MIN: f64 = 0.8;
/// More than the limit, for what the bucket had at the begin of the last two seconds: at most 0.3 s of the rate.
const LAST_MAX: f64 = 1.15;
const STREAM_PORT: u16 = 5221;

/// Of a datagram's payload.
const FLOOD_BYTES: &str = "64";
/// 10,000 and 200 datagrams a second.
const FLOOD: &str = "5120000";
const NEIGHBOR: &str = "102400";
/// The flood is faster than this.
const FLOOD_MIN_PPS: f64 = 9000.0;
/// A bucket that was full at the beginning adds 0.4 s of the limit to what passes, a tenth.
const FLOOD_SECONDS: &str = "4";
const FLOOD_PORT: u16 = 5222;
const NEIGHBOR_PORT: u16 = 5223;
/// 1000 packets a second, and thousandths of a processor.
const KPPS: u32 = 2;
const CPU: u32 = 5;
/// Part of the flood that `CPU` lets pass at most: a packet costs at least 0.65 us, so that it is enough for 7700 a second. And the fewest packets a
/// second: a packet is never taken to cost more than 21 us.
const CPU_PASSES: f64 = 0.85;
const CPU_MIN_PPS: f64 = 200.0;

const PROGRAMMED: Duration = Duration::from_secs(10);
/// From the answer of the API until a changed limit is used.
const CHANGED: Duration = Duration::from_secs(2);
const BACK: Duration = Duration::from_secs(75);

/// One direction of the instance: the names of its credit and of the other's, and the ends of a stream.
struct Direction {
    dimension: &'static str,
    quiet: &'static str,
    from: &'static str,
    to: &'static str,
}

const SENT: Direction = Direction { dimension: "sent_mbps", quiet: "received_mbps", from: VM, to: "web-2" };
const RECEIVED: Direction =
    Direction { dimension: "received_mbps", quiet: "sent_mbps", from: "web-2", to: VM };

/// An instance may use so much, and never more.
const fn always(rate: u32) -> Allowance {
    Allowance { base: rate, max: rate, clamp: rate, credit: 0 }
}

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    packet_rate_limits_a_flood(&lab).await?;
    processor_time_limits_a_flood(&lab).await?;
    set_class(&lab, "web-1", None).await?;
    let small = create(&lab, "small", CreditPolicy { mbps: Some(SMALL), ..CreditPolicy::default() }).await?;
    set_class(&lab, VM, Some(small)).await?;
    for (ipv6, algorithm) in [(false, "cubic"), (true, second_algorithm()?)] {
        for direction in [&RECEIVED, &SENT] {
            bursts_until_credit_is_used_up(&lab, direction, ipv6, algorithm).await?;
        }
    }
    credit_survives_the_agent(&lab, small).await?;
    change_limits_a_stream(&lab, small).await?;
    nothing_is_limited_without_a_class(&lab).await
}

/// BBR, if this kernel has it.
fn second_algorithm() -> Result<&'static str, Failure> {
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    if available.split_whitespace().any(|name| name == "bbr") {
        return Ok("bbr");
    }
    println!("    this kernel has no BBR: CUBIC is used twice");
    Ok("cubic")
}

async fn create(lab: &Lab, name: &str, policy: CreditPolicy) -> Result<NetworkClassId, Failure> {
    let CreditPolicy { mbps, kpps, cpu_permille } = policy;
    let class = NewNetworkClass { name: name.to_owned(), mbps, kpps, cpu_permille, is_default: false };
    Ok(lab.api().create((), &class).await?.object.id)
}

async fn set_class(lab: &Lab, vm: &str, class: Option<NetworkClassId>) -> Outcome {
    let id = lab.vm(vm)?.id;
    lab.api().update::<Instance>(id, &json!({ "network_class": class }), None).await?;
    lab.api().wait_programmed::<Instance>(id, PROGRAMMED).await?;
    // The agent has the class now, and enforces it at its next review.
    eventually(PROGRAMMED, async || {
        let terms = port(lab, vm).await?["terms"].clone();
        let expected = if class.is_some() { "class" } else { "none" };
        ensure!(terms == expected, "{vm} has the class {class:?}, and the terms {terms}");
        Ok(())
    })
    .await
}

async fn set_mbps(lab: &Lab, class: NetworkClassId, mbps: Allowance) -> Outcome {
    lab.api().update::<NetworkClass>(class, &json!({ "mbps": mbps }), None).await?;
    Ok(())
}

/// A VM's port, as its host shows it.
async fn port(lab: &Lab, vm: &str) -> Result<Value, Failure> {
    let vm = lab.vm(vm)?;
    let socket = lab.paths().socket(&vm.host).display().to_string();
    let argv = ["port", "show", &vm.port, "--output", "json", "--socket", &socket];
    let output = tokio::process::Command::new(&lab.state().binary).args(argv).output().await?;
    ensure!(output.status.success(), "port show: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// One dimension of a VM's credit.
async fn standing(lab: &Lab, vm: &str, dimension: &str) -> Result<Value, Failure> {
    let shown = port(lab, vm).await?;
    let all = shown["credit"].as_array();
    let found = all.and_then(|all| all.iter().find(|standing| standing["dimension"] == dimension));
    found.cloned().ok_or_else(|| Failure::new(format!("{vm} has no credit for {dimension}: {shown}")))
}

fn number(report: &Value, key: &str) -> Result<f64, Failure> {
    report[key].as_f64().ok_or_else(|| Failure::new(format!("no number `{key}` in {report}")))
}

/// A flood, in packets a second.
struct Flood {
    sent: f64,
    received: f64,
}

/// Floods from one VM, while its neighbor on the same host sends little to the same VM and loses nothing.
async fn flood(lab: &Lab, ipv6: bool) -> Result<Flood, Failure> {
    let target = address(lab.vm(VM)?, ipv6)?;
    let options = |rate: &'static str| ["-u", "-l", FLOOD_BYTES, "-b", rate, "-t", FLOOD_SECONDS];
    let (much, little) = (options(FLOOD), options(NEIGHBOR));
    let flood = iperf(lab, ("web-1", VM), target, FLOOD_PORT, &much);
    let neighbor = iperf(lab, ("web-2", VM), target, NEIGHBOR_PORT, &little);
    let (flood, neighbor) = try_join(flood, neighbor).await?;
    let neighbor = &neighbor["end"]["sum"];
    let (lost, of) = (number(neighbor, "lost_packets")?, number(neighbor, "packets")?);
    ensure_timely!(
        lost == 0.0 && of > 0.0,
        "IPv6 {ipv6}: the neighbor of a flood lost {lost} of {of} packets"
    );
    let (sum, sent) = (&flood["end"]["sum"], &flood["end"]["sum_sent"]);
    let passed = number(sum, "packets")? - number(sum, "lost_packets")?;
    let flood = Flood {
        sent: number(sent, "packets")? / number(sent, "seconds")?,
        received: passed / number(sum, "seconds")?,
    };
    ensure_timely!(flood.sent > FLOOD_MIN_PPS, "only {:.0} packets/s were sent", flood.sent);
    Ok(flood)
}

/// Checks that drops of the flood were counted by the VPC and by the port.
async fn drops_are_counted(lab: &Lab, reason: &str, limit: &str) -> Outcome {
    let vm = lab.vm("web-1")?;
    ensure!(drops(lab, vm.vni, reason).await? > 0.0, "no drop was counted as {reason}");
    let labels = [("interface", vm.port.as_str()), ("direction", "sent"), ("limit", limit)];
    let counted = lab.metrics(&vm.host).await?.sum("sluice_port_credit_drops_total", &labels);
    ensure!(counted > 0.0, "the port counts no drop over the limit {limit}");
    Ok(())
}

async fn packet_rate_limits_a_flood(lab: &Lab) -> Outcome {
    let policy = CreditPolicy { kpps: Some(always(KPPS)), ..CreditPolicy::default() };
    set_class(lab, "web-1", Some(create(lab, "quiet", policy).await?)).await?;
    let limit = 1000.0 * f64::from(KPPS);
    for ipv6 in [false, true] {
        let Flood { sent, received } = flood(lab, ipv6).await?;
        println!("    {KPPS} kpps, IPv6 {ipv6}: {received:.0} of {sent:.0} packets/s passed");
        // The bucket was full at the beginning, and has 0.4 s of the limit.
        ensure!(received < 1.2 * limit, "{received:.0} packets/s passed, {limit:.0} may");
        ensure_timely!(received > 0.9 * limit, "only {received:.0} packets/s passed, {limit:.0} may");
    }
    drops_are_counted(lab, "packet_rate", "packet_rate").await
}

async fn processor_time_limits_a_flood(lab: &Lab) -> Outcome {
    let policy = CreditPolicy { cpu_permille: Some(always(CPU)), ..CreditPolicy::default() };
    set_class(lab, "web-1", Some(create(lab, "light", policy).await?)).await?;
    for ipv6 in [false, true] {
        let (Flood { sent, received }, used) = try_join(flood(lab, ipv6), processor_use(lab)).await?;
        println!(
            "    {CPU} permille, IPv6 {ipv6}: {received:.0} of {sent:.0} packets/s passed, {used:.1} permille used"
        );
        ensure!(received < CPU_PASSES * sent, "{received:.0} of {sent:.0} packets/s passed");
        ensure_timely!(received > CPU_MIN_PPS, "only {received:.0} packets/s passed");
        let limit = f64::from(CPU);
        ensure_timely!((0.7 * limit..1.3 * limit).contains(&used), "{used:.1} permille used, {CPU} may be");
    }
    drops_are_counted(lab, "cpu_limit", "cpu").await
}

/// What the flood takes of a processor, in thousandths, as the mean of what is shown while it lasts.
async fn processor_use(lab: &Lab) -> Result<f64, Failure> {
    const SAMPLES: u32 = 5;
    sleep(Duration::from_millis(1500)).await;
    let mut sum = 0.0;
    for _ in 0..SAMPLES {
        sleep(Duration::from_millis(200)).await;
        sum += number(&standing(lab, "web-1", "cpu_permille").await?, "used")?;
    }
    Ok(sum / f64::from(SAMPLES))
}

/// What TCP receives in each second of a stream, in Mbit/s. The client is the receiver: a sender reports what it has buffered.
async fn stream(
    lab: &Lab,
    direction: &Direction,
    ipv6: bool,
    seconds: usize,
    options: &[&str],
) -> Result<Vec<f64>, Failure> {
    let (target, length) = (address(lab.vm(direction.from)?, ipv6)?, seconds.to_string());
    let options = [&["-R", "-i", "1", "-t", &length], options].concat();
    let report = iperf(lab, (direction.to, direction.from), target, STREAM_PORT, &options).await?;
    let intervals = report["intervals"].as_array().cloned().unwrap_or_default();
    let rates = intervals.iter().filter_map(|interval| interval["sum"]["bits_per_second"].as_f64());
    // Behind the last second, there may be an interval of any length.
    let rates: Vec<f64> = rates.map(|bits| bits / 1e6).take(seconds).collect();
    let name = direction.dimension;
    ensure!(rates.len() == seconds, "{name}: {} of {seconds} seconds reported", rates.len());
    println!("    {name}, IPv6 {ipv6}, by the second: {rates:.1?}");
    Ok(rates)
}

/// Checks that TCP reached a limit in the last two seconds, and did not exceed it.
fn ends_near(rates: &[f64], limit: u32) -> Outcome {
    let last = &rates[rates.len() - 2..];
    let part = last.iter().sum::<f64>() / 2.0 / f64::from(limit);
    ensure!(part < LAST_MAX, "{last:.1?} Mbit/s at the end, at a limit of {limit}");
    ensure_timely!(part > LAST_MIN, "only {last:.1?} Mbit/s at the end, at a limit of {limit}");
    Ok(())
}

/// Waits until all credit of a direction is saved.
async fn is_saved(lab: &Lab, dimension: &str) -> Outcome {
    eventually(SAVED, async || {
        let found = standing(lab, VM, dimension).await?;
        ensure!(found["credit"] == SMALL.credit && found["limited"].is_null(), "not saved: {found}");
        Ok(())
    })
    .await
}

async fn bursts_until_credit_is_used_up(
    lab: &Lab,
    direction: &Direction,
    ipv6: bool,
    algorithm: &str,
) -> Outcome {
    is_saved(lab, direction.dimension).await?;
    let options = ["-C", algorithm];
    let watch = async {
        sleep(SPENT).await;
        is_used_up(lab, direction).await
    };
    let stream = stream(lab, direction, ipv6, BURST_SECONDS, &options);
    let (rates, ()) = try_join(stream, watch).await?;
    let first = rates[0] / f64::from(SMALL.base);
    ensure_timely!(first > FIRST_MIN, "{algorithm}: {rates:.1?} Mbit/s do not begin with a burst");
    ends_near(&rates, SMALL.base)
}

/// Checks that a direction is at its base because it has no credit, and that the other one has kept its own.
async fn is_used_up(lab: &Lab, direction: &Direction) -> Outcome {
    let busy = standing(lab, VM, direction.dimension).await?;
    ensure_timely!(busy["limited"] == "no_credit" && busy["limit"] == SMALL.base, "not used up: {busy}");
    let port = lab.vm(VM)?.port.as_str();
    let labels = [("interface", port), ("dimension", direction.dimension), ("reason", "no_credit")];
    let limited = lab.metrics(HOST).await?.sum("sluice_port_limited", &labels);
    ensure_timely!(limited == 1.0, "the metric of {} is {limited}", direction.dimension);
    let quiet = standing(lab, VM, direction.quiet).await?;
    ensure_timely!(
        quiet["credit"] == SMALL.credit && quiet["limited"].is_null(),
        "the quiet direction has lost credit: {quiet}"
    );
    Ok(())
}

/// Kills the agent while one direction has used up its credit and the other one saves: the limit of the one stays, and the other
/// one's credit.
async fn credit_survives_the_agent(lab: &Lab, class: NetworkClassId) -> Outcome {
    const SECONDS: usize = 10;
    /// Until the credit is used up.
    const SETTLED: usize = 3;
    for direction in [&SENT, &RECEIVED] {
        is_saved(lab, direction.dimension).await?;
    }
    set_mbps(lab, class, SLOW).await?;
    lab.api().wait_programmed::<NetworkClass>(class, PROGRAMMED).await?;
    let (rates, ()) = try_join(stream(lab, &SENT, true, SECONDS, &[]), restart(lab)).await?;
    let base = f64::from(SLOW.base);
    for rate in &rates[SETTLED..] {
        ensure_timely!(*rate < 2.0 * base, "{rates:.1?} Mbit/s: without an agent, the limit is gone");
    }
    let last = rates[SETTLED..].iter().sum::<f64>() / (SECONDS - SETTLED) as f64;
    ensure_timely!(last > 0.5 * base, "{rates:.1?} Mbit/s: less than half of the base");
    lab.synchronized(HOST, BACK).await?;
    Ok(())
}

/// Credit of the direction that saves while the agent is killed, in Mbit.
async fn saved(lab: &Lab) -> Result<f64, Failure> {
    number(&standing(lab, VM, RECEIVED.dimension).await?, "credit")
}

/// Kills the agent, starts it again, and checks what it knows then.
async fn restart(lab: &Lab) -> Outcome {
    sleep(Duration::from_secs(4)).await;
    let (before, begin) = (saved(lab).await?, Instant::now());
    ensure!(before >= SMALL.credit as f64, "{before} Mbit of credit stayed when the class was changed");
    lab.kill(HOST).await?;
    sleep(Duration::from_millis(500)).await;
    lab.restart(HOST)?;
    eventually(BACK, async || saved(lab).await.map(drop)).await?;
    let after = saved(lab).await?;
    let more = f64::from(SLOW.base) * begin.elapsed().as_secs_f64() + 1.0;
    println!("    credit before and after the agent was killed: {before} and {after} Mbit");
    ensure!((before..=before + more).contains(&after), "{before} Mbit of credit became {after} Mbit");
    let sent = standing(lab, VM, SENT.dimension).await?;
    ensure_timely!(sent["limit"] == SLOW.base, "after the agent, there is another limit: {sent}");
    Ok(())
}

async fn change_limits_a_stream(lab: &Lab, class: NetworkClassId) -> Outcome {
    let change = async {
        sleep(Duration::from_millis(1500)).await;
        set_mbps(lab, class, REDUCED).await?;
        eventually(CHANGED, async || {
            let found = standing(lab, VM, RECEIVED.dimension).await?;
            ensure!(found["limit"] == REDUCED.max, "the old limit: {found}");
            Ok(())
        })
        .await
    };
    let (rates, ()) = try_join(stream(lab, &RECEIVED, false, 5, &[]), change).await?;
    ensure_timely!(rates[0] > 2.0 * f64::from(REDUCED.max), "{rates:.1?} Mbit/s: there was no other limit");
    ends_near(&rates, REDUCED.max)
}

async fn nothing_is_limited_without_a_class(lab: &Lab) -> Outcome {
    set_class(lab, VM, None).await?;
    for direction in [&SENT, &RECEIVED] {
        let rates = stream(lab, direction, false, 2, &[]).await?;
        ensure_timely!(rates[1] > 2.0 * f64::from(SMALL.max), "{rates:.1?} Mbit/s without a class");
    }
    Ok(())
}
