# The environment has $interface, which is not the first one. Its addresses get a table of routes of their own: the default
# routes of the main table are those of the first interface.
table=$((100 + ${interface#eth}))
for family in 4 6; do
	via=$(ip -$family -o route show default dev $interface | sed -n 's/.* via \([^ ]*\).*/\1/p' | head -n 1)
	if [ -z "$via" ]; then continue; fi
	for prefix in $(ip -$family -o route show dev $interface scope link | awk '$1 ~ "/" { print $1 }'); do
		ip -$family route replace $prefix dev $interface table $table
	done
	ip -$family route replace default via $via dev $interface table $table
	for address in $(ip -$family -o addr show dev $interface scope global | awk '{ print $4 }'); do
		ip -$family rule del from ${address%/*} 2>/dev/null || true
		ip -$family rule add from ${address%/*} lookup $table
	done
done
