//! The invariants of the simulation, and the times within which they must hold.

use crate::scenario::Class;
use crate::world::{World, id};
use sluice_cluster::{AnnounceReason, Controller, Health, VipId};

/// Interval between two checks.
const CHECK_INTERVAL_US: u64 = 500;
/// Time from the last fault until each vIP has a live owner that the switches know, if there was no false
/// alarm before: `docs/decisions/takeover.md`.
pub const TAKEOVER_US: u64 = 15_000;
/// As above, if a gateway is isolated: it must query other nodes first, and then report itself isolated.
pub const ISOLATED_TAKEOVER_US: u64 = 20_000;
/// As above, after false alarms.
pub const SLOW_TAKEOVER_US: u64 = 300_000;
/// Time from the last fault until no vIP moves any more.
pub const QUIET_US: u64 = 700_000;
/// Time at the end of the simulation in which nothing changes.
const UNCHANGED_US: u64 = 40_000;
/// Largest number of announcements of one vIP after the faults. Each change of the owner makes at most six.
const ANNOUNCED_MAX: usize = 40;

#[derive(Debug, Default)]
pub struct Summary {
    pub events: u64,
    pub messages: u64,
    pub bytes_max: usize,
    /// Times from a crash until all switches know live owners.
    pub takeovers_us: Vec<u64>,
    pub announced_max: usize,
}

impl Summary {
    /// Adds the summary of another run.
    pub fn add(&mut self, other: Self) {
        self.events += other.events;
        self.messages += other.messages;
        self.bytes_max = self.bytes_max.max(other.bytes_max);
        self.takeovers_us.extend(other.takeovers_us);
        self.announced_max = self.announced_max.max(other.announced_max);
    }
}

/// Runs a seed. The error says which invariant was broken.
pub fn run(seed: u64, traced: bool) -> (World, Result<Summary, String>) {
    let mut world = World::new(seed, traced);
    let end_us = world.scenario.end_us + QUIET_US;
    let mut uncovered_us = None;
    let mut summary = Summary::default();
    let mut at_us = 0;
    let mut epochs = vec![(0, u64::MAX); world.scenario.vips];
    while at_us < end_us {
        at_us += CHECK_INTERVAL_US;
        world.run_until(at_us);
        let checked = check(&world, &mut uncovered_us, &mut summary, &mut epochs)
            .and_then(|()| if at_us + UNCHANGED_US > end_us { check_agreement(&world) } else { Ok(()) });
        if let Err(broken) = checked {
            return (world, Err(broken));
        }
    }
    let checked = check_end(&world, &mut summary);
    (world, checked.map(|()| summary))
}

/// Groups the live nodes into sides whose nodes all reach each other. Returns `None` if the links do not form
/// such sides.
fn sides(world: &World) -> Option<Vec<Vec<usize>>> {
    let gateways = world.scenario.gateways;
    let runs = |node: usize| match world.gateways.get(node) {
        Some(it) => it.machine.is_some() && it.paused.is_none() && !it.no_receive && !it.no_send,
        None => node > gateways || world.controller.machine.is_some(),
    };
    let nodes: Vec<usize> = (0..gateways + 3).filter(|node| runs(*node)).collect();
    let mut sides: Vec<Vec<usize>> = Vec::new();
    for &node in &nodes {
        let reached: Vec<usize> = nodes
            .iter()
            .copied()
            .filter(|&other| other == node || (world.up[node][other] && world.up[other][node]))
            .collect();
        let one_way = nodes.iter().any(|&other| world.up[node][other] != world.up[other][node]);
        if one_way {
            return None;
        }
        match sides.iter().find(|side| side.contains(&node)) {
            Some(side) if *side == reached => {}
            Some(_) => return None,
            None => sides.push(reached),
        }
    }
    Some(sides)
}

fn answers(world: &World, gateway: usize, vip: VipId) -> bool {
    world.holds(gateway).contains(vip)
}

/// Finds a vIP that some hosts cannot reach: no live gateway answers for it, or a switch does not know a live
/// one.
fn find_unreachable_vip(world: &World) -> Option<String> {
    let gateways = world.scenario.gateways;
    let observers = world.scenario.observers();
    let Some(sides) = sides(world) else {
        // Links fail in one direction: a gateway that hosts reach must answer for the vIP.
        let live = |&at: &usize| {
            let node = &world.gateways[at];
            let linked = observers.iter().any(|&o| world.up[at][o] && world.up[o][at]);
            node.machine.is_some() && node.paused.is_none() && linked && world.is_member(at)
        };
        let live: Vec<usize> = (0..gateways).filter(live).collect();
        let lost = world.vips().find(|&vip| !live.iter().any(|&at| answers(world, at, vip)));
        return lost.filter(|_| !live.is_empty()).map(|vip| format!("no gateway answers for {vip:?}"));
    };
    for (number, observer) in observers.into_iter().enumerate() {
        let side = sides.iter().find(|side| side.contains(&observer)).expect("each observer is on a side");
        let live: Vec<usize> =
            side.iter().copied().filter(|&node| node < gateways && world.is_member(node)).collect();
        if live.is_empty() {
            continue;
        }
        let live = world.with_best_tables(&live);
        for vip in world.vips() {
            if !live.iter().any(|&at| answers(world, at, vip)) {
                return Some(format!("no gateway of {live:?} answers for {vip:?} to observer {number}"));
            }
            let known = world.switches[number][vip.get() as usize];
            if world.scenario.params.refresh_us > QUIET_US && !known.is_some_and(|at| live.contains(&at)) {
                return Some(format!("observer {number} finds {vip:?} at {known:?}, alive are {live:?}"));
            }
        }
    }
    None
}

/// Longest permitted time from the last fault until all vIPs are reachable.
fn bound_us(world: &World) -> u64 {
    let steps_us = world.scenario.params.candidate_step_us * (world.scenario.gateways as u64 - 1);
    match world.scenario.class {
        Class::Loss | Class::Everything => SLOW_TAKEOVER_US,
        _ if world.seen.false_alarms => SLOW_TAKEOVER_US,
        Class::OneWay => ISOLATED_TAKEOVER_US,
        // A removed gateway may have announced a vIP after its successor did, before it learned of its
        // removal. Only a repetition corrects that. It forwards in the meantime, but the check does not count
        // it.
        Class::Change => ISOLATED_TAKEOVER_US + steps_us + world.scenario.params.repeat_us * 7,
        // Peers compare revisions for `behind_us`. A gateway that gets its tables may be the only one with them.
        Class::Tables => {
            ISOLATED_TAKEOVER_US
                + steps_us
                + world.scenario.params.behind_us
                + world.scenario.params.silence_us
        }
        // The gateways of the other side fall silent one after the other.
        Class::Split => TAKEOVER_US + steps_us,
        // A gateway without copies waits longer. The others may know later than it does that an owner is dead.
        Class::Copies if world.lacked_copies() => {
            TAKEOVER_US + steps_us + world.scenario.params.lacking_copies_us
        }
        // Candidates that do not know of a move yet calculate with other loads, and a vIP whose owner has
        // just changed is not taken over for one silence limit.
        _ if world.now_us - world.seen.last_move_us < 3 * TAKEOVER_US => {
            TAKEOVER_US + steps_us + world.scenario.params.silence_us
        }
        _ => TAKEOVER_US,
    }
}

fn check(
    world: &World,
    uncovered_us: &mut Option<u64>,
    summary: &mut Summary,
    epochs: &mut [(u64, u64)],
) -> Result<(), String> {
    if let Some(broken) = world.seen.broken.first() {
        return Err(broken.clone());
    }
    for (place, (epoch, _)) in epochs.iter_mut().enumerate() {
        let vip = VipId::new(place as u8).map_err(|error| error.to_string())?;
        let tables = world.gateways.iter().filter_map(|node| Some(node.machine.as_ref()?.table()));
        let highest = tables.filter_map(|table| Some(table.get(vip)?.epoch)).max().unwrap_or(0);
        // Owners must not alternate.
        if highest > 60 {
            return Err(format!("{vip:?} changed its owner {highest} times"));
        }
        *epoch = highest.max(*epoch);
    }
    let start_us = world.scenario.start_us;
    // A new cluster waits for its controller first.
    if epochs.iter().all(|(epoch, _)| *epoch > 0) {
        epochs.iter_mut().for_each(|(_, since_us)| *since_us = world.now_us.min(*since_us));
    }
    let settled_us = epochs.iter().map(|(_, since_us)| *since_us).max().unwrap_or_default();
    let Some(lost) = find_unreachable_vip(world) else {
        if let Some(since_us) = uncovered_us.take()
            && world.scenario.class == Class::Crash
            && since_us > start_us
        {
            summary.takeovers_us.push(world.now_us - since_us);
        }
        return Ok(());
    };
    let since_us = *uncovered_us.get_or_insert(world.now_us);
    let calm_us = world.seen.last_fault_us.max(start_us).max(settled_us).saturating_add(bound_us(world));
    if since_us > calm_us && since_us == world.now_us {
        return Err(format!("{lost}, although there was no fault"));
    }
    let due_us = since_us.max(world.seen.last_fault_us).max(settled_us).saturating_add(bound_us(world));
    if world.now_us > due_us && world.now_us > start_us {
        return Err(format!("{lost}, for {} us", world.now_us - since_us));
    }
    Ok(())
}

/// Checks that all nodes agree, and each vIP has exactly one owner that all switches know.
fn check_agreement(world: &World) -> Result<(), String> {
    let lives = |at: &usize| world.gateways[*at].machine.is_some();
    let stray = (0..world.scenario.gateways)
        .find(|&at| lives(&at) && !world.is_member(at) && !world.holds(at).is_empty());
    if let Some(at) = stray {
        return Err(format!("gateway {at} is not a member and answers for {:?} at the end", world.holds(at)));
    }
    let live: Vec<usize> =
        (0..world.scenario.gateways).filter(|at| lives(at) && world.is_member(*at)).collect();
    let machines: Vec<_> = live.iter().filter_map(|&at| world.gateways[at].machine.as_ref()).collect();
    let Some(first) = machines.first() else { return Ok(()) };
    if let Some((at, _)) = live.iter().zip(&machines).find(|(_, machine)| machine.table() != first.table()) {
        return Err(format!("gateways {} and {at} disagree at the end", live[0]));
    }
    if world.controller.machine.as_ref().is_some_and(|it| it.table() != first.table()) {
        return Err("the controller disagrees at the end".to_owned());
    }
    if let Some((at, machine)) =
        live.iter().zip(&machines).find(|(_, machine)| machine.health() != Health::Ready)
    {
        return Err(format!("gateway {at} is {:?} at the end", machine.health()));
    }
    for vip in world.vips() {
        let holders: Vec<usize> = live.iter().copied().filter(|&at| answers(world, at, vip)).collect();
        let Some(claim) = first.table().get(vip) else {
            // Only the controller can make the first assignment.
            if world.controller.machine.is_none() {
                continue;
            }
            return Err(format!("{vip:?} was never assigned"));
        };
        if holders.len() != 1 || id(holders[0]) != claim.owner {
            return Err(format!("{vip:?} is answered for by {holders:?} at the end, {claim:?}"));
        }
        for (observer, switch) in world.switches.iter().enumerate() {
            let known = switch[vip.get() as usize];
            if known != Some(holders[0]) {
                return Err(format!("observer {observer} finds {vip:?} at {known:?}, not at {holders:?}"));
            }
        }
    }
    Ok(())
}

fn check_end(world: &World, summary: &mut Summary) -> Result<(), String> {
    let scenario = &world.scenario;
    summary.events = world.seen.events;
    summary.messages = world.seen.messages;
    summary.bytes_max = world.seen.bytes_max;
    let late = world.seen.announced.iter().find(|(at_us, ..)| at_us + UNCHANGED_US > world.now_us);
    if let Some((at_us, gateway, vip, reason)) = late {
        return Err(format!("gateway {gateway} still announces {vip:?} at {at_us}: {reason:?}"));
    }
    for vip in world.vips() {
        let after = |(at_us, _, which, _): &&(u64, usize, VipId, AnnounceReason)| {
            *at_us > scenario.end_us && *which == vip
        };
        let count = world.seen.announced.iter().filter(after).count();
        summary.announced_max = summary.announced_max.max(count);
        if count > ANNOUNCED_MAX {
            return Err(format!("{vip:?} was announced {count} times after the faults"));
        }
    }
    let interval_us = scenario.params.return_interval_us;
    for pair in world.controller.returns_us.windows(2) {
        if pair[1] - pair[0] < interval_us {
            return Err(format!("two vIPs were returned within {} us", pair[1] - pair[0]));
        }
    }
    let Some(controller) = &world.controller.machine else { return Ok(()) };
    check_preferred_owners(world, controller).and_then(|()| check_drained(world, controller))
}

/// Checks that each gateway that is available owns the vIPs that prefer it.
fn check_preferred_owners(world: &World, controller: &Controller) -> Result<(), String> {
    let live: Vec<usize> = (0..world.scenario.gateways)
        .filter(|&at| world.gateways[at].machine.is_some() && world.is_member(at))
        .collect();
    let best = world.heirs(&live);
    for (vip, preferred) in &controller.plan().preferred_owners {
        let at = preferred.get() as usize - 1;
        let draining = controller.plan().config.member(*preferred).is_some_and(|member| member.draining);
        // Its owner has the sessions of a vIP; a gateway without copies of them does not get it.
        let available = best.contains(&at) && world.has_copies(at) && !draining;
        if available && controller.table().get(*vip).map(|claim| claim.owner) != Some(*preferred) {
            return Err(format!("{vip:?} is not owned by its preferred owner, gateway {at}"));
        }
    }
    Ok(())
}

/// Checks that draining gateways answer for no vIP if there is another gateway with tables and copies as good as theirs, and that they and the
/// controller have reported it.
fn check_drained(world: &World, controller: &Controller) -> Result<(), String> {
    let is_draining =
        |at: usize| controller.plan().config.member(id(at)).is_some_and(|member| member.draining);
    let lives = |at: &usize| world.gateways[*at].machine.is_some() && world.is_member(*at);
    let live: Vec<usize> = (0..world.scenario.gateways).filter(lives).collect();
    if world.heirs(&live).iter().all(|&at| is_draining(at)) {
        return Ok(());
    }
    for at in live.into_iter().filter(|&at| is_draining(at)) {
        let (holds, reported) = (world.holds(at), world.gateways[at].drained);
        if !holds.is_empty() || !reported || !world.controller.drained.contains(&id(at)) {
            return Err(format!(
                "gateway {at} is draining, answers for {holds:?}, has reported it: {reported}, the controller: {:?}",
                world.controller.drained
            ));
        }
    }
    Ok(())
}
