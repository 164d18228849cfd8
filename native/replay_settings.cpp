#include "replay_settings.h"

namespace vl::replay {
namespace {

int bit_width(uint64_t number) {
    int width = 0;
    for (; number != 0; number >>= 1) ++width;
    return width;
}

// AcceleratorAllocatorConfig::roundup_power2_divisions: the interval is chosen by the size as it
// was requested.
uint64_t divisions_for(uint64_t size, const Settings& settings) {
    const int index = bit_width(size) - 1 - 20;
    return settings.roundup_power2_divisions[index < 0 ? 0 : index > 15 ? 15 : index];
}

// DeviceCachingAllocator::roundup_power2_next_division
uint64_t roundup_power2_next_division(uint64_t size, uint64_t divisions) {
    if ((size & (size - 1)) == 0) return size;
    const uint64_t power2_floor = uint64_t{1} << (bit_width(size) - 1);
    const uint64_t step = power2_floor >> (bit_width(divisions) - 1);
    if (step == 0) return power2_floor << 1;
    return (size + step - 1) & ~(step - 1);
}

}  // namespace

uint64_t round_size(uint64_t size, const Settings& settings) {
    if (size < kMinBlockSize) return kMinBlockSize;
    const uint64_t divisions = divisions_for(size, settings);
    if (divisions > 1 && size > kMinBlockSize * divisions)
        return roundup_power2_next_division(size, divisions);
    return (size + kMinBlockSize - 1) / kMinBlockSize * kMinBlockSize;
}

uint64_t get_allocation_size(uint64_t size, const Settings& settings) {
    if (size <= kSmallSize) return kSmallBuffer;
    if (size < kMinLargeAlloc) return settings.large_segment_size;
    return (size + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
}

}  // namespace vl::replay
