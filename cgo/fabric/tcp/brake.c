/*
 * The brake by address: who connects too often without being let in is kept out by the kernel for a moment, where it costs nothing
 * here. Those of other addresses come in meanwhile.
 */
#include "tcp.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

enum {
	EACH_MS = 50,   /* between connections of an address that come to nothing, on average */
	BURST = 512,    /* of them at once */
	KEPT_MS = 1000, /* for an address that goes on; a client's kernel repeats its request after as long */
	SYN = 2,
	FLAGS = 13, /* in a TCP header, where the packet begins */
	SOURCE = 8, /* in an IP header: the network of IPv6, the word before the address and the address of IPv4 */
	EACH_OPS = 7,
};

/* Returns whom an address is counted as: itself, of IPv6 its network, which one host has whole. */
static struct tcp_visitor whose(const struct sockaddr_storage *from)
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

/* Finds a visitor, or makes it in the place of the one with the least to pay for. */
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

bool tcp_may_enter(struct tcp_device *dev, const struct sockaddr_storage *from, uint64_t now)
{
	const uint64_t each = EACH_MS * 1000000ull;
	struct tcp_visitor *v = find(dev, whose(from));

	if (v->paid_ns < now)
		v->paid_ns = now;
	if (v->paid_ns < now + BURST * each) {
		v->paid_ns += each;
		return true;
	}
	v->kept_ns = now + KEPT_MS * 1000000ull;
	dev->kept_change = true;
	return false;
}

void tcp_entered(struct tcp_device *dev, const struct sockaddr_storage *from)
{
	struct tcp_visitor *v = find(dev, whose(from));

	if (v->paid_ns)
		v->paid_ns -= EACH_MS * 1000000ull;
}

/* Appends to a program that it drops what a visitor sends. Returns how many operations these are. */
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

/* Where the kernel has no filters, each is turned away after it was accepted. Connections, which inherit the program, go on. */
uint64_t tcp_keep_out(struct tcp_device *dev, uint64_t now, uint64_t until)
{
	struct sock_filter ops[4 + TCP_MAX_VISITORS * EACH_OPS] = {
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, FLAGS),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, SYN, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
	};
	struct sock_fprog program = {.len = 3, .filter = ops};

	for (int i = 0; i < TCP_MAX_VISITORS; i++) {
		struct tcp_visitor *v = &dev->visitors[i];

		if (v->kept_ns && now >= v->kept_ns) {
			v->kept_ns = 0;
			dev->kept_change = true;
		}
		if (!v->kept_ns)
			continue;
		until = v->kept_ns < until ? v->kept_ns : until;
		program.len += drop_from(ops + program.len, v);
	}
	ops[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	if (dev->kept_change)
		setsockopt(dev->listen_fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
	dev->kept_change = false;
	return until;
}
