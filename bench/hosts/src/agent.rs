//! Ports of a host by the local API of its agent, without the start of a command, which takes longer than what is measured. It
//! changes with that API.

use serde_json::json;
use sluice_bench_report::shell::Failure;
use sluice_lab::Lab;
use sluice_types::InstanceId;
use std::time::{Duration, Instant};

/// The agent does not know the instance for the first milliseconds.
const INTERVAL: Duration = Duration::from_micros(500);
const PATIENCE: Duration = Duration::from_secs(15);

/// The agent of a host.
pub struct Agent(reqwest::Client);

impl Agent {
    /// The agent of a host of the lab.
    ///
    /// # Errors
    /// Errors of the HTTP client.
    pub fn of(lab: &Lab, host: &str) -> Result<Self, Failure> {
        Ok(Self(reqwest::Client::builder().unix_socket(lab.paths().socket(host)).build()?))
    }

    /// Attaches an interface as the port of an instance, as soon as the agent knows the instance.
    ///
    /// # Errors
    /// If the agent still refuses it after 15 s.
    pub async fn attach(&self, ifname: &str, instance: InstanceId) -> Result<(), Failure> {
        let port = json!({ "ifname": ifname, "instance": instance.to_string() });
        let begun = Instant::now();
        loop {
            let answer = self.0.post("http://agent/ports/attach").json(&port).send().await?;
            match answer.error_for_status_ref() {
                Ok(_) => return Ok(()),
                Err(_) if begun.elapsed() < PATIENCE => tokio::time::sleep(INTERVAL).await,
                Err(_) => return Err(format!("the port is not attached: {}", answer.text().await?).into()),
            }
        }
    }
}
