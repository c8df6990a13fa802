//! What the controller does about anomalies of hosts that last: by class of anomaly, the action and its limits.

use crate::health::AnomalyClass;
use crate::migration::SessionMode;
use crate::security::{MatchError, not, texts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

texts! {
    /// What the controller does about an anomaly.
    #[derive(Default)]
    HealthAction: "an action: expected `none` or `migrate`",
    /// Nothing; it is shown. The default.
    #[default]
    None "none",
    /// It starts live migrations of instances of the host to healthy hosts.
    Migrate "migrate"
}

/// A policy that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HealthPolicyError {
    /// Another host would not change anything about such an anomaly, or it says nothing about its host.
    #[error("{0} is no anomaly of a host as a whole: policies are for {classes}", classes = host_classes())]
    NotOfHost(AnomalyClass),
    /// A value is out of its range.
    #[error("{field} must be between {min} and {max}, not {found}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Smallest valid value.
        min: u64,
        /// Largest valid value.
        max: u64,
        /// The value.
        found: u64,
    },
}

fn host_classes() -> String {
    AnomalyClass::OF_HOST.map(|class| class.to_string()).join(", ")
}

/// What the controller does about one class of anomalies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthPolicy {
    /// What is done.
    pub action: HealthAction,
    /// Most migrations for this class that are in progress at the same time, on all hosts together.
    pub max_at_once: u64,
    /// Seconds for which an anomaly must last, and between the beginnings of migrations from the same host.
    pub hold_s: u64,
    /// Seconds for which an instance that was moved stays where it is, and for which the host that it left gets none.
    pub cooldown_s: u64,
    /// What happens to the sessions of the instance.
    pub sessions: SessionMode,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            action: HealthAction::None,
            max_at_once: 1,
            hold_s: 60,
            cooldown_s: 3600,
            sessions: SessionMode::Copy,
        }
    }
}

/// A change of a policy. Fields that are `None` keep their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthPolicyPatch {
    /// What is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<HealthAction>,
    /// As in [`HealthPolicy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_at_once: Option<u64>,
    /// As in [`HealthPolicy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_s: Option<u64>,
    /// As in [`HealthPolicy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cooldown_s: Option<u64>,
    /// As in [`HealthPolicy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionMode>,
}

impl HealthPolicy {
    /// The policy after a change.
    #[must_use]
    pub fn patched(self, patch: &HealthPolicyPatch) -> Self {
        Self {
            action: patch.action.unwrap_or(self.action),
            max_at_once: patch.max_at_once.unwrap_or(self.max_at_once),
            hold_s: patch.hold_s.unwrap_or(self.hold_s),
            cooldown_s: patch.cooldown_s.unwrap_or(self.cooldown_s),
            sessions: patch.sessions.unwrap_or(self.sessions),
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first field that is invalid.
    pub fn check(&self) -> Result<(), HealthPolicyError> {
        for (field, found, min, max) in [
            ("max_at_once", self.max_at_once, 1, 64),
            ("hold_s", self.hold_s, 5, 86_400),
            ("cooldown_s", self.cooldown_s, 60, 604_800),
        ] {
            if !(min..=max).contains(&found) {
                return Err(HealthPolicyError::OutOfRange { field, min, max, found });
            }
        }
        Ok(())
    }
}

/// The policies of the site, by class. Classes that are absent have the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HealthPolicies(BTreeMap<AnomalyClass, HealthPolicy>);

impl HealthPolicies {
    /// The policy of a class.
    #[must_use]
    pub fn of(&self, class: AnomalyClass) -> HealthPolicy {
        self.0.get(&class).copied().unwrap_or_default()
    }

    /// Whether nothing is to be done about any class.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.values().all(|policy| policy.action == HealthAction::None)
    }

    /// Changes the policy of a class, and returns it.
    ///
    /// # Errors
    /// The class has no policy, or a value is invalid; nothing has changed then.
    pub fn change(
        &mut self,
        class: AnomalyClass,
        patch: &HealthPolicyPatch,
    ) -> Result<HealthPolicy, HealthPolicyError> {
        if !AnomalyClass::OF_HOST.contains(&class) {
            return Err(HealthPolicyError::NotOfHost(class));
        }
        let policy = self.of(class).patched(patch);
        policy.check()?;
        self.0.insert(class, policy);
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_by_default() {
        let mut policies: HealthPolicies = serde_json::from_str("{}").unwrap();
        assert!(policies.is_idle());
        assert_eq!(policies.of(AnomalyClass::NicFault), HealthPolicy::default());
        assert_eq!(HealthPolicy::default().check(), Ok(()));
        let patch: HealthPolicyPatch = serde_json::from_str(r#"{"action":"migrate","hold_s":30}"#).unwrap();
        let policy = policies.change(AnomalyClass::NicFault, &patch).unwrap();
        assert_eq!((policy.action, policy.hold_s, policy.max_at_once), (HealthAction::Migrate, 30, 1));
        assert!(!policies.is_idle());
        let text = serde_json::to_string(&policies).unwrap();
        assert_eq!(serde_json::from_str::<HealthPolicies>(&text).unwrap(), policies);
        let off = HealthPolicyPatch { action: Some(HealthAction::None), ..HealthPolicyPatch::default() };
        assert_eq!(policies.change(AnomalyClass::NicFault, &off).unwrap().hold_s, 30);
        assert!(policies.is_idle());
    }

    #[test]
    fn invalid_policies_change_nothing() {
        let mut policies = HealthPolicies::default();
        let mut refused = |class, text: &str| {
            let patch: HealthPolicyPatch = serde_json::from_str(text).unwrap();
            policies.change(class, &patch).unwrap_err().to_string()
        };
        let text = refused(AnomalyClass::VmUnresponsive, "{}");
        assert!(text.contains("vm_unresponsive") && text.contains("vswitch_overload"), "{text}");
        let nic = AnomalyClass::NicFault;
        assert_eq!(refused(nic, r#"{"max_at_once":0}"#), "max_at_once must be between 1 and 64, not 0");
        assert!(refused(nic, r#"{"hold_s":4}"#).starts_with("hold_s must be"));
        assert!(refused(nic, r#"{"cooldown_s":604801}"#).starts_with("cooldown_s must be"));
        assert_eq!(policies, HealthPolicies::default());
        assert!(serde_json::from_str::<HealthPolicyPatch>(r#"{"hold":4}"#).is_err());
    }

    #[test]
    fn policies_have_all_modes_of_migrations() {
        let mut policies = HealthPolicies::default();
        for sessions in [SessionMode::Reset, SessionMode::None, SessionMode::Copy] {
            let patch = HealthPolicyPatch { sessions: Some(sessions), ..HealthPolicyPatch::default() };
            assert_eq!(policies.change(AnomalyClass::NicFault, &patch).unwrap().sessions, sessions);
        }
    }
}
