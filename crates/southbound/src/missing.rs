//! Entries that the controller sent and that are not in a node's tables, by name. It changes with the kinds of entries.

use crate::proto::missing_entry::Entry;
use crate::wire::prefix;
use crate::{EndpointKey, MAX_MISSING, Malformed, PolicyKey, RouteKey, proto};
use sluice_types::{EntryKey, Vni};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The entries that are missing in a node's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// At most [`MAX_MISSING`] of them, with the reasons.
    pub entries: BTreeMap<EntryKey, String>,
    /// There are others, which are not named.
    pub others: bool,
}

impl Missing {
    /// Adds an entry, by name if there is room.
    pub fn add(&mut self, key: EntryKey, reason: String) {
        if self.entries.len() < MAX_MISSING || self.entries.contains_key(&key) {
            self.entries.insert(key, reason);
        } else {
            self.others = true;
        }
    }

    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.others
    }
}

fn endpoint_key(vni: Vni, address: IpAddr) -> proto::EndpointKey {
    let (ipv4, ipv6) = match address {
        IpAddr::V4(v4) => (Some(v4), None),
        IpAddr::V6(v6) => (None, Some(v6)),
    };
    EndpointKey { vni, ipv4, ipv6 }.into()
}

/// `None` for what only the node itself has.
fn write(key: EntryKey) -> Option<Entry> {
    Some(match key {
        EntryKey::Endpoint(vni, address) => Entry::Endpoint(endpoint_key(vni, address)),
        EntryKey::Route(vni, prefix) => Entry::Route(RouteKey { vni, prefix }.into()),
        EntryKey::Vrf(vni) => Entry::Vni(vni.get()),
        EntryKey::Vtep(address) => Entry::Vtep(address.into()),
        EntryKey::Vip(address) => Entry::Vip(address.into()),
        EntryKey::Port(vni, address) => Entry::Port(endpoint_key(vni, address)),
        EntryKey::Group(id) => Entry::Group(id),
        EntryKey::Policy(vni, identity) => Entry::Policy(PolicyKey { vni, identity }.into()),
        EntryKey::Delegated(vni, prefix) => Entry::Delegated(RouteKey { vni, prefix }.into()),
        EntryKey::PublicPrefix(prefix) => Entry::PublicPrefix(prefix.into()),
        EntryKey::NatGateway(vni) => Entry::NatGateway(vni.get()),
        EntryKey::Meter(id) => Entry::Meter(id),
        EntryKey::ServiceAddress(vni, address) => Entry::ServiceAddress(endpoint_key(vni, address)),
        EntryKey::Service(id) => Entry::Service(id),
        EntryKey::Interface(_) => return None,
    })
}

fn read(entry: Option<Entry>) -> Result<EntryKey, Malformed> {
    let one = |key: proto::EndpointKey| {
        let EndpointKey { vni, ipv4, ipv6 } = key.try_into()?;
        let address = ipv4.map(IpAddr::V4).or(ipv6.map(IpAddr::V6));
        Ok::<_, Malformed>((vni, address.ok_or(Malformed::NoAddress("missing entry"))?))
    };
    Ok(match entry.ok_or(Malformed::UnknownKind)? {
        Entry::Endpoint(key) => one(key).map(|(vni, address)| EntryKey::Endpoint(vni, address))?,
        Entry::Port(key) => one(key).map(|(vni, address)| EntryKey::Port(vni, address))?,
        Entry::Route(key) => RouteKey::try_from(key).map(|key| EntryKey::Route(key.vni, key.prefix))?,
        Entry::Vni(vni) => EntryKey::Vrf(Vni::new(vni)?),
        Entry::Vtep(address) => EntryKey::Vtep(address.read("VTEP")?),
        Entry::Vip(address) => EntryKey::Vip(address.read("vIP")?),
        Entry::Group(id) => EntryKey::Group(id),
        Entry::Delegated(key) => {
            RouteKey::try_from(key).map(|key| EntryKey::Delegated(key.vni, key.prefix))?
        }
        Entry::PublicPrefix(outside) => EntryKey::PublicPrefix(prefix(outside)?),
        Entry::NatGateway(vni) => EntryKey::NatGateway(Vni::new(vni)?),
        Entry::Meter(id) => EntryKey::Meter(id),
        Entry::ServiceAddress(key) => {
            one(key).map(|(vni, address)| EntryKey::ServiceAddress(vni, address))?
        }
        Entry::Service(id) => EntryKey::Service(id),
        Entry::Policy(key) => PolicyKey::try_from(key).map(|key| EntryKey::Policy(key.vni, key.identity))?,
    })
}

impl From<Missing> for proto::MissingEntries {
    fn from(missing: Missing) -> Self {
        let (count, mut others) = (missing.entries.len(), missing.others);
        let named = missing.entries.into_iter().take(MAX_MISSING);
        let entries: Vec<_> = named
            .filter_map(|(key, reason)| Some(proto::MissingEntry { entry: Some(write(key)?), reason }))
            .collect();
        others |= entries.len() < count;
        Self { entries, others }
    }
}

impl From<proto::MissingEntries> for Missing {
    /// Entries that cannot be read, and those beyond [`MAX_MISSING`], count as others.
    fn from(message: proto::MissingEntries) -> Self {
        let mut missing = Self { entries: BTreeMap::new(), others: message.others };
        for proto::MissingEntry { entry, reason } in message.entries {
            match read(entry) {
                Ok(key) => missing.add(key, reason),
                Err(_) => missing.others = true,
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Missing {
        let vni = Vni::new(7).unwrap();
        let mut missing = Missing::default();
        let keys = [
            EntryKey::Endpoint(vni, "10.0.0.2".parse().unwrap()),
            EntryKey::Endpoint(vni, "fd00::2".parse().unwrap()),
            EntryKey::Route(vni, "10.0.0.0/24".parse().unwrap()),
            EntryKey::Route(vni, "fd00::/64".parse().unwrap()),
            EntryKey::Vrf(vni),
            EntryKey::Vtep("192.0.2.1".parse().unwrap()),
            EntryKey::Vip("2001:db8::1".parse().unwrap()),
            EntryKey::Port(vni, "10.0.0.3".parse().unwrap()),
            EntryKey::Group(3),
            EntryKey::Policy(vni, 4),
            EntryKey::Delegated(vni, "10.0.0.0/28".parse().unwrap()),
            EntryKey::PublicPrefix("198.51.100.1/32".parse().unwrap()),
            EntryKey::NatGateway(vni),
            EntryKey::Meter(9),
            EntryKey::ServiceAddress(vni, "10.0.0.9".parse().unwrap()),
            EntryKey::Service(5),
        ];
        for key in keys {
            missing.add(key, format!("no memory for {key}"));
        }
        missing
    }

    #[test]
    fn every_kind_of_entry_survives_the_message() {
        let message = proto::MissingEntries::from(all());
        assert_eq!(message.entries.len(), 16);
        assert_eq!(Missing::from(message), all());
    }

    /// Catches: an entry that has no name in the message, or one that cannot be read, and that then counts as written.
    #[test]
    fn what_cannot_be_named_counts_as_others() {
        let mut missing = all();
        missing.add(EntryKey::Interface(5), String::new());
        let message = proto::MissingEntries::from(missing);
        assert!(message.others && message.entries.len() == 16);

        let mut message = proto::MissingEntries::from(all());
        message.entries[4].entry = Some(Entry::Vni(1 << 24));
        message.entries[5].entry = None;
        let missing = Missing::from(message);
        assert!(missing.others && missing.entries.len() == 14);

        let mut many = Missing::default();
        for id in 0..MAX_MISSING as u32 + 1 {
            many.add(EntryKey::Group(id), String::new());
        }
        assert!(many.others && many.entries.len() == MAX_MISSING);
    }
}
