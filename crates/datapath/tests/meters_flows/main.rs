//! Meters and flow statistics as the real eBPF functions keep them, at times
//! that the tests choose. Needs root.

mod flows;
mod meters;
mod queue;
mod rig;
