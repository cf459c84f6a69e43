/* dup, close, fork, exec and threads. */
#include "conformance.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int duplicate(int how, int fd)
{
	int free_fd = fcntl(fd, F_DUPFD, 500);

	switch (how) {
	case 0:
		close(free_fd);
		return dup(fd);
	case 1:
		return dup2(fd, free_fd);
	case 2:
		return dup3(fd, free_fd, O_CLOEXEC);
	case 3:
		return free_fd;
	default:
		close(free_fd);
		return fcntl(fd, F_DUPFD_CLOEXEC, 0);
	}
}

enum { WAYS_TO_DUPLICATE = 5 };

CASE(every_descriptor_names_the_splice, BOTH)
{
	for (int how = 0; how < WAYS_TO_DUPLICATE; how++) {
		for (int before = 0; before < 2; before++) {
			struct ends e = ends();
			int other = before ? duplicate(how, e.a) : -1;

			MUST(splice_all(e.a, e.b) == 0);
			if (!before)
				other = duplicate(how, e.a);
			MUST_FAIL(splice_all(other, e.server), EBUSY);
			MUST(polled(other, POLLIN, 20) == 0);
			write_payload(e.client, 0, 10);
			read_payload(e.server, 0, 10);
			MUST(spliced_bytes(other) == 10);
			/* Not the last one. */
			close(e.a);
			write_payload(e.client, 10, 10);
			read_payload(e.server, 10, 10);
			MUST(unsplice(other) == 0);
			write_payload(e.client, 20, 10);
			read_payload(other, 20, 10);
			close(other);
			e.a = -1;
			close_ends(&e);
		}
	}
}

CASE(the_last_close_of_a_source_dissolves, BOTH)
{
	struct ends e = ends();
	int other = dup(e.a);

	MUST(splice_all(e.a, e.b) == 0);
	close(e.a);
	write_payload(e.client, 0, 10);
	read_payload(e.server, 0, 10);
	close(other);
	MUST(read_rest(e.client, 0) == 0);
	/* The drain may be spliced again. */
	struct ends next = ends();

	MUST(splice_all(next.a, e.b) == 0);
	write_payload(next.client, 10, 10);
	read_payload(e.server, 10, 10);
}

CASE(a_range_of_descriptors_is_closed, BOTH)
{
	struct ends e = ends();
	int source = fcntl(e.a, F_DUPFD, 600), drain = fcntl(e.b, F_DUPFD, 601);

	close(e.a);
	close(e.b);
	MUST(splice_all(source, drain) == 0);
	MUST(splice_all(drain, source) == 0);
	MUST(close_range(600, 610, 0) == 0);
	MUST(read_rest(e.client, 0) == 0);
	MUST(read_rest(e.server, 0) == 0);
}

CASE(a_stream_of_stdio_is_closed, BOTH)
{
	struct ends e = ends();
	FILE *stream = fdopen(e.a, "r+");

	MUST(splice_all(e.a, e.b) == 0);
	fclose(stream);
	MUST(read_rest(e.client, 0) == 0);
}

CASE(a_descriptor_that_is_replaced_is_closed, BOTH)
{
	struct ends e = ends();
	int nothing = open("/dev/null", O_RDWR);

	MUST(splice_all(e.a, e.b) == 0);
	MUST(dup2(nothing, e.a) == e.a);
	MUST(read_rest(e.client, 0) == 0);
	MUST_FAIL(unsplice(e.a), ENOTSOCK);
}

static void *close_both(void *argument)
{
	struct ends *e = argument;

	close(e->a);
	close(e->b);
	return NULL;
}

CASE(another_thread_closes_in_full_flow, BOTH)
{
	int count = rounds(1000) / 10;

	for (int round = 0; round < count; round++) {
		struct ends e = ends();
		pthread_t thread;
		char bytes[10000] = { 0 };
		size_t sent = 0, got = 0;
		ssize_t moved;

		MUST(splice_all(e.a, e.b) == 0);
		MUST(splice_all(e.b, e.a) == 0);
		for (int i = 0; i < 20; i++)
			sent += (size_t)send(e.client, bytes, sizeof bytes, 0);
		usleep((useconds_t)round * 37 % 500);
		pthread_create(&thread, NULL, close_both, &e);
		while ((moved = read(e.server, bytes, sizeof bytes)) > 0)
			got += (size_t)moved;
		pthread_join(thread, NULL);
		MUST(got <= sent);
		/* The client's connection has ended, too. */
		while ((moved = read(e.client, bytes, sizeof bytes)) > 0)
			;
		MUST(moved == 0 || errno == ECONNRESET);
		close(e.client);
		close(e.server);
	}
}

static void wait_for(pid_t child)
{
	int status = -1;

	MUST(child > 0);
	MUST(waitpid(child, &status, 0) == child);
	MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

struct flow {
	int fd;
	volatile bool stops;
	size_t bytes;
	uint64_t sum;
};

static void *sum_up(void *argument)
{
	struct flow *flow = argument;
	unsigned char bytes[4096];
	ssize_t got;

	while ((got = read(flow->fd, bytes, sizeof bytes)) > 0) {
		for (ssize_t i = 0; i < got; i++)
			flow->sum += bytes[i];
		flow->bytes += (size_t)got;
	}
	MUST(got == 0);
	return NULL;
}

static void *keep_sending(void *argument)
{
	struct flow *flow = argument;

	while (!flow->stops) {
		write_payload(flow->fd, flow->bytes, 3000);
		flow->bytes += 3000;
	}
	shutdown(flow->fd, SHUT_WR);
	return NULL;
}

static void *keep_receiving(void *argument)
{
	struct flow *flow = argument;

	flow->bytes = read_rest(flow->fd, 0);
	return NULL;
}

/* The parent's splice is in full flow, so its threads hold locks as it forks. */
CASE(a_child_splices_and_the_parent_goes_on, BOTH)
{
	struct ends e = ends();
	struct flow up = { .fd = e.client }, down = { .fd = e.server };
	pthread_t sending, receiving;
	char byte;

	MUST(splice_all(e.a, e.b) == 0);
	pthread_create(&sending, NULL, keep_sending, &up);
	pthread_create(&receiving, NULL, keep_receiving, &down);
	for (int i = 0; i < 50; i++) {
		pid_t child = fork();

		if (child == 0) {
			struct ends own = ends();

			alarm(20);
			MUST(splice_all(own.a, own.b) == 0);
			write_payload(own.client, 0, 1000);
			read_payload(own.server, 0, 1000);
			MUST(spliced_bytes(own.a) == 1000);
			_exit(0);
		}
		wait_for(child);
	}
	up.stops = true;
	pthread_join(sending, NULL);
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	MUST(read(e.a, &byte, 1) == 0);
	shutdown(e.b, SHUT_WR);
	pthread_join(receiving, NULL);
	MUST(up.bytes == down.bytes && spliced_bytes(e.a) == (off_t)up.bytes);
}

/* A daemon's way: each connection in a child of its own, which closes what is not its. */
CASE(a_child_serves_a_connection, BOTH)
{
	for (int i = 0; i < 10; i++) {
		struct ends e = ends();
		pid_t child = fork();

		if (child == 0) {
			char byte;

			alarm(20);
			close(e.client);
			close(e.server);
			MUST(splice_all(e.a, e.b) == 0);
			MUST(polled(e.a, POLLIN, 10000) & POLLIN);
			MUST(read(e.a, &byte, 1) == 0);
			shutdown(e.b, SHUT_WR);
			_exit(0);
		}
		close(e.a);
		close(e.b);
		write_payload(e.client, 0, 50000);
		shutdown(e.client, SHUT_WR);
		MUST(read_rest(e.server, 0) == 50000);
		wait_for(child);
		close(e.client);
		close(e.server);
	}
}

CASE(a_child_keeps_no_connection_open, BOTH)
{
	struct ends e = ends();
	int to_child[2];
	pid_t child;

	MUST(pipe(to_child) == 0);
	MUST(splice_all(e.a, e.b) == 0);
	child = fork();
	if (child == 0) {
		char byte;

		alarm(20);
		close(to_child[1]);
		close_ends(&e);
		_exit(read(to_child[0], &byte, 1) == 0 ? 0 : 1);
	}
	MUST(unsplice(e.a) == 0);
	close(e.a);
	close(e.b);
	MUST(read_rest(e.client, 0) == 0);
	MUST(read_rest(e.server, 0) == 0);
	close(to_child[1]);
	wait_for(child);
}

/* The child of vfork(2) closes in its own table, whatever it shares with the parent. */
CASE(a_program_is_started_and_the_splice_goes_on, BOTH)
{
	struct ends e = ends();
	pid_t child;

	MUST(splice_all(e.a, e.b) == 0);
	child = vfork();
	if (child == 0) {
		close(e.a);
		close(e.b);
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	wait_for(child);
	write_payload(e.client, 0, 1000);
	read_payload(e.server, 0, 1000);
	MUST(unsplice(e.a) == 0);
}

/* A child reads beside the splice of its parent, and each byte goes to one of them. */
CASE(a_child_reads_what_the_parent_does_not_splice, BOTH)
{
	enum { NUMBERS = 60000 };
	struct ends e = ends();
	struct flow down = { .fd = e.server };
	uint64_t sum = 0, seen[2] = { 0, 0 };
	int from_child[2];
	pthread_t receiving;
	pid_t child;

	MUST(pipe(from_child) == 0);
	MUST(splice_all(e.a, e.b) == 0);
	child = fork();
	if (child == 0) {
		unsigned char bytes[64];
		ssize_t got;

		alarm(30);
		close(e.client);
		while ((got = read(e.a, bytes, sizeof bytes)) > 0) {
			for (ssize_t i = 0; i < got; i++)
				seen[0] += bytes[i];
			seen[1] += (uint64_t)got;
		}
		_exit(write(from_child[1], seen, sizeof seen) == sizeof seen ? 0 : 1);
	}
	pthread_create(&receiving, NULL, sum_up, &down);
	for (uint32_t number = 0; number < NUMBERS; number++) {
		for (uint32_t left = number; left > 0; left >>= 8)
			sum += left & 0xff;
		MUST(send(e.client, &number, sizeof number, 0) == sizeof number);
	}
	shutdown(e.client, SHUT_WR);
	wait_for(child);
	MUST(read(from_child[0], seen, sizeof seen) == sizeof seen);
	MUST(polled(e.a, POLLIN, 10000) & POLLIN);
	shutdown(e.b, SHUT_WR);
	pthread_join(receiving, NULL);
	MUST(seen[1] + down.bytes == NUMBERS * sizeof(uint32_t));
	MUST(seen[0] + down.sum == sum);
	MUST(spliced_bytes(e.a) == (off_t)down.bytes);
}

/* A splice ends with the program, and its descriptors go on at the same byte. */
CASE(execve_gives_the_sockets_to_the_next_program, BOTH)
{
	struct ends e = ends();
	int source = dup(e.a), drain = dup(e.b);
	char command[100];
	pid_t child;

	snprintf(command, sizeof command, "exec cat <&%d >&%d", source, drain);
	child = fork();
	if (child == 0) {
		alarm(20);
		MUST(splice_all(source, drain) == 0);
		wait_for_bytes(source, 100);
		execl("/bin/bash", "bash", "-c", command, (char *)NULL);
		/* That of BusyBox. Others take no two digits. */
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(1);
	}
	close(source);
	close(drain);
	close(e.a);
	close(e.b);
	write_payload(e.client, 0, 100);
	read_payload(e.server, 0, 100);
	write_payload(e.client, 100, 1000);
	read_payload(e.server, 100, 1000);
	shutdown(e.client, SHUT_WR);
	MUST(read_rest(e.server, 1100) == 0);
	wait_for(child);
}

static void *splice_and_undo(void *argument)
{
	(void)argument;
	for (int i = 0; i < 50; i++) {
		struct ends e = ends();

		MUST(splice_all(e.a, e.b) == 0);
		write_payload(e.client, 0, 3000);
		read_payload(e.server, 0, 3000);
		MUST(spliced_bytes(e.a) == 3000);
		MUST(unsplice(e.a) == 0);
		close_ends(&e);
	}
	return NULL;
}

CASE(many_threads, BOTH)
{
	pthread_t threads[8];

	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, splice_and_undo, NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
}

static void *undo_too(void *argument)
{
	long undone = unsplice(*(int *)argument) == 0;

	return (void *)undone;
}

/* One of two wins, the other one finds nothing to undo. */
CASE(two_threads_undo_at_once, BOTH)
{
	for (int i = 0; i < 200; i++) {
		struct ends e = ends();
		pthread_t thread;
		void *other;
		int undone;

		MUST(splice_all(e.a, e.b) == 0);
		pthread_create(&thread, NULL, undo_too, &e.a);
		undone = unsplice(e.a) == 0;
		pthread_join(thread, &other);
		MUST(undone + (int)(long)other == 1);
		close_ends(&e);
	}
}

CASE(two_thousand_at_once, BOTH)
{
	enum { RELAYS = 1000 };
	static struct ends all[RELAYS];
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	/* Four sockets each, and two duplicates for each of two splices. */
	MUST(limit.rlim_cur >= 8 * RELAYS + 200);
	for (int i = 0; i < RELAYS; i++) {
		all[i] = ends();
		MUST(splice_all(all[i].a, all[i].b) == 0);
		MUST(splice_all(all[i].b, all[i].a) == 0);
	}
	for (int i = 0; i < RELAYS; i++) {
		write_payload(all[i].client, i, 100);
		write_payload(all[i].server, i, 50);
	}
	for (int i = 0; i < RELAYS; i++) {
		read_payload(all[i].server, i, 100);
		read_payload(all[i].client, i, 50);
		MUST(spliced_bytes(all[i].a) == 100 && spliced_bytes(all[i].b) == 50);
	}
	for (int i = 0; i < RELAYS; i++) {
		close(all[i].a);
		close(all[i].b);
		MUST(read_rest(all[i].client, 0) == 0);
		MUST(read_rest(all[i].server, 0) == 0);
	}
}
