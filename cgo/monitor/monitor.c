#include <sys/prctl.h>

/* Runs before the Go runtime starts its monitor thread, which inherits the slack. */
__attribute__((constructor)) static void begin(void)
{
	prctl(PR_SET_TIMERSLACK, SLACK_NS);
}
