//! The fuzz targets as a library for `fuzz/decoders/driver.c`, which libFuzzer calls.

use sluice_fuzz_decoders::TARGETS;

/// Runs the target with this number on an input of `size` bytes at `data`. A panic ends the process, since it must
/// not unwind into C.
///
/// # Safety
/// `data` must be readable for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_fuzz_run(target: usize, data: *const u8, size: usize) {
    // SAFETY: the caller promises that these bytes are readable; libFuzzer passes no null pointer.
    let input = unsafe { std::slice::from_raw_parts(data, size) };
    (TARGETS[target].run)(input);
}

/// Writes the seeds of the target with this number to the directory that the environment variable
/// `SLUICE_FUZZ_CORPUS` names. Panics if that fails.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fuzz_write_seeds(target: usize) {
    let Some(dir) = std::env::var_os("SLUICE_FUZZ_CORPUS").map(std::path::PathBuf::from) else { return };
    for (number, seed) in (TARGETS[target].seeds)().iter().enumerate() {
        std::fs::write(dir.join(format!("seed-{number}")), seed).expect("a seed can be written");
    }
}
