//! `api/rsp.md` agrees with the code: example packet, refusal table, and the numbers in the text.

use crate::make::destination;
use sluice_envelope::{
    BootId, ClusterKey, HEADER_BYTES, KeyRing, Limits, NodeId, PACKET_BYTES_MAX, TAG_BYTES, WINDOW,
};
use sluice_rsp::{
    Answer, AnswerEntry, BODY_HEADER_BYTES, Capabilities, MTU_MIN, Message, Opener, Path, RECEPTION_MTU_MIN,
    RSP_PORT, Reception, Refusal, Sealer, VERSION, decode,
};
use sluice_types::{GatewayId, MacAddr, Vni};
use std::net::{IpAddr, Ipv4Addr};

const SPEC: &str = include_str!("../../../../api/rsp.md");
const SENT_MS: u64 = 1_700_000_000_000;
const TO: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 21));

/// Bytes of the code block that follows `title`, without the offsets.
fn block(title: &str) -> Vec<u8> {
    let (_, rest) = SPEC.split_once(title).expect("the specification contains the title");
    let text = rest.split("```").nth(1).expect("a code block follows the title");
    text.lines()
        .flat_map(|line| line.split_whitespace())
        .filter(|word| word.len() == 2)
        .map(|word| u8::from_str_radix(word, 16).expect("a byte in hexadecimal"))
        .collect()
}

/// The specification with all line breaks replaced by spaces.
fn text() -> String {
    SPEC.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn message() -> Message {
    let path = Path {
        host: "192.0.2.22".parse().unwrap(),
        mac: MacAddr::from_u64(0x0200_0000_0005),
        vni: Vni::new(4660).unwrap(),
        lifetime_ms: 60_000,
        revision: 42,
        by_network: true,
        reception: Reception { mtu: 1450, capabilities: Capabilities::NONE },
    };
    Message::Notify {
        answers: vec![
            AnswerEntry { destination: destination(4660, "10.0.0.5"), answer: Answer::Path(path) },
            AnswerEntry {
                destination: destination(4660, "fd00::5"),
                answer: Answer::Absent { revision: 43 },
            },
        ],
    }
}

fn keys() -> KeyRing {
    let secret = std::array::from_fn(|i| i as u8);
    KeyRing::new(vec![ClusterKey::new(7, &secret, 0, u64::MAX).unwrap()]).unwrap()
}

#[test]
fn example_packet_is_sealed_and_opened_by_the_code() {
    let boot = BootId::from_bytes(std::array::from_fn(|i| 0xa0 + i as u8));
    let mut sealer = Sealer::new(NodeId::from(GatewayId::new(3)), boot);
    let packet = block("The packet, 155 bytes:");
    assert_eq!(sealer.seal(&keys(), SENT_MS, TO, 1500, &message()), Ok(vec![packet.clone()]));

    let mut opener = Opener::new(Limits::default(), SENT_MS);
    let opened = opener.open(&keys(), SENT_MS, TO, &packet).unwrap();
    assert_eq!((opened.message, opened.boot, opened.key_id), (message(), boot, 7));
    assert_eq!(opened.sender, NodeId::from(GatewayId::new(3)));

    let body = block("The body (");
    assert_eq!(body.len(), packet.len() - HEADER_BYTES - TAG_BYTES);
    assert_eq!(decode(VERSION.1, &body).unwrap().message, message());
}

#[test]
fn every_refusal_is_in_the_table() {
    let (_, section) = SPEC.split_once("## Refusals").unwrap();
    let rows: Vec<&str> = section
        .lines()
        .skip_while(|line| !line.starts_with("| --:"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(rows.len() + 1, Refusal::NAMES.len());
    for (row, (number, name)) in rows.iter().zip(Refusal::NAMES.iter().enumerate().skip(1)) {
        assert!(row.starts_with(&format!("| {number} | `{name}` | ")), "{row}: not {number} {name}");
    }
}

#[test]
fn numbers_in_the_text_are_those_of_the_code() {
    let least = HEADER_BYTES + BODY_HEADER_BYTES + TAG_BYTES;
    let limits = Limits::default();
    let cache = sluice_rsp::cache::Config::default();
    for sentence in [
        format!("port {RSP_PORT} unless"),
        format!("# RSP {}.{} ", VERSION.0, VERSION.1),
        format!("At least {least} bytes and at most {PACKET_BYTES_MAX}."),
        format!("MTU, which is at least {MTU_MIN}."),
        format!("at least {RECEPTION_MTU_MIN}; 0: not known"),
        format!("the last {WINDOW} counters"),
        format!("at most {} s from the receiver's", limits.skew_max_ms / 1000),
        format!("has windows ({} unless configured)", limits.senders_max),
        format!("confirmed more than {} ms ago, every {} ms", cache.confirm_after_ms, cache.round_ms),
        format!("most {} each {} ms", cache.queries_per_round_max, cache.round_ms),
        format!("at least every {} s", cache.confirm_covered_ms / 1000),
        format!("has said *current* for {} ms", cache.network_silence_ms),
        format!("not used for {} s; and when it has {},", cache.idle_ms / 1000, cache.entries_max),
    ] {
        assert!(text().contains(&sentence), "api/rsp.md does not contain: {sentence}");
    }
}

#[test]
fn number_of_entries_per_packet_is_the_one_in_the_text() {
    let fits = |bytes: usize| (1500 - 28 - HEADER_BYTES - BODY_HEADER_BYTES - TAG_BYTES) / bytes;
    let (path, query) = (|a: usize, h: usize| 30 + a + h, |a: usize| 13 + a);
    let sentence = format!(
        "up to {} paths of IPv4 or {} of IPv6, or {} or {} queries",
        fits(path(4, 4)),
        fits(path(16, 16)),
        fits(query(4)),
        fits(query(16))
    );
    assert!(text().contains(&sentence), "api/rsp.md does not contain: {sentence}");
}
