//! Tests of the rules, on recorded and on made samples.

use super::*;

fn nic(counters: InterfaceCounters) -> InterfaceSample {
    InterfaceSample { name: "eth0".to_owned(), counters, has_carrier: true }
}

/// A machine that works: 20,000 packets a second, and a drop now and then.
fn busy() -> DeviceSample {
    let counters = InterfaceCounters { rx_packets: 20_000, rx_dropped: 90, ..InterfaceCounters::default() };
    let port = PortSample {
        interface: InterfaceSample {
            name: "sl-1".to_owned(),
            counters: InterfaceCounters { tx_packets: 5000, tx_dropped: 9, ..InterfaceCounters::default() },
            has_carrier: true,
        },
        instance: InstanceId::new(3),
        answers: true,
    };
    DeviceSample {
        is_gateway: false,
        usage: Usage {
            cpu_permille: 850,
            softirq_permille: 850,
            memory_available_permille: 60,
            softnet_dropped: 0,
            softnet_squeezed: 50,
        },
        tables_permille: 900,
        underlay: vec![nic(counters)],
        ports: vec![port],
        flows: Vec::new(),
        limits: Limits::default(),
    }
}

/// The rules that hold, with their subjects.
fn held(sample: &DeviceSample) -> Vec<(Rule, HealthSubject)> {
    sample.symptoms().into_iter().map(|symptom| (symptom.rule, symptom.subject)).collect()
}

#[test]
fn a_machine_that_works_has_no_symptom() {
    assert_eq!(held(&busy()), []);
    assert!(!busy().explains_losses());
    // The first sample has no counters.
    assert_eq!(
        held(&DeviceSample {
            usage: Usage { memory_available_permille: 1000, ..Usage::default() },
            ..DeviceSample::default()
        }),
        []
    );
}

#[test]
fn processors_memory_and_tables_of_the_node_are_judged() {
    let with = |change: &dyn Fn(&mut DeviceSample)| {
        let mut sample = busy();
        change(&mut sample);
        held(&sample)
    };
    let node = |rule| vec![(rule, HealthSubject::Node)];
    assert_eq!(with(&|it| it.usage.cpu_permille = 950), node(Rule::CpuBusy));
    assert_eq!(with(&|it| it.usage.memory_available_permille = 49), node(Rule::MemoryLow));
    assert_eq!(with(&|it| it.tables_permille = 950), node(Rule::TablesFull));
    assert_eq!(with(&|it| it.usage.softirq_permille = 900), node(Rule::Softnet));
    // Packets are dropped at once if a queue is short: without a busy processor that is no overload.
    assert_eq!(with(&|it| it.usage.softnet_dropped = 1000), []);
    assert_eq!(with(&|it| (it.usage.softirq_permille, it.usage.softnet_squeezed) = (1000, 9)), []);
    let evidence = {
        let mut sample = busy();
        (sample.usage.softirq_permille, sample.usage.softnet_dropped) = (987, 12);
        sample.symptoms().remove(0).evidence
    };
    assert_eq!(
        evidence,
        "a processor in software interrupts to 98 %, 12 packets dropped and 50 times squeezed in a second; busiest VM: \
         inst-3 (sl-1), 0 packets sent, 5000 received"
    );
}

#[test]
fn an_operator_may_change_when_processors_are_overloaded() {
    let with = |softirq_permille, squeezed| {
        let mut sample = busy();
        sample.limits = Limits { softirq_permille, squeezed };
        held(&sample).into_iter().map(|(rule, _)| rule).collect::<Vec<_>>()
    };
    assert_eq!(with(851, 0), []);
    assert_eq!(with(850, 0), [Rule::Softnet]);
    assert_eq!((with(850, 50), with(850, 51)), (vec![Rule::Softnet], vec![]));
    let mut idle = busy();
    (idle.limits, idle.usage.softnet_squeezed) = (Limits { softirq_permille: 850, squeezed: 0 }, 0);
    assert_eq!(held(&idle), [(Rule::Softnet, HealthSubject::Node)]);
}

/// Catches an overload whose reason is not named.
#[test]
fn evidence_of_overload_names_the_heaviest_flow() {
    let mut sample = busy();
    let flow = HeavyFlow {
        ifname: "sl-1".to_owned(),
        is_sent: false,
        flow: "udp 10.0.0.1:7 > 10.0.0.3:53".to_owned(),
        packets: 4000,
    };
    sample.flows = vec![flow];
    (sample.usage.softirq_permille, sample.ports[0].interface.counters.tx_dropped) = (950, 500);
    let symptoms = sample.symptoms();
    let rules: Vec<Rule> = symptoms.iter().map(|symptom| symptom.rule).collect();
    assert_eq!(rules, [Rule::Softnet, Rule::PortDrops]);
    let end = "; heaviest flow: udp 10.0.0.1:7 > 10.0.0.3:53, 4000 packets";
    assert!(symptoms.iter().all(|symptom| symptom.evidence.ends_with(end)), "{symptoms:?}");
}

#[test]
fn interfaces_of_the_underlay_are_judged() {
    let with = |counters: InterfaceCounters, has_carrier| {
        let sample =
            DeviceSample { underlay: vec![InterfaceSample { has_carrier, ..nic(counters) }], ..busy() };
        let symptoms = sample.symptoms();
        assert_eq!(sample.explains_losses(), !symptoms.is_empty());
        assert!(symptoms.iter().all(|it| it.subject == HealthSubject::Interface("eth0".to_owned())));
        symptoms.into_iter().map(|symptom| symptom.rule).collect::<Vec<_>>()
    };
    let none = InterfaceCounters::default();
    assert_eq!(with(none, false), [Rule::NicCarrier]);
    assert_eq!(with(InterfaceCounters { rx_errors: 4, tx_errors: 6, ..none }, true), [Rule::NicErrors]);
    assert_eq!(with(InterfaceCounters { rx_errors: 4, tx_errors: 5, ..none }, true), []);
    let dropped = InterfaceCounters { tx_dropped: 100, tx_packets: 9900, ..none };
    assert_eq!(with(dropped, true), [Rule::NicErrors]);
    assert_eq!(with(InterfaceCounters { tx_packets: 9901, ..dropped }, true), []);
}

/// Catches an interface that is accused of drops of a full processor, or of the programs of a gateway.
#[test]
fn drops_of_others_are_no_fault_of_the_interface() {
    let with = |is_gateway, softnet_dropped, counters: InterfaceCounters| {
        let mut sample = DeviceSample { is_gateway, underlay: vec![nic(counters)], ..busy() };
        sample.usage.softnet_dropped = softnet_dropped;
        sample.ports[0].interface.counters = InterfaceCounters { tx_dropped: 500, ..counters };
        held(&sample).into_iter().map(|(rule, _)| rule).collect::<Vec<_>>()
    };
    let dropped = InterfaceCounters { rx_dropped: 500, tx_dropped: 500, ..InterfaceCounters::default() };
    assert_eq!(with(false, 0, dropped), [Rule::NicErrors, Rule::PortDrops]);
    assert_eq!(with(false, 500, dropped), []);
    let of_xdp = InterfaceCounters { tx_dropped: 0, ..dropped };
    assert_eq!(with(true, 0, of_xdp), [Rule::PortDrops]);
    assert_eq!(
        with(true, 0, InterfaceCounters { rx_fifo: 500, ..of_xdp }),
        [Rule::NicErrors, Rule::PortDrops]
    );
}

#[test]
fn ports_of_vms_are_judged() {
    let with = |change: &dyn Fn(&mut DeviceSample)| {
        let mut sample = busy();
        change(&mut sample);
        held(&sample)
    };
    let instance = |rule| vec![(rule, HealthSubject::Instance(InstanceId::new(3)))];
    assert_eq!(with(&|it| it.ports[0].interface.has_carrier = false), instance(Rule::PortCarrier));
    let overload = |it: &mut DeviceSample| it.ports[0].interface.counters.tx_dropped = 500;
    assert_eq!(with(&overload), instance(Rule::PortDrops));
    // A VM that does not answer hangs, and a busy host may be the reason itself.
    assert_eq!(with(&|it| (overload(it), it.ports[0].answers = false).1), []);
    assert_eq!(with(&|it| (overload(it), it.usage.cpu_permille = 940).1), []);
}

/// Catches an instance that is created before its VM starts, and is called stale.
#[test]
fn what_does_not_belong_together_is_stale_after_a_while() {
    let (id, period_ms) = (InstanceId::new(5), 10_000);
    let orphan = Placement { orphans: vec![("sl-1".to_owned(), id)], ..Placement::default() };
    let missing = Placement { missing: vec![(id, "web/a".to_owned())], ..Placement::default() };
    let attached = Placement { attached: vec![id], ..Placement::default() };
    let rule = |configuration: &mut Configuration, now_ms, placement: &Placement| {
        configuration.symptoms(now_ms, period_ms, placement).pop().map(|symptom| symptom.rule)
    };
    let mut configuration = Configuration::default();
    assert_eq!(rule(&mut configuration, 0, &missing), None);
    assert_eq!(rule(&mut configuration, 599_999, &missing), None);
    assert_eq!(rule(&mut configuration, 600_000, &missing), Some(Rule::MissingInterface));
    assert_eq!(rule(&mut configuration, 700_000, &attached), None);
    assert_eq!(rule(&mut configuration, 701_000, &missing), None, "the time begins again");
    assert_eq!(rule(&mut configuration, 761_000, &missing), Some(Rule::MissingInterface));
    assert_eq!(rule(&mut configuration, 770_000, &orphan), None);
    assert_eq!(rule(&mut configuration, 830_000, &orphan), Some(Rule::OrphanInterface));
    assert_eq!(rule(&mut configuration, 840_000, &Placement::default()), None);
    assert!(configuration.since_ms.is_empty() && configuration.attached.is_empty());
}
