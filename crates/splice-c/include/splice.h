/* libsplice: joins two sockets. so_splice(3) and splice_join(3) have the whole story.
 *
 * Made from the comments of crates/splice-c/src; do not edit. */

#ifndef SPLICE_H
#define SPLICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>
#include <sys/types.h>

/* The option of the preload library libso_splice(7), as in both BSDs: level SOL_SOCKET. */
#ifndef SO_SPLICE
#define SO_SPLICE 0x1023
#endif

typedef struct splice_pair splice_pair;

/**
 * The version of this interface. It grows when functions or fields are added.
 */
#define SPLICE_ABI_VERSION 1

/**
 * Personality: every stream socket and UDP, a true idle timer, end of stream passed on.
 */
#define SO_SPLICE_LINUX 0

/**
 * Personality: as FreeBSD 15.
 */
#define SO_SPLICE_FREEBSD 1

/**
 * Personality: as OpenBSD 7.
 */
#define SO_SPLICE_OPENBSD 2

/**
 * Flag of splice_options: the caller gives both sockets up for good.
 */
#define SPLICE_FINAL 1

/**
 * Why a pair has ended. No reason has the number 6.
 */
enum splice_reason {
  /**
   * It runs.
   */
  SPLICE_RUNNING = 0,
  /**
   * Both streams have ended, and every byte was delivered.
   */
  SPLICE_END_OF_STREAM = 1,
  /**
   * One side has reset its connection.
   */
  SPLICE_RESET = 2,
  /**
   * No byte has moved for idle_ms.
   */
  SPLICE_IDLE = 3,
  /**
   * A direction has moved max_bytes.
   */
  SPLICE_BYTE_LIMIT = 4,
  /**
   * The caller has taken the sockets back.
   */
  SPLICE_UNDONE = 5,
  /**
   * A system call on one of the sockets has failed.
   */
  SPLICE_FAILED = 7,
};

/**
 * A pair.
 */
struct splice_pair;

/**
 * What is to be spliced: as in the two BSDs.
 */
struct splice {
  /**
   * The drain: the socket that gets what arrives. Negative to undo.
   */
  int sp_fd;
  /**
   * The splice ends when it has moved this many bytes; 0 for no limit.
   */
  off_t sp_max;
  /**
   * The splice ends when no byte has moved for this long; zero for never. With
   * SO_SPLICE_FREEBSD it ends this long after its start.
   */
  struct timeval sp_idle;
};

/**
 * How a pair is to be joined. Zeros are the defaults.
 */
struct splice_options {
  /**
   * sizeof(struct splice_options), so that fields can be added.
   */
  uint32_t size;
  /**
   * 0 or SPLICE_FINAL.
   */
  uint32_t flags;
  /**
   * The engine: NULL or "auto" for the library's choice. With SPLICE_FINAL also "copy", "pipe",
   * "aio", "uring", "sockmap" or "segment".
   */
  const char *engine;
  /**
   * The pair ends when one direction has moved this many bytes; 0 for no limit.
   */
  uint64_t max_bytes;
  /**
   * The pair ends when no byte has moved in either direction for this many milliseconds; 0 for
   * never.
   */
  uint64_t idle_ms;
  /**
   * With SPLICE_FINAL: the most memory that the pair may hold while a receiver does not read, in
   * bytes; 0 for 16 MiB.
   */
  uint64_t memory_bytes;
};

/**
 * What a pair has come to.
 */
struct splice_result {
  /**
   * Bytes moved from a to b. While the pair runs, with SPLICE_FINAL up to a second old.
   */
  uint64_t a_to_b;
  /**
   * Bytes moved from b to a.
   */
  uint64_t b_to_a;
  /**
   * Why it has ended: enum splice_reason.
   */
  int32_t reason;
  /**
   * The errno of that reason, or 0.
   */
  int32_t error;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the interface that the library has: SPLICE_ABI_VERSION of the header that it was
 * built with.
 */
uint32_t splice_abi_version(void);

/**
 * Moves what arrives at the socket fd to the socket sp->sp_fd, until the end of the stream, an
 * error, sp_max, sp_idle, or so_unsplice(). What has arrived already is moved when this returns.
 * Both sockets stay the caller's, blocking or not: he may close them, and what was not moved when
 * the splice ends is still readable at fd. NULL, or a negative sp_fd, undoes.
 *
 * Returns 0, or -1 with errno: EBADF, ENOTSOCK; EPROTONOSUPPORT, two sockets that cannot be
 * spliced; EINVAL, a listening socket, a negative sp_max, an sp_idle that is no time; ENOTCONN;
 * EBUSY, fd is a source or sp_fd a drain already; EMFILE.
 */
int so_splice(int fd, const struct splice *sp);

/**
 * As so_splice(), by the rules and with the errors of another system.
 */
int so_splice_as(int fd, const struct splice *sp, int personality);

/**
 * Undoes the splice of fd. When this returns, the splice reads nothing more, and every byte that
 * it has not moved is readable at fd.
 *
 * Returns 0, or -1 with errno: EBADF, ENOTSOCK; ENOTCONN, fd is not spliced (any more).
 */
int so_unsplice(int fd);

/**
 * How many bytes the last splice of fd has moved, also after its end; 0 if there was none. A byte
 * that the drain's peer has seen is counted.
 *
 * Returns -1 with errno: EBADF, ENOTSOCK.
 */
off_t so_splice_bytes(int fd);

/**
 * A descriptor that becomes readable when the last splice of fd has ended, for poll(2) and its
 * kind. It is the library's, which closes it with the next splice of fd. Do not read from it.
 *
 * Returns -1 with errno: EBADF, ENOTSOCK; ENOTCONN, fd was never spliced; EMFILE.
 */
int so_splice_fd(int fd);

/**
 * Why the last splice of fd has ended: 0 while it runs, and if it was undone or its stream has
 * ended; EFBIG, sp_max; ETIMEDOUT, sp_idle; ELOOP, a ring of splices; EPIPE, the drain takes
 * nothing more; otherwise the error of one of the sockets.
 *
 * Returns -1 with errno: EBADF, ENOTSOCK; ENOTCONN, fd was never spliced.
 */
int so_splice_error(int fd);

/**
 * Joins the sockets a and b: what arrives at one is moved to the other, in both directions, until
 * both streams have ended, an error, or a limit of the options, which may be NULL.
 *
 * Without SPLICE_FINAL both sockets stay the caller's: splice_undo() gives them back at the exact
 * byte, and so does a limit. If he closes both (all descriptors of this process), the pair goes on
 * by itself and may go into the kernel. With SPLICE_FINAL he must close both right after this
 * call; he must not use them any more.
 *
 * Returns 0 and the handle in *pair, or -1 with errno: EBADF, ENOTSOCK; EPROTONOSUPPORT, not two
 * stream sockets; ENOTCONN; EBUSY, one of them is spliced already; EINVAL, wrong options, or twice
 * the same socket; EOPNOTSUPP, the engine that was asked for cannot be used; EFAULT, pair is NULL;
 * EMFILE. Then no byte was moved and both sockets are the caller's; with SPLICE_FINAL, socket
 * options may have changed. An engine may also refuse later: then the pair ends with
 * SPLICE_FAILED, EOPNOTSUPP and a reset of both connections.
 */
int splice_join(int a, int b, const struct splice_options *options, struct splice_pair **pair);

/**
 * Reads what the pair has moved so far, and why it has ended, if it has. Returns 0.
 */
int splice_counters(const struct splice_pair *pair, struct splice_result *result);

/**
 * The name of the engine in use. The reason, in words, is written to why, which has room for
 * why_size bytes, cut if it is longer; why may be NULL.
 */
const char *splice_engine(const struct splice_pair *pair, char *why, size_t why_size);

/**
 * Waits until the pair has ended, for at most timeout_ms milliseconds, or without limit if that is
 * negative. Signals do not interrupt it. result may be NULL.
 *
 * Returns 0, or -1 with errno ETIMEDOUT if the pair still runs.
 */
int splice_wait(const struct splice_pair *pair, int timeout_ms, struct splice_result *result);

/**
 * A descriptor that becomes readable when the pair has ended, for poll(2) and its kind. It is the
 * library's, and is closed by splice_release(). Do not read from it.
 */
int splice_fd(const struct splice_pair *pair);

/**
 * Takes both sockets back. When this returns, the pair reads nothing more, and every byte that it
 * has not moved is readable at the socket where it arrived. result may be NULL.
 *
 * Returns 0, or -1 with errno: EBUSY, the pair was joined with SPLICE_FINAL, or both sockets are
 * closed; ENOTCONN, it has ended already; EPERM, this process is a child of the pair's.
 */
int splice_undo(struct splice_pair *pair, struct splice_result *result);

/**
 * Frees the handle. A pair that still runs is undone; with SPLICE_FINAL both connections are reset;
 * if the caller has closed both sockets, it goes on. In a forked child it only frees. NULL is
 * allowed. No other thread may use the handle meanwhile.
 */
void splice_release(struct splice_pair *pair);

/**
 * Frees the handle. A pair that still runs goes on until it ends by itself. NULL is allowed. No
 * other thread may use the handle meanwhile.
 */
void splice_detach(struct splice_pair *pair);

/**
 * Why the last call of this thread that failed has failed, in words. Never NULL. Valid until the
 * next call of this thread that fails.
 */
const char *splice_strerror(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPLICE_H */
