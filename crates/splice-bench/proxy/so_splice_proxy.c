// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A TCP proxy that moves bytes in one of two ways, as the proxy of the post on SO_SPLICE does:
 * read(2) and write(2) with a buffer for each direction, or SO_SPLICE.
 *
 * On Linux, `splice` needs libso_splice.so in LD_PRELOAD.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/types.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <err.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SO_SPLICE
#define SO_SPLICE 0x1023
struct splice {
	int sp_fd;
	off_t sp_max;
	struct timeval sp_idle;
};
#endif

enum {
	BUFFER_BYTES = 128 * 1024,
	MOST_CONNECTIONS = 1024,
	/* Exit status for wrong usage, and for a system without SO_SPLICE. */
	REFUSED = 2,
};

enum side { CLIENT, SERVER };

struct direction {
	int from, to;
	/* The system moves the bytes. */
	bool spliced;
	/* `from` is at its end of stream, and `to` has been shut down. */
	bool ended;
	/* What has been read but not written. */
	size_t start, end;
	char buffer[BUFFER_BYTES];
};

struct connection {
	bool connecting;
	/* By the side that they come from. */
	struct direction directions[2];
};

/* Which way: SO_SPLICE, or read(2) and write(2). */
static bool splicing;

static bool is_temporary(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static struct addrinfo *resolve(const char *address, const char *port)
{
	struct addrinfo hints = {
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
	};
	struct addrinfo *found;
	int error = getaddrinfo(address, port, &hints, &found);

	if (error)
		errx(REFUSED, "%s port %s: %s", address, port, gai_strerror(error));
	return found;
}

static int listen_at(const struct addrinfo *address)
{
	int one = 1, fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(fd, address->ai_addr, address->ai_addrlen) || listen(fd, SOMAXCONN))
		err(EXIT_FAILURE, "cannot listen");
	return fd;
}

/* Starts to connect to the server for `client`. Returns NULL if that fails at once. */
static struct connection *connect_for(int client, const struct addrinfo *address)
{
	int one = 1, server = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct connection *connection = malloc(sizeof(*connection));

	if (server < 0 || !connection)
		err(EXIT_FAILURE, "no resources for a connection");
	setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(server, address->ai_addr, address->ai_addrlen) && errno != EINPROGRESS) {
		warn("cannot connect to the server");
		close(client);
		close(server);
		free(connection);
		return NULL;
	}
	connection->connecting = true;
	for (enum side from = CLIENT; from <= SERVER; from++) {
		struct direction *direction = &connection->directions[from];

		direction->from = from == CLIENT ? client : server;
		direction->to = from == CLIENT ? server : client;
		direction->spliced = direction->ended = false;
		direction->start = direction->end = 0;
	}
	return connection;
}

static void drop(struct connection *connection)
{
	close(connection->directions[CLIENT].from);
	close(connection->directions[SERVER].from);
	free(connection);
}

/* From now on the system moves what arrives. */
static bool splice_to(struct direction *direction)
{
	struct splice splice = { .sp_fd = direction->to };

	if (setsockopt(direction->from, SOL_SOCKET, SO_SPLICE, &splice, sizeof(splice))) {
		warn("cannot splice");
		return false;
	}
	direction->spliced = true;
	return true;
}

/* Once this returns, the system moves no more bytes. It fails if the splice has ended by itself. */
static void unsplice(struct direction *direction)
{
	struct splice none = { .sp_fd = -1 };

	(void)setsockopt(direction->from, SOL_SOCKET, SO_SPLICE, &none, sizeof(none));
	direction->spliced = false;
}

/* Returns false if the server cannot be reached. */
static bool finish_connecting(struct connection *connection)
{
	int error = 0;
	socklen_t size = sizeof(error);

	connection->connecting = false;
	if (getsockopt(connection->directions[SERVER].from, SOL_SOCKET, SO_ERROR, &error, &size) ||
	    error) {
		warnx("cannot connect to the server: %s", strerror(error));
		return false;
	}
	return !splicing || (splice_to(&connection->directions[CLIENT]) &&
			     splice_to(&connection->directions[SERVER]));
}

static bool is_empty(const struct direction *direction)
{
	return direction->start == direction->end;
}

/*
 * Moves what there is as far as there is room. The system does not pass on the end of a spliced
 * stream, and may leave bytes before it. Returns false if the connection has failed.
 */
static bool copy(struct direction *direction)
{
	ssize_t count;

	if (is_empty(direction)) {
		count = read(direction->from, direction->buffer, sizeof(direction->buffer));
		if (count < 0)
			return is_temporary(errno);
		if (count == 0) {
			direction->ended = true;
			return shutdown(direction->to, SHUT_WR) == 0;
		}
		direction->start = 0;
		direction->end = count;
	}
	count = write(direction->to, direction->buffer + direction->start,
		      direction->end - direction->start);
	if (count < 0)
		return is_temporary(errno);
	direction->start += count;
	return true;
}

/* What to wait for on the socket of `side`. */
static struct pollfd awaited(const struct connection *connection, enum side side)
{
	const struct direction *out = &connection->directions[side];
	const struct direction *in = &connection->directions[!side];
	struct pollfd awaited = { .fd = out->from };

	if (connection->connecting) {
		awaited.events = side == SERVER ? POLLOUT : 0;
	} else {
		/* Nothing is read while the other side is slower. */
		if (!out->ended && is_empty(out))
			awaited.events |= POLLIN;
		if (!is_empty(in))
			awaited.events |= POLLOUT;
	}
	/* poll(2) reports a hang-up unasked, which nobody could act upon here. */
	if (!awaited.events)
		awaited.fd = -1;
	return awaited;
}

/* `ready`: what poll(2) said of either side. Returns false once the connection is over. */
static bool go_on(struct connection *connection, const struct pollfd ready[2])
{
	if (connection->connecting)
		return !ready[SERVER].revents || finish_connecting(connection);
	for (enum side from = CLIENT; from <= SERVER; from++) {
		struct direction *direction = &connection->directions[from];
		/* An error or a hang-up is told by the call that meets it. */
		short events = is_empty(direction) ? ready[from].revents & ~POLLOUT
						   : ready[!from].revents & ~POLLIN;

		if (direction->ended || !events)
			continue;
		if (direction->spliced)
			unsplice(direction);
		if (!copy(direction))
			return false;
	}
	return !(connection->directions[CLIENT].ended && connection->directions[SERVER].ended);
}

static void serve(int listener, const struct addrinfo *server)
{
	static struct connection *connections[MOST_CONNECTIONS];
	/* The listener, then both sides of each connection. */
	static struct pollfd fds[1 + 2 * MOST_CONNECTIONS];
	size_t count = 0;

	for (;;) {
		fds[0].fd = count < MOST_CONNECTIONS ? listener : -1;
		fds[0].events = POLLIN;
		for (size_t i = 0; i < count; i++) {
			fds[1 + 2 * i] = awaited(connections[i], CLIENT);
			fds[2 + 2 * i] = awaited(connections[i], SERVER);
		}
		if (poll(fds, 1 + 2 * count, -1) < 0) {
			if (errno == EINTR)
				continue;
			err(EXIT_FAILURE, "poll");
		}
		/* From the last: the one that takes the place of another has had its turn. */
		for (size_t i = count; i-- > 0;) {
			if (go_on(connections[i], &fds[1 + 2 * i]))
				continue;
			drop(connections[i]);
			connections[i] = connections[--count];
		}
		if (fds[0].revents) {
			int client = accept4(listener, NULL, NULL, SOCK_NONBLOCK);

			if (client < 0) {
				if (is_temporary(errno) || errno == ECONNABORTED)
					continue;
				err(EXIT_FAILURE, "cannot accept");
			}
			connections[count] = connect_for(client, server);
			count += connections[count] != NULL;
		}
	}
}

static void require_so_splice(void)
{
	off_t moved;
	socklen_t size = sizeof(moved);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_SPLICE, &moved, &size))
		err(REFUSED, "no SO_SPLICE here");
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 6 || (strcmp(argv[1], "copy") && strcmp(argv[1], "splice"))) {
		fprintf(stderr, "usage: %s copy|splice ADDRESS PORT SERVER-ADDRESS SERVER-PORT\n",
			argv[0]);
		return REFUSED;
	}
	splicing = !strcmp(argv[1], "splice");
	if (splicing)
		require_so_splice();
	signal(SIGPIPE, SIG_IGN);
	serve(listen_at(resolve(argv[2], argv[3])), resolve(argv[4], argv[5]));
}
