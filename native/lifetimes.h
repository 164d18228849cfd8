// What became of every allocation and segment on one device.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "vramlens.h"

namespace vl {

// In an event's place: before the first recorded event.
constexpr int64_t kBefore = -1;

// Positions in Lifetimes::summary, as the Python side names them (trace/device.py). Bytes, events and counts.
enum Summary {
    kBaseRequested, kBaseAllocated, kBaseActive, kBaseReserved,    // held before the first event
    kPeakRequested, kPeakAllocated, kPeakActive, kPeakReserved,    // maxima over the run
    kPeakRequestedEvent, kPeakAllocatedEvent, kPeakActiveEvent, kPeakReservedEvent,  // the first event at them
    kOrphans,       // events about something that the state before them does not hold, or holds twice
    kMissized,      // allocations whose size the free space or the final state contradicts
    kSummaryCount
};

// "Never" is written as the number of events: alive after event t means born <= t < died.
struct Lifetimes {
    // One row an allocation: those from before the recording first (by address), then in order of birth.
    std::vector<int64_t> born, free_requested, died;
    std::vector<uint64_t> address, requested, taken, stream;
    std::vector<uint32_t> stack, segment;  // segment: its row below, kNone where unknown

    // One row a segment, or a mapped range of an expandable one.
    std::vector<int64_t> segment_born, segment_died;
    std::vector<uint64_t> segment_address, segment_size, segment_stream;
    std::vector<uint8_t> segment_mapped;

    std::vector<int32_t> allocation_of_event;  // row of the allocation that an event is about, -1: none
    std::vector<int64_t> summary;
};

Lifetimes lifetimes_of(const vl_device& device);
bool find_column(const Lifetimes& lifetimes, std::string_view name, vl_column* out);

}  // namespace vl
