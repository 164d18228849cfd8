// What became of every allocation and segment on one device.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "vramlens.h"

namespace vl {

// In an event's place: before the first recorded event.
constexpr int64_t kBefore = -1;

// Positions in Lifetimes::summary, and the names by which layout.cpp hands them out: bytes held
// before the first event, maxima over the run, the first events at them; events about something
// that the state before them does not hold, or holds twice; allocations whose size the free space
// or the final state contradicts.
// clang-format off
#define VL_LIFETIMES_SUMMARY(X) \
    X(kBaseRequested, "base_requested") \
    X(kBaseAllocated, "base_allocated") \
    X(kBaseActive, "base_active") \
    X(kBaseReserved, "base_reserved") \
    X(kPeakRequested, "peak_requested") \
    X(kPeakAllocated, "peak_allocated") \
    X(kPeakActive, "peak_active") \
    X(kPeakReserved, "peak_reserved") \
    X(kPeakRequestedEvent, "peak_requested_event") \
    X(kPeakAllocatedEvent, "peak_allocated_event") \
    X(kPeakActiveEvent, "peak_active_event") \
    X(kPeakReservedEvent, "peak_reserved_event") \
    X(kOrphans, "orphans") \
    X(kMissized, "missized")
// clang-format on
#define VL_ENUMERATOR(enumerator, name) enumerator,
#define VL_NAME(enumerator, name) name,
enum Summary { VL_LIFETIMES_SUMMARY(VL_ENUMERATOR) kSummaryCount };
constexpr std::string_view kSummaryNames[] = {VL_LIFETIMES_SUMMARY(VL_NAME)};
#undef VL_ENUMERATOR
#undef VL_NAME

// "Never" is written as the number of events: alive after event t means born <= t < died.
struct Lifetimes {
    // One row an allocation: those from before the recording first (by address), then in order of
    // birth.
    std::vector<int64_t> born, free_requested, died;
    std::vector<uint64_t> address, requested, taken, stream;
    std::vector<uint32_t> stack, segment;  // segment: its row below, kNone where unknown

    // One row a segment, or a mapped range of an expandable one.
    std::vector<int64_t> segment_born, segment_died;
    std::vector<uint64_t> segment_address, segment_size, segment_stream;
    std::vector<uint8_t> segment_mapped;

    std::vector<int32_t>
        allocation_of_event;  // row of the allocation that an event is about, -1: none
    std::vector<int64_t> summary;
};

Lifetimes lifetimes_of(const vl_device& device);
bool find_column(const Lifetimes& lifetimes, std::string_view name, vl_column* out);

}  // namespace vl
