/* Frames out: work requests become entries and payloads, as many as the peer's window and posted receives allow. */
#include "tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { FRAMES_PER_CALL = 4 };

static bool may_read(struct tcp_qp *qp, const struct rwf_send_wr *wr)
{
	return wr->length == 0 || wr->flags & RWF_SEND_INLINE || rwb_mr_allows(&qp->base.head, wr->lkey, wr->laddr, wr->length, 0);
}

static void wait_for_receive(struct tcp_qp *qp)
{
	if (qp->out.rnr_deadline_ns)
		return;
	qp->out.rnr_deadline_ns = rwb_now_ns() + (uint64_t)qp->rnr_timeout_ms * 1000000;
	if (qp->out.rnr_deadline_ns < qp->cq->look_ns)
		qp->cq->look_ns = qp->out.rnr_deadline_ns;
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
	return wr->length > qp->out.frame_bytes && room >= TCP_LEAST_FRAGMENT ? room : -1;
}

/* Fills the table and the payload list from the send queue. Returns the number of entries. */
static uint32_t add_entries(struct tcp_qp *qp)
{
	int64_t room = (int64_t)qp->out.window - (int64_t)(qp->out.total - qp->out.peer_placed);
	uint32_t n = 0;

	if (room > qp->out.frame_bytes)
		room = qp->out.frame_bytes;
	qp->out.first = qp->out.framed;
	while (n < TCP_MAX_ENTRIES && qp->out.framed != qp->base.sends.posted) {
		struct rwf_send_wr *wr = rwb_send(&qp->base.sends, qp->out.framed);
		int64_t share = next_share(qp, wr, room);
		struct tcp_entry *e = &qp->out.frame.entries[n];

		if (lacks_receive(qp, wr, room)) {
			wait_for_receive(qp);
			break;
		}
		if (share < 0)
			break;
		if (!may_read(qp, wr)) {
			/* What was posted before it completes first; then this one is in error. */
			if (n == 0 && qp->base.acked == qp->out.framed)
				tcp_qp_error(qp, RWF_WC_LOC_PROT_ERR);
			break;
		}
		*e = (struct tcp_entry){.raddr = wr->raddr + qp->out.fragment,
					.rkey = wr->rkey,
					.length = (uint32_t)share,
					.seq = (uint32_t)qp->out.framed};
		qp->out.iov[++n] = (struct iovec){
			(char *)(uintptr_t)rwb_payload(&qp->base.sends, qp->out.framed) + qp->out.fragment, (size_t)share};
		qp->out.fragment += e->length;
		room -= share;
		if (qp->out.fragment == wr->length) {
			e->flags = TCP_ENTRY_LAST;
			if (wr->flags & RWF_SEND_SOLICITED)
				e->flags |= TCP_ENTRY_SOLICITED;
			if (wr->opcode == RWF_WRITE_WITH_IMM) {
				e->flags |= TCP_ENTRY_IMM;
				e->imm = wr->imm;
				qp->out.imm_sent++;
			}
			qp->out.rnr_deadline_ns = 0;
			qp->out.fragment = 0;
			qp->out.framed++;
		}
	}
	return n;
}

/* A peer sends at most a frame to acknowledge each entry, and one whenever a fourth of its window is full. */
static void allow_answers(struct tcp_qp *qp, uint32_t entries, uint64_t bytes)
{
	uint64_t owed = qp->out.owed + entries + bytes / (TCP_MIN_WINDOW / 4);

	qp->out.owed = owed < TCP_MAX_WR ? (uint32_t)owed : TCP_MAX_WR;
}

static void finish_frame(struct tcp_qp *qp, enum tcp_kind kind, uint32_t entries)
{
	uint32_t posted = atomic_load_explicit(&qp->base.recv_posted, memory_order_relaxed);
	uint64_t index = qp->out.first;
	size_t table = sizeof(struct tcp_head) + entries * sizeof(struct tcp_entry);
	uint64_t before = qp->out.total;

	qp->out.frame.head = (struct tcp_head){
		.magic = TCP_HEAD_MAGIC, .kind = kind, .count = (uint8_t)entries, .posted = posted, .placed = qp->in.placed};
	qp->out.iov[0] = (struct iovec){&qp->out.frame, table};
	qp->out.iov_at = 0;
	qp->out.iov_count = kind == TCP_DATA ? 1 + (int)entries : 1;
	qp->out.entries = kind == TCP_DATA ? entries : 0;
	qp->out.total += table;
	for (int i = 1; i < qp->out.iov_count; i++, index++) {
		qp->out.total += qp->out.iov[i].iov_len;
		qp->out.ends[index & qp->base.sends.mask] = qp->out.total;
	}
	qp->in.announced_posted = posted;
	qp->in.announced_placed = qp->in.placed;
	qp->in.data_due = qp->in.solicited = qp->out.ack_now = false;
	if (entries) {
		allow_answers(qp, entries, qp->out.total - before);
		qp->in.converses |= qp->in.unanswered;
		qp->in.unanswered = false;
	}
}

static bool build_frame(struct tcp_qp *qp)
{
	if (qp->in.nak) {
		qp->out.nak_sent = true;
		qp->out.frame.entries[0] = (struct tcp_entry){.imm = qp->in.nak, .seq = qp->in.seq, .flags = TCP_ENTRY_LAST};
		finish_frame(qp, TCP_NAK, 1);
		return true;
	}
	uint32_t entries = add_entries(qp);

	if (qp->base.head.state != RWF_QPS_RTS || (entries == 0 && !qp->out.ack_now))
		return false;
	finish_frame(qp, TCP_DATA, entries);
	return true;
}

/* The memory of a frame that went out in part may have been deregistered since. */
static bool frame_readable(struct tcp_qp *qp)
{
	for (uint32_t i = 0; i < qp->out.entries; i++)
		if (!may_read(qp, rwb_send(&qp->base.sends, qp->out.first + i)))
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

/* The receiving side fails the queue pair, after it has read the peer's last frames, which may hold the reason. */
static void socket_failed(struct tcp_qp *qp)
{
	qp->out.dead = qp->in.ready = true;
	tcp_qp_ready(qp);
}

/* Sends the rest of the frame. Returns true if all of it went. */
static bool send_frame(struct tcp_qp *qp)
{
	struct msghdr msg = {.msg_iov = qp->out.iov + qp->out.iov_at, .msg_iovlen = (size_t)(qp->out.iov_count - qp->out.iov_at)};
	ssize_t sent;

	do
		sent = sendmsg(qp->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	if (sent < 0 && errno != EAGAIN) {
		socket_failed(qp);
		return false;
	}
	if (sent > 0)
		advance(qp, (size_t)sent);
	qp->out.blocked = qp->out.iov_at != qp->out.iov_count;
	return !qp->out.blocked;
}

/* Sends as much as the socket, the window and the peer's receives allow. */
void tcp_transmit(struct tcp_qp *qp)
{
	for (int frames = 0; frames < FRAMES_PER_CALL; frames++) {
		if (qp->fd < 0 || qp->base.head.state != RWF_QPS_RTS || qp->out.blocked || qp->out.dead)
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
	tcp_qp_ready(qp);
}

/* Takes the peer's totals of receives posted and bytes placed, and completes the sends that lie in them. */
void tcp_acknowledged(struct tcp_qp *qp, uint64_t placed, uint32_t posted)
{
	if (posted != qp->out.peer_posted)
		qp->out.rnr_deadline_ns = 0;
	qp->out.peer_posted = posted;
	qp->out.peer_placed = placed;
	while (qp->base.acked != qp->out.framed && qp->out.ends[qp->base.acked & qp->base.sends.mask] <= placed)
		if (!rwb_complete_send(&qp->cq->base, &qp->base, rwb_send(&qp->base.sends, qp->base.acked), RWF_WC_SUCCESS))
			tcp_cq_overran(qp);
}

/* Acknowledges without a reply to carry it. New receives alone need no frame while the peer knows of plenty. */
void tcp_acknowledge(struct tcp_qp *qp)
{
	uint32_t posted = atomic_load_explicit(&qp->base.recv_posted, memory_order_relaxed);

	if (!qp->in.data_due &&
	    (qp->in.announced_posted == posted || qp->in.announced_posted - (uint32_t)qp->base.received > qp->base.recv_limit / 2))
		return;
	qp->in.converses = false;
	qp->out.ack_now = true;
	tcp_transmit(qp);
}
