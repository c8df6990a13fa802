//! Pinned maps, which the first agent of a node creates and every later agent adopts, and their mapping into
//! memory.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenMapMut, OpenObject};
use sluice_tables::Memory;
use sluice_tables::sessions::Region;

use crate::Error;

/// Map that holds the forwarding tables.
pub const CELLS_MAP: &str = "cells";

/// Map that holds the flow statistics: 4 flows per cell. Unless another number is given when it is created, it
/// has 2^18 cells on a gateway and 2^14 on a vSwitch (`FLOW_CELLS`).
pub const FLOW_CELLS_MAP: &str = "flow_cells";

/// Memory of the programs for each CPU: packets that wait to be counted, which packets are counted, and the packet
/// that is being processed. It is not pinned, so each version may change its layout.
const PROGRAM_MEMORY_MAPS: [&str; 6] =
    ["flow_queues", "flow_samplers", "packets", "admissions", "nat_packets", "nat_copying"];

/// Maps that hold the buckets of the IPv4 and the IPv6 sessions.
pub const SESSION_MAPS: [&str; 2] = ["sessions4", "sessions6"];

/// Maps that hold the blocks, the tuple words and the port words of source NAT ([`sluice_tables::nat::NatRegions`]).
pub const NAT_MAPS: [&str; 3] = ["nat_groups", "nat_tuples", "nat_ports"];

/// Map that holds the meters of a gateway, with their names: [`sluice_tables::NamedMeters::cells_for`].
pub const METERS_MAP: &str = "meters";

/// Map that counts the bytes that meters let pass and drop, with as many numbers as there are meters, and the unused number 0.
pub const METER_COUNTS_MAP: &str = "meter_counts";

/// Map that counts drops by reason. A version that knows more reasons has a larger one.
const DROPS_MAP: &str = "drops";

/// Further maps of source NAT on a gateway, which are of one use with [`NAT_MAPS`] and [`SESSION_MAPS`].
const OTHER_NAT_MAPS: [&str; 3] = ["nat_config", "nat_fragments", "session_config"];

/// Sizes of the maps of source NAT for [`crate::Datapath::load_sized`], on a gateway that translates: groups of blocks and
/// cells of ports as [`sluice_tables::nat::NatRegions`] gives them, and buckets of sessions of IPv4, of which there are as many of tuple words,
/// and of NAT64. Without these sizes, the maps have one element each, and the gateway has no memory for source NAT.
#[must_use]
pub fn nat_sizes(groups: u32, port_cells: u32, [buckets, buckets6]: [u32; 2]) -> [(&'static str, u32); 6] {
    let [groups_map, tuples_map, ports_map] = NAT_MAPS;
    let [sessions4, sessions6] = SESSION_MAPS;
    let fragments = sluice_tables::layout::NAT_FRAGMENTS;
    [
        (groups_map, groups),
        (tuples_map, buckets),
        (ports_map, port_cells),
        ("nat_fragments", fragments),
        (sessions4, buckets),
        (sessions6, buckets6),
    ]
}

/// Removes the pins of the maps of source NAT of a gateway that begins to translate, or ceases to: maps of one element hold
/// nothing, and those of a gateway that does not translate are not wanted. Attached programs keep theirs until they are replaced.
fn remove_unused_nat(object: &OpenObject, sizes: &[(&str, u32)], dir: &Path) -> Result<(), Error> {
    // Ports, because one address can be a single group of blocks.
    let [.., ports] = NAT_MAPS;
    let pin = dir.join(ports);
    let has_nat = object.maps().any(|map| map.name() == ports);
    if !has_nat || !pin.try_exists().map_err(Error::system(format!("look up {}", pin.display())))? {
        return Ok(());
    }
    let old = MapHandle::from_pinned_path(&pin).map_err(Error::bpf(format!("open {}", pin.display())))?;
    let wanted = sizes.iter().find(|(name, _)| *name == ports).map_or(1, |(_, entries)| *entries);
    if (old.max_entries() == 1) == (wanted == 1) {
        return Ok(());
    }
    // That of the ports last: if this process is killed before, the next one removes what is left.
    for name in OTHER_NAT_MAPS.iter().chain(&SESSION_MAPS).chain(&NAT_MAPS) {
        let pin = dir.join(name);
        match fs::remove_file(&pin) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::system(format!("remove {}", pin.display()))(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the pin of the counters of drops of an earlier version, which knew fewer reasons. Returns their map.
fn remove_short_drops(object: &OpenObject, dir: &Path) -> Result<Option<MapHandle>, Error> {
    let pin = dir.join(DROPS_MAP);
    let Some(ours) = object.maps().find(|map| map.name() == DROPS_MAP) else { return Ok(None) };
    if !pin.try_exists().map_err(Error::system(format!("look up {}", pin.display())))? {
        return Ok(None);
    }
    let old = MapHandle::from_pinned_path(&pin).map_err(Error::bpf(format!("open {}", pin.display())))?;
    let is_same_but_short = old.map_type() == ours.map_type()
        && (old.key_size(), old.value_size()) == (ours.key_size(), ours.value_size())
        && old.max_entries() < ours.max_entries();
    if !is_same_but_short {
        return Ok(None);
    }
    fs::remove_file(&pin).map_err(Error::system(format!("remove {}", pin.display())))?;
    Ok(Some(old))
}

/// Copies the counters of drops of an earlier version. What its programs count from now on, until others replace them, is lost;
/// and all that they have counted if this process was killed before: counters may begin again.
pub(crate) fn keep_drops(old: &MapHandle, new: &MapHandle) -> Result<(), Error> {
    let failed = || Error::bpf("keep the counters of dropped packets");
    for reason in (0..old.max_entries()).map(u32::to_ne_bytes) {
        if let Some(counted) = old.lookup_percpu(&reason, MapFlags::ANY).map_err(failed())? {
            new.update_percpu(&reason, &counted, MapFlags::ANY).map_err(failed())?;
        }
    }
    Ok(())
}

/// What [`prepare`] found.
pub(crate) struct Prepared {
    /// The forwarding tables were pinned already.
    pub adopted: bool,
    /// Counters of drops that the new map gets, by [`keep_drops`].
    pub drops: Option<MapHandle>,
}

/// Sets the sizes of the named maps, and makes each map reuse its pin or be pinned when it is created.
pub(crate) fn prepare(
    object: &mut OpenObject,
    sizes: &[(&str, u32)],
    dir: Option<&Path>,
) -> Result<Prepared, Error> {
    let mut prepared = Prepared { adopted: false, drops: None };
    if let Some(dir) = dir {
        remove_unused_nat(object, sizes, dir)?;
        prepared.drops = remove_short_drops(object, dir)?;
    }
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(&(_, entries)) = sizes.iter().find(|(sized, _)| *sized == name) {
            map.set_max_entries(entries).map_err(Error::bpf("set the size of the tables"))?;
        }
        // A name with a dot is a data section of the compiler, which belongs to one version of the programs.
        let Some(dir) = dir.filter(|_| !name.contains('.') && !PROGRAM_MEMORY_MAPS.contains(&&*name)) else {
            continue;
        };
        let pin = dir.join(&name);
        match pin.try_exists() {
            Ok(false) => {
                map.set_pin_path(&pin).map_err(Error::bpf(format!("set the pin path {}", pin.display())))?;
            }
            Ok(true) => {
                reuse(&mut map, &name, &pin)?;
                prepared.adopted |= name == CELLS_MAP;
            }
            Err(error) => return Err(Error::system(format!("look up {}", pin.display()))(error)),
        }
    }
    Ok(prepared)
}

fn reuse(map: &mut OpenMapMut<'_>, name: &str, pin: &Path) -> Result<(), Error> {
    let old = MapHandle::from_pinned_path(pin).map_err(Error::bpf(format!("open {}", pin.display())))?;
    let incompatible = |difference| Error::Incompatible { path: pin.to_owned(), difference };
    let differences = [
        ("type", map.map_type() as u32, old.map_type() as u32),
        ("size of keys", map.key_size(), old.key_size()),
        ("size of values", map.value_size(), old.value_size()),
        ("number of entries", map.max_entries(), old.max_entries()),
    ];
    for (what, ours, theirs) in differences {
        if ours == theirs {
            continue;
        }
        // Tables of another size work as well, and packets are using them.
        let [_, tuples, _] = NAT_MAPS;
        let is_sized = [CELLS_MAP, FLOW_CELLS_MAP, METERS_MAP, METER_COUNTS_MAP, tuples].contains(&name)
            || SESSION_MAPS.contains(&name);
        if is_sized && what == "number of entries" {
            let kibibytes = |entries: u32| (u64::from(entries) * u64::from(map.value_size())).div_ceil(1024);
            tracing::warn!(
                map = name,
                configured_kib = kibibytes(ours),
                pinned_kib = kibibytes(theirs),
                "the pinned tables keep their size; run once with --flush to change it"
            );
            continue;
        }
        return Err(incompatible(format!("{what} is {theirs}, not {ours}")));
    }
    map.reuse_fd(old.as_fd()).map_err(Error::bpf(format!("reuse {}", pin.display())))
}

/// Creates a directory for pins, unless it exists.
///
/// # Errors
/// If it cannot be created, or is not on a BPF file system.
pub fn create_pin_dir(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(Error::system(format!("create {}", path.display())))?;
    check_bpffs(path)
}

/// Rejects a directory that is not on a BPF file system.
pub(crate) fn check_bpffs(path: &Path) -> Result<(), Error> {
    if crate::kernel::is_bpffs(path) {
        return Ok(());
    }
    let not_bpffs = io::Error::other(format!("not on a BPF file system such as {}", crate::kernel::BPFFS));
    Err(Error::system(format!("use {} for pins", path.display()))(not_bpffs))
}

/// Rejects a directory that contains pin directories, each of another agent, instead of pins.
pub(crate) fn check_is_of_one_agent(dir: &Path) -> Result<(), Error> {
    let failed = || Error::system(format!("list {}", dir.display()));
    for entry in fs::read_dir(dir).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        if path.join("maps").exists() || path.join("links").exists() {
            let several =
                io::Error::other(format!("{} is the pin directory of another agent", path.display()));
            return Err(Error::system(format!("flush {}", dir.display()))(several));
        }
    }
    Ok(())
}

/// Removes `dir` with all pins in it, of maps and of links.
pub(crate) fn remove_pins(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::system(format!("remove {}", dir.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Removes all directories in `dir` except those named.
pub(crate) fn remove_all_but(dir: &Path, kept: &[&str]) -> Result<(), Error> {
    let failed = || Error::system(format!("list {}", dir.display()));
    for entry in fs::read_dir(dir).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if !kept.iter().any(|name| entry.file_name() == *name) {
            remove_pins(&entry.path())?;
        }
    }
    Ok(())
}

/// A mapping of a map into this process.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Start of the mapping, readable for `bytes` bytes until this is dropped.
    pub base: NonNull<u8>,
    pub bytes: usize,
    // Keeps a map alive that is not pinned.
    _map: MapHandle,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is unmapped
// once, when the only owner is dropped.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives no access to the memory; it only keeps the mapping alive.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mmap returned `base` and `bytes`. They are unmapped once, when the last user is dropped.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Maps a whole array into memory.
fn map_array(map: MapHandle) -> Result<Mapping, Error> {
    let bytes = map.max_entries() as usize * map.value_size() as usize;
    map_part(map, 0, bytes, libc::PROT_READ | libc::PROT_WRITE)
}

/// Maps a part of a map into memory. `offset` is a multiple of the page size.
pub(crate) fn map_part(
    map: MapHandle,
    offset: usize,
    bytes: usize,
    protection: libc::c_int,
) -> Result<Mapping, Error> {
    let failed = |error| Error::system(format!("map {:?} into memory", map.name()))(error);
    let offset = libc::off_t::try_from(offset).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
    let fd = map.as_fd().as_raw_fd();
    // SAFETY: a new shared mapping at an address that the kernel chooses, so it replaces no other mapping.
    // The kernel checks that the map can be mapped and is long enough.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, offset) };
    if base == libc::MAP_FAILED {
        return Err(failed(io::Error::last_os_error()));
    }
    let base = NonNull::new(base.cast()).expect("mmap chooses address 0 only on request");
    Ok(Mapping { base, bytes, _map: map })
}

/// Maps tables into memory. The packet programs read what is stored there.
pub(crate) fn map_cells(map: MapHandle) -> Result<Memory, Error> {
    let cells = map.max_entries();
    let mapping = map_array(map)?;
    // SAFETY: page aligned and mapped read-write for `cells` cells as long as `mapping` lives. The map is
    // shared with the programs, which read the tables by the rules of cells.h and write only the words
    // that these rules give them. The caller guarantees a single writer (an agent holds a lock).
    Ok(unsafe { Memory::from_raw(mapping.base, cells, Arc::new(mapping)) })
}

/// Directory of the pinned maps below the pin directory.
pub(crate) const PINNED_MAPS: &str = "maps";

/// Maps the forwarding tables that an agent has pinned in a directory, to read them beside it.
///
/// # Errors
/// If the directory has no pinned tables, or the kernel refuses the mapping.
pub fn pinned_tables(pin_dir: &Path) -> Result<Memory, Error> {
    let path = pin_dir.join(PINNED_MAPS).join(CELLS_MAP);
    let failed = Error::bpf(format!("open {}", path.display()));
    map_cells(MapHandle::from_pinned_path(&path).map_err(failed)?)
}

/// Maps an array into memory whose words both packet programs and agents change, such as a session table.
pub(crate) fn map_region(map: MapHandle) -> Result<Region, Error> {
    let mapping = map_array(map)?;
    // SAFETY: page aligned and mapped read-write for that many bytes as long as `mapping` lives; the
    // programs access it by atomic instructions or as single words.
    Ok(unsafe { Region::from_raw(mapping.base, mapping.bytes, Arc::new(mapping)) })
}
