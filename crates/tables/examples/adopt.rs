//! How long adoption takes: `cargo run --release -p sluice-tables --example adopt
//! [endpoints] [routes]`, 10 million and 1 million unless said otherwise, half
//! of each IPv4 and half IPv6, in anonymous memory, on one thread.

use sluice_tables::{Endpoint, Immediate, Memory, NodeTables, Route, Sizes, Target, Vrf};
use sluice_types::{IpNet, MacAddr, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

const CELLS: u32 = 16 << 20;
const VNIS: u32 = 1000;
const HOSTS: u32 = 10_000;
const BATCH: u32 = 10_000;
const ROUNDS: usize = 5;

fn vni(number: u32) -> Vni {
    Vni::new(1 + number).expect("a VNI")
}

fn host(number: u32) -> IpAddr {
    Ipv4Addr::from(0xac10_0000 + number).into()
}

/// A number mixed, so that what follows each other does not lie together.
fn mixed(number: u32) -> u32 {
    let x = (number ^ number >> 16).wrapping_mul(0x7feb_352d);
    let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

fn endpoint(number: u32) -> Endpoint {
    let own = number / VNIS;
    let address = match own % 2 {
        0 => Ipv4Addr::from(0x0a00_0000 + own / 2).into(),
        _ => Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(own / 2)).into(),
    };
    let mac = MacAddr::from_u64(0x0200_0000_0000 | u64::from(number));
    Endpoint { vni: vni(number % VNIS), address, mac, host: host(mixed(number) % HOSTS) }
}

/// Routes of lengths as the Internet's are, in ten large VRFs.
fn route(number: u32) -> Route {
    let bits = mixed(number);
    let prefix = match number % 2 {
        0 => IpNet::new(Ipv4Addr::from(bits).into(), 24 - (number / 2 % 3) as u8 * 2),
        _ => {
            let bits = 0x2000_u128 << 112 | u128::from(bits) << 80;
            IpNet::new(Ipv6Addr::from(bits).into(), 48 - (number / 2 % 3) as u8 * 4)
        }
    };
    let target = Target::Peer(vni(number % VNIS));
    Route { vni: vni(number % 10), prefix: prefix.expect("the length fits").trunc(), target }
}

fn fill(memory: &Memory, endpoints: u32, routes: u32) -> NodeTables {
    let sizes = Sizes { endpoints: endpoints as usize + 2 * HOSTS as usize };
    let mut tables = NodeTables::create(memory.clone(), Immediate, sizes).expect("the memory suffices");
    for number in 0..HOSTS {
        tables.upsert_vtep(host(number)).expect("a host");
    }
    for number in 0..VNIS {
        let vrf = Vrf { vni: vni(number), mtu: 1450, router4: None, router6: None, group: None };
        tables.upsert_vrf(&vrf).expect("a VRF");
    }
    for first in (0..endpoints).step_by(BATCH as usize) {
        let batch: Vec<_> = (first..endpoints.min(first + BATCH)).map(endpoint).collect();
        assert_eq!(tables.upsert_endpoints(&batch).failed, 0);
    }
    for number in 0..routes {
        tables.upsert_route(&route(number)).expect("a route");
    }
    tables
}

/// That this thread has had so far: what it takes where others want processors too.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the one structure that is there.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "this clock is always there");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let mut counts = std::env::args().skip(1).map(|text| text.parse::<u32>().expect("a count"));
    let endpoints = counts.next().unwrap_or(10_000_000);
    let routes = counts.next().unwrap_or(1_000_000);
    let memory = Memory::anonymous(CELLS).expect("a GiB");
    let begin = Instant::now();
    let mut tables = fill(&memory, endpoints, routes);
    tables.flush().expect("nobody is waited for");
    let fill = tables.fill();
    println!("filled in {:.2} s: {fill:?}", begin.elapsed().as_secs_f64());
    drop(tables);
    for _ in 0..ROUNDS {
        let (begin, cpu) = (Instant::now(), cpu_time());
        let tables = NodeTables::adopt(memory.clone(), Immediate).expect("what was filled is adopted");
        let (time, cpu) = (begin.elapsed(), cpu_time() - cpu);
        assert_eq!(tables.fill(), fill);
        println!("adopted in {:.3} s, {:.3} s of it on a processor", time.as_secs_f64(), cpu.as_secs_f64());
    }
}
