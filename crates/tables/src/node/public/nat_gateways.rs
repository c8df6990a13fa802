//! Changes to the NAT gateways of VPCs.
//!
//! The cells to which `nat` of a struct internet leads are the authority: they have all that the gateway was made of. Each
//! public address has another cell, which is found by the address as that of a public prefix is, and leads to the gateway
//! (`NatLink`). Its port forwards are in a run of cells to which it leads. A change makes other cells: first the addresses lead to the new gateway, those that it does not have are
//! removed, and then one store makes it the VPC's. So a successor makes the addresses agree with the gateway that it finds.

use super::{PublicRoutes, internet_of, prefix_of};
use crate::encoding::NatLink;
use crate::entries::NatGateway;
use crate::error::Error;
use crate::layout::{self, internet, nat_gateway, public_prefix};
use crate::lpm::{Family, Prefix};
use crate::memory::Memory;
use crate::node::NodeTables;
use crate::pool::ReachableCells;
use sluice_types::{EntryHash, EntryKey, IpNet, Vni};
use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};

fn net_of(address: Ipv4Addr) -> IpNet {
    IpNet::from(IpAddr::V4(address))
}

/// The addresses of a NAT gateway as the cells at `gateway` need them.
fn links(nat: &NatGateway, gateway: u32) -> impl Iterator<Item = NatLink> + '_ {
    nat.addresses.iter().map(move |address| NatLink {
        vni: nat.vni,
        vip: nat.vip,
        address: *address,
        gateway,
    })
}

impl NodeTables {
    /// Adds or changes the NAT gateway of a VPC.
    ///
    /// # Errors
    /// [`Error::UnknownVni`]; [`Error::UnknownVip`]; [`Error::PublicAddressTaken`]; [`Error::Full`]; [`Error::Invalid`], also for
    /// a VRF with a group.
    pub fn upsert_nat_gateway(&mut self, nat: &NatGateway) -> Result<bool, Error> {
        nat.check()?;
        let (vni, vip, entry) = (nat.vni, nat.vip, EntryKey::NatGateway(nat.vni));
        let &vrf_cell = self.vrfs.get(&vni.get()).ok_or(Error::UnknownVni(vni))?;
        let &vip_cell = self.vips.get(&vip).ok_or(Error::UnknownVip { entry, vip })?;
        self.check_is_gateway(vni, vrf_cell, entry)?;
        self.check_nat_addresses(nat)?;
        if self.nats.get(&vni.get()).is_some_and(|cell| self.is_nat_right(nat, *cell, vip_cell)) {
            return Ok(false);
        }
        let put = self.put_nat_gateway(nat, vrf_cell, vip_cell);
        if put.is_err() {
            self.drop_empty_internet(vrf_cell);
        }
        put.map(|()| true)
    }

    /// Checks that no other entry has the addresses.
    fn check_nat_addresses(&self, nat: &NatGateway) -> Result<(), Error> {
        let entry = EntryKey::NatGateway(nat.vni);
        for address in nat.addresses.iter().map(|it| it.address) {
            let link = self.link_at(net_of(address)).map(|(_, link)| link).filter(|link| link.vni != nat.vni);
            let of_nat = link.map(|link| EntryKey::NatGateway(link.vni));
            let public = self.public_prefix(net_of(address));
            let holder = of_nat.or(public.map(|public| EntryKey::PublicPrefix(public.outside)));
            if let Some(holder) = holder {
                return Err(Error::PublicAddressTaken { entry, address, holder });
            }
        }
        Ok(())
    }

    /// Checks that no NAT gateway has the only address of a prefix.
    pub(super) fn check_outside(&self, outside: IpNet) -> Result<(), Error> {
        self.link_at(outside).map_or(Ok(()), |(_, NatLink { vni, address, .. })| {
            let entry = EntryKey::PublicPrefix(outside);
            let holder = EntryKey::NatGateway(vni);
            Err(Error::PublicAddressTaken { entry, address: address.address, holder })
        })
    }

    /// Whether lookups from both sides find this NAT gateway in these cells.
    fn is_nat_right(&self, nat: &NatGateway, cell: u32, vip_cell: u32) -> bool {
        let memory = self.memory();
        let is_whole = NatGateway::from_cells(memory, cell).as_ref() == Some(nat)
            && memory.load32(cell, offset_of!(nat_gateway, vip)) == vip_cell
            && self.nat_cell_of(nat.vni) == Some(cell)
            && self.is_outside_linked();
        is_whole && links(nat, cell).all(|link| self.is_link_right(link, vip_cell))
    }

    fn is_link_right(&self, link: NatLink, vip_cell: u32) -> bool {
        self.link_at(net_of(link.address.address)).is_some_and(|(cell, known)| {
            known == link && self.memory().load32(cell, offset_of!(public_prefix, vip)) == vip_cell
        })
    }

    /// The cell of an outside prefix that is an address of a NAT gateway, and what it says.
    pub(super) fn link_at(&self, outside: IpNet) -> Option<(u32, NatLink)> {
        let cell = self.public_cell_of(outside)?;
        let link = NatLink::from_cell(self.memory(), cell)?;
        // In damaged memory it may be another one.
        (net_of(link.address.address) == outside).then_some((cell, link))
    }

    /// The cells of the NAT gateway that packets of a VPC find.
    fn nat_cell_of(&self, vni: Vni) -> Option<u32> {
        let internet = internet_of(self.memory(), *self.vrfs.get(&vni.get())?)?;
        Some(self.memory().load32(internet, offset_of!(internet, nat))).filter(|cell| *cell != 0)
    }

    fn put_nat_gateway(&mut self, nat: &NatGateway, vrf_cell: u32, vip_cell: u32) -> Result<(), Error> {
        let internet = self.make_internet(nat.vni, vrf_cell)?;
        let old = self.nats.get(&nat.vni.get()).copied();
        // Before the first store: between the stores, packets find one NAT gateway from outside and another one from inside, and the
        // search takes milliseconds.
        let is_left = |link: &NatLink| {
            link.vni == nat.vni && nat.addresses.iter().all(|it| it.address != link.address.address)
        };
        let stale = old.map(|_| self.find_links(is_left)).unwrap_or_default();
        let cell = self.write_nat_gateway(nat, vip_cell)?;
        let mut gateways = match self.put_links(nat, cell, vip_cell) {
            Ok(gateways) => gateways,
            Err(error) => {
                self.retire_nat_gateway(cell);
                return Err(error);
            }
        };
        gateways.extend(self.take_links(stale)?);
        self.memory().store32(internet, offset_of!(internet, nat), cell);
        self.nats.insert(nat.vni.get(), cell);
        gateways.extend(old);
        self.retire_gateways(gateways);
        Ok(())
    }

    /// Writes a NAT gateway with its port forwards into cells to which nothing leads yet. Returns its first cell.
    fn write_nat_gateway(&mut self, nat: &NatGateway, vip_cell: u32) -> Result<u32, Error> {
        let forwards = nat.to_forward_cells();
        let cell = self.pool.allocate(layout::NAT_GATEWAY_CELLS)?;
        let first = match forwards.len() as u32 {
            0 => Ok(0),
            cells => self.pool.allocate(cells),
        };
        let first = first.inspect_err(|_| self.pool.give_back(cell, layout::NAT_GATEWAY_CELLS))?;
        for (cell, entries) in (first..).zip(&forwards) {
            self.memory().write(cell, entries);
        }
        let (gateway, behind) = nat.to_cells(vip_cell, first);
        self.memory().write(cell, &gateway);
        self.memory().write(cell + 1, &behind);
        Ok(cell)
    }

    /// Retires the cells of a NAT gateway and of its port forwards.
    fn retire_nat_gateway(&mut self, cell: u32) {
        if let Some((first, cells)) = NatGateway::forward_cells(self.memory(), cell) {
            self.pool.retire(first, cells);
        }
        self.pool.retire(cell, layout::NAT_GATEWAY_CELLS);
    }

    /// Leads the addresses of a NAT gateway to its cell. Returns the cells of those to which they led. If memory is short,
    /// nothing has changed.
    fn put_links(&mut self, nat: &NatGateway, gateway: u32, vip_cell: u32) -> Result<Vec<u32>, Error> {
        let outside = PublicRoutes::outside(self.make_outside()?, Family::V4);
        let mut put: Vec<(Prefix, u32, Option<u32>)> = Vec::new();
        for link in links(nat, gateway) {
            if self.is_link_right(link, vip_cell) {
                continue;
            }
            let prefix = prefix_of(net_of(link.address.address));
            let added = self.pool.allocate(1).and_then(|cell| {
                self.memory().write(cell, &link.to_cell(vip_cell));
                let old = outside.put(&mut self.pool, prefix, cell);
                old.inspect_err(|_| self.pool.give_back(cell, 1)).map(|old| (prefix, cell, old))
            });
            match added {
                Ok(added) => put.push(added),
                Err(error) => {
                    for (prefix, cell, old) in put {
                        match old {
                            // Needs no memory.
                            Some(old) => drop(outside.put(&mut self.pool, prefix, old)?),
                            None => outside.take(&mut self.pool, prefix)?,
                        }
                        self.pool.retire(cell, 1);
                    }
                    return Err(error);
                }
            }
        }
        let old = put.into_iter().filter_map(|(_, _, old)| old);
        Ok(old.filter_map(|cell| self.retire_link(cell)).collect())
    }

    /// Addresses of NAT gateways, and their cells. Reads all public prefixes.
    fn find_links(&self, is_wanted: impl Fn(&NatLink) -> bool) -> Vec<(IpNet, u32)> {
        let links = self.outside_cells().filter_map(|(net, cell)| {
            let link = NatLink::from_cell(self.memory(), cell)?;
            (net_of(link.address.address) == net && is_wanted(&link)).then_some((net, cell))
        });
        links.collect()
    }

    /// Removes these addresses of NAT gateways. Returns the gateways' cells.
    fn take_links(&mut self, links: Vec<(IpNet, u32)>) -> Result<Vec<u32>, Error> {
        let mut gateways = Vec::new();
        for (net, cell) in links {
            PublicRoutes::outside(self.outside, Family::V4).take(&mut self.pool, prefix_of(net))?;
            gateways.extend(self.retire_link(cell));
        }
        Ok(gateways)
    }

    /// Retires the cell of an address that no longer leads to it. Returns the cell of its gateway.
    fn retire_link(&mut self, cell: u32) -> Option<u32> {
        let link = NatLink::from_cell(self.memory(), cell);
        self.retire_public_cell(cell);
        link.map(|link| link.gateway)
    }

    /// Retires the cells of NAT gateways that are no longer those of their VPCs. No address may lead to them.
    fn retire_gateways(&mut self, mut cells: Vec<u32>) {
        cells.sort_unstable();
        cells.dedup();
        for cell in cells {
            // In damaged memory they may be another entry's cells.
            let known = NatGateway::from_cells(self.memory(), cell);
            if known.is_some_and(|known| self.nats.get(&known.vni.get()) != Some(&cell)) {
                self.retire_nat_gateway(cell);
            }
        }
    }

    /// Removes the NAT gateway of a VPC.
    ///
    /// # Errors
    /// [`Error::Grace`].
    pub fn remove_nat_gateway(&mut self, vni: Vni) -> Result<bool, Error> {
        // A removal of the VRF whose grace period failed may have left addresses without the gateway.
        let mut gateways = self.take_links(self.find_links(|link| link.vni == vni))?;
        let vrf_cell = self.vrfs.get(&vni.get()).copied();
        if let Some(internet) = vrf_cell.and_then(|cell| internet_of(self.memory(), cell)) {
            self.memory().store32(internet, offset_of!(internet, nat), 0);
        }
        gateways.extend(self.nats.remove(&vni.get()));
        let is_changed = !gateways.is_empty();
        self.retire_gateways(gateways);
        if let Some(cell) = vrf_cell {
            self.drop_empty_internet(cell);
        }
        Ok(is_changed)
    }

    /// All NAT gateways, in the order of their VNIs.
    pub fn nat_gateways(&self) -> impl Iterator<Item = NatGateway> + '_ {
        self.nats.values().filter_map(|cell| NatGateway::from_cells(self.memory(), *cell))
    }

    /// The NAT gateway of a VPC.
    pub fn nat_gateway(&self, vni: Vni) -> Option<NatGateway> {
        NatGateway::from_cells(self.memory(), *self.nats.get(&vni.get())?)
    }

    /// Forgets the NAT gateways whose cells are damaged, and those whose VPC has lost its Internet side. Packets find those
    /// that are left.
    pub(super) fn unlink_lost_nat_gateways(&mut self) {
        let all: Vec<(u32, u32)> = self.vrfs.iter().map(|(&vni, &cell)| (vni, cell)).collect();
        for (vni, vrf_cell) in all {
            let internet = internet_of(self.memory(), vrf_cell);
            let nat = self.nats.get(&vni).copied().filter(|cell| {
                let known = NatGateway::from_cells(self.memory(), *cell);
                internet.is_some() && known.is_some_and(|known| known.vni.get() == vni)
            });
            if nat.is_none() {
                self.nats.remove(&vni);
            }
            if let Some(internet) = internet {
                self.memory().store32(internet, offset_of!(internet, nat), nat.unwrap_or(0));
            }
        }
    }

    /// Makes the addresses agree with the NAT gateways. Removes a gateway for whose addresses there is no memory.
    pub(in crate::node) fn link_all_nat_gateways(&mut self) -> Result<(), Error> {
        let mut gateways = Vec::new();
        for nat in self.nat_gateways().collect::<Vec<_>>() {
            let cell = self.nats[&nat.vni.get()];
            let vip_cell = self.vips.get(&nat.vip).copied().unwrap_or(0);
            let linked = self.check_nat_addresses(&nat).and_then(|()| self.put_links(&nat, cell, vip_cell));
            match linked {
                Ok(replaced) => gateways.extend(replaced),
                // The agent adds what is missing, and reports the error then.
                Err(Error::Full { .. } | Error::PublicAddressTaken { .. }) => {
                    self.remove_nat_gateway(nat.vni)?;
                }
                Err(error) => return Err(error),
            }
        }
        let valid: HashSet<(Ipv4Addr, u32)> = self
            .nat_gateways()
            .flat_map(|nat| {
                let cell = self.nats[&nat.vni.get()];
                nat.addresses.into_iter().map(move |it| (it.address, cell))
            })
            .collect();
        let is_stale = |link: &NatLink| !valid.contains(&(link.address.address, link.gateway));
        gateways.extend(self.take_links(self.find_links(is_stale))?);
        self.retire_gateways(gateways);
        let vrfs: Vec<u32> = self.vrfs.values().copied().collect();
        vrfs.into_iter().for_each(|cell| self.drop_empty_internet(cell));
        Ok(())
    }
}

/// NAT gateways with the number of addresses by which lookups find them.
pub(super) struct NatEntries(HashMap<Vni, usize>);

impl NatEntries {
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Counts an outside prefix if it is the address of a NAT gateway, with which its cell agrees.
    pub(super) fn count(&mut self, tables: &NodeTables, outside: IpNet, cell: u32) -> bool {
        let memory = tables.memory();
        let Some(link) = NatLink::from_cell(memory, cell) else { return false };
        let vip = tables.vips.get(&link.vip).copied().unwrap_or(0);
        let is_right = net_of(link.address.address) == outside
            && tables.nats.get(&link.vni.get()) == Some(&link.gateway)
            && memory.load32(cell, offset_of!(public_prefix, vip)) == vip
            && NatGateway::from_cells(memory, link.gateway)
                .is_some_and(|nat| links(&nat, link.gateway).any(|it| it == link));
        if is_right {
            *self.0.entry(link.vni).or_default() += 1;
        }
        is_right
    }

    /// Calls `call` for all NAT gateways, after all addresses were counted.
    pub(super) fn visit(self, tables: &NodeTables, call: &mut impl FnMut(EntryKey, EntryHash)) {
        for vni in tables.vrfs.keys().filter_map(|vni| Vni::new(*vni).ok()) {
            let known = tables.nats.get(&vni.get()).copied();
            let found = tables.nat_cell_of(vni);
            if known.or(found).is_none() {
                continue;
            }
            let nat = found.filter(|_| known == found).and_then(|cell| {
                let nat = NatGateway::from_cells(tables.memory(), cell)?;
                let vip = tables.vips.get(&nat.vip).copied().unwrap_or(0);
                let is_right = tables.memory().load32(cell, offset_of!(nat_gateway, vip)) == vip
                    && self.0.get(&vni) == Some(&nat.addresses.len());
                is_right.then_some(nat)
            });
            let key = EntryKey::NatGateway(vni);
            let hash = nat.map_or(EntryHash::unreadable(key), |nat| {
                let limits = (nat.sessions, nat.blocks);
                let addresses = nat.addresses.iter().map(|it| it.address);
                EntryHash::nat_gateway(
                    vni,
                    addresses,
                    nat.vip,
                    limits,
                    nat.any_remote,
                    &nat.forwards,
                    nat.nat64,
                )
            });
            call(key, hash);
        }
    }
}

/// Whether a cell is that of the address of a NAT gateway of the same VPC.
pub(super) fn is_link(memory: &Memory, cell: u32, outside: IpNet) -> bool {
    NatLink::from_cell(memory, cell).is_some_and(|link| {
        let gateway = NatGateway::from_cells(memory, link.gateway);
        net_of(link.address.address) == outside && gateway.is_some_and(|nat| nat.vni == link.vni)
    })
}

/// Claims the NAT gateways of another writer to which addresses lead.
pub(super) fn adopt_linked(
    memory: &Memory,
    outside: PublicRoutes,
    reachable: &mut ReachableCells,
    claimed: &mut HashSet<u32>,
) -> Result<(), Error> {
    let gateways = outside.iter(memory).filter_map(|(_, cell)| NatLink::from_cell(memory, cell));
    for gateway in gateways.map(|link| link.gateway) {
        claim(memory, gateway, reachable, claimed)?;
    }
    Ok(())
}

/// Claims the cells of a NAT gateway and of its port forwards, once.
fn claim(
    memory: &Memory,
    cell: u32,
    reachable: &mut ReachableCells,
    claimed: &mut HashSet<u32>,
) -> Result<(), Error> {
    if !claimed.insert(cell) {
        return Ok(());
    }
    if let Some((first, cells)) = NatGateway::forward_cells(memory, cell) {
        reachable.claim(first, cells)?;
    }
    reachable.claim(cell, layout::NAT_GATEWAY_CELLS)
}

/// Claims the NAT gateway of another writer's Internet side. Returns its cell.
pub(super) fn adopt(
    memory: &Memory,
    internet_cell: u32,
    reachable: &mut ReachableCells,
    claimed: &mut HashSet<u32>,
) -> Result<Option<u32>, Error> {
    let known: internet = memory.read(internet_cell);
    if known.nat == 0 {
        return Ok(None);
    }
    if NatGateway::from_cells(memory, known.nat).is_none_or(|nat| nat.vni.get() != known.vni) {
        return Err(Error::Corrupt(format!("VNI {} has no NAT gateway at cell {}", known.vni, known.nat)));
    }
    claim(memory, known.nat, reachable, claimed)?;
    Ok(Some(known.nat))
}
