#define _GNU_SOURCE
/* splice_join(): both directions. */
#include "fails.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static struct splice_options options(void)
{
	return (struct splice_options){ .size = sizeof(struct splice_options) };
}

/* Half-close one way, then the other. */
static void ends_in_order(const struct ends *e, splice_pair *pair, bool is_final)
{
	struct splice_result result;

	FAILS(splice_wait(pair, 0, &result), ETIMEDOUT);
	MUST(result.reason == SPLICE_RUNNING && result.error == 0);
	MUST(!is_readable(splice_fd(pair), 0));
	write_payload(e->client, 0, 200000);
	shutdown(e->client, SHUT_WR);
	MUST(read_rest(e->server, 0) == 200000);
	write_payload(e->server, 0, 50000);
	read_payload(e->client, 0, 50000);
	MUST(splice_counters(pair, &result) == 0);
	MUST(result.reason == SPLICE_RUNNING);
	MUST(is_final || (result.a_to_b == 200000 && result.b_to_a == 50000));
	shutdown(e->server, SHUT_WR);
	MUST(read_rest(e->client, 50000) == 0);
	MUST(is_readable(splice_fd(pair), 10000));
	MUST(splice_wait(pair, -1, &result) == 0);
	MUST(result.reason == SPLICE_END_OF_STREAM && result.error == 0);
	MUST(result.a_to_b == 200000 && result.b_to_a == 50000);
}

static void a_pair_moves_both_ways_and_ends_in_order(void)
{
	struct ends e = ends();
	splice_pair *pair;
	char why[200], cut[5];

	MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
	MUST(strcmp(splice_engine(pair, why, sizeof why), "copy") == 0);
	MUST(strstr(why, "take the sockets back") != NULL);
	splice_engine(pair, cut, sizeof cut);
	MUST(strlen(cut) == sizeof cut - 1 && strncmp(cut, why, sizeof cut - 1) == 0);
	ends_in_order(&e, pair, false);
	FAILS(splice_undo(pair, NULL), ENOTCONN);
	splice_release(pair);
	close_ends(&e);
}

static void a_final_pair_uses_every_engine(void)
{
	const char *engines[] = { NULL, "auto", "copy", "pipe", "uring" };

	for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
		struct splice_options o = options();
		struct ends e = ends();
		splice_pair *pair;

		/* Valgrind stops all threads while one waits in io_uring_enter(2). */
		if (getenv("UNDER_VALGRIND") != NULL && i == 4)
			continue;
		o.flags = SPLICE_FINAL;
		o.engine = engines[i];
		MUST(splice_join(e.a, e.b, &o, &pair) == 0);
		close(e.a);
		close(e.b);
		FAILS(splice_undo(pair, NULL), EBUSY);
		ends_in_order(&e, pair, true);
		if (i > 1)
			MUST(strcmp(splice_engine(pair, NULL, 0), engines[i]) == 0);
		splice_release(pair);
		close(e.client);
		close(e.server);
	}
}

static void limits_end_a_pair_and_the_rest_stays(void)
{
	struct splice_options o = options();
	struct splice_result result;
	struct ends e = ends();
	splice_pair *pair;

	o.max_bytes = 1000;
	MUST(splice_join(e.a, e.b, &o, &pair) == 0);
	write_payload(e.client, 0, 1500);
	read_payload(e.server, 0, 1000);
	MUST(splice_wait(pair, 10000, &result) == 0);
	MUST(result.reason == SPLICE_BYTE_LIMIT && result.error == EFBIG);
	MUST(result.a_to_b == 1000 && result.b_to_a == 0);
	read_payload(e.a, 1000, 500);
	write_payload(e.server, 0, 10);
	read_payload(e.b, 0, 10);
	splice_release(pair);

	o.max_bytes = 0;
	o.idle_ms = 150;
	MUST(splice_join(e.a, e.b, &o, &pair) == 0);
	/* One direction keeps the other one from being idle. */
	for (int i = 0; i < 20; i++) {
		write_payload(e.client, i, 1);
		read_payload(e.server, i, 1);
		usleep(20000);
	}
	FAILS(splice_wait(pair, 0, NULL), ETIMEDOUT);
	MUST(splice_wait(pair, 10000, &result) == 0);
	MUST(result.reason == SPLICE_IDLE && result.error == ETIMEDOUT && result.a_to_b == 20);
	splice_release(pair);
	close_ends(&e);
}

static void a_reset_ends_a_pair(void)
{
	struct linger at_once = { .l_onoff = 1 };

	for (int final = 0; final < 2; final++) {
		struct splice_options o = options();
		struct splice_result result;
		struct ends e = ends();
		splice_pair *pair;

		o.flags = final ? SPLICE_FINAL : 0;
		MUST(splice_join(e.a, e.b, &o, &pair) == 0);
		setsockopt(e.server, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
		close(e.server);
		MUST(splice_wait(pair, 10000, &result) == 0);
		MUST(result.reason == SPLICE_RESET && result.error == ECONNRESET);
		splice_release(pair);
		e.server = -1;
		close_ends(&e);
	}
}

static void closed_sockets_go_on_without_the_caller(void)
{
	struct splice_result result;
	struct ends e = ends();
	splice_pair *pair;

	MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
	write_payload(e.client, 0, 100);
	read_payload(e.server, 0, 100);
	close(e.a);
	close(e.b);
	/* The library looks when it has time; then the sockets cannot be taken back. */
	for (int i = 0; i < 1000; i++) {
		char why[200];

		splice_engine(pair, why, sizeof why);
		if (strstr(why, "take the sockets back") == NULL)
			break;
		MUST(i < 999);
		usleep(10000);
	}
	FAILS(splice_undo(pair, NULL), EBUSY);
	write_payload(e.client, 100, 100000);
	shutdown(e.client, SHUT_WR);
	MUST(read_rest(e.server, 100) == 100000);
	shutdown(e.server, SHUT_WR);
	MUST(splice_wait(pair, 10000, &result) == 0);
	MUST(result.reason == SPLICE_END_OF_STREAM && result.a_to_b == 100100);
	splice_release(pair);
	close(e.client);
	close(e.server);
}

static void a_detached_pair_goes_on(void)
{
	for (int final = 0; final < 2; final++) {
		struct splice_options o = options();
		struct ends e = ends();
		splice_pair *pair;

		o.flags = final ? SPLICE_FINAL : 0;
		MUST(splice_join(e.a, e.b, &o, &pair) == 0);
		splice_detach(pair);
		close(e.a);
		close(e.b);
		write_payload(e.client, 0, 100000);
		shutdown(e.client, SHUT_WR);
		MUST(read_rest(e.server, 0) == 100000);
		shutdown(e.server, SHUT_WR);
		MUST(read_rest(e.client, 0) == 0);
		close(e.client);
		close(e.server);
	}
	splice_release(NULL);
	splice_detach(NULL);
}

static void a_refused_engine_leaves_the_connections(void)
{
	struct splice_options o = options();
	struct ends e = ends();
	int local[2];
	splice_pair *pair;

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, local) == 0);
	o.flags = SPLICE_FINAL;
	o.engine = "sockmap";
	FAILS(splice_join(e.a, local[0], &o, &pair), EOPNOTSUPP);
	MUST(strstr(splice_strerror(), "sockmap") != NULL);
	write_payload(e.client, 0, 10);
	MUST(is_readable(e.a, 10000));
	read_payload(e.a, 0, 10);
	MUST(splice_join(e.a, local[0], NULL, &pair) == 0);
	write_payload(e.client, 0, 10);
	read_payload(local[1], 0, 10);
	splice_release(pair);
	close(local[0]);
	close(local[1]);
	close_ends(&e);
}

/* Whatever fails on the way, and whatever has arrived before. */
static void a_pair_that_cannot_start_loses_nothing(void)
{
	enum { LIMIT = 200, ENOUGH = 12 };
	struct rlimit before, few;
	struct ends e = ends();
	int held[LIMIT], count = 0;
	bool has_failed = false, has_moved = false;
	size_t from = 0;

	getrlimit(RLIMIT_NOFILE, &before);
	few = before;
	few.rlim_cur = LIMIT;
	MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
	while ((held[count] = dup(0)) != -1)
		count++;
	for (int available = 0; available <= ENOUGH; available++) {
		struct splice_result result;
		splice_pair *pair;

		write_payload(e.client, from, 10);
		MUST(is_readable(e.a, 10000));
		if (splice_join(e.a, e.b, NULL, &pair) == -1) {
			MUST(errno == EMFILE);
			has_failed = true;
			MUST(!is_readable(e.server, 5));
			read_payload(e.a, from, 10);
		} else {
			MUST(splice_counters(pair, &result) == 0);
			MUST(result.a_to_b == 10 && result.b_to_a == 0);
			if (result.reason != SPLICE_RUNNING) {
				MUST(result.reason == SPLICE_FAILED && result.error == EMFILE);
				MUST(is_readable(splice_fd(pair), 0));
				FAILS(splice_undo(pair, NULL), ENOTCONN);
				has_moved = true;
			}
			read_payload(e.server, from, 10);
			splice_release(pair);
		}
		from += 10;
		close(held[--count]);
	}
	MUST(has_failed && has_moved);
	while (count > 0)
		close(held[--count]);
	setrlimit(RLIMIT_NOFILE, &before);
	close_ends(&e);
}

/* A program that reads it has made a mistake, but does not wait for ever. */
static void the_end_stays_readable(void)
{
	struct ends e = ends();
	splice_pair *pair;
	uint64_t value;

	MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
	MUST(splice_undo(pair, NULL) == 0);
	for (int i = 0; i < 3; i++)
		MUST(read(splice_fd(pair), &value, sizeof value) == sizeof value);
	MUST(is_readable(splice_fd(pair), 0));
	MUST(splice_wait(pair, -1, NULL) == 0);
	splice_release(pair);
	close_ends(&e);
}

static void mistakes_are_told(void)
{
	struct {
		struct splice_options known;
		long later;
	} longer = { .known.size = sizeof longer };
	struct splice_options o = options();
	struct ends e = ends();
	int unconnected = socket(AF_INET, SOCK_STREAM, 0);
	splice_pair *pair = NULL;

	FAILS(splice_join(999, e.b, NULL, &pair), EBADF);
	FAILS(splice_join(e.a, 2, NULL, &pair), ENOTSOCK);
	FAILS(splice_join(e.a, unconnected, NULL, &pair), ENOTCONN);
	FAILS(splice_join(e.a, e.b, NULL, NULL), EFAULT);
	o.size = 4;
	FAILS(splice_join(e.a, e.b, &o, &pair), EINVAL);
	o = options();
	o.flags = 6;
	FAILS(splice_join(e.a, e.b, &o, &pair), EINVAL);
	o = options();
	o.engine = "copy";
	FAILS(splice_join(e.a, e.b, &o, &pair), EINVAL);
	MUST(strstr(splice_strerror(), "SPLICE_FINAL") != NULL);
	o.flags = SPLICE_FINAL;
	o.engine = "fast";
	FAILS(splice_join(e.a, e.b, &o, &pair), EINVAL);
	MUST(strstr(splice_strerror(), "segment") != NULL);
	o.size = 0xaaaaaaaa;
	FAILS(splice_join(e.a, e.b, &o, &pair), EINVAL);
	/* One socket echoes only with so_splice(). */
	write_payload(e.client, 0, 10);
	MUST(is_readable(e.a, 10000));
	int same = dup(e.a);
	o = options();
	for (int final = 0; final < 2; final++) {
		o.flags = final ? SPLICE_FINAL : 0;
		FAILS(splice_join(e.a, same, &o, &pair), EINVAL);
	}
	close(same);
	MUST(!is_readable(e.client, 20));
	read_payload(e.a, 0, 10);
	/* It was compiled with a later header, and uses what is new there. */
	longer.later = 1;
	FAILS(splice_join(e.a, e.b, &longer.known, &pair), EINVAL);
	longer.later = 0;
	MUST(splice_join(e.a, e.b, &longer.known, &pair) == 0);
	splice_release(pair);
	/* An earlier one had only these. */
	o = (struct splice_options){ .size = 8 };
	MUST(splice_join(e.a, e.b, &o, &pair) == 0);
	splice_release(pair);
	/* Released without an end: undone. */
	write_payload(e.client, 0, 10);
	read_payload(e.a, 0, 10);
	/* Two at once would tear the streams apart. */
	MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
	FAILS(splice_join(e.a, e.b, NULL, &pair), EBUSY);
	o = options();
	o.flags = SPLICE_FINAL;
	FAILS(splice_join(e.b, e.client, &o, &pair), EBUSY);
	FAILS(so_splice(e.a, &(struct splice){ .sp_fd = e.server }), EBUSY);
	splice_release(pair);
	for (int domain = 0; domain < 2; domain++) {
		int datagrams[2];

		if (domain == 0)
			MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams) == 0);
		else
			datagrams[0] = datagrams[1] = socket(AF_INET, SOCK_DGRAM, 0);
		FAILS(splice_join(datagrams[0], datagrams[1], NULL, &pair), EPROTONOSUPPORT);
	}
	close(unconnected);
	close_ends(&e);
}

int main(void)
{
	alarm(300);
	signal(SIGPIPE, SIG_IGN);
	a_pair_moves_both_ways_and_ends_in_order();
	a_final_pair_uses_every_engine();
	limits_end_a_pair_and_the_rest_stays();
	a_reset_ends_a_pair();
	closed_sockets_go_on_without_the_caller();
	a_detached_pair_goes_on();
	a_refused_engine_leaves_the_connections();
	a_pair_that_cannot_start_loses_nothing();
	the_end_stays_readable();
	mistakes_are_told();
	return 0;
}
