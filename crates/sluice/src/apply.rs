//! `sluice apply -f cloud.yaml`: arguments, progress and output. `sluice_client::apply` does the work.

use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use sluice_client::{CloudFile, CloudFileError, Error, Event, Instance, Options, Resource, Tally};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    api: ApiArgs,
    /// Cloud file (YAML), or `-` for standard input; `docs/guide/cloud-file.md` describes its format
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Change nothing; only report what would be created, and which objects exist with different content
    #[arg(long)]
    dry_run: bool,
    /// Wait until every node has programmed all objects, for at most SECONDS [60 if left out]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60")]
    wait: Option<u64>,
}

pub async fn run(args: ApplyArgs) -> Result<(), Failure> {
    let file = Some(args.file.as_path()).filter(|path| *path != Path::new("-"));
    let invalid = |source| Failure::Cloud {
        path: file.unwrap_or(Path::new("standard input")).to_owned(),
        source: Box::new(source),
    };
    let cloud = CloudFile::read(file).map_err(invalid)?;
    let api = &args.api;
    let client = api.client()?;
    let bar = ProgressBar::new(cloud.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} objects, {per_sec}, {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let lines = api.output == Format::Table;
    let mut printed = Ok(());
    let mut on_event = |event: Event| {
        bar.set_message(format!("{} {}", event.kind, event.name));
        bar.set_position(event.done);
        if lines {
            let line = line(&event, args.dry_run);
            let wrote = bar.suspend(|| output::print(&line));
            printed = std::mem::replace(&mut printed, Ok(())).and(wrote);
        }
    };
    let applied =
        sluice_client::apply(&client, &cloud, Options { dry_run: args.dry_run }, &mut on_event).await;
    bar.finish_and_clear();
    printed?;
    let report = applied.map_err(|error| match error {
        Error::CloudFile(error) => invalid(CloudFileError::Field(error)),
        error => error.into(),
    })?;
    let total = report.total();
    if lines {
        output::print(&summary(total, args.dry_run))?;
    } else {
        let kinds: serde_json::Map<_, _> =
            report.kinds.iter().map(|(kind, tally)| ((*kind).to_owned(), tally_json(*tally))).collect();
        output::one(
            api.output,
            &json!({"dry_run": args.dry_run, "total": tally_json(total), "kinds": kinds}),
        )?;
    }
    if total.differing > 0 {
        return Err(Failure::Differing(total.differing));
    }
    match args.wait {
        Some(seconds) if !args.dry_run => {
            let spinner = ProgressBar::new_spinner();
            spinner.set_message("waiting for the nodes");
            spinner.enable_steady_tick(Duration::from_millis(100));
            let waited = client.wait_cloud_programmed(&cloud, Duration::from_secs(seconds)).await;
            spinner.finish_and_clear();
            waited?;
            eprintln!("programmed");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn tally_json(tally: Tally) -> serde_json::Value {
    let Tally { created, attached, unchanged, differing } = tally;
    json!({"created": created, "attached": attached, "unchanged": unchanged, "differing": differing})
}

fn line(event: &Event, dry_run: bool) -> String {
    let Event { kind, name, tally, difference, .. } = event;
    let (made, attached) = if dry_run { ("would create", "would attach") } else { ("created", "attached") };
    if let Some(difference) = difference {
        return format!("differs      {kind} {name}: {difference}\n");
    }
    if tally.attached > 0 {
        return format!("{attached:<12} {kind} {name}\n");
    }
    // Instances are created in bulk: the name is that of their VPC, even for a single instance.
    let is_bulk = *kind == Instance::NOUN;
    let several = |count: u64| format!("{count} {kind}{}", if count == 1 { "" } else { "s" });
    match (tally.created, tally.unchanged) {
        (1, 0) if !is_bulk => format!("{made:<12} {kind} {name}\n"),
        (0, 1) if !is_bulk => format!("unchanged    {kind} {name}\n"),
        (created, 0) => format!("{made:<12} {} of VPC {name}\n", several(created)),
        (0, unchanged) => format!("unchanged    {} of VPC {name}\n", several(unchanged)),
        (created, unchanged) => {
            let are = if unchanged == 1 { "is" } else { "are" };
            format!("{made:<12} {} of VPC {name}; {unchanged} {are} unchanged\n", several(created))
        }
    }
}

fn summary(total: Tally, dry_run: bool) -> String {
    let (made, attached) = if dry_run { ("to create", "to attach") } else { ("created", "attached") };
    let mut text = format!("{} {made}, {} unchanged", total.created, total.unchanged);
    if total.attached > 0 {
        text.push_str(&format!(", {} {attached}", total.attached));
    }
    if total.differing > 0 {
        text.push_str(&format!(", {} differing", total.differing));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(created: u64, unchanged: u64) -> Event {
        let tally = Tally { created, unchanged, ..Tally::default() };
        Event { kind: "instance", name: "web".to_owned(), tally, difference: None, done: 1, total: 9 }
    }

    #[test]
    fn lines_report_the_outcome_and_the_number_of_objects() {
        let one = |created, unchanged| Event { kind: "vpc", ..event(created, unchanged) };
        assert_eq!(line(&one(1, 0), false), "created      vpc web\n");
        assert_eq!(line(&one(0, 1), true), "unchanged    vpc web\n");
        assert_eq!(line(&event(1, 0), false), "created      1 instance of VPC web\n");
        assert_eq!(line(&event(7, 0), true), "would create 7 instances of VPC web\n");
        assert_eq!(line(&event(0, 7), false), "unchanged    7 instances of VPC web\n");
        assert_eq!(line(&event(10, 2), true), "would create 10 instances of VPC web; 2 are unchanged\n");
        let attached = Event { kind: "EIP", tally: Tally { attached: 1, ..Tally::default() }, ..event(0, 0) };
        assert_eq!(line(&attached, false), "attached     EIP web\n");
        assert_eq!(
            summary(Tally { created: 3, attached: 2, unchanged: 4, differing: 1 }, true),
            "3 to create, 4 unchanged, 2 to attach, 1 differing\n"
        );
    }
}
