//! What the NAT gateways of the node's tables, and the vIPs that this gateway owns, mean for the NAT tables: which addresses have
//! numbers, and whose sessions are here.

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;

use sluice_agent::error_chain;
use sluice_tables::{NatGateway, NodeTables};
use sluice_types::Vni;

use super::SharedNat;

/// What the node's tables say: the public addresses of all NAT gateways, the VPCs that have them, and whether these are translated
/// here, because this gateway owns the vIP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted(BTreeMap<Ipv4Addr, (Vni, bool)>);

impl Wanted {
    fn of(tables: &NodeTables) -> Self {
        let owned: HashSet<_> = tables.vips().filter(|vip| vip.owned).map(|vip| vip.address).collect();
        let of_gateway = |nat: NatGateway| {
            let of_vpc = (nat.vni, owned.contains(&nat.vip));
            nat.addresses.into_iter().map(move |it| (it.address, of_vpc))
        };
        Self(tables.nat_gateways().flat_map(of_gateway).collect())
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
}

impl RoleNat {
    /// Source NAT with these NAT tables, if this gateway has them.
    pub fn new(nat: Option<SharedNat>) -> Self {
        Self { nat, ..Self::default() }
    }

    /// See [`sluice_agent::Role::nat_number`].
    ///
    /// # Errors
    /// As [`sluice_tables::nat::Nat::assign`].
    pub fn number(&mut self, address: Ipv4Addr) -> Result<u16, sluice_tables::Error> {
        // An address whose NAT gateway is not written later is released.
        self.settled = None;
        if let Some(nat) = &self.nat {
            return nat.lock().assign(address);
        }
        let is_free = |number: &u16| !self.unused.values().any(|used| used == number);
        let number = self.unused.get(&address).copied().or_else(|| (0..=u16::MAX).find(is_free));
        let number = number.ok_or_else(|| {
            sluice_tables::Error::Invalid(format!("{address}: there are too many addresses of NAT gateways"))
        })?;
        self.unused.insert(address, number);
        Ok(number)
    }

    /// Makes the NAT tables agree with the node's tables, if these have changed: ends what VPCs have whose NAT gateway is not here,
    /// and releases addresses. What fails is logged and tried again by the next call.
    pub fn settle(&mut self, tables: &NodeTables) {
        let wanted = Wanted::of(tables);
        if self.settled.as_ref() == Some(&wanted) {
            return;
        }
        self.unused.retain(|address, _| wanted.0.contains_key(address));
        let done = self.nat.as_ref().map_or(Ok(()), |nat| settle(nat, &wanted));
        if let Err(error) = &done {
            tracing::error!(
                error = error_chain(error),
                "cannot end sessions of NAT gateways that are not here any more; retrying later"
            );
        }
        self.settled = done.is_ok().then_some(wanted);
    }
}

fn settle(nat: &SharedNat, wanted: &Wanted) -> Result<(), sluice_tables::Error> {
    let mut nat = nat.lock();
    let released: Vec<_> = nat
        .addresses()
        .filter(|known| !known.is_released && !wanted.0.contains_key(&known.address))
        .map(|known| known.address)
        .collect();
    for address in released {
        nat.release(address)?;
        tracing::info!(%address, "the public address is in no NAT gateway any more");
    }
    let blocks = nat.end(|block| wanted.0.get(&block.outside) != Some(&(block.vni, true)))?;
    if blocks > 0 {
        tracing::info!(blocks, "ended sessions of NAT gateways that are not here any more");
    }
    Ok(())
}
