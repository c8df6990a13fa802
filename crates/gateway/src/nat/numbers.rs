//! What the NAT gateways of the node's tables mean for the NAT tables: which addresses have numbers, and whose sessions may be here.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;

use sluice_agent::{NatAddresses, error_chain};
use sluice_tables::NodeTables;
use sluice_tables::nat::Nat;
use sluice_tables::sessions::ticks_now;
use sluice_types::{NatSeed, Vni};
use tokio::sync::watch;

use super::SharedNat;
use super::sync::NatUnits;

/// What the node's tables say: the public addresses of all NAT gateways with the VPCs that have them, and the ports of these that
/// are forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    addresses: BTreeMap<Ipv4Addr, Vni>,
    forwarded: BTreeSet<(Ipv4Addr, u16)>,
}

impl Wanted {
    fn of(tables: &NodeTables) -> Self {
        let mut wanted = Self::default();
        for nat in tables.nat_gateways() {
            wanted.addresses.extend(nat.addresses.iter().map(|it| (it.address, nat.vni)));
            wanted.forwarded.extend(nat.forwards.iter().map(|it| (*it.outside.ip(), it.outside.port())));
        }
        wanted
    }

    /// Whether an address that a VPC had is another VPC's then. What VPCs have at addresses that are in no NAT gateway ends with
    /// the release of these.
    fn loses_to(&self, next: &Self) -> bool {
        let other = |(address, of)| next.addresses.get(address).is_some_and(|next| next != of);
        self.addresses.iter().any(other)
    }
}

/// The part of source NAT in the gateway's role.
#[derive(Debug, Default)]
pub struct RoleNat {
    /// `None`: this gateway has no interface to the Internet, so it translates nothing.
    nat: Option<SharedNat>,
    /// Numbers of addresses on such a gateway. No packet uses them, but the tables demand different ones.
    unused: BTreeMap<Ipv4Addr, u16>,
    /// What the NAT tables agree with.
    settled: Option<Wanted>,
    /// Addresses whose numbers were asked for since then. Those whose NAT gateway is not written later are released.
    asked: HashSet<Ipv4Addr>,
    /// The database is another one: all that VPCs have here must end.
    ends_all: bool,
    /// The NAT gateways of the tables, for those who copy their sessions; `None` until the tables were whole at a
    /// [`RoleNat::settle`].
    units: watch::Sender<Option<NatUnits>>,
    /// The secret that the NAT tables do not have yet.
    seed: Option<NatSeed>,
}

impl RoleNat {
    /// Source NAT with these NAT tables, if this gateway has them.
    pub fn new(nat: Option<SharedNat>) -> Self {
        Self { nat, ..Self::default() }
    }

    /// The NAT gateways of the tables; `None` until they are known.
    pub fn units(&self) -> watch::Receiver<Option<NatUnits>> {
        self.units.subscribe()
    }

    /// See [`sluice_agent::Role::nat_addresses`].
    pub fn addresses(&self) -> Option<NatAddresses> {
        let nat = self.nat.as_ref()?;
        let used = nat.lock().addresses().filter(|known| !known.is_released).count() as u64;
        Some(NatAddresses { used, total: nat.addresses_total.into() })
    }

    /// See [`sluice_agent::Role::nat_numbers`].
    ///
    /// # Errors
    /// As [`Nat::assign`]. Nothing has changed if there are too few numbers.
    pub fn numbers(&mut self, addresses: &[Ipv4Addr]) -> Result<Vec<u16>, sluice_tables::Error> {
        for address in addresses {
            if !self.asked.insert(*address) {
                // In between, another VPC may have had it, of which `settled` does not know.
                self.settled = None;
            }
        }
        match &self.nat {
            Some(nat) => assign_all(&mut nat.lock(), nat.addresses_total, addresses),
            None => addresses.iter().map(|address| self.unused_number(*address)).collect(),
        }
    }

    fn unused_number(&mut self, address: Ipv4Addr) -> Result<u16, sluice_tables::Error> {
        let is_free = |number: &u16| !self.unused.values().any(|used| used == number);
        let number = self.unused.get(&address).copied().or_else(|| (0..=u16::MAX).find(is_free));
        let number = number.ok_or_else(|| {
            sluice_tables::Error::Invalid(format!("{address}: there are too many addresses of NAT gateways"))
        })?;
        self.unused.insert(address, number);
        Ok(number)
    }

    /// An agent begins: writes the NAT gateways of the tables again whose addresses have other numbers now. One that cannot be
    /// written is removed, and the controller is asked for a snapshot.
    pub fn renumber(&mut self, tables: &mut NodeTables) {
        let known: Vec<_> = tables.nat_gateways().collect();
        if self.nat.is_none() {
            let numbers = known.iter().flat_map(|nat| &nat.addresses).map(|it| (it.address, it.number));
            self.unused = numbers.collect();
        }
        for mut nat in known {
            let vni = nat.vni;
            let addresses: Vec<_> = nat.addresses.iter().map(|it| it.address).collect();
            let written = self.numbers(&addresses).and_then(|numbers| {
                nat.addresses.iter_mut().zip(numbers).for_each(|(it, number)| it.number = number);
                tables.upsert_nat_gateway(&nat)
            });
            let Err(error) = written else { continue };
            tracing::error!(%vni, error = error_chain(&error), "cannot take over the NAT gateway: removing it");
            // Before the removal: an agent that is killed in between must not leave tables that lack it.
            tables.set_applied_revision(0);
            if let Err(error) = tables.remove_nat_gateway(vni) {
                tracing::error!(%vni, error = error_chain(&error), "cannot remove the NAT gateway");
            }
        }
    }

    /// The entries of another database replace those of the tables, and the same VNI is another tenant's: the next
    /// [`RoleNat::settle`] ends all that VPCs have.
    pub fn database_changed(&mut self) {
        self.ends_all = true;
    }

    /// The controller tells the secret that all gateways of the cloud have, so that each finds the sessions of another one. Sessions
    /// that were made by another secret end. If that fails, the next [`RoleNat::settle`] tries it again.
    pub fn set_seed(&mut self, seed: NatSeed) {
        self.seed = Some(seed);
        self.apply_seed();
    }

    fn apply_seed(&mut self) {
        let (Some(nat), Some(seed)) = (&self.nat, self.seed) else { return };
        match nat.lock().set_seed(seed.get(), ticks_now(), &mut |event| nat.log.block(&event)) {
            Ok(is_new) => {
                self.seed = None;
                if is_new {
                    nat.note_emptied();
                    tracing::info!(
                        "the controller's secret of source NAT is in use; sessions that there were have ended"
                    );
                }
            }
            Err(error) => tracing::error!(
                error = error_chain(&error),
                "cannot change the secret of source NAT; retrying later"
            ),
        }
    }

    /// Makes the NAT tables agree with the node's tables, if these have changed: ends what VPCs have at addresses of others, and
    /// keeps packets from claiming forwarded ports, and releases addresses. What fails is logged and tried again by the next call. Another owner of a vIP changes nothing: what
    /// VPCs have here are copies of its sessions then, or it gets them from here.
    pub fn settle(&mut self, tables: &NodeTables) {
        self.apply_seed();
        let mut units: NatUnits = tables.nat_gateways().map(|nat| (nat.vni, nat.vip)).collect();
        units.sort_unstable();
        // Until the tables are whole, NAT gateways may be missing, and copies of those that there are would count as all.
        let is_whole = tables.applied_revision() != 0;
        self.units.send_if_modified(|known| {
            let is_new = is_whole && known.as_ref() != Some(&units);
            if is_new {
                *known = Some(units);
            }
            is_new
        });
        let wanted = Wanted::of(tables);
        if self.settled.as_ref() == Some(&wanted) && self.asked.is_empty() && !self.ends_all {
            return;
        }
        self.unused.retain(|address, _| wanted.addresses.contains_key(address));
        let ends = self.ends_all || self.settled.as_ref().is_none_or(|before| before.loses_to(&wanted));
        let done: Result<(), sluice_tables::Error> = self.nat.as_ref().map_or(Ok(()), |shared| {
            let mut nat = shared.lock();
            nat.set_forwarded(wanted.forwarded.iter().copied());
            release(&mut nat, &wanted)?;
            if ends {
                end(&mut nat, &wanted, self.ends_all)?;
            }
            if self.ends_all {
                shared.note_emptied();
            }
            Ok(())
        });
        if let Err(error) = &done {
            tracing::error!(
                error = error_chain(error),
                "cannot end sessions of VPCs that have lost their public addresses; retrying later"
            );
        }
        self.asked.clear();
        self.ends_all &= done.is_err();
        self.settled = done.is_ok().then_some(wanted);
    }
}

/// Gives all these addresses their numbers, or none if there are too few.
fn assign_all(nat: &mut Nat, total: u32, addresses: &[Ipv4Addr]) -> Result<Vec<u16>, sluice_tables::Error> {
    let known: HashMap<_, _> = nat.addresses().map(|known| (known.address, known.is_released)).collect();
    let free = (total as usize).saturating_sub(known.len());
    if let Some(&address) = addresses.iter().filter(|address| !known.contains_key(address)).nth(free) {
        let released = known.values().filter(|is_released| **is_released).count() as u32;
        return Err(sluice_tables::Error::NoNatNumber { address, total, released });
    }
    addresses.iter().map(|address| nat.assign(*address)).collect()
}

/// Releases the addresses that no NAT gateway has.
fn release(nat: &mut Nat, wanted: &Wanted) -> Result<(), sluice_tables::Error> {
    let released: Vec<_> = nat
        .addresses()
        .filter(|known| !known.is_released && !wanted.addresses.contains_key(&known.address))
        .map(|known| known.address)
        .collect();
    nat.release(&released)?;
    for address in released {
        tracing::info!(%address, "the public address is in no NAT gateway any more");
    }
    Ok(())
}

/// Ends what VPCs have at addresses that are not theirs any more; with `all`, what all have.
fn end(nat: &mut Nat, wanted: &Wanted, all: bool) -> Result<(), sluice_tables::Error> {
    let blocks = nat.end(|block| all || wanted.addresses.get(&block.outside) != Some(&block.vni))?;
    if blocks > 0 {
        tracing::info!(blocks, "ended sessions of VPCs that have lost their public addresses");
    }
    Ok(())
}
