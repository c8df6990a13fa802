use super::costs::Times;
use super::*;
use crate::credit::keeper::STEP;
use sluice_tables::PortCredits;
use std::collections::HashMap;
use std::num::NonZeroU32;

const GOLD: Allowance = Allowance { base: 1000, max: 1500, clamp: 1200, credit: 5000 };
const FREE: Capacity = Capacity { total: [None; CREDIT_DIMENSIONS], contended_percent: 90, clamped: 1 };
const SENT: usize = CreditDimension::SentMbps as usize;
const RECEIVED: usize = CreditDimension::ReceivedMbps as usize;
const CPU: usize = CreditDimension::Cpu as usize;

/// A keeper for tests of other modules.
pub fn keeper(memory: PortCredits) -> CreditKeeper {
    let settings = CostSettings { packet_ns: CostSetting::Fixed(600), kib_ns: CostSetting::Fixed(60) };
    CreditKeeper::new(memory, FREE, Calibrator::new(settings), Times::default())
}

/// Sensors of a machine that tells nothing.
pub fn no_sensors() -> Sensors {
    Sensors { times: Box::new(|| None), softirq_ns: Box::new(|| None) }
}

fn mbps(allowance: Allowance) -> CreditPolicy {
    CreditPolicy { mbps: Some(allowance), ..CreditPolicy::default() }
}

/// Ports that want to use some rates, and use what they are granted of it.
struct Host {
    credits: Credits,
    used: HashMap<u16, PortUse>,
}

impl Host {
    fn new(capacity: Capacity, ports: &[(u16, CreditPolicy)]) -> Self {
        let ports: Vec<_> = ports.iter().map(|(scope, policy)| (*scope, Terms::Class(*policy))).collect();
        Self::with(capacity, &ports)
    }

    fn with(capacity: Capacity, ports: &[(u16, Terms)]) -> Self {
        let mut credits = Credits::new(capacity);
        for (scope, terms) in ports {
            credits.set_port(*scope, *terms, || (PortUse::default(), [0; CREDIT_DIMENSIONS]));
        }
        Self { credits, used: HashMap::new() }
    }

    /// Runs for so many steps. Each port gets as many Mbit/s, and its packets cost as much CPU, as it wants and may use. Returns
    /// what each got on average.
    fn run(&mut self, steps: u32, wanted: &[(u16, [u64; 2])]) -> HashMap<u16, [u64; 2]> {
        let mut sums: HashMap<u16, [u64; 2]> = HashMap::new();
        for _ in 0..steps {
            for (scope, [mbps, permille]) in wanted {
                let standing = self.credits.standing(*scope);
                let granted = |number: usize, want: u64| {
                    let limit = standing[number].and_then(|standing| standing.limit);
                    limit.map_or(want, |limit| want.min(limit.into()))
                };
                let (mbps, permille) = (granted(RECEIVED, *mbps), granted(CPU, *permille));
                let used = self.used.entry(*scope).or_default();
                used.bytes[1] += mbps * 125 * STEP.as_millis() as u64;
                used.cpu_ns += permille * 1000 * STEP.as_millis() as u64;
                let sum = sums.entry(*scope).or_default();
                sum[0] += mbps;
                sum[1] += permille;
            }
            let used = &self.used;
            self.credits.step(STEP, |scope| used.get(&scope).copied().unwrap_or_default());
        }
        sums.into_iter().map(|(scope, sum)| (scope, sum.map(|it| it / u64::from(steps)))).collect()
    }

    fn standing(&self, scope: u16, number: usize) -> Standing {
        self.credits.standing(scope)[number].unwrap()
    }
}

/// Figure 13: a VM that was quiet bursts until its credit is used up, and then has its base.
#[test]
fn a_quiet_vm_saves_credit_and_bursts_until_it_is_used_up() {
    let mut host = Host::new(FREE, &[(1, mbps(GOLD))]);
    assert_eq!(host.standing(1, RECEIVED).limited, Some(Limited::NoCredit), "it begins without credit");
    host.run(300, &[(1, [300, 0])]);
    let full = Standing { limit: Some(1500), rate: 300, credit: Some(5000), limited: None };
    assert_eq!(host.standing(1, RECEIVED), full, "saved in 7.2 s of the 30");
    // 500 Mbit/s above the base use it up in 10 s.
    assert_eq!(host.run(99, &[(1, [2000, 0])])[&1][0], 1500);
    assert_eq!(host.standing(1, RECEIVED).limited, None);
    host.run(1, &[(1, [2000, 0])]);
    let spent = Standing { limit: Some(1000), rate: 1500, credit: Some(0), limited: Some(Limited::NoCredit) };
    assert_eq!(host.standing(1, RECEIVED), spent);
    // From then on it has its base, and never more on average.
    for _ in 0..100 {
        assert_eq!(host.run(10, &[(1, [2000, 0])])[&1][0], 1000);
    }
}

/// A VM that uses a little less than its base must not burst in every second step.
#[test]
fn a_burst_needs_credit_for_a_second() {
    let mut host = Host::new(FREE, &[(1, mbps(GOLD))]);
    host.run(49, &[(1, [900, 0])]);
    assert_eq!(host.standing(1, RECEIVED).limit, Some(1000), "490 of 500 Mbit");
    host.run(1, &[(1, [900, 0])]);
    assert_eq!(host.standing(1, RECEIVED).limit, Some(1500));
    assert_eq!(host.run(10, &[(1, [2000, 0])])[&1][0], 1500);
    assert_eq!(host.standing(1, RECEIVED).limit, Some(1000));
    // Of a class that saves less than that, all of it is needed.
    let small = Allowance { credit: 100, ..GOLD };
    let mut host = Host::new(FREE, &[(1, mbps(small))]);
    host.run(9, &[(1, [900, 0])]);
    assert_eq!(host.standing(1, RECEIVED).limit, Some(1000));
    host.run(1, &[(1, [900, 0])]);
    assert_eq!(host.standing(1, RECEIVED).limit, Some(1500));
    // Without credit, or if there is nothing above the base, it is always the base.
    for policy in [Allowance { credit: 0, ..GOLD }, Allowance { max: 1000, clamp: 1000, credit: 0, ..GOLD }] {
        let mut host = Host::new(FREE, &[(1, mbps(policy))]);
        host.run(1000, &[(1, [0, 0])]);
        assert_eq!(host.standing(1, RECEIVED).limit, Some(1000));
    }
}

/// A step that comes late, and a counter that jumps, must not give a debt that lasts, nor credit above the maximum.
#[test]
fn debt_is_bounded() {
    let mut host = Host::new(FREE, &[(1, mbps(GOLD))]);
    host.used.insert(1, PortUse { bytes: [u64::MAX / 16, 0], ..PortUse::default() });
    host.run(1, &[]);
    assert_eq!(host.standing(1, SENT).credit, Some(-500), "as much as a second of burst takes");
    host.used.insert(1, PortUse::default());
    host.run(10, &[]);
    assert_eq!(host.standing(1, SENT).credit, Some(500), "a counter that was reset is no use");
    host.credits.step(Duration::from_secs(100_000), |_| PortUse::default());
    assert_eq!(host.standing(1, SENT).credit, Some(5000));
}

/// What is counted in front of the queueing discipline is more than it lets pass. The rest must not cost credit.
#[test]
fn a_flood_to_a_vm_costs_no_more_than_what_passes() {
    let mut host = Host::new(FREE, &[(1, mbps(GOLD))]);
    host.run(100, &[]);
    let flood = |host: &mut Host, seconds: u64| {
        for _ in 0..seconds * 10 {
            host.used.entry(1).or_default().bytes[1] += 100_000 * 125 * STEP.as_millis() as u64;
            host.run(1, &[]);
        }
    };
    flood(&mut host, 9);
    assert_eq!(host.standing(1, RECEIVED).credit, Some(500), "500 Mbit/s above the base");
    flood(&mut host, 10);
    assert_eq!(
        host.standing(1, RECEIVED),
        Standing { limit: Some(1000), rate: 1000, credit: Some(0), limited: Some(Limited::NoCredit) }
    );
}

/// On a contended host, those that use most above their base are clamped, and no others.
#[test]
fn the_largest_are_clamped_while_the_host_is_contended() {
    let capacity = Capacity { total: [None, Some(4000), None, None, None], clamped: 2, ..FREE };
    let ports: Vec<(u16, CreditPolicy)> = (1..=4).map(|scope| (scope, mbps(GOLD))).collect();
    let mut host = Host::new(capacity, &ports);
    host.run(100, &[(1, [0, 0]), (2, [0, 0]), (3, [0, 0]), (4, [0, 0])]);
    // 3.5 Gbit/s are less than 90% of 4 Gbit/s.
    host.run(3, &[(1, [1500, 0]), (2, [1400, 0]), (3, [600, 0])]);
    assert!((1..=4).all(|scope| host.standing(scope, RECEIVED).limit == Some(1500)));
    // 4.4 Gbit/s are more.
    host.run(1, &[(1, [1500, 0]), (2, [1400, 0]), (3, [900, 0]), (4, [600, 0])]);
    let limits = [1, 2, 3, 4].map(|scope| host.standing(scope, RECEIVED).limit);
    assert_eq!(limits, [1200, 1200, 1500, 1500].map(Some));
    assert_eq!(host.standing(1, RECEIVED).limited, Some(Limited::Contended));
    // The clamp lasts for a second, although clamped ports use less.
    let quiet = [(1, [1500, 0]), (2, [1400, 0]), (3, [300, 0]), (4, [300, 0])];
    host.run(9, &quiet);
    assert_eq!(host.standing(1, RECEIVED).limit, Some(1200));
    host.run(1, &quiet);
    assert_eq!(host.standing(1, RECEIVED).limit, Some(1500));
    // A port within its base is never clamped, however contended the host is.
    host.run(20, &[(1, [1000, 0]), (2, [1000, 0]), (3, [1000, 0]), (4, [1000, 0])]);
    assert!((1..=4).all(|scope| host.standing(scope, RECEIVED).limit == Some(1500)));
}

/// Catches a port that is clamped for what it used by other terms, and one that is because its number was another port's.
#[test]
fn other_terms_end_a_clamp() {
    let capacity = Capacity { total: [None, Some(4000), None, None, None], clamped: 2, ..FREE };
    let ports: Vec<(u16, CreditPolicy)> = (1..=4).map(|scope| (scope, mbps(GOLD))).collect();
    let mut host = Host::new(capacity, &ports);
    host.run(100, &[(1, [0, 0]), (2, [0, 0]), (3, [0, 0]), (4, [0, 0])]);
    host.run(1, &[(1, [1500, 0]), (2, [1400, 0]), (3, [900, 0]), (4, [600, 0])]);
    let limits = |host: &Host| [1, 2, 3].map(|scope| host.standing(scope, RECEIVED).limit);
    assert_eq!(limits(&host), [1200, 1200, 1500].map(Some));
    let other = Terms::Class(mbps(Allowance { max: 1600, ..GOLD }));
    host.credits.set_port(1, other, || unreachable!());
    let quiet = [(1, [1000, 0]), (2, [1000, 0]), (3, [300, 0]), (4, [300, 0])];
    host.run(1, &quiet);
    assert_eq!(limits(&host), [1600, 1200, 1500].map(Some));
    let used = host.used[&2];
    assert_eq!(host.credits.retain(&BTreeSet::from([1, 3, 4])), [2]);
    host.credits.set_port(2, Terms::Class(mbps(GOLD)), || (used, [5_000_000; CREDIT_DIMENSIONS]));
    host.run(1, &quiet);
    assert_eq!(limits(&host), [1600, 1500, 1500].map(Some));
}

/// Catches a port without a class that takes its neighbors' share, and one that is limited while there is enough.
#[test]
fn ports_without_a_class_have_a_share_of_a_contended_host() {
    let capacity = Capacity { total: [None, Some(4000), None, None, None], clamped: 2, ..FREE };
    let fixed = Terms::Fixed(NonZeroU32::new(800).unwrap());
    let ports = [(1, Terms::Class(mbps(GOLD))), (2, Terms::Unclassed), (3, Terms::Unclassed), (4, fixed)];
    let mut host = Host::with(capacity, &ports);
    let limits = |host: &Host| [2, 3, 4].map(|scope| host.standing(scope, RECEIVED).limit);
    host.run(20, &[(1, [900, 0]), (2, [2200, 0]), (3, [500, 0])]);
    assert_eq!(limits(&host), [None; 3], "3.6 Gbit/s are not more than 90% of 4 Gbit/s");
    assert_eq!(host.standing(2, RECEIVED).rate, 2200);
    // The class has reserved 1000, the rate uses 400, and the third port leaves the most of its part.
    host.run(1, &[(1, [900, 0]), (2, [4000, 0]), (3, [500, 0]), (4, [400, 0])]);
    assert_eq!(limits(&host), [Some(1700), None, None]);
    assert_eq!(host.standing(2, RECEIVED).limited, Some(Limited::Contended));
    assert_eq!(host.standing(1, RECEIVED).limited, Some(Limited::NoCredit), "it is within its base");
    let all = [(1, [900, 0]), (2, [4000, 0]), (3, [500, 0]), (4, [400, 0])];
    assert_eq!(host.run(9, &all)[&2][0], 1700);
    // After a second without contention it may use anything again, until the host is contended.
    host.run(1, &all);
    assert_eq!(limits(&host), [None; 3]);
    host.run(1, &all);
    assert_eq!(limits(&host), [Some(1700), None, None]);
    assert!(fixed.is_shaped() && !Terms::Unclassed.is_shaped());
}

/// What a class does not limit has its share of a contended host, as ports without a class.
#[test]
fn what_a_class_does_not_limit_is_counted() {
    let capacity = Capacity { total: [None, None, None, None, Some(1000)], ..FREE };
    let mut host = Host::with(capacity, &[(1, Terms::Class(mbps(GOLD))), (2, Terms::Default(mbps(GOLD)))]);
    host.run(1, &[(1, [10, 900]), (2, [10, 200])]);
    assert_eq!(host.standing(1, CPU).limit, Some(700));
    assert_eq!(host.standing(2, CPU).limit, None);
}

/// Figure 14: processors are a dimension of their own.
#[test]
fn processors_are_limited_apart_from_bits() {
    let cpu = Allowance { base: 400, max: 600, clamp: 400, credit: 1000 };
    let policy = CreditPolicy { mbps: Some(GOLD), kpps: None, cpu_permille: Some(cpu) };
    let mut host = Host::new(FREE, &[(1, policy), (2, policy)]);
    let quiet = [(1, [300, 200]), (2, [300, 200])];
    host.run(300, &quiet);
    let small_packets = [(1, [300, 200]), (2, [300, 900])];
    let got = host.run(50, &small_packets);
    assert_eq!((got[&1], got[&2]), ([300, 200], [300, 600]));
    assert_eq!(host.run(100, &small_packets)[&2][1], 400);
    assert_eq!(host.standing(2, CPU).limited, Some(Limited::NoCredit));
    assert_eq!(host.standing(2, RECEIVED).limited, None, "bits are not the reason");
    assert_eq!(host.standing(1, CPU).limited, None);
}

#[test]
fn a_port_that_gets_another_class_keeps_its_credit_up_to_the_new_maximum() {
    let mut host = Host::new(FREE, &[(1, mbps(GOLD))]);
    host.run(100, &[]);
    assert_eq!(host.standing(1, RECEIVED).credit, Some(5000));
    host.credits.set_port(1, Terms::Class(mbps(Allowance { credit: 700, ..GOLD })), || unreachable!());
    assert_eq!(host.standing(1, RECEIVED).credit, Some(700));
    host.credits.set_port(1, Terms::Default(mbps(GOLD)), || unreachable!());
    assert_eq!(host.standing(1, RECEIVED).credit, Some(700));
    let cpu = host.standing(1, CPU);
    assert_eq!((cpu.limit, cpu.credit), (None, None), "the class grants no processor time");
    // Without a class, the credit waits for the next one.
    host.credits.set_port(1, Terms::Unclassed, || unreachable!());
    host.run(10, &[(1, [0, 0])]);
    assert_eq!((host.standing(1, RECEIVED).credit, host.standing(1, RECEIVED).limit), (None, None));
    host.credits.set_port(1, Terms::Class(mbps(GOLD)), || unreachable!());
    assert_eq!(host.standing(1, RECEIVED).credit, Some(700));
    assert_eq!(host.credits.retain(&BTreeSet::new()), [1]);
    assert!(host.credits.standing(1)[RECEIVED].is_none());
}

/// An agent that comes later goes on with credit and counters, and the first limits are there before the port is active.
#[test]
fn limits_are_written_and_a_successor_goes_on() {
    let memory = PortCredits::anonymous().unwrap();
    memory.set_usage(7, PortUse { bytes: [1 << 40, 1 << 40], packets: [1, 1], cpu_ns: 1 << 40, frames: 1 });
    let port = |policy| CreditPort { ifname: "sl-1".to_owned(), scope: 7, terms: Terms::Class(policy) };
    let first = keeper(memory.clone());
    first.set_ports(&[port(mbps(GOLD))]);
    assert!(memory.is_active(7));
    assert_eq!(memory.limits(7), [1000, 1000, 0, 0, 0]);
    memory.set_credit(7, [5_000_000, 0, 0, 0, 0]);
    let second = keeper(memory.clone());
    second.set_ports(&[port(mbps(GOLD))]);
    assert_eq!(memory.limits(7), [1500, 1000, 0, 0, 0], "what the VM sends bursts, what it gets does not");
    assert_eq!(second.received_mbps(7), Some(1000));
    let shown = second.views("sl-1").unwrap();
    assert_eq!((shown[0].dimension, shown[0].credit, shown[0].limited), ("sent_mbps", Some(5000), None));
    assert_eq!((shown[1].dimension, shown[1].limited), ("received_mbps", Some(Limited::NoCredit)));
    assert_eq!(second.views("sl-2"), None);
    std::thread::sleep(Duration::from_millis(20));
    assert!(second.step(&no_sensors()).is_empty());
    assert!(memory.credit(7)[1] > 0, "it has used nothing since");
    let unclassed = CreditPort { terms: Terms::Unclassed, ..port(mbps(GOLD)) };
    second.set_ports(&[unclassed]);
    assert!(memory.is_active(7));
    assert_eq!((memory.limits(7), second.received_mbps(7)), ([0; 5], None));
    let shown = second.views("sl-1").unwrap();
    assert_eq!((shown.len(), shown[0].limit, shown[0].credit), (5, None, None));
    second.set_ports(&[]);
    assert!(!memory.is_active(7));
}
