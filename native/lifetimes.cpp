// Pairs allocations with their ends, and works out how many bytes each one really took.
//
// Events name requested sizes; what the allocator handed out follows from the free space around the
// address (c10/cuda/CUDACachingAllocator.cpp: round_size, should_split): the remainder of a free
// block is split off when it is at least 512 bytes (small pool, expandable segments) or more than 1
// MiB (large pool), else it goes along.
//
// What was alive before the first event is found by undoing all events from the final state.
// Without a final state (a truncated file) it is what gets freed without having been allocated.

#include "lifetimes.h"

#include <algorithm>
#include <map>
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif
#include <unordered_map>

#include "snapshot.h"

namespace vl {
namespace {

constexpr uint64_t kMinBlock = 512;
constexpr uint64_t kSmallRequest = uint64_t{1}
                                   << 20;  // rounded sizes up to this live in the small pool
constexpr uint64_t kLargeRemainder = uint64_t{1} << 20;

uint64_t rounded(uint64_t size, const uint64_t* divisions) {
    if (size < kMinBlock) return kMinBlock;
    if (divisions != nullptr) {
        int slot = 0;
        while (slot < 15 && size >> (21 + slot) != 0) ++slot;
        const uint64_t parts = divisions[slot];
        if (parts > 1 && size > kMinBlock * parts) {
            uint64_t floor = uint64_t{1} << 63;
            while (floor > size) floor >>= 1;
            if (floor == size) return size;
            const uint64_t step = floor / parts;
            if (step == 0) return 2 * floor;
            return (size + step - 1) / step * step;
        }
    }
    return (size + kMinBlock - 1) / kMinBlock * kMinBlock;
}

struct Held {  // an allocation from before the first event
    uint64_t address, requested, taken, stream;
    uint32_t stack;
    bool pending;
};

struct Range {  // a segment, or a mapped range, from before the first event
    uint64_t address, size, stream;
    bool mapped;
};

struct Base {
    std::vector<Held> allocations;
    std::vector<Range> segments;
};

// By address. Millions of nodes come and go: they share a pool, where the library has pools (that
// of the page's reader, native/page_reader.cpp, has none).
#if __has_include(<memory_resource>)
using Pool = std::pmr::unsynchronized_pool_resource;
using AddressMap = std::pmr::map<uint64_t, uint32_t>;
#else
struct Pool {};
struct AddressMap : std::map<uint64_t, uint32_t> {
    explicit AddressMap(Pool*) {}
};
#endif

class Forward {
  public:
    Forward(const vl_device& device, const Base& base) : d_(device), base_(base) {}

    Lifetimes out;
    Base unexplained;  // what was freed although nothing had allocated it

    void run();
    bool complete() const { return summary(kOrphans) == 0; }

  private:
    const vl_device& d_;
    const Base& base_;
    Pool pool_;
    AddressMap live_{&pool_};         // address -> allocation
    AddressMap segments_{&pool_};     // address -> segment
    uint64_t now_[4] = {0, 0, 0, 0};  // requested, allocated, active, reserved
    int64_t hops_left_ = 0;           // from mapped range to mapped range

    int64_t& summary(int which) { return out.summary[static_cast<size_t>(which)]; }
    int64_t summary(int which) const { return out.summary[static_cast<size_t>(which)]; }

    void start();
    void finish();
    uint32_t add_allocation(int64_t born, const Held& held);
    uint32_t add_segment(int64_t born, const Range& range);
    void end_segment(AddressMap::iterator at, int64_t event);
    void allocate(int64_t event);
    void free_requested(int64_t event);
    void free_completed(int64_t event);
    void unmap(int64_t event);
    uint32_t segment_of(uint64_t address) const;
    uint64_t extent_end(uint32_t segment, uint64_t enough);
    uint64_t taken(uint64_t address, uint64_t requested, uint32_t segment,
                   AddressMap::iterator next);
    void note_peaks(int64_t event) {
        for (int i = 0; i < 4; ++i) {
            const auto now = static_cast<int64_t>(now_[i]);
            if (now > summary(kPeakRequested + i)) {
                summary(kPeakRequested + i) = now;
                summary(kPeakRequestedEvent + i) = event;
            }
        }
    }
};

uint32_t Forward::add_allocation(int64_t born, const Held& held) {
    const auto row = static_cast<uint32_t>(out.born.size());
    out.born.push_back(born);
    out.free_requested.push_back(held.pending ? kBefore : d_.events);
    out.died.push_back(d_.events);
    out.address.push_back(held.address);
    out.requested.push_back(held.requested);
    out.taken.push_back(held.taken);
    out.stream.push_back(held.stream);
    out.stack.push_back(held.stack);
    out.segment.push_back(segment_of(held.address));
    now_[0] += held.requested;
    if (!held.pending) now_[1] += held.taken;
    now_[2] += held.taken;
    return row;
}

uint32_t Forward::add_segment(int64_t born, const Range& range) {
    const auto row = static_cast<uint32_t>(out.segment_born.size());
    out.segment_born.push_back(born);
    out.segment_died.push_back(d_.events);
    out.segment_address.push_back(range.address);
    out.segment_size.push_back(range.size);
    out.segment_stream.push_back(range.stream);
    out.segment_mapped.push_back(range.mapped);
    const auto [at, fresh] = segments_.try_emplace(range.address, row);
    if (!fresh) {  // its end was not recorded: as for allocations
        ++summary(kOrphans);
        out.segment_died[at->second] = born;
        now_[3] -= out.segment_size[at->second];
        at->second = row;
    }
    now_[3] += range.size;
    return row;
}

void Forward::end_segment(AddressMap::iterator at, int64_t event) {
    out.segment_died[at->second] = event;
    now_[3] -= out.segment_size[at->second];
    segments_.erase(at);
}

uint32_t Forward::segment_of(uint64_t address) const {
    auto after = segments_.upper_bound(address);
    if (after == segments_.begin()) return kNone;
    const uint32_t row = std::prev(after)->second;
    return address - out.segment_address[row] < out.segment_size[row] ? row : kNone;
}

// Where the memory around a segment ends, or at least `enough`: mapped ranges that touch are one
// piece.
uint64_t Forward::extent_end(uint32_t segment, uint64_t enough) {
    uint64_t end = out.segment_address[segment] + out.segment_size[segment];
    if (!out.segment_mapped[segment]) return end;
    while (end < enough && hops_left_-- > 0) {
        const auto next = segments_.find(end);
        if (next == segments_.end() || !out.segment_mapped[next->second]) break;
        if (out.segment_stream[next->second] != out.segment_stream[segment]) break;
        const uint64_t further = end + out.segment_size[next->second];
        if (further <= end) break;
        end = further;
    }
    return end;
}

uint64_t Forward::taken(uint64_t address, uint64_t requested, uint32_t segment,
                        AddressMap::iterator next) {
    const uint64_t size = rounded(requested, d_.roundup_divisions);
    if (segment == kNone) return size;
    uint64_t enough = address + size + kMinBlock;
    if (next != live_.end()) enough = std::min(enough, next->first);
    uint64_t end = extent_end(segment, enough);
    if (next != live_.end()) end = std::min(end, next->first);
    if (end - address < size) {
        ++summary(kMissized);
        return size;
    }
    const uint64_t remainder = end - address - size;
    const bool fine = size <= kSmallRequest || out.segment_mapped[segment];
    const bool split =
        fine ? remainder >= kMinBlock : size < d_.max_split_size && remainder > kLargeRemainder;
    return split ? size : size + remainder;
}

void Forward::allocate(int64_t event) {
    const uint64_t address = d_.address[event];
    auto [at, fresh] = live_.try_emplace(address, kNone);
    if (!fresh) {  // its end was not recorded (skip_actions): it cannot outlive the next use of its
                   // address
        ++summary(kOrphans);
        const uint32_t old = at->second;
        now_[0] -= out.requested[old];
        if (out.free_requested[old] == d_.events) {
            out.free_requested[old] = event;
            now_[1] -= out.taken[old];
        }
        now_[2] -= out.taken[old];
        out.died[old] = event;
    }
    const uint64_t bytes = taken(address, d_.size[event], segment_of(address), std::next(at));
    at->second = add_allocation(
        event, {address, d_.size[event], bytes, d_.stream[event], d_.stack[event], false});
    out.allocation_of_event[static_cast<size_t>(event)] = static_cast<int32_t>(at->second);
}

void Forward::free_requested(int64_t event) {
    const auto at = live_.find(d_.address[event]);
    if (at == live_.end()) {
        ++summary(kOrphans);
        return;
    }
    const uint32_t row = at->second;
    out.allocation_of_event[static_cast<size_t>(event)] = static_cast<int32_t>(row);
    if (out.free_requested[row] != d_.events) return;
    out.free_requested[row] = event;
    now_[1] -= out.taken[row];
}

void Forward::free_completed(int64_t event) {
    const uint64_t address = d_.address[event];
    const auto at = live_.find(address);
    if (at == live_.end()) {
        ++summary(kOrphans);
        unexplained.allocations.push_back({address, d_.size[event],
                                           rounded(d_.size[event], d_.roundup_divisions),
                                           d_.stream[event], d_.stack[event], false});
        return;
    }
    const uint32_t row = at->second;
    out.allocation_of_event[static_cast<size_t>(event)] = static_cast<int32_t>(row);
    if (out.free_requested[row] == d_.events) {
        out.free_requested[row] = event;
        now_[1] -= out.taken[row];
    }
    out.died[row] = event;
    now_[0] -= out.requested[row];
    now_[2] -= out.taken[row];
    live_.erase(at);
}

// An unmapped range may cover parts of several mapped ones; what is left of those goes on as rows
// of their own.
void Forward::unmap(int64_t event) {
    const uint64_t from = d_.address[event], to = from + d_.size[event];
    uint64_t found = 0;
    auto at = segments_.upper_bound(from);
    if (at != segments_.begin() && segment_of(from) != kNone) --at;
    while (at != segments_.end() && at->first < to && out.segment_mapped[at->second]) {
        const uint32_t row = at->second;
        const uint64_t begin = at->first, end = begin + out.segment_size[row];
        const uint64_t stream = out.segment_stream[row];
        end_segment(at, event);
        if (end < begin) {  // no range reaches past the last address
            at = segments_.upper_bound(begin);
            continue;
        }
        if (begin < from) add_segment(event, {begin, from - begin, stream, true});
        if (end > to) add_segment(event, {to, end - to, stream, true});
        found += std::min(end, to) - std::max(begin, from);
        at = segments_.lower_bound(std::min(end, to));
    }
    if (found != to - from) {
        ++summary(kOrphans);
        unexplained.segments.push_back({from, to - from, d_.stream[event], true});
    }
}

void Forward::start() {
    out.summary.assign(kSummaryCount, 0);
    hops_left_ = 64 * (d_.events + 1024);  // real ones need a few an allocation
    for (int i = 0; i < 4; ++i) summary(kPeakRequestedEvent + i) = kBefore;
    out.allocation_of_event.assign(static_cast<size_t>(d_.events), -1);
    const auto births = static_cast<size_t>(std::count(d_.action, d_.action + d_.events, kAlloc));
    for (auto* column : {&out.born, &out.free_requested, &out.died}) column->reserve(births);
    for (auto* column : {&out.address, &out.requested, &out.taken, &out.stream})
        column->reserve(births);
    out.stack.reserve(births), out.segment.reserve(births);
    for (const Range& range : base_.segments) add_segment(kBefore, range);
    for (const Held& held : base_.allocations) {
        if (!live_.emplace(held.address, static_cast<uint32_t>(out.born.size())).second)
            ++summary(kOrphans);
        add_allocation(kBefore, held);
    }
    for (int i = 0; i < 4; ++i) summary(kBaseRequested + i) = static_cast<int64_t>(now_[i]);
    note_peaks(kBefore);
}

void Forward::run() {
    start();
    for (int64_t event = 0; event < d_.events; ++event) {
        switch (d_.action[event]) {
            case kAlloc: allocate(event); break;
            case kFreeRequested: free_requested(event); continue;
            case kFreeCompleted: free_completed(event); continue;
            case kSegmentAlloc:
            case kSegmentMap:
                add_segment(event, {d_.address[event], d_.size[event], d_.stream[event],
                                    d_.action[event] == kSegmentMap});
                break;
            case kSegmentFree: {
                const auto at = segments_.find(d_.address[event]);
                if (at != segments_.end()) {
                    end_segment(at, event);
                } else {
                    ++summary(kOrphans);
                    unexplained.segments.push_back(
                        {d_.address[event], d_.size[event], d_.stream[event], false});
                }
                continue;
            }
            case kSegmentUnmap: unmap(event); continue;
            default: continue;
        }
        note_peaks(event);  // only these two kinds of event can raise anything
    }
    if (d_.has_final_state) finish();
}

// Holds the end of the replayed events against the final state that the snapshot gives.
void Forward::finish() {
    size_t matched = 0;
    for (int64_t i = 0; i < d_.blocks; ++i) {
        const auto at = live_.find(d_.block_address[i]);
        if (at == live_.end()) {
            ++summary(kOrphans);
            continue;
        }
        ++matched;
        if (out.taken[at->second] != d_.block_size[i]) ++summary(kMissized);
    }
    summary(kOrphans) += static_cast<int64_t>(live_.size() - std::min(live_.size(), matched));
    uint64_t reserved = 0;
    for (int64_t i = 0; i < d_.segments; ++i) reserved += d_.segment_size[i];
    if (reserved != now_[3]) ++summary(kOrphans);
}

// Undoes every event, the last first, from the final state.
Base undo(const vl_device& d) {
    Base base;
    std::unordered_map<uint64_t, Held, Scatter> live;
    for (int64_t i = 0; i < d.blocks; ++i) {
        live[d.block_address[i]] = {d.block_address[i], d.block_requested[i],
                                    d.block_size[i],    d.block_stream[i],
                                    d.block_stack[i],   d.block_pending[i] != 0};
    }
    std::map<uint64_t, Range> ranges;
    for (int64_t i = 0; i < d.segments; ++i) {
        ranges[d.segment_address[i]] = {d.segment_address[i], d.segment_size[i],
                                        d.segment_stream[i], d.segment_expandable[i] != 0};
    }
    for (int64_t e = d.events - 1; e >= 0; --e) {
        const uint64_t address = d.address[e], size = d.size[e];
        switch (d.action[e]) {
            case kAlloc: live.erase(address); break;
            case kFreeRequested: {
                const auto at = live.find(address);
                if (at != live.end()) at->second.pending = false;
                break;
            }
            case kFreeCompleted:
                live[address] = {address,     size,       rounded(size, d.roundup_divisions),
                                 d.stream[e], d.stack[e], true};
                break;
            case kSegmentAlloc: ranges.erase(address); break;
            case kSegmentFree: ranges[address] = {address, size, d.stream[e], false}; break;
            case kSegmentUnmap: ranges[address] = {address, size, d.stream[e], true}; break;
            case kSegmentMap: {
                auto at = ranges.upper_bound(address);
                if (at != ranges.begin() &&
                    address - std::prev(at)->first < std::prev(at)->second.size)
                    --at;
                while (at != ranges.end() && at->first < address + size && at->second.mapped) {
                    const Range range = at->second;
                    const uint64_t end = range.address + range.size;
                    at = ranges.erase(at);
                    if (end < range.address) continue;  // no range reaches past the last address
                    if (range.address < address) {
                        ranges[range.address] = {range.address, address - range.address,
                                                 range.stream, true};
                    }
                    if (end > address + size) {
                        ranges[address + size] = {address + size, end - address - size,
                                                  range.stream, true};
                    }
                    at = ranges.lower_bound(std::min(end, address + size));
                }
                break;
            }
            default: break;
        }
    }
    for (const auto& [address, held] : live) base.allocations.push_back(held);
    for (const auto& [address, range] : ranges) base.segments.push_back(range);
    return base;
}

}  // namespace

Lifetimes lifetimes_of(const vl_device& device) {
    // Most recordings begin before the first allocation: then one pass from nothing explains every
    // event.
    Base base;
    {
        Forward from_nothing(device, base);
        from_nothing.run();
        if (from_nothing.complete()) return std::move(from_nothing.out);
        base = device.has_final_state ? undo(device) : std::move(from_nothing.unexplained);
    }
    std::sort(base.allocations.begin(), base.allocations.end(),
              [](const Held& a, const Held& b) { return a.address < b.address; });
    Forward from_base(device, base);
    from_base.run();
    return std::move(from_base.out);
}

bool find_column(const Lifetimes& l, std::string_view name, vl_column* out) {
    const auto is = [&](std::string_view column_name, const auto& column, int32_t type) {
        if (column_name != name) return false;
        *out = {column.data(), static_cast<int64_t>(column.size()), type};
        return true;
    };
    return is("allocations.born", l.born, VL_I64) ||
           is("allocations.free_requested", l.free_requested, VL_I64) ||
           is("allocations.died", l.died, VL_I64) || is("allocations.address", l.address, VL_U64) ||
           is("allocations.requested", l.requested, VL_U64) ||
           is("allocations.taken", l.taken, VL_U64) || is("allocations.stream", l.stream, VL_U64) ||
           is("allocations.stack", l.stack, VL_U32) ||
           is("allocations.segment", l.segment, VL_U32) ||
           is("segments.born", l.segment_born, VL_I64) ||
           is("segments.died", l.segment_died, VL_I64) ||
           is("segments.address", l.segment_address, VL_U64) ||
           is("segments.size", l.segment_size, VL_U64) ||
           is("segments.stream", l.segment_stream, VL_U64) ||
           is("segments.mapped", l.segment_mapped, VL_U8) ||
           is("allocation_of_event", l.allocation_of_event, VL_I32) ||
           is("summary", l.summary, VL_I64);
}

}  // namespace vl
