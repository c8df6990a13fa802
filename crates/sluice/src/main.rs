//! `sluice`: the one binary. It runs every role of a Sluice site and is the operator's command line. This
//! file lists the subcommands and dispatches them.
#![forbid(unsafe_code)]

mod agent;
mod api;
mod apply;
mod failure;
mod log;
mod nouns;
mod output;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

/// [`Failure::code`] returns these codes.
const EXIT_CODES: &str = "Exit codes:
  0  success
  1  refused by the API or by the agent; a placement plan was stopped; `apply --dry-run`: an object exists
     with different content; `lab status` and `lab run`: the lab is not healthy
  2  wrong usage, or a file or another resource of this machine that cannot be used
  3  the API or the agent cannot be reached
  4  not found
  5  not programmed or not complete before the timeout; `security-rules delete --dry-run`: a host did not answer
  6  `controller`, `gateway`, `vswitch` or `lab` ended with an error
`lab exec` ends with the exit code of its command.";

/// Sluice: a cloud network of VPCs for tenants and the gateways that connect them
#[derive(Parser)]
#[command(name = "sluice", version, after_help = EXIT_CODES, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controller: it serves the API and programs all nodes
    Controller(sluice_controller::Args),
    Gateway(GatewayCommand),
    Vswitch(sluice_vswitch::Args),
    Lab(sluice_lab::Args),
    /// Ports of this host, attached and detached by a CNI plugin or a libvirt hook
    #[command(subcommand)]
    Port(agent::PortCommand),
    /// Direct paths that this host has learned
    #[command(subcommand)]
    Path(agent::PathCommand),
    /// Connections that this gateway translates for NAT gateways
    #[command(subcommand)]
    Nat(agent::NatCommand),
    /// Status and drop counters of this node's agent
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Create the objects of a cloud file that do not exist yet
    Apply(apply::ApplyArgs),
    #[command(flatten)]
    Noun(nouns::Noun),
    /// Print a completion script for a shell
    Completion {
        /// Shell to print the script for
        shell: clap_complete::Shell,
    },
    /// Print the OpenAPI 3.1 description of the API
    Openapi,
}

/// Run a gateway on this node, or drain, undrain or move a running gateway
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct GatewayCommand {
    #[command(flatten)]
    run: sluice_gateway::Args,
    #[command(subcommand)]
    verb: Option<nouns::GatewayVerb>,
}

impl Command {
    /// The log filter if the user gives none.
    fn log_filter(&self) -> &'static str {
        match self {
            Self::Controller(_) | Self::Gateway(GatewayCommand { verb: None, .. }) | Self::Vswitch(_) => {
                "info"
            }
            _ => "warn",
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let log = cli.log.start(cli.command.log_filter())?;
    let runtime = tokio::runtime::Runtime::new().map_err(|source| Failure::System {
        what: "cannot start the runtime's threads".to_owned(),
        source,
    })?;
    let outcome = runtime.block_on(dispatch(cli.command));
    log.end();
    outcome
}

async fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Controller(args) => {
            sluice_controller::run(args).await.map_err(Failure::role("controller"))?;
        }
        Command::Gateway(GatewayCommand { verb: Some(verb), .. }) => verb.run().await?,
        Command::Gateway(GatewayCommand { run, verb: None }) => {
            sluice_gateway::run(run).await.map_err(Failure::role("gateway"))?;
        }
        Command::Vswitch(args) => sluice_vswitch::run(args).await.map_err(Failure::role("vswitch"))?,
        Command::Lab(args) => return sluice_lab::run(args).await.map_err(Failure::lab),
        Command::Port(command) => command.run().await?,
        Command::Path(command) => command.run().await?,
        Command::Nat(command) => command.run().await?,
        Command::Agent(command) => command.run().await?,
        Command::Apply(args) => apply::run(args).await?,
        Command::Noun(noun) => noun.run().await?,
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
        }
        Command::Openapi => {
            let document =
                sluice_controller::openapi_json().map_err(|error| Failure::Usage(error.to_string()))?;
            output::print(&document)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent_and_gateway_runs_without_a_verb() {
        Cli::command().debug_assert();
        let parsed = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        assert!(matches!(
            parsed("sluice gateway drain gw-1 --wait 5"),
            Ok(Command::Gateway(GatewayCommand { verb: Some(nouns::GatewayVerb::Drain { .. }), .. }))
        ));
        for option in ["--to", "--cluster"] {
            assert!(matches!(
                parsed(&format!("sluice gateway move gw-1 {option} far --reason test --wait 5")),
                Ok(Command::Gateway(GatewayCommand { verb: Some(nouns::GatewayVerb::Move { .. }), .. }))
            ));
        }
        let run = parsed("sluice gateway --interface eth0 --state-dir /var/lib/sluice");
        assert!(matches!(run, Ok(Command::Gateway(GatewayCommand { verb: None, .. }))));
        assert!(parsed("sluice gateway").is_err(), "running a gateway requires an interface");
    }
}
