//! Reports of health checks: what a node has found, and the links that it watches. It changes with what is reported.

use crate::proto::finding::Subject;
use crate::{MAX_FINDINGS, MAX_HEALTH_LINKS, Malformed, proto};
use sluice_types::{AnomalyClass, InstanceId, is_unicast};
use std::fmt;
use std::net::IpAddr;

/// What an anomaly is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HealthSubject {
    /// The node that reports it.
    Node,
    /// An interface of the node, by name.
    Interface(String),
    /// An instance of the node.
    Instance(InstanceId),
    /// The link to another node, by its VTEP.
    Peer(IpAddr),
}

impl fmt::Display for HealthSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("node"),
            Self::Interface(name) => write!(f, "interface {name}"),
            Self::Instance(id) => id.fmt(f),
            Self::Peer(vtep) => write!(f, "peer {vtep}"),
        }
    }
}

/// An anomaly that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind of anomaly.
    pub class: AnomalyClass,
    /// What it is about.
    pub subject: HealthSubject,
    /// Time since 1970, in milliseconds, at which it was found.
    pub since_ms: u64,
    /// What was measured.
    pub evidence: String,
    /// What is likely.
    pub cause: String,
}

/// The probes between a node and one that it watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHealth {
    /// VTEP of the other node.
    pub peer: IpAddr,
    /// Whether that is a gateway.
    pub gateway: bool,
    /// Part of the last 8 probes that was not answered, in thousandths.
    pub loss_permille: u32,
    /// Round-trip time of the last probe that was answered, in microseconds; 0: none was.
    pub rtt_us: u32,
}

/// What the health checks of a node have found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// At most [`MAX_FINDINGS`].
    pub findings: Vec<Finding>,
    /// There are more findings.
    pub others: bool,
    /// At most [`MAX_HEALTH_LINKS`].
    pub links: Vec<LinkHealth>,
}

const CLASSES: [(AnomalyClass, proto::AnomalyClass); 9] = [
    (AnomalyClass::ServerResources, proto::AnomalyClass::ServerResources),
    (AnomalyClass::StaleConfiguration, proto::AnomalyClass::StaleConfiguration),
    (AnomalyClass::VmMisconfiguration, proto::AnomalyClass::VmMisconfiguration),
    (AnomalyClass::VmUnresponsive, proto::AnomalyClass::VmUnresponsive),
    (AnomalyClass::NicFault, proto::AnomalyClass::NicFault),
    (AnomalyClass::HypervisorFault, proto::AnomalyClass::HypervisorFault),
    (AnomalyClass::MiddleboxOverload, proto::AnomalyClass::MiddleboxOverload),
    (AnomalyClass::VswitchOverload, proto::AnomalyClass::VswitchOverload),
    (AnomalyClass::SwitchOverload, proto::AnomalyClass::SwitchOverload),
];

impl From<Finding> for proto::Finding {
    fn from(finding: Finding) -> Self {
        let class = CLASSES.iter().find(|(class, _)| *class == finding.class);
        let subject = match finding.subject {
            HealthSubject::Node => None,
            HealthSubject::Interface(name) => Some(Subject::Interface(name)),
            HealthSubject::Instance(id) => Some(Subject::Instance(id.get())),
            HealthSubject::Peer(vtep) => Some(Subject::Peer(vtep.into())),
        };
        Self {
            class: class.map_or(0, |(_, number)| *number as i32),
            subject,
            since_ms: finding.since_ms,
            evidence: finding.evidence,
            cause: finding.cause,
        }
    }
}

impl TryFrom<proto::Finding> for Finding {
    type Error = Malformed;
    fn try_from(message: proto::Finding) -> Result<Self, Malformed> {
        let class = CLASSES.iter().find(|(_, number)| *number as i32 == message.class);
        let (class, _) = class.ok_or(Malformed::UnknownKind)?;
        let subject = match message.subject {
            None => HealthSubject::Node,
            Some(Subject::Interface(name)) => HealthSubject::Interface(name),
            Some(Subject::Instance(id)) if id != 0 && i64::try_from(id).is_ok() => {
                HealthSubject::Instance(InstanceId::new(id))
            }
            Some(Subject::Instance(id)) => return Err(Malformed::Id(id, "instance")),
            Some(Subject::Peer(vtep)) => HealthSubject::Peer(vtep.read("peer")?),
        };
        let proto::Finding { since_ms, evidence, cause, .. } = message;
        Ok(Self { class: *class, subject, since_ms, evidence, cause })
    }
}

impl From<LinkHealth> for proto::LinkHealth {
    fn from(link: LinkHealth) -> Self {
        let LinkHealth { peer, gateway, loss_permille, rtt_us } = link;
        Self { peer: Some(peer.into()), gateway, loss_permille, rtt_us }
    }
}

impl TryFrom<proto::LinkHealth> for LinkHealth {
    type Error = Malformed;
    fn try_from(message: proto::LinkHealth) -> Result<Self, Malformed> {
        let peer = message.peer.ok_or(Malformed::NoAddress("peer"))?.read("peer")?;
        if !is_unicast(peer) {
            return Err(Malformed::NotUnicast("peer", peer));
        }
        let proto::LinkHealth { gateway, loss_permille, rtt_us, .. } = message;
        Ok(Self { peer, gateway, loss_permille: loss_permille.min(1000), rtt_us })
    }
}

impl From<HealthReport> for proto::HealthReport {
    fn from(report: HealthReport) -> Self {
        let HealthReport { findings, others, links } = report;
        let others = others || findings.len() > MAX_FINDINGS;
        Self {
            findings: findings.into_iter().take(MAX_FINDINGS).map(Into::into).collect(),
            others,
            links: links.into_iter().take(MAX_HEALTH_LINKS).map(Into::into).collect(),
        }
    }
}

impl From<proto::HealthReport> for HealthReport {
    /// Findings that cannot be read, and those beyond [`MAX_FINDINGS`], count as others.
    fn from(message: proto::HealthReport) -> Self {
        let count = message.findings.len();
        let findings: Vec<Finding> = message
            .findings
            .into_iter()
            .take(MAX_FINDINGS)
            .filter_map(|finding| finding.try_into().ok())
            .collect();
        let links = message.links.into_iter().take(MAX_HEALTH_LINKS);
        Self {
            others: message.others || findings.len() < count,
            findings,
            links: links.filter_map(|link| link.try_into().ok()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(class: AnomalyClass, subject: HealthSubject) -> Finding {
        Finding { class, subject, since_ms: 7, evidence: "3 of 3".to_owned(), cause: "it hangs".to_owned() }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let subjects = [
            HealthSubject::Node,
            HealthSubject::Interface("sl-1".to_owned()),
            HealthSubject::Instance(InstanceId::new(9)),
            HealthSubject::Peer("2001:db8::1".parse().unwrap()),
        ];
        let findings = AnomalyClass::ALL.into_iter().zip(subjects.into_iter().cycle());
        let findings = findings.map(|(class, subject)| finding(class, subject)).collect();
        let peer = "192.0.2.1".parse().unwrap();
        let links = vec![LinkHealth { peer, gateway: true, loss_permille: 125, rtt_us: 300 }];
        let report = HealthReport { findings, others: false, links };
        assert_eq!(HealthReport::from(proto::HealthReport::from(report.clone())), report);
    }

    /// Catches a report without a bound, and a malformed finding that costs the others.
    #[test]
    fn what_cannot_be_read_counts_as_others() {
        let one = finding(AnomalyClass::NicFault, HealthSubject::Node);
        let many = HealthReport { findings: vec![one; MAX_FINDINGS + 1], ..HealthReport::default() };
        let mut message = proto::HealthReport::from(many);
        assert!(message.others && message.findings.len() == MAX_FINDINGS);
        message.others = false;
        message.findings[0].class = 99;
        message.findings[1].subject = Some(Subject::Instance(0));
        message.findings[2].subject = Some(Subject::Peer(proto::Address::default()));
        let report = HealthReport::from(message);
        assert!(report.others && report.findings.len() == MAX_FINDINGS - 3);
    }
}
