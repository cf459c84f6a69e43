/* What poll(2), select(2) and epoll(7) say of spliced sockets. */
#include "conformance.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

/* Long enough to see what would come at once. */
enum { MOMENT_MS = 60, LONG_MS = 10000 };

static bool is_selected(int fd, bool for_writing, int timeout_ms)
{
	struct timeval timeout = { timeout_ms / 1000, timeout_ms % 1000 * 1000 };
	fd_set set;
	int count;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	count = select(fd + 1, for_writing ? NULL : &set, for_writing ? &set : NULL, NULL,
		       &timeout);
	MUST(count >= 0 && count == (FD_ISSET(fd, &set) != 0));
	return count == 1;
}

static bool is_pselected(int fd, int timeout_ms)
{
	struct timespec timeout = { timeout_ms / 1000, timeout_ms % 1000 * 1000000 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	return pselect(fd + 1, &set, NULL, NULL, &timeout, NULL) == 1 && FD_ISSET(fd, &set);
}

static bool is_ppolled(int fd, int timeout_ms)
{
	struct timespec timeout = { timeout_ms / 1000, timeout_ms % 1000 * 1000000 };
	struct pollfd look = { .fd = fd, .events = POLLIN };

	return ppoll(&look, 1, &timeout, NULL) == 1;
}

/* The data that epoll has for the next event, or -1. */
static long next_event(int epoll, int timeout_ms)
{
	struct epoll_event event = { .events = 0 };
	int count = epoll_wait(epoll, &event, 1, timeout_ms);

	MUST(count >= 0);
	return count == 1 ? (long)event.data.u64 : -1;
}

static int watching(int fd, unsigned int events)
{
	struct epoll_event event = { .events = events, .data.u64 = 4711 };
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	return epoll;
}

static int watch_again(int epoll, int operation, int fd, unsigned int events)
{
	struct epoll_event event = { .events = events, .data.u64 = 4712 };

	return epoll_ctl(epoll, operation, fd, &event);
}

/* Fills the drain, so that bytes stay in the source for ever. */
static void block(const struct ends *e)
{
	static char bytes[1 << 16];
	ssize_t written;

	do
		written = send(e->client, bytes, sizeof bytes, MSG_DONTWAIT);
	while (written > 0 || polled(e->client, POLLOUT, 200) != 0);
}

CASE(bytes_of_a_source_are_hidden, BOTH)
{
	struct ends e = ends();
	int epoll = watching(e.a, EPOLLIN);

	MUST(splice_all(e.a, e.b) == 0);
	block(&e);
	MUST(polled(e.a, POLLIN, MOMENT_MS) == 0);
	MUST(polled(e.a, POLLIN | POLLRDNORM, 0) == 0);
	MUST(!is_ppolled(e.a, MOMENT_MS));
	MUST(!is_selected(e.a, false, MOMENT_MS));
	MUST(!is_pselected(e.a, MOMENT_MS));
	MUST(next_event(epoll, MOMENT_MS) == -1);
	MUST(unsplice(e.a) == 0);
	MUST(polled(e.a, POLLIN, 0) == POLLIN);
	MUST(is_ppolled(e.a, 0) && is_selected(e.a, false, 0) && is_pselected(e.a, 0));
	MUST(next_event(epoll, LONG_MS) == 4711);
}

CASE(room_of_a_drain_is_hidden_on_freebsd, BOTH)
{
	struct ends e = ends();
	int epoll = watching(e.b, EPOLLOUT);
	bool hides = personality == FREEBSD;

	MUST(next_event(epoll, LONG_MS) == 4711);
	MUST(splice_all(e.a, e.b) == 0);
	MUST(polled(e.b, POLLOUT, hides ? MOMENT_MS : 0) == (hides ? 0 : POLLOUT));
	MUST(is_selected(e.b, true, hides ? MOMENT_MS : 0) != hides);
	MUST(next_event(epoll, hides ? MOMENT_MS : 0) == (hides ? -1 : 4711));
	/* The source may be written, and the drain read. */
	MUST(polled(e.a, POLLOUT, 0) == POLLOUT);
	MUST(is_selected(e.a, true, 0));
	write_payload(e.server, 0, 1);
	MUST(polled(e.b, POLLIN, LONG_MS) == POLLIN);
	MUST(unsplice(e.a) == 0);
	MUST(polled(e.b, POLLOUT, 0) == POLLOUT);
	MUST(next_event(epoll, LONG_MS) == 4711);
}

CASE(other_descriptors_are_reported_beside, BOTH)
{
	struct ends e = ends(), plain = ends();
	struct pollfd look[] = { { .fd = e.a, .events = POLLIN },
				 { .fd = -1, .events = POLLIN },
				 { .fd = plain.a, .events = POLLIN | POLLOUT },
				 { .fd = 9999, .events = POLLIN } };

	MUST(splice_all(e.a, e.b) == 0);
	write_payload(plain.client, 0, 1);
	MUST(is_readable(plain.a, LONG_MS));
	MUST(poll(look, 4, LONG_MS) == 2);
	MUST(look[0].revents == 0 && look[1].revents == 0);
	MUST(look[2].revents == (POLLIN | POLLOUT) && look[3].revents == POLLNVAL);
}

CASE(select_reports_what_is_left_of_the_time, BOTH)
{
	struct ends e = ends();
	struct timeval timeout = { .tv_sec = 50 };
	fd_set reading, writing;

	MUST(splice_all(e.a, e.b) == 0);
	FD_ZERO(&reading);
	FD_ZERO(&writing);
	FD_SET(e.a, &reading);
	FD_SET(e.client, &writing);
	MUST(select(e.server + 1, &reading, &writing, NULL, &timeout) == 1);
	MUST(!FD_ISSET(e.a, &reading) && FD_ISSET(e.client, &writing));
	MUST(timeout.tv_sec >= 40 && timeout.tv_sec <= 50);
	FD_SET(e.a, &reading);
	FD_SET(900, &reading);
	MUST_FAIL(select(901, &reading, NULL, NULL, &timeout), EBADF);
}

enum way_to_end { BY_LIMIT, BY_UNDOING, BY_IDLING, BY_EOF, WAYS_TO_END };

struct ending {
	struct ends e;
	enum way_to_end way;
};

static void *end_soon(void *argument)
{
	struct ending *ending = argument;

	usleep(MOMENT_MS * 1000);
	switch (ending->way) {
	case BY_LIMIT:
		write_payload(ending->e.client, 0, 11);
		break;
	case BY_UNDOING:
		MUST(unsplice(ending->e.a) == 0);
		write_payload(ending->e.client, 0, 1);
		break;
	case BY_EOF:
		shutdown(ending->e.client, SHUT_WR);
		break;
	case BY_IDLING:
		/* FreeBSD reports no error, so there must be something to read. */
		if (personality == FREEBSD) {
			usleep(3 * MOMENT_MS * 1000);
			write_payload(ending->e.client, 0, 1);
		}
		break;
	default:
		break;
	}
	return NULL;
}

typedef bool wait_function(int fd, int epoll);

static bool waits_by_poll(int fd, int epoll)
{
	(void)epoll;
	return polled(fd, POLLIN, LONG_MS) & POLLIN;
}

static bool waits_by_select(int fd, int epoll)
{
	(void)epoll;
	return is_selected(fd, false, LONG_MS);
}

static bool waits_by_epoll(int fd, int epoll)
{
	(void)fd;
	return next_event(epoll, LONG_MS) == 4711;
}

static void every_end_wakes(wait_function *waits, unsigned int events)
{
	for (enum way_to_end way = 0; way < WAYS_TO_END; way++) {
		struct ending ending = { .e = ends(), .way = way };
		struct splice splice = { .sp_fd = ending.e.b,
					 .sp_max = way == BY_LIMIT ? 10 : 0 };
		int epoll = watching(ending.e.a, events);
		pthread_t thread;

		if (way == BY_IDLING)
			splice.sp_idle.tv_usec = 2 * MOMENT_MS * 1000;
		MUST(setsockopt(ending.e.a, SOL_SOCKET, SO_SPLICE, &splice, sizeof splice) == 0);
		pthread_create(&thread, NULL, end_soon, &ending);
		MUST(waits(ending.e.a, epoll));
		pthread_join(thread, NULL);
		close(epoll);
		close_ends(&ending.e);
	}
}

CASE(every_end_wakes_poll, BOTH)
{
	every_end_wakes(waits_by_poll, EPOLLIN);
}

CASE(every_end_wakes_select, BOTH)
{
	every_end_wakes(waits_by_select, EPOLLIN);
}

CASE(every_end_wakes_epoll, BOTH)
{
	every_end_wakes(waits_by_epoll, EPOLLIN);
}

CASE(every_end_wakes_epoll_by_edges, BOTH)
{
	every_end_wakes(waits_by_epoll, EPOLLIN | EPOLLET);
}

CASE(every_end_wakes_epoll_once, BOTH)
{
	every_end_wakes(waits_by_epoll, EPOLLIN | EPOLLONESHOT);
}

CASE(the_error_is_reported_until_it_is_taken, OPENBSD)
{
	struct ends e = ends();
	int epoll = watching(e.a, EPOLLIN);

	MUST(splice_most(e.a, e.b, 1) == 0);
	write_payload(e.client, 0, 1);
	/* Without a byte to read. */
	MUST(next_event(epoll, LONG_MS) == 4711);
	MUST(polled(e.a, POLLIN, 0) & POLLIN);
	MUST(is_selected(e.a, false, 0));
	MUST(error_of(e.a) == EFBIG);
	MUST(next_event(epoll, MOMENT_MS) == -1);
	MUST(polled(e.a, POLLIN, 0) == 0);
	MUST(!is_selected(e.a, false, 0));
}

CASE(epoll_is_changed_while_spliced, BOTH)
{
	struct ends e = ends();
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	MUST(splice_all(e.a, e.b) == 0);
	block(&e);
	/* Added, changed, removed and added again: hidden all the time. */
	MUST_FAIL(watch_again(epoll, EPOLL_CTL_MOD, e.a, EPOLLIN), ENOENT);
	MUST(watch_again(epoll, EPOLL_CTL_ADD, e.a, EPOLLIN) == 0);
	MUST_FAIL(watch_again(epoll, EPOLL_CTL_ADD, e.a, EPOLLIN), EEXIST);
	MUST(next_event(epoll, MOMENT_MS) == -1);
	MUST(watch_again(epoll, EPOLL_CTL_MOD, e.a, EPOLLIN | EPOLLET) == 0);
	MUST(next_event(epoll, MOMENT_MS) == -1);
	MUST(epoll_ctl(epoll, EPOLL_CTL_DEL, e.a, NULL) == 0);
	MUST_FAIL(epoll_ctl(epoll, EPOLL_CTL_DEL, e.a, NULL), ENOENT);
	MUST(watch_again(epoll, EPOLL_CTL_ADD, e.a, EPOLLIN | EPOLLOUT) == 0);
	/* What is not hidden is reported. */
	MUST(next_event(epoll, LONG_MS) == 4712);
	MUST(watch_again(epoll, EPOLL_CTL_MOD, e.a, EPOLLIN) == 0);
	MUST(next_event(epoll, MOMENT_MS) == -1);
	MUST(unsplice(e.a) == 0);
	MUST(next_event(epoll, LONG_MS) == 4712);
}

CASE(a_registration_that_has_fired_stays_disarmed, BOTH)
{
	struct ends e = ends();
	int epoll = watching(e.a, EPOLLIN | EPOLLONESHOT);

	write_payload(e.client, 0, 1);
	MUST(next_event(epoll, LONG_MS) == 4711);
	read_payload(e.a, 0, 1);
	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 1, 1);
	read_payload(e.server, 1, 1);
	MUST(unsplice(e.a) == 0);
	write_payload(e.client, 2, 1);
	MUST(is_readable(e.a, LONG_MS));
	MUST(next_event(epoll, MOMENT_MS) == -1);
	MUST(watch_again(epoll, EPOLL_CTL_MOD, e.a, EPOLLIN) == 0);
	MUST(next_event(epoll, LONG_MS) == 4712);
}
