//! A node's forwarding tables: memory that the control side writes and the
//! packet side reads, in the layout of `bpf/include/cells.h`.
pub mod drops;
pub mod layout;

mod error;
mod grace;
mod memory;
mod pool;

pub use error::Error;
pub use grace::{Grace, GraceError, Immediate, Membarrier};
pub use memory::Memory;
