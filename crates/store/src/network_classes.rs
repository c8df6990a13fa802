//! Network classes: what instances may use of their hosts' network. The operator defines them, and instances name one.

use serde::{Deserialize, Serialize};
use sluice_types::{Allowance, CreditPolicy, NetworkClassId};

/// What instances that have this class may use of their hosts' network, each by itself. Names are unique in the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkClass {
    pub id: NetworkClassId,
    pub name: String,
    /// Limits at least one dimension.
    pub policy: CreditPolicy,
    /// Instances without a class of their own and without a rate have this class. At most one class is the default.
    pub is_default: bool,
    pub revision: u64,
}

/// The network class of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassOfInstance {
    pub id: NetworkClassId,
    /// That of the class at the revision of the change or the snapshot that has the instance.
    pub policy: CreditPolicy,
}

/// A request for a network class.
#[derive(Clone, Debug)]
pub struct NewNetworkClass {
    pub name: String,
    pub policy: CreditPolicy,
    /// The class becomes the default in place of the one that is it.
    pub is_default: bool,
}

/// A change of a network class; fields that are `None` keep their values, and `Some(None)` removes a limit.
#[derive(Clone, Debug, Default)]
pub struct NetworkClassUpdate {
    pub name: Option<String>,
    pub mbps: Option<Option<Allowance>>,
    pub kpps: Option<Option<Allowance>>,
    pub cpu_permille: Option<Option<Allowance>>,
    /// The class becomes the default in place of the one that is it, or is the default no more.
    pub is_default: Option<bool>,
}
