//! Adoption by the next agent: the same maps, the same attachments, new programs.
//!
//! Each test has a separate thread in a separate network namespace, and a separate
//! directory on the BPF file system.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use sluice_datapath::{
    Attachment, Datapath, Error, FLOW_CELLS_MAP, Interface, ObjectName, Settings, Traffic, flush,
    flush_closed, kernel, nat_sizes,
};
use sluice_tables::flows::Policy;
use sluice_tables::{Immediate, Meter, NamedMeters, NodeTables, Role, Sizes, Vrf};
use sluice_types::{MeterLimit, Vni};

struct Pins(PathBuf);

impl Pins {
    fn new(name: &str) -> Self {
        kernel::check().unwrap();
        kernel::mount_bpffs().unwrap();
        let dir = Path::new(kernel::BPFFS).join(format!("sluice-test-{}-{name}", std::process::id()));
        Self(dir)
    }

    fn load(&self, object: ObjectName, cells: u32) -> Result<Datapath, Error> {
        Datapath::load(&Settings { object, cells, pin_dir: Some(self.0.clone()) })
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let flushed = flush(&self.0);
        if !thread::panicking() {
            flushed.unwrap();
        }
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Catches: a flush that removes whatever directory it is given.
#[test]
fn flush_removes_only_directories_of_the_bpf_file_system() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "text").unwrap();
    let error = flush(dir.path()).unwrap_err();
    assert!(error.to_string().contains("for pins"), "{error}");
    assert!(dir.path().join("file").exists());
    assert!(!flush(&Path::new(kernel::BPFFS).join("sluice-test-none")).unwrap());
}

#[test]
fn flush_leaves_the_directories_of_other_agents() {
    let pins = Pins::new("agents");
    let of_agent = pins.0.join("one");
    fs::create_dir_all(of_agent.join("maps")).unwrap();
    let refused = [flush(&pins.0).unwrap_err(), flush_closed(&pins.0, &[]).unwrap_err()];
    for error in refused {
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("sluice-test") && cause.contains("/one is the pin directory"), "{cause}");
    }
    assert!(flush(&of_agent).unwrap());
}

/// Runs `test` in a namespace that has the veth pair u0 - t0.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let run = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        ip("link add u0 type veth peer name t0");
        ip("link set u0 up");
        ip("link set t0 up");
        test();
    };
    thread::spawn(run).join().unwrap();
}

/// Lists the programs that the kernel runs on the interface.
fn programs_on(interface: &str) -> String {
    let output = Command::new("bpftool").args(["net", "show", "dev", interface]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_successor_adopts_tables_and_counters() {
    let pins = Pins::new("maps");
    let first = pins.load(ObjectName::Gateway, 4096).unwrap();
    assert!(!first.adopted());
    let mut tables = NodeTables::create(first.memory().unwrap(), Immediate, Sizes::default()).unwrap();
    tables.upsert_vtep("192.0.2.1".parse().unwrap(), Role::Host).unwrap();
    tables.set_applied_revision(42);
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    let counted = vec![5u64.to_ne_bytes().to_vec(); cpus];
    let reason = 7u32.to_ne_bytes();
    first.map("drops").unwrap().update_percpu(&reason, &counted, MapFlags::ANY).unwrap();
    // As after a kill: only the kernel closes descriptors, and nothing else is cleaned up.
    drop((tables, first));

    let second = pins.load(ObjectName::Gateway, 4096).unwrap();
    assert!(second.adopted());
    let memory = second.memory().unwrap();
    assert!(memory.is_laid_out());
    let tables = NodeTables::adopt(memory, Immediate).unwrap();
    assert_eq!((tables.applied_revision(), tables.generation()), (42, 2));
    assert_eq!(tables.vteps().count(), 1);
    let drops = second.drops().unwrap();
    assert_eq!(drops.len(), 1);
    assert_eq!((drops[0].reason, drops[0].packets), (7, 5 * cpus as u64));
}

#[test]
fn a_vni_does_not_inherit_counts() {
    let pins = Pins::new("counts");
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    let vrf = |vni| Vrf {
        vni: Vni::new(vni).unwrap(),
        mtu: 1430,
        router4: None,
        router6: None,
        group: None,
        elephant_bytes: None,
    };
    let counted = vec![1_000_000u64.to_ne_bytes().repeat(2); cpus];
    let drop_key = |vni: u32| [vni.to_ne_bytes(), 7u32.to_ne_bytes()].concat();
    let count_drop = |datapath: &Datapath, vni| {
        let map = datapath.map("vni_drops").unwrap();
        map.update_percpu(&drop_key(vni), &vec![vec![9; 8]; cpus], MapFlags::ANY).unwrap();
    };
    let dropped = |datapath: &Datapath| {
        datapath.vni_drops().unwrap().into_iter().filter_map(|count| count.vni).collect::<Vec<_>>()
    };
    let first = pins.load(ObjectName::Gateway, 4096).unwrap();
    let mut tables = NodeTables::create(first.memory().unwrap(), Immediate, Sizes::default()).unwrap();
    tables.set_counter_reset(first.vni_counters().unwrap());
    tables.upsert_vrf(&vrf(4)).unwrap();
    tables.upsert_vrf(&vrf(5)).unwrap();
    let [of4, of5] = [4, 5].map(|vni| tables.vrf(Vni::new(vni).unwrap()).unwrap().counters);
    for index in [of4, of5] {
        for map in ["vni_traffic", "icmp_budget"] {
            first.map(map).unwrap().update_percpu(&index.to_ne_bytes(), &counted, MapFlags::ANY).unwrap();
        }
    }
    [4, 5, 77].into_iter().for_each(|vni| count_drop(&first, vni));
    tables.remove_vrf(Vni::new(5).unwrap()).unwrap();
    assert_eq!(dropped(&first), [4, 77]);
    // A packet that had found the VRF before its removal is counted after it. VNI 8 is removed and returns.
    count_drop(&first, 5);
    tables.upsert_vrf(&vrf(8)).unwrap();
    tables.remove_vrf(Vni::new(8).unwrap()).unwrap();
    tables.upsert_vrf(&vrf(8)).unwrap();
    count_drop(&first, 8);
    tables.forget_removed_vnis();
    assert_eq!(dropped(&first), [4, 8, 77]);
    drop((tables, first));

    let second = pins.load(ObjectName::Gateway, 4096).unwrap();
    let mut tables = NodeTables::adopt(second.memory().unwrap(), Immediate).unwrap();
    let counters = second.vni_counters().unwrap();
    counters.remove_unknown(|vni| tables.vrfs().any(|entry| entry.vrf.vni.get() == vni)).unwrap();
    assert_eq!(dropped(&second), [4, 8], "what a predecessor left behind");
    tables.set_counter_reset(counters);
    tables.upsert_vrf(&vrf(6)).unwrap();
    let of6 = tables.vrf(Vni::new(6).unwrap()).unwrap().counters;
    assert_eq!(of6, of5, "the index is used again");
    let traffic = second.vni_traffic(&[of4, of6]).unwrap();
    assert_eq!((traffic[0].packets, traffic[1]), (1_000_000 * cpus as u64, Traffic::default()));
    let budget = second.map("icmp_budget").unwrap();
    let budget = budget.lookup_percpu(&of6.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    assert!(budget.iter().flatten().all(|&byte| byte == 0), "{budget:?}");
}

#[test]
fn tables_of_another_size_are_adopted_as_they_are() {
    let pins = Pins::new("size");
    drop(pins.load(ObjectName::Gateway, 4096).unwrap());
    let second = pins.load(ObjectName::Gateway, 8192).unwrap();
    assert!(second.adopted());
    assert_eq!(second.memory().unwrap().cells(), 4096);
}

#[test]
fn an_incompatible_map_is_an_error_that_names_the_remedy() {
    let pins = Pins::new("other");
    drop(pins.load(ObjectName::Gateway, 4096).unwrap());
    let drops = pins.0.join("maps/drops");
    fs::remove_file(&drops).unwrap();
    let mut other = libbpf_rs::MapHandle::create(
        libbpf_rs::MapType::Array,
        Some("drops"),
        4,
        8,
        16,
        &libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        },
    )
    .unwrap();
    other.pin(&drops).unwrap();
    let error = pins.load(ObjectName::Gateway, 4096).unwrap_err();
    assert!(matches!(&error, Error::Incompatible { path, .. } if *path == drops), "{error}");
    assert!(error.to_string().contains("--flush"), "{error}");
}

/// A pinned map of an earlier version, in place of the one that is pinned.
fn pin_older(path: &Path, name: &str, entries: u32) -> libbpf_rs::MapHandle {
    let current = libbpf_rs::MapHandle::from_pinned_path(path).unwrap();
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let (kind, key, value) = (current.map_type(), current.key_size(), current.value_size());
    let mut older = libbpf_rs::MapHandle::create(kind, Some(name), key, value, entries, &options).unwrap();
    fs::remove_file(path).unwrap();
    older.pin(path).unwrap();
    older
}

/// Catches an upgrade that refuses the counters of a version with fewer reasons, forgets them, or touches the tables.
#[test]
fn counters_of_a_version_with_fewer_drop_reasons_are_kept() {
    for object in [ObjectName::Gateway, ObjectName::Vswitch] {
        let pins = Pins::new(object.as_str());
        let first = pins.load(object, 4096).unwrap();
        let mut tables = NodeTables::create(first.memory().unwrap(), Immediate, Sizes::default()).unwrap();
        tables.set_applied_revision(42);
        drop((tables, first));
        let older = pin_older(&pins.0.join("maps/drops"), "drops", 64);
        let cpus = libbpf_rs::num_possible_cpus().unwrap() as u64;
        for (reason, packets) in [(7_u32, 5_u64), (63, 9)] {
            let counted: Vec<_> = (0..cpus).map(|cpu| (packets + cpu).to_ne_bytes().to_vec()).collect();
            older.update_percpu(&reason.to_ne_bytes(), &counted, MapFlags::ANY).unwrap();
        }
        drop(older);
        let extra = (0..cpus).sum::<u64>();
        let expected = [(7, 5 * cpus + extra), (63, 9 * cpus + extra)];
        // And the agent after that finds nothing to upgrade.
        for _ in 0..2 {
            let next = pins.load(object, 4096).unwrap();
            assert!(next.adopted());
            let drops: Vec<_> = next.drops().unwrap().iter().map(|it| (it.reason, it.packets)).collect();
            assert_eq!(drops, expected);
            assert_eq!(next.map("drops").unwrap().max_entries(), sluice_tables::layout::DROP_REASONS_MAX);
            let tables = NodeTables::adopt(next.memory().unwrap(), Immediate).unwrap();
            assert_eq!(tables.applied_revision(), 42);
        }
    }
}

/// Catches meters that forget their numbers or what packets took, and an upgrade of a gateway that had no meters.
#[test]
fn meters_are_kept() {
    let pins = Pins::new("meters");
    let meters = sluice_datapath::METERS_MAP;
    let settings = Settings { object: ObjectName::Gateway, cells: 4096, pin_dir: Some(pins.0.clone()) };
    let cells = NamedMeters::cells_for;
    let load = |count| Datapath::load_sized(&settings, &[(meters, cells(count))]).unwrap();
    let limit = MeterLimit { rate_kbps: 64, burst_bytes: 16_384 };
    let meter = Meter { id: 77, inward: Some(limit), outward: None };
    let first = load(3);
    let mut tables = NodeTables::create(first.memory().unwrap(), Immediate, Sizes::default()).unwrap();
    fs::remove_file(pins.0.join("maps").join(meters)).unwrap();
    drop(first);
    // A version without meters left the tables.
    let second = load(3);
    tables.set_meters(second.meters().unwrap());
    tables.upsert_meter(&meter, 1_000_000_000).unwrap();
    let number = tables.meter_number(77).unwrap();
    // A packet has taken half of the bucket.
    let ahead = (1_000_000_000_u64 + 1_024_000_000) << sluice_tables::layout::METER_UNIT_SHIFT;
    let mut cell = second.map(meters).unwrap().lookup(&number.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    cell[..8].copy_from_slice(&ahead.to_ne_bytes());
    second.map(meters).unwrap().update(&number.to_ne_bytes(), &cell, MapFlags::ANY).unwrap();
    drop((tables, second));
    // The pinned table keeps its size.
    let third = load(9);
    let mut tables = NodeTables::adopt(third.memory().unwrap(), Immediate).unwrap();
    tables.set_meters(third.meters().unwrap());
    assert_eq!((tables.meters_total(), tables.meters().collect::<Vec<_>>()), (3, vec![(number, meter)]));
    assert_eq!(tables.meter_level(number, 1_000_000_000).inward_bytes, Some(8192));
}

#[test]
fn xdp_stays_attached_and_gets_the_new_program() {
    in_namespace(|| {
        let pins = Pins::new("xdp");
        let interface = Interface::by_name("u0").unwrap();
        let first = pins.load(ObjectName::Gateway, 4096).unwrap();
        assert_eq!(first.attach_xdp("gateway", &interface).unwrap(), Attachment::XdpNative);
        let id = program_id(&first, "gateway");
        assert!(programs_on("u0").contains(&format!("driver id {id}")), "{}", programs_on("u0"));
        drop(first);
        assert!(programs_on("u0").contains(&format!("driver id {id}")), "it outlives its loader");

        let second = pins.load(ObjectName::Gateway, 4096).unwrap();
        assert_eq!(second.attach_xdp("gateway", &interface).unwrap(), Attachment::Adopted);
        let new = program_id(&second, "gateway");
        assert_ne!(id, new);
        assert!(programs_on("u0").contains(&format!("driver id {new}")), "{}", programs_on("u0"));
        assert_eq!(second.attached().unwrap(), std::slice::from_ref(&interface));
        assert!(second.detach(&interface).unwrap());
        assert!(!programs_on("u0").contains("id "), "{}", programs_on("u0"));
        assert!(!second.detach(&interface).unwrap());
    });
}

/// Catches an adoption that gives an interface the other program of a gateway, and one that leaves an interface with its old
/// program when it becomes an Internet port, or is an underlay port again.
#[test]
fn each_interface_has_the_program_of_its_side() {
    in_namespace(|| {
        let pins = Pins::new("sides");
        let [underlay, internet] = ["u0", "t0"].map(|name| Interface::by_name(name).unwrap());
        let attach = |datapath: &Datapath, sides: [(&str, &Interface); 2], how| {
            for (program, interface) in sides {
                assert_eq!(datapath.attach_xdp(program, interface).unwrap(), how);
                let id = program_id(datapath, program);
                let programs = programs_on(&interface.name);
                assert!(programs.contains(&format!("driver id {id}")), "{program}: {programs}");
            }
        };
        let sides = [("gateway", &underlay), ("internet", &internet)];
        let first = pins.load(ObjectName::Gateway, 4096).unwrap();
        attach(&first, sides, Attachment::XdpNative);
        drop(first);
        let second = pins.load(ObjectName::Gateway, 4096).unwrap();
        attach(&second, sides, Attachment::Adopted);
        drop(second);
        let third = pins.load(ObjectName::Gateway, 4096).unwrap();
        attach(&third, [("internet", &underlay), ("gateway", &internet)], Attachment::Adopted);
        assert_eq!(third.attached().unwrap().len(), 2);
    });
}

#[test]
fn a_driver_without_xdp_gets_the_generic_mode() {
    in_namespace(|| {
        ip("link add d0 type bridge");
        let pins = Pins::new("generic");
        let interface = Interface::by_name("d0").unwrap();
        let datapath = pins.load(ObjectName::Gateway, 4096).unwrap();
        assert_eq!(datapath.attach_xdp("gateway", &interface).unwrap(), Attachment::XdpGeneric);
        assert!(programs_on("d0").contains("generic id"), "{}", programs_on("d0"));
        assert_eq!(datapath.attach_xdp("gateway", &interface).unwrap(), Attachment::Adopted);
    });
}

#[test]
fn another_program_on_the_interface_is_an_error() {
    in_namespace(|| {
        let (ours, theirs) = (Pins::new("busy1"), Pins::new("busy2"));
        let interface = Interface::by_name("u0").unwrap();
        let first = theirs.load(ObjectName::Gateway, 4096).unwrap();
        first.attach_xdp("gateway", &interface).unwrap();
        let second = ours.load(ObjectName::Gateway, 4096).unwrap();
        let error = second.attach_xdp("gateway", &interface).unwrap_err();
        assert!(matches!(&error, Error::Occupied(name) if name == "u0"), "{error}");
    });
}

#[test]
fn tc_stays_attached_and_gets_the_new_program() {
    in_namespace(|| {
        let pins = Pins::new("tc");
        let interface = Interface::by_name("u0").unwrap();
        let first = pins.load(ObjectName::Vswitch, 4096).unwrap();
        let how = first.attach_tc("port_ingress", &interface).unwrap();
        assert!(matches!(how, Attachment::Tcx | Attachment::Clsact), "{how:?}");
        drop(first);
        let second = pins.load(ObjectName::Vswitch, 4096).unwrap();
        assert_eq!(second.attach_tc("port_ingress", &interface).unwrap(), Attachment::Adopted);
        assert!(second.is_attached(&interface).unwrap());
        assert!(second.detach(&interface).unwrap());
        assert!(!second.is_attached(&interface).unwrap());
    });
}

/// Catches a program that stays on an interface that is no longer the underlay's, and a flush or an agent that closes
/// the underlay interface as if it were a VM's.
#[test]
fn a_shared_interface_has_its_program_until_another_one_does() {
    in_namespace(|| {
        let pins = Pins::new("shared");
        let [vm, old, new] = ["u0", "t0", "lo"].map(|name| Interface::by_name(name).unwrap());
        let load = || {
            let datapath = pins.load(ObjectName::Vswitch, 4096).unwrap();
            let id = program_id(&datapath, "underlay_ingress");
            (datapath, id)
        };
        let (first, first_id) = load();
        first.attach_tc("port_ingress", &vm).unwrap();
        first.share_tc("underlay_ingress", Some(&old)).unwrap();
        assert_eq!(first.attached().unwrap(), std::slice::from_ref(&vm), "it is not one of ours");
        drop(first);
        assert!(is_loaded(first_id), "it outlives its loader");

        let (second, second_id) = load();
        assert_eq!(second.shared().unwrap(), std::slice::from_ref(&old));
        second.share_tc("underlay_ingress", Some(&new)).unwrap();
        assert_eq!(second.shared().unwrap(), std::slice::from_ref(&new));
        drop(second);
        assert!(is_unloaded(first_id) && is_loaded(second_id));

        assert_eq!(flush_closed(&pins.0, &[]).unwrap(), std::slice::from_ref(&vm));
        assert!(is_unloaded(second_id));

        let (third, third_id) = load();
        third.share_tc("underlay_ingress", Some(&old)).unwrap();
        third.share_tc("underlay_ingress", None).unwrap();
        assert!(third.shared().unwrap().is_empty());
        drop(third);
        assert!(is_unloaded(third_id));

        let (fourth, fourth_id) = load();
        fourth.share_tc("underlay_ingress", Some(&old)).unwrap();
        drop(fourth);
        assert!(is_loaded(fourth_id) && flush(&pins.0).unwrap() && is_unloaded(fourth_id));
    });
}

#[test]
fn pins_of_interfaces_that_are_gone_are_removed() {
    in_namespace(|| {
        let pins = Pins::new("gone");
        let interface = Interface::by_name("u0").unwrap();
        let first = pins.load(ObjectName::Vswitch, 4096).unwrap();
        first.attach_tc("port_ingress", &interface).unwrap();
        drop(first);
        ip("link del u0");
        let second = pins.load(ObjectName::Vswitch, 4096).unwrap();
        assert!(second.attached().unwrap().is_empty());
        assert_eq!(fs::read_dir(pins.0.join("links")).unwrap().count(), 0);
        let absent = Interface::by_name("u0").unwrap_err();
        assert!(matches!(absent, Error::NoInterface(_)));
    });
}

#[test]
fn flush_leaves_nothing() {
    in_namespace(|| {
        let pins = Pins::new("flush");
        let interface = Interface::by_name("u0").unwrap();
        let first = pins.load(ObjectName::Gateway, 4096).unwrap();
        first.attach_xdp("gateway", &interface).unwrap();
        drop(first);
        assert!(flush(&pins.0).unwrap());
        assert!(!pins.0.exists());
        assert!(!programs_on("u0").contains("id "), "{}", programs_on("u0"));
        assert!(!flush(&pins.0).unwrap());
    });
}

/// Catches a flush that opens the interface of a VM, and counters that the guard does not keep.
#[test]
fn interfaces_stay_closed_after_a_flush() {
    in_namespace(|| {
        let pins = Pins::new("closed");
        let [vm, device] = ["u0", "t0"].map(|name| Interface::by_name(name).unwrap());
        let first = pins.load(ObjectName::Vswitch, 4096).unwrap();
        first.attach_tc("port_ingress", &vm).unwrap();
        first.attach_tc("uplink_ingress", &device).unwrap();
        drop(first);
        assert_eq!(flush_closed(&pins.0, &["t0"]).unwrap(), std::slice::from_ref(&vm));
        let left = |dir: &str| -> Vec<_> {
            let entries = fs::read_dir(pins.0.join(dir)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        assert_eq!((left("maps"), left("links").len()), (vec!["unknown_ports".to_owned()], 1));
        let dropped = || {
            let guard = pins.load(ObjectName::Guard, 0).unwrap();
            guard.unknown_ports().unwrap().get(&vm.index).copied().unwrap_or(0)
        };
        let before = dropped();
        // The kernel sends multicast reports when the other end goes up.
        ip("link set t0 down");
        ip("link set t0 up");
        let mut waits = 0..100;
        while dropped() == before && waits.next().is_some() {
            thread::sleep(Duration::from_millis(50));
        }
        let counted = dropped();
        assert!(counted > before);
        let second = pins.load(ObjectName::Vswitch, 4096).unwrap();
        assert!(!second.adopted());
        assert_eq!(second.attach_tc("port_ingress", &vm).unwrap(), Attachment::Adopted);
        assert!(second.unknown_ports().unwrap()[&vm.index] >= counted);
        drop(second);
        assert_eq!(flush_closed(&pins.0, &["u0", "t0"]).unwrap(), []);
        assert!(left("links").is_empty() && flush(&pins.0).unwrap());
        assert!(!pins.0.exists());
    });
}

#[test]
fn flow_statistics_and_their_events_are_kept() {
    in_namespace(|| {
        let pins = Pins::new("flows");
        let settings = Settings { object: ObjectName::Gateway, cells: 4096, pin_dir: Some(pins.0.clone()) };
        let load = |cells| Datapath::load_sized(&settings, &[(FLOW_CELLS_MAP, cells)]).unwrap();
        let first = load(129);
        let flows = first.flows().unwrap();
        assert_eq!(flows.usage(0).capacity, 128 * 4);
        assert_eq!(flows.policy(), Policy::Off);
        flows.configure(&Policy::Every { period: Duration::from_secs(1) }).unwrap();
        let policy = flows.policy();
        assert_ne!(policy, Policy::Off);
        assert_eq!(first.events_lost().unwrap(), 0);
        drop((flows, first));
        // The pinned table keeps its size.
        let second = load(1 << 10);
        assert!(second.adopted());
        let flows = second.flows().unwrap();
        assert_eq!((flows.usage(0).capacity, flows.policy()), (128 * 4, policy));
        assert_eq!(second.flow_events().unwrap().drain(&mut Vec::new()).unwrap(), 0);
        // The table of a host is smaller, and detection is off until the agent enables it.
        let vswitch =
            Datapath::load(&Settings { object: ObjectName::Vswitch, pin_dir: None, ..settings.clone() });
        let flows = vswitch.unwrap().flows().unwrap();
        assert_eq!((flows.usage(0).capacity, flows.policy()), (4 * ((1 << 14) - 1), Policy::Off));
    });
}

/// A gateway that does not translate has no memory for it. Tables of both sizes are replaced when it begins to, and ceases to.
#[test]
fn tables_of_source_nat_are_kept_and_replaced() {
    const CONFIG_BYTES: usize = sluice_tables::nat::NatRegions::CONFIG_BYTES;
    in_namespace(|| {
        let pins = Pins::new("nat");
        let settings = Settings { object: ObjectName::Gateway, cells: 4096, pin_dir: Some(pins.0.clone()) };
        let sizes = nat_sizes(64, 1 << 10, [128, 64]);
        let load = |translates: bool| {
            let loaded = Datapath::load_sized(&settings, if translates { &sizes } else { &[] }).unwrap();
            let entries = sizes.map(|(name, _)| loaded.map(name).unwrap().max_entries());
            assert_eq!(entries, if translates { sizes.map(|(_, entries)| entries) } else { [1; 6] });
            loaded
        };
        assert!(!load(false).nat().unwrap().is_laid_out());
        let config = |datapath: &Datapath| datapath.map("nat_config").unwrap();
        let marked = |datapath: &Datapath| {
            config(datapath).lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap() == [7; CONFIG_BYTES]
        };
        config(&load(true)).update(&[0; 4], &[7; CONFIG_BYTES], MapFlags::ANY).unwrap();
        assert!(marked(&load(true)));
        let other = Datapath::load_sized(&settings, &nat_sizes(128, 1 << 10, [128, 64])).unwrap_err();
        assert!(other.to_string().contains("nat_groups"), "{other}");
        assert!(!marked(&load(false)));
        assert!(!marked(&load(true)));
    });
}

/// With one group of blocks, which the map without source NAT has as well.
#[test]
fn the_least_tables_of_source_nat_are_replaced() {
    in_namespace(|| {
        let pins = Pins::new("nat-least");
        let settings = Settings { object: ObjectName::Gateway, cells: 4096, pin_dir: Some(pins.0.clone()) };
        for sizes in [&[][..], &nat_sizes(1, 1 << 10, [128, 64]), &[], &nat_sizes(64, 1 << 10, [128, 64])] {
            let loaded = Datapath::load_sized(&settings, sizes).unwrap();
            let expected = sizes.first().map_or(1, |(_, groups)| *groups);
            assert_eq!(loaded.map("nat_groups").unwrap().max_entries(), expected);
        }
    });
}

/// Whether a program with this id is in the kernel: a process holds it, or it is attached.
fn is_loaded(id: u32) -> bool {
    libbpf_rs::query::ProgInfoIter::default().any(|program| program.id == id)
}

/// Waits until the program is gone: the kernel removes programs after a grace period.
fn is_unloaded(id: u32) -> bool {
    (0..100).any(|_| {
        let gone = !is_loaded(id);
        if !gone {
            thread::sleep(Duration::from_millis(20));
        }
        gone
    })
}

fn program_id(datapath: &Datapath, name: &str) -> u32 {
    let program = datapath.program(name).unwrap();
    libbpf_rs::Program::id_from_fd(program.as_fd()).unwrap()
}
