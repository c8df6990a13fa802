//! Bodies and queries of requests to the REST API.
//!
//! An input is a byte that selects the decoder, and the text to decode.

use sluice_controller::REQUEST_DECODERS;

pub fn run(data: &[u8]) {
    let [number, text @ ..] = data else { return };
    let decoder = &REQUEST_DECODERS[usize::from(*number) % REQUEST_DECODERS.len()];
    if let Err(refusal) = (decoder.decode)(text) {
        assert!([400, 422].contains(&refusal.status), "{}: status {}", decoder.name, refusal.status);
        assert!(!refusal.detail.is_empty(), "{}: a refusal says what is wrong", decoder.name);
    }
}

/// Bodies and queries that the decoders accept. Each decoder gets all of them, so that it also gets those of others.
const TEXTS: [&str; 23] = [
    r#"{"name":"a"}"#,
    r#"{"name":"a","tenant":"tenant-1","cluster":"cluster-1","vni":7,"mtu":1430,"offload_kbps":20}"#,
    r#"{"name":"a","mtu":1430,"offload_kbps":null,"cluster":"cluster-2"}"#,
    r#"{"name":"a","ipv4":"10.0.0.0/24","ipv6":"fd00::/64"}"#,
    r#"{"name":"a","subnet":"subnet-1","host":"host-1","mac":"02:00:00:00:00:01","ipv4":"10.0.0.2","ipv6":"fd00::2"}"#,
    r#"{"instances":[{"name":"a","subnet":"subnet-1","host":"host-1"},{"name":"b","subnet":"subnet-1","host":"host-1"}]}"#,
    r#"{"host":"host-2"}"#,
    r#"{"name":"a","vips":["192.0.2.100","2001:db8::100"],"hello_interval_ms":40}"#,
    r#"{"name":"a","cluster":"cluster-1","vtep_ipv4":"192.0.2.1","vtep_ipv6":"2001:db8::1"}"#,
    r#"{"destination":"10.9.0.0/16","target":{"peering":"peering-1"}}"#,
    r#"{"destination":"fd00::/16","target":"drop"}"#,
    r#"{"vpcs":["vpc-1","vpc-2"]}"#,
    r#"{"kind":"solve","seed":5,"tolerance":0.5}"#,
    r#"{"clusters_per_tenant":4,"water_level":0.8,"gateways":{"gw-1":1000,"gw-2":null}}"#,
    r#"{"parallel":4}"#,
    r#"{"enabled":true,"interval_ms":100}"#,
    r#"{"action":"migrate","max_at_once":2,"hold_s":60,"cooldown_s":600,"sessions":"none"}"#,
    "limit=10&cursor=7670632d3432",
    "tenant=tenant-1&name=a&limit=1000",
    "vpc=vpc-1&host=host-1&name=a%20b",
    "cluster=cluster-1",
    "subject=vpc-1&after=18446744073709551615&limit=1",
    "table=rt-1",
];

pub fn seeds() -> Vec<Vec<u8>> {
    let numbers = 0..REQUEST_DECODERS.len() as u8;
    numbers.flat_map(|number| TEXTS.iter().map(move |text| [&[number], text.as_bytes()].concat())).collect()
}
