// Replays a recording under its own settings and holds every step against what was recorded.
//
// The driver's answers (addresses of new segments, and whether there was memory where no limit is
// known) are taken from the recording; all else must come out by itself. Events between two calls
// of the program are a group that ends with an allocation, a failure, a free or the recording's
// end. What the program did in a group is not recorded, only what came of it: where it holds
// releases, each thing that it may have done is tried on a copy of the state, and the first that
// leads to exactly what was recorded is taken.

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_set>

#include "replay.h"

namespace vl::replay {
namespace {

bool is_segment_event(uint8_t action) {
    return action == kSegmentAlloc || action == kSegmentFree || action == kSegmentMap ||
           action == kSegmentUnmap;
}
bool is_release(uint8_t action) {
    return action == kSegmentFree || action == kSegmentUnmap;
}

constexpr uint8_t kByEmptyCache = 1;
constexpr uint32_t kMostPools = 64;  // that a failed request is tried for
// Bounds what all trials together may cost, in blocks copied and events looked at. Recorded
// programs need 4 an event.
constexpr int64_t kTrialWorkAtLeast = 2'000'000, kTrialWorkAnEvent = 100,
                  kMostTrialWork = 100'000'000;
constexpr int64_t kMostSplits =
    8;  // ways tried to divide completions between a request's start and its retry

class Prover : public Surroundings {
  public:
    Prover(const vl_replay_input& input, const Settings& settings, const Profile& profile);
    Replay replay();

    bool admits(uint64_t alloc_size) override;
    bool cuda_malloc(uint64_t size, uint16_t stream, uint64_t& address) override;
    void cuda_free(uint64_t, uint64_t) override {}
    bool cu_mem_map(uint64_t address, uint64_t size) override;
    uint64_t reserve_addresses(uint64_t size) override;
    void event(Action action, uint64_t address, uint64_t size, uint16_t stream) override;
    void order_of_completion(std::vector<uint32_t>& blocks) override;

  private:
    struct Undo {
        uint32_t row, block;
    };
    struct Saved {
        Allocator allocator;
        size_t ops, undo;
        int64_t cursor, matched;
        uint64_t limit_low, limit_high;
    };

    const vl_replay_input& in_;
    Replay out_;
    Allocator allocator_;
    std::vector<uint32_t> block_of_row_, row_of_block_;
    std::vector<Undo> undo_;
    bool limit_known_;
    bool setting_up_ = false;

    // The group under way.
    int64_t cursor_ = 0, end_ = 0;  // recorded events that are still to come
    bool differs_ = false;          // in this attempt
    bool diverged_ = false;         // at some earlier event: nothing after it is proven
    int64_t furthest_ = -1;         // the event at which the best attempt of this group failed
    int32_t furthest_action_ = -1;
    uint64_t furthest_address_ = 0, furthest_size_ = 0;
    uint64_t invented_ = uint64_t{1} << 61;
    int64_t trial_work_left_ = 0;

    uint8_t action(int64_t event) const { return in_.action[event]; }
    uint16_t rank(uint64_t stream) const {
        const auto& s = out_.script.streams;
        return static_cast<uint16_t>(std::lower_bound(s.begin(), s.end(), stream) - s.begin());
    }
    int64_t group_end(int64_t from) const;
    void step(int64_t& at);
    void resolve(int64_t from, int64_t terminal);
    bool malloc_as_recorded(int64_t terminal);
    bool try_malloc(int64_t terminal, uint32_t pool, int64_t completions);
    bool try_release(int64_t terminal);
    void give_up(int64_t from, int64_t terminal);
    void complete_recorded(int64_t event, OpKind kind);
    void malloc_row(int64_t event);
    void mark_freeable(int64_t from, int64_t to);
    void set_block(uint32_t row, uint32_t block);
    void op(OpKind kind, int64_t event, uint32_t row, uint32_t pool = 0, uint64_t size = 0,
            uint16_t stream = 0, bool scratch = false) {
        out_.script.ops.push_back({kind, scratch, stream, pool, row, size, event});
    }
    Saved save() {
        const Proof& proof = out_.proof;
        trial_work_left_ -= allocator_.weight() + (end_ - cursor_);
        return {allocator_,      out_.script.ops.size(),       undo_.size(),
                cursor_,         proof.segment_events_matched, proof.limit_low,
                proof.limit_high};
    }
    void restore(const Saved& saved);
    void note_difference(int64_t event, int32_t simulated, uint64_t address, uint64_t size);
    void check_address(int64_t event, uint32_t row);
    void summarize();
};

Prover::Prover(const vl_replay_input& input, const Settings& settings, const Profile& profile)
    : in_(input),
      allocator_(settings, profile, static_cast<size_t>(input.pools)),
      limit_known_(settings.allowed_maximum != kUnlimited) {
    std::set<uint64_t> streams;
    const auto add = [&](const uint64_t* from, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            if (i == 0 || from[i] != from[i - 1]) streams.insert(from[i]);
        }
    };
    add(in_.stream, in_.events);
    add(in_.row_stream, in_.rows);
    add(in_.base_stream, in_.base_segments);
    out_.script.streams.assign(streams.begin(), streams.end());
    out_.script.pools = static_cast<size_t>(in_.pools);
    out_.script.rows = static_cast<size_t>(in_.rows);
    out_.script.ops.reserve(static_cast<size_t>(in_.events) * 3 / 4);
    out_.proof.taken.assign(static_cast<size_t>(in_.rows), 0);
    block_of_row_.assign(static_cast<size_t>(in_.rows), kNoBlock);
    allocator_.attach(this);
    allocator_.steps_left = most_steps(in_.events);
    trial_work_left_ = std::min(kMostTrialWork, kTrialWorkAtLeast + kTrialWorkAnEvent * in_.events);
}

// ---- the driver, as it was recorded
// ------------------------------------------------------------------------

bool Prover::admits(uint64_t alloc_size) {
    if (limit_known_) return true;
    if (diverged_) return in_.events == end_ || action(end_) != kOom;
    const bool admitted =
        cursor_ < in_.events && (action(cursor_) == kSegmentAlloc ||
                                 action(cursor_) == kSegmentMap || action(cursor_) == kAlloc);
    if (!admitted) {
        out_.proof.limit_high =
            std::min(out_.proof.limit_high, allocator_.total_allocated_memory + alloc_size);
    }
    return admitted;
}

bool Prover::cuda_malloc(uint64_t, uint16_t, uint64_t& address) {
    if (cursor_ < end_ && action(cursor_) == kSegmentAlloc) {
        address = in_.address[cursor_];
        return true;
    }
    if (!diverged_) return false;
    address = invented_;
    invented_ += uint64_t{1} << 44;
    return true;
}

bool Prover::cu_mem_map(uint64_t, uint64_t) {
    return setting_up_ || diverged_ || (cursor_ < end_ && action(cursor_) == kSegmentMap);
}

uint64_t Prover::reserve_addresses(uint64_t) {
    if (cursor_ < end_ && action(cursor_) == kSegmentMap) return in_.address[cursor_];
    invented_ += uint64_t{1} << 44;
    return invented_;
}

void Prover::event(Action what, uint64_t address, uint64_t size, uint16_t stream) {
    if (setting_up_) return;
    const int64_t last = end_ < in_.events && action(end_) == kOom ? end_ + 1 : end_;
    if (cursor_ < last && action(cursor_) == what && in_.size[cursor_] == size &&
        rank(in_.stream[cursor_]) == stream &&
        (diverged_ || what == kOom || in_.address[cursor_] == address)) {
        if (what == kFreeCompleted) {
            op(OpKind::kCompleteAtSync, cursor_, static_cast<uint32_t>(in_.allocation[cursor_]));
        } else {
            ++out_.proof.segment_events_matched;
        }
        ++cursor_;
        out_.proof.limit_low = std::max(out_.proof.limit_low, allocator_.total_allocated_memory);
    } else if (!differs_) {
        differs_ = true;
        if (cursor_ > furthest_) {
            furthest_ = cursor_;
            furthest_action_ = what;
            furthest_address_ = address;
            furthest_size_ = size;
        }
    }
}

void Prover::order_of_completion(std::vector<uint32_t>& blocks) {
    std::unordered_set<uint32_t> waiting(blocks.begin(), blocks.end());
    std::vector<uint32_t> order;
    for (int64_t e = cursor_; e < end_ && action(e) == kFreeCompleted; ++e) {
        const int32_t row = in_.allocation[e];
        const uint32_t block = row < 0 ? kNoBlock : block_of_row_[static_cast<size_t>(row)];
        if (waiting.erase(block) != 0) order.push_back(block);
    }
    for (const uint32_t block : blocks) {
        if (waiting.count(block) != 0) order.push_back(block);
    }
    blocks = order;
    for (const uint32_t block : blocks) set_block(row_of_block_[block], kNoBlock);
}

// ---- steps
// -------------------------------------------------------------------------------------------------

void Prover::set_block(uint32_t row, uint32_t block) {
    undo_.push_back({row, block_of_row_[row]});
    block_of_row_[row] = block;
    if (block == kNoBlock) return;
    if (row_of_block_.size() <= block) row_of_block_.resize(block + 1, kNoRow);
    row_of_block_[block] = row;
}

void Prover::restore(const Saved& saved) {
    const int64_t steps_left = allocator_.steps_left;  // what was tried stays counted
    allocator_ = saved.allocator;
    allocator_.steps_left = steps_left;
    out_.script.ops.resize(saved.ops);
    for (; undo_.size() > saved.undo; undo_.pop_back()) {
        const Undo& undo = undo_.back();
        block_of_row_[undo.row] = undo.block;
        if (undo.block != kNoBlock) row_of_block_[undo.block] = undo.row;
    }
    cursor_ = saved.cursor;
    out_.proof.segment_events_matched = saved.matched;
    out_.proof.limit_low = saved.limit_low;
    out_.proof.limit_high = saved.limit_high;
    differs_ = false;
}

// The first event from here on that one call of the program ends with; the number of events if
// there is none.
int64_t Prover::group_end(int64_t from) const {
    while (from < in_.events && (is_segment_event(action(from)) || action(from) == kFreeCompleted))
        ++from;
    return from;
}

void Prover::note_difference(int64_t event, int32_t simulated, uint64_t address, uint64_t size) {
    if (diverged_) return;
    diverged_ = true;
    out_.proof.first_difference = event;
    out_.proof.simulated_action = simulated;
    out_.proof.simulated_address = address;
    out_.proof.simulated_size = size;
}

void Prover::complete_recorded(int64_t event, OpKind kind) {
    const int32_t row = in_.allocation[event];
    if (row < 0) return;
    op(kind, event, static_cast<uint32_t>(row));
    const uint32_t block = block_of_row_[static_cast<size_t>(row)];
    if (block == kNoBlock) return;  // a synchronisation was first
    set_block(static_cast<uint32_t>(row), kNoBlock);
    if (allocator_.blocks[block].pending) {
        allocator_.complete(block);
    } else {
        allocator_.free(block);  // its free_requested was not recorded
    }
}

void Prover::check_address(int64_t event, uint32_t row) {
    const uint32_t block = block_of_row_[row];
    ++out_.proof.addresses;
    if (block == kNoBlock) return note_difference(event, kOom, 0, in_.size[event]);
    const Block& it = allocator_.blocks[block];
    out_.proof.taken[row] = it.size;
    if (it.size == in_.row_taken[row]) ++out_.proof.sizes_matched;
    if (it.address == in_.address[event]) {
        ++out_.proof.addresses_matched;
    } else {
        note_difference(event, kAlloc, it.address, it.requested_size);
    }
}

void Prover::malloc_row(int64_t event) {
    const auto row = static_cast<uint32_t>(in_.allocation[event]);
    const uint16_t stream = rank(in_.stream[event]);
    const uint32_t pool = in_.row_pool[row];
    op(OpKind::kMalloc, event, row, pool, in_.size[event], stream, in_.row_scratch[row] != 0);
    const uint32_t block = allocator_.malloc(in_.size[event], stream, pool, pool != 0);
    if (block != kNoBlock) set_block(row, block);
}

void Prover::mark_freeable(int64_t from, int64_t to) {
    for (int64_t e = from; e < to; ++e) {
        if (!is_release(action(e)) || in_.released_pool[e] == 0) continue;
        const uint32_t pool = in_.released_pool[e];
        if (allocator_.freeable[pool]) continue;
        allocator_.freeable[pool] = 1;
        op(OpKind::kPoolFreeable, e, kNoRow, pool);
    }
}

// One request, with `completions` of the events before it seen by process_events and the rest by
// its own retry.
bool Prover::try_malloc(int64_t terminal, uint32_t pool, int64_t completions) {
    for (int64_t i = 0; i < completions; ++i) complete_recorded(cursor_++, OpKind::kComplete);
    mark_freeable(cursor_, terminal);
    if (action(terminal) == kAlloc) {
        malloc_row(terminal);
        const uint32_t block = block_of_row_[static_cast<size_t>(in_.allocation[terminal])];
        if (differs_ || cursor_ != terminal) return false;
        if (block != kNoBlock && allocator_.blocks[block].address == in_.address[terminal])
            return true;
        if (terminal > furthest_ && block != kNoBlock) {
            furthest_ = terminal;
            furthest_action_ = kAlloc;
            furthest_address_ = allocator_.blocks[block].address;
            furthest_size_ = in_.size[terminal];
        }
        return false;
    }
    const uint16_t stream = rank(in_.stream[terminal]);
    const uint32_t block = allocator_.malloc(in_.size[terminal], stream, pool, pool != 0);
    op(OpKind::kFailed, terminal, kNoRow, pool, in_.size[terminal], stream);
    return !differs_ && block == kNoBlock && cursor_ == terminal + 1;
}

bool Prover::malloc_as_recorded(int64_t terminal) {
    int64_t completions = 0;
    while (action(cursor_ + completions) == kFreeCompleted) ++completions;
    bool releases = false;
    for (int64_t e = cursor_; e < terminal; ++e) {
        if (is_release(action(e))) {
            releases = true;
            if (in_.emptied[e] == kByEmptyCache) return false;
        }
    }
    std::vector<int64_t> divisions{completions};
    if (completions > 0) {
        const bool gc = allocator_.settings.garbage_collection_threshold > 0;
        // Completions right before a retry's releases are its own: a request that misses with more
        // free blocks misses with fewer. Garbage collection comes between the two.
        if (releases && !gc) {
            divisions = {0, completions};
        } else {
            divisions.push_back(0);
        }
        for (int64_t i = 1; i < completions && i < kMostSplits; ++i)
            divisions.push_back(completions - i);
    }
    const uint32_t pools = action(terminal) == kOom
                               ? static_cast<uint32_t>(std::min<int64_t>(in_.pools, kMostPools))
                               : 1;
    const bool only_way = divisions.size() == 1 && pools == 1 && !releases;
    std::optional<Saved> saved;
    if (!only_way) saved = save();
    for (uint32_t pool = 0; pool < pools; ++pool) {
        for (const int64_t division : divisions) {
            if (try_malloc(terminal, pool, division)) return true;
            if (!only_way) {
                restore(*saved);
                trial_work_left_ -= allocator_.weight();
            } else if (differs_ || cursor_ != terminal) {
                note_difference(std::max(furthest_, cursor_), furthest_action_, furthest_address_,
                                furthest_size_);
            }
        }
    }
    return only_way;  // there is nothing to go back to
}

// One release outside a request: empty_cache, or a pool's end.
bool Prover::try_release(int64_t terminal) {
    int64_t first = cursor_;
    while (first < terminal && !is_release(action(first))) ++first;
    if (first == terminal) return false;
    const int64_t from = cursor_;
    const Saved saved = save();
    const bool named = in_.emptied[first] == kByEmptyCache;
    std::vector<uint32_t> ways;  // a pool, or 0 for empty_cache
    if (in_.released_pool[first] != 0 && !named) ways.push_back(in_.released_pool[first]);
    ways.push_back(0);
    for (uint32_t pool = 1; !named && pool < std::min<int64_t>(in_.pools, kMostPools); ++pool) {
        if (pool != in_.released_pool[first]) ways.push_back(pool);
    }
    for (const uint32_t way : ways) {
        if (way == 0) {
            mark_freeable(from, terminal);
            op(OpKind::kEmptyCache, first, kNoRow);
            allocator_.empty_cache();
        } else {
            op(OpKind::kReleasePool, first, kNoRow, way);
            allocator_.release_pool(way);
        }
        if (!differs_ && cursor_ > first) return true;
        restore(saved);
        trial_work_left_ -= allocator_.weight();
    }
    return false;
}

// Nothing that the program can have done leads to what was recorded: the likeliest, and on.
void Prover::give_up(int64_t from, int64_t terminal) {
    if (furthest_ < 0) furthest_ = from;
    note_difference(furthest_, furthest_action_, furthest_address_, furthest_size_);
    bool emptied = false;
    for (int64_t e = from; e < terminal; ++e) {
        if (action(e) == kFreeCompleted) complete_recorded(e, OpKind::kComplete);
        emptied = emptied || (is_release(action(e)) && in_.emptied[e] == kByEmptyCache);
    }
    cursor_ = from;
    if (emptied) {
        op(OpKind::kEmptyCache, from, kNoRow);
        allocator_.empty_cache();
    }
    if (terminal == in_.events) return;
    if (action(terminal) == kAlloc) {
        malloc_row(terminal);
    } else if (action(terminal) == kOom) {
        const uint16_t stream = rank(in_.stream[terminal]);
        op(OpKind::kFailed, terminal, kNoRow, 0, in_.size[terminal], stream);
        const uint32_t block = allocator_.malloc(in_.size[terminal], stream, 0, false);
        if (block != kNoBlock) allocator_.free(block);
    }
}

void Prover::resolve(int64_t from, int64_t terminal) {
    cursor_ = from;
    end_ = terminal;
    differs_ = false;
    furthest_ = -1;
    const bool request =
        terminal < in_.events && (action(terminal) == kAlloc || action(terminal) == kOom);
    if (diverged_ || trial_work_left_ < 0) return give_up(from, terminal);
    for (;;) {
        if (request && malloc_as_recorded(terminal)) return;
        if (cursor_ == terminal) {
            if (request) give_up(terminal, terminal);
            return;
        }
        if (try_release(terminal)) continue;
        bool completions_only = !request;
        for (int64_t e = cursor_; e < terminal; ++e)
            completions_only = completions_only && action(e) == kFreeCompleted;
        if (!completions_only) return give_up(cursor_, terminal);
        while (cursor_ < terminal) complete_recorded(cursor_++, OpKind::kComplete);
        return;
    }
}

void Prover::step(int64_t& at) {
    switch (action(at)) {
        case kFreeRequested: {
            const int32_t row = in_.allocation[at];
            if (row < 0) break;
            const uint32_t block = block_of_row_[static_cast<size_t>(row)];
            const bool at_once = at + 1 < in_.events && action(at + 1) == kFreeCompleted &&
                                 in_.address[at + 1] == in_.address[at];
            op(at_once ? OpKind::kFree : OpKind::kFreeLater, at, static_cast<uint32_t>(row));
            const bool pending = block != kNoBlock && allocator_.blocks[block].pending;
            if (block != kNoBlock && at_once) {
                if (pending) {
                    allocator_.complete(block);
                } else {
                    allocator_.free(block);
                }
                block_of_row_[static_cast<size_t>(row)] = kNoBlock;
            } else if (block != kNoBlock && !pending) {
                allocator_.free_later(block);
            }
            at += at_once ? 2 : 1;
            return;
        }
        case kAlloc:
        case kOom:
        case kFreeCompleted:
        case kSegmentAlloc:
        case kSegmentFree:
        case kSegmentMap:
        case kSegmentUnmap: {
            const int64_t terminal = group_end(at);
            if (terminal == at && action(at) == kAlloc) {
                cursor_ = end_ = at;
                differs_ = false;
                furthest_ = -1;
                malloc_row(at);
                if (differs_)
                    note_difference(furthest_, furthest_action_, furthest_address_, furthest_size_);
            } else {
                resolve(at, terminal);
            }
            undo_.clear();
            at = terminal;
            if (at == in_.events) return;
            if (action(at) == kAlloc) check_address(at, static_cast<uint32_t>(in_.allocation[at]));
            if (action(at) == kOom) {
                ++out_.proof.failed_requests;
                if (out_.proof.first_failure < 0) out_.proof.first_failure = at;
            }
            if (action(at) != kFreeRequested) ++at;
            return;
        }
        default: break;
    }
    ++at;
}

Replay Prover::replay() {
    for (int64_t i = 0; i < in_.base_segments; ++i) {
        out_.script.base_segments.push_back(
            {in_.base_address[i], in_.base_size[i], in_.base_pool[i], rank(in_.base_stream[i]),
             in_.base_mapped[i] != 0, in_.base_small[i] != 0, in_.base_reservation[i]});
    }
    for (int64_t row = 0; row < in_.rows && in_.row_born[row] < 0; ++row) {
        out_.script.base_blocks.push_back({static_cast<uint32_t>(row), in_.row_address[row],
                                           in_.row_taken[row], in_.row_requested[row],
                                           in_.row_pending[row] != 0});
        out_.proof.taken[static_cast<size_t>(row)] = in_.row_taken[row];
    }
    setting_up_ = true;
    place_base(allocator_, out_.script, block_of_row_);
    row_of_block_.assign(allocator_.blocks.size(), kNoRow);
    for (uint32_t row = 0; row < block_of_row_.size(); ++row) {
        if (block_of_row_[row] != kNoBlock) row_of_block_[block_of_row_[row]] = row;
    }
    setting_up_ = false;
    out_.proof.limit_low = allocator_.total_allocated_memory;
    for (int64_t e = 0; e < in_.events; ++e) {
        out_.proof.segment_events += is_segment_event(action(e)) || action(e) == kOom;
    }
    for (int64_t at = 0; at < in_.events;) step(at);
    summarize();
    return std::move(out_);
}

void Prover::summarize() {
    const Proof& p = out_.proof;
    const Stats& s = allocator_.stats;
    out_.summary.assign(kSummaryCount, 0);
    const auto set = [&](Summary which, auto value) {
        out_.summary[static_cast<size_t>(which)] = static_cast<int64_t>(value);
    };
    set(kSegmentEvents, p.segment_events), set(kSegmentEventsMatched, p.segment_events_matched);
    set(kAddresses, p.addresses), set(kAddressesMatched, p.addresses_matched),
        set(kSizesMatched, p.sizes_matched);
    set(kFirstDifference, p.first_difference), set(kSimulatedAction, p.simulated_action);
    set(kSimulatedAddress, p.simulated_address), set(kSimulatedSize, p.simulated_size);
    set(kLimitLow, p.limit_low), set(kLimitHigh, p.limit_high);
    set(kFailedRequests, p.failed_requests), set(kFirstFailure, p.first_failure);
    set(kPeakRequested, s.peak[kRequested]), set(kPeakAllocated, s.peak[kAllocated]);
    set(kPeakActive, s.peak[kActive]), set(kPeakReserved, s.peak[kReserved]);
    set(kPeakInactiveSplit, s.peak[kInactiveSplit]), set(kRetries, s.num_alloc_retries),
        set(kOoms, s.num_ooms);
    set(kDeviceAllocs, s.num_device_alloc), set(kDeviceFrees, s.num_device_free);
    set(kAllocations, s.allocations), set(kRefusals, s.refusals), set(kOps, out_.script.ops.size());
}

}  // namespace

void place_base(Allocator& allocator, const Script& script, std::vector<uint32_t>& block_of_row) {
    std::map<uint64_t, uint32_t> free_at;  // free blocks by address
    std::map<uint64_t, uint32_t> rest_of;  // by reservation: its last, unmapped block
    for (const BaseSegment& segment : script.base_segments) {
        if (!segment.mapped) {
            free_at[segment.address] = allocator.place_segment(
                segment.address, segment.size, segment.stream, segment.pool, segment.small);
            continue;
        }
        // A range that cannot lie where it should (another expandable segment's) gets a reservation
        // of its own.
        const auto has_room = [&](uint32_t block) {
            const Block& it = allocator.blocks[block];
            return segment.address >= it.address &&
                   segment.address - it.address + segment.size <= it.size;
        };
        auto rest = rest_of.find(segment.reservation);
        if (rest == rest_of.end() || rest->second == kNoBlock || !has_room(rest->second)) {
            const uint64_t handle =
                segment.small ? kSmallBuffer : allocator.settings.large_segment_size;
            const uint64_t size =
                (std::max(allocator.settings.reserve, segment.size) + handle - 1) / handle * handle;
            const uint64_t from = rest == rest_of.end() ? segment.reservation : segment.address;
            rest = rest_of.emplace(from, kNoBlock).first;
            if (rest->second != kNoBlock) continue;  // listed twice
            rest->second = allocator.place_reservation(from, size, segment.stream, segment.pool,
                                                       segment.small);
            if (!has_room(rest->second)) continue;
        }
        const uint32_t mapped = allocator.place_mapped(rest->second, segment.address, segment.size);
        rest->second = allocator.blocks[mapped].next;
        free_at[allocator.blocks[mapped].address] = mapped;
    }
    for (const BaseBlock& base : script.base_blocks) {
        auto at = free_at.upper_bound(base.address);
        if (at == free_at.begin()) continue;
        --at;
        const uint32_t free_block = at->second;
        const Block before = allocator.blocks[free_block];
        if (!allocator.allocatable(free_block) ||
            base.address + base.taken > before.address + before.size)
            continue;
        const uint32_t block =
            allocator.place_block(free_block, base.address, base.taken, base.requested);
        free_at.erase(at);
        for (const uint32_t part : {allocator.blocks[block].prev, allocator.blocks[block].next}) {
            if (!allocator.allocatable(part) || !allocator.blocks[part].mapped) continue;
            free_at[allocator.blocks[part].address] = part;
        }
        block_of_row[base.row] = block;
        if (base.pending) allocator.free_later(block);
    }
    allocator.stats.num_device_alloc = 0;
    allocator.stats.current[kInactiveSplit] = allocator.stats.peak[kInactiveSplit] = 0;
}

Replay prove(const vl_replay_input& input) {
    Prover prover(input, settings_of(input.settings), profile_of(input.settings));
    return prover.replay();
}

bool find_column(const Replay& replay, std::string_view name, vl_column* out) {
    if (name == "taken") {
        *out = {replay.proof.taken.data(), static_cast<int64_t>(replay.proof.taken.size()), VL_U64};
    } else if (name == "summary") {
        *out = {replay.summary.data(), static_cast<int64_t>(replay.summary.size()), VL_I64};
    } else {
        return false;
    }
    return true;
}

}  // namespace vl::replay
