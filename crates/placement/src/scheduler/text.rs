//! Decisions and waits as text, for the event log and for people.

use super::{Action, Decision, DecisionReason, Wait};
use std::fmt;

/// A load, printed as a percentage.
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}%", self.0 * 100.0)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MoveVip { vip, cluster, from, to } => write!(f, "{vip} of {cluster} from {from} to {to}"),
            Self::ReleaseGateway { gateway, from, to } => {
                write!(f, "{gateway} of {from} gives up its vIPs and will join {to}")
            }
            Self::ReassignGateway { gateway, from, to } => {
                write!(f, "{gateway} leaves {from} and joins {to}")
            }
            Self::KeepGateway { gateway, cluster } => write!(f, "{gateway} stays in {cluster}"),
            Self::RequestGateway { cluster } => write!(f, "{cluster} needs a new gateway"),
        }
    }
}

impl fmt::Display for DecisionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Overloaded { load, threshold, after, receiver, receiver_after } => write!(
                f,
                "its owner is at {} load, must get below {}, and will be at {}; the new owner, the least loaded, \
                 goes from {} to {}",
                Percent(load),
                Percent(threshold),
                Percent(after),
                Percent(receiver),
                Percent(receiver_after)
            ),
            Self::Draining { left, receiver, receiver_after } => write!(
                f,
                "its owner must give up its vIPs and has {left} left; the new owner goes from {} to {}",
                Percent(receiver),
                Percent(receiver_after)
            ),
            Self::Share { from, to } => write!(f, "its owner has {from} vIPs, the new owner {to}"),
            Self::ClusterOverloaded { gateway, load, mean, donor } => {
                write!(
                    f,
                    "{gateway} is at {} load, and no other gateway of its cluster, which is at {} on \
                     average, can take a vIP",
                    Percent(load),
                    Percent(mean)
                )?;
                match donor {
                    Some((cluster, after)) => write!(
                        f,
                        "; {cluster} is the least loaded cluster and will be at {} on average",
                        Percent(after)
                    ),
                    None => write!(f, "; no other cluster can give a gateway without becoming overloaded"),
                }
            }
            Self::Emptied => write!(f, "it has no vIP left"),
            Self::NeededByOwnCluster { gateway, load } => {
                write!(f, "{gateway} of its own cluster is at {} load", Percent(load))
            }
            Self::Lost => write!(
                f,
                "it sends no reports, or did not give up its vIPs or join the other cluster in time"
            ),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.reason)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Limit { gateway, moves_per_interval } => {
                write!(f, "{gateway} waits: {moves_per_interval} vIPs have moved in this interval, the limit")
            }
            Self::Held { gateway } => {
                write!(f, "{gateway} waits: the vIPs that others could take have just moved")
            }
            Self::NoReceiver { gateway } => write!(f, "{gateway} waits: no other gateway can take a vIP"),
            Self::OneAtATime { gateway, donor } => write!(
                f,
                "{gateway} waits: {donor} could give its cluster a gateway, but only one moves between \
                 clusters at a time"
            ),
            Self::Expansion { gateway, cluster } => {
                write!(f, "{gateway} waits: a gateway for {cluster} was requested or is moving there")
            }
            Self::Indivisible { gateway, load } => write!(
                f,
                "{gateway} is at {} load and more gateways would not help, only more vIPs: none of its vIPs \
                 that may move fits into an empty gateway",
                Percent(load)
            ),
        }
    }
}
