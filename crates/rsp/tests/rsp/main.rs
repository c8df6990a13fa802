//! Tests of RSP through its public interface: packets made by a `Sealer` and opened by an `Opener`, and
//! packets that were changed, forged or replayed in between.

mod codec;
mod hostile;
mod make;
mod replay;
mod rotation;
mod secrecy;
mod spec;
