//! Which anomalies last: a rule must hold in several rounds of its measurement before its anomaly is raised, and not hold
//! in several before it is cleared. Pure. This file changes when something else decides that an anomaly lasts.
//!
//! ```text
//!               holds in `raise` of the last `window` rounds
//!     NORMAL ------------------------------------------------> RAISED
//!            <------------------------------------------------
//!               does not hold in `clear` rounds in a row
//! ```

use std::collections::{BTreeMap, BTreeSet};

use sluice_southbound::{Finding, HealthSubject, MAX_FINDINGS};
use sluice_types::AnomalyClass;

use super::rules::{Rule, Symptom};

/// Most subjects and rules that are followed: more than the ports of a host.
const CONDITIONS_MAX: usize = 16_384;

#[derive(Debug, Default)]
struct Condition {
    /// A bit for each of the last rounds: the rule held. The newest is the lowest.
    recent: u32,
    /// Rounds since it held last.
    good: u32,
    /// When the anomaly was raised, and what was measured then.
    raised: Option<(u64, String)>,
}

/// The anomalies of a node.
#[derive(Debug, Default)]
pub struct Findings {
    conditions: BTreeMap<(Rule, HealthSubject), Condition>,
    refused: u64,
}

impl Findings {
    /// Takes a round of measurement that has decided about `rules`: they hold as `symptoms` say, and for no other subject.
    pub fn round(&mut self, wall_ms: u64, rules: &[Rule], symptoms: Vec<Symptom>) {
        self.round_without(wall_ms, rules, &BTreeSet::new(), symptoms);
    }

    /// As [`Findings::round`], but the round has not decided about some subjects, which stay as they are.
    pub fn round_without(
        &mut self,
        wall_ms: u64,
        rules: &[Rule],
        undecided: &BTreeSet<HealthSubject>,
        symptoms: Vec<Symptom>,
    ) {
        for ((rule, subject), condition) in &mut self.conditions {
            if rules.contains(rule) && !undecided.contains(subject) {
                let mask = u32::MAX >> (32 - rule.policy().window.clamp(1, 32));
                condition.recent = condition.recent << 1 & mask;
                condition.good += 1;
            }
        }
        for Symptom { rule, subject, evidence } in symptoms {
            let key = (rule, subject);
            if self.conditions.len() >= CONDITIONS_MAX && !self.conditions.contains_key(&key) {
                self.refused += 1;
                continue;
            }
            let condition = self.conditions.entry(key).or_default();
            (condition.recent, condition.good) = (condition.recent | 1, 0);
            if condition.raised.is_none() && condition.recent.count_ones() >= rule.policy().raise {
                condition.raised = Some((wall_ms, evidence));
            }
        }
        self.conditions.retain(|(rule, _), condition| {
            if condition.good >= rule.policy().clear {
                condition.raised = None;
            }
            condition.raised.is_some() || condition.recent != 0
        });
    }

    /// The raised anomalies, one for each class and subject, and whether there are more than a report may have.
    #[must_use]
    pub fn list(&self) -> (Vec<Finding>, bool) {
        let mut found = BTreeMap::<(AnomalyClass, &HealthSubject), Finding>::new();
        for ((rule, subject), condition) in &self.conditions {
            let (Some((since_ms, evidence)), policy) = (&condition.raised, rule.policy()) else { continue };
            let known = found.entry((policy.class, subject)).or_insert_with(|| Finding {
                class: policy.class,
                subject: subject.clone(),
                since_ms: *since_ms,
                evidence: String::new(),
                cause: policy.cause.to_owned(),
            });
            // The first one names the cause.
            if *since_ms < known.since_ms {
                (known.since_ms, known.cause) = (*since_ms, policy.cause.to_owned());
            }
            if !known.evidence.is_empty() {
                known.evidence.push_str("; ");
            }
            known.evidence.push_str(evidence);
        }
        let others = found.len() > MAX_FINDINGS;
        (found.into_values().take(MAX_FINDINGS).collect(), others)
    }

    /// Symptoms that were ignored because too many are followed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symptom(rule: Rule, subject: HealthSubject) -> Symptom {
        Symptom::new(rule, subject, "measured".to_owned())
    }

    const RULES: [Rule; 15] = [
        Rule::CpuBusy,
        Rule::MemoryLow,
        Rule::TablesFull,
        Rule::NicErrors,
        Rule::NicCarrier,
        Rule::Softnet,
        Rule::PortCarrier,
        Rule::PortDrops,
        Rule::VmSilent,
        Rule::VmAddress,
        Rule::VmMac,
        Rule::OrphanInterface,
        Rule::MissingInterface,
        Rule::PeersLost,
        Rule::PathMtu,
    ];

    /// Catches a rule that no round decides, and one without hysteresis.
    #[test]
    fn each_rule_raises_when_it_lasts_and_clears_when_it_has_ended() {
        let decided =
            [&Rule::OF_DEVICE[..], &Rule::OF_VMS, &Rule::OF_CONFIGURATION, &Rule::OF_LINKS].concat();
        assert_eq!(decided.len(), RULES.len());
        for rule in RULES {
            assert!(decided.contains(&rule), "{rule:?}");
            let (mut findings, policy) = (Findings::default(), rule.policy());
            let mut rounds = 0;
            while findings.list().0.is_empty() {
                rounds += 1;
                findings.round(rounds, &[rule], vec![symptom(rule, HealthSubject::Node)]);
            }
            assert_eq!(rounds, u64::from(policy.raise), "{rule:?}");
            let raised = findings.list().0;
            assert_eq!((raised.len(), raised[0].class), (1, policy.class));
            assert_eq!((raised[0].since_ms, raised[0].evidence.as_str()), (rounds, "measured"));
            for good in 1..=policy.clear {
                assert_eq!(findings.list().0, raised, "{rule:?} after {good}");
                findings.round(rounds, &[rule], Vec::new());
            }
            assert!(findings.list().0.is_empty(), "{rule:?}");
        }
        let classes: std::collections::BTreeSet<_> = RULES.iter().map(|rule| rule.policy().class).collect();
        assert_eq!(classes.len(), AnomalyClass::ALL.len(), "each class of Table 2 has a rule");
    }

    #[test]
    fn a_rule_that_holds_now_and_then_raises_nothing() {
        let mut findings = Findings::default();
        for round in 0..10_000 {
            let holds = round % 3 == 0;
            let symptoms =
                if holds { vec![symptom(Rule::VmSilent, HealthSubject::Node)] } else { Vec::new() };
            findings.round(round, &Rule::OF_VMS, symptoms);
            // Rounds of other rules say nothing about this one.
            findings.round(round, &Rule::OF_LINKS, Vec::new());
            assert!(findings.list().0.is_empty());
        }
    }

    #[test]
    fn a_round_that_does_not_decide_about_a_subject_changes_nothing_of_it() {
        let mut findings = Findings::default();
        let undecided = BTreeSet::from([HealthSubject::Node]);
        for round in 0..3 {
            assert!(findings.list().0.is_empty());
            findings.round(round, &Rule::OF_VMS, vec![symptom(Rule::VmSilent, HealthSubject::Node)]);
            for _ in 0..10 {
                findings.round_without(round, &Rule::OF_VMS, &undecided, Vec::new());
            }
        }
        assert_eq!(findings.list().0.len(), 1);
    }

    #[test]
    fn rules_of_one_class_are_one_finding_of_a_subject() {
        let mut findings = Findings::default();
        let instance = HealthSubject::Instance(sluice_types::InstanceId::new(4));
        let rules = [Rule::VmMac, Rule::VmAddress];
        for round in 0..3 {
            let symptoms = rules.iter().map(|rule| symptom(*rule, instance.clone()));
            findings.round(round, &Rule::OF_VMS, symptoms.collect());
        }
        let (list, others) = findings.list();
        assert_eq!((list.len(), others, list[0].since_ms), (1, false, 1));
        assert_eq!(list[0].cause, Rule::VmMac.policy().cause);
        assert_eq!(list[0].evidence, "measured; measured");
    }

    #[test]
    fn memory_and_reports_are_bounded() {
        let mut findings = Findings::default();
        let subject = |number: usize| HealthSubject::Interface(format!("sl-{number}"));
        let symptoms = (0..CONDITIONS_MAX + 5).map(|number| symptom(Rule::OrphanInterface, subject(number)));
        findings.round(1, &Rule::OF_CONFIGURATION, symptoms.collect());
        assert_eq!((findings.conditions.len(), findings.refused()), (CONDITIONS_MAX, 5));
        let (list, others) = findings.list();
        assert_eq!((list.len(), others), (MAX_FINDINGS, true));
        findings.round(2, &Rule::OF_CONFIGURATION, Vec::new());
        assert!(findings.conditions.is_empty());
    }
}
