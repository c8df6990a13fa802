//! RSP from outside: packets made by a [`Sealer`] and opened by an [`Opener`],
//! and what happens to those that were not.

mod codec;
mod hostile;
mod make;
mod replay;
mod rotation;
mod secrecy;
mod spec;
