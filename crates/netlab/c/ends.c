#define _GNU_SOURCE
#include "ends.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

int family_of_pairs = AF_INET;

void connect_pair(int *one, int *other)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
	bool is_v4 = family_of_pairs == AF_INET;
	struct sockaddr *address = is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	socklen_t length = is_v4 ? sizeof v4 : sizeof v6;
	int listener = socket(family_of_pairs, SOCK_STREAM | SOCK_CLOEXEC, 0);

	MUST(listener >= 0);
	MUST(bind(listener, address, length) == 0);
	MUST(listen(listener, 1) == 0);
	MUST(getsockname(listener, address, &length) == 0);
	*one = socket(family_of_pairs, SOCK_STREAM | SOCK_CLOEXEC, 0);
	MUST(connect(*one, address, length) == 0);
	*other = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	MUST(*other >= 0);
	close(listener);
}

struct ends ends(void)
{
	struct ends ends;

	connect_pair(&ends.client, &ends.a);
	connect_pair(&ends.b, &ends.server);
	return ends;
}

struct ends mixed_ends(void)
{
	struct ends ends;

	family_of_pairs = AF_INET;
	connect_pair(&ends.client, &ends.a);
	family_of_pairs = AF_INET6;
	connect_pair(&ends.b, &ends.server);
	return ends;
}

void close_ends(const struct ends *ends)
{
	close(ends->client);
	close(ends->a);
	close(ends->b);
	close(ends->server);
}

unsigned char payload_byte(size_t at)
{
	return (unsigned int)(at * 2654435761u) >> 24;
}

void write_payload(int fd, size_t from, size_t count)
{
	unsigned char buffer[4096];

	while (count > 0) {
		size_t piece = count < sizeof buffer ? count : sizeof buffer;
		ssize_t written;

		for (size_t i = 0; i < piece; i++)
			buffer[i] = payload_byte(from + i);
		written = write(fd, buffer, piece);
		MUST(written > 0);
		from += written;
		count -= written;
	}
}

void read_payload(int fd, size_t from, size_t count)
{
	unsigned char buffer[4096];

	while (count > 0) {
		ssize_t got = read(fd, buffer, count < sizeof buffer ? count : sizeof buffer);

		MUST(got > 0);
		for (ssize_t i = 0; i < got; i++)
			MUST(buffer[i] == payload_byte(from + i));
		from += got;
		count -= got;
	}
}

size_t read_rest(int fd, size_t from)
{
	unsigned char buffer[4096];
	size_t begin = from;
	ssize_t got;

	while ((got = read(fd, buffer, sizeof buffer)) > 0) {
		for (ssize_t i = 0; i < got; i++)
			MUST(buffer[i] == payload_byte(from + i));
		from += got;
	}
	MUST(got == 0);
	return from - begin;
}

bool is_readable(int fd, int timeout_ms)
{
	struct pollfd look = { .fd = fd, .events = POLLIN };

	return poll(&look, 1, timeout_ms) == 1;
}
