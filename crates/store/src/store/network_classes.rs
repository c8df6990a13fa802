//! The calls about network classes.

use super::{RETRIES, Store};
use crate::backend::is_retryable;
use crate::ops::network_classes;
use crate::rows::{get, page};
use crate::write::Write;
use crate::*;
use sluice_types::NetworkClassId;
use std::time::Duration;

impl Store {
    pub async fn create_network_class(&self, new: NewNetworkClass) -> Result<Created<NetworkClass>> {
        write!(self, w => network_classes::create(w, &new))
    }

    pub async fn network_class(&self, id: NetworkClassId) -> Result<NetworkClass> {
        get(&mut self.reader(), id).await
    }

    pub async fn network_classes(&self, name: Option<&str>, at: Page) -> Result<Vec<NetworkClass>> {
        page(&mut self.reader(), vec![("name", name.map(Into::into))], at).await
    }

    /// Changes a class: its name, its policy, whether it is the default. The hosts of the instances that have it get another policy, which takes time in
    /// proportion to their number.
    pub async fn update_network_class(
        &self,
        id: NetworkClassId,
        new: NetworkClassUpdate,
        expected: Option<u64>,
    ) -> Result<NetworkClass> {
        write!(self, w => network_classes::update(w, id, &new, expected))
    }

    /// Deletes a class that no instance has.
    pub async fn delete_network_class(&self, id: NetworkClassId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => network_classes::delete(w, id, expected))
    }
}
