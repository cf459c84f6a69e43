/* A call of the library that fails. */
#ifndef FAILS_H
#define FAILS_H

#include <ends.h>
#include <splice.h>

/* It fails with this errno, and says why. */
#define FAILS(call, error)                                                               \
	do {                                                                             \
		MUST_FAIL(call, error);                                                  \
		MUST(strlen(splice_strerror()) > 10);                                    \
	} while (0)

#endif
