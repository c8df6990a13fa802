//! Instances and attachments over anonymous memory and a temporary state directory.

use sluice_tables::{Immediate, Memory, Sizes, Vrf};
use sluice_types::{MacAddr, Vni};

use super::*;

fn tables() -> NodeTables {
    let memory = Memory::anonymous(1 << 14).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    for vni in [1, 2] {
        let vni = Vni::new(vni).unwrap();
        tables
            .upsert_vrf(&Vrf {
                vni,
                mtu: 1430,
                router4: None,
                router6: None,
                group: None,
                elephant_bytes: None,
            })
            .unwrap();
    }
    tables
}

fn port(number: u64, name: &str, vni: u32) -> Port {
    Port {
        instance: InstanceId::new(number),
        name: name.to_owned(),
        vni: Vni::new(vni).unwrap(),
        mac: MacAddr::local(number),
        ipv4: Some(format!("10.0.0.{number}/24").parse().unwrap()),
        router4: Some("10.0.0.1".parse().unwrap()),
        ipv6: Some(format!("fd00::{number}/64").parse().unwrap()),
        mtu: 1430,
        dns4: vec!["192.0.2.53".parse().unwrap()],
    }
}

fn attachment(ifindex: u32, instance: u64) -> Attachment {
    Attachment { ifindex, instance: InstanceId::new(instance), peer_redirect: true, ipv6_enabled: true }
}

fn book(dir: &Path) -> (PortBook, NodeTables) {
    let (mut book, mut tables) = (PortBook::load(dir).unwrap().0, tables());
    for port in [port(2, "blue/web", 1), port(3, "red/web", 2), port(4, "red/db", 2)] {
        book.upsert(&mut tables, port).unwrap();
    }
    (book, tables)
}

#[test]
fn instances_are_found_by_every_name() {
    let dir = tempfile::tempdir().unwrap();
    let (book, _) = book(dir.path());
    let id = |name: &str| book.find(name).map(|port| port.instance.get());
    assert_eq!(id("inst-3"), Ok(3));
    assert_eq!(id("red/web"), Ok(3));
    assert_eq!(id("db"), Ok(4));
    assert_eq!(id("nobody"), Err(BookError::Unknown("nobody".to_owned())));
    let ambiguous = id("web").unwrap_err().to_string();
    assert!(ambiguous.contains("blue/web, red/web"), "{ambiguous}");
}

#[test]
fn an_attached_port_is_in_the_tables_until_it_is_detached() {
    let dir = tempfile::tempdir().unwrap();
    let (mut book, mut tables) = book(dir.path());
    book.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    let entry = tables.port(50).unwrap();
    assert_eq!((entry.instance, entry.vni.get(), entry.peer_redirect), (2, 1, true));
    assert_eq!(entry.ipv6.unwrap().address, "fd00::2".parse::<std::net::Ipv6Addr>().unwrap());
    // Twice is once.
    book.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    assert_eq!(book.detach(&mut tables, "tap0").unwrap(), Some(attachment(50, 2)));
    assert!(tables.port(50).is_none());
    assert_eq!(book.detach(&mut tables, "tap0").unwrap(), None);
}

#[test]
fn one_interface_is_one_instances_port() {
    let dir = tempfile::tempdir().unwrap();
    let (mut book, mut tables) = book(dir.path());
    book.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    let taken = book.attach(&mut tables, "tap1", attachment(51, 2)).unwrap_err();
    assert!(matches!(&taken, BookError::InstanceTaken { ifname, .. } if ifname == "tap0"), "{taken}");
    let taken = book.attach(&mut tables, "tap0", attachment(50, 3)).unwrap_err();
    assert!(
        matches!(&taken, BookError::InterfaceTaken { instance, .. } if instance == "blue/web"),
        "{taken}"
    );
    // A new interface of the same name replaces the old one.
    book.attach(&mut tables, "tap0", attachment(60, 3)).unwrap();
    assert_eq!((tables.port(50), tables.port(60).unwrap().instance), (None, 3));
}

#[test]
fn an_instance_that_goes_stops_at_once_and_returns() {
    let dir = tempfile::tempdir().unwrap();
    let (mut book, mut tables) = book(dir.path());
    book.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    book.remove(&mut tables, InstanceId::new(2)).unwrap();
    assert!(tables.port(50).is_none());
    assert!(book.attachments().contains_key("tap0"), "the interface stays attached");
    let changed = Port { mtu: 1300, ..port(2, "blue/web", 1) };
    book.upsert(&mut tables, changed).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1300);
    book.remove(&mut tables, InstanceId::new(2)).unwrap();
    book.attach(&mut tables, "tap0", attachment(50, 3)).unwrap();
    assert_eq!(tables.port(50).unwrap().instance, 3, "it is free for the next instance");
}

#[test]
fn a_successor_reads_what_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut book, mut tables) = book(dir.path());
    assert!(!PortBook::load(dir.path()).unwrap().1, "nothing was committed yet");
    book.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    let vtep = |address: &str, role| Vtep { address: address.parse().unwrap(), role };
    for (address, cluster) in [("192.0.2.11", 4), ("2001:db8::11", 4), ("192.0.2.12", 5), ("192.0.2.13", 4)] {
        book.upsert_vtep(&vtep(address, VtepRole::Gateway { cluster }));
    }
    book.upsert_vtep(&vtep("192.0.2.21", VtepRole::Host));
    book.upsert_vtep(&vtep("192.0.2.13", VtepRole::Host));
    book.commit().unwrap();
    let (read, complete) = PortBook::load(dir.path()).unwrap();
    assert!(complete);
    assert_eq!((&read.instances, &read.attachments), (&book.instances, &book.attachments));
    let gateways: Vec<String> = read.gateways(4).map(|address| address.to_string()).collect();
    assert_eq!(gateways, ["192.0.2.11", "2001:db8::11"]);
    assert!(read.uses(Vni::new(1).unwrap()) && !read.uses(Vni::new(9).unwrap()));
    let known = ["192.0.2.12", "192.0.2.13"].map(|vtep| read.is_gateway(vtep.parse().unwrap()));
    assert_eq!(known, [true, false]);
    book.remove_vteps(&|address| address.is_ipv4());
    book.commit().unwrap();
    let (again, _) = PortBook::load(dir.path()).unwrap();
    assert_eq!((again.gateways(4).count(), again.gateways(5).count()), (1, 0));

    // A port that only the tables know is a predecessor's half-done work.
    let stranger = sluice_tables::Port { ifindex: 99, instance: 4, ..tables.port(50).unwrap() };
    tables.remove_port(50).unwrap();
    tables.upsert_port(&stranger).unwrap();
    read.reconcile(&mut tables).unwrap();
    assert_eq!(tables.ports().map(|port| port.ifindex).collect::<Vec<_>>(), [50]);

    fs::write(dir.path().join(INSTANCES_FILE), [0xff; 9]).unwrap();
    assert!(!PortBook::load(dir.path()).unwrap().1, "damage asks for a snapshot");
    fs::write(dir.path().join(ATTACHMENTS_FILE), "{").unwrap();
    let error = PortBook::load(dir.path()).err().unwrap();
    assert!(error.to_string().contains(ATTACHMENTS_FILE), "{error}");
}

#[test]
fn no_port_has_a_larger_mtu_than_the_tunnel() {
    let dir = tempfile::tempdir().unwrap();
    let (mut book, mut tables) = book(dir.path());
    book.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1430, "its VPC's");
    assert!(book.limit_mtu(1400));
    assert!(!book.limit_mtu(1400), "no news");
    book.reconcile(&mut tables).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1400);
    book.upsert(&mut tables, Port { mtu: 1300, ..port(2, "blue/web", 1) }).unwrap();
    assert_eq!(tables.port(50).unwrap().mtu, 1300, "its VPC's, where that is less");
}

#[test]
fn a_port_waits_for_its_vpc_in_new_tables() {
    let dir = tempfile::tempdir().unwrap();
    let (mut book, mut old) = book(dir.path());
    book.attach(&mut old, "tap0", attachment(50, 2)).unwrap();
    let mut new = tables();
    new.remove_vrf(port(2, "blue/web", 1).vni).unwrap();
    book.reconcile(&mut new).unwrap();
    assert!(new.port(50).is_none(), "the agent goes on without it");
}

#[test]
fn an_interface_that_came_back_is_its_instance_s_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut book, mut tables) = book(dir.path());
    book.attach(&mut tables, "tap0", attachment(50, 2)).unwrap();
    book.attach(&mut tables, "tap0", attachment(51, 2)).unwrap();
    assert!(tables.port(50).is_none());
    assert_eq!(tables.port(51).unwrap().instance, 2);
}
