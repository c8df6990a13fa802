//! Runs the packets' C and the agent in many orders of their accesses to memory, chosen by a scheduler that can switch before
//! each of them. Only sequentially consistent orders are tried: that loads keep their order is guaranteed by the processor.

use super::set_hook;
use crate::grace::{Grace, GraceError};
use shuttle::scheduler::Scheduler;
use shuttle::{Config, Runner, thread};
use sluice_tables_testing as testing;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TASKS: usize = 4;

shuttle::thread_local! {
    /// By task: number of accesses of its packets before the one at which a packet stands still, and for how many switches.
    static PAUSE: Cell<Option<(u64, u64)>> = Cell::new(None);
}

thread_local! {
    /// The variable that tasks access to let the scheduler switch; a new one for each schedule.
    static SWITCH: RefCell<Option<Arc<shuttle::sync::atomic::AtomicU32>>> = const { RefCell::new(None) };
}

/// Lets the next packet of this task stand still before access number `accesses`, while other tasks go on.
pub(crate) fn pause_packet_at(accesses: u64, switches: u64) {
    PAUSE.with(|pause| pause.set(Some((accesses, switches))));
}

/// Called before each access of a packet.
fn before_packet_access() {
    let_switch();
    match PAUSE.with(Cell::get) {
        None => {}
        Some((0, switches)) => {
            PAUSE.with(|pause| pause.set(None));
            pause(switches);
        }
        Some((left, switches)) => PAUSE.with(|pause| pause.set(Some((left - 1, switches)))),
    }
}

/// Lets the scheduler switch.
fn let_switch() {
    let switch = SWITCH.with_borrow(Clone::clone);
    if let Some(switch) = switch {
        switch.load(shuttle::sync::atomic::Ordering::SeqCst);
    }
}

/// Lets the scheduler switch this many times.
pub(crate) fn pause(switches: u64) {
    (0..switches).for_each(|_| let_switch());
}

/// By task: odd while the task runs a packet program. The kernel knows this by RCU.
#[derive(Default)]
pub(crate) struct Programs([AtomicU64; TASKS]);

impl Programs {
    /// Runs a packet program in a task.
    pub(crate) fn run(&self, task: usize, program: impl FnOnce()) {
        self.0[task].fetch_add(1, Ordering::SeqCst);
        program();
        self.0[task].fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits for the programs that are running when the wait begins.
pub(crate) struct ProgramGrace(pub(crate) Arc<Programs>);

impl Grace for ProgramGrace {
    fn wait(&self) -> Result<(), GraceError> {
        let seen: Vec<u64> = self.0.0.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        for (count, seen) in self.0.0.iter().zip(seen) {
            while seen % 2 == 1 && count.load(Ordering::SeqCst) == seen {
                thread::yield_now();
            }
        }
        Ok(())
    }
}

/// What a task does with the tables.
pub(crate) type Task<T> = Box<dyn FnOnce(&T) + Send>;

/// Runs `tasks` in one schedule; the scheduler can switch before each access.
pub(crate) fn explore<T: Send + Sync + 'static>(tables: &Arc<T>, tasks: Vec<Task<T>>) {
    SWITCH.set(Some(Arc::default()));
    testing::set_hook(Some(before_packet_access));
    set_hook(Some(let_switch));
    let tasks: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let tables = Arc::clone(tables);
            thread::spawn(move || task(&tables))
        })
        .collect();
    for task in tasks {
        task.join().unwrap();
    }
    testing::set_hook(None);
    set_hook(None);
    SWITCH.set(None);
}

/// Runs schedules of this scheduler.
pub(crate) fn run(scheduler: impl Scheduler + 'static, schedule: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(schedule);
}
