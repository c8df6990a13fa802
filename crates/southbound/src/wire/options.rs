//! Messages of what a port may have besides its addresses.

use super::{Malformed, Result, address, instance_id, mac, unicast};
use crate::entries::{AddressClaim, AddressPair, Port, Qos};
use crate::proto;
use prost::Message;
use sluice_types::{Allowance, CreditPolicy, IpNet};
use std::num::NonZeroU32;
use std::time::Duration;

impl From<IpNet> for proto::Prefix {
    fn from(prefix: IpNet) -> Self {
        Self { address: Some(prefix.addr().into()), length: prefix.prefix_len().into() }
    }
}

impl Port {
    /// Size of its message in bytes: below 4 KiB with everything that a port may have.
    pub fn message_bytes(&self) -> usize {
        proto::Port::from(self.clone()).encoded_len()
    }
}

/// Reads a prefix of unicast addresses without bits beyond its length.
pub(crate) fn prefix(message: proto::Prefix) -> Result<IpNet> {
    let address = address(message.address, "prefix")?;
    let bad = || Malformed::Prefix(address, message.length);
    let length = u8::try_from(message.length).map_err(|_| bad())?;
    let prefix = IpNet::new(address, length).map_err(|_| bad())?;
    if prefix.trunc() != prefix {
        return Err(bad());
    }
    // The lower half of a family, and what contains it, begins with the unspecified address.
    if !address.is_unspecified() {
        unicast("prefix", address)?;
    }
    Ok(prefix)
}

impl From<AddressPair> for proto::AddressPair {
    fn from(pair: AddressPair) -> Self {
        let mac = pair.mac.map_or(0, |mac| mac.to_u64());
        Self { address: Some(pair.address.into()), mac, held: pair.held }
    }
}

impl TryFrom<proto::AddressPair> for AddressPair {
    type Error = Malformed;
    fn try_from(message: proto::AddressPair) -> Result<Self> {
        let address = unicast("address pair", address(message.address, "address pair")?)?;
        let mac = if message.mac == 0 { None } else { Some(mac("address pair", message.mac)?) };
        Ok(Self { address, mac, held: message.held })
    }
}

impl From<Qos> for proto::Qos {
    fn from(qos: Qos) -> Self {
        let (dscp, rate_mbps) = (qos.dscp.map(Into::into), qos.rate_mbps.map_or(0, Into::into));
        Self { dscp, rate_mbps, credit: qos.credit.map(Into::into) }
    }
}

impl From<Allowance> for proto::Allowance {
    fn from(allowance: Allowance) -> Self {
        let Allowance { base, max, clamp, credit } = allowance;
        Self { base, max, clamp, credit }
    }
}

impl From<CreditPolicy> for proto::CreditPolicy {
    fn from(policy: CreditPolicy) -> Self {
        let CreditPolicy { mbps, kpps, cpu_permille } = policy;
        let message = |allowance: Option<Allowance>| allowance.map(proto::Allowance::from);
        Self { mbps: message(mbps), kpps: message(kpps), cpu_permille: message(cpu_permille) }
    }
}

impl TryFrom<proto::CreditPolicy> for CreditPolicy {
    type Error = Malformed;
    fn try_from(message: proto::CreditPolicy) -> Result<Self> {
        let read = |allowance: Option<proto::Allowance>| {
            allowance.map(|proto::Allowance { base, max, clamp, credit }| Allowance {
                base,
                max,
                clamp,
                credit,
            })
        };
        let proto::CreditPolicy { mbps, kpps, cpu_permille } = message;
        let policy = Self { mbps: read(mbps), kpps: read(kpps), cpu_permille: read(cpu_permille) };
        policy.validate()?;
        Ok(policy)
    }
}

/// Reads the policy of the default network class.
pub(super) fn default_credit(message: proto::DefaultCredit) -> Result<Option<CreditPolicy>> {
    message.policy.map(CreditPolicy::try_from).transpose()
}

/// The message of the policy of the default network class.
pub(super) fn default_credit_message(policy: Option<CreditPolicy>) -> proto::DefaultCredit {
    proto::DefaultCredit { policy: policy.map(Into::into) }
}

impl TryFrom<proto::Qos> for Qos {
    type Error = Malformed;
    fn try_from(message: proto::Qos) -> Result<Self> {
        let read = |dscp: u32| u8::try_from(dscp).ok().filter(|dscp| *dscp < 64).ok_or(Malformed::Dscp(dscp));
        let (rate_mbps, credit) = (NonZeroU32::new(message.rate_mbps), message.credit);
        if rate_mbps.is_some() && credit.is_some() {
            return Err(Malformed::RateAndCredit);
        }
        let credit = credit.map(CreditPolicy::try_from).transpose()?;
        Ok(Self { dscp: message.dscp.map(read).transpose()?, rate_mbps, credit })
    }
}

impl From<AddressClaim> for proto::AddressClaim {
    fn from(claim: AddressClaim) -> Self {
        Self {
            instance: claim.instance.get(),
            address: Some(claim.address.into()),
            age_ms: u32::try_from(claim.age.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

impl TryFrom<proto::AddressClaim> for AddressClaim {
    type Error = Malformed;
    fn try_from(message: proto::AddressClaim) -> Result<Self> {
        let address = unicast("claim", address(message.address, "claim")?)?;
        let age = Duration::from_millis(message.age_ms.into());
        Ok(Self { instance: instance_id(message.instance)?, address, age })
    }
}
