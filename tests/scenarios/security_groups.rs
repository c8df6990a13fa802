//! Security groups, in both address families: what no rule permits is dropped; answers need no rule; a rule may name a
//! group, also for receivers on other hosts; rules change while traffic runs, and a deleted rule ends the connections that it
//! alone permitted; of 2,000 rules each has its effect, and no other.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{
    Failure, Outcome, Probe, address, answers, drops, ensure, eventually, never_reaches, number,
};
use serde_json::json;
use sluice_client::{Instance, NewSecurityGroup, NewSecurityRule, Remote, SecurityRule};
use sluice_lab::{Lab, Options};
use sluice_types::{AddressFamily, Direction, IpNet, PortRange, Protocol, SecurityGroupId, SecurityRuleId};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// From the answer of the API until every host has the change.
const PROGRAMMED: Duration = Duration::from_secs(10);
/// From then until the hosts of senders have asked again for the identity of an instance: an answer is used for 5 s.
const REFRESHED: Duration = Duration::from_secs(15);
const OPEN: u16 = 7031;
const FOR_GROUP: u16 = 7032;
const CLOSED: u16 = 7033;
/// Streams: this port and the next one.
const KEPT: u16 = 7034;
const REVOKED: u16 = 7036;
const STREAMS: [(&str, &str, bool); 2] = [("web-1", "web-3", false), ("web-1", "web-3", true)];
const PPS: u64 = 200;
/// Rules of each family in `many_rules`, their groups, and the port of the first one. Every second port has one.
const MANY: u16 = 1000;
const MANY_GROUPS: u16 = 4;
const MANY_FROM: u16 = 20_000;
/// For how long an answer is awaited that should not come.
const SILENCE: &str = "1000";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    let server = group(&lab, "server").await?;
    let client = group(&lab, "client").await?;
    let mut listeners = Vec::new();
    for name in ["web-1", "web-2", "web-3"] {
        for at in lab.vm(name)?.addresses() {
            for port in [OPEN, FOR_GROUP] {
                let at = SocketAddr::new(at, port).to_string();
                listeners.push(Probe::listening(&lab, name, &["echo", &at, name]).await?);
            }
        }
    }
    reaches_at(&lab, "web-1", "web-3", OPEN, true).await?;
    set_groups(&lab, "web-3", &[server]).await?;
    default_denies(&lab).await?;
    prefixes_permit(&lab, server).await?;
    groups_permit(&lab, server, client).await?;
    egress_to_groups(&lab).await?;
    set_groups(&lab, "web-3", &[server]).await?;
    errors_belong_to_sessions(&lab, server).await?;
    rules_end_with_their_sessions(&lab, server).await?;
    agents_restart(&lab).await?;
    // Without groups everything passes again.
    set_groups(&lab, "web-3", &[]).await?;
    reaches_at(&lab, "web-2", "web-3", OPEN, true).await?;
    many_rules(&lab).await
}

/// 2,000 rules in four groups of one instance, a thousand of each family: UDP to every other port, from the address of web-1,
/// and, by every other rule, from the whole subnet.
async fn many_rules(lab: &Lab) -> Outcome {
    let mut groups = Vec::new();
    for number in 0..MANY_GROUPS {
        groups.push(group(lab, &format!("many-{number}")).await?);
    }
    let own = lab.vm("web-1")?.addresses();
    let mut made = Vec::new();
    for number in 0..MANY {
        let group = groups[usize::from(number / (MANY / MANY_GROUPS))];
        for (own, subnet) in own.iter().zip(["10.1.0.0/24", "fd10:0:0:1::/64"]) {
            let prefix = if number % 2 == 0 { IpNet::from(*own) } else { subnet.parse()? };
            let port = MANY_FROM + 2 * number;
            let family = AddressFamily::of(&prefix);
            made.push((group, new_rule(family, Protocol::UDP, port, Remote::Prefix(prefix))));
        }
    }
    let begin = Instant::now();
    for some in made.chunks(100) {
        let create = some.iter().map(async |(group, new)| lab.api().create(*group, new).await.map(drop));
        futures::future::try_join_all(create).await?;
    }
    println!("    {} rules were created in {:.1} s", made.len(), begin.elapsed().as_secs_f64());
    set_groups(lab, "web-3", &groups).await?;
    // First and last ones of the first and the last group, some in between, and none.
    let edge = MANY / MANY_GROUPS;
    for number in [0, 1, edge - 1, edge, MANY / 2 + 7, MANY - edge, MANY - 2, MANY - 1] {
        let port = MANY_FROM + 2 * number;
        answers_at(lab, "web-1", port, true).await?;
        answers_at(lab, "web-2", port, number % 2 == 1).await?;
        for neighbor in [port - 1, port + 1] {
            answers_at(lab, "web-1", neighbor, false).await?;
        }
    }
    Ok(())
}

/// Whether web-3 answers a VM at a port by UDP, in both families.
async fn answers_at(lab: &Lab, from: &str, port: u16, expected: bool) -> Outcome {
    let ask = async |at: IpAddr| {
        let at = SocketAddr::new(at, port).to_string();
        let echo = Probe::listening(lab, "web-3", &["echo", &at, "web-3"]).await?;
        let answer = Probe::start(lab, from, &["ask", "udp", &at, SILENCE])?.result().await?;
        let answered = answer["name"].is_string();
        ensure!(answered == expected, "{from} -> {at}: answered {answered}, not {expected}");
        echo.kill().await
    };
    futures::future::try_join_all(lab.vm("web-3")?.addresses().into_iter().map(ask)).await.map(drop)
}

/// Nothing may be sent to an instance without ingress rules; what it begins itself is answered.
async fn default_denies(lab: &Lab) -> Outcome {
    let vni = lab.vm("web-3")?.vni;
    let before = drops(lab, vni, "ingress_denied").await?;
    for from in ["web-1", "db-1"] {
        reaches_at(lab, from, "web-3", OPEN, false).await?;
        for at in lab.vm("web-3")?.addresses() {
            never_reaches(lab, from, at).await?;
        }
    }
    eventually(Duration::from_secs(2), async || {
        let more = drops(lab, vni, "ingress_denied").await? - before;
        ensure!(more >= 12.0, "only {more} of at least 12 packets were counted as ingress_denied");
        Ok(())
    })
    .await?;
    for at in lab.vm("web-1")?.addresses() {
        answers(lab, "web-3", at, &[]).await?;
    }
    reaches_at(lab, "web-3", "web-1", OPEN, true).await
}

/// A rule with the prefix of one instance.
async fn prefixes_permit(lab: &Lab, server: SecurityGroupId) -> Outcome {
    for at in lab.vm("web-1")?.addresses() {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            permit(lab, server, protocol, OPEN, Remote::Prefix(IpNet::from(at))).await?;
        }
    }
    reaches_at(lab, "web-1", "web-3", OPEN, true).await?;
    // Another sender, and another port of the same sender.
    reaches_at(lab, "web-2", "web-3", OPEN, false).await?;
    reaches_at(lab, "web-1", "web-3", FOR_GROUP, false).await
}

/// A rule that names a group, for a sender on another host, and for one on the same host.
async fn groups_permit(lab: &Lab, server: SecurityGroupId, client: SecurityGroupId) -> Outcome {
    for family in [AddressFamily::Ipv4, AddressFamily::Ipv6] {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let remote = Remote::Group(client);
            create(lab, server, family, protocol, FOR_GROUP, remote).await?;
        }
    }
    reaches_at(lab, "web-1", "web-3", FOR_GROUP, false).await?;
    set_groups(lab, "web-1", &[client]).await?;
    reaches_at(lab, "web-1", "web-3", FOR_GROUP, true).await?;
    set_groups(lab, "web-2", &[server]).await?;
    reaches_at(lab, "web-1", "web-2", FOR_GROUP, true).await?;
    reaches_at(lab, "web-2", "web-3", FOR_GROUP, false).await?;
    // An instance of a peered VPC is of no group here, whatever its own groups are.
    reaches_at(lab, "db-1", "web-3", FOR_GROUP, false).await?;
    set_groups(lab, "web-1", &[]).await?;
    set_groups(lab, "web-2", &[]).await?;
    reaches_at(lab, "web-1", "web-3", FOR_GROUP, false).await
}

/// An egress rule that names a group, for a receiver on another host: the sender's host asks for the receiver's groups. The
/// first packet is dropped meanwhile.
async fn egress_to_groups(lab: &Lab) -> Outcome {
    let (sender, member) = (group(lab, "sender").await?, group(lab, "member").await?);
    for rule in lab.api().list::<SecurityRule>(&[("group", &sender.to_string())], None).await? {
        lab.api().delete::<SecurityRule>(rule.id, None).await?;
    }
    for family in [AddressFamily::Ipv4, AddressFamily::Ipv6] {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let rule = new_rule(family, protocol, OPEN, Remote::Group(member));
            let rule = NewSecurityRule { direction: Direction::Egress, ..rule };
            create_rule(lab, sender, &rule).await?;
            let prefix = if family == AddressFamily::Ipv4 { "0.0.0.0/0" } else { "::/0" };
            create(lab, member, family, protocol, OPEN, Remote::Prefix(prefix.parse()?)).await?;
        }
    }
    set_groups(lab, "web-1", &[sender]).await?;
    // A member on the same host is reached. Two VMs on another host are not members, and one of them is in another VPC.
    set_groups(lab, "web-2", &[member]).await?;
    reaches_at(lab, "web-1", "web-2", OPEN, true).await?;
    for to in ["web-3", "db-1"] {
        reaches_at(lab, "web-1", to, OPEN, false).await?;
    }
    let vni = lab.vm("web-1")?.vni;
    eventually(Duration::from_secs(2), async || {
        let unknown = drops(lab, vni, "receiver_unknown").await?;
        let denied = drops(lab, vni, "egress_denied").await?;
        // The first packets to each address of web-3, and packets after the answer.
        ensure!(unknown >= 2.0 && denied >= 2.0, "{unknown} receivers were unknown, {denied} packets denied");
        Ok(())
    })
    .await?;
    set_groups(lab, "web-3", &[member]).await?;
    eventually(REFRESHED, async || reaches_at(lab, "web-1", "web-3", OPEN, true).await).await?;
    // Another port of the member.
    reaches_at(lab, "web-1", "web-3", FOR_GROUP, false).await?;
    let known = lab.metrics("host-a").await?;
    let [answered, entries] = ["sluice_remote_identities_answered_total", "sluice_remote_identities"]
        .map(|name| known.sum(name, &[]));
    ensure!(answered >= 2.0 && entries >= 2.0, "{answered} answers, {entries} identities");
    // The agent restarts: what it knew stays in force, so no packet is dropped as unknown.
    let unknown = drops(lab, vni, "receiver_unknown").await?;
    lab.kill("host-a").await?;
    lab.restart("host-a")?;
    lab.synchronized("host-a", Duration::from_secs(30)).await?;
    reaches_at(lab, "web-1", "web-3", OPEN, true).await?;
    let more = drops(lab, vni, "receiver_unknown").await? - unknown;
    ensure!(more == 0.0, "{more} packets were dropped as receiver_unknown after the restart");
    // It leaves the group, and no port is filtered any more but the sender's: new connections are denied.
    set_groups(lab, "web-3", &[]).await?;
    eventually(REFRESHED, async || reaches_at(lab, "web-1", "web-3", OPEN, false).await).await?;
    reaches_at(lab, "web-1", "web-2", OPEN, true).await?;
    set_groups(lab, "web-2", &[]).await?;
    set_groups(lab, "web-1", &[]).await
}

/// An ICMP error passes by the session of the packet that it quotes: a closed port is told at once.
async fn errors_belong_to_sessions(lab: &Lab, server: SecurityGroupId) -> Outcome {
    for at in lab.vm("web-1")?.addresses() {
        permit(lab, server, Protocol::UDP, CLOSED, Remote::Prefix(IpNet::from(at))).await?;
    }
    for ipv6 in [false, true] {
        let at = SocketAddr::new(address(lab.vm("web-3")?, ipv6)?, CLOSED).to_string();
        let code = format!(
            "import socket\n\
             s = socket.socket(socket.{}, socket.SOCK_DGRAM)\n\
             s.settimeout(5)\n\
             s.connect(('{}', {CLOSED}))\n\
             s.send(b'x')\n\
             try:\n    s.recv(1)\nexcept ConnectionRefusedError:\n    print('refused')\n",
            if ipv6 { "AF_INET6" } else { "AF_INET" },
            address(lab.vm("web-3")?, ipv6)?,
        );
        let output = lab.exec("web-1", &["python3", "-c", &code]).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.trim() == "refused", "web-1 was not told that {at} is closed: {text}{output:?}");
    }
    Ok(())
}

/// Two streams, each by rules of its own: when those of one are deleted, it ends, and the other loses nothing.
async fn rules_end_with_their_sessions(lab: &Lab, server: SecurityGroupId) -> Outcome {
    let mut revoked = Vec::new();
    for at in lab.vm("web-1")?.addresses() {
        let remote = Remote::Prefix(IpNet::from(at));
        for port in [KEPT, KEPT + 1] {
            permit(lab, server, Protocol::UDP, port, remote.clone()).await?;
        }
        for port in [REVOKED, REVOKED + 1] {
            revoked.push(permit(lab, server, Protocol::UDP, port, remote.clone()).await?);
        }
    }
    let kept = Streams::start(lab, &STREAMS, KEPT, PPS).await?;
    let ended = Streams::start(lab, &STREAMS, REVOKED, PPS).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let vni = lab.vm("web-3")?.vni;
    let before = drops(lab, vni, "ingress_denied").await?;
    let mut foretold = 0;
    for rule in &revoked {
        let ending = lab.api().ending_sessions(*rule).await?;
        ensure!(ending.unanswered.is_empty(), "{ending}");
        foretold += ending.sessions;
    }
    ensure!(foretold == STREAMS.len() as u64, "{foretold} sessions would end");
    for rule in revoked {
        lab.api().delete::<SecurityRule>(rule, None).await?;
    }
    eventually(Duration::from_secs(5), async || {
        let more = drops(lab, vni, "ingress_denied").await? - before;
        ensure!(more >= PPS as f64, "only {more} packets of the revoked sessions were dropped");
        Ok(())
    })
    .await?;
    for (what, result) in ended.results().await? {
        let (sent, received) = (number(&result, "sent")?, number(&result, "received")?);
        // Before the deletion nothing was lost, and after it everything: one piece at the end.
        let ranges = result["lost"].as_array().cloned().unwrap_or_default();
        ensure!(received > PPS / 2, "{what}: only {received} of {sent} packets arrived before the deletion");
        ensure!(ranges.len() == 1, "{what}: {received} of {sent}: {}", result["lost"]);
        ensure!(sent - received >= PPS, "{what}: {received} of {sent} packets arrived");
    }
    kept.end().await
}

/// Both ends' agents restart under a stream: sessions, policies and their numbers stay.
async fn agents_restart(lab: &Lab) -> Outcome {
    let streams = Streams::start(lab, &STREAMS, KEPT, PPS).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    lab.kill("host-b").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    lab.restart("host-b")?;
    lab.synchronized("host-b", Duration::from_secs(30)).await?;
    streams.end().await
}

pub async fn group(lab: &Lab, name: &str) -> Result<SecurityGroupId, Failure> {
    let new = NewSecurityGroup { name: name.to_owned(), description: None };
    Ok(lab.api().create(lab.vpc("web")?.id, &new).await?.object.id)
}

/// A rule for ingress from an address, of its family.
pub async fn permit(
    lab: &Lab,
    group: SecurityGroupId,
    protocol: Protocol,
    port: u16,
    remote: Remote<SecurityGroupId>,
) -> Result<SecurityRuleId, Failure> {
    let Remote::Prefix(prefix) = &remote else { return Err(Failure::new("no prefix")) };
    create(lab, group, AddressFamily::of(prefix), protocol, port, remote.clone()).await
}

/// A rule for TCP egress, of the family of a prefix.
pub async fn create_egress(
    lab: &Lab,
    group: SecurityGroupId,
    family: &IpNet,
    port: u16,
    remote: Remote<SecurityGroupId>,
) -> Result<SecurityRuleId, Failure> {
    let rule = new_rule(AddressFamily::of(family), Protocol::TCP, port, remote);
    create_rule(lab, group, &NewSecurityRule { direction: Direction::Egress, ..rule }).await
}

/// A rule for echo requests from an address.
pub async fn permit_echo(lab: &Lab, group: SecurityGroupId, remote: Remote<SecurityGroupId>) -> Outcome {
    let Remote::Prefix(prefix) = &remote else { return Err(Failure::new("no prefix")) };
    let family = AddressFamily::of(prefix);
    let (protocol, kind) =
        if prefix.addr().is_ipv6() { (Protocol::ICMPV6, 128) } else { (Protocol::ICMP, 8) };
    let any = new_rule(family, protocol, 0, remote);
    let new = NewSecurityRule { ports: None, icmp_type: Some(kind), icmp_code: Some(0), ..any };
    create_rule(lab, group, &new).await.map(drop)
}

pub async fn create(
    lab: &Lab,
    group: SecurityGroupId,
    family: AddressFamily,
    protocol: Protocol,
    port: u16,
    remote: Remote<SecurityGroupId>,
) -> Result<SecurityRuleId, Failure> {
    create_rule(lab, group, &new_rule(family, protocol, port, remote)).await
}

/// A rule for ingress.
fn new_rule(
    family: AddressFamily,
    protocol: Protocol,
    port: u16,
    remote: Remote<SecurityGroupId>,
) -> NewSecurityRule {
    NewSecurityRule {
        direction: Direction::Ingress,
        family,
        protocol,
        ports: PortRange::new(port, port).ok(),
        icmp_type: None,
        icmp_code: None,
        remote,
        description: String::new(),
    }
}

async fn create_rule(
    lab: &Lab,
    group: SecurityGroupId,
    new: &NewSecurityRule,
) -> Result<SecurityRuleId, Failure> {
    let rule = lab.api().create(group, new).await?.object;
    lab.api().wait_programmed::<SecurityRule>(rule.id, PROGRAMMED).await?;
    Ok(rule.id)
}

pub async fn set_groups(lab: &Lab, vm: &str, groups: &[SecurityGroupId]) -> Outcome {
    let id = lab.vm(vm)?.id;
    lab.api().update::<Instance>(id, &json!({ "security_groups": groups }), None).await?;
    lab.api().wait_programmed::<Instance>(id, PROGRAMMED).await?;
    Ok(())
}

/// Whether a VM gets an answer from another one's port, by TCP and UDP, in both families.
pub async fn reaches_at(lab: &Lab, from: &str, to: &str, port: u16, expected: bool) -> Outcome {
    let ways = lab.vm(to)?.addresses().into_iter().flat_map(|at| [("tcp", at), ("udp", at)]);
    let ask = async |(protocol, at): (&str, IpAddr)| {
        let at = SocketAddr::new(at, port).to_string();
        let patience: &[&str] = if expected { &[] } else { &[SILENCE] };
        let words = [&["ask", protocol, at.as_str()], patience].concat();
        let answer = Probe::start(lab, from, &words)?.result().await?;
        let answered = answer["name"].is_string();
        ensure!(answered == expected, "{from} -> {at} by {protocol}: answered {answered}, not {expected}");
        Ok(())
    };
    futures::future::try_join_all(ways.map(ask)).await.map(drop)
}
