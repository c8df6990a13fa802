//! Decisions in words, for the event log and for people.

use super::{Action, Decision, Wait, Why};
use std::fmt;

/// A load as people read it.
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
                write!(f, "{gateway} of {from} is emptied, to join {to}")
            }
            Self::ReassignGateway { gateway, from, to } => {
                write!(f, "{gateway} leaves {from} and joins {to}")
            }
            Self::KeepGateway { gateway, cluster } => write!(f, "{gateway} stays with {cluster}"),
            Self::RequestGateway { cluster } => write!(f, "{cluster} needs a new gateway"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Overloaded { load, threshold, after, receiver, receiver_after } => write!(
                f,
                "its owner is at {}, to be below {}, and will be at {}; the new one, the least loaded, goes \
                 from {} to {}",
                Percent(load),
                Percent(threshold),
                Percent(after),
                Percent(receiver),
                Percent(receiver_after)
            ),
            Self::Draining { left, receiver, receiver_after } => write!(
                f,
                "its owner is to have none and has {left} left; the new one goes from {} to {}",
                Percent(receiver),
                Percent(receiver_after)
            ),
            Self::Share { from, to } => write!(f, "its owner has {from} vIPs, the new one {to}"),
            Self::ClusterOverloaded { gateway, load, mean, donor } => {
                write!(
                    f,
                    "{gateway} is at {} and no other gateway of its cluster, {} on average, can take a vIP",
                    Percent(load),
                    Percent(mean)
                )?;
                match donor {
                    Some((cluster, after)) => write!(
                        f,
                        "; {cluster} is the least loaded and will be at {} on average",
                        Percent(after)
                    ),
                    None => write!(f, "; no other cluster can give a gateway without risk to itself"),
                }
            }
            Self::Emptied => write!(f, "it has no vIP left"),
            Self::NeededAtHome { gateway, load } => {
                write!(f, "{gateway} of its own cluster is at {}", Percent(load))
            }
            Self::Lost => write!(f, "it is not reported, or was not emptied in time"),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.why)
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
                "{gateway} waits: {donor} could give its cluster a gateway, but one at a time goes between \
                 clusters"
            ),
            Self::Expansion { gateway, cluster } => {
                write!(f, "{gateway} waits: a gateway for {cluster} is on its way")
            }
            Self::Indivisible { gateway, load } => write!(
                f,
                "{gateway} at {} cannot be helped by more gateways, only by more vIPs: none that it could \
                 give away fits an empty gateway",
                Percent(load)
            ),
        }
    }
}
