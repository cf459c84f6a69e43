#define _GNU_SOURCE
/* Taking the sockets back in full flow: every byte is accounted for. */
#include "fails.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

/* How often; the environment may say CONFORMANCE_ROUNDS. */
enum { ROUNDS = 1000 };

struct writer {
	int fd;
	size_t piece;
	size_t sent;
	atomic_bool stops;
};

static void *write_until_told(void *argument)
{
	struct writer *writer = argument;

	while (!atomic_load(&writer->stops)) {
		write_payload(writer->fd, writer->sent, writer->piece);
		writer->sent += writer->piece;
	}
	shutdown(writer->fd, SHUT_WR);
	return NULL;
}

struct reader {
	int fd;
	size_t got;
};

static void *read_to_end(void *argument)
{
	struct reader *reader = argument;

	reader->got = read_rest(reader->fd, 0);
	return NULL;
}

static void once(int round, bool is_pair)
{
	struct ends e = ends();
	struct writer up = { .fd = e.client, .piece = 1 + (size_t)round * 7919 % 70000 };
	struct writer down = { .fd = e.server, .piece = 1 + (size_t)round * 104729 % 9000 };
	struct reader at_server = { .fd = e.server }, at_client = { .fd = e.client };
	struct splice splice = { .sp_fd = e.b };
	struct splice_result result;
	pthread_t threads[4];
	splice_pair *pair = NULL;
	uint64_t moved;

	if (round % 2 == 0) {
		fcntl(e.a, F_SETFL, O_NONBLOCK);
		fcntl(e.b, F_SETFL, O_NONBLOCK);
	}
	MUST(is_pair ? splice_join(e.a, e.b, NULL, &pair) == 0 : so_splice(e.a, &splice) == 0);
	pthread_create(&threads[0], NULL, write_until_told, &up);
	pthread_create(&threads[1], NULL, read_to_end, &at_server);
	if (is_pair) {
		pthread_create(&threads[2], NULL, write_until_told, &down);
		pthread_create(&threads[3], NULL, read_to_end, &at_client);
	}
	usleep((useconds_t)round * 97 % 4000);
	if (is_pair) {
		MUST(splice_undo(pair, &result) == 0);
		MUST(result.reason == SPLICE_UNDONE);
		splice_release(pair);
		moved = result.a_to_b;
	} else {
		MUST(so_unsplice(e.a) == 0);
		moved = (uint64_t)so_splice_bytes(e.a);
	}
	atomic_store(&up.stops, true);
	atomic_store(&down.stops, true);
	fcntl(e.a, F_SETFL, 0);
	fcntl(e.b, F_SETFL, 0);
	/* What was not moved is where it arrived. */
	if (is_pair) {
		struct reader rest = { .fd = e.b };
		size_t left = read_rest(rest.fd, result.b_to_a);

		shutdown(e.a, SHUT_WR);
		pthread_join(threads[2], NULL);
		pthread_join(threads[3], NULL);
		MUST(at_client.got == result.b_to_a);
		MUST(at_client.got + left == down.sent);
	}
	shutdown(e.b, SHUT_WR);
	size_t left = read_rest(e.a, moved);

	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	MUST(at_server.got == moved);
	MUST(at_server.got + left == up.sent);
	close_ends(&e);
}

int main(void)
{
	const char *asked = getenv("CONFORMANCE_ROUNDS");
	int rounds = asked != NULL ? atoi(asked) : ROUNDS;

	alarm(300);
	signal(SIGPIPE, SIG_IGN);
	for (int round = 0; round < rounds; round++)
		once(round, round % 4 >= 2);
	return 0;
}
