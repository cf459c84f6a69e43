/* Who may splice what, and which error he gets otherwise. */
#include "conformance.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

static int stream(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	MUST(fd >= 0);
	return fd;
}

static int listening(void)
{
	int fd = stream();

	MUST(listen(fd, 1) == 0);
	return fd;
}

static int by_system(int on_freebsd, int on_openbsd)
{
	return personality == FREEBSD ? on_freebsd : on_openbsd;
}

CASE_OF_EACH_FAMILY(both_directions_are_spliced_at_once, BOTH)
{
	struct ends e = case_ends();

	MUST(splice_all(e.a, e.b) == 0);
	MUST(splice_all(e.b, e.a) == 0);
	write_payload(e.client, 0, 1);
	read_payload(e.server, 0, 1);
	write_payload(e.server, 0, 1);
	read_payload(e.client, 0, 1);
	MUST(spliced_bytes(e.a) == 1 && spliced_bytes(e.b) == 1);
	MUST(unsplice(e.a) == 0 && unsplice(e.b) == 0);
	MUST(spliced_bytes(e.a) == 1 && spliced_bytes(e.b) == 1);
}

CASE(descriptors_that_are_no_sockets_are_refused, BOTH)
{
	struct ends e = ends();
	int file = open("/dev/null", O_RDWR);

	MUST_FAIL(splice_all(9999, e.b), EBADF);
	MUST_FAIL(splice_all(e.a, 9999), EBADF);
	MUST_FAIL(splice_all(file, e.b), ENOTSOCK);
	MUST_FAIL(splice_all(e.a, file), ENOTSOCK);
}

CASE(unconnected_sockets_are_refused, BOTH)
{
	struct ends e = ends();

	MUST_FAIL(splice_all(stream(), e.b), ENOTCONN);
	MUST_FAIL(splice_all(e.a, stream()), ENOTCONN);
}

CASE(listening_sockets_are_refused, BOTH)
{
	struct ends e = ends();

	MUST_FAIL(splice_all(listening(), e.b), by_system(EINVAL, EOPNOTSUPP));
	MUST_FAIL(splice_all(e.a, listening()), by_system(EINVAL, EOPNOTSUPP));
	/* It comes before "not connected". */
	MUST_FAIL(splice_all(listening(), stream()), by_system(EINVAL, EOPNOTSUPP));
	MUST_FAIL(unsplice(listening()), by_system(EINVAL, EPROTO));
}

CASE(a_spliced_socket_cannot_listen, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	MUST_FAIL(listen(e.a, 1), EINVAL);
	MUST_FAIL(listen(e.b, 1), EINVAL);
}

CASE(a_source_and_a_drain_are_spliced_once, BOTH)
{
	struct ends e = ends(), other = ends();

	MUST(splice_all(e.a, e.b) == 0);
	MUST_FAIL(splice_all(e.a, other.b), EBUSY);
	MUST_FAIL(splice_all(other.a, e.b), EBUSY);
	/* In the other role each is free. */
	MUST(splice_all(e.b, other.b) == 0);
	MUST(splice_all(other.a, e.a) == 0);
}

CASE(a_negative_limit_is_refused, BOTH)
{
	struct ends e = ends();

	MUST_FAIL(splice_most(e.a, e.b, -1), EINVAL);
	MUST_FAIL(splice_most(e.a, e.b, -3), EINVAL);
}

/* FreeBSD looks at the drain before the limit, OpenBSD after it. */
CASE(the_order_of_checks, BOTH)
{
	struct ends e = ends();

	MUST_FAIL(splice_most(e.a, 9999, -1), by_system(EBADF, EINVAL));
	MUST_FAIL(splice_most(stream(), e.b, -1), EINVAL);
	MUST(splice_all(e.a, e.b) == 0);
	/* Busy source, unconnected drain. */
	MUST_FAIL(splice_all(e.a, stream()), by_system(EBUSY, ENOTCONN));
}

CASE(the_time_is_checked_on_openbsd_only, BOTH)
{
	struct splice times[] = {
		{ .sp_idle = { .tv_sec = -1 } },
		{ .sp_idle = { .tv_usec = -1 } },
		{ .sp_idle = { .tv_usec = 1000000 } },
	};

	for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
		struct ends e = ends();
		int wanted = by_system(0, -1);

		times[i].sp_fd = e.b;
		MUST(setsockopt(e.a, SOL_SOCKET, SO_SPLICE, &times[i], sizeof times[i]) == wanted);
		MUST(wanted == 0 || errno == EINVAL);
		close_ends(&e);
	}
}

CASE(undoing_what_is_not_spliced, BOTH)
{
	struct ends e = ends();

	MUST_FAIL(unsplice(e.a), by_system(ENOTCONN, EPROTO));
	MUST(splice_all(e.a, e.b) == 0);
	/* A drain is no source. */
	MUST_FAIL(unsplice(e.b), by_system(ENOTCONN, EPROTO));
	MUST(unsplice(e.a) == 0);
	MUST_FAIL(unsplice(e.a), by_system(ENOTCONN, EPROTO));
	MUST_FAIL(unsplice(9999), EBADF);
	MUST_FAIL(unsplice(stream()), by_system(ENOTCONN, EPROTO));
}

CASE(any_negative_descriptor_undoes, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	MUST(splice_all(e.a, -77) == 0);
	write_payload(e.client, 0, 5);
	read_payload(e.a, 0, 5);
}

CASE(a_value_of_another_size, BOTH)
{
	struct ends e = ends();
	struct {
		struct splice splice;
		char more[8];
	} longer = { .splice.sp_fd = e.b };
	socklen_t sizes[] = { 0, 1, 2, 3, 4, 31 };

	for (size_t i = 0; personality == FREEBSD && i < sizeof sizes / sizeof *sizes; i++)
		MUST_FAIL(setsockopt(e.a, SOL_SOCKET, SO_SPLICE, &longer, sizes[i]), EINVAL);
	for (socklen_t size = 1; personality == OPENBSD && size < 4; size++)
		MUST_FAIL(setsockopt(e.a, SOL_SOCKET, SO_SPLICE, &longer, size), EINVAL);
	MUST(setsockopt(e.a, SOL_SOCKET, SO_SPLICE, &longer, sizeof longer) == 0);
}

CASE(an_int_is_a_drain, OPENBSD)
{
	for (socklen_t size = 4; size < sizeof(struct splice); size += 9) {
		struct ends e = ends();
		struct splice splice = { .sp_fd = e.b, .sp_max = 1 };

		MUST(setsockopt(e.a, SOL_SOCKET, SO_SPLICE, &splice, size) == 0);
		/* The rest is not looked at. */
		write_payload(e.client, 0, 100);
		read_payload(e.server, 0, 100);
		close_ends(&e);
	}
}

CASE(no_value_undoes, OPENBSD)
{
	struct ends e = ends();

	MUST_FAIL(setsockopt(e.a, SOL_SOCKET, SO_SPLICE, NULL, 0), EPROTO);
	MUST(splice_all(e.a, e.b) == 0);
	MUST(setsockopt(e.a, SOL_SOCKET, SO_SPLICE, NULL, 0) == 0);
	MUST_FAIL(unsplice(e.a), EPROTO);
}

CASE(a_bad_pointer, BOTH)
{
	struct ends e = ends();

	MUST_FAIL(setsockopt(e.a, SOL_SOCKET, SO_SPLICE, (void *)8, sizeof(struct splice)),
		  EFAULT);
}

CASE(unix_sockets_are_refused, BOTH)
{
	struct ends e = ends();
	int both[2];

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
	MUST_FAIL(splice_all(both[0], e.b), EPROTONOSUPPORT);
	MUST_FAIL(splice_all(e.a, both[0]), EPROTONOSUPPORT);
}

CASE(datagrams_on_freebsd, FREEBSD)
{
	struct ends e = ends();
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0);

	MUST_FAIL(splice_all(datagrams, e.b), EPROTONOSUPPORT);
	MUST_FAIL(splice_all(e.a, datagrams), EPROTONOSUPPORT);
	/* The protocol comes before the connection, the limit before the protocol. */
	MUST_FAIL(splice_all(stream(), datagrams), EPROTONOSUPPORT);
	MUST_FAIL(splice_most(e.a, datagrams, -1), EINVAL);
}

CASE(protocols_are_not_mixed, OPENBSD)
{
	struct ends e = ends();
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0);

	MUST_FAIL(splice_all(e.a, datagrams), EPROTONOSUPPORT);
	MUST_FAIL(splice_all(datagrams, e.b), EPROTONOSUPPORT);
	/* It comes before "not connected". */
	MUST_FAIL(splice_all(stream(), datagrams), EPROTONOSUPPORT);
}

CASE(a_connecting_drain_is_accepted, BOTH)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = stream(), filling[3], drain = stream(), server;
	struct ends e = ends();

	MUST(bind(listener, (struct sockaddr *)&address, length) == 0);
	MUST(listen(listener, 0) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	/* The queue is full, so the next connection is not made until one is accepted. */
	for (int i = 0; i < 3; i++) {
		filling[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(filling[i], (struct sockaddr *)&address, length);
	}
	fcntl(drain, F_SETFL, O_NONBLOCK);
	MUST_FAIL(connect(drain, (struct sockaddr *)&address, length), EINPROGRESS);
	MUST(splice_all(e.a, drain) == 0);
	write_payload(e.client, 0, 1000);
	for (;;) {
		struct sockaddr_in peer, own;
		socklen_t peer_length = sizeof peer, own_length = sizeof own;

		server = accept(listener, (struct sockaddr *)&peer, &peer_length);
		MUST(server >= 0);
		MUST(getsockname(drain, (struct sockaddr *)&own, &own_length) == 0);
		if (peer.sin_port == own.sin_port)
			break;
		close(server);
	}
	read_payload(server, 0, 1000);
	for (int i = 0; i < 3; i++)
		close(filling[i]);
}

CASE(the_count_is_cut_to_the_room, BOTH)
{
	struct ends e = ends();
	unsigned char count[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
	socklen_t length = 2;

	MUST(spliced_bytes(e.a) == 0);
	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 0, 258);
	read_payload(e.server, 0, 258);
	MUST(getsockopt(e.a, SOL_SOCKET, SO_SPLICE, count, &length) == 0);
	MUST(length == 2 && count[0] == 2 && count[1] == 1 && count[2] == 0xff);
	length = 100;
	MUST(getsockopt(e.a, SOL_SOCKET, SO_SPLICE, count, &length) == 0);
	MUST(length == 8);
	length = sizeof count;
	MUST_FAIL(getsockopt(9999, SOL_SOCKET, SO_SPLICE, count, &length), EBADF);
}

CASE(other_options_are_as_ever, BOTH)
{
	struct ends e = ends();
	int on = 1, value = 0;
	socklen_t length = sizeof value;

	MUST(splice_all(e.a, e.b) == 0);
	MUST(setsockopt(e.a, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0);
	MUST(getsockopt(e.a, SOL_SOCKET, SO_KEEPALIVE, &value, &length) == 0);
	MUST(value == 1);
	MUST(getsockopt(e.a, SOL_SOCKET, SO_TYPE, &value, &length) == 0);
	MUST(value == SOCK_STREAM);
}
