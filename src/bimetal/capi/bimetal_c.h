#ifndef BIMETAL_C_H
#define BIMETAL_C_H
/* Bimetal's torch-free core for programs in C, and in whatever can call C: groups of ranks and
 * their collectives, the sampler that visits every sample once, the balancer of unequal devices,
 * and the members of a job that come and go. The C++ headers that the functions stand for describe
 * them (comm/group.h, comm/work.h, data/sampler.h, balance/balancer.h). Here are the differences.
 * docs/capi.md has an example.
 *
 * Status. Every function that can fail returns one: BIMETAL_OK, BIMETAL_PENDING where it says so,
 * or a code of bimetal_error_name. The text of a failure, and the rank that it is about, are the
 * calling thread's until its next call that fails.
 *
 * Handles are made by a function and given back to the `_free` function of their kind, once; NULL
 * is allowed there. Functions may be called from any thread. A function that blocks says so, and
 * ends by its timeout. Times are milliseconds; counts are elements. Strings are UTF-8 and end with
 * 0.
 *
 * Versions. bimetal_abi_version() grows by one where something that was here has changed; what is
 * added later leaves it as it is. Structures begin with their size, by which later versions tell
 * the callers of earlier ones.
 */

#include <stdint.h>

#if defined(_WIN32) && defined(BIMETAL_C_MAKE)
#define BIMETAL_C __declspec(dllexport)
#elif defined(_WIN32)
#define BIMETAL_C __declspec(dllimport)
#else
#define BIMETAL_C __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define BIMETAL_ABI_VERSION 1

/* The version of the interface that the library has; compare it with BIMETAL_ABI_VERSION. */
BIMETAL_C int32_t bimetal_abi_version(void);
/* "0.1.0": all ranks of a job must have the same. */
BIMETAL_C const char* bimetal_release(void);

/* ---- Status ---- */

#define BIMETAL_OK 0
#define BIMETAL_PENDING (-1) /* not done yet; nothing is wrong */

/* "timeout", "peer_lost" and so on (docs/errors.md); "ok" for BIMETAL_OK. */
BIMETAL_C const char* bimetal_error_name(int32_t status);
BIMETAL_C const char* bimetal_error_text(void);
/* -1: it is about none. Ranks are those of the job's first group. */
BIMETAL_C int32_t bimetal_error_rank(void);

/* Log messages of at least the level ("trace", "debug", "info", "warning", "error") go to `sink`,
 * on any thread. NULL: to nobody. */
typedef void (*bimetal_log_sink)(void* context, const char* level, const char* message);
BIMETAL_C int32_t bimetal_set_log(const char* level, bimetal_log_sink sink, void* context);

/* ---- Stores: where ranks find each other ---- */

typedef struct bimetal_store bimetal_store;
typedef struct bimetal_server bimetal_server;

/* Serves a store at "HOST:PORT" until it is freed; port 0 is any. Clients are authenticated by the
 * token of BIMETAL_TOKEN_FILE or BIMETAL_TOKEN; without one it must be loopback. */
BIMETAL_C int32_t bimetal_server_new(const char* address, bimetal_server** server);
BIMETAL_C int32_t bimetal_server_port(const bimetal_server* server);
BIMETAL_C void bimetal_server_free(bimetal_server* server);

/* Connects to such a server. Blocks. */
BIMETAL_C int32_t bimetal_store_connect(const char* address, int64_t timeout_ms,
                                        bimetal_store** store);

/* Somebody else's store. The functions return 0 if all is well, and are called in the thread that
 * meets, while it does. */
typedef struct bimetal_answer bimetal_answer;
/* The functions of such a store. */
typedef struct bimetal_store_calls {
  uint64_t struct_size; /* sizeof(bimetal_store_calls) */
  void* context;        /* handed to the functions */
  /* The key has this value from now on. */
  int32_t (*set)(void* context, const char* key, const void* value, int64_t bytes);
  /* Gives the value to bimetal_answer_set, or nothing if there is no such key. */
  int32_t (*try_get)(void* context, const char* key, bimetal_answer* answer);
  /* Adds to a counter that starts at 0, and gives the new value. */
  int32_t (*add)(void* context, const char* key, int64_t delta, int64_t* value);
  const char* name;    /* of the store, in messages */
  const char* address; /* by which the others reach this process: see bimetal_address */
} bimetal_store_calls;
BIMETAL_C void bimetal_answer_set(bimetal_answer* answer, const void* value, int64_t bytes);
BIMETAL_C int32_t bimetal_store_of_calls(const bimetal_store_calls* calls, bimetal_store** store);
BIMETAL_C void bimetal_store_free(bimetal_store* store);

/* Entries by which ranks talk before they have a group. `value` is the calling thread's until its
 * next call of a function that gives one. get blocks until somebody has set the key. */
BIMETAL_C int32_t bimetal_store_set(bimetal_store* store, const char* key, const void* value,
                                    int64_t bytes, int64_t timeout_ms);
BIMETAL_C int32_t bimetal_store_get(bimetal_store* store, const char* key, int64_t timeout_ms,
                                    const void** value, int64_t* bytes);
BIMETAL_C int32_t bimetal_store_add(bimetal_store* store, const char* key, int64_t delta,
                                    int64_t timeout_ms, int64_t* value);
/* Does not wait: *value is NULL where nobody has set the key. */
BIMETAL_C int32_t bimetal_store_try_get(bimetal_store* store, const char* key, int64_t timeout_ms,
                                        const void** value, int64_t* bytes);

/* The address to name in bimetal_store_calls: of this process towards a server at "HOST:PORT";
 * NULL: the store is no server (comm/meet/meet.h). The text is the thread's until its next such
 * call. */
BIMETAL_C int32_t bimetal_address(const char* server, const char** address);

/* "HOST:PORT" for bimetal_member_options.door, as this process's environment says
 * (membership/door.h); `towards`: "HOST:PORT" of somebody whom the other members reach, or NULL.
 * With BIMETAL_DOOR the process comes to members that are there; LOCAL_RANK counts ranks of its
 * machine. Likewise. */
BIMETAL_C int32_t bimetal_door(const char* towards, const char** door);

/* "ADDRESS INTERFACE" of every interface that is up, a line each; likewise. */
BIMETAL_C int32_t bimetal_own_addresses(const char** lines);

/* A new secret of 64 hexadecimal digits, for a token file; likewise. */
BIMETAL_C int32_t bimetal_token(const char** token);

/* For ranks that mpirun or torchrun has started, as the environment says: from now on this process
 * ends with it, by SIGTERM and a few seconds later at the latest, however the launcher ends and
 * whatever this process does (launch/local/process.h). On other ranks, on Windows and when
 * called again it does nothing. */
BIMETAL_C int32_t bimetal_end_with_launcher(void);

/* ---- Files and folders that are whole or not there ---- */

/* A hidden folder beside `target` (.NAME.<16 hex digits>.tmp), locked while its process lives.
 * `path` is the thread's until its next call that gives a text. move takes the target's place in
 * one step; whatever stood there is gone, and the folder's files must be on the disk. free removes
 * it, unless it has been moved or belongs to a process that this one was forked from. */
typedef struct bimetal_folder bimetal_folder;
BIMETAL_C int32_t bimetal_folder_new(const char* target, bimetal_folder** folder);
BIMETAL_C int32_t bimetal_folder_path(const bimetal_folder* folder, const char** path);
BIMETAL_C int32_t bimetal_folder_move(bimetal_folder* folder);
BIMETAL_C void bimetal_folder_free(bimetal_folder* folder);

/* Removes what killed processes left in `folder` of such targets: of those whose names differ from
 * `name` in their numbers alone (step-00000001, step-20), or of all where it is NULL. */
BIMETAL_C int32_t bimetal_remove_leftovers(const char* folder, const char* name);

/* Returns when a file's contents, or the names in a folder, are on the disk. */
BIMETAL_C int32_t bimetal_sync_path(const char* path);

/* The file's old contents or the new, never a part; on the disk when it returns. */
BIMETAL_C int32_t bimetal_write_file(const char* path, const void* contents, int64_t bytes);

/* ---- Groups ---- */

typedef struct bimetal_group bimetal_group;
/* The ranks that meet, and the place. */
typedef struct bimetal_meeting {
  uint64_t struct_size; /* sizeof(bimetal_meeting) */
  bimetal_store* store; /* where the ranks find each other */
  const char* name;     /* of the group; the same on all its ranks */
  int32_t rank;         /* of this process, from 0 */
  int32_t size;         /* ranks of the group */
  int64_t timeout_ms;   /* of the meeting, and of every call that names none of its own */
  /* The job's first group, and the ranks in it of the new one, in order: the two then share their
   * connections. NULL: this is the first. */
  bimetal_group* world;
  const int32_t* members; /* `size` of them, or NULL */
} bimetal_meeting;

/* Collective among the ranks of the new group; blocks. */
BIMETAL_C int32_t bimetal_group_meet(const bimetal_meeting* meeting, bimetal_group** group);
/* Collective among all ranks of `group`, with the same list; blocks. Outside the list *part is
 * NULL. */
BIMETAL_C int32_t bimetal_group_part(bimetal_group* group, const int32_t* ranks, int32_t count,
                                     bimetal_group** part);
/* Ends everything in flight, here and on the other ranks, in `aborted`. */
BIMETAL_C int32_t bimetal_group_abort(bimetal_group* group, const char* reason);
/* Orderly end; waits for calls in flight. Blocks. */
BIMETAL_C int32_t bimetal_group_close(bimetal_group* group, int64_t timeout_ms);
/* Closes it by 2 s unless it is closed; works stay valid. */
BIMETAL_C void bimetal_group_free(bimetal_group* group);

BIMETAL_C int32_t bimetal_group_rank(const bimetal_group* group);
BIMETAL_C int32_t bimetal_group_size(const bimetal_group* group);
/* "shm", "tcp" or "mpi". */
BIMETAL_C const char* bimetal_group_transport(const bimetal_group* group);
BIMETAL_C int64_t bimetal_group_bytes_sent(const bimetal_group* group);
/* The last 1000 calls of this process, as JSON; the thread's until its next call that gives a text.
 */
BIMETAL_C int32_t bimetal_group_flight_recorder(const bimetal_group* group, const char** json);

/* ---- Calls ---- */

/* As comm/dtype.h numbers them. */
enum {
  BIMETAL_FLOAT32 = 1,
  BIMETAL_FLOAT64 = 2,
  BIMETAL_FLOAT16 = 3,
  BIMETAL_BFLOAT16 = 4,
  BIMETAL_INT8 = 5,
  BIMETAL_INT16 = 6,
  BIMETAL_INT32 = 7,
  BIMETAL_INT64 = 8,
  BIMETAL_UINT8 = 9
};
enum { BIMETAL_SUM = 1, BIMETAL_AVG = 2, BIMETAL_MIN = 3, BIMETAL_MAX = 4, BIMETAL_PRODUCT = 5 };

/* A call in flight. Its buffers must stay where they are until it is done, whether it is freed or
 * not. In the calls below timeout_ms 0 is the group's; every rank makes the same calls in the same
 * order; nothing blocks. *work may be NULL: the call is done then, and well, as short ones often
 * are. Whatever takes a work takes that, too. */
typedef struct bimetal_work bimetal_work;

/* Blocks for at most timeout_ms (below 0: until it is done, which the call's own timeout bounds):
 * BIMETAL_PENDING after that, else what became of it. */
BIMETAL_C int32_t bimetal_work_wait(const bimetal_work* work, int64_t timeout_ms);
BIMETAL_C int32_t bimetal_work_test(const bimetal_work* work);
/* The sender's rank in the group, for a bimetal_receive_from_anybody that is done; else -1. */
BIMETAL_C int32_t bimetal_work_sender(const bimetal_work* work);
BIMETAL_C void bimetal_work_free(bimetal_work* work);

BIMETAL_C int32_t bimetal_all_reduce(bimetal_group* group, void* data, int64_t count, int32_t type,
                                     int32_t op, int64_t timeout_ms, bimetal_work** work);
/* scheme: "none", "float16", "bfloat16", "int8", "int4" (docs/compression.md). */
BIMETAL_C int32_t bimetal_all_reduce_compressed(bimetal_group* group, void* data, int64_t count,
                                                int32_t type, int32_t op, const char* scheme,
                                                int64_t timeout_ms, bimetal_work** work);
BIMETAL_C int32_t bimetal_broadcast(bimetal_group* group, void* data, int64_t count, int32_t type,
                                    int32_t root, int64_t timeout_ms, bimetal_work** work);
/* `data` is scratch afterwards on all ranks but the root. */
BIMETAL_C int32_t bimetal_reduce(bimetal_group* group, void* data, int64_t count, int32_t type,
                                 int32_t op, int32_t root, int64_t timeout_ms, bimetal_work** work);
/* counts: of each rank's part; NULL: `count` each. `output` holds all parts one after the other. */
BIMETAL_C int32_t bimetal_all_gather(bimetal_group* group, const void* input, int64_t count,
                                     void* output, const int64_t* counts, int32_t type,
                                     int64_t timeout_ms, bimetal_work** work);
/* The reverse: `input`, scratch afterwards, holds all parts; `count` is this rank's. */
BIMETAL_C int32_t bimetal_reduce_scatter(bimetal_group* group, void* input, void* output,
                                         int64_t count, const int64_t* counts, int32_t type,
                                         int32_t op, int64_t timeout_ms, bimetal_work** work);
/* count: of one part. */
BIMETAL_C int32_t bimetal_gather(bimetal_group* group, const void* input, void* output,
                                 int64_t count, int32_t type, int32_t root, int64_t timeout_ms,
                                 bimetal_work** work);
BIMETAL_C int32_t bimetal_scatter(bimetal_group* group, const void* input, void* output,
                                  int64_t count, int32_t type, int32_t root, int64_t timeout_ms,
                                  bimetal_work** work);
/* One count for each rank, to and from it. */
BIMETAL_C int32_t bimetal_all_to_all(bimetal_group* group, const void* input,
                                     const int64_t* send_counts, void* output,
                                     const int64_t* receive_counts, int32_t type,
                                     int64_t timeout_ms, bimetal_work** work);
BIMETAL_C int32_t bimetal_send(bimetal_group* group, const void* data, int64_t count, int32_t type,
                               int32_t peer, uint64_t tag, int64_t timeout_ms, bimetal_work** work);
BIMETAL_C int32_t bimetal_receive(bimetal_group* group, void* data, int64_t count, int32_t type,
                                  int32_t peer, uint64_t tag, int64_t timeout_ms,
                                  bimetal_work** work);
/* Receives the first message of the tag: bimetal_work_sender names its sender once it is done. */
BIMETAL_C int32_t bimetal_receive_from_anybody(bimetal_group* group, void* data, int64_t count,
                                               int32_t type, uint64_t tag, int64_t timeout_ms,
                                               bimetal_work** work);
/* Bytes, of which ranks do not know how many the others have. */
typedef struct bimetal_gathered bimetal_gathered;
BIMETAL_C int32_t bimetal_all_gather_bytes(bimetal_group* group, const void* input, int64_t bytes,
                                           bimetal_gathered** gathered, int64_t timeout_ms,
                                           bimetal_work** work);
/* Once that is done: a rank's bytes, valid until `gathered` is freed. */
BIMETAL_C int32_t bimetal_gathered_part(const bimetal_gathered* gathered, int32_t rank,
                                        const void** data, int64_t* bytes);
BIMETAL_C void bimetal_gathered_free(bimetal_gathered* gathered);
BIMETAL_C int32_t bimetal_barrier(bimetal_group* group, int64_t timeout_ms, bimetal_work** work);

/* ---- Queues: which calls are done, for a thread that waits for any of them ---- */

typedef struct bimetal_queue bimetal_queue;
BIMETAL_C int32_t bimetal_queue_new(bimetal_queue** queue);
/* `key` comes out of the queue once the work is done, well or not. */
BIMETAL_C int32_t bimetal_queue_watch(bimetal_queue* queue, const bimetal_work* work, uint64_t key);
/* Puts a key in at once. */
BIMETAL_C int32_t bimetal_queue_put(bimetal_queue* queue, uint64_t key);
/* Blocks; BIMETAL_PENDING where nothing came in time. */
BIMETAL_C int32_t bimetal_queue_next(bimetal_queue* queue, int64_t timeout_ms, uint64_t* key);
/* Works that it watches go on. No thread may wait in it any more. */
BIMETAL_C void bimetal_queue_free(bimetal_queue* queue);

/* ---- The sampler and the balancer: the same calls give the same on every rank ---- */

typedef struct bimetal_sampler bimetal_sampler;
/* weights: the cost of each sample, at least 1; NULL: all alike. */
BIMETAL_C int32_t bimetal_sampler_new(int64_t dataset_size, uint64_t seed, int32_t shuffle,
                                      const int64_t* weights, bimetal_sampler** sampler);
BIMETAL_C void bimetal_sampler_free(bimetal_sampler* sampler);
BIMETAL_C int64_t bimetal_sampler_remaining(const bimetal_sampler* sampler);
BIMETAL_C void bimetal_sampler_position(const bimetal_sampler* sampler, int64_t* epoch,
                                        int64_t* offset);
BIMETAL_C int32_t bimetal_sampler_seek(bimetal_sampler* sampler, int64_t epoch, int64_t offset);
BIMETAL_C int64_t bimetal_sampler_mean_weight(const bimetal_sampler* sampler, int64_t samples);
/* Advances over the next `samples`, or what is left of the epoch, dealt out by `shares`. counts and
 * weights get one number for each rank, indices room for `samples` numbers: those of the ranks, one
 * after the other. *total: how many there are. */
BIMETAL_C int32_t bimetal_sampler_deal(bimetal_sampler* sampler, const int64_t* shares,
                                       int32_t ranks, int64_t samples, int64_t* counts,
                                       int64_t* weights, int64_t* indices, int64_t* total);

typedef struct bimetal_balancer bimetal_balancer;
/* policy: "auto", "equal" or "fixed", the latter with a weight for each rank (else NULL). alpha and
 * beta: seconds per step and per sample of each rank, 0 and 0 where they are not known; NULL: of
 * none. */
BIMETAL_C int32_t bimetal_balancer_new(int32_t ranks, int64_t global_batch, const char* policy,
                                       const double* weights, const double* alpha,
                                       const double* beta, bimetal_balancer** balancer);
BIMETAL_C void bimetal_balancer_free(bimetal_balancer* balancer);
/* One number for each rank. */
BIMETAL_C void bimetal_balancer_shares(const bimetal_balancer* balancer, int64_t* shares);
/* Takes each rank's report of one step: its samples and seconds, those that it measured beside the
 * others' work, and whether it ran out of memory (NULL: nobody did). *changed: whether the shares
 * changed. */
BIMETAL_C int32_t bimetal_balancer_observe(bimetal_balancer* balancer, const int64_t* batches,
                                           const double* seconds, const int64_t* shadow_batches,
                                           const double* shadow_seconds,
                                           const int32_t* out_of_memory, int32_t* changed);
/* Samples per second that the rank would do alone; 0 where that is not known. */
BIMETAL_C double bimetal_balancer_alone_rate(const bimetal_balancer* balancer, int32_t rank);

/* ---- Members: who belongs to a job, over losses and newcomers (membership/membership.h) ---- */

typedef struct bimetal_members bimetal_members;
/* How a member takes part. */
typedef struct bimetal_member_options {
  uint64_t struct_size; /* sizeof(bimetal_member_options) */
  /* "HOST:PORT" at which this member listens to the others; port 0 is any. The token is that of
   * BIMETAL_TOKEN_FILE or BIMETAL_TOKEN, and the silence after which a member counts as gone that
   * of BIMETAL_PEER_TIMEOUT_S. */
  const char* door;
  const char* host;    /* this machine's name */
  const char* worker;  /* what it computes on */
  const char* job;     /* equal on all members, or they are refused */
  const char* keeper;  /* NULL or empty: the machine of the first rank 0 */
  int32_t least;       /* with fewer members all wait for others */
  int32_t most;        /* 0: any number */
  int64_t patience_ms; /* how long they wait */
  int64_t timeout_ms;  /* also of the calls of the groups */
  /* Called about ten times a second while bimetal_members_join and _next wait; another result than
   * 0 ends them in `aborted`. NULL: nobody is asked. */
  int32_t (*wait)(void* context);
  void* context; /* handed to it */
} bimetal_member_options;

/* Use one from one thread at a time. */
BIMETAL_C int32_t bimetal_members_new(const bimetal_member_options* options,
                                      bimetal_members** members);
BIMETAL_C void bimetal_members_free(bimetal_members* members);
/* `first` is the job's first group, which stays the caller's. Collective; blocks. */
BIMETAL_C int32_t bimetal_members_found(bimetal_members* members, bimetal_group* first);
/* In its place, for a process that comes later. doors: "HOST:PORT,HOST:PORT…", of which one must be
 * a member's. Blocks until it is in. The group is the caller's. */
BIMETAL_C int32_t bimetal_members_join(bimetal_members* members, const char* doors,
                                       bimetal_group** group);
/* The next epoch, once the last one's group has ended. status, text and rank: the error that has
 * shown a loss; BIMETAL_OK, NULL, -1 where all have agreed to end it, but for the ranks `leaving`,
 * which do not come. Collective among those who are there; blocks. */
BIMETAL_C int32_t bimetal_members_next(bimetal_members* members, int32_t status, const char* text,
                                       int32_t rank, const int32_t* leaving, int32_t count,
                                       bimetal_group** group);
/* The job is over for all: it has failed here, by this error, of which the others are told; or it
 * is done (BIMETAL_OK, NULL), of which newcomers who wait are told. Blocks for seconds at most. */
BIMETAL_C int32_t bimetal_members_end(bimetal_members* members, int32_t status, const char* text);
/* *waits: whether somebody is at the door who may come in. To be asked on all ranks. */
BIMETAL_C int32_t bimetal_members_somebody_waits(bimetal_members* members, int32_t* waits);
/* {"epoch", "rank", "door": this member's, "members": by rank, and how they differ from those
 * before: "lost", "left", "came"}; a member is {"id", "name", "host", "door"}. The text is the
 * thread's until its next call that gives one. */
BIMETAL_C int32_t bimetal_members_told(const bimetal_members* members, const char** json);

#ifdef __cplusplus
}
#endif

#endif /* BIMETAL_C_H */
