//! How long the sessions live that a deleted rule alone permitted. It changes with the path of a rule from the API to
//! sessions.

use serde_json::json;
use sluice_bench_report::Measure;
use sluice_bench_report::shell::Failure;
use sluice_client::{Instance, NewSecurityGroup, NewSecurityRule, Remote, SecurityRule};
use sluice_lab::Lab;
use sluice_types::{AddressFamily, Direction, PortRange, Protocol, SecurityGroupId, SecurityRuleId};
use std::time::{Duration, Instant};

/// Sessions that the rule permits: one for each pair of a source port and a destination port.
const SESSIONS: u32 = SOURCE_PORTS * DESTINATION_PORTS as u32;
const SOURCE_PORTS: u32 = 1000;
const DESTINATION_PORTS: u16 = 100;
const FIRST_PORT: u16 = 20_000;
const SENDER: &str = "web-1";
const RECEIVER: &str = "web-3";
const HOST: &str = "host-b";
/// More than the receiver needs. The default is less than its port has in this bench.
const LIMIT: &str = "--sessions-per-port=200000";
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures `rule_change_ms`: from the call until the host has ended the last of 100,000 sessions.
///
/// # Errors
/// Errors of the lab; sessions that did not begin or did not end.
pub async fn measure(lab: &Lab, rounds: usize) -> Result<Measure, Failure> {
    let mut argv = lab.process(HOST)?.argv;
    argv.push(LIMIT.to_owned());
    lab.restart_with(HOST, argv).await?;
    lab.synchronized(HOST, PATIENCE).await?;
    let group = NewSecurityGroup { name: "server".to_owned(), description: None };
    let group = lab.api().create(lab.vpc("web")?.id, &group).await?.object.id;
    set_groups(lab, SENDER, &[]).await?;
    set_groups(lab, RECEIVER, &[group]).await?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let rule = permit(lab, group).await?;
        begin_sessions(lab).await?;
        let before = revoked(lab).await?;
        let begin = Instant::now();
        lab.api().delete::<SecurityRule>(rule, None).await?;
        while revoked(lab).await? - before < f64::from(SESSIONS) {
            if begin.elapsed() > PATIENCE {
                return Err(format!("after {PATIENCE:?} the host has not ended {SESSIONS} sessions").into());
            }
        }
        times.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(Measure::alone("rule_change_ms", "ms", &times))
}

async fn set_groups(lab: &Lab, vm: &str, groups: &[SecurityGroupId]) -> Result<(), Failure> {
    let id = lab.vm(vm)?.id;
    lab.api().update::<Instance>(id, &json!({ "security_groups": groups }), None).await?;
    lab.api().wait_programmed::<Instance>(id, PATIENCE).await?;
    Ok(())
}

async fn permit(lab: &Lab, group: SecurityGroupId) -> Result<SecurityRuleId, Failure> {
    let rule = NewSecurityRule {
        direction: Direction::Ingress,
        family: AddressFamily::Ipv4,
        protocol: Protocol::UDP,
        ports: Some(PortRange::new(FIRST_PORT, FIRST_PORT + DESTINATION_PORTS - 1)?),
        icmp_type: None,
        icmp_code: None,
        remote: Remote::Any,
        description: String::new(),
    };
    let rule = lab.api().create(group, &rule).await?.object.id;
    lab.api().wait_programmed::<SecurityRule>(rule, PATIENCE).await?;
    Ok(rule)
}

/// Sends the first packet of every session, until the host has all of them.
async fn begin_sessions(lab: &Lab) -> Result<(), Failure> {
    let address = lab.vm(RECEIVER)?.ipv4.ok_or("the receiver has no IPv4 address")?;
    let code = format!(
        "import resource, socket\n\
         resource.setrlimit(resource.RLIMIT_NOFILE, ({0} + 100, {0} + 100))\n\
         sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range({0})]\n\
         [s.bind(('', 1024 + number)) for number, s in enumerate(sockets)]\n\
         [s.sendto(b'x', ('{address}', port)) for port in range({FIRST_PORT}, {FIRST_PORT} + {DESTINATION_PORTS})\
         \x20for s in sockets]\n",
        SOURCE_PORTS,
    );
    let begin = Instant::now();
    loop {
        let output = lab.exec(SENDER, &["python3", "-c", &code]).await?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        // A sweep takes a second, and counts what it sees.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let begun = lab.metrics(HOST).await?.sum("sluice_sessions", &[("family", "ipv4")]);
        if begun >= f64::from(SESSIONS) {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("only {begun} of {SESSIONS} sessions have begun").into());
        }
    }
}

async fn revoked(lab: &Lab) -> Result<f64, Failure> {
    Ok(lab.metrics(HOST).await?.sum("sluice_sessions_revoked_total", &[]))
}
