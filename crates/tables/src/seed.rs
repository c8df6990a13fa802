//! Random seeds for the hashes of tables.

use crate::error::Error;

/// Returns 64 random bits from the kernel.
///
/// # Errors
/// [`Error::Invalid`] if the kernel has no random numbers.
pub(crate) fn random_seed() -> Result<u64, Error> {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes at most `bytes.len()` bytes to `bytes`, which outlives the call.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        let error = std::io::Error::last_os_error();
        return Err(Error::Invalid(format!("the kernel returned no random seed for the tables: {error}")));
    }
    Ok(u64::from_ne_bytes(bytes))
}
