//! The identities of VMs on other hosts, as the vSwitch's map has them (`bpf/include/layout/identity_layout.h`).

use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use sluice_tables::layout::{self, remote_identity, remote_identity_key};
use sluice_types::Vni;

use crate::Error;
use crate::events::address;

const KEY_BYTES: usize = 24;
const VALUE_BYTES: usize = 8;
const _: () = assert!(size_of::<remote_identity_key>() == KEY_BYTES);
const _: () = assert!(size_of::<remote_identity>() == VALUE_BYTES);

/// The identity of a VM on another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteIdentity {
    /// Stands for the VM's set of security groups; 0: it has none, or there is no such VM.
    pub identity: u16,
    /// When a packet was last judged by it, in ticks of the session table.
    pub used: u32,
}

/// The map of the vSwitch. It may have one writer at a time.
#[derive(Debug)]
pub struct RemoteIdentities(MapHandle);

impl RemoteIdentities {
    /// Most entries.
    pub const MAX: usize = layout::REMOTE_IDENTITIES_MAX as usize;

    pub(crate) fn new(map: MapHandle) -> Self {
        Self(map)
    }

    /// Enters the identity of the VM with this address in the network `vni`, or replaces it.
    ///
    /// # Errors
    /// If the kernel refuses the entry, for example because the map is full.
    pub fn write(&self, vni: Vni, address: IpAddr, entry: RemoteIdentity) -> Result<(), Error> {
        let [a, b, c, d] = u32::from(entry.identity).to_ne_bytes();
        let [e, f, g, h] = entry.used.to_ne_bytes();
        let written = self.0.update(&key(vni, address), &[a, b, c, d, e, f, g, h], MapFlags::ANY);
        written.map_err(Error::bpf("write the identity of a VM"))
    }

    /// Removes an entry, if it exists.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self, vni: Vni, address: IpAddr) -> Result<(), Error> {
        match self.0.delete(&key(vni, address)) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::bpf("remove the identity of a VM")(error))
            }
            _ => Ok(()),
        }
    }

    /// The entry of a VM.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn get(&self, vni: Vni, address: IpAddr) -> Result<Option<RemoteIdentity>, Error> {
        let failed = Error::bpf("read the identity of a VM");
        Ok(self.0.lookup(&key(vni, address), MapFlags::ANY).map_err(failed)?.and_then(|value| read(&value)))
    }

    /// All entries, by network and address, in no order.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn all(&self) -> Result<Vec<(Vni, IpAddr, RemoteIdentity)>, Error> {
        let mut all = Vec::new();
        for key in self.0.keys() {
            let Some((vni, address)) = read_key(&key) else { continue };
            all.extend(self.get(vni, address)?.map(|entry| (vni, address, entry)));
        }
        Ok(all)
    }
}

fn key(vni: Vni, address: IpAddr) -> [u8; KEY_BYTES] {
    let (ipv6, bits) = match address {
        IpAddr::V4(v4) => (0_u32, u128::from(v4.to_bits())),
        IpAddr::V6(v6) => (1, v6.to_bits()),
    };
    let mut key = [0; KEY_BYTES];
    key[..4].copy_from_slice(&vni.get().to_ne_bytes());
    key[4..8].copy_from_slice(&ipv6.to_ne_bytes());
    key[8..16].copy_from_slice(&((bits >> 64) as u64).to_ne_bytes());
    key[16..].copy_from_slice(&(bits as u64).to_ne_bytes());
    key
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_key(key: &[u8]) -> Option<(Vni, IpAddr)> {
    let halves = [half(key, 8)?, half(key, 16)?];
    Some((Vni::new(word(key, 0)?).ok()?, address(halves, word(key, 4)? as u8)))
}

fn read(value: &[u8]) -> Option<RemoteIdentity> {
    Some(RemoteIdentity { identity: word(value, 0)? as u16, used: word(value, 4)? })
}
