//! Endpoints: (VNI, address) to the instance's MAC and its host.

use super::NodeTables;
use super::underlay::{hop_address, kind_of};
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout;
use crate::spec::{Bulk, Endpoint};
use sluice_types::{MacAddr, Vni};
use std::net::IpAddr;

/// How far ahead of the entry that is written cells are asked for.
const PREFETCH_AHEAD: usize = 12;

fn endpoint_key(vni: Vni, address: IpAddr) -> Key {
    Key::Ip { vni: vni.get(), address }
}

impl NodeTables {
    /// Makes room for so many entries in all, so that filling does not grow the
    /// table step by step.
    ///
    /// # Errors
    /// [`Error::Full`]; the table then still grows as far as it can.
    pub fn reserve_endpoints(&mut self, total: usize) -> Result<(), Error> {
        let others = self.exact.entries() - self.endpoints;
        self.exact.reserve(&mut self.pool, total + others as usize)
    }

    /// Enters or changes an endpoint. A direct path to its address gives way to it.
    ///
    /// # Errors
    /// [`Error::UnknownVtep`], [`Error::AddressTaken`] by a port of this host,
    /// [`Error::Full`], [`Error::Invalid`].
    pub fn upsert_endpoint(&mut self, endpoint: &Endpoint) -> Result<bool, Error> {
        let Endpoint { vni, address, mac, host } = *endpoint;
        if address.is_unspecified() || address.is_multicast() || !mac.is_unicast() {
            return Err(Error::Invalid(format!("no instance can have address {address} with MAC {mac}")));
        }
        let hop = self.hops.get(&host).filter(|hop| hop.registered);
        let cell = hop.ok_or(Error::UnknownVtep { vni, address, host })?.cell;
        let key = endpoint_key(vni, address);
        if !self.ports.is_empty()
            && let Some(known) = self.exact.get(self.memory(), key)
            && kind_of(self.memory(), known.next) == layout::NEXT_HOP_PORT
        {
            return Err(Error::AddressTaken {
                vni: vni.get(),
                address,
                holder: "a port of this host".to_owned(),
            });
        }
        let entry = Entry { mac: mac.to_u64(), next: cell };
        let old = self.exact.put(&mut self.pool, key, entry)?;
        if old == Some(entry) {
            return Ok(false);
        }
        if old.is_none_or(|old| old.next != cell) {
            self.hops.get_mut(&host).expect("looked up above").references += 1;
            match old.map(|old| (old.next, kind_of(self.memory(), old.next))) {
                Some((path, layout::NEXT_HOP_DIRECT)) => {
                    self.release_direct(path);
                    self.endpoints += 1;
                }
                Some((hop, _)) => self.release_hop(hop),
                None => self.endpoints += 1,
            }
        }
        Ok(true)
    }

    /// Enters or changes many endpoints; those that fail are left as they were.
    pub fn upsert_endpoints(&mut self, endpoints: &[Endpoint]) -> Bulk {
        let mut bulk = Bulk::default();
        for (i, endpoint) in endpoints.iter().enumerate() {
            if let Some(soon) = endpoints.get(i + PREFETCH_AHEAD) {
                self.exact.prefetch(self.pool.memory(), endpoint_key(soon.vni, soon.address));
            }
            bulk.note(i, self.upsert_endpoint(endpoint));
        }
        self.exact.store_counts(self.pool.memory());
        bulk
    }

    /// Removes an endpoint.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_endpoint(&mut self, vni: Vni, address: IpAddr) -> Result<bool, Error> {
        let key = endpoint_key(vni, address);
        let Some(known) = self.exact.get(self.memory(), key) else { return Ok(false) };
        if kind_of(self.memory(), known.next) != layout::NEXT_HOP_VTEP {
            return Ok(false);
        }
        self.exact.take(&mut self.pool, key)?;
        self.release_hop(known.next);
        self.endpoints -= 1;
        Ok(true)
    }

    fn endpoint_from(&self, key: Key, entry: Entry) -> Option<Endpoint> {
        let Key::Ip { vni, address } = key else { return None };
        if vni == 0 || kind_of(self.memory(), entry.next) != layout::NEXT_HOP_VTEP {
            return None;
        }
        Some(Endpoint {
            vni: Vni::new(vni).ok()?,
            address,
            mac: MacAddr::from_u64(entry.mac),
            host: hop_address(self.memory(), entry.next),
        })
    }

    /// An endpoint.
    pub fn endpoint(&self, vni: Vni, address: IpAddr) -> Option<Endpoint> {
        let key = endpoint_key(vni, address);
        self.endpoint_from(key, self.exact.get(self.memory(), key)?)
    }

    /// All endpoints, in no order.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> + '_ {
        self.exact.iter(self.memory()).filter_map(|(key, entry)| self.endpoint_from(key, entry))
    }

    /// Removes the endpoints that `keep` refuses; how many.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn retain_endpoints(&mut self, mut keep: impl FnMut(&Endpoint) -> bool) -> Result<usize, Error> {
        let refused: Vec<(Vni, IpAddr)> = self
            .endpoints()
            .filter(|endpoint| !keep(endpoint))
            .map(|endpoint| (endpoint.vni, endpoint.address))
            .collect();
        for &(vni, address) in &refused {
            self.remove_endpoint(vni, address)?;
        }
        Ok(refused.len())
    }
}
