//! Which hosts health checks want instances to leave, and to which hosts these go. Pure.

use crate::push::{LastingFinding, NodeHealth, ReportedFinding};
use sluice_store::{HealthMigration, NodeId};
use sluice_types::{AnomalyClass, HealthAction, HealthPolicies, HealthPolicy, HostId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Instances are to leave a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The host.
    pub host: HostId,
    /// Class of the anomaly that lasts, and its policy.
    pub class: AnomalyClass,
    /// The limits.
    pub policy: HealthPolicy,
    /// What was measured.
    pub evidence: String,
    /// What is likely.
    pub cause: String,
}

/// The hosts that instances are to leave, one entry for each class of anomalies: those with a finding that lasts as long as its
/// policy says.
pub fn wanted(policies: &HealthPolicies, lasting: &[LastingFinding]) -> Vec<Wanted> {
    let mut wanted: BTreeMap<(HostId, AnomalyClass), Wanted> = BTreeMap::new();
    for LastingFinding { host, finding, lasts } in lasting {
        let (host, class) = (*host, finding.class);
        let policy = policies.of(class);
        if policy.action == HealthAction::Migrate && *lasts >= Duration::from_secs(policy.hold_s) {
            let (evidence, cause) = (finding.evidence.clone(), finding.cause.clone());
            let new = Wanted { host, class, policy, evidence, cause };
            wanted.entry((host, class)).or_insert(new);
        }
    }
    wanted.into_values().collect()
}

/// The hosts with an anomaly of the host as a whole, whether they still report or not.
pub fn sick(health: &[NodeHealth]) -> BTreeSet<HostId> {
    let is_of_host = |finding: &ReportedFinding| {
        AnomalyClass::OF_HOST.contains(&finding.class) && !finding.subject.starts_with("peer ")
    };
    let sick = health.iter().filter(|it| it.report.findings.iter().any(is_of_host));
    sick.filter_map(|it| host_of(it.node)).collect()
}

/// The hosts that report now.
pub fn reporting(health: &[NodeHealth]) -> BTreeSet<HostId> {
    health.iter().filter(|it| it.is_fresh).filter_map(|it| host_of(it.node)).collect()
}

fn host_of(node: NodeId) -> Option<HostId> {
    match node {
        NodeId::Host(id) => Some(id),
        NodeId::Gateway(_) => None,
    }
}

/// A host as a source or a target of migrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostState {
    /// Address family of its VTEP: the two hosts of a migration talk to each other.
    pub is_ipv4: bool,
    /// It runs a vSwitch, reports, and has found nothing about itself.
    pub is_healthy: bool,
    /// Number of its instances, with those that migrate to it.
    pub instances: u64,
    /// When the last migration from it was started by health checks, in milliseconds of the UNIX epoch.
    pub left_ms: Option<u64>,
}

/// All hosts, and what health checks have started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    hosts: BTreeMap<HostId, HostState>,
    in_progress: BTreeMap<AnomalyClass, u64>,
}

impl Site {
    /// `past` has the migrations that health checks have started and that still matter.
    pub fn new(mut hosts: BTreeMap<HostId, HostState>, past: &[HealthMigration]) -> Self {
        let mut in_progress: BTreeMap<AnomalyClass, u64> = BTreeMap::new();
        for migration in past {
            if let Some(source) = hosts.get_mut(&migration.source) {
                source.left_ms = source.left_ms.max(Some(migration.started_ms));
            }
            *in_progress.entry(migration.class).or_default() += u64::from(migration.in_progress);
        }
        Self { hosts, in_progress }
    }

    /// How many migrations may start now from a host. None, if another one from it has started a short time ago: its effect must
    /// show first.
    pub fn room(&self, wanted: &Wanted, now_ms: u64) -> u64 {
        let Some(HostState { left_ms, .. }) = self.hosts.get(&wanted.host) else { return 0 };
        let is_due = left_ms.is_none_or(|left| now_ms.saturating_sub(left) >= wanted.policy.hold_s * 1000);
        let in_progress = self.in_progress.get(&wanted.class).copied().unwrap_or(0);
        if is_due { wanted.policy.max_at_once.saturating_sub(in_progress) } else { 0 }
    }

    /// The host that gets the next instance: of the healthy ones that the source reaches, the one with the fewest instances, and of
    /// these the first one. A host from which instances were moved a short time ago gets none.
    pub fn target(&self, wanted: &Wanted, now_ms: u64) -> Option<HostId> {
        let source = self.hosts.get(&wanted.host)?;
        let cooldown_ms = wanted.policy.cooldown_s * 1000;
        let may_take = |(id, host): &(&HostId, &HostState)| {
            **id != wanted.host
                && host.is_healthy
                && host.is_ipv4 == source.is_ipv4
                && host.left_ms.is_none_or(|left| now_ms.saturating_sub(left) >= cooldown_ms)
        };
        let hosts = self.hosts.iter().filter(may_take);
        hosts.min_by_key(|(id, host)| (host.instances, **id)).map(|(id, _)| *id)
    }

    /// Notes that the migration of an instance was started.
    pub fn note(&mut self, wanted: &Wanted, target: HostId) {
        if let Some(target) = self.hosts.get_mut(&target) {
            target.instances += 1;
        }
        *self.in_progress.entry(wanted.class).or_default() += 1;
    }

    /// Notes when instances have left a host, after all of a round.
    pub fn note_left(&mut self, host: HostId, now_ms: u64) {
        if let Some(host) = self.hosts.get_mut(&host) {
            host.left_ms = Some(now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::Reported;
    use sluice_southbound::{Finding, HealthSubject};
    use sluice_types::{HealthPolicyPatch, InstanceId};

    const CPU: AnomalyClass = AnomalyClass::ServerResources;
    const NOW_MS: u64 = 10_000_000;

    fn id(number: u64) -> HostId {
        HostId::new(number)
    }

    fn lasting(host: u64, class: AnomalyClass, seconds: u64) -> LastingFinding {
        let finding = Finding {
            class,
            subject: HealthSubject::Node,
            since_ms: 1,
            evidence: format!("measured on {host}"),
            cause: "a guess".to_owned(),
        };
        LastingFinding { host: id(host), finding, lasts: Duration::from_secs(seconds) }
    }

    fn policies() -> HealthPolicies {
        let mut policies = HealthPolicies::default();
        let patch = HealthPolicyPatch {
            action: Some(HealthAction::Migrate),
            max_at_once: Some(2),
            hold_s: Some(60),
            cooldown_s: Some(3600),
            sessions: None,
        };
        policies.change(CPU, &patch).unwrap();
        policies
    }

    fn of_host(host: u64) -> Wanted {
        wanted(&policies(), &[lasting(host, CPU, 60)]).remove(0)
    }

    fn host(instances: u64) -> HostState {
        HostState { is_ipv4: true, is_healthy: true, instances, left_ms: None }
    }

    fn past(source: u64, started_ms: u64, in_progress: bool) -> HealthMigration {
        HealthMigration {
            migration: started_ms,
            instance: InstanceId::new(1),
            source: id(source),
            target: id(9),
            class: CPU,
            started_ms,
            in_progress,
        }
    }

    #[test]
    fn only_what_lasts_and_has_a_policy_is_wanted() {
        let found = [
            lasting(1, CPU, 59),
            lasting(2, CPU, 60),
            lasting(2, CPU, 90),
            lasting(3, AnomalyClass::NicFault, 900),
        ];
        let wanted = wanted(&policies(), &found);
        assert_eq!(wanted.len(), 1, "{wanted:?}");
        assert_eq!((wanted[0].host, wanted[0].evidence.as_str()), (id(2), "measured on 2"));
        assert!(super::wanted(&HealthPolicies::default(), &found).is_empty());
    }

    #[test]
    fn the_healthy_host_with_the_fewest_instances_is_the_target() {
        let with = |change: &dyn Fn(&mut BTreeMap<HostId, HostState>)| {
            let mut hosts =
                BTreeMap::from([(id(1), host(0)), (id(2), host(5)), (id(3), host(4)), (id(4), host(4))]);
            change(&mut hosts);
            Site::new(hosts, &[]).target(&of_host(1), NOW_MS)
        };
        assert_eq!(with(&|_| {}), Some(id(3)));
        assert_eq!(with(&|hosts| hosts.get_mut(&id(3)).unwrap().is_healthy = false), Some(id(4)));
        let of_other_family = with(&|hosts| hosts.get_mut(&id(3)).unwrap().is_ipv4 = false);
        assert_eq!(of_other_family, Some(id(4)));
        assert_eq!(with(&|hosts| hosts.values_mut().for_each(|host| host.is_healthy = false)), None);
        assert_eq!(with(&|hosts| hosts.retain(|host, _| *host == id(1))), None);
    }

    /// Catches instances that go to and fro between two hosts that are both overloaded now and then.
    #[test]
    fn a_host_that_instances_have_left_gets_none() {
        let hosts = BTreeMap::from([(id(1), host(9)), (id(2), host(0)), (id(3), host(5))]);
        let at = |ago_s: u64| {
            let past = [past(2, NOW_MS - ago_s * 1000, false), past(2, 5, false)];
            Site::new(hosts.clone(), &past).target(&of_host(1), NOW_MS)
        };
        assert_eq!([at(0), at(3599), at(3600)], [Some(id(3)), Some(id(3)), Some(id(2))]);
    }

    #[test]
    fn the_number_and_the_pace_of_migrations_are_limited() {
        let hosts = BTreeMap::from([(id(1), host(9)), (id(2), host(0)), (id(3), host(0))]);
        let wanted = of_host(1);
        let room = |past: &[HealthMigration]| Site::new(hosts.clone(), past).room(&wanted, NOW_MS);
        assert_eq!(room(&[]), 2);
        assert_eq!(room(&[past(2, 5, true)]), 1, "those of all hosts count");
        assert_eq!(room(&[past(2, 5, true), past(3, 5, true), past(3, 6, true)]), 0);
        assert_eq!(room(&[past(1, NOW_MS - 59_999, false)]), 0);
        assert_eq!(room(&[past(1, NOW_MS - 60_000, false)]), 2);
        let mut site = Site::new(hosts.clone(), &[]);
        let targets: Vec<_> = (0..2)
            .map(|_| {
                let target = site.target(&wanted, NOW_MS).unwrap();
                site.note(&wanted, target);
                target
            })
            .collect();
        assert_eq!((targets, site.room(&wanted, NOW_MS)), (vec![id(2), id(3)], 0));
        // Another class has a number of its own, but the host has one pace.
        let of_nic = Wanted { class: AnomalyClass::NicFault, ..wanted.clone() };
        assert_eq!(site.room(&of_nic, NOW_MS), 2);
        site.note_left(id(1), NOW_MS);
        assert_eq!(site.room(&of_nic, NOW_MS), 0);
        assert_eq!(site.room(&Wanted { host: id(7), ..wanted }, NOW_MS), 0, "there is no such host");
    }

    #[test]
    fn hosts_with_an_anomaly_of_their_own_are_sick() {
        let health = |host: u64, is_fresh, class, subject: &str| {
            let finding = ReportedFinding {
                class,
                subject: subject.to_owned(),
                since_ms: 1,
                evidence: String::new(),
                cause: String::new(),
            };
            let report = Reported { findings: vec![finding], ..Reported::default() };
            NodeHealth { node: NodeId::Host(id(host)), reported_ms: 1, is_fresh, report }
        };
        let all = [
            health(1, true, CPU, "node"),
            health(2, false, AnomalyClass::NicFault, "interface eth0"),
            health(3, true, AnomalyClass::NicFault, "peer 192.0.2.1"),
            health(4, true, AnomalyClass::VmUnresponsive, "inst-4"),
        ];
        assert_eq!(sick(&all), BTreeSet::from([id(1), id(2)]));
        assert_eq!(reporting(&all), BTreeSet::from([id(1), id(3), id(4)]));
    }
}
