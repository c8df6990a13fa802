#!/bin/sh
# Runs the command of a session (serve.sh): STATE TAG HEX. Prints `TAG O LINE` for a line of its standard output,
# `TAG E LINE` for one of its standard error, and at last `TAG X STATUS`.
state=$1 tag=$2
command=$(printf %s "$3" | xxd -r -p)

label() {
	while IFS= read -r line; do printf '%s %s %s\n' $tag $1 "$line"; done
	if [ -n "$line" ]; then printf '%s %s %s\n' $tag $1 "$line"; fi
}

label O <$state/out &
label E <$state/err &
sh -c "$command" >$state/out 2>$state/err
status=$?
wait
printf '%s X %s\n' $tag $status
