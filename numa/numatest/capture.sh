#!/bin/sh
# Prints the files that numa.Discover reads on this machine, in the compact form of these test trees:
#
#	path = content, with newlines as \n      path -> target of a symbolic link
#
# Files that differ only in a CPU's number and hold the same text share one line: cpu{0-3,8}. Needs sh, awk, grep and find
# (busybox has them all). ROOT=/sysroot captures a tree that lies elsewhere.
cd "${ROOT:-/}" || exit 1

file() { # a file's whole text
	for f; do
		[ -f "$f" ] && [ -r "$f" ] && text=$(cat "$f" 2>/dev/null) || continue
		printf '%s' "$text" | awk -v f="$f" '{ s = s (NR > 1 ? "\\n" : "") $0 } END { print f " = " s }'
	done
}
lines() { # lines PATTERN FILE...: only the lines that match
	pattern=$1
	shift
	for f; do
		[ -r "$f" ] && grep -E "$pattern" "$f" | awk -v f="$f" '{ s = s (NR > 1 ? "\\n" : "") $0 } END { print f " = " s }'
	done
}
link() {
	for f; do [ -L "$f" ] && echo "$f -> $(readlink "$f")"; done
}
ancestors() { # numa_node of a device and of everything above it, and its driver
	d=$(readlink -f "$1") || return
	d=${d#"$PWD"}
	d=${d#/}
	link "$d/driver" | sed 's,-> .*/,-> ,'
	file "$d/current_link_speed" "$d/current_link_width"
	while [ "$d" != sys/devices ] && [ "$d" != . ]; do
		file "$d/numa_node"
		d=$(dirname "$d")
	done
}

{
	awk '/^model name/ && !m { m = $0 } / hypervisor( |$)/ { h = "\\nflags\t\t: hypervisor" }
		END { if (m) print "proc/cpuinfo = " m h }' proc/cpuinfo
	lines '^(MemTotal|MemAvailable):' proc/meminfo
	lines '^(Cpus|Mems)_allowed_list:' proc/self/status
	file proc/self/cgroup proc/sys/kernel/osrelease
	file sys/fs/cgroup/cpuset.cpus.effective sys/fs/cgroup/cpuset/cpuset.effective_cpus
	sed -n 's,^0::,,p; s,^[0-9]*:cpuset:,cpuset,p; s,^[0-9]*:memory:,memory,p' proc/self/cgroup | while read -r g; do
		g=sys/fs/cgroup/${g#/}
		g=${g%/}
		file "$g/cpuset.cpus.effective" "$g/cpuset.effective_cpus" "$g/memory.max" "$g/memory.current"
		file "$g/memory.limit_in_bytes" "$g/memory.usage_in_bytes"
	done
	s=sys/devices/system
	file $s/cpu/online $s/cpu/isolated $s/cpu/nohz_full
	for c in $s/cpu/cpu[0-9]*; do
		file $c/topology/physical_package_id $c/topology/core_id $c/topology/thread_siblings_list $c/cpufreq/scaling_governor
		for i in $c/cache/index[0-9]*; do
			case $(cat "$i/level") in [23]) file $i/level $i/size $i/shared_cpu_list ;; esac
		done
	done
	file $s/node/online
	for n in $s/node/node[0-9]*; do
		file $n/cpulist $n/distance $n/hugepages/*/nr_hugepages $n/hugepages/*/free_hugepages
		lines '(MemTotal|MemFree):' $n/meminfo
	done
	[ -d $s/node ] || file sys/kernel/mm/hugepages/*/nr_hugepages sys/kernel/mm/hugepages/*/free_hugepages
	file sys/kernel/mm/transparent_hugepage/enabled sys/kernel/mm/transparent_hugepage/shmem_enabled
	for n in sys/class/net/*; do
		link "$n"
		r=$(readlink -f "$n") || continue
		r=${r#"$PWD"}
		r=${r#/}
		link "$r/device"
		file "$r/speed" "$r/mtu" "$r/operstate"
		[ -e "$r/device" ] && ancestors "$r/device"
	done
	for d in sys/class/infiniband/*; do
		link "$d"
		r=$(readlink -f "$d") || continue
		r=${r#"$PWD"}
		r=${r#/}
		link "$r/device"
		[ -e "$r/device" ] && ancestors "$r/device"
		file "$r/parent" "$r/node_guid"
		for p in "$r"/ports/*; do
			file "$p/state" "$p/link_layer" "$p/rate"
			grep -L '^0000:0000:0000:0000:0000:0000:0000:0000$' "$p"/gids/* 2>/dev/null | while read -r g; do
				i=$(basename "$g")
				file "$g" "$p/gid_attrs/types/$i" "$p/gid_attrs/ndevs/$i"
			done
		done
	done
	for u in sys/class/infiniband_verbs/uverbs*; do
		link "$u"
		r=$(readlink -f "$u") || continue
		r=${r#"$PWD"}
		file "${r#/}/ibdev"
	done
} | awk '
# Folds lines that differ in "/cpuN/" alone; the numbers come in ascending order of first sight, then are sorted.
{
	if (!match($0, /\/cpu[0-9]+\//)) { order[++n] = $0; next }
	id = substr($0, RSTART + 4, RLENGTH - 5)
	key = substr($0, 1, RSTART + 3) "{}" substr($0, RSTART + RLENGTH - 1)
	if (!(key in ids)) order[++n] = key
	ids[key] = ids[key] " " id
}
function list(s,   a, k, i, j, t, out) {
	k = split(s, a, " ")
	for (i = 2; i <= k; i++) { t = a[i]; for (j = i - 1; j > 0 && a[j] + 0 > t + 0; j--) a[j + 1] = a[j]; a[j + 1] = t }
	for (i = 1; i <= k; i = j + 1) {
		for (j = i; j < k && a[j + 1] == a[j] + 1; j++);
		out = out (out == "" ? "" : ",") a[i] (j > i ? "-" a[j] : "")
	}
	return out
}
END {
	for (i = 1; i <= n; i++) {
		l = order[i]
		if (l in ids) { p = index(l, "{}"); l = substr(l, 1, p) list(ids[l]) substr(l, p + 1) }
		if (!seen[l]++) print l
	}
}'
