//! The controller's PostgreSQL server is killed: the API reports it, and packets are forwarded. After its
//! restart, nothing that was acknowledged is missing.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, describe, ensure, reaches};
use sluice_client::{NewTenant, Tenant};
use sluice_lab::{CONTROLLER, Lab, Options};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

const PORT: u16 = 7012;
const BACK: Duration = Duration::from_secs(75);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut database = Database::make(&ground.name).await?;
    let outcome = with(ground, &mut database).await;
    database.remove().await?;
    outcome
}

async fn with(ground: &Ground, database: &mut Database) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    options.database = Some(database.url());
    let lab = Lab::up(options).await?;
    for number in 0..20 {
        lab.api().create((), &NewTenant { name: format!("before-{number}") }).await?;
    }
    let streams = Streams::start(&lab, &[("web-1", "web-3", false)], PORT, 1000).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    database.kill().await?;
    refused_with_cause(&lab, "after the kill").await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    streams.end().await?;
    database.start().await?;
    lab.api().wait_ready(BACK).await?;
    nothing_is_lost(&lab).await?;
    // A restarted controller reads the same objects.
    lab.kill(CONTROLLER).await?;
    lab.restart(CONTROLLER)?;
    lab.api().wait_ready(BACK).await?;
    nothing_is_lost(&lab).await?;
    lab.add_vm("later", "web", "front", "host-b").await?;
    reaches(&lab, "web-1", "web-3").await
}

async fn refused_with_cause(lab: &Lab, name: &str) -> Outcome {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let made = lab.api().create((), &NewTenant { name: name.replace(' ', "-") }).await;
        let Err(error) = made else {
            return Err(Failure::new("a tenant was made in a database that is dead"));
        };
        if let Some(problem) = error.problem() {
            let detail = problem.detail.clone().unwrap_or_default();
            ensure!(problem.status == 503, "status {} instead of 503: {detail}", problem.status);
            ensure!(detail.len() > 10, "the answer names no cause: {problem:?}");
            println!("    503: {detail}");
            return Ok(());
        }
        ensure!(Instant::now() < until, "the API gives no answer: {}", describe(&error));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn nothing_is_lost(lab: &Lab) -> Outcome {
    let tenants = lab.api().list::<Tenant>(&[], None).await?;
    for number in 0..20 {
        let name = format!("before-{number}");
        ensure!(
            tenants.iter().any(|tenant| tenant.name == name),
            "tenant {name} was acknowledged and is lost"
        );
    }
    Ok(())
}

/// A PostgreSQL server for one scenario only.
pub struct Database {
    programs: PathBuf,
    directory: PathBuf,
    port: u16,
    server: Option<Child>,
}

impl Database {
    pub async fn make(name: &str) -> Result<Self, Failure> {
        let programs = programs()?;
        let directory = std::env::temp_dir().join(format!("sluice-{name}"));
        std::fs::create_dir_all(&directory)?;
        let owner = Command::new("chown").arg("postgres").arg(&directory).status().await?;
        ensure!(owner.success(), "there is no user `postgres`; it comes with the package postgresql");
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut database = Self { programs, directory, port, server: None };
        let data = database.directory.join("data");
        let init = database
            .as_postgres("initdb")
            .args(["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-U", "postgres", "-D"])
            .arg(&data)
            .output()
            .await?;
        ensure!(init.status.success(), "initdb: {}", String::from_utf8_lossy(&init.stderr));
        database.start().await?;
        Ok(database)
    }

    fn as_postgres(&self, program: &str) -> Command {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(self.programs.join(program)).current_dir("/");
        command.kill_on_drop(true);
        command
    }

    /// The directory of the server's data.
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub async fn start(&mut self) -> Outcome {
        let log = std::fs::File::options().create(true).append(true).open(self.directory.join("log"))?;
        let server = self
            .as_postgres("postgres")
            .arg("-D")
            .arg(self.directory.join("data"))
            .arg("-k")
            .arg(&self.directory)
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.server = Some(server);
        let until = Instant::now() + Duration::from_secs(20);
        let port = self.port.to_string();
        while !self
            .as_postgres("pg_isready")
            .args(["-q", "-h", "127.0.0.1", "-p", &port])
            .status()
            .await?
            .success()
        {
            ensure!(Instant::now() < until, "PostgreSQL does not start");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// `kill -9` of the server; its backends end with it.
    pub async fn kill(&mut self) -> Outcome {
        let pid = std::fs::read_to_string(self.directory.join("data/postmaster.pid"))?;
        let pid = pid.lines().next().unwrap_or_default().parse()?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)?;
        if let Some(mut server) = self.server.take() {
            server.wait().await?;
        }
        Ok(())
    }

    pub async fn remove(mut self) -> Outcome {
        if self.server.is_some() {
            self.kill().await?;
        }
        // Backends may notice the death of the server late and still write here.
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(std::fs::remove_dir_all(&self.directory)?)
    }
}

/// The directory of the newest server's programs on Debian.
fn programs() -> Result<PathBuf, Failure> {
    let entries = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let versions = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let newest =
        versions.max().ok_or_else(|| Failure::new("PostgreSQL is not installed: package postgresql"))?;
    Ok(Path::new("/usr/lib/postgresql").join(newest.to_string()).join("bin"))
}
