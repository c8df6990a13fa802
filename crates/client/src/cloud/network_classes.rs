//! Network classes in a cloud file.

use super::{CloudFile, CloudFileError, FieldError, check_unique};
use serde::{Deserialize, Serialize};
use sluice_types::{Allowance, CreditPolicy};

/// A network class in a cloud file, with a limit in at least one dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkClassSpec {
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
    /// Whether it is the class of instances that have none of their own; at most one is.
    #[serde(default)]
    pub is_default: bool,
}

/// Checks that names are unique, that policies can be created, that at most one class is the default, and that no instance
/// has both a class and a rate.
pub(super) fn check(cloud: &CloudFile) -> Result<(), CloudFileError> {
    check_unique("network class", "", cloud.network_classes.iter().map(|spec| spec.name.as_str()))?;
    for NetworkClassSpec { name, mbps, kpps, cpu_permille, is_default: _ } in &cloud.network_classes {
        let policy = CreditPolicy { mbps: *mbps, kpps: *kpps, cpu_permille: *cpu_permille };
        policy.validate().map_err(|error| {
            let (object, problem) = (format!("network class `{name}`"), error.to_string());
            FieldError { object, field: error.dimension(), problem }
        })?;
    }
    if let Some(second) = cloud.network_classes.iter().filter(|spec| spec.is_default).nth(1) {
        let (object, problem) =
            (format!("network class `{}`", second.name), "another class is the default".to_owned());
        return Err(FieldError { object, field: "is_default", problem }.into());
    }
    for vpc in &cloud.vpcs {
        let has_both = |qos: &Option<sluice_types::Qos>| qos.is_some_and(|qos| qos.rate_mbps.is_some());
        let mut limited = vpc.instances.iter().filter(|instance| instance.network_class.is_some());
        if let Some(instance) = limited.find(|instance| has_both(&instance.qos)) {
            let object = format!("instance `{}` in VPC `{}`", instance.name, vpc.name);
            let problem =
                "an instance has either a network class or `rate_mbps` in `qos`, not both".to_owned();
            return Err(FieldError { object, field: "network_class", problem }.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLD: &str = "{name: gold, mbps: {base: 100, max: 400, clamp: 100, credit: 3000}}";

    #[test]
    fn classes_have_names_and_valid_policies() {
        let parse = |classes: &str| CloudFile::parse(&format!("network_classes: [{classes}]"));
        let error = |classes: &str| parse(classes).unwrap_err().to_string();
        let cloud = parse(GOLD).unwrap();
        let mbps = Some(Allowance { base: 100, max: 400, clamp: 100, credit: 3000 });
        assert_eq!((cloud.network_classes[0].mbps, cloud.len()), (mbps, 1));
        assert_eq!(error(&format!("{GOLD}, {GOLD}")), "network class `gold` is defined twice");
        let default = |name: &str| GOLD.replace("name: gold", &format!("name: {name}, is_default: true"));
        assert!(parse(&format!("{GOLD}, {}", default("a"))).unwrap().network_classes[1].is_default);
        assert_eq!(
            error(&format!("{}, {}", default("a"), default("b"))),
            "network class `b`: `is_default`: another class is the default"
        );
        assert_eq!(
            error("{name: a}"),
            "network class `a`: `mbps`: nothing is limited: at least one of mbps, kpps and cpu_permille is needed"
        );
        assert_eq!(
            error("{name: a, kpps: {base: 5, max: 4, clamp: 4, credit: 0}}"),
            "network class `a`: `kpps`: kpps.base is 5, which is not between 1 and kpps.max, which is 4"
        );
    }

    #[test]
    fn an_instance_has_a_class_or_a_rate() {
        let parse = |qos: &str| {
            let instance = format!("{{name: i, subnet: s, host: h, network_class: gold, qos: {qos}}}");
            CloudFile::parse(&format!("vpcs: [{{name: v, tenant: t, instances: [{instance}]}}]"))
        };
        assert!(parse("{dscp: 46}").is_ok());
        let error = parse("{rate_mbps: 10}").unwrap_err().to_string();
        assert!(error.starts_with("instance `i` in VPC `v`: `network_class`: "), "{error}");
    }
}
