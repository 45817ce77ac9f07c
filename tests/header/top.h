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
