#define _GNU_SOURCE
/* Many threads, and many pairs at once. */
#include "fails.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { THREADS = 8, PAIRS_OF_EACH = 50, AT_ONCE = 1000 };

static void *join_and_undo(void *argument)
{
	(void)argument;
	for (int i = 0; i < PAIRS_OF_EACH; i++) {
		struct splice_result result;
		struct ends e = ends();
		splice_pair *pair;

		MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
		write_payload(e.client, 0, 3000);
		write_payload(e.server, 0, 2000);
		read_payload(e.server, 0, 3000);
		read_payload(e.client, 0, 2000);
		MUST(splice_undo(pair, &result) == 0);
		MUST(result.a_to_b == 3000 && result.b_to_a == 2000);
		splice_release(pair);
		close_ends(&e);
	}
	return NULL;
}

static void *wait_for_end(void *pair)
{
	struct splice_result result;

	MUST(splice_wait(pair, -1, &result) == 0);
	MUST(result.reason == SPLICE_UNDONE);
	return NULL;
}

static void several_threads_share_a_handle(void)
{
	struct ends e = ends();
	pthread_t waiting[THREADS];
	splice_pair *pair;

	MUST(splice_join(e.a, e.b, NULL, &pair) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&waiting[i], NULL, wait_for_end, pair);
	MUST(splice_undo(pair, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(waiting[i], NULL);
	splice_release(pair);
	close_ends(&e);
}

/* The library's own state of the thread may be gone by then. */
static void fail_late(void *unused)
{
	(void)unused;
	FAILS(so_unsplice(-1), EBADF);
}

static void *end_with_a_failure(void *key)
{
	FAILS(so_unsplice(-1), EBADF);
	pthread_setspecific(*(pthread_key_t *)key, key);
	return NULL;
}

static void a_call_may_fail_while_its_thread_ends(void)
{
	pthread_key_t key;
	pthread_t thread;

	MUST(pthread_key_create(&key, fail_late) == 0);
	pthread_create(&thread, NULL, end_with_a_failure, &key);
	pthread_join(thread, NULL);
	pthread_key_delete(key);
}

static void a_thousand_pairs(void)
{
	static struct ends all[AT_ONCE];
	static splice_pair *pairs[AT_ONCE];
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	/* Four sockets, four duplicates and an eventfd each. */
	MUST(limit.rlim_cur >= 9 * AT_ONCE + 100);
	for (int i = 0; i < AT_ONCE; i++) {
		all[i] = ends();
		MUST(splice_join(all[i].a, all[i].b, NULL, &pairs[i]) == 0);
	}
	for (int i = 0; i < AT_ONCE; i++)
		write_payload(all[i].client, i, 100);
	for (int i = 0; i < AT_ONCE; i++)
		read_payload(all[i].server, i, 100);
	for (int i = 0; i < AT_ONCE; i++) {
		splice_release(pairs[i]);
		close_ends(&all[i]);
	}
}

int main(void)
{
	pthread_t threads[THREADS];

	alarm(120);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, join_and_undo, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	several_threads_share_a_handle();
	a_call_may_fail_while_its_thread_ends();
	a_thousand_pairs();
	return 0;
}
