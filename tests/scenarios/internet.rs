//! VMs and the Internet, in both address families: they fetch pages, and are reached at their public addresses; a VM
//! without one is not. ICMP errors find their way in both directions. A meter limits what a VM sends and gets,
//! also to and from a peered VPC. A public address moves
//! to another VM under traffic, and a gateway dies during downloads, which go on, because gateways keep no connections.

use crate::Ground;
use crate::hostile_clients::forge_about;
use crate::path_mtu::set_mtu;
use crate::security_groups::{group, permit, set_groups};
use crate::streams::Streams;
use crate::support::{
    Failure, Outcome, PROBE, Probe, address, answers, drops, ensure, ensure_timely, eventually, execute,
    iperf, number, path_to, ping, slow_hellos, who,
};
use serde_json::json;
use sluice_client::{Eip, Meter, NewMeter, Peering, Remote, Tenant, Vpc};
use sluice_lab::internet::{CLIENT, ISP, LARGE_FILE, WEB, client_address, page, web_address};
use sluice_lab::{Lab, Options};
use sluice_types::{MeterId, Protocol};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

/// VMs of VPC web with public addresses, and one without.
const PUBLIC: [&str; 2] = ["web-1", "web-3"];
const PRIVATE: &str = "web-2";
/// A VM of VPC shop with the addresses of web-1.
const TWIN: &str = "shop-1";
/// Where all VMs echo.
const PORT: u16 = 7041;
/// Where web-1 gives data.
const GIVES: u16 = 7042;
/// Data that does not fit into the first flight of a TCP connection.
const GIVEN_BYTES: &str = "400000";
/// For how long an answer is awaited that should not come.
const SILENCE: &str = "1000";
/// From the answer of the API until all gateways have the change; and from the death of a gateway until another is
/// reached in its place.
const PROGRAMMED: Duration = Duration::from_secs(10);
const PPS: u64 = 200;
/// From the answer that a meter is programmed until no direct path avoids it: paths are confirmed ten times a second.
const PATHS_END: Duration = Duration::from_secs(1);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    slow_hellos(&mut options.topology);
    let lab = Lab::up(options).await?;
    let mut echoes = Vec::new();
    for vm in [PUBLIC[0], PUBLIC[1], PRIVATE, TWIN] {
        for at in lab.vm(vm)?.addresses() {
            let at = SocketAddr::new(at, PORT).to_string();
            echoes.push(Probe::listening(&lab, vm, &["echo", &at, vm]).await?);
        }
    }
    pages_come_from_public_addresses(&lab).await?;
    vms_are_reached_at_their_public_addresses(&lab).await?;
    packets_without_a_public_address_are_dropped(&lab).await?;
    security_groups_filter_the_internet(&lab).await?;
    senders_learn_path_mtus(&lab).await?;
    data_arrives_without_icmp(&lab).await?;
    routes_can_be_traced(&lab).await?;
    pool_is_scanned(&lab).await?;
    eip_moves(&lab).await?;
    meters_limit(&lab).await?;
    meters_limit_peerings(&lab).await?;
    owner_dies(&lab).await
}

/// The public address of a VM.
pub fn eip(lab: &Lab, vm: &str, ipv6: bool) -> Result<IpAddr, Failure> {
    let eips = lab.state().topology.internet.iter().flat_map(|internet| &internet.eips);
    let found = eips.filter(|eip| eip.vm == vm).map(|eip| eip.address).find(|it| it.is_ipv6() == ipv6);
    found.ok_or_else(|| Failure::new(format!("{vm} has no public address of a family")))
}

/// The command that fetches a URL.
pub fn curl<'a>(options: &[&'a str], url: &'a str) -> Vec<&'a str> {
    let common = ["curl", "--silent", "--show-error", "--globoff", "--noproxy", "*", "--max-time", "60"];
    [&common[..], options, &[url]].concat()
}

pub fn output_of(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr];
    both.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// VMs fetch the page of a web server, which sees their public addresses and no others.
async fn pages_come_from_public_addresses(lab: &Lab) -> Outcome {
    for vm in PUBLIC {
        for ipv6 in [false, true] {
            let output = lab.exec(vm, &curl(&[], &page(ipv6))).await?;
            let text = output_of(&output);
            ensure!(text == "Welcome to the Internet.\n", "{vm} got from {}: {text}", page(ipv6));
            let source = eip(lab, vm, ipv6)?.to_string();
            let log = std::fs::read_to_string(lab.paths().log(WEB))?;
            ensure!(log.contains(&source), "{WEB} was not reached from {source}: {log}");
            let inside = address(lab.vm(vm)?, ipv6)?.to_string();
            ensure!(!log.contains(&inside), "{WEB} was reached from {inside}: {log}");
        }
    }
    Ok(())
}

/// From the Internet, from another VM with a public address, and from the VM itself; and it is that VM, not the one of the
/// other tenant that has the same addresses.
async fn vms_are_reached_at_their_public_addresses(lab: &Lab) -> Outcome {
    for vm in PUBLIC {
        for ipv6 in [false, true] {
            let at = SocketAddr::new(eip(lab, vm, ipv6)?, PORT);
            for from in [CLIENT, WEB, PUBLIC[0], PUBLIC[1]] {
                for protocol in ["tcp", "udp"] {
                    let name = who(lab, from, protocol, at).await?;
                    ensure!(name.as_deref() == Some(vm), "{from} reached {name:?} at {at} by {protocol}");
                }
            }
            answers(lab, CLIENT, at.ip(), &[]).await?;
        }
    }
    Ok(())
}

/// Drops with the reason: of a VM without a public address, and of one whose VPC has no route to the Internet, but is peered
/// with one that has such a route.
async fn packets_without_a_public_address_are_dropped(lab: &Lab) -> Outcome {
    for (vm, reason) in [(PRIVATE, "no_public_address"), ("db-1", "no_route")] {
        let vni = lab.vm(vm)?.vni;
        for ipv6 in [false, true] {
            let before = drops(lab, vni, reason).await?;
            let options = ["-c", "3", "-i", "0.1", "-W", "0.5"];
            let ping = ping(lab, vm, web_address(ipv6), &options).await?;
            ensure!(ping.received == 0, "{vm} reached the Internet: {}", ping.text);
            eventually(Duration::from_secs(2), async || {
                let more = drops(lab, vni, reason).await? - before;
                ensure!(more >= 3.0, "{more} of 3 packets of {vm} counted as {reason}");
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

/// What no rule permits does not come in, and answers to what a VM has sent need no rule.
async fn security_groups_filter_the_internet(lab: &Lab) -> Outcome {
    let public = group(lab, "public").await?;
    let vni = lab.vm(PUBLIC[0])?.vni;
    for everywhere in ["0.0.0.0/0", "::/0"] {
        permit(lab, public, Protocol::TCP, PORT, Remote::Prefix(everywhere.parse()?)).await?;
    }
    set_groups(lab, PUBLIC[0], &[public]).await?;
    for ipv6 in [false, true] {
        let at = SocketAddr::new(eip(lab, PUBLIC[0], ipv6)?, PORT);
        let name = who(lab, CLIENT, "tcp", at).await?;
        ensure!(name.as_deref() == Some(PUBLIC[0]), "a permitted connection reached {name:?} at {at}");
        let before = drops(lab, vni, "ingress_denied").await?;
        let words = ["ask", "udp", &at.to_string(), SILENCE];
        let answer = Probe::start(lab, CLIENT, &words)?.result().await?;
        ensure!(answer["name"].is_null(), "{at} answers by UDP, which no rule permits");
        let more = drops(lab, vni, "ingress_denied").await? - before;
        ensure!(more > 0.0, "no packet to {at} counted as ingress_denied");
        let output = lab.exec(PUBLIC[0], &curl(&[], &page(ipv6))).await?;
        ensure!(output.status.success(), "no page with a security group: {}", output_of(&output));
    }
    set_groups(lab, PUBLIC[0], &[]).await
}

/// ICMP errors reach the senders: of the router before a link of MTU 1400 the VM, and of the gateway, because of the VPC's
/// MTU of 1430, a sender on the Internet. Data that needs them arrives.
async fn senders_learn_path_mtus(lab: &Lab) -> Outcome {
    for ipv6 in [false, true] {
        let public = eip(lab, PUBLIC[0], ipv6)?;
        both_ends_learn_the_mtu(lab, PUBLIC[0], public).await?;
        for vm in PUBLIC {
            download(lab, vm, ipv6).await?;
        }
        // From a VM that has not learned the path MTU by the pings above.
        execute(lab, PUBLIC[0], &["ip", if ipv6 { "-6" } else { "-4" }, "route", "flush", "cache"]).await?;
        let inside = SocketAddr::new(address(lab.vm(PUBLIC[0])?, ipv6)?, GIVES).to_string();
        let _giver = Probe::listening(lab, PUBLIC[0], &["give", &inside, GIVEN_BYTES]).await?;
        let at = SocketAddr::new(public, GIVES).to_string();
        for to in [WEB, CLIENT] {
            execute(lab, to, &[PROBE, "take", &at, GIVEN_BYTES]).await?;
        }
    }
    Ok(())
}

/// A VM with a public address learns the MTU of the way to the web server, and a computer on the Internet that of the VPC. Packets of this
/// length are answered.
pub async fn both_ends_learn_the_mtu(lab: &Lab, vm: &str, public: IpAddr) -> Outcome {
    let ipv6 = public.is_ipv6();
    // 8 bytes of ICMP and 20 or 40 of IP more.
    let headers = if ipv6 { 48 } else { 28 };
    for (from, to, size, mtu) in [(vm, web_address(ipv6), 1410, 1400), (CLIENT, public, 1500, 1430)] {
        let size = (size - headers).to_string();
        let options = ["-c", "3", "-i", "0.2", "-M", "do", "-s", &size, "-W", "1"];
        let ping = ping(lab, from, to, &options).await?;
        let said = ping.text.to_lowercase().replace(' ', "");
        ensure!(
            ping.received == 0 && said.contains(&format!("mtu={mtu}")),
            "{from} -> {to} was not told of MTU {mtu}: {}",
            ping.text
        );
        let size = (mtu - headers).to_string();
        answers(lab, from, to, &["-M", "do", "-s", &size]).await?;
    }
    Ok(())
}

/// A router drops ICMP errors, so a sender on the Internet does not learn the VPC's MTU. Data for a VM that believes in a larger MTU than
/// that arrives all the same, because the gateway reduces the MSS that the VM announces.
async fn data_arrives_without_icmp(lab: &Lab) -> Outcome {
    const MUTE: &str = "table inet mute {
        chain forward {
            type filter hook forward priority 0
            icmp type destination-unreachable drop
            icmpv6 type packet-too-big drop
        }
    }";
    execute(lab, ISP, &["nft", MUTE]).await?;
    set_mtu(lab, PUBLIC[0], "1500").await?;
    for ipv6 in [false, true] {
        execute(lab, CLIENT, &["ip", if ipv6 { "-6" } else { "-4" }, "route", "flush", "cache"]).await?;
        let (public, headers) = (eip(lab, PUBLIC[0], ipv6)?, if ipv6 { 48 } else { 28 });
        let size = (1500 - headers).to_string();
        let ping =
            ping(lab, CLIENT, public, &["-c", "2", "-i", "0.2", "-M", "do", "-s", &size, "-W", "1"]).await?;
        let was_told = ping.text.to_lowercase().contains("mtu");
        ensure!(ping.received == 0 && !was_told, "the router lets ICMP errors pass: {}", ping.text);
        let at = SocketAddr::new(client_address(ipv6), GIVES).to_string();
        let _giver = Probe::listening(lab, CLIENT, &["give", &at, GIVEN_BYTES]).await?;
        // Without ICMP, TCP repeats a segment that is too long until the end.
        let taken = Probe::start(lab, PUBLIC[0], &["take", &at, GIVEN_BYTES])?;
        let taken = tokio::time::timeout(PROGRAMMED, taken.result()).await;
        let taken = taken.map_err(|_| Failure::late(format!("{} got nothing from {at}", PUBLIC[0])))??;
        ensure!(taken["equal"] == true, "{} took {taken} from {at}", PUBLIC[0]);
    }
    set_mtu(lab, PUBLIC[0], "1430").await?;
    execute(lab, ISP, &["nft", "delete table inet mute"]).await
}

/// Downloads the web server's large file, and compares it.
pub async fn download(lab: &Lab, vm: &str, ipv6: bool) -> Outcome {
    download_from(lab, vm, ipv6, &(page(ipv6) + LARGE_FILE)).await
}

/// The same by another URL of that file.
pub async fn download_from(lab: &Lab, vm: &str, ipv6: bool, url: &str) -> Outcome {
    let copy = copy(lab, vm, ipv6);
    let file = copy.display().to_string();
    let output = lab.exec(vm, &curl(&["--output", &file], url)).await?;
    ensure!(output.status.success(), "{vm} downloads {url}: {}", output_of(&output));
    let original = std::fs::read(lab.paths().web_root().join(LARGE_FILE))?;
    ensure!(std::fs::read(&copy)? == original, "{vm} got another file from {url}");
    std::fs::remove_file(copy)?;
    Ok(())
}

/// The file that a VM downloads to.
pub fn copy(lab: &Lab, vm: &str, ipv6: bool) -> PathBuf {
    let family = if ipv6 { 6 } else { 4 };
    lab.paths().root().join("vms").join(format!("{vm}.download{family}"))
}

/// Both ends see the gateway: a VM as the router of its VPC, the Internet as the public address.
async fn routes_can_be_traced(lab: &Lab) -> Outcome {
    for ipv6 in [false, true] {
        let public = eip(lab, PUBLIC[0], ipv6)?;
        let (router, isp, far) = match ipv6 {
            false => ("10.1.0.1", ["198.51.100.1", "198.51.100.193"], "198.51.100.66"),
            true => ("fd10:0:0:1::1", ["2001:db8:100:1::1", "2001:db8:100:4::1"], "2001:db8:100:2::2"),
        };
        let [web, public] = [web_address(ipv6), public].map(|address| address.to_string());
        traced(lab, PUBLIC[0], &web, &[router, isp[0], far, &web]).await?;
        traced(lab, CLIENT, &public, &[isp[1], &public, &public]).await?;
    }
    Ok(())
}

pub async fn traced(lab: &Lab, from: &str, to: &str, expected: &[&str]) -> Outcome {
    let program = if to.contains(':') { "traceroute6" } else { "traceroute" };
    let argv = ["busybox", program, "-n", "-q", "2", "-w", "2", "-m", "6", to];
    let output = output_of(&lab.exec(from, &argv).await?);
    let hops = output.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    let hops: Vec<&str> = hops.filter_map(|line| line.split_ascii_whitespace().nth(1)).collect();
    ensure!(hops == expected, "{from} -> {to} passes {hops:?}, not {expected:?}: {output}");
    Ok(())
}

/// The router routes the whole pool to one gateway, whose machine forwards, and a computer on the Internet sends to each of
/// its addresses: what has no VM is counted, and not sent back to the router; streams to a VM are not disturbed.
async fn pool_is_scanned(lab: &Lab) -> Outcome {
    const SCAN: &str = "for last in $(seq 1 254); do \
        ping -n -c 1 -W 1 203.0.113.$last >/dev/null & echo >/dev/udp/203.0.113.$last/9; done; wait";
    let route = |via: &'static [&'static str]| {
        [&["ip", "route", "replace", "203.0.113.0/24"], via, &["dev", "ix0"]].concat()
    };
    execute(lab, ISP, &route(&["via", "198.51.100.11"])).await?;
    execute(lab, "gw-a", &["sysctl", "-qw", "net.ipv4.conf.eth1.forwarding=1"]).await?;
    let flows =
        [false, true].map(|ipv6| Ok((CLIENT, SocketAddr::new(eip(lab, "web-3", ipv6)?, PORT).to_string())));
    let flows = flows.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let streams = Streams::to_flows(lab, &flows, PPS).await?;
    let not_routed = async || Ok::<_, Failure>(lab.metrics("gw-a").await?.sum(DROPS, &NOT_ROUTED));
    let before = not_routed().await?;
    execute(lab, CLIENT, &["bash", "-c", SCAN]).await?;
    streams.end().await?;
    let more = not_routed().await? - before;
    // Two packets to each address but those of two VMs and of a NAT gateway.
    ensure!(more >= 2.0 * 251.0, "{more} packets of a scan counted");
    execute(lab, "gw-a", &["sysctl", "-qw", "net.ipv4.conf.eth1.forwarding=0"]).await?;
    execute(lab, ISP, &route(&[])).await
}

const DROPS: &str = "sluice_drops_total";
const NOT_ROUTED: [(&str, &str); 1] = [("reason", "not_routed")];

/// A public address moves to another VM by one request, while a client sends to it: the other VM answers from then on, and
/// uses the address.
async fn eip_moves(lab: &Lab) -> Outcome {
    for ipv6 in [false, true] {
        let public = SocketAddr::new(eip(lab, PUBLIC[0], ipv6)?, PORT);
        let streams = Streams::to_flows(lab, &[(CLIENT, public.to_string())], PPS).await?;
        let name = format!("{}-v{}", PUBLIC[0], if ipv6 { 6 } else { 4 });
        let eip = lab.api().find::<Eip>(&name, &[]).await?.id;
        for to in [PRIVATE, PUBLIC[0]] {
            let instance = lab.vm(to)?.id;
            lab.api().update::<Eip>(eip, &json!({ "instance": instance }), None).await?;
            lab.api().wait_programmed::<Eip>(eip, PROGRAMMED).await?;
            let name = who(lab, CLIENT, "udp", public).await?;
            ensure!(name.as_deref() == Some(to), "{public} was moved to {to}, and {name:?} answers");
            let output = lab.exec(to, &curl(&[], &page(ipv6))).await?;
            ensure!(output.status.success(), "{to} has no Internet: {}", output_of(&output));
        }
        for (stream, result) in streams.results().await? {
            let (sent, received) = (number(&result, "sent")?, number(&result, "received")?);
            // Between the two VMs, a gateway has neither for a moment.
            ensure_timely!(20 * (sent - received) <= sent, "{stream}: {received} of {sent} were answered");
        }
    }
    Ok(())
}

/// Rate of the meter, in kbit/s of IP packets. The burst is that of 16 ms.
const METERED_KBPS: u64 = 8_000;
const METERED_BURST: u64 = 16 << 10;
const METERED_PORT: u16 = 5261;
/// Bytes of UDP payload, and seconds for which twice the rate is offered. A gateway that had none of the traffic before begins with an
/// eighth of the rate, for a tenth of a second.
const OFFERED_BYTES: u64 = 1000;
const OFFERED_S: u64 = 2;

/// Both public addresses of a VM share a meter, by which the rate is limited that it sends to the Internet, and that it gets from
/// there. What exceeds it is counted; without the meter, all passes.
async fn meters_limit(lab: &Lab) -> Outcome {
    let meter = slow_meter(lab).await?;
    for ipv6 in [false, true] {
        let name = format!("{}-v{}", PUBLIC[0], if ipv6 { 6 } else { 4 });
        let eip = lab.api().find::<Eip>(&name, &[]).await?.id;
        for metered in [true, false] {
            let change = json!({ "meter": metered.then_some(meter) });
            lab.api().update::<Eip>(eip, &change, None).await?;
            lab.api().wait_programmed::<Eip>(eip, PROGRAMMED).await?;
            for (reason, reversed) in [("meter_out", false), ("meter_in", true)] {
                let (vni, ends) = (lab.vm(PUBLIC[0])?.vni, (PUBLIC[0], WEB));
                let through = Through { ends, target: web_address(ipv6), reversed, vni, reason };
                passes_a_meter(lab, &through, metered).await?;
            }
        }
    }
    Ok(lab.api().delete::<Meter>(meter, None).await.map(drop)?)
}

/// A VM of another VPC, on another host than [`PUBLIC`]'s first, and the peering of both VPCs.
const PEER: &str = "db-1";
const PEERING: &str = "web-db";

/// A meter on one side of a peering limits what its VPC sends to the other and what it gets, although hosts had direct paths, which
/// end with it.
async fn meters_limit_peerings(lab: &Lab) -> Outcome {
    let meter = slow_meter(lab).await?;
    let (here, there) = (lab.vm(PUBLIC[0])?, lab.vm(PEER)?);
    let vpc = lab.api().find::<Vpc>("web", &[]).await?.id;
    let peering = lab.api().find::<Peering>(PEERING, &[]).await?.id;
    for ipv6 in [false, true] {
        let target = address(there, ipv6)?;
        let (ends, vni, reason) = ((PUBLIC[0], PEER), here.vni, "meter_peering");
        let paths = async || -> Result<usize, Failure> {
            let out = path_to(lab, &here.host, here.vni, target).await?;
            let back = path_to(lab, &there.host, there.vni, address(here, ipv6)?).await?;
            Ok(out.into_iter().chain(back).count())
        };
        for metered in [false, true] {
            let change = json!({ "meters": { vpc.to_string(): metered.then_some(meter) } });
            lab.api().update::<Peering>(peering, &change, None).await?;
            lab.api().wait_programmed::<Peering>(peering, PROGRAMMED).await?;
            if metered {
                eventually(PATHS_END, || async {
                    ensure!(paths().await? == 0, "a direct path avoids the meter of {PEERING}");
                    Ok(())
                })
                .await?;
            }
            for reversed in [false, true] {
                let through = Through { ends, target, reversed, vni, reason };
                passes_a_meter(lab, &through, metered).await?;
            }
            let paths = paths().await?;
            ensure!(paths == if metered { 0 } else { 2 }, "{paths} direct paths, metered: {metered}");
        }
        let change = json!({ "meters": { vpc.to_string(): null } });
        lab.api().update::<Peering>(peering, &change, None).await?;
    }
    Ok(lab.api().delete::<Meter>(meter, None).await.map(drop)?)
}

/// Creates a meter of tenant `red` with a limit in both directions.
async fn slow_meter(lab: &Lab) -> Result<MeterId, Failure> {
    let tenant = lab.api().find::<Tenant>("red", &[]).await?.id;
    let limit = (Some(METERED_KBPS), Some(METERED_BURST));
    let ((in_kbps, in_burst), (out_kbps, out_burst)) = (limit, limit);
    let new = NewMeter { name: "slow".into(), tenant, in_kbps, in_burst, out_kbps, out_burst };
    Ok(lab.api().create((), &new).await?.object.id)
}

/// What passes a meter: from the first to the second end, or back if it is reversed.
struct Through<'a> {
    ends: (&'a str, &'a str),
    /// Address of the second.
    target: IpAddr,
    reversed: bool,
    /// The VPC whose meter it is, and the reason of its drops.
    vni: u32,
    reason: &'a str,
}

/// Offers twice the rate.
async fn passes_a_meter(lab: &Lab, through: &Through<'_>, metered: bool) -> Outcome {
    let Through { ends, target, reversed, vni, reason } = *through;
    let before = drops(lab, vni, reason).await?;
    let (bytes, rate) = (OFFERED_BYTES.to_string(), format!("{}K", 2 * METERED_KBPS));
    let seconds = OFFERED_S.to_string();
    let mut options = vec!["-u", "-l", &bytes, "-b", &rate, "-t", &seconds];
    options.extend(reversed.then_some("-R"));
    let report = iperf(lab, ends, target, METERED_PORT, &options).await?;
    let sum = &report["end"]["sum"];
    let passed = number(sum, "packets")? - number(sum, "lost_packets")?;
    let headers = if target.is_ipv6() { 48 } else { 28 };
    let kbps = passed * (OFFERED_BYTES + headers) * 8 / 1000 / OFFERED_S;
    let dropped = drops(lab, vni, reason).await? - before;
    if metered {
        // The burst and what iperf3 sends beyond its time are 2% of what passes.
        ensure!(
            kbps * 20 <= METERED_KBPS * 21 && dropped > 0.0,
            "{reason}: {kbps} kbit/s, {dropped} dropped"
        );
        ensure_timely!(kbps * 10 >= METERED_KBPS * 9, "{reason}: only {kbps} kbit/s");
    } else {
        ensure!(dropped == 0.0, "{reason}: {dropped} dropped without a meter");
        ensure_timely!(kbps * 2 >= METERED_KBPS * 3, "{reason}: only {kbps} kbit/s without a meter");
    }
    Ok(())
}

/// 32 Mbit/s from the Internet to VMs, so that the downloads take 8 s.
const SHAPE: &str = "class add dev ix0 parent 1: classid 1:1 htb rate 32mbit";
/// Longest time until another gateway answers. It ends before the downloads do, which begin a second earlier.
const TAKEN_OVER: Duration = Duration::from_secs(5);

/// Forged packets about the connections of a VM's downloads, to its public addresses. The VM has a security group, so its host has
/// sessions of them.
async fn forged_packets(lab: &Lab, vm: &str) -> Outcome {
    let argv = ["ss", "-Htn", "state", "established", "dport", "=", ":80"];
    let text = output_of(&lab.exec(vm, &argv).await?);
    // The queues, the own endpoint and that of the server.
    let ends = text.lines().filter_map(|line| line.split_ascii_whitespace().nth(2));
    let ends: Vec<SocketAddr> = ends.filter_map(|end| end.parse().ok()).collect();
    for ipv6 in [false, true] {
        let own = ends.iter().find(|end| end.is_ipv6() == ipv6);
        let own = own.ok_or_else(|| Failure::new(format!("{vm} has no download: {text}")))?;
        let client = SocketAddr::new(eip(lab, vm, ipv6)?, own.port());
        forge_about(lab, vm, SocketAddr::new(web_address(ipv6), 80), client).await?;
    }
    Ok(())
}

/// From the start of an agent until its tables are synchronized, a loaded machine included.
const BACK: Duration = Duration::from_secs(30);

/// The gateway that answers for a VM's public address loses its agent and its links during downloads, which go on by
/// another gateway. Before, forged packets end none of them.
async fn owner_dies(lab: &Lab) -> Outcome {
    let public = eip(lab, PUBLIC[0], false)?;
    answers(lab, CLIENT, public, &[]).await?;
    let victim = lab.owner_of_public(public).await?;
    for shaper in ["qdisc add dev ix0 root handle 1: htb default 1", SHAPE] {
        execute(lab, ISP, &[&["tc"], &shaper.split(' ').collect::<Vec<_>>()[..]].concat()).await?;
    }
    let [first, second] = PUBLIC;
    let closed = group(lab, "closed").await?;
    set_groups(lab, first, &[closed]).await?;
    let downloads = async {
        tokio::try_join!(
            download(lab, first, false),
            download(lab, first, true),
            download(lab, second, false),
            download(lab, second, true),
        )
    };
    let die = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        forged_packets(lab, first).await?;
        lab.kill(&lab.state().topology.gateways[victim].name).await?;
        lab.connect_gateway(victim, false).await?;
        eventually(TAKEN_OVER, async || {
            let now = lab.owner_of_public(public).await?;
            ensure!(now != victim, "{public} is still at the gateway that died");
            Ok(())
        })
        .await?;
        for (vm, ipv6) in PUBLIC.iter().flat_map(|vm| [(vm, false), (vm, true)]) {
            // The file is removed when it is complete.
            let is_unfinished = copy(lab, vm, ipv6).exists();
            ensure_timely!(is_unfinished, "{vm} had its file before the gateway was replaced");
        }
        Ok(())
    };
    tokio::try_join!(downloads, die)?;
    execute(lab, ISP, &["tc", "qdisc", "del", "dev", "ix0", "root"]).await?;
    lab.connect_gateway(victim, true).await?;
    let name = &lab.state().topology.gateways[victim].name;
    lab.restart(name).map(drop)?;
    lab.synchronized(name, BACK).await?;
    set_groups(lab, first, &[]).await?;
    answers(lab, CLIENT, public, &[]).await
}
