//! Distributed ECMP (Achelous section 5.2): how soon a new member of a service gets flows, and for how long new flows are lost when a
//! member or its host fails. It changes with what is measured of services.

use sluice_bench_report::Measure;
use sluice_bench_report::shell::Failure;
use sluice_client::{Mount, NewMount, NewService};
use sluice_lab::{Lab, Options, Program, Topology, VmState, Watched, monotonic_s};
use sluice_types::{MemberStatus, ServiceId};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const LAB: &str = "benchecmp";
const CLIENT: &str = "client";
const MEMBERS: [&str; 3] = ["fw-1", "fw-2", "fw-3"];
/// The member that comes and fails, and its host.
const VICTIM: &str = MEMBERS[2];
const HOST: &str = "host-d";
/// Its interfaces.
const INTERFACES: [&str; 2] = ["eth0", "eth1"];
const PORT: u16 = 7601;
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);
/// New flows begin for this time before and after what is measured.
const BEFORE: Duration = Duration::from_millis(200);
const AFTER: Duration = Duration::from_millis(1500);

/// Explanation of the measurements for readers of the results.
pub const METHOD: &str = "\
`ecmp_*`: a service has members on three hosts, and a VM on a fourth one begins a flow (UDP) to its mount every 2 ms, each from another port; the
mount is IPv4 and IPv6 in turn. A flow is lost if its first datagram is not answered in 0.5 s. The figures are of all rounds: least, median, most.
`ecmp_expand_ms`: from the call of the API that adds the third member to the begin of the first flow that it has answered. Its VM runs, and the interface of
its vNIC is attached by the call of `sluice port attach` that follows, which is part of the time, as are the probes that find the VM up. The
paper says 300 ms.
`ecmp_failover_ms_vm`: the VM of the third member gets no frame any more (a filter in the VM drops all), from then to the begin of the last flow that is lost.
`ecmp_failover_ms_host`: its host is cut off from the underlay at the switch, and goes on to reach the controller by another network.";

/// How much is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `sluice` binary that the lab runs.
    pub binary: PathBuf,
    /// Rounds of each kind.
    pub rounds: usize,
}

/// What was measured.
#[derive(Debug, Default)]
struct Rounds {
    expand_ms: Vec<f64>,
    /// Flows that were lost while the member came.
    lost_by_expansion: usize,
    /// Milliseconds until no new flow is lost any more.
    vm_ms: Vec<f64>,
    host_ms: Vec<f64>,
}

/// Measures `ecmp_*`. Returns the measures and notes.
///
/// # Errors
/// Errors of the lab.
pub fn measure(settings: &Settings) -> Result<(Vec<Measure>, Vec<String>), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rounds = runtime.block_on(async {
        let mut options = Options::standard(LAB, &settings.binary)?;
        options.topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("members.yaml"))?;
        let outcome = match Lab::up(options).await {
            Ok(lab) => in_lab(&lab, settings.rounds).await,
            Err(error) => Err(error.into()),
        };
        sluice_lab::down(LAB).await?;
        outcome
    })?;
    let note = format!(
        "`ecmp_expand_ms`: {} flows were lost in all rounds while the member came, because its vNIC was attached after the service had it.",
        rounds.lost_by_expansion
    );
    Ok((measures(&rounds), vec![note]))
}

fn measures(rounds: &Rounds) -> Vec<Measure> {
    vec![
        Measure::alone("ecmp_expand_ms", "ms", &rounds.expand_ms),
        Measure::alone("ecmp_failover_ms_vm", "ms", &rounds.vm_ms),
        Measure::alone("ecmp_failover_ms_host", "ms", &rounds.host_ms),
    ]
}

async fn in_lab(lab: &Lab, count: usize) -> Result<Rounds, Failure> {
    let mut bond = Bond::create(lab).await?;
    let mut rounds = Rounds::default();
    for round in 0..count {
        let at = bond.addresses()?[round % 2];
        let (expand_ms, lost) = bond.expand(at).await?;
        rounds.expand_ms.push(expand_ms);
        rounds.lost_by_expansion += lost;
        let (vm_ms, host_ms) = (bond.hang(at).await?, bond.cut_off(at).await?);
        rounds.vm_ms.push(vm_ms);
        rounds.host_ms.push(host_ms);
        eprintln!(
            "bench-hosts: ecmp, round {round}: expansion {expand_ms:.0} ms, VM {vm_ms:.0} ms, host {host_ms:.0} ms"
        );
    }
    Ok(rounds)
}

/// A service and its mount.
struct Bond<'a> {
    lab: &'a Lab,
    service: ServiceId,
    mount: Mount,
    /// The interface of the third member.
    nic: VmState,
    /// They answer as long as they are not dropped.
    _servers: Vec<Program>,
}

impl<'a> Bond<'a> {
    async fn create(lab: &'a Lab) -> Result<Self, Failure> {
        let (web, svc, api) = (lab.vpc("web")?, lab.vpc("svc")?, lab.api());
        let new = NewService { name: "fw".to_owned(), ..NewService::default() };
        let service = api.create(svc.id, &new).await?.object.id;
        let subnet = *web.subnets.get("front").ok_or("the VPC has no subnet")?;
        let (name, security_groups) = ("fw".to_owned(), Some(Vec::new()));
        let new = NewMount { name, service, subnet, ipv4: None, ipv6: None, security_groups };
        let mount = api.create(web.id, &new).await?.object;
        let (mut servers, mut nics) = (Vec::new(), Vec::new());
        for name in MEMBERS {
            let vm = lab.vm(name)?;
            let member = api.add_member(service, vm.id).await?;
            nics.push(lab.add_vnic(vm, 1, &member, &mount).await?);
            servers.push(lab.serve(name, &[PORT], &INTERFACES[1..]).await?);
        }
        let nic = nics.pop().ok_or("no vNIC")?;
        let bond = Self { lab, service, mount, nic, _servers: servers };
        bond.all_up().await?;
        api.wait_programmed::<Mount>(bond.mount.id, PATIENCE).await?;
        Ok(bond)
    }

    fn addresses(&self) -> Result<[IpAddr; 2], Failure> {
        let (v4, v6) = self.mount.ipv4.zip(self.mount.ipv6).ok_or("the mount has not both families")?;
        Ok([v4.into(), v6.into()])
    }

    async fn all_up(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let members = self.lab.api().members(self.service).await?;
            if members.len() == MEMBERS.len() && members.iter().all(|it| it.status == MemberStatus::Up) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("not all members are up: {members:?}").into());
            }
            sleep(LOOK).await;
        }
    }

    /// Removes the third member, and adds it again while flows begin. Returns the time, and the number of flows that were lost.
    async fn expand(&mut self, at: IpAddr) -> Result<(f64, usize), Failure> {
        let (api, victim) = (self.lab.api(), self.lab.vm(VICTIM)?.id);
        let removal = api.remove_member(self.service, victim).await?;
        api.wait_removed("member", removal.revision, PATIENCE).await?;
        let watcher = self.lab.watch(CLIENT, at, PORT).await?;
        sleep(BEFORE).await;
        let begun = monotonic_s();
        let member = api.add_member(self.service, victim).await?;
        self.nic = self.lab.reattach_vnic(&self.nic, &member, &self.mount).await?;
        self.all_up().await?;
        sleep(BEFORE).await;
        let seen = watcher.watched().await?;
        let first = seen.first_of(VICTIM).ok_or("the new member got no flow")?;
        Ok(((first - begun) * 1e3, seen.failed.len()))
    }

    async fn hang(&self, at: IpAddr) -> Result<f64, Failure> {
        let watcher = self.lab.watch(CLIENT, at, PORT).await?;
        sleep(BEFORE).await;
        let fault = self.lab.hang_vm(VICTIM, &INTERFACES).await?;
        let outage = seen(watcher, fault).await?;
        self.lab.wake_vm(VICTIM).await?;
        self.all_up().await?;
        Ok(outage)
    }

    async fn cut_off(&self, at: IpAddr) -> Result<f64, Failure> {
        let watcher = self.lab.watch(CLIENT, at, PORT).await?;
        sleep(BEFORE).await;
        let fault = self.lab.connect_host(HOST, false).await?;
        let outage = seen(watcher, fault).await?;
        self.lab.connect_host(HOST, true).await?;
        self.all_up().await?;
        Ok(outage)
    }
}

/// Milliseconds from a failure at this time until no new flow is lost any more.
async fn seen(watcher: Program, fault: f64) -> Result<f64, Failure> {
    sleep(AFTER).await;
    outage(&watcher.watched().await?, fault)
}

fn outage(seen: &Watched, fault: f64) -> Result<f64, Failure> {
    match seen.outage_ms(fault) {
        ms if ms > 0.0 => Ok(ms),
        _ => Err("no flow was lost, so nothing has failed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_ends_with_the_last_flow_that_is_lost() {
        let seen = |failed: &[f64]| Watched { failed: failed.to_vec(), ..Watched::default() };
        let found_ms = outage(&seen(&[5.002, 5.25, 5.08]), 5.0).unwrap();
        assert!((found_ms - 250.0).abs() < 1e-6, "{found_ms}");
        assert!(outage(&seen(&[]), 5.0).is_err() && outage(&seen(&[4.0]), 5.0).is_err());
    }
}
