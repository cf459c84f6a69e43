/* UDP, which OpenBSD splices. */
#include "conformance.h"

#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

/* Two sockets, connected to each other. */
static void connect_datagrams(int family, int *one, int *other)
{
	int *sockets[] = { one, other };
	struct sockaddr_storage addresses[2] = { 0 };
	socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) :
					       sizeof(struct sockaddr_in6);

	for (int i = 0; i < 2; i++) {
		*sockets[i] = socket(family, SOCK_DGRAM, 0);
		addresses[i].ss_family = (sa_family_t)family;
		if (family == AF_INET)
			((struct sockaddr_in *)&addresses[i])->sin_addr.s_addr =
				htonl(INADDR_LOOPBACK);
		else
			((struct sockaddr_in6 *)&addresses[i])->sin6_addr = in6addr_loopback;
		MUST(bind(*sockets[i], (struct sockaddr *)&addresses[i], length) == 0);
		MUST(getsockname(*sockets[i], (struct sockaddr *)&addresses[i], &length) == 0);
	}
	for (int i = 0; i < 2; i++)
		MUST(connect(*sockets[i], (struct sockaddr *)&addresses[1 - i], length) == 0);
}

static struct ends datagram_ends(void)
{
	struct ends e;

	connect_datagrams(AF_INET, &e.client, &e.a);
	connect_datagrams(AF_INET, &e.b, &e.server);
	return e;
}

static void send_datagram(int fd, size_t size)
{
	static unsigned char bytes[65536];

	for (size_t i = 0; i < size; i++)
		bytes[i] = payload_byte(i);
	MUST(send(fd, bytes, size, 0) == (ssize_t)size);
}

static void receive_datagram(int fd, size_t size)
{
	static unsigned char bytes[65536];

	MUST(is_readable(fd, 10000));
	MUST(recv(fd, bytes, sizeof bytes, 0) == (ssize_t)size);
	for (size_t i = 0; i < size; i++)
		MUST(bytes[i] == payload_byte(i));
}

CASE(datagrams_stay_whole, OPENBSD)
{
	const size_t sizes[] = { 251, 16384, 0, 1, 2, 3, 65507, 5 };
	struct ends e = datagram_ends();

	MUST(splice_all(e.a, e.b) == 0);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		send_datagram(e.client, sizes[i]);
		receive_datagram(e.server, sizes[i]);
	}
	MUST(spliced_bytes(e.a) == 251 + 16384 + 1 + 2 + 3 + 65507 + 5);
}

CASE(datagrams_between_families, OPENBSD)
{
	struct ends e;

	connect_datagrams(AF_INET, &e.client, &e.a);
	connect_datagrams(AF_INET6, &e.b, &e.server);
	MUST(splice_all(e.a, e.b) == 0);
	send_datagram(e.client, 100);
	receive_datagram(e.server, 100);
}

CASE(datagrams_that_were_there_before, OPENBSD)
{
	struct ends e = datagram_ends();

	send_datagram(e.client, 3);
	send_datagram(e.client, 0);
	send_datagram(e.client, 4);
	MUST(is_readable(e.a, 10000));
	MUST(splice_all(e.a, e.b) == 0);
	MUST(spliced_bytes(e.a) == 7);
	receive_datagram(e.server, 3);
	receive_datagram(e.server, 0);
	receive_datagram(e.server, 4);
}

CASE(a_limit_splits_no_datagram, OPENBSD)
{
	struct ends e = datagram_ends();

	/* 1 + 3 fit exactly; the next one stays. */
	MUST(splice_most(e.a, e.b, 4) == 0);
	send_datagram(e.client, 1);
	receive_datagram(e.server, 1);
	send_datagram(e.client, 3);
	receive_datagram(e.server, 3);
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	MUST(error_of(e.a) == EFBIG);
	/* 2 + 3 do not: no error, and the second one stays. */
	MUST(splice_most(e.a, e.b, 4) == 0);
	send_datagram(e.client, 2);
	receive_datagram(e.server, 2);
	send_datagram(e.client, 3);
	receive_datagram(e.a, 3);
	MUST(error_of(e.a) == 0);
	MUST(spliced_bytes(e.a) == 2);
}

CASE(a_datagram_that_is_larger_than_the_send_buffer, OPENBSD)
{
	struct ends e = datagram_ends();
	int size = 5000;

	MUST(setsockopt(e.b, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
	MUST(splice_all(e.a, e.b) == 0);
	send_datagram(e.client, 100);
	receive_datagram(e.server, 100);
	/* The kernel doubles the size. */
	send_datagram(e.client, 60000);
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	receive_datagram(e.a, 60000);
	MUST(error_of(e.a) == EMSGSIZE);
}

CASE(datagrams_restart_the_timer, OPENBSD)
{
	struct ends e = datagram_ends();

	MUST(splice_for(e.a, e.b, 300) == 0);
	/* Also those without a byte. */
	for (int i = 0; i < 40; i++) {
		send_datagram(e.client, 0);
		receive_datagram(e.server, 0);
		usleep(15000);
	}
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	MUST(error_of(e.a) == ETIMEDOUT);
}

CASE(only_the_drain_must_be_connected, OPENBSD)
{
	struct ends e = datagram_ends();
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int source = socket(AF_INET, SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM, 0);

	MUST(bind(source, (struct sockaddr *)&address, length) == 0);
	MUST(getsockname(source, (struct sockaddr *)&address, &length) == 0);
	MUST(connect(client, (struct sockaddr *)&address, length) == 0);
	MUST_FAIL(splice_all(e.a, source), ENOTCONN);
	MUST(splice_all(source, e.b) == 0);
	send_datagram(client, 10);
	receive_datagram(e.server, 10);
	MUST_FAIL(splice_all(source, e.b), EBUSY);
	MUST(unsplice(source) == 0);
	send_datagram(client, 20);
	receive_datagram(source, 20);
}
