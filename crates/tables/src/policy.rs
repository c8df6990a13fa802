//! Policies: what the security groups of a port permit. `docs/decisions/policies.md` explains the structure, and
//! `struct policy` of `cells.h` is its layout.
//!
//! ```text
//!   Policy ----- compile.rs ----> Compiled: prefixes with service sets ----- store.rs ----> cells
//!   rules.rs                      (pure, bounded)                                             |
//!                                                                      evaluate.rs, policy.h <+
//! ```

mod compile;
mod evaluate;
mod rules;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use compile::{Compiled, compile};
pub(crate) use evaluate::evaluate;
pub use rules::{AddressFamily, Direction, Policy, PolicyPacket, Remote, Rule, Service, Verdict};
pub(crate) use store::{adopt, cells_used, head, is_policy, read, retire, write};
