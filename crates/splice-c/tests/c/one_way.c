#define _GNU_SOURCE
/* so_splice(): one direction. */
#include "fails.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static int splice_to(int fd, int drain, off_t max, long idle_ms)
{
	struct splice splice = { .sp_fd = drain,
				 .sp_max = max,
				 .sp_idle = { idle_ms / 1000, idle_ms % 1000 * 1000 } };

	return so_splice(fd, &splice);
}

static void what_is_there_is_moved_and_counted(void)
{
	struct ends e = ends();

	MUST(so_splice_bytes(e.a) == 0);
	write_payload(e.client, 0, 100);
	MUST(is_readable(e.a, 10000));
	MUST(splice_to(e.a, e.b, 0, 0) == 0);
	MUST(so_splice_bytes(e.a) == 100);
	read_payload(e.server, 0, 100);
	write_payload(e.client, 100, 1000000);
	read_payload(e.server, 100, 1000000);
	MUST(so_splice_bytes(e.a) == 1000100);
	MUST(so_splice_error(e.a) == 0);
	MUST(so_unsplice(e.a) == 0);
	FAILS(so_unsplice(e.a), ENOTCONN);
	MUST(so_splice_bytes(e.a) == 1000100);
	MUST(so_splice_error(e.a) == 0);
	write_payload(e.client, 0, 10);
	read_payload(e.a, 0, 10);
	close_ends(&e);
}

static void a_limit_is_kept_to_the_byte(void)
{
	const size_t sent[] = { 9, 10, 11, 50000 };

	for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
		struct ends e = ends();
		size_t moved = sent[i] < 10 ? sent[i] : 10;

		MUST(splice_to(e.a, e.b, 10, 0) == 0);
		write_payload(e.client, 0, sent[i]);
		read_payload(e.server, 0, moved);
		MUST(is_readable(so_splice_fd(e.a), sent[i] < 10 ? 50 : 10000) == (sent[i] >= 10));
		MUST(so_splice_bytes(e.a) == (off_t)moved);
		MUST(so_splice_error(e.a) == (sent[i] < 10 ? 0 : EFBIG));
		if (sent[i] > 10)
			read_payload(e.a, 10, sent[i] - 10);
		close_ends(&e);
	}
}

static void an_idle_splice_ends(void)
{
	struct ends e = ends();

	MUST(splice_to(e.a, e.b, 0, 50) == 0);
	MUST(is_readable(so_splice_fd(e.a), 10000));
	MUST(so_splice_error(e.a) == ETIMEDOUT);
	write_payload(e.client, 0, 1);
	read_payload(e.a, 0, 1);
	close_ends(&e);
}

static void end_of_stream_is_passed_on(void)
{
	struct ends e = ends();

	MUST(splice_to(e.a, e.b, 0, 0) == 0);
	write_payload(e.client, 0, 5000);
	shutdown(e.client, SHUT_WR);
	MUST(read_rest(e.server, 0) == 5000);
	MUST(is_readable(so_splice_fd(e.a), 10000));
	MUST(so_splice_error(e.a) == 0);
	close_ends(&e);
}

static void a_reset_is_told(void)
{
	struct linger at_once = { .l_onoff = 1 };
	struct ends e = ends();

	MUST(splice_to(e.a, e.b, 0, 0) == 0);
	setsockopt(e.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
	close(e.client);
	MUST(is_readable(so_splice_fd(e.a), 10000));
	MUST(so_splice_error(e.a) == ECONNRESET);
	e.client = -1;
	close_ends(&e);
}

static void unix_streams_and_datagrams_are_spliced_too(void)
{
	int a[2], b[2];

	for (int i = 0; i < 2; i++) {
		int type = i == 0 ? SOCK_STREAM : SOCK_DGRAM;

		if (type == SOCK_STREAM) {
			MUST(socketpair(AF_UNIX, type, 0, a) == 0);
			MUST(socketpair(AF_UNIX, type, 0, b) == 0);
			MUST(splice_to(a[1], b[0], 0, 0) == 0);
			write_payload(a[0], 0, 100000);
			read_payload(b[1], 0, 100000);
		} else {
			MUST(socketpair(AF_UNIX, type, 0, a) == 0);
			MUST(socketpair(AF_UNIX, type, 0, b) == 0);
			FAILS(splice_to(a[1], b[0], 0, 0), EPROTONOSUPPORT);
		}
		for (int k = 0; k < 2; k++) {
			close(a[k]);
			close(b[k]);
		}
	}
}

static void mistakes_are_told(void)
{
	struct splice other = { .sp_fd = 0 };
	struct ends e = ends();
	int unconnected = socket(AF_INET, SOCK_STREAM, 0);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	MUST(listen(listener, 1) == 0);
	FAILS(splice_to(999, e.b, 0, 0), EBADF);
	FAILS(splice_to(e.a, 999, 0, 0), EBADF);
	FAILS(splice_to(2, e.b, 0, 0), ENOTSOCK);
	FAILS(splice_to(e.a, 2, 0, 0), ENOTSOCK);
	FAILS(splice_to(e.a, e.b, -1, 0), EINVAL);
	FAILS(splice_to(e.a, e.b, 0, -5000), EINVAL);
	FAILS(splice_to(unconnected, e.b, 0, 0), ENOTCONN);
	FAILS(splice_to(e.a, unconnected, 0, 0), ENOTCONN);
	FAILS(splice_to(listener, e.b, 0, 0), EINVAL);
	FAILS(splice_to(e.a, listener, 0, 0), EINVAL);
	FAILS(so_splice_fd(e.a), ENOTCONN);
	FAILS(so_splice_error(e.a), ENOTCONN);
	FAILS(so_splice_bytes(2), ENOTSOCK);
	FAILS(so_splice(e.a, NULL), ENOTCONN);
	FAILS(so_splice_as(e.a, &other, 9), EINVAL);
	MUST(splice_to(e.a, e.b, 0, 0) == 0);
	FAILS(splice_to(e.a, e.client, 0, 0), EBUSY);
	FAILS(splice_to(e.client, e.b, 0, 0), EBUSY);
	MUST(strstr(splice_strerror(), "drain") != NULL);
	close(unconnected);
	close(listener);
	close_ends(&e);
}

static void personalities_differ(void)
{
	struct ends e = ends();
	struct splice splice = { .sp_fd = e.b, .sp_max = 1 };

	FAILS(so_splice_as(e.a, NULL, SO_SPLICE_OPENBSD), EPROTO);
	FAILS(so_splice_as(e.a, NULL, SO_SPLICE_FREEBSD), ENOTCONN);
	MUST(so_splice_as(e.a, &splice, SO_SPLICE_FREEBSD) == 0);
	write_payload(e.client, 0, 1);
	MUST(is_readable(so_splice_fd(e.a), 10000));
	/* It leaves no error with the socket, but the library knows why. */
	MUST(so_splice_error(e.a) == EFBIG);
	MUST(so_splice_as(e.a, &splice, SO_SPLICE_OPENBSD) == 0);
	write_payload(e.client, 0, 1);
	MUST(is_readable(so_splice_fd(e.a), 10000));
	MUST(so_splice_error(e.a) == EFBIG);
	close_ends(&e);
}

static void closed_sockets_are_a_pair(void)
{
	struct ends e = ends();

	MUST(splice_to(e.a, e.b, 0, 0) == 0);
	MUST(splice_to(e.b, e.a, 0, 0) == 0);
	close(e.a);
	close(e.b);
	write_payload(e.client, 0, 300000);
	read_payload(e.server, 0, 300000);
	/* Longer than the library takes to notice. */
	usleep(200000);
	write_payload(e.client, 300000, 300000);
	read_payload(e.server, 300000, 300000);
	write_payload(e.server, 0, 7);
	shutdown(e.server, SHUT_WR);
	MUST(read_rest(e.client, 0) == 7);
	shutdown(e.client, SHUT_WR);
	MUST(read_rest(e.server, 0) == 0);
	close(e.client);
	close(e.server);
}

int main(void)
{
	alarm(300);
	MUST(splice_abi_version() == SPLICE_ABI_VERSION);
	MUST(sizeof(struct splice) == 32 && offsetof(struct splice, sp_max) == 8);
	MUST(offsetof(struct splice, sp_idle) == 16);
	MUST(sizeof(struct splice_options) == 40 && offsetof(struct splice_options, engine) == 8);
	MUST(sizeof(struct splice_result) == 24 && offsetof(struct splice_result, reason) == 16);
	what_is_there_is_moved_and_counted();
	a_limit_is_kept_to_the_byte();
	an_idle_splice_ends();
	end_of_stream_is_passed_on();
	a_reset_is_told();
	unix_streams_and_datagrams_are_spliced_too();
	mistakes_are_told();
	personalities_differ();
	closed_sockets_are_a_pair();
	return 0;
}
