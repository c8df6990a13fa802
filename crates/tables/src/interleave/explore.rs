//! Explores schedules of a writer and readers, one access to table memory at a
//! time: the code itself runs, and thousands of orders of its accesses are tried.
//!
//! A scenario is a list of steps and a list of questions. The answers after
//! each step are found without any concurrency; beside the writer, an answer
//! must be one of those from after the last step that was finished before the
//! question to after the last one begun before the answer, and, but where a
//! scenario says otherwise, none earlier than one given to the same reader before.

use super::schedule;
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
/// Schedules of each kind.
const SCHEDULES: usize = 1200;
/// Changes of priority within a schedule.
const DEPTH: usize = 4;
const STACK_BYTES: usize = 256 << 10;
const SEED: u64 = 0x51u64 << 56 | 0x1ce;

/// A grace period for readers that shuttle schedules: each reader's word is odd
/// while it looks up. `None`: nobody reads.
#[derive(Clone)]
pub(crate) struct Turns(Option<Arc<[AtomicU64; READERS]>>);

impl Grace for Turns {
    fn wait(&self) -> Result<(), GraceError> {
        for turn in self.0.iter().flat_map(|turns| turns.iter()) {
            let seen = turn.load(Ordering::SeqCst);
            while seen % 2 == 1 && turn.load(Ordering::SeqCst) == seen {
                shuttle::thread::yield_now();
            }
        }
        Ok(())
    }
}

/// What a writer does, one step after the other, and what readers ask.
pub(crate) struct Scenario<W, A> {
    /// Makes the tables, without readers; the writer, and its memory.
    pub prepare: Box<dyn Fn(Turns) -> W + Send + Sync>,
    pub memory: fn(&W) -> &Memory,
    pub steps: Vec<Step<W>>,
    pub questions: Vec<Question<A>>,
    /// While a step is under way a reader may see what it brings and then once
    /// more what was before.
    pub wavers: bool,
}

pub(crate) type Step<W> = Box<dyn Fn(&mut W, &Turns) + Send + Sync>;
pub(crate) type Question<A> = Box<dyn Fn(&Reader) -> A + Send + Sync>;

/// Of a question: `None` is an answer that the table was busy.
pub(crate) type Answer<A> = Option<A>;

impl<W: 'static, A: Clone + PartialEq + Debug + Send + Sync + 'static> Scenario<W, Answer<A>> {
    /// Tries random schedules, and ones with few changes of priority.
    pub(crate) fn explore(self) {
        let answers = self.answers();
        let known = answers.iter().flatten().all(Option::is_some);
        assert!(known && self.steps.len() + 1 == answers.len(), "busy without a writer");
        let it = Arc::new((self, answers));
        let schedulers: [Box<dyn Scheduler + Send>; 2] = [
            Box::new(RandomScheduler::new_from_seed(SEED, SCHEDULES)),
            Box::new(PctScheduler::new_from_seed(SEED, DEPTH, SCHEDULES)),
        ];
        for scheduler in schedulers {
            let it = it.clone();
            let mut config = Config::new();
            config.stack_size = STACK_BYTES;
            let ran = Runner::new(scheduler, config).run(move || run(&it));
            assert_eq!(ran, SCHEDULES);
        }
    }

    /// All answers before the first step and after each.
    fn answers(&self) -> Vec<Vec<Answer<A>>> {
        let mut writer = (self.prepare)(Turns(None));
        let reader = Reader::new((self.memory)(&writer).clone());
        let ask = || self.questions.iter().map(|question| question(&reader)).collect();
        let mut answers = vec![ask()];
        for step in &self.steps {
            step(&mut writer, &Turns(None));
            answers.push(ask());
        }
        answers
    }
}

/// Steps that were begun and finished. Nothing is scheduled between these and
/// the accesses next to them.
#[derive(Default)]
struct Progress {
    started: AtomicUsize,
    finished: AtomicUsize,
}

type Known<W, A> = Arc<(Scenario<W, Answer<A>>, Vec<Vec<Answer<A>>>)>;

fn run<W: 'static, A: Clone + PartialEq + Debug + Send + Sync + 'static>(it: &Known<W, A>) {
    let words = Arc::new([const { AtomicU64::new(0) }; READERS]);
    let turns = Turns(Some(words.clone()));
    let scenario = &it.0;
    let mut writer = (scenario.prepare)(turns.clone());
    let memory = (scenario.memory)(&writer).clone();
    let progress = Arc::new(Progress::default());
    schedule(true);
    let readers: Vec<_> = (0..READERS)
        .map(|number| {
            let (it, words, progress) = (it.clone(), words.clone(), progress.clone());
            let reader = Reader::new(memory.clone());
            shuttle::thread::spawn(move || read(&it, &reader, &words[number], number, &progress))
        })
        .collect();
    for (number, step) in scenario.steps.iter().enumerate() {
        progress.started.store(number + 1, Ordering::SeqCst);
        step(&mut writer, &turns);
        progress.finished.store(number + 1, Ordering::SeqCst);
    }
    for reader in readers {
        reader.join().expect("what the reader saw is above");
    }
    schedule(false);
}

fn read<W, A: PartialEq + Debug>(
    it: &Known<W, A>,
    reader: &Reader,
    turn: &AtomicU64,
    number: usize,
    progress: &Progress,
) {
    let (scenario, answers) = &**it;
    let mut least = vec![0; scenario.questions.len()];
    for lookup in 0..LOOKUPS {
        let which = (lookup + number) % scenario.questions.len();
        turn.fetch_add(1, Ordering::SeqCst);
        let from = progress.finished.load(Ordering::SeqCst);
        let answer = (scenario.questions[which])(reader);
        let to = progress.started.load(Ordering::SeqCst);
        turn.fetch_add(1, Ordering::SeqCst);
        if answer.is_none() {
            // So few changes as these cannot outlast what a lookup retries.
            assert!(to > from, "busy without a change");
            continue;
        }
        let from = from.max(least[which]);
        let state = (from..=to).find(|&state| answers[state][which] == answer);
        let state = state.unwrap_or_else(|| {
            let allowed: Vec<_> = (from..=to).map(|state| &answers[state][which]).collect();
            panic!("question {which}, steps {from} to {to}: {answer:?}, not one of {allowed:?}")
        });
        if !scenario.wavers {
            least[which] = state;
        }
    }
}

/// Something within a step that is no part of what is explored.
pub(crate) fn undisturbed<T>(doing: impl FnOnce() -> T) -> T {
    let was = super::SCHEDULED.replace(false);
    let result = doing();
    schedule(was);
    result
}
