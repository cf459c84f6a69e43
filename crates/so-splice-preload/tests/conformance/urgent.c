/* Urgent data. */
#include "conformance.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Out of line, the byte is not part of the stream. */
CASE(an_urgent_byte_out_of_line_is_left_out, BOTH)
{
	struct ends e = ends();

	MUST(splice_all(e.a, e.b) == 0);
	write_payload(e.client, 0, 5);
	MUST(send(e.client, "!", 1, MSG_OOB) == 1);
	write_payload(e.client, 5, 5);
	read_payload(e.server, 0, 10);
	MUST(spliced_bytes(e.a) == 10);
}

static void set_inline(int fd)
{
	int on = 1;

	MUST(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
}

CASE(an_urgent_byte_in_line_keeps_its_place, BOTH)
{
	struct ends e = ends();
	char bytes[12] = "";

	set_inline(e.a);
	set_inline(e.server);
	MUST(splice_all(e.a, e.b) == 0);
	MUST(send(e.client, "before", 6, 0) == 6);
	read_payload(e.server, 0, 0);
	MUST(send(e.client, "!", 1, MSG_OOB) == 1);
	MUST(send(e.client, "after", 5, 0) == 5);
	for (size_t got = 0; got < 12;) {
		ssize_t more = read(e.server, bytes + got, sizeof bytes - got);

		MUST(more > 0);
		got += (size_t)more;
	}
	MUST(memcmp(bytes, "before!after", 12) == 0);
	MUST(spliced_bytes(e.a) == 12);
}

CASE(the_mark_is_passed_on_by_openbsd, OPENBSD)
{
	struct ends e = ends();
	char byte = 0;

	set_inline(e.a);
	MUST(splice_all(e.a, e.b) == 0);
	MUST(send(e.client, "abc", 3, 0) == 3);
	MUST(send(e.client, "!", 1, MSG_OOB) == 1);
	MUST(polled(e.server, POLLPRI, 10000) & POLLPRI);
	MUST(recv(e.server, &byte, 1, MSG_OOB) == 1 && byte == '!');
	MUST(spliced_bytes(e.a) == 4);
}

CASE(the_mark_is_lost_on_freebsd, FREEBSD)
{
	struct ends e = ends();
	char bytes[4];

	set_inline(e.a);
	MUST(splice_all(e.a, e.b) == 0);
	MUST(send(e.client, "abc", 3, 0) == 3);
	MUST(send(e.client, "!", 1, MSG_OOB) == 1);
	for (size_t got = 0; got < 4;) {
		ssize_t more = read(e.server, bytes + got, sizeof bytes - got);

		MUST(more > 0);
		got += (size_t)more;
	}
	MUST(memcmp(bytes, "abc!", 4) == 0);
	MUST(!(polled(e.server, POLLPRI, 0) & POLLPRI));
}
