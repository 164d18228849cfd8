// What the top level of a snapshot reaches, and every column by name.

#include "snapshot.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <random>

namespace vl {

uint64_t draw_seed() {
    try {
        std::random_device source;
        return uint64_t{source()} << 32 | source();
    } catch (...) {  // no source of randomness here
        return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())
                   << 20 ^
               0x9E3779B9;
    }
}

Snapshot::Snapshot() {
    static constexpr std::string_view kNames[kFieldCount] = {"action",
                                                             "addr",
                                                             "address",
                                                             "size",
                                                             "stream",
                                                             "time_us",
                                                             "frames",
                                                             "device_free",
                                                             "compile_context",
                                                             "user_metadata",
                                                             "pool_id",
                                                             "filename",
                                                             "line",
                                                             "name",
                                                             "device",
                                                             "total_size",
                                                             "allocated_size",
                                                             "active_size",
                                                             "requested_size",
                                                             "segment_type",
                                                             "segment_pool_id",
                                                             "is_expandable",
                                                             "blocks",
                                                             "state",
                                                             "history",
                                                             "real_size",
                                                             "stage",
                                                             "segments",
                                                             "device_traces",
                                                             "host_segments",
                                                             "host_traces",
                                                             "external_annotations"};
    for (const auto text : kNames) strings.id_of(text.data(), text.size());
}

bool Snapshot::as_integer(Value value, int64_t& number) const {
    switch (value.kind()) {
        case Kind::Int: number = value.number(); return true;
        case Kind::WideInt:
        case Kind::WideUint: number = wide[value.payload()]; return true;
        default: return false;
    }
}

namespace {

class Resolver {
  public:
    explicit Resolver(Snapshot& snapshot) : s_(snapshot) {
        std::sort(s_.unfinished.begin(), s_.unfinished.end());
    }

    void traces(Value value, TraceLists& out) {
        if (items(value) == nullptr) return;
        const auto lists =
            *items(value);  // a copy: trace() takes the room of lists, and a list can hold itself
        if (!lists.empty() && shape(lists.front()) == Shape::Event)
            return trace(value, out);  // one flat list
        for (const Value list : lists) trace(list, out);
    }

    void segments(Value value, SegmentLists& out) {
        out.whole.clear();
        out.whole.push_back(whole(value));
        if (out.block_starts.empty()) out.block_starts.push_back(0);
        const auto* list = items(value);
        if (list == nullptr) return;
        for (const Value item : *list) {
            if (shape(item) != Shape::Segment) continue;
            const uint32_t row = index(item);
            out.rows.push_back(row);
            allow(out.rows.size(), s_.segments.device.size());
            if (const auto* blocks = items(Value{s_.segments.blocks[row]})) {
                listed_blocks_ += blocks->size();
                allow(listed_blocks_, s_.blocks.size.size());
                for (const Value block : *blocks) {
                    if (shape(block) == Shape::Block) out.block_rows.push_back(index(block));
                }
            }
            out.block_starts.push_back(static_cast<int64_t>(out.block_rows.size()));
        }
    }

    void annotations(Value value) {
        const auto* list = items(value);
        if (list == nullptr) return;
        for (const Value item : *list) {
            if (shape(item) == Shape::Annotation) s_.annotation_rows.push_back(index(item));
            allow(s_.annotation_rows.size(), s_.annotations.stage.size());
        }
    }

    Shape shape(Value value) const {
        return value.kind() == Kind::Object ? s_.objects[value.payload()].shape : Shape::Tuple;
    }
    uint32_t index(Value value) const { return s_.objects[value.payload()].index; }
    const std::vector<Value>* items(Value value) const {
        return shape(value) == Shape::List ? &s_.lists[index(value)] : nullptr;
    }

  private:
    Snapshot& s_;
    int64_t listed_events_ = 0;
    size_t listed_blocks_ = 0;

    // One row can be listed many times in two bytes each, or a list of a million rows by a million
    // segments.
    static void allow(size_t listed, size_t rows) {
        if (listed > 2 * rows + 1000)
            throw Stop{VL_LIMIT, "the same rows are listed again and again"};
    }
    bool whole(Value value) const {
        if (value.kind() != Kind::Object) return false;
        return !std::binary_search(s_.unfinished.begin(), s_.unfinished.end(),
                                   static_cast<uint32_t>(value.payload()));
    }

    void trace(Value value, TraceLists& out) {
        const auto* list = items(value);
        int64_t first = 0, count = 0, listed = 0;
        if (list != nullptr) {
            bool follows = true;
            for (const Value item : *list) {
                if (shape(item) != Shape::Event) continue;
                const int64_t row = index(item);
                if (count == 0) first = row;
                follows = follows && row == first + count;
                ++count;
            }
            if (!follows) {
                for (const Value item : *list) {
                    if (shape(item) == Shape::Event) out.rows.push_back(index(item)), ++listed;
                }
            }
        }
        listed_events_ += count;
        allow(static_cast<size_t>(listed_events_), s_.events.action.size());
        out.first.push_back(listed != 0 ? -1 : first);
        out.count.push_back(count);
        if (out.starts.empty()) out.starts.push_back(0);
        out.starts.push_back(static_cast<int64_t>(out.rows.size()));
        out.whole.push_back(whole(value));
        // The list has said all it has to say: its room is for the columns now.
        if (list != nullptr) std::vector<Value>().swap(s_.lists[index(value)]);
    }
};

}  // namespace

void Snapshot::resolve(Value top) {
    Resolver resolver(*this);
    if (resolver.shape(top) == Shape::List)
        return resolver.segments(top, final_segments);  // before PyTorch 2.0
    if (resolver.shape(top) != Shape::Dict) return;
    const auto& pairs = dicts[objects[top.payload()].index];
    // As in Python a key's last value counts; and a list is gone through once, however often its
    // key is written.
    std::array<size_t, kFieldCount> last{};
    for (size_t i = 0; i < pairs.size(); ++i) {
        const Value key = pairs[i].first;
        if (key.kind() == Kind::Text && key.payload() < kFieldCount) last[key.payload()] = i;
    }
    for (size_t i = 0; i < pairs.size(); ++i) {
        const auto [key, value] = pairs[i];
        if (key.kind() != Kind::Text || (key.payload() < kFieldCount && last[key.payload()] != i))
            continue;
        switch (key.payload()) {
            case kSegments: resolver.segments(value, final_segments); break;
            case kHostSegments: resolver.segments(value, host_segments); break;
            case kDeviceTraces: resolver.traces(value, traces); break;
            case kHostTraces: resolver.traces(value, host_traces); break;
            case kExternalAnnotations: resolver.annotations(value); break;
            default: break;
        }
        top_keys.push_back(static_cast<uint32_t>(key.payload()));
        top_values.push_back(value.bits);
    }
}

namespace {

template <typename T>
constexpr int32_t type_of();
template <>
constexpr int32_t type_of<uint8_t>() {
    return VL_U8;
}
template <>
constexpr int32_t type_of<char>() {
    return VL_U8;
}
template <>
constexpr int32_t type_of<int32_t>() {
    return VL_I32;
}
template <>
constexpr int32_t type_of<uint32_t>() {
    return VL_U32;
}
template <>
constexpr int32_t type_of<int64_t>() {
    return VL_I64;
}
template <>
constexpr int32_t type_of<uint64_t>() {
    return VL_U64;
}
template <>
constexpr int32_t type_of<double>() {
    return VL_U64;
}  // its bits

// Compares one wanted name with the names of the columns, "table.column".
struct Finder {
    std::string_view wanted;
    vl_column* out;

    template <typename T>
    bool operator()(std::string_view name, const T& column) const {
        if (name != wanted) return false;
        *out = {column.data(), static_cast<int64_t>(column.size()),
                type_of<std::decay_t<decltype(column[0])>>()};
        return true;
    }
    // A single element where all rows are equal; the Python side spreads it.
    bool operator()(std::string_view name, LazyColumn& column, size_t rows) const {
        if (name != wanted) return false;
        return (*this)(name, column.rows_or_one(rows));
    }
    // The columns of a group, when the wanted name begins with `table`.
    Finder in(std::string_view table) const {
        const bool same = wanted.substr(0, table.size()) == table && wanted[table.size()] == '.';
        return {same ? wanted.substr(table.size() + 1) : std::string_view(), out};
    }
    bool extras(std::string_view table, const Extras& extras) const {
        const Finder is = in(table);
        return is("extra_row", extras.row) || is("extra_key", extras.key) ||
               is("extra_value", extras.value);
    }
    bool traces(std::string_view table, const TraceLists& lists) const {
        const Finder is = in(table);
        return is("first", lists.first) || is("count", lists.count) || is("rows", lists.rows) ||
               is("starts", lists.starts) || is("whole", lists.whole);
    }
    bool segments(std::string_view table, const SegmentLists& lists) const {
        const Finder is = in(table);
        return is("rows", lists.rows) || is("block_rows", lists.block_rows) ||
               is("block_starts", lists.block_starts) || is("whole", lists.whole);
    }
};

}  // namespace

bool find_column(Snapshot& s, std::string_view name, vl_column* out) {
    const Finder is{name, out};
    auto& e = s.events;
    auto& g = s.segments;
    auto& b = s.blocks;
    auto& f = s.frames;
    auto& a = s.annotations;
    const size_t n = e.action.size();
    return is("strings.bytes", s.strings.items) || is("strings.starts", s.strings.starts) ||
           is("stacks.frames", s.stacks.items) || is("stacks.starts", s.stacks.starts) ||
           is("pools.ids", s.pools.items) || is("values.wide", s.wide) ||
           is("values.floats", s.floats) || is("frames.file", f.file) ||
           is("frames.name", f.name) || is("frames.line", f.line) ||
           is("events.action", e.action) || is("events.address", e.address) ||
           is("events.size", e.size) || is("events.stream", e.stream) ||
           is("events.time_us", e.time_us) || is("events.stack", e.stack) ||
           is("events.other_action", e.other_action, n) ||
           is("events.compile_context", e.compile_context, n) ||
           is("events.user_metadata", e.user_metadata, n) || is("events.pool", e.pool, n) ||
           is("events.oom_row", e.oom_row) || is("events.oom_device_free", e.oom_device_free) ||
           is("segments.device", g.device) || is("segments.address", g.address) ||
           is("segments.total_size", g.total_size) ||
           is("segments.allocated_size", g.allocated_size) ||
           is("segments.active_size", g.active_size) ||
           is("segments.requested_size", g.requested_size) || is("segments.stream", g.stream) ||
           is("segments.type", g.type) || is("segments.pool", g.pool) ||
           is("segments.stack", g.stack) || is("segments.is_expandable", g.is_expandable) ||
           is("blocks.address", b.address) || is("blocks.size", b.size) ||
           is("blocks.requested_size", b.requested_size) || is("blocks.state", b.state) ||
           is("blocks.stack", b.stack) || is("annotations.stage", a.stage) ||
           is("annotations.name", a.name) || is("annotations.device", a.device) ||
           is("annotations.time_us", a.time_us) || is("annotations.rows", s.annotation_rows) ||
           is.traces("traces", s.traces) || is.traces("host_traces", s.host_traces) ||
           is.segments("final", s.final_segments) || is.segments("host", s.host_segments) ||
           is.extras("events", e.extras) || is.extras("segments", g.extras) ||
           is.extras("blocks", b.extras) || is.extras("frames", f.extras) ||
           is.extras("annotations", a.extras) || is("top.keys", s.top_keys) ||
           is("top.values", s.top_values);
}

}  // namespace vl
