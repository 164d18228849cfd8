// Interning: equal strings, and equal runs of 32-bit ids, get one number each.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#if !defined(__SIZEOF_INT128__)
#include <intrin.h>
#endif

namespace vl {

uint64_t draw_seed();

// An odd number, drawn once a process: whoever writes a file cannot choose keys that all meet in
// one slot.
inline const uint64_t kHashSeed = draw_seed() | 1;

// Both halves of a 128-bit product, as in wyhash (github.com/wangyi-fudan/wyhash).
inline uint64_t mix(uint64_t hash, uint64_t word) {
#if defined(__SIZEOF_INT128__)
    __extension__ const auto product = static_cast<unsigned __int128>(hash ^ word) * kHashSeed;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
#else
    uint64_t high = 0;
    const uint64_t low = _umul128(hash ^ word, kHashSeed, &high);
    return low ^ high;
#endif
}

struct Scatter {  // a hash for the tables of the standard library
    size_t operator()(uint64_t word) const { return static_cast<size_t>(mix(mix(1, 8), word)); }
};

inline uint64_t hash_bytes(const uint8_t* bytes, size_t count) {
    uint64_t hash = mix(1, count), word = 0;
    for (; count >= 8; bytes += 8, count -= 8) {
        std::memcpy(&word, bytes, 8);
        hash = mix(hash, word);
    }
    if (count == 0) return hash;
    word = 0;
    std::memcpy(&word, bytes, count);
    return mix(hash, word);
}

// Runs of T stored one after the other in `items`; run i is items[starts[i]] .. items[starts[i +
// 1]].
template <typename T>
class Interner {
  public:
    std::vector<T> items;
    std::vector<uint64_t> starts{0};

    size_t size() const { return starts.size() - 1; }

    uint32_t id_of(const T* run, size_t count) {
        if (2 * (size() + 1) > slots_.size()) grow();
        const uint64_t hash = hash_of(run, count);
        size_t slot = hash & (slots_.size() - 1);
        for (; slots_[slot] != kEmpty; slot = (slot + 1) & (slots_.size() - 1)) {
            if (equals(slots_[slot], run, count)) return slots_[slot];
        }
        const auto id = static_cast<uint32_t>(size());
        items.insert(items.end(), run, run + count);
        starts.push_back(items.size());
        slots_[slot] = id;
        return id;
    }

  private:
    static constexpr uint32_t kEmpty = UINT32_MAX;
    std::vector<uint32_t> slots_;

    static uint64_t hash_of(const T* run, size_t count) {
        return hash_bytes(reinterpret_cast<const uint8_t*>(run), count * sizeof(T));
    }
    bool equals(uint32_t id, const T* run, size_t count) const {
        return starts[id + 1] - starts[id] == count &&
               (count == 0 || std::memcmp(items.data() + starts[id], run, count * sizeof(T)) == 0);
    }
    void grow() {
        std::vector<uint32_t> larger(slots_.empty() ? 64 : 2 * slots_.size(), kEmpty);
        for (uint32_t id = 0; id < size(); ++id) {
            size_t slot = hash_of(items.data() + starts[id], starts[id + 1] - starts[id]) &
                          (larger.size() - 1);
            while (larger[slot] != kEmpty) slot = (slot + 1) & (larger.size() - 1);
            larger[slot] = id;
        }
        slots_.swap(larger);
    }
};

}  // namespace vl
