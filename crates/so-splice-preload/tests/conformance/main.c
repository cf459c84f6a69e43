/* The conformance suite of SO_SPLICE. It knows nothing of the library under test.
 *
 *	LD_PRELOAD=libso_splice.so SO_SPLICE_PERSONALITY=freebsd conformance CASE
 *
 * ends with 0, or says in one line what is wrong. `conformance --list` has all cases and their
 * personalities. To add one, write CASE(what_it_shows, BOTH) { ... } into the file of its subject. */
#include "conformance.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

enum personality personality = FREEBSD;
const struct test_case *all_cases;

static const char *family = "v4";

struct ends case_ends(void)
{
	if (strcmp(family, "mixed") == 0)
		return mixed_ends();
	family_of_pairs = strcmp(family, "v6") == 0 ? AF_INET6 : AF_INET;
	return ends();
}

static int set(int fd, const struct splice *splice)
{
	return setsockopt(fd, SOL_SOCKET, SO_SPLICE, splice, sizeof *splice);
}

int splice_all(int fd, int drain)
{
	return set(fd, &(struct splice){ .sp_fd = drain });
}

int splice_most(int fd, int drain, off_t max)
{
	return set(fd, &(struct splice){ .sp_fd = drain, .sp_max = max });
}

int splice_for(int fd, int drain, long idle_ms)
{
	return set(fd, &(struct splice){ .sp_fd = drain,
					 .sp_idle = { idle_ms / 1000, idle_ms % 1000 * 1000 } });
}

int unsplice(int fd)
{
	return splice_all(fd, -1);
}

off_t spliced_bytes(int fd)
{
	off_t count = -1;
	socklen_t length = sizeof count;

	MUST(getsockopt(fd, SOL_SOCKET, SO_SPLICE, &count, &length) == 0);
	MUST(length == sizeof count);
	return count;
}

int error_of(int fd)
{
	int error = -1;
	socklen_t length = sizeof error;

	MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
	return error;
}

short polled(int fd, short events, int timeout_ms)
{
	struct pollfd look = { .fd = fd, .events = events };

	MUST(poll(&look, 1, timeout_ms) >= 0);
	return look.revents;
}

void wait_for_bytes(int fd, off_t count)
{
	for (int tries = 0; spliced_bytes(fd) < count; tries++) {
		MUST(tries < 20000);
		usleep(500);
	}
}

int rounds(int by_default)
{
	const char *asked = getenv("CONFORMANCE_ROUNDS");

	return asked != NULL ? atoi(asked) : by_default;
}

static void list(void)
{
	const char *personalities[] = { "", "freebsd", "openbsd", "freebsd openbsd" };

	for (const struct test_case *one = all_cases; one != NULL; one = one->next) {
		const char *families[] = { "/v4", "/v6", "/mixed" };

		for (int i = 0; i < (one->has_families ? 3 : 1); i++)
			printf("%s%s\t%s\n", one->name, one->has_families ? families[i] : "",
			       personalities[one->of]);
	}
}

int main(int count, char **arguments)
{
	const char *asked = getenv("SO_SPLICE_PERSONALITY");
	char *name;

	if (count != 2) {
		fprintf(stderr, "usage: conformance CASE | --list\n");
		return 2;
	}
	name = arguments[1];
	if (strcmp(name, "--list") == 0) {
		list();
		return 0;
	}
	if (asked != NULL && strcmp(asked, "openbsd") == 0)
		personality = OPENBSD;
	if (strchr(name, '/') != NULL) {
		family = strchr(name, '/') + 1;
		*strchr(name, '/') = '\0';
	}
	signal(SIGPIPE, SIG_IGN);
	/* Against what hangs. The slowest case takes 15 s on an idle machine, and minutes on an
	 * emulated one. */
	alarm(250);
	for (const struct test_case *one = all_cases; one != NULL; one = one->next) {
		if (strcmp(one->name, name) == 0) {
			one->run();
			return 0;
		}
	}
	fprintf(stderr, "there is no case %s\n", name);
	return 2;
}
