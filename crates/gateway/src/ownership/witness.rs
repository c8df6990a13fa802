//! Asking whether the underlay is still there: somebody on it who is no gateway.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use sluice_agent::Error;
use sluice_agent::frames::{answer, question};
use sluice_agent::underlay::Vteps;
use sluice_datapath::{Answers, PacketSocket};
use sluice_types::MacAddr;

/// Whom to ask: a next hop, and the interface that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Neighbour {
    /// The interface's number.
    pub ifindex: u32,
    /// The interface's address.
    pub mac: MacAddr,
    /// The neighbour's.
    pub address: IpAddr,
}

/// Neighbours that are asked at a time. Some of them may be down.
const ASKED_MAX: usize = 8;
/// Frames read in one go.
const BURST: usize = 64;

/// Questions to neighbours and their answers, without sockets.
#[derive(Debug, Default)]
struct Questions {
    neighbours: Vec<Neighbour>,
    next: usize,
    /// The last question's number, and until when an answer counts.
    last: Option<(u64, u64)>,
    asked: Vec<IpAddr>,
    /// Who answered last.
    good: Option<IpAddr>,
}

impl Questions {
    /// The frames to send: to so many neighbours, who answered last among them, others each time.
    fn ask(&mut self, token: u64, until_us: u64, own: Vteps) -> Vec<(u32, Vec<u8>)> {
        self.last = Some((token, until_us));
        let good = self.neighbours.iter().find(|it| Some(it.address) == self.good).copied();
        let mut turn: Vec<Neighbour> = good.into_iter().collect();
        for _ in 0..self.neighbours.len() {
            if turn.len() == ASKED_MAX {
                break;
            }
            let next = self.neighbours[self.next % self.neighbours.len()];
            self.next = (self.next + 1) % self.neighbours.len();
            turn.extend((Some(next) != good).then_some(next));
        }
        let mut frames = Vec::new();
        for Neighbour { ifindex, mac, address } in turn {
            let source = if address.is_ipv4() { own.v4.map(IpAddr::from) } else { own.v6.map(IpAddr::from) };
            let Some(frame) = source.and_then(|source| question(address, source, mac)) else { continue };
            frames.push((ifindex, frame));
            // Who was asked a moment ago may still answer.
            self.asked.retain(|asked| *asked != address);
            self.asked.push(address);
            if self.asked.len() > 2 * ASKED_MAX {
                self.asked.remove(0);
            }
        }
        frames
    }

    /// The question's number, if this answers it.
    fn answered(&mut self, now_us: u64, own: Vteps, frame: &[u8]) -> Option<u64> {
        let (who, whom) = answer(frame)?;
        let (token, until_us) = self.last?;
        let own = [own.v4.map(IpAddr::from), own.v6.map(IpAddr::from)];
        let mine = own.contains(&Some(whom)) && self.asked.contains(&who);
        let answered = mine && now_us <= until_us;
        if answered {
            self.good = Some(who);
        }
        answered.then_some(token)
    }
}

/// The questions with their sockets.
#[derive(Debug)]
pub struct Witness {
    arp: PacketSocket,
    neighbours: PacketSocket,
    questions: Questions,
    own: Vteps,
}

impl Witness {
    /// For a node with these addresses.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn new(own: Vteps) -> Result<Self, Error> {
        Ok(Self {
            arp: PacketSocket::listen(Answers::Arp)?,
            neighbours: PacketSocket::listen(Answers::Neighbours)?,
            questions: Questions::default(),
            own,
        })
    }

    /// Whom to ask from now on.
    pub fn set_neighbours(&mut self, mut neighbours: Vec<Neighbour>) {
        neighbours.sort_unstable();
        neighbours.dedup();
        if neighbours != self.questions.neighbours {
            tracing::debug!(?neighbours, "witnesses");
            self.questions.neighbours = neighbours;
            self.questions.next = 0;
        }
    }

    /// Asks; a question that cannot be sent is one without an answer, and so is one that is answered later.
    pub fn ask(&mut self, token: u64, until_us: u64) {
        for (ifindex, frame) in self.questions.ask(token, until_us, self.own) {
            if let Err(error) = self.arp.send(ifindex, &frame) {
                tracing::debug!(%error, ifindex, "cannot ask a neighbour");
            }
        }
    }

    /// The number of the last question, if an answer to it has come.
    pub fn receive(&mut self, now_us: u64) -> Option<u64> {
        let mut buffer = [0; 128];
        let mut found = None;
        for socket in [&self.arp, &self.neighbours] {
            for _ in 0..BURST {
                match socket.receive(&mut buffer) {
                    Ok(Some((_, frame))) => {
                        found = found.or(self.questions.answered(now_us, self.own, frame));
                    }
                    // The interface went down; the socket lives on.
                    Err(_) => {}
                    Ok(None) => break,
                }
            }
        }
        found
    }

    /// To wait for answers on.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.arp.as_fd(), self.neighbours.as_fd()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const OWN: Vteps = Vteps { v4: Some(Ipv4Addr::new(192, 0, 2, 1)), v6: None };

    fn neighbour(last: u8) -> Neighbour {
        let address = Ipv4Addr::new(192, 0, 2, last).into();
        Neighbour { ifindex: 3, mac: MacAddr::local(1), address }
    }

    /// What the asked one says.
    fn reply(frame: &[u8]) -> Vec<u8> {
        let mut reply = frame.to_vec();
        reply[21] = 2;
        reply[28..32].copy_from_slice(&frame[38..42]);
        reply[38..42].copy_from_slice(&frame[28..32]);
        reply
    }

    #[test]
    fn all_are_asked_in_turn_and_answers_in_time_count() {
        let mut questions =
            Questions { neighbours: (10..30).map(neighbour).collect(), ..Questions::default() };
        let mut asked = std::collections::BTreeSet::new();
        for token in 1..=3 {
            let until_us = token * 4_000;
            let frames = questions.ask(token, until_us, OWN);
            assert_eq!(frames.len(), ASKED_MAX);
            assert!(token == 1 || frames[0].1[41] == 10, "who answered is asked again");
            asked.extend(frames.iter().map(|(_, frame)| frame[41]));
            let good = reply(&frames[0].1);
            assert_eq!(questions.answered(until_us, OWN, &good), Some(token));
            assert_eq!(questions.answered(until_us + 1, OWN, &good), None);
            assert_eq!(questions.answered(until_us, OWN, &frames[0].1), None, "the question itself");
            let mut foreign = good.clone();
            foreign[41] = 77;
            assert_eq!(questions.answered(until_us, OWN, &foreign), None, "to another");
            foreign = good;
            foreign[31] = 77;
            assert_eq!(questions.answered(until_us, OWN, &foreign), None, "of one who was not asked");
        }
        assert_eq!(asked.len(), 20);
    }

    #[test]
    fn nobody_to_ask_is_no_answer() {
        let mut questions = Questions::default();
        assert!(questions.ask(1, 0, OWN).is_empty());
        // A family without an own address cannot be asked.
        let address = "2001:db8::1".parse().unwrap();
        questions.neighbours = vec![Neighbour { address, ..neighbour(1) }];
        assert!(questions.ask(2, 0, OWN).is_empty());
    }
}
