/* How a splice ends, and what it leaves. */
#include "conformance.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void cut(int fd)
{
	struct linger at_once = { .l_onoff = 1 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
	close(fd);
}

/* Waits until fd is not the source of a splice any more. */
static void wait_for_end(int fd, int drain)
{
	for (int tries = 0;; tries++) {
		errno = 0;
		if (splice_all(fd, drain) == 0 || errno != EBUSY)
			break;
		MUST(tries < 10000);
		usleep(1000);
	}
}

/* Neither system sends a FIN of its own. */
CASE_OF_EACH_FAMILY(end_of_stream_dissolves_and_is_left_to_the_program, BOTH)
{
	struct ends e = case_ends();
	char byte;

	MUST(splice_all(e.a, e.b) == 0);
	MUST(splice_all(e.b, e.a) == 0);
	write_payload(e.client, 0, 100000);
	shutdown(e.client, SHUT_WR);
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	MUST(read(e.a, &byte, 1) == 0);
	MUST(spliced_bytes(e.a) == 100000);
	MUST(error_of(e.a) == 0);
	/* The drain is open. */
	write_payload(e.b, 100000, 10);
	shutdown(e.b, SHUT_WR);
	MUST(read_rest(e.server, 0) == 100010);
	/* The other direction goes on. */
	write_payload(e.server, 0, 50000);
	read_payload(e.client, 0, 50000);
	shutdown(e.server, SHUT_WR);
	MUST(polled(e.b, POLLIN, 10000) & POLLIN);
	MUST(read(e.b, &byte, 1) == 0);
	shutdown(e.a, SHUT_WR);
	MUST(read_rest(e.client, 50000) == 0);
}

CASE(end_of_stream_before_the_call, BOTH)
{
	struct ends e = ends();
	char byte;

	write_payload(e.client, 0, 10);
	shutdown(e.client, SHUT_WR);
	MUST(polled(e.a, POLLIN | POLLRDHUP, 10000) & POLLIN);
	usleep(50000);
	MUST(splice_all(e.a, e.b) == 0);
	read_payload(e.server, 0, 10);
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	MUST(read(e.a, &byte, 1) == 0);
}

CASE(the_timer_of_freebsd_runs_once, FREEBSD)
{
	struct ends e = ends();
	long begun = now_ms();

	MUST(splice_for(e.a, e.b, 400) == 0);
	/* Traffic does not restart it. */
	for (int i = 0; now_ms() - begun < 300; i++) {
		write_payload(e.client, i, 1);
		read_payload(e.server, i, 1);
		usleep(10000);
	}
	wait_for_end(e.a, e.a);
	MUST(now_ms() - begun >= 400 && now_ms() - begun < 3000);
	MUST(unsplice(e.a) == 0);
	MUST(error_of(e.a) == 0);
	MUST(polled(e.a, POLLIN, 0) == 0);
	write_payload(e.client, 0, 1);
	read_payload(e.a, 0, 1);
}

CASE(the_timer_of_openbsd_restarts, OPENBSD)
{
	struct ends e = ends();
	long begun = now_ms(), last;

	MUST(splice_for(e.a, e.b, 200) == 0);
	for (int i = 0; now_ms() - begun < 600; i++) {
		write_payload(e.client, i, 1);
		read_payload(e.server, i, 1);
		usleep(5000);
	}
	last = now_ms();
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	MUST(now_ms() - last >= 150);
	MUST(error_of(e.a) == ETIMEDOUT);
	MUST(error_of(e.a) == 0);
	write_payload(e.client, 0, 1);
	read_payload(e.a, 0, 1);
}

CASE(a_read_returns_the_error_after_the_bytes, OPENBSD)
{
	struct ends e = ends();
	char byte;

	write_payload(e.client, 0, 3);
	MUST(is_readable(e.a, 10000));
	MUST(splice_most(e.a, e.b, 2) == 0);
	read_payload(e.a, 2, 1);
	MUST_FAIL(read(e.a, &byte, 1), EFBIG);
	/* It is taken. */
	MUST(error_of(e.a) == 0);
}

/* The first pass of a new splice finds the error, and ends it. */
CASE(an_error_that_nobody_took_ends_the_next_splice, OPENBSD)
{
	struct ends e = ends();

	MUST(splice_most(e.a, e.b, 1) == 0);
	write_payload(e.client, 0, 3);
	read_payload(e.server, 0, 1);
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	MUST(splice_all(e.a, e.b) == 0);
	MUST(spliced_bytes(e.a) == 0);
	MUST_FAIL(unsplice(e.a), EPROTO);
	read_payload(e.a, 1, 2);
	MUST(error_of(e.a) == EFBIG);
	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 3, 1);
	read_payload(e.server, 3, 1);
}

CASE(a_reset_of_the_source_is_an_error_of_the_source, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 0, 100);
	read_payload(e.server, 0, 100);
	cut(e.client);
	MUST(polled(e.a, POLLIN, 10000) != 0);
	MUST(error_of(e.a) == ECONNRESET);
	MUST(error_of(e.b) == 0);
	/* The drain is open. */
	write_payload(e.b, 100, 1);
	read_payload(e.server, 100, 1);
}

CASE(a_reset_of_the_drain, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	cut(e.server);
	/* Also without a byte to move. */
	if (personality == OPENBSD) {
		MUST(polled(e.a, POLLIN, 10000) & POLLIN);
		MUST(error_of(e.a) == EPIPE);
	} else {
		/* Nothing is left at the source. */
		while (polled(e.b, POLLOUT, 1000) == 0)
			;
		MUST(error_of(e.a) == 0);
	}
	MUST(error_of(e.b) == ECONNRESET);
	write_payload(e.client, 0, 1);
	read_payload(e.a, 0, 1);
}

CASE(a_reset_of_the_drain_after_its_end_of_stream, BOTH)
{
	struct ends e = ends();
	char byte;

	MUST(splice_all(e.a, e.b) == 0);
	shutdown(e.server, SHUT_WR);
	MUST(polled(e.b, POLLIN, 10000) & POLLIN);
	MUST(read(e.b, &byte, 1) == 0);
	cut(e.server);
	if (personality == OPENBSD) {
		MUST(polled(e.a, POLLIN, 10000) & POLLIN);
		MUST(error_of(e.a) == EPIPE);
	} else {
		/* It reports nothing, so the program has to look. */
		for (int tries = 0; (polled(e.b, 0, 0) & POLLERR) == 0 && tries < 100; tries++)
			usleep(10000);
		MUST(error_of(e.a) == 0);
	}
	for (int tries = 0; tries < 1000; tries++) {
		int error = error_of(e.b);

		if (error != 0) {
			MUST(error == ECONNRESET);
			return;
		}
		usleep(1000);
	}
	MUST(!"the reset is reported at the drain");
}

CASE(shutting_the_drain_down, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	MUST(shutdown(e.b, SHUT_WR) == 0);
	MUST(error_of(e.a) == (personality == OPENBSD ? EPIPE : 0));
	MUST(error_of(e.b) == 0);
	write_payload(e.client, 0, 10);
	read_payload(e.a, 0, 10);
	/* The reading half of the drain is not the splice's. */
	write_payload(e.server, 0, 10);
	read_payload(e.b, 0, 10);
}

CASE(a_drain_that_was_shut_down_before, BOTH)
{
	struct ends e = ends();

	MUST(shutdown(e.b, SHUT_WR) == 0);
	write_payload(e.client, 0, 10);
	MUST(is_readable(e.a, 10000));
	MUST(splice_all(e.a, e.b) == 0);
	MUST(error_of(e.a) == (personality == OPENBSD ? EPIPE : 0));
	MUST(spliced_bytes(e.a) == 0);
	read_payload(e.a, 0, 10);
}

CASE(shutting_the_source_down, BOTH)
{
	struct ends e = ends();
	char byte;

	MUST(splice_all(e.a, e.b) == 0);
	MUST(splice_all(e.b, e.a) == 0);
	MUST(shutdown(e.a, SHUT_RD) == 0);
	MUST_FAIL(unsplice(e.a), personality == FREEBSD ? ENOTCONN : EPROTO);
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	MUST(read(e.a, &byte, 1) == 0);
	MUST(error_of(e.a) == 0);
	write_payload(e.server, 0, 10);
	read_payload(e.client, 0, 10);
}

CASE(shutting_the_other_halves_down_does_nothing, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	MUST(shutdown(e.a, SHUT_WR) == 0);
	MUST(shutdown(e.b, SHUT_RD) == 0);
	write_payload(e.client, 0, 10);
	read_payload(e.server, 0, 10);
	MUST(unsplice(e.a) == 0);
}

CASE(closing_the_drain_leaves_the_source_usable, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	close(e.b);
	MUST(read_rest(e.server, 0) == 0);
	if (personality == OPENBSD)
		MUST(error_of(e.a) == EPIPE);
	MUST(error_of(e.a) == 0);
	write_payload(e.client, 0, 10);
	read_payload(e.a, 0, 10);
}

CASE(closing_the_source_leaves_the_drain_usable, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 0, 10);
	read_payload(e.server, 0, 10);
	close(e.a);
	MUST(read_rest(e.client, 0) == 0);
	MUST(error_of(e.b) == 0);
	write_payload(e.b, 10, 10);
	read_payload(e.server, 10, 10);
}
