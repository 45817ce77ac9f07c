// A STAND-IN for NVIDIA's driver library, for tests on machines without a GPU. It computes nothing and says nothing about how a GPU behaves or how fast one
// is; it has just the calls that Laneway makes, over host memory, and is strict where a host would forgive:
//
// - a device pointer is an address that no process may touch (PROT_NONE): only copies through this library reach the bytes;
// - copies run on a thread of their stream, after `slow` milliseconds, so what is published before its event has completed is found out;
// - a device reaches memory of its own context, and of others only where peer access was enabled or the copy names both contexts;
// - memory lies in memfds, and a handle made by one process is opened by another through /proc; the exporter itself may not, nor anybody twice in one context;
// - a handle opens whole blocks of 2 MiB: who shares part of one, with whatever else lies there, is ended;
// - memory that another process has open, or that queued work still uses, may not be freed, nor closed: whoever does is ended;
// - a copy may not begin in one page-locked range and end in another, or outside;
// - while a stream is captured, calls that could harm it are refused on threads that did not say otherwise, and whoever tries has spoilt the capture;
// - a context goes with its last reference: who leaves memory or streams in it is ended;
// - calls need a current context, none works in a forked child, nor once the process's exit has come to this library.
//
// Environment:
//   STANDIN_CUDA_DEVICES   how many there are (2)
//   STANDIN_CUDA_MEMORY    bytes of each (1 GiB)
//   STANDIN_CUDA_FAULTS    comma-separated: init, export (no handle can be made), open (no handle can be opened), nopeer (devices cannot reach each
//                          other), manypeers (they could, but for the number of those that do), register (no page-locking), exclusive (another
//                          process has the devices for itself), lost=N (the context is lost at the N-th copy),
//                          slow=MS (each copy takes that long), slowclose=MS (letting go of a handle does)
//   CUDA_VISIBLE_DEVICES   as with the real one: numbers or "GPU-…" names
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t Ptr;
typedef struct Context Context;
typedef struct Stream Stream;
typedef struct Event Event;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, DEINITIALIZED = 4, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, ALREADY_MAPPED = 208, PEER_ACCESS_UNSUPPORTED = 217, INVALID_HANDLE = 400, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
       PEER_ACCESS_ALREADY_ENABLED = 704, TOO_MANY_PEERS = 711, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, NOT_PERMITTED = 800, NOT_SUPPORTED = 801,
       CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903 };
enum { BLOCK = 2 << 20 };
enum { MOST_DEVICES = 8, MOST_STREAMS = 64, MOST_BLOCKS = 4096, MOST_DEPTH = 16 };

struct Context {
  int device;  // the machine's number of it
  int retained;
  Stream* base;  // streams 0, 1 and 2
};

typedef struct {
  Ptr at;       // what callers see
  char* bytes;  // where it really is
  size_t size;
  Context* context;  // where it was allocated or opened
  int device, fd;
  int imported;
  char handle[64];
} Block;

typedef struct Op {
  enum { COPY, SET, MARK, WAIT, END } kind;
  char *to, *from;
  size_t size;
  unsigned char value;
  Event* event;
  unsigned long turn;
  struct Op* next;
} Op;

struct Stream {
  Context* context;
  pthread_t thread;
  pthread_cond_t changed;
  Op *first, *last;
  unsigned long queued, done;
};

struct Event {
  unsigned long recorded, completed;
  Context* context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t completed = PTHREAD_COND_INITIALIZER, let_go = PTHREAD_COND_INITIALIZER;
static int initialised_by, device_count, visible[MOST_DEVICES], visible_count;
static size_t memory_size = (size_t)1 << 30, used[MOST_DEVICES];
static int fault_init, fault_export, fault_open, fault_nopeer, fault_manypeers, fault_register, fault_exclusive, slow_ms, slow_close_ms;
static int over;
static int peers[MOST_DEVICES][MOST_DEVICES];  // who reaches whose memory
static size_t staged;
static Stream* captured;
static int capture_is_global, capture_spoilt;
static _Thread_local int capture_mode;  // of a thread; 0 is global, 2 relaxed
static long lost_at, copies;
static int lost, held;
static Context contexts[MOST_DEVICES];
static Block blocks[MOST_BLOCKS];
static Stream* streams[MOST_STREAMS];
static _Thread_local Context* current[MOST_DEPTH];
static _Thread_local int depth;
static unsigned long serial;
static unsigned long opens, closes;

static void uuid_of(int device, unsigned char out[16]) {
  memcpy(out, "STAND-IN-GPU", 12);
  out[12] = out[13] = out[14] = 0;
  out[15] = (unsigned char)(device + 1);
}

static void name_of(int device, char out[48]) {
  unsigned char u[16];
  uuid_of(device, u);
  snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
           u[11], u[12], u[13], u[14], u[15]);
}

static void read_faults(void) {
  const char* given = getenv("STANDIN_CUDA_FAULTS");
  char text[256];
  snprintf(text, sizeof text, "%s", given ? given : "");
  for (char *rest = text, *word; (word = strsep(&rest, ","));) {
    char* value = strchr(word, '=');
    if (value) *value++ = 0;
    if (!*word) continue;
    else if (!strcmp(word, "init")) fault_init = 1;
    else if (!strcmp(word, "export")) fault_export = 1;
    else if (!strcmp(word, "open")) fault_open = 1;
    else if (!strcmp(word, "nopeer")) fault_nopeer = 1;
    else if (!strcmp(word, "manypeers")) fault_manypeers = 1;
    else if (!strcmp(word, "register")) fault_register = 1;
    else if (!strcmp(word, "exclusive")) fault_exclusive = 1;
    else if (!strcmp(word, "lost") && value) lost_at = atol(value);
    else if (!strcmp(word, "slow") && value) slow_ms = atoi(value);
    else if (!strcmp(word, "slowclose") && value) slow_close_ms = atoi(value);
    else {
      fprintf(stderr, "STAND-IN libcuda: STANDIN_CUDA_FAULTS has the unknown word '%s'\n", word);
      abort();
    }
  }
}

int cuInit(unsigned flags) {
  if (flags) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  if (!initialised_by) {
    read_faults();
    const char *count = getenv("STANDIN_CUDA_DEVICES"), *memory = getenv("STANDIN_CUDA_MEMORY"), *seen = getenv("CUDA_VISIBLE_DEVICES");
    device_count = count ? atoi(count) : 2;
    if (device_count > MOST_DEVICES) device_count = MOST_DEVICES;
    if (memory) memory_size = strtoull(memory, NULL, 10);
    if (!seen) {
      for (int i = 0; i < device_count; i++) visible[visible_count++] = i;
    } else {
      char text[512];
      snprintf(text, sizeof text, "%s", seen);
      for (char *rest = text, *word; (word = strsep(&rest, ","));) {  // the first one that is not there ends the list
        int found = -1;
        for (int i = 0; i < device_count; i++) {
          char name[48], number[12];
          name_of(i, name);
          snprintf(number, sizeof number, "%d", i);
          if (!strcmp(word, number) || (strlen(word) > 4 && !strncmp(word, name, strlen(word)))) found = i;
        }
        if (found < 0) break;
        visible[visible_count++] = found;
      }
    }
    initialised_by = getpid();
  }
  int answer = initialised_by != getpid() ? NOT_INITIALIZED : fault_init ? NOT_SUPPORTED : visible_count == 0 ? NO_DEVICE : OK;
  pthread_mutex_unlock(&lock);
  return answer;
}

static int ready(void) {
  if (over) return DEINITIALIZED;
  return initialised_by == getpid() && !fault_init && visible_count ? OK : NOT_INITIALIZED;
}

__attribute__((destructor)) static void end(void) { over = 1; }

static void die(const char* why) {
  fprintf(stderr, "STAND-IN libcuda: %s\n", why);
  abort();
}

// Whether a call that could harm a capture must be refused here, which then is spoilt.
static int harms_capture(void) {
  if (!captured || !capture_is_global || capture_mode) return 0;
  capture_spoilt = 1;
  return 1;
}

#define READY()                      \
  do {                               \
    if (ready()) return ready();     \
  } while (0)
#define CURRENT()                          \
  READY();                                 \
  if (!depth) return INVALID_CONTEXT;      \
  if (lost) return ILLEGAL_ADDRESS;        \
  Context* here = current[depth - 1]
#define CURRENT_UNCAPTURED() \
  CURRENT();                 \
  if (harms_capture()) return CAPTURE_UNSUPPORTED

int cuDriverGetVersion(int* version) {
  *version = 12080;
  return OK;
}

int cuDeviceGetCount(int* count) {
  READY();
  *count = visible_count;
  return OK;
}

int cuDeviceGet(int* device, int ordinal) {
  READY();
  if (ordinal < 0 || ordinal >= visible_count) return INVALID_DEVICE;
  *device = ordinal;
  return OK;
}

int cuDeviceGetName(char* name, int len, int device) {
  READY();
  snprintf(name, (size_t)len, "STAND-IN GPU %d (host memory)", visible[device]);
  return OK;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  READY();
  if (device < 0 || device >= visible_count) return INVALID_DEVICE;
  uuid_of(visible[device], uuid);
  return OK;
}

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  READY();
  *can = device != peer && !fault_nopeer;
  return OK;
}

static void* run(void* argument);

static Stream* new_stream(Context* context) {
  Stream* stream = calloc(1, sizeof *stream);
  stream->context = context;
  pthread_cond_init(&stream->changed, NULL);
  int place = 0;
  while (place < MOST_STREAMS && streams[place]) place++;
  if (place == MOST_STREAMS || pthread_create(&stream->thread, NULL, run, stream)) abort();
  streams[place] = stream;
  return stream;
}

int cuDevicePrimaryCtxRetain(Context** out, int device) {
  READY();
  if (device < 0 || device >= visible_count) return INVALID_DEVICE;
  if (fault_exclusive) return DEVICE_UNAVAILABLE;
  pthread_mutex_lock(&lock);
  Context* context = &contexts[visible[device]];
  context->device = visible[device];
  context->retained++;
  if (!context->base) context->base = new_stream(context);
  *out = context;
  pthread_mutex_unlock(&lock);
  return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  READY();
  if (device < 0 || device >= visible_count) return INVALID_DEVICE;
  pthread_mutex_lock(&lock);
  Context* context = &contexts[visible[device]];
  int had = context->retained;
  if (had) context->retained--;
  for (int i = 0; had == 1 && !lost && i < MOST_BLOCKS; i++) {
    if (blocks[i].at && blocks[i].context == context) die("the last reference of a context was released with memory in it");
    if (i < MOST_STREAMS && streams[i] && streams[i] != context->base && streams[i]->context == context)
      die("the last reference of a context was released with streams in it");
  }
  pthread_mutex_unlock(&lock);
  return had ? OK : INVALID_CONTEXT;
}

int cuCtxPushCurrent_v2(Context* context) {
  READY();
  if (!context || !context->retained || depth == MOST_DEPTH) return INVALID_CONTEXT;
  current[depth++] = context;
  return OK;
}

int cuCtxPopCurrent_v2(Context** out) {
  READY();
  if (!depth) return INVALID_CONTEXT;
  Context* top = current[--depth];
  if (out) *out = top;
  return OK;
}

int cuCtxEnablePeerAccess(Context* peer, unsigned flags) {
  CURRENT();
  if (flags) return INVALID_VALUE;
  if (!peer || peer == here) return INVALID_CONTEXT;
  if (fault_nopeer) return PEER_ACCESS_UNSUPPORTED;
  if (fault_manypeers) return TOO_MANY_PEERS;
  if (peers[here->device][peer->device]) return PEER_ACCESS_ALREADY_ENABLED;
  peers[here->device][peer->device] = 1;
  return OK;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  READY();
  if (*mode < 0 || *mode > 2) return INVALID_VALUE;
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return OK;
}

// Blocks, under the lock.

static Block* block_at(Ptr at, size_t size) {
  for (int i = 0; i < MOST_BLOCKS; i++) {
    Block* b = &blocks[i];
    if (b->at && at >= b->at && at + size <= b->at + b->size) return b;
  }
  return NULL;
}

// Where memory is that a context reaches.
static char* reach(Context* from, Ptr at, size_t size) {
  Block* b = block_at(at, size);
  return b && (b->context == from || peers[from->device][b->context->device]) ? b->bytes + (at - b->at) : NULL;
}

static Block* add_block(Context* context, int fd, size_t size, int device, int imported) {
  for (int i = 0; i < MOST_BLOCKS; i++) {
    if (blocks[i].at) continue;
    void* bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void* at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED || at == MAP_FAILED) return NULL;
    blocks[i] = (Block){.at = (Ptr)(uintptr_t)at, .bytes = bytes, .size = size, .context = context, .device = device, .fd = fd, .imported = imported};
    return &blocks[i];
  }
  return NULL;
}

// Whether something that a stream has not done yet uses it.
static int is_in_use(Block* b) {
  for (int i = 0; i < MOST_STREAMS; i++) {
    for (Op* op = streams[i] ? streams[i]->first : NULL; op; op = op->next) {
      if (op->kind != COPY && op->kind != SET) continue;
      if (op->to + op->size > b->bytes && op->to < b->bytes + b->size) return 1;
      if (op->kind == COPY && op->from + op->size > b->bytes && op->from < b->bytes + b->size) return 1;
    }
  }
  return 0;
}

static void drop_block(Block* b) {
  if (is_in_use(b)) die("memory was freed or closed that queued work still uses");
  munmap(b->bytes, b->size);
  munmap((void*)(uintptr_t)b->at, b->size);
  close(b->fd);
  if (!b->imported) used[b->device] -= b->size;
  *b = (Block){0};
}

static void drain(Context* context);

int cuMemAlloc_v2(Ptr* out, size_t size) {
  CURRENT_UNCAPTURED();
  if (!size) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  int answer = OUT_OF_MEMORY;
  if (size <= memory_size - used[here->device]) {
    int fd = memfd_create("standin_cuda", MFD_CLOEXEC);
    Block* b = fd >= 0 && !ftruncate(fd, (off_t)size) ? add_block(here, fd, size, here->device, 0) : NULL;
    if (b) {
      memset(b->bytes, 0xA5, size < 65536 ? size : 65536);  // nobody may count on zeroes
      used[here->device] += size;
      *out = b->at;
      answer = OK;
    } else if (fd >= 0) {
      close(fd);
    }
  }
  pthread_mutex_unlock(&lock);
  return answer;
}

int cuMemFree_v2(Ptr at) {
  CURRENT_UNCAPTURED();
  (void)here;
  pthread_mutex_lock(&lock);
  Block* b = block_at(at, 1);
  int answer = b && b->at == at && !b->imported ? OK : INVALID_VALUE;
  struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  if (!answer && fcntl(b->fd, F_OFD_SETLK, &all)) die("cuMemFree of memory that another process has open");
  if (!answer) drop_block(b);
  pthread_mutex_unlock(&lock);
  return answer;
}

int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  CURRENT();
  *free_bytes = memory_size - used[here->device];
  *total = memory_size;
  return OK;
}

typedef struct {
  char magic[8];
  int pid, fd, device;
  unsigned long serial;
  size_t size;
} Handle;

int cuIpcGetMemHandle(char* handle, Ptr at) {
  CURRENT();
  (void)here;
  if (fault_export) return NOT_SUPPORTED;
  pthread_mutex_lock(&lock);
  Block* b = block_at(at, 1);
  int answer = b && b->at == at && !b->imported ? OK : INVALID_VALUE;
  if (!answer && b->size % BLOCK) die("a handle was made of part of a block of 2 MiB, which would share whatever else lies there");
  if (!answer) {
    Handle h = {"STANDIN", getpid(), b->fd, b->device, ++serial, b->size};
    memset(handle, 0, 64);
    memcpy(handle, &h, sizeof h);
  }
  pthread_mutex_unlock(&lock);
  return answer;
}

typedef struct {
  char bytes[64];
} Raw;

int cuIpcOpenMemHandle_v2(Ptr* out, Raw handle, unsigned flags) {
  CURRENT_UNCAPTURED();
  Handle h;
  memcpy(&h, &handle, sizeof h);
  if (flags != 1 || strcmp(h.magic, "STANDIN")) return INVALID_VALUE;
  if (fault_open) return INVALID_VALUE;
  if (h.pid == getpid()) return INVALID_CONTEXT;
  if (h.device != here->device && fault_nopeer) return INVALID_VALUE;
  if (h.device != here->device && fault_manypeers) return TOO_MANY_PEERS;
  pthread_mutex_lock(&lock);
  int answer = INVALID_VALUE;
  for (int i = 0; i < MOST_BLOCKS; i++) {
    if (blocks[i].at && blocks[i].imported && blocks[i].context == here && !memcmp(blocks[i].handle, &handle, 64)) answer = ALREADY_MAPPED;
  }
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = answer == ALREADY_MAPPED ? -1 : open(path, O_RDWR | O_CLOEXEC);
  Block* b = fd >= 0 ? add_block(here, fd, h.size, h.device, 1) : NULL;
  if (b) {
    // Until it is closed, or this process ends; its owner looks for it in cuMemFree.
    struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    fcntl(b->fd, F_OFD_SETLK, &all);
    memcpy(b->handle, &handle, 64);
    *out = b->at;
    opens++;
    answer = OK;
  } else if (fd >= 0) {
    close(fd);
  }
  pthread_mutex_unlock(&lock);
  return answer;
}

static void pause_ms(int ms) {
  struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&pause, NULL);
}

int cuIpcCloseMemHandle(Ptr at) {
  CURRENT_UNCAPTURED();
  pause_ms(slow_close_ms);
  pthread_mutex_lock(&lock);
  Block* b = block_at(at, 1);
  int answer = b && b->at == at && b->imported && b->context == here ? OK : INVALID_VALUE;
  if (!answer) {
    drop_block(b);
    closes++;
  }
  pthread_mutex_unlock(&lock);
  return answer;
}

// For tests: handles opened and closed by this process.
void standinCudaCounts(unsigned long* opened, unsigned long* closed) {
  pthread_mutex_lock(&lock);
  *opened = opens;
  *closed = closes;
  pthread_mutex_unlock(&lock);
}

static struct {
  char* start;
  size_t size;
} locked[MOST_BLOCKS];

int cuMemHostRegister_v2(void* start, size_t size, unsigned flags) {
  CURRENT_UNCAPTURED();
  (void)here, (void)flags;
  if (fault_register) return NOT_PERMITTED;
  if ((uintptr_t)start % 4096 || !size) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  int free_place = -1, answer = OK;
  for (int i = 0; i < MOST_BLOCKS; i++) {
    if (!locked[i].start) free_place = i;
    else if ((char*)start < locked[i].start + locked[i].size && locked[i].start < (char*)start + size) answer = ALREADY_REGISTERED;
  }
  if (!answer) locked[free_place].start = start, locked[free_place].size = size;
  pthread_mutex_unlock(&lock);
  return answer;
}

int cuMemHostUnregister(void* start) {
  CURRENT_UNCAPTURED();
  (void)here;
  pthread_mutex_lock(&lock);
  int answer = NOT_REGISTERED;
  for (int i = 0; i < MOST_BLOCKS; i++) {
    if (start && locked[i].start == start) locked[i].start = NULL, answer = OK;
  }
  pthread_mutex_unlock(&lock);
  return answer;
}

// Whether a copy may use this host memory: all of it in one page-locked range, or none of it in any.
static int is_one_range(const char* at, size_t size) {
  for (int i = 0; i < MOST_BLOCKS; i++) {
    char *start = locked[i].start, *stop = start + locked[i].size;
    if (start && at < stop && start < at + size && (at < start || at + size > stop)) return 0;
  }
  return 1;
}

// For tests: bytes that are page-locked in this process.
size_t standinCudaLocked(void) {
  size_t bytes = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST_BLOCKS; i++) bytes += locked[i].start ? locked[i].size : 0;
  pthread_mutex_unlock(&lock);
  return bytes;
}

// For tests: with `hold` 1 no stream of this process goes on until it is called with 0.
void standinCudaHold(int hold) {
  pthread_mutex_lock(&lock);
  held = hold;
  pthread_cond_broadcast(&let_go);
  pthread_mutex_unlock(&lock);
}

// Streams: a queue and a thread each.

static void* run(void* argument) {
  Stream* stream = argument;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!stream->first) pthread_cond_wait(&stream->changed, &lock);
    while (held) pthread_cond_wait(&let_go, &lock);
    Op* op = stream->first;
    if (op->kind == COPY || op->kind == SET) {
      pthread_mutex_unlock(&lock);
      pause_ms(slow_ms);
      pthread_mutex_lock(&lock);
      if (!lost && op->kind == COPY) memmove(op->to, op->from, op->size);
      if (!lost && op->kind == SET) memset(op->to, op->value, op->size);
      if (lost_at && ++copies >= lost_at) lost = 1;
    } else if (op->kind == MARK) {
      if (op->event->completed < op->turn) op->event->completed = op->turn;
    } else if (op->kind == WAIT) {
      while (op->event->completed < op->turn) pthread_cond_wait(&completed, &lock);
    }
    int end = op->kind == END;
    stream->first = op->next;
    if (!stream->first) stream->last = NULL;
    stream->done++;
    free(op);
    pthread_cond_broadcast(&completed);
    if (end) break;
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

static void queue(Stream* stream, Op op) {
  Op* copy = malloc(sizeof op);
  *copy = op;
  copy->next = NULL;
  if (stream->last) stream->last->next = copy;
  else stream->first = copy;
  stream->last = copy;
  stream->queued++;
  pthread_cond_signal(&stream->changed);
}

static void wait_for(Stream* stream) {
  unsigned long goal = stream->queued;
  while (stream->done < goal) pthread_cond_wait(&completed, &lock);
}

static void drain(Context* context) {
  for (int i = 0; i < MOST_STREAMS; i++) {
    if (streams[i] && streams[i]->context == context) wait_for(streams[i]);
  }
}

// The stream that a handle means, or NULL if it belongs to another context.
static Stream* stream_of(Context* here, Stream* handle) {
  if ((uintptr_t)handle <= 2) return here->base;
  return handle->context == here ? handle : NULL;
}

int cuStreamCreate(Stream** out, unsigned flags) {
  CURRENT();
  (void)flags;
  pthread_mutex_lock(&lock);
  *out = new_stream(here);
  pthread_mutex_unlock(&lock);
  return OK;
}

int cuStreamDestroy_v2(Stream* stream) {
  CURRENT();
  if (stream->context != here) return INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  queue(stream, (Op){.kind = END});
  for (int i = 0; i < MOST_STREAMS; i++) {
    if (streams[i] == stream) streams[i] = NULL;
  }
  pthread_mutex_unlock(&lock);
  pthread_join(stream->thread, NULL);
  free(stream);
  return OK;
}

int cuStreamSynchronize(Stream* handle) {
  CURRENT_UNCAPTURED();
  Stream* stream = stream_of(here, handle);
  if (!stream) return INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  wait_for(stream);
  pthread_mutex_unlock(&lock);
  return lost ? ILLEGAL_ADDRESS : OK;
}

int cuStreamWaitEvent(Stream* handle, Event* event, unsigned flags) {
  CURRENT();
  Stream* stream = stream_of(here, handle);
  if (!stream || flags) return INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  queue(stream, (Op){.kind = WAIT, .event = event, .turn = event->recorded});
  pthread_mutex_unlock(&lock);
  return OK;
}

int cuCtxSynchronize(void) {
  CURRENT();
  pthread_mutex_lock(&lock);
  // Whatever the thread says: it would have to wait for what is not there.
  if (captured && captured->context == here) {
    capture_spoilt = 1;
    pthread_mutex_unlock(&lock);
    return CAPTURE_UNSUPPORTED;
  }
  drain(here);
  pthread_mutex_unlock(&lock);
  return lost ? ILLEGAL_ADDRESS : OK;
}

int cuStreamBeginCapture_v2(Stream* handle, int mode) {
  CURRENT();
  Stream* stream = stream_of(here, handle);
  if (!stream || captured) return INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  captured = stream, capture_is_global = mode == 0, capture_spoilt = 0;
  pthread_mutex_unlock(&lock);
  return OK;
}

// Nothing is kept of what was captured.
int cuStreamEndCapture(Stream* handle, void** graph) {
  CURRENT();
  pthread_mutex_lock(&lock);
  int answer = !captured || captured != stream_of(here, handle) ? CAPTURE_UNMATCHED : capture_spoilt ? CAPTURE_INVALIDATED : OK;
  if (answer != CAPTURE_UNMATCHED) captured = NULL;
  if (graph) *graph = NULL;
  pthread_mutex_unlock(&lock);
  return answer;
}

static int copy(Context* here, char* to, char* from, size_t size, Stream* handle) {
  Stream* stream = stream_of(here, handle);
  if (!stream) return INVALID_HANDLE;
  if (!to || !from) return INVALID_VALUE;
  queue(stream, (Op){.kind = COPY, .to = to, .from = from, .size = size});
  return OK;
}

int cuMemcpyHtoDAsync_v2(Ptr to, const void* from, size_t size, Stream* stream) {
  CURRENT();
  pthread_mutex_lock(&lock);
  int answer = is_one_range(from, size) ? copy(here, reach(here, to, size), (char*)from, size, stream) : INVALID_VALUE;
  pthread_mutex_unlock(&lock);
  return answer;
}

int cuMemcpyDtoHAsync_v2(void* to, Ptr from, size_t size, Stream* stream) {
  CURRENT();
  pthread_mutex_lock(&lock);
  int answer = is_one_range(to, size) ? copy(here, to, reach(here, from, size), size, stream) : INVALID_VALUE;
  pthread_mutex_unlock(&lock);
  return answer;
}

int cuMemcpyDtoDAsync_v2(Ptr to, Ptr from, size_t size, Stream* stream) {
  CURRENT();
  pthread_mutex_lock(&lock);
  int answer = copy(here, reach(here, to, size), reach(here, from, size), size, stream);
  pthread_mutex_unlock(&lock);
  return answer;
}

int cuMemcpyPeerAsync(Ptr to, Context* to_context, Ptr from, Context* from_context, size_t size, Stream* stream) {
  CURRENT();
  if (!to_context || !from_context) return INVALID_CONTEXT;
  pthread_mutex_lock(&lock);
  int answer = copy(here, reach(to_context, to, size), reach(from_context, from, size), size, stream);
  if (!answer && to_context != from_context && !peers[from_context->device][to_context->device]) staged += size;
  pthread_mutex_unlock(&lock);
  return answer;
}

// For tests: bytes that copies between devices took through the host, and the devices on which this process has a context, a bit each.
size_t standinCudaStaged(void) { return staged; }

unsigned standinCudaContexts(void) {
  unsigned found = 0;
  for (int i = 0; i < MOST_DEVICES; i++) found |= (unsigned)(contexts[i].retained > 0) << i;
  return found;
}

int cuMemsetD8Async(Ptr to, unsigned char value, size_t size, Stream* handle) {
  CURRENT();
  Stream* stream = stream_of(here, handle);
  if (!stream) return INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  char* bytes = reach(here, to, size);
  if (bytes) queue(stream, (Op){.kind = SET, .to = bytes, .value = value, .size = size});
  pthread_mutex_unlock(&lock);
  return bytes ? OK : INVALID_VALUE;
}

int cuEventCreate(Event** out, unsigned flags) {
  CURRENT();
  (void)flags;
  *out = calloc(1, sizeof **out);
  (*out)->context = here;
  return OK;
}

int cuEventRecord(Event* event, Stream* handle) {
  CURRENT();
  Stream* stream = stream_of(here, handle);
  if (!stream || event->context != here) return INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  queue(stream, (Op){.kind = MARK, .event = event, .turn = ++event->recorded});
  pthread_mutex_unlock(&lock);
  return OK;
}

int cuEventQuery(Event* event) {
  CURRENT_UNCAPTURED();
  (void)here;
  return event->completed >= event->recorded ? OK : NOT_READY;
}

int cuEventSynchronize(Event* event) {
  CURRENT_UNCAPTURED();
  (void)here;
  pthread_mutex_lock(&lock);
  unsigned long goal = event->recorded;
  while (event->completed < goal) pthread_cond_wait(&completed, &lock);
  pthread_mutex_unlock(&lock);
  return lost ? ILLEGAL_ADDRESS : OK;
}

int cuEventDestroy_v2(Event* event) {
  CURRENT();
  if (event->context != here) return INVALID_HANDLE;
  free(event);
  return OK;
}

int cuGetErrorName(int error, const char** out) {
  static const struct {
    int error;
    const char* name;
  } names[] = {{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
               {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"}, {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED"},
               {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED"},
               {DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
               {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"}, {TOO_MANY_PEERS, "CUDA_ERROR_TOO_MANY_PEERS"}, {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
               {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}, {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"}, {NOT_READY, "CUDA_ERROR_NOT_READY"},
               {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"}, {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (names[i].error == error) {
      *out = names[i].name;
      return OK;
    }
  }
  return INVALID_VALUE;
}

int cuGetErrorString(int error, const char** out) {
  (void)error;
  *out = "said by the stand-in driver";
  return OK;
}
