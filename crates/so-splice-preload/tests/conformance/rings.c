/* Splices through which bytes come back. */
#include "conformance.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Splices `count` connections into a ring: what arrives at one goes out on the next. */
static void make_ring(int sockets[][2], int count)
{
	for (int i = 0; i < count; i++)
		connect_pair(&sockets[i][0], &sockets[i][1]);
	for (int i = 0; i < count; i++)
		MUST(splice_all(sockets[i][1], sockets[(i + 1) % count][0]) == 0);
}

static void ends_with_eloop(int sockets[][2], int count)
{
	int place = -1;
	off_t moved = 0;

	make_ring(sockets, count);
	/* From the first to its peer, which is a source. */
	MUST(send(sockets[0][0], "round", 5, 0) == 5);
	for (int tries = 0; place < 0 && tries < 10000; tries++) {
		for (int i = 0; i < count && place < 0; i++)
			if (error_of(sockets[i][1]) == ELOOP)
				place = i;
		usleep(1000);
	}
	MUST(place >= 0);
	for (int i = 0; i < count; i++)
		moved += spliced_bytes(sockets[i][1]);
	MUST(moved == 128 * 5);
	/* The bytes are where they were seen too often. */
	char bytes[6] = "";

	MUST(recv(sockets[place][1], bytes, 5, MSG_WAITALL) == 5);
	MUST(strcmp(bytes, "round") == 0);
}

CASE(a_ring_of_two_ends, OPENBSD)
{
	int sockets[2][2];

	ends_with_eloop(sockets, 2);
}

CASE(a_ring_of_ten_ends, OPENBSD)
{
	int sockets[10][2];

	ends_with_eloop(sockets, 10);
}

CASE(both_ends_of_one_connection, OPENBSD)
{
	int one, other;
	char bytes[5] = "";

	connect_pair(&one, &other);
	MUST(splice_all(one, other) == 0);
	MUST(send(other, "foo\n", 4, 0) == 4);
	/* `other` sends to `one`, whose bytes go to `other`: it needs no second splice. */
	MUST(polled(one, POLLIN, 10000) & POLLIN);
	MUST(recv(one, bytes, 4, MSG_WAITALL) == 4 && strcmp(bytes, "foo\n") == 0);
	MUST_FAIL(recv(one, bytes, 4, 0), ELOOP);
}

/* It has no end, but the process has. */
static void goes_round_until_killed(int sockets[][2], int count)
{
	pid_t child = fork();
	int status;

	MUST(child >= 0);
	if (child == 0) {
		make_ring(sockets, count);
		MUST(send(sockets[0][0], "round", 5, 0) == 5);
		wait_for_bytes(sockets[0][1], 5 * 1000);
		MUST(error_of(sockets[0][1]) == 0);
		alarm(1);
		for (;;)
			pause();
	}
	MUST(waitpid(child, &status, 0) == child);
	MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
}

CASE(a_ring_of_two_goes_on, FREEBSD)
{
	int sockets[2][2];

	goes_round_until_killed(sockets, 2);
}

CASE(a_ring_of_ten_goes_on, FREEBSD)
{
	int sockets[10][2];

	goes_round_until_killed(sockets, 10);
}

CASE(a_ring_is_stopped_by_undoing, FREEBSD)
{
	int sockets[2][2];
	char bytes[6] = "";

	make_ring(sockets, 2);
	MUST(send(sockets[0][0], "round", 5, 0) == 5);
	wait_for_bytes(sockets[0][1], 500);
	MUST(unsplice(sockets[0][1]) == 0);
	MUST(recv(sockets[0][1], bytes, 5, MSG_WAITALL) == 5);
	MUST(strcmp(bytes, "round") == 0);
}

CASE(a_ring_of_datagrams_ends, OPENBSD)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int source = socket(AF_INET, SOCK_DGRAM, 0), drain = socket(AF_INET, SOCK_DGRAM, 0);
	char bytes[10] = "";

	MUST(bind(source, (struct sockaddr *)&address, length) == 0);
	MUST(getsockname(source, (struct sockaddr *)&address, &length) == 0);
	MUST(connect(drain, (struct sockaddr *)&address, length) == 0);
	MUST(splice_all(source, drain) == 0);
	MUST(send(drain, "foo\n", 4, 0) == 4);
	MUST(polled(source, POLLIN, 10000) & POLLIN);
	MUST(recv(source, bytes, sizeof bytes, 0) == 4 && strcmp(bytes, "foo\n") == 0);
	MUST_FAIL(recv(source, bytes, sizeof bytes, 0), ELOOP);
}

CASE(a_ring_through_a_socket_of_all_addresses_ends, OPENBSD)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	int source = socket(AF_INET, SOCK_DGRAM, 0), drain = socket(AF_INET, SOCK_DGRAM, 0);

	MUST(bind(source, (struct sockaddr *)&address, length) == 0);
	MUST(getsockname(source, (struct sockaddr *)&address, &length) == 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	MUST(connect(drain, (struct sockaddr *)&address, length) == 0);
	MUST(splice_all(source, drain) == 0);
	MUST(send(drain, "foo\n", 4, 0) == 4);
	MUST(polled(source, POLLIN, 10000) & POLLIN);
	MUST(error_of(source) == ELOOP);
}
