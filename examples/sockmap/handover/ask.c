/*
 * Hands two connected sockets to a process that links them in the kernel, as libsplice-sockmap's `handover` reads them:
 * a request is "splice01L" with two descriptors in one SCM_RIGHTS message (the source, the target) on a UNIX
 * SOCK_SEQPACKET socket; the answer is one byte, 0 for linked, or 1 and the reason in UTF-8.
 *
 *     cc -o ask ask.c && ./ask CHANNEL SOURCE TARGET
 *
 * The arguments are numbers of descriptors that are open already.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define REQUEST "splice01L"
#define REASON_MOST_BYTES 1000

/* Asks the process at the other end of channel to link two sockets. The reason has room for REASON_MOST_BYTES + 1. */
static int ask(int channel, int source, int target, char *reason)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec request = { .iov_base = REQUEST, .iov_len = strlen(REQUEST) };
	struct msghdr message = {
		.msg_iov = &request,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	const int sockets[] = { source, target };
	char answer[1 + REASON_MOST_BYTES];
	ssize_t length;

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(sockets));
	memcpy(CMSG_DATA(header), sockets, sizeof(sockets));
	if (sendmsg(channel, &message, MSG_NOSIGNAL) < 0) {
		perror("cannot hand sockets over");
		return -1;
	}
	length = recv(channel, answer, sizeof(answer), 0);
	if (length < 0) {
		perror("cannot read the answer");
		return -1;
	}
	if (length == 1 && answer[0] == 0)
		return 0;
	if (length < 1 || answer[0] != 1) {
		fprintf(stderr, "the other process has ended, or speaks another protocol\n");
		return -1;
	}
	memcpy(reason, answer + 1, length - 1);
	reason[length - 1] = '\0';
	return 1;
}

int main(int count, char **arguments)
{
	char reason[REASON_MOST_BYTES + 1];
	int result;

	if (count != 4) {
		fprintf(stderr, "usage: ask CHANNEL SOURCE TARGET\n");
		return 2;
	}
	result = ask(atoi(arguments[1]), atoi(arguments[2]), atoi(arguments[3]), reason);
	if (result == 0)
		printf("linked\n");
	else if (result == 1)
		printf("refused: %s\n", reason);
	return result == 0 ? 0 : 1;
}
