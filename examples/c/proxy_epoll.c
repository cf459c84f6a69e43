/*
 * A TCP proxy with epoll(7) and libsplice: proxy_epoll LISTEN_PORT TARGET_ADDRESS TARGET_PORT
 *
 *   cc -o proxy_epoll proxy_epoll.c $(pkg-config --cflags --libs libsplice)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <splice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

struct connection {
	int client, server;
	splice_pair *pair; /* NULL until the server has accepted the connection */
};

static int epoll;

static void watch(int fd, uint32_t events, void *what)
{
	struct epoll_event event = { .events = events, .data.ptr = what };

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == -1)
		err(1, "epoll_ctl");
}

/* close(2) does not do it while the library has a duplicate. */
static void forget(int fd)
{
	epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
}

static void reset(struct connection *c, const char *why)
{
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	warnx("cannot serve a connection: %s", why);
	setsockopt(c->client, SOL_SOCKET, SO_LINGER, &now, sizeof now);
	close(c->client);
	close(c->server);
	free(c);
}

static void start(struct connection *c)
{
	struct splice_options options = { .size = sizeof options, .flags = SPLICE_FINAL };
	int error = 0;

	forget(c->server);
	getsockopt(c->server, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){ sizeof error });
	if (error) {
		reset(c, strerror(error));
	} else if (splice_join(c->client, c->server, &options, &c->pair) == -1) {
		reset(c, splice_strerror());
	} else {
		/* The library has duplicates, and with these open the sockets would outlive the splice. */
		close(c->client);
		close(c->server);
		watch(splice_fd(c->pair), EPOLLIN, c);
	}
}

static void end(struct connection *c)
{
	struct splice_result result;

	splice_counters(c->pair, &result);
	forget(splice_fd(c->pair));
	if (result.error)
		warnx("a connection failed: %s", strerror(result.error));
	printf("%llu bytes up, %llu bytes down\n", (unsigned long long)result.a_to_b,
	       (unsigned long long)result.b_to_a);
	splice_release(c->pair);
	free(c);
}

static void serve(int client, const struct sockaddr_in *target)
{
	struct connection *c = malloc(sizeof *c);

	if (!c)
		err(1, NULL);
	*c = (struct connection){ client, socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), NULL };
	if (c->server == -1 ||
	    (connect(c->server, (const void *)target, sizeof *target) == -1 && errno != EINPROGRESS))
		reset(c, strerror(errno));
	else
		watch(c->server, EPOLLOUT, c);
}

int main(int argc, char **argv)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in target = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (argc != 4 || inet_pton(AF_INET, argv[2], &target.sin_addr) != 1)
		errx(2, "usage: %s LISTEN_PORT TARGET_ADDRESS TARGET_PORT", argv[0]);
	own.sin_port = htons(atoi(argv[1]));
	target.sin_port = htons(atoi(argv[3]));
	if (bind(listener, (void *)&own, sizeof own) == -1 || listen(listener, SOMAXCONN) == -1)
		err(1, "cannot listen on port %s", argv[1]);
	getsockname(listener, (void *)&own, &(socklen_t){ sizeof own });
	setlinebuf(stdout);
	printf("listening on %d\n", ntohs(own.sin_port));

	epoll = epoll_create1(EPOLL_CLOEXEC);
	watch(listener, EPOLLIN, NULL);
	for (;;) {
		struct epoll_event event;

		if (epoll_wait(epoll, &event, 1, -1) != 1)
			err(1, "epoll_wait");
		struct connection *c = event.data.ptr;
		if (c && c->pair) {
			end(c);
		} else if (c) {
			start(c);
		} else {
			int client = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
			if (client != -1)
				serve(client, &target);
			else if (errno != ECONNABORTED)
				err(1, "accept");
		}
	}
}
