#include "replay_addresses.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

namespace vl::replay {
namespace {

// The middle of the address space: room on both sides for more than any recording can hold.
constexpr uint64_t kMiddle = uint64_t{1} << 62;

class Ascending : public AddressSource {
  public:
    uint64_t take(uint64_t size) override {
        const uint64_t at = next_;
        next_ += size;
        return at;
    }
    void give_back(uint64_t, uint64_t) override {}

  private:
    uint64_t next_ = kMiddle;
};

class Descending : public AddressSource {
  public:
    uint64_t take(uint64_t size) override { return next_ -= size; }
    void give_back(uint64_t, uint64_t) override {}

  private:
    uint64_t next_ = kMiddle;
};

class Random : public AddressSource {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
    uint64_t take(uint64_t size) override {
        for (;;) {
            const uint64_t at = draw() >> 1 & ~((uint64_t{1} << 21) - 1);
            auto after = taken_.lower_bound(at);
            if (after != taken_.end() && after->first - at < size) continue;
            if (after != taken_.begin() && at - std::prev(after)->first < std::prev(after)->second)
                continue;
            taken_.emplace(at, size);
            return at;
        }
    }
    void give_back(uint64_t address, uint64_t) override { taken_.erase(address); }

  private:
    uint64_t state_;
    std::map<uint64_t, uint64_t> taken_;

    uint64_t draw() {  // splitmix64
        uint64_t z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return z ^ z >> 31;
    }
};

// The driver takes chunks of 32 MiB from the kernel, each from the highest range that is free; a
// segment goes to the chunk that was taken last and has room, at its lowest gap; an empty chunk
// goes back.
class Driver : public AddressSource {
  public:
    uint64_t take(uint64_t size) override {
        for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk) {
            if (chunk->largest_gap >= size) return put(*chunk, size);
        }
        const uint64_t length = (size + kChunk - 1) / kChunk * kChunk;
        chunks_.push_back({take_from_kernel(length), length, length, {}});
        return put(chunks_.back(), size);
    }
    void give_back(uint64_t address, uint64_t) override {
        const auto owner = owner_.find(address);
        if (owner == owner_.end()) return;
        size_t i = chunks_.size() - 1;
        while (chunks_[i].address != owner->second) --i;
        owner_.erase(owner);
        Chunk& chunk = chunks_[i];
        chunk.parts.erase(address);
        if (chunk.parts.empty()) {
            give_to_kernel(chunk.address, chunk.size);
            chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            measure(chunk);
        }
    }

  private:
    static constexpr uint64_t kChunk = uint64_t{32} << 20;
    struct Chunk {
        uint64_t address, size, largest_gap;
        std::map<uint64_t, uint64_t> parts;  // start, size
    };
    std::vector<Chunk> chunks_;              // in the order in which they were taken
    std::map<uint64_t, uint64_t> owner_;     // of a segment: its chunk
    std::map<uint64_t, uint64_t> returned_;  // ranges that went back to the kernel: start, size
    uint64_t lowest_ = kMiddle;

    uint64_t put(Chunk& chunk, uint64_t size) {
        uint64_t at = chunk.address;
        for (const auto& [start, length] : chunk.parts) {
            if (start - at >= size) break;
            at = start + length;
        }
        chunk.parts.emplace(at, size);
        owner_[at] = chunk.address;
        measure(chunk);
        return at;
    }
    static void measure(Chunk& chunk) {
        uint64_t at = chunk.address;
        chunk.largest_gap = 0;
        for (const auto& [start, length] : chunk.parts) {
            chunk.largest_gap = std::max(chunk.largest_gap, start - at);
            at = start + length;
        }
        chunk.largest_gap = std::max(chunk.largest_gap, chunk.address + chunk.size - at);
    }
    uint64_t take_from_kernel(uint64_t length) {
        for (auto range = returned_.rbegin(); range != returned_.rend(); ++range) {
            if (range->second < length) continue;
            range->second -= length;
            const uint64_t at = range->first + range->second;
            if (range->second == 0) returned_.erase(range->first);
            return at;
        }
        return lowest_ -= length;
    }
    void give_to_kernel(uint64_t address, uint64_t size) {
        auto range = returned_.emplace(address, size).first;
        const auto next = std::next(range);
        if (next != returned_.end() && range->first + range->second == next->first) {
            range->second += next->second;
            returned_.erase(next);
        }
        if (range != returned_.begin()) {
            const auto before = std::prev(range);
            if (before->first + before->second == range->first) {
                before->second += range->second;
                returned_.erase(range);
            }
        }
    }
};

}  // namespace

std::unique_ptr<AddressSource> make_address_source(AddressOrder order, uint64_t seed) {
    switch (order) {
        case AddressOrder::kAscending: return std::make_unique<Ascending>();
        case AddressOrder::kDescending: return std::make_unique<Descending>();
        case AddressOrder::kRandom: return std::make_unique<Random>(seed);
        default: return std::make_unique<Driver>();
    }
}

}  // namespace vl::replay
