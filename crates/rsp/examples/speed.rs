//! Measures how long sealing and opening a full packet takes: `cargo run --release -p
//! sluice-rsp --example speed`, on one thread, the best of five rounds.

use sluice_envelope::{BootId, ClusterKey, KeyRing, Limits, NodeId};
use sluice_rsp::{Answer, AnswerEntry, Capabilities, Destination, Message, Opener, Path, Reception, Sealer};
use sluice_types::{MacAddr, Vni};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const PACKETS: usize = 20_000;
/// With 36 entries, 1456 bytes.
const MTU: u16 = 1500;
const NOW_MS: u64 = 1_700_000_000_000;

fn message() -> Message {
    let vni = Vni::new(7).expect("a VNI");
    let host = Ipv4Addr::new(192, 0, 2, 1).into();
    let answers = (0..36).map(|number| AnswerEntry {
        destination: Destination { vni, address: Ipv4Addr::from(0x0a00_0000 + number).into() },
        answer: Answer::Path(Path {
            host,
            mac: MacAddr::local(number.into()),
            vni,
            lifetime_ms: 60_000,
            revision: 1,
            by_network: true,
            reception: Reception { mtu: 1450, capabilities: Capabilities::OWN },
        }),
    });
    Message::Notify { answers: answers.collect() }
}

fn main() {
    let secret = std::array::from_fn(|i| i as u8);
    let key = ClusterKey::new(1, &secret, 0, u64::MAX).expect("a key");
    let keys = KeyRing::new(vec![key]).expect("a ring");
    let boot = BootId::random().expect("random bytes");
    let (mut sealer, mut opener) =
        (Sealer::new(NodeId::new(1), boot), Opener::new(Limits::default(), NOW_MS));
    let (message, here) = (message(), IpAddr::from([192, 0, 2, 9]));
    let (mut sealing, mut opening) = (Duration::MAX, Duration::MAX);
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let packets: Vec<Vec<u8>> = (0..PACKETS)
            .flat_map(|_| sealer.seal(&keys, NOW_MS, here, MTU, &message).expect("sealed"))
            .collect();
        sealing = sealing.min(start.elapsed());
        let start = Instant::now();
        for packet in &packets {
            opener.open(&keys, NOW_MS, here, packet).expect("opened");
        }
        opening = opening.min(start.elapsed());
        bytes = packets[0].len();
    }
    let each = |all: Duration| all.as_secs_f64() * 1e6 / PACKETS as f64;
    println!("{bytes} bytes: sealing {:.2} us, opening {:.2} us", each(sealing), each(opening));
}
