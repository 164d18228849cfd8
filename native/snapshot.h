// What a memory snapshot holds, as tables: filled by the pickle_*.cpp, handed out by snapshot.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "column.h"
#include "intern.h"
#include "value.h"
#include "vramlens.h"

namespace vl {

constexpr uint32_t kNone = UINT32_MAX;

// clang-format off
// The keys that snapshots use. They are interned first, so a key's string id is its Field.
enum Field : uint32_t {
    kAction, kAddr, kAddress, kSize, kStream, kTimeUs, kFrames, kDeviceFree, kCompileContext, kUserMetadata,
    kPoolId, kFilename, kLine, kName, kDevice, kTotalSize, kAllocatedSize, kActiveSize, kRequestedSize,
    kSegmentType, kSegmentPoolId, kIsExpandable, kBlocks, kState, kHistory, kRealSize, kStage, kSegments,
    kDeviceTraces, kHostSegments, kHostTraces, kExternalAnnotations, kFieldCount
};
// clang-format on

// Actions by number, as the Python side names them (trace/events.py; layout.cpp hands them out).
enum Action : uint8_t {
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,
    kSegmentFree,
    kSegmentMap,
    kSegmentUnmap,
    kOom,
    kSnapshot,
    kOtherAction
};
constexpr std::string_view kActionNames[kOtherAction] = {
    "alloc",        "free_requested", "free_completed", "segment_alloc",
    "segment_free", "segment_map",    "segment_unmap",  "oom",
    "snapshot"};

// A column whose rows are nearly always all equal ("N/A"): stored once until two rows differ.
class LazyColumn {
  public:
    void set(size_t row, uint32_t value) {
        if (rows_.empty() && filled_ == row && (row == 0 || value == constant_)) {
            constant_ = value;
            filled_ = row + 1;
            return;
        }
        if (rows_.size() <= row) extend(row + 1);
        rows_[row] = value;
    }
    // All rows, or one element where they are all equal.
    const Column<uint32_t>& rows_or_one(size_t count) {
        if (rows_.empty() && (filled_ == count || filled_ == 0)) {
            one_.clear();
            one_.push_back(constant_);
            return one_;
        }
        if (rows_.size() < count) extend(count);
        return rows_;
    }

  private:
    uint32_t constant_ = kNone;
    size_t filled_ = 0;
    Column<uint32_t> rows_, one_;

    void extend(size_t count) {
        if (rows_.empty()) rows_.extend(filled_, constant_);
        if (rows_.size() < count) rows_.extend(count, kNone);
    }
};

// Fields that the tables below have no column for: kept as (row, key, value).
struct Extras {
    Column<int64_t> row;
    Column<uint32_t> key;
    Column<uint64_t> value;

    void add(size_t at, uint32_t name, Value what) {
        row.push_back(static_cast<int64_t>(at));
        key.push_back(name);
        value.push_back(what.bits);
    }
};

struct EventTable {
    Column<uint8_t> action;
    Column<uint64_t> address, size, stream;
    Column<int64_t> time_us;
    Column<uint32_t> stack;
    LazyColumn other_action;  // the name of an action that is not in Action
    LazyColumn compile_context, user_metadata, pool;
    Column<int64_t> oom_row;
    Column<uint64_t> oom_device_free;
    Extras extras;
};

struct SegmentTable {
    Column<int32_t> device;
    Column<uint64_t> address, total_size, allocated_size, active_size, requested_size, stream;
    Column<uint32_t> type, pool, stack;
    Column<uint8_t> is_expandable;
    Column<uint64_t> blocks;  // the list value
    Extras extras;
};

struct BlockTable {
    Column<uint64_t> address, size, requested_size;
    Column<uint32_t> state, stack;
    Extras extras;
};

struct FrameTable {
    Interner<uint64_t> keys;  // file, name, line, then the other fields; a frame's id is its row
    Column<uint32_t> file, name;
    Column<int64_t> line;
    Extras extras;
};

struct AnnotationTable {
    Column<uint32_t> stage, name;
    Column<int32_t> device;
    Column<int64_t> time_us;
    Extras extras;
};

enum class Shape : uint8_t {
    EmptyDict,
    Dict,
    Event,
    Frame,
    Segment,
    Block,
    Annotation,
    EmptyList,
    List,
    Stack,
    Tuple
};

struct Object {
    Shape shape;
    uint32_t index;            // row, or position in the store of that shape
    bool is_no_stack = false;  // a list that was found to be no stack
};

// The lists of events of the top level, one a device: rows of `events`.
struct TraceLists {
    Column<int64_t> first,
        count;  // where a list's rows follow one another, as they nearly always do
    Column<int64_t> rows,
        starts;  // else all its rows are listed here (starts: one more than there are lists)
    std::vector<uint8_t> whole;
};

// A list of segments of the top level, and the blocks of each.
struct SegmentLists {
    Column<int64_t> rows, block_rows, block_starts;
    std::vector<uint8_t> whole;  // one element: 1 when the list was read to its end
};

struct Snapshot {
    vl_status status{VL_WHOLE, 0, {}};

    Interner<char> strings;
    Interner<uint32_t> stacks;  // runs of frame ids, innermost first
    Interner<int64_t> pools;    // pairs
    Column<int64_t> wide;
    Column<double> floats;

    EventTable events;
    SegmentTable segments;
    BlockTable blocks;
    FrameTable frames;
    AnnotationTable annotations;

    Column<Object> objects;
    std::vector<std::vector<Value>> lists;  // also tuples
    std::vector<std::vector<std::pair<Value, Value>>> dicts;
    std::vector<uint32_t> unfinished;  // containers that a truncated stream left open

    // Set by resolve(): what of the above the top level reaches.
    TraceLists traces, host_traces;
    SegmentLists final_segments, host_segments;
    Column<int64_t> annotation_rows;
    Column<uint32_t> top_keys;
    Column<uint64_t> top_values;

    Snapshot();
    void resolve(Value top);
    std::string_view text(uint32_t id) const {
        return {strings.items.data() + strings.starts[id],
                static_cast<size_t>(strings.starts[id + 1] - strings.starts[id])};
    }
    bool as_integer(Value value, int64_t& number) const;
};

struct Stop {  // thrown to end the reading
    int32_t code;
    const char* message;
};
[[noreturn]] inline void malformed(const char* reason) {
    throw Stop{VL_MALFORMED, reason};
}

// The column "table.column"; false where there is none.
bool find_column(Snapshot& snapshot, std::string_view name, vl_column* out);

void read_pickle(Snapshot& snapshot, vl_read_function read, void* context);

// JSON of a value; false where it would exceed `capacity` characters or nest deeper than any
// setting does.
bool write_json(const Snapshot& snapshot, Value value, size_t capacity, std::string& out);

}  // namespace vl
