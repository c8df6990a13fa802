//! The port of the tables that follows from an instance and its attachment, and how it is written and removed: never
//! open when it should be filtered.

use sluice_agent::error_chain;
use sluice_southbound::{PolicyKey, Port, PortOptions, Qos};
use sluice_tables::sessions::ticks_now;
use sluice_tables::{NodeTables, PortIpv4, PortIpv6, PortQos, PortSources, layout};
use sluice_types::CreditPolicy;

use super::{Attachment, RegistryError};
use crate::args::ADOPT_SECONDS_MAX;
use crate::policies::{CLOSED, Policies};
use crate::scopes::Scopes;

/// Seconds that a DHCP lease lasts. Addresses never change under an instance: it only has to renew its lease.
const LEASE_S: u32 = 86_400;

/// What the ports of a host are written with besides their instances and attachments.
pub(super) struct Writer<'a> {
    pub policies: &'a Policies,
    pub scopes: &'a Scopes,
    /// MTU of the tunnel.
    pub mtu_max: u16,
    /// For how long a port that becomes filtered adopts the connections that it has.
    pub adopt_s: u32,
    /// The policy of ports that have neither one of their own nor a rate.
    pub default_credit: Option<CreditPolicy>,
}

/// The key of an instance's policy; `None` if its port is not filtered.
pub(super) fn policy_key(port: &Port) -> Option<PolicyKey> {
    (port.identity != 0).then_some(PolicyKey { vni: port.vni, identity: port.identity })
}

/// Whether the sessions of an instance's port are of no use after this change.
pub(super) fn ends_sessions(old: &Port, new: &Port) -> bool {
    let addresses =
        |port: &Port| (port.vni, port.mac, port.ipv4.map(|net| net.addr()), port.ipv6.map(|net| net.addr()));
    // Sessions that nothing refreshes while the port is not filtered would be out of date when it is filtered again.
    addresses(old) != addresses(new) || (old.identity != 0 && new.identity == 0)
}

/// What the VM may send from besides the addresses of its port.
fn sources(options: &PortOptions) -> PortSources {
    let pair = |pair: &sluice_southbound::AddressPair| sluice_tables::AddressPair {
        address: pair.address,
        mac: pair.mac,
        held: pair.held,
    };
    PortSources {
        additional: options.additional.clone(),
        pairs: options.pairs.iter().map(pair).collect(),
        unprotected: options.unprotected,
    }
}

/// Seconds of `CLOCK_MONOTONIC`, by which the programs compare [`sluice_tables::Port::adopt_until_s`].
fn now_s() -> u32 {
    ticks_now() / layout::SESSION_TICKS_PER_SECOND
}

impl Writer<'_> {
    /// The port as it must be in the tables, where it is `known` now.
    pub fn entry(
        &self,
        known: Option<&sluice_tables::Port>,
        port: &Port,
        attachment: &Attachment,
    ) -> sluice_tables::Port {
        let router = port.router4;
        let Qos { dscp, rate_mbps, credit } = port.options.qos;
        // A class replaces a rate, and a rate the default class.
        let rate_mbps = rate_mbps.filter(|_| credit.is_none());
        let policy = credit.or(self.default_credit.filter(|_| rate_mbps.is_none()));
        let is_shaped = rate_mbps.is_some() || policy.is_some_and(|policy| policy.mbps.is_some());
        // Every port is counted, so that a change of the default class changes none.
        let qos = PortQos { dscp, rate_mbps, credit: attachment.scope != 0 };
        let policy = policy_key(port).map(|key| self.policies.id_for(key));
        sluice_tables::Port {
            ifindex: attachment.ifindex,
            // What the interface shapes must pass its queueing discipline.
            peer_redirect: attachment.peer_redirect && !is_shaped,
            mtu: port.mtu.min(self.mtu_max),
            vni: port.vni,
            mac: port.mac,
            ipv4: port.ipv4.map(|net| PortIpv4 { address: net.addr(), length: net.prefix_len(), router }),
            ipv6: port.ipv6.map(|net| PortIpv6 {
                address: net.addr(),
                length: net.prefix_len(),
                dhcp: port.ipv6_dhcp,
            }),
            dns4: port.dns4.clone(),
            instance: port.instance.get(),
            lease_s: LEASE_S,
            policy,
            scope: attachment.scope,
            identity: port.identity,
            adopt_until_s: policy.map_or(0, |_| self.adopt_until_s(known, port)),
            qos,
            sources: sources(&port.options),
            bonded: port.options.bonded,
        }
    }

    /// Connections are adopted only of the instance that had the port before without a filter. Times that were set stay.
    fn adopt_until_s(&self, known: Option<&sluice_tables::Port>, port: &Port) -> u32 {
        let Some(known) = known.filter(|known| known.instance == port.instance.get()) else { return 0 };
        match known.policy {
            None if self.adopt_s == 0 => 0,
            None => now_s() + self.adopt_s,
            // What is longer than any setting is damaged.
            Some(_) => {
                Some(known.adopt_until_s).filter(|time| *time <= now_s() + ADOPT_SECONDS_MAX).unwrap_or(0)
            }
        }
    }

    /// Writes a port.
    pub fn write(
        &self,
        tables: &mut NodeTables,
        port: &Port,
        (ifname, attachment): (&str, &Attachment),
    ) -> Result<(), RegistryError> {
        let known = tables.port(attachment.ifindex);
        let entry = self.entry(known.as_ref(), port, attachment);
        self.scopes.open(entry.scope, entry.ifindex, ifname, entry.policy.is_some());
        let closed = if entry.policy == Some(CLOSED) { Policies::write_closed(tables) } else { Ok(()) };
        match closed.and_then(|()| tables.upsert_port(&entry)) {
            Ok(is_other) => {
                if let Some(old) = known.filter(|known| known.scope != entry.scope) {
                    self.scopes.retire(old.scope);
                }
                if is_other && entry.policy.is_some() {
                    self.scopes.note_change();
                }
                Ok(())
            }
            Err(error) => {
                if entry.policy.is_some() && known.is_some_and(|known| known.policy.is_none()) {
                    tracing::error!(port = port.name, "the port cannot be filtered, and is removed");
                    self.remove(tables, attachment)?;
                }
                Err(RegistryError::Tables(error_chain(&error)))
            }
        }
    }

    /// Removes the port that an interface is.
    pub fn remove(&self, tables: &mut NodeTables, attachment: &Attachment) -> Result<(), RegistryError> {
        self.remove_interface(tables, attachment.ifindex)?;
        self.scopes.retire(attachment.scope);
        Ok(())
    }

    /// Removes the port with this interface.
    pub fn remove_interface(&self, tables: &mut NodeTables, ifindex: u32) -> Result<(), RegistryError> {
        let known = tables.port(ifindex).map_or(0, |known| known.scope);
        tables.remove_port(ifindex).map_err(|error| RegistryError::Tables(error_chain(&error)))?;
        self.scopes.retire(known);
        Ok(())
    }
}
