# Shell functions that the scripts of this directory share. Sourced, not run.

# Compiles with clippy-driver in place of rustc: one compilation then gives the lints and the code.
# Otherwise `cargo clippy` would check all dependencies a second time.
lint_while_compiling() {
	driver=$(rustup which clippy-driver 2>/dev/null || command -v clippy-driver) || {
		echo "clippy is not installed; try: rustup component add clippy" >&2
		exit 1
	}
	export RUSTC_WORKSPACE_WRAPPER="$driver"
	# The form in which `cargo clippy -- -D warnings` passes its arguments on.
	export CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"
}

# on_exit COMMAND: runs the command when the script ends, also at a signal, at which dash runs no EXIT trap.
on_exit() {
	trap "$1" EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
}

# stage NAME COMMAND...: runs the command and records how long it took. The exit
# status is the command's.
stage() {
	stage_name=$1
	shift
	stage_begin=$(date +%s)
	echo
	echo "=== $stage_name"
	stage_status=0
	"$@" || stage_status=$?
	echo "$(($(date +%s) - stage_begin)) $stage_name" >>"$STAGES"
	return $stage_status
}

# Prints the recorded time of every stage, and their sum.
print_stages() {
	echo
	echo "time of each stage:"
	awk '{ seconds = $1; total += seconds; $1 = ""; printf "%6d s %s\n", seconds, $0 }
		END { printf "%6d s  together (%d min %d s)\n", total, total / 60, total % 60 }' "$STAGES"
}
