//! A side of a comparison, in its own network namespace and on its own thread, so that several can be set up at
//! once and take turns. It changes with how turns are taken.

use sluice_bench_report::shell::Failure;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::spawn;

/// The core on which all contenders run, one at a time, with the generator and the sink.
pub const FORWARDS: usize = 1;
/// The core for everything else.
pub const OTHERS: usize = 0;

/// What a contender measures in a turn.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// Millions of packets a second that come back, over so many seconds.
    Mpps(f64),
    /// Nanoseconds of the program for a packet, as the mean of so many packets.
    Nanoseconds(u32),
}

/// The thread's end of the channels. `Request` says what is measured in a turn.
pub struct Turns<Request = Turn> {
    requests: Receiver<Request>,
    answers: Sender<Result<f64, String>>,
}

impl<Request> Turns<Request> {
    /// Answers requests until the contender is dropped.
    ///
    /// # Errors
    /// Never; the type is that of a contender's work.
    pub fn serve(&self, mut measure: impl FnMut(Request) -> Result<f64, Failure>) -> Result<(), Failure> {
        // The first answer says that the contender is ready. A send fails if the other side has ended.
        let mut is_open = self.answers.send(Ok(0.0)).is_ok();
        while let (true, Ok(turn)) = (is_open, self.requests.recv()) {
            is_open = self.answers.send(measure(turn).map_err(|error| error.to_string())).is_ok();
        }
        Ok(())
    }
}

/// A side that is set up. Its namespace ends when it is dropped.
pub struct Contender<Request = Turn> {
    name: &'static str,
    requests: Option<Sender<Request>>,
    answers: Receiver<Result<f64, String>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl<Request> Drop for Contender<Request> {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported as the error of a turn.
            let _ = thread.join();
        }
    }
}

impl<Request: Send + 'static> Contender<Request> {
    /// Runs `work` on a new thread in a new network namespace, until it calls [`Turns::serve`].
    ///
    /// # Errors
    /// Errors of `work` before that.
    pub fn start(
        name: &'static str,
        work: impl FnOnce(&Turns<Request>) -> Result<(), Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let (requests, requested) = channel();
        let (answered, answers) = channel();
        let turns = Turns { requests: requested, answers: answered };
        let thread = spawn(move || {
            let all = || -> Result<(), Failure> {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
                sluice_bench_report::stay_on(FORWARDS)?;
                work(&turns)
            };
            if let Err(error) = all() {
                // A send fails only if the other side has ended.
                let _ = turns.answers.send(Err(error.to_string()));
            }
        });
        let contender = Self { name, requests: Some(requests), answers, thread: Some(thread) };
        contender.answer()?;
        Ok(contender)
    }

    /// Takes a turn.
    ///
    /// # Errors
    /// Errors of the measurement.
    pub fn measure(&self, turn: Request) -> Result<f64, Failure> {
        if let Some(requests) = &self.requests {
            // If the thread has ended, there is no answer either.
            let _ = requests.send(turn);
        }
        self.answer()
    }

    fn answer(&self) -> Result<f64, Failure> {
        let answer = self.answers.recv().map_err(|_| format!("{}: its thread panicked", self.name))?;
        answer.map_err(|error| format!("{}: {error}", self.name).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a contender whose error or panic would make the other side wait for ever. Needs root.
    #[test]
    fn turns_are_answered_and_errors_have_the_contenders_name() {
        let turn = Turn::Mpps(0.5);
        let twice = Contender::start("twice", |turns| {
            turns.serve(|turn| match turn {
                Turn::Mpps(seconds) => Ok(2.0 * seconds),
                _ => Err("not this one".into()),
            })
        });
        let twice = twice.unwrap();
        assert_eq!(twice.measure(turn).unwrap(), 1.0);
        let error = twice.measure(Turn::Nanoseconds(1)).unwrap_err().to_string();
        assert_eq!(error, "twice: not this one");
        assert_eq!(twice.measure(turn).unwrap(), 1.0);
        let failed = Contender::<Turn>::start("broken", |_| Err("no interface".into())).err().unwrap();
        assert_eq!(failed.to_string(), "broken: no interface");
        let panicked = Contender::start("mad", |turns| turns.serve(|_| panic!("on purpose"))).unwrap();
        assert!(panicked.measure(turn).unwrap_err().to_string().contains("panicked"));
    }
}
