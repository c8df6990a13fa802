//! Services, whose members share the addresses of each mount, and these addresses. They are the same for both roles. This file
//! changes when the controller sends something else about services.

use sluice_southbound::{Service, ServiceAddress, Update};
use sluice_tables::MemberService;

use super::retries::{Entry, Key};
use super::snapshot::addresses;
use super::{Applier, Role};

impl<R: Role> Applier<R> {
    /// Writes services, and then the addresses that lead to them.
    pub(super) fn upsert_services(&mut self, update: &mut Update) {
        for Service { id, seed, members } in update.services.drain(..) {
            let service = MemberService { id, seed, members };
            let result = self.tables.upsert_service(&service);
            if self.failures.check(result, format_args!("service {id}")).is_none() {
                self.try_again(Entry::Service(Service { id, seed, members: service.members }));
            }
        }
        for ServiceAddress { vni, service, ipv4, ipv6 } in update.service_addresses.drain(..) {
            for address in addresses(ipv4, ipv6) {
                let result = self.tables.upsert_service_address(vni, address, service);
                let what = format_args!("service address {address} of VNI {vni}");
                if self.failures.check(result, what).is_none() {
                    self.try_again(Entry::ServiceAddress(vni, address, service));
                }
            }
        }
    }

    /// Removes addresses of mounts, and then the services that no address leads to any more.
    pub(super) fn remove_services(&mut self, update: &Update) {
        for key in &update.removed_service_addresses {
            for address in addresses(key.ipv4, key.ipv6) {
                let result = self.tables.remove_service_address(key.vni, address);
                let what = format_args!("removal of service address {address} of VNI {}", key.vni);
                if self.failures.check(result, what).is_none() {
                    self.try_removal_again(Key::ServiceAddress(key.vni, address));
                }
            }
        }
        for id in &update.removed_services {
            let result = self.tables.remove_service(*id);
            if self.failures.check(result, format_args!("removal of service {id}")).is_none() {
                self.try_removal_again(Key::Service(*id));
            }
        }
    }
}
