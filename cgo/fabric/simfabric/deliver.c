/* The outcomes of a message: lost, turned away, refused, or placed. */
#include "world.h"

#include <string.h>
#include <sys/param.h>

/* An unacknowledged send is tried again this many times within the ack timeout, as with a retry count of 7. */
enum { ATTEMPTS = 8 };
/* The pause between two attempts at a receiver that is not ready is the timeout over this, at most a millisecond. */
enum { RNR_ATTEMPTS = 64 };
static const uint64_t rnr_backoff_max_ns = 1000000;

bool sim_reachable(const struct sim_qp *qp)
{
	return qp->peer && !qp->dev->down && !qp->peer->dev->down && !qp->peer->dev->dead;
}

static bool triggered(struct sim_qp *qp, enum rwf_sim_fault fault)
{
	if (qp->trigger != fault)
		return false;
	qp->trigger = RWF_SIM_FAULTS;
	return true;
}

static bool strikes(struct sim_qp *qp, enum rwf_sim_fault fault)
{
	return triggered(qp, fault) || sim_chance(sim_of(qp), fault);
}

/* Loses this attempt to the network. Tries again later, or fails. */
static void lose(struct sim_qp *qp, enum sim_event event)
{
	struct rwf_sim *w = sim_of(qp);

	if (qp->lost_since_ns == SIM_NEVER)
		qp->lost_since_ns = w->now_ns;
	if (w->now_ns - qp->lost_since_ns >= qp->ack_timeout_ns) {
		sim_qp_error(qp, RWF_WC_RETRY_EXC_ERR);
		return;
	}
	sim_log(w, "lose", qp->base.head.num, event, 0);
	sim_at(qp, event, MIN(w->now_ns + qp->ack_timeout_ns / ATTEMPTS, qp->lost_since_ns + qp->ack_timeout_ns));
}

static void turn_away(struct sim_qp *qp)
{
	struct rwf_sim *w = sim_of(qp);

	if (qp->rnr_since_ns == SIM_NEVER)
		qp->rnr_since_ns = w->now_ns;
	if (w->now_ns - qp->rnr_since_ns >= qp->rnr_timeout_ns) {
		sim_complete_sends(qp, qp->sent);
		sim_qp_error(qp, RWF_WC_RNR_RETRY_EXC_ERR);
		return;
	}
	sim_log(w, "not ready", qp->base.head.num, qp->peer->base.head.num, 0);
	sim_at(qp, SIM_DELIVER,
	       MIN(w->now_ns + MIN(qp->rnr_timeout_ns / RNR_ATTEMPTS, rnr_backoff_max_ns), qp->rnr_since_ns + qp->rnr_timeout_ns));
}

/* Ends the oldest undelivered send in an error. Earlier sends arrived, and complete. */
static void refuse(struct sim_qp *qp, enum rwf_wc_status status)
{
	struct sim_qp *peer = qp->peer;

	sim_complete_sends(qp, qp->sent);
	sim_qp_error(qp, status);
	if (status == RWF_WC_REM_ACCESS_ERR)
		sim_qp_error(peer, RWF_WC_WR_FLUSH_ERR);
}

static enum rwf_wc_status check(const struct sim_qp *qp, const struct rwf_send_wr *wr)
{
	if (wr->length == 0)
		return RWF_WC_SUCCESS; /* no bytes, no keys: IBA volume 1, 9.4.3 */
	if (!(wr->flags & (RWF_SEND_INLINE | RWF_SEND_PLACED)) && !sim_local_access(qp, wr->lkey, wr->laddr, wr->length))
		return RWF_WC_LOC_PROT_ERR;
	if (!sim_remote_access(qp->peer, wr->rkey, wr->raddr, wr->length))
		return RWF_WC_REM_ACCESS_ERR;
	return RWF_WC_SUCCESS;
}

static bool goes_by_reference(const struct sim_qp *qp, const struct rwf_send_wr *wr)
{
	return qp->peer->by_reference && wr->opcode == RWF_WRITE_WITH_IMM && wr->length &&
	       !(wr->flags & (RWF_SEND_INLINE | RWF_SEND_PLACED));
}

static void place(const struct sim_qp *qp, uint64_t index)
{
	const struct rwf_send_wr *wr = rwb_send(&qp->base.sends, index);

	if (wr->length && !(wr->flags & RWF_SEND_PLACED))
		memmove((void *)(uintptr_t)wr->raddr, rwb_payload(&qp->base.sends, index), wr->length);
}

/* Places a message when it is posted if all earlier ones have landed too. A message that must not land stops later ones. */
void sim_place_early(struct sim_qp *qp)
{
	uint64_t last = qp->base.sends.posted - 1;

	if (!(qp->dev->base.head.attr.flags & RWF_DEV_COPIES_AT_POST) || qp->placed != last || !sim_reachable(qp))
		return;
	if (check(qp, rwb_send(&qp->base.sends, last)) != RWF_WC_SUCCESS || goes_by_reference(qp, rwb_send(&qp->base.sends, last)))
		return;
	place(qp, last);
	qp->placed = qp->base.sends.posted;
}

static void receive(struct sim_qp *qp, const struct rwf_send_wr *wr)
{
	struct rwf_wc wc = {.byte_len = wr->length, .imm = wr->imm};

	if (goes_by_reference(qp, wr)) {
		wc.addr = wc.src_addr = wr->laddr;
		wc.src_rkey = ~wr->lkey;
	}
	sim_complete_recv(qp->peer, &wc);
}

void sim_deliver(struct sim_qp *qp)
{
	struct rwf_sim *w = sim_of(qp);
	const struct rwf_send_wr *wr = rwb_send(&qp->base.sends, qp->sent);
	enum rwf_wc_status status;

	if (triggered(qp, RWF_SIM_DELAY)) {
		sim_at(qp, SIM_DELIVER, w->now_ns + sim_random(w, w->network.delay_max_ns + 1));
		return;
	}
	if (!sim_reachable(qp) || strikes(qp, RWF_SIM_DROP)) {
		lose(qp, SIM_DELIVER);
		return;
	}
	qp->lost_since_ns = SIM_NEVER;
	if (strikes(qp, RWF_SIM_QP_FAIL)) {
		sim_qp_error(qp, RWF_WC_FATAL_ERR);
		return;
	}
	status = check(qp, wr);
	if (strikes(qp, RWF_SIM_STALE_KEY))
		status = RWF_WC_REM_ACCESS_ERR;
	if (status != RWF_WC_SUCCESS) {
		refuse(qp, status);
		return;
	}
	if (wr->opcode == RWF_WRITE_WITH_IMM &&
	    (qp->peer->base.received == qp->peer->base.recv_posted || strikes(qp, RWF_SIM_RNR))) {
		turn_away(qp);
		return;
	}
	qp->rnr_since_ns = SIM_NEVER;
	if (qp->sent >= qp->placed && !goes_by_reference(qp, wr))
		place(qp, qp->sent);
	sim_log(w, "deliver", qp->base.head.num, wr->imm, wr->length);
	if (wr->opcode == RWF_WRITE_WITH_IMM)
		receive(qp, wr);
	if (!qp->peer) { /* its completion queue overran on this one */
		if (qp->base.head.state == RWF_QPS_RTS)
			lose(qp, SIM_DELIVER);
		return;
	}
	qp->sent++;
	if (qp->sent > qp->placed)
		qp->placed = qp->sent;
	if (qp->sent != qp->base.sends.posted)
		sim_at(qp, SIM_DELIVER, w->now_ns + sim_latency(w));
	if (qp->due[SIM_ACK].at_ns == SIM_NEVER)
		sim_at(qp, SIM_ACK, w->now_ns + sim_latency(w));
}

void sim_acknowledge(struct sim_qp *qp)
{
	if (!sim_reachable(qp)) {
		lose(qp, SIM_ACK);
		return;
	}
	qp->lost_since_ns = SIM_NEVER;
	sim_log(sim_of(qp), "acknowledge", qp->base.head.num, (uint32_t)(qp->sent - qp->base.acked), 0);
	sim_complete_sends(qp, qp->sent);
}
