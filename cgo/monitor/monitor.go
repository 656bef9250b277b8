// Package monitor lets the Go runtime's monitor thread sleep longer in a program that imports it.
//
// While goroutines are in C, as lanes and workers mostly are, the monitor thread wakes every 20 µs and takes a processor from them.
// With a timer slack of 500 µs (prctl(2), PR_SET_TIMERSLACK) it wakes that much later. Then a goroutine may wait as much longer for
// the processor of one that blocks in C or in the kernel. The few threads that start before the program's packages are initialized
// have that slack, too. All others, and child processes, have the slack with which the process began.
package monitor

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -DSLACK_NS=500000UL
import "C"

import "golang.org/x/sys/unix"

// init runs on the first thread of the process, from which others inherit. 0 stands for the slack with which it began.
func init() {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0); err != nil {
		panic(err)
	}
}
