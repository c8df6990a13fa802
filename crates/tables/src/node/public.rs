//! Changes to the public prefixes of VPCs: addresses on the Internet that stand for addresses of a VPC.
//!
//! A prefix has one cell, which is found by its outside addresses in the VRF of VNI 0, and by its inside addresses in the
//! sources of its VPC. The outside is the authority: the source is stored before it and removed before it, so that a
//! successor finds by the outside what is complete, and makes the sources agree with that. A change makes another cell;
//! only the link to the vIP is changed in place. A source that no outside agrees with is an orphan.
//!
//! The public addresses of NAT gateways are among the outside prefixes; `nat_gateways` changes them.

mod nat_gateways;

use super::NodeTables;
use super::vrfs::{count_offset, root_of, vrf_key};
use crate::encoding::{NatLink, group_id, internet_cell, kind_of, public_cell};
use crate::entries::{NatGateway, PublicPrefix};
use crate::error::Error;
use crate::exact::Entry;
use crate::layout::{self, internet, nat_gateway, public_prefix, vrf};
use crate::lpm::{self, Damaged, Family, Prefix, Root};
use crate::memory::Memory;
use crate::pool::{Pool, ReachableCells};
use nat_gateways::NatEntries;
use sluice_types::{EntryHash, EntryKey, IpNet, Vni, is_nptv6_prefix, overlap};
use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::net::IpAddr;

/// A longest prefix match whose leaves are public prefixes, by outside or by inside addresses.
#[derive(Clone, Copy)]
pub(super) struct PublicRoutes {
    root: Root,
    /// Offset of the number of prefixes, in the same cell as the root word.
    count: usize,
}

impl PublicRoutes {
    /// By outside addresses; `cell`: the VRF of VNI 0.
    fn outside(cell: u32, family: Family) -> Self {
        Self { root: root_of(cell, family), count: count_offset(family) }
    }

    /// By inside addresses; `cell`: the Internet side of a VPC.
    fn sources(cell: u32, family: Family) -> Self {
        let (offset, count) = match family {
            Family::V4 => (offset_of!(internet, sources4), offset_of!(internet, count4)),
            Family::V6 => (offset_of!(internet, sources6), offset_of!(internet, count6)),
        };
        Self { root: Root { cell, offset, family }, count }
    }

    fn count(self, memory: &Memory) -> u32 {
        memory.load32(self.root.cell, self.count)
    }

    fn set_count(self, memory: &Memory, count: u32) {
        memory.store32(self.root.cell, self.count, count);
    }

    /// The cell of exactly this prefix.
    fn get(self, memory: &Memory, prefix: Prefix) -> Option<u32> {
        lpm::leaf_of(memory, self.root, prefix).and_then(public_cell)
    }

    /// Leads a prefix to a cell. Returns the cell that it led to. Needs no memory if there is one.
    fn put(self, pool: &mut Pool, prefix: Prefix, cell: u32) -> Result<Option<u32>, Error> {
        let count = self.count(pool.memory());
        let leaf = layout::SCOPE_PUBLIC << layout::LEAF_SCOPE_SHIFT | cell;
        let old = lpm::insert(pool, self.root, count, prefix, leaf)?;
        if old.is_none() {
            self.set_count(pool.memory(), count + 1);
        }
        Ok(old.and_then(public_cell))
    }

    fn take(self, pool: &mut Pool, prefix: Prefix) -> Result<(), Error> {
        let count = self.count(pool.memory());
        if lpm::remove(pool, self.root, count, prefix)?.is_some() {
            self.set_count(pool.memory(), count.saturating_sub(1));
        }
        Ok(())
    }

    fn iter(self, memory: &Memory) -> impl Iterator<Item = (IpNet, u32)> + '_ {
        let entries = lpm::iter(memory, self.root);
        entries.filter_map(move |(prefix, leaf)| Some((prefix.to_net(self.root.family), public_cell(leaf)?)))
    }

    /// All prefixes with their cells, if lookups find them all.
    fn inspect(self, memory: &Memory) -> Result<Vec<(IpNet, u32)>, Damaged> {
        let mut all = Vec::new();
        lpm::inspect_leaves(memory, self.root, is_leaf, |prefix, leaf| {
            all.push((prefix.to_net(self.root.family).trunc(), leaf & layout::LEAF_ARGUMENT_MASK));
        })?;
        Ok(all)
    }

    /// Claims the cells of another writer's prefixes. Each must lead to a cell for which `is_its` is true.
    fn adopt(
        self,
        memory: &Memory,
        reachable: &mut ReachableCells,
        claimed: &mut HashSet<u32>,
        is_its: impl Fn(IpNet, u32) -> bool,
    ) -> Result<(), Error> {
        let count = lpm::adopt(memory, self.root, reachable)?;
        self.set_count(memory, count);
        for (prefix, leaf) in lpm::iter(memory, self.root) {
            let prefix = prefix.to_net(self.root.family);
            let cell = public_cell(leaf).filter(|cell| is_its(prefix, *cell)).ok_or_else(|| {
                Error::Corrupt(format!("{prefix} leads to no public prefix, but to {leaf:#x}"))
            })?;
            if claimed.insert(cell) {
                reachable.claim(cell, 1)?;
            }
        }
        Ok(())
    }

    /// Makes the prefixes readable, if they are not. Those that cannot be read are lost.
    fn rebuild(self, pool: &mut Pool) -> Result<(), Error> {
        if let Ok(all) = self.inspect(pool.memory()) {
            self.set_count(pool.memory(), all.len() as u32);
            return Ok(());
        }
        let left = lpm::rebuild(pool, self.root, is_leaf);
        self.set_count(pool.memory(), *left.as_ref().unwrap_or(&0));
        left.map(drop)
    }
}

fn is_leaf(memory: &Memory, leaf: u32) -> bool {
    public_cell(leaf).is_some_and(|cell| {
        PublicPrefix::from_cell(memory, cell).is_some() || NatLink::from_cell(memory, cell).is_some()
    })
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn prefix_of(net: IpNet) -> Prefix {
    Prefix::from_net(net).1
}

fn family_of(net: IpNet) -> Family {
    Prefix::from_net(net).0
}

/// The Internet side of the VRF in a cell, if it has one.
pub(super) fn internet_of(memory: &Memory, vrf_cell: u32) -> Option<u32> {
    let known: vrf = memory.read(vrf_cell);
    let cell = Some(internet_cell(&known)).filter(|cell| *cell != 0)?;
    let is_its = kind_of(memory, cell) == layout::NEXT_HOP_INTERNET
        && memory.load32(cell, offset_of!(internet, vni)) == known.vni;
    is_its.then_some(cell)
}

/// The flags of a VRF with this Internet side; 0: it has none.
pub(super) fn internet_flags(memory: &Memory, internet: u32) -> u32 {
    let is_metered = internet != 0 && memory.load32(internet, offset_of!(internet, meter)) != 0;
    let flags = [(internet != 0, layout::VRF_INTERNET), (is_metered, layout::VRF_METERED)];
    flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
}

/// Links a VRF to its Internet side; 0 unlinks it.
pub(super) fn set_internet(memory: &Memory, vrf_cell: u32, internet: u32) {
    let known: vrf = memory.read(vrf_cell);
    let flags = internet_flags(memory, internet);
    // One word has MTU and flags. Without a cell, the flags mean nothing.
    let store_flags =
        || memory.store32(vrf_cell, offset_of!(vrf, mtu), u32::from(known.mtu) | flags << u16::BITS);
    if internet != 0 {
        store_flags();
    }
    memory.store32(vrf_cell, offset_of!(vrf, group_id), internet);
    if internet == 0 {
        store_flags();
    }
}

/// The prefix without bits beyond its length.
fn checked(public: &PublicPrefix) -> Result<PublicPrefix, Error> {
    let (outside, inside) = (public.outside.trunc(), public.inside.trunc());
    let is_one_by_one =
        family_of(outside) == family_of(inside) && outside.prefix_len() == inside.prefix_len();
    if !is_one_by_one {
        return Err(Error::Invalid(format!(
            "the public prefix {outside} cannot stand for {inside}: both must be of one family and length"
        )));
    }
    for net in [outside, inside] {
        if !sluice_types::is_unicast(net.addr()) {
            return Err(Error::Invalid(format!(
                "the public prefix {outside} for {inside} is not possible: {net} does not begin with a unicast address"
            )));
        }
    }
    if public.nptv6 && !is_nptv6_prefix(outside) {
        return Err(Error::Invalid(format!(
            "the public prefix {outside} cannot be mapped by NPTv6: only IPv6 prefixes of length 48 to 64 can"
        )));
    }
    Ok(PublicPrefix { outside, inside, ..*public })
}

impl NodeTables {
    /// Adds or changes a public prefix.
    ///
    /// # Errors
    /// [`Error::UnknownVni`]; [`Error::UnknownVip`]; [`Error::AddressTaken`] if another public prefix of the VPC has some of
    /// the inside addresses; [`Error::PublicAddressTaken`] if a NAT gateway has the outside address; [`Error::Full`];
    /// [`Error::Invalid`], also for a VRF with a group.
    pub fn upsert_public_prefix(&mut self, public: &PublicPrefix) -> Result<bool, Error> {
        let public = checked(public)?;
        let PublicPrefix { outside, vni, vip, .. } = public;
        let &vrf_cell = self.vrfs.get(&vni.get()).ok_or(Error::UnknownVni(vni))?;
        let &vip_cell =
            self.vips.get(&vip).ok_or(Error::UnknownVip { entry: EntryKey::PublicPrefix(outside), vip })?;
        self.check_inside(vrf_cell, &public)?;
        self.check_outside(outside)?;
        let old = self.public_cell_of(outside);
        let is_right = |known: &PublicPrefix, cell| {
            PublicPrefix { meter: public.meter, ..*known } == public
                && self.memory().load32(cell, offset_of!(public_prefix, vip)) == vip_cell
                && self.source_of(&public) == Some(cell)
                && self.is_outside_linked()
        };
        let known = old.and_then(|cell| Some((PublicPrefix::from_cell(self.memory(), cell)?, cell)));
        if let Some((known, cell)) = known.filter(|(known, cell)| is_right(known, *cell)) {
            self.memory().store32(cell, offset_of!(public_prefix, meter), public.meter);
            return Ok(known.meter != public.meter);
        }
        let put = self.put_public_prefix(&public, vrf_cell, vip_cell, old);
        if put.is_err() {
            self.drop_empty_internet(vrf_cell);
        }
        put.map(|()| true)
    }

    fn put_public_prefix(
        &mut self,
        public: &PublicPrefix,
        vrf_cell: u32,
        vip_cell: u32,
        old: Option<u32>,
    ) -> Result<(), Error> {
        let family = family_of(public.outside);
        let outside = PublicRoutes::outside(self.make_outside()?, family);
        let sources = PublicRoutes::sources(self.make_internet(public.vni, vrf_cell)?, family);
        let cell = self.pool.allocate(1)?;
        self.memory().write(cell, &public.to_cell(vip_cell));
        let replaced = match sources.put(&mut self.pool, prefix_of(public.inside), cell) {
            Ok(replaced) => replaced,
            Err(error) => {
                self.pool.give_back(cell, 1);
                return Err(error);
            }
        };
        if let Err(error) = outside.put(&mut self.pool, prefix_of(public.outside), cell) {
            // Only a new prefix needs memory. Then the source is new as well, or was an orphan.
            sources.take(&mut self.pool, prefix_of(public.inside))?;
            self.pool.retire(cell, 1);
            replaced.into_iter().for_each(|cell| self.retire_public_cell(cell));
            return Err(error);
        }
        if let Some(old) = old {
            let known = PublicPrefix::from_cell(self.memory(), old);
            // In damaged memory it may be another prefix's cell.
            let has_moved = |known: &PublicPrefix| {
                known.outside == public.outside && (known.vni, known.inside) != (public.vni, public.inside)
            };
            let taken = known.filter(has_moved).map_or(Ok(()), |known| self.take_source(&known, old));
            if let Err(error) = taken {
                // The caller repeats the change, which finds the new source to be an orphan.
                outside.put(&mut self.pool, prefix_of(public.outside), old)?;
                return Err(error);
            }
            self.retire_public_cell(old);
        }
        replaced.filter(|cell| Some(*cell) != old).into_iter().for_each(|cell| self.retire_public_cell(cell));
        Ok(())
    }

    /// Checks that this node may have an entry on the Internet side of a VPC.
    pub(super) fn check_is_gateway(&self, vni: Vni, vrf_cell: u32, entry: EntryKey) -> Result<(), Error> {
        if group_id(&self.memory().read(vrf_cell)) == 0 {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "VNI {vni} cannot have the {entry}: it has a group, so this node is no gateway"
        )))
    }

    /// Checks that a VPC may have these inside addresses.
    fn check_inside(&self, vrf_cell: u32, public: &PublicPrefix) -> Result<(), Error> {
        let PublicPrefix { outside, vni, inside, .. } = *public;
        self.check_is_gateway(vni, vrf_cell, EntryKey::PublicPrefix(outside))?;
        let Some(internet) = internet_of(self.memory(), vrf_cell) else { return Ok(()) };
        let sources = PublicRoutes::sources(internet, family_of(inside));
        let is_taken = |cell: u32| {
            let known = PublicPrefix::from_cell(self.memory(), cell)?;
            let is_other = known.outside != outside && self.is_public(cell, &known);
            (is_other && known.vni == vni && overlap(&known.inside, &inside)).then_some(known)
        };
        let is_orphan = |cell: u32| {
            PublicPrefix::from_cell(self.memory(), cell).is_none_or(|known| !self.is_public(cell, &known))
        };
        let leaf = lpm::find(self.memory(), sources.root, prefix_of(inside).bits);
        let longest = leaf.and_then(public_cell);
        // What contains an address is found by it, unless an orphan hides it.
        let taken = if inside.prefix_len() == inside.max_prefix_len() && !longest.is_some_and(is_orphan) {
            longest.and_then(is_taken)
        } else {
            sources.iter(self.memory()).find_map(|(_, cell)| is_taken(cell))
        };
        match taken {
            Some(known) => Err(Error::AddressTaken {
                vni: vni.get(),
                address: inside.addr(),
                holder: format!("{}, for which the public prefix {} stands", known.inside, known.outside),
            }),
            None => Ok(()),
        }
    }

    /// Removes a public prefix.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_public_prefix(&mut self, outside: IpNet) -> Result<bool, Error> {
        let outside = outside.trunc();
        if self.link_at(outside).is_some() {
            return Ok(false);
        }
        let Some(cell) = self.public_cell_of(outside) else { return Ok(false) };
        // In damaged memory it may be another prefix's cell.
        let known = PublicPrefix::from_cell(self.memory(), cell).filter(|known| known.outside == outside);
        known.map_or(Ok(()), |known| self.take_source(&known, cell))?;
        let (family, prefix) = Prefix::from_net(outside);
        PublicRoutes::outside(self.outside, family).take(&mut self.pool, prefix)?;
        self.retire_public_cell(cell);
        Ok(true)
    }

    /// Removes the public prefixes of a VNI. Returns false if it had none.
    pub(super) fn remove_public_prefixes_of(&mut self, vni: Vni) -> Result<bool, Error> {
        let all: Vec<IpNet> =
            self.public_prefixes().filter(|known| known.vni == vni).map(|known| known.outside).collect();
        for &outside in &all {
            self.remove_public_prefix(outside)?;
        }
        Ok(!all.is_empty())
    }

    /// Retires an Internet side that was unlinked, with its sources.
    pub(super) fn retire_internet(&mut self, cell: u32) {
        for family in FAMILIES {
            lpm::retire(&mut self.pool, PublicRoutes::sources(cell, family).root);
        }
        self.pool.retire(cell, 1);
    }

    /// All public prefixes, in no particular order.
    pub fn public_prefixes(&self) -> impl Iterator<Item = PublicPrefix> + '_ {
        self.outside_cells().filter_map(|(outside, cell)| {
            PublicPrefix::from_cell(self.memory(), cell).filter(|public| public.outside == outside)
        })
    }

    /// The public prefix with exactly these outside addresses.
    pub fn public_prefix(&self, outside: IpNet) -> Option<PublicPrefix> {
        let known = PublicPrefix::from_cell(self.memory(), self.public_cell_of(outside)?)?;
        (known.outside == outside.trunc()).then_some(known)
    }

    /// The vIP whose owner answers for exactly these outside addresses, which a public prefix or NAT gateway has.
    pub fn public_vip(&self, outside: IpNet) -> Option<IpAddr> {
        let of_nat = || self.link_at(outside).map(|(_, link)| link.vip);
        self.public_prefix(outside).map(|public| public.vip).or_else(of_nat)
    }

    /// Number of public prefixes, and of addresses of NAT gateways.
    pub(super) fn public_prefix_count(&self) -> u64 {
        let count = |family| u64::from(PublicRoutes::outside(self.outside, family).count(self.memory()));
        if self.outside == 0 { 0 } else { FAMILIES.map(count).iter().sum() }
    }

    pub(super) fn outside_cells(&self) -> impl Iterator<Item = (IpNet, u32)> + '_ {
        let families = if self.outside == 0 { &[][..] } else { &FAMILIES[..] };
        families.iter().flat_map(|family| PublicRoutes::outside(self.outside, *family).iter(self.memory()))
    }

    /// The cell that exactly these outside addresses lead to.
    pub(super) fn public_cell_of(&self, outside: IpNet) -> Option<u32> {
        let (family, prefix) = Prefix::from_net(outside);
        let is_there = self.outside != 0;
        is_there.then(|| PublicRoutes::outside(self.outside, family).get(self.memory(), prefix))?
    }

    /// The cell that exactly the inside addresses of a prefix lead to.
    pub(super) fn source_of(&self, public: &PublicPrefix) -> Option<u32> {
        let &vrf_cell = self.vrfs.get(&public.vni.get())?;
        let internet = internet_of(self.memory(), vrf_cell)?;
        let (family, prefix) = Prefix::from_net(public.inside);
        PublicRoutes::sources(internet, family).get(self.memory(), prefix)
    }

    /// Whether `known`, which is in this cell, is a public prefix at present.
    fn is_public(&self, cell: u32, known: &PublicPrefix) -> bool {
        self.public_cell_of(known.outside) == Some(cell)
    }

    /// Retires the cell of a public prefix that is no longer one.
    fn retire_public_cell(&mut self, cell: u32) {
        let link = NatLink::from_cell(self.memory(), cell);
        let outside = PublicPrefix::from_cell(self.memory(), cell)
            .map(|known| known.outside)
            .or(link.map(|link| IpNet::from(IpAddr::V4(link.address.address))));
        // In damaged memory it may be another entry's cell.
        if outside.is_some_and(|outside| self.public_cell_of(outside) != Some(cell)) {
            self.pool.retire(cell, 1);
        }
    }

    /// Removes the source of a prefix, if it leads to this cell.
    fn take_source(&mut self, public: &PublicPrefix, cell: u32) -> Result<(), Error> {
        if self.source_of(public) != Some(cell) {
            return Ok(());
        }
        let vrf_cell = self.vrfs[&public.vni.get()];
        let internet = internet_of(self.memory(), vrf_cell).expect("the source is there");
        let (family, prefix) = Prefix::from_net(public.inside);
        PublicRoutes::sources(internet, family).take(&mut self.pool, prefix)?;
        self.drop_empty_internet(vrf_cell);
        Ok(())
    }

    fn is_outside_linked(&self) -> bool {
        let entry = self.exact.get(self.memory(), vrf_key(0));
        self.outside != 0 && entry.is_some_and(|entry| entry.next == self.outside)
    }

    /// The VRF of VNI 0, which is made with the first public prefix and stays.
    fn make_outside(&mut self) -> Result<u32, Error> {
        if self.is_outside_linked() {
            return Ok(self.outside);
        }
        let known = self.outside;
        let cell = if known == 0 { self.pool.allocate(1)? } else { known };
        if let Err(error) = self.exact.put(&mut self.pool, vrf_key(0), Entry { mac: 0, next: cell }) {
            if known == 0 {
                self.pool.give_back(cell, 1);
            }
            return Err(error);
        }
        self.outside = cell;
        Ok(cell)
    }

    /// The Internet side of a VPC, which is made with its first public prefix, its NAT gateway or its meter.
    pub(super) fn make_internet(&mut self, vni: Vni, vrf_cell: u32) -> Result<u32, Error> {
        if let Some(cell) = internet_of(self.memory(), vrf_cell) {
            return Ok(cell);
        }
        let cell = self.pool.allocate(1)?;
        let new = internet { kind: layout::NEXT_HOP_INTERNET as u8, vni: vni.get(), ..Default::default() };
        self.memory().write(cell, &new);
        set_internet(self.memory(), vrf_cell, cell);
        Ok(cell)
    }

    /// Removes the Internet side of a VPC without public prefixes, NAT gateway and meter.
    pub(super) fn drop_empty_internet(&mut self, vrf_cell: u32) {
        let Some(cell) = internet_of(self.memory(), vrf_cell) else { return };
        let is_empty = |family| PublicRoutes::sources(cell, family).iter(self.memory()).next().is_none();
        let is_used = |offset| self.memory().load32(cell, offset) != 0;
        let is_used = is_used(offset_of!(internet, nat)) || is_used(offset_of!(internet, meter));
        if !is_used && FAMILIES.into_iter().all(is_empty) {
            set_internet(self.memory(), vrf_cell, 0);
            self.retire_internet(cell);
        }
    }

    /// Points the public prefixes and NAT gateways of a vIP to its cell; 0: the node does not have the vIP.
    pub(super) fn point_to_vip(&self, vip: IpAddr, vip_cell: u32) {
        for cell in self.cells_with_vips() {
            match vip_of(self.memory(), cell) {
                Some((known, offset)) if known == vip => self.memory().store32(cell, offset, vip_cell),
                _ => {}
            }
        }
    }

    /// Points the public prefixes and NAT gateways in these cells to their vIPs.
    pub(super) fn point_all_to_vips(&self, cells: impl IntoIterator<Item = u32>) {
        for cell in cells {
            let Some((known, offset)) = vip_of(self.memory(), cell) else { continue };
            let vip = self.vips.get(&known).copied().unwrap_or(0);
            if self.memory().load32(cell, offset) != vip {
                self.memory().store32(cell, offset, vip);
            }
        }
    }

    /// The cells of public prefixes and NAT gateways, which lead to vIPs.
    fn cells_with_vips(&self) -> impl Iterator<Item = u32> + '_ {
        let outside = self.outside_cells().flat_map(|(_, cell)| {
            [Some(cell), NatLink::from_cell(self.memory(), cell).map(|link| link.gateway)]
        });
        outside.flatten().chain(self.nats.values().copied())
    }

    /// Makes the sources of all VPCs agree with the outside. Removes a prefix whose VPC is not in the tables, or for
    /// whose source there is no memory.
    pub(super) fn link_all_sources(&mut self) -> Result<(), Error> {
        let all: Vec<(IpNet, u32)> = self.outside_cells().collect();
        for (outside, cell) in all {
            if self.link_at(outside).is_some() {
                continue;
            }
            let known = PublicPrefix::from_cell(self.memory(), cell).filter(|it| it.outside == outside);
            match known.map_or(Ok(false), |public| self.link_source(&public, cell)) {
                Ok(true) => {}
                // The agent adds what is missing, and reports the error then.
                Ok(false) | Err(Error::Full { .. }) => drop(self.remove_public_prefix(outside)?),
                Err(error) => return Err(error),
            }
        }
        let vrfs: Vec<u32> = self.vrfs.values().copied().collect();
        vrfs.into_iter().try_for_each(|vrf_cell| self.remove_orphans(vrf_cell))
    }

    /// Leads the inside addresses of a prefix to its cell. False: its VPC cannot have it.
    fn link_source(&mut self, public: &PublicPrefix, cell: u32) -> Result<bool, Error> {
        if self.source_of(public) == Some(cell) {
            return Ok(true);
        }
        let Some(&vrf_cell) = self.vrfs.get(&public.vni.get()) else { return Ok(false) };
        if self.check_inside(vrf_cell, public).is_err() {
            return Ok(false);
        }
        let internet = self.make_internet(public.vni, vrf_cell)?;
        let sources = PublicRoutes::sources(internet, family_of(public.inside));
        let replaced = sources.put(&mut self.pool, prefix_of(public.inside), cell);
        if replaced.is_err() {
            self.drop_empty_internet(vrf_cell);
        }
        replaced?.into_iter().for_each(|cell| self.retire_public_cell(cell));
        Ok(true)
    }

    fn remove_orphans(&mut self, vrf_cell: u32) -> Result<(), Error> {
        let Some(internet) = internet_of(self.memory(), vrf_cell) else { return Ok(()) };
        let vni = self.memory().load32(internet, offset_of!(internet, vni));
        for sources in FAMILIES.map(|family| PublicRoutes::sources(internet, family)) {
            let is_orphan = |(inside, cell): &(IpNet, u32)| {
                let known = PublicPrefix::from_cell(self.memory(), *cell);
                let is_its = |known: &PublicPrefix| (known.vni.get(), known.inside) == (vni, *inside);
                !known.is_some_and(|known| is_its(&known) && self.is_public(*cell, &known))
            };
            let orphans: Vec<_> = sources.iter(self.memory()).filter(is_orphan).collect();
            for (inside, cell) in orphans {
                sources.take(&mut self.pool, prefix_of(inside))?;
                self.retire_public_cell(cell);
            }
        }
        self.drop_empty_internet(vrf_cell);
        Ok(())
    }

    /// Makes the public prefixes and NAT gateways readable, and sources and addresses agree with them. What is missing then
    /// must be added again.
    pub(super) fn repair_public_prefixes(&mut self) -> Result<(), Error> {
        let mut roots = Vec::new();
        if self.outside != 0 {
            self.memory().store32(self.outside, offset_of!(vrf, vni), 0);
            roots.extend(FAMILIES.map(|family| PublicRoutes::outside(self.outside, family)));
        }
        for &vrf_cell in self.vrfs.values() {
            match internet_of(self.memory(), vrf_cell) {
                Some(cell) => roots.extend(FAMILIES.map(|family| PublicRoutes::sources(cell, family))),
                None if internet_cell(&self.memory().read(vrf_cell)) != 0 => {
                    set_internet(self.memory(), vrf_cell, 0);
                }
                None => {}
            }
        }
        let rebuilt =
            roots.into_iter().map(|routes| routes.rebuild(&mut self.pool)).fold(Ok(()), Result::and);
        self.unlink_lost_nat_gateways();
        self.point_all_to_vips(self.cells_with_vips());
        rebuilt.and(self.link_all_sources()).and(self.link_all_nat_gateways())
    }

    /// What lookups find of public prefixes, from the VRF of VNI 0 in a cell. Those of a family that cannot all be read are
    /// left out. A source that leads to no public prefix counts as one that cannot be read.
    pub(super) fn visit_public_prefixes(&self, cell: u32, call: &mut impl FnMut(EntryKey, EntryHash)) {
        let memory = self.memory();
        let mut sources = HashMap::new();
        for (&vni, &vrf_cell) in &self.vrfs {
            let Some(internet) = internet_of(memory, vrf_cell) else { continue };
            for family in FAMILIES {
                let all = PublicRoutes::sources(internet, family).inspect(memory).unwrap_or_default();
                sources.extend(all.into_iter().map(|(inside, cell)| ((vni, inside), cell)));
            }
        }
        let is_whole = memory.contains(cell, 1) && memory.load32(cell, offset_of!(vrf, vni)) == 0;
        let families = if is_whole { &FAMILIES[..] } else { &[] };
        let mut nat = NatEntries::new();
        for family in families {
            let all = PublicRoutes::outside(cell, *family).inspect(memory).unwrap_or_default();
            for (outside, cell) in all {
                if nat.count(self, outside, cell) {
                    continue;
                }
                let key = EntryKey::PublicPrefix(outside);
                let is_right = |public: &PublicPrefix| {
                    let vip = memory.load32(cell, offset_of!(public_prefix, vip));
                    public.outside == outside && vip == self.vips.get(&public.vip).copied().unwrap_or(0)
                };
                let public = PublicPrefix::from_cell(memory, cell).filter(is_right);
                let mut source = |public: &PublicPrefix| sources.remove(&(public.vni.get(), public.inside));
                let public = public.filter(|public| source(public) == Some(cell));
                let counted = public.and_then(|it| {
                    let meter = self.counted_meter(it.meter)?;
                    Some(EntryHash::public_prefix(it.outside, it.vni, it.inside, it.vip, meter, it.nptv6))
                });
                call(key, counted.unwrap_or(EntryHash::unreadable(key)));
            }
        }
        for cell in sources.into_values() {
            let Some(known) = PublicPrefix::from_cell(memory, cell) else { continue };
            let key = EntryKey::PublicPrefix(known.outside);
            call(key, EntryHash::unreadable(key));
        }
        nat.visit(self, call);
    }
}

/// The vIP of what is in a cell, public prefix, address of a NAT gateway or NAT gateway, and where the cell refers to that
/// of the vIP.
fn vip_of(memory: &Memory, cell: u32) -> Option<(IpAddr, usize)> {
    let public = PublicPrefix::from_cell(memory, cell).map(|known| known.vip);
    let public = public.or_else(|| NatLink::from_cell(memory, cell).map(|link| link.vip));
    let public = public.map(|vip| (vip, offset_of!(public_prefix, vip)));
    public.or_else(|| Some((NatGateway::from_cells(memory, cell)?.vip, offset_of!(nat_gateway, vip))))
}

/// Claims the VRF of VNI 0 of another writer, and what it leads to. False: the cell has no such VRF.
pub(super) fn adopt_outside(
    memory: &Memory,
    cell: u32,
    reachable: &mut ReachableCells,
    claimed: &mut HashSet<u32>,
) -> Result<bool, Error> {
    if cell == 0 || !memory.contains(cell, 1) || memory.load32(cell, offset_of!(vrf, vni)) != 0 {
        return Ok(false);
    }
    reachable.claim(cell, 1)?;
    for family in FAMILIES {
        let is_its = |prefix, cell| {
            PublicPrefix::from_cell(memory, cell).is_some_and(|public| public.outside == prefix)
                || nat_gateways::is_link(memory, cell, prefix)
        };
        PublicRoutes::outside(cell, family).adopt(memory, reachable, claimed, is_its)?;
    }
    nat_gateways::adopt_linked(memory, PublicRoutes::outside(cell, Family::V4), reachable, claimed)?;
    Ok(true)
}

/// Claims the Internet side of another writer's VRF, and what it leads to. Returns the cell of its NAT gateway.
pub(super) fn adopt_internet(
    memory: &Memory,
    vrf_cell: u32,
    reachable: &mut ReachableCells,
    claimed: &mut HashSet<u32>,
) -> Result<Option<u32>, Error> {
    let known: vrf = memory.read(vrf_cell);
    if internet_cell(&known) == 0 {
        return Ok(None);
    }
    let cell = internet_of(memory, vrf_cell).ok_or_else(|| {
        let cell = internet_cell(&known);
        Error::Corrupt(format!("VNI {} has no Internet side at cell {cell}", known.vni))
    })?;
    reachable.claim(cell, 1)?;
    for family in FAMILIES {
        let is_its = |prefix, cell| {
            let is_its = |public: PublicPrefix| public.vni.get() == known.vni && public.inside == prefix;
            PublicPrefix::from_cell(memory, cell).is_some_and(is_its)
        };
        PublicRoutes::sources(cell, family).adopt(memory, reachable, claimed, is_its)?;
    }
    nat_gateways::adopt(memory, cell, reachable, claimed)
}
