//! The health of members of services: hosts report which VMs answer, gateways which hosts do. From both follows the status
//! of each member, which is stored when it changes, so that all nodes learn it in one step.
//!
//! A host is judged by the gateways whose streams are on this replica, by [`judge_host`]. It changes when members are judged by
//! other reports or rules.

use super::{Push, count};
use sluice_southbound::{HostState, MemberState};
use sluice_store::{MemberReport, NodeId, StoreError, StoredMember};
use sluice_types::{GatewayId, HostId, InstanceId, MemberStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A host that was down is up when a gateway has reached it for this time, and a VM that was silent when it has answered for it.
const STABLE: Duration = Duration::from_secs(1);
/// Pause before another look at a host that has not acknowledged a member's ports yet.
const LOOK: Duration = Duration::from_millis(5);
/// Pause after a store error that may pass.
const RETRY: Duration = Duration::from_millis(250);
/// Evidence of a member on a host that is reached and says nothing of it.
const NO_REPORT: &str = "its host does not report it";

/// What a gateway says of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reach {
    /// `None`: no host has the VTEP.
    host: Option<HostId>,
    reachable: bool,
    /// When it began to say so.
    since: Instant,
    evidence: String,
}

/// The newest report of a gateway, by VTEP.
type Reached = BTreeMap<IpAddr, Reach>;

/// What a host says of an instance.
#[derive(Clone, Debug)]
struct Answer {
    up: bool,
    /// When it began to say so.
    since: Instant,
    evidence: String,
}

/// What is known of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostHealth {
    Reached,
    Down,
    /// No gateway that is believed says anything of it, and it was not down.
    Unknown,
}

/// Whether a gateway says nothing of the hosts, but of itself: it reaches none of several, and another gateway reaches one.
fn is_cut_off(of: &Reached, all: &[&Reached]) -> bool {
    let reaches = |of: &Reached| of.values().any(|reach| reach.reachable);
    of.len() >= 2 && !reaches(of) && all.iter().copied().any(reaches)
}

/// The health of a host, and what one of the gateways has measured. `was_down` says whether it was down before; so it stays if no
/// gateway that is believed says anything of it. It is down when all of these say that they do not reach it, and up again when
/// one of them has reached it for [`STABLE`].
fn judge_host<'a>(
    all: &[&'a Reached],
    host: IpAddr,
    was_down: bool,
    now: Instant,
) -> (HostHealth, Option<&'a str>) {
    let believed = all.iter().filter(|of| !is_cut_off(of, all));
    let told: Vec<&Reach> = believed.filter_map(|of| of.get(&host)).collect();
    let evidence = told.iter().find(|reach| !reach.reachable).map(|reach| reach.evidence.as_str());
    let is_stable = |reach: &&Reach| reach.reachable && now.saturating_duration_since(reach.since) >= STABLE;
    let is_down = match was_down {
        true => !told.iter().any(is_stable),
        false => !told.is_empty() && told.iter().all(|reach| !reach.reachable),
    };
    let health = match is_down {
        true => HostHealth::Down,
        false if told.is_empty() => HostHealth::Unknown,
        false => HostHealth::Reached,
    };
    (health, evidence)
}

/// The status that a member has by what is known of its host and its VM; `None`: it keeps the one that it has.
fn status_of(
    member: &StoredMember,
    host: HostHealth,
    answer: Option<&Answer>,
    has_ports: bool,
    now: Instant,
) -> Option<MemberStatus> {
    let was = member.status;
    let status = match (host, answer) {
        (HostHealth::Down, _) => MemberStatus::HostUnreachable,
        (HostHealth::Unknown, _) if was == MemberStatus::HostUnreachable => return None,
        (_, Some(Answer { up: true, since, .. })) => {
            let may_be_up = match was {
                MemberStatus::Waiting => has_ports,
                // A VM that answers on and off would change the tables of all nodes each time.
                MemberStatus::VmSilent => now.saturating_duration_since(*since) >= STABLE,
                _ => true,
            };
            if !may_be_up {
                return None;
            }
            MemberStatus::Up
        }
        (_, Some(Answer { up: false, .. })) => MemberStatus::VmSilent,
        (HostHealth::Reached, None) if was == MemberStatus::HostUnreachable => MemberStatus::VmSilent,
        (_, None) => return None,
    };
    // A member that never was up is not down: it still starts.
    let starts = was == MemberStatus::Waiting && status.is_down();
    (status != was && !starts).then_some(status)
}

/// When a member that keeps its status may have another one although nothing is reported.
fn next_look(
    member: &StoredMember,
    host: HostHealth,
    answer: Option<&Answer>,
    now: Instant,
) -> Option<Instant> {
    let answer = answer.filter(|answer| answer.up && host != HostHealth::Down)?;
    match member.status {
        MemberStatus::Waiting => Some(now + LOOK),
        MemberStatus::VmSilent => Some(answer.since + STABLE),
        _ => None,
    }
}

#[derive(Debug, Default)]
struct Inner {
    hosts: BTreeMap<HostId, BTreeMap<InstanceId, Answer>>,
    gateways: BTreeMap<GatewayId, Reached>,
    /// Hosts that are down.
    down: BTreeMap<HostId, String>,
    /// Hosts whose members are to be judged.
    due: BTreeSet<HostId>,
    /// Hosts whose members are to be judged at a time, although nothing is reported.
    later: BTreeMap<HostId, Instant>,
}

impl Inner {
    /// Takes the hosts that are to be judged now.
    fn take_due(&mut self, now: Instant) -> BTreeSet<HostId> {
        let mut due = std::mem::take(&mut self.due);
        due.extend(self.later.iter().filter(|(_, at)| **at <= now).map(|(host, _)| *host));
        self.later.retain(|host, _| !due.contains(host));
        due
    }

    /// Judges a host at this time, if not earlier.
    fn look_at(&mut self, host: HostId, at: Instant) {
        let known = self.later.entry(host).or_insert(at);
        *known = at.min(*known);
    }

    /// Replaces the report of a host. VMs that still answer, or still do not, have done so since the earlier report.
    fn put_members(&mut self, host: HostId, states: Vec<MemberState>, now: Instant) {
        let old = self.hosts.remove(&host).unwrap_or_default();
        let answer = |MemberState { instance, up, evidence }: MemberState| {
            let before = old.get(&instance).filter(|before| before.up == up);
            (instance, Answer { up, since: before.map_or(now, |before| before.since), evidence })
        };
        self.hosts.insert(host, states.into_iter().map(answer).collect());
        self.due.insert(host);
    }

    /// Replaces the report of a gateway. Hosts that it still reaches have been reached since the earlier report.
    fn put_gateway(
        &mut self,
        gateway: GatewayId,
        states: Vec<HostState>,
        hosts: &BTreeMap<IpAddr, HostId>,
        now: Instant,
    ) {
        let old = self.gateways.remove(&gateway).unwrap_or_default();
        let reach = |HostState { host: vtep, reachable, evidence }: HostState| {
            let before = old.get(&vtep).filter(|before| before.reachable == reachable);
            let since = before.map_or(now, |before| before.since);
            (vtep, Reach { host: hosts.get(&vtep).copied(), reachable, since, evidence })
        };
        let reached: Reached = states.into_iter().map(reach).collect();
        self.due.extend(reached.values().filter_map(|reach| reach.host));
        self.gateways.insert(gateway, reached);
    }

    /// Removes what a gateway has said. The hosts that it told about are judged by the others.
    fn forget_gateway(&mut self, gateway: GatewayId) {
        let reached = self.gateways.remove(&gateway).unwrap_or_default();
        self.due.extend(reached.values().filter_map(|reach| reach.host));
        self.due.extend(self.down.keys());
    }

    /// Judges a host. Returns also when a later look may find it up although nothing is reported.
    fn judge(&mut self, host: HostId, vtep: IpAddr, now: Instant) -> (HostHealth, Option<Instant>) {
        let all: Vec<&Reached> = self.gateways.values().collect();
        let was_down = self.down.contains_key(&host);
        let (health, evidence) = judge_host(&all, vtep, was_down, now);
        let evidence = evidence.unwrap_or_default().to_owned();
        if health != HostHealth::Down {
            self.down.remove(&host);
            return (health, None);
        }
        let reaches = all.iter().filter_map(|of| of.get(&vtep)).filter(|reach| reach.reachable);
        let returns = reaches.map(|reach| reach.since + STABLE).min();
        if !was_down {
            self.down.insert(host, evidence);
        }
        (health, returns)
    }
}

/// What hosts and gateways have reported of members and hosts, on their streams with this replica.
#[derive(Debug, Default)]
pub struct MemberHealth {
    inner: Mutex<Inner>,
    changed: Notify,
}

impl MemberHealth {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The report of a host, which replaces its earlier one.
    pub fn put_members(&self, host: HostId, states: Vec<MemberState>) {
        self.lock().put_members(host, states, Instant::now());
        self.changed.notify_one();
    }

    /// The report of a gateway, which replaces its earlier one. `hosts` are the hosts by VTEP.
    pub fn put_hosts(&self, gateway: GatewayId, states: Vec<HostState>, hosts: &BTreeMap<IpAddr, HostId>) {
        self.lock().put_gateway(gateway, states, hosts, Instant::now());
        self.changed.notify_one();
    }

    /// A node's stream has ended: what it said counts no more.
    pub fn forget(&self, node: NodeId) {
        match node {
            NodeId::Host(host) => drop(self.lock().hosts.remove(&host)),
            NodeId::Gateway(gateway) => {
                self.lock().forget_gateway(gateway);
                self.changed.notify_one();
            }
        }
    }

    /// Waits until members may have another status.
    async fn wait(&self) {
        let next = self.lock().later.values().min().copied();
        match next {
            // A notification that comes before or after this is kept.
            None => self.changed.notified().await,
            Some(at) => tokio::select! {
                () = tokio::time::sleep_until(at.into()) => {}
                () = self.changed.notified() => {}
            },
        }
    }
}

/// Judges members when something is reported, until the future is dropped.
pub async fn judge_members(push: Arc<Push>) {
    loop {
        let due = push.services.lock().take_due(Instant::now());
        if let Err(error) = judge(&push, &due).await {
            push.db.count_error();
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot store the status of a member");
            let at = Instant::now() + RETRY;
            let mut inner = push.services.lock();
            due.iter().for_each(|host| inner.look_at(*host, at));
        }
        push.services.wait().await;
    }
}

/// Judges the members on these hosts, and stores what has changed. Notes the hosts that must be looked at again.
async fn judge(push: &Push, due: &BTreeSet<HostId>) -> Result<(), StoreError> {
    if due.is_empty() {
        return Ok(());
    }
    let hosts: Vec<HostId> = due.iter().copied().collect();
    let members = push.db.store.members_on_hosts(&hosts).await?;
    let vteps = push.members(|members| members.vteps_of(&hosts));
    let (mut found, mut reports) = (BTreeMap::new(), Vec::new());
    let now = Instant::now();
    push.hub.with_acked(|acked| {
        let mut inner = push.services.lock();
        for (host, vtep) in &vteps {
            let (health, returns) = inner.judge(*host, *vtep, now);
            found.insert(*host, health);
            if let Some(at) = returns.filter(|_| members.iter().any(|member| member.host == *host)) {
                inner.look_at(*host, at);
            }
        }
        for member in &members {
            let health = found.get(&member.host).copied().unwrap_or(HostHealth::Unknown);
            let has_ports = acked(NodeId::Host(member.host)) >= member.revision;
            let answer = inner.hosts.get(&member.host).and_then(|answers| answers.get(&member.instance));
            if let Some(status) = status_of(member, health, answer, has_ports, now) {
                let down = inner.down.get(&member.host);
                let evidence = down.or(answer.map(|answer| &answer.evidence));
                let evidence = evidence.map_or(NO_REPORT, String::as_str).to_owned();
                reports.push(MemberReport { member: member.id, status, evidence });
            } else if let Some(at) = next_look(member, health, answer, now) {
                inner.look_at(member.host, at);
            }
        }
    });
    if reports.is_empty() {
        return Ok(());
    }
    let changed = push.db.store.set_member_states(&reports).await?;
    push.db.notify_commit();
    for member in changed {
        let StoredMember { service, name, status, evidence, .. } = member;
        count(&push.counters.member_changes);
        tracing::info!(%service, name, %status, evidence, "a member of a service has another status");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::{MacAddr, MemberId, ServiceId};

    fn vtep(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn report(states: &[(u8, bool)]) -> Vec<HostState> {
        let state = |(last, reachable): &(u8, bool)| {
            let evidence = if *reachable { String::new() } else { format!("0 of 5 from {last}") };
            HostState { host: vtep(*last), reachable: *reachable, evidence }
        };
        states.iter().map(state).collect()
    }

    fn hosts() -> BTreeMap<IpAddr, HostId> {
        (1..=3).map(|last| (vtep(last), HostId::new(last.into()))).collect()
    }

    fn reached(states: &[(u8, bool)], since: Instant) -> Reached {
        let mut inner = Inner::default();
        inner.put_gateway(GatewayId::new(1), report(states), &hosts(), since);
        inner.gateways.remove(&GatewayId::new(1)).unwrap()
    }

    fn health(all: &[&[(u8, bool)]], was_down: bool) -> HostHealth {
        let start = Instant::now();
        let now = start + STABLE;
        let all: Vec<Reached> = all.iter().map(|states| reached(states, start)).collect();
        judge_host(&all.iter().collect::<Vec<_>>(), vtep(1), was_down, now).0
    }

    fn down(all: &[&[(u8, bool)]], was_down: bool) -> bool {
        health(all, was_down) == HostHealth::Down
    }

    /// Catches a host that one gateway alone takes out, and one that stays although no gateway reaches it.
    #[test]
    fn a_host_is_down_when_no_gateway_reaches_it() {
        assert!(down(&[&[(1, false)]], false));
        assert!(down(&[&[(1, false), (2, true)], &[(1, false), (2, true)]], false));
        assert!(!down(&[&[(1, false), (2, true)], &[(1, true), (2, true)]], false));
        assert!(!down(&[], false) && down(&[], true), "nothing is known");
        assert!(!down(&[&[(2, false)]], false), "nothing is known of this host");
        assert_eq!(health(&[&[(2, false)]], false), HostHealth::Unknown);
        assert_eq!(health(&[&[(1, true)]], true), HostHealth::Reached);
    }

    /// Catches a gateway without a link that takes all hosts out.
    #[test]
    fn a_gateway_that_reaches_no_host_is_not_believed() {
        let cut_off: &[(u8, bool)] = &[(1, false), (2, false)];
        let only = health(&[cut_off, &[(2, true)]], false);
        assert_eq!(only, HostHealth::Unknown, "only it says something of the host");
        assert!(down(&[cut_off, &[(1, false), (3, true)]], false));
        assert!(!down(&[cut_off, &[(1, true)]], false));
        assert!(down(&[cut_off, cut_off], false), "no gateway reaches any host");
        assert!(down(&[&[(1, false)], &[(2, true)]], false), "it watches one host only");
    }

    /// Catches a host that comes back and goes with each probe.
    #[test]
    fn a_host_is_up_again_when_it_was_reached_for_a_while() {
        let start = Instant::now();
        let (mut inner, host, gateway) = (Inner::default(), HostId::new(7), GatewayId::new(1));
        let mut judge = |states: &[(u8, bool)], at: Duration| {
            inner.put_gateway(gateway, report(states), &hosts(), start + at);
            let (_, returns) = inner.judge(host, vtep(1), start + at);
            (inner.down.get(&host).cloned(), returns.map(|at| at - start))
        };
        let ms = Duration::from_millis;
        let evidence = Some("0 of 5 from 1".to_owned());
        assert_eq!(judge(&[(1, false)], ms(0)), (evidence.clone(), None));
        assert_eq!(judge(&[(1, true)], ms(100)), (evidence.clone(), Some(ms(1100))));
        assert_eq!(judge(&[(1, true)], ms(1099)), (evidence.clone(), Some(ms(1100))));
        assert_eq!(judge(&[(1, false)], ms(1100)), (evidence.clone(), None));
        assert_eq!(judge(&[(1, true)], ms(1200)), (evidence, Some(ms(2200))));
        assert_eq!(judge(&[(1, true)], ms(2200)), (None, None));
    }

    /// Catches hosts that keep what a gateway said that has gone, and a loop that looks at a host all the time.
    #[test]
    fn hosts_are_judged_when_a_gateway_goes_and_when_it_is_time() {
        let (mut inner, start) = (Inner::default(), Instant::now());
        let host = HostId::new;
        inner.put_gateway(GatewayId::new(1), report(&[(1, true), (2, false)]), &hosts(), start);
        assert_eq!(inner.take_due(start), BTreeSet::from([host(1), host(2)]));
        inner.forget_gateway(GatewayId::new(1));
        assert_eq!(inner.take_due(start), BTreeSet::from([host(1), host(2)]));
        inner.look_at(host(3), start + STABLE);
        inner.look_at(host(3), start + LOOK);
        inner.look_at(host(3), start + RETRY);
        assert_eq!(inner.take_due(start), BTreeSet::new());
        assert_eq!(inner.take_due(start + LOOK), BTreeSet::from([host(3)]));
        assert_eq!(inner.take_due(start + STABLE), BTreeSet::new());
    }

    fn member(status: MemberStatus) -> StoredMember {
        StoredMember {
            id: MemberId::new(1),
            service: ServiceId::new(1),
            instance: InstanceId::new(1),
            name: String::new(),
            host: HostId::new(1),
            number: 1,
            mac: MacAddr::local(1),
            status,
            draining: false,
            evidence: String::new(),
            since_ms: 0,
            revision: 5,
        }
    }

    /// Catches a member that gets flows before its host has its ports, and one that is up on a host that is down.
    #[test]
    fn the_status_of_a_member_follows_from_its_host_and_its_vm() {
        use HostHealth::{Down, Reached, Unknown};
        use MemberStatus::{HostUnreachable, Up, VmSilent, Waiting};
        let since = Instant::now();
        let answer = |up| Answer { up, since, evidence: String::new() };
        let (yes, no) = (answer(true), answer(false));
        for (before, host, answer, has_ports, after) in [
            (Waiting, Reached, Some(&yes), false, None),
            (Waiting, Reached, Some(&yes), true, Some(Up)),
            (Waiting, Unknown, Some(&yes), true, Some(Up)),
            (Waiting, Reached, Some(&no), true, None),
            (Waiting, Down, Some(&yes), true, None),
            (Up, Reached, Some(&yes), false, None),
            (Up, Unknown, Some(&no), true, Some(VmSilent)),
            (Up, Reached, None, true, None),
            (Up, Down, Some(&yes), true, Some(HostUnreachable)),
            (VmSilent, Down, None, true, Some(HostUnreachable)),
            (VmSilent, Reached, Some(&yes), true, Some(Up)),
            (VmSilent, Reached, None, true, None),
            (HostUnreachable, Reached, None, true, Some(VmSilent)),
            (HostUnreachable, Reached, Some(&no), true, Some(VmSilent)),
            (HostUnreachable, Reached, Some(&yes), false, Some(Up)),
            (HostUnreachable, Unknown, Some(&yes), true, None),
            (HostUnreachable, Unknown, Some(&no), true, None),
            (HostUnreachable, Unknown, None, true, None),
        ] {
            let found = status_of(&member(before), host, answer, has_ports, since + STABLE);
            assert_eq!(found, after, "{before} {host:?} {answer:?} {has_ports}");
        }
    }

    /// Catches a VM that answers on and off and changes the tables of all nodes each time.
    #[test]
    fn a_vm_that_was_silent_is_up_when_it_has_answered_for_a_while() {
        use HostHealth::{Down, Reached};
        use MemberStatus::{Up, VmSilent, Waiting};
        let (mut inner, start) = (Inner::default(), Instant::now());
        let ms = Duration::from_millis;
        let mut judge = |up: bool, was: MemberStatus, at: Duration| {
            let state = MemberState { instance: InstanceId::new(1), up, evidence: String::new() };
            inner.put_members(HostId::new(1), vec![state], start + at);
            let answer = inner.hosts[&HostId::new(1)].get(&InstanceId::new(1));
            let status = status_of(&member(was), Reached, answer, true, start + at);
            let look = next_look(&member(was), Reached, answer, start + at).map(|at| at - start);
            assert_eq!(next_look(&member(was), Down, answer, start + at), None, "its host is down");
            (status, look)
        };
        assert_eq!(judge(true, Waiting, ms(0)).0, Some(Up));
        assert_eq!(judge(false, Up, ms(10)), (Some(VmSilent), None));
        assert_eq!(judge(true, VmSilent, ms(100)), (None, Some(ms(1100))));
        assert_eq!(judge(true, VmSilent, ms(1099)), (None, Some(ms(1100))));
        assert_eq!(judge(false, VmSilent, ms(1099)), (None, None));
        assert_eq!(judge(true, VmSilent, ms(1200)), (None, Some(ms(2200))));
        assert_eq!(judge(true, VmSilent, ms(2200)).0, Some(Up));
    }
}
