/*
 * Frames in. The entries are read into a small buffer and checked, and their payloads are read straight into registered
 * memory. The last piece of that read is the buffer again, so that the next frame's entries come with it. Payload that
 * lands in the buffer is copied from there.
 */
#include "tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { READS_PER_CALL = 4 };

static uint32_t buffered(const struct tcp_qp *qp)
{
	return qp->in.buf_len - qp->in.buf_at;
}

/* Returns the status to refuse an entry of the present frame with. Success: it may be placed now. */
static enum rwf_wc_status judge(struct tcp_qp *qp, uint32_t index)
{
	const struct tcp_entry *e = &qp->in.entries[index];

	if (index == qp->in.refused)
		return qp->in.refusal;
	if (e->length && !rwb_mr_allows(&qp->base.head, e->rkey, e->raddr, e->length, RWF_ACCESS_REMOTE_WRITE))
		return RWF_WC_REM_ACCESS_ERR;
	return RWF_WC_SUCCESS;
}

/* Refuses the present message. Those before it were placed. The peer gets its number, and both queue pairs fail. */
static void refuse(struct tcp_qp *qp, enum rwf_wc_status status)
{
	qp->in.nak = status;
	tcp_transmit(qp);
}

/* Counts n bytes as placed into the present entry, and finishes it when it is full. */
static void placed(struct tcp_qp *qp, uint32_t n)
{
	const struct tcp_entry *e = &qp->in.entries[qp->in.entry];

	qp->in.placed += n;
	qp->in.done += n;
	if (qp->in.done < e->length)
		return;
	qp->in.data_due = qp->in.unanswered = true;
	qp->in.done = 0;
	qp->in.entry++;
	qp->in.message_bytes += e->length;
	if (e->flags & TCP_ENTRY_SOLICITED)
		qp->in.solicited = qp->cq->solicited = true;
	if (!(e->flags & TCP_ENTRY_LAST))
		return;
	if (e->flags & TCP_ENTRY_IMM &&
	    !rwb_complete_receive(&qp->cq->base, &qp->base,
				  (struct rwf_wc){.byte_len = (uint32_t)qp->in.message_bytes, .imm = e->imm}))
		tcp_cq_overran(qp);
	qp->in.seq++;
	qp->in.message_bytes = 0;
}

/* Places the part of the present frame that lies in the buffer. Returns true when the frame is complete. */
static bool place_buffered(struct tcp_qp *qp)
{
	while (qp->in.entry < qp->in.count && qp->base.head.state == RWF_QPS_RTS) {
		const struct tcp_entry *e = &qp->in.entries[qp->in.entry];
		uint32_t n = e->length - qp->in.done;
		enum rwf_wc_status status = judge(qp, qp->in.entry);

		if (status) {
			refuse(qp, status);
			return false;
		}
		if (n > buffered(qp))
			n = buffered(qp);
		if (n == 0 && e->length)
			return false;
		if (n)
			memcpy((void *)(uintptr_t)(e->raddr + qp->in.done), qp->in.buf + qp->in.buf_at, n);
		qp->in.buf_at += n;
		placed(qp, n);
	}
	return qp->base.head.state == RWF_QPS_RTS;
}

static bool take_head(struct tcp_qp *qp, const struct tcp_head *head)
{
	/* Totals never decrease, nor exceed the bytes that were sent or the receives that can be posted at once. */
	if (head->placed < qp->out.peer_placed || head->placed > qp->out.total || head->posted - qp->out.peer_posted > TCP_MAX_WR ||
	    head->posted - qp->out.imm_sent > TCP_MAX_WR)
		return false;
	tcp_acknowledged(qp, head->placed, head->posted);
	return true;
}

/* Decodes the entry table, and finds the first entry that no posted receive is left for. */
static bool take_entries(struct tcp_qp *qp, const struct tcp_head *head, const uint8_t *table)
{
	uint32_t receives = atomic_load_explicit(&qp->base.recv_posted, memory_order_relaxed) - qp->base.received, seq = qp->in.seq;
	uint64_t bytes = qp->in.message_bytes;

	qp->in.entry = qp->in.done = 0;
	qp->in.count = qp->in.refused = head->count;
	memcpy(qp->in.entries, table, head->count * sizeof *qp->in.entries);
	for (uint32_t i = 0; i < head->count; i++) {
		struct tcp_entry *e = &qp->in.entries[i];

		if (!tcp_entry_valid(e) || e->seq != seq)
			return false;
		bytes += e->length;
		if (bytes > UINT32_MAX)
			return false;
		if (e->flags & TCP_ENTRY_LAST) {
			if (qp->in.imm_only && !(e->flags & TCP_ENTRY_IMM))
				return false;
			bytes = 0;
			seq++;
		}
		if (e->flags & TCP_ENTRY_IMM && receives-- == 0 && qp->in.refused == head->count) {
			qp->in.refused = i;
			qp->in.refusal = RWF_WC_REM_INV_REQ_ERR;
		}
	}
	return true;
}

/* The peer refused a message. The frame's head has acknowledged those before it, so it is the oldest outstanding. */
static bool take_nak(struct tcp_qp *qp, const uint8_t *table)
{
	struct tcp_entry e;

	memcpy(&e, table, sizeof e);
	if (!tcp_entry_valid(&e) || qp->base.acked == qp->base.sends.posted || e.seq != (uint32_t)qp->base.acked)
		return false;
	tcp_qp_error(qp, e.imm == RWF_WC_REM_ACCESS_ERR ? RWF_WC_REM_ACCESS_ERR : RWF_WC_REM_INV_REQ_ERR);
	return true;
}

/* Reports whether a frame ends a message, or is as large as one that does not. */
static bool carries(const struct tcp_qp *qp)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < qp->in.count; i++) {
		if (qp->in.entries[i].flags & TCP_ENTRY_LAST)
			return true;
		bytes += qp->in.entries[i].length;
	}
	return bytes >= TCP_LEAST_FRAGMENT;
}

/*
 * Counts a frame that carries neither a message nor receives, unless it may answer a frame of ours, because other empty frames
 * cost this side's time.
 */
static void count_idle(struct tcp_qp *qp, bool receives)
{
	if (receives || carries(qp))
		return;
	if (qp->out.owed)
		qp->out.owed--;
	else
		qp->in.idle++;
}

/*
 * Takes the next frame's table from the buffer. Returns false when it is not all there, or is not a frame and the queue
 * pair failed.
 */
static bool next_frame(struct tcp_qp *qp)
{
	const uint8_t *at = qp->in.buf + qp->in.buf_at;
	struct tcp_head head;
	uint32_t length;
	bool ok, receives;

	if (buffered(qp) < sizeof head)
		return false;
	memcpy(&head, at, sizeof head);
	ok = tcp_head_valid(&head);
	length = ok ? (uint32_t)(sizeof head + head.count * sizeof(struct tcp_entry)) : 0;
	if (buffered(qp) < length)
		return false;
	receives = ok && head.posted != qp->out.peer_posted;
	ok = ok && take_head(qp, &head);
	if (ok && head.kind == TCP_NAK)
		ok = take_nak(qp, at + sizeof head);
	else if (ok)
		ok = take_entries(qp, &head, at + sizeof head);
	if (ok)
		count_idle(qp, receives);
	else
		tcp_qp_error(qp, RWF_WC_GENERAL_ERR);
	qp->in.buf_at += length;
	qp->in.placed += length;
	return qp->base.head.state == RWF_QPS_RTS;
}

static void consume_buffer(struct tcp_qp *qp)
{
	while (place_buffered(qp) && next_frame(qp))
		;
}

/*
 * Lists the targets of the present frame's rest, up to one that is refused, or else the buffer behind them. Returns how
 * many there are.
 */
static int gather(struct tcp_qp *qp, struct iovec *iov, size_t *total)
{
	uint32_t skip = qp->in.done;
	int n = 0;

	*total = 0;
	for (uint32_t i = qp->in.entry; i < qp->in.count; i++, skip = 0) {
		const struct tcp_entry *e = &qp->in.entries[i];

		if (judge(qp, i))
			return n;
		iov[n++] = (struct iovec){(void *)(uintptr_t)(e->raddr + skip), e->length - skip};
		*total += e->length - skip;
	}
	/* Between frames the buffer may hold the beginning of a table. */
	memmove(qp->in.buf, qp->in.buf + qp->in.buf_at, buffered(qp));
	qp->in.buf_len = buffered(qp);
	qp->in.buf_at = 0;
	iov[n++] = (struct iovec){qp->in.buf + qp->in.buf_len, sizeof qp->in.buf - qp->in.buf_len};
	*total += sizeof qp->in.buf - qp->in.buf_len;
	return n;
}

/* Counts what a read brought: payload of the present frame first, the rest in the buffer. */
static void scatter(struct tcp_qp *qp, size_t got)
{
	while (got && qp->in.entry < qp->in.count) {
		uint32_t rest = qp->in.entries[qp->in.entry].length - qp->in.done;

		if (rest > got)
			rest = (uint32_t)got;
		got -= rest;
		placed(qp, rest);
	}
	qp->in.buf_len += (uint32_t)got;
}

/*
 * Acknowledges arrivals at once, because the owner may not poll again soon, unless an answer is likely to do it for nothing. Even
 * then it does so before the peer's window or the receives that it knows of run out.
 */
static void acknowledge_arrivals(struct tcp_qp *qp)
{
	uint32_t posted = atomic_load_explicit(&qp->base.recv_posted, memory_order_relaxed);

	if (qp->in.placed - qp->in.announced_placed >= qp->dev->window / 4 ||
	    posted - qp->in.announced_posted > qp->base.recv_limit / 2 || (qp->in.data_due && !qp->in.converses))
		qp->out.ack_now = true;
	if (qp->in.data_due)
		qp->cq->due = true;
}

bool tcp_receive(struct tcp_qp *qp)
{
	struct iovec iov[TCP_MAX_ENTRIES + 1];
	enum rwf_wc_status refusal;
	uint32_t idle = qp->in.idle;

	for (int reads = 0; qp->in.ready && !qp->in.nak && qp->base.head.state == RWF_QPS_RTS; reads++) {
		size_t total;
		ssize_t got;
		int n;

		if (reads == READS_PER_CALL || qp->in.idle != idle)
			return true;
		if (qp->in.entry < qp->in.count && (refusal = judge(qp, qp->in.entry))) {
			refuse(qp, refusal);
			break;
		}
		n = gather(qp, iov, &total);
		got = readv(qp->fd, iov, n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN && !qp->out.dead && !qp->in.hung_up) {
			qp->in.ready = false;
			break;
		}
		if (got <= 0) {
			/* The peer's queue pair failed, its process died or the link is gone. */
			tcp_qp_error(qp, RWF_WC_RETRY_EXC_ERR);
			break;
		}
		/* After a short read a new event reports news (epoll(7)), except what hung_up and dead report already. */
		if ((size_t)got < total && !qp->in.hung_up && !qp->out.dead)
			qp->in.ready = false;
		scatter(qp, (size_t)got);
		consume_buffer(qp);
		acknowledge_arrivals(qp);
	}
	return false;
}
