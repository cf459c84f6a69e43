/* Connected sockets, and a payload that shows what was lost, doubled or swapped. */
#ifndef ENDS_H
#define ENDS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define MUST(holds)                                                                      \
	do {                                                                             \
		if (!(holds)) {                                                          \
			fprintf(stderr, "%s:%d: %s does not hold (errno: %s)\n",         \
				__FILE__, __LINE__, #holds, strerror(errno));            \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

/* A call that fails with this errno. */
#define MUST_FAIL(call, error)                                                           \
	do {                                                                             \
		errno = 0;                                                               \
		MUST((call) == -1);                                                      \
		MUST(errno == (error));                                                  \
	} while (0)

/* client <-> a, b <-> server: what is between a and b is what is tested. */
struct ends {
	int client, a, b, server;
};

/* The address families of the connections that connect_pair() makes: AF_INET. */
extern int family_of_pairs;

void connect_pair(int *one, int *other);
struct ends ends(void);
/* The same, with the client's connection over IPv4 and the server's over IPv6. */
struct ends mixed_ends(void);
void close_ends(const struct ends *ends);

unsigned char payload_byte(size_t at);
void write_payload(int fd, size_t from, size_t count);
/* Reads exactly count bytes that must be those from `from` on. */
void read_payload(int fd, size_t from, size_t count);
/* Reads to the end of the stream, and returns how many bytes there were. */
size_t read_rest(int fd, size_t from);
/* Whether fd becomes readable in time. */
bool is_readable(int fd, int timeout_ms);

#endif
