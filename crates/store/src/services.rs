//! Services: members, which are instances of the service's VPC, and mounts, by which other VPCs reach them (Achelous,
//! section 5.2).

use serde::{Deserialize, Serialize};
use sluice_types::{
    HostId, InstanceId, MacAddr, MemberId, MemberStatus, MountId, SecurityGroupId, ServiceId, SubnetId,
    TenantId, VpcId,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most services of which an instance is a member.
pub const MAX_SERVICES_OF_INSTANCE: u64 = 16;

/// Most mounts of a service.
pub const MAX_MOUNTS_OF_SERVICE: u64 = 65_536;

/// Most vNICs of a service: one for each member and mount.
pub const MAX_VNICS_OF_SERVICE: u64 = 262_144;

/// Most tenants that a service names; more can be permitted only all together.
pub const MAX_TENANTS_OF_SERVICE: usize = 1024;

/// A service of a VPC. Names are unique in the VPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub id: ServiceId,
    pub name: String,
    pub vpc: VpcId,
    /// The seed of rendezvous hashing, which never changes.
    pub seed: [u64; 2],
    /// VPCs of all tenants may mount it.
    pub any_tenant: bool,
    /// Tenants whose VPCs may mount it, besides that of its own VPC; in ascending order.
    pub tenants: Vec<TenantId>,
    pub revision: u64,
}

/// A request for a service.
#[derive(Clone, Debug)]
pub struct NewService {
    pub name: String,
    pub vpc: VpcId,
    /// See [`Service::any_tenant`]. `None`: a new service is not, and an existing one may be.
    pub any_tenant: Option<bool>,
    /// See [`Service::tenants`]. `None`: a new service names none, and an existing one may name some.
    pub tenants: Option<Vec<TenantId>>,
}

/// A change of a service; fields that are `None` keep their values.
#[derive(Clone, Debug, Default)]
pub struct ServiceUpdate {
    pub any_tenant: Option<bool>,
    pub tenants: Option<Vec<TenantId>>,
}

/// An instance that is a member of a service. It neither moves nor migrates while it is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMember {
    pub id: MemberId,
    pub service: ServiceId,
    pub instance: InstanceId,
    /// Name of the instance.
    pub name: String,
    /// Host of the instance.
    pub host: HostId,
    /// 1 to [`SERVICE_MEMBERS_MAX`](sluice_types::SERVICE_MEMBERS_MAX), unique in the service, and the same as long as it is
    /// a member.
    pub number: u8,
    /// The MAC address of all its vNICs.
    pub mac: MacAddr,
    pub status: MemberStatus,
    /// New flows go to other members.
    pub draining: bool,
    /// What was measured when the status changed.
    pub evidence: String,
    /// When the status changed, in milliseconds of the UNIX epoch.
    pub since_ms: u64,
    pub revision: u64,
}

/// What hosts and gateways have found of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    pub member: MemberId,
    pub status: MemberStatus,
    /// What was measured.
    pub evidence: String,
}

/// The addresses by which a VPC reaches a service. Names are unique in the VPC, which has at most one mount of a service:
/// a member has the same MAC address in all its vNICs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub id: MountId,
    pub name: String,
    pub vpc: VpcId,
    /// A subnet of the VPC, from which it has its addresses.
    pub subnet: SubnetId,
    pub service: ServiceId,
    /// One address for each family of the subnet.
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    /// Identity of its set of security groups, which its vNICs have. 0: none, they are not filtered.
    pub identity: u16,
    pub revision: u64,
}

impl Mount {
    /// Its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }
}

/// A request for a mount. Addresses that are `None` are allocated, one for each family of the subnet.
#[derive(Clone, Debug)]
pub struct NewMount {
    pub name: String,
    pub vpc: VpcId,
    pub subnet: SubnetId,
    pub service: ServiceId,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    /// As of [`NewInstance::security_groups`](crate::NewInstance::security_groups).
    pub security_groups: Option<Vec<SecurityGroupId>>,
}

/// Selects mounts; fields that are `None` select all.
#[derive(Clone, Debug, Default)]
pub struct MountFilter {
    pub vpc: Option<VpcId>,
    pub service: Option<ServiceId>,
    pub name: Option<String>,
}

/// The port of a member in a VPC that has a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vnic {
    /// Its id on the host, in the number space of instances.
    pub id: InstanceId,
    pub mount: MountId,
    pub member: MemberId,
    pub service: ServiceId,
    /// That of the mount.
    pub vpc: VpcId,
    /// That of the member.
    pub host: HostId,
}

/// Number of ports of instances that a host has in a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortsOfHost {
    pub vpc: VpcId,
    pub host: HostId,
    pub ports: u64,
}
