/* Provider ibv: the states of a queue pair. */
#if __has_include(<infiniband/verbs.h>)

#include "priv.h"

#include <string.h>

int vb_modify(struct vb_qp *qp, struct ibv_qp_attr *attr, int mask, const char *to)
{
	int err = qp->dev->lib->modify_qp(qp->qp, attr, mask);

	return err ? rwf_fail(err, "bring queue pair 0x%x of %s to %s: %s", qp->base.num, qp->dev->attr.name, to, strerror(err))
		   : 0;
}

int vb_to_init(struct vb_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = qp->dev->port,
				   .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};

	return vb_modify(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

int vb_to_error(struct vb_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	qp->base.state = RWF_QPS_ERR;
	return vb_modify(qp, &attr, IBV_QP_STATE, "ERR");
}

/*
 * Establishes a queue pair whose peer arrived. The owner and the thread that waits for events may both get here, and the
 * queue pair may have failed meanwhile.
 */
void vb_establish(struct vb_qp *qp)
{
	int rtr = RWF_QPS_RTR;

	atomic_compare_exchange_strong(&qp->base.state, &rtr, RWF_QPS_RTS);
}

void vb_unlink_waiting(struct vb_qp *qp)
{
	for (struct vb_qp **p = &qp->dev->waiting; *p; p = &(*p)->next_waiting) {
		if (*p != qp)
			continue;
		*p = qp->next_waiting;
		break;
	}
}

void vb_stop_waiting(struct vb_qp *qp)
{
	pthread_mutex_lock(&qp->dev->lock);
	vb_unlink_waiting(qp);
	pthread_mutex_unlock(&qp->dev->lock);
}

#endif
