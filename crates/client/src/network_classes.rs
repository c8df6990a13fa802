//! Network classes: what instances may use of their hosts' network.

use crate::new::difference;
use crate::{EntryFailure, NewObject};
use serde::{Deserialize, Serialize};
use sluice_types::{Allowance, NetworkClassId};

/// What instances that have the class may use of their hosts' network, each by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkClass {
    /// Identifier, such as `class-7`.
    pub id: NetworkClassId,
    /// Name, unique in the cloud.
    pub name: String,
    /// Mbit/s of IP packets, of each direction by itself; `None`: not limited.
    #[serde(default)]
    pub mbps: Option<Allowance>,
    /// 1000 packets/s, of each direction by itself; `None`: not limited.
    #[serde(default)]
    pub kpps: Option<Allowance>,
    /// Thousandths of one processor that the host's network processing spends on an instance; `None`: not limited.
    #[serde(default)]
    pub cpu_permille: Option<Allowance>,
    /// Instances without a class of their own and without a rate have this class.
    #[serde(default)]
    pub is_default: bool,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every host that has instances with the class has programmed this revision; of the default class, every host.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

crate::model::resource!(NetworkClass, NetworkClassId, "network-classes", "network class", "", true, |it| it
    .name
    .clone());

/// Request to create a network class, which limits at least one dimension.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewNetworkClass {
    /// Name, unique in the cloud.
    pub name: String,
    /// Mbit/s of IP packets, of each direction by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbps: Option<Allowance>,
    /// 1000 packets/s, of each direction by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kpps: Option<Allowance>,
    /// Thousandths of one processor that the host's network processing spends on an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_permille: Option<Allowance>,
    /// Whether it becomes the class of instances that have none of their own.
    #[serde(default)]
    pub is_default: bool,
}

impl NewObject for NewNetworkClass {
    type Object = NetworkClass;
    type Parent = ();
    fn path((): ()) -> String {
        "/v1/network-classes".to_owned()
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &NetworkClass) -> Option<String> {
        difference("mbps", &self.mbps, &found.mbps)
            .or_else(|| difference("kpps", &self.kpps, &found.kpps))
            .or_else(|| difference("cpu_permille", &self.cpu_permille, &found.cpu_permille))
            .or_else(|| difference("is_default", &self.is_default, &found.is_default))
    }
}
