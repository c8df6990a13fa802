// SPDX-License-Identifier: Apache-2.0
/*
 * Connects libFuzzer with one target of the library of fuzz/decoders. scripts/fuzz.sh
 * compiles it once for each target, with its number as TARGET.
 */
#include <stddef.h>
#include <stdint.h>

void sluice_fuzz_run(size_t target, const uint8_t *data, size_t size);
void sluice_fuzz_write_seeds(size_t target);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	sluice_fuzz_write_seeds(TARGET);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* There may be no bytes, and then no pointer to them. */
	sluice_fuzz_run(TARGET, size ? data : (const uint8_t *)"", size);
	return 0;
}
