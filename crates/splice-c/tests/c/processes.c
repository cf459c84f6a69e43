#define _GNU_SOURCE
/* fork(2) and execve(2). */
#include "fails.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for(pid_t child)
{
	int status;

	MUST(child > 0);
	MUST(waitpid(child, &status, 0) == child);
	MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A child has loops of its own, and the parent's splices stay the parent's. */
static void in_child(splice_pair *parents, const struct ends *of_parent)
{
	struct ends e = ends();
	splice_pair *pair;

	alarm(20);
	int event = splice_fd(parents);

	FAILS(so_unsplice(of_parent->a), ENOTCONN);
	FAILS(splice_undo(parents, &(struct splice_result){ .reason = 0 }), EPERM);
	splice_release(parents);
	MUST_FAIL(fcntl(event, F_GETFD), EBADF);
	MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
	write_payload(e.client, 0, 1000);
	read_payload(e.server, 0, 1000);
	splice_release(pair);
	_exit(0);
}

static void a_child_makes_splices_of_its_own(void)
{
	struct ends one = ends(), two = ends();
	struct splice splice = { .sp_fd = two.b };
	splice_pair *pair;

	MUST(splice_join(one.a, one.b, NULL, &pair) == 0);
	MUST(so_splice(two.a, &splice) == 0);
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (child == 0)
			in_child(pair, &two);
		write_payload(one.client, i * 50000, 50000);
		read_payload(one.server, i * 50000, 50000);
		wait_for(child);
	}
	write_payload(two.client, 0, 1000);
	read_payload(two.server, 0, 1000);
	MUST(so_unsplice(two.a) == 0);
	splice_release(pair);
	close_ends(&one);
	close_ends(&two);
}

/* The child keeps no descriptor of the library that would keep connections open. */
static void a_child_keeps_no_connection_open(void)
{
	struct ends e = ends();
	splice_pair *pair;
	int to_child[2];
	pid_t child;

	MUST(pipe(to_child) == 0);
	MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
	child = fork();
	if (child == 0) {
		char byte;

		alarm(20);
		close(to_child[1]);
		close_ends(&e);
		_exit(read(to_child[0], &byte, 1) == 0 ? 0 : 1);
	}
	MUST(splice_undo(pair, NULL) == 0);
	splice_release(pair);
	close(e.a);
	close(e.b);
	MUST(read_rest(e.client, 0) == 0);
	MUST(read_rest(e.server, 0) == 0);
	close(to_child[1]);
	wait_for(child);
	close(to_child[0]);
	close(e.client);
	close(e.server);
}

/* With SPLICE_FINAL the child has copies of the duplicates, and yet the peers see the end. */
static void a_final_pair_ends_though_a_child_lives(void)
{
	struct splice_options o = { .size = sizeof o, .flags = SPLICE_FINAL };
	struct ends e = ends();
	splice_pair *pair;
	int to_child[2];
	pid_t child;

	MUST(pipe(to_child) == 0);
	MUST(splice_join(e.a, e.b, &o, &pair) == 0);
	close(e.a);
	close(e.b);
	child = fork();
	if (child == 0) {
		char byte;

		alarm(20);
		close(to_child[1]);
		close(e.client);
		close(e.server);
		_exit(read(to_child[0], &byte, 1) == 0 ? 0 : 1);
	}
	write_payload(e.client, 0, 1000);
	shutdown(e.client, SHUT_WR);
	MUST(read_rest(e.server, 0) == 1000);
	shutdown(e.server, SHUT_WR);
	MUST(read_rest(e.client, 0) == 0);
	MUST(splice_wait(pair, 10000, NULL) == 0);
	splice_release(pair);
	close(to_child[1]);
	wait_for(child);
	close(to_child[0]);
	close(e.client);
	close(e.server);
}

/* Nothing of the library's is inherited. */
static void an_executed_program_inherits_nothing(void)
{
	struct ends e = ends();
	splice_pair *pair;
	pid_t child;

	MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
	child = vfork();
	if (child == 0) {
		execl("/bin/sh", "sh", "-c",
		      "for fd in /proc/$$/fd/*; do "
		      "[ ${fd##*/} -le 2 ] || case $(readlink $fd) in "
		      "socket:*|anon_inode:*) echo $fd $(readlink $fd) >&2; exit 1;; esac; done",
		      (char *)NULL);
		_exit(1);
	}
	wait_for(child);
	write_payload(e.client, 0, 1000);
	read_payload(e.server, 0, 1000);
	splice_release(pair);
	close_ends(&e);
}

int main(void)
{
	alarm(300);
	/* What the test inherits is not the library's. */
	for (int fd = 3; fd < 256; fd++) {
		int flags = fcntl(fd, F_GETFD);

		if (flags != -1)
			fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
	}
	a_child_makes_splices_of_its_own();
	a_child_keeps_no_connection_open();
	a_final_pair_ends_though_a_child_lives();
	an_executed_program_inherits_nothing();
	return 0;
}
