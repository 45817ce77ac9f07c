/* Laneway's C API. Generated from src/capi by tests/header.rs: change that, then run `make header`.
 *
 * Rules that hold for every function:
 *
 * Errors.    What can fail returns an lw_status, 0 being success; lw_last_error() then has the thread's message. On failure out-parameters
 *            are left alone, but for lengths that say how much room was needed. No C++ exception or Rust panic ever crosses.
 * Handles.   Opaque, made by _open, _new or another constructor, freed once by the _free of the same noun; _free(NULL) does nothing.
 * Threads.   A function that takes a const handle may be called on it by any number of threads at once; one that takes a handle without const
 *            (_free) must be the only one. Callbacks say on which thread they run. No thread of the library's own exists before a broker,
 *            student or worker is opened, or the first batch of a loader asked for.
 * Pointers.  What is handed in is read during the call only, unless stated. Text is UTF-8, with a length or NUL-terminated as stated.
 * Options.   Structs that begin with struct_size are filled after their _init function, so that a program keeps working with a newer library.
 * Time.      Deadlines are absolute: nanoseconds of CLOCK_MONOTONIC, see lw_now. LW_NEVER waits for ever. A deadline that passed never waits.
 *            Waits end with LW_INTERRUPTED when a signal handler ran (a loader's: when it called lw_loader_cancel), so that a program can
 *            react to it; nothing is lost, call again.
 * Forks.     A handle belongs to the process that opened it. In a forked child its functions return LW_FORKED, and _free frees no more than is safe there.
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
    // A signal handler ran, or `lw_student_cancel`, `lw_worker_cancel`, `lw_loader_cancel` or a `lw_progress_fn` asked the wait to end. Call again.
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
    // The broker or the student refused a registration, or a loader a state; the message says why.
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

// Sets this thread's message. For callbacks (`lw_fill_fn`, the functions of `lw_medium_table` and `lw_function_table`): one that returns a
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
 *
 * A *ragged* dimension has its own length in every sample, up to a maximum that slots have room for. In JSON it is written `"seq<=2048"`;
 * all dimensions of one name have one length. A ragged tensor starts where it would with all dimensions at their maximum, and lies there
 * row-major in its true shape; the rest of its place is zero. Behind the last tensor, at a multiple of 64 bytes, lie the true shapes of
 * the ragged tensors in order: `ndim` little-endian `int64_t` each. For a sample on a device they are kept beside it, in host memory:
 * `lw_student_read` and `lw_worker_write` know the sample as a whole, and the bytes behind the tensors on the device mean nothing.
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
    // Memory of a CUDA device: its address is for the device and its driver only.
    LW_DEVICE_CUDA = 2,
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
    // `ndim` sizes, outermost first; of a ragged tensor in a sample the true ones.
    const int64_t *shape;
    // NUL-terminated UTF-8.
    const char *name;
    // Bytes at `data`: those of the shape.
    uint64_t nbytes;
    // Number of dimensions.
    int32_t ndim;
    // One of `lw_dtype`.
    int32_t dtype;
    // One of `lw_device`.
    int32_t device_type;
    // 0 for the CPU; the CUDA device's number in this process.
    int32_t device_id;
} lw_tensor;

// Makes a layout of `count` tensors of fixed shape, of whose values nothing is asked; `lw_layout_from_json` makes the others. On success
// `*out` is the caller's: free it with `lw_layout_free`. Any thread.
LW_MUST_USE lw_status lw_layout_new(const lw_tensor_spec *specs, size_t count, lw_layout **out);

// Makes a layout from `{"specs": [{"name": "x", "shape": [3, 224], "dtype": "float32"}, …]}`: `len` bytes of UTF-8. A size may be a name
// and a maximum, `"seq<=2048"`: a ragged dimension. `"finite": true` asks for finite values of a float type, `"min"` and `"max"` for
// values of an integer type from one to the other: what a worker commits is checked. Unknown fields are errors. On success `*out` is the
// caller's: free it with `lw_layout_free`. Any thread.
LW_MUST_USE lw_status lw_layout_from_json(const char *text, size_t len, lw_layout **out);

// Writes the layout as `lw_layout_from_json` reads it, NUL-terminated, into `buffer`; equal layouts give equal text.
// `*len` becomes the text's length without the NUL; `capacity` 0 only asks for it. Any thread.
LW_MUST_USE lw_status lw_layout_to_json(const lw_layout *layout, char *buffer, size_t capacity, size_t *len);

// Bytes of one sample; 0 if `layout` is NULL. Any thread.
uint64_t lw_layout_nbytes(const lw_layout *layout);

// Number of tensors; 0 if `layout` is NULL. Any thread.
size_t lw_layout_count(const lw_layout *layout);

// Describes tensor `index`: `*tensor` with `data` NULL, ragged dimensions at their maximum, and its byte offset in a sample (`offset` may
// be NULL). The shape and name belong to the layout and are valid until it is freed. Any thread.
LW_MUST_USE lw_status lw_layout_tensor(const lw_layout *layout, size_t index, lw_tensor *tensor, uint64_t *offset);

// Finds the tensor of that NUL-terminated name; `LW_NOT_FOUND` if there is none. Any thread.
LW_MUST_USE lw_status lw_layout_find(const lw_layout *layout, const char *name, size_t *index);

// Copies tensors into a sample of `lw_layout_nbytes` bytes at `out` (`capacity` must be at least that); bytes between tensors become 0.
// `tensors` holds each tensor of the layout once, matched by name, or, where `name` is NULL, by position. Dtype, shape and `nbytes` must
// be the layout's; the shapes of ragged tensors give the sample its lengths. Values are not looked at: a worker's commit does that.
// Tensors must not overlap `out`. Any thread.
LW_MUST_USE lw_status lw_layout_encode(const lw_layout *layout, const lw_tensor *tensors, size_t count, void *out, size_t capacity);

// Fills `tensors[0 … count-1]`, where `count` is that of the layout, with views of the sample of `len` bytes at `data`. Nothing is copied:
// the views are as long-lived and as writable as `data`. Names belong to the layout, and shapes too, but those of ragged tensors, which
// are the sample's own and lie in `data` (which must then be aligned to 8 bytes); `LW_CORRUPT` if they are wrong. Any thread.
LW_MUST_USE
lw_status lw_layout_decode(const lw_layout *layout,
                           const void *data,
                           size_t len,
                           lw_tensor *tensors,
                           size_t count);

// Frees a layout made by `lw_layout_new` or `lw_layout_from_json`; NULL is allowed. Students and workers that were
// opened with it have their own copy. Not while another thread uses it.
void lw_layout_free(lw_layout *layout);

/* ==== medium ========================================================================================================
 *
 * Where the bytes of samples live. The student owns a medium; workers attach to it. The default is shared memory; a GPU's memory, files
 * and media of one's own are chosen by handing a medium to `lw_student_open`.
 */

// What is done where CUDA is not to be had: no driver, no such device, or one that refuses.
typedef int32_t lw_fallback;
enum {
    // `lw_student_open` fails with the reason (`LW_UNSUPPORTED`, `LW_NOT_FOUND`).
    LW_FALLBACK_NONE = 0,
    // Shared memory is used instead, and the log says so with the reason.
    LW_FALLBACK_SHM = 1,
};

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
    // not "shm", "file" or "cuda". Copied.
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

// Shared memory that is page-locked, so that copies from it to CUDA device `device` (and any other) run beside everything else. Each slot is
// page-locked once, when it may first be used. `fallback` is one of `lw_fallback`; CUDA is looked for in `lw_student_open`.
// On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
LW_MUST_USE
lw_status lw_medium_shm_pinned(int32_t device,
                               int32_t fallback,
                               lw_medium **out);

// Memory of CUDA device `device`, as this process numbers it: one plain allocation of the driver's for all slots, `slot_count` +
// `max_workers` · `max_batch` of them, which workers of this host open by CUDA IPC. Samples' and tasks' `data` are then device
// addresses; `lw_tensor` says which device's. `fallback` is one of `lw_fallback`; with `LW_FALLBACK_SHM`, a worker that
// cannot open the memory writes to host memory, from where the student copies its samples up. CUDA is looked for in `lw_student_open`.
// On success `*out` is the caller's: free it with `lw_medium_free`. Any thread.
LW_MUST_USE lw_status lw_medium_cuda(int32_t device, int32_t fallback, lw_medium **out);

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

// In `flags` of an `lw_sample`, and of an `lw_task`: `data` is a device's address, which this process cannot follow; `lw_student_tensor` and
// `lw_worker_tensor` say which device's.
#define LW_ON_DEVICE 2

// In place of a stream: the device's default one, as CUDA itself numbers it (`CU_STREAM_LEGACY`).
#define LW_STREAM_LEGACY 1

// In place of a stream: the calling thread's default one (`CU_STREAM_PER_THREAD`).
#define LW_STREAM_PER_THREAD 2

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
    // Tasks that one worker can take at once; one whose `batch_size` is larger takes so many. Default 8.
    uint32_t max_batch;
    // How often a ticket is tried, when its worker fails or dies, before `lw_student_next` reports it. Default 3.
    uint32_t max_attempts;
    // How long to spin before sleeping, in microseconds. Default `LW_SPIN_ADAPTIVE`.
    uint32_t spin_us;
    // 1: hand out whatever is ready first. Default 0: in ticket order.
    int32_t arrival_order;
    // 1: start the `laneway broker` program if no broker answers; it ends when its last student and worker have gone. Default 0.
    int32_t embedded_broker;
    // The tensors that each ticket carries for its worker, given by `lw_student_give`. NULL (the default): none.
    const lw_layout *input;
} lw_student_options;

// One sample: a plain value that may be copied; what counts are its references.
typedef struct {
    // Its bytes, 64-byte aligned, complete; not to be written. Readable until its last reference is released.
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
    // 0, or `LW_SAMPLE_COPIED` and `LW_ON_DEVICE` or-ed.
    uint32_t flags;
} lw_sample;

// A reference to a sample, together with whom it is to be given back to.
typedef struct {
    // The student.
    const lw_student *student;
    // The sample, as `lw_student_next` gave it.
    lw_sample sample;
} lw_held;

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

// Gives the inputs of the next `count` tickets, in their order: `nbytes` bytes each, one behind the other, as the layout in
// `options.input` says. They are copied. A ticket is opened once its input was given; one that is made again keeps its
// input; after `lw_student_rewind` they are given again from there.
LW_MUST_USE lw_status lw_student_give(const lw_student *student, const void *data, size_t nbytes, size_t count);

// Waits until `deadline` for the next sample, then takes it and those that are ready behind it, `max` at most. `*count`
// samples at `samples` are then the caller's, each with one reference. `LW_TIMEOUT`: nothing was lost, the ticket stays open for the
// next call. `LW_TASK_FAILED`: the next ticket failed as often as allowed; the message names it and carries the worker's
// text; the call after continues behind it. Also `LW_INTERRUPTED`, `LW_CLOSED`, `LW_FORKED`.
LW_MUST_USE lw_status lw_student_next(const lw_student *student, int64_t deadline, lw_sample *samples, size_t max, size_t *count);

// Takes one more reference to a sample that is held. Each reference is released once.
LW_MUST_USE lw_status lw_student_retain(const lw_student *student, const lw_sample *sample);

// Releases one reference to each of `count` samples. A sample whose last reference goes must not be read any more.
// `stream` is NULL, or, for samples on a device, the stream on which reading them is queued (a `CUstream` or `cudaStream_t` of that device, or
// `LW_STREAM_LEGACY`, `LW_STREAM_PER_THREAD`): a slot is used again only once that is done, and this does not wait for it. NULL stands for all that this
// process has queued on the device so far. A sample that is not
// held is an error (`LW_INVALID_ARGUMENT`) that names it; the others are released all the same. A stream for samples in host
// memory is `LW_UNSUPPORTED`, and nothing is released.
LW_MUST_USE
lw_status lw_student_release(const lw_student *student,
                             const lw_sample *samples,
                             size_t count,
                             void *stream);

// Releases that one reference, as `lw_student_release` with a NULL `stream`, for finalizers, which are handed one pointer and can do nothing about an
// error: one that is not held any more is left alone. NULL is allowed. Any thread.
void lw_held_release(const lw_held *held);

// Copies the first `len` bytes of a held sample to `out`, in host memory, wherever the sample lies; waits until they are there. All of
// them are what `lw_layout_decode` takes, also of ragged ones on a device.
LW_MUST_USE lw_status lw_student_read(const lw_student *student, const lw_sample *sample, void *out, size_t len);

// Describes tensor `index` of a held sample: a view, not to be written, as long-lived as the sample's reference. Shape and name belong to
// the student; the shape of a ragged tensor is the sample's true one, and lies in its memory, or, for a sample on a device, in the host's.
// `LW_CORRUPT`: the shape is beyond its maximum.
LW_MUST_USE lw_status lw_student_tensor(const lw_student *student, const lw_sample *sample, size_t index, lw_tensor *tensor);

// Exports tensor `index` of a held sample as a DLPack (1.0) tensor, flagged read-only, that holds a reference of its own: the sample may be
// released, and the student closed and freed, before it. Its consumer calls its `deleter` once, on any thread, also
// while the process ends; in a forked child that does nothing. On a device, its bytes are complete, so no stream has to wait for anything; and a deleter,
// which cannot say on which stream the tensor was read, frees the slot once all that was queued on the device by then is done. `*out` is the caller's.
LW_MUST_USE
lw_status lw_student_dlpack(const lw_student *student,
                            const lw_sample *sample,
                            size_t index,
                            DLManagedTensorVersioned **out);

// The student's copy of its layout: never NULL but for a NULL student, valid until `lw_student_free`, not to be freed.
const lw_layout *lw_student_layout(const lw_student *student);

// The group's current generation: how often `lw_student_set_model` was called, by any process. 0 before the first, and for NULL. Works in a
// forked child, too.
uint64_t lw_student_generation(const lw_student *student);

// The lane whose tickets this student opens; 0 for NULL.
uint64_t lw_student_lane(const lw_student *student);

// The step of the next sample that `lw_student_next` hands out in ticket order; 0 for NULL.
uint64_t lw_student_cursor(const lw_student *student);

// Goes back: samples from `step` on, which is at most `lw_student_cursor`, count as not handed out, and are made anew by the current
// model. For loaders that threw away what they had. What is held stays held.
LW_MUST_USE lw_status lw_student_rewind(const lw_student *student, uint64_t step);

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

// In `device` of `lw_worker_options`: tasks' memory is the host's, always, and the library copies to the student's device.
#define LW_MAKE_IN_HOST_MEMORY -1

// In `device` of `lw_worker_options`: tasks' memory is the student's own, on its device, and nothing is copied.
#define LW_MAKE_ON_STUDENTS_DEVICE -2

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
    // Where samples are made for students whose medium is "cuda": the number of a CUDA device in this process, `LW_MAKE_ON_STUDENTS_DEVICE`, or
    // `LW_MAKE_IN_HOST_MEMORY` (the default). Students in host memory have them made there in any case.
    int32_t device;
    // Zero.
    uint32_t reserved;
} lw_worker_options;

// One sample to be made. A plain value that may be copied; it is open until it is committed or failed.
typedef struct {
    // Where its bytes go: 64-byte aligned, writable while the task is open; a device's address if `flags` has `LW_ON_DEVICE`. What was there before is
    // undefined.
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
    // 0 or `LW_ON_DEVICE`.
    uint32_t flags;
} lw_task;

// Makes `count` samples of one student and one generation: fills `tasks[i].data`. `lengths[i]` is the sample's length in
// bytes, set to that of the whole layout before the call. Returns 0 to commit them; anything else fails them all, with the text given to
// `lw_set_last_error`. Runs on the thread that called `lw_worker_run`. Must not throw. All that was queued
// on the device of tasks on one is waited for then.
typedef int32_t (*lw_fill_fn)(void *user, const lw_task *tasks, size_t *lengths, size_t count);

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_worker_options_init(lw_worker_options *options);

// Registers a worker at the broker, by `deadline` (`LW_TIMEOUT` names the endpoint that did not answer). On success
// `*out` is the caller's: free it with `lw_worker_free`.
LW_MUST_USE lw_status lw_worker_open(const lw_worker_options *options, int64_t deadline, lw_worker **out);

// Waits until `deadline` for a task, then takes up to `max` of one student and one generation. `*count` tasks at `tasks` are then open:
// each is committed or failed once. `LW_TIMEOUT`: none came. `LW_CLOSED`: the worker or the broker was told to stop. `LW_IO`: this
// process's CUDA context is lost, and it can make nothing any more: end it and start another. Also `LW_INTERRUPTED`, `LW_FORKED`.
LW_MUST_USE lw_status lw_worker_take(const lw_worker *worker, int64_t deadline, lw_task *tasks, size_t max, size_t *count);

// Describes tensor `index` of an open task: a writable view, valid while the task is open. Shape and name belong to the worker; the shape
// of a ragged tensor lies in the task's memory, or, for a task on a device, in the host's, and its lengths must have been set
// (`lw_worker_set_length`, or by writing the sample as `lw_layout_encode` makes it: there, or, on a device, with `lw_worker_write`).
LW_MUST_USE lw_status lw_worker_tensor(const lw_worker *worker, const lw_task *task, size_t index, lw_tensor *tensor);

// Sets the length of a ragged dimension of an open task, in all tensors that have it: `dimension` is its NUL-terminated name, `length` at
// most its maximum. Each must be set before the views of its tensors are asked for, and before the commit. May be set again; what was
// written is then to be written anew, unless it lies in the new shape as it should: a tensor is row-major from its beginning on. The
// same on a device, for which this does not wait.
LW_MUST_USE lw_status lw_worker_set_length(const lw_worker *worker, const lw_task *task, const char *dimension, uint64_t length);

// Describes tensor `index` of what an open task's ticket carries: a view, not to be written, valid while the task is open. Shape and name belong to
// the worker. `LW_NOT_FOUND`: it carries nothing.
LW_MUST_USE
lw_status lw_worker_input(const lw_worker *worker,
                          const lw_task *task,
                          size_t index,
                          lw_tensor *tensor);

// The tensors of what an open task's ticket carries; NULL if it carries nothing, for a task that is not open, and for NULL. Valid until
// `lw_worker_free`, not to be freed.
const lw_layout *lw_worker_input_layout(const lw_worker *worker, const lw_task *task);

// Exports tensor `index` of an open task as a DLPack (1.0) tensor to be written. Its memory stays mapped until its `deleter` is called, once, on any thread; but
// once the task is no longer open, it is others' to write. `*out` is the caller's.
LW_MUST_USE
lw_status lw_worker_dlpack(const lw_worker *worker,
                           const lw_task *task,
                           size_t index,
                           DLManagedTensorVersioned **out);

// Copies `len` bytes of host memory to the beginning of an open task's memory, wherever that is, and returns once they are there. All
// bytes of a sample with ragged dimensions set its lengths, too, also of a task on a device.
LW_MUST_USE lw_status lw_worker_write(const lw_worker *worker, const lw_task *task, const void *data, size_t len);

// Publishes `count` samples of `lengths[i]` bytes at `tasks[i].data` each; `lengths` NULL: all tensors of each. A length that is not the
// layout's, or a task that is not open, is `LW_INVALID_ARGUMENT`, and nothing is published. A sample that is not what the layout asks for
// (the length of a ragged dimension was not set, a value is not finite or not between `min` and `max`) is failed with the reason, which
// names the tensor, the first bad index and its value; the others are published, and the call returns `LW_TASK_FAILED` with the first
// reason. After any other error, a medium's say, what could not be published was failed with its message. `*wanted` (may be NULL) becomes
// the number that somebody still waited for; the others were overtaken (a model switch, another worker) and dropped, which is no error.
// `stream` is NULL, or, for tasks on a device, the stream on which writing them is queued (as in `lw_student_release`, of the device that
// the tasks' tensors are on): this returns at once, each sample is published when that is done, with no further call, and one of which the
// device makes nothing any more fails its task with the reason. What the queued work reads must stay until then; `*wanted` counts what is
// waited for as this returns. NULL stands for all that this process has queued on that device, and this waits for it. It also waits where
// the layout checks values, and where 64 commits are under way on one device.
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

// Stops the worker, publishes what is committed (which may wait for a device), gives its open tasks back to be made by others, and frees the
// handle; NULL is allowed. Not while another thread uses it, and no task's memory may be touched afterwards.
void lw_worker_free(lw_worker *worker);

/* ==== dataset =======================================================================================================
 *
 * Files of JSON lines, Parquet or plain text, compressed or not, read as numbered documents.
 *
 * Opening finds the files (*shards*) and takes each one's index from a cache, or builds it: where documents start,
 * and how they are *grouped* into what is best read together. After that any document can be read by its number
 * without reading what comes before it. Many processes may open the same files at once: one of them builds an index,
 * the others wait for it.
 */

// An opened dataset; it never changes. Any number of threads may use it at once.
typedef struct lw_dataset lw_dataset;

// Told now and then of work that has to be done before the first document: `what` (`"index wiki"`, `"count tokens"`, `"seek"`)
// is NUL-terminated UTF-8, valid during the call; `done` of `total` bytes, documents or rows. Runs on any thread, on
// several at once. Returns 0 to go on; anything else ends the work, and the call that does it returns
// `LW_INTERRUPTED`. Must not throw, or call functions of the handle that is being opened or used.
typedef int32_t (*lw_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

// Which documents, and how to open them. Fill it after `lw_dataset_options_init`; `paths` must be set. All strings are
// NUL-terminated UTF-8 and read during `lw_dataset_open` only.
typedef struct {
    // `sizeof(lw_dataset_options)`.
    size_t struct_size;
    // For messages. NULL (the default): "dataset".
    const char *name;
    // `path_count` files, directories (searched to any depth, hidden names left out) and globs (`*`, `?`, `[…]`,
    // `**`), in this order; within a directory or glob, shards are ordered by the bytes of their relative path.
    const char *const *paths;
    // How many.
    size_t path_count;
    // "jsonl", "parquet" or "text"; NULL (the default): from each file's suffix, under `.gz` or `.zst`.
    const char *format;
    // Field or column that holds the text; `a.b` names field `b` of object `a`. NULL (the default): "text". Not with plain
    // text, which has no fields.
    const char *text_field;
    // What a document of plain text is: "line", "paragraph" or "file". NULL (the default): "line". Another one is an error where no
    // file is plain text.
    const char *text_unit;
    // What is done about documents and shards that cannot be read: "error", "skip" or "replace" (U+FFFD for what is
    // not UTF-8; what that cannot mend is skipped). NULL (the default): "error".
    const char *on_error;
    // Where indexes are kept. NULL (the default): in `.laneway/` beside each shard, else in `$LANEWAY_CACHE`, else in
    // the user's cache directory.
    const char *cache_dir;
    // Threads that build indexes; 0 (the default): one a processor.
    uint64_t threads;
    // Bytes that half-read compressed streams and Parquet pages may keep. Default 128 MiB.
    uint64_t memory_budget;
    // Told of the indexing. NULL (the default): nobody is.
    lw_progress_fn progress;
    // Handed to `progress`.
    void *progress_user;
} lw_dataset_options;

// One file of a dataset. The strings belong to the dataset.
typedef struct {
    // Where it is.
    const char *path;
    // Relative to the path, directory or fixed part of the glob by which it was found; with the fingerprint, its
    // identity.
    const char *name;
    // "jsonl", "parquet" or "text".
    const char *format;
    // Why it was left out whole, or NULL if it was not.
    const char *damage;
    // Bytes of the file.
    uint64_t size;
    // Hash of its content (Parquet: of its footer).
    uint64_t fingerprint;
    // Number, in the dataset, of its first document.
    uint64_t first_document;
    // How many it holds.
    uint64_t documents;
} lw_shard;

// Consecutive documents of one shard that are best read together.
typedef struct {
    // Number, in the dataset, of the first.
    uint64_t first_document;
    // What reading them costs: uncompressed bytes.
    uint64_t bytes;
    // How many; never 0.
    uint32_t documents;
    // Which shard they lie in.
    uint32_t shard;
} lw_group;

// Where a document comes from, for people.
typedef struct {
    // Line of the file when uncompressed, or row of the Parquet file, counted from 1.
    uint64_t number;
    // Which shard; `lw_dataset_shard` has its path.
    uint32_t shard;
    // 1 if `number` counts rows, 0 if it counts lines.
    int32_t is_row;
} lw_location;

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_dataset_options_init(lw_dataset_options *options);

// Finds the shards, and takes or builds their indexes. `LW_DATA` names the file and what is wrong with it;
// `LW_NOT_FOUND` the path that leads to none. An index that cannot be kept (a full disk) is built again next time,
// which the log says. On success `*out` is the caller's: free it with `lw_dataset_free`. Any thread.
LW_MUST_USE lw_status lw_dataset_open(const lw_dataset_options *options, lw_dataset **out);

// How many documents there are, those that will be skipped included; 0 for NULL. Any thread.
uint64_t lw_dataset_documents(const lw_dataset *dataset);

// A hash of names, sizes and contents of all shards in order: equal where the same documents have the same numbers. 0
// for NULL. Any thread.
uint64_t lw_dataset_fingerprint(const lw_dataset *dataset);

// Bytes of shards that were read for documents so far; what indexing read is not counted. 0 for NULL. Any thread.
uint64_t lw_dataset_bytes_read(const lw_dataset *dataset);

// How many shards there are; 0 for NULL. Any thread.
size_t lw_dataset_shard_count(const lw_dataset *dataset);

// Describes shard `index`. Its strings are valid until `lw_dataset_free`. Any thread.
LW_MUST_USE lw_status lw_dataset_shard(const lw_dataset *dataset, size_t index, lw_shard *shard);

// Copies all groups, in order, to `groups`, which has room for `capacity`; `*count` becomes their number in any case.
// `capacity` 0 only asks for it. Any thread.
LW_MUST_USE lw_status lw_dataset_groups(const lw_dataset *dataset, lw_group *groups, size_t capacity, size_t *count);

// Says which shard and line, or row, a document comes from. May read the part of the file before it in its group. Any
// thread.
LW_MUST_USE lw_status lw_dataset_locate(const lw_dataset *dataset, uint64_t document, lw_location *location);

// Reads a document's text (UTF-8, which may hold NULs), and a NUL, into `buffer`. `*len` becomes the text's length
// without the NUL; `capacity` 0 only asks for it. `*skipped` (may be NULL) becomes NULL, or, if the document has no
// text and `on_error` leaves such out, why: one of "bad_json", "bad_utf8", "missing_field", "null_text", "not_text",
// "lone_surrogate", "damaged", a static string; the text is empty then. Any thread.
LW_MUST_USE
lw_status lw_dataset_read(const lw_dataset *dataset,
                          uint64_t document,
                          char *buffer,
                          size_t capacity,
                          size_t *len,
                          const char **skipped);

// Frees a dataset made by `lw_dataset_open`; NULL is allowed. Not while another thread uses it.
void lw_dataset_free(lw_dataset *dataset);

/* ==== recipe ========================================================================================================
 *
 * Everything that may change a byte of what a run sees, and nothing else: seed, datasets, mixture, tokenizer,
 * packing, shuffling, batches. One TOML file, whose keys examples/recipes/every_option.toml lists; what may only change speed is
 * `lw_loader_options`.
 */

// A recipe; it never changes. Any number of threads, and forked children, may use it at once.
typedef struct lw_recipe lw_recipe;

// Reads the TOML file at `path` (NUL-terminated UTF-8); relative paths in it are relative to its directory. What is
// wrong (a misspelt key, too) is named with its line, with what was expected. On success `*out` is the caller's: free
// it with `lw_recipe_free`. Any thread.
LW_MUST_USE lw_status lw_recipe_load(const char *path, lw_recipe **out);

// Reads TOML from `text`, `len` bytes of UTF-8. Relative paths in it are relative to `base` (NUL-terminated UTF-8),
// or, if that is NULL, to the current directory. On success `*out` is the caller's: free it with `lw_recipe_free`.
// Any thread.
LW_MUST_USE lw_status lw_recipe_parse(const char *text, size_t len, const char *base, lw_recipe **out);

// Writes the recipe as TOML that `lw_recipe_parse` reads back, with every default spelled out, NUL-terminated, into
// `buffer`. `*len` becomes its length without the NUL; `capacity` 0 only asks for it. Any thread.
LW_MUST_USE lw_status lw_recipe_to_toml(const lw_recipe *recipe, char *buffer, size_t capacity, size_t *len);

// Writes what the fingerprint is made of, one JSON object (`{"pack.max_length": "2048", …}`: names, and values as
// TOML), NUL-terminated, into `buffer`. Paths are no part of it: data may move, as long as it is the same. `*len`
// becomes its length without the NUL; `capacity` 0 only asks for it. Any thread.
LW_MUST_USE lw_status lw_recipe_fields(const lw_recipe *recipe, char *buffer, size_t capacity, size_t *len);

// Equal for recipes that give the same bytes from the same data and tokenizer; 0 for NULL. Any thread.
uint64_t lw_recipe_fingerprint(const lw_recipe *recipe);

// Writes the first field in which two recipes differ, for people (`pack.max_length is 2048 in one and 1024 in the
// other`), NUL-terminated, into `buffer`; nothing, and `*len` 0, if they give the same bytes. `capacity` 0 only asks
// for the length. Any thread.
LW_MUST_USE lw_status lw_recipe_difference(const lw_recipe *one, const lw_recipe *other, char *buffer, size_t capacity, size_t *len);

// Frees a recipe made by `lw_recipe_load` or `lw_recipe_parse`; NULL is allowed. Loaders that were opened with it
// have their own copy. Not while another thread uses it.
void lw_recipe_free(lw_recipe *recipe);

/* ==== batch =========================================================================================================
 *
 * Some rows of one step, as tensors, and which documents they are made of.
 *
 * Tensors, by name; `rows` × `row_length` unless said otherwise:
 *
 * | name | dtype | what it holds |
 * |---|---|---|
 * | `input_ids` | int64 | token ids, rows filled up with the padding token |
 * | `labels` | int64 | the token to be predicted at each position, shifted already: the next one of the same document, else −100 |
 * | `positions` | int64 | the place of each token in its document, which goes on counting where a document goes on in another row; 0 in padding |
 * | `segment_ids` | int32 | which document of its row each token belongs to, from 1; 0 in padding |
 * | `loss_mask` | bool | 1 where the label counts |
 * | `cu_seqlens` | int32 | `[segments + 1]`: where segments start in the batch laid out as one sequence, and its end; a row's padding is a segment of its own |
 *
 * Where teachers made samples of its rows (`[generate]` in the recipe), it also has their tensors, by name: `lw_batch_layout`
 * describes those of a row, and each is `[rows, …]`, zero in rows that are padding. `lw_batch_tensor` says what becomes of ragged ones.
 *
 * A tensor is written when it is first asked for. A batch is counted: `lw_batch_retain`, `lw_batch_release`.
 */

// In `lane` of an `lw_row`: the row is no part of the global batch; it only fills up a rank that has fewer lanes than
// others.
#define LW_NO_LANE UINT32_MAX

// A batch; it never changes. Any number of threads may use it at once.
typedef struct lw_batch lw_batch;

// What a batch is.
typedef struct {
    // The step that it belongs to, from 0.
    uint64_t step;
    // Which microbatch of the rank's step it is, from 0.
    uint64_t microbatch;
    // Microbatches of the step: the same on every rank.
    uint64_t microbatches;
    // Rows.
    uint64_t rows;
    // Tokens of a row.
    uint64_t row_length;
    // Segments of all rows, padding not counted.
    uint64_t segments;
    // Tokens of documents, without padding.
    uint64_t num_tokens;
    // Labels that count. Divide a loss by their sum over all ranks and microbatches of the step.
    uint64_t num_valid_tokens;
    // The longest segment, padding included: what attention over `cu_seqlens` takes.
    int64_t max_seqlen;
} lw_batch_info;

// One row of a batch.
typedef struct {
    // Its number in its lane, from 0.
    uint64_t number;
    // Its place in the step's global batch, from 0; `UINT64_MAX` for a row that is no part of it.
    uint64_t position;
    // The lane that it belongs to, or `LW_NO_LANE`.
    uint32_t lane;
    // How many segments it has; none if all of it is padding.
    uint32_t segments;
} lw_row;

// A piece of a document in a row.
typedef struct {
    // The document's number in its dataset.
    uint64_t document;
    // Which of the recipe's datasets, from 0.
    uint32_t dataset;
    // Which of its shards, from 0.
    uint32_t shard;
    // The row of the batch, from 0.
    uint32_t row;
    // Position of its first token in the row.
    uint32_t offset;
    // The place of its first token in the document's tokens, from 0.
    uint32_t start;
    // How many tokens.
    uint32_t length;
} lw_segment;

// Describes the batch. Any thread.
LW_MUST_USE lw_status lw_batch_describe(const lw_batch *batch, lw_batch_info *info);

// Describes the tensor of that NUL-terminated name: a view, not to be written, valid until the batch's last reference
// is released, like its name and shape. `LW_NOT_FOUND` lists the names. Any thread.
//
// A batch that teachers made a ragged tensor of, `"seq<=2048"` in the recipe, has it in the size that the recipe's `pad_to` says, zero behind each
// row's data, and for each such dimension two tensors more: `seq_lengths`, `int64` of `[rows]`, and `seq_mask`, `bool` of `[rows, size]`, true
// where there is data.
LW_MUST_USE
lw_status lw_batch_tensor(const lw_batch *batch,
                          const char *name,
                          lw_tensor *tensor);

// The tensors that teachers made of each row; NULL if they made none, and for NULL. It belongs to the batch: valid until its last
// reference is released, not to be freed. Any thread.
const lw_layout *lw_batch_layout(const lw_batch *batch);

// Exports the tensor of that name as a DLPack (1.0) tensor, flagged read-only, that holds a reference of its own. Its
// consumer calls its `deleter` once, on any thread, also while the process ends; in a forked child that does nothing.
// `*out` is the caller's. Any thread.
LW_MUST_USE lw_status lw_batch_dlpack(const lw_batch *batch, const char *name, DLManagedTensorVersioned **out);

// Describes each row: `rows` has room for `capacity`; `*count` becomes their number in any case. `capacity` 0 only
// asks for it. Any thread.
LW_MUST_USE lw_status lw_batch_rows(const lw_batch *batch, lw_row *rows, size_t capacity, size_t *count);

// Which documents the batch is made of: each segment of each row, in order, padding left out. `segments` has room for
// `capacity`; `*count` becomes their number in any case. `capacity` 0 only asks for it. `lw_loader_dataset` has the
// datasets and their shards. Any thread.
LW_MUST_USE lw_status lw_batch_segments(const lw_batch *batch, lw_segment *segments, size_t capacity, size_t *count);

// Hashes of `input_ids`, `labels`, `positions`, `segment_ids` and of what teachers made, of each row that is part of the global batch, in
// order. `hashes` has room for `capacity`; `*count` becomes their number in any case. `capacity` 0 only asks for it.
// Any thread.
LW_MUST_USE lw_status lw_batch_row_hashes(const lw_batch *batch, uint64_t *hashes, size_t capacity, size_t *count);

// The hash of a global batch, from the hashes of its rows in order (all ranks' and microbatches' one after the
// other): the same however ranks and microbatches cut it. 0 if `row_hashes` is NULL and `count` is not 0. Any thread.
uint64_t lw_batch_global_hash(const uint64_t *row_hashes, size_t count);

// Takes one more reference. NULL is allowed. Any thread.
void lw_batch_retain(const lw_batch *batch);

// Releases one reference; with the last, the batch and its tensors go. NULL is allowed. Any thread, also after the
// loader was freed.
void lw_batch_release(const lw_batch *batch);

/* ==== function ======================================================================================================
 *
 * Functions of the user's on documents' texts, before they become tokens. `lw_loader_options` takes them.
 */

// The text that a map function makes; it exists during the call.
typedef struct lw_text lw_text;

// A function of the user's on a document's text, before it becomes tokens: a `map` or a `filter`. Fill it after
// `lw_function_table_init`.
//
// Functions run on any thread, on several at once, in any order, and again after a load: they must be pure, giving
// the same for the same text. `text` is `len` bytes of UTF-8 without a NUL behind, valid during the call. One that
// fails may say why with `lw_set_last_error`; the run fails at the row that needs the document. They must not throw,
// and of the functions of their loader they may call `lw_loader_close`.
typedef struct {
    // `sizeof(lw_function_table)`.
    size_t struct_size;
    // Handed to the function.
    void *user;
    // Called once when the function is no longer used, on any thread. May be NULL.
    void (*drop)(void *user);
    // As in the recipe's list `functions`, NUL-terminated UTF-8: a name with a version, "clean 2" say, that its
    // author changes whenever it would do anything else than before. Copied.
    const char *name;
    // Appends the new text to `out`, which is empty, with `lw_text_append`. Returns 0 for success and anything else
    // for failure.
    int32_t (*map)(void *user, const char *text, size_t len, lw_text *out);
    // Returns 1 if the document is kept, 0 if it is left out, and anything else for failure.
    int32_t (*filter)(void *user, const char *text, size_t len);
} lw_function_table;

// Sets `struct_size` and makes everything else empty. NULL is allowed.
void lw_function_table_init(lw_function_table *table);

// Appends `len` bytes of UTF-8 to the text that a map function makes. They are copied. On the thread of that call
// only.
LW_MUST_USE lw_status lw_text_append(lw_text *out, const char *text, size_t len);

/* ==== operator ======================================================================================================
 *
 * Operators of the user's between documents and rows: they drop, cut, hold back, repeat or reorder documents, with a
 * state, in the order of each lane. `lw_loader_options` takes them; they run one behind the other.
 *
 * An operator decides; it makes no tokens. A *piece* is consecutive tokens of one document: an operator is given pieces,
 * at first whole documents, and hands on pieces of them. So whatever it holds is written into a checkpoint as pointers,
 * and is made again from the data after a load.
 *
 * Each lane has a state of its own, which `open` makes. The functions of one state are called by one thread at a time,
 * and by any; those of several lanes at once. They must not throw, and of the functions of their loader they may
 * call `lw_loader_close`. One that fails (it returns anything but 0) may say why with `lw_set_last_error`; the run fails at the
 * row that needed it.
 */

// The pieces that an operator holds in a lane, and what it hands on: an argument of its functions, for use during the
// call, on its thread.
typedef struct lw_pieces lw_pieces;

// Consecutive tokens of one document.
typedef struct {
    // By which this lane's operator calls it, while it is held. A load gives new numbers, from 0, in the old order.
    uint64_t number;
    // The document's number in its dataset.
    uint64_t document;
    // Which of the recipe's datasets, from 0.
    uint32_t dataset;
    // The lane.
    uint32_t lane;
    // The place of its first token in the document's tokens, from 0.
    uint32_t start;
    // How many tokens; at least 1.
    uint32_t length;
    // The tokens, until the call returns; NULL in `load`, when they are not made yet.
    const uint32_t *tokens;
} lw_piece;

// An operator. Fill it after `lw_operator_table_init`.
typedef struct {
    // `sizeof(lw_operator_table)`.
    size_t struct_size;
    // Handed to each function.
    void *user;
    // Called once when the operator is no longer used, on any thread, after the last `close`. May be NULL.
    void (*drop)(void *user);
    // As in the recipe's list `functions`, behind the functions' names, NUL-terminated UTF-8: a name with a version,
    // "dedupe 2" say, that its author changes whenever it would do anything else than before. Copied.
    const char *name;
    // Makes the state of a lane, at its beginning, and writes it to `*state`. Called before the first of the functions
    // below. May be NULL: `state` is then NULL.
    int32_t (*open)(void *user, uint32_t lane, void **state);
    // Frees a state. May be NULL.
    void (*close)(void *user, void *state);
    // Takes a piece, which is dropped unless this call hands it on (`lw_pieces_emit`) or holds it (`lw_pieces_hold`); held
    // ones may be handed on as well. It must do the same whenever it sees the same pieces.
    int32_t (*push)(void *user, void *state, const lw_piece *piece, lw_pieces *pieces);
    // The lane's stream ends: hands on what is still to go. May be NULL.
    int32_t (*flush)(void *user, void *state, lw_pieces *pieces);
    // Writes down what is remembered beside the pieces held, in a form that never changes: `*bytes` and `*len`, read
    // before the state's next call. At most 64 KiB; it is called often, and every lane's part of a checkpoint has them. Nothing,
    // and no piece held, says that the state is as `open` made it. May be NULL: there is nothing to remember.
    int32_t (*save)(void *user, void *state, lw_pieces *pieces, const void **bytes, size_t *len);
    // Takes up what `save` wrote, in a state that `open` has made, and the `count` pieces held then. May be NULL for an operator that
    // holds and remembers nothing.
    int32_t (*load)(void *user, void *state, const void *bytes, size_t len, const lw_piece *held, size_t count, lw_pieces *pieces);
} lw_operator_table;

// Sets `struct_size` and makes everything else empty. NULL is allowed.
void lw_operator_table_init(lw_operator_table *table);

// Hands on tokens `start .. start + length` of a piece, counted from its own first. In `push` and `flush`.
LW_MUST_USE lw_status lw_pieces_emit(lw_pieces *pieces, uint64_t number, uint32_t start, uint32_t length);

// Holds the piece that is pushed beyond this call: it stays, with its tokens, until it is released, and is part of what
// is saved.
LW_MUST_USE lw_status lw_pieces_hold(lw_pieces *pieces, uint64_t number);

// Lets go of a piece that was held.
LW_MUST_USE lw_status lw_pieces_release(lw_pieces *pieces, uint64_t number);

// Describes a piece that is pushed or held; its tokens are valid until the call returns or releases it.
LW_MUST_USE lw_status lw_pieces_get(const lw_pieces *pieces, uint64_t number, lw_piece *piece);

/* ==== generate ======================================================================================================
 *
 * How a loader reaches the teachers of a recipe that has a `[generate]`: workers that make a sample for each row, which
 * its batch then has as tensors. None of it changes a byte.
 *
 * The loader is a student of the group (one a rank, in the role `LW_ROLE_CLIENT`); it registers when its first batch is
 * asked for. A worker makes a row's sample from its ticket (lane and number of the row): `lw_rows_of_tasks` gives it the row.
 */

// Fill it after `lw_generate_options_init`. What it points to is read during `lw_loader_open` only.
typedef struct {
    // `sizeof(lw_generate_options)`.
    size_t struct_size;
    // Where the broker is. The loader uses `frontend`, `control` and `control_pub`; `backend` only with `embedded_broker`.
    lw_endpoints endpoints;
    // Separates jobs on one broker; NUL-terminated UTF-8. NULL (the default): as for a student. No other student of the
    // group may have this rank.
    const char *group;
    // Milliseconds that the broker may take to answer at first. Default 10,000.
    uint64_t connect_ms;
    // Samples in flight and held together; 0 (the default): those of the steps made ahead, as far as they fit into 1 GiB.
    uint32_t window;
    // Workers that can be attached at once. Default 8.
    uint32_t max_workers;
    // How often a row is tried, when its worker fails or dies, before `lw_loader_next` reports it. Default 3.
    uint32_t max_attempts;
    // How long to spin before sleeping, in microseconds. Default `LW_SPIN_ADAPTIVE`.
    uint32_t spin_us;
    // 1: start the `laneway broker` program if no broker answers. Default 0.
    int32_t embedded_broker;
    // 1: ask nobody; batches hold rows alone. Default 0.
    int32_t rows_only;
} lw_generate_options;

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_generate_options_init(lw_generate_options *options);

/* ==== loader ========================================================================================================
 *
 * A rank's part of every global batch, in order: for one recipe the same rows in the same order, byte for byte, on
 * any number of ranks, with any of the options below but `rank` and `ranks`, in one run or across any chain of saves
 * and loads.
 *
 * Errors of data and of user functions stay: `lw_loader_next` returns them again until the loader is moved or loaded.
 */

// In `threads`: one a processor.
#define LW_THREADS_ALL UINT32_MAX

// As a number of steps: the stream does not end.
#define LW_ENDLESS UINT64_MAX

// A loader. All functions but `lw_loader_free` may be called by any number of threads at once: they take turns, and
// get theirs while `lw_loader_next` waits.
typedef struct lw_loader lw_loader;

// Which rank it is, and what may change speed and memory but no byte. Fill it after `lw_loader_options_init`. What it
// points to is read during `lw_loader_open` only.
typedef struct {
    // `sizeof(lw_loader_options)`.
    size_t struct_size;
    // This rank, from 0. Default 0. All tensor-, pipeline- and context-parallel peers of one data-parallel rank use
    // its number.
    uint32_t rank;
    // Data-parallel ranks in all. Default 1. They must divide the lanes, unless `uneven` is set; an error lists those
    // that do.
    uint32_t ranks;
    // Rows of a batch; 0 (the default): all rows of the rank at a step. They must divide those, unless `uneven` is
    // set.
    uint64_t microbatch_size;
    // 1: ranks and `microbatch_size` need not divide; every rank has the same number of batches, and short ones end
    // each step with fully masked rows. Default 0.
    int32_t uneven;
    // Threads that read and make tokens; 0: those that call `lw_loader_next` do, and a deadline that has passed then
    // makes nothing. Default `LW_THREADS_ALL`.
    uint32_t threads;
    // Steps made ahead of the one that is waited for. Default 1.
    uint64_t prefetch;
    // Where indexes, token counts and verdicts on tokenizers are kept, NUL-terminated UTF-8. NULL (the default):
    // indexes in `.laneway/` beside each shard, the rest in `$LANEWAY_CACHE`, else in the user's cache directory.
    const char *cache_dir;
    // Bytes that half-read compressed files may keep, for each dataset. Default 256 MiB.
    uint64_t memory_budget;
    // Bytes of text that a thread takes at once. Default 32 KiB.
    uint64_t task_bytes;
    // `function_count` tables, one for each name in the recipe's `functions`, in any order; a recipe that names none takes
    // them in this order. Copied; each one's `drop` is called exactly once if `lw_loader_open` succeeds, and never if it
    // fails.
    const lw_function_table *const *functions;
    // How many.
    size_t function_count;
    // Told of indexing, and of counting tokens, also by later calls: until `lw_loader_free`. NULL (the default):
    // nobody is.
    lw_progress_fn progress;
    // Handed to `progress`.
    void *progress_user;
    // `operator_count` tables of operators between documents and rows, one for each name in the recipe's `functions` that
    // no function has; as with `functions` otherwise.
    const lw_operator_table *const *operators;
    // How many.
    size_t operator_count;
    // How teachers are reached, where the recipe has a `[generate]`. NULL: the defaults.
    const lw_generate_options *generate;
} lw_loader_options;

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_loader_options_init(lw_loader_options *options);

// Opens the recipe's datasets and its tokenizer; what has to be indexed is indexed first. `options` may be NULL: all
// defaults. No thread is started before the first batch is asked for. On success `*out` is the caller's: free it with
// `lw_loader_free`. Any thread.
LW_MUST_USE lw_status lw_loader_open(const lw_recipe *recipe, const lw_loader_options *options, lw_loader **out);

// Waits until `deadline` for the next batch. `*out` is then the caller's (`lw_batch_release`), or NULL after the last
// batch of a stream that ends; such a stream is counted first, by the first call that needs it, whatever the deadline
// (see `lw_loader_steps`). `LW_TIMEOUT`: nothing was lost, call again. `LW_DATA`: a document, a file or a user's
// function failed, and the message names it. `LW_TASK_FAILED`: a row was given up by the teachers, and the message names it and
// its documents and carries the worker's text; it stays until the loader is moved or loaded. Also `LW_INTERRUPTED`, `LW_CLOSED`, `LW_FORKED`. A signal alone does not
// end the wait: its handler calls `lw_loader_cancel`.
LW_MUST_USE
lw_status lw_loader_next(const lw_loader *loader,
                         int64_t deadline,
                         lw_batch **out);

// Goes to the start of a step, ahead or back. Quick where the tokens of every document were counted (a stream that
// ends; `laneway index --tokens`); otherwise the rank's lanes are run up to there, which the log says. All ranks seek
// the same step. `LW_TIMEOUT`, of a loader that `lw_loader_connect` made only: the step comes next and is not made yet, and the message says
// why; nobody was moved, call again.
LW_MUST_USE
lw_status lw_loader_seek(const lw_loader *loader,
                         uint64_t step);

// Sets the weights of the mixture, one for each dataset of the recipe in order, from a step on; every rank sets the
// same. They hold for documents taken after the first row of the first row window at or after that step. Too early is
// an error that names the first possible step. What was made ahead is made again. States that are saved keep it.
LW_MUST_USE lw_status lw_loader_set_mixture(const lw_loader *loader, const double *weights, size_t count, uint64_t from_step);

// Has teachers make the rows from `from_step` on with another model, for recipes with a `[generate]`; every rank sets
// the same, and rank 0 tells the workers. `model_id` is UTF-8 of any size, `model_cfg` a JSON object or NULL. Too early is
// an error that names the first possible step. What was made ahead is made again. States that are saved keep it.
LW_MUST_USE
lw_status lw_loader_set_model(const lw_loader *loader,
                              const char *model_id,
                              size_t model_id_len,
                              const char *model_cfg,
                              size_t model_cfg_len,
                              uint64_t from_step);

// How many steps the stream has; `LW_ENDLESS` if it does not end. One that ends is counted first, unless the cache
// has the counts: all documents are read and tokenized once.
LW_MUST_USE lw_status lw_loader_steps(const lw_loader *loader, uint64_t *steps);

// The step of the next batch.
LW_MUST_USE lw_status lw_loader_step(const lw_loader *loader, uint64_t *step);

// The loader's recipe: never NULL but for a NULL loader, valid until `lw_loader_free`, not to be freed. Any thread.
const lw_recipe *lw_loader_recipe(const lw_loader *loader);

// Dataset `index`, in the recipe's order, to read and locate documents in; NULL if there is none, or for NULL. Valid
// until `lw_loader_free`, not to be freed. The datasets of a loader that `lw_loader_connect` made are opened by the first
// call; NULL, and `lw_last_error`, if they cannot be opened in this process. Any thread.
const lw_dataset *lw_loader_dataset(const lw_loader *loader, size_t index);

// Writes what the loader is, one JSON object, NUL-terminated, into `buffer`: `fingerprint` (of the recipe, in
// hexadecimal), `step`, `lanes`, `first_lane` and `end_lane` (those of this rank), `global_batch`, `rows` (of this
// rank), `microbatch_size` and `microbatches` at the next step, `row_length`, `pad_token_id`, `finite`, `datasets`
// (`name`, `documents`, `groups`, `shards`, `fingerprint`) and `tokenizer` (`path`, `engine`, `fingerprint`,
// `vocab_size`, `bos`, `eos`, `pad`). `*len` becomes its length without the NUL; `capacity` 0 only asks for it.
LW_MUST_USE lw_status lw_loader_info(const lw_loader *loader, char *buffer, size_t capacity, size_t *len);

// Writes, in words, what a run of this recipe on this rank does, in the order in which data flows, NUL-terminated,
// into `buffer`. `*len` becomes its length without the NUL; `capacity` 0 only asks for it.
LW_MUST_USE lw_status lw_loader_explain(const lw_loader *loader, char *buffer, size_t capacity, size_t *len);

// Writes what the loader has done, one JSON object, NUL-terminated, into `buffer`. Since it was opened: `batches`
// delivered and `waited_ns` for them, `bytes_read` for documents, `tokenizer` (the engine in use, and why). Since it
// was opened, loaded or moved, over the rank's lanes, what was made ahead included: `documents`, `tokens`, `rows`,
// `epoch` (the lowest), `truncated_tokens`, and documents left out: `empty`, `filtered`, `skipped`, `dropped` (of
// `dropped_tokens`); of a stream that ends, those behind a lane's last row are counted with the call of `lw_loader_next` that gives NULL. `generate`: what `lw_student_stats`
// says of the student that asks the teachers, or null. `*len` becomes its length without the NUL; `capacity` 0 only asks for it. They may grow between
// two calls.
LW_MUST_USE
lw_status lw_loader_stats(const lw_loader *loader,
                          char *buffer,
                          size_t capacity,
                          size_t *len);

// Writes the text of `count` token ids, special tokens spelled out (UTF-8, which may hold NULs), and a NUL, into
// `buffer`. `*len` becomes the text's length without the NUL; `capacity` 0 only asks for it.
LW_MUST_USE
lw_status lw_loader_decode(const lw_loader *loader,
                           const int64_t *ids,
                           size_t count,
                           char *buffer,
                           size_t capacity,
                           size_t *len);

// Ends the wait of `lw_loader_next`, the counting of tokens, or the seeking that is going on, or else the next one,
// with `LW_INTERRUPTED`. NULL is allowed. Any thread; safe in a signal handler.
void lw_loader_cancel(const lw_loader *loader);

// Ends the loader's threads. Waits end, and later ones return, with `LW_CLOSED`. Batches stay readable. Closing twice
// is allowed, and NULL. Also in one of the loader's own functions: from then on none of them is called, not even an
// operator's `close` or a `drop`; the others have returned, and the threads end when this one has.
void lw_loader_close(const lw_loader *loader);

// As `lw_loader_close`, but waits for nobody, so that a finalizer may call it, on any thread and whatever lock it holds: from now on none of the loader's
// functions is called, not even an operator's `close` or a `drop`; those that run go on to their end, which `lw_loader_join` waits for, and the
// loader's threads end behind them.
void lw_loader_abandon(const lw_loader *loader);

// After `lw_loader_abandon`: waits until `deadline` for the loader's functions to return, but for those that the calling thread is in. `LW_TIMEOUT`: some
// still run, call again.
LW_MUST_USE
lw_status lw_loader_join(const lw_loader *loader,
                         int64_t deadline);

// Closes the loader and frees the handle; NULL is allowed. Not while another thread uses it. Waits for nobody if the loader was abandoned. Batches, and
// DLPack tensors of them, stay valid.
void lw_loader_free(lw_loader *loader);

/* ==== rows ==========================================================================================================
 *
 * Rows by ticket: row `step` of any lane of a recipe, in any order of asking, the same bytes as a loader's. With it a
 * worker makes its own inputs, so that only tickets travel.
 */

// Any row of a recipe. All functions but `lw_rows_free` may be called by any number of threads at once; they take turns.
typedef struct lw_rows lw_rows;

// Names a row: a lane of the recipe, and the number of the row there in the order of delivery.
typedef struct {
    // The lane.
    uint64_t lane;
    // The row's number, from 0.
    uint64_t step;
} lw_ticket;

// Opens the recipe's datasets and its tokenizer, as `lw_loader_open` does with the same `options`, of which those that
// choose a rank's part must be at their defaults. On success `*out` is the caller's: free it with `lw_rows_free`. Any
// thread.
LW_MUST_USE lw_status lw_rows_open(const lw_recipe *recipe, const lw_loader_options *options, lw_rows **out);

// The rows of `count` tickets as one batch, in their order; its `step` is that of the first. Rows of one lane in rising
// order are cheapest; going back makes some rows again. `*out` is then the caller's: `lw_batch_release`. `LW_TIMEOUT`:
// call again with the same. A lane or a row that the recipe does not have is `LW_INVALID_ARGUMENT`. Also `LW_DATA`, as
// `lw_loader_next`, `LW_INTERRUPTED`, `LW_FORKED`.
LW_MUST_USE lw_status lw_rows_get(const lw_rows *rows, const lw_ticket *tickets, size_t count, int64_t deadline, lw_batch **out);

// The same for open tasks of a worker, all of one generation: the rows that their tickets name in the run that they are
// of. Where the student is a loader, weights that were set during its run are followed, and a recipe or data other than
// the loader's are refused, by the name of what differs (`LW_REFUSED`).
LW_MUST_USE
lw_status lw_rows_of_tasks(const lw_rows *rows,
                           const lw_worker *worker,
                           const lw_task *tasks,
                           size_t count,
                           int64_t deadline,
                           lw_batch **out);

// Dataset `index`, in the recipe's order, as `lw_loader_dataset`; NULL if there is none, or for NULL. Valid until `lw_rows_free`,
// not to be freed. Any thread.
const lw_dataset *lw_rows_dataset(const lw_rows *rows, size_t index);

// Ends an indexing or counting that is going on, or else the next call, with `LW_INTERRUPTED`. NULL is allowed. Any
// thread; safe in a signal handler.
void lw_rows_cancel(const lw_rows *rows);

// Ends its threads and forgets what was made; later calls return `LW_CLOSED`. Batches stay valid. Closing twice is allowed, and
// NULL. Waits for a call that is going on. Also in one of its own functions, as `lw_loader_close`.
void lw_rows_close(const lw_rows *rows);

// As `lw_rows_close`, but waits for nobody, so that a finalizer may call it: none of the functions is called any more, and a call that is going on
// ends with `LW_CLOSED` or `LW_DATA` when the function that it is in has returned.
void lw_rows_abandon(const lw_rows *rows);

// Closes and frees the handle; NULL is allowed. Not while another thread uses it. Waits for nobody if the rows were abandoned. Batches stay valid.
void lw_rows_free(lw_rows *rows);

/* ==== server ========================================================================================================
 *
 * The node loader's process: one pipeline for each rank of a node, whose batches any number of peers in other processes
 * read where they lie (`lw_loader_connect`). `laneway serve` is the same as a program; a server in a program of one's own is for
 * recipes that name functions. docs/node_loader.md explains how it works.
 */

// A server of this process. Any number of threads may use it at once.
typedef struct lw_server lw_server;

// What a server serves, and how. Fill it after `lw_server_options_init`. What it points to is read during
// `lw_server_start` only.
typedef struct {
    // `sizeof(lw_server_options)`.
    size_t struct_size;
    // What it is called: 1 to 40 letters, digits, '-', '_' or '.', NUL-terminated. NULL (the default): "default". One
    // server of a name runs at a time, in `$LANEWAY_DIR`.
    const char *name;
    // Threads, prefetch, caches, functions, operators and progress of the pipelines, and how teachers are reached; NULL: all
    // defaults. Its `rank`, `ranks`, `microbatch_size` and `uneven` are each peer's to say and must be left alone.
    const lw_loader_options *loader;
    // Data-parallel ranks in all, on all nodes; 0 (the default): as many as the first peer says.
    uint32_t ranks;
    // Ranks of this node, among which the threads are shared out; 0 (the default): all of them.
    uint32_t local_ranks;
    // Peers of each rank: its first batches are kept until so many have come. A peer may say more. Default 1.
    uint32_t peers;
    // Batches that lie ready for the slowest peer of a rank, 1 to 32. Default 3.
    uint32_t slots;
    // Ends when nobody has been connected for so many milliseconds; -1 (the default): never by itself.
    int64_t exit_when_idle_ms;
} lw_server_options;

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_server_options_init(lw_server_options *options);

// Takes the name (`LW_IN_USE`: a living server has it), opens data and tokenizer, and serves on threads of its own
// until `lw_server_free`. Peers that come while the data is opened wait. `options` may be NULL. On success `*out` is
// the caller's. Any thread.
LW_MUST_USE lw_status lw_server_start(const lw_recipe *recipe, const lw_server_options *options, lw_server **out);

// Waits until `deadline` for the server to end: because of `lw_server_stop`, of `laneway stop`, or because nobody has
// been there. `LW_TIMEOUT`: it goes on. Any thread.
LW_MUST_USE lw_status lw_server_wait(const lw_server *server, int64_t deadline);

// Writes what the server is doing, one JSON object, NUL-terminated, into `buffer`: `name`, `pid`, `ranks`, `peers`
// (their processes), and in `feeds`, for each rank that somebody has asked for, `rank`, `step` (of the next batch to be
// made), `batches` (made), `peers` and `awaited`. `*len` becomes its length without the NUL; `capacity` 0 only asks for
// it; it may grow between two calls. Any thread.
LW_MUST_USE lw_status lw_server_stats(const lw_server *server, char *buffer, size_t capacity, size_t *len);

// Asks the server to end, and does not wait for it. Peers wait for another of its name. NULL is allowed. Any thread;
// safe in a signal handler.
void lw_server_stop(const lw_server *server);

// Ends the server, waits for its threads, and frees the handle; NULL is allowed. Not while another thread uses it. What
// peers hold stays readable.
void lw_server_free(lw_server *server);

/* ==== connect =======================================================================================================
 *
 * A loader whose batches a server of this node makes. It is an `lw_loader` like any other: the same batches, the same
 * states, for every function of loaders.
 */

// Which peer this is. Fill it after `lw_connect_options_init`. What it points to is read during `lw_loader_connect`
// only.
typedef struct {
    // `sizeof(lw_connect_options)`.
    size_t struct_size;
    // What the server is called, NUL-terminated. NULL (the default): "default".
    const char *name;
    // This rank, from 0. Default 0. All tensor-, pipeline- and context-parallel peers of one data-parallel rank use
    // its number, and read the same memory.
    uint32_t rank;
    // Data-parallel ranks in all. Default 1.
    uint32_t ranks;
    // As in `lw_loader_options`; the same for all peers of a server.
    uint64_t microbatch_size;
    // As in `lw_loader_options`; the same for all peers of a server.
    int32_t uneven;
    // Peers of this rank: its first batches, and those after a load, are kept until so many have come. Default 1.
    uint32_t peers;
    // How long to look for a batch before sleeping, in microseconds. Default 0; `LW_SPIN_ADAPTIVE`: for as long as that
    // has paid.
    uint32_t spin_us;
    // How long to wait for a server, in milliseconds: at the beginning, and for another when one has died. Default 60000.
    uint32_t patience_ms;
    // Told of what the server indexes and counts while this loader waits for it. NULL (the default): nobody is.
    lw_progress_fn progress;
    // Handed to `progress`.
    void *progress_user;
} lw_connect_options;

// Sets `struct_size` and the defaults. NULL is allowed.
void lw_connect_options_init(lw_connect_options *options);

// Connects to the server of that name, for which it waits. `recipe` may be NULL: the server's; else what differs from
// that is named (`LW_REFUSED`). `options` may be NULL. `LW_NOT_FOUND`: there is no server. On success `*out` is the
// caller's: free it with `lw_loader_free`. Any thread.
//
// A loader that was neither loaded nor moved starts at the beginning, and is refused if the rank's other peers have left
// that behind: see `peers`. `lw_loader_load` and `lw_loader_seek` move the pipeline of the rank, unless it is at that
// place: each of its peers does the same, and one that does not gets `LW_STALE` from `lw_loader_next`. When a server
// dies, `lw_loader_next` goes on with another of its name exactly where it was; `LW_PEER_DEAD` when none has come within
// `patience_ms`: nothing is lost, call again.
LW_MUST_USE lw_status lw_loader_connect(const lw_recipe *recipe, const lw_connect_options *options, lw_loader **out);

/* ==== state =========================================================================================================
 *
 * Where a loader stands, saved and loaded: what makes a run go on, on any number of ranks.
 */

// A state that was saved: the bytes of `lw_loader_save`, or the JSON text of `lw_loader_save_json`, which may be
// several ranks' merged.
typedef struct {
    // Its bytes.
    const void *data;
    // How many.
    size_t len;
} lw_state;

// Saves where the loader stands after the last batch that `lw_loader_next` returned: entries, by lane, for this
// rank's lanes. Changes nothing. Writes it into `buffer`; `*len` becomes its number of bytes in any case; `capacity`
// 0 only asks for it. Its size does not depend on how far the run has come.
LW_MUST_USE lw_status lw_loader_save(const lw_loader *loader, void *buffer, size_t capacity, size_t *len);

// The same as one JSON object, `{"meta": …, "lanes": {"17": "<base64>", …}}`, NUL-terminated. `meta` is the same on
// all ranks, and each lane is one rank's: merging the ranks' objects key by key gives the state of the whole run.
// `*len` becomes its length without the NUL.
LW_MUST_USE lw_status lw_loader_save_json(const lw_loader *loader, char *buffer, size_t capacity, size_t *len);

// Goes on from `count` states of one moment of one run, of any number of ranks, which together hold at least this
// rank's lanes: `LW_NOT_FOUND` names the lane that is missing. What would give other rows (a changed recipe,
// tokenizer or shard) is refused by its name (`LW_REFUSED`), and a damaged state is `LW_CORRUPT`; the loader then
// stays where it was.
LW_MUST_USE lw_status lw_loader_load(const lw_loader *loader, const lw_state *states, size_t count);

/* ==== metrics =======================================================================================================
 *
 * Numbers of all that this process has open: students, workers, loaders, node loaders' servers, brokers. docs/metrics.md lists every one with
 * its unit. Asking costs nothing until it is done, and no listener is there unless one is started.
 */

// A listener that answers `GET /metrics` with the text of `lw_metrics_text`, on a thread of its own.
typedef struct lw_metrics_server lw_metrics_server;

// Writes the numbers as one JSON object, NUL-terminated, into `buffer`: `{"version", "pid", "students": […], "workers":
// […], "loaders": […], "nodes": […], "brokers": […]}`, where an entry has what tells it from others and `counters`. `*len` becomes its
// length without the NUL; `capacity` 0 only asks for it. They may grow between two calls. Any thread.
LW_MUST_USE
lw_status lw_metrics_snapshot(char *buffer,
                              size_t capacity,
                              size_t *len);

// Writes the same numbers as lines of text, NUL-terminated, in Prometheus' format: `name{label="value"} number`. As
// `lw_metrics_snapshot` otherwise.
LW_MUST_USE lw_status lw_metrics_text(char *buffer, size_t capacity, size_t *len);

// Starts a listener at `address`, NUL-terminated `host:port`; port 0 takes any free one. It tells numbers to whoever can
// connect: `127.0.0.1` is this host only. `LW_IO` if the address is taken. On success `*out` is the caller's: free it with
// `lw_metrics_server_free`. Any thread.
LW_MUST_USE lw_status lw_metrics_serve(const char *address, lw_metrics_server **out);

// The port at which it listens; 0 for NULL. Any thread.
uint16_t lw_metrics_server_port(const lw_metrics_server *server);

// Ends the listener and frees it; NULL is allowed. Not while another thread uses it.
void lw_metrics_server_free(lw_metrics_server *server);

/* ==== callbacks =====================================================================================================
 *
 * Functions that were given to the library: functions and operators of loaders, mediums, progress, the log's callback.
 */

// For hosts that end before their process does, as interpreters: from now on none of them is called, for any handle, for ever; what needs one fails with
// `LW_CLOSED` (indexing and counting that would tell how far they are: `LW_INTERRUPTED`), and their `drop` is not called either. Waits until `deadline` for those that run: `LW_TIMEOUT` if some still do, call again. Those that the
// calling thread is in are not waited for. Any thread.
LW_MUST_USE
lw_status lw_callbacks_end(int64_t deadline);

#ifdef __cplusplus
}
#endif

#endif /* LANEWAY_H */
