//! Tests of the whole monitor, on virtual time.

use std::fs;

use sluice_southbound::HealthSubject;
use sluice_types::{AnomalyClass, InstanceId, MacAddr};

use super::*;

const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 7]);

/// A simulated host with two VMs, whose counters are files as the kernel has them.
struct Host {
    monitor: Monitor,
    proc: tempfile::TempDir,
    now_ms: u64,
    /// Ticks of the processors: used and idle.
    ticks: (u64, u64),
    /// Packets of the underlay interface, and those that it has lost.
    passed: (u64, u64),
    random: Random,
    /// Whether VMs answer, and whether nodes do.
    vms_answer: bool,
    links_answer: bool,
    cpu_percent: u64,
    drops_per_s: u64,
}

impl Host {
    fn new(seed: u64) -> Self {
        let own = vec![[192, 0, 2, 1].into()];
        let underlay = vec!["eth0".to_owned()];
        let config = MonitorConfig {
            own,
            underlay,
            is_gateway: false,
            link_period_ms: 5000,
            vm_period_ms: 10_000,
            limits: Limits::default(),
            seed,
        };
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("net")).unwrap();
        Self {
            monitor: Monitor::new(config, 0),
            proc,
            now_ms: 0,
            ticks: (0, 0),
            passed: (0, 0),
            random: Random::new(seed),
            vms_answer: true,
            links_answer: true,
            cpu_percent: 60,
            drops_per_s: 1,
        }
    }

    fn view() -> NodeView {
        let port = |number: u8| WatchedPort {
            ifindex: number.into(),
            ifname: format!("sl-{number}"),
            instance: InstanceId::new(number.into()),
            mac: MAC,
            ipv4: Some(([10, 0, 0, number].into(), [10, 0, 0, 1].into())),
            ipv6: None,
        };
        let ports: Vec<_> = [5, 6].map(port).into();
        let attached = ports.iter().map(|port| port.instance).collect();
        NodeView {
            peers: (11..16_u8).map(|last| ([192, 0, 2, last].into(), last < 13)).collect(),
            ports,
            placement: Placement { attached, ..Placement::default() },
            tables_permille: 300,
        }
    }

    fn counters(&mut self) -> Counters {
        let noise = self.random.number() % 20;
        let used = self.cpu_percent + noise;
        self.ticks = (self.ticks.0 + used.min(100), self.ticks.1 + 100 - used.min(100));
        self.passed = (self.passed.0 + 5000, self.passed.1 + self.drops_per_s + noise);
        let (used, idle) = self.ticks;
        let cpu = format!("{used} 0 0 {idle} 0 0 0 0");
        let write = |name: &str, text: String| fs::write(self.proc.path().join(name), text).unwrap();
        write("stat", format!("cpu  {cpu}\ncpu0 {cpu}\n"));
        write("meminfo", "MemTotal: 1000 kB\nMemAvailable: 300 kB\n".to_owned());
        write("net/softnet_stat", "0 0 0\n".to_owned());
        let (packets, drops) = self.passed;
        let eth0 = format!("eth0: 0 {packets} 0 {drops} 0 0 0 0 0 {packets} 0 0 0 0 0 0\n");
        let port = |number: u8| format!("sl-{number}: 0 77 0 0 0 0 0 0 0 {packets} 0 0 0 0 0 0\n");
        write("net/dev", [eth0, port(5), port(6)].concat());
        Counters::read(self.proc.path()).unwrap()
    }

    /// Answers the probes that are due. One in some hundred is lost.
    fn exchange(&mut self) {
        let now_us = self.now_ms * 1000;
        let mut numbers = self.random.clone();
        let nonce = || {
            Some(
                [numbers.number().to_be_bytes(), numbers.number().to_be_bytes()].concat().try_into().unwrap(),
            )
        };
        for probe in self.monitor.links.take_due(now_us, (1472, 1452), nonce) {
            if self.links_answer && !self.random.number().is_multiple_of(1000) {
                let rtt_us = 300 + self.random.number() % 5000;
                self.monitor.links.answer(now_us + rtt_us, probe.to, &probe.nonce);
            }
        }
        if self.monitor.next_vms_ms() > self.now_ms {
            return;
        }
        let probes = self.monitor.begin_vms(self.now_ms);
        let asked = probes.iter().map(|probe| (probe.ifindex, probe.address)).collect();
        let mut replies = BTreeSet::new();
        for VmProbe { ifindex, address, .. } in probes {
            if self.vms_answer && !self.random.number().is_multiple_of(1000) {
                replies.insert(VmReply { ifindex, address, mac: MAC });
            }
        }
        self.monitor.end_vms(self.now_ms, &asked, &replies);
    }

    /// Runs for some seconds. Returns the classes and subjects that were found at any time.
    fn run(&mut self, seconds: u64) -> BTreeSet<(AnomalyClass, HealthSubject)> {
        let mut found = BTreeSet::new();
        for _ in 0..seconds {
            if self.now_ms.is_multiple_of(60_000) {
                let state = InterfaceState { mtu: 1500, has_carrier: true };
                let states = ["eth0", "sl-5", "sl-6"].map(|name| (name.to_owned(), state));
                self.monitor.set_view(self.now_ms, Self::view(), states.into());
            }
            let counters = self.counters();
            self.monitor.sample(self.now_ms, self.now_ms, counters);
            for _ in 0..10 {
                self.exchange();
                self.now_ms += 100;
            }
            let report = self.monitor.report();
            assert!(!report.others);
            found.extend(report.findings.into_iter().map(|it| (it.class, it.subject)));
        }
        found
    }
}

/// An hour of a busy host with noise. Catches thresholds without margin.
#[test]
fn a_quiet_hour_raises_nothing() {
    for seed in 0..3 {
        let mut host = Host::new(seed);
        assert_eq!(host.run(3600), BTreeSet::new(), "seed {seed}");
        assert_eq!(host.monitor.report().links.len(), 5);
        assert_eq!((host.monitor.underlay_mtu(), host.monitor.refused()), (Some(1500), 0));
    }
}

/// Each fault is found within its time with its subject, and nothing else is.
#[test]
fn faults_are_found_and_cleared() {
    let node = |class| BTreeSet::from([(class, HealthSubject::Node)]);
    let eth0 = HealthSubject::Interface("eth0".to_owned());
    type Fault = fn(&mut Host);
    let cases: [(Fault, u64, BTreeSet<_>); 4] = [
        (|host| host.cpu_percent = 100, 15, node(AnomalyClass::ServerResources)),
        (|host| host.drops_per_s = 200, 15, BTreeSet::from([(AnomalyClass::NicFault, eth0)])),
        (|host| host.links_answer = false, 30, node(AnomalyClass::SwitchOverload)),
        (
            |host| host.vms_answer = false,
            60,
            [5, 6]
                .map(|id| (AnomalyClass::VmUnresponsive, HealthSubject::Instance(InstanceId::new(id))))
                .into(),
        ),
    ];
    for (number, (fault, seconds, expected)) in cases.into_iter().enumerate() {
        let mut host = Host::new(number as u64);
        assert_eq!(host.run(120), BTreeSet::new(), "case {number}");
        fault(&mut host);
        assert_eq!(host.run(seconds), expected, "case {number}");
        (host.cpu_percent, host.drops_per_s) = (60, 1);
        (host.vms_answer, host.links_answer) = (true, true);
        host.run(60);
        assert_eq!(host.run(60), BTreeSet::new(), "case {number} is over");
    }
}

/// Catches findings of VMs that have left the host, and a round that judges VMs which it could not ask.
#[test]
fn findings_of_vms_stay_while_these_are_not_asked_and_end_with_their_ports() {
    let mut host = Host::new(5);
    host.run(120);
    host.vms_answer = false;
    assert_eq!(host.run(60).len(), 2);
    let rounds_without_probes = |host: &mut Host| {
        for _ in 0..5 {
            host.monitor.end_vms(host.now_ms, &BTreeSet::new(), &BTreeSet::new());
        }
        host.monitor.report().findings.len()
    };
    assert_eq!(rounds_without_probes(&mut host), 2);
    host.monitor.set_view(host.now_ms, NodeView::default(), BTreeMap::new());
    assert_eq!(rounds_without_probes(&mut host), 0);
}

#[test]
fn an_interface_without_its_other_side_is_found() {
    let mut host = Host::new(1);
    host.run(1);
    let state = |has_carrier| InterfaceState { mtu: 1500, has_carrier };
    let states = [("eth0", false), ("sl-5", false), ("sl-6", true)];
    let states = states.map(|(name, has_carrier)| (name.to_owned(), state(has_carrier)));
    host.monitor.set_view(host.now_ms, Host::view(), states.into());
    // A VM that reboots is no closed interface yet.
    let eth0 = HealthSubject::Interface("eth0".to_owned());
    assert_eq!(host.run(20), [(AnomalyClass::NicFault, eth0.clone())].into());
    let found = host.run(20);
    let vm = HealthSubject::Instance(InstanceId::new(5));
    assert_eq!(found, [(AnomalyClass::NicFault, eth0), (AnomalyClass::HypervisorFault, vm)].into());
}

#[test]
fn an_underlay_interface_that_does_not_exist_has_no_carrier() {
    let mut host = Host::new(2);
    host.run(30);
    let state = InterfaceState { mtu: 1500, has_carrier: true };
    let states = ["sl-5", "sl-6"].map(|name| (name.to_owned(), state));
    host.monitor.set_view(host.now_ms, Host::view(), states.into());
    let eth0 = HealthSubject::Interface("eth0".to_owned());
    assert_eq!(host.run(20), [(AnomalyClass::NicFault, eth0)].into());
}

/// Catches counts of a pause that are taken for those of a second.
#[test]
fn counts_of_a_pause_are_divided_by_its_seconds() {
    let mut host = Host::new(3);
    host.run(30);
    for _ in 0..10 {
        // The drops of five seconds.
        host.passed.1 += 400;
        host.passed.0 += 20_000;
        host.now_ms += 4000;
        let found = host.run(1);
        assert_eq!(found, BTreeSet::new());
    }
}
