/* Frames out: work requests become entries and payloads, as many as the peer's window and posted receives allow. */
#include "tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum {
	FRAMES_PER_CALL = 4,
	/* A message longer than a frame is not cut into pieces smaller than this to fill a window's rest. */
	LEAST_FRAGMENT = 32 << 10,
};

static struct tcp_send *send_at(struct tcp_qp *qp, uint32_t index)
{
	return &qp->sq[index & qp->sq_mask];
}

static const void *payload(struct tcp_qp *qp, uint32_t index)
{
	const struct rwf_send_wr *wr = &send_at(qp, index)->wr;

	if (wr->flags & RWF_SEND_INLINE)
		return qp->inline_data + (size_t)(index & qp->sq_mask) * qp->max_inline;
	return (const void *)(uintptr_t)wr->laddr;
}

static bool may_read(struct tcp_qp *qp, const struct rwf_send_wr *wr)
{
	return wr->length == 0 || wr->flags & RWF_SEND_INLINE || tcp_mr_allows(qp, wr->lkey, wr->laddr, wr->length, 0);
}

static void wait_for_receive(struct tcp_qp *qp)
{
	if (qp->rnr_deadline_ns)
		return;
	qp->rnr_deadline_ns = tcp_now_ns() + (uint64_t)qp->rnr_timeout_ms * 1000000;
	if (qp->rnr_deadline_ns < qp->send_cq->look_ns)
		qp->send_cq->look_ns = qp->rnr_deadline_ns;
}

/*
 * How many bytes of the next work request may go into a frame that has room for room more, its last byte included only if
 * the peer has a receive posted for its immediate; -1: none of it may go now.
 */
static int64_t next_share(struct tcp_qp *qp, const struct rwf_send_wr *wr, int64_t room)
{
	uint32_t rest = wr->length - qp->fragment;

	if (room >= rest) {
		if (wr->opcode != RWF_WRITE_WITH_IMM || qp->imm_sent != qp->peer_posted) {
			qp->rnr_deadline_ns = 0;
			return rest;
		}
		wait_for_receive(qp);
		return -1;
	}
	return wr->length > qp->frame_bytes && room >= LEAST_FRAGMENT ? room : -1;
}

/* Fills the table and the payload list from the send queue; returns the number of entries. */
static uint32_t add_entries(struct tcp_qp *qp)
{
	int64_t room = (int64_t)qp->peer_window - (int64_t)(qp->tx_total - qp->peer_placed);
	uint8_t *table = qp->tx_table + TCP_HEAD_LEN;
	uint32_t n = 0;

	if (room > qp->frame_bytes)
		room = qp->frame_bytes;
	qp->tx_first = qp->sq_framed;
	while (n < TCP_MAX_ENTRIES && qp->sq_framed != qp->sq_posted) {
		struct rwf_send_wr *wr = &send_at(qp, qp->sq_framed)->wr;
		int64_t share = next_share(qp, wr, room);
		struct tcp_entry e = {.raddr = wr->raddr + qp->fragment, .rkey = wr->rkey, .seq = qp->sq_framed};

		if (share < 0)
			break;
		if (!may_read(qp, wr)) {
			/* What was posted before it completes first; then it is the one in error. */
			if (n == 0 && qp->sq_acked == qp->sq_framed)
				tcp_qp_error(qp, RWF_WC_LOC_PROT_ERR);
			break;
		}
		e.length = (uint32_t)share;
		qp->tx_iov[1 + n] = (struct iovec){(char *)payload(qp, qp->sq_framed) + qp->fragment, (size_t)share};
		qp->fragment += e.length;
		room -= share;
		if (qp->fragment == wr->length) {
			e.flags = TCP_ENTRY_LAST;
			if (wr->opcode == RWF_WRITE_WITH_IMM) {
				e.flags |= TCP_ENTRY_IMM;
				e.imm = wr->imm;
				qp->imm_sent++;
			}
			qp->fragment = 0;
			qp->sq_framed++;
		}
		tcp_entry_encode(&e, table + n++ * TCP_ENTRY_LEN);
	}
	return n;
}

static void finish_frame(struct tcp_qp *qp, enum tcp_kind kind, uint32_t entries)
{
	uint32_t posted = atomic_load_explicit(&qp->rq_posted, memory_order_relaxed), index = qp->tx_first;
	struct tcp_head head = {.kind = kind, .count = (uint8_t)entries, .posted = posted, .placed = qp->rx_placed};
	size_t table = TCP_HEAD_LEN + entries * TCP_ENTRY_LEN;

	tcp_head_encode(&head, qp->tx_table);
	qp->tx_iov[0] = (struct iovec){qp->tx_table, table};
	qp->tx_iov_at = 0;
	qp->tx_iov_count = kind == TCP_DATA ? 1 + (int)entries : 1;
	qp->tx_entries = kind == TCP_DATA ? entries : 0;
	qp->tx_total += table;
	for (int i = 1; i < qp->tx_iov_count; i++, index++) {
		qp->tx_total += qp->tx_iov[i].iov_len;
		send_at(qp, index)->end = qp->tx_total;
	}
	qp->told_posted = posted;
	qp->told_placed = qp->rx_placed;
	qp->data_due = qp->ack_now = false;
	if (entries) {
		qp->converses |= qp->heard;
		qp->heard = false;
	}
}

static bool build_frame(struct tcp_qp *qp)
{
	if (qp->nak) {
		struct tcp_entry e = {.imm = qp->nak, .seq = qp->rx_seq, .flags = TCP_ENTRY_LAST};

		if (qp->nak_sent)
			return false;
		qp->nak_sent = true;
		tcp_entry_encode(&e, qp->tx_table + TCP_HEAD_LEN);
		finish_frame(qp, TCP_NAK, 1);
		return true;
	}
	uint32_t entries = add_entries(qp);

	if (qp->head.state != RWF_QPS_RTS || (entries == 0 && !qp->ack_now))
		return false;
	finish_frame(qp, TCP_DATA, entries);
	return true;
}

/* The memory of a frame that went out in part may have been deregistered since. */
static bool frame_readable(struct tcp_qp *qp)
{
	for (uint32_t i = 0; i < qp->tx_entries; i++)
		if (!may_read(qp, &send_at(qp, qp->tx_first + i)->wr))
			return false;
	return true;
}

static void advance(struct tcp_qp *qp, size_t sent)
{
	while (qp->tx_iov_at < qp->tx_iov_count) {
		struct iovec *v = &qp->tx_iov[qp->tx_iov_at];

		if (sent < v->iov_len) {
			v->iov_base = (char *)v->iov_base + sent;
			v->iov_len -= sent;
			return;
		}
		sent -= v->iov_len;
		qp->tx_iov_at++;
	}
}

/* Hands the socket what is left of the frame; true when all of it went. */
static bool send_frame(struct tcp_qp *qp)
{
	struct msghdr msg = {.msg_iov = qp->tx_iov + qp->tx_iov_at, .msg_iovlen = (size_t)(qp->tx_iov_count - qp->tx_iov_at)};
	ssize_t sent;

	do
		sent = sendmsg(qp->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	if (sent < 0 && errno != EAGAIN) {
		/* What the peer said before it went, perhaps why, is still to be read: that side fails the queue pair. */
		qp->tx_dead = qp->rx_ready = true;
		for (int i = 0; i < 2; i++)
			if (qp->links[i].cq)
				tcp_cq_ready(&qp->links[i]);
		return false;
	}
	if (sent > 0)
		advance(qp, (size_t)sent);
	qp->tx_blocked = qp->tx_iov_at != qp->tx_iov_count;
	return !qp->tx_blocked;
}

/* Sends as much as the socket, the window and the peer's receives allow. */
void tcp_transmit(struct tcp_qp *qp)
{
	for (int frames = 0; frames < FRAMES_PER_CALL; frames++) {
		if (qp->fd < 0 || qp->head.state != RWF_QPS_RTS || qp->tx_blocked || qp->tx_dead)
			return;
		if (qp->tx_iov_at == qp->tx_iov_count) {
			if (!build_frame(qp))
				return;
		} else if (!frame_readable(qp)) {
			tcp_qp_error(qp, RWF_WC_LOC_PROT_ERR);
			return;
		}
		if (!send_frame(qp))
			return;
		if (qp->nak_sent)
			tcp_qp_error(qp, RWF_WC_WR_FLUSH_ERR);
	}
	tcp_cq_ready(&qp->links[0]);
}

/* The peer has posted receives and placed this much of the stream: completes the sends that lie in it. */
void tcp_acknowledged(struct tcp_qp *qp, uint64_t placed, uint32_t posted)
{
	if (posted != qp->peer_posted)
		qp->rnr_deadline_ns = 0;
	qp->peer_posted = posted;
	qp->peer_placed = placed;
	while (qp->sq_acked != qp->sq_framed && send_at(qp, qp->sq_acked)->end <= placed) {
		const struct rwf_send_wr *wr = &send_at(qp, qp->sq_acked++)->wr;

		if (wr->flags & RWF_SEND_SIGNALED) {
			struct rwf_wc wc = {.wr_id = wr->wr_id, .byte_len = wr->length, .qp_num = qp->head.num, .opcode = RWF_WC_SEND};

			tcp_cq_push(qp->send_cq, qp, &wc, qp->sq_acked);
		}
	}
}

/* No reply came to carry it. New receives alone are no news while the peer knows of plenty. */
void tcp_acknowledge(struct tcp_qp *qp)
{
	uint32_t posted = atomic_load_explicit(&qp->rq_posted, memory_order_relaxed);

	if (!qp->data_due && (qp->told_posted == posted || qp->told_posted - qp->rq_used > qp->rq_cap / 2))
		return;
	qp->converses = false;
	qp->ack_now = true;
	tcp_transmit(qp);
}
