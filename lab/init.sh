#!/bin/busybox sh
# Process 1 of a guest: mounts the host's root, then runs what the host asks for on a virtio port.
#
#   host to guest   run N    run $shared/N.cmd in the host's root, its output to $shared/N.out
#                   kill N   kill it and all it started
#   guest to host   ready
#                   exit N STATUS
/bin/busybox --install -s /bin
export PATH=/bin
root=/host
shared=$root/run/lab

fail() {
	echo "lab: cannot $*"
	poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
	insmod $module || fail "load $module"
done

mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 root $root || fail "mount the host's root"
mount -t proc proc $root/proc
mount -t sysfs sys $root/sys
mount -t devtmpfs dev $root/dev
mount -t tmpfs -o mode=1777 tmp $root/tmp
mount -t tmpfs -o mode=755 run $root/run
mkdir -p $shared $root/run/host $root/run/jobs /dev/pts /dev/shm /dev/hugepages
mount --bind $root $root/run/host
mount -t devpts pts $root/dev/pts
mount -t tmpfs -o mode=1777 shm $root/dev/shm
mount -t hugetlbfs huge $root/dev/hugepages
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=262144 lab $shared || fail "mount the shared directory"

job() {
	setsid sh -c "echo \$\$ >$root/run/jobs/$1; cd /; exec chroot $root /usr/bin/env -i HOME=/tmp TERM=linux \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/sh /run/lab/$1.cmd" \
		</dev/null >$shared/$1.out 2>&1 3>&-
	echo "exit $1 $?" >&3
}

exec 3<>$(echo /dev/vport*p1)
echo ready >&3
while read -r verb n <&3; do
	case $verb in
	run) job $n & ;;
	kill)
		until [ -s $root/run/jobs/$n ]; do sleep 0.05; done
		kill -9 -$(cat $root/run/jobs/$n)
		;;
	esac
done
poweroff -f
