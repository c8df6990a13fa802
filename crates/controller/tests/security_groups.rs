//! Security groups over HTTP: groups, rules, and the groups of instances.

mod common;

use common::{Basics, Cloud, basics};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_southbound::Missing;
use sluice_southbound::proto::EndingSessions;
use sluice_southbound::proto::ending_sessions::OfPort;
use sluice_types::EntryKey;

fn groups_path(vpc: &str) -> String {
    format!("/v1/vpcs/{vpc}/security-groups")
}

fn rules_path(group: &str) -> String {
    format!("/v1/security-groups/{group}/rules")
}

async fn default_group(cloud: &Cloud, vpc: &str) -> String {
    let list = cloud.get(&format!("/v1/security-groups?vpc={vpc}&name=default")).await.body;
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
    list["items"][0]["id"].as_str().unwrap().to_owned()
}

fn https() -> Value {
    json!({"direction": "ingress", "family": "ipv4", "protocol": "tcp", "ports": "443"})
}

/// A rule with other fields; those that are null are left out.
fn rule(base: &Value, changes: Value) -> Value {
    let mut rule = base.clone();
    let rule_fields = rule.as_object_mut().unwrap();
    rule_fields.extend(changes.as_object().unwrap().clone());
    rule_fields.retain(|_, value| !value.is_null());
    rule
}

async fn patch(cloud: &Cloud, path: &str, body: Value) -> common::Answer {
    cloud.send(cloud.request(Method::PATCH, path).json(&body)).await
}

fn instance(basics: &Basics, name: &str, groups: &[&str]) -> Value {
    let mut instance = basics.instance(name);
    instance["security_groups"] = json!(groups);
    instance
}

#[tokio::test]
async fn groups_are_created_changed_and_deleted() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let body = json!({"name": "web", "description": "front ends"});
    let made = cloud.post(&groups_path(&basics.vpc), body.clone()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let group = made.id();
    assert_eq!(made.header("location"), format!("/v1/security-groups/{group}"));
    let expected = json!({"id": group, "name": "web", "vpc": basics.vpc, "description": "front ends",
        "revision": made.body["revision"], "programmed": made.body["programmed"]});
    assert_eq!(made.body, expected);
    let again = cloud.post(&groups_path(&basics.vpc), json!({"name": "web"})).await;
    assert_eq!((again.status, again.id()), (StatusCode::OK, group.clone()));
    let other = json!({"name": "web", "description": "x"});
    let other = cloud.post(&groups_path(&basics.vpc), other).await;
    assert_eq!(other.problem(), (409, "name-taken", "web"));
    let rules = cloud.get(&format!("/v1/security-rules?group={group}")).await.body;
    let initial: Vec<_> = rules["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| {
            (
                rule["direction"].clone(),
                rule["family"].clone(),
                rule["protocol"].clone(),
                rule["remote"].clone(),
            )
        })
        .collect();
    let any = |family: &str| (json!("egress"), json!(family), json!("any"), json!("any"));
    assert_eq!(initial, [any("ipv4"), any("ipv6")]);

    let path = format!("/v1/security-groups/{group}");
    let changed = patch(&cloud, &path, json!({"description": ""})).await;
    assert_eq!((changed.status, &changed.body["description"]), (StatusCode::OK, &json!("")));
    assert_eq!(patch(&cloud, &path, json!({"name": "www"})).await.body["name"], "www");
    let stale = cloud.request(Method::PATCH, &path).header("if-match", "\"1\"").json(&json!({"name": "x"}));
    assert_eq!(cloud.send(stale).await.problem().0, 412);
    let default = default_group(&cloud, &basics.vpc).await;
    let of_default = format!("/v1/security-groups/{default}");
    let renamed = patch(&cloud, &of_default, json!({"name": "other"})).await;
    assert_eq!(renamed.problem(), (409, "default-security-group", "default"));
    assert_eq!(
        renamed.body["detail"],
        "security group `default` cannot be deleted or renamed: VPC `v` always has it"
    );
    assert_eq!(cloud.delete(&of_default).await.problem(), (409, "default-security-group", "default"));

    // The VPC keeps its group as long as it exists, and is not deleted with others.
    cloud.delete(&format!("/v1/subnets/{}", basics.subnet)).await;
    let vpc = format!("/v1/vpcs/{}", basics.vpc);
    assert_eq!(cloud.delete(&vpc).await.problem(), (409, "in-use", "security group `www`"));
    assert_eq!(cloud.delete(&path).await.status, StatusCode::OK);
    assert_eq!(cloud.get(&path).await.problem(), (404, "not-found", group.as_str()));
    assert_eq!(cloud.delete(&vpc).await.status, StatusCode::OK);
    assert_eq!(cloud.get("/v1/security-groups").await.body["items"], json!([]));
    assert_eq!(cloud.get("/v1/security-rules").await.body["items"], json!([]));
}

#[tokio::test]
async fn rules_are_created_and_deleted() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let web = cloud.make(&groups_path(&basics.vpc), json!({"name": "web"})).await;
    let db = cloud.make(&groups_path(&basics.vpc), json!({"name": "db"})).await;
    let made = cloud.post(&rules_path(&web), https()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let id = made.id();
    let expected = json!({"id": id, "group": web, "vpc": basics.vpc, "direction": "ingress", "family": "ipv4",
        "protocol": "tcp", "ports": "443", "remote": "any", "description": "",
        "revision": made.body["revision"], "programmed": made.body["programmed"]});
    assert_eq!(made.body, expected);
    assert_eq!(cloud.get(made.header("location")).await.body["id"], made.body["id"]);
    for (changes, field, shown) in [
        (json!({"ports": "8000-8099"}), "ports", json!("8000-8099")),
        (json!({"ports": 80}), "ports", json!("80")),
        (json!({"protocol": 17}), "protocol", json!("udp")),
        (json!({"protocol": "47", "ports": null}), "protocol", json!("47")),
        (json!({"remote": {"prefix": "192.0.2.0/24"}}), "remote", json!({"prefix": "192.0.2.0/24"})),
        (json!({"remote": {"group": db}}), "remote", json!({"group": db})),
        (json!({"protocol": "icmp", "ports": null, "icmp_type": 3, "icmp_code": 4}), "icmp_code", json!(4)),
        (json!({"protocol": null, "ports": null}), "protocol", json!("any")),
        (json!({"direction": "egress", "description": "out"}), "description", json!("out")),
    ] {
        let answer = cloud.post(&rules_path(&web), rule(&https(), changes.clone())).await;
        assert_eq!(
            (answer.status, &answer.body[field]),
            (StatusCode::CREATED, &shown),
            "{changes}: {}",
            answer.body
        );
    }
    let listed = cloud.get(&format!("/v1/security-rules?vpc={}&limit=3", basics.vpc)).await.body;
    assert_eq!((listed["items"].as_array().unwrap().len(), listed["next"].is_string()), (3, true));
    let of_web = cloud.get(&format!("/v1/security-rules?group={web}")).await.body;
    assert_eq!(of_web["items"].as_array().unwrap().len(), 2 + 10);

    let nulls = json!({"direction": "egress", "family": "ipv6", "protocol": null, "ports": null,
        "icmp_type": null, "icmp_code": null, "remote": null});
    let initial = cloud.get(&format!("/v1/security-rules?group={db}")).await.body["items"][1]["id"].clone();
    let same = cloud.post(&rules_path(&db), nulls).await;
    assert_eq!(same.problem(), (409, "same-security-rule", initial.as_str().unwrap()), "as if left out");

    let used = cloud.delete(&format!("/v1/security-groups/{db}")).await;
    let user = used.problem().2.to_owned();
    assert_eq!((used.problem().0, used.problem().1), (409, "in-use"));
    assert!(user.starts_with("rule sgr-") && user.ends_with(" of group `web`"), "{user}");
    assert_eq!(cloud.delete(&format!("/v1/security-rules/{id}")).await.status, StatusCode::OK);
    assert_eq!(
        cloud.get(&format!("/v1/security-rules/{id}")).await.problem(),
        (404, "not-found", id.as_str())
    );
    // Rules do not change.
    let rule = cloud.make(&rules_path(&web), https()).await;
    let changed = patch(&cloud, &format!("/v1/security-rules/{rule}"), json!({"ports": "80"})).await;
    assert_eq!(changed.problem().0, 405);
}

/// A rule with these changes must be refused.
async fn refuses(cloud: &Cloud, group: &str, changes: Value, expected: (u16, &str, &str), text: &str) {
    let answer = cloud.post(&rules_path(group), rule(&https(), changes.clone())).await;
    assert_eq!(answer.problem(), expected, "{changes}: {}", answer.body);
    let detail = answer.body["detail"].as_str().unwrap();
    assert!(detail.starts_with(text), "{changes}: {detail}");
}

#[tokio::test]
async fn values_that_cannot_be_read_are_refused() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let web = default_group(&cloud, &basics.vpc).await;
    let cases = [
        (json!({"ports": "90-80"}), (422, "invalid", "ports"), "ports: `90-80` is not a range of ports"),
        (json!({"ports": 65536}), (422, "invalid", "ports"), "ports: `65536` is not a range of ports"),
        (json!({"protocol": "gre"}), (422, "invalid", "protocol"), "protocol: `gre` is not a protocol"),
        (json!({"protocol": 0}), (422, "invalid", "protocol"), "protocol: `0` is not a protocol"),
        (json!({"direction": "in"}), (422, "invalid", "direction"), "direction: unknown variant `in`"),
        (json!({"family": "ip"}), (422, "invalid", "family"), "family: unknown variant `ip`"),
        (json!({"remote": {"prefix": "ten"}}), (422, "invalid", "remote"), "`ten` is not"),
        (
            json!({"remote": "all"}),
            (422, "invalid", "remote"),
            "remote: invalid value: string \"all\", expected \"any\", {\"prefix\"",
        ),
        (
            json!({"remote": {}}),
            (422, "invalid", "remote"),
            "remote: neither prefix nor group is given, expected",
        ),
        (
            json!({"remote": {"prefix": "10.0.0.0/8", "group": "sg-1"}}),
            (422, "invalid", "remote"),
            "remote: both prefix and group are given, expected",
        ),
        (json!({"icmp_type": 256}), (422, "invalid", "icmp_type"), "icmp_type: invalid value"),
        (json!({"color": 1}), (422, "invalid", "color"), "color: unknown field"),
        (json!({"family": null}), (422, "invalid", "body"), "body: missing field `family`"),
    ];
    for (changes, expected, text) in cases {
        refuses(&cloud, &web, changes, expected, text).await;
    }
}

/// Every refusal with its kind, its offender and the text for people.
#[tokio::test]
async fn refusals_name_the_field_and_the_cause() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let web = cloud.make(&groups_path(&basics.vpc), json!({"name": "web"})).await;
    let other = cloud.make("/v1/vpcs", json!({"name": "v2", "tenant": basics.tenant})).await;
    let theirs = default_group(&cloud, &other).await;
    let https_rule = cloud.make(&rules_path(&web), https()).await;
    let same = format!(
        "security group `web` has this rule already: {https_rule} (ingress ipv4 tcp ports 443 from any)"
    );
    let cases = [
        (json!({}), (409, "same-security-rule", https_rule.as_str()), same.as_str()),
        (
            json!({"remote": {"prefix": "0.0.0.0/0"}, "description": "x"}),
            (409, "same-security-rule", https_rule.as_str()),
            &same,
        ),
        (
            json!({"protocol": "icmp"}),
            (422, "invalid", "ports"),
            "only tcp, udp and sctp have ports, not icmp",
        ),
        (json!({"icmp_type": 8}), (422, "invalid", "icmp_type"), "only icmp and icmpv6 have a type, not tcp"),
        (
            json!({"protocol": "icmp", "ports": null, "icmp_code": 0}),
            (422, "invalid", "icmp_code"),
            "a code needs the icmp_type that it belongs to",
        ),
        (
            json!({"protocol": "icmpv6", "ports": null}),
            (422, "invalid", "protocol"),
            "ipv4 has no icmpv6; did you mean icmp?",
        ),
        (
            json!({"remote": {"prefix": "2001:db8::/32"}}),
            (422, "invalid", "remote"),
            "2001:db8::/32 is a prefix of ipv6, but the rule is for ipv4",
        ),
        (
            json!({"remote": {"prefix": "10.1.2.3/8"}}),
            (422, "invalid", "remote"),
            "prefix 10.1.2.3/8 has host bits set; did you mean 10.0.0.0/8?",
        ),
        (
            json!({"remote": {"group": "sg-999"}}),
            (422, "unknown-reference", "sg-999"),
            "security group sg-999 does not exist",
        ),
        (
            json!({"remote": {"group": theirs}}),
            (422, "foreign-security-group", "default"),
            "security group `default` does not belong to VPC `v`",
        ),
        (
            json!({"description": "two\nlines"}),
            (422, "invalid", "description"),
            "the description contains a line break or another control character",
        ),
    ];
    for (changes, expected, text) in cases {
        refuses(&cloud, &web, changes, expected, text).await;
    }
    assert_eq!(cloud.post(&rules_path("sg-999"), https()).await.problem(), (404, "not-found", "sg-999"));
    let named = cloud.post(&groups_path(&basics.vpc), json!({"name": "a b"})).await;
    assert_eq!(named.problem(), (422, "invalid", "name"));
    let long = json!({"name": "x", "description": "x".repeat(256)});
    let long = cloud.post(&groups_path(&basics.vpc), long).await;
    assert_eq!(long.problem(), (422, "invalid", "description"));
    assert_eq!(cloud.post(&groups_path("vpc-999"), json!({"name": "x"})).await.problem().0, 404);
    let rules = cloud.get(&format!("/v1/security-rules?group={web}")).await.body;
    assert_eq!(rules["items"].as_array().unwrap().len(), 3, "nothing else was created");
}

#[tokio::test]
async fn instances_have_security_groups() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let default = default_group(&cloud, &basics.vpc).await;
    let web = cloud.make(&groups_path(&basics.vpc), json!({"name": "web"})).await;
    let path = basics.instances_path();
    let plain = cloud.post(&path, basics.instance("plain")).await;
    assert_eq!(plain.body["security_groups"], json!([default]));
    let open = cloud.post(&path, instance(&basics, "open", &[])).await;
    assert_eq!((open.status, &open.body["security_groups"]), (StatusCode::CREATED, &json!([])));
    let both = cloud.post(&path, instance(&basics, "both", &[&web, &default])).await;
    assert_eq!(both.body["security_groups"], json!([default, web]));
    assert!(both.body.get("identity").is_none(), "{}", both.body);
    let again = cloud.post(&path, instance(&basics, "both", &[&default, &web])).await;
    assert_eq!((again.status, &again.body["security_groups"]), (StatusCode::OK, &json!([default, web])));
    let other = cloud.post(&path, instance(&basics, "both", &[&web])).await;
    assert_eq!(other.problem(), (409, "name-taken", "both"));
    let text = format!(
        "instance `both` already exists with different content: security_groups is {default},{web}, not {web}"
    );
    assert_eq!(other.body["detail"], text);
    let listed = cloud.get("/v1/instances").await.body;
    let listed: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|vm| vm["security_groups"].clone()).collect();
    assert_eq!(listed, [json!([default]), json!([]), json!([default, web])]);

    // A change replaces the list.
    let vm = format!("/v1/instances/{}", plain.id());
    let changed = patch(&cloud, &vm, json!({"security_groups": [web]})).await;
    assert_eq!((changed.status, &changed.body["security_groups"]), (StatusCode::OK, &json!([web])));
    assert!(changed.body["revision"].as_u64() > plain.body["revision"].as_u64());
    assert_eq!(cloud.get(&vm).await.body["security_groups"], json!([web]));
    assert_eq!(patch(&cloud, &vm, json!({"security_groups": []})).await.body["security_groups"], json!([]));
    let stale =
        cloud.request(Method::PATCH, &vm).header("if-match", "\"1\"").json(&json!({"security_groups": []}));
    assert_eq!(cloud.send(stale).await.problem().0, 412);
    for body in [json!({}), json!({"host": basics.host, "security_groups": []})] {
        let refused = patch(&cloud, &vm, body).await;
        assert_eq!(refused.problem(), (422, "invalid", "body"));
        assert_eq!(refused.body["detail"], "expected either host, or security_groups, or other fields");
    }

    // A group with members is not deleted.
    let used = cloud.delete(&format!("/v1/security-groups/{web}")).await;
    assert_eq!(used.problem(), (409, "in-use", "instance `both`"));
    assert_eq!(used.body["detail"], "security group `web` is still used by instance `both`");
    cloud.delete(&format!("/v1/instances/{}", both.id())).await;
    assert_eq!(cloud.delete(&format!("/v1/security-groups/{web}")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn refused_groups_of_instances() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let other = cloud.make("/v1/vpcs", json!({"name": "v2", "tenant": basics.tenant})).await;
    let theirs = default_group(&cloud, &other).await;
    let default = default_group(&cloud, &basics.vpc).await;
    let vm = cloud.make(&basics.instances_path(), basics.instance("vm")).await;
    let six: Vec<String> = (1..=6).map(|number| format!("sg-{number}")).collect();
    let cases = [
        (
            json!([theirs]),
            (422, "foreign-security-group", "default"),
            "security group `default` does not belong to VPC `v`".to_owned(),
        ),
        (
            json!(["sg-999"]),
            (422, "unknown-reference", "sg-999"),
            "security group sg-999 does not exist".to_owned(),
        ),
        (
            json!([default, default]),
            (422, "invalid", "security_groups"),
            format!("security group {default} is listed twice"),
        ),
        (
            json!(six),
            (422, "invalid", "security_groups"),
            "6 security groups; an instance can have at most 5".to_owned(),
        ),
        // It could be meant as the default or as no filtering.
        (
            json!(null),
            (422, "invalid", "security_groups"),
            "security_groups: invalid type: null, expected a sequence".to_owned(),
        ),
    ];
    for (groups, (status, kind, offender), text) in cases {
        let mut body = basics.instance("new");
        body["security_groups"] = groups.clone();
        for answer in [
            cloud.post(&basics.instances_path(), body.clone()).await,
            patch(&cloud, &format!("/v1/instances/{vm}"), json!({"security_groups": groups})).await,
        ] {
            assert_eq!(answer.problem(), (status, kind, offender), "{groups}: {}", answer.body);
            assert!(answer.body["detail"].as_str().unwrap().starts_with(&text), "{}", answer.body);
        }
        // In bulk, the position is named.
        let bulk = json!({"instances": [basics.instance("first"), body]});
        let answer = cloud.post(&format!("{}/bulk", basics.instances_path()), bulk).await;
        let (found, found_kind, place) = answer.problem();
        assert_eq!((found, found_kind), (status, kind), "{groups}: {}", answer.body);
        assert!(place.starts_with("instances[1]"), "{place}");
    }
    let wrong = json!(["web"]);
    let mut body = basics.instance("new");
    body["security_groups"] = wrong;
    let answer = cloud.post(&basics.instances_path(), body).await;
    assert_eq!(answer.problem(), (422, "invalid", "security_groups[0]"));
    assert_eq!(cloud.get("/v1/instances").await.body["items"].as_array().unwrap().len(), 1);
}

/// Groups and rules are programmed when the hosts with instances of the VPC have their revision and all policies.
#[tokio::test]
async fn rules_are_programmed_when_hosts_have_their_policies() {
    let mut cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let default = default_group(&cloud, &basics.vpc).await;
    let programmed = |body: &Value| body["programmed"] == true;
    // No host has an instance of the VPC, and gateways have no policies.
    let group = cloud.make(&groups_path(&basics.vpc), json!({"name": "web"})).await;
    let group = format!("/v1/security-groups/{group}");
    cloud.wait_until("the group programmed", &group, programmed).await;

    let identity = cloud.enroll(&basics.host_path()).await;
    let mut host = common::join(&cloud, &identity, 0, 0).await;
    host.acked_step().await;
    let one = cloud.make(&basics.instances_path(), basics.instance("one")).await;
    let (_, step) = host.acked_step().await;
    let (policies, ports): (Vec<_>, Vec<_>) =
        step.iter().map(|part| (part.policies.len(), part.ports.len())).filter(|it| *it != (0, 0)).unzip();
    assert_eq!((policies, ports), (vec![1, 0], vec![0, 1]), "the policy comes first");
    let made = cloud.make(&rules_path(&default), https()).await;
    let made = format!("/v1/security-rules/{made}");
    let step = host.step().await;
    let policy = &step[0].policies[0];
    assert!(policy.rules.iter().any(|rule| rule.matches.protocol == sluice_types::Protocol::TCP));
    assert_eq!(cloud.get(&made).await.body["programmed"], false, "the host has not acknowledged it");

    let key = EntryKey::Policy(policy.key.vni, policy.key.identity);
    let report = async |key: EntryKey| {
        let missing = Missing { entries: [(key, "the memory is full".to_owned())].into(), others: false };
        host.connection.reports.missing(missing).await.unwrap();
        let revision = step.last().unwrap().revision;
        host.connection.reports.ack(revision, vec!["1 entry failed".into()], false).await.unwrap();
    };
    report(key).await;
    let failure = json!([{"node": basics.host, "entry": key.to_string(), "reason": "the memory is full"}]);
    for path in [&made, &group, &format!("/v1/instances/{one}")] {
        let fails = |body: &Value| body["failures"] == failure && body["programmed"] == false;
        cloud.wait_until("the policy named", path, fails).await;
    }
    // The policy of other ports does not concern the instance.
    report(EntryKey::Policy(policy.key.vni, 99)).await;
    let none = |body: &Value| body.get("failures").is_none();
    cloud.wait_until("no failure", &format!("/v1/instances/{one}"), none).await;
    host.connection.reports.missing(Missing::default()).await.unwrap();
    host.ack(step.last().unwrap().revision).await;
    for path in [&made, &group] {
        cloud.wait_until("programmed", path, programmed).await;
    }

    // After a restart, the controller still knows that the host needs rules of the VPC. No host needs those of the other.
    drop(host);
    cloud.restart().await;
    let other = cloud.make("/v1/vpcs", json!({"name": "v2", "tenant": basics.tenant})).await;
    let later = cloud.make(&rules_path(&default), rule(&https(), json!({"ports": 80}))).await;
    let group = cloud.make(&groups_path(&other), json!({"name": "web"})).await;
    cloud.wait_until("programmed", &format!("/v1/security-groups/{group}"), programmed).await;
    assert_eq!(cloud.get(&format!("/v1/security-rules/{later}")).await.body["programmed"], false);
}

/// A host that connects again gets the policies as they are now, with the port of the groups that the instance has now.
#[tokio::test]
async fn snapshot_of_a_host_has_its_policies() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let web = cloud.make(&groups_path(&basics.vpc), json!({"name": "web"})).await;
    let vm = cloud.make(&basics.instances_path(), basics.instance("vm")).await;
    let identity = cloud.enroll(&basics.host_path()).await;
    let snapshot = async || {
        let (_, step) = common::join(&cloud, &identity, 0, 0).await.acked_step().await;
        let mut all = (Vec::new(), Vec::new());
        for part in step {
            all.0.extend(part.policies);
            all.1.extend(part.ports);
        }
        all
    };
    let (policies, ports) = snapshot().await;
    assert_eq!((policies.len(), ports.len()), (1, 1));
    assert_eq!((policies[0].rules.len(), policies[0].key.identity), (4, ports[0].identity));
    // The topology that snapshots share must not be the one before these changes.
    cloud.make(&rules_path(&web), https()).await;
    patch(&cloud, &format!("/v1/instances/{vm}"), json!({"security_groups": [web]})).await;
    let (policies, ports) = snapshot().await;
    assert_eq!((policies.len(), ports.len()), (1, 1));
    assert_eq!((policies[0].rules.len(), policies[0].key.identity), (3, ports[0].identity));
    patch(&cloud, &format!("/v1/instances/{vm}"), json!({"security_groups": []})).await;
    let (policies, ports) = snapshot().await;
    assert_eq!((policies.len(), ports[0].identity), (0, 0));
}

/// What the deletion of a rule would end is what the hosts of the VPC answer, and no other host is asked.
#[tokio::test]
async fn hosts_say_which_sessions_would_end() {
    let cloud = Cloud::start().await;
    let basics = basics(&cloud).await;
    let default = default_group(&cloud, &basics.vpc).await;
    let rule = cloud.make(&rules_path(&default), https()).await;
    let path = format!("/v1/security-rules/{rule}/ending-sessions");
    assert_eq!(cloud.get("/v1/security-rules/sgr-99999/ending-sessions").await.status, 404);
    let nothing = json!({"rule": rule, "sessions": 0, "hosts": [], "unanswered": []});
    let stranger = cloud.make("/v1/hosts", json!({"name": "h2", "vtep": "192.0.2.22"})).await;
    let stranger = cloud.enroll(&format!("/v1/hosts/{stranger}")).await;
    let mut stranger = common::join(&cloud, &stranger, 0, 0).await;
    stranger.acked_step().await;
    let identity = cloud.enroll(&basics.host_path()).await;
    let mut host = common::join(&cloud, &identity, 0, 0).await;
    host.acked_step().await;
    assert_eq!(cloud.get(&path).await.body, nothing, "no host has an instance of the VPC");

    let one = cloud.make(&basics.instances_path(), basics.instance("one")).await;
    host.acked_step().await;
    let number = |id: &str| id.rsplit('-').next().unwrap().parse::<u64>().unwrap();
    let ignored = |number: u64| {
        let line = format!("ending_sessions_answers_ignored_total {number}\n");
        move |metrics: &Value| metrics.as_str().unwrap().contains(&line)
    };
    let mut ignored_before = 0;
    let answers = async {
        for problem in ["", "there is no memory"] {
            let request = loop {
                let update = host.connection.updates.next().await.unwrap().unwrap();
                if let Some(request) = update.ending_sessions {
                    break request;
                }
            };
            assert_eq!(request.rules, [number(&rule)]);
            let answer = |id: u64, sessions: u64, problem: &str| EndingSessions {
                id,
                sessions,
                ports: vec![OfPort { instance: number(&one), sessions }],
                problem: problem.to_owned(),
            };
            let reports = &host.connection.reports;
            // An answer to another question, one of a host that was not asked, and a second answer do not count.
            stranger.connection.reports.ending_sessions(answer(request.id, 7000, "")).await.unwrap();
            cloud
                .wait_until("the stranger's answer is ignored", "/metrics", ignored(ignored_before + 1))
                .await;
            reports.ending_sessions(answer(request.id + 1, 70, "")).await.unwrap();
            reports.ending_sessions(answer(request.id, 7, problem)).await.unwrap();
            reports.ending_sessions(answer(request.id, 700, "")).await.unwrap();
            ignored_before += 3;
            cloud.wait_until("all others are ignored", "/metrics", ignored(ignored_before)).await;
        }
        host
    };
    let asked = async { [cloud.get(&path).await, cloud.get(&path).await] };
    let (mut host, [first, second]) = tokio::join!(answers, asked);
    let of_host =
        json!({"host": basics.host, "sessions": 7, "instances": [{"instance": one, "sessions": 7}]});
    assert_eq!(first.body, json!({"rule": rule, "sessions": 7, "hosts": [of_host], "unanswered": []}));
    let unanswered = json!([{"host": basics.host, "reason": "there is no memory"}]);
    assert_eq!(second.body, json!({"rule": rule, "sessions": 0, "hosts": [], "unanswered": unanswered}));
    assert_eq!(cloud.get(&format!("/v1/security-rules/{rule}")).await.status, 200, "nothing was deleted");

    // A host that does not know the question does not answer. While it is awaited, few questions are open.
    let all = futures::future::join_all((0..17).map(|_| cloud.get(&path))).await;
    let (silent, refused): (Vec<_>, Vec<_>) = all.iter().partition(|reply| reply.status == 200);
    let reason = "it did not answer in time";
    for reply in &silent {
        assert_eq!(reply.body["unanswered"], json!([{"host": basics.host, "reason": reason}]));
    }
    assert_eq!((silent.len(), refused.len(), refused[0].status.as_u16()), (16, 1, 503));
    assert_eq!(refused[0].body["type"], "urn:sluice:problem:too-many-questions");
    assert!(host.connection.updates.next().await.unwrap().unwrap().ending_sessions.is_some());
    drop(host);
    let gone = |body: &Value| body["unanswered"][0]["reason"] == "it has no stream to this controller";
    cloud.wait_until("the stream ended", &path, gone).await;
}
