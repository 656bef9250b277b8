/*
 * The limit of connections by address. When an address connects too often without being admitted, the kernel drops its requests
 * for a moment, which costs nothing here. Other addresses can connect meanwhile.
 */
#include "tcp.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

enum {
	EACH_MS = 50,      /* between connections of an address that are not admitted, on average */
	BURST = 512,       /* of them at once */
	BLOCKED_MS = 1000, /* for an address above that; a client's kernel repeats its request after as long */
	SYN = 2,
	FLAGS = 13, /* in a TCP header, where the packet begins */
	SOURCE = 8, /* in an IP header: the network of IPv6, the word before the address and the address of IPv4 */
	EACH_OPS = 7,
};

/* Returns an address as it is counted: one of IPv6 by its network, because one host may have all of that. */
static struct tcp_visitor network_of(const struct sockaddr_storage *from)
{
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
	struct tcp_visitor who = {.protocol = ETH_P_IP};

	if (from->ss_family == AF_INET) {
		who.words[1] = ntohl(((const struct sockaddr_in *)from)->sin_addr.s_addr);
	} else if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
		who.words[1] = ntohl(v6->sin6_addr.s6_addr32[3]);
	} else {
		who.protocol = ETH_P_IPV6;
		who.words[0] = ntohl(v6->sin6_addr.s6_addr32[0]);
		who.words[1] = ntohl(v6->sin6_addr.s6_addr32[1]);
	}
	return who;
}

/* Finds a visitor, or puts it in the place of the one with the fewest recent connections. */
static struct tcp_visitor *find(struct tcp_device *dev, struct tcp_visitor who)
{
	struct tcp_visitor *least = dev->visitors;

	for (int i = 0; i < TCP_MAX_VISITORS; i++) {
		struct tcp_visitor *v = &dev->visitors[i];

		if (v->protocol == who.protocol && v->words[0] == who.words[0] && v->words[1] == who.words[1])
			return v;
		if (v->paid_ns < least->paid_ns)
			least = v;
	}
	*least = who;
	return least;
}

bool tcp_count_connection(struct tcp_device *dev, const struct sockaddr_storage *from, uint64_t now)
{
	const uint64_t each = EACH_MS * 1000000ull;
	struct tcp_visitor *v = find(dev, network_of(from));

	if (v->paid_ns < now)
		v->paid_ns = now;
	if (v->paid_ns < now + BURST * each) {
		v->paid_ns += each;
		return true;
	}
	v->blocked_ns = now + BLOCKED_MS * 1000000ull;
	dev->filter_stale = true;
	return false;
}

void tcp_uncount_connection(struct tcp_device *dev, const struct sockaddr_storage *from)
{
	struct tcp_visitor *v = find(dev, network_of(from));

	if (v->paid_ns)
		v->paid_ns -= EACH_MS * 1000000ull;
}

/* Writes the operations that drop a visitor's packets. Returns their number. */
static unsigned drop_from(struct sock_filter *op, const struct tcp_visitor *v)
{
	unsigned n = 0;
	bool v6 = v->protocol == ETH_P_IPV6;

	op[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_PROTOCOL));
	op[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, v->protocol, 0, v6 ? 5 : 3);
	if (v6) {
		op[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_NET_OFF + SOURCE));
		op[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, v->words[0], 0, 3);
	}
	op[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_NET_OFF + SOURCE + 4));
	op[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, v->words[1], 0, 1);
	op[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	return n;
}

/*
 * Without filters in the kernel each connection is closed after it was accepted. Connections inherit the program, so it drops only
 * requests for new ones.
 */
uint64_t tcp_update_filter(struct tcp_device *dev, uint64_t now, uint64_t until)
{
	struct sock_filter ops[4 + TCP_MAX_VISITORS * EACH_OPS] = {
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, FLAGS),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, SYN, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
	};
	struct sock_fprog program = {.len = 3, .filter = ops};

	for (int i = 0; i < TCP_MAX_VISITORS; i++) {
		struct tcp_visitor *v = &dev->visitors[i];

		if (v->blocked_ns && now >= v->blocked_ns) {
			v->blocked_ns = 0;
			dev->filter_stale = true;
		}
		if (!v->blocked_ns)
			continue;
		until = v->blocked_ns < until ? v->blocked_ns : until;
		program.len += drop_from(ops + program.len, v);
	}
	ops[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	if (dev->filter_stale)
		setsockopt(dev->door.listen_fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
	dev->filter_stale = false;
	return until;
}
