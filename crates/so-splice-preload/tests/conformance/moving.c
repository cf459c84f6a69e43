/* What is moved, counted and left. */
#include "conformance.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

CASE_OF_EACH_FAMILY(what_was_there_before_is_moved_at_once, BOTH)
{
	struct ends e = case_ends();

	write_payload(e.client, 0, 1000);
	MUST(is_readable(e.a, 10000));
	MUST(splice_all(e.a, e.b) == 0);
	/* Before anything is read. */
	MUST(spliced_bytes(e.a) == 1000);
	read_payload(e.server, 0, 1000);
}

CASE(a_byte_that_is_seen_is_counted, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	for (int i = 0; i < 2000; i++) {
		write_payload(e.client, i, 1);
		read_payload(e.server, i, 1);
		MUST(spliced_bytes(e.a) == i + 1);
	}
}

CASE(a_new_splice_counts_from_zero, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 0, 10);
	read_payload(e.server, 0, 10);
	MUST(unsplice(e.a) == 0);
	MUST(spliced_bytes(e.a) == 10);
	MUST(splice_all(e.a, e.b) == 0);
	MUST(spliced_bytes(e.a) == 0);
	write_payload(e.client, 10, 5);
	read_payload(e.server, 10, 5);
	MUST(spliced_bytes(e.a) == 5);
}

/* Exactly, one less and one more than what is sent; before and after the call. */
CASE_OF_EACH_FAMILY(a_limit_is_kept_to_the_byte, BOTH)
{
	const int sent = 1000;

	for (int max = sent - 1; max <= sent + 1; max++) {
		for (int before = 0; before < 2; before++) {
			struct ends e = case_ends();
			int moved = max < sent ? max : sent;

			if (before) {
				write_payload(e.client, 0, sent);
				MUST(is_readable(e.a, 10000));
			}
			MUST(splice_most(e.a, e.b, max) == 0);
			if (!before)
				write_payload(e.client, 0, sent);
			read_payload(e.server, 0, moved);
			MUST(spliced_bytes(e.a) == moved);
			if (max > sent) {
				write_payload(e.client, sent, 2);
				read_payload(e.server, sent, 1);
				read_payload(e.a, max, 1);
			} else {
				if (personality == OPENBSD)
					MUST(polled(e.a, POLLIN, 10000) & POLLIN);
				MUST(error_of(e.a) == (personality == OPENBSD ? EFBIG : 0));
				/* Once. */
				MUST(error_of(e.a) == 0);
				MUST(error_of(e.b) == 0);
				write_payload(e.client, sent, 1);
				read_payload(e.a, max, sent + 1 - max);
			}
			MUST(splice_most(e.a, e.b, 3) == 0);
			MUST(spliced_bytes(e.a) == 0);
			close_ends(&e);
		}
	}
}

CASE(a_limit_of_one_and_none, BOTH)
{
	struct ends e = ends();

	MUST(splice_most(e.a, e.b, 1) == 0);
	write_payload(e.client, 0, 2);
	read_payload(e.server, 0, 1);
	read_payload(e.a, 1, 1);
	MUST(error_of(e.a) == (personality == OPENBSD ? EFBIG : 0));
	MUST(splice_most(e.a, e.b, 0) == 0);
	write_payload(e.client, 0, 5000000 / 100);
	read_payload(e.server, 0, 5000000 / 100);
	MUST(unsplice(e.a) == 0);
}

CASE(a_limit_leaves_nothing_anywhere_else, BOTH)
{
	struct ends e = ends();
	int sockets[] = { e.client, e.a, e.b, e.server };

	MUST(splice_most(e.a, e.b, 129) == 0);
	MUST(splice_most(e.b, e.a, 129) == 0);
	for (int i = 0; i < 129; i++) {
		write_payload(e.client, i, 1);
		read_payload(e.server, i, 1);
		write_payload(e.server, i, 1);
		read_payload(e.client, i, 1);
	}
	for (int i = 0; i < 4; i++) {
		int left = -1;

		MUST(ioctl(sockets[i], FIONREAD, &left) == 0);
		MUST(left == 0);
	}
	/* OpenBSD has left an error. */
	error_of(e.a);
	error_of(e.b);
	write_payload(e.client, 0, 1);
	read_payload(e.a, 0, 1);
	write_payload(e.server, 0, 1);
	read_payload(e.b, 0, 1);
}

/* A program that copies what follows a body, as relays do. */
CASE(a_limit_then_the_programs_own_bytes, BOTH)
{
	struct ends e = ends();

	MUST(splice_most(e.a, e.b, 100000) == 0);
	write_payload(e.client, 0, 100000);
	write_payload(e.client, 100000, 50);
	read_payload(e.server, 0, 100000);
	read_payload(e.a, 100000, 50);
	write_payload(e.b, 100000, 50);
	read_payload(e.server, 100000, 50);
}

struct flow {
	int fd;
	size_t count;
};

static void *send_flow(void *argument)
{
	struct flow *flow = argument;

	write_payload(flow->fd, 0, flow->count);
	shutdown(flow->fd, SHUT_WR);
	return NULL;
}

static void *receive_flow(void *argument)
{
	struct flow *flow = argument;

	read_payload(flow->fd, 0, flow->count);
	return NULL;
}

static void both_ways(struct ends e, size_t count)
{
	struct flow flows[] = { { e.client, count }, { e.server, count },
				{ e.client, count }, { e.server, count } };
	pthread_t threads[4];

	MUST(splice_all(e.a, e.b) == 0);
	MUST(splice_all(e.b, e.a) == 0);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, i < 2 ? send_flow : receive_flow, &flows[i]);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	MUST(spliced_bytes(e.a) == (off_t)count);
	MUST(spliced_bytes(e.b) == (off_t)count);
	close_ends(&e);
}

CASE_OF_EACH_FAMILY(bulk_both_ways, BOTH)
{
	both_ways(case_ends(), 8 << 20);
}

CASE(bulk_of_non_blocking_sockets, BOTH)
{
	struct ends e = ends();

	fcntl(e.a, F_SETFL, O_NONBLOCK);
	fcntl(e.b, F_SETFL, O_NONBLOCK);
	both_ways(e, 32 << 20);
}

CASE(bulk_through_small_buffers, BOTH)
{
	struct ends e = ends();
	int size = 4096, sockets[] = { e.client, e.a, e.b, e.server };

	for (int i = 0; i < 4; i++) {
		setsockopt(sockets[i], SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
		setsockopt(sockets[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	}
	both_ways(e, 128 << 10);
}

/* A receiver that does not read blocks the sender, and nothing is lost. */
CASE(back_pressure, BOTH)
{
	struct ends e = ends();
	size_t sent = 0;
	unsigned char byte;

	MUST(splice_all(e.a, e.b) == 0);
	fcntl(e.client, F_SETFL, O_NONBLOCK);
	for (int idle = 0; idle < 50;) {
		byte = payload_byte(sent);
		if (write(e.client, &byte, 1) == 1) {
			sent++;
			idle = 0;
			/* Whole pieces, once the first byte shows that there is room. */
			for (int i = 0; i < 4095; i++) {
				byte = payload_byte(sent);
				if (write(e.client, &byte, 1) != 1)
					break;
				sent++;
			}
		} else {
			idle++;
			usleep(2000);
		}
		if (sent > (1 << 20))
			break;
	}
	shutdown(e.client, SHUT_WR);
	read_payload(e.server, 0, sent);
	wait_for_bytes(e.a, sent);
}

CASE(the_drain_can_be_written_meanwhile, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 0, 10);
	read_payload(e.server, 0, 10);
	write_payload(e.b, 10, 10);
	read_payload(e.server, 10, 10);
	write_payload(e.client, 20, 10);
	read_payload(e.server, 20, 10);
	MUST(spliced_bytes(e.a) == 20);
}

CASE(a_socket_spliced_to_itself_echoes, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.a) == 0);
	write_payload(e.client, 0, 100000);
	read_payload(e.client, 0, 100000);
	MUST(spliced_bytes(e.a) == 100000);
}
