/* The plain C interface of vramlens' native core: no Python headers, no C++ types, no exceptions.
 *
 * Four objects: a vl_snapshot (a memory snapshot read from a stream of bytes), a vl_lifetimes (what
 * became of each allocation on one device), a vl_replay (one device's requests, run through the
 * allocator again) and a vl_curve (what such a run reserves over the events). All hand out columns:
 * arrays that stay valid until the object is freed. Beside them, the handler for SIGTERM.
 */
#ifndef VRAMLENS_H
#define VRAMLENS_H

#include <stdint.h>

#ifndef VL_EXPORT
#define VL_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define VL_INTERFACE 6 /* raised whenever this file changes; the loader refuses another number */

VL_EXPORT int32_t vl_interface(void);

/* The structures and numbers of this file as text (layout.h); null: memory exhausted. */
VL_EXPORT const char* vl_layout(void);

/* Element types of a column. */
enum { VL_U8 = 0, VL_I32 = 1, VL_U32 = 2, VL_I64 = 3, VL_U64 = 4 };

typedef struct {
    const void* data; /* null where count is 0 */
    int64_t count;
    int32_t type;
} vl_column;

/* ---- reading ----------------------------------------- */

/* Fills at most `capacity` bytes; returns how many, 0 at the end, negative to give up. */
typedef int64_t (*vl_read_function)(void* context, uint8_t* buffer, int64_t capacity);

enum {
    VL_WHOLE = 0,     /* read to its STOP opcode */
    VL_TRUNCATED = 1, /* the stream ended early: everything whole before that is there */
    VL_UNSAFE = 2,    /* an opcode that could import, call or build */
    VL_LIMIT = 3,     /* a count, index or nesting that no snapshot of this size has */
    VL_MALFORMED = 4, /* not a pickle, or an inconsistent one */
    VL_READ_FAILED = 5,
    VL_NO_MEMORY = 6
};

typedef struct {
    int32_t code;      /* one of the above */
    int64_t offset;    /* of the opcode concerned, in bytes */
    char message[160]; /* empty when whole */
} vl_status;

typedef struct vl_snapshot vl_snapshot;

/* Never null unless memory is exhausted. Ask vl_snapshot_status before anything else. */
VL_EXPORT vl_snapshot* vl_snapshot_read(vl_read_function read, void* context);
VL_EXPORT void vl_snapshot_status(const vl_snapshot*, vl_status* out);
/* 1 and the column, or 0 when there is none of that name. The names are listed in snapshot.cpp. */
VL_EXPORT int32_t vl_snapshot_column(vl_snapshot*, const char* name, vl_column* out);
/* JSON of a value (of a side column, or of the top level): bytes written; negative: it exceeds the
 * capacity. */
VL_EXPORT int64_t vl_snapshot_json(vl_snapshot*, uint64_t value, char* buffer, int64_t capacity);
VL_EXPORT void vl_snapshot_free(vl_snapshot*);

/* ---- lifetimes ----------------------------------------- */

/* One device's events in order, and the segments and blocks of its final state. */
typedef struct {
    int64_t events;
    const uint8_t* action;
    const uint64_t* address;
    const uint64_t* size;
    const uint64_t* stream;
    const uint32_t* stack;
    int64_t segments;
    const uint64_t* segment_address;
    const uint64_t* segment_size;
    const uint64_t* segment_stream;
    const uint8_t* segment_expandable;
    int64_t blocks; /* live ones only */
    const uint64_t* block_address;
    const uint64_t* block_size;
    const uint64_t* block_requested;
    const uint64_t* block_stream;
    const uint32_t* block_stack;
    const uint8_t* block_pending; /* 1: freed by the program, still used by a stream */
    int32_t
        has_final_state; /* 0: segments and blocks belong to a later moment (truncated): not used */
    uint64_t max_split_size;           /* UINT64_MAX: unlimited */
    const uint64_t* roundup_divisions; /* 16 of them, from 1 MiB on, or null */
} vl_device;

typedef struct vl_lifetimes vl_lifetimes;

VL_EXPORT vl_lifetimes* vl_lifetimes_make(const vl_device*); /* null: memory exhausted */
VL_EXPORT int32_t vl_lifetimes_column(vl_lifetimes*, const char* name, vl_column* out);
VL_EXPORT void vl_lifetimes_free(vl_lifetimes*);

/* ---- replay ----------------------------------------- */

/* The allocator's settings; UINT64_MAX: no limit. */
typedef struct {
    int32_t expandable_segments;
    int32_t tie_order; /* replay_settings.h: TieOrder */
    int32_t scope_suppresses_release;
    uint64_t max_split_size;
    uint64_t max_non_split_rounding_size;
    uint64_t large_segment_size;
    uint64_t roundup_power2_divisions[16];
    double garbage_collection_threshold;
    uint64_t allowed_maximum; /* what the process may reserve */
    uint64_t capacity;        /* what the driver can give */
    uint64_t reject_above;    /* throw_on_cudamalloc_oom */
    uint64_t reserve;         /* address space of an expandable segment */
} vl_replay_settings;

/* One device's events, its allocations by row, and the memory from before the first event. */
typedef struct {
    int64_t events;
    const uint8_t* action;
    const uint64_t* address;
    const uint64_t* size;
    const uint64_t* stream;
    const uint8_t*
        emptied; /* 1: a release that empty_cache made; 2: one that a pool's end may have made */
    const int32_t* allocation; /* row, -1: none */
    const uint32_t*
        released_pool; /* of a release: the pool of what it released, 0: the default one */
    int64_t rows;
    const int64_t* row_born;
    const uint64_t* row_address;
    const uint64_t* row_requested;
    const uint64_t* row_taken;
    const uint64_t* row_stream;
    const uint32_t* row_pool;
    const uint8_t* row_scratch; /* 1: freed at once */
    const uint8_t* row_pending; /* 1: from before the first event, and already given up by then */
    int64_t base_segments;
    const uint64_t* base_address;
    const uint64_t* base_size;
    const uint64_t* base_stream;
    const uint64_t* base_reservation;
    const uint32_t* base_pool;
    const uint8_t* base_mapped;
    const uint8_t* base_small;
    int64_t pools;
    vl_replay_settings settings; /* the recorded ones */
} vl_replay_input;

/* One what-if. */
typedef struct {
    vl_replay_settings settings;
    int32_t addresses;  /* replay_addresses.h: AddressOrder */
    int32_t completion; /* replay.h: Completion */
    uint64_t seed;
} vl_what_if;

typedef struct {
    int64_t peak_requested, peak_allocated, peak_active, peak_reserved;
    int64_t retries, device_allocs, device_frees;
    int64_t failures, new_failures, served_failures;
    int64_t first_failure, first_served, died_at; /* events, -1: none */
    int64_t ties;
    uint64_t failed_size;
} vl_outcome;

typedef struct vl_replay vl_replay;

/* Null: memory exhausted, or columns that do not fit together or hold what no device has
 * (replay_input.h). */
VL_EXPORT vl_replay* vl_replay_make(const vl_replay_input*);
VL_EXPORT int32_t vl_replay_column(vl_replay*, const char* name, vl_column* out);
/* 1, or 0 where memory is exhausted or the settings make no sense. Several threads may ask at once.
 */
VL_EXPORT int32_t vl_replay_run(const vl_replay*, const vl_what_if*, vl_outcome* out);
VL_EXPORT void vl_replay_free(vl_replay*);

typedef struct vl_curve vl_curve;

/* The same run with its curve, or null where vl_replay_run gives 0. Columns "event" and "reserved"
 * (VL_I64): bytes right after an event, one row a change, and before it the most within that event
 * where that is more; event -1 is the start. */
VL_EXPORT vl_curve* vl_curve_make(const vl_replay*, const vl_what_if*, vl_outcome* out);
/* The same with all that the allocator did, as PyTorch's trace would show it: columns "log_event"
 * (VL_I64, the event that it was done for), "log_action" (VL_U8), "log_address", "log_size" and
 * "log_stream" (VL_U64). */
VL_EXPORT vl_curve* vl_log_make(const vl_replay*, const vl_what_if*, vl_outcome* out);
VL_EXPORT int32_t vl_curve_column(vl_curve*, const char* name, vl_column* out);
VL_EXPORT void vl_curve_free(vl_curve*);

/* ---- a device without a driver ----------------------------------------- */

typedef struct {
    int64_t device; /* c10::Device in its lowest bytes: type 1 (CUDA), index 0 */
    int64_t stream; /* its default stream */
} vl_device_and_stream;

/* The answer to whatever PyTorch asks a device guard (c10/core/impl/DeviceGuardImplInterface.h):
 * device 0, stream 0, one device, true. It is the only entry of the table that stands for CUDA
 * where a program runs with shapes instead of a GPU. */
VL_EXPORT vl_device_and_stream vl_one_device(void* guard);

/* ---- SIGTERM, SIGHUP and SIGABRT (Linux) --------------------------------- */

/* From now on these signals wake vl_termination_wait instead of ending the process, and end it
 * `limit_ms` later, whatever the process does. The thread that aborts waits for as long at most,
 * unless `holds_lock` says that it holds the interpreter's lock. Returns whether any does: not
 * where it is handled or ignored, and on Linux only. `has_faulthandler` says that Python's
 * faulthandler is on: where it handles SIGABRT, it prints its stacks once the recording is written.
 * A handler that the program sets takes its place; in a forked child they do what they do by
 * default. */
VL_EXPORT int32_t vl_termination_watch(int64_t limit_ms, int (*holds_lock)(void),
                                       int32_t has_faulthandler);

/* Waits until one has come, and returns its number. For one thread. */
VL_EXPORT int32_t vl_termination_wait(void);

/* Gives them back, unless one has come already or the program has set a handler. Returns which has
 * come, or 0. */
VL_EXPORT int32_t vl_termination_leave(void);

/* Ends the process by this signal; a thread that aborts, and waits, goes on. */
VL_EXPORT void vl_termination_die(int32_t number);

#ifdef __cplusplus
}
#endif
#endif
