//! The target's part of a migration: what it asks the source, and when it opens the port. Pure: replies, events and the time go
//! in, requests and what is to be done come out. This file changes with the order of these.
//!
//! ```text
//!              interface and policy            all sessions copied
//!     WAITING ----------------------> COPYING ---------------------> READY --+ every second:
//!                                        |                             |  ^  | sessions that were used since
//!                                        | the guest runs here         |  +--+
//!                                        v                             v
//!                                     FREEZING: the source closes its port and redirects its packets
//!                                        |
//!                                        | it has; or does not answer for 180 ms
//!                                        v
//!                                     OPENED: the port is open; sessions that changed since the last copy follow
//!                                        |
//!                                        | all of them have come, or the source does not answer
//!                                        v
//!                                     SWITCHED
//! ```
//!
//! Until the guest runs here, the port is open while the source says that its own is closed: the guest is stopped there, and the
//! interface here keeps what comes. The source tells when that changes, so that it is asked at once.
//!
//! With sessions `reset`, nothing is copied before the guest runs here: the port is opened when the source has closed its own, and
//! then gets all sessions, which end (`resets.rs`).
//!
//! If not all sessions were copied before the guest runs, the port is opened after they were. A request that is not answered is
//! sent again, for as long as the controller has not ended the migration: a source that was away closes its port then.

use sluice_southbound::{MigrationPhase, SessionMode};
use sluice_types::InstanceId;

use super::wire::{Answer, Head, NOTICE, Reply, Request, SessionCopy};

/// Time until a request is sent again: before the switch, doubled with each of so many repetitions, and while the guest waits for the
/// answer.
const RETRY_MS: u64 = 200;
const RETRY_DOUBLINGS: u32 = 4;
const FREEZE_RETRY_MS: u64 = 60;
/// Requests of a freeze without an answer after which the port is opened.
const FREEZE_TRIES: u32 = 3;
/// Time until a freeze is sent again after that.
const LATE_RETRY_MS: u64 = 250;
/// Time between two copies of what has changed.
const COPY_INTERVAL_MS: u64 = 1000;
/// Ticks by which sessions may have been used later than their expiry says, and more.
const MARGIN_TICKS: u64 = 16;
const TICK_MS: u64 = 125;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a request to the source.
    Send(Request),
    /// Install sessions.
    Install(Vec<SessionCopy>),
    /// Open the port.
    Open,
    /// The guest does not run here yet: open the port, so that its interface keeps what comes, or close it again.
    Receive(bool),
}

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
struct Pull {
    number: u32,
    cursor: u64,
    began_ms: u64,
    sent_ms: u64,
    tries: u32,
}

/// The target's part of one migration.
#[derive(Debug)]
pub struct Target {
    instance: InstanceId,
    migration: u64,
    mode: SessionMode,
    /// The port has an interface, and what judges its sessions; it has sessions at all.
    is_prepared: bool,
    has_sessions: bool,
    has_resumed: bool,
    /// The source has closed its port; all that changed has come; the source does not answer.
    is_frozen: bool,
    is_complete: bool,
    has_given_up: bool,
    /// Whether the port is to be opened, and is open.
    is_opening: bool,
    is_open: bool,
    /// The port is open though the guest does not run here yet.
    is_receiving: bool,
    pull: Option<Pull>,
    number: u32,
    /// When the last copy of all sessions began.
    copied_ms: Option<u64>,
    next_ms: u64,
    /// There was no room for a session.
    is_full: bool,
    problem: String,
}

impl Target {
    /// A migration with this way of copying sessions. `is_open`: an earlier agent has opened the port.
    pub fn new(instance: InstanceId, migration: u64, mode: SessionMode, is_open: bool) -> Self {
        Self {
            instance,
            migration,
            mode,
            is_prepared: false,
            has_sessions: false,
            has_resumed: is_open,
            is_frozen: false,
            is_complete: false,
            has_given_up: false,
            is_opening: is_open,
            is_open,
            is_receiving: false,
            pull: None,
            number: 0,
            copied_ms: None,
            next_ms: 0,
            is_full: false,
            problem: String::new(),
        }
    }

    /// Number of the migration.
    pub fn migration(&self) -> u64 {
        self.migration
    }

    /// What happens to the sessions.
    pub fn mode(&self) -> SessionMode {
        self.mode
    }

    /// The phase that the controller is told.
    pub fn phase(&self) -> MigrationPhase {
        if self.is_open && (self.is_complete || self.has_given_up) {
            MigrationPhase::Switched
        } else if self.is_prepared && (self.copied_ms.is_some() || !self.copies()) {
            MigrationPhase::Ready
        } else {
            MigrationPhase::Waiting
        }
    }

    /// Why it does not go on; empty if it does.
    pub fn problem(&self) -> &str {
        if self.problem.is_empty() && self.is_full {
            return "there is no room for all of its sessions on this host";
        }
        &self.problem
    }

    /// Whether the guest is known to run here.
    pub fn has_resumed(&self) -> bool {
        self.has_resumed
    }

    /// Whether sessions are copied before the guest runs here.
    fn copies(&self) -> bool {
        self.mode == SessionMode::Copy && self.has_sessions
    }

    /// Whether the source is asked for sessions now.
    fn wants_sessions(&self) -> bool {
        let resets = self.mode == SessionMode::Reset && self.has_sessions && self.has_resumed;
        self.copies() || resets
    }

    /// Whether the port has an interface and the policy by which its sessions are judged, and whether it has sessions.
    pub fn prepare(&mut self, is_prepared: bool, has_sessions: bool) {
        self.is_prepared = is_prepared;
        self.has_sessions = has_sessions;
        if !is_prepared && !self.has_resumed {
            self.copied_ms = None;
            self.pull = None;
        }
    }

    /// The guest runs here.
    pub fn resume(&mut self, now_ms: u64) -> Vec<Output> {
        if !std::mem::replace(&mut self.has_resumed, true) {
            self.pull = None;
            self.next_ms = now_ms;
        }
        self.tick(now_ms)
    }

    /// The port was opened, or could not be.
    pub fn opened(&mut self, result: Result<(), String>) {
        match result {
            Ok(()) => {
                self.is_open = true;
                if !self.has_given_up {
                    self.problem.clear();
                }
            }
            Err(problem) => {
                self.is_opening = false;
                self.problem = problem;
            }
        }
    }

    /// Whether the port is open for a guest that does not run here yet: an earlier one of these has opened it, or it could not be
    /// changed.
    pub fn set_receiving(&mut self, is_receiving: bool) {
        self.is_receiving = is_receiving;
    }

    /// Something is not as it should be, which does not end the migration.
    pub fn note_problem(&mut self, problem: &str) {
        problem.clone_into(&mut self.problem);
    }

    /// There was no room for a session. It is not asked for again unless it is used.
    pub fn note_full(&mut self) {
        self.is_full = true;
    }

    /// The port has other sessions than those that were copied: all are copied again.
    pub fn copy_again(&mut self, now_ms: u64) {
        self.copied_ms = None;
        self.pull = None;
        self.is_complete = false;
        self.is_full = false;
        self.next_ms = now_ms;
    }

    /// Sessions could not be judged: all are copied again after a while.
    pub fn copy_later(&mut self, now_ms: u64) {
        self.copy_again(now_ms + COPY_INTERVAL_MS);
    }

    /// When [`Target::tick`] is due.
    pub fn due_ms(&self) -> Option<u64> {
        if !self.is_prepared || (self.is_complete && self.is_open) {
            return None;
        }
        Some(self.pull.map_or(self.next_ms, |pull| self.repeats_ms(&pull)))
    }

    /// When a request is sent again.
    fn repeats_ms(&self, pull: &Pull) -> u64 {
        pull.sent_ms + self.retry_ms(pull.tries)
    }

    fn retry_ms(&self, tries: u32) -> u64 {
        match (self.has_resumed, self.has_given_up) {
            (false, _) => RETRY_MS << tries.min(RETRY_DOUBLINGS),
            (true, false) => FREEZE_RETRY_MS,
            (true, true) => LATE_RETRY_MS,
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.due_ms().is_none() {
            return outputs;
        }
        match self.pull {
            Some(pull) if now_ms >= self.repeats_ms(&pull) => self.repeat(pull, now_ms, &mut outputs),
            Some(_) => {}
            None if now_ms < self.next_ms => {}
            None if self.has_resumed && !self.is_complete => self.begin(now_ms, &mut outputs),
            None if !self.has_resumed && (self.copies() || self.is_receiving) => {
                self.begin(now_ms, &mut outputs);
            }
            None => self.next_ms = now_ms + COPY_INTERVAL_MS,
        }
        self.open(&mut outputs);
        outputs
    }

    /// Sends a request again that was not answered. It keeps its number, so that a late answer counts.
    fn repeat(&mut self, pull: Pull, now_ms: u64, outputs: &mut Vec<Output>) {
        let tries = pull.tries + 1;
        self.pull = Some(Pull { tries, sent_ms: now_ms, ..pull });
        if self.has_resumed && tries >= FREEZE_TRIES && !self.has_given_up {
            self.has_given_up = true;
            "the source does not answer, so what changed there since the last copy is missing"
                .clone_into(&mut self.problem);
        }
        self.send(now_ms, outputs);
    }

    /// Begins a copy: of all sessions, or of those that were used since the last one began.
    fn begin(&mut self, now_ms: u64, outputs: &mut Vec<Output>) {
        let number = self.next_number();
        self.pull = Some(Pull { number, cursor: 0, began_ms: now_ms, sent_ms: now_ms, tries: 0 });
        self.send(now_ms, outputs);
    }

    fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        if self.number == NOTICE {
            self.number += 1;
        }
        self.number
    }

    /// Sends the request that waits for an answer. How long sessions may be idle is counted until now: a copy may take long.
    fn send(&self, now_ms: u64, outputs: &mut Vec<Output>) {
        let Some(Pull { number, cursor, .. }) = self.pull else { return };
        let since = |began_ms: u64| now_ms.saturating_sub(began_ms) / TICK_MS + MARGIN_TICKS;
        let idle_max = match self.copied_ms {
            Some(began_ms) => u32::try_from(since(began_ms)).unwrap_or(u32::MAX),
            None => u32::MAX,
        };
        outputs.push(Output::Send(Request {
            head: Head { migration: self.migration, instance: self.instance, number },
            freeze: self.has_resumed,
            // Without a copy, one answer says that the port is closed.
            cursor: if self.wants_sessions() { cursor } else { u64::MAX },
            idle_max,
        }));
    }

    /// The source has answered.
    pub fn reply(&mut self, reply: Reply, now_ms: u64) -> Vec<Output> {
        if reply.head.number == NOTICE {
            return self.notice(now_ms);
        }
        let mut outputs = Vec::new();
        let Some(mut pull) = self.pull.filter(|pull| pull.number == reply.head.number) else {
            return outputs;
        };
        let Answer::Sessions { frozen, next, copies } = reply.answer else {
            "the source does not know the migration yet".clone_into(&mut self.problem);
            return outputs;
        };
        self.problem.clear();
        self.is_frozen |= frozen && self.has_resumed;
        // The port does not wait for what has changed since the last copy.
        self.open(&mut outputs);
        self.receive(frozen, &mut outputs);
        if !copies.is_empty() && self.wants_sessions() {
            outputs.push(Output::Install(copies));
        }
        match next.filter(|next| *next > pull.cursor && self.wants_sessions()) {
            Some(next) => {
                (pull.number, pull.cursor) = (self.next_number(), next);
                (pull.sent_ms, pull.tries) = (now_ms, 0);
                self.pull = Some(pull);
                self.send(now_ms, &mut outputs);
            }
            None => {
                self.pull = None;
                // An answer that was not asked for sessions is no copy.
                if self.wants_sessions() {
                    self.copied_ms = Some(pull.began_ms);
                }
                self.next_ms = now_ms + COPY_INTERVAL_MS;
                self.is_complete = self.has_resumed && self.is_frozen;
            }
        }
        self.open(&mut outputs);
        self.receive(frozen, &mut outputs);
        outputs
    }

    /// The source has closed its port or opened it again: asks at once.
    fn notice(&mut self, now_ms: u64) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.is_prepared && !self.has_resumed {
            self.begin(now_ms, &mut outputs);
        }
        outputs
    }

    /// Until the guest runs here, follows whether the port of the source is closed.
    fn receive(&mut self, frozen: bool, outputs: &mut Vec<Output>) {
        let receives = frozen && (self.copied_ms.is_some() || !self.copies());
        if !self.has_resumed && receives != self.is_receiving {
            self.is_receiving = receives;
            outputs.push(Output::Receive(receives));
        }
    }

    /// Opens the port if its time has come.
    fn open(&mut self, outputs: &mut Vec<Output>) {
        let has_copies = self.copied_ms.is_some() || !self.copies();
        let may_open = (self.is_frozen && has_copies) || self.has_given_up;
        if self.has_resumed && may_open && !std::mem::replace(&mut self.is_opening, true) {
            outputs.push(Output::Open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_tables::sessions::Flow;

    const INSTANCE: u64 = 5;

    fn target(mode: SessionMode, has_sessions: bool) -> Target {
        let mut target = Target::new(InstanceId::new(INSTANCE), 9, mode, false);
        target.prepare(true, has_sessions);
        target
    }

    fn copy() -> SessionCopy {
        let ends: [std::net::SocketAddr; 2] = ["10.0.0.1:1", "10.0.0.2:2"].map(|end| end.parse().unwrap());
        let flow = Flow { scope: 0, protocol: 6, source: ends[0], destination: ends[1] };
        SessionCopy {
            flow,
            is_egress: true,
            state: 6,
            age: 1,
            idle: 1,
            packets: [1; 2],
            bytes: [1; 2],
            member: 0,
        }
    }

    fn request(outputs: &[Output]) -> Request {
        let found = outputs.iter().find_map(|output| match output {
            Output::Send(request) => Some(*request),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no request in {outputs:?}"))
    }

    fn answer(request: Request, frozen: bool, next: Option<u64>) -> Reply {
        Reply { head: request.head, answer: Answer::Sessions { frozen, next, copies: vec![copy()] } }
    }

    #[test]
    fn sessions_are_copied_before_the_guest_runs_and_what_changed_after_it() {
        let mut target = target(SessionMode::Copy, true);
        assert_eq!(target.phase(), MigrationPhase::Waiting);
        let first = request(&target.tick(0));
        assert_eq!((first.freeze, first.cursor, first.idle_max), (false, 0, u32::MAX));
        let outputs = target.reply(answer(first, false, Some(77)), 1);
        assert_eq!(outputs[0], Output::Install(vec![copy()]));
        let second = request(&outputs);
        assert_eq!(second.cursor, 77);
        assert_eq!(target.phase(), MigrationPhase::Waiting);
        assert_eq!(target.reply(answer(second, false, None), 2), [Output::Install(vec![copy()])]);
        assert_eq!(target.phase(), MigrationPhase::Ready);
        assert_eq!(target.tick(500), []);
        let again = request(&target.tick(1002));
        assert_eq!((again.cursor, again.idle_max), (0, 8 + 16));

        // The guest runs: the answer to the last request comes too late.
        let freeze = request(&target.resume(1003));
        assert!(freeze.freeze && freeze.cursor == 0);
        assert_eq!(target.reply(answer(again, false, None), 1004), []);
        let outputs = target.reply(answer(freeze, true, Some(5)), 1004);
        assert_eq!(
            outputs[..2],
            [Output::Open, Output::Install(vec![copy()])],
            "nothing waits for the changes"
        );
        target.opened(Ok(()));
        assert_eq!(target.phase(), MigrationPhase::Ready, "changes are missing");
        let last = request(&outputs);
        assert!(last.freeze && last.cursor == 5);
        assert_eq!(target.reply(answer(last, true, None), 1005), [Output::Install(vec![copy()])]);
        assert_eq!((target.phase(), target.due_ms()), (MigrationPhase::Switched, None));
        assert_eq!(target.resume(1006), []);
    }

    /// Catches a port that is opened before its sessions have come although the source is there.
    #[test]
    fn a_guest_that_runs_early_waits_for_its_sessions() {
        let mut target = target(SessionMode::Copy, true);
        let freeze = request(&target.resume(0));
        assert_eq!(freeze.idle_max, u32::MAX);
        let outputs = target.reply(answer(freeze, true, Some(5)), 1);
        assert!(!outputs.contains(&Output::Open), "{outputs:?}");
        let outputs = target.reply(answer(request(&outputs), true, None), 2);
        assert!(outputs.contains(&Output::Open), "{outputs:?}");
    }

    #[test]
    fn the_port_is_opened_without_a_source_and_the_source_is_closed_when_it_answers() {
        let mut target = target(SessionMode::Copy, true);
        target.resume(0);
        let mut opened = None;
        for now_ms in 1..1000 {
            let outputs = target.tick(now_ms);
            if outputs.contains(&Output::Open) {
                assert_eq!(opened.replace(now_ms), None, "once");
                target.opened(Ok(()));
            }
        }
        assert_eq!((opened, target.phase()), (Some(180), MigrationPhase::Switched));
        assert!(!target.problem().is_empty());
        let late = request(&target.tick(2000));
        assert!(late.freeze);
        target.reply(answer(late, true, None), 2001);
        assert_eq!((target.due_ms(), target.problem()), (None, ""));
    }

    #[test]
    fn lost_requests_are_repeated_and_late_answers_ignored() {
        let mut target = target(SessionMode::Copy, true);
        let first = request(&target.tick(0));
        assert_eq!(target.tick(199), []);
        for now_ms in [200, 600, 1400, 3000, 6200, 9400] {
            assert_eq!(target.tick(now_ms - 1), []);
            assert_eq!(request(&target.tick(now_ms)), first);
        }
        // The answer to any of them counts, and only once.
        let next = request(&target.reply(answer(first, false, Some(7)), 9401));
        assert_ne!(next.head.number, first.head.number);
        assert_eq!(target.reply(answer(first, false, Some(7)), 9402), []);
        assert_eq!(target.tick(9600), []);
        assert_eq!(request(&target.tick(9601)), next);
        // A source that says the same cursor again ends the copy, so that no loop is endless.
        target.reply(answer(next, false, Some(7)), 9602);
        assert_eq!(target.phase(), MigrationPhase::Ready);
    }

    /// Catches sessions of an interface that was replaced that are not copied to the new one, and a loop without a pause.
    #[test]
    fn sessions_are_copied_again_if_the_port_has_lost_them() {
        let mut target = target(SessionMode::Copy, true);
        let first = request(&target.tick(0));
        target.copy_later(5);
        assert_eq!((target.reply(answer(first, false, None), 6), target.tick(1004)), (vec![], vec![]));
        let all = request(&target.tick(1005));
        target.note_full();
        target.reply(answer(all, false, None), 1006);
        assert_eq!((target.phase(), all.idle_max), (MigrationPhase::Ready, u32::MAX));
        assert!(target.problem().contains("no room"), "it stays");
        let freeze = request(&target.resume(1007));
        target.reply(answer(freeze, true, None), 1008);
        target.opened(Ok(()));
        assert_eq!((target.phase(), target.due_ms()), (MigrationPhase::Switched, None));
        target.copy_again(5000);
        let all = request(&target.tick(5000));
        assert!(all.freeze && all.idle_max == u32::MAX && target.problem().is_empty());
        assert_eq!(target.reply(answer(all, true, None), 5001), [Output::Install(vec![copy()])]);
        assert_eq!(target.phase(), MigrationPhase::Switched);
    }

    #[test]
    fn ports_without_sessions_are_ready_at_once() {
        let modes = [(SessionMode::None, true), (SessionMode::Copy, false), (SessionMode::Reset, false)];
        for (mode, has_sessions) in modes {
            let mut target = target(mode, has_sessions);
            assert_eq!((target.phase(), target.tick(0)), (MigrationPhase::Ready, vec![]));
            let freeze = request(&target.resume(1));
            assert_eq!((freeze.freeze, freeze.cursor), (true, u64::MAX));
            assert_eq!(target.reply(answer(freeze, true, None), 2), [Output::Open]);
            target.opened(Ok(()));
            assert_eq!(target.phase(), MigrationPhase::Switched);
        }
    }

    #[test]
    fn a_port_that_cannot_be_opened_is_tried_again() {
        let mut target = target(SessionMode::None, true);
        let freeze = request(&target.resume(0));
        assert_eq!(target.reply(answer(freeze, true, None), 1), [Output::Open]);
        target.opened(Err("full".to_owned()));
        assert_eq!((target.phase(), target.problem()), (MigrationPhase::Ready, "full"));
        assert_eq!(target.tick(2000), [Output::Open]);
    }

    #[test]
    fn an_agent_that_was_killed_after_the_switch_repeats_the_freeze() {
        let mut target = Target::new(InstanceId::new(INSTANCE), 9, SessionMode::Copy, true);
        target.prepare(true, true);
        let freeze = request(&target.tick(0));
        assert!(freeze.freeze);
        assert_eq!(target.reply(answer(freeze, true, None), 1), [Output::Install(vec![copy()])]);
        assert_eq!(target.phase(), MigrationPhase::Switched);
    }

    /// Catches packets for a stopped guest that are dropped here, a port that stays open though the guest continues at the source,
    /// and a report that the guest runs here while it is stopped.
    #[test]
    fn the_port_receives_while_the_guest_is_stopped_at_the_source() {
        for (mode, copies) in [(SessionMode::Copy, true), (SessionMode::None, false)] {
            let mut target = target(mode, true);
            let notice = |frozen| Reply {
                head: Head { migration: 9, instance: InstanceId::new(INSTANCE), number: NOTICE },
                answer: Answer::Sessions { frozen, next: None, copies: vec![] },
            };
            if copies {
                let first = request(&target.tick(0));
                // Not before all sessions are here.
                let outputs = target.reply(answer(first, true, Some(5)), 1);
                assert!(!outputs.contains(&Output::Receive(true)), "{outputs:?}");
                target.reply(answer(request(&outputs), false, None), 2);
            }
            let asked = request(&target.reply(notice(true), 10));
            assert_eq!((asked.freeze, asked.cursor == u64::MAX), (false, !copies));
            let outputs = target.reply(answer(asked, true, None), 11);
            assert_eq!(outputs[0], Output::Receive(true));
            assert_eq!(outputs.contains(&Output::Install(vec![copy()])), copies);
            assert_eq!((target.phase(), target.has_resumed()), (MigrationPhase::Ready, false));
            // It goes on to ask, in case that a notice is lost.
            let asked = request(&target.tick(11 + COPY_INTERVAL_MS));
            assert!(!target.reply(answer(asked, true, None), 1012).contains(&Output::Receive(true)), "once");
            // The guest continues at the source.
            let late = request(&target.tick(1012 + COPY_INTERVAL_MS));
            let asked = request(&target.reply(notice(false), 2013));
            assert_eq!(target.reply(answer(late, true, None), 2014), [], "an answer of before");
            assert_eq!(target.reply(answer(asked, false, None), 2014)[0], Output::Receive(false));
            // It is stopped again, and runs here.
            let asked = request(&target.reply(notice(true), 2020));
            target.reply(answer(asked, true, None), 2021);
            let freeze = request(&target.resume(2022));
            assert!(freeze.freeze);
            assert_eq!(target.reply(notice(false), 2023), [], "only the guest counts now");
            let outputs = target.reply(answer(freeze, true, None), 2024);
            assert_eq!(outputs[0], Output::Open);
            assert!(!outputs.iter().any(|output| matches!(output, Output::Receive(_))));
            target.opened(Ok(()));
            assert_eq!(target.phase(), MigrationPhase::Switched);
        }
    }

    /// Catches a guest that waits for the list of its connections, and a list of those that were used lately only.
    #[test]
    fn connections_to_reset_are_asked_for_when_the_port_is_open() {
        let mut target = target(SessionMode::Reset, true);
        assert_eq!((target.phase(), target.tick(0)), (MigrationPhase::Ready, vec![]));
        assert_eq!(target.tick(5000), []);
        let freeze = request(&target.resume(5001));
        assert_eq!((freeze.freeze, freeze.cursor, freeze.idle_max), (true, 0, u32::MAX));
        let outputs = target.reply(answer(freeze, true, Some(5)), 5002);
        assert_eq!(outputs[..2], [Output::Open, Output::Install(vec![copy()])]);
        target.opened(Ok(()));
        assert_eq!(target.phase(), MigrationPhase::Ready, "connections are missing");
        let last = request(&outputs);
        assert_eq!((last.cursor, last.idle_max), (5, u32::MAX));
        assert_eq!(target.reply(answer(last, true, None), 5003), [Output::Install(vec![copy()])]);
        assert_eq!((target.phase(), target.due_ms()), (MigrationPhase::Switched, None));
    }

    /// Catches idle connections that are not reset because the guest was stopped before.
    #[test]
    fn after_a_pause_all_connections_are_asked_for() {
        let mut target = target(SessionMode::Reset, true);
        let head = Head { migration: 9, instance: InstanceId::new(INSTANCE), number: NOTICE };
        let notice = Reply { head, answer: Answer::Sessions { frozen: true, next: None, copies: vec![] } };
        let asked = request(&target.reply(notice, 10));
        assert_eq!(target.reply(answer(asked, true, None), 11)[0], Output::Receive(true));
        let freeze = request(&target.resume(2000));
        assert_eq!((freeze.cursor, freeze.idle_max), (0, u32::MAX));
    }

    #[test]
    fn without_the_source_the_port_opens_and_connections_are_reset_later() {
        let mut target = target(SessionMode::Reset, true);
        target.resume(0);
        let opened = (1..1000).find(|now_ms| target.tick(*now_ms).contains(&Output::Open));
        target.opened(Ok(()));
        assert_eq!((opened, target.phase()), (Some(180), MigrationPhase::Switched));
        let late = request(&target.tick(2000));
        assert_eq!(target.reply(answer(late, true, None), 2001), [Output::Install(vec![copy()])]);
        assert_eq!(target.due_ms(), None);
    }
}
