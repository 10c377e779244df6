/* capi_peer: one rank of a group through the shared library's C interface alone, on whatever system it was built
 * for: what wheels hold is used as a program without Python would. It takes RANK, WORLD_SIZE and BIMETAL_STORE (where
 * the store is served: by rank 0 unless something else does; else MASTER_ADDR and MASTER_PORT), makes every call with small whole numbers whose results
 * are known, and prints one line. Before that it asks what `bimetal doctor` does of the machine it is on.
 *
 * capi_peer linger: after that it waits in a barrier for a rank that is not coming; rank 0 then says who was lost.
 * capi_peer brief: one all_reduce and a barrier alone, for ranks that are written in something else.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bimetal/capi/bimetal_c.h"

enum { COUNT = 1000, MOST_RANKS = 16 };
static const int64_t PATIENCE_MS = 120000;

static int rank, size, wrong, calls;

static void die(int32_t status, const char* what) {
  printf("error: %s: %s: %s (rank %d)\n", bimetal_error_name(status), what, bimetal_error_text(),
         bimetal_error_rank());
  exit(1);
}

static void must(int32_t status, const char* what) {
  if (status != BIMETAL_OK) die(status, what);
}

/* What a call has begun ends well. */
static void finish(int32_t status, bimetal_work** work, const char* what) {
  must(status, what);
  must(bimetal_work_wait(*work, PATIENCE_MS), what);
  bimetal_work_free(*work);
  ++calls;
}

static void expect(int64_t got, int64_t wanted, const char* what) {
  if (got == wanted) return;
  ++wrong;
  printf("rank %d: %s gave %lld, not %lld\n", rank, what, (long long)got, (long long)wanted);
}

static void reductions(bimetal_group* group) {
  static float data[COUNT], part[COUNT], whole[COUNT * MOST_RANKS];
  bimetal_work* work = NULL;
  const int64_t sum = size * (size + 1) / 2;
  for (int i = 0; i < COUNT; ++i) data[i] = (float)(rank + 1);
  finish(bimetal_all_reduce(group, data, COUNT, BIMETAL_FLOAT32, BIMETAL_SUM, 0, &work), &work, "all_reduce");
  expect((int64_t)data[0], sum, "all_reduce");
  expect((int64_t)data[COUNT - 1], sum, "all_reduce");
  for (int i = 0; i < COUNT; ++i) data[i] = (float)(rank + 1);
  finish(bimetal_all_reduce_compressed(group, data, COUNT, BIMETAL_FLOAT32, BIMETAL_SUM, "bfloat16", 0, &work), &work,
         "all_reduce, compressed");
  expect((int64_t)data[0], sum, "all_reduce, compressed");
  int64_t number = rank + 1;
  finish(bimetal_reduce(group, &number, 1, BIMETAL_INT64, BIMETAL_MAX, size - 1, 0, &work), &work, "reduce");
  if (rank == size - 1) expect(number, size, "reduce");
  for (int i = 0; i < COUNT * size; ++i) whole[i] = (float)(rank + i / COUNT);
  finish(bimetal_reduce_scatter(group, whole, part, COUNT, NULL, BIMETAL_FLOAT32, BIMETAL_SUM, 0, &work), &work,
         "reduce_scatter");
  expect((int64_t)part[7], size * (size - 1) / 2 + size * rank, "reduce_scatter");
  int64_t counts[MOST_RANKS], total = 0;
  for (int r = 0; r < size; ++r) total += counts[r] = r + 1;
  for (int i = 0; i < total; ++i) whole[i] = 1;
  finish(bimetal_reduce_scatter(group, whole, part, rank + 1, counts, BIMETAL_FLOAT32, BIMETAL_SUM, 0, &work), &work,
         "reduce_scatter of unequal parts");
  expect((int64_t)part[rank], size, "reduce_scatter of unequal parts");
}

static void movements(bimetal_group* group) {
  int32_t own[MOST_RANKS], all[MOST_RANKS * MOST_RANKS];
  bimetal_work* work = NULL;
  int32_t word = rank == size - 1 ? 77 : 0;
  finish(bimetal_broadcast(group, &word, 1, BIMETAL_INT32, size - 1, 0, &work), &work, "broadcast");
  expect(word, 77, "broadcast");
  word = rank + 1;
  finish(bimetal_all_gather(group, &word, 1, all, NULL, BIMETAL_INT32, 0, &work), &work, "all_gather");
  for (int r = 0; r < size; ++r) expect(all[r], r + 1, "all_gather");
  int64_t counts[MOST_RANKS], to[MOST_RANKS], from[MOST_RANKS];
  int at = 0;
  for (int r = 0; r < size; ++r) counts[r] = r + 1, own[r] = rank;
  finish(bimetal_all_gather(group, own, rank + 1, all, counts, BIMETAL_INT32, 0, &work), &work,
         "all_gather of unequal parts");
  for (int r = 0; r < size; ++r) {
    for (int i = 0; i <= r; ++i) expect(all[at++], r, "all_gather of unequal parts");
  }
  finish(bimetal_gather(group, &word, all, 1, BIMETAL_INT32, 0, 0, &work), &work, "gather");
  if (rank == 0) expect(all[size - 1], size, "gather");
  for (int r = 0; r < size; ++r) all[r] = 10 * r;
  finish(bimetal_scatter(group, all, &word, 1, BIMETAL_INT32, 0, 0, &work), &work, "scatter");
  expect(word, 10 * rank, "scatter");
  for (int r = 0; r < size; ++r) to[r] = 1, from[r] = 1, own[r] = 100 * rank + r;
  finish(bimetal_all_to_all(group, own, to, all, from, BIMETAL_INT32, 0, &work), &work, "all_to_all");
  for (int r = 0; r < size; ++r) expect(all[r], 100 * r + rank, "all_to_all");
  bimetal_gathered* gathered = NULL;
  finish(bimetal_all_gather_bytes(group, own, 4 * rank, &gathered, 0, &work), &work, "all_gather_bytes");
  for (int r = 0; r < size; ++r) {
    const void* part = NULL;
    int64_t bytes = -1;
    must(bimetal_gathered_part(gathered, r, &part, &bytes), "part of all_gather_bytes");
    expect(bytes, 4 * r, "part of all_gather_bytes");
    if (r > 0) expect(*(const int32_t*)part, 100 * r, "part of all_gather_bytes");
  }
  bimetal_gathered_free(gathered);
  if (size > 1) {
    bimetal_work* sent = NULL;
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    must(bimetal_send(group, &rank, 1, BIMETAL_INT32, next, 5, 0, &sent), "send");
    finish(bimetal_receive(group, &word, 1, BIMETAL_INT32, before, 5, 0, &work), &work, "receive");
    finish(BIMETAL_OK, &sent, "send");
    expect(word, before, "receive");
    must(bimetal_send(group, &rank, 1, BIMETAL_INT32, next, 6, 0, &sent), "send");
    must(bimetal_receive_from_anybody(group, &word, 1, BIMETAL_INT32, 6, 0, &work), "receive from anybody");
    must(bimetal_work_wait(work, PATIENCE_MS), "receive from anybody");
    expect(bimetal_work_sender(work), before, "receive from anybody");
    finish(BIMETAL_OK, &work, "receive from anybody");
    finish(BIMETAL_OK, &sent, "send");
    expect(word, before, "receive from anybody");
  }
  finish(bimetal_barrier(group, 0, &work), &work, "barrier");
}

/* What a queue tells of calls: of those, too, that are over before anybody has watched them, whose work is NULL. */
static void watched(bimetal_group* group) {
  static float data[2][COUNT];
  bimetal_work* works[2] = {NULL, NULL};
  bimetal_queue* queue = NULL;
  uint64_t seen = 0, key = 0;
  must(bimetal_queue_new(&queue), "queue");
  for (int i = 0; i < 2; ++i) {
    must(bimetal_all_reduce(group, data[i], COUNT, BIMETAL_FLOAT32, BIMETAL_SUM, 0, &works[i]), "all_reduce");
    must(bimetal_queue_watch(queue, works[i], (uint64_t)(i + 1)), "watch");
  }
  must(bimetal_queue_watch(queue, NULL, 4), "watch of a call that is over");
  for (int i = 0; i < 3; ++i) {
    must(bimetal_queue_next(queue, PATIENCE_MS, &key), "next of a queue");
    seen += key;
  }
  expect((int64_t)seen, 7, "keys of a queue");
  for (int i = 0; i < 2; ++i) {
    must(bimetal_work_test(works[i]), "test of a call that is over");
    bimetal_work_free(works[i]);
  }
  must(bimetal_work_test(NULL), "test of a call that is over");
  expect(bimetal_work_sender(NULL), -1, "sender of a call that is over");
  bimetal_queue_free(queue);
}

/* A part of the group, the flight recorder, and a call on which the ranks disagree. */
static void the_rest(bimetal_group* group) {
  bimetal_group* part = NULL;
  bimetal_work* work = NULL;
  const char* json = NULL;
  int32_t first = 0;
  must(bimetal_group_part(group, &first, 1, &part), "part");
  expect(part != NULL, rank == 0, "part");
  bimetal_group_free(part);
  must(bimetal_group_flight_recorder(group, &json), "flight recorder");
  expect(strstr(json, "all_reduce") != NULL, 1, "flight recorder");
  if (size < 2) return;
  float data[2] = {0, 0};
  must(bimetal_all_reduce(group, data, rank == 0 ? 1 : 2, BIMETAL_FLOAT32, BIMETAL_SUM, 0, &work), "all_reduce");
  const int32_t status = bimetal_work_wait(work, PATIENCE_MS);
  expect(strcmp(bimetal_error_name(status), "call_mismatch"), 0, "a call on which the ranks disagree");
  bimetal_work_free(work);
}

static void shares(void) {
  bimetal_balancer* balancer = NULL;
  bimetal_sampler* sampler = NULL;
  const double alpha[2] = {0, 0}, beta[2] = {1, 3};
  int64_t shared[2], counts[2], weights[2], indices[8], total = 0;
  must(bimetal_balancer_new(2, 8, "auto", NULL, alpha, beta, &balancer), "balancer");
  bimetal_balancer_shares(balancer, shared);
  expect(shared[0], 6, "share");
  must(bimetal_sampler_new(10, 1, 1, NULL, &sampler), "sampler");
  must(bimetal_sampler_deal(sampler, shared, 2, 8, counts, weights, indices, &total), "deal");
  expect(counts[1], 2, "deal");
  expect(bimetal_sampler_remaining(sampler), 2, "remaining");
  bimetal_sampler_free(sampler);
  bimetal_balancer_free(balancer);
}

/* What `bimetal doctor` and those who meet ask of this machine and of the store. */
static void machine(const char* address, bimetal_store* store) {
  const void* nothing = "";
  int64_t no_bytes = -1;
  must(bimetal_store_try_get(store, "nobody's", PATIENCE_MS, &nothing, &no_bytes), "a key that nobody has set");
  expect(nothing == NULL && no_bytes == 0, 1, "a key that nobody has set");
  const char* text = NULL;
  must(bimetal_token(&text), "token");
  expect((int64_t)strspn(text, "0123456789abcdef"), 64, "token");
  must(bimetal_address(address, &text), "address");
  expect(strlen(text) > 0, 1, "address");
  must(bimetal_end_with_launcher(), "ending with a launcher");  // there is none
  must(bimetal_own_addresses(&text), "own addresses");
  for (const char* line = text; *line != 0; line = strchr(line, '\n') + 1) {
    const size_t host = strcspn(line, " \n"), whole = strcspn(line, "\n");
    expect(host > 0 && whole > host + 1, 1, "own addresses");
  }
  char key[40];
  const void* found = NULL;
  int64_t bytes = 0;
  snprintf(key, sizeof key, "facts/%d", rank);
  must(bimetal_store_set(store, key, key, (int64_t)strlen(key), PATIENCE_MS), "set");
  snprintf(key, sizeof key, "facts/%d", (rank + 1) % size);
  must(bimetal_store_get(store, key, PATIENCE_MS, &found, &bytes), "get");
  expect(bytes, (int64_t)strlen(key), "get");
  expect(memcmp(found, key, (size_t)bytes), 0, "get");
  expect(bimetal_store_get(store, "no key", 1, &found, &bytes) == BIMETAL_OK, 0, "get of what nobody sets");
  calls += 6;
}

static int number_of(const char* name) {
  const char* text = getenv(name);
  if (text == NULL) {
    printf("error: %s is not set\n", name);
    exit(2);
  }
  return atoi(text);
}

/* The ranks agree to go on in a new group, all of them. */
static void members(bimetal_group* group) {
  const bimetal_member_options options = {sizeof options, "127.0.0.1:0", "host",      "c",  "peers", "either", 1,
                                          0,              PATIENCE_MS,   PATIENCE_MS, NULL, NULL};
  bimetal_members* all = NULL;
  bimetal_group* next = NULL;
  bimetal_work* work = NULL;
  const char* told = NULL;
  int32_t waits = 1;
  must(bimetal_members_new(&options, &all), "members");
  must(bimetal_members_found(all, group), "the first members");
  must(bimetal_members_somebody_waits(all, &waits), "who waits at the door");
  expect(waits, 0, "who waits at the door");
  must(bimetal_members_next(all, BIMETAL_OK, NULL, -1, NULL, 0, &next), "the next members");
  finish(bimetal_barrier(next, 0, &work), &work, "barrier of the next members");
  expect(bimetal_group_size(next), size, "the next members");
  must(bimetal_members_told(all, &told), "what is told of members");
  expect(strncmp(told, "{\"epoch\":1,", 11), 0, "what is told of members");
  bimetal_group_free(next);
  bimetal_members_free(all);
}

/* What tests/portability/test_library_peers.py does in Python. */
static int brief(bimetal_group* group) {
  double data[3] = {rank, 1, 0.5};
  bimetal_work* work = NULL;
  finish(bimetal_all_reduce(group, data, 3, BIMETAL_FLOAT64, BIMETAL_SUM, 0, &work), &work, "all_reduce");
  expect((int64_t)data[0], size * (size - 1) / 2, "all_reduce");
  expect((int64_t)data[1], size, "all_reduce");
  finish(bimetal_barrier(group, 0, &work), &work, "barrier");
  bimetal_group_free(group);
  printf("rank %d of %d: %d calls, %d wrong\n", rank, size, calls, wrong);
  return wrong != 0;
}

static const char* address_of_store(void) {
  static char text[300];
  const char *store = getenv("BIMETAL_STORE"), *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
  if ((store != NULL && *store != 0) || host == NULL || port == NULL) return store;
  snprintf(text, sizeof text, "%s:%s", host, port);
  return text;
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IONBF, 0);
  if (bimetal_abi_version() != BIMETAL_ABI_VERSION) return printf("error: another library\n"), 2;
  rank = number_of("RANK");
  size = number_of("WORLD_SIZE");
  const char* address = address_of_store();
  bimetal_server* server = NULL;
  bimetal_store* store = NULL;
  bimetal_group* group = NULL;
  if (rank == 0 && getenv("CAPI_PEER_STORE_IS_SERVED") == NULL) must(bimetal_server_new(address, &server), "server");
  must(bimetal_store_connect(address, PATIENCE_MS, &store), "store");
  const char* mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "brief") != 0) machine(address, store);
  const bimetal_meeting meeting = {sizeof meeting, store, "peers", rank, size, PATIENCE_MS, NULL, NULL};
  must(bimetal_group_meet(&meeting, &group), "meeting");
  bimetal_work* met = NULL;
  finish(bimetal_barrier(group, 0, &met), &met, "barrier"); /* the store is not needed beyond */
  if (strcmp(mode, "brief") == 0) return brief(group);
  reductions(group);
  movements(group);
  watched(group);
  shares();
  if (strcmp(mode, "linger") == 0) {
    printf("rank %d lingers\n", rank);
    bimetal_work* never = NULL;
    float nothing = 0;
    if (rank != 0) finish(bimetal_receive(group, &nothing, 1, BIMETAL_FLOAT32, 0, 1, 0, &never), &never, "receive");
    finish(bimetal_barrier(group, 0, &never), &never, "barrier");
  }
  members(group);
  the_rest(group);
  bimetal_group_free(group);
  bimetal_store_free(store);
  bimetal_server_free(server);
  printf("rank %d of %d: %d calls, %d wrong\n", rank, size, calls, wrong);
  return wrong != 0;
}
