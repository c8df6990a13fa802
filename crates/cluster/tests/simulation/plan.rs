//! What happens in a seed: sizes, network, and a schedule of faults.

use crate::rng::Rng;
use sluice_cluster::Params;

/// Kinds of seeds. All but the last have one sort of fault, so that tight bounds can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Crash,
    Pause,
    Split,
    OneWay,
    Loss,
    Controller,
    Drain,
    Change,
    Everything,
}

pub const CLASSES: [Class; 9] = [
    Class::Crash,
    Class::Pause,
    Class::Split,
    Class::OneWay,
    Class::Loss,
    Class::Controller,
    Class::Drain,
    Class::Change,
    Class::Everything,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine dies: its packets too.
    Crash(usize),
    /// It comes back, with what it saved or without.
    Restart(usize, bool),
    /// The agent does not run; its clock goes on or stands still as well (a virtual machine's).
    Pause(usize, bool),
    Resume(usize),
    /// Two sides that do not reach each other: a bit for each node, controller and observers included.
    Split(u64),
    /// Receives nothing.
    Deaf(usize),
    /// What it sends is lost.
    Mute(usize),
    /// Its underlay fails, for what it receives, what it sends, or both; the controller's network does not.
    Underlay(usize, bool, bool),
    /// One link between two nodes in one direction; gateways or the controller.
    Cut(usize, usize),
    /// All links work again.
    Heal,
    /// Loss and duplication in parts of a million, and delays of up to so much.
    Weather(u64, u64, u64),
    /// The agent's timers are late by up to so much.
    Slow(usize, u64),
    ControllerCrash,
    ControllerRestart,
    Drain(usize),
    /// The operator takes a gateway in or out, of those of the seed.
    Member(usize, bool),
    /// The same for a vIP.
    Vip(u8, bool),
    /// The operator sets another hello interval, in milliseconds.
    Hello(u16),
}

pub struct Scenario {
    pub class: Class,
    pub gateways: usize,
    pub vips: usize,
    /// The gateways start for the first time, and know nothing.
    pub fresh: bool,
    /// No fault before this time.
    pub start_us: u64,
    pub faults: Vec<(u64, Fault)>,
    /// No fault after this time.
    pub end_us: u64,
    pub params: Params,
    /// Latency and jitter of a good network.
    pub latency_us: (u64, u64),
    /// Clocks are fast or slow by up to that many parts of a million.
    pub drift_ppm: u64,
}

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let class = CLASSES[(seed % CLASSES.len() as u64) as usize];
        let gateways = if class == Class::Everything { 2 + rng.index(4) } else { 2 + rng.index(3) };
        let vips = 1 + rng.index(8);
        let fresh = rng.ppm(60_000);
        let lossy = matches!(class, Class::Loss | Class::Everything);
        let params = Params {
            hold_down_us: 20_000,
            hold_down_max_us: 80_000,
            preempt_delay_us: 20_000,
            brief_us: 5_000,
            return_interval_us: 10_000,
            forgive_us: 400_000,
            // Where announcements get lost, or both sides of a split lose gateways, only refreshing helps.
            refresh_us: if lossy { 160_000 } else { 10_000_000 },
            ..Params::default()
        };
        let mut scenario = Self {
            class,
            gateways,
            vips,
            fresh,
            start_us: if fresh { 200_000 } else { 60_000 },
            faults: Vec::new(),
            end_us: 0,
            params,
            latency_us: (50, 250),
            drift_ppm: if class == Class::Everything { 50_000 } else { 10_000 },
        };
        scenario.schedule(&mut rng);
        scenario
    }

    pub fn controller(&self) -> usize {
        self.gateways
    }

    /// Places of hosts: one on each side of a split.
    pub fn observers(&self) -> [usize; 2] {
        [self.gateways + 1, self.gateways + 2]
    }

    fn schedule(&mut self, rng: &mut Rng) {
        let mut at_us = self.start_us + rng.range(0, 10_000);
        let rounds = 1 + rng.index(3);
        for _ in 0..rounds {
            let class = match self.class {
                Class::Everything => CLASSES[rng.index(8)],
                class => class,
            };
            // Long enough for the first to be noticed everywhere, or so short that it hardly is.
            let lasts_us =
                if rng.ppm(700_000) { rng.range(30_000, 70_000) } else { rng.range(2_000, 25_000) };
            self.round(rng, class, at_us, lasts_us);
            let overlap = self.class == Class::Everything && rng.ppm(500_000);
            at_us += if overlap { rng.range(0, lasts_us) } else { lasts_us + rng.range(0, 20_000) };
        }
        self.faults.sort_by_key(|(at_us, _)| *at_us);
        self.end_us = self.faults.iter().map(|(at_us, _)| *at_us).max().unwrap_or(at_us) + 1;
        self.make_whole(rng);
    }

    fn round(&mut self, rng: &mut Rng, class: Class, at_us: u64, lasts_us: u64) {
        let until_us = at_us + lasts_us;
        let one = rng.index(self.gateways);
        let mut add = |at_us: u64, fault: Fault| self.faults.push((at_us, fault));
        match class {
            Class::Crash => {
                add(at_us, Fault::Crash(one));
                if rng.ppm(600_000) {
                    add(until_us, Fault::Restart(one, rng.ppm(700_000)));
                }
            }
            Class::Pause => {
                add(at_us, Fault::Pause(one, rng.ppm(300_000)));
                add(until_us, Fault::Resume(one));
                if rng.ppm(300_000) {
                    let two = (one + 1) % self.gateways;
                    let second_us = at_us + rng.range(0, lasts_us);
                    add(second_us, Fault::Pause(two, rng.ppm(300_000)));
                    add(second_us + rng.range(2_000, 50_000), Fault::Resume(two));
                }
            }
            Class::Split => {
                // Both sides have a gateway: what hosts without any believe, only refreshing mends.
                add(at_us, Fault::Split(rng.next() & !3 | 1 << rng.index(2)));
                add(until_us, Fault::Heal);
            }
            Class::OneWay => {
                add(at_us, one_way(rng, one, self.gateways));
                add(until_us, Fault::Heal);
            }
            Class::Loss => {
                let bad = (rng.range(0, 400_000), rng.range(0, 200_000), rng.range(100, 30_000));
                add(at_us, Fault::Weather(bad.0, bad.1, bad.2));
                if rng.ppm(400_000) {
                    add(at_us, Fault::Slow(one, rng.range(0, 15_000)));
                }
                add(until_us, Fault::Weather(0, 0, 0));
            }
            Class::Controller => {
                add(at_us, Fault::ControllerCrash);
                add(at_us + rng.range(0, lasts_us), Fault::Crash(one));
                if rng.ppm(500_000) {
                    add(until_us, Fault::Restart(one, true));
                }
                add(until_us + rng.range(0, 20_000), Fault::ControllerRestart);
            }
            Class::Change => {
                // Members come and go while vIPs do, and now and then one of them dies meanwhile.
                let vip = rng.index(self.vips) as u8;
                if self.gateways > 2 || rng.ppm(300_000) {
                    add(at_us, Fault::Member(one, false));
                    add(until_us, Fault::Member(one, true));
                }
                add(at_us + rng.range(0, lasts_us), Fault::Vip(vip, false));
                if rng.ppm(700_000) {
                    add(until_us + rng.range(0, 20_000), Fault::Vip(vip, true));
                }
                // No longer ones than usual, for which the bounds are.
                if rng.ppm(500_000) {
                    add(at_us + rng.range(0, lasts_us), Fault::Hello(2 + rng.index(3) as u16));
                }
                if rng.ppm(300_000) {
                    let two = (one + 1) % self.gateways;
                    add(at_us + rng.range(0, lasts_us), Fault::Crash(two));
                    add(until_us, Fault::Restart(two, true));
                }
            }
            Class::Drain | Class::Everything => {
                add(at_us, Fault::Drain(one));
                if rng.ppm(300_000) {
                    add(at_us + rng.range(0, lasts_us), Fault::Crash((one + 1) % self.gateways));
                    add(until_us, Fault::Restart((one + 1) % self.gateways, true));
                }
            }
        }
    }

    /// At the end links and weather are good, everybody runs, and some of the dead stay dead.
    fn make_whole(&mut self, rng: &mut Rng) {
        let end_us = self.end_us;
        self.faults.push((end_us, Fault::Weather(0, 0, 0)));
        self.faults.push((end_us, Fault::Heal));
        for gateway in 0..self.gateways {
            self.faults.push((end_us, Fault::Resume(gateway)));
            self.faults.push((end_us, Fault::Slow(gateway, 0)));
            if rng.ppm(500_000) {
                self.faults.push((end_us, Fault::Restart(gateway, true)));
            }
        }
        if rng.ppm(800_000) {
            self.faults.push((end_us, Fault::ControllerRestart));
        }
    }
}

/// A fault of gateway `one` of `gateways` that leaves a direction whole. Place `gateways` is the controller's.
fn one_way(rng: &mut Rng, one: usize, gateways: usize) -> Fault {
    let two = (one + 1 + rng.index(gateways)) % (gateways + 1);
    match rng.index(6) {
        0 => Fault::Deaf(one),
        1 => Fault::Mute(one),
        2 => Fault::Underlay(one, true, rng.ppm(500_000)),
        3 => Fault::Underlay(one, false, true),
        4 if two != one => Fault::Cut(two, one),
        _ => Fault::Cut(one, if two == one { gateways } else { two }),
    }
}
