/* Frames out: work requests become entries and payloads, as many as the peer's window and posted receives allow. */
#include "tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum {
	FRAMES_PER_CALL = 4,
	/* A message longer than a frame is not cut into smaller pieces than this to fill the rest of a window. */
	LEAST_FRAGMENT = 32 << 10,
};

static bool may_read(struct tcp_qp *qp, const struct rwf_send_wr *wr)
{
	return wr->length == 0 || wr->flags & RWF_SEND_INLINE || tcp_mr_allows(qp, wr->lkey, wr->laddr, wr->length, 0);
}

static void wait_for_receive(struct tcp_qp *qp)
{
	if (qp->out.rnr_deadline_ns)
		return;
	qp->out.rnr_deadline_ns = rwb_now_ns() + (uint64_t)qp->rnr_timeout_ms * 1000000;
	if (qp->out.rnr_deadline_ns < qp->send_cq->look_ns)
		qp->send_cq->look_ns = qp->out.rnr_deadline_ns;
}

/* Reports whether only a posted receive is missing for the rest of a request to go into a frame with so much room. */
static bool lacks_receive(const struct tcp_qp *qp, const struct rwf_send_wr *wr, int64_t room)
{
	return room >= wr->length - qp->out.fragment && wr->opcode == RWF_WRITE_WITH_IMM && qp->out.imm_sent == qp->out.peer_posted;
}

/* Returns how many bytes of the next request go into a frame with so much room, -1 if none may go now. */
static int64_t next_share(const struct tcp_qp *qp, const struct rwf_send_wr *wr, int64_t room)
{
	uint32_t rest = wr->length - qp->out.fragment;

	if (room >= rest)
		return rest;
	return wr->length > qp->out.frame_bytes && room >= LEAST_FRAGMENT ? room : -1;
}

/* Fills the table and the payload list from the send queue. Returns the number of entries. */
static uint32_t add_entries(struct tcp_qp *qp)
{
	int64_t room = (int64_t)qp->out.window - (int64_t)(qp->out.total - qp->out.peer_placed);
	uint8_t *table = qp->out.table + TCP_HEAD_LEN;
	uint32_t n = 0;

	if (room > qp->out.frame_bytes)
		room = qp->out.frame_bytes;
	qp->out.first = qp->out.framed;
	while (n < TCP_MAX_ENTRIES && qp->out.framed != qp->out.sends.posted) {
		struct rwf_send_wr *wr = rwb_send(&qp->out.sends, qp->out.framed);
		int64_t share = next_share(qp, wr, room);
		struct tcp_entry e = {.raddr = wr->raddr + qp->out.fragment, .rkey = wr->rkey, .seq = (uint32_t)qp->out.framed};

		if (lacks_receive(qp, wr, room)) {
			wait_for_receive(qp);
			break;
		}
		if (share < 0)
			break;
		if (!may_read(qp, wr)) {
			/* What was posted before it completes first; then this one is in error. */
			if (n == 0 && qp->out.acked == qp->out.framed)
				tcp_qp_error(qp, RWF_WC_LOC_PROT_ERR);
			break;
		}
		e.length = (uint32_t)share;
		qp->out.iov[1 + n] = (struct iovec){
			(char *)(uintptr_t)rwb_payload(&qp->out.sends, qp->out.framed) + qp->out.fragment, (size_t)share};
		qp->out.fragment += e.length;
		room -= share;
		if (qp->out.fragment == wr->length) {
			e.flags = TCP_ENTRY_LAST;
			if (wr->opcode == RWF_WRITE_WITH_IMM) {
				e.flags |= TCP_ENTRY_IMM;
				e.imm = wr->imm;
				qp->out.imm_sent++;
			}
			qp->out.rnr_deadline_ns = 0;
			qp->out.fragment = 0;
			qp->out.framed++;
		}
		tcp_entry_encode(&e, table + n++ * TCP_ENTRY_LEN);
	}
	return n;
}

static void finish_frame(struct tcp_qp *qp, enum tcp_kind kind, uint32_t entries)
{
	uint32_t posted = atomic_load_explicit(&qp->in.posted, memory_order_relaxed);
	uint64_t index = qp->out.first;
	struct tcp_head head = {.kind = kind, .count = (uint8_t)entries, .posted = posted, .placed = qp->in.placed};
	size_t table = TCP_HEAD_LEN + entries * TCP_ENTRY_LEN;

	tcp_head_encode(&head, qp->out.table);
	qp->out.iov[0] = (struct iovec){qp->out.table, table};
	qp->out.iov_at = 0;
	qp->out.iov_count = kind == TCP_DATA ? 1 + (int)entries : 1;
	qp->out.entries = kind == TCP_DATA ? entries : 0;
	qp->out.total += table;
	for (int i = 1; i < qp->out.iov_count; i++, index++) {
		qp->out.total += qp->out.iov[i].iov_len;
		qp->out.ends[index & qp->out.sends.mask] = qp->out.total;
	}
	qp->in.told_posted = posted;
	qp->in.told_placed = qp->in.placed;
	qp->in.data_due = qp->out.ack_now = false;
	if (entries) {
		qp->in.converses |= qp->in.heard;
		qp->in.heard = false;
	}
}

static bool build_frame(struct tcp_qp *qp)
{
	if (qp->in.nak) {
		struct tcp_entry e = {.imm = qp->in.nak, .seq = qp->in.seq, .flags = TCP_ENTRY_LAST};

		if (qp->out.nak_sent) { /* it was sealed before, and has gone since */
			tcp_qp_error(qp, RWF_WC_WR_FLUSH_ERR);
			return false;
		}
		qp->out.nak_sent = true;
		tcp_entry_encode(&e, qp->out.table + TCP_HEAD_LEN);
		finish_frame(qp, TCP_NAK, 1);
		return true;
	}
	uint32_t entries = add_entries(qp);

	if (qp->head.state != RWF_QPS_RTS || (entries == 0 && !qp->out.ack_now))
		return false;
	finish_frame(qp, TCP_DATA, entries);
	return true;
}

/* The memory of a frame that went out in part may have been deregistered since. */
static bool frame_readable(struct tcp_qp *qp)
{
	for (uint32_t i = 0; i < qp->out.entries; i++)
		if (!may_read(qp, rwb_send(&qp->out.sends, qp->out.first + i)))
			return false;
	return true;
}

static void advance(struct tcp_qp *qp, size_t sent)
{
	while (qp->out.iov_at < qp->out.iov_count) {
		struct iovec *v = &qp->out.iov[qp->out.iov_at];

		if (sent < v->iov_len) {
			v->iov_base = (char *)v->iov_base + sent;
			v->iov_len -= sent;
			return;
		}
		sent -= v->iov_len;
		qp->out.iov_at++;
	}
}

/* What the peer sent before it went, perhaps the reason, is still to be read: the receiving side fails the queue pair. */
static void socket_failed(struct tcp_qp *qp)
{
	qp->out.dead = qp->in.ready = true;
	for (int i = 0; i < 2; i++)
		if (qp->links[i].cq)
			tcp_cq_ready(&qp->links[i]);
}

/* Hands the socket what is sealed. Returns true when all of it went. */
static bool flush_sealed(struct tcp_qp *qp)
{
	int flushed = tcp_seal_flush(qp->seal, qp->fd);

	if (flushed < 0)
		socket_failed(qp);
	qp->out.blocked = flushed == 0;
	return flushed > 0;
}

/* Hands the socket the rest of the frame. Returns true when all of it went. */
static bool send_frame(struct tcp_qp *qp)
{
	struct msghdr msg = {.msg_iov = qp->out.iov + qp->out.iov_at, .msg_iovlen = (size_t)(qp->out.iov_count - qp->out.iov_at)};
	ssize_t sent;

	do
		sent = qp->seal ? tcp_seal_send(qp->seal, qp->fd, msg.msg_iov, (int)msg.msg_iovlen)
				: sendmsg(qp->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	if (sent < 0 && errno != EAGAIN) {
		socket_failed(qp);
		return false;
	}
	if (sent > 0)
		advance(qp, (size_t)sent);
	qp->out.blocked = qp->out.iov_at != qp->out.iov_count || (qp->seal && tcp_seal_waits(qp->seal));
	return !qp->out.blocked;
}

/* Sends as much as the socket, the window and the peer's receives allow. */
void tcp_transmit(struct tcp_qp *qp)
{
	for (int frames = 0; frames < FRAMES_PER_CALL; frames++) {
		if (qp->fd < 0 || qp->head.state != RWF_QPS_RTS || qp->out.blocked || qp->out.dead)
			return;
		if (qp->seal && !flush_sealed(qp))
			return;
		if (qp->out.iov_at == qp->out.iov_count) {
			if (!build_frame(qp))
				return;
		} else if (!frame_readable(qp)) {
			tcp_qp_error(qp, RWF_WC_LOC_PROT_ERR);
			return;
		}
		if (!send_frame(qp))
			return;
		if (qp->out.nak_sent)
			tcp_qp_error(qp, RWF_WC_WR_FLUSH_ERR);
	}
	tcp_cq_ready(&qp->links[0]);
}

/* Takes the peer's totals of receives posted and bytes placed, and completes the sends that lie in them. */
void tcp_acknowledged(struct tcp_qp *qp, uint64_t placed, uint32_t posted)
{
	if (posted != qp->out.peer_posted)
		qp->out.rnr_deadline_ns = 0;
	qp->out.peer_posted = posted;
	qp->out.peer_placed = placed;
	while (qp->out.acked != qp->out.framed && qp->out.ends[qp->out.acked & qp->out.sends.mask] <= placed) {
		const struct rwf_send_wr *wr = rwb_send(&qp->out.sends, qp->out.acked++);

		if (wr->flags & RWF_SEND_SIGNALED) {
			struct rwf_wc wc = {
				.wr_id = wr->wr_id, .byte_len = wr->length, .qp_num = qp->head.num, .opcode = RWF_WC_SEND};

			tcp_cq_push(qp->send_cq, qp, &wc, qp->out.acked);
		}
	}
}

/* Acknowledges, since no reply came to carry it. New receives alone are no news while the peer knows of plenty. */
void tcp_acknowledge(struct tcp_qp *qp)
{
	uint32_t posted = atomic_load_explicit(&qp->in.posted, memory_order_relaxed);

	if (!qp->in.data_due && (qp->in.told_posted == posted || qp->in.told_posted - qp->in.used > qp->in.limit / 2))
		return;
	qp->in.converses = false;
	qp->out.ack_now = true;
	tcp_transmit(qp);
}
