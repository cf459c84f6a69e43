/* What read(2) and its kind do on a spliced source. */
#include "conformance.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static ssize_t read_by(int how, int fd, void *buffer, size_t length)
{
	struct iovec vector = { buffer, length };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1 };

	switch (how) {
	case 0:
		return read(fd, buffer, length);
	case 1:
		return readv(fd, &vector, 1);
	case 2:
		return recv(fd, buffer, length, 0);
	case 3:
		return recvfrom(fd, buffer, length, 0, NULL, NULL);
	default:
		return recvmsg(fd, &message, 0);
	}
}

enum { WAYS_TO_READ = 5 };

CASE(a_read_of_an_empty_source_finds_nothing, BOTH)
{
	struct ends e = ends();
	char byte;

	fcntl(e.a, F_SETFL, O_NONBLOCK);
	MUST(splice_all(e.a, e.b) == 0);
	for (int how = 0; how < WAYS_TO_READ; how++)
		MUST_FAIL(read_by(how, e.a, &byte, 1), EAGAIN);
	fcntl(e.a, F_SETFL, 0);
	MUST_FAIL(recv(e.a, &byte, 1, MSG_DONTWAIT), EAGAIN);
}

/* Fills the drain, so that bytes stay in the source for ever. */
static void block(const struct ends *e)
{
	static char bytes[1 << 16];
	int idle = 0;

	while (idle < 20) {
		if (send(e->client, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
			idle = 0;
		} else {
			idle++;
			usleep(10000);
		}
	}
}

CASE(bytes_that_wait_in_a_source, BOTH)
{
	struct ends e = ends();
	char byte;

	fcntl(e.a, F_SETFL, O_NONBLOCK);
	MUST(splice_all(e.a, e.b) == 0);
	block(&e);
	for (int how = 0; how < WAYS_TO_READ; how++) {
		/* FreeBSD lets the program take bytes away, OpenBSD does not. */
		errno = 0;
		MUST(read_by(how, e.a, &byte, 1) == (personality == FREEBSD ? 1 : -1));
		MUST(errno == (personality == FREEBSD ? 0 : EAGAIN));
	}
}

struct reading {
	int fd;
	int how;
	ssize_t got;
	char bytes[10];
};

static void *read_in_thread(void *argument)
{
	struct reading *reading = argument;

	reading->got = read_by(reading->how, reading->fd, reading->bytes, sizeof reading->bytes);
	return NULL;
}

CASE(a_blocking_read_waits_for_the_end_of_the_splice, OPENBSD)
{
	for (int how = 0; how < WAYS_TO_READ; how++) {
		struct ends e = ends();
		struct reading reading = { .fd = e.a, .how = how };
		pthread_t thread;

		MUST(splice_all(e.a, e.b) == 0);
		pthread_create(&thread, NULL, read_in_thread, &reading);
		for (int i = 0; i < 20; i++) {
			write_payload(e.client, i, 1);
			read_payload(e.server, i, 1);
		}
		MUST(unsplice(e.a) == 0);
		write_payload(e.client, 20, 1);
		pthread_join(thread, NULL);
		MUST(reading.got == 1);
		MUST((unsigned char)reading.bytes[0] == payload_byte(20));
		close_ends(&e);
	}
}

CASE(a_blocking_read_ends_with_its_time, OPENBSD)
{
	struct ends e = ends();
	struct timeval timeout = { .tv_usec = 50000 };
	char byte;

	MUST(setsockopt(e.a, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
	MUST(splice_all(e.a, e.b) == 0);
	MUST_FAIL(read(e.a, &byte, 1), EAGAIN);
}

static void nothing(int number)
{
	(void)number;
}

static void *interrupt(void *argument)
{
	usleep(50000);
	pthread_kill(*(pthread_t *)argument, SIGUSR1);
	return NULL;
}

CASE(a_signal_interrupts_a_blocking_read, OPENBSD)
{
	struct sigaction action = { .sa_handler = nothing };
	pthread_t self = pthread_self(), thread;
	struct ends e = ends();
	char byte;

	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	MUST(splice_all(e.a, e.b) == 0);
	pthread_create(&thread, NULL, interrupt, &self);
	MUST_FAIL(read(e.a, &byte, 1), EINTR);
	pthread_join(thread, NULL);
}

static void *interrupt_and_end(void *argument)
{
	struct ends *e = argument;

	usleep(50000);
	/* The program's only other thread. */
	kill(getpid(), SIGUSR1);
	usleep(50000);
	MUST(unsplice(e->a) == 0);
	write_payload(e->client, 0, 1);
	return NULL;
}

CASE(a_signal_restarts_a_blocking_read, OPENBSD)
{
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	struct ends e = ends();
	pthread_t thread;

	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	MUST(splice_all(e.a, e.b) == 0);
	pthread_create(&thread, NULL, interrupt_and_end, &e);
	read_payload(e.a, 0, 1);
	pthread_join(thread, NULL);
}

CASE(the_drain_can_be_read_and_the_source_written, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.server, 0, 100);
	read_payload(e.b, 0, 100);
	write_payload(e.a, 0, 100);
	read_payload(e.client, 0, 100);
}

struct taking {
	int fd;
	size_t bytes;
	uint64_t sum;
};

static void *take_numbers(void *argument)
{
	struct taking *taking = argument;
	unsigned char bytes[64];
	ssize_t got;

	while ((got = read(taking->fd, bytes, sizeof bytes)) > 0) {
		taking->bytes += (size_t)got;
		for (ssize_t i = 0; i < got; i++)
			taking->sum += bytes[i];
	}
	MUST(got == 0);
	return NULL;
}

/* Both read, and each byte goes to one of them. */
CASE(a_program_reads_beside_the_splice, FREEBSD)
{
	enum { NUMBERS = 50000 };
	struct ends e = ends();
	struct taking takes[] = { { .fd = e.a }, { .fd = e.server } };
	pthread_t threads[2];
	uint32_t number = 0;
	uint64_t sum = 0;

	MUST(splice_all(e.a, e.b) == 0);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, take_numbers, &takes[i]);
	while (number < NUMBERS) {
		MUST(send(e.client, &number, sizeof number, 0) == sizeof number);
		for (uint32_t left = number; left > 0; left >>= 8)
			sum += left & 0xff;
		number++;
	}
	shutdown(e.client, SHUT_WR);
	pthread_join(threads[0], NULL);
	shutdown(e.b, SHUT_WR);
	pthread_join(threads[1], NULL);
	MUST(takes[0].bytes + takes[1].bytes == number * sizeof number);
	MUST(takes[0].sum + takes[1].sum == sum);
	MUST(takes[1].bytes == (size_t)spliced_bytes(e.a));
}
