/* The plain C interface of vramlens' native core: no Python headers, no C++ types, no exceptions.
 *
 * Two objects: a vl_snapshot (a memory snapshot read from a stream of bytes) and a vl_lifetimes (what became
 * of each allocation on one device). Both hand out columns: arrays that stay valid until the object is freed.
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

#define VL_INTERFACE 1 /* raised whenever this file changes; the loader refuses another number */

VL_EXPORT int32_t vl_interface(void);

/* Element types of a column. */
enum { VL_U8 = 0, VL_I32 = 1, VL_U32 = 2, VL_I64 = 3, VL_U64 = 4 };

typedef struct {
    const void* data; /* null where count is 0 */
    int64_t count;
    int32_t type;
} vl_column;

/* ---- reading ------------------------------------------------------------------------------------------- */

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
/* JSON of a value (of a side column, or of the top level): bytes written; negative: it exceeds the capacity. */
VL_EXPORT int64_t vl_snapshot_json(vl_snapshot*, uint64_t value, char* buffer, int64_t capacity);
VL_EXPORT void vl_snapshot_free(vl_snapshot*);

/* ---- lifetimes ----------------------------------------------------------------------------------------- */

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
    const uint8_t* block_pending;    /* 1: freed by the program, still used by a stream */
    int32_t has_final_state;         /* 0: segments and blocks belong to a later moment (truncated): not used */
    uint64_t max_split_size;         /* UINT64_MAX: unlimited */
    const uint64_t* roundup_divisions; /* 16 of them, from 1 MiB on, or null */
} vl_device;

typedef struct vl_lifetimes vl_lifetimes;

VL_EXPORT vl_lifetimes* vl_lifetimes_make(const vl_device*); /* null: memory exhausted */
VL_EXPORT int32_t vl_lifetimes_column(vl_lifetimes*, const char* name, vl_column* out);
VL_EXPORT void vl_lifetimes_free(vl_lifetimes*);

#ifdef __cplusplus
}
#endif
#endif
