// Replaying a recording: the requests that it holds, the proof that they lead to what was recorded,
// and what-if.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "replay_addresses.h"
#include "replay_allocator.h"
#include "vramlens.h"

namespace vl::replay {

constexpr uint32_t kNoRow = UINT32_MAX;

// Steps of walks over blocks that one run of so many events may take. Recorded programs need 2 an
// event at most.
inline int64_t most_steps(int64_t events) {
    return 10'000'000 + 500 * events;
}

enum class OpKind : uint8_t {
    kMalloc,          // row: an allocation
    kFailed,          // size: a request that failed when it was recorded
    kFree,            // row
    kFreeLater,       // row: a stream may still use it
    kComplete,        // row: no stream does any more, seen by the next request
    kCompleteAtSync,  // row: the same, seen only when something waited for all streams
    kEmptyCache,
    kReleasePool,   // pool: its MemPool was destroyed
    kPoolFreeable,  // pool: its graphs are gone, so that the next release returns its memory
};

// One thing that the program did to the allocator.
struct Op {
    OpKind kind;
    bool scratch;     // freed at once: a workspace, whose failure its user may have caught
    uint16_t stream;  // its rank
    uint32_t pool, row;
    uint64_t size;  // requested; of a failed request: rounded
    int64_t event;
};

// Memory from before the first event.
struct BaseSegment {
    uint64_t address, size;
    uint32_t pool;
    uint16_t stream;
    bool mapped, small;
    uint64_t reservation;  // of a mapped range: where its expandable segment begins
};
struct BaseBlock {
    uint32_t row;
    uint64_t address, taken, requested;
    bool pending;
};

struct Script {
    std::vector<Op> ops;
    std::vector<BaseSegment> base_segments;
    std::vector<BaseBlock> base_blocks;
    std::vector<uint64_t> streams;  // pointers by rank
    size_t pools = 1, rows = 0;
};

// What the recorded settings, replayed, gave.
struct Proof {
    int64_t segment_events = 0, segment_events_matched = 0;
    int64_t addresses = 0, addresses_matched = 0, sizes_matched = 0;
    int64_t first_difference = -1;  // event; -1: none
    int32_t simulated_action = -1;  // there: an Action, -1: nothing
    uint64_t simulated_address = 0, simulated_size = 0;
    uint64_t limit_low = 0, limit_high = kUnlimited;  // where an unknown limit lies: [low, high)
    int64_t failed_requests = 0, first_failure = -1;
    std::vector<uint64_t> taken;  // by row: bytes
};

// What other settings would have given.
struct Outcome {
    Stats stats;
    int64_t failures = 0;        // requests that failed
    int64_t first_failure = -1;  // its event
    int64_t new_failures = 0;    // of them: requests that were served when they were recorded
    int64_t died_at = -1;  // the first such request that is no workspace; the rest was not replayed
    int64_t served_failures =
        0;  // requests that failed when they were recorded, and are served now
    int64_t first_served = -1;
    uint64_t failed_size = 0;  // requested bytes of the one at died_at, else of the first failure
};

// Reserved bytes over a run's events, and on request all that the allocator did.
class Curve {
  public:
    explicit Curve(bool has_log = false) : has_log_(has_log) {}
    // What is reserved now, while an event is under way.
    void note(int64_t event, int64_t reserved);
    // What the allocator does during an event, as PyTorch's own trace would show it.
    void log(int64_t event, Action action, uint64_t address, uint64_t size, uint64_t stream);
    bool find_column(std::string_view name, vl_column* out) const;

  private:
    bool has_log_;
    std::vector<int64_t> log_event_;
    std::vector<uint8_t> log_action_;
    std::vector<uint64_t> log_address_, log_size_, log_stream_;
    // Right after an event, by event; before it the most within that event where that is more.
    std::vector<int64_t> event_, reserved_;
};

enum class Completion : int32_t { kRecorded = 0, kAtOnce = 1, kTwiceAsLate = 2 };

struct WhatIf {
    Settings settings;
    Profile profile;
    AddressOrder addresses = AddressOrder::kDriver;
    uint64_t seed = 0;
    Completion completion = Completion::kRecorded;
};

// Positions in Replay::summary, and the names by which layout.cpp hands them out.
// clang-format off
#define VL_REPLAY_SUMMARY(X) \
    X(kSegmentEvents, "segment_events") \
    X(kSegmentEventsMatched, "segment_events_matched") \
    X(kAddresses, "addresses") \
    X(kAddressesMatched, "addresses_matched") \
    X(kSizesMatched, "sizes_matched") \
    X(kFirstDifference, "first_difference") \
    X(kSimulatedAction, "simulated_action") \
    X(kSimulatedAddress, "simulated_address") \
    X(kSimulatedSize, "simulated_size") \
    X(kLimitLow, "limit_low") \
    X(kLimitHigh, "limit_high") \
    X(kFailedRequests, "failed_requests") \
    X(kFirstFailure, "first_failure") \
    X(kPeakRequested, "peak_requested") \
    X(kPeakAllocated, "peak_allocated") \
    X(kPeakActive, "peak_active") \
    X(kPeakReserved, "peak_reserved") \
    X(kPeakInactiveSplit, "peak_inactive_split") \
    X(kRetries, "retries") \
    X(kOoms, "ooms") \
    X(kDeviceAllocs, "device_allocs") \
    X(kDeviceFrees, "device_frees") \
    X(kAllocations, "allocations") \
    X(kRefusals, "refusals") \
    X(kOps, "ops")
// clang-format on
#define VL_ENUMERATOR(enumerator, name) enumerator,
#define VL_NAME(enumerator, name) name,
enum Summary { VL_REPLAY_SUMMARY(VL_ENUMERATOR) kSummaryCount };
constexpr std::string_view kSummaryNames[] = {VL_REPLAY_SUMMARY(VL_NAME)};
#undef VL_ENUMERATOR
#undef VL_NAME

struct Replay {
    Script script;
    Proof proof;
    std::vector<int64_t> summary;
};

Replay prove(const vl_replay_input& input);
Outcome run(const Script& script, const WhatIf& what_if,
            Curve* curve);  // curve: null where none is wanted
vl_outcome outcome_of(const Replay& replay, const vl_what_if& what_if, Curve* curve);
Settings settings_of(const vl_replay_settings& settings);
Profile profile_of(const vl_replay_settings& settings);
// Puts what was there before the first event in its place.
void place_base(Allocator& allocator, const Script& script, std::vector<uint32_t>& block_of_row);

bool find_column(const Replay& replay, std::string_view name, vl_column* out);

}  // namespace vl::replay
