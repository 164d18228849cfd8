// What a replay is told: the allocator's constants, its settings, and what differs between
// PyTorch's versions.
//
// Names are those of c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vl::replay {

constexpr uint64_t kMinBlockSize = 512;  // every block is a multiple of it
constexpr uint64_t kSmallSize = uint64_t{1}
                                << 20;  // rounded sizes up to this come from the small pool
constexpr uint64_t kSmallBuffer = uint64_t{2} << 20;  // a segment of the small pool
constexpr uint64_t kMinLargeAlloc = uint64_t{10}
                                    << 20;  // from here on a request gets a segment of its own size
constexpr uint64_t kRoundLarge = uint64_t{2} << 20;  // ... rounded up to this
constexpr uint64_t kUnlimited = UINT64_MAX;

// AcceleratorAllocatorConfig, and the limits of the device.
struct Settings {
    bool expandable_segments = false;
    uint64_t max_split_size = kUnlimited;
    uint64_t max_non_split_rounding_size = uint64_t{20} << 20;
    uint64_t large_segment_size = uint64_t{20} << 20;
    uint64_t roundup_power2_divisions[16] = {};  // for sizes from 1 MiB, 2 MiB, ... 32 GiB on
    double garbage_collection_threshold = 0;
    uint64_t allowed_maximum = kUnlimited;  // set_per_process_memory_fraction, in bytes
    uint64_t capacity = kUnlimited;         // what the driver can give this allocator
    uint64_t reject_above =
        kUnlimited;  // throw_on_cudamalloc_oom: reserved bytes beyond which it throws
    uint64_t reserve =
        uint64_t{1} << 42;  // address space of one expandable segment: 9/8 of the device's memory
};

// The order of the free blocks of one size and stream (BlockComparatorSize).
enum class TieOrder : uint8_t {
    kAddress = 0,         // up to 2.11
    kObjectCounter = 1,   // pull request 178362: a fresh number for every Block object
    kSegmentCounter = 2,  // pull request 183591: a number for every segment, inherited by its parts
};

// What differs between PyTorch's versions, as data (the Python side names the versions:
// replay/versions.py).
struct Profile {
    TieOrder tie_order = TieOrder::kAddress;
    bool scope_suppresses_release =
        true;  // an open pool scope: no process_events, no release of everything
};

// DeviceCachingAllocator::round_size
uint64_t round_size(uint64_t size, const Settings& settings);
// DeviceCachingAllocator::get_allocation_size
uint64_t get_allocation_size(uint64_t size, const Settings& settings);

}  // namespace vl::replay
