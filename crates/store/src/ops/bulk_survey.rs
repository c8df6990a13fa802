//! What a bulk creation has, found in one pass over its requests: a million of them are more memory than processors keep, so each
//! pass takes a while, and most requests leave most fields open.

use crate::NewInstance;
use sluice_types::{HostId, SubnetId};
use std::collections::HashSet;

/// From how many requests on the names are compared on a second thread.
const TWO_THREADS: usize = 1 << 16;

/// What the requests have in all.
pub(crate) struct Survey {
    /// Their hosts, in ascending order.
    pub hosts: Vec<HostId>,
    /// Their subnets, in ascending order.
    pub subnets: Vec<SubnetId>,
    /// Some list their security groups.
    pub has_groups: bool,
    /// Some assign a MAC or an address.
    pub has_given: bool,
    /// Some have settings.
    pub has_settings: bool,
    /// No two have the same name.
    pub are_distinct: bool,
}

impl Survey {
    /// Looks at all requests.
    pub fn new(new: &[NewInstance]) -> Self {
        if new.len() < TWO_THREADS {
            return Self { are_distinct: are_distinct(new), ..Self::of_fields(new) };
        }
        std::thread::scope(|scope| {
            let names = scope.spawn(|| are_distinct(new));
            let survey = Self::of_fields(new);
            let are_distinct = names.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Self { are_distinct, ..survey }
        })
    }

    fn of_fields(new: &[NewInstance]) -> Self {
        let mut survey = Self {
            hosts: Vec::with_capacity(new.len()),
            subnets: Vec::new(),
            has_groups: false,
            has_given: false,
            has_settings: false,
            are_distinct: false,
        };
        for one in new {
            survey.hosts.push(one.host);
            // Most have the subnet of the one before.
            if survey.subnets.last() != Some(&one.subnet) {
                survey.subnets.push(one.subnet);
            }
            survey.has_groups |= one.security_groups.is_some();
            survey.has_given |= one.mac.is_some() || one.ipv4.is_some() || one.ipv6.is_some();
            survey.has_settings |= !one.settings.is_empty();
        }
        survey.hosts.sort_unstable();
        survey.hosts.dedup();
        survey.subnets.sort_unstable();
        survey.subnets.dedup();
        survey
    }

    /// The subnet of all requests, if they leave their addresses open.
    pub fn only_subnet(&self) -> Option<SubnetId> {
        match self.subnets[..] {
            [subnet] if !self.has_given => Some(subnet),
            _ => None,
        }
    }
}

fn are_distinct(new: &[NewInstance]) -> bool {
    let mut names = HashSet::with_capacity(new.len());
    new.iter().all(|one| names.insert(one.name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a field that is not looked at, and names that are compared otherwise on two threads.
    #[test]
    fn survey_finds_what_one_request_has() {
        let one = |i: usize| NewInstance {
            name: format!("vm-{i}"),
            subnet: SubnetId::new(3 - i as u64 % 2),
            host: HostId::new(9 - i as u64 % 3),
            mac: None,
            ipv4: None,
            ipv6: None,
            security_groups: None,
            settings: sluice_types::PortSettings::default(),
        };
        for count in [10, TWO_THREADS] {
            let mut all: Vec<NewInstance> = (0..count).map(one).collect();
            let found = |all: &[NewInstance]| {
                let survey = Survey::new(all);
                assert_eq!(survey.hosts, [7, 8, 9].map(HostId::new));
                assert_eq!(
                    (survey.subnets.as_slice(), survey.only_subnet()),
                    (&[2, 3].map(SubnetId::new)[..], None)
                );
                [survey.has_groups, survey.has_given, survey.has_settings, survey.are_distinct]
            };
            assert_eq!(found(&all), [false, false, false, true]);
            all[7].security_groups = Some(Vec::new());
            assert_eq!(found(&all), [true, false, false, true]);
            all[7].ipv6 = Some("fd00::1".parse().unwrap());
            assert_eq!(found(&all), [true, true, false, true]);
            all[7].settings.spoofing_protection = Some(false);
            all[8].name = "vm-1".into();
            assert_eq!(found(&all), [true, true, true, false]);
        }
        let same: Vec<NewInstance> = (0..4).map(|i| one(2 * i)).collect();
        assert_eq!(Survey::new(&same).only_subnet(), Some(SubnetId::new(3)));
        let given = NewInstance { ipv4: Some([10, 0, 0, 9].into()), ..one(0) };
        assert_eq!(Survey::new(&[given]).only_subnet(), None);
    }
}
