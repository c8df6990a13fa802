//! Loads, attaches and pins the eBPF programs, maps their tables into memory
//! and reads their counters.
//!
//! Everything that packets need is pinned: an agent can stop at any time, and
//! the next agent adopts the maps and attachments. Programs are replaced in
//! place, so a hook always has a program.
//!
//! `object` has the compiled programs, `maps` pins and maps their maps, `attach` attaches programs by the
//! system calls of `sys`. `counters` reads and resets counters. `ring` reads BPF ring buffers, `events` their
//! records. `remote_identities` reads and writes the map of that name. `kernel` checks the kernel at the start. `nat_copier` runs the program
//! that installs sessions of source NAT.

mod attach;
mod counters;
mod error;
mod events;
pub mod kernel;
mod maps;
mod nat_copier;
mod object;
mod remote_identities;
mod ring;
mod sys;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Once;

use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, PrintLevel, ProgramMut};
use sluice_tables::flows::Flows;
use sluice_tables::nat::NatRegions;
use sluice_tables::sessions::{Region, SessionRegions};
use sluice_tables::{Memory, NamedMeters, PortCredits};

use attach::Links;
pub use attach::{Attachment, Interface};
pub use counters::{DropCount, MeterBytes, MeterCounters, NatRingCounts, PacketTimes, Traffic, VniCounters};
pub use error::Error;
pub use events::{
    Claim, Claims, Event, EventRing, FlowEvent, FlowEvents, Stray, Strays, UnknownReceiver, UnknownReceivers,
};
pub use maps::{
    CELLS_MAP, FLOW_CELLS_MAP, METER_COUNTS_MAP, METERS_MAP, NAT_MAPS, SESSION_MAPS, create_pin_dir,
    nat_sizes, pinned_tables,
};
pub use nat_copier::NatCopier;
pub use object::ObjectName;
pub use remote_identities::{RemoteIdentities, RemoteIdentity};
use ring::Ring;

/// Which programs to load and where to pin them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Object that contains the programs.
    pub object: ObjectName,
    /// Number of cells of new tables. Pinned tables keep their size.
    pub cells: u32,
    /// Directory on the BPF file system. Without one, nothing is pinned, and programs and maps are removed
    /// when this process ends.
    pub pin_dir: Option<PathBuf>,
}

/// Loaded programs and their maps.
#[derive(Debug)]
pub struct Datapath {
    name: ObjectName,
    object: Object,
    pin_dir: Option<PathBuf>,
    adopted: bool,
}

impl Datapath {
    /// Loads the programs. They use the pinned maps, or new ones where none is pinned.
    ///
    /// # Errors
    /// If the verifier rejects a program, or a pinned map is incompatible.
    pub fn load(settings: &Settings) -> Result<Self, Error> {
        Self::load_sized(settings, &[])
    }

    /// Loads the programs like [`Datapath::load`], and sets the number of entries of other new maps as
    /// well, such as [`FLOW_CELLS_MAP`] and [`SESSION_MAPS`]. Names of maps that the programs do not have
    /// are ignored.
    ///
    /// # Errors
    /// As [`Datapath::load`].
    pub fn load_sized(settings: &Settings, sizes: &[(&str, u32)]) -> Result<Self, Error> {
        forward_libbpf_messages();
        let name = settings.object;
        let missing =
            || Error::Missing { object: name.as_str(), kind: "source file in", name: "bpf/".into() };
        let bytes = name.bytes().ok_or_else(missing)?;
        let mut open = ObjectBuilder::default()
            .name(name.as_str())
            .and_then(|builder| builder.open_memory(bytes))
            .map_err(Error::bpf(format!("open the {} programs", name.as_str())))?;
        let maps = settings.pin_dir.as_ref().map(|dir| dir.join(maps::PINNED_MAPS));
        if let Some(dir) = &settings.pin_dir {
            maps::create_pin_dir(&dir.join(maps::PINNED_MAPS))?;
            Links::own(dir).prepare()?;
            Links::shared(dir).prepare()?;
        }
        let sizes = [&[(CELLS_MAP, settings.cells)], sizes].concat();
        let prepared = maps::prepare(&mut open, &sizes, maps.as_deref())?;
        let object = open.load().map_err(Error::bpf(format!("load the {} programs", name.as_str())))?;
        let loaded = Self { name, object, pin_dir: settings.pin_dir.clone(), adopted: prepared.adopted };
        if let Some(drops) = prepared.drops {
            maps::keep_drops(&drops, &loaded.map("drops")?)?;
        }
        Ok(loaded)
    }

    /// Whether an earlier agent created the tables.
    #[must_use]
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// Finds a program by the name of its function.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn program(&self, name: &str) -> Result<ProgramMut<'_>, Error> {
        self.object
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| self.missing("program", name))
    }

    /// Finds a map by name.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn map(&self, name: &str) -> Result<MapHandle, Error> {
        let map =
            self.object.maps().find(|map| map.name() == name).ok_or_else(|| self.missing("map", name))?;
        MapHandle::try_from(&map).map_err(Error::bpf(format!("use the map {name}")))
    }

    fn missing(&self, kind: &'static str, name: &str) -> Error {
        Error::Missing { object: self.name.as_str(), kind, name: name.to_owned() }
    }

    /// Maps the forwarding tables into memory.
    ///
    /// # Errors
    /// If the kernel refuses the mapping.
    pub fn memory(&self) -> Result<Memory, Error> {
        self.memory_of(CELLS_MAP)
    }

    /// Maps the map of cells with this name into memory.
    ///
    /// # Errors
    /// [`Error::Missing`], or if the kernel refuses the mapping.
    pub fn memory_of(&self, map: &str) -> Result<Memory, Error> {
        maps::map_cells(self.map(map)?)
    }

    /// Maps the session tables into memory.
    ///
    /// # Errors
    /// If the programs have no session tables, or the kernel refuses the mapping.
    pub fn sessions(&self) -> Result<SessionRegions, Error> {
        let region = |name| maps::map_region(self.map(name)?);
        let [ipv4, ipv6] = SESSION_MAPS;
        Ok(SessionRegions { config: region("session_config")?, ipv4: region(ipv4)?, ipv6: region(ipv6)? })
    }

    /// Maps the tables of source NAT into memory. On a gateway that was loaded without [`nat_sizes`], they have one element each
    /// and cannot be laid out.
    ///
    /// # Errors
    /// If the programs have no such tables, or the kernel refuses the mapping.
    pub fn nat(&self) -> Result<NatRegions, Error> {
        let region = |name| maps::map_region(self.map(name)?);
        let [groups, tuples, ports] = NAT_MAPS;
        Ok(NatRegions {
            config: region("nat_config")?,
            groups: region(groups)?,
            ports: region(ports)?,
            tuples: region(tuples)?,
            sessions: self.sessions()?,
        })
    }

    /// The program of a gateway that installs sessions of source NAT.
    ///
    /// # Errors
    /// If the programs have no such program.
    pub fn nat_copier(&self) -> Result<NatCopier, Error> {
        NatCopier::new(self.program("nat_copy")?.as_fd())
    }

    /// Maps the shares that ports have of the session tables into memory.
    ///
    /// # Errors
    /// If the programs have no such shares, or the kernel refuses the mapping.
    pub fn session_shares(&self) -> Result<Region, Error> {
        maps::map_region(self.map("session_shares")?)
    }

    /// Maps the meters of ports into memory.
    ///
    /// # Errors
    /// If the programs have no such meters, or the kernel refuses the mapping.
    pub fn port_meters(&self) -> Result<Region, Error> {
        maps::map_region(self.map("port_meters")?)
    }

    /// Maps the credits of ports, and what packets cost, into memory.
    ///
    /// # Errors
    /// If the programs have no such maps, or the kernel refuses the mapping.
    pub fn port_credits(&self) -> Result<PortCredits, Error> {
        let map = |name| maps::map_region(self.map(name)?);
        PortCredits::new(map("port_credits")?, map("packet_costs")?)
            .map_err(Error::tables("open the credits of ports"))
    }

    /// Opens what the programs of a vSwitch measure of the packets that they time.
    ///
    /// # Errors
    /// If the programs time no packets.
    pub fn packet_times(&self) -> Result<PacketTimes, Error> {
        self.map("packet_times").map(PacketTimes)
    }

    /// Opens the meters of a gateway. Those of an earlier agent are kept, with what packets have taken; new memory is laid out.
    ///
    /// # Errors
    /// If the programs have no meters, the kernel refuses the mapping, or another version has laid them out.
    pub fn meters(&self) -> Result<NamedMeters, Error> {
        NamedMeters::open(self.memory_of(METERS_MAP)?).map_err(Error::tables("open the meters"))
    }

    /// Opens the flow statistics of a gateway or vSwitch. Statistics of an earlier agent are kept; new memory is
    /// initialized.
    ///
    /// # Errors
    /// If the programs have no flow statistics, or the kernel refuses the mapping.
    pub fn flows(&self) -> Result<Flows, Error> {
        let memory = self.memory_of(FLOW_CELLS_MAP)?;
        Flows::open(memory).map_err(Error::tables("initialize the flow statistics"))
    }

    /// Opens the ring of flow events of a gateway or vSwitch. It must have one reader at a time.
    ///
    /// # Errors
    /// If the programs have no such ring, or the kernel refuses the mapping.
    pub fn flow_events(&self) -> Result<FlowEvents, Error> {
        Ring::new(self.map("flow_events")?).map(EventRing::new)
    }

    /// Opens the vSwitch's ring of stray events. It must have one reader at a time.
    ///
    /// # Errors
    /// If the programs have no such ring, or the kernel refuses the mapping.
    pub fn strays(&self) -> Result<Strays, Error> {
        Ring::new(self.map("strays")?).map(EventRing::new)
    }

    /// Opens the ring of claims of a vSwitch.
    ///
    /// # Errors
    /// [`Error::Missing`], or if the ring cannot be mapped.
    pub fn claims(&self) -> Result<Claims, Error> {
        Ring::new(self.map("claims")?).map(EventRing::new)
    }

    /// Opens the vSwitch's ring of events about unknown receivers. It must have one reader at a time.
    ///
    /// # Errors
    /// If the programs have no such ring, or the kernel refuses the mapping.
    pub fn unknown_receivers(&self) -> Result<UnknownReceivers, Error> {
        Ring::new(self.map("unknown_receivers")?).map(EventRing::new)
    }

    /// Opens the vSwitch's map of the identities of VMs on other hosts.
    ///
    /// # Errors
    /// If the programs have no such map.
    pub fn remote_identities(&self) -> Result<RemoteIdentities, Error> {
        self.map("remote_identities").map(RemoteIdentities::new)
    }

    /// Number of events that were not posted: the ring was full, or a CPU had
    /// more strays or unknown receivers than its budget of events.
    ///
    /// # Errors
    /// If the programs post no events, or the counter cannot be read.
    pub fn events_lost(&self) -> Result<u64, Error> {
        counters::events(&self.map("events_lost")?)
    }

    /// Number of flow events that were not posted because the ring was half full and the VNI had used up its
    /// share of it.
    ///
    /// # Errors
    /// If the programs detect no flows, or the counter cannot be read.
    pub fn events_refused(&self) -> Result<u64, Error> {
        counters::events(&self.map("events_refused")?)
    }

    /// What the gateway did with packets of the ring in which sessions of source NAT begin.
    ///
    /// # Errors
    /// If the programs are not those of a gateway, or the counters cannot be read.
    pub fn nat_ring(&self) -> Result<NatRingCounts, Error> {
        counters::nat_ring(&self.map("nat_ring_counts")?)
    }

    /// Attaches a program to an interface's XDP hook: in the driver if it supports XDP, otherwise in
    /// generic mode.
    ///
    /// # Errors
    /// [`Error::Occupied`] if the hook has a program that is not Sluice's.
    pub fn attach_xdp(&self, program: &str, interface: &Interface) -> Result<Attachment, Error> {
        let how = self.links()?.attach_xdp(self.program(program)?.as_fd(), interface)?;
        tracing::info!(interface = interface.name, program, ?how, "attached");
        Ok(how)
    }

    /// Attaches a program to an interface's TC ingress hook.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach_tc(&self, program: &str, interface: &Interface) -> Result<Attachment, Error> {
        let how = self.links()?.attach_tc(self.program(program)?.as_fd(), interface)?;
        tracing::info!(interface = interface.name, program, ?how, "attached");
        Ok(how)
    }

    /// Detaches this node's programs from an interface. Returns whether there were any.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn detach(&self, interface: &Interface) -> Result<bool, Error> {
        self.links()?.detach(interface)
    }

    /// Removes the pins of interfaces that do not exist any more. Their programs are gone with them.
    ///
    /// # Errors
    /// If the pins cannot be listed, or one cannot be removed.
    pub fn remove_stale_pins(&self) -> Result<(), Error> {
        self.links()?.remove_stale_pins()?;
        self.shared_links()?.remove_stale_pins()
    }

    /// Returns whether the interface has a program of this node.
    ///
    /// # Errors
    /// If the pins cannot be listed.
    pub fn is_attached(&self, interface: &Interface) -> Result<bool, Error> {
        Ok(self.attached()?.contains(interface))
    }

    /// Lists the interfaces that have a program of this node.
    ///
    /// # Errors
    /// If the pins cannot be listed.
    pub fn attached(&self) -> Result<Vec<Interface>, Error> {
        self.links()?.attached()
    }

    /// Attaches a program to the TC ingress hook of an interface that it shares with the host's own traffic, and
    /// detaches this node's programs from all other such interfaces. `None`: only detaches.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn share_tc(&self, program: &str, interface: Option<&Interface>) -> Result<(), Error> {
        let links = self.shared_links()?;
        for other in links.attached()? {
            if Some(&other) != interface {
                links.detach(&other)?;
                tracing::info!(interface = other.name, program, "detached");
            }
        }
        if let Some(interface) = interface {
            let how = links.attach_tc(self.program(program)?.as_fd(), interface)?;
            tracing::info!(interface = interface.name, program, ?how, "attached");
        }
        Ok(())
    }

    /// Lists the interfaces that share a program of this node with the host's own traffic.
    ///
    /// # Errors
    /// If the pins cannot be listed.
    pub fn shared(&self) -> Result<Vec<Interface>, Error> {
        self.shared_links()?.attached()
    }

    fn links(&self) -> Result<Links, Error> {
        Ok(Links::own(self.pins("links")?))
    }

    fn shared_links(&self) -> Result<Links, Error> {
        Ok(Links::shared(self.pins("links")?))
    }

    fn pins(&self, what: &str) -> Result<&Path, Error> {
        self.pin_dir.as_deref().ok_or_else(|| self.missing("pin directory for its", what))
    }

    /// Reads the node's drops by reason. Reasons without drops are left out.
    ///
    /// # Errors
    /// If a counter cannot be read.
    pub fn drops(&self) -> Result<Vec<DropCount>, Error> {
        counters::drops(&self.map("drops")?)
    }

    /// Reads the node's drops for one reason.
    ///
    /// # Errors
    /// If the counter cannot be read.
    pub fn drops_for(&self, reason: u32) -> Result<u64, Error> {
        counters::drops_for(&self.map("drops")?, reason)
    }

    /// Reads the drops by VNI and reason.
    ///
    /// # Errors
    /// If a counter cannot be read.
    pub fn vni_drops(&self) -> Result<Vec<DropCount>, Error> {
        counters::vni_drops(&self.map("vni_drops")?)
    }

    /// Reads the frames that were dropped because their interface is not a port, by interface index.
    ///
    /// # Errors
    /// If the programs have no such counters, or they cannot be read.
    pub fn unknown_ports(&self) -> Result<BTreeMap<u32, u64>, Error> {
        counters::unknown_ports(&self.map("unknown_ports")?)
    }

    /// Opens the counters by VNI, and on a gateway by meter. The writer of the tables resets them when a VNI or a meter is added, and
    /// removes those of a VNI when it is deleted.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn vni_counters(&self) -> Result<VniCounters, Error> {
        let by_index = [self.map("vni_traffic")?, self.map("icmp_budget")?];
        Ok(VniCounters { by_index, drops: self.map("vni_drops")?, meters: self.map(METER_COUNTS_MAP).ok() })
    }

    /// Opens the counters of a gateway's meters.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn meter_counters(&self) -> Result<MeterCounters, Error> {
        self.map(METER_COUNTS_MAP).map(MeterCounters)
    }

    /// Reads the traffic of the VRFs whose `counters` are `indices`, in the same order.
    ///
    /// # Errors
    /// If a counter cannot be read.
    pub fn vni_traffic(&self, indices: &[u32]) -> Result<Vec<Traffic>, Error> {
        let map = self.map("vni_traffic")?;
        indices.iter().map(|index| counters::traffic(&map, *index)).collect()
    }
}

/// Detaches all programs that are pinned under `pin_dir` and removes the directory. Returns whether it
/// existed.
///
/// # Errors
/// If the directory is not on a BPF file system or contains other pin directories, or if an attachment or a
/// pin cannot be removed.
pub fn flush(pin_dir: &Path) -> Result<bool, Error> {
    if !pin_dir.exists() {
        return Ok(false);
    }
    maps::check_bpffs(pin_dir)?;
    maps::check_is_of_one_agent(pin_dir)?;
    for links in [Links::own(pin_dir), Links::shared(pin_dir)] {
        detach_all(&links)?;
    }
    maps::remove_pins(pin_dir)?;
    Ok(true)
}

fn detach_all(links: &Links) -> Result<(), Error> {
    for interface in links.attached()? {
        links.detach(&interface)?;
    }
    Ok(())
}

/// A directory under the pin directory that belongs to the agent; only [`flush`] removes it.
pub const KEPT_DIR: &str = "changes";

/// Removes the tables that are pinned under `pin_dir`, and leaves the interfaces that have a TC program closed:
/// that program is replaced, without a gap, by one that drops everything (`guard.bpf.c`). Its attachments stay
/// pinned, so that the next agent adopts them. The interfaces named in `without`, and those that are shared with the
/// host's own traffic, lose their program. Returns the interfaces that are closed. The directory [`KEPT_DIR`] stays as it is.
///
/// # Errors
/// If the directory is not on a BPF file system or contains other pin directories, or if an attachment or a
/// pin cannot be changed.
pub fn flush_closed(pin_dir: &Path, without: &[&str]) -> Result<Vec<Interface>, Error> {
    if !pin_dir.exists() {
        return Ok(Vec::new());
    }
    maps::check_bpffs(pin_dir)?;
    maps::check_is_of_one_agent(pin_dir)?;
    // The counters of another version may be incompatible with the guard. Attached programs keep their maps.
    maps::remove_pins(&pin_dir.join("maps"))?;
    let settings = Settings { object: ObjectName::Guard, cells: 0, pin_dir: Some(pin_dir.to_owned()) };
    let guard = Datapath::load(&settings)?;
    let mut closed = Vec::new();
    for interface in guard.attached()? {
        if without.contains(&interface.name.as_str()) {
            guard.detach(&interface)?;
        } else {
            guard.attach_tc("guard", &interface)?;
            closed.push(interface);
        }
    }
    detach_all(&Links::shared(pin_dir))?;
    maps::remove_all_but(pin_dir, &["links", "maps", KEPT_DIR])?;
    Ok(closed)
}

/// Sends libbpf's messages to the log. Its warnings contain the verifier's log.
fn forward_libbpf_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, |level, text| {
            let text = text.trim_end();
            match level {
                PrintLevel::Warn => tracing::warn!(target: "libbpf", "{text}"),
                PrintLevel::Info | PrintLevel::Debug => tracing::debug!(target: "libbpf", "{text}"),
            }
        })));
    });
}
