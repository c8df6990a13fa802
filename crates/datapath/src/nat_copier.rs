//! Installs sessions of source NAT that other gateways describe, by the program `nat_copy` of gateways.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sluice_tables::layout::{self, nat_copy};

use crate::{Error, sys};

/// Size of a session for the program.
const COPY_BYTES: usize = size_of::<nat_copy>();

const _: () = assert!(COPY_BYTES == 64, "struct nat_copy has padding, or has changed: adapt this number");

/// Runs the program. There is one of these at a time, because the program has one memory for each processor.
#[derive(Debug)]
pub struct NatCopier {
    program: OwnedFd,
}

impl NatCopier {
    pub(crate) fn new(program: BorrowedFd<'_>) -> Result<Self, Error> {
        let program = program.try_clone_to_owned();
        program.map(|program| Self { program }).map_err(Error::system("keep the program nat_copy"))
    }

    /// Installs sessions in their order, and stores the answers in them. Packets run meanwhile, and rounds of the agent may.
    ///
    /// # Errors
    /// If the kernel does not run the program. Some of the sessions may be installed then.
    pub fn install(&mut self, copies: &mut [nat_copy]) -> Result<(), Error> {
        for batch in copies.chunks_mut(layout::NAT_COPIES_MAX as usize) {
            sys::test_run(self.program.as_fd(), as_bytes(batch))
                .map_err(Error::system("run the program nat_copy"))?;
        }
        Ok(())
    }
}

fn as_bytes(copies: &mut [nat_copy]) -> &mut [u8] {
    let length = size_of_val(copies);
    // SAFETY: the bytes are those of the slice, which is borrowed as long. The structures consist of integers without padding (their
    // size is asserted above), so all bytes are initialized, and all values of them are valid.
    unsafe { std::slice::from_raw_parts_mut(copies.as_mut_ptr().cast::<u8>(), length) }
}
