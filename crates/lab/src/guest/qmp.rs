//! A client of QMP, the protocol by which QEMU is controlled: a line of JSON for each message. Commands are answered in
//! their order; events come between the answers, and are kept with the time that QEMU gives them.

use super::channel::connect;
use crate::error::{Error, IoContext, Result};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// Longest wait for QEMU's socket, for its greeting, and for an answer: QEMU may start on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest message that is read.
const LINE_MAX: u64 = 1 << 20;
/// Events that are kept; the oldest are dropped.
const EVENTS_MAX: usize = 1000;

/// What happened to a guest, as its QEMU reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its name in QMP, such as `STOP`.
    pub name: String,
    /// The status that it names, such as `completed` of `MIGRATION`; empty if it names none.
    pub status: String,
    /// When it happened, since the UNIX epoch.
    pub at: Duration,
}

/// A message of QEMU.
#[derive(Debug, PartialEq)]
enum Message {
    Greeting,
    Answer(Value),
    Refusal(String),
    Event(Event),
}

/// A connection to the QMP monitor of a guest.
#[derive(Debug)]
pub(crate) struct Qmp {
    socket: PathBuf,
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    events: VecDeque<Event>,
}

impl Qmp {
    /// Connects to a QEMU, which may be starting, and negotiates.
    pub(crate) async fn connect(socket: PathBuf) -> Result<Self> {
        let stream = connect(&socket, ANSWER_TIMEOUT).await.context("cannot connect to", &socket)?;
        let (reader, writer) = stream.into_split();
        let mut qmp = Self { socket, reader: BufReader::new(reader), writer, events: VecDeque::new() };
        let greeting = in_time("greeting of QEMU", ANSWER_TIMEOUT, qmp.receive()).await?;
        if greeting != Message::Greeting {
            return Err(qmp.malformed(format!("{greeting:?} is no greeting")));
        }
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Executes a command; returns its answer.
    pub(crate) async fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.writer.write_all(line.as_bytes()).await.context("cannot write to", &self.socket)?;
        let answer = self.answer(command);
        in_time(&format!("answer to `{command}`"), ANSWER_TIMEOUT, answer).await
    }

    async fn answer(&mut self, command: &str) -> Result<Value> {
        loop {
            match self.receive().await? {
                Message::Answer(answer) => return Ok(answer),
                Message::Refusal(output) => {
                    let (what, status) = (format!("`{command}` of QEMU"), "refused".to_owned());
                    return Err(Error::Command { what, status, output });
                }
                Message::Event(event) => self.keep(event),
                Message::Greeting => {}
            }
        }
    }

    /// The first event since the connection began that is wanted; waits for it.
    pub(crate) async fn event(
        &mut self,
        what: &str,
        within: Duration,
        is_wanted: impl Fn(&Event) -> bool,
    ) -> Result<Event> {
        in_time(what, within, self.find(is_wanted)).await
    }

    async fn find(&mut self, is_wanted: impl Fn(&Event) -> bool) -> Result<Event> {
        loop {
            if let Some(event) = self.events.iter().find(|event| is_wanted(event)) {
                return Ok(event.clone());
            }
            if let Message::Event(event) = self.receive().await? {
                self.keep(event);
            }
        }
    }

    /// The events that were read since the connection began.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }

    fn keep(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    async fn receive(&mut self) -> Result<Message> {
        let mut line = Vec::new();
        let mut limited = (&mut self.reader).take(LINE_MAX);
        limited.read_until(b'\n', &mut line).await.context("cannot read from", &self.socket)?;
        if !line.ends_with(b"\n") {
            return Err(self.malformed("QEMU has closed it, or sent a message that is too long".to_owned()));
        }
        parse(&line).map_err(|problem| self.malformed(problem))
    }

    fn malformed(&self, problem: String) -> Error {
        Error::Form { what: format!("the monitor at {}", self.socket.display()), problem }
    }
}

async fn in_time<T>(what: &str, within: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::Timeout { what: what.to_owned(), seconds: within.as_secs(), hint: String::new() };
    tokio::time::timeout(within, work).await.map_err(late)?
}

fn parse(line: &[u8]) -> std::result::Result<Message, String> {
    let mut message: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if message.get("QMP").is_some() {
        return Ok(Message::Greeting);
    }
    if let Some(answer) = message.get_mut("return") {
        return Ok(Message::Answer(answer.take()));
    }
    if let Some(error) = message.get("error") {
        return Ok(Message::Refusal(error["desc"].as_str().unwrap_or_default().to_owned()));
    }
    let Some(name) = message["event"].as_str() else {
        return Err(format!("{message} is neither an answer nor an event"));
    };
    let part = |key: &str| message["timestamp"][key].as_u64();
    let (Some(seconds), Some(microseconds)) = (part("seconds"), part("microseconds")) else {
        return Err(format!("{message} has no time"));
    };
    let at = Duration::from_secs(seconds) + Duration::from_micros(microseconds);
    let status = message["data"]["status"].as_str().unwrap_or_default().to_owned();
    Ok(Message::Event(Event { name: name.to_owned(), status, at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let greeting = br#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;
        assert_eq!(parse(greeting), Ok(Message::Greeting));
        let answer = br#"{"return": {"status": "completed"}}"#;
        assert_eq!(parse(answer), Ok(Message::Answer(json!({ "status": "completed" }))));
        let refusal = br#"{"error": {"class": "GenericError", "desc": "no such file"}}"#;
        assert_eq!(parse(refusal), Ok(Message::Refusal("no such file".to_owned())));
    }

    #[test]
    fn events_have_their_time_and_status() {
        let time = r#""timestamp": {"seconds": 7, "microseconds": 250000}"#;
        let event = |name: &str, status: &str| {
            Message::Event(Event {
                name: name.to_owned(),
                status: status.to_owned(),
                at: Duration::from_millis(7250),
            })
        };
        let stop = format!(r#"{{{time}, "event": "STOP"}}"#);
        assert_eq!(parse(stop.as_bytes()), Ok(event("STOP", "")));
        let active = format!(r#"{{{time}, "event": "MIGRATION", "data": {{"status": "active"}}}}"#);
        assert_eq!(parse(active.as_bytes()), Ok(event("MIGRATION", "active")));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "{", "7", r#"{"id": 1}"#, r#"{"event": "STOP"}"#] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
    }
}
