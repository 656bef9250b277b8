/*
 * Passive peers. A hello is not used before it has named a queue pair and proven that it knows the cookie. brake.c limits the
 * connections of one address that end without a peer.
 */
#include "tcp.h"

#include <errno.h>
#include <unistd.h>

static bool welcome(struct rwb_door *door, struct rwb_half *half, uint64_t now)
{
	return tcp_count_connection((struct tcp_device *)door, &half->from, now);
}

static int greet(struct rwb_half *half)
{
	const struct tcp_hello *hello = (const struct tcp_hello *)half->hello;
	ssize_t n = read(half->fd, half->hello + half->have, sizeof *hello - half->have);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		return -1;
	half->have += n > 0 ? (uint32_t)n : 0;
	if (half->have < sizeof *hello)
		return 0;
	return tcp_hello_valid(hello) && hello->kind == TCP_HELLO_REQUEST ? 1 : -1;
}

static bool calls(const struct rwb_half *half, struct rwb_qp *base)
{
	const struct tcp_hello *hello = (const struct tcp_hello *)half->hello;

	return hello->to_qp == base->head.num && tcp_hello_proven(hello, ((struct tcp_qp *)base)->cookie);
}

/* Answers the hello and gives the connection to the queue pair's owner. */
static bool admit(struct rwb_qp *base, struct rwb_half *half)
{
	const struct tcp_hello *hello = (const struct tcp_hello *)half->hello;
	struct tcp_qp *qp = (struct tcp_qp *)base;
	struct tcp_hello reply = {
		.kind = TCP_HELLO_ACCEPT, .to_qp = hello->from_qp, .from_qp = base->head.num, .window = qp->dev->window};

	if (hello->from_qp != qp->peer.qp_num)
		return false;
	reply.posted = atomic_load(&qp->base.recv_posted);
	tcp_hello_seal(&reply, qp->peer.cookie);
	if (send(half->fd, &reply, sizeof reply, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof reply)
		return false;
	qp->out.window = hello->window;
	qp->out.peer_posted = hello->posted;
	qp->in.announced_posted = reply.posted;
	atomic_store_explicit(&qp->arrived_fd, half->fd, memory_order_release);
	atomic_store(&base->head.state, RWF_QPS_RTS);
	rwb_raise(base, RWF_EVENT_QP_ESTABLISHED);
	rwb_notify(base->head.cq->wake_fd);
	tcp_uncount_connection(qp->dev, &half->from);
	return true;
}

static void hang_up(struct rwb_half *half)
{
	close(half->fd);
}

static uint64_t update(struct rwb_door *door, uint64_t now, uint64_t until)
{
	return tcp_update_filter((struct tcp_device *)door, now, until);
}

const struct rwb_door_ops tcp_door_ops = {welcome, greet, calls, admit, hang_up, update};
