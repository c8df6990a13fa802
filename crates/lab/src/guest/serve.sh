#!/bin/sh
# Runs what the lab sends over one channel, a port of virtio-serial: `# TAG HEX` begins a session that runs a command of the
# shell, in hexadecimal digits; `I TEXT` is a line of its standard input, and `.` the end of that. A session ends when the
# lab closes the channel, and with it its command. Lines of output begin with the session's tag: the next session could
# otherwise take them for its own.
channel=$1 state=/run/${1##*/}
mkdir -p $state
session=

end() {
	exec 4>&-
	if [ -n "$session" ]; then kill -KILL -$session 2>/dev/null; fi
	session=
}

begin() {
	rm -f $state/*
	mkfifo $state/in $state/out $state/err
	# Open for reading as well, so that neither this shell nor the command waits for the other one.
	exec 4<>$state/in 5<$state/in
	# By its path, because busybox would run its own.
	setsid /bin/sh /guest/run $state $1 $2 <&5 >&3 3<&- 4>&- 5<&- &
	session=$!
	exec 5<&-
}

# A port can be open once.
exec 3<>$channel
while :; do
	if ! IFS= read -r line <&3; then
		end
		# The lab has no session at this channel.
		sleep 0.1
		continue
	fi
	case $line in
	'# '*)
		end
		begin ${line#??}
		;;
	'I '*) printf '%s\n' "${line#??}" >&4 ;;
	.) exec 4>&- ;;
	esac
done
