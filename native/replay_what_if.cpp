// Runs a recording's requests under other settings.

#include <algorithm>
#include <functional>
#include <queue>

#include "replay.h"

namespace vl::replay {
namespace {

class Simulation : public Surroundings {
  public:
    Simulation(const Script& script, const WhatIf& what_if, Curve* curve)
        : script_(script),
          completion_(what_if.completion),
          allocator_(what_if.settings, what_if.profile, script.pools),
          addresses_(make_address_source(what_if.addresses, what_if.seed)),
          block_of_row_(script.rows, kNoBlock) {
        allocator_.attach(this);
        allocator_.steps_left = most_steps(static_cast<int64_t>(script.ops.size()));
        place_base(allocator_, script, block_of_row_);
        row_of_block_.assign(allocator_.blocks.size(), kNoRow);
        for (uint32_t row = 0; row < block_of_row_.size(); ++row) note_row(row);
        curve_ = curve;
        if (curve_ != nullptr) curve_->note(now_, allocator_.stats.current[kReserved]);
    }
    Outcome run();

    bool admits(uint64_t) override { return true; }
    bool cuda_malloc(uint64_t size, uint16_t, uint64_t& address) override {
        address = addresses_->take(size);
        return true;
    }
    void cuda_free(uint64_t address, uint64_t size) override {
        addresses_->give_back(address, size);
    }
    bool cu_mem_map(uint64_t, uint64_t) override { return true; }
    uint64_t reserve_addresses(uint64_t size) override {
        reserved_ += (size >> 44 << 44) + (uint64_t{1} << 44);
        return reserved_;
    }
    void event(Action action, uint64_t address, uint64_t size, uint16_t stream) override {
        if (curve_ == nullptr) return;
        curve_->note(now_, allocator_.stats.current[kReserved]);
        curve_->log(now_, action, address, size, script_.streams[stream]);
    }
    void order_of_completion(std::vector<uint32_t>& blocks) override {
        for (const uint32_t block : blocks) block_of_row_[row_of_block_[block]] = kNoBlock;
    }

  private:
    const Script& script_;
    Completion completion_;
    Allocator allocator_;
    std::unique_ptr<AddressSource> addresses_;
    std::vector<uint32_t> block_of_row_, row_of_block_;
    uint64_t reserved_ = uint64_t{1} << 63;
    std::vector<uint32_t> at_once_;  // to be completed at the next request
    std::priority_queue<std::pair<int64_t, uint32_t>, std::vector<std::pair<int64_t, uint32_t>>,
                        std::greater<>>
        late_;
    std::vector<int64_t> given_up_;  // by row: the event at which it was freed
    Curve* curve_ = nullptr;
    int64_t now_ = -1;  // the event under way

    void log_block(Action action, uint32_t number) {
        if (curve_ == nullptr) return;
        const Block& block = allocator_.blocks[number];
        curve_->log(now_, action, block.address, block.requested_size,
                    script_.streams[block.stream]);
    }
    void note_row(uint32_t row) {
        const uint32_t block = block_of_row_[row];
        if (block == kNoBlock) return;
        if (row_of_block_.size() <= block) row_of_block_.resize(block + 1, kNoRow);
        row_of_block_[block] = row;
    }
    void complete(uint32_t row) {
        const uint32_t block = row == kNoRow ? kNoBlock : block_of_row_[row];
        if (block == kNoBlock) return;
        block_of_row_[row] = kNoBlock;
        log_block(kFreeCompleted, block);
        if (allocator_.blocks[block].pending) {
            allocator_.complete(block);
        } else {
            allocator_.free(block);
        }
    }
    // process_events
    void complete_due(int64_t event) {
        for (const uint32_t row : at_once_) complete(row);
        at_once_.clear();
        for (; !late_.empty() && late_.top().first <= event; late_.pop())
            complete(late_.top().second);
    }
    void free_later(const Op& op) {
        const uint32_t block = block_of_row_[op.row];
        if (block == kNoBlock || allocator_.blocks[block].pending) return;
        log_block(kFreeRequested, block);
        allocator_.free_later(block);
        if (completion_ == Completion::kAtOnce) at_once_.push_back(op.row);
        if (completion_ == Completion::kTwiceAsLate) {
            if (given_up_.empty()) given_up_.assign(script_.rows, -1);
            given_up_[op.row] = op.event;
        }
    }
    void completed(const Op& op) {
        if (completion_ == Completion::kTwiceAsLate && !given_up_.empty() && op.row != kNoRow &&
            given_up_[op.row] >= 0) {
            late_.emplace(2 * op.event - given_up_[op.row], op.row);
        } else {
            complete(op.row);
        }
    }
};

Outcome Simulation::run() {
    Outcome out;
    const auto failed = [&](const Op& op) {
        ++out.failures;
        if (out.first_failure >= 0) return;
        out.first_failure = op.event;
        out.failed_size = op.size;
    };
    for (const Op& op : script_.ops) {
        now_ = op.event;
        switch (op.kind) {
            case OpKind::kMalloc: {
                if (completion_ != Completion::kRecorded) complete_due(op.event);
                const uint32_t block = allocator_.malloc(op.size, op.stream, op.pool, op.pool != 0);
                if (block != kNoBlock) {
                    block_of_row_[op.row] = block;
                    note_row(op.row);
                    log_block(kAlloc, block);
                    break;
                }
                failed(op);
                ++out.new_failures;
                if (op.scratch) break;
                out.died_at = op.event;
                out.failed_size = op.size;
                out.stats = allocator_.stats;
                return out;
            }
            case OpKind::kFailed: {
                if (completion_ != Completion::kRecorded) complete_due(op.event);
                const uint32_t block = allocator_.malloc(op.size, op.stream, op.pool, op.pool != 0);
                if (block == kNoBlock) {
                    failed(op);
                    break;
                }
                if (out.served_failures++ == 0) out.first_served = op.event;
                allocator_.free(block);
                break;
            }
            case OpKind::kFree: {
                const uint32_t block = block_of_row_[op.row];
                if (block != kNoBlock && !allocator_.blocks[block].pending)
                    log_block(kFreeRequested, block);
                complete(op.row);
                break;
            }
            case OpKind::kFreeLater: free_later(op); break;
            case OpKind::kComplete:
            case OpKind::kCompleteAtSync: completed(op); break;
            case OpKind::kEmptyCache: allocator_.empty_cache(); break;
            case OpKind::kReleasePool: allocator_.release_pool(op.pool); break;
            case OpKind::kPoolFreeable: allocator_.freeable[op.pool] = 1; break;
        }
    }
    out.stats = allocator_.stats;
    return out;
}

}  // namespace

void Curve::note(int64_t event, int64_t reserved) {
    if (!event_.empty())
        event = std::max(event, event_.back());  // what a request completes is listed after it
    if (event_.empty() || event_.back() != event) {
        event_.push_back(event);
        reserved_.push_back(reserved);
        return;
    }
    const size_t points = event_.size();
    if (points > 1 && event_[points - 2] == event) {
        event_.pop_back();
        reserved_.pop_back();
    }
    reserved_.back() = std::max(reserved_.back(), reserved);
    if (reserved == reserved_.back()) return;
    event_.push_back(event);
    reserved_.push_back(reserved);
}

void Curve::log(int64_t event, Action action, uint64_t address, uint64_t size, uint64_t stream) {
    if (!has_log_) return;
    log_event_.push_back(event);
    log_action_.push_back(action);
    log_address_.push_back(address);
    log_size_.push_back(size);
    log_stream_.push_back(stream);
}

bool Curve::find_column(std::string_view name, vl_column* out) const {
    const int64_t logged = static_cast<int64_t>(log_event_.size());
    if (name == "log_event") return *out = {log_event_.data(), logged, VL_I64}, true;
    if (name == "log_action") return *out = {log_action_.data(), logged, VL_U8}, true;
    if (name == "log_address") return *out = {log_address_.data(), logged, VL_U64}, true;
    if (name == "log_size") return *out = {log_size_.data(), logged, VL_U64}, true;
    if (name == "log_stream") return *out = {log_stream_.data(), logged, VL_U64}, true;
    if (name != "event" && name != "reserved") return false;
    const std::vector<int64_t>& column = name == "event" ? event_ : reserved_;
    *out = {column.data(), static_cast<int64_t>(column.size()), VL_I64};
    return true;
}

Outcome run(const Script& script, const WhatIf& what_if, Curve* curve) {
    return Simulation(script, what_if, curve).run();
}

Settings settings_of(const vl_replay_settings& from) {
    Settings to;
    to.expandable_segments = from.expandable_segments != 0;
    to.max_split_size = from.max_split_size;
    to.max_non_split_rounding_size = from.max_non_split_rounding_size;
    to.large_segment_size = from.large_segment_size;
    std::copy(from.roundup_power2_divisions, from.roundup_power2_divisions + 16,
              to.roundup_power2_divisions);
    to.garbage_collection_threshold = from.garbage_collection_threshold;
    to.allowed_maximum = from.allowed_maximum;
    to.capacity = from.capacity;
    to.reject_above = from.reject_above;
    to.reserve = from.reserve;
    return to;
}

Profile profile_of(const vl_replay_settings& from) {
    return {static_cast<TieOrder>(from.tie_order), from.scope_suppresses_release != 0};
}

vl_outcome outcome_of(const Replay& replay, const vl_what_if& what_if, Curve* curve) {
    const Outcome found = run(replay.script,
                              {settings_of(what_if.settings), profile_of(what_if.settings),
                               static_cast<AddressOrder>(what_if.addresses), what_if.seed,
                               static_cast<Completion>(what_if.completion)},
                              curve);
    const Stats& stats = found.stats;
    return {stats.peak[kRequested],  stats.peak[kAllocated],
            stats.peak[kActive],     stats.peak[kReserved],
            stats.num_alloc_retries, stats.num_device_alloc,
            stats.num_device_free,   found.failures,
            found.new_failures,      found.served_failures,
            found.first_failure,     found.first_served,
            found.died_at,           stats.ties,
            found.failed_size};
}

}  // namespace vl::replay
