//! The part of the registry that filters ports: their policies, and the numbers of their sessions.

use std::collections::{BTreeMap, BTreeSet};

use sluice_agent::error_chain;
use sluice_southbound::{Policy, PolicyKey, Port};
use sluice_tables::NodeTables;
use sluice_types::{EntryHash, EntryKey, InstanceId};

use super::entry::{Writer, policy_key};
use super::{Attachment, PortRegistry, RegistryError, files};
use crate::policies::{self, CLOSED, Policies};
use crate::scopes::Scopes;

impl PortRegistry {
    pub(super) fn writer(&self) -> Writer<'_> {
        let Self { policies, scopes, mtu_max, adopt_s, default_credit, .. } = self;
        let (mtu_max, adopt_s, default_credit) = (*mtu_max, *adopt_s, *default_credit);
        Writer { policies, scopes, mtu_max, adopt_s, default_credit }
    }

    /// Learns from the tables of an earlier agent which policies and numbers its ports have, and writes the policies that
    /// the tables do not have. Must be called before the first port is written.
    pub fn adopt(&mut self, tables: &mut NodeTables) {
        let known: BTreeMap<u32, sluice_tables::Port> =
            tables.ports().map(|port| (port.ifindex, port)).collect();
        for port in known.values() {
            if let (Some(id), true) = (port.policy, port.identity != 0) {
                self.policies.adopt(PolicyKey { vni: port.vni, identity: port.identity }, id);
            }
        }
        // The file of attachments may be older than the tables.
        let of_tables = |attachment: &Attachment| {
            let port = known.get(&attachment.ifindex)?;
            (port.instance == attachment.instance.get()).then_some(port)
        };
        for attachment in self.attachments.values_mut() {
            if let Some(port) = of_tables(attachment).filter(|port| port.scope != 0) {
                attachment.scope = if self.scopes.claim(port.scope) { port.scope } else { 0 };
            }
            let instance = self.instances.get_mut(&attachment.instance);
            if let Some((port, instance)) = of_tables(attachment).zip(instance) {
                // An agent that died in the middle of a step has filtered the port by other groups than it has saved. They
                // stay until the controller repeats the step.
                if port.policy.is_some() && port.vni == instance.vni {
                    instance.identity = port.identity;
                }
            }
        }
        for attachment in self.attachments.values_mut() {
            if of_tables(attachment).is_none_or(|port| port.scope == 0)
                && !self.scopes.claim(attachment.scope)
            {
                attachment.scope = 0;
            }
        }
        self.scopes.close_unclaimed();
        let used = self.used_policies();
        if !used.is_empty() {
            self.policies.write_absent(tables);
        }
    }

    /// The numbers of the ports' sessions.
    pub fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    /// The policies of the instances.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    fn used_policies(&self) -> BTreeSet<PolicyKey> {
        self.instances.values().filter_map(policy_key).collect()
    }

    /// Keys of the policies that instances need and that have not come. Their ports are closed.
    pub fn absent_policies(&self) -> impl Iterator<Item = PolicyKey> {
        self.used_policies().into_iter().filter(|key| !self.policies.has(*key))
    }

    /// Adds or replaces a policy, and writes the ports that had to wait for it.
    ///
    /// # Errors
    /// If it cannot be written to the tables, which then have what they had; or if one of the ports cannot be written.
    pub fn upsert_policy(&mut self, tables: &mut NodeTables, policy: Policy) -> Result<(), String> {
        let key = policy.key;
        self.note_change();
        let change = self
            .policies
            .upsert(tables, policy)
            .map_err(|error| format!("{}: {}", policies::name(key), policies::reason(&error)))?;
        if change.is_other {
            self.scopes.note_change();
        }
        let has_key = |port: &&Port| policy_key(port) == Some(key);
        let waiting: Vec<InstanceId> =
            self.instances.values().filter(has_key).map(|port| port.instance).collect();
        let mut result = Ok(());
        for instance in waiting.into_iter().filter(|_| change.is_new) {
            let written = self.write_port(tables, instance);
            let named =
                |error| format!("{}: port of {}: {error}", policies::name(key), self.name_of(instance));
            result = result.and(written.map_err(named));
        }
        result
    }

    /// Removes the policies that no instance needs. Returns their keys.
    pub fn remove_unused_policies(&mut self, tables: &mut NodeTables) -> Vec<PolicyKey> {
        let used = self.used_policies();
        let removed = self.policies.retain(tables, &used);
        if !removed.is_empty() {
            self.note_change();
        }
        removed
    }

    /// Calls `call` for each policy, as [`Policies::visit`].
    pub fn visit_policies(&self, tables: &NodeTables, call: &mut dyn FnMut(EntryKey, EntryHash)) {
        self.policies.visit(tables, call);
    }

    /// Whether packets of an instance's port are filtered, and whether its own policy is in the tables.
    pub fn filter_of(&self, port: &Port) -> Filter {
        match policy_key(port).map(|key| self.policies.id_for(key)) {
            None => Filter::None,
            Some(CLOSED) => Filter::Closed,
            Some(_) => Filter::Policy,
        }
    }

    fn attachment_of(&mut self, instance: InstanceId) -> Option<(&String, &mut Attachment)> {
        self.attachments.iter_mut().find(|(_, attachment)| attachment.instance == instance)
    }

    /// Gives the port of an instance a number for its sessions, if it is attached and has none. Returns its interface.
    pub(super) fn number_port(
        &mut self,
        instance: InstanceId,
    ) -> Result<Option<(String, Attachment)>, RegistryError> {
        let scopes = self.scopes.clone();
        let Some((ifname, attachment)) = self.attachment_of(instance) else { return Ok(None) };
        let is_numbered = scopes.is_given(attachment.scope);
        if !is_numbered {
            attachment.scope = scopes.take()?;
        }
        let numbered = (ifname.clone(), attachment.clone());
        if !is_numbered {
            self.save_scopes();
        }
        Ok(Some(numbered))
    }

    /// Writes the port of an instance, if that is attached; of one that migrates and runs at the other host, the paths there.
    pub(super) fn write_port(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
    ) -> Result<(), RegistryError> {
        if let Some(to) = self.elsewhere(instance) {
            return self.close_port(tables, instance, to);
        }
        self.write_open_port(tables, instance)?;
        // The port has replaced those of its addresses.
        self.remove_redirect(tables, instance)
    }

    fn write_open_port(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
    ) -> Result<(), RegistryError> {
        let scopes = self.scopes.clone();
        let Some((ifname, attachment)) = self.number_port(instance)? else { return Ok(()) };
        let Some(port) = self.instances.get(&instance) else { return Ok(()) };
        let written = self.writer().write(tables, port, (&ifname, &attachment));
        if !scopes.is_given(attachment.scope) {
            self.forget_scope(instance);
        }
        written
    }

    /// Removes the port of an instance, if that is attached. Its next port has another number.
    pub(super) fn remove_port(
        &mut self,
        tables: &mut NodeTables,
        instance: InstanceId,
    ) -> Result<(), RegistryError> {
        let Some((_, attachment)) = self.attachment_of(instance) else { return Ok(()) };
        let attachment = attachment.clone();
        self.writer().remove(tables, &attachment)?;
        self.forget_scope(instance);
        Ok(())
    }

    /// Ends the sessions of an instance's port: it gets another number when it is written next.
    pub(super) fn retire_scope(&mut self, instance: InstanceId) {
        let scopes = self.scopes.clone();
        if let Some((_, attachment)) = self.attachment_of(instance) {
            scopes.retire(std::mem::take(&mut attachment.scope));
        }
    }

    fn forget_scope(&mut self, instance: InstanceId) {
        let Some((_, attachment)) = self.attachment_of(instance) else { return };
        if std::mem::take(&mut attachment.scope) != 0 {
            self.save_scopes();
        }
    }

    /// A port of the tables knows its number itself, so the next agent does without the file.
    fn save_scopes(&self) {
        if let Err(error) = files::write_attachments(&self.state_dir, &self.attachments) {
            let error = error_chain(&error);
            tracing::error!(error, "cannot save the numbers of the ports' sessions");
        }
    }
}

/// How packets of a port are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// Everything passes.
    None,
    /// By the policy of its security groups.
    Policy,
    /// Its policy is not in the tables: nothing passes.
    Closed,
}
