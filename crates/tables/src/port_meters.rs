//! The meters of ports with a rate: the map `port_meters` (`bpf/include/layout/qos_layout.h`). Packets take from them, and
//! count what they do not get. This module changes with that header.

use crate::error::Error;
use crate::layout::{self, port_meter};
use crate::region::Region;
use std::mem::{offset_of, size_of};

/// The meters by the number of the port ([`crate::Port::scope`]). Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct PortMeters {
    region: Region,
}

impl PortMeters {
    /// Size of the map.
    pub const BYTES: usize = layout::PORT_METERS as usize * size_of::<port_meter>();

    /// Uses the memory of the map.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has another size.
    pub fn new(region: Region) -> Result<Self, Error> {
        if region.bytes() < Self::BYTES {
            let (found, needed) = (region.bytes(), Self::BYTES);
            return Err(Error::Invalid(format!(
                "the map of port meters has {found} bytes, but needs {needed}"
            )));
        }
        Ok(Self { region })
    }

    /// Maps zeroed memory of this process.
    ///
    /// # Errors
    /// If the kernel refuses the mapping.
    pub fn anonymous() -> std::io::Result<Self> {
        Ok(Self { region: Region::anonymous(Self::BYTES)? })
    }

    /// Packets that the port sent over its rate: of normal and of high priority.
    #[must_use]
    pub fn dropped(&self, scope: u16) -> [u64; 2] {
        let at = Self::at(scope) + offset_of!(port_meter, dropped);
        [self.region.load64(at), self.region.load64(at + size_of::<u64>())]
    }

    /// Prepares the meter for another port: full, and with nothing counted.
    pub fn reset(&self, scope: u16) {
        self.region.zero(Self::at(scope), size_of::<port_meter>());
    }

    fn at(scope: u16) -> usize {
        usize::from(scope) * size_of::<port_meter>()
    }

    /// Sets what packets count.
    #[doc(hidden)]
    pub fn set_dropped(&self, scope: u16, dropped: [u64; 2]) {
        let at = Self::at(scope) + offset_of!(port_meter, dropped);
        self.region.store64(at, dropped[0]);
        self.region.store64(at + size_of::<u64>(), dropped[1]);
    }
}
