//! What must hold, and when.

use crate::plan::Class;
use crate::world::{World, id};
use sluice_cluster::{Controller, Reason, Standing, VipId};

/// Between two looks at the world.
const LOOK_US: u64 = 500;
/// From the last fault until every vIP has a live owner and switches know it, if nobody was suspected
/// wrongly before: `docs/decisions/takeover.md`.
pub const TAKEOVER_US: u64 = 15_000;
/// The same for a gateway that hears nobody: it must ask first, and then say so.
pub const CUT_OFF_US: u64 = 20_000;
/// The same after false alarms.
pub const SLOW_TAKEOVER_US: u64 = 300_000;
/// From the last fault until nothing moves any more.
pub const QUIET_US: u64 = 700_000;
/// At the end nothing changes for so long.
const STILL_US: u64 = 40_000;
/// Announcements of one vIP after faults end: each change of its owner makes at most six.
const ANNOUNCED_MAX: usize = 40;

#[derive(Debug, Default)]
pub struct Summary {
    pub events: u64,
    pub messages: u64,
    pub bytes_max: usize,
    /// From a crash until all switches know live owners.
    pub takeovers_us: Vec<u64>,
    pub announced_max: usize,
}

/// Runs a seed; what was broken, if anything.
pub fn run(seed: u64, traced: bool) -> (World, Result<Summary, String>) {
    let mut world = World::new(seed, traced);
    let end_us = world.scenario.end_us + QUIET_US;
    let mut uncovered_us = None;
    let mut summary = Summary::default();
    let mut at_us = 0;
    let mut epochs = vec![(0, u64::MAX); world.scenario.vips];
    while at_us < end_us {
        at_us += LOOK_US;
        world.run_until(at_us);
        let looked = look(&world, &mut uncovered_us, &mut summary, &mut epochs)
            .and_then(|()| if at_us + STILL_US > end_us { at_rest(&world) } else { Ok(()) });
        if let Err(broken) = looked {
            return (world, Err(broken));
        }
    }
    let ended = at_the_end(&world, &mut summary);
    (world, ended.map(|()| summary))
}

/// Live nodes by who reaches whom: `None` unless everybody reaches the same as those it reaches, both ways.
fn sides(world: &World) -> Option<Vec<Vec<usize>>> {
    let gateways = world.scenario.gateways;
    let runs = |node: usize| match world.gateways.get(node) {
        Some(it) => it.machine.is_some() && it.paused.is_none() && !it.deaf && !it.mute,
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

/// vIPs that some hosts cannot reach: without a live owner, or with switches that do not know one.
fn uncovered(world: &World) -> Option<String> {
    let gateways = world.scenario.gateways;
    let observers = world.scenario.observers();
    let Some(sides) = sides(world) else {
        // Links that fail in one direction: somebody must answer whom hosts reach.
        let live = |&at: &usize| {
            let node = &world.gateways[at];
            let linked = observers.iter().any(|&o| world.up[at][o] && world.up[o][at]);
            node.machine.is_some() && node.paused.is_none() && linked && world.is_member(at)
        };
        let live: Vec<usize> = (0..gateways).filter(live).collect();
        let lost = world.vips().find(|&vip| !live.iter().any(|&at| answers(world, at, vip)));
        return lost.filter(|_| !live.is_empty()).map(|vip| format!("nobody answers for {vip:?}"));
    };
    for (number, observer) in observers.into_iter().enumerate() {
        let side = sides.iter().find(|side| side.contains(&observer))?;
        let live: Vec<usize> =
            side.iter().copied().filter(|&node| node < gateways && world.is_member(node)).collect();
        if live.is_empty() {
            continue;
        }
        for vip in world.vips() {
            if !live.iter().any(|&at| answers(world, at, vip)) {
                return Some(format!("nobody of {live:?} answers for {vip:?} to observer {number}"));
            }
            let known = world.switches[number][vip.get() as usize];
            if world.scenario.params.refresh_us > QUIET_US && !known.is_some_and(|at| live.contains(&at)) {
                return Some(format!("observer {number} finds {vip:?} at {known:?}, alive are {live:?}"));
            }
        }
    }
    None
}

/// How long after the last fault vIPs may be without.
fn bound_us(world: &World) -> u64 {
    let steps_us = world.scenario.params.step_us * (world.scenario.gateways as u64 - 1);
    match world.scenario.class {
        Class::Loss | Class::Everything => SLOW_TAKEOVER_US,
        _ if world.seen.false_alarms => SLOW_TAKEOVER_US,
        Class::OneWay => CUT_OFF_US,
        // Who was removed may have announced itself after its successor, until it learned of it: only a
        // repetition mends that. It forwards meanwhile; here it counts as gone.
        Class::Change => CUT_OFF_US + steps_us + world.scenario.params.repeat_us * 7,
        // The other side goes silent one by one.
        Class::Split => TAKEOVER_US + steps_us,
        // Candidates that do not know of a move yet count other loads than those who do; and a vIP that
        // changed its owner a moment ago is left alone for one silence limit.
        _ if world.now_us - world.seen.last_move_us < 3 * TAKEOVER_US => {
            TAKEOVER_US + steps_us + world.scenario.params.silence_us
        }
        _ => TAKEOVER_US,
    }
}

fn look(
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
        // Owners change as often as there are reasons for, not in turns.
        if highest > 60 {
            return Err(format!("{vip:?} changed its owner {highest} times"));
        }
        *epoch = highest.max(*epoch);
    }
    let start_us = world.scenario.start_us;
    // A fresh cluster waits for its controller first.
    if epochs.iter().all(|(epoch, _)| *epoch > 0) {
        epochs.iter_mut().for_each(|(_, since_us)| *since_us = world.now_us.min(*since_us));
    }
    let settled_us = epochs.iter().map(|(_, since_us)| *since_us).max().unwrap_or_default();
    let Some(lost) = uncovered(world) else {
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
        return Err(format!("{lost}, without any fault"));
    }
    let due_us = since_us.max(world.seen.last_fault_us).max(settled_us).saturating_add(bound_us(world));
    if world.now_us > due_us && world.now_us > start_us {
        return Err(format!("{lost}, for {} us", world.now_us - since_us));
    }
    Ok(())
}

/// After the quiet: one owner, known to all.
fn at_rest(world: &World) -> Result<(), String> {
    let lives = |at: &usize| world.gateways[*at].machine.is_some();
    let stray = (0..world.scenario.gateways)
        .find(|&at| lives(&at) && !world.is_member(at) && !world.holds(at).is_empty());
    if let Some(at) = stray {
        return Err(format!("gateway {at} is no member and answers for {:?} at the end", world.holds(at)));
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
        live.iter().zip(&machines).find(|(_, machine)| machine.standing() != Standing::Fit)
    {
        return Err(format!("gateway {at} is {:?} at the end", machine.standing()));
    }
    for vip in world.vips() {
        let holders: Vec<usize> = live.iter().copied().filter(|&at| answers(world, at, vip)).collect();
        let Some(claim) = first.table().get(vip) else {
            // Nobody but the controller can begin.
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

fn at_the_end(world: &World, summary: &mut Summary) -> Result<(), String> {
    let scenario = &world.scenario;
    summary.events = world.seen.events;
    summary.messages = world.seen.messages;
    summary.bytes_max = world.seen.bytes_max;
    let late = world.seen.announced.iter().find(|(at_us, ..)| at_us + STILL_US > world.now_us);
    if let Some((at_us, gateway, vip, reason)) = late {
        return Err(format!("gateway {gateway} still announces {vip:?} at {at_us}: {reason:?}"));
    }
    for vip in world.vips() {
        let after =
            |(at_us, _, which, _): &&(u64, usize, VipId, Reason)| *at_us > scenario.end_us && *which == vip;
        let count = world.seen.announced.iter().filter(after).count();
        summary.announced_max = summary.announced_max.max(count);
        if count > ANNOUNCED_MAX {
            return Err(format!("{vip:?} was announced {count} times after the faults"));
        }
    }
    let interval_us = scenario.params.return_interval_us;
    for pair in world.controller.returns_us.windows(2) {
        if pair[1] - pair[0] < interval_us {
            return Err(format!("vIPs were given back after {} us", pair[1] - pair[0]));
        }
    }
    let Some(controller) = &world.controller.machine else { return Ok(()) };
    homes(world, controller).and_then(|()| drained(world, controller))
}

/// Who is well has its own vIPs again.
fn homes(world: &World, controller: &Controller) -> Result<(), String> {
    for (vip, home) in &controller.plan().homes {
        let at = home.get() as usize - 1;
        let draining = controller.plan().config.member(*home).is_some_and(|member| member.draining);
        let here = world.gateways[at].machine.is_some() && !draining && world.is_member(at);
        if here && controller.table().get(*vip).map(|claim| claim.owner) != Some(*home) {
            return Err(format!("{vip:?} is not at its home, gateway {at}"));
        }
    }
    Ok(())
}

/// Who is to be drained has nothing, if there is anybody else, and everybody knows.
fn drained(world: &World, controller: &Controller) -> Result<(), String> {
    let is_draining =
        |at: usize| controller.plan().config.member(id(at)).is_some_and(|member| member.draining);
    let lives = |at: &usize| world.gateways[*at].machine.is_some() && world.is_member(*at);
    let live: Vec<usize> = (0..world.scenario.gateways).filter(lives).collect();
    if live.iter().all(|&at| is_draining(at)) {
        return Ok(());
    }
    for at in live.into_iter().filter(|&at| is_draining(at)) {
        let (holds, told) = (world.holds(at), world.gateways[at].drained);
        if !holds.is_empty() || !told || !world.controller.drained.contains(&id(at)) {
            return Err(format!(
                "gateway {at} is to be drained, answers for {holds:?}, knows: {told}, the controller: {:?}",
                world.controller.drained
            ));
        }
    }
    Ok(())
}
