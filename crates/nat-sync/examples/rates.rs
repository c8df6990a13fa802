//! Prints how many sessions a second one processor encodes, seals, opens and decodes, and what a session takes on the wire.
//! Run it with `cargo run --release -p sluice-nat-sync --example rates`.

use sluice_envelope::{BootId, ClusterKey, KeyRing};
use sluice_nat_sync::{Data, Message, MessageCodec, PassId, RECORDS_MAX, Record, State};
use sluice_types::{GatewayId, Vni};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Instant;

/// Datagrams that are made: two million sessions.
const DATAGRAMS: u32 = 2_000_000 / RECORDS_MAX as u32;
const NOW_MS: u64 = 1_700_000_000_000;
/// Headers of IPv4 and UDP.
const HEADERS: usize = 28;

fn part(seq: u32) -> Message {
    let session = |number: u32| Record {
        vni: Vni::new(1 + number % 1_000).expect("a small number is a VNI"),
        protocol: 6,
        inside: SocketAddrV4::new(Ipv4Addr::from(0x0a00_0001 + number), 40_000).into(),
        remote: SocketAddrV4::new(Ipv4Addr::from(0xc633_6401), 443),
        outside: SocketAddrV4::new(Ipv4Addr::from(0xcb00_7105), 1024 + (number % 60_000) as u16),
        state: State::new(State::REPLIED | State::CONFIRMED).expect("both bits have a meaning"),
        idle: number % 1_000,
    };
    let first = seq * RECORDS_MAX as u32;
    let records = (first..first + RECORDS_MAX as u32).map(session).collect();
    let pass = PassId { boot: 7, number: 1 };
    Message::Data(Data { pass, seq, last: false, age: 0, records, units: Vec::new() })
}

fn main() {
    let here: IpAddr = Ipv4Addr::new(192, 0, 2, 9).into();
    let key = ClusterKey::new(1, &std::array::from_fn(|i| i as u8), 0, u64::MAX).expect("the key is valid");
    let keys = KeyRing::new(vec![key]).expect("one key makes a ring");
    let codec = |id| MessageCodec::new(GatewayId::new(id), BootId::from_bytes([id as u8; 16]), NOW_MS);
    let (mut sender, mut receiver) = (codec(1), codec(2));
    let parts: Vec<Message> = (0..DATAGRAMS).map(part).collect();
    let sessions = f64::from(DATAGRAMS) * RECORDS_MAX as f64;

    let begun = Instant::now();
    let bytes: Vec<Vec<u8>> = parts.iter().map(Message::encode).collect();
    println!("encode: {:.1} million sessions a second", sessions / begun.elapsed().as_secs_f64() / 1e6);
    let begun = Instant::now();
    let decoded = bytes.iter().filter(|bytes| Message::decode(bytes).is_ok()).count();
    println!("decode: {:.1} million sessions a second", sessions / begun.elapsed().as_secs_f64() / 1e6);
    assert_eq!(decoded, parts.len());

    let begun = Instant::now();
    let sealed: Vec<Vec<u8>> =
        parts.iter().map(|part| sender.seal(&keys, NOW_MS, here, part).expect("the key is valid")).collect();
    println!("encode and seal: {:.1} million", sessions / begun.elapsed().as_secs_f64() / 1e6);
    let begun = Instant::now();
    let opened = sealed.iter().filter(|packet| receiver.open(&keys, NOW_MS, here, packet).is_ok()).count();
    println!("open and decode: {:.1} million", sessions / begun.elapsed().as_secs_f64() / 1e6);
    assert_eq!(opened, parts.len());

    let on_wire = sealed.iter().map(|packet| packet.len() + HEADERS).sum::<usize>() as f64 / sessions;
    println!("{RECORDS_MAX} sessions a datagram, {on_wire:.1} bytes a session with the headers of IPv4");
}
