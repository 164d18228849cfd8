// A libFuzzer target: reads the input as a snapshot in uneven pieces, asks for every column and
// every value, and pairs the lifetimes of each list of events. Built by tests/fuzz/run.sh.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "vramlens.h"

namespace {

struct Input {
    const uint8_t* at;
    size_t left;
    uint32_t pieces;  // decides how many bytes each call gives
};

int64_t give(void* context, uint8_t* buffer, int64_t capacity) {
    auto& input = *static_cast<Input*>(context);
    input.pieces = input.pieces * 1664525 + 1013904223;
    const size_t most = input.pieces >> 31 ? 1 + (input.pieces >> 8) % 64 : SIZE_MAX;
    const size_t count = std::min({most, input.left, static_cast<size_t>(capacity)});
    if (count != 0) std::memcpy(buffer, input.at, count);
    input.at += count;
    input.left -= count;
    return static_cast<int64_t>(count);
}

template <typename T>
class Rows {
  public:
    const T* data = nullptr;
    size_t count = 0;

    Rows(vl_snapshot* snapshot, const std::string& name) {
        vl_column column;
        if (!vl_snapshot_column(snapshot, name.c_str(), &column)) std::abort();
        data = static_cast<const T*>(column.data);
        count = static_cast<size_t>(column.count);
        for (size_t i = 0; i < count; ++i)
            sum_ = sum_ + static_cast<uint64_t>(data[i]);  // every byte can be read
    }
    T operator[](size_t row) const {
        if (row >= count) std::abort();
        return data[row];
    }

  private:
    volatile uint64_t sum_ = 0;
};

std::vector<int64_t> rows_of(vl_snapshot* s, const std::string& table, size_t list) {
    const Rows<int64_t> first(s, table + ".first"), count(s, table + ".count"),
        rows(s, table + ".rows"), starts(s, table + ".starts");
    std::vector<int64_t> found;
    for (int64_t i = 0; i < count[list]; ++i) {
        found.push_back(first[list] >= 0 ? first[list] + i
                                         : rows[static_cast<size_t>(starts[list] + i)]);
    }
    return found;
}

template <typename T>
std::vector<T> gather(vl_snapshot* s, const std::string& name, const std::vector<int64_t>& rows) {
    const Rows<T> column(s, name);
    std::vector<T> found;
    for (const int64_t row : rows) found.push_back(column[static_cast<size_t>(row)]);
    return found;
}

void pair_lifetimes(vl_snapshot* s, const std::string& table, size_t list, const std::string& final,
                    bool final_state) {
    const auto events = rows_of(s, table, list);
    const auto action = gather<uint8_t>(s, "events.action", events);
    const auto address = gather<uint64_t>(s, "events.address", events);
    const auto size = gather<uint64_t>(s, "events.size", events);
    const auto stream = gather<uint64_t>(s, "events.stream", events);
    const auto stack = gather<uint32_t>(s, "events.stack", events);

    const Rows<int64_t> segment_rows(s, final + ".rows"), starts(s, final + ".block_starts");
    const std::vector<int64_t> segments(segment_rows.data, segment_rows.data + segment_rows.count);
    const auto segment_address = gather<uint64_t>(s, "segments.address", segments);
    const auto segment_size = gather<uint64_t>(s, "segments.total_size", segments);
    const auto segment_stream = gather<uint64_t>(s, "segments.stream", segments);
    const auto expandable = gather<uint8_t>(s, "segments.is_expandable", segments);
    const Rows<int64_t> block_rows(s, final + ".block_rows");
    if (static_cast<size_t>(segments.empty() ? 0 : starts[segments.size()]) != block_rows.count)
        std::abort();
    const std::vector<int64_t> blocks(block_rows.data, block_rows.data + block_rows.count);
    const auto block_address = gather<uint64_t>(s, "blocks.address", blocks);
    const auto block_size = gather<uint64_t>(s, "blocks.size", blocks);
    const auto requested = gather<uint64_t>(s, "blocks.requested_size", blocks);
    const auto block_stack = gather<uint32_t>(s, "blocks.stack", blocks);
    std::vector<uint8_t> pending;
    for (const uint32_t state : gather<uint32_t>(s, "blocks.state", blocks))
        pending.push_back(state % 2);

    uint64_t divisions[16];
    for (size_t i = 0; i < 16; ++i) divisions[i] = i < block_size.size() ? block_size[i] : i;
    vl_device device{};
    device.events = static_cast<int64_t>(events.size());
    device.action = action.data(), device.address = address.data(), device.size = size.data();
    device.stream = stream.data(), device.stack = stack.data();
    device.segments = static_cast<int64_t>(segments.size());
    device.segment_address = segment_address.data(), device.segment_size = segment_size.data();
    device.segment_stream = segment_stream.data(), device.segment_expandable = expandable.data();
    device.blocks = static_cast<int64_t>(blocks.size());
    device.block_address = block_address.data(), device.block_size = block_size.data();
    device.block_requested = requested.data(), device.block_stream = block_address.data();
    device.block_stack = block_stack.data(), device.block_pending = pending.data();
    device.has_final_state = final_state;
    device.max_split_size = segments.size() % 2 ? UINT64_MAX : uint64_t{20} << 20;
    device.roundup_divisions = blocks.size() % 2 ? divisions : nullptr;

    vl_lifetimes* life = vl_lifetimes_make(&device);
    if (life == nullptr) return;
    static const char* const kColumns[] = {"allocations.born",
                                           "allocations.free_requested",
                                           "allocations.died",
                                           "allocations.address",
                                           "allocations.requested",
                                           "allocations.taken",
                                           "allocations.stream",
                                           "allocations.stack",
                                           "allocations.segment",
                                           "segments.born",
                                           "segments.died",
                                           "segments.address",
                                           "segments.size",
                                           "segments.stream",
                                           "segments.mapped",
                                           "allocation_of_event",
                                           "summary"};
    for (const char* name : kColumns) {
        vl_column column;
        if (!vl_lifetimes_column(life, name, &column)) std::abort();
    }
    vl_lifetimes_free(life);
}

void ask_for_everything(vl_snapshot* s) {
    std::vector<char> buffer(1 << 12);
    const auto show = [&](const Rows<uint64_t>& values) {
        for (size_t i = 0; i < std::min<size_t>(values.count, 1000); ++i) {
            vl_snapshot_json(s, values[i], buffer.data(), static_cast<int64_t>(buffer.size()));
        }
    };
    const Rows<uint64_t> strings(s, "strings.starts"), stacks(s, "stacks.starts");
    for (const char* table : {"events", "segments", "blocks", "frames", "annotations"}) {
        const Rows<int64_t> rows(s, std::string(table) + ".extra_row");
        const Rows<uint32_t> keys(s, std::string(table) + ".extra_key");
        for (size_t i = 0; i < keys.count; ++i) strings[keys[i] + size_t{1}];
        show(Rows<uint64_t>(s, std::string(table) + ".extra_value"));
    }
    const Rows<uint32_t> keys(s, "top.keys"), frames(s, "stacks.frames"), files(s, "frames.file");
    show(Rows<uint64_t>(s, "top.values"));
    for (size_t i = 0; i < frames.count; ++i) files[frames[i]];
    for (const char* name : {"strings.bytes", "events.action", "segments.is_expandable",
                             "traces.whole", "final.whole", "host.whole", "host_traces.whole"}) {
        Rows<uint8_t>(s, name);
    }
    for (const char* name :
         {"frames.name", "events.other_action", "events.compile_context", "events.user_metadata",
          "events.pool", "segments.type", "segments.pool", "segments.stack", "annotations.stage",
          "annotations.name"}) {
        Rows<uint32_t>(s, name);
    }
    for (const char* name :
         {"frames.line", "pools.ids", "events.time_us", "events.oom_row", "annotations.time_us",
          "annotations.rows", "values.wide", "values.floats"}) {
        Rows<int64_t>(s, name);
    }
    for (const char* name : {"events.oom_device_free", "segments.allocated_size",
                             "segments.active_size", "segments.requested_size"}) {
        Rows<uint64_t>(s, name);
    }
    Rows<int32_t>(s, "segments.device"), Rows<int32_t>(s, "annotations.device");
    vl_column none;
    if (vl_snapshot_column(s, "events", &none) || vl_snapshot_column(s, "", &none)) std::abort();
    for (const std::string table : {"traces", "host_traces"}) {
        const size_t lists = Rows<int64_t>(s, table + ".count").count;
        for (size_t list = 0; list < std::min<size_t>(lists, 8); ++list) {
            pair_lifetimes(s, table, list, table == "traces" ? "final" : "host", list % 2 == 0);
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input input{data, size, static_cast<uint32_t>(size)};
    vl_snapshot* snapshot = vl_snapshot_read(give, &input);
    if (snapshot == nullptr) return 0;
    vl_status status;
    vl_snapshot_status(snapshot, &status);
    if (status.offset < 0 || static_cast<size_t>(status.offset) > size) std::abort();
    const bool usable = status.code == VL_WHOLE || status.code == VL_TRUNCATED;
    if (usable || size % 8 == 0)
        ask_for_everything(snapshot);  // nobody asks after a refusal, but one may
    vl_snapshot_free(snapshot);
    return 0;
}
