#define _GNU_SOURCE
#include "ends.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

void connect_pair(int *one, int *other)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	MUST(listener >= 0);
	MUST(bind(listener, (struct sockaddr *)&address, length) == 0);
	MUST(listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	*one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	MUST(connect(*one, (struct sockaddr *)&address, length) == 0);
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
