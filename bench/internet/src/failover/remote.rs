//! The remote endpoints: the program `stamp` on an interface of a network namespace. It changes with how they are attached.

use crate::rig::load_programs;
use nix::sched::{CloneFlags, setns};
use sluice_bench_report::shell::Failure;
use sluice_bench_spine::rig::{link_field, program};
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// The attached program. It is detached when this is dropped.
pub struct Remote {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    /// Attaches the program to `interface` of one namespace, whose packets come from `peer` of another one.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn start(
        (namespace, interface): (&Path, &'static str),
        (peers, peer): (&Path, &'static str),
    ) -> Result<Self, Failure> {
        let (stop, stopped) = channel::<()>();
        let (answered, answer) = channel();
        // A veth interface receives what a program sends only if it has a program itself.
        let places = [(File::open(namespace)?, interface, "stamp"), (File::open(peers)?, peer, "pass")];
        let thread = std::thread::spawn(move || {
            let attached = || -> Result<_, Failure> {
                let object = load_programs(1)?;
                let mut links = Vec::new();
                for (namespace, interface, name) in places {
                    setns(namespace, CloneFlags::CLONE_NEWNET)?;
                    links.push(
                        program(&object, name)?.attach_xdp(link_field(interface, "ifindex")?.parse()?)?,
                    );
                }
                Ok((object, links))
            };
            let attached = attached().map_err(|error| format!("attach the remote endpoints: {error}"));
            let (programs, outcome) = match attached {
                Ok(programs) => (Some(programs), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // Neither fails before the other side has ended.
            let _ = answered.send(outcome);
            let _ = stopped.recv();
            drop(programs);
        });
        let remote = Self { stop: Some(stop), thread: Some(thread) };
        answer.recv().map_err(|_| "the thread of the remote endpoints panicked")??;
        Ok(remote)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Nothing follows that could be reported.
            let _ = thread.join();
        }
    }
}
