//! VMs without public addresses reach the IPv4 Internet by the NAT gateways of their VPCs, from different hosts and by both
//! gateways: pages, names, queries, pings, traces, ICMP errors, fragments. VPCs with equal addresses are not mixed. A VM that opens
//! connections without end is refused by name, and others are neither refused nor late. A scan of all public addresses begins no
//! session. What no VM began does not come in, until the NAT gateway
//! permits it. The agent of the only gateway is replaced during a download, which goes on. A gateway dies that was alone until a
//! moment ago, and another translates new connections; `nat_failover` is about those that exist.

use crate::Ground;
use crate::attack::{LATER_MAX_US, slowest};
use crate::hostile_clients::{self, pool_is_scanned};
use crate::internet::{copy, curl, download, output_of, traced};
use crate::streams::{Account, Streams, lossless};
use crate::support::{
    Failure, Outcome, Probe, address, answers, drops, ensure, ensure_timely, eventually, execute, iperf,
    ping, slow_hellos, who,
};
use serde_json::{Value, json};
use sluice_client::NatGateway;
use sluice_lab::internet::{CLIENT, ISP, LONG_TEXT, LONG_TEXT_BYTES, WEB, ZONE, page, web_address};
use sluice_lab::{Lab, Options};
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Child;

/// VMs of VPC shop, whose NAT gateway is that of the default lab, each at another host, one of these with IPv6 underlay.
const SHOP: [&str; 3] = ["shop-1", "shop-2", "shop-3"];
const SHOP_ADDRESS: &str = "203.0.113.128";
/// A VM of VPC web with the addresses of shop-1, at the same host. The EIPs of that VPC are left out but those of web-3.
const TWIN: &str = "web-1";
const WEB_ADDRESS: &str = "203.0.113.129";
const ELASTIC: &str = "web-3";
/// Where the web server and VMs echo.
const PORT: u16 = 7051;
const PPS: u64 = 200;
/// What the log says of the ports that a VM gets.
const GIVEN: &str = "ports of a public address were given to a VM";
/// For how long an answer is awaited that should not come.
const SILENCE: &str = "1000";
const PROGRAMMED: Duration = Duration::from_secs(10);
/// 8 Mbit/s, so that a download takes 8 s.
const SHAPE: &str = "class add dev ix0 parent 1: classid 1:1 htb rate 8mbit";
/// Seconds after its last packet at which a connection of UDP ends. The default is 300.
const UDP_S: u64 = 200;
const GATEWAYS: [&str; 2] = ["gw-a", "gw-b"];
/// Connections that a VM opens without end.
const FLOWS: &str = "20000";
/// Until another gateway has the vIPs of one that has ended. Each attempt takes up to 3 s.
const TAKEN_OVER: Duration = Duration::from_secs(10);
/// From the start of an agent until its tables are synchronized, a loaded machine included.
const BACK: Duration = Duration::from_secs(30);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    slow_hellos(&mut options.topology);
    let internet = options.topology.internet.as_mut().ok_or_else(|| Failure::new("no Internet"))?;
    internet.eips.retain(|eip| eip.vm == ELASTIC);
    options.topology.vpcs[0].nat = vec![WEB_ADDRESS.parse()?];
    for gateway in &mut options.topology.gateways {
        gateway.nat_timeouts = Some(format!("udp-two-way={UDP_S}"));
    }
    let lab = Lab::up(options).await?;
    let at = SocketAddr::new(web_address(false), PORT);
    let _echo = Probe::listening(&lab, WEB, &["echo", &at.to_string(), WEB]).await?;
    pages_come_from_the_nat_address(&lab).await?;
    pool_is_scanned(&lab, (ELASTIC, "host-b"), &[SHOP_ADDRESS, WEB_ADDRESS]).await?;
    all_gateways_lead_to_the_owner(&lab, at).await?;
    errors_and_traces_come_back(&lab).await?;
    twins_are_not_mixed(&lab, at).await?;
    fragments_are_translated(&lab).await?;
    names_are_resolved(&lab).await?;
    only_answers_come_in(&lab, at).await?;
    flows_without_end_are_refused(&lab, at).await?;
    owner_is_restarted(&lab).await?;
    owner_dies(&lab).await
}

/// The web server sees the address of the NAT gateway and no inside address; a VM with an EIP has that.
async fn pages_come_from_the_nat_address(lab: &Lab) -> Outcome {
    let elastic = "203.0.113.13";
    let all = SHOP.map(|vm| (vm, SHOP_ADDRESS)).into_iter().chain([(TWIN, WEB_ADDRESS), (ELASTIC, elastic)]);
    for (vm, public) in all {
        let seen =
            || Ok::<_, Failure>(std::fs::read_to_string(lab.paths().log(WEB))?.matches(public).count());
        let before = seen()?;
        let output = lab.exec(vm, &curl(&[], &page(false))).await?;
        let text = output_of(&output);
        ensure!(text == "Welcome to the Internet.\n", "{vm} got from {}: {text}", page(false));
        ensure!(seen()? > before, "{WEB} was not reached from {public} by {vm}");
        let inside = address(lab.vm(vm)?, false)?.to_string();
        let log = std::fs::read_to_string(lab.paths().log(WEB))?;
        ensure!(!log.contains(&inside), "{WEB} was reached from {inside}: {log}");
    }
    // IPv6 needs no translation: a VM without a public address has no IPv6 Internet.
    let ping = ping(lab, SHOP[0], web_address(true), &["-c", "2", "-i", "0.1", "-W", "0.5"]).await?;
    ensure!(ping.received == 0, "{} reached the IPv6 Internet: {}", SHOP[0], ping.text);
    Ok(())
}

/// Hosts spread flows over all gateways of the cluster. One translates, and the others have copies of its sessions.
async fn all_gateways_lead_to_the_owner(lab: &Lab, at: SocketAddr) -> Outcome {
    let owner = owner_of(lab, SHOP_ADDRESS).await?;
    let others = GATEWAYS.iter().enumerate().filter(|(_, gateway)| **gateway != owner);
    let mut others: Vec<_> = others
        .map(|(number, gateway)| Ok((*gateway, passes_on(lab, number, at)?)))
        .collect::<Result<_, Failure>>()?;
    for vm in SHOP {
        for _ in 0..8 {
            for protocol in ["udp", "tcp"] {
                let name = who(lab, vm, protocol, at).await?;
                ensure!(name.as_deref() == Some(WEB), "{vm} asked {at} by {protocol}, and {name:?} answered");
            }
        }
        answers(lab, vm, at.ip(), &[]).await?;
        let inside = address(lab.vm(vm)?, false)?;
        let sessions = sessions(lab, vm, SHOP_ADDRESS, &["--remote", &at.to_string()]).await?;
        ensure!(sessions.len() >= 16, "{} sessions of {vm}: {sessions:?}", sessions.len());
        let is_right =
            |session: &Value| session["outside_address"] == SHOP_ADDRESS && session["direction"] == "egress";
        ensure!(sessions.iter().all(is_right), "{sessions:?}");
        let udp = sessions.iter().filter(|session| session["protocol"] == "udp");
        let left: Vec<_> = udp.map(|session| session["expires_in_s"].as_u64().unwrap_or(u64::MAX)).collect();
        // Half of it would be a stall of a minute and a half.
        let is_due = |left: &u64| (UDP_S / 2..=UDP_S).contains(left);
        ensure!(!left.is_empty() && left.iter().all(is_due), "UDP ends in {left:?} s");
        // Within the next round.
        eventually(Duration::from_secs(5), async || {
            let gateway = owner_of(lab, SHOP_ADDRESS).await?;
            let log = std::fs::read_to_string(lab.paths().log(&gateway))?;
            let fields = format!("vni={} inside={inside} outside={SHOP_ADDRESS} ports=", lab.vm(vm)?.vni);
            let is_it = |line: &str| line.contains(GIVEN) && line.contains(&fields);
            ensure!(log.lines().any(is_it), "no line about the ports of {vm}");
            Ok(())
        })
        .await?;
        for (gateway, _) in &others {
            let copies = sessions_at(lab, vm, gateway, &["--remote", &at.to_string()]).await?;
            let ends = |session: &Value| {
                let ends = ["protocol", "inside_port", "outside_address", "outside_port", "direction"];
                ends.map(|end| session[end].clone())
            };
            let is_copied = |session: &Value| copies.iter().any(|copy| ends(copy) == ends(session));
            ensure!(
                sessions.iter().all(is_copied),
                "{gateway}, not the owner, has {copies:?}, not {sessions:?}"
            );
        }
    }
    for (gateway, capture) in &mut others {
        ensure!(capture.wait().await?.success(), "{gateway} has passed no packets on to {owner}");
    }
    Ok(())
}

/// `tcpdump`, which succeeds when the gateway with this number has sent a packet in a tunnel that goes to an address of the
/// Internet, to another gateway.
fn passes_on(lab: &Lab, number: usize, to: SocketAddr) -> Result<Child, Failure> {
    let IpAddr::V4(to) = to.ip() else { return Err(Failure::new("only IPv4 is translated")) };
    // The inner destination, behind 8 bytes of VXLAN and 14 of Ethernet, with an outer IPv4 and an outer IPv6 header.
    let filter = format!("udp[46:4] = {0} or ip6[86:4] = {0}", u32::from(to));
    let port = format!("p{number}");
    let argv =
        ["timeout", "60", "tcpdump", "-nn", "-i", &port, "-Q", "in", "--immediate-mode", "-c", "1", &filter];
    Ok(lab.command("tor-1", &argv)?.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn()?)
}

/// Name of the gateway that answers for a public address.
pub async fn owner_of(lab: &Lab, public: &str) -> Result<String, Failure> {
    let number = lab.owner_of_public(public.parse()?).await?;
    Ok(lab.state().topology.gateways[number].name.clone())
}

/// The sessions of a VM, as `sluice nat sessions` lists them at the owner of the public address of its VPC's NAT gateway.
async fn sessions(lab: &Lab, vm: &str, public: &str, options: &[&str]) -> Result<Vec<Value>, Failure> {
    let gateway = owner_of(lab, public).await?;
    sessions_at(lab, vm, &gateway, options).await
}

pub async fn sessions_at(
    lab: &Lab,
    vm: &str,
    gateway: &str,
    options: &[&str],
) -> Result<Vec<Value>, Failure> {
    sessions_of_address(lab, vm, address(lab.vm(vm)?, false)?, gateway, options).await
}

/// The sessions of an address of a VM at a gateway.
pub async fn sessions_of_address(
    lab: &Lab,
    vm: &str,
    inside: IpAddr,
    gateway: &str,
    options: &[&str],
) -> Result<Vec<Value>, Failure> {
    let (vni, inside) = (lab.vm(vm)?.vni.to_string(), inside.to_string());
    sessions_of(lab, gateway, &[&["--vni", &vni, "--inside", &inside], options].concat()).await
}

/// The sessions that a gateway lists with these options.
pub async fn sessions_of(lab: &Lab, gateway: &str, options: &[&str]) -> Result<Vec<Value>, Failure> {
    let socket = lab.paths().socket(gateway).display().to_string();
    let argv = ["nat", "sessions", "--output", "json", "--limit", "10000", "--socket", &socket];
    let argv = [&argv, options].concat();
    let output = tokio::process::Command::new(&lab.state().binary).args(argv).output().await?;
    ensure!(output.status.success(), "nat sessions: {}", output_of(&output));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// ICMP errors find the VM by the packet that they quote.
async fn errors_and_traces_come_back(lab: &Lab) -> Outcome {
    let web = web_address(false);
    for vm in [SHOP[0], SHOP[2]] {
        let options = ["-c", "3", "-i", "0.2", "-M", "do", "-s", "1382", "-W", "1"];
        let ping = ping(lab, vm, web, &options).await?;
        let said = ping.text.to_lowercase().replace(' ', "");
        ensure!(
            ping.received == 0 && said.contains("mtu=1400"),
            "{vm} was not told of MTU 1400: {}",
            ping.text
        );
        answers(lab, vm, web, &["-M", "do", "-s", "1372"]).await?;
        let far = web.to_string();
        traced(lab, vm, &far, &["10.1.0.1", "198.51.100.1", "198.51.100.66", &far]).await?;
        execute(lab, vm, &["ip", "-4", "route", "flush", "cache"]).await?;
        download(lab, vm, false).await?;
    }
    Ok(())
}

/// Streams of VMs with the same addresses and ports: each gets the answers to its own packets.
async fn twins_are_not_mixed(lab: &Lab, at: SocketAddr) -> Outcome {
    let [one, other] = [lab.vm(TWIN)?, lab.vm(SHOP[0])?];
    ensure!(one.ipv4 == other.ipv4 && one.vni != other.vni, "{TWIN} and {} are no twins", SHOP[0]);
    let streams = Streams::to_flows(lab, &[(TWIN, at.to_string()), (SHOP[0], at.to_string())], PPS).await?;
    download(lab, TWIN, false).await?;
    streams.end().await?;
    for (vm, public) in [(TWIN, WEB_ADDRESS), (SHOP[0], SHOP_ADDRESS)] {
        let sessions = sessions(lab, vm, public, &[]).await?;
        let is_right = |session: &Value| session["outside_address"] == public;
        ensure!(!sessions.is_empty() && sessions.iter().all(is_right), "{vm}: {sessions:?}");
    }
    Ok(())
}

/// Datagrams of 4000 bytes in both directions, each in fragments.
async fn fragments_are_translated(lab: &Lab) -> Outcome {
    let web = web_address(false);
    answers(lab, SHOP[1], web, &["-s", "4000"]).await?;
    let options = ["-u", "-l", "4000", "-b", "2M", "-t", "1"];
    for reverse in [&[][..], &["-R"]] {
        let report = iperf(lab, (SHOP[1], WEB), web, 5251, &[&options, reverse].concat()).await?;
        let sum = &report["end"]["sum"];
        let (lost, packets) = (sum["lost_packets"].as_u64(), sum["packets"].as_u64());
        ensure_timely!(lost == Some(0) && packets > Some(20), "fragments {reverse:?}: {sum}");
    }
    Ok(())
}

async fn names_are_resolved(lab: &Lab) -> Outcome {
    for vm in SHOP {
        names_are_resolved_by(lab, vm, false).await?;
    }
    Ok(())
}

/// A VM asks the name server at its address of a family, by UDP and TCP. The long answer comes in fragments.
pub async fn names_are_resolved_by(lab: &Lab, vm: &str, ipv6: bool) -> Outcome {
    let server = format!("@{}", web_address(ipv6));
    let www = format!("www.{ZONE}");
    for protocol in ["+notcp", "+tcp"] {
        let ask = async |name: &str, kind: &str| {
            let argv = ["dig", "+short", "+time=2", "+tries=3", "+bufsize=4096", "+ignore", protocol];
            let output = lab.exec(vm, &[&argv[..], &[&server, name, kind]].concat()).await?;
            Ok::<_, Failure>(output_of(&output))
        };
        for (kind, is_ipv6) in [("A", false), ("AAAA", true)] {
            let answer = ask(&www, kind).await?;
            ensure!(
                answer.trim() == web_address(is_ipv6).to_string(),
                "{vm} {protocol} {kind} {server}: {answer}"
            );
        }
        let letters = ask(LONG_TEXT, "TXT").await?.matches('t').count();
        ensure!(letters == LONG_TEXT_BYTES, "{vm} {protocol} {server}: a text of {letters} bytes");
    }
    Ok(())
}

/// Changes a VPC's NAT gateway, and waits until all gateways have it.
async fn change(lab: &Lab, vpc: &str, change: Value) -> Outcome {
    let nat = lab.api().find::<NatGateway>(vpc, &[]).await?.id;
    lab.api().update::<NatGateway>(nat, &change, None).await?;
    Ok(lab.api().wait_programmed::<NatGateway>(nat, PROGRAMMED).await.map(drop)?)
}

/// Nothing begins from outside at a port that no VM uses, nor at one that a VM uses, until the NAT gateway permits it. Then
/// computers on the Internet and VMs of all VPCs reach that VM.
async fn only_answers_come_in(lab: &Lab, at: SocketAddr) -> Outcome {
    let vm = lab.vm(SHOP[0])?;
    let inside = SocketAddr::new(address(vm, false)?, PORT).to_string();
    let _echo = Probe::listening(lab, SHOP[0], &["echo", &inside, SHOP[0], &at.to_string()]).await?;
    let port = std::cell::Cell::new(0);
    eventually(Duration::from_secs(5), async || {
        let found = sessions(lab, SHOP[0], SHOP_ADDRESS, &["--protocol", "udp"]).await?;
        let found =
            found.iter().find(|it| it["inside_port"] == PORT).and_then(|it| it["outside_port"].as_u64());
        port.set(found.ok_or_else(|| Failure::new(format!("no session of {inside}")))? as u16);
        Ok(())
    })
    .await?;
    let public = SocketAddr::new(SHOP_ADDRESS.parse()?, port.get());
    // Of packets from VMs, the owner counts its own for the sender's VPC, and those that were passed on for the receiver's.
    let dropped = async || {
        let mut sum = 0.0;
        for gateway in GATEWAYS {
            sum += lab.metrics(gateway).await?.sum("sluice_drops_total", &[("reason", "no_nat_session")]);
        }
        Ok::<_, Failure>(sum)
    };
    let silent = async |from: &str, to: SocketAddr| {
        let before = dropped().await?;
        let answer = Probe::start(lab, from, &["ask", "udp", &to.to_string(), SILENCE])?.result().await?;
        ensure!(answer["name"].is_null(), "{from} reached {to}: {answer}");
        let more = dropped().await? - before;
        ensure!(more > 0.0, "no packet of {from} to {to} counted as no_nat_session");
        Ok::<_, Failure>(())
    };
    for from in [CLIENT, SHOP[1], ELASTIC] {
        silent(from, public).await?;
        silent(from, SocketAddr::new(public.ip(), 9)).await?;
    }
    change(lab, "shop", json!({ "filtering": "endpoint-independent" })).await?;
    // From the Internet, from the VPC itself, from a VM with an EIP, and from one of another NAT gateway.
    for from in [CLIENT, SHOP[1], SHOP[0], ELASTIC, TWIN] {
        let name = who(lab, from, "udp", public).await?;
        ensure!(name.as_deref() == Some(SHOP[0]), "{from} asked {public}, and {name:?} answered");
    }
    silent(CLIENT, SocketAddr::new(public.ip(), 9)).await?;
    change(lab, "shop", json!({ "filtering": "address-and-port-dependent" })).await
}

/// A VM that opens connections as fast as it can gets its share, and is refused by name; its neighbors are not. Another tenant's
/// VM at the same host loses nothing, and is answered as fast as before.
async fn flows_without_end_are_refused(lab: &Lab, at: SocketAddr) -> Outcome {
    let vm = lab.vm(SHOP[0])?;
    change(lab, "shop", json!({ "sessions": 300 })).await?;
    let argv = ["sh", "-c", "ping -c 1 10.1.0.1 >&2; ip neigh show 10.1.0.1"];
    let text = output_of(&lab.exec(SHOP[0], &argv).await?);
    let mac = text.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
    let router =
        format!("{},10.1.0.1", mac.ok_or_else(|| Failure::new(format!("no MAC of the router: {text}")))?);
    let own = format!("eth0,{},{},{}", vm.mac, address(vm, false)?, address(vm, true)?);
    let flows = [(TWIN, at.to_string())];
    let quiet = slowest(&Streams::to_flows(lab, &flows, PPS).await?.results().await?)?;
    let before = drops(lab, vm.vni, "nat_session_limit").await?;
    let account = Account::begin(lab).await?;
    let streams = Streams::to_flows(lab, &flows, PPS).await?;
    let flood = Probe::start(lab, SHOP[0], &["flood", &own, &router, &at.ip().to_string(), FLOWS])?;
    for protocol in ["udp", "tcp", "udp", "tcp"] {
        let name = who(lab, TWIN, protocol, at).await?;
        ensure!(name.as_deref() == Some(WEB), "{TWIN} asked by {protocol}, and {name:?} answered");
    }
    flood.result().await?;
    let results = streams.results().await?;
    for (stream, result) in &results {
        lossless(lab, &account, stream, result).await?;
    }
    let flooded = slowest(&results)?;
    println!("    slowest answer to {TWIN}: {quiet} us, {flooded} us beside a VM that opens connections");
    ensure_timely!(
        flooded < quiet + LATER_MAX_US,
        "an answer to {TWIN} took {flooded} us, {quiet} us before"
    );
    let more = drops(lab, vm.vni, "nat_session_limit").await? - before;
    ensure!(more > 10_000.0, "only {more} packets were above the limit of sessions");
    let found = sessions(lab, SHOP[0], SHOP_ADDRESS, &[]).await?.len();
    // As many more as there are processors may begin at the same moment.
    let most = 300 + std::thread::available_parallelism()?.get();
    ensure!(found <= most, "{found} sessions, at most {most}");
    for neighbor in [SHOP[1], SHOP[2], TWIN] {
        for protocol in ["udp", "tcp"] {
            let name = who(lab, neighbor, protocol, at).await?;
            ensure!(name.as_deref() == Some(WEB), "{neighbor} is refused as well: {name:?} by {protocol}");
        }
    }
    change(lab, "shop", json!({ "sessions": 10_000 })).await
}

/// The only gateway left has all sessions. Its agent is killed and started again during a download, about whose connection
/// forged packets come in. The download goes on.
async fn owner_is_restarted(lab: &Lab) -> Outcome {
    let (vm, [gateway, other]) = (SHOP[2], GATEWAYS);
    lab.stop(other).await?;
    pages_come_by(lab, gateway).await?;
    for shaper in ["qdisc add dev ix0 root handle 1: htb default 1", SHAPE] {
        execute(lab, ISP, &[&["tc"], &shaper.split(' ').collect::<Vec<_>>()[..]].concat()).await?;
    }
    let restart = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        forged_packets(lab, vm).await?;
        lab.kill(gateway).await?;
        lab.restart(gateway)?;
        lab.synchronized(gateway, BACK).await?;
        // The file is removed when it is complete.
        ensure_timely!(copy(lab, vm, false).exists(), "{vm} had its file before the agent was back");
        Ok(())
    };
    tokio::try_join!(download(lab, vm, false), restart)?;
    execute(lab, ISP, &["tc", "qdisc", "del", "dev", "ix0", "root"]).await?;
    lab.restart(other)?;
    lab.synchronized(other, BACK).await?;
    answers(lab, vm, web_address(false), &[]).await
}

/// A gateway dies. Another has new connections.
async fn owner_dies(lab: &Lab) -> Outcome {
    let owner = owner_of(lab, SHOP_ADDRESS).await?;
    lab.kill(&owner).await?;
    let other = GATEWAYS.into_iter().find(|gateway| *gateway != owner);
    pages_come_by(lab, other.ok_or_else(|| Failure::new("there is only one gateway"))?).await?;
    lab.restart(&owner).map(drop)?;
    Ok(lab.synchronized(&owner, BACK).await?)
}

/// Waits until a gateway has the vIPs of all NAT gateways, and until it translates.
async fn pages_come_by(lab: &Lab, gateway: &str) -> Outcome {
    eventually(TAKEN_OVER, async || {
        for (vm, public) in [(SHOP[0], SHOP_ADDRESS), (SHOP[2], SHOP_ADDRESS), (TWIN, WEB_ADDRESS)] {
            let output = lab.exec(vm, &curl(&["--connect-timeout", "1"], &page(false))).await?;
            ensure!(output.status.success(), "{vm} has no Internet: {}", output_of(&output));
            let owner = owner_of(lab, public).await?;
            ensure!(owner == gateway, "{public} is at {owner}, not at {gateway}");
        }
        Ok(())
    })
    .await
}

/// Packets that seem to come from the web server to the VM's connection, or are about it, with a sequence number that is not of it, by
/// which the VM knows that they are forged (RFC 9293 section 3.10.7.4).
async fn forged_packets(lab: &Lab, vm: &str) -> Outcome {
    let server = SocketAddr::new(web_address(false), 80);
    let open = async || {
        let all = sessions(lab, vm, SHOP_ADDRESS, &["--remote", &server.to_string()]).await?;
        Ok::<_, Failure>(all.into_iter().filter(|it| it["state"] == "established").collect::<Vec<_>>())
    };
    let found = open().await?;
    ensure!(!found.is_empty(), "the download of {vm} is in no session");
    for session in &found {
        let port = session["outside_port"].as_u64().unwrap_or_default() as u16;
        let client = SocketAddr::new(SHOP_ADDRESS.parse()?, port);
        hostile_clients::forge_about(lab, vm, server, client).await?;
    }
    let left = open().await?.len();
    ensure!(
        left >= found.len(),
        "forged packets have ended {} of {} sessions",
        found.len() - left,
        found.len()
    );
    Ok(())
}
