#include "replay_input.h"

#include <set>

#include "replay_free_blocks.h"
#include "replay_settings.h"
#include "snapshot.h"

namespace vl::replay {
namespace {

// Free blocks are ordered by 48 bits of size (FreeKey); sums of a million of these stay below 63
// bits.
constexpr uint64_t kLargestSize = uint64_t{1} << 43;
constexpr uint64_t kHighestAddress = uint64_t{1} << 63;
constexpr uint64_t kLargestReserve = uint64_t{1} << 46;
constexpr int64_t kMostPools = 1 << 16;
constexpr size_t kMostStreams = UINT16_MAX;

class Streams {
  public:
    bool add(const uint64_t* from, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            if ((i == 0 || from[i] != from[i - 1]) && found_.insert(from[i]).second &&
                found_.size() > kMostStreams) {
                return false;
            }
        }
        return true;
    }

  private:
    std::set<uint64_t> found_;
};

bool lies_on_a_device(uint64_t address, uint64_t size) {
    return size <= kLargestSize && address < kHighestAddress && address + size <= kHighestAddress;
}

bool events_are_sound(const vl_replay_input& in) {
    for (int64_t e = 0; e < in.events; ++e) {
        if (!lies_on_a_device(in.address[e], in.size[e])) return false;
        if (in.allocation[e] < -1 || in.allocation[e] >= in.rows || in.released_pool[e] >= in.pools)
            return false;
        if (in.action[e] == kAlloc && (in.allocation[e] < 0 || in.row_born[in.allocation[e]] != e))
            return false;
    }
    return true;
}

bool rows_are_sound(const vl_replay_input& in) {
    for (int64_t row = 0; row < in.rows; ++row) {
        if (!lies_on_a_device(in.row_address[row], in.row_taken[row])) return false;
        if (in.row_requested[row] > kLargestSize || in.row_pool[row] >= in.pools) return false;
    }
    return true;
}

bool base_is_sound(const vl_replay_input& in) {
    for (int64_t i = 0; i < in.base_segments; ++i) {
        if (!lies_on_a_device(in.base_address[i], in.base_size[i]) || in.base_size[i] == 0)
            return false;
        if (in.base_pool[i] >= in.pools || in.base_reservation[i] > in.base_address[i])
            return false;
    }
    return true;
}

}  // namespace

bool is_sound(const vl_replay_settings& settings) {
    if (settings.large_segment_size == 0 || settings.large_segment_size > kLargestSize)
        return false;
    if (settings.reserve == 0 || settings.reserve > kLargestReserve) return false;
    if (settings.tie_order < 0 ||
        settings.tie_order > static_cast<int32_t>(TieOrder::kSegmentCounter))
        return false;
    return settings.garbage_collection_threshold >= 0 && settings.garbage_collection_threshold < 1;
}

bool is_sound(const vl_replay_input& in) {
    if (in.events < 0 || in.rows < 0 || in.base_segments < 0 || in.pools < 1 ||
        in.pools > kMostPools)
        return false;
    if (in.rows >= INT32_MAX || in.base_segments >= INT32_MAX) return false;
    Streams streams;
    return is_sound(in.settings) && events_are_sound(in) && rows_are_sound(in) &&
           base_is_sound(in) && streams.add(in.stream, in.events) &&
           streams.add(in.row_stream, in.rows) && streams.add(in.base_stream, in.base_segments);
}

}  // namespace vl::replay
