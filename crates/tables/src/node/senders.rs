//! Senders: the VNIs in which each host may send to this node.
//!
//! On a gateway, a host is a sender of a VNI from its first endpoint in the VNI on, and until some time after the
//! last one has left: packets that it sent before, or forwards for others that have not learned of the move yet,
//! are still in transit. On a host, fixed paths count like endpoints: packets return from where a path leads. All other
//! senders are idle there. A gateway permits them, and again and again while they use a direct path.
//!
//! ```text
//!              first endpoint                 last endpoint removed
//!   no entry ------------------> in use (n) ------------------------> idle --+
//!       ^ |                          ^                                 |  |   |
//!       | |                          +---------------------------------+  |   | permitted again
//!       | |                                endpoint added                 |   |
//!       | +----------------------- permitted ------------------------> idle <-+
//!       +-----------------------------------------------------------------+
//!          `remove_idle_senders` after the linger time, or node removed
//! ```

use super::NodeTables;
use super::underlay::next_hop_address;
use crate::encoding::{kind_of, role_of};
use crate::entries::Role;
use crate::error::Error;
use crate::exact::{Entry, Key, PairCounts};
use crate::layout;
use sluice_types::Vni;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A permission is renewed at most once in this time, so that there are few records of idle senders. The linger
/// time begins up to this time before the last permission.
pub const PERMIT_STEP: Duration = Duration::from_secs(5);

/// A host's right to send in a VNI.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sender {
    /// Number of endpoints of the VNI on the host, or of fixed paths from the VNI to it.
    endpoints: u64,
    /// Whether packets are accepted: not while the host is no known node.
    is_entered: bool,
    /// Since when there are no endpoints.
    idle_since: Option<Instant>,
}

#[cfg(test)]
impl Sender {
    pub(super) fn make_idle_since(&mut self, since: Instant) {
        self.idle_since = Some(since);
    }
}

/// The check in the value of a sender's entry.
fn check_of(entry: Entry) -> u64 {
    entry.mac & layout::SENDER_CHECK_MASK
}

impl NodeTables {
    /// The entry of a sender whose VTEP is in `cell`.
    fn sender_entry(&self, vni: u32, check: u64, cell: u32) -> Entry {
        Entry { mac: check | u64::from(self.vrf_cell(vni)), next: cell }
    }

    /// The cell of a VNI's VRF; 0 if the VNI has no VRF.
    fn vrf_cell(&self, vni: u32) -> u32 {
        self.vrfs.get(&vni).copied().unwrap_or(0)
    }

    /// Points the entries of a VNI's senders to its VRF.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub(super) fn point_senders(&mut self, vni: u32) -> Result<(), Error> {
        self.point_senders_to(vni, self.vrf_cell(vni))
    }

    /// Lets the entries of a VNI's senders lead to no VRF, before its cell is unlinked. Packets then find the VRF by the
    /// VNI.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub(super) fn unlink_senders(&mut self, vni: u32) -> Result<(), Error> {
        self.point_senders_to(vni, 0)
    }

    fn point_senders_to(&mut self, vni: u32, vrf: u32) -> Result<(), Error> {
        let of_vni = self.entered_senders.range((vni, 0)..=(vni, u32::MAX));
        let cells: Vec<u32> = of_vni.map(|&(_, cell)| cell).collect();
        for cell in cells {
            let (key, _) = self.exact.sender(vni, next_hop_address(self.memory(), cell));
            let Some(old) = self.exact.get(self.memory(), key) else { continue };
            let entry = Entry { mac: check_of(old) | u64::from(vrf), ..old };
            if entry != old {
                self.exact.overwrite(&mut self.pool, key, entry)?;
            }
        }
        Ok(())
    }

    /// Points the entries of all senders to their VRFs, without allocating memory.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub(super) fn point_all_senders(&mut self, entries: &HashSet<(u32, u32)>) -> Result<(), Error> {
        self.entered_senders = entries.iter().copied().collect();
        let vnis: BTreeSet<u32> = entries.iter().map(|&(vni, _)| vni).collect();
        vnis.into_iter().try_for_each(|vni| self.point_senders(vni))
    }

    /// Lets the host whose VTEP is in `cell` send in a VNI, if it may not already. Does nothing for a gateway.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Grace`].
    pub(super) fn enter_sender(&mut self, vni: u32, cell: u32) -> Result<(), Error> {
        if self.senders.get(&(vni, cell)).is_some_and(|sender| sender.is_entered) {
            return Ok(());
        }
        // What gateways send is recognized by their role.
        if role_of(&self.memory().read(cell)) == Role::Gateway {
            return Ok(());
        }
        let (key, check) = self.exact.sender(vni, next_hop_address(self.memory(), cell));
        let check = match self.exact.get(self.memory(), key) {
            Some(other) if check_of(other) != check || other.next != cell => u64::from(layout::SENDER_ANY),
            _ => check,
        };
        let entry = self.sender_entry(vni, check, cell);
        let old = self.exact.put(&mut self.pool, key, entry)?;
        self.sender_entries += u64::from(old.is_none());
        self.senders.entry((vni, cell)).or_default().is_entered = true;
        self.entered_senders.insert((vni, cell));
        // If its endpoint cannot be written, the sender is idle.
        self.note_sender(vni, cell);
        Ok(())
    }

    /// Lets a host send in a VNI for the linger time of idle senders, less [`PERMIT_STEP`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the address is not that of a known host; [`Error::Full`], [`Error::Grace`].
    pub fn permit_sender(&mut self, vni: Vni, host: IpAddr) -> Result<(), Error> {
        let known = self.vteps.get(&host).filter(|hop| hop.accepted).map(|hop| hop.cell);
        let Some(cell) = known.filter(|_| self.role(host) != Some(Role::Gateway)) else {
            return Err(Error::Invalid(format!("{host} is no host that is in the tables")));
        };
        let vni = vni.get();
        self.enter_sender(vni, cell)?;
        if let Some(sender) = self.senders.get_mut(&(vni, cell))
            && sender.idle_since.is_some_and(|since| since.elapsed() >= PERMIT_STEP)
        {
            sender.idle_since = None;
            self.note_sender(vni, cell);
        }
        Ok(())
    }

    /// Counts an endpoint of a host that may send in the VNI.
    pub(super) fn add_sender_endpoint(&mut self, vni: u32, cell: u32) {
        let sender = self.senders.entry((vni, cell)).or_default();
        sender.endpoints += 1;
        sender.idle_since = None;
    }

    /// Counts an endpoint less.
    pub(super) fn release_sender(&mut self, vni: u32, cell: u32) {
        if let Some(sender) = self.senders.get_mut(&(vni, cell)) {
            sender.endpoints = sender.endpoints.saturating_sub(1);
            self.note_sender(vni, cell);
        }
    }

    /// Notes since when a sender is idle, if it is.
    fn note_sender(&mut self, vni: u32, cell: u32) {
        let Some(sender) = self.senders.get_mut(&(vni, cell)) else { return };
        if sender.endpoints == 0 && sender.idle_since.is_none() {
            let now = Instant::now();
            sender.idle_since = Some(now);
            self.idle_senders.push_back((now, vni, cell));
        }
    }

    /// Removes senders that have had no endpoint for the time `linger`. Returns their number.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_idle_senders(&mut self, linger: Duration) -> Result<usize, Error> {
        let mut removed = 0;
        while let Some(&(since, vni, cell)) = self.idle_senders.front()
            && since.elapsed() >= linger
        {
            // It may have been in use since then, or be idle for a shorter time.
            if self.senders.get(&(vni, cell)).is_some_and(|sender| sender.idle_since == Some(since)) {
                self.leave_sender(vni, cell)?;
                self.senders.remove(&(vni, cell));
                removed += 1;
            }
            self.idle_senders.pop_front();
        }
        Ok(removed)
    }

    /// Accepts no more packets of a host in a VNI.
    fn leave_sender(&mut self, vni: u32, cell: u32) -> Result<(), Error> {
        let Some(sender) = self.senders.get(&(vni, cell)).filter(|sender| sender.is_entered) else {
            return Ok(());
        };
        let left = Sender { is_entered: false, ..*sender };
        let (key, _) = self.exact.sender(vni, next_hop_address(self.memory(), cell));
        let shares = |(&(other_vni, other), sender): (&(u32, u32), &Sender)| {
            let is_other = other_vni == vni && other != cell && sender.is_entered;
            let address = next_hop_address(self.memory(), other);
            (is_other && self.exact.sender(vni, address).0 == key).then_some(other)
        };
        let any = u64::from(layout::SENDER_ANY);
        let is_shared = self.exact.get(self.memory(), key).is_some_and(|entry| check_of(entry) == any);
        match is_shared.then(|| self.senders.iter().find_map(shares)).flatten() {
            Some(other) => {
                let entry = self.sender_entry(vni, any, other);
                self.exact.overwrite(&mut self.pool, key, entry)?;
            }
            None => {
                let old = self.exact.take(&mut self.pool, key)?;
                self.sender_entries -= u64::from(old.is_some());
            }
        }
        self.senders.insert((vni, cell), left);
        self.entered_senders.remove(&(vni, cell));
        Ok(())
    }

    /// Accepts no more packets of a host, which is removed. Senders with endpoints are entered again with the
    /// host.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub(super) fn leave_senders_of(&mut self, cell: u32) -> Result<(), Error> {
        for vni in self.vnis_of_sender(cell) {
            self.leave_sender(vni, cell)?;
            if self.senders.get(&(vni, cell)).is_some_and(|sender| sender.endpoints == 0) {
                self.senders.remove(&(vni, cell));
            }
        }
        Ok(())
    }

    /// Accepts packets of a host again in all VNIs of its endpoints.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Grace`].
    pub(super) fn enter_senders_of(&mut self, cell: u32) -> Result<(), Error> {
        self.vnis_of_sender(cell).into_iter().try_for_each(|vni| self.enter_sender(vni, cell))
    }

    fn vnis_of_sender(&self, cell: u32) -> Vec<u32> {
        self.senders.keys().filter(|(_, of)| *of == cell).map(|(vni, _)| *vni).collect()
    }

    /// Number of pairs of host and VNI from which packets are accepted.
    pub fn senders(&self) -> usize {
        self.senders.len()
    }

    /// Enters senders again that lookups do not find, because the memory was damaged. Returns their number. Digests do not
    /// count senders: the controller does not send them.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Grace`].
    pub fn repair_senders(&mut self) -> Result<u64, Error> {
        let is_lost = |(&(vni, cell), sender): (&(u32, u32), &Sender)| {
            let host = next_hop_address(self.memory(), cell);
            // The next snapshot repairs a cell with another address, and the endpoints that lead to it.
            let is_right_cell = self.vteps.get(&host).is_some_and(|hop| hop.accepted && hop.cell == cell);
            let is_found = self.is_sender(vni, host) && self.leads_to_vrf(vni, host);
            (sender.is_entered && is_right_cell && !is_found).then_some((vni, cell))
        };
        let lost: Vec<(u32, u32)> = self.senders.iter().filter_map(is_lost).collect();
        // Senders that share an entry are found together, and entered together after the damaged entry is gone.
        for &(vni, cell) in &lost {
            let (key, _) = self.exact.sender(vni, next_hop_address(self.memory(), cell));
            self.exact.take(&mut self.pool, key)?;
            self.senders.entry((vni, cell)).or_default().is_entered = false;
            self.entered_senders.remove(&(vni, cell));
        }
        let entries = self.sender_entries;
        let mut result = Ok(lost.len() as u64);
        for &(vni, cell) in &lost {
            if let Err(error) = self.enter_sender(vni, cell) {
                // The next repair finds it lost again.
                self.senders.entry((vni, cell)).or_default().is_entered = true;
                self.entered_senders.insert((vni, cell));
                result = Err(error);
            }
        }
        // They were counted when they were entered first.
        self.sender_entries = entries;
        result
    }

    /// Whether packets of a host are accepted in a VNI.
    pub fn is_sender(&self, vni: u32, host: IpAddr) -> bool {
        let (key, check) = self.exact.sender(vni, host);
        let entry = self.exact.get(self.memory(), key);
        let is_check = |found| found == check || found == u64::from(layout::SENDER_ANY);
        entry.is_some_and(|entry| is_check(check_of(entry)))
    }

    /// Whether a host has an endpoint of a VNI: on a host, or a fixed path from the VNI to it.
    pub fn has_endpoint_in(&self, vni: u32, host: IpAddr) -> bool {
        let hop = self.vteps.get(&host).filter(|hop| hop.accepted);
        let sender = hop.and_then(|hop| self.senders.get(&(vni, hop.cell)));
        sender.is_some_and(|sender| sender.endpoints > 0)
    }

    /// Whether the entry of a host that is a sender leads to the VRF of the VNI.
    fn leads_to_vrf(&self, vni: u32, host: IpAddr) -> bool {
        let (key, _) = self.exact.sender(vni, host);
        let entry = self.exact.get(self.memory(), key);
        entry.is_some_and(|entry| entry == self.sender_entry(vni, check_of(entry), entry.next))
    }

    /// True for the entry of a sender.
    pub(super) fn is_sender_entry(
        memory: &crate::memory::Memory,
        exact: &crate::exact::Exact,
        key: Key,
        cell: u32,
    ) -> bool {
        let Key::Index { vni: vni @ 1.., id: 1.. } = key else { return false };
        if kind_of(memory, cell) != layout::NEXT_HOP_VTEP {
            return false;
        }
        let address = next_hop_address(memory, cell);
        // A group of one vIP, whose keys are those of the last VNI, looks like a node without an address.
        !address.is_unspecified() && exact.sender(vni, address).0 == key
    }

    /// Rebuilds the senders after an adoption. `entries` are those that the tables have; `counts` has the
    /// endpoints, `fixed` the fixed paths and members of services by VNI and host.
    ///
    /// # Errors
    /// [`Error::Full`] if the predecessor's tables had no senders and there is no memory for them.
    pub(super) fn adopt_senders(
        &mut self,
        entries: HashSet<(u32, u32)>,
        counts: &PairCounts,
        fixed: &HashMap<(u32, IpAddr), u64>,
    ) -> Result<(), Error> {
        self.sender_entries = entries.len() as u64;
        for &(vni, cell) in &entries {
            self.senders.insert((vni, cell), Sender { is_entered: true, ..Sender::default() });
        }
        for (&(vni, cell), &endpoints) in counts {
            if kind_of(self.memory(), cell) == layout::NEXT_HOP_VTEP {
                self.senders.entry((vni, cell)).or_default().endpoints = endpoints;
            }
        }
        for (&(vni, host), &paths) in fixed {
            if let Some(hop) = self.vteps.get(&host).filter(|_| paths > 0) {
                self.senders.entry((vni, hop.cell)).or_default().endpoints += paths;
            }
        }
        let accepted: HashSet<u32> =
            self.vteps.values().filter(|hop| hop.accepted).map(|hop| hop.cell).collect();
        let accepted =
            |cell: u32| accepted.contains(&cell) && role_of(&self.memory().read(cell)) != Role::Gateway;
        let all: Vec<_> = self.senders.keys().map(|&(vni, cell)| (vni, cell, accepted(cell))).collect();
        for (vni, cell, is_accepted) in all {
            if is_accepted {
                self.enter_sender(vni, cell)?;
                self.note_sender(vni, cell);
            } else {
                self.leave_sender(vni, cell)?;
            }
        }
        Ok(())
    }
}
