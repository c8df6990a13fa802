//! The health of members of services: hosts report which VMs answer, gateways which hosts do. From both follows the status
//! of each member, which is stored when it changes, so that all nodes learn it in one step.
//!
//! A host is judged by the gateways whose streams are on this replica, by [`is_down`]. It changes when members are judged by
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

/// A host that was down is up when a gateway has reached it for this time.
const STABLE: Duration = Duration::from_secs(1);
/// Pause before another look at a host that has not acknowledged a member's ports yet, or that is reachable again.
const LOOK: Duration = Duration::from_millis(5);
/// Pause after a store error that may pass.
const RETRY: Duration = Duration::from_millis(250);

/// What a gateway says of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reach {
    reachable: bool,
    /// When it began to say so.
    since: Instant,
    evidence: String,
}

/// The newest report of a gateway, by VTEP.
type Reached = BTreeMap<IpAddr, Reach>;

/// What a host says of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    up: bool,
    evidence: String,
}

/// Whether a gateway says nothing of the hosts, but of itself: it reaches none of several, and another gateway reaches one.
fn is_cut_off(of: &Reached, all: &[&Reached]) -> bool {
    let reaches = |of: &Reached| of.values().any(|reach| reach.reachable);
    of.len() >= 2 && !reaches(of) && all.iter().copied().any(reaches)
}

/// Whether a host is down, and what one of the gateways has measured. `was` says whether it was down before; so it stays if no
/// gateway that is believed says anything of it. It is down when all of these say that they do not reach it, and up again when
/// one of them has reached it for [`STABLE`].
fn is_down<'a>(all: &[&'a Reached], host: IpAddr, was: bool, now: Instant) -> (bool, Option<&'a str>) {
    let believed = all.iter().filter(|of| !is_cut_off(of, all));
    let told: Vec<&Reach> = believed.filter_map(|of| of.get(&host)).collect();
    let evidence = told.iter().find(|reach| !reach.reachable).map(|reach| reach.evidence.as_str());
    let is_stable = |reach: &&Reach| reach.reachable && now.saturating_duration_since(reach.since) >= STABLE;
    let is_down = match was {
        _ if told.is_empty() => was,
        true => !told.iter().any(is_stable),
        false => told.iter().all(|reach| !reach.reachable),
    };
    (is_down, evidence)
}

/// The status that a member has by what is known of its host and its VM; `None`: it keeps the one that it has.
fn status_of(
    member: &StoredMember,
    is_host_down: bool,
    answer: Option<&Answer>,
    has_ports: bool,
) -> Option<MemberStatus> {
    let status = match answer {
        _ if is_host_down => MemberStatus::HostUnreachable,
        Some(Answer { up: true, .. }) if member.status == MemberStatus::Waiting && !has_ports => return None,
        Some(Answer { up: true, .. }) => MemberStatus::Up,
        Some(Answer { up: false, .. }) => MemberStatus::VmSilent,
        None => return None,
    };
    // A member that never was up is not down: it still starts.
    let starts = member.status == MemberStatus::Waiting && status.is_down();
    (status != member.status && !starts).then_some(status)
}

#[derive(Debug, Default)]
struct Inner {
    hosts: BTreeMap<HostId, BTreeMap<InstanceId, Answer>>,
    gateways: BTreeMap<GatewayId, Reached>,
    /// Hosts that are down.
    down: BTreeMap<HostId, String>,
    /// Hosts whose members are to be judged.
    due: BTreeSet<HostId>,
}

impl Inner {
    /// Replaces the report of a gateway. Hosts that it still reaches have been reached since the earlier report.
    fn put_gateway(&mut self, gateway: GatewayId, states: Vec<HostState>, now: Instant) {
        let old = self.gateways.remove(&gateway).unwrap_or_default();
        let reach = |HostState { host, reachable, evidence }: HostState| {
            let before = old.get(&host).filter(|before| before.reachable == reachable);
            (host, Reach { reachable, since: before.map_or(now, |before| before.since), evidence })
        };
        self.gateways.insert(gateway, states.into_iter().map(reach).collect());
    }

    /// Judges a host. Returns whether a later look may find it up although nothing is reported.
    fn judge(&mut self, host: HostId, vtep: IpAddr, now: Instant) -> bool {
        let all: Vec<&Reached> = self.gateways.values().collect();
        let was = self.down.contains_key(&host);
        let (is_down, evidence) = is_down(&all, vtep, was, now);
        let returns = is_down && all.iter().any(|of| of.get(&vtep).is_some_and(|reach| reach.reachable));
        let evidence = evidence.unwrap_or_default().to_owned();
        if !is_down {
            self.down.remove(&host);
        } else if !was {
            self.down.insert(host, evidence);
        }
        returns
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
        let answer = |MemberState { instance, up, evidence }| (instance, Answer { up, evidence });
        {
            let mut inner = self.lock();
            inner.hosts.insert(host, states.into_iter().map(answer).collect());
            inner.due.insert(host);
        }
        self.changed.notify_one();
    }

    /// The report of a gateway, which replaces its earlier one. `hosts` are the hosts by VTEP.
    pub fn put_hosts(&self, gateway: GatewayId, states: Vec<HostState>, hosts: &BTreeMap<IpAddr, HostId>) {
        {
            let mut inner = self.lock();
            inner.due.extend(states.iter().filter_map(|state| hosts.get(&state.host)));
            inner.put_gateway(gateway, states, Instant::now());
        }
        self.changed.notify_one();
    }

    /// A node's stream has ended: what it said counts no more.
    pub fn forget(&self, node: NodeId) {
        let mut inner = self.lock();
        match node {
            NodeId::Host(host) => drop(inner.hosts.remove(&host)),
            NodeId::Gateway(gateway) => {
                inner.gateways.remove(&gateway);
                let down: Vec<HostId> = inner.down.keys().copied().collect();
                inner.due.extend(down);
                self.changed.notify_one();
            }
        }
    }
}

/// Judges members when something is reported, until the future is dropped.
pub async fn judge_members(push: Arc<Push>) {
    loop {
        let due = std::mem::take(&mut push.services.lock().due);
        let pause = match judge(&push, &due).await {
            Ok(again) if again.is_empty() => None,
            Ok(again) => {
                push.services.lock().due.extend(again);
                Some(LOOK)
            }
            Err(error) => {
                push.db.count_error();
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot store the status of a member"
                );
                push.services.lock().due.extend(due);
                Some(RETRY)
            }
        };
        match pause {
            Some(pause) => tokio::time::sleep(pause).await,
            // A notification in between is kept.
            None => push.services.changed.notified().await,
        }
    }
}

/// Judges the members on these hosts, and stores what has changed. Returns the hosts that must be looked at again soon.
async fn judge(push: &Push, due: &BTreeSet<HostId>) -> Result<BTreeSet<HostId>, StoreError> {
    if due.is_empty() {
        return Ok(BTreeSet::new());
    }
    let hosts: Vec<HostId> = due.iter().copied().collect();
    let members = push.db.store.members_on_hosts(&hosts).await?;
    let vteps = push.members(|members| members.vteps_of(&hosts));
    let (mut again, mut reports) = (BTreeSet::new(), Vec::new());
    let now = Instant::now();
    push.hub.with_acked(|acked| {
        let mut inner = push.services.lock();
        for (host, vtep) in &vteps {
            let has_members = members.iter().any(|member| member.host == *host);
            if inner.judge(*host, *vtep, now) && has_members {
                again.insert(*host);
            }
        }
        for member in &members {
            let has_ports = acked(NodeId::Host(member.host)) >= member.revision;
            let answer = inner.hosts.get(&member.host).and_then(|answers| answers.get(&member.instance));
            let down = inner.down.get(&member.host);
            if let Some(status) = status_of(member, down.is_some(), answer, has_ports) {
                let evidence = down.or(answer.map(|answer| &answer.evidence)).cloned().unwrap_or_default();
                reports.push(MemberReport { member: member.id, status, evidence });
            } else if member.status == MemberStatus::Waiting && answer.is_some_and(|answer| answer.up) {
                again.insert(member.host);
            }
        }
    });
    if reports.is_empty() {
        return Ok(again);
    }
    let changed = push.db.store.set_member_states(&reports).await?;
    push.db.notify_commit();
    for member in changed {
        let StoredMember { service, name, status, evidence, .. } = member;
        count(&push.counters.member_changes);
        tracing::info!(%service, name, %status, evidence, "a member of a service has another status");
    }
    Ok(again)
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

    fn reached(states: &[(u8, bool)], since: Instant) -> Reached {
        let mut inner = Inner::default();
        inner.put_gateway(GatewayId::new(1), report(states), since);
        inner.gateways.remove(&GatewayId::new(1)).unwrap()
    }

    fn down(all: &[&[(u8, bool)]], was: bool) -> bool {
        let start = Instant::now();
        let now = start + STABLE;
        let all: Vec<Reached> = all.iter().map(|states| reached(states, start)).collect();
        is_down(&all.iter().collect::<Vec<_>>(), vtep(1), was, now).0
    }

    /// Catches a host that one gateway alone takes out, and one that stays although no gateway reaches it.
    #[test]
    fn a_host_is_down_when_no_gateway_reaches_it() {
        assert!(down(&[&[(1, false)]], false));
        assert!(down(&[&[(1, false), (2, true)], &[(1, false), (2, true)]], false));
        assert!(!down(&[&[(1, false), (2, true)], &[(1, true), (2, true)]], false));
        assert!(!down(&[], false) && down(&[], true), "nothing is known");
        assert!(!down(&[&[(2, false)]], false), "nothing is known of this host");
    }

    /// Catches a gateway without a link that takes all hosts out.
    #[test]
    fn a_gateway_that_reaches_no_host_is_not_believed() {
        let cut_off: &[(u8, bool)] = &[(1, false), (2, false)];
        assert!(!down(&[cut_off, &[(2, true)]], false), "only it says something of the host");
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
            inner.put_gateway(gateway, report(states), start + at);
            let again = inner.judge(host, vtep(1), start + at);
            (inner.down.get(&host).cloned(), again)
        };
        let ms = Duration::from_millis;
        let evidence = Some("0 of 5 from 1".to_owned());
        assert_eq!(judge(&[(1, false)], ms(0)), (evidence.clone(), false));
        assert_eq!(judge(&[(1, true)], ms(100)), (evidence.clone(), true));
        assert_eq!(judge(&[(1, true)], ms(1099)), (evidence.clone(), true));
        assert_eq!(judge(&[(1, false)], ms(1100)), (evidence.clone(), false));
        assert_eq!(judge(&[(1, true)], ms(1200)), (evidence, true));
        assert_eq!(judge(&[(1, true)], ms(2200)), (None, false));
    }

    /// Catches a member that gets flows before its host has its ports, and one that is up on a host that is down.
    #[test]
    fn the_status_of_a_member_follows_from_its_host_and_its_vm() {
        use MemberStatus::{HostUnreachable, Up, VmSilent, Waiting};
        let member = |status| StoredMember {
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
        };
        let answer = |up| Answer { up, evidence: String::new() };
        let (yes, no) = (answer(true), answer(false));
        for (before, is_down, answer, has_ports, after) in [
            (Waiting, false, Some(&yes), false, None),
            (Waiting, false, Some(&yes), true, Some(Up)),
            (Waiting, false, Some(&no), true, None),
            (Waiting, true, Some(&yes), true, None),
            (Up, false, Some(&yes), false, None),
            (Up, false, Some(&no), true, Some(VmSilent)),
            (Up, false, None, true, None),
            (Up, true, Some(&yes), true, Some(HostUnreachable)),
            (VmSilent, true, None, true, Some(HostUnreachable)),
            (VmSilent, false, Some(&yes), true, Some(Up)),
            (HostUnreachable, false, None, true, None),
            (HostUnreachable, false, Some(&no), true, Some(VmSilent)),
            (HostUnreachable, false, Some(&yes), false, Some(Up)),
        ] {
            let found = status_of(&member(before), is_down, answer, has_ports);
            assert_eq!(found, after, "{before} {is_down} {answer:?} {has_ports}");
        }
    }
}
