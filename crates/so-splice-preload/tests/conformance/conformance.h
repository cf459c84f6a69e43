/* What every case of the suite uses. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#define _GNU_SOURCE

#include <ends.h>

#include <sys/socket.h>
#include <sys/time.h>

/* The option, as both systems have it. */
#define SO_SPLICE 0x1023

struct splice {
	int sp_fd;
	off_t sp_max;
	struct timeval sp_idle;
};

enum personality { FREEBSD = 1, OPENBSD = 2, BOTH = 3 };

extern enum personality personality;

/* A connection of the client and one of the server, of the families that the case runs with. */
struct ends case_ends(void);

/* Splices fd to the drain; negative: undoes. */
int splice_all(int fd, int drain);
int splice_most(int fd, int drain, off_t max);
int splice_for(int fd, int drain, long idle_ms);
int unsplice(int fd);
/* The bytes that the last splice of fd has moved. */
off_t spliced_bytes(int fd);
/* SO_ERROR. */
int error_of(int fd);
/* What poll(2) returns for one descriptor. */
short polled(int fd, short events, int timeout_ms);
/* Waits until a count is reached. */
void wait_for_bytes(int fd, off_t count);
/* How often a case repeats what is random: CONFORMANCE_ROUNDS, or as many as it says. */
int rounds(int by_default);

/* A case: NAME(personalities) { ... } */
struct test_case {
	const char *name;
	void (*run)(void);
	enum personality of;
	/* Whether it runs with each address family. */
	bool has_families;
	const struct test_case *next;
};

extern const struct test_case *all_cases;

#define CASE_WITH(name, personalities, families)                                         \
	static void name(void);                                                          \
	__attribute__((constructor)) static void add_##name(void)                        \
	{                                                                                \
		static struct test_case this = { #name, name, personalities, families,   \
						 NULL };                                 \
		this.next = all_cases;                                                   \
		all_cases = &this;                                                       \
	}                                                                                \
	static void name(void)

#define CASE(name, personalities) CASE_WITH(name, personalities, false)
#define CASE_OF_EACH_FAMILY(name, personalities) CASE_WITH(name, personalities, true)

#endif
