//! What `make bench-spine` measures, and the rig that other benches put the gateway's program on.
#![forbid(unsafe_code)]

pub mod forward;
pub mod gateway;
pub mod packet;
pub mod peers;
pub mod programming;
pub mod rig;
pub mod tcp;
