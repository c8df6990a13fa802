//! Which flows of this host's ports have the most packets, for findings about overload: the packets that sessions count, at two
//! times. Ports without security groups have no sessions, so that their flows are not known. This file changes with what counts
//! flows.

use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::Duration;

use sluice_agent::health::{FlowMeter, HeavyFlow};
use sluice_tables::Direction;
use sluice_tables::sessions::{Flow, Session, SessionReader};
use sluice_types::Protocol;

use crate::scopes::{Owner, Scopes};

/// Time between two readings.
const INTERVAL: Duration = Duration::from_millis(500);
/// A session with fewer packets before the interval counts as one without: it makes little difference to a heavy flow.
const PACKETS_MIN: u64 = 100;
/// Most sessions of which packets are remembered.
const REMEMBERED_MAX: usize = 65_536;

/// Packets of sessions, from and to the originator.
type Counts = HashMap<(Flow, u16), [u64; 2]>;

/// Reads the flows of these sessions.
pub fn meter(reader: SessionReader, scopes: Scopes) -> FlowMeter {
    Box::new(move || {
        let before = counts(reader.iter());
        thread::sleep(INTERVAL);
        heaviest(&before, reader.iter(), &scopes.map().given)
    })
}

fn counts(sessions: impl Iterator<Item = Session>) -> Counts {
    let heavy = sessions.filter(|session| session.packets.iter().sum::<u64>() >= PACKETS_MIN);
    heavy.take(REMEMBERED_MAX).map(|session| ((session.flow, session.generation), session.packets)).collect()
}

/// The heaviest flow of each port and direction, if there is one.
fn heaviest(
    before: &Counts,
    sessions: impl Iterator<Item = Session>,
    ports: &BTreeMap<u16, Owner>,
) -> Vec<HeavyFlow> {
    let per_second = |packets: u64| packets * 1000 / u64::try_from(INTERVAL.as_millis()).unwrap_or(1000);
    let mut heaviest: BTreeMap<(u32, bool), (u64, Flow)> = BTreeMap::new();
    for session in sessions {
        let had = before.get(&(session.flow, session.generation)).copied().unwrap_or_default();
        let is_egress = session.begun_by() == Direction::Egress;
        for (way, flow) in [session.flow, session.flow.reversed()].into_iter().enumerate() {
            let packets = session.packets[way].saturating_sub(had[way]);
            let is_sent = is_egress == (way == 0);
            if packets >= PACKETS_MIN {
                let heavy = heaviest.entry((flow.scope, is_sent)).or_insert((packets, flow));
                if packets > heavy.0 {
                    *heavy = (packets, flow);
                }
            }
        }
    }
    let named = heaviest.into_iter().filter_map(|((scope, is_sent), (packets, flow))| {
        let owner = ports.get(&u16::try_from(scope).ok()?)?;
        let protocol = Protocol::new(flow.protocol).unwrap_or(Protocol::ANY);
        Some(HeavyFlow {
            ifname: owner.ifname.to_string(),
            is_sent,
            flow: format!("{protocol} {} > {}", flow.source, flow.destination),
            packets: per_second(packets),
        })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_tables::layout::SESSION_EGRESS;

    fn session(port: u16, packets: [u64; 2], is_egress: bool) -> Session {
        let flow = Flow {
            scope: 7,
            protocol: 17,
            source: format!("10.0.0.1:{port}").parse().unwrap(),
            destination: "10.0.0.2:53".parse().unwrap(),
        };
        let action = [0, if is_egress { SESSION_EGRESS } else { 0 }];
        Session {
            flow,
            created_at: 1,
            expires_at: 2,
            state: 0,
            packets,
            bytes: [0; 2],
            action,
            generation: 3,
        }
    }

    fn named(before: &[Session], now: &[Session]) -> Vec<(bool, String, u64)> {
        let owner = Owner { ifindex: 1, ifname: "sl-7".into(), is_filtered: true };
        let ports = BTreeMap::from([(7, owner)]);
        let flows = heaviest(&counts(before.iter().copied()), now.iter().copied(), &ports);
        assert!(flows.iter().all(|flow| flow.ifname == "sl-7"));
        flows.into_iter().map(|it| (it.is_sent, it.flow, it.packets)).collect()
    }

    /// Catches a flow that was heavy before, and one in the wrong direction.
    #[test]
    fn the_flow_with_the_most_packets_in_the_interval_is_named() {
        let before = [session(1, [1_000_000, 0], true), session(2, [5000, 500], true)];
        let now = [
            session(1, [1_000_200, 0], true),
            session(2, [15_000, 550], true),
            session(3, [400, 300], false),
            session(4, [99, 99], true),
        ];
        let found = named(&before, &now);
        let (from, to) = ("10.0.0.1", "10.0.0.2:53");
        // What another end has begun comes from there.
        assert_eq!(
            found,
            [(false, format!("udp {from}:3 > {to}"), 800), (true, format!("udp {from}:2 > {to}"), 20_000)]
        );
        assert_eq!(named(&now, &now), []);
    }
}
