//! What happens in a seed: size of the cluster, quality of the network, and a schedule of faults.

use crate::rng::Rng;
use sluice_cluster::Params;

/// Classes of seeds. All except the last have one kind of fault, so that tight time bounds can be checked.
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
    Tables,
    Copies,
    Everything,
}

pub const CLASSES: [Class; 11] = [
    Class::Crash,
    Class::Pause,
    Class::Split,
    Class::OneWay,
    Class::Loss,
    Class::Controller,
    Class::Drain,
    Class::Change,
    Class::Tables,
    Class::Copies,
    Class::Everything,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine of a gateway dies and no longer forwards.
    Crash(usize),
    /// The machine starts again, with its saved state (true) or without.
    Restart(usize, bool),
    /// The agent is not scheduled. Its clock stops as well (true, as in a paused virtual machine) or
    /// continues.
    Pause(usize, bool),
    /// The agent is scheduled again.
    Resume(usize),
    /// Splits the network into two sides. The bit of each node is its side, controller and observers
    /// included.
    Split(u64),
    /// A gateway receives nothing.
    NoReceive(usize),
    /// Everything that a gateway sends is lost.
    NoSend(usize),
    /// The underlay of a gateway fails for receiving, sending or both. The controller's network continues to
    /// work.
    Underlay {
        gateway: usize,
        no_receive: bool,
        no_send: bool,
    },
    /// One direction of the link between two gateways, or between a gateway and the controller, fails.
    Cut(usize, usize),
    /// All links work again.
    Heal,
    /// Sets loss, duplication and delay of all links.
    Links(LinkQuality),
    /// The timers of an agent are late by up to this many microseconds.
    LateTimers(usize, u64),
    ControllerCrash,
    ControllerRestart,
    /// The operator drains a gateway.
    Drain(usize),
    /// The operator adds (true) or removes a gateway.
    Member(usize, bool),
    /// The operator adds (true) or removes a vIP.
    Vip(u8, bool),
    /// The operator sets the hello interval, in milliseconds.
    HelloInterval(u16),
    /// The forwarding tables of a gateway contain this revision completely; 0 if they contain none.
    Tables(usize, u64),
    /// A gateway has copies of all sessions (true), or not.
    Copies(usize, bool),
}

/// Loss and duplication in parts per million, and the longest additional delay. All zero is a good network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkQuality {
    pub loss_ppm: u64,
    pub duplicate_ppm: u64,
    pub delay_max_us: u64,
}

pub struct Scenario {
    pub class: Class,
    pub gateways: usize,
    pub vips: usize,
    /// The gateways start for the first time and have no saved state.
    pub fresh: bool,
    /// There are no faults before this time.
    pub start_us: u64,
    pub faults: Vec<(u64, Fault)>,
    /// There are no faults after this time.
    pub end_us: u64,
    pub params: Params,
    /// Latency and jitter of a good network, in microseconds.
    pub latency_us: (u64, u64),
    /// Clocks are fast or slow by up to this many parts per million.
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
            brief_failure_us: 5_000,
            return_interval_us: 10_000,
            behind_us: 20_000,
            forgive_us: 400_000,
            // If announcements get lost, or both sides of a split lose gateways, only refreshes help.
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

    /// Nodes that stand for hosts: one on each side of a split.
    pub fn observers(&self) -> [usize; 2] {
        [self.gateways + 1, self.gateways + 2]
    }

    fn schedule(&mut self, rng: &mut Rng) {
        let mut at_us = self.start_us + rng.range(0, 10_000);
        let rounds = 1 + rng.index(3);
        for _ in 0..rounds {
            let class = match self.class {
                Class::Everything => CLASSES[rng.index(10)],
                class => class,
            };
            // Long enough for a fault to be detected everywhere, or so short that it may not be detected.
            let lasts_us =
                if rng.ppm(700_000) { rng.range(30_000, 70_000) } else { rng.range(2_000, 25_000) };
            self.add_fault(rng, class, at_us, lasts_us);
            let overlap = self.class == Class::Everything && rng.ppm(500_000);
            at_us += if overlap { rng.range(0, lasts_us) } else { lasts_us + rng.range(0, 20_000) };
        }
        self.faults.sort_by_key(|(at_us, _)| *at_us);
        self.end_us = self.faults.iter().map(|(at_us, _)| *at_us).max().unwrap_or(at_us) + 1;
        self.end_faults(rng);
    }

    fn add_fault(&mut self, rng: &mut Rng, class: Class, at_us: u64, lasts_us: u64) {
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
                // Both sides have a gateway: without one, only a refresh corrects what hosts know.
                add(at_us, Fault::Split(rng.next() & !3 | 1 << rng.index(2)));
                add(until_us, Fault::Heal);
            }
            Class::OneWay => {
                add(at_us, one_way(rng, one, self.gateways));
                add(until_us, Fault::Heal);
            }
            Class::Loss => {
                let bad = LinkQuality {
                    loss_ppm: rng.range(0, 400_000),
                    duplicate_ppm: rng.range(0, 200_000),
                    delay_max_us: rng.range(100, 30_000),
                };
                add(at_us, Fault::Links(bad));
                if rng.ppm(400_000) {
                    add(at_us, Fault::LateTimers(one, rng.range(0, 15_000)));
                }
                add(until_us, Fault::Links(LinkQuality::default()));
            }
            Class::Controller => {
                add(at_us, Fault::ControllerCrash);
                add(at_us + rng.range(0, lasts_us), Fault::Crash(one));
                if rng.ppm(500_000) {
                    add(until_us, Fault::Restart(one, true));
                }
                add(until_us + rng.range(0, 20_000), Fault::ControllerRestart);
            }
            Class::Change => self.add_changes(rng, one, at_us, lasts_us),
            Class::Tables => self.add_lost_tables(rng, one, at_us, lasts_us),
            Class::Copies => self.add_lost_copies(rng, one, at_us, lasts_us),
            Class::Drain | Class::Everything => {
                add(at_us, Fault::Drain(one));
                if rng.ppm(300_000) {
                    add(at_us + rng.range(0, lasts_us), Fault::Crash((one + 1) % self.gateways));
                    add(until_us, Fault::Restart((one + 1) % self.gateways, true));
                }
            }
        }
    }

    /// Members and vIPs are removed and added, and sometimes a gateway dies in between.
    fn add_changes(&mut self, rng: &mut Rng, one: usize, at_us: u64, lasts_us: u64) {
        let until_us = at_us + lasts_us;
        let mut add = |at_us: u64, fault: Fault| self.faults.push((at_us, fault));
        let vip = rng.index(self.vips) as u8;
        if self.gateways > 2 || rng.ppm(300_000) {
            add(at_us, Fault::Member(one, false));
            add(until_us, Fault::Member(one, true));
        }
        add(at_us + rng.range(0, lasts_us), Fault::Vip(vip, false));
        if rng.ppm(700_000) {
            add(until_us + rng.range(0, 20_000), Fault::Vip(vip, true));
        }
        // Not longer than the default, for which the time bounds are calculated.
        if rng.ppm(500_000) {
            add(at_us + rng.range(0, lasts_us), Fault::HelloInterval(2 + rng.index(3) as u16));
        }
        if rng.ppm(300_000) {
            let two = (one + 1) % self.gateways;
            add(at_us + rng.range(0, lasts_us), Fault::Crash(two));
            add(until_us, Fault::Restart(two, true));
        }
    }

    /// A gateway lacks entries that others have. Revisions are times, so that they increase.
    fn add_lost_tables(&mut self, rng: &mut Rng, one: usize, at_us: u64, lasts_us: u64) {
        let until_us = at_us + lasts_us;
        let mut add = |at_us: u64, fault: Fault| self.faults.push((at_us, fault));
        let two = (one + 1) % self.gateways;
        match rng.index(3) {
            // A machine is rebooted, and another one dies before the tables are loaded.
            0 => {
                add(at_us, Fault::Crash(one));
                add(until_us, Fault::Tables(one, 0));
                add(until_us, Fault::Restart(one, true));
                add(until_us + rng.range(0, 40_000), Fault::Crash(two));
                add(until_us + rng.range(20_000, 100_000), Fault::Tables(one, at_us));
            }
            // The stream of one gateway is cut, and the others get changes.
            1 => {
                for other in (0..self.gateways).filter(|other| *other != one) {
                    add(at_us + rng.range(0, 2_000), Fault::Tables(other, at_us));
                }
                add(until_us, Fault::Tables(one, at_us));
            }
            _ => {
                add(at_us, Fault::Tables(one, 0));
                add(until_us, Fault::Tables(one, at_us));
            }
        }
    }

    /// A gateway lacks copies of sessions, and another one dies meanwhile.
    fn add_lost_copies(&mut self, rng: &mut Rng, one: usize, at_us: u64, lasts_us: u64) {
        let mut add = |at_us: u64, fault: Fault| self.faults.push((at_us, fault));
        let mut without_us = at_us;
        if rng.ppm(500_000) {
            add(at_us, Fault::Crash(one));
            without_us += lasts_us;
            add(without_us, Fault::Restart(one, true));
        }
        add(without_us, Fault::Copies(one, false));
        let two = (one + 1) % self.gateways;
        let dies_us = without_us + rng.range(0, 80_000);
        add(dies_us, Fault::Crash(two));
        if rng.ppm(500_000) {
            add(dies_us + lasts_us, Fault::Copies(two, false));
            add(dies_us + lasts_us, Fault::Restart(two, true));
        }
        add(without_us + rng.range(0, 150_000), Fault::Copies(one, true));
    }

    /// Ends all faults: links are good and agents run again. Some of the dead gateways stay dead.
    fn end_faults(&mut self, rng: &mut Rng) {
        let end_us = self.end_us;
        self.faults.push((end_us, Fault::Links(LinkQuality::default())));
        self.faults.push((end_us, Fault::Heal));
        for gateway in 0..self.gateways {
            self.faults.push((end_us, Fault::Resume(gateway)));
            self.faults.push((end_us, Fault::LateTimers(gateway, 0)));
            if rng.ppm(500_000) {
                self.faults.push((end_us, Fault::Restart(gateway, true)));
            }
        }
        if rng.ppm(800_000) {
            self.faults.push((end_us, Fault::ControllerRestart));
        }
        if rng.ppm(700_000) {
            (0..self.gateways).for_each(|gateway| self.faults.push((end_us, Fault::Tables(gateway, end_us))));
        }
        if rng.ppm(700_000) {
            (0..self.gateways).for_each(|gateway| self.faults.push((end_us, Fault::Copies(gateway, true))));
        }
    }
}

/// Makes a fault of gateway `one` of `gateways` that affects one direction or one link. Node `gateways` is
/// the controller.
fn one_way(rng: &mut Rng, one: usize, gateways: usize) -> Fault {
    let two = (one + 1 + rng.index(gateways)) % (gateways + 1);
    match rng.index(6) {
        0 => Fault::NoReceive(one),
        1 => Fault::NoSend(one),
        2 => Fault::Underlay { gateway: one, no_receive: true, no_send: rng.ppm(500_000) },
        3 => Fault::Underlay { gateway: one, no_receive: false, no_send: true },
        4 if two != one => Fault::Cut(two, one),
        _ => Fault::Cut(one, if two == one { gateways } else { two }),
    }
}
