//! Services: the eBPF program and the Rust reader choose the same member for each packet, and one that a naive model permits.

use crate::ask::{Answer, HIT, Kernel, Query, ServicePacket, ask_rust};
use sluice_tables::sessions::Flow;
use sluice_tables::{Endpoint, Membarrier, MemberService, NodeTables, Role, Sizes};
use sluice_types::{MacAddr, ServiceMember, Vni};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const CELLS: u32 = 1 << 16;
const CHANGES: usize = 1500;
const PACKETS_PER_CHANGE: usize = 100;
const SERVICES: u64 = 3;
const ADDRESSES: u64 = 8;
const HOSTS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn service(&mut self) -> MemberService {
        let id = 1 + self.below(SERVICES) as u32;
        let highest = [3, 20, 127][self.below(3) as usize];
        let numbers: std::collections::BTreeSet<u8> =
            (0..self.below(6)).map(|_| 1 + self.below(highest) as u8).collect();
        let mut member = |number: u8| ServiceMember {
            number,
            mac: MacAddr::local(u64::from(id) << 16 | u64::from(number) << 8 | self.below(2)),
            host: HOSTS[self.below(2) as usize].parse().unwrap(),
            selected: self.below(4) > 0,
        };
        let members = numbers.into_iter().map(&mut member).collect();
        MemberService { id, seed: [u64::from(id), 1 + self.below(2)], members }
    }

    /// A packet to one of the addresses.
    fn packet(&mut self) -> (u32, ServicePacket) {
        let (vni, to) = place(self.below(ADDRESSES));
        let from = match to {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(0x0a00_0100 + self.below(300) as u32)),
            IpAddr::V6(_) => Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(self.below(1 << 40))).into(),
        };
        let port = |random: &mut Self| random.below(1 << 16) as u16;
        let flow = Flow {
            scope: 0,
            protocol: [6, 17, 132, 1, 58, 47][self.below(6) as usize],
            source: SocketAddr::new(from, port(self)),
            destination: SocketAddr::new(to, port(self)),
        };
        let pinned = if self.below(2) == 0 { 0 } else { self.below(256) as u8 };
        let pinned = if self.below(2) == 0 { pinned % 21 } else { pinned };
        (vni.get(), ServicePacket { flow, pinned, is_fragment: self.below(4) == 0 })
    }
}

fn place(number: u64) -> (Vni, IpAddr) {
    let vni = Vni::new(1 + (number / 4) as u32).unwrap();
    let low = number % 4 / 2;
    match number % 2 {
        0 => (vni, Ipv4Addr::from(0x0a00_0000 + low as u32).into()),
        _ => (vni, Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(low)).into()),
    }
}

#[derive(Default)]
struct Model {
    services: BTreeMap<u32, MemberService>,
    mounts: BTreeMap<(Vni, IpAddr), u32>,
}

impl Model {
    fn apply(&mut self, tables: &mut NodeTables, random: &mut Random) {
        let id = 1 + random.below(SERVICES) as u32;
        let (vni, address) = place(random.below(ADDRESSES));
        match random.below(20) {
            0 => {
                assert_eq!(tables.remove_service(id).unwrap(), self.services.remove(&id).is_some());
                self.mounts.retain(|_, of| *of != id);
            }
            1..4 => {
                let old = self.mounts.remove(&(vni, address));
                assert_eq!(tables.remove_service_address(vni, address).unwrap(), old.is_some());
            }
            4 => *tables = NodeTables::adopt(tables.memory().clone(), Membarrier::new().unwrap()).unwrap(),
            5 => {
                // An endpoint has the address for a moment.
                let (mac, host) = (MacAddr::local(7), HOSTS[0].parse().unwrap());
                tables.upsert_endpoint(&Endpoint { vni, address, mac, host }).unwrap();
                tables.remove_endpoint(vni, address).unwrap();
                self.mounts.remove(&(vni, address));
            }
            6..13 if self.services.contains_key(&id) => {
                let old = self.mounts.insert((vni, address), id);
                assert_eq!(tables.upsert_service_address(vni, address, id).unwrap(), old != Some(id));
            }
            _ => {
                let service = random.service();
                let old = self.services.insert(service.id, service.clone());
                assert_eq!(tables.upsert_service(&service).unwrap(), old.as_ref() != Some(&service));
            }
        }
    }

    /// Whether this may be the member for a packet.
    fn permits(&self, vni: u32, packet: &ServicePacket, answer: Answer) -> bool {
        let key = (Vni::new(vni).unwrap(), packet.flow.destination.ip());
        let none = Vec::new();
        let members = self.mounts.get(&key).map_or(&none, |id| &self.services[id].members);
        if let Some(pinned) = members.iter().find(|member| member.number == packet.pinned) {
            return answer == of_member(pinned);
        }
        let mut selected = members.iter().filter(|member| member.selected).peekable();
        match selected.peek() {
            None => answer.answer != HIT,
            Some(_) => selected.any(|member| answer == of_member(member)),
        }
    }
}

fn of_member(member: &ServiceMember) -> Answer {
    Answer { answer: HIT, cell: member.number.into(), mac: member.mac.to_u64() }
}

#[test]
fn three_readers_agree_on_members() {
    let kernel = Kernel::load(CELLS);
    let memory = kernel.0.memory().unwrap();
    let grace = || Membarrier::new().unwrap();
    let mut tables = NodeTables::create(memory.clone(), grace(), Sizes { endpoints: 1 }).unwrap();
    for host in HOSTS {
        tables.upsert_vtep(host.parse().unwrap(), Role::Host).unwrap();
    }
    let (mut random, mut model) = (Random(0x5eed), Model::default());
    let (mut found, mut kept) = (0, 0);
    for _ in 0..CHANGES {
        model.apply(&mut tables, &mut random);
        assert!(tables.services().eq(model.services.values().cloned()));
        assert_eq!(tables.service_addresses().count(), model.mounts.len());
        let packets: Vec<_> = (0..PACKETS_PER_CHANGE).map(|_| random.packet()).collect();
        let queries: Vec<_> = packets.iter().map(|(vni, packet)| Query::Member(*vni, *packet)).collect();
        let reader = tables.reader();
        for ((query, answer), (vni, packet)) in queries.iter().zip(kernel.ask(&queries)).zip(&packets) {
            assert_eq!(answer, ask_rust(&reader, *query), "eBPF and Rust disagree on {query:?}");
            assert!(model.permits(*vni, packet, answer), "{answer:?} for {query:?}");
            found += usize::from(answer.answer == HIT);
            kept += usize::from(answer.answer == HIT && answer.cell == u32::from(packet.pinned));
        }
    }
    let all = CHANGES * PACKETS_PER_CHANGE;
    println!("{found} of {all} packets had a member, {kept} the one that they had before");
    assert!(found > all / 4 && kept > all / 100, "{found} and {kept} of {all}");
}
