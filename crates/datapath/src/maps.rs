//! Pinned maps: made by the first agent of a node, adopted by every later one.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use libbpf_rs::{MapCore, MapHandle, OpenMapMut, OpenObject};

use crate::Error;

/// The map that holds the tables.
pub const CELLS_MAP: &str = "cells";

/// Bytes of a cell.
pub const CELL_BYTES: usize = 64;

/// Sets the tables' size and lets every map be taken from its pin, or pinned when made.
/// Returns whether the tables were there already.
pub(crate) fn prepare(object: &mut OpenObject, cells: u32, dir: Option<&Path>) -> Result<bool, Error> {
    let mut adopted = false;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == CELLS_MAP {
            map.set_max_entries(cells).map_err(Error::bpf("set the size of the tables"))?;
        }
        // Names with a dot are the compiler's sections: each program brings its own.
        let Some(dir) = dir.filter(|_| !name.contains('.')) else { continue };
        let pin = dir.join(&name);
        match pin.try_exists() {
            Ok(false) => {
                map.set_pin_path(&pin).map_err(Error::bpf(format!("choose {}", pin.display())))?;
            }
            Ok(true) => {
                reuse(&mut map, &name, &pin)?;
                adopted |= name == CELLS_MAP;
            }
            Err(error) => return Err(Error::system(format!("look at {}", pin.display()))(error)),
        }
    }
    Ok(adopted)
}

fn reuse(map: &mut OpenMapMut<'_>, name: &str, pin: &Path) -> Result<(), Error> {
    let old = MapHandle::from_pinned_path(pin).map_err(Error::bpf(format!("open {}", pin.display())))?;
    let incompatible = |why: String| Error::Incompatible { path: pin.to_owned(), why };
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
        // Tables of another size serve as well, and packets are using them.
        if name == CELLS_MAP && what == "number of entries" {
            tracing::warn!(
                configured_mib = mebibytes(ours),
                pinned_mib = mebibytes(theirs),
                "the pinned tables keep their size; --flush is the way to change it"
            );
            continue;
        }
        return Err(incompatible(format!("{what} is {theirs}, not {ours}")));
    }
    map.reuse_fd(old.as_fd()).map_err(Error::bpf(format!("reuse {}", pin.display())))
}

fn mebibytes(cells: u32) -> u64 {
    u64::from(cells) * CELL_BYTES as u64 >> 20
}

/// Makes `path` a directory on the BPF file system.
pub(crate) fn make_dir(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(Error::system(format!("make {}", path.display())))?;
    if crate::kernel::is_bpffs(path) {
        return Ok(());
    }
    let not_bpffs = io::Error::other(format!("not on a BPF file system such as {}", crate::kernel::BPFFS));
    Err(Error::system(format!("pin in {}", path.display()))(not_bpffs))
}

/// Removes the pins of all maps in `dir` and the directory.
pub(crate) fn remove_pins(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::system(format!("remove {}", dir.display()))(error))
        }
        _ => Ok(()),
    }
}

/// The cells of the tables, mapped into this process: its stores are what packets read.
#[derive(Debug)]
pub struct CellMemory {
    base: NonNull<u8>,
    cells: u32,
    // Keeps the map alive in a test that pins nothing.
    _map: MapHandle,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is unmapped
// once, when the only owner is dropped.
unsafe impl Send for CellMemory {}
// SAFETY: a shared reference only tells the address and the size; whoever reads
// or writes through the address does so by atomic operations (see sluice_tables::Memory).
unsafe impl Sync for CellMemory {}

impl CellMemory {
    pub(crate) fn map(map: MapHandle) -> Result<Self, Error> {
        let cells = map.max_entries();
        let length = NonZeroUsize::new(Self::length(cells)).ok_or_else(|| Error::Incompatible {
            path: PathBuf::from(CELLS_MAP),
            why: "it has no cells".to_owned(),
        })?;
        // SAFETY: a new shared mapping at an address of the kernel's choice; it overlays nothing. The
        // kernel checks that the map is mappable and as long as `length`.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length.get(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::system("map the tables into memory")(io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast()).expect("a mapping is never at address 0");
        Ok(Self { base, cells, _map: map })
    }

    fn length(cells: u32) -> usize {
        cells as usize * CELL_BYTES
    }

    /// First byte; valid for [`CellMemory::cells`] cells as long as `self` lives.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How many cells there are.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.cells
    }
}

impl Drop for CellMemory {
    fn drop(&mut self) {
        // SAFETY: `base` and this length are what mmap returned, and nothing can
        // use the address after `self` is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Self::length(self.cells)) };
    }
}
