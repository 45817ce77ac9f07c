/* Laneway's C API. Generated from src/capi by tests/header.rs: change that, then run `make header`.
 *
 * Rules that hold for every function:
 *
 * Errors.    What can fail returns an lw_status, 0 being success; lw_last_error() then has the thread's message. On failure out-parameters
 *            are left alone, but for lengths that say how much room was needed. No C++ exception or Rust panic ever crosses.
 * Handles.   Opaque, made by _open, _new or another constructor, freed once by the _free of the same noun; _free(NULL) does nothing.
 * Threads.   A function that takes a const handle may be called on it by any number of threads at once; one that takes a handle without const
 *            (_free) must be the only one. Callbacks say on which thread they run. No thread of the library's own exists before a broker,
 *            student or worker is opened.
 * Pointers.  What is handed in is read during the call only, unless stated. Text is UTF-8, with a length or NUL-terminated as stated.
 * Options.   Structs that begin with struct_size are filled after their _init function, so that a program keeps working with a newer library.
 * Time.      Deadlines are absolute: nanoseconds of CLOCK_MONOTONIC, see lw_now. LW_NEVER waits for ever. A deadline that passed never waits.
 *            Waits end with LW_INTERRUPTED when a signal handler ran, so that a program can react to it; nothing is lost, call again.
 * Forks.     A handle belongs to the process that opened it. In a forked child its functions return LW_FORKED, and _free only frees memory.
 * Enums.     Cross as int32_t, so that a number from a newer version is never undefined behaviour.
 *
 * Linking:   pkg-config laneway, or CMake's find_package(laneway) with laneway::laneway (shared) or laneway::static. The static library
 *            contains ZeroMQ and so exports that library's symbols as well; the shared one exports lw_* only.
 */
#ifndef LANEWAY_H
#define LANEWAY_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define LW_MUST_USE __attribute__((warn_unused_result))
#else
#define LW_MUST_USE
#endif

/* Of dlpack.h, version 1.0 or later, which a program includes that looks inside. */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

#ifdef __cplusplus
extern "C" {
#endif

/* ==== status ========================================================================================================
 *
 * What a call returns. Every function that can fail returns an `lw_status`; the thread's last message, for people, says
 * what was wrong, where, what was expected and what to do.
 */

// The outcome of a call. Numbers are never changed and never reused.
typedef int32_t lw_status;
enum {
    // Done.
    LW_OK = 0,
    // An argument is wrong; the message names it, its value and what was expected.
    LW_INVALID_ARGUMENT = 1001,
    // The deadline passed first. Nothing was lost: call again.
    LW_TIMEOUT = 1002,
    // A signal handler ran, or `lw_student_cancel` or `lw_worker_cancel` asked the wait to end. Call again.
    LW_INTERRUPTED = 1003,
    // The handle was made by another process: this one is its forked child. Make a new one.
    LW_FORKED = 1004,
    // The process on the other side has died.
    LW_PEER_DEAD = 1005,
    // The handle was closed or stopped.
    LW_CLOSED = 1006,
    // A fault in the library was caught at its border; the message says where. Please report it.
    LW_PANIC = 1007,
    // Header and library, or two processes, speak different versions.
    LW_ABI_MISMATCH = 1008,
    // Not enough memory or room; the message says need and have.
    LW_NO_MEMORY = 1009,
    // The operating system refused; the message names the call, the path and the reason.
    LW_IO = 1010,
    // The broker or the student refused a registration; the message says why.
    LW_REFUSED = 1011,
    // Two sides disagree about the tensors of a sample; the message names the field.
    LW_LAYOUT_MISMATCH = 1012,
    // A task failed as often as allowed; the message carries the worker's text.
    LW_TASK_FAILED = 1013,
    // A segment, file or message is foreign, truncated or damaged.
    LW_CORRUPT = 1014,
    // This build or machine cannot do it.
    LW_UNSUPPORTED = 1015,
    // Somebody living owns this name already.
    LW_IN_USE = 1016,
    // Only the leader (rank 0) may do this.
    LW_NOT_LEADER = 1017,
    // The task is no longer wanted. Its bytes were discarded.
    LW_STALE = 1018,
    // The named thing does not exist.
    LW_NOT_FOUND = 1019,
    // The data is wrong (a document, a file of a data set, a recipe); the message names file and line.
    LW_DATA = 1020,
};

// The name of a status, `"LW_TIMEOUT"` say, or `"LW_UNKNOWN"`. A static string: never freed. Any thread.
const char *lw_status_name(int32_t status);

// The message of the last call that failed on this thread, `""` if none did. UTF-8. It belongs to the library and is
// valid until the next call on this thread that fails; copy it to keep it. Success does not clear it.
const char *lw_last_error(void);

// Sets this thread's message. For callbacks (`lw_fill_fn`, the functions of `lw_medium_table`): one that returns a
// failure may say why, and the library passes that text on. `text` is `len` bytes of UTF-8 and is copied; bytes that
// are not UTF-8 are replaced; a NUL ends it. NULL clears it.
void lw_set_last_error(const char *text, size_t len);

/* ==== version =======================================================================================================
 *
 * Versions and the clock.
 */

// The binary interface that this header describes. It grows by one with each change that would break a program
// compiled before, and is the number in the shared library's SONAME.
#define LW_ABI_VERSION 1

// As a deadline: never.
#define LW_NEVER INT64_MAX

// The binary interface of the loaded library. A program compares it with `LW_ABI_VERSION` of the header that it was
// compiled with. Any thread.
uint32_t lw_abi_version(void);

// The library's version, `"1.2.3"` say. A static string: never freed. Any thread.
const char *lw_version(void);

// Now, in nanoseconds of CLOCK_MONOTONIC: the clock of all deadlines. `lw_now() + 1000000` is a millisecond from now; a
// deadline in the past means "do not wait". Any thread; safe in a signal handler.
int64_t lw_now(void);

/* ==== log ===========================================================================================================
 *
 * Where the library's own messages go: standard error, or a callback. Before the first call only warnings and errors
 * are shown.
 */

// Severities, on the scale of Python's `logging`.
typedef int32_t lw_log_level;
enum {
    // Every step.
    LW_LOG_TRACE = 5,
    // For whoever looks for a fault.
    LW_LOG_DEBUG = 10,
    // What happens: registrations, model switches, deaths.
    LW_LOG_INFO = 20,
    // Something is odd; work goes on.
    LW_LOG_WARN = 30,
    // Something failed.
    LW_LOG_ERROR = 40,
    // Nothing.
    LW_LOG_OFF = 100,
};

// Gets one message: its level (one of `lw_log_level`), the part of the library that speaks, and the text; both strings
// are NUL-terminated UTF-8 and valid during the call only. Runs on one thread of the library's own, message after message, so it may
// take its time and any lock: nothing waits for it, and of messages that come faster than it takes them some are dropped and counted. Must not
// throw.
typedef void (*lw_log_fn)(void *user, int32_t level, const char *target, const char *message);

// Passes on messages of this level (a number on the scale of `lw_log_level`) and above. Any thread.
lw_status lw_log_set_level(int32_t level);

// Sends messages to `callback(user, …)`; NULL sends them to standard error again. Returns after the callback before has taken the
// messages that were waiting, and its `drop(user)`, unless NULL, has been called. Any thread but the callback's. In a forked child the
// callback is not called: there messages go to standard error.
lw_status lw_log_set_callback(lw_log_fn callback, void *user, void (*drop)(void *user));

/* ==== layout ========================================================================================================
 *
 * The tensors of one sample: their names, shapes and dtypes, and where each lies in the sample's bytes. Tensors lie in
 * the order given, each starts at a multiple of 64 bytes, row-major without strides; the tail is not padded.
 */

// Element types.
typedef int32_t lw_dtype;
enum {
    // IEEE 754 binary64.
    LW_FLOAT64 = 1,
    // IEEE 754 binary32.
    LW_FLOAT32 = 2,
    // IEEE 754 binary16.
    LW_FLOAT16 = 3,
    // The upper half of a binary32.
    LW_BFLOAT16 = 4,
    // Two's complement, 64 bits.
    LW_INT64 = 5,
    // Two's complement, 32 bits.
    LW_INT32 = 6,
    // Two's complement, 16 bits.
    LW_INT16 = 7,
    // Two's complement, 8 bits.
    LW_INT8 = 8,
    // Unsigned, 8 bits.
    LW_UINT8 = 9,
    // One byte, 0 or 1.
    LW_BOOL = 10,
};

// Where memory is, with DLPack's numbers.
typedef int32_t lw_device;
enum {
    // Memory that this process can read and write.
    LW_DEVICE_CPU = 1,
};

// The layout of a sample. Never changes after it was made, so any number of threads may use it at once.
typedef struct lw_layout lw_layout;

// What a tensor is. Everything it points to is the caller's and is copied by whoever takes one.
typedef struct {
    // NUL-terminated UTF-8, unique in its layout, not empty.
    const char *name;
    // `ndim` sizes, outermost first; none may be negative. May be NULL if `ndim` is 0.
    const int64_t *shape;
    // Number of dimensions, 0 to 32.
    int32_t ndim;
    // One of `lw_dtype`.
    int32_t dtype;
} lw_tensor_spec;

// A tensor in memory, contiguous and row-major.
typedef struct {
    // The first element.
    void *data;
    // `ndim` sizes, outermost first.
    const int64_t *shape;
    // NUL-terminated UTF-8.
    const char *name;
    // Bytes at `data`.
    uint64_t nbytes;
    // Number of dimensions.
    int32_t ndim;
    // One of `lw_dtype`.
    int32_t dtype;
    // One of `lw_device`.
    int32_t device_type;
    // 0 for the CPU.
    int32_t device_id;
} lw_tensor;

// Makes a layout of `count` tensors. On success `*out` is the caller's: free it with `lw_layout_free`. Any thread.
LW_MUST_USE lw_status lw_layout_new(const lw_tensor_spec *specs, size_t count, lw_layout **out);

// Makes a layout from `{"specs": [{"name": "x", "shape": [3, 224], "dtype": "float32"}, …]}`: `len` bytes of UTF-8.
// Unknown fields are errors. On success `*out` is the caller's: free it with `lw_layout_free`. Any thread.
LW_MUST_USE lw_status lw_layout_from_json(const char *text, size_t len, lw_layout **out);

// Writes the layout as `lw_layout_from_json` reads it, NUL-terminated, into `buffer`; equal layouts give equal text.
// `*len` becomes the text's length without the NUL; `capacity` 0 only asks for it. Any thread.
LW_MUST_USE lw_status lw_layout_to_json(const lw_layout *layout, char *buffer, size_t capacity, size_t *len);

// Bytes of one sample; 0 if `layout` is NULL. Any thread.
uint64_t lw_layout_nbytes(const lw_layout *layout);

// Number of tensors; 0 if `layout` is NULL. Any thread.
size_t lw_layout_count(const lw_layout *layout);

// Describes tensor `index`: `*tensor` with `data` NULL, and its byte offset in a sample (`offset` may be NULL). The
// shape and name belong to the layout and are valid until it is freed. Any thread.
LW_MUST_USE lw_status lw_layout_tensor(const lw_layout *layout, size_t index, lw_tensor *tensor, uint64_t *offset);

// Finds the tensor of that NUL-terminated name; `LW_NOT_FOUND` if there is none. Any thread.
LW_MUST_USE lw_status lw_layout_find(const lw_layout *layout, const char *name, size_t *index);

// Copies tensors into a sample of `lw_layout_nbytes` bytes at `out` (`capacity` must be at least that); bytes between
// tensors become 0. `tensors` holds each tensor of the layout once, matched by name, or, where `name` is NULL, by
// position. Dtype, shape and `nbytes` must be the layout's. Tensors must not overlap `out`. Any thread.
LW_MUST_USE lw_status lw_layout_encode(const lw_layout *layout, const lw_tensor *tensors, size_t count, void *out, size_t capacity);

// Fills `tensors[0 … count-1]`, where `count` is that of the layout, with views of the sample of `len` bytes at `data`.
// Nothing is copied: the views are as long-lived and as writable as `data`; shapes and names belong to the layout. Any thread.
LW_MUST_USE lw_status lw_layout_decode(const lw_layout *layout, const void *data, size_t len, lw_tensor *tensors, size_t count);

// Frees a layout made by `lw_layout_new` or `lw_layout_from_json`; NULL is allowed. Students and workers that were
// opened with it have their own copy. Not while another thread uses it.
void lw_layout_free(lw_layout *layout);

/* ==== medium ========================================================================================================
 *
 * Where the bytes of samples live. The student owns a medium; workers attach to it. The default is shared memory; files
 * and media of one's own are chosen by handing a medium to `lw_student_open`.
 */

// The choice of a medium for one student. Any number of threads may use it at once.
typedef struct lw_medium lw_medium;

// A medium written in C (or in anything that can make function pointers): numbered slots of bytes. Fill it after
// `lw_medium_table_init`.
//
// `read` and `write` are always needed; `slot` makes both needless where memory can be reached directly. The functions
// may run on any thread, on several at once for different slots, never on two at once for one slot. They return 0 for
// success and anything else for failure, after `lw_set_last_error` with the reason. They must not throw, or call
// functions of the student or worker that uses the medium.
typedef struct {
    // `sizeof(lw_medium_table)`.
    size_t struct_size;
    // Handed to every function.
    void *user;
    // Called once when the medium is no longer used, on any thread, after every other function has returned. May be NULL.
    void (*drop)(void *user);
    // A name for this kind of medium, by which workers find their `lw_attach_table`: NUL-terminated, 1 to 31 characters,
    // not "shm" or "file". Copied.
    const char *kind;
    // What a worker needs to find it (a path, an address), NUL-terminated UTF-8. Copied.
    const char *buf_name;
    // Number of slots. On the student's side, more than `slot_count` of its options; each worker that attaches takes another
    // `max_batch`.
    uint32_t slot_count;
    // Zero.
    uint32_t reserved;
    // Bytes from one slot to the next: at least a sample's.
    size_t slot_stride;
    // Copies the first `len` bytes of a slot to `out`. Student's side.
    int32_t (*read)(void *user, uint32_t slot, void *out, size_t len);
    // Copies `len` bytes into the beginning of a slot. Worker's side.
    int32_t (*write)(void *user, uint32_t slot, const void *data, size_t len);
    // The slot's memory, 64-byte aligned and valid until `drop`, or NULL if it has none. May be NULL itself.
    void *(*slot)(void *user, uint32_t slot);
    // Makes sure that slots 0 … `slots` − 1 can be written without running out of room. May be NULL: nothing to do.
    int32_t (*reserve)(void *user, uint32_t slots);
    // A file descriptor that is handed to each worker (as `fd` of `attach`), or −1. It stays the medium's. May be NULL.
    int32_t (*share)(void *user);
    // Removes what would outlive the process, a file's name say. Called by the student at its end. May be NULL.
    int32_t (*unlink)(void *user);
} lw_medium_table;

// How a worker attaches to media of one kind. Fill it after `lw_attach_table_init` and hand it to `lw_worker_open`.
typedef struct {
    // `sizeof(lw_attach_table)`.
    size_t struct_size;
    // Handed to `attach`.
    void *user;
    // Called once when the worker no longer needs it, on any thread. May be NULL.
    void (*drop)(void *user);
    // The `kind` of the student's `lw_medium_table`. Copied.
    const char *kind;
    // Opens the student's medium and fills `*out`, which `lw_medium_table_init` was called on, with at least `read`, `write` and what they need; `kind`,
    // `buf_name`, `slot_count` and `slot_stride` need not be set. `fd` is the descriptor that `share` gave, from here on the callee's to
    // close, or −1. Returns 0 for success. Runs on the worker's background thread.
    int32_t (*attach)(void *user, const char *buf_name, int32_t fd, uint32_t slot_count, size_t slot_stride, lw_medium_table *out);
} lw_attach_table;

// Sets `struct_size` and makes everything else empty. NULL is allowed.
void lw_medium_table_init(lw_medium_table *table);

// Sets `struct_size` and makes everything else empty. NULL is allowed.
void lw_attach_table_init(lw_attach_table *table);

// Shared memory of this host: the default. On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
LW_MUST_USE lw_status lw_medium_shm(lw_medium **out);

// A mapped file at `path` (NUL-terminated UTF-8), which the student creates and removes; for samples beyond the size of memory, on
// one host. On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
LW_MUST_USE lw_status lw_medium_file(const char *path, lw_medium **out);

// A medium of one's own. The table is copied; its `drop` is called exactly once if this succeeds, and never if it
// fails. Serves one student. On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
LW_MUST_USE lw_status lw_medium_custom(const lw_medium_table *table, lw_medium **out);

// Frees the handle; NULL is allowed. A student that was opened with it keeps what it needs. Not while another thread uses it.
void lw_medium_free(lw_medium *medium);

/* ==== broker ========================================================================================================
 *
 * The broker introduces students and workers to each other and keeps what is known of models. It never touches a sample.
 * The `laneway broker` program is this noun with a command line around it.
 */

// A broker in this process. Any number of threads may use it at once.
typedef struct lw_broker lw_broker;

// The broker's four sockets, as ZeroMQ addresses (`ipc:///path`, `tcp://host:port`), NUL-terminated UTF-8. NULL stands
// for the default: `frontend.sock`, `backend.sock`, `control.sock`, `control_pub.sock` in the folder `$LANEWAY_DIR`,
// which is `/tmp/laneway-<uid>` unless set.
typedef struct {
    // Where students register.
    const char *frontend;
    // Where workers register.
    const char *backend;
    // Where the leader and the command line give orders.
    const char *control;
    // Where the broker announces model switches and stops.
    const char *control_pub;
} lw_endpoints;

// How a broker is opened. Fill it after `lw_broker_options_init`. Strings are read during `lw_broker_open` only.
typedef struct {
    // `sizeof(lw_broker_options)`.
    size_t struct_size;
    // Where to listen.
    lw_endpoints endpoints;
    // Milliseconds without any student or worker after which the broker ends by itself; 0 (the default): never.
    uint64_t exit_when_idle_ms;
} lw_broker_options;

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_broker_options_init(lw_broker_options *options);

// Binds all sockets. `options` may be NULL: all defaults. `LW_IN_USE` if a living broker has them, and the message names
// its process; what a dead one left is taken over. On success `*out` is the caller's: free it with `lw_broker_free`.
LW_MUST_USE lw_status lw_broker_open(const lw_broker_options *options, lw_broker **out);

// Serves on the calling thread until `lw_broker_stop`, or until idle as set. Returns `LW_OK` then.
LW_MUST_USE lw_status lw_broker_run(const lw_broker *broker);

// Serves on a thread of the library's own, and returns at once.
LW_MUST_USE lw_status lw_broker_start(const lw_broker *broker);

// Asks the broker to stop serving; returns at once. NULL is allowed. Any thread; safe in a signal handler.
void lw_broker_stop(const lw_broker *broker);

// Writes the broker's statistics as one JSON object, NUL-terminated, into `buffer`. `*len` becomes its length without the
// NUL; `capacity` 0 only asks for it. They may grow between two calls.
LW_MUST_USE lw_status lw_broker_stats(const lw_broker *broker, char *buffer, size_t capacity, size_t *len);

// Stops the broker, waits until it has, removes its files and frees it; NULL is allowed. Not while another thread uses
// it: `lw_broker_run` must have returned.
void lw_broker_free(lw_broker *broker);

/* ==== student =======================================================================================================
 *
 * The trainer's side: it owns the memory, asks for samples, reads them, and gives their slots back.
 *
 * A student opens *tickets* (lane, step) and workers fill them. A sample that `lw_student_next` hands out holds one
 * reference to its slot; the slot is used again when the last reference is released. Samples come in ticket order
 * unless `arrival_order` is set; none is ever of an older generation than the last `lw_student_set_model`.
 */

// In `spin_us`: the library decides from the number of processors and what it measures.
#define LW_SPIN_ADAPTIVE UINT32_MAX

// In `flags` of an `lw_sample`: the bytes are a copy outside the segment, because holding one more slot would have
// stopped the others.
#define LW_SAMPLE_COPIED 1

// Who is asking, for the names of lanes and for statistics.
typedef int32_t lw_role;
enum {
    // A trainer that asks for samples itself.
    LW_ROLE_CLIENT = 0,
    // A data loader, in a worker process of it or not.
    LW_ROLE_DATASET = 1,
};

// A student. All functions but `lw_student_free` may be called by any number of threads at once; calls of
// `lw_student_next` queue up behind each other.
typedef struct lw_student lw_student;

// How a student is opened. Fill it after `lw_student_options_init`; `layout` must be set. What it points to is read
// during `lw_student_open` only.
typedef struct {
    // `sizeof(lw_student_options)`.
    size_t struct_size;
    // Where the broker is. The student uses `frontend`, `control` and `control_pub`; `backend` only with `embedded_broker`.
    lw_endpoints endpoints;
    // Separates jobs on one broker; NUL-terminated UTF-8. NULL (the default): torchrun's run id, else its master's address and
    // port, else "default".
    const char *group;
    // The tensors of one sample.
    const lw_layout *layout;
    // Where samples live; NULL (the default): shared memory. The student takes what it needs of it.
    const lw_medium *medium;
    // The run's seed, from which, with lane and step, each ticket's seed is made. Default 0.
    uint64_t seed;
    // Which trainer of the group this is; 0 (the default) leads. Two living ones with one rank are refused.
    uint32_t rank;
    // One of `lw_role`. Default `LW_ROLE_CLIENT`.
    int32_t role;
    // Which of the `data_workers` processes of this rank's data loader this is, from 0. Lane = rank · max(1, data_workers) + data_worker.
    uint32_t data_worker;
    // How many there are; 0 (the default): the trainer loads by itself.
    uint32_t data_workers;
    // Samples in flight and held together. Default 8.
    uint32_t slot_count;
    // Tickets opened ahead of the one that is waited for. Default 0: none is made unasked.
    uint32_t prefetch;
    // Workers that can be attached at once. Default 8.
    uint32_t max_workers;
    // Tasks that one worker can take at once. Default 8.
    uint32_t max_batch;
    // How often a ticket is tried, when its worker fails or dies, before `lw_student_next` reports it. Default 3.
    uint32_t max_attempts;
    // How long to spin before sleeping, in microseconds. Default `LW_SPIN_ADAPTIVE`.
    uint32_t spin_us;
    // 1: hand out whatever is ready first. Default 0: in ticket order.
    int32_t arrival_order;
    // 1: start the `laneway broker` program if no broker answers; it ends when its last student and worker have gone. Default 0.
    int32_t embedded_broker;
} lw_student_options;

// One sample: a plain value that may be copied; what counts are its references.
typedef struct {
    // Its bytes, 64-byte aligned; not to be written. Readable until its last reference is released.
    const void *data;
    // How many.
    uint64_t nbytes;
    // The stream that it belongs to.
    uint64_t lane;
    // Its number in that stream.
    uint64_t step;
    // What its worker was given to make it from: a hash of run seed, lane and step.
    uint64_t seed;
    // The model that it was made by, counted by `lw_student_set_model`.
    uint64_t generation;
    // Its number among the samples that this student has handed out.
    uint64_t position;
    // Tells uses of one slot apart.
    uint64_t serial;
    // The slot that it lies in.
    uint32_t slot;
    // 0 or `LW_SAMPLE_COPIED`.
    uint32_t flags;
} lw_sample;

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_student_options_init(lw_student_options *options);

// Makes the student's memory and registers it at the broker, by `deadline` (`LW_TIMEOUT` names the endpoint that did not
// answer). On success `*out` is the caller's: free it with `lw_student_free`.
LW_MUST_USE lw_status lw_student_open(const lw_student_options *options, int64_t deadline, lw_student **out);

// Chooses the model by which workers make samples from now on, for the whole group: after this returns, no rank is
// handed a sample of an older one, and tickets not yet handed out are made anew. Rank 0 with `LW_ROLE_CLIENT` only (`LW_NOT_LEADER`). `id` and
// `config` are UTF-8 of any size, read by the workers' code alone; `config` may be NULL. `generation` may be NULL.
LW_MUST_USE
lw_status lw_student_set_model(const lw_student *student,
                               const char *id,
                               size_t id_len,
                               const char *config,
                               size_t config_len,
                               int64_t deadline,
                               uint64_t *generation);

// Waits until `deadline` for the next sample, then takes it and those that are ready behind it, `max` at most. `*count`
// samples at `samples` are then the caller's, each with one reference. `LW_TIMEOUT`: nothing was lost, the ticket stays open for the
// next call. `LW_TASK_FAILED`: the next ticket failed as often as allowed; the message names it and carries the worker's
// text; the call after continues behind it. Also `LW_INTERRUPTED`, `LW_CLOSED`, `LW_FORKED`.
LW_MUST_USE lw_status lw_student_next(const lw_student *student, int64_t deadline, lw_sample *samples, size_t max, size_t *count);

// Takes one more reference to a sample that is held. Each reference is released once.
LW_MUST_USE lw_status lw_student_retain(const lw_student *student, const lw_sample *sample);

// Releases one reference to each of `count` samples. A sample whose last reference goes must not be read any more.
// `stream` is reserved for the stream or event after which the memory may be used again: NULL. A sample that is not
// held is an error (`LW_INVALID_ARGUMENT`) that names it; the others are released all the same.
LW_MUST_USE lw_status lw_student_release(const lw_student *student, const lw_sample *samples, size_t count, void *stream);

// Describes tensor `index` of a held sample: a view, not to be written, as long-lived as the sample's reference. Shape and
// name belong to the student.
LW_MUST_USE lw_status lw_student_tensor(const lw_student *student, const lw_sample *sample, size_t index, lw_tensor *tensor);

// Exports tensor `index` of a held sample as a DLPack (1.0) tensor, flagged read-only, that holds a reference of its own: the sample may be
// released, and the student closed and freed, before it. Its consumer calls its `deleter` once, on any thread, also
// while the process ends; in a forked child that does nothing. `*out` is the caller's.
LW_MUST_USE lw_status lw_student_dlpack(const lw_student *student, const lw_sample *sample, size_t index, DLManagedTensorVersioned **out);

// The student's copy of its layout: never NULL but for a NULL student, valid until `lw_student_free`, not to be freed.
const lw_layout *lw_student_layout(const lw_student *student);

// The group's current generation: how often `lw_student_set_model` was called, by any process. 0 before the first, and for NULL. Works in a
// forked child, too.
uint64_t lw_student_generation(const lw_student *student);

// The lane whose tickets this student opens; 0 for NULL.
uint64_t lw_student_lane(const lw_student *student);

// The step of the next sample that `lw_student_next` hands out in ticket order; 0 for NULL.
uint64_t lw_student_cursor(const lw_student *student);

// Goes back: samples from `step` on, which is at most `lw_student_cursor`, count as not handed out, and are made anew by the current model. For loaders that threw
// away what they had. What is held stays held.
LW_MUST_USE
lw_status lw_student_rewind(const lw_student *student,
                            uint64_t step);

// Writes what the student is registered as, one JSON object (`{"group": "default", "host": "…", "lane": 0, "session": 123}`), NUL-terminated, into
// `buffer`. `*len` becomes its length without the NUL; `capacity` 0 only asks for it.
LW_MUST_USE
lw_status lw_student_registration(const lw_student *student,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *len);

// Writes the student's statistics as one JSON object, NUL-terminated, into `buffer`. `*len` becomes its length without
// the NUL; `capacity` 0 only asks for it. They may grow between two calls.
LW_MUST_USE lw_status lw_student_stats(const lw_student *student, char *buffer, size_t capacity, size_t *len);

// A file descriptor for poll, epoll or asyncio that is readable while `lw_student_next` would not wait. It belongs to the student:
// not to be read, written or closed. The first call makes it.
LW_MUST_USE lw_status lw_student_fd(const lw_student *student, int32_t *fd);

// Ends the wait of `lw_student_next` that is going on, or else the next one, with `LW_INTERRUPTED`. NULL is allowed. Any
// thread; safe in a signal handler.
void lw_student_cancel(const lw_student *student);

// Cancels what is queued and takes leave of the broker. Waits end, and later ones return, with `LW_CLOSED`. Samples that are held stay
// readable and can be released. Closing twice is allowed, and NULL.
void lw_student_close(const lw_student *student);

// Closes the student and frees the handle; NULL is allowed. Not while another thread uses it. DLPack tensors stay valid.
// The memory goes with the last of them; if samples are still held, whose owner can no longer release them, it stays until
// the process ends, so that reading them is never a fault.
void lw_student_free(lw_student *student);

/* ==== worker ========================================================================================================
 *
 * The side that makes samples: it takes tasks, writes each into the memory that it belongs in, and commits it.
 *
 * A worker serves every student whose layout agrees with its own. What it makes for a task should follow from the
 * task alone (model, lane, step, seed), so that another worker can make the same again.
 */

// A worker. All functions but `lw_worker_free` may be called by any number of threads at once; calls of `lw_worker_take`
// queue up behind each other.
typedef struct lw_worker lw_worker;

// How a worker is opened. Fill it after `lw_worker_options_init`; `layout` or `slot_size` must be set. What it points to
// is read during `lw_worker_open` only.
typedef struct {
    // `sizeof(lw_worker_options)`.
    size_t struct_size;
    // Where the broker is. The worker uses `backend` and `control_pub`.
    lw_endpoints endpoints;
    // The tensors that it makes: students with other ones are refused, with the name of the field that differs. NULL (the
    // default): any student whose samples have `slot_size` bytes.
    const lw_layout *layout;
    // `attach_count` tables, one for each kind of custom medium that it can write. Copied; each one's `drop` is called exactly
    // once if `lw_worker_open` succeeds, and never if it fails.
    const lw_attach_table *const *attach;
    // How many.
    size_t attach_count;
    // Bytes of a sample; 0 (the default): those of `layout`.
    uint64_t slot_size;
    // A number for logs and statistics; −1 (the default): the process id.
    int64_t worker_id;
    // Most tasks that it takes at once. Default 1.
    uint32_t batch_size;
    // How long to spin before sleeping, in microseconds. Default `LW_SPIN_ADAPTIVE`.
    uint32_t spin_us;
} lw_worker_options;

// One sample to be made. A plain value that may be copied; it is open until it is committed or failed.
typedef struct {
    // Where its bytes go: 64-byte aligned, writable while the task is open. What was there before is undefined.
    void *data;
    // How many fit.
    uint64_t capacity;
    // Names the task to this worker.
    uint64_t id;
    // The stream that it belongs to.
    uint64_t lane;
    // Its number in that stream.
    uint64_t step;
    // What randomness should come from: a hash of run seed, lane and step.
    uint64_t seed;
    // The number of the model, counted by `lw_student_set_model`.
    uint64_t generation;
    // The model's id, `model_id_len` bytes and a NUL. Valid while the task is open.
    const char *model_id;
    // Its length without the NUL.
    size_t model_id_len;
    // The model's config, `model_config_len` bytes and a NUL, or NULL if none was given. Valid while the task is open.
    const char *model_config;
    // Its length without the NUL.
    size_t model_config_len;
    // The student's tensors. Valid until `lw_worker_free`, not to be freed.
    const lw_layout *layout;
    // How many tries of this ticket have failed before: 0 for the first.
    uint32_t attempt;
    // Zero.
    uint32_t reserved;
} lw_task;

// Makes `count` samples of one student and one generation: fills `tasks[i].data`. `lengths[i]` is the sample's length in
// bytes, set to that of the whole layout before the call. Returns 0 to commit them; anything else fails them all, with the text given to
// `lw_set_last_error`. Runs on the thread that called `lw_worker_run`. Must not throw.
typedef int32_t (*lw_fill_fn)(void *user, const lw_task *tasks, size_t *lengths, size_t count);

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_worker_options_init(lw_worker_options *options);

// Registers a worker at the broker, by `deadline` (`LW_TIMEOUT` names the endpoint that did not answer). On success
// `*out` is the caller's: free it with `lw_worker_free`.
LW_MUST_USE lw_status lw_worker_open(const lw_worker_options *options, int64_t deadline, lw_worker **out);

// Waits until `deadline` for a task, then takes up to `max` of one student and one generation. `*count` tasks at `tasks` are then open:
// each is committed or failed once. `LW_TIMEOUT`: none came. `LW_CLOSED`: the worker or the broker was told to stop. Also
// `LW_INTERRUPTED`, `LW_FORKED`.
LW_MUST_USE lw_status lw_worker_take(const lw_worker *worker, int64_t deadline, lw_task *tasks, size_t max, size_t *count);

// Describes tensor `index` of an open task: a writable view, valid while the task is open. Shape and name belong to the worker.
LW_MUST_USE lw_status lw_worker_tensor(const lw_worker *worker, const lw_task *task, size_t index, lw_tensor *tensor);

// Publishes `count` samples of `lengths[i]` bytes at `tasks[i].data` each; `lengths` NULL: all tensors of each. A length that is not the layout's, or a task
// that is not open, is `LW_INVALID_ARGUMENT`, and nothing is published. After any other error, a medium's say, what could not be published was failed with its message. `*wanted` (may be NULL) becomes the number that somebody still
// waited for; the others were overtaken (a model switch, another worker) and dropped, which is no error. `stream` is reserved for the
// stream or event after which the bytes are there: NULL.
LW_MUST_USE
lw_status lw_worker_commit(const lw_worker *worker,
                           const lw_task *tasks,
                           const size_t *lengths,
                           size_t count,
                           void *stream,
                           uint32_t *wanted);

// Gives a task up. `text` says why: `len` bytes of UTF-8, of which 16 KiB are kept; it reaches the log and, if no other try succeeds, the
// student.
LW_MUST_USE lw_status lw_worker_fail(const lw_worker *worker, const lw_task *task, const char *text, size_t len);

// Takes tasks, `batch_size` at most at once, has `fill(user, …)` make them, and commits them, until the worker is
// stopped, which is `LW_OK`. `LW_INTERRUPTED` after a signal handler or `lw_worker_cancel`: call again to go on.
LW_MUST_USE lw_status lw_worker_run(const lw_worker *worker, lw_fill_fn fill, void *user);

// The generation of the newest model that this worker knows; 0 before the first, and for NULL.
uint64_t lw_worker_generation(const lw_worker *worker);

// Writes the newest model that this worker knows as `{"generation": 3, "id": "layer_0", "config": "…" or null}`, NUL-terminated,
// into `buffer`; `LW_NOT_FOUND` while there is none. `*len` becomes the text's length without the NUL; `capacity` 0 only asks for it.
LW_MUST_USE lw_status lw_worker_model(const lw_worker *worker, char *buffer, size_t capacity, size_t *len);

// Writes the worker's statistics as one JSON object, NUL-terminated, into `buffer`. `*len` becomes its length without
// the NUL; `capacity` 0 only asks for it. They may grow between two calls.
LW_MUST_USE lw_status lw_worker_stats(const lw_worker *worker, char *buffer, size_t capacity, size_t *len);

// A file descriptor for poll, epoll or asyncio that is readable while `lw_worker_take` would not wait. It belongs to the worker: not to be
// read, written or closed. The first call makes it.
LW_MUST_USE lw_status lw_worker_fd(const lw_worker *worker, int32_t *fd);

// Tells the worker to take nothing more: waits end, and later ones return, with `LW_CLOSED`. Open tasks can still be
// committed. NULL is allowed.
void lw_worker_stop(const lw_worker *worker);

// Ends the wait of `lw_worker_take` or `lw_worker_run` that is going on, or else the next one, with `LW_INTERRUPTED`.
// NULL is allowed. Any thread; safe in a signal handler.
void lw_worker_cancel(const lw_worker *worker);

// Stops the worker, gives its open tasks back to be made by others, and frees the handle; NULL is allowed. Not while
// another thread uses it, and no task's memory may be touched afterwards.
void lw_worker_free(lw_worker *worker);

#ifdef __cplusplus
}
#endif

#endif /* LANEWAY_H */
