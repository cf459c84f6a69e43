/* Taking the sockets back in full flow: every byte is accounted for. */
#include "conformance.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void undo_in_full_flow(int round, bool small_buffers)
{
	struct ends e = ends();
	struct writer writer = { .fd = e.client, .piece = 1 + (size_t)round * 7919 % 70000 };
	struct reader reader = { .fd = e.server };
	pthread_t writing, reading;
	size_t left;
	off_t moved;

	if (round % 2 == 0) {
		fcntl(e.a, F_SETFL, O_NONBLOCK);
		fcntl(e.b, F_SETFL, O_NONBLOCK);
	}
	if (small_buffers) {
		int size = 4096;

		setsockopt(e.b, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
		setsockopt(e.server, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
		writer.piece = writer.piece % 3000 + 1;
	}
	MUST(splice_all(e.a, e.b) == 0);
	pthread_create(&writing, NULL, write_until_told, &writer);
	pthread_create(&reading, NULL, read_to_end, &reader);
	usleep((useconds_t)round * 97 % 3000);
	MUST(unsplice(e.a) == 0);
	moved = spliced_bytes(e.a);
	atomic_store(&writer.stops, true);
	shutdown(e.b, SHUT_WR);
	fcntl(e.a, F_SETFL, 0);
	left = read_rest(e.a, (size_t)moved);
	pthread_join(writing, NULL);
	pthread_join(reading, NULL);
	MUST(reader.got == (size_t)moved);
	MUST(reader.got + left == writer.sent);
	MUST(spliced_bytes(e.a) == moved);
	close_ends(&e);
}

CASE(undoing_at_random_bytes, BOTH)
{
	int count = rounds(1000);

	for (int round = 0; round < count; round++)
		undo_in_full_flow(round, false);
}

/* Linux 6.18 drops what goes beyond a window that it has taken back. If that was the last segment,
 * a round takes until it has been sent again, twice perhaps: 0.6 to 0.9 s (TCPTimeouts). */
CASE(undoing_at_random_bytes_of_small_buffers, BOTH)
{
	int count = 1 + rounds(1000) / 25;

	for (int round = 0; round < count; round++)
		undo_in_full_flow(round, true);
}

/* Replaces the program by true(1). */
static void replace_program(int function)
{
	char *const arguments[] = { "true", NULL };
	char *const environment[] = { NULL };

	switch (function % 9) {
	case 0: execve("/bin/true", arguments, environment); break;
	case 1: execv("/bin/true", arguments); break;
	case 2: execvp("true", arguments); break;
	case 3: execvpe("true", arguments, environment); break;
	case 4: execl("/bin/true", "true", (char *)NULL); break;
	case 5: execlp("true", "true", (char *)NULL); break;
	case 6: execle("/bin/true", "true", "of", "many", "arguments", "on", "the", "stack",
		       (char *)NULL, environment); break;
	case 7: fexecve(open("/bin/true", O_RDONLY), arguments, environment); break;
	case 8: execveat(AT_FDCWD, "/bin/true", arguments, environment, 0); break;
	}
	_exit(1);
}

/* The next program has the sockets as they are after an undo, whatever was under way. */
CASE(execve_in_full_flow, BOTH)
{
	int count = rounds(45);

	for (int round = 0; round < count; round++) {
		struct ends e = ends();
		struct writer writer = { .fd = e.client, .piece = 5000 };
		struct reader reader = { .fd = e.server };
		pthread_t writing, reading;
		size_t left;
		pid_t child;
		int status;

		if (round % 2 == 0) {
			fcntl(e.a, F_SETFL, O_NONBLOCK);
			fcntl(e.b, F_SETFL, O_NONBLOCK);
		}
		child = fork();
		if (child == 0) {
			MUST(splice_all(e.a, e.b) == 0);
			wait_for_bytes(e.a, 1 + round * 7919);
			replace_program(round);
		}
		pthread_create(&writing, NULL, write_until_told, &writer);
		pthread_create(&reading, NULL, read_to_end, &reader);
		MUST(waitpid(child, &status, 0) == child && status == 0);
		atomic_store(&writer.stops, true);
		shutdown(e.b, SHUT_WR);
		pthread_join(reading, NULL);
		fcntl(e.a, F_SETFL, 0);
		left = read_rest(e.a, reader.got);
		pthread_join(writing, NULL);
		MUST(reader.got + left == writer.sent);
		close_ends(&e);
	}
}

/* A program that is not there leaves the sockets to this one, unspliced. */
CASE(an_execve_that_fails_undoes, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 0, 1000);
	read_payload(e.server, 0, 1000);
	MUST_FAIL(execl("/nonexistent", "nonexistent", (char *)NULL), ENOENT);
	write_payload(e.client, 1000, 1000);
	read_payload(e.a, 1000, 1000);
}

/* Undone and spliced again and again: the stream stays whole. */
CASE(splicing_and_undoing_in_turn, BOTH)
{
	struct ends e = ends();
	struct writer writer = { .fd = e.client, .piece = 5000 };
	struct reader reader = { .fd = e.server };
	pthread_t writing, reading;
	off_t moved = 0;
	size_t left;

	pthread_create(&writing, NULL, write_until_told, &writer);
	pthread_create(&reading, NULL, read_to_end, &reader);
	for (int i = 0; i < 300; i++) {
		MUST(splice_all(e.a, e.b) == 0);
		usleep(i % 7 * 50);
		MUST(unsplice(e.a) == 0);
		moved += spliced_bytes(e.a);
	}
	atomic_store(&writer.stops, true);
	shutdown(e.b, SHUT_WR);
	left = read_rest(e.a, (size_t)moved);
	pthread_join(writing, NULL);
	pthread_join(reading, NULL);
	MUST(reader.got == (size_t)moved && reader.got + left == writer.sent);
}
