//! One round of the scheduler, on the reported loads corrected by the moves that were decided so far.

use super::{
    Action, ClusterReport, Decision, DecisionReason, MeasurementTime, Outcome, ReportError, Request,
    Scheduler, Transfer, VipDemand, VipMove, Wait,
};
use sluice_types::{ClusterId, GatewayId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// vIPs that carry less of a gateway than this do not relieve it.
const RELIEF_MIN: f64 = 0.001;

/// A vIP may return to an overloaded gateway that it left when its cluster forwards less than this fraction
/// of its traffic at that time.
const SUBSIDED: f64 = 0.9;

/// Rejects reports that contradict themselves.
pub(super) fn check(clusters: &[ClusterReport]) -> Result<(), ReportError> {
    let (mut ids, mut gateways, mut owners) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    for cluster in clusters {
        if !ids.insert(cluster.id) {
            return Err(ReportError::DuplicateCluster(cluster.id));
        }
        for gateway in &cluster.gateways {
            if !gateways.insert(gateway.id) {
                return Err(ReportError::DuplicateGateway(gateway.id));
            }
            let number = |what, found: f64, ok: bool| {
                if ok { Ok(()) } else { Err(ReportError::Number { gateway: gateway.id, what, found }) }
            };
            let amount = |found: f64| found.is_finite() && found >= 0.0;
            number("a load", gateway.load, amount(gateway.load))?;
            number("a rate", gateway.pps, amount(gateway.pps))?;
            let capacity = gateway.capacity_pps;
            number("a capacity", capacity, amount(capacity) && capacity > 0.0)?;
            for pair in &gateway.pairs {
                number("a demand", pair.demand_pps, amount(pair.demand_pps))?;
                if let Some(one) = owners.insert(pair.vip, gateway.id) {
                    return Err(ReportError::TwoOwners { vip: pair.vip, one, other: gateway.id });
                }
            }
        }
    }
    Ok(())
}

/// A gateway, with the load that results from the decisions so far.
struct Node {
    id: GatewayId,
    /// Index of its cluster.
    cluster: usize,
    capacity_pps: f64,
    load: f64,
    pps: f64,
    pairs: Vec<VipDemand>,
    /// The gateway must give up its vIPs: it is drained, or released to another cluster.
    leaving: bool,
}

impl Node {
    fn part(&self, pair: &VipDemand) -> f64 {
        pair.demand_pps / self.capacity_pps
    }

    /// The packets per second of a vIP: the same fraction of the gateway's packets as of its load.
    fn pps_of(&self, pair: &VipDemand) -> f64 {
        let part = if self.load > 0.0 { self.part(pair) / self.load } else { 0.0 };
        self.pps * part.min(1.0)
    }

    fn with(&self, pair: &VipDemand) -> f64 {
        self.load + self.part(pair)
    }

    fn without(&self, pair: &VipDemand) -> f64 {
        (self.load - self.part(pair)).max(0.0)
    }
}

/// A round in progress. Clusters and gateways are identified by their index in the reports.
pub(super) struct Engine<'a> {
    scheduler: &'a mut Scheduler,
    now_ms: u64,
    clusters: Vec<ClusterId>,
    nodes: Vec<Node>,
    outcome: Outcome,
    /// Overloaded gateways that no other gateway of their cluster can relieve.
    stuck: Vec<usize>,
}

impl<'a> Engine<'a> {
    pub fn new(scheduler: &'a mut Scheduler, now_ms: u64, reports: &[ClusterReport]) -> Self {
        let interval_ms = scheduler.settings.interval_ms;
        scheduler.recent_ms.retain(|at_ms| now_ms.saturating_sub(*at_ms) < interval_ms);
        let mut nodes: Vec<Node> = Vec::new();
        for (cluster, report) in reports.iter().enumerate() {
            nodes.extend(report.gateways.iter().map(|gateway| Node {
                id: gateway.id,
                cluster,
                capacity_pps: gateway.capacity_pps,
                load: gateway.load,
                pps: gateway.pps,
                pairs: gateway.pairs.clone(),
                leaving: gateway.draining,
            }));
        }
        let gateways = reports.iter().flat_map(|report| &report.gateways);
        let measured = gateways.map(|gateway| (gateway.id, gateway.measured)).collect();
        let mut engine = Self {
            scheduler,
            now_ms,
            clusters: reports.iter().map(|report| report.id).collect(),
            nodes,
            outcome: Outcome::default(),
            stuck: Vec::new(),
        };
        engine.correct_for_moves(&measured);
        engine.expire_overload_exits();
        engine.update_overloaded();
        engine
    }

    pub fn run(mut self) -> Outcome {
        self.update_transfers();
        self.relieve();
        self.expand();
        self.reassign_emptied();
        self.share();
        self.outcome
    }

    /// Corrects loads that were measured before moves, and forgets moves that no longer matter or were not
    /// made.
    fn correct_for_moves(&mut self, measured: &BTreeMap<GatewayId, MeasurementTime>) {
        let owner: BTreeMap<IpAddr, GatewayId> =
            self.nodes.iter().flat_map(|node| node.pairs.iter().map(|pair| (pair.vip, node.id))).collect();
        let (now_ms, hold_down_ms) = (self.now_ms, self.scheduler.settings.hold_down_ms);
        let stale = |id: &GatewayId, moved: &VipMove| measured.get(id).map_or(0.0, |it| moved.before(it));
        self.scheduler.moved.retain(|vip, moved| {
            let made = owner.get(vip) == Some(&moved.to);
            let held = now_ms.saturating_sub(moved.at_ms) < hold_down_ms;
            made && (held || stale(&moved.from, moved) > 0.0 || stale(&moved.to, moved) > 0.0)
        });
        for moved in self.scheduler.moved.values() {
            for node in &mut self.nodes {
                let sign = f64::from(node.id == moved.to) - f64::from(node.id == moved.from);
                let part = sign * stale(&node.id, moved);
                node.load = (node.load + part * moved.demand_pps / node.capacity_pps).max(0.0);
                node.pps = (node.pps + part * moved.pps).max(0.0);
            }
        }
    }

    /// Forgets that vIPs left gateways which were deleted, or whose cluster forwards much less now.
    fn expire_overload_exits(&mut self) {
        let traffic: Vec<f64> = (0..self.clusters.len()).map(|cluster| self.traffic(cluster)).collect();
        let now: BTreeMap<GatewayId, f64> =
            self.nodes.iter().map(|node| (node.id, traffic[node.cluster])).collect();
        self.scheduler.left_overloaded.retain(|_, gateways| {
            gateways.retain(|id, then| now.get(id).is_some_and(|now| *now >= *then * SUBSIDED));
            !gateways.is_empty()
        });
    }

    /// Traffic of a cluster in packets per second.
    fn traffic(&self, cluster: usize) -> f64 {
        self.of(cluster).map(|node| self.nodes[node].pps).sum()
    }

    /// Updates which gateways are overloaded, with hysteresis.
    fn update_overloaded(&mut self) {
        let known: BTreeSet<GatewayId> = self.nodes.iter().map(|node| node.id).collect();
        self.scheduler.overloaded.retain(|id| known.contains(id));
        for node in &self.nodes {
            if node.load > self.scheduler.settings.overload_threshold {
                self.scheduler.overloaded.insert(node.id);
            } else if node.load <= self.scheduler.settings.relief_threshold {
                self.scheduler.overloaded.remove(&node.id);
            }
        }
    }

    fn is_overloaded(&self, node: usize) -> bool {
        self.scheduler.overloaded.contains(&self.nodes[node].id)
    }

    fn overloaded_of(&self, cluster: usize) -> Option<usize> {
        self.of(cluster).find(|node| self.is_overloaded(*node))
    }

    fn of(&self, cluster: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(move |node| self.nodes[*node].cluster == cluster)
    }

    /// Mean load of gateways, weighted by capacity.
    fn mean(&self, nodes: impl Iterator<Item = usize>) -> f64 {
        let sums = nodes.map(|node| &self.nodes[node]).fold((0.0, 0.0), |(load, capacity), node| {
            (load + node.load * node.capacity_pps, capacity + node.capacity_pps)
        });
        if sums.1 > 0.0 { sums.0 / sums.1 } else { 0.0 }
    }

    fn decide(&mut self, action: Action, reason: DecisionReason) {
        self.outcome.decisions.push(Decision { action, reason });
    }

    fn may_move(&self) -> bool {
        self.scheduler.recent_ms.len() < self.scheduler.settings.moves_per_interval
    }

    fn held(&self, pair: &VipDemand) -> bool {
        self.scheduler.moved.get(&pair.vip).is_some_and(|moved| {
            self.now_ms.saturating_sub(moved.at_ms) < self.scheduler.settings.hold_down_ms
        })
    }

    /// Whether a vIP left a gateway because of an overload that still lasts.
    fn left_overloaded(&self, pair: &VipDemand, gateway: GatewayId) -> bool {
        self.scheduler.left_overloaded.get(&pair.vip).is_some_and(|gateways| gateways.contains_key(&gateway))
    }

    fn move_pair(&mut self, from: usize, to: usize, pair: VipDemand, reason: DecisionReason) {
        let (source, target) = (self.nodes[from].id, self.nodes[to].id);
        let cluster = self.clusters[self.nodes[from].cluster];
        if matches!(reason, DecisionReason::Overloaded { .. }) {
            let traffic = self.traffic(self.nodes[from].cluster);
            self.scheduler.left_overloaded.entry(pair.vip).or_default().insert(source, traffic);
        }
        let pps = self.nodes[from].pps_of(&pair);
        self.nodes[from].pps -= pps;
        self.nodes[to].pps += pps;
        self.nodes[from].load = self.nodes[from].without(&pair);
        self.nodes[to].load = self.nodes[to].with(&pair);
        self.nodes[from].pairs.retain(|other| other.vip != pair.vip);
        self.nodes[to].pairs.push(pair);
        self.scheduler.recent_ms.push_back(self.now_ms);
        let moved =
            VipMove { at_ms: self.now_ms, from: source, to: target, demand_pps: pair.demand_pps, pps };
        self.scheduler.moved.insert(pair.vip, moved);
        if self.nodes[from].load <= self.scheduler.settings.relief_threshold {
            self.scheduler.overloaded.remove(&source);
        }
        self.decide(Action::MoveVip { vip: pair.vip, cluster, from: source, to: target }, reason);
    }

    /// Step 1: relieves overloaded gateways, the most loaded first, then those that must give up their vIPs.
    fn relieve(&mut self) {
        let mut open: Vec<usize> = (0..self.nodes.len()).collect();
        loop {
            open.retain(|node| {
                self.is_overloaded(*node)
                    || (self.nodes[*node].leaving && !self.nodes[*node].pairs.is_empty())
            });
            let next = open.iter().copied().min_by(|a, b| {
                let load = |node: usize| self.nodes[node].load;
                self.is_overloaded(*b)
                    .cmp(&self.is_overloaded(*a))
                    .then(load(*b).total_cmp(&load(*a)))
                    .then(self.nodes[*a].id.cmp(&self.nodes[*b].id))
            });
            let Some(node) = next else { return };
            let found = self.best_pair(node, false);
            let Some((pair, to)) = found else {
                self.record_wait(node);
                open.retain(|other| *other != node);
                continue;
            };
            if self.may_move() {
                let reason = self.relief_reason(node, to, &pair);
                self.move_pair(node, to, pair, reason);
            } else {
                let moves_per_interval = self.scheduler.settings.moves_per_interval;
                let gateway = self.nodes[node].id;
                self.outcome.waits.push(Wait::Limit { gateway, moves_per_interval });
                open.retain(|other| *other != node);
            }
        }
    }

    fn relief_reason(&self, node: usize, to: usize, pair: &VipDemand) -> DecisionReason {
        let (from, receiver) = (&self.nodes[node], &self.nodes[to]);
        if from.leaving {
            let receiver_after = receiver.with(pair);
            return DecisionReason::Draining {
                left: from.pairs.len(),
                receiver: receiver.load,
                receiver_after,
            };
        }
        DecisionReason::Overloaded {
            load: from.load,
            threshold: self.scheduler.settings.relief_threshold,
            after: from.without(pair),
            receiver: receiver.load,
            receiver_after: receiver.with(pair),
        }
    }

    /// The vIP that should leave a gateway, and its new owner: the smallest vIP that is enough, otherwise the
    /// largest that a gateway can take. With `held`, vIPs in hold-down are considered too.
    fn best_pair(&self, from: usize, held: bool) -> Option<(VipDemand, usize)> {
        let node = &self.nodes[from];
        let mut best: Option<(bool, f64, VipDemand, usize)> = None;
        for pair in &node.pairs {
            if (!held && self.held(pair)) || (!node.leaving && node.part(pair) < RELIEF_MIN) {
                continue;
            }
            let Some(to) = self.receiver(from, pair) else { continue };
            let short = node.leaving || node.without(pair) > self.scheduler.settings.relief_threshold;
            let size = if short { -pair.demand_pps } else { pair.demand_pps };
            let better =
                best.as_ref().is_none_or(|best| (short, size, pair.vip) < (best.0, best.1, best.2.vip));
            if better {
                best = Some((short, size, *pair, to));
            }
        }
        best.map(|(_, _, pair, to)| (pair, to))
    }

    /// The gateway of the cluster that is least loaded with the vIP, if that load is within
    /// `accept_threshold`.
    fn receiver(&self, from: usize, pair: &VipDemand) -> Option<usize> {
        self.of(self.nodes[from].cluster)
            .filter(|to| *to != from && !self.nodes[*to].leaving && !self.is_overloaded(*to))
            .filter(|to| self.nodes[*to].with(pair) <= self.scheduler.settings.accept_threshold)
            .min_by(|a, b| {
                let after = |node: usize| self.nodes[node].with(pair);
                after(*a).total_cmp(&after(*b)).then(self.nodes[*a].id.cmp(&self.nodes[*b].id))
            })
    }

    /// Records why a gateway keeps its vIPs, and whether step 2 could help.
    fn record_wait(&mut self, node: usize) {
        let (gateway, load) = (self.nodes[node].id, self.nodes[node].load);
        let fits_empty = |pair: &VipDemand| {
            let part = self.nodes[node].part(pair);
            (RELIEF_MIN..=self.scheduler.settings.accept_threshold).contains(&part)
        };
        let wait = if self.best_pair(node, true).is_some() {
            Wait::Held { gateway }
        } else if self.nodes[node].leaving {
            Wait::NoReceiver { gateway }
        } else if self.nodes[node].pairs.iter().any(fits_empty) {
            // Step 2 records the result.
            self.stuck.push(node);
            return;
        } else {
            Wait::Indivisible { gateway, load }
        };
        self.outcome.waits.push(wait);
    }

    /// Handles gateways that move to other clusters: they arrived, are lost, are needed by their own cluster,
    /// or still have vIPs.
    fn update_transfers(&mut self) {
        for (gateway, transfer) in self.scheduler.transfers.clone() {
            let node = (0..self.nodes.len()).find(|node| self.nodes[*node].id == gateway);
            let cluster = node.map(|node| self.clusters[self.nodes[node].cluster]);
            let late =
                self.now_ms.saturating_sub(transfer.since_ms) >= self.scheduler.settings.expansion_wait_ms;
            if cluster == Some(transfer.to) {
                self.scheduler.transfers.remove(&gateway);
                continue;
            }
            // A gateway that joins sends no reports until it has its tables.
            let lost = cluster.is_none() && !transfer.sent;
            let needed = node
                .filter(|_| !transfer.sent)
                .and_then(|node| self.overloaded_of(self.nodes[node].cluster))
                .map(|by| (self.nodes[by].id, self.nodes[by].load));
            let reason = match needed {
                _ if lost || late => Some(DecisionReason::Lost),
                Some((gateway, load)) => Some(DecisionReason::NeededByOwnCluster { gateway, load }),
                None => None,
            };
            if let Some(reason) = reason {
                self.scheduler.transfers.remove(&gateway);
                self.decide(Action::KeepGateway { gateway, cluster: transfer.from }, reason);
            } else if let Some(node) = node {
                self.nodes[node].leaving = true;
            }
        }
        let sizes: BTreeMap<ClusterId, usize> = (0..self.clusters.len())
            .map(|cluster| (self.clusters[cluster], self.of(cluster).count()))
            .collect();
        let overloaded: BTreeSet<ClusterId> = (0..self.nodes.len())
            .filter(|node| self.is_overloaded(*node))
            .map(|node| self.clusters[self.nodes[node].cluster])
            .collect();
        self.scheduler.requests.retain(|cluster, request| {
            overloaded.contains(cluster) && sizes.get(cluster).is_some_and(|size| *size <= request.gateways)
        });
        let (now_ms, wait_ms) = (self.now_ms, self.scheduler.settings.expansion_wait_ms);
        self.scheduler.refused.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < wait_ms);
    }

    /// Whether the time of waiting since then is over.
    fn is_past(&self, since_ms: u64) -> bool {
        self.now_ms.saturating_sub(since_ms) >= self.scheduler.settings.expansion_wait_ms
    }

    /// Only one gateway moves between clusters at a time, with a pause between two.
    fn may_transfer(&self) -> bool {
        let scheduler = &*self.scheduler;
        let rested = scheduler.transferred_ms.is_none_or(|at_ms| self.is_past(at_ms));
        scheduler.transfers.is_empty() && !scheduler.operator_move && rested
    }

    /// Step 2, for clusters that step 1 could not relieve.
    fn expand(&mut self) {
        for node in std::mem::take(&mut self.stuck) {
            let cluster = self.nodes[node].cluster;
            let (id, gateway, load) = (self.clusters[cluster], self.nodes[node].id, self.nodes[node].load);
            let asked = self.scheduler.requests.get(&id).map(|request| request.since_ms);
            let fresh = asked.is_some_and(|since_ms| !self.is_past(since_ms));
            if fresh || self.scheduler.transfers.values().any(|transfer| transfer.to == id) {
                self.outcome.waits.push(Wait::Expansion { gateway, cluster: id });
                continue;
            }
            let mean = self.mean(self.of(cluster));
            if let Some((donor, given, after)) = self.donor(node) {
                let from = self.clusters[donor];
                if !self.may_transfer() {
                    self.outcome.waits.push(Wait::OneAtATime { gateway, donor: from });
                    continue;
                }
                self.scheduler.requests.remove(&id);
                self.scheduler.transferred_ms = Some(self.now_ms);
                let transfer = Transfer { from, to: id, since_ms: self.now_ms, sent: false };
                self.scheduler.transfers.insert(self.nodes[given].id, transfer);
                self.nodes[given].leaving = true;
                let reason =
                    DecisionReason::ClusterOverloaded { gateway, load, mean, donor: Some((from, after)) };
                self.decide(Action::ReleaseGateway { gateway: self.nodes[given].id, from, to: id }, reason);
            } else if asked.is_some() {
                // The request is already in the event log.
                self.outcome.waits.push(Wait::Expansion { gateway, cluster: id });
            } else {
                let request = Request { since_ms: self.now_ms, gateways: self.of(cluster).count() };
                self.scheduler.requests.insert(id, request);
                let reason = DecisionReason::ClusterOverloaded { gateway, load, mean, donor: None };
                self.decide(Action::RequestGateway { cluster: id }, reason);
            }
        }
    }

    /// The least loaded cluster that can spare a gateway, its least loaded gateway that could take one of the
    /// overloaded gateway's vIPs, and the cluster's mean load afterwards.
    fn donor(&self, overloaded: usize) -> Option<(usize, usize, f64)> {
        let needy = self.nodes[overloaded].cluster;
        let helps = |given: &usize| {
            let part = |pair: &VipDemand| self.nodes[*given].part(pair);
            self.nodes[overloaded].pairs.iter().any(|pair| {
                part(pair) <= self.scheduler.settings.accept_threshold
                    && self.nodes[overloaded].part(pair) >= RELIEF_MIN
            })
        };
        let mut donors: Vec<usize> = (0..self.clusters.len())
            .filter(|cluster| *cluster != needy && self.overloaded_of(*cluster).is_none())
            .filter(|cluster| {
                let id = self.clusters[*cluster];
                !self.scheduler.requests.contains_key(&id)
                    && !self.scheduler.transfers.values().any(|t| t.from == id || t.to == id)
            })
            .collect();
        donors.sort_by(|a, b| {
            let mean = |cluster: usize| self.mean(self.of(cluster));
            mean(*a).total_cmp(&mean(*b)).then(self.clusters[*a].cmp(&self.clusters[*b]))
        });
        donors.into_iter().find_map(|cluster| {
            let staying: Vec<usize> = self.of(cluster).filter(|node| !self.nodes[*node].leaving).collect();
            if staying.len() <= self.scheduler.settings.gateways_min {
                return None;
            }
            let open = |given: &usize| !self.scheduler.refused.contains_key(&self.nodes[*given].id);
            let given = staying.iter().copied().filter(helps).filter(open).min_by(|a, b| {
                let (a, b) = (&self.nodes[*a], &self.nodes[*b]);
                a.load.total_cmp(&b.load).then(a.id.cmp(&b.id))
            })?;
            self.mean_without(given, &staying).map(|after| (cluster, given, after))
        })
    }

    /// Mean load of a cluster's other gateways after one has given them its vIPs; `None` if that would load
    /// one of them too much.
    fn mean_without(&self, given: usize, staying: &[usize]) -> Option<f64> {
        let mut loads: Vec<(f64, f64)> = staying
            .iter()
            .filter(|node| **node != given)
            .map(|node| (self.nodes[*node].load, self.nodes[*node].capacity_pps))
            .collect();
        let mut pairs = self.nodes[given].pairs.clone();
        pairs.sort_by(|a, b| b.demand_pps.total_cmp(&a.demand_pps));
        for pair in pairs {
            let with = |load: &(f64, f64)| load.0 + pair.demand_pps / load.1;
            let least = loads.iter_mut().min_by(|a, b| with(a).total_cmp(&with(b)))?;
            least.0 = with(least);
        }
        if loads.iter().any(|load| load.0 > self.scheduler.settings.accept_threshold) {
            return None;
        }
        let capacity: f64 = loads.iter().map(|load| load.1).sum();
        Some(loads.iter().map(|load| load.0 * load.1).sum::<f64>() / capacity)
    }

    /// Reassigns released gateways that have no vIP left.
    fn reassign_emptied(&mut self) {
        for node in 0..self.nodes.len() {
            let (gateway, now_ms) = (self.nodes[node].id, self.now_ms);
            let empty = self.nodes[node].pairs.is_empty();
            let waiting =
                self.scheduler.transfers.get_mut(&gateway).filter(|transfer| empty && !transfer.sent);
            if let Some(transfer) = waiting {
                (transfer.sent, transfer.since_ms) = (true, now_ms);
                let (from, to) = (transfer.from, transfer.to);
                self.decide(Action::ReassignGateway { gateway, from, to }, DecisionReason::Emptied);
            }
        }
    }

    /// Moves one vIP per cluster and interval, from the gateway with the most vIPs to one that has at least
    /// two fewer.
    fn share(&mut self) {
        let interval_ms = self.scheduler.settings.interval_ms;
        for cluster in 0..self.clusters.len() {
            let last_ms = self.scheduler.shared_ms.get(&self.clusters[cluster]);
            let soon = last_ms.is_some_and(|last| self.now_ms.saturating_sub(*last) < interval_ms);
            if soon || !self.may_move() || self.overloaded_of(cluster).is_some() {
                continue;
            }
            if let Some((from, to, pair)) = self.unequal(cluster) {
                self.scheduler.shared_ms.insert(self.clusters[cluster], self.now_ms);
                let reason = DecisionReason::Share {
                    from: self.nodes[from].pairs.len(),
                    to: self.nodes[to].pairs.len(),
                };
                self.move_pair(from, to, pair, reason);
            }
        }
    }

    /// A vIP whose move makes the numbers of vIPs more equal and the loads not less equal.
    fn unequal(&self, cluster: usize) -> Option<(usize, usize, VipDemand)> {
        let count = |node: usize| self.nodes[node].pairs.len();
        let mut nodes: Vec<usize> = self.of(cluster).filter(|node| !self.nodes[*node].leaving).collect();
        nodes.sort_by_key(|node| (count(*node), self.nodes[*node].id));
        for from in nodes.iter().rev().copied() {
            for to in nodes.iter().copied().filter(|to| count(*to) + 2 <= count(from)) {
                let (source, target) = (&self.nodes[from], &self.nodes[to]);
                let best = source
                    .pairs
                    .iter()
                    .filter(|pair| !self.held(pair) && !self.left_overloaded(pair, target.id))
                    .filter(|pair| target.with(pair) <= self.scheduler.settings.accept_threshold)
                    .map(|pair| {
                        // The change of the sum of the squares of the loads, weighted by capacity.
                        let change = pair.demand_pps
                            * (target.with(pair) - source.load + target.load - source.without(pair));
                        (change, pair)
                    })
                    .filter(|(change, _)| *change <= 0.0)
                    .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.vip.cmp(&b.1.vip)));
                if let Some((_, pair)) = best {
                    return Some((from, to, *pair));
                }
            }
        }
        None
    }
}
