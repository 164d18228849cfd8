// The ordered set of a pool's free blocks, as short sorted runs: near the speed of an array, and
// copied like one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace vl::replay {

constexpr uint32_t kNoBlock = UINT32_MAX;

// BlockComparatorSize: the stream (by the value of its pointer), the size, the version's tie order,
// the address.
struct FreeKey {
    uint64_t stream_and_size;  // the stream's rank above 48 bits of size
    uint64_t address;
    uint32_t counter;  // 0 where the version's tie order is the address
    uint32_t block;

    static uint64_t join(uint16_t stream, uint64_t size) { return uint64_t{stream} << 48 | size; }
    uint16_t stream() const { return static_cast<uint16_t>(stream_and_size >> 48); }
    uint64_t size() const { return stream_and_size & ((uint64_t{1} << 48) - 1); }
};

inline bool operator<(const FreeKey& a, const FreeKey& b) {
    if (a.stream_and_size != b.stream_and_size) return a.stream_and_size < b.stream_and_size;
    if (a.counter != b.counter) return a.counter < b.counter;
    if (a.address != b.address) return a.address < b.address;
    return a.block < b.block;  // only where a recording lists two segments at one address
}

class FreeBlocks {
  public:
    struct Place {  // of a key; past the last one: end()
        uint32_t run, index;
        bool operator==(const Place& other) const {
            return run == other.run && index == other.index;
        }
        bool operator!=(const Place& other) const { return !(*this == other); }
    };

    size_t size() const { return size_; }
    Place begin() const { return {0, 0}; }
    Place end() const { return {static_cast<uint32_t>(runs_.size()), 0}; }
    const FreeKey& operator[](Place place) const { return runs_[place.run][place.index]; }
    Place next(Place place) const {
        if (++place.index == runs_[place.run].size()) return {place.run + 1, 0};
        return place;
    }
    Place previous(Place place) const {
        if (place.index > 0) return {place.run, place.index - 1};
        return {place.run - 1, static_cast<uint32_t>(runs_[place.run - 1].size() - 1)};
    }

    // The first key that is not less.
    Place lower_bound(const FreeKey& key) const {
        uint32_t run = 0;
        if (runs_.size() > 1) {
            const auto at = std::lower_bound(last_.begin(), last_.end(), key);
            run = static_cast<uint32_t>(at - last_.begin());
        }
        if (run == runs_.size()) return end();
        const auto& keys = runs_[run];
        const auto index =
            static_cast<uint32_t>(std::lower_bound(keys.begin(), keys.end(), key) - keys.begin());
        return index == keys.size() ? Place{run + 1, 0} : Place{run, index};
    }

    void insert(const FreeKey& key) {
        ++size_;
        if (runs_.empty()) {
            runs_.emplace_back();
            runs_.back().reserve(kLongest);
            last_.push_back(key);
        }
        auto run =
            static_cast<size_t>(std::lower_bound(last_.begin(), last_.end(), key) - last_.begin());
        if (run == runs_.size()) --run;
        auto& keys = runs_[run];
        keys.insert(std::lower_bound(keys.begin(), keys.end(), key), key);
        last_[run] = keys.back();
        if (keys.size() == kLongest) split(run);
    }

    void erase(const FreeKey& key) {
        const Place at = lower_bound(key);
        if (at != end() && !(key < (*this)[at])) erase(at);
    }
    void erase(Place place) {
        --size_;
        auto& keys = runs_[place.run];
        keys.erase(keys.begin() + place.index);
        if (keys.empty()) {
            runs_.erase(runs_.begin() + place.run);
            last_.erase(last_.begin() + place.run);
        } else {
            last_[place.run] = keys.back();
        }
    }

  private:
    static constexpr size_t kLongest = 128;
    std::vector<std::vector<FreeKey>> runs_;
    std::vector<FreeKey> last_;  // of each run
    size_t size_ = 0;

    void split(size_t run) {
        std::vector<FreeKey> upper(runs_[run].begin() + kLongest / 2, runs_[run].end());
        upper.reserve(kLongest);
        runs_[run].resize(kLongest / 2);
        last_[run] = runs_[run].back();
        last_.insert(last_.begin() + static_cast<ptrdiff_t>(run) + 1, upper.back());
        runs_.insert(runs_.begin() + static_cast<ptrdiff_t>(run) + 1, std::move(upper));
    }
};

}  // namespace vl::replay
