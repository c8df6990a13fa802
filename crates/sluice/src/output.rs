//! Output of commands: tables for people, JSON and YAML for programs.

use crate::failure::Failure;
use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table
    Table,
    /// Indented JSON
    Json,
    /// A YAML document
    Yaml,
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::System { what: "cannot write to standard output".to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// Prints a list of objects; `columns` are the fields that a table shows.
pub fn list<T: Serialize>(format: Format, columns: &[&str], objects: &[T]) -> Result<(), Failure> {
    match format {
        Format::Table => {
            let rows = objects.iter().map(|object| fields(object)).collect::<Vec<_>>();
            print(&table(columns, &rows))
        }
        _ => structured(format, &objects),
    }
}

/// Prints one object; a table has one line for each field.
pub fn one<T: Serialize>(format: Format, object: &T) -> Result<(), Failure> {
    if format != Format::Table {
        return structured(format, object);
    }
    let mut lines = bare_table();
    let mut all: Vec<_> = fields(object).into_iter().collect();
    // The fields that identify the object come first.
    all.sort_by_key(|(field, _)| !["id", "ifname", "name"].contains(&field.as_str()));
    for (field, value) in all {
        lines.add_row([header(&field), field_cell(&field, Some(&value))]);
    }
    print(&trimmed(&lines))
}

fn structured<T: Serialize>(format: Format, value: &T) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Usage(format!("cannot format the output: {error}"));
    let text = match format {
        Format::Yaml => serde_saphyr::to_string(value).map_err(|error| failed(&error))?,
        _ => serde_json::to_string_pretty(value).map_err(|error| failed(&error))?,
    };
    print(&(text.trim_end().to_owned() + "\n"))
}

fn fields<T: Serialize>(object: &T) -> Map<String, Value> {
    match serde_json::to_value(object) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

fn bare_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn table(columns: &[&str], rows: &[Map<String, Value>]) -> String {
    let mut table = bare_table();
    table.set_header(columns.iter().map(|column| header(column)));
    for row in rows {
        table.add_row(columns.iter().map(|column| field_cell(column, row.get(*column))));
    }
    trimmed(&table)
}

/// The table's lines without the padding at their edges.
fn trimmed(table: &Table) -> String {
    let mut text = String::new();
    for line in table.lines() {
        let line = line.trim_end();
        text.push_str(line.strip_prefix(' ').unwrap_or(line));
        text.push('\n');
    }
    text
}

/// Fields that hold a time in milliseconds of the UNIX epoch; tables show it as a date.
const TIME_FIELDS: [&str; 3] = ["time_ms", "valid_from_ms", "previous_keys_expire_ms"];

fn header(field: &str) -> String {
    let is_time = TIME_FIELDS.contains(&field);
    field.strip_suffix("_ms").filter(|_| is_time).unwrap_or(field).to_uppercase()
}

fn field_cell(field: &str, value: Option<&Value>) -> String {
    let time_ms = value.filter(|_| TIME_FIELDS.contains(&field)).and_then(Value::as_i64);
    time_ms.and_then(format_time).unwrap_or_else(|| cell(value))
}

/// The time in UTC, formatted by RFC 3339.
fn format_time(epoch_ms: i64) -> Option<String> {
    let time = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(epoch_ms) * 1_000_000).ok()?;
    time.format(&time::format_description::well_known::Rfc3339).ok()
}

/// A value as a table shows it: `-` for an absent value, `yes` and `no`, lists separated by commas.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(yes)) => if *yes { "yes" } else { "no" }.to_owned(),
        Some(Value::Array(items)) if items.is_empty() => "-".to_owned(),
        Some(Value::Array(items)) => items.iter().map(|item| cell(Some(item))).collect::<Vec<_>>().join(", "),
        Some(Value::Object(fields)) => fields
            .iter()
            .map(|(key, value)| format!("{key} {}", cell(Some(value))))
            .collect::<Vec<_>>()
            .join(", "),
        Some(number) => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_aligned_and_absent_values_are_shown() {
        let rows: Vec<_> = [
            json!({"id": "inst-1", "name": "web", "ipv6": null, "programmed": true}),
            json!({"id": "inst-22", "name": "a-longer-name", "ipv6": "2001:db8::1", "programmed": false}),
        ]
        .iter()
        .map(fields)
        .collect();
        let text = table(&["id", "name", "ipv6", "programmed"], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["ID", "NAME", "IPV6", "PROGRAMMED"]);
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["inst-1", "web", "-", "yes"]);
        assert_eq!(lines[1].find("web"), lines[2].find("a-longer"));
    }

    #[test]
    fn times_are_shown_in_utc_and_invalid_times_as_numbers() {
        let row = json!({"id": 7, "time_ms": 1_795_381_536_045_u64});
        let text = table(&["id", "time_ms"], &[fields(&row)]);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words, ["ID", "TIME", "7", "2026-11-22T21:05:36.045Z"]);
        assert_eq!(field_cell("time_ms", Some(&json!(i64::MAX))), i64::MAX.to_string());
        assert_eq!(field_cell("time_ms", None), "-");
        let shown = field_cell("previous_keys_expire_ms", Some(&json!(1_795_381_536_045_u64)));
        assert_eq!(
            (header("previous_keys_expire_ms"), shown.as_str()),
            ("PREVIOUS_KEYS_EXPIRE".to_owned(), "2026-11-22T21:05:36.045Z")
        );
        assert_eq!(header("hello_interval_ms"), "HELLO_INTERVAL_MS");
    }

    #[test]
    fn nested_values_stay_on_one_line() {
        assert_eq!(cell(Some(&json!(["10.0.0.1", "10.0.0.2"]))), "10.0.0.1, 10.0.0.2");
        assert_eq!(cell(Some(&json!({"peering": "peer-1"}))), "peering peer-1");
        assert_eq!(cell(Some(&json!([]))), "-");
    }
}
