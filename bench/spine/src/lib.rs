//! What `make bench-spine` measures, and the rig on which other benches run the gateway's program.
#![forbid(unsafe_code)]

pub mod contender;
pub mod cores;
pub mod digests;
pub mod forward;
pub mod gateway;
pub mod lab;
pub mod minimal;
pub mod ns;
pub mod ovs;
pub mod packet;
pub mod peers;
pub mod programming;
pub mod rig;
pub mod stages;
pub mod tcp;
pub mod vswitch;
