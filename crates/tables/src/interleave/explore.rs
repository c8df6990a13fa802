//! Explores schedules of a writer and readers, one access to table memory at a time: the real code runs, and
//! thousands of orders of its accesses are tried.
//!
//! A scenario is a list of steps for the writer and a list of questions for the readers. The expected answers
//! after each step are found first, without concurrency. A question that is asked while the writer runs must
//! get one of the expected answers from between two steps: the last step that was finished before the
//! question, and the last step that was started before the answer. Unless the scenario permits it, a reader
//! must not get an older answer than it got before.

use super::set_scheduled;
use crate::grace::{Grace, GraceError};
use crate::memory::Memory;
use crate::reader::Reader;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::AtomicU64;
use shuttle::{Config, Runner};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const READERS: usize = 2;
/// Lookups of each reader in a schedule.
const LOOKUPS: usize = 5;
/// Schedules tried by each scheduler.
const SCHEDULES: usize = 1200;
/// Changes of priority within a schedule.
const DEPTH: usize = 4;
const STACK_BYTES: usize = 256 << 10;
const SEED: u64 = 0x51u64 << 56 | 0x1ce;

/// A grace period for readers that shuttle schedules: each reader's word is odd while it looks up. `None`:
/// there are no readers.
#[derive(Clone)]
pub(crate) struct ReaderEpochs(Option<Arc<[AtomicU64; READERS]>>);

impl Grace for ReaderEpochs {
    fn wait(&self) -> Result<(), GraceError> {
        for epoch in self.0.iter().flat_map(|epochs| epochs.iter()) {
            let seen = epoch.load(Ordering::SeqCst);
            while seen % 2 == 1 && epoch.load(Ordering::SeqCst) == seen {
                shuttle::thread::yield_now();
            }
        }
        Ok(())
    }
}

/// The steps of a writer, and the questions that readers ask meanwhile.
pub(crate) struct Scenario<W, A> {
    /// Creates the tables and their writer, before there are readers.
    pub prepare: Box<dyn Fn(ReaderEpochs) -> W + Send + Sync>,
    pub memory: fn(&W) -> &Memory,
    pub steps: Vec<Step<W>>,
    pub questions: Vec<Question<A>>,
    /// While a step is in progress, a reader may get the new answer and then the old one once more.
    pub may_go_back: bool,
}

pub(crate) type Step<W> = Box<dyn Fn(&mut W, &ReaderEpochs) + Send + Sync>;
pub(crate) type Question<A> = Box<dyn Fn(&Reader) -> A + Send + Sync>;

/// Answer to a question; `None` means that the table was busy.
pub(crate) type Answer<A> = Option<A>;

impl<W: 'static, A: Clone + PartialEq + Debug + Send + Sync + 'static> Scenario<W, Answer<A>> {
    /// Tries random schedules, and schedules with few changes of priority.
    pub(crate) fn explore(self) {
        let answers = self.expected_answers();
        let none_is_busy = answers.iter().flatten().all(Option::is_some);
        assert!(none_is_busy && self.steps.len() + 1 == answers.len(), "busy without a writer");
        let expected = Arc::new((self, answers));
        let schedulers: [Box<dyn Scheduler + Send>; 2] = [
            Box::new(RandomScheduler::new_from_seed(SEED, SCHEDULES)),
            Box::new(PctScheduler::new_from_seed(SEED, DEPTH, SCHEDULES)),
        ];
        for scheduler in schedulers {
            let expected = expected.clone();
            let mut config = Config::new();
            config.stack_size = STACK_BYTES;
            let ran = Runner::new(scheduler, config).run(move || run(&expected));
            assert_eq!(ran, SCHEDULES);
        }
    }

    /// The answers to all questions before the first step and after each step.
    fn expected_answers(&self) -> Vec<Vec<Answer<A>>> {
        let mut writer = (self.prepare)(ReaderEpochs(None));
        let reader = Reader::new((self.memory)(&writer).clone());
        let ask = || self.questions.iter().map(|question| question(&reader)).collect();
        let mut answers = vec![ask()];
        for step in &self.steps {
            step(&mut writer, &ReaderEpochs(None));
            answers.push(ask());
        }
        answers
    }
}

/// Numbers of steps that were started and finished. The scheduler does not switch threads between these
/// stores and the accesses next to them.
#[derive(Default)]
struct Progress {
    started: AtomicUsize,
    finished: AtomicUsize,
}

/// A scenario with its expected answers.
type Expected<W, A> = Arc<(Scenario<W, Answer<A>>, Vec<Vec<Answer<A>>>)>;

/// Runs the writer and the readers once, in the schedule that shuttle chooses.
fn run<W: 'static, A: Clone + PartialEq + Debug + Send + Sync + 'static>(expected: &Expected<W, A>) {
    let words = Arc::new([const { AtomicU64::new(0) }; READERS]);
    let epochs = ReaderEpochs(Some(words.clone()));
    let scenario = &expected.0;
    let mut writer = (scenario.prepare)(epochs.clone());
    let memory = (scenario.memory)(&writer).clone();
    let progress = Arc::new(Progress::default());
    set_scheduled(true);
    let readers: Vec<_> = (0..READERS)
        .map(|number| {
            let (expected, words, progress) = (expected.clone(), words.clone(), progress.clone());
            let reader = Reader::new(memory.clone());
            shuttle::thread::spawn(move || read(&expected, &reader, &words[number], number, &progress))
        })
        .collect();
    for (number, step) in scenario.steps.iter().enumerate() {
        progress.started.store(number + 1, Ordering::SeqCst);
        step(&mut writer, &epochs);
        progress.finished.store(number + 1, Ordering::SeqCst);
    }
    for reader in readers {
        reader.join().expect("the reader's panic is shown above");
    }
    set_scheduled(false);
}

fn read<W, A: PartialEq + Debug>(
    expected: &Expected<W, A>,
    reader: &Reader,
    epoch: &AtomicU64,
    number: usize,
    progress: &Progress,
) {
    let (scenario, answers) = &**expected;
    // By question: the oldest state that this reader may still see.
    let mut oldest = vec![0; scenario.questions.len()];
    for lookup in 0..LOOKUPS {
        let which = (lookup + number) % scenario.questions.len();
        epoch.fetch_add(1, Ordering::SeqCst);
        let from = progress.finished.load(Ordering::SeqCst);
        let answer = (scenario.questions[which])(reader);
        let to = progress.started.load(Ordering::SeqCst);
        epoch.fetch_add(1, Ordering::SeqCst);
        if answer.is_none() {
            // Only a change that disturbs each attempt of a lookup makes the table busy.
            assert!(to > from, "busy without a change");
            continue;
        }
        let from = from.max(oldest[which]);
        let state = (from..=to).find(|&state| answers[state][which] == answer);
        let state = state.unwrap_or_else(|| {
            let allowed: Vec<_> = (from..=to).map(|state| &answers[state][which]).collect();
            panic!("question {which}, steps {from} to {to}: {answer:?}, not one of {allowed:?}")
        });
        if !scenario.may_go_back {
            oldest[which] = state;
        }
    }
}

/// Runs a part of a step without switching threads, for what is not to be explored.
pub(crate) fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let was_scheduled = set_scheduled(false);
    let result = work();
    set_scheduled(was_scheduled);
    result
}
