//! Changes to endpoints: the MAC and the host of each instance's address, found by (VNI, address).

use super::NodeTables;
use super::underlay::next_hop_address;
use crate::encoding::kind_of;
use crate::entries::Endpoint;
use crate::error::Error;
use crate::exact::{Entry, Key};
use crate::layout;
use crate::usage::BulkResult;
use sluice_types::{MacAddr, Vni};
use std::net::IpAddr;

/// In a bulk, the cells of an endpoint are prefetched this many endpoints before it is written.
const PREFETCH_AHEAD: usize = 12;

/// The key of an endpoint or direct path.
pub(super) fn tenant_key(vni: Vni, address: IpAddr) -> Key {
    Key::Ip { vni: vni.get(), address }
}

/// Checks that an instance can have this address and MAC.
pub(super) fn check_instance(address: IpAddr, mac: MacAddr) -> Result<(), Error> {
    if address.is_unspecified() || address.is_multicast() || !mac.is_unicast() {
        return Err(Error::Invalid(format!(
            "no instance can have the address {address} with the MAC {mac}: both must be unicast"
        )));
    }
    Ok(())
}

impl NodeTables {
    /// Makes the exact match large enough for `total` endpoints, so that adding them does not grow it step by
    /// step.
    ///
    /// # Errors
    /// [`Error::Full`]; the table then grows step by step as far as it can.
    pub fn reserve_endpoints(&mut self, total: usize) -> Result<(), Error> {
        let others = self.exact.entries() - self.endpoints;
        self.exact.reserve(&mut self.pool, total + others as usize)
    }

    /// Adds or changes an endpoint. It replaces a direct path to its address.
    ///
    /// # Errors
    /// [`Error::UnknownVtep`], [`Error::AddressTaken`] by a port of this host,
    /// [`Error::Full`], [`Error::Invalid`].
    pub fn upsert_endpoint(&mut self, endpoint: &Endpoint) -> Result<bool, Error> {
        let Endpoint { vni, address, mac, host } = *endpoint;
        check_instance(address, mac)?;
        let hop = self.vteps.get(&host).filter(|hop| hop.accepted);
        let cell = hop.ok_or(Error::UnknownVtep { vni, address, host })?.cell;
        let key = tenant_key(vni, address);
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
        // The sender comes first: its instance may send as soon as it is reachable.
        self.enter_sender(vni.get(), cell)?;
        let entry = Entry { mac: mac.to_u64(), next: cell };
        let old = self.exact.put(&mut self.pool, key, entry)?;
        if old == Some(entry) {
            return Ok(false);
        }
        if old.is_some() {
            self.note_change(vni, address);
        }
        if old.is_none_or(|old| old.next != cell) {
            self.vteps.get_mut(&host).expect("found above").endpoints += 1;
            self.add_sender_endpoint(vni.get(), cell);
            match old.map(|old| (old.next, kind_of(self.memory(), old.next))) {
                Some((path, layout::NEXT_HOP_DIRECT)) => {
                    self.release_direct_path(path);
                    self.endpoints += 1;
                }
                Some((hop, layout::NEXT_HOP_VTEP)) => {
                    self.release_sender(vni.get(), hop);
                    self.release_vtep(hop);
                }
                Some((service, layout::NEXT_HOP_SERVICE)) => {
                    self.release_service(vni.get(), service);
                    self.endpoints += 1;
                }
                // Only damaged memory leads elsewhere.
                Some(_) => {}
                None => self.endpoints += 1,
            }
        }
        Ok(true)
    }

    /// Adds or changes many endpoints; those that fail are left as they were.
    pub fn upsert_endpoints(&mut self, endpoints: &[Endpoint]) -> BulkResult {
        let mut bulk = BulkResult::default();
        for (i, endpoint) in endpoints.iter().enumerate() {
            if let Some(later) = endpoints.get(i + PREFETCH_AHEAD) {
                self.exact.prefetch(self.pool.memory(), tenant_key(later.vni, later.address));
            }
            bulk.record(i, self.upsert_endpoint(endpoint));
        }
        self.exact.store_counts(self.pool.memory());
        bulk
    }

    /// Removes an endpoint.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_endpoint(&mut self, vni: Vni, address: IpAddr) -> Result<bool, Error> {
        let key = tenant_key(vni, address);
        let Some(known) = self.exact.get(self.memory(), key) else { return Ok(false) };
        if kind_of(self.memory(), known.next) != layout::NEXT_HOP_VTEP {
            return Ok(false);
        }
        self.note_change(vni, address);
        self.exact.take(&mut self.pool, key)?;
        self.release_sender(vni.get(), known.next);
        self.release_vtep(known.next);
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
            host: next_hop_address(self.memory(), entry.next),
        })
    }

    /// The endpoint of an address.
    pub fn endpoint(&self, vni: Vni, address: IpAddr) -> Option<Endpoint> {
        let key = tenant_key(vni, address);
        self.endpoint_from(key, self.exact.get(self.memory(), key)?)
    }

    /// All endpoints, in no particular order.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> + '_ {
        self.exact.iter(self.memory()).filter_map(|(key, entry)| self.endpoint_from(key, entry))
    }

    /// Removes the endpoints for which `keep` returns false, and returns their number.
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
