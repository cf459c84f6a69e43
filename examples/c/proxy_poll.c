/* A TCP proxy with poll(2) and SO_SPLICE: proxy_poll LISTEN_PORT TARGET_ADDRESS TARGET_PORT
 * It runs on FreeBSD, and on Linux with LD_PRELOAD=libso_splice.so. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef __linux__
#include <splice.h> /* what FreeBSD has in <sys/socket.h> */
#endif

enum { MOST = 500 }; /* two descriptors each; a process usually has 1024 */
/* Direction d moves bytes from fd[d] to fd[!d]. It waits for POLLOUT of the drain, splices, waits for POLLIN
 * of the source, and starts again. At the end of the stream it waits only for errors. */
static struct connection { int fd[2]; off_t moved[2]; } connections[MOST + 1];
static struct waits { struct pollfd wait[2]; } polled[MOST + 1]; /* polled[0].wait[1] is the listener's */

static int splice_to(int from, int to)
{
	return setsockopt(from, SOL_SOCKET, SO_SPLICE, &(struct splice){ .sp_fd = to }, sizeof(struct splice));
}

static void unsplice(struct connection *c, int d)
{
	off_t bytes = 0;
	splice_to(c->fd[d], -1); /* fails if the splice has ended by itself */
	getsockopt(c->fd[d], SOL_SOCKET, SO_SPLICE, &bytes, &(socklen_t){ sizeof bytes });
	c->moved[d] += bytes; /* the next splice counts from 0 */
}

static int advance(struct connection *c, int d, struct pollfd *p)
{
	int error = 0;
	if (p->events != POLLIN && p->revents & (POLLERR | POLLHUP)) {
		getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){ sizeof error });
		errno = error ? error : ENOTCONN;
		return -1;
	}
	if (p->events == POLLOUT) {
		error = splice_to(c->fd[d], c->fd[!d]);
		*p = (struct pollfd){ c->fd[d], error ? 0 : POLLIN, 0 };
		return error;
	}
	unsplice(c, d);
	ssize_t left = recv(c->fd[d], &(char){ 0 }, 1, MSG_PEEK | MSG_DONTWAIT);
	*p = left ? (struct pollfd){ c->fd[!d], POLLOUT, 0 } : (struct pollfd){ c->fd[d], 0, 0 };
	return left == 0 ? shutdown(c->fd[!d], SHUT_WR) : left > 0 || errno == EAGAIN ? 0 : -1;
}

static int over(struct connection *c, struct pollfd *p)
{
	int failed = (p[0].revents && advance(c, 0, &p[0])) || (p[1].revents && advance(c, 1, &p[1]));
	if (failed)
		warn("a connection failed");
	else if (p[0].events || p[1].events)
		return 0;
	for (int d = 0; d < 2; d++) {
		if (p[d].events == POLLIN)
			unsplice(c, d);
		setsockopt(c->fd[d], SOL_SOCKET, SO_LINGER, &(struct linger){ failed, 0 }, sizeof(struct linger));
		close(c->fd[d]); /* resets it after a failure, which must not look like the end of the stream */
	}
	dprintf(1, "%lld bytes up, %lld bytes down\n", (long long)c->moved[0], (long long)c->moved[1]);
	return 1;
}

int main(int argc, char **argv)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } }, target = own;
	int count = 0, client, server, listener = socket(AF_INET, SOCK_STREAM, 0);
	if (argc != 4 || inet_pton(AF_INET, argv[2], &target.sin_addr) != 1)
		errx(2, "usage: %s LISTEN_PORT TARGET_ADDRESS TARGET_PORT", argv[0]);
	own.sin_port = htons(atoi(argv[1]));
	target.sin_port = htons(atoi(argv[3]));
	if (bind(listener, (void *)&own, sizeof own) == -1 || listen(listener, SOMAXCONN) == -1)
		err(1, "cannot listen on port %s", argv[1]);
	getsockname(listener, (void *)&own, &(socklen_t){ sizeof own });
	dprintf(1, "listening on %d\n", ntohs(own.sin_port));
	for (;;) {
		polled[0].wait[1] = (struct pollfd){ listener, count < MOST ? POLLIN : 0, 0 };
		if (poll(&polled[0].wait[1], 2 * count + 1, -1) == -1)
			err(1, "poll");
		for (int i = count; i > 0; i--)
			if (over(&connections[i], polled[i].wait)) {
				connections[i] = connections[count];
				polled[i] = polled[count--];
			}
		if (!polled[0].wait[1].revents || (client = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) == -1)
			continue;
		server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(server, (void *)&target, sizeof target); /* poll(2) reports the result */
		connections[++count] = (struct connection){ { client, server }, { 0, 0 } };
		polled[count] = (struct waits){ { { server, POLLOUT, 0 }, { client, POLLOUT, 0 } } };
	}
}
