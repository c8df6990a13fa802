//! A service whose members are VMs on three hosts, which VPCs of two tenants with the same addresses mount. New flows are spread over
//! the members; flows stay with theirs while members come, drain and fail; a VM that hangs and a host that is cut off get no flows soon
//! after. The security groups of a mount are enforced, and a tenant reaches its own vNICs only. In both address families.

use crate::Ground;
use crate::moved_instance::{NEW, with_another_host};
use crate::security_groups::{create, group, set_groups};
use crate::support::{Failure, Outcome, ensure, ensure_timely, eventually, without_internet};
use sluice_client::{Mount, NewMount, NewSecurityRule, NewService, Remote, ServiceMember};
use sluice_lab::{Guest, Lab, Options, Program, Subnet, Vm, VmState, Vpc, Watched, monotonic_s};
use sluice_types::{
    AddressFamily, Direction, IpNet, MemberStatus, PortRange, Protocol, SecurityGroupId, ServiceId, SubnetId,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::sleep;

/// The members, with their hosts. The last one comes later.
const MEMBERS: [(&str, &str); 4] =
    [("fw-1", "host-a"), ("fw-2", "host-b"), ("fw-3", NEW), ("fw-4", "host-b")];
/// VPCs with the mount, with the interface that each member has there.
const MOUNTS: [(&str, &str); 2] = [("web", "eth1"), ("shop", "eth2")];
/// Clients: one of each VPC without security groups, and one with, whose flows have sessions.
const CLIENTS: [(&str, &str); 2] = [("web-2", "web"), ("shop-1", "shop")];
const PINNED: &str = "web-1";
/// Of a VPC that is peered with the first one: its flows pass a gateway.
const PEERED: &str = "db-1";
const OPEN: u16 = 7601;
const CLOSED: u16 = 7602;
const FLOWS: usize = 60;
const SESSIONS: u32 = 1 << 19;
const READY: Duration = Duration::from_secs(20);
/// Begin of flows before and after a fault.
const BEFORE: Duration = Duration::from_millis(300);
const AFTER: Duration = Duration::from_millis(2500);
/// Bound on times from a fault, a call of the API or the first answer of a VM until all new flows follow.
const FAILOVER_MAX_MS: f64 = 1000.0;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(options(ground)?).await?;
    let mut bonds = Bonds::create(&lab).await?;
    bonds.are_spread().await?;
    bonds.groups_are_enforced().await?;
    bonds.peered_flows_are_spread().await?;
    bonds.flows_stay().await?;
    bonds.hung_vm_gets_no_flows().await?;
    bonds.dead_host_gets_no_flows().await
}

/// The standard topology with a third host of IPv4, a VPC of the service, and its members.
fn options(ground: &Ground) -> Result<Options, Failure> {
    let mut options = with_another_host(ground)?;
    let topology = &mut options.topology;
    without_internet(topology);
    // Each new flow has a session at its member's vNIC, and a port may have an eighth of them.
    topology.hosts.iter_mut().for_each(|host| host.sessions = Some(SESSIONS));
    let pool = Subnet {
        name: "pool".to_owned(),
        ipv4: "10.60.0.0/24".parse().ok(),
        ipv6: "fd60::/64".parse().ok(),
        ipv6_mode: None,
    };
    topology.vpcs.push(Vpc {
        name: "svc".to_owned(),
        tenant: "red".to_owned(),
        vni: None,
        mtu: None,
        subnets: vec![pool],
        internet: false,
        nat: Vec::new(),
        security_groups: Vec::new(),
    });
    topology.vms.extend(MEMBERS.map(|(name, host)| Vm {
        name: name.to_owned(),
        vpc: "svc".to_owned(),
        subnet: "pool".to_owned(),
        host: host.to_owned(),
        ipv4: None,
        mac: None,
        security_groups: Vec::new(),
        guest: Guest::Namespace,
        nics: Vec::new(),
    }));
    Ok(options)
}

/// The service with its mounts, and what answers in its members.
struct Bonds<'a> {
    lab: &'a Lab,
    service: ServiceId,
    mounts: BTreeMap<&'static str, Mount>,
    /// They answer as long as they are not dropped.
    servers: Vec<Program>,
}

impl<'a> Bonds<'a> {
    async fn create(lab: &'a Lab) -> Result<Self, Failure> {
        let new = NewService { name: "fw".to_owned(), allow_all_tenants: Some(true), allow_tenants: None };
        let service = lab.api().create(lab.vpc("svc")?.id, &new).await?.object.id;
        let permitted = group(lab, "fw").await?;
        for (family, prefixes) in [
            (AddressFamily::Ipv4, ["10.1.0.0/24", "10.2.0.0/24"]),
            (AddressFamily::Ipv6, ["fd10:0:0:1::/64", "fd10:0:0:2::/64"]),
        ] {
            for prefix in prefixes {
                let remote = Remote::Prefix(prefix.parse()?);
                create(lab, permitted, family, Protocol::UDP, OPEN, remote).await?;
            }
        }
        let mut bonds = Self { lab, service, mounts: BTreeMap::new(), servers: Vec::new() };
        for (vpc, groups) in [("web", vec![permitted]), ("shop", Vec::new())] {
            let mount = bonds.mount(vpc, groups).await?;
            bonds.mounts.insert(vpc, mount);
        }
        for (name, _) in &MEMBERS[..3] {
            bonds.add(name).await?;
        }
        bonds.all_up(3).await?;
        for vpc in bonds.mounts.values() {
            lab.api().wait_programmed::<Mount>(vpc.id, READY).await?;
        }
        Ok(bonds)
    }

    async fn mount(&self, vpc: &str, groups: Vec<SecurityGroupId>) -> Result<Mount, Failure> {
        let at = self.lab.vpc(vpc)?;
        let subnet: Option<&SubnetId> = at.subnets.get("front");
        let subnet = *subnet.ok_or_else(|| Failure::new(format!("{vpc} has no subnet `front`")))?;
        let new = NewMount {
            name: "fw".to_owned(),
            service: self.service,
            subnet,
            ipv4: "10.1.0.200".parse().ok(),
            ipv6: "fd10:0:0:1::200".parse().ok(),
            security_groups: Some(groups),
        };
        Ok(self.lab.api().create(at.id, &new).await?.object)
    }

    /// Makes a VM a member, and gives it its vNICs. It does not answer before it has them, so it gets no flows until then. Returns
    /// when it answers, by the monotonic clock.
    async fn add(&mut self, name: &str) -> Result<f64, Failure> {
        let vm = self.lab.vm(name)?;
        self.lab.hang_vm(name, &["eth0"]).await?;
        let member = self.lab.api().add_member(self.service, vm.id).await?;
        self.plug(vm, &member).await?;
        let answers = monotonic_s();
        self.lab.wake_vm(name).await?;
        Ok(answers)
    }

    async fn plug(&mut self, vm: &VmState, member: &ServiceMember) -> Outcome {
        for (number, (vpc, _)) in (1..).zip(MOUNTS) {
            self.lab.add_vnic(vm, number, member, &self.mounts[vpc]).await?;
        }
        let interfaces = MOUNTS.map(|(_, interface)| interface);
        self.servers.push(self.lab.serve(&vm.machine, &[OPEN, CLOSED], &interfaces).await?);
        Ok(())
    }

    async fn all_up(&self, number: usize) -> Outcome {
        eventually(READY, async || {
            let members = self.lab.api().members(self.service).await?;
            let up = members.iter().filter(|it| it.status == MemberStatus::Up && !it.draining).count();
            ensure!(up == number, "{up} of {number} members are up: {members:?}");
            Ok(())
        })
        .await
    }

    fn addresses(&self, vpc: &str) -> Vec<IpAddr> {
        let Mount { ipv4, ipv6, .. } = &self.mounts[vpc];
        ipv4.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6)).collect()
    }

    /// The new flows of a VM while something happens. Returns what was seen, and what it returned.
    async fn while_watched<T>(
        &self,
        from: &str,
        at: IpAddr,
        act: impl Future<Output = Result<T, Failure>>,
    ) -> Result<(Watched, T), Failure> {
        let watcher = self.lab.watch(from, at, OPEN).await?;
        sleep(BEFORE).await;
        let done = act.await?;
        sleep(AFTER).await;
        Ok((watcher.watched().await?, done))
    }

    /// Every member gets new flows of every VPC, by its vNIC of that VPC.
    async fn are_spread(&self) -> Outcome {
        for (from, vpc) in CLIENTS {
            for at in self.addresses(vpc) {
                let (seen, ()) = self.while_watched(from, at, async { Ok(()) }).await?;
                ensure!(
                    seen.failed.is_empty(),
                    "{from} -> {at}: {} of {} flows",
                    seen.failed.len(),
                    seen.sent
                );
                ensure!(seen.machines() == ["fw-1", "fw-2", "fw-3"], "{from} -> {at}: {seen:?}");
                let own =
                    MOUNTS.iter().find(|(name, _)| *name == vpc).map_or("", |(_, interface)| *interface);
                let is_own = |name: &String| name.ends_with(own);
                ensure!(seen.first.keys().all(is_own), "{from} reached a vNIC of another VPC: {seen:?}");
            }
        }
        Ok(())
    }

    /// The group of a mount permits one port.
    async fn groups_are_enforced(&self) -> Outcome {
        for at in self.addresses("web") {
            let answers = self.lab.flows("web-2", at, CLOSED, 12).await?.round().await?;
            ensure!(answers.iter().all(Option::is_none), "a closed port of {at} answers: {answers:?}");
        }
        // The other mount has no group.
        for at in self.addresses("shop") {
            let answers = self.lab.flows("shop-1", at, CLOSED, 12).await?.round().await?;
            ensure!(answers.iter().all(Option::is_some), "{at} does not answer: {answers:?}");
        }
        Ok(())
    }

    /// Flows by a gateway are spread by the same table, and stay without sessions while it does not change.
    async fn peered_flows_are_spread(&self) -> Outcome {
        for at in self.addresses("web") {
            let mut flows = self.lab.flows(PEERED, at, OPEN, FLOWS).await?;
            let first = flows.round().await?;
            ensure!(first.iter().all(Option::is_some), "{PEERED} -> {at}: {first:?}");
            for member in ["fw-1 eth1", "fw-2 eth1", "fw-3 eth1"] {
                ensure!(first.iter().flatten().any(|name| name == member), "{member} got no flow: {first:?}");
            }
            ensure!(flows.round().await? == first, "flows of {PEERED} have moved");
        }
        Ok(())
    }

    /// Flows with sessions, of both families, with the VMs that have them.
    async fn pinned(&self) -> Result<Vec<(Program, Vec<Option<String>>)>, Failure> {
        let mut all = Vec::new();
        for at in self.addresses("web") {
            let mut flows = self.lab.flows(PINNED, at, OPEN, FLOWS).await?;
            let names = flows.round().await?;
            ensure!(names.iter().all(Option::is_some), "{PINNED} -> {at}: {names:?}");
            all.push((flows, names));
        }
        Ok(all)
    }

    /// A member comes, and another one drains: new flows follow, and those with sessions stay.
    async fn flows_stay(&mut self) -> Outcome {
        self.filter_pinned().await?;
        let mut pinned = self.pinned().await?;
        let [v4, _] = self.addresses("web")[..] else { return Err(Failure::new("not both families")) };
        let watcher = self.lab.watch("web-2", v4, OPEN).await?;
        let begun = monotonic_s();
        let answers = self.add("fw-4").await?;
        self.all_up(4).await?;
        sleep(BEFORE).await;
        let seen = watcher.watched().await?;
        let first =
            seen.first_of("fw-4").ok_or_else(|| Failure::new(format!("no flow to fw-4: {seen:?}")))?;
        println!(
            "    a member gets flows {:.0} ms after it was added, and {:.0} ms after it has its vNICs and answers",
            (first - begun) * 1e3,
            (first - answers) * 1e3
        );
        ensure_timely!((first - answers) * 1e3 < FAILOVER_MAX_MS, "the first flow to fw-4 is too late");
        ensure!(seen.failed.is_empty(), "{} flows were lost when a member came", seen.failed.len());
        all_stay(&mut pinned, &[]).await?;
        let drained = self.lab.vm("fw-2")?.id;
        let drain = async {
            let begun = monotonic_s();
            self.lab.api().drain_member(self.service, drained, true).await?;
            Ok(begun)
        };
        let (seen, begun) = self.while_watched("web-2", v4, drain).await?;
        let last = seen.last_of("fw-2").unwrap_or(begun);
        println!("    a member gets no new flows {:.0} ms after it was drained", (last - begun) * 1e3);
        ensure_timely!((last - begun) * 1e3 < FAILOVER_MAX_MS, "fw-2 still gets flows");
        let lost: Vec<_> = seen.failed.iter().map(|at| format!("{:.0}", (at - begun) * 1e3)).collect();
        ensure!(lost.is_empty(), "flows were lost when a member was drained, by ms after that: {lost:?}");
        all_stay(&mut pinned, &[]).await?;
        self.lab.api().drain_member(self.service, drained, false).await?;
        self.all_up(4).await
    }

    /// Flows of a port with security groups have sessions. All that it sends is permitted.
    async fn filter_pinned(&self) -> Outcome {
        let client = group(self.lab, "client").await?;
        for net in ["0.0.0.0/0", "::/0"] {
            let net: IpNet = net.parse()?;
            let family = AddressFamily::of(&net);
            permit_out(self.lab, client, family, Remote::Prefix(net)).await?;
        }
        set_groups(self.lab, PINNED, &[client]).await
    }

    /// A VM hangs: new flows go to others soon, and those of others stay.
    async fn hung_vm_gets_no_flows(&self) -> Outcome {
        let interfaces = ["eth0", MOUNTS[0].1, MOUNTS[1].1];
        for at in self.addresses("web") {
            let mut pinned = self.pinned().await?;
            let hang = async { Ok(self.lab.hang_vm("fw-1", &interfaces).await?) };
            let (seen, fault) = self.while_watched("web-2", at, hang).await?;
            judge("a VM hangs", &seen, fault)?;
            all_stay(&mut pinned, &["fw-1"]).await?;
            self.lab.wake_vm("fw-1").await?;
            self.all_up(4).await?;
        }
        Ok(())
    }

    /// A host is cut off, whose agent still runs and reaches the controller.
    async fn dead_host_gets_no_flows(&self) -> Outcome {
        for at in self.addresses("web") {
            let mut pinned = self.pinned().await?;
            let cut = async { Ok(self.lab.connect_host(NEW, false).await?) };
            let (seen, fault) = self.while_watched("web-2", at, cut).await?;
            judge("a host is cut off", &seen, fault)?;
            all_stay(&mut pinned, &["fw-3"]).await?;
            self.lab.connect_host(NEW, true).await?;
            self.all_up(4).await?;
        }
        Ok(())
    }
}

/// A rule that permits datagrams to the ports of this scenario.
async fn permit_out(
    lab: &Lab,
    group: SecurityGroupId,
    family: AddressFamily,
    remote: Remote<SecurityGroupId>,
) -> Outcome {
    let new = NewSecurityRule {
        direction: Direction::Egress,
        family,
        protocol: Protocol::UDP,
        ports: PortRange::new(OPEN, OPEN).ok(),
        icmp_type: None,
        icmp_code: None,
        remote,
        description: String::new(),
    };
    lab.api().create(group, &new).await?;
    Ok(())
}

/// Some flows were lost, so the fault was one, and none of those that began later.
fn judge(what: &str, seen: &Watched, fault: f64) -> Outcome {
    let outage_ms = seen.outage_ms(fault);
    println!("    {what}: new flows are lost for {outage_ms:.0} ms, {} of {}", seen.failed.len(), seen.sent);
    ensure!(!seen.failed.is_empty(), "{what}: no flow was lost, so nothing has failed");
    ensure!(seen.failed.iter().all(|begun| *begun > fault - 0.6), "{what}: flows were lost before: {seen:?}");
    ensure_timely!(outage_ms < FAILOVER_MAX_MS, "{what}: new flows are lost for {outage_ms:.0} ms");
    Ok(())
}

/// Flows have the VMs that they had before, except those of `failed` VMs, which others have, or which get no answer.
async fn all_stay(all: &mut [(Program, Vec<Option<String>>)], failed: &[&str]) -> Outcome {
    for (flows, before) in all {
        let now = flows.round().await?;
        for (before, now) in before.iter().flatten().zip(&now) {
            let has_failed = failed.iter().any(|name| before.starts_with(name));
            ensure!(has_failed || now.as_ref() == Some(before), "a flow of {before} has {now:?}");
            let is_at_failed = now.iter().any(|now| failed.iter().any(|name| now.starts_with(name)));
            ensure!(!is_at_failed, "a VM that has failed answers");
        }
    }
    Ok(())
}
