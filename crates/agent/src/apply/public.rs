//! What VPCs have on the Internet side: public prefixes, NAT gateways and meters.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use sluice_southbound::{Meter, PublicPrefix, Update};
use sluice_tables::{Error, NatGateway};
use sluice_types::{IpNet, PortForward, Vni};

use super::retries::{Entry, Key};
use super::{Applier, Role, UpdateContext};

impl<R: Role> Applier<R> {
    /// Entries that have waited for a new meter are tried again at once.
    pub(super) fn upsert_meters(&mut self, meters: &[Meter]) {
        for meter in meters {
            let is_new = self.tables.meter_number(meter.id).is_none();
            let write = |role: &mut R, context: &mut UpdateContext<'_>| role.upsert_meter(context, meter);
            if self.write_metered(Entry::Meter(*meter), write) && is_new && self.retries.len() > 0 {
                self.retries.expedite();
            }
        }
    }

    /// Removes meters that were kept only for entries that the database had lost, and that have been removed or have others now.
    pub(super) fn remove_unused_meters(&mut self) {
        let removed_meters = self.unconfirmed.take_unused_meters(&self.tables);
        self.remove(&Update { removed_meters, ..Update::default() }, false);
    }

    /// Public prefixes and NAT gateways that are removed, or stand for other addresses than before, give up these first:
    /// another entry of the update may get them.
    pub(super) fn upsert_public(&mut self, update: &mut Update) {
        let removed = std::mem::take(&mut update.removed_public_prefixes);
        self.remove_public_prefixes(&removed);
        let removed_nat = std::mem::take(&mut update.removed_nat_gateways);
        self.remove_nat_gateways(&removed_nat);
        self.take_nat_addresses(update);
        self.upsert_public_prefixes(&update.public_prefixes);
        for nat in update.nat_gateways.drain(..) {
            match self.fails(false, |role, context| role.upsert_nat_gateway(context, &nat)) {
                true => {
                    self.try_again(Entry::NatGateway(nat.clone()));
                    self.keep_of_nat_gateway(&nat);
                }
                // As below.
                false => self.retries.remove(Key::NatGateway(nat.vni)),
            }
        }
        if !(removed.is_empty() && removed_nat.is_empty()) && self.retries.len() > 0 {
            self.retries.expedite();
        }
    }

    fn upsert_public_prefixes(&mut self, all: &[PublicPrefix]) {
        let known = |outside| self.tables.public_prefix(outside).map(|known| (known.vni, known.inside));
        let has_moved =
            |new: &&PublicPrefix| known(new.outside).is_some_and(|it| it != (new.vni, new.inside));
        let moved: Vec<IpNet> = all.iter().filter(has_moved).map(|new| new.outside).collect();
        self.remove_public_prefixes(&moved);
        for public in all {
            let entry = Entry::PublicPrefix(*public);
            if self.write_metered(entry, |role, context| role.upsert_public_prefix(context, public)) {
                // It may have failed to give up its addresses above. That removal would take the new one away.
                self.retries.remove(Key::PublicPrefix(public.outside));
            }
        }
    }

    /// Takes the addresses from NAT gateways that an update gives to other entries.
    fn take_nat_addresses(&mut self, update: &Update) {
        let single = |net: IpNet| match net.addr() {
            IpAddr::V4(address) if net.prefix_len() == 32 => Some((address, None)),
            _ => None,
        };
        let of_prefixes = update.public_prefixes.iter().filter_map(|public| single(public.outside));
        let of_nat = update
            .nat_gateways
            .iter()
            .flat_map(|nat| nat.addresses.iter().map(|address| (*address, Some(nat.vni))));
        let given: HashMap<Ipv4Addr, Option<Vni>> = of_prefixes.chain(of_nat).collect();
        if given.is_empty() {
            return;
        }
        let known: Vec<_> = self.tables.nat_gateways().collect();
        for nat in known {
            let vni = nat.vni;
            let stays = |it| given.get(&it).is_none_or(|holder| *holder == Some(vni));
            self.reduce_nat_gateway(nat, stays, |_| true);
        }
    }

    /// A NAT gateway could not be written: that of the tables gives up the addresses and port forwards that it has no longer. New
    /// addresses may wait for the numbers of these, which become free then; a port that was closed must not stay open.
    fn keep_of_nat_gateway(&mut self, new: &sluice_southbound::NatGateway) {
        if let Some(known) = self.tables.nat_gateway(new.vni) {
            self.reduce_nat_gateway(known, |it| new.addresses.contains(&it), |it| new.forwards.contains(it));
        }
    }

    /// Writes a NAT gateway of the tables with only the addresses that stay, and only their port forwards that stay.
    fn reduce_nat_gateway(
        &mut self,
        mut nat: NatGateway,
        stays: impl Fn(Ipv4Addr) -> bool,
        is_forwarded: impl Fn(&PortForward) -> bool,
    ) {
        let sizes = |nat: &NatGateway| (nat.addresses.len(), nat.forwards.len());
        let before = sizes(&nat);
        nat.addresses.retain(|it| stays(it.address));
        nat.forwards.retain(|it| stays(*it.outside.ip()) && is_forwarded(it));
        if nat.addresses.is_empty() {
            self.remove_nat_gateways(&[nat.vni]);
        } else if sizes(&nat) != before {
            let mut result = self.tables.upsert_nat_gateway(&nat);
            if matches!(result, Err(Error::Full { .. })) {
                // It needs less memory without port forwards. Those that stay are written with the next attempt.
                nat.forwards.clear();
                result = self.tables.upsert_nat_gateway(&nat);
            }
            self.failures.check(result, format_args!("what stays of the NAT gateway of VNI {}", nat.vni));
        }
    }

    /// Takes the addresses from public prefixes that an update gives to NAT gateways. The removal of these prefixes may come with a
    /// later message of the step, or is the end of a snapshot. Not for a repeated attempt: what waited may be out of date.
    pub(super) fn take_prefixes_of_nat(&mut self, update: &Update) {
        let named = update.nat_gateways.iter().flat_map(|nat| &nat.addresses);
        for outside in named.map(|address| IpNet::from(IpAddr::V4(*address))) {
            // It may wait as well, and would take the address back.
            self.retries.remove(Key::PublicPrefix(outside));
            if self.tables.public_prefix(outside).is_some() {
                self.remove_public_prefixes(&[outside]);
            }
        }
    }

    pub(super) fn remove_public_prefixes(&mut self, outsides: &[IpNet]) {
        for outside in outsides {
            let result = self.tables.remove_public_prefix(*outside);
            let what = format_args!("removal of public prefix {outside}");
            if self.failures.check(result, what).is_none() {
                self.try_removal_again(Key::PublicPrefix(*outside));
            }
        }
    }

    pub(super) fn remove_nat_gateways(&mut self, vnis: &[Vni]) {
        for vni in vnis {
            let result = self.tables.remove_nat_gateway(*vni);
            if self.failures.check(result, format_args!("removal of the NAT gateway of VNI {vni}")).is_none()
            {
                self.try_removal_again(Key::NatGateway(*vni));
            }
        }
    }
}
